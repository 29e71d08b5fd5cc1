"""Who may begin a batch next, among the loaders that share a sampling process."""

from __future__ import annotations

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

    def __init__(self, most: int, may_begin: Callable[[], bool]) -> None:
        self.most, self.may_begin = most, may_begin
        self.num_running = self.num_begun = 0
        self.is_waiting = False
        self.passed = 0.0  # virtual time at which its next batch begins


class Turns:
    """Places for batches in flight, given to lanes in turn.

    A place goes to the waiting lane that was served least, counted in batches since it came or came back: start-time
    fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with batches of cost 1. So lanes that always want to go on begin
    equally many batches, however many of them there are and however long each is made to wait for its client in
    between; and one whose client takes nothing holds no place, since it does not begin.

    Args:
        num_places: Batches in flight at most, over all lanes.
    """

    def __init__(self, num_places: int) -> None:
        if num_places < 1:
            raise ValueError(f"num_places = {num_places}: expected at least 1")
        self.num_places = num_places
        self._free = num_places
        self._now = 0.0  # virtual time: where the lane is that was served last
        self._changed = threading.Condition()
        self._lanes: list[Lane] = []

    def add(self, most: int, may_begin: Callable[[], bool]) -> Lane:
        """Adds a lane.

        Args:
            most: Batches of it in flight at most.
            may_begin: Whether it may begin a batch now; must not block, and is called under a lock.
        """
        lane = Lane(most, may_begin)
        with self._changed:
            lane.passed = self._now
            self._lanes.append(lane)
        return lane

    def remove(self, lane: Lane) -> None:
        """Removes a lane; batches that it has in flight still give back their places."""
        with self._changed:
            if lane in self._lanes:
                self._lanes.remove(lane)
            self._changed.notify_all()

    def acquire(self, lane: Lane, is_stopped: Callable[[], bool], poll_s: float = 0.1) -> bool:
        """Waits until ``lane`` may begin a batch; false if ``is_stopped`` said so before."""
        with self._changed:
            lane.is_waiting = True
            try:
                while not is_stopped():
                    if self._next() is lane:
                        self._free -= 1
                        lane.num_running += 1
                        lane.num_begun += 1
                        start = self._start(lane)
                        self._now, lane.passed = max(self._now, start), start + 1
                        return True
                    self._changed.wait(poll_s)
                return False
            finally:
                lane.is_waiting = False
                self._changed.notify_all()  # another may be next now

    def release(self, lane: Lane) -> None:
        """Gives back the place of a batch of ``lane``."""
        with self._changed:
            self._free += 1
            lane.num_running -= 1
            self._changed.notify_all()

    def look_again(self) -> None:
        """Says that a lane may begin now that could not before."""
        with self._changed:
            self._changed.notify_all()

    def _next(self) -> Lane | None:
        if not self._free:
            return None
        ready = [each for each in self._lanes if each.is_waiting and each.num_running < each.most and each.may_begin()]
        return min(ready, key=self._start, default=None)

    def _start(self, lane: Lane) -> float:
        """When its next batch begins, in virtual time. What a lane left unused while it could not begin is not saved
        up, or it would hold up all others when it can: only what it may have missed on its way back here."""
        return max(lane.passed, self._now - _SLACK)
