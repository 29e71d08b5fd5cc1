"""The benchmarks run: a benchmark that nobody runs rots."""

import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("bench_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_runs_at_toy_size(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--toy"]
    environment = os.environ | {"GLT_BENCH_CACHE": str(tmp_path)}
    if name == NAMES[0]:  # as users start it
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    else:
        done = forked.run(command, ROOT, environment, 280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "glt" in done.stdout
    assert not list(tmp_path.glob("tmp*")), "left its scratch files behind"


def test_an_unknown_name_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "no_such_benchmark"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode != 0
    assert "no_such_benchmark" in done.stderr
