"""The order in which the changes of one handle are made, whichever threads they come to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE_S = 60.0


class Turn:
    """Numbers of changes, from 1. They are begun in the order of their numbers, each when the one before is done, well
    or badly; whoever waits therefore waits for one that has a thread already."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_done = 0
        self._ended = False

    def end(self) -> None:
        """Nobody waits any more: what is still to come does not count on those before it, which may never come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, number: int) -> None:
        """Waits until the change of this number is done.

        Raises:
            RuntimeError: If it does not come, or was ended.
        """
        with self._changed:
            come = self._changed.wait_for(lambda: self._num_done >= number or self._ended, _PATIENCE_S)
            if self._ended:
                raise RuntimeError("the trainer of this change is gone")
            if not come:
                raise RuntimeError(f"change {self._num_done + 1} of a tensor did not come within {_PATIENCE_S:g} s; "
                                   "later ones wait for it")  # fmt: skip

    @contextmanager
    def of(self, number: int) -> Iterator[None]:
        """Waits for the turn of a change, and ends it."""
        try:
            self.wait(number - 1)
            yield
        finally:
            with self._changed:
                self._num_done = max(self._num_done, number)
                self._changed.notify_all()
