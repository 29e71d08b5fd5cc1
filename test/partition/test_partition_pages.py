"""Large files of a partition come in pages of 2 MiB, also what was just written, as far as memory takes them."""

import tempfile

import numpy as np
import pytest
import torch

import glt
from benchmarks.bench_pages import huge_share
from glt import _core
from glt.errors import PartitionError
from glt.partition import load_partition
from glt.partition.format import load, verify
from glt.partition.format.files import sync

HUGE = 2 << 20
NUM_NODES, NUM_EDGES = 4096, 1 << 20
FEAT = "part0/node_feat/node.npy"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A partition with features of 16 MiB and edges of 4 MiB a column; of all files it is as of those above 64 MiB."""
    (tmp_path / "probe").write_bytes(bytes(2 * HUGE))
    with open(tmp_path / "probe", "rb") as probe:
        if not _core.read_into_huge_pages(probe.fileno(), 0, 2 * HUGE):
            pytest.skip("this kernel or this file system has no files in pages of 2 MiB")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(load, "REMEMBERED_BYTES", 3 << 20)
    monkeypatch.setattr(verify, "REMEMBERED_BYTES", 3 << 20)
    edge_index = torch.arange(2 * NUM_EDGES).view(2, -1) * 7919 % NUM_NODES
    feat = torch.arange(NUM_NODES * 1024.0).view(NUM_NODES, 1024)
    glt.partition.RandomPartitioner(tmp_path / "parts", 1, NUM_NODES, edge_index, node_feat=feat).partition()
    return tmp_path / "parts"


def huge_bytes(array):
    assert np.asarray(array).sum() >= 0  # reads all of it
    return huge_share([array]) * array.nbytes


@pytest.mark.parametrize("before_use", [1 << 30, 3 << 20], ids=["compared before", "compared behind"])
def test_large_files_are_in_huge_pages(root, monkeypatch, before_use):
    monkeypatch.setattr(verify, "BEFORE_USE_BYTES", before_use)
    for path in (root / "part0").rglob("*.npy"):
        sync(path)  # what the disk has not is not dropped
    part = load_partition(root, 0)
    assert part.wait_until_verified(60.0)
    for array in (part.nodes[0].feat, part.edges[0].indices):
        assert huge_bytes(array) >= array.nbytes - 2 * HUGE
    assert np.array_equal(part.nodes[0].feat.reshape(-1), np.arange(NUM_NODES * 1024, dtype=np.float32))
    again = load_partition(root, 0, verify="elsewhere")
    assert huge_bytes(again.nodes[0].feat) >= again.nodes[0].feat.nbytes - 2 * HUGE


@pytest.mark.parametrize("before_use", [1 << 30, 3 << 20], ids=["compared before", "compared behind"])
def test_damage_is_found(root, monkeypatch, before_use):
    monkeypatch.setattr(verify, "BEFORE_USE_BYTES", before_use)
    with open(root / FEAT, "r+b") as file:
        file.seek(9 << 20)
        file.write(b"?")
    with pytest.raises(PartitionError, match=r"node_feat.node\.npy was altered.*block 2"):
        load_partition(root, 0).wait_until_verified(60.0)


@pytest.mark.parametrize(("memory", "chosen"), [(1 << 40, 3), (18 << 20, 2), (9 << 20, 1), (7 << 20, 0)])
def test_graphs_first_as_far_as_half_of_the_memory_takes_them(root, monkeypatch, memory, chosen):
    monkeypatch.setattr(load, "available_memory", lambda: (memory, "for the test"))
    found = load._Files(root, glt.partition.Manifest.read(root), 0, True).in_huge_pages
    assert len(found) == chosen
    assert (FEAT in found) == (chosen == 3)
    assert all("/graph/" in path for path in found - {FEAT})


def test_where_huge_pages_are_off_files_stay_as_they_are(root, monkeypatch):
    monkeypatch.setattr(load, "has_huge_pages", lambda: False)
    part = load_partition(root, 0)
    assert huge_bytes(part.edges[0].indices) <= HUGE


def test_what_a_process_uses_stays(root):
    """And is right: the kernel drops nothing that is mapped."""
    with open(root / FEAT, "rb") as file:
        before = load_partition(root, 0, verify=False).nodes[0].feat
        total = before.sum()
        for begin in range(0, 16 << 20, 4 << 20):
            _core.read_into_huge_pages(file.fileno(), begin, 4 << 20)
    assert before.sum() == total
    assert np.array_equal(before.reshape(-1), np.arange(NUM_NODES * 1024, dtype=np.float32))


def test_odd_ranges_are_left_alone(tmp_path):
    (tmp_path / "file").write_bytes(bytes(3 * HUGE))
    with open(tmp_path / "file", "rb") as file:
        for begin, size in ((1, 2 * HUGE), (0, HUGE - 1), (4 * HUGE, HUGE), (0, 0)):
            assert not _core.read_into_huge_pages(file.fileno(), begin, size)
    assert not _core.read_into_huge_pages(-1, 0, HUGE)
