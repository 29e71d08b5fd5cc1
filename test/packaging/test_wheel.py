"""The wheel of this clone, installed where nothing else of it is."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
WHEEL = ROOT / ".ci" / "wheel.py"
MISSING = [name for name in ("build", "auditwheel", "twine") if importlib.util.find_spec(name) is None]


@pytest.mark.integration
@pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} here: pip install {' '.join(MISSING)}")
@pytest.mark.timeout(900)
def test_a_wheel_runs_outside_the_clone_without_a_compiler(tmp_path):
    command = [sys.executable, WHEEL, "--out", tmp_path, "--borrow", Path(torch.__file__).parents[1]]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as run:
        try:
            out, err = run.communicate(timeout=850)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)  # compilers, too
    assert run.returncode == 0, out[-4000:] + err[-4000:]
    assert "test accuracy" in out and len(re.findall(r"first batch [\d.]+ s", out)) == 2
    sizes = {name: float(size) for name, size in re.findall(r"wheel: (\S+)-\S+ ([\d.]+) MB", out)}
    assert sizes and max(sizes.values()) < 12, f"symbols are stripped: {sizes}"


def test_a_folder_of_other_files_is_not_emptied(tmp_path):
    (tmp_path / "old.whl").touch()
    (tmp_path / "thesis.tex").touch()
    done = subprocess.run([sys.executable, WHEEL, "--out", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "expected a folder of distributions or none, found thesis.tex" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.whl", "thesis.tex"]
