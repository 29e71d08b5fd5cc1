"""Tables in memory are moved to huge pages, where that costs no memory."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import glt
from glt import _core
from glt.data.arrays import move_to_huge_pages

HUGE = 2 << 20


def huge_bytes_of(tensor):
    """Bytes of huge pages in the mapping that ``tensor`` lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) <= tensor.data_ptr() < int(match[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the tensor lies in no mapping")


@pytest.fixture
def table():
    if _core.collapse_to_huge_pages(np.ones(1 << 23)) == 0:
        pytest.skip("this kernel moves no memory to huge pages")
    table = torch.full((1 << 14, 1024), 3.0)  # 64 MiB
    table[:, 0] = torch.arange(1 << 14)
    return table


@pytest.mark.parametrize("as_dataset", [False, True])
def test_a_loader_moves_its_tables(table, as_dataset):
    edge_index = torch.stack([torch.arange(100), torch.arange(100) + 1])
    source = Data(x=table, edge_index=edge_index)
    if as_dataset:
        source = glt.data.Dataset.from_pyg(source)
    before = huge_bytes_of(table)
    loader = glt.loader.NeighborLoader(source, [2], torch.arange(10), batch_size=10)
    assert huge_bytes_of(table) >= before + table.nbytes - 2 * HUGE
    batch = next(iter(loader))
    assert torch.equal(batch.x, table[batch.n_id])
    assert torch.equal(table[:, 0], torch.arange(1 << 14).float())


def test_a_child_does_not_copy_what_it_shares_with_its_parent(table):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(move_to_huge_pages(table)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"0"
    assert move_to_huge_pages(table) >= table.nbytes - 2 * HUGE, "its own, now that the child is gone"


def test_where_memory_is_short_nothing_is_moved(table, monkeypatch):
    monkeypatch.setattr("glt.data.arrays.available_memory", lambda: (table.nbytes - 1, "for the test"))
    assert move_to_huge_pages(table) == 0


def test_what_cannot_have_huge_pages_keeps_its_own(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((1 << 13, 1024), np.float32))
    assert move_to_huge_pages(torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c"))) == 0
    assert move_to_huge_pages(torch.ones(1000)) == 0, "small"
