"""Time bounds that are promised for a machine with nothing else to do, checked on any machine."""

import os
import signal
import threading
import time
from pathlib import Path

WITHIN_S = 10.0
"""Whatever dies or is wrong, those who depended on it say so within this time."""

_PROBE_S = 0.5
_MOST = 6.0  # times as slow: beyond that a bound says nothing of what is tested
_PATIENCE_S = 60.0


def expect_prompt(seconds, what, within_s=WITHIN_S):
    """Raises AssertionError if something took longer than ``within_s``, and that is not the doing of other programs.

    Only then the load of the machine is looked at: a process that does nothing but compute gets all of a core on a
    machine with nothing else to do, and the bound is what is promised; where it gets a third, things may take three
    times as long. The load is that of now, or that of the last minute, since what took so long is over.
    """
    if seconds < within_s:
        return
    stretch = min(_MOST, max(_stretch(), os.getloadavg()[0] / (os.cpu_count() or 1)))
    assert seconds < within_s * stretch, (
        f"{what} took {seconds:.1f} s: expected {within_s:g} s, times {stretch:.2f} for the load of this machine"
    )


def eventually(condition):
    """Waits until a condition holds which others bring about in their own time; False if they do not in a minute."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def freeze(pid):
    """Stops a process with SIGSTOP; returns when all of its threads have stopped, which is a little later."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    # "pid (name) state ..."
    assert eventually(
        lambda: all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())
    )


def wait_for_drains():
    """Waits for the threads on which loaders of this process end."""
    for thread in threading.enumerate():
        if thread.name == "glt-drain":
            thread.join(100)


def _stretch():
    """How many seconds it takes here and now to get one second of processor time."""
    start, used = time.monotonic(), time.process_time()
    while time.process_time() - used < _PROBE_S:
        pass
    return (time.monotonic() - start) / _PROBE_S
