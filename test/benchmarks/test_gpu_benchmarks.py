"""The GPU benchmarks run, on the host executor where there is no GPU, and say what is missing."""

import pytest

from benchmarks.gpu.__main__ import PARTS
from glt.data.device import missing_for_cuda

GPU = ("-m", "benchmarks.gpu")


def test_every_part_runs_at_toy_size(run):
    done = run(*GPU, "--toy", *(part for part in PARTS if not part.startswith("training")))
    parts = ("M1 random reads", "M2 stamps", "M3 zero-copy reads", "kernels by time", "M6 gaps", "M7 gather, glt")
    for what in (
        *parts,
        "M6: no graph",
        "M8: by hash",
        "W0 sampling, glt",
        "link batches, glt",
        "M9 products",
        "rows of 400",
    ):
        assert what in done.stdout


def test_training_runs_at_toy_size_from_samplers_in_every_place(tmp_path, run):
    done = run(*GPU, "--toy", "--folder", tmp_path, "training", "training_workers")
    assert [path.name for path in tmp_path.iterdir()] == ["parts-600-6000"]  # both have used it
    for sampler in ("CPU, 1 workers", "GPU, device memory", "GPU, zero copy", "GPU, one worker process", "window of 8"):
        assert sampler in done.stdout


@pytest.mark.skipif(missing_for_cuda() is None, reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_what_is_missing(start):
    done = start(*GPU, "--no-build")
    assert done.returncode == 1
    assert f"no GPU benchmarks of glt here: {missing_for_cuda()}" in done.stdout


def test_what_there_is_no_time_for_is_named(run, start):
    done = run(*GPU, "--toy", "--budget", "0.001", "gaps", "training")
    assert "no time was left for these: python -m benchmarks.gpu --no-build gaps training" in done.stdout
    refused = start(*GPU, "--budget", "0")
    assert refused.returncode == 2 and "--budget = 0.0: expected seconds, more than 0" in refused.stderr


FEW_EPOCHS = """
import sys, torch
from pathlib import Path
from benchmarks._harness import Report
from benchmarks.gpu import training
from benchmarks.gpu.limits import Limits

asked = []
class Few(Limits):
    def has_room_for(self, seconds):
        asked.append(seconds)
        return len(asked) <= 4  # the unmeasured epochs of three, and a measured one of the first

report = Report("gpu-training", True)
training.measure(report, torch.device("cpu"), Few(folder=Path(sys.argv[1])), in_workers=False)
assert [(row["sampler"], row["num_epochs"]) for row in report.rows] == [("GPU, device memory", 1)], report.rows
assert asked[:3] == [0.0] * 3 and min(asked[3:]) > 0, asked  # as long as their last one took
"""


def test_epochs_that_do_not_fit_are_left_out(tmp_path, run):
    assert "GPU, zero copy: no measured epoch in the time given" in run("-c", FEW_EPOCHS, tmp_path).stdout


SMALL_CHANNEL = """
import sys, torch
from pathlib import Path
from benchmarks._harness import Report
from benchmarks.gpu import training
from benchmarks.gpu.limits import Limits

training._batch_bytes = lambda loader: 4000  # of which one is about 100,000
report = Report("gpu-training", True)
training.measure(report, torch.device("cpu"), Limits(folder=Path(sys.argv[1])), in_workers=True)
"""


def test_batches_that_pass_in_pieces_are_not_timed(tmp_path, start):
    done = start("-c", SMALL_CHANNEL, tmp_path)
    assert done.returncode == 1 and "'CPU, 1 workers': " in done.stderr, done.stdout + done.stderr
    assert "passed in pieces" in done.stderr and "larger channel_size" in done.stderr


def test_an_unknown_part_is_refused(start):
    done = start(*GPU, "no_such_part")
    assert done.returncode == 2 and "no part is called no_such_part" in done.stderr
