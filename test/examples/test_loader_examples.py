"""The examples of the in-process loaders: they run as users start them, at toy size, and on the real graphs."""

import os
import re
import sys
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA_ROOT = ROOT.parent / "shared" / "data"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
LINE = re.compile(r"Epoch: 00, Loss: \d+\.\d{4}, .*: [01]\.\d{4}")

HETERO = ["hetero_node_classification", "--num_neighbors", "3,2", "--hidden_channels", "8"]
LINKS = ["link_prediction", "--num_neighbors", "2,2", "--hidden_channels", "8", "--max_links", "200"]
UNSUPERVISED = ["unsupervised_sage", "--num_neighbors", "2,2", "--hidden_channels", "8", "--batch_size", "4096"]
TEMPORAL = ["temporal_recommendation", "--num_neighbors", "2,2", "--hidden_channels", "8", "--max_links", "200"]
SEAL = ["seal_link_prediction", "--num_neighbors", "3,2", "--hidden_channels", "8", "--max_links", "60"]


def first_epoch(example: str, *flags: str | Path) -> None:
    done = forked.run(
        [sys.executable, f"examples/{example}.py", "--epochs", "1", *map(str, flags)], ROOT, ENVIRONMENT, 120
    )
    assert done.returncode == 0, done.stderr
    assert LINE.search(done.stdout), done.stdout
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("command", [HETERO, LINKS, UNSUPERVISED, TEMPORAL, SEAL], ids=lambda command: command[0])
def test_the_example_runs_on_its_synthetic_graph(command):
    first_epoch(*command)


@pytest.mark.parametrize("command", [HETERO, UNSUPERVISED], ids=lambda command: command[0])
def test_the_gpu_path_of_the_example_runs_with_the_host_in_its_place(command):
    first_epoch(*command, "--device", "host")


@pytest.mark.shared
@pytest.mark.skipif(not DATA_ROOT.is_dir(), reason=f"{DATA_ROOT} is absent")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (HETERO, "dblp_hetero"),
        (HETERO, "acm_hetero"),
        (LINKS, "cora"),
        (LINKS, "amazon_computers"),
        (UNSUPERVISED, "cora"),
        (TEMPORAL, "mathoverflow"),
        (SEAL, "cora"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_the_example_runs_on_its_real_graph(command, name):
    first_epoch(*command, "--data", DATA_ROOT / f"{name}.npz")
