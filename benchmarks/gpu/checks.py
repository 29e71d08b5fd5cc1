"""Every kernel against the CPU, bit for bit: the tests that need a GPU, one process, up to the first that fails.

At toy size those of draws and of the gather, which run the kernels' code on the host where there is no GPU.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import torch

from benchmarks.gpu.part import PR_SET_PDEATHSIG, ROOT, PartReport

FOLDERS = ("test/cuda", "test/data", "test/sampler", "test/loader", "test/channel")
TOY = ("test/cuda/test_draws.py", "test/cuda/test_row_gather.py")
_PYTEST = (  # which ends with the part, however that ends
    f"import ctypes, signal, sys, pytest; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL, 0, 0, 0); "
    "sys.exit(pytest.main())"
)


def measure(report: PartReport, device: torch.device) -> None:
    which = TOY if report.toy else ("-m", "cuda", *FOLDERS)
    # pytest-benchmark warns of xdist, and warnings are errors here.
    without = ["-p", "no:benchmark"] if importlib.util.find_spec("pytest_benchmark") else []
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch) / "junit.xml"
        command = [sys.executable, "-c", _PYTEST, "-x", "-q", *without, f"--junitxml={told}", *which]
        status = subprocess.run(command, cwd=ROOT, timeout=max(1.0, report.seconds_left())).returncode
        if not told.exists():
            raise RuntimeError(f"pytest ended with {status} before it had a result; see above")
        failures, passed = _report(report, told)
    if status != 0:
        raise RuntimeError(f"pytest ended with {status}; {', '.join(failures) or 'no test'} failed")
    if passed == 0:
        raise RuntimeError("no test has run, all were skipped: see above why (pytest -rs)")


def _report(report: PartReport, told: Path) -> tuple[list[str], int]:
    """A row for each folder; returns the names of tests that failed, and how many passed."""
    counts: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(("passed", "failed", "skipped", "s"), 0))
    failures = []
    for case in ElementTree.parse(told).getroot().iter("testcase"):
        module = case.get("classname") or case.get("name") or "?"  # of a file that cannot be imported the name
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        folder = counts["/".join(module.split(".")[:2])]
        folder[kind] += 1
        folder["s"] += float(case.get("time") or 0)
        if kind == "failed":
            failures.append(f"{module}::{case.get('name')}")
    for name, each in counts.items():
        report.add(what="tests of kernels", folder=name, **each)
    return failures, int(sum(each["passed"] for each in counts.values()))
