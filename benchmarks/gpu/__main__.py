"""Builds, checks every kernel against the CPU, times what runs on the GPU: ``python -m benchmarks.gpu [PART ...]``.

It ends within ten minutes. After each part ``benchmarks/results/gpu.json`` has its rows, and ``gpu.md`` beside it says
what holds and what does not. The same command goes on with what is missing there, as long as the GPU and the compiled
extension are the same. Without a GPU it says what is missing; with --toy the parts then run on the CPU, through the
kernels' host executor, which shows that they run and nothing else.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks._harness import RESULTS, Report
from benchmarks.gpu.part import Part, run_part, run_within
from benchmarks.gpu.results import Results

# In the order of what matters. The seconds are those of the first half hour, where some were measured together.
PARTS = {
    "checks": Part("benchmarks.gpu.checks:measure", 120),
    "gather": Part("benchmarks.gpu.gather:measure", 20),
    "sampling": Part("benchmarks.gpu.sampling:measure", 20),
    "reads": Part("benchmarks.gpu.reads:measure", 50),
    "links": Part("benchmarks.gpu.links:measure", 10),
    "kernels": Part("benchmarks.gpu.kernels:measure", 10),
    "atomics": Part("benchmarks.gpu.atomics:measure", 15),
    "gaps": Part("benchmarks.gpu.gaps:measure", 10),
    "interference": Part("benchmarks.gpu.interference:measure", 15),
    "peers": Part("benchmarks.gpu.peers:measure", 30),
    "training": Part("benchmarks.gpu.training:measure", 90),
    "training_workers": Part("benchmarks.gpu.training:measure_workers", 90),
}
LOOK = Part("benchmarks.gpu.part:look", 120)
PATIENCE = 3  # times a part's seconds: one that hangs leaves time for the others


def main() -> int:
    options = _parse()
    end = time.monotonic() + options.budget  # the build counts
    # Parts are in sessions of their own: none is to outlive this. What is ignored, as by nohup, stays so.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    if not options.toy and not options.no_build:
        status = run_within([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], options.budget)
        if status != 0:
            ended = f"had not ended after {options.budget:.0f} s" if status is None else f"ended with {status}"
            print(f"the build {ended}: see above; the same command goes on with it, what is compiled stays")
            return 1
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        seconds = min(LOOK.seconds, end - time.monotonic())
        seen = run_part(LOOK, toy=options.toy, folder=folder, seconds=seconds)
        if seen.ends_run is not None:
            return seen.ends_run
        if seen.outcome != "done" and time.monotonic() >= end:
            print(f"no time was left to look at the GPU: give more than --budget {options.budget:g}")
            return 1
        if seen.outcome != "done":
            print(f"glt's extension cannot be loaded here, or the GPU cannot be asked: {seen.outcome}")
            return 1
        about = seen.rows[0]
        missing = about.pop("missing")
        if missing is not None:
            print(f"no GPU benchmarks of glt here: {missing}")
            if not options.toy:
                return 1
            print("running on the CPU through the host executor: the figures mean nothing")
        report = Report("gpu", options.toy)
        if missing is None:
            print(f"on {about['gpu']}, CUDA {about['cuda']}", flush=True)
        results = Results(options.results, {"toy": options.toy, "machine": report.machine, **about}, list(PARTS))
        return _run(options, results, report, folder, end)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n\n")[0])
    names = ", ".join(PARTS)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"run these, done or not: {names} (default: what is missing)"
    )
    parser.add_argument("--again", action="store_true", help="forget what is done, and do all parts again")
    parser.add_argument("--toy", action="store_true", help="toy sizes, no figures kept; runs without a GPU too")
    parser.add_argument("--no-build", action="store_true", help="time the extension that is there")
    parser.add_argument(
        "--budget", type=float, default=570.0, metavar="SECONDS", help="of all of it (default %(default)g)"
    )
    parser.add_argument("--folder", type=Path, help="where the training parts keep their partitioned graph, 3 GB")
    parser.add_argument("--results", type=Path, help="where gpu.json and gpu.md are (default benchmarks/results)")
    options = parser.parse_args()
    if not options.budget > 0:  # nan is not
        parser.error(f"--budget = {options.budget}: expected seconds, more than 0")
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {names}")
    if options.again and options.parts:
        parser.error(f"--again {' '.join(options.parts)}: expected one of both; parts that are named run again anyhow")
    if options.results is None and not options.toy:
        options.results = RESULTS
    for name in ("folder", "results"):
        if getattr(options, name) is not None:
            setattr(options, name, getattr(options, name).resolve())  # parts run in the root of the repository
            try:
                _try_to_write(getattr(options, name))  # found out now, not after minutes
            except OSError as error:
                parser.error(f"--{name} {getattr(options, name)}: files cannot be written there ({error})")
    return options


def _try_to_write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"written")


def _run(options: argparse.Namespace, results: Results, report: Report, folder: Path, end: float) -> int:
    if options.again:
        results.parts.clear()
    named = list(dict.fromkeys(options.parts))
    kept = [] if named else [name for name in PARTS if results.has(name)]
    if kept:
        print(f"done before, and kept: {', '.join(kept)}; --again does them again", flush=True)
    failed: dict[str, str] = {}
    left_out: list[str] = []
    for name in named or [name for name in PARTS if name not in kept]:
        part, left = PARTS[name], end - time.monotonic()
        if left <= (0 if named else part.seconds):  # who names a part gets as much of it as there is time for
            left_out.append(name)
        else:
            print(f"{name}:", flush=True)
            seconds = left if named else min(left, PATIENCE * part.seconds)
            outcome = run_part(part, toy=options.toy, folder=folder, seconds=seconds)
            results.put(name, outcome)
            if outcome.rows:
                report.print_rows(outcome.rows)
            if outcome.outcome != "done":
                print(f"{name}: {outcome.outcome}", flush=True)
                failed[name] = outcome.outcome
            if outcome.ends_run is not None:
                return outcome.ends_run
        if name == "checks" and not named and not results.has(name):
            print("the checks are not done: nothing is timed; name parts to time them all the same")
            break
    if "checks" in left_out and not named:
        print(
            f"no time was left for the checks, about {PARTS['checks'].seconds:g} s: python -m benchmarks.gpu "
            "--no-build does them and all that is missing"
        )
    elif left_out:
        print(f"no time was left for these: python -m benchmarks.gpu --no-build {' '.join(left_out)}")
    print(results.summary())
    if failed:
        print(f"failed: {', '.join(failed)}; see above")
    return 1 if failed or "checks" in left_out else 0


if __name__ == "__main__":
    sys.exit(main())
