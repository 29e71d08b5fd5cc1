"""Time bounds that are promised for a machine with nothing else to do, checked on any machine."""

from __future__ import annotations

import time

WITHIN_S = 10.0
"""Whatever dies or is wrong, those who depended on it say so within this time."""

_PROBE_S = 0.5


def expect_prompt(seconds: float, what: str) -> None:
    """Raises AssertionError if something took longer than ``WITHIN_S``, and that is not the doing of other programs.

    Only then the load of the machine is looked at: a process that does nothing but compute gets all of a core on a
    machine with nothing else to do, and the bound is what is promised; where it gets a third, things may take three
    times as long.
    """
    if seconds < WITHIN_S:
        return
    stretch = _stretch()
    assert seconds < WITHIN_S * stretch, (
        f"{what} took {seconds:.1f} s: expected {WITHIN_S:g} s, times {stretch:.2f} for the load of this machine"
    )


def _stretch() -> float:
    """How many seconds it takes here and now to get one second of processor time."""
    start, used = time.monotonic(), time.process_time()
    while time.process_time() - used < _PROBE_S:
        pass
    return (time.monotonic() - start) / _PROBE_S
