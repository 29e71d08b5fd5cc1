"""The wheel of this clone, installed where nothing else of it is."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
MISSING = [name for name in ("build", "auditwheel", "twine") if importlib.util.find_spec(name) is None]


@pytest.mark.integration
@pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} here: pip install {' '.join(MISSING)}")
@pytest.mark.timeout(900)
def test_a_wheel_runs_outside_the_clone_without_a_compiler(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "wheel.py", "--out", tmp_path, "--borrow", Path(torch.__file__).parents[1]],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "test accuracy" in done.stdout and len(re.findall(r"first batch [\d.]+ s", done.stdout)) == 2
    sizes = {name: float(size) for name, size in re.findall(r"wheel: (\S+)-\S+ ([\d.]+) MB", done.stdout)}
    assert sizes and max(sizes.values()) < 12, f"symbols are stripped: {sizes}"
