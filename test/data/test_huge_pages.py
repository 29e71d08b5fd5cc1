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
    if _core.collapse_to_huge_pages(np.ones(1 << 23), 2.0) == 0:
        pytest.skip("this kernel moves no memory to huge pages")
    table = torch.full((1 << 14, 1024), 3.0)  # 64 MiB
    table[:, 0] = torch.arange(1 << 14)
    return table


@pytest.mark.parametrize("as_dataset", [False, True])
def test_a_loader_moves_its_tables(table, as_dataset, caplog):
    caplog.set_level("INFO", "glt")
    edge_index = torch.stack([torch.arange(100), torch.arange(100) + 1])
    source = Data(x=table, edge_index=edge_index)
    if as_dataset:
        source = glt.data.Dataset.from_pyg(source)
    loader = glt.loader.NeighborLoader(source, [2], torch.arange(10), batch_size=10)
    assert huge_bytes_of(table) >= table.nbytes - 2 * HUGE
    assert "0.06 of 0.06 GiB of tables have pages of 2 MiB" in caplog.text
    batch = next(iter(loader))
    assert torch.equal(batch.x, table[batch.n_id])
    assert torch.equal(table[:, 0], torch.arange(1 << 14).float())


def moved_by_a_child(table, first=lambda: None):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        first()
        os.write(write, str(move_to_huge_pages([table])).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        return int(answer.read())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_copy_what_it_shares_with_its_parent(table):
    def write_some():
        table.view(-1)[:: HUGE // 4] = 5.0

    assert moved_by_a_child(table) == 0
    assert moved_by_a_child(table, write_some) <= 2 * HUGE, "it owns a page of each 2 MiB by then"
    assert move_to_huge_pages([table]) >= table.nbytes - 2 * HUGE, "its own, now that the children are gone"


def test_what_was_never_written_is_left_out():
    table = torch.empty(1 << 24)  # 64 MiB
    table[: 1 << 22] = 1.0
    table[3 << 22 :] = 1.0
    moved = move_to_huge_pages([table])
    if moved == 0:
        pytest.skip("this kernel moves no memory to huge pages")
    assert (32 << 20) - 4 * HUGE <= moved <= (32 << 20) + 2 * HUGE


def test_where_memory_is_short_nothing_is_moved(table, monkeypatch):
    monkeypatch.setattr("glt.data.arrays.available_memory", lambda: (table.nbytes - 1, "for the test"))
    assert move_to_huge_pages([table]) == 0


def test_the_time_is_that_of_all_tables(table, monkeypatch):
    monkeypatch.setattr("glt.data.arrays.deadlines.MOVE_S", 0.0)
    assert move_to_huge_pages([table, table]) == 0


def test_what_cannot_have_huge_pages_keeps_its_own(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((1 << 13, 1024), np.float32))
    mapped = torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c"))
    assert mapped.sum() == mapped.numel()
    assert move_to_huge_pages([mapped, torch.ones(1000)]) == 0, "a file's, a small one"
