"""How everything here is measured: contestants interleaved in one run, pinned, median and spread, the machine named.

Absolute figures move from machine to machine, and on a busy one from minute to minute; ratios between contestants that
took turns in one run hold. So a result is always a table of contestants, never a figure alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import platform
import resource
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"


@dataclass
class Timing:
    """What one contestant did: one entry per round in each list, of so many units of work (say, edges) each."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)  # of all threads: on a busy machine the truer measure
    work: list[float] = field(default_factory=list)
    page_faults: list[int] = field(default_factory=list)

    def median(self, scale: float = 1.0) -> float:
        """Median of the seconds of a round, times ``scale``."""
        return float(np.median(self.seconds) * scale)

    def quartiles(self, scale: float = 1.0) -> str:
        """Lower and upper quartile of the seconds of a round, times ``scale``."""
        low, high = np.percentile(self.seconds, [25, 75]) * scale
        return f"{low:.3g}-{high:.3g}"

    def cpu(self, scale: float = 1.0) -> float:
        """Median of the CPU seconds of a round, times ``scale``."""
        return float(np.median(self.cpu_seconds) * scale)

    def rate(self) -> float:
        """Median of the units of work per second."""
        return float(np.median(np.divide(self.work, self.seconds)))

    def over(self, other: Timing) -> float:
        """Median of how many times ``other``'s rate this is, round by round: rounds next to each other find the machine
        equally busy, medians of whole runs need not."""
        rate, base = np.divide(self.work, self.seconds), np.divide(other.work, other.seconds)
        return float(np.median(rate / base))

    def best_rate(self) -> float:
        return float(np.max(np.divide(self.work, self.seconds)))


def interleave(contestants: dict[str, Callable[[], float]], rounds: int, warmup: int = 1) -> dict[str, Timing]:
    """Runs ``warmup`` unmeasured rounds, then ``rounds`` measured ones, taking turns: A B C A B C ...

    A contestant does one round of work and returns how many units that was. Garbage is collected between rounds only,
    as timeit does: whose round a collection falls into is chance, and it walks all objects of torch.
    """
    timings = {name: Timing() for name in contestants}
    with collection_off():
        _take_turns(contestants, rounds, warmup, timings)
    return timings


def _take_turns(
    contestants: dict[str, Callable[[], float]], rounds: int, warmup: int, timings: dict[str, Timing]
) -> None:
    for number in range(warmup + rounds):
        for name, contestant in contestants.items():
            gc.collect()
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            start, cpu_start = time.perf_counter(), time.process_time()
            work = contestant()
            seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
            if number >= warmup:
                timings[name].seconds.append(seconds)
                timings[name].cpu_seconds.append(cpu_seconds)
                timings[name].work.append(work)
                timings[name].page_faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)


@contextlib.contextmanager
def collection_off() -> Iterator[None]:
    """Without Python's garbage collection, which is as it was afterwards."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def require(holds: bool, what: str) -> None:
    """Raises unless a check before the timing holds."""
    if not holds:
        raise ValueError(f"{what}; its figures would mean nothing")


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` in a process of its own, so that what ran here before cannot matter."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args).result()


@contextlib.contextmanager
def pinned(num_cores: int = 1) -> Iterator[list[int]]:
    """Binds this thread, and those it starts, to the first ``num_cores`` cores it may use; torch uses as many threads.

    Yields the cores: fewer than asked for on a machine that has fewer.
    """
    allowed, num_threads = os.sched_getaffinity(0), torch.get_num_threads()
    cores = sorted(allowed)[-num_cores:]  # the last ones: the first serves most interrupts
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    try:
        yield cores
    finally:
        os.sched_setaffinity(0, allowed)
        torch.set_num_threads(num_threads)


def find_peers(*names: str) -> dict[str, ModuleType]:
    """The modules that can be imported; says by name which cannot."""
    found = {}
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = importlib.import_module(name)
        except (ImportError, OSError) as error:  # OSError: built against another torch
            print(f"absent: {name} ({error})")
    return found


def machine() -> dict[str, str | int | float | list[float]]:
    """What the figures were taken on, and how busy it was."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    thp = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "thp": thp.read_text().split("[")[1].split("]")[0] if thp.exists() else "none",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "glt": glt_commit(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def glt_commit(checkout: Path = Path(__file__).parent) -> str:
    if shutil.which("git") is None:
        return "unknown, there is no git here"
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "not a git checkout"


class Report:
    """The rows of one benchmark: printed as a table, kept as JSON in benchmarks/results/<name>.json."""

    def __init__(self, name: str, toy: bool) -> None:
        self.name, self.toy, self.rows = name, toy, []
        self.machine = machine()
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in self.machine.items())}", flush=True)

    def add(self, **row: str | float | int | None) -> None:
        self.rows.append(row)

    def print_rows(self, rows: list[dict[str, str | float | int | None]]) -> None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = [columns, *([show(row.get(key)) for key in columns] for row in rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
        for line in table:
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        print(flush=True)

    def finish(self) -> None:
        """Prints the table and writes the JSON; a toy run proves that the benchmark runs, so it leaves no figures."""
        self.print_rows(self.rows)
        if self.toy:
            return
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps({"benchmark": self.name, "machine": self.machine, "rows": self.rows}, indent=1)
        (RESULTS / f"{self.name}.json").write_text(text + "\n")


def show(value: str | float | int | None) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


def arguments(description: str | None, rounds: int, **flags: dict[str, Any]) -> argparse.Namespace:
    """Parses what every benchmark takes, --toy and --rounds, and more ``flags``: argparse's options by their names."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n\n")[0])
    parser.add_argument("--toy", action="store_true", help="a toy graph and two rounds: shows that the benchmark runs")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="measured rounds per contestant (default %(default)s)"
    )
    for name, more in flags.items():
        parser.add_argument(f"--{name}", **more)
    options = parser.parse_args()
    if options.toy:
        options.rounds = min(options.rounds, 2)
    return options
