"""What happens every second on the loop of this process: signs of life, and looks at whether others give some."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from glt import _deadlines as deadlines
from glt.distributed.wire.threads import call_on_loop, process_loop


class _Beats:
    """The calls that are made every second. On the loop; without any, there is no timer.

    Attributes:
        woke_s: When this process last went on after it had been stopped, of ``time.monotonic()``. What others sent
            meanwhile has not been read, and nothing follows from their silence.
    """

    def __init__(self) -> None:
        self.woke_s = 0.0
        self._ticks: set[Callable[[], None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._beat_s = 0.0

    def add(self, tick: Callable[[], None]) -> None:
        self._ticks.add(tick)
        if self._timer is None:
            self._go_on()

    def discard(self, tick: Callable[[], None]) -> None:
        self._ticks.discard(tick)

    def _go_on(self) -> None:
        self._beat_s = time.monotonic()
        self._timer = process_loop.get().call_later(deadlines.BEAT_S, self._beat)

    def _beat(self) -> None:
        now, self._timer = time.monotonic(), None
        # Where tests set STUCK_S to seconds, not so after each pause that is a little longer than a beat.
        if now - self._beat_s > max(deadlines.STUCK_S / 2, 2 * deadlines.BEAT_S):
            self.woke_s = now
        # One after the other on the loop: what one raises, in what is told of an end, keeps no other from its turn.
        for tick in self._ticks:
            process_loop.get().call_soon(tick)
        if self._ticks:
            self._go_on()


beats = _Beats()


def add_tick(tick: Callable[[], None]) -> None:
    """Calls ``tick`` on the loop every second from now on. From any thread."""
    call_on_loop(beats.add, tick)


def discard_tick(tick: Callable[[], None]) -> None:
    """Ends that. From any thread."""
    call_on_loop(beats.discard, tick)


# A fork has none of its parent's connections.
os.register_at_fork(after_in_child=lambda: beats.__init__())  # type: ignore[misc]
