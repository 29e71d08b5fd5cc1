"""Large files of a partition come in pages of 2 MiB, also what was just written, as far as memory takes them."""

import shutil
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
def has_huge_pages(tmp_path):
    (tmp_path / "probe").write_bytes(bytes(2 * HUGE))
    with open(tmp_path / "probe", "rb") as probe:
        if not _core.read_into_huge_pages(probe.fileno(), 0, 2 * HUGE):
            pytest.skip("this kernel or this file system has no files in pages of 2 MiB")


def write(directory, num_parts):
    """Partitions of features of 16 MiB and edges of 4 MiB a column, together."""
    edge_index = torch.arange(2 * NUM_EDGES).view(2, -1) * 7919 % NUM_NODES
    feat = torch.arange(NUM_NODES * 1024.0).view(NUM_NODES, 1024)
    glt.partition.RandomPartitioner(directory, num_parts, NUM_NODES, edge_index, node_feat=feat).partition()
    return directory


@pytest.fixture
def root(has_huge_pages, tmp_path, monkeypatch):
    """One partition; of its files it is as of those above 64 MiB."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(load, "REMEMBERED_BYTES", 3 << 20)
    monkeypatch.setattr(verify, "REMEMBERED_BYTES", 3 << 20)
    return write(tmp_path / "parts", 1)


def huge_bytes(array):
    assert np.asarray(array).sum() >= 0  # reads all of it
    return huge_share([array]) * array.nbytes


@pytest.mark.parametrize("before_use", [1 << 30, 3 << 20], ids=["compared before", "compared behind"])
def test_large_files_are_in_huge_pages(root, monkeypatch, before_use, caplog):
    caplog.set_level("INFO", "glt")
    monkeypatch.setattr(verify, "BEFORE_USE_BYTES", before_use)
    for path in (root / "part0").rglob("*.npy"):
        sync(path)  # what the disk has not is not dropped
    part = load_partition(root, 0)
    assert part.wait_until_verified(60.0)
    for array in (part.nodes[0].feat, part.edges[0].indices):
        assert huge_bytes(array) >= array.nbytes - 2 * HUGE
    assert np.array_equal(part.nodes[0].feat.reshape(-1), np.arange(NUM_NODES * 1024, dtype=np.float32))
    assert "node.npy: 4 of 5 blocks are in pages of 2 MiB" in caplog.text  # the last has only some bytes
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


def test_all_partitions_of_the_host_count(tmp_path, monkeypatch):
    """Each would fit by itself. What is on another host does not count."""
    root = write(tmp_path / "parts", 4)  # columns of 1 MiB, features of 4
    monkeypatch.setattr(load, "REMEMBERED_BYTES", 1 << 19)
    monkeypatch.setattr(load, "has_huge_pages", lambda: True)

    def chosen(part):
        return load._Files(root, glt.partition.Manifest.read(root), part, True).in_huge_pages

    monkeypatch.setattr(load, "available_memory", lambda: (2 * 4 * 7 << 20, "for the test"))
    assert {len(chosen(part)) for part in range(4)} == {3}
    monkeypatch.setattr(load, "available_memory", lambda: (2 * 9 << 20, "for the test"))
    assert all("/graph/" in path for part in range(4) for path in chosen(part)), "graphs first, of all"
    assert sum(len(chosen(part)) for part in range(4)) == 8
    for part in (1, 2, 3):
        shutil.rmtree(root / f"part{part}")
    assert len(chosen(0)) == 3


def test_what_another_process_compares_is_not_dropped(root, monkeypatch):
    monkeypatch.setattr(verify, "BEFORE_USE_BYTES", 3 << 20)
    dropped = []
    monkeypatch.setattr(verify.Contents, "drop_small_pages", lambda self: dropped.append(self.path.name))
    monkeypatch.setattr(verify.Record, "lock", lambda self: False)
    monkeypatch.setattr(verify.Watch, "compare_behind", lambda self: None)
    load_partition(root, 0)
    assert dropped == []
    monkeypatch.setattr(verify.Record, "lock", lambda self: True)
    load_partition(root, 0)
    assert len(dropped) == 3


def test_what_a_process_uses_stays(has_huge_pages, tmp_path):
    """In small pages, as it was: the kernel drops nothing that is mapped."""
    with open(tmp_path / "file", "wb") as file:
        for _ in range(128):
            file.write(np.random.default_rng(0).bytes(64 << 10))
            file.flush()
    used = np.memmap(tmp_path / "file", np.uint8, "r")
    total = int(used.sum(dtype=np.int64))
    with open(tmp_path / "file", "rb") as file:
        assert not any(_core.read_into_huge_pages(file.fileno(), begin, 4 << 20) for begin in (0, 4 << 20))
        assert int(used.sum(dtype=np.int64)) == total and huge_share([used]) == 0
        del used
        assert all(_core.read_into_huge_pages(file.fileno(), begin, 4 << 20) for begin in (0, 4 << 20))


def test_odd_ranges_are_left_alone(has_huge_pages, tmp_path):
    (tmp_path / "file").write_bytes(bytes(3 * HUGE))
    with open(tmp_path / "file", "rb") as file:
        for begin, size in ((1, 2 * HUGE), (0, HUGE - 1), (4 * HUGE, HUGE), (0, 0), (-(2**63), HUGE), (0, -1)):
            assert not _core.read_into_huge_pages(file.fileno(), begin, size)
        assert _core.read_into_huge_pages(file.fileno(), HUGE, 2**62), "to the end"
    assert not _core.read_into_huge_pages(-1, 0, HUGE)
