import os
import shutil
import time

import pytest
import torch
from mistake import leftovers

from glt.partition import RandomPartitioner

DEADLINE_S = 60.0


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    n = 100
    edge_index = torch.stack([torch.arange(n).repeat_interleave(2), torch.arange(2 * n) * 7 % n])
    path = tmp_path_factory.mktemp("mistakes") / "parts"
    rows = {"node_feat": torch.ones(n, 4), "node_label": torch.arange(n) % 3}
    RandomPartitioner(path, 2, n, edge_index, edge_assign_strategy="by_dst", **rows).partition()
    return path


@pytest.fixture
def ended(start, parts, tmp_path):
    """Runs a script, or ``glt WORDS...``, beside the partitions; returns how it ended, once it has left nothing."""

    def ended(*words, script=None):
        shutil.copytree(parts, tmp_path / "parts")
        (tmp_path / "tmp").mkdir()
        if script is not None:
            (tmp_path / "train.py").write_text(script)
        before = set(os.listdir("/dev/shm"))
        marks = {"GLT_MISTAKE": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
        done = start(*words, folder=tmp_path, timeout_s=DEADLINE_S, **marks)
        deadline = time.monotonic() + 20
        while (left := leftovers(tmp_path, before)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left, f"left behind: {left}\n{done.stderr}"
        return done

    return ended
