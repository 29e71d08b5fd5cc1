"""A loader's share of the event loop of a sampling process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.service.turns import Lane, Turns

T = TypeVar("T")


class LoopShare(ConcurrentEventLoop):
    """Runs the batches of one loader on the loop that all loaders of the process share, when it is their turn.

    Args:
        loop: The shared loop, with as many places as ``turns``.
        turns: Who comes next.
        lane: That of the loader.
    """

    def __init__(self, loop: ConcurrentEventLoop, turns: Turns, lane: Lane) -> None:  # the shared threads are enough
        self._shared, self._turns, self._lane = loop, turns, lane
        self.concurrency = lane.most
        self._closed = False
        self._lock = threading.Lock()
        self._tasks: set[concurrent.futures.Future[Any]] = set()  # of this loader alone

    def submit(
        self, make_task: Callable[[], Coroutine[Any, Any, T]], is_stopped: Callable[[], bool] = lambda: False
    ) -> concurrent.futures.Future[T] | None:
        def is_over() -> bool:
            return self._closed or is_stopped()

        if not self._turns.acquire(self._lane, is_over):
            return None
        future = self._shared.submit(make_task, is_over)
        if future is None:
            self._turns.release(self._lane)
        else:
            with self._lock:
                self._tasks.add(future)
            future.add_done_callback(self._done)
        return future

    def _done(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._tasks.discard(future)
        self._turns.release(self._lane)

    def create_future(self) -> asyncio.Future[None]:
        return self._shared.create_future()

    def run_native(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return self._shared.run_native(call, *args)

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """Begins nothing more; the loop itself goes on for others."""
        self._closed = True
        self._turns.interrupt(self._lane)
