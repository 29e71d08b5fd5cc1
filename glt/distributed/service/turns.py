"""Who may begin a batch next, among the loaders that share a sampling process."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

_SLACK = 4.0  # batches


class Lane:
    """One loader among those that share. See :class:`Turns`.

    Attributes:
        most: Batches of it in flight at most.
        num_running: Batches of it in flight.
        num_begun: Batches begun so far.
    """

    def __init__(self, most: int, may_begin: Callable[[], bool], lock: threading.Lock) -> None:
        self.most, self.may_begin = most, may_begin
        self.turn = threading.Condition(lock)  # where whoever wants to begin a batch of it waits
        self.num_running = self.num_begun = 0
        self.is_waiting = False
        self.passed = 0.0  # virtual time at which its next batch begins


class Turns:
    """Places for batches in flight, given to lanes in turn.

    A place goes to the waiting lane that was served least, counted in batches since it came or came back: start-time
    fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with batches of cost 1. So lanes that always want to go on begin
    equally many batches, however many of them there are and however long each is made to wait for its client in
    between; and one whose client takes nothing holds no place, since it does not begin.

    Whenever something changed only the lane that is next is woken: waking all, each of which looks at all, made a batch
    cost 57 ms of CPU where 200 loaders waited.

    Args:
        num_places: Batches in flight at most, over all lanes.
    """

    def __init__(self, num_places: int) -> None:
        if num_places < 1:
            raise ValueError(f"num_places = {num_places}: expected at least 1")
        self.num_places = num_places
        self._free = num_places
        self._now = 0.0  # virtual time: where the lane is that was served last
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []

    def add(self, most: int, may_begin: Callable[[], bool]) -> Lane:
        """Adds a lane.

        Args:
            most: Batches of it in flight at most.
            may_begin: Whether it may begin a batch now; must not block, and is called under a lock.
        """
        lane = Lane(most, may_begin, self._lock)
        with self._lock:
            lane.passed = self._now
            self._lanes.append(lane)
        return lane

    def remove(self, lane: Lane) -> None:
        """Removes a lane; batches that it has in flight still give back their places."""
        with self._lock:
            if lane in self._lanes:
                self._lanes.remove(lane)
            lane.turn.notify_all()  # it may be stopped
            self._wake_next()

    def acquire(self, lane: Lane, is_stopped: Callable[[], bool], poll_s: float = 0.1) -> bool:
        """Waits until ``lane`` may begin a batch; false if ``is_stopped`` said so before, which is looked at every
        ``poll_s`` seconds, and after :meth:`interrupt`."""
        with self._lock:
            lane.is_waiting = True
            try:
                while not is_stopped():
                    if self._may(lane) and self._next() is lane:
                        self._free -= 1
                        lane.num_running += 1
                        lane.num_begun += 1
                        start = self._start(lane)
                        self._now, lane.passed = max(self._now, start), start + 1
                        return True
                    lane.turn.wait(poll_s)
                return False
            finally:
                lane.is_waiting = False
                self._wake_next()  # it may be another's turn now

    def release(self, lane: Lane) -> None:
        """Gives back the place of a batch of ``lane``."""
        with self._lock:
            self._free += 1
            lane.num_running -= 1
            self._wake_next()

    def look_again(self) -> None:
        """Says that a lane may begin now that could not before."""
        with self._lock:
            self._wake_next()

    def interrupt(self, lane: Lane) -> None:
        """Says that whoever waits for ``lane`` is stopped."""
        with self._lock:
            lane.turn.notify_all()

    def _wake_next(self) -> None:
        following = self._next()
        if following is not None:
            following.turn.notify_all()

    def _may(self, lane: Lane) -> bool:
        return lane.is_waiting and lane.num_running < lane.most and lane.may_begin()

    def _next(self) -> Lane | None:
        if not self._free:
            return None
        found, earliest = None, math.inf
        for lane in self._lanes:
            # In this order: whether it may is the dearest question, and asked of few.
            if lane.is_waiting and (start := self._start(lane)) < earliest and self._may(lane):
                found, earliest = lane, start
        return found

    def _start(self, lane: Lane) -> float:
        """When its next batch begins, in virtual time. What a lane left unused while it could not begin is not saved
        up, or it would hold up all others when it can: only what it may have missed on its way back here."""
        return max(lane.passed, self._now - _SLACK)
