"""Turns between the loaders of a sampling process: which of them may begin the next batch."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from glt.distributed.wire.threads import ConcurrentEventLoop

T = TypeVar("T")

_SLACK = 4.0  # batches


class Flow:
    """Batches of one loader. ``wake`` is called under the scheduler's lock when it may be its turn; by default it wakes
    the thread in :meth:`FairScheduler.acquire`."""

    def __init__(
        self, most: int, may_begin: Callable[[], bool], lock: threading.Lock, wake: Callable[[], None] | None
    ) -> None:
        self.most, self.may_begin = most, may_begin
        self.turn = threading.Condition(lock)
        self.wake = wake or self.turn.notify_all
        self.num_running = self.num_begun = 0
        self.is_waiting = False
        self.finish_tag = 0.0  # virtual time at which its last batch ends


class FairScheduler:
    """Gives places for batches in flight, ``num_places`` in all, to flows in turn.

    A place goes to the waiting flow that was served least, counted in batches since it came or came back: start-time
    fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with batches of cost 1. A flow whose client takes nothing holds
    no place. After a change only the next flow is woken: waking all made a batch cost 57 ms of CPU with 200 loaders.
    """

    def __init__(self, num_places: int) -> None:
        self._free = num_places
        self._now = 0.0  # virtual time: the start tag of the batch that began last
        self._lock = threading.Lock()
        self._flows: list[Flow] = []

    def add(self, most: int, may_begin: Callable[[], bool], wake: Callable[[], None] | None = None) -> Flow:
        """Adds a flow. ``may_begin`` is called under a lock and must not block; nor may ``wake``, which a flow has that
        asks with :meth:`try_acquire`."""
        flow = Flow(most, may_begin, self._lock, wake)
        with self._lock:
            flow.finish_tag = self._now
            self._flows.append(flow)
        return flow

    def remove(self, flow: Flow) -> None:
        """Removes a flow, which begins no more; its batches in flight still give back their places."""
        with self._lock:
            if flow in self._flows:
                self._flows.remove(flow)
            flow.turn.notify_all()  # it may be stopped
            # What they are bound to has the flow, and in a circle it would keep its memory until Python's collection.
            flow.may_begin, flow.wake = lambda: False, lambda: None
            self._wake_next()

    def acquire(self, flow: Flow, is_stopped: Callable[[], bool]) -> bool:
        """Waits until ``flow`` may begin a batch; false if ``is_stopped``, asked now and then, said so before."""
        with self._lock:
            flow.is_waiting = True
            try:
                while not is_stopped():
                    if self._take(flow):
                        return True
                    flow.turn.wait(0.1)
                return False
            finally:
                flow.is_waiting = False
                self._wake_next()  # it may be another's turn now

    def try_acquire(self, flow: Flow) -> bool:
        """As :meth:`acquire`, without waiting: if it is not its turn, ``flow`` waits, and is woken when it is, to try
        again."""
        with self._lock:
            flow.is_waiting = True
            if not self._take(flow):
                return False
            flow.is_waiting = False
            self._wake_next()
            return True

    def _take(self, flow: Flow) -> bool:
        if not (self._may(flow) and self.next_flow() is flow):
            return False
        self._free -= 1
        flow.num_running += 1
        flow.num_begun += 1
        start = self._start_tag(flow)
        self._now, flow.finish_tag = max(self._now, start), start + 1
        return True

    def release(self, flow: Flow) -> None:
        with self._lock:
            self._free += 1
            flow.num_running -= 1
            self._wake_next()

    def look_again(self) -> None:
        with self._lock:
            self._wake_next()

    def _wake_next(self) -> None:
        following = self.next_flow()
        if following is not None:
            following.wake()

    def _may(self, flow: Flow) -> bool:
        return flow.is_waiting and flow.num_running < flow.most and flow.may_begin()

    def next_flow(self) -> Flow | None:
        """The flow that may begin a batch now; of several, the one with the earliest start tag."""
        if not self._free:
            return None
        found, earliest = None, math.inf
        for flow in self._flows:
            # In this order: whether it may begin is the dearest question, and asked of few.
            if flow.is_waiting and (start := self._start_tag(flow)) < earliest and self._may(flow):
                found, earliest = flow, start
        return found

    def _start_tag(self, flow: Flow) -> float:
        """When its next batch begins, in virtual time. A flow that could not begin saves up at most ``_SLACK`` batches,
        or it would hold up all others later."""
        return max(flow.finish_tag, self._now - _SLACK)


class ScheduledLoop(ConcurrentEventLoop):
    """Runs the batches of one loader on the loop that all loaders of the process share, when it is their turn."""

    def __init__(self, loop: ConcurrentEventLoop, scheduler: FairScheduler, flow: Flow) -> None:
        # Not of the base class: it would start threads, and the shared ones are enough.
        self._shared, self._scheduler, self._flow = loop, scheduler, flow
        self.concurrency = flow.most

    def submit(
        self, make_task: Callable[[], Coroutine[Any, Any, T]], is_stopped: Callable[[], bool] = lambda: False
    ) -> concurrent.futures.Future[T] | None:
        if not self._scheduler.acquire(self._flow, is_stopped):
            return None
        future = self._shared.submit(make_task, is_stopped)
        if future is None:
            self._scheduler.release(self._flow)
        else:
            future.add_done_callback(lambda _: self._scheduler.release(self._flow))
        return future

    def run_native(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return self._shared.run_native(call, *args)
