"""The example of servers and clients: all of it runs on this machine, and nothing is left."""

import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA_ROOT = ROOT.parent / "shared" / "data"
FAST = ["--epochs", "1", "--num_neighbors", "4,4", "--hidden_channels", "16"]


def run(*flags: str | Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "examples/server_client/run_local.py", *map(str, flags)]
    return forked.run(command, ROOT, os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, 240)


def test_two_servers_and_two_clients_train():
    done = run(*FAST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Epoch: 00, Loss: \d+\.\d{4}, Val: 0\.\d{4}", done.stdout), done.stdout
    accuracy = float(re.findall(r"test accuracy (\S+)", done.stdout)[0])
    assert accuracy > 0.4, "chance is 0.06"
    assert "Traceback" not in done.stderr, done.stderr
    assert "server 1 (partition 1" in done.stderr and "has ended" in done.stderr


def test_who_fails_is_named_and_the_others_are_ended():
    done = run("--no_such_flag")
    assert done.returncode not in (0, None), "and within the timeout"
    assert "torchrun ended with exit code" in done.stderr and "--no_such_flag" in done.stderr, done.stderr


@pytest.mark.shared
@pytest.mark.skipif(not DATA_ROOT.is_dir(), reason=f"{DATA_ROOT} is absent")
def test_it_trains_on_a_real_graph():
    done = run("--data", DATA_ROOT / "cora.npz", *FAST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Epoch: 00" in done.stdout and "start clients with --num_classes 7" in done.stdout
