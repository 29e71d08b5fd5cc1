"""The GPU benchmarks run, on the host executor where there is no GPU, and say what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import PARTS
from glt.data.cuda_device import missing_for_cuda

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=280)


def test_every_part_runs_at_toy_size() -> None:
    done = run("--toy", *(part for part in PARTS if part != "training"))
    assert done.returncode == 0, done.stdout + done.stderr
    parts = ("M1 random reads", "M2 stamps", "M3 zero-copy reads", "M4 bulk reads", "M6 gaps", "M7 gather, glt")
    for what in (*parts, "M6: not captured", "M8: by hash", "W0 sampling, glt", "link batches, glt", "M9 products"):
        assert what in done.stdout


def test_training_runs_at_toy_size_from_samplers_in_every_place() -> None:
    done = run("--toy", "training")
    assert done.returncode == 0, done.stdout + done.stderr
    for sampler in ("CPU, 1 workers", "GPU, device memory", "GPU, zero copy", "GPU, one worker process", "window of 8"):
        assert sampler in done.stdout


@pytest.mark.skipif(missing_for_cuda() is None, reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_what_is_missing() -> None:
    done = run("--no-build")
    assert done.returncode == 1
    assert f"no GPU benchmarks of glt here: {missing_for_cuda()}" in done.stdout


def test_an_unknown_part_is_refused() -> None:
    done = run("no_such_part")
    assert done.returncode == 2 and "no part is called no_such_part" in done.stderr
