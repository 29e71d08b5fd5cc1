"""Rows that belong to somebody else are copied before they are changed."""

import sys
import threading

import numpy as np
import pytest
import torch
from store_world import Servers, graph, in_threads

from glt import _core
from glt.distributed.tensors.spec import StoredTable
from glt.distributed.tensors.store import Shard
from glt.distributed.tensors.tensor import DistTensor


@pytest.mark.parametrize("change", ["write", "add"])
def test_the_first_change_copies_what_is_borrowed(tmp_path, change):
    np.save(tmp_path / "x.npy", np.ones((6, 2), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    shard = Shard(torch.from_numpy(mapped), is_borrowed=True)
    assert shard.read((0, 6)).eq(1).all() and shard.tensor.data_ptr() == mapped.ctypes.data
    getattr(shard, change)(torch.tensor([4]), torch.full((1, 2), 5.0))
    assert shard.read(torch.tensor([4, 0])).tolist() == [[5, 5] if change == "write" else [6, 6], [1, 1]]
    assert (mapped == 1).all() and (np.load(tmp_path / "x.npy") == 1).all()
    assert not shard.is_borrowed


def test_borrowed_rows_are_not_copied_where_there_is_no_room(monkeypatch):
    monkeypatch.setattr("glt.distributed.tensors.store.available_memory", lambda: (47, "a test's limit"))
    shard = Shard(torch.ones(6, 2), is_borrowed=True)
    with pytest.raises(MemoryError, match=r"copies them, which takes 4.8e-08 GB: a test's limit is 4.7e-08 GB"):
        shard.write((0, 1), torch.zeros(1, 2))
    assert shard.is_borrowed and shard.read((0, 6)).eq(1).all()


def test_a_range_is_checked_before_room_is_made_for_it():
    for rows in ((0, 1 << 60), (-1, 2), (3, -1)):
        with pytest.raises(IndexError, match="are outside"):
            Shard(torch.ones(6, 2)).read(rows)


def test_threads_that_change_it_first_copy_it_once():
    mapped = torch.ones(50, 3, dtype=torch.int64)
    shard = Shard(mapped, is_borrowed=True)
    ids = torch.arange(50)
    in_threads(lambda _: shard.add(ids, mapped), range(8))
    assert shard.read((0, 50)).eq(9).all() and mapped.eq(1).all()


def test_threads_that_read_while_it_is_copied_share_its_locks(monkeypatch):
    """There is one table for all of them: it has the locks of the rows."""
    tables, real = [], _core.RowTable
    monkeypatch.setattr(_core, "RowTable", lambda array: tables.append(1) or real(array))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(1, 251):
            shard, done = Shard(torch.ones(4, 2), is_borrowed=True), threading.Event()

            def read(shard=shard, done=done):
                while not done.is_set():
                    shard.read((0, 4))

            readers = [threading.Thread(target=read) for _ in range(2)]
            for reader in readers:
                reader.start()
            table = shard.own()
            done.set()
            for reader in readers:
                reader.join()
            assert shard.table is table and len(tables) == 2 * number, "one of what was borrowed, one of the copy"
    finally:
        sys.setswitchinterval(interval)


REFUSED = [
    (torch.tensor([0, 6]), torch.ones(2, 2), IndexError, r"rows\[1\] = 6"),
    ((5, 2), torch.ones(2, 2), IndexError, "rows 5 to 6"),
    (torch.tensor([0]), torch.ones(2, 2), ValueError, r"shape \[2, 2\]: expected \[1, 2\]"),
    (torch.tensor([0]), torch.ones(1, 2).double(), TypeError, "dtype torch.float64"),
]


def test_requests_that_do_not_fit_are_refused():
    shard = Shard(torch.zeros(6, 2))
    for rows, values, error, text in REFUSED:
        for change in (shard.write, shard.add):
            with pytest.raises(error, match=text):
                change(rows, values)
    assert not shard.tensor.any()


def test_a_stored_table_is_read_in_place_and_written_as_a_copy():
    data = graph(20, 3, relabelled=False)
    ids = torch.arange(20.0).view(20, 1)
    asked = []

    def tables(kind, at, table, parts):
        asked.append((kind, at, table, parts))
        owner, row_of = data.node_books[0].owners(), data.node_books[0].rows()
        found = []
        for part in parts:
            rows = torch.empty(int((owner == part).sum()), 1)
            rows[torch.from_numpy(row_of[owner == part])] = ids[torch.from_numpy(owner == part)]
            found.append(rows)
        return torch.cat(found)

    with Servers(2, data, tables) as servers:
        mine, other = servers.trainers(2)
        x = DistTensor((20, 1), name="node/node/x", init_func=StoredTable("node", 0, "x"), part="node", world=mine)
        assert torch.equal(x[:], ids) and sorted(asked) == [("node", 0, "x", [0, 2]), ("node", 0, "x", [1])]
        x[3] = 30.0
        assert DistTensor.find("node/node/x", world=other)[[3, 4]].tolist() == [[30], [4]]
