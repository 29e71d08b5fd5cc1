"""One part of the GPU benchmarks in a process of its own: who starts it and waits for it, and what runs in it.

An illegal address ends CUDA for its process, and a hang ends nothing: both are to cost that part alone. What it had on
the GPU is gone after it. Its rows come through a file, one a line as they are measured, so that those before a crash
are kept.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._harness import Report

ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Part:
    """What is run, and how long that takes.

    Args:
        function: ``module:function``, called as ``function(report, device)``.
        seconds: About so many on an H200 with 16 cores.
    """

    function: str
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How a part ended: ``"done"``, or what was wrong; and the rows that it had until then.

    ``ends_run``: the exit status of the run if that was told to end meanwhile.
    """

    outcome: str
    seconds: float
    rows: list[dict[str, Any]]
    ends_run: int | None = None


# In the process that starts parts.


def run_part(part: Part, *, toy: bool, folder: Path, seconds: float) -> Outcome:
    """Runs ``part`` for at most that long; ``folder`` is where parts may leave what others need too. SystemExit with a
    number, which handlers of signals raise, ends it early: its rows are kept."""
    status, ends_run = None, None
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch) / "told"
        begin = time.monotonic()
        # The clock has one beginning for all processes of a machine.
        given = {"toy": toy, "told": str(told), "folder": str(folder), "end": begin + seconds}
        try:
            command = [sys.executable, "-m", "benchmarks.gpu.part", part.function, json.dumps(given)]
            status = run_within(command, seconds)
        except SystemExit as told_to_end:
            ends_run = int(told_to_end.code or 0)
        taken = time.monotonic() - begin
        lines = told.read_text().split("\n")[:-1] if told.exists() else []  # a last one without an end is torn
    words = [json.loads(line) for line in lines]
    failures = [word["failed"] for word in words if "failed" in word]
    if ends_run is not None:
        outcome = "interrupted"
    elif status is None:
        outcome = f"stopped: it had not ended after {seconds:.3g} s"
    elif failures:
        outcome = f"failed: {failures[0]}"
    elif status < 0:
        named = {each.value: each.name for each in signal.Signals}  # those of real time have no names
        outcome = f"ended by {named.get(-status, f'signal {-status}')}"
    else:
        outcome = f"ended with exit status {status}" if status else "done"
    return Outcome(outcome, round(taken, 1), [word["row"] for word in words if "row" in word], ends_run)


def run_within(command: list[str], seconds: float) -> int | None:
    """Runs a program from the root of the repository; returns its exit status, or None if it did not end in time.

    Raises:
        RuntimeError: If it cannot be killed.
    """
    sys.stdout.flush()  # what was printed before comes before what it prints
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill_session(process)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a process and of all that it started, which would take the GPU's time from the next."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing is left, as it should be
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"process {process.pid} is there 10 s after SIGKILL, expected it to be gone: the driver holds it, and "
            "figures beside it mean nothing; restart the machine, then run the same again"
        ) from None


# In the process of a part.


class PartReport(Report):
    """Rows of one part, told to the process that started it.

    Attributes:
        toy: Whether sizes are to be toy ones.
        folder: Where it may leave what other parts need too, such as the partitioned graph.
    """

    def __init__(self, toy: bool, told: str, folder: str, end: float) -> None:
        # Not Report's: the machine is named once, by the process that started this one.
        self.name, self.toy, self.rows, self.folder = "gpu", toy, [], Path(folder)
        self._end = end
        self._told = Path(told)

    def add(self, **row: str | float | int | None) -> None:
        self.rows.append(row)
        self.tell(row=row)

    def tell(self, **word: Any) -> None:
        with self._told.open("a") as file:
            file.write(json.dumps(word) + "\n")

    def seconds_left(self) -> float:
        """Until this process is killed, less what it needs to end by itself."""
        return self._end - time.monotonic() - (1 if self.toy else 10)

    def has_room_for(self, seconds: float) -> bool:
        return seconds < self.seconds_left()


def look(report: Report, device: Any) -> None:
    """What is here: the GPU, and the extension that is timed. A part, so that its starter holds neither."""
    import torch

    from glt import _core
    from glt.data.device import missing_for_cuda

    on_gpu = device.type == "cuda"
    report.add(
        missing=missing_for_cuda(), gpu=torch.cuda.get_device_name(device) if on_gpu else None,
        cuda=str(torch.version.cuda) if on_gpu else None,
        extension=hashlib.md5(Path(_core.__file__).read_bytes()).hexdigest(),
    )  # fmt: skip


def main() -> int:
    # Whoever started this may be killed: nobody would stop it then.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    import torch

    from glt.data.device import missing_for_cuda

    module, _, function = sys.argv[1].partition(":")
    report = PartReport(**json.loads(sys.argv[2]))
    on_gpu = missing_for_cuda() is None
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    try:
        getattr(importlib.import_module(module), function)(report, device)
        if on_gpu and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(device)  # faults of kernels that nobody has waited for are this part's
    except Exception as error:  # who started this writes it down, and goes on with other parts
        traceback.print_exc()
        report.tell(failed=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
