"""The part of the GPU benchmarks that runs tests says what does not hold, and ends with the run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHECKS = """
import sys, torch
from benchmarks.gpu import checks
from benchmarks.gpu.part import PartReport
import time

checks.TOY = (f"{sys.argv[1]}/test_kernels.py",)
checks.measure(PartReport(True, f"{sys.argv[1]}/told", sys.argv[1], time.monotonic() + 100), torch.device("cpu"))
"""


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("assert False", ["pytest ended with 1; ", "test_kernels::test_it failed"]),
        ("import os; os.abort()", ["pytest ended with -6 before it had a result"]),
        ("import pytest; pytest.skip('no GPU')", ["no test has run, all were skipped"]),
    ],
)
def test_checks_say_what_does_not_hold(body, what, tmp_path, start):
    (tmp_path / "test_kernels.py").write_text(f"def test_it():\n    {body}\n")
    done = start("-c", CHECKS, tmp_path)
    assert done.returncode == 1 and all(each in done.stderr for each in what), done.stdout + done.stderr


def test_the_tests_end_with_who_started_them(tmp_path):
    begun = tmp_path / "begun"
    (tmp_path / "test_kernels.py").write_text(
        f"import pathlib, time\ndef test_it():\n    pathlib.Path({str(begun)!r}).touch()\n    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", CHECKS, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        end = time.monotonic() + 100
        while not begun.exists() and time.monotonic() < end:
            time.sleep(0.1)
        process.kill()
        process.communicate(timeout=20)  # pytest has this pipe too: it ends with the last of them
    assert begun.exists()
