"""The native core under sanitizers: its tests, and what it makes of damaged files that nobody verified."""

import os
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import sanitized
from score import Clock, Score, side_by_side

HERE = Path(__file__).parent
BUILD_S = 1500.0
NUM_LANES = 2  # processes that read damaged files
NUM_DAMAGES = 20_000
NUM_TOY_DAMAGES = 120
MEMORY = "address,undefined"
THREADS = "thread"

# What each runs, by file of test/; a toy runs the first of them.
TESTS = {
    MEMORY: ["core", "channel/test_ring.py", "cuda/test_device_batch.py"],
    THREADS: ["core/test_threads.py", "core/test_slot_cache.py", "core/test_row_table.py", "channel/test_ring.py"],
}
TOY_TESTS = ["core/test_batch.py", "core/test_weights.py", "core/test_gather.py", "core/test_row_table.py"]
LEFT_OUT = {
    MEMORY: "page_faults or asked_ahead or aarch64",  # what sanitizers change; and what they do not run
    THREADS: "page_faults or fork or daemon",  # a fork has no other threads: TSan takes their locks for held
}


def damage(score: Score, clock: Clock, most: int, is_toy: bool) -> None:
    name = "damaged files, read under address and undefined sanitizers"
    if not score.wants(name):
        return
    environment = sanitized.build(MEMORY, BUILD_S)
    # A toy does all of its few, however long the build took.
    tries, clock = (NUM_TOY_DAMAGES, Clock(BUILD_S)) if is_toy else (min(most, NUM_DAMAGES), clock)

    def read(lane: int, share: Clock) -> None:
        first, end = lane, tries
        while first < end and not share.is_over:
            last, report = _read_damaged(environment, score.seed, first, -(-(end - first) // NUM_LANES), share)
            for _ in range(first, last + (NUM_LANES if report is None else 0), NUM_LANES):
                score.note(name, True)
            if report is not None:
                score.note(name, False, f"damage.py --seed {score.seed} --first {last} --most 1: {report}")
            first = last + NUM_LANES

    side_by_side(NUM_LANES, clock, [partial(read, lane) for lane in range(NUM_LANES)])


def _read_damaged(environment, seed: int, first: int, most: int, clock: Clock) -> tuple[int, str | None]:
    """Tries damages until one is not survived; returns the number of the last, and what was said of it."""
    command = [sys.executable, str(HERE / "damage.py"), "--seed", str(seed), "--first", str(first)]
    command += ["--step", str(NUM_LANES), "--most", str(most), "--seconds", str(clock.left_s)]
    process = subprocess.Popen(
        command, env=environment, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    listening = threading.Thread(target=lambda: said.append(process.stderr.read()), daemon=True)
    listening.start()
    last, what = first - NUM_LANES, "before the first try"
    for line in process.stdout:
        if line.startswith("try "):
            last, what = int(line.split()[1]), line.strip()
    listening.join()
    status = process.wait()
    return (last, None) if status == 0 else (max(last, first), f"status {status}, {what}: {_report(said[0])}")


def sanitizers(score: Score, clock: Clock, most: int, is_toy: bool) -> None:
    for which in (MEMORY,) if is_toy else (MEMORY, THREADS):
        name = f"tests of the core under sanitizers: {which}"
        if score.wants(name):
            _run_tests(score, name, which, TOY_TESTS if is_toy else TESTS[which])


def _run_tests(score: Score, name: str, which: str, tests: list[str]) -> None:
    # Plugins of other packages of this environment have no part in it: anyio's, for one, makes the run fail.
    environment = sanitized.build(which, BUILD_S) | {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # The tests' own C++ is checked likewise.
    compiler = f"{os.environ.get('CXX', 'g++')} -fsanitize={which}"
    plugins = ("xdist.plugin", "pytest_timeout", "_hypothesis_pytestplugin", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "-q", *(word for each in plugins for word in ("-p", each))]
    command += ["-n", "2", "--dist", "loadfile", "-k", f"not ({LEFT_OUT[which]})", "--timeout", "900", *tests]
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment | {"CXX": compiler}, capture_output=True, text=True, timeout=3600
    )
    told = done.stdout + done.stderr
    passed = int((re.findall(r"(\d+) passed", told) or ["0"])[0])
    for _ in range(passed):
        score.note(name, True)
    if done.returncode or not passed or any(mark in told for mark in sanitized.MARKS):
        score.note(name, False, _report(told))


def _report(told: str) -> str:
    """The end of what a process said, or what a sanitizer said."""
    lines = told.splitlines()
    begins = [i for i, line in enumerate(lines) if any(mark in line for mark in sanitized.MARKS)]
    return "\n".join(lines[begins[0] : begins[0] + 25] if begins else lines[-25:])
