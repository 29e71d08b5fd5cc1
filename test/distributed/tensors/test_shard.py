"""Rows of a tensor: copied before they are changed, torn by no thread, equal to a serial replay."""

import sys
import threading
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from store_world import Servers, graph, in_threads

from glt import _core
from glt.distributed.tensors import exchange
from glt.distributed.tensors.spec import Placement, StoredTable
from glt.distributed.tensors.store import Shard
from glt.distributed.tensors.tensor import DistTensor, flush_all


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
    ((5, 2), torch.ones(2, 2), IndexError, "rows 5 to 6 are outside"),
    ((-1, 2), torch.ones(2, 2), IndexError, "are outside"),
    ((3, -1), torch.ones(2, 2), IndexError, "are outside"),
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
    with pytest.raises(IndexError, match="are outside"):  # before room is made for them
        shard.read((0, 1 << 60))


def test_a_stored_table_is_read_in_place_and_written_as_a_copy():
    data = graph(20, 3, relabelled=False)
    ids = torch.arange(20.0).view(20, 1)
    asked = []

    def tables(kind, at, table, parts):
        asked.append((kind, at, table, parts))
        owner = data.node_books[0].owners()  # rows are in the order of the ids
        return torch.cat([ids[torch.from_numpy(owner == part)] for part in parts])

    with Servers(2, data, tables) as servers:
        mine, other = servers.trainers(2)
        x = DistTensor((20, 1), name="node/node/x", init_func=StoredTable("node", 0, "x"), part="node", world=mine)
        assert torch.equal(x[:], ids) and sorted(asked) == [("node", 0, "x", [0, 2]), ("node", 0, "x", [1])]
        x[3] = 30.0
        assert DistTensor.find("node/node/x", world=other)[[3, 4]].tolist() == [[30], [4]]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_random_traffic_equals_a_serial_replay(data):
    num_rows, num_servers = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 4))
    place = data.draw(st.sampled_from(["even", "ranges", "arrays"]))
    row_shape = data.draw(st.sampled_from([(), (1,), (3,), (2, 5)]))
    dtype = data.draw(st.sampled_from([torch.int64, torch.uint8, torch.float32, torch.bfloat16]))
    books = None if place == "even" else graph(num_rows, data.draw(st.integers(1, 6)), place == "ranges")
    piece = exchange.PIECE_BYTES
    with (
        Servers(num_servers, books) as servers,
        patch.object(exchange, "PIECE_BYTES", data.draw(st.sampled_from([16, 200, piece]))),
    ):
        trainers = servers.trainers(data.draw(st.integers(1, 3)))
        held = [
            DistTensor((num_rows, *row_shape), dtype, "x", part=None if books is None else "node", world=trainer)
            for trainer in trainers
        ]
        expected = torch.zeros((num_rows, *row_shape), dtype=dtype)
        rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
        writer = held[0]
        for kind in data.draw(st.lists(st.sampled_from("rwaWAs"), max_size=12)):
            tensor = held[rng.integers(len(held))]
            if tensor is not writer:  # others see what was acknowledged
                writer.flush()
                writer = tensor
            n = int(rng.integers(0, 3 * num_rows))
            if rng.random() < 0.3:
                first = int(rng.integers(0, num_rows))
                index = slice(first, first + n)
                ids = np.arange(num_rows)[index]
            else:
                index = ids = rng.integers(0, num_rows, n)
            if kind == "r":
                torch.testing.assert_close(tensor[index], expected[torch.as_tensor(ids)], rtol=0, atol=0)
            elif kind == "s":
                torch.testing.assert_close(tensor[:], expected, rtol=0, atol=0)
            else:
                values = torch.from_numpy(rng.integers(0, 100, (len(ids), *row_shape))).to(dtype)
                change = tensor.write_async if kind in "wW" else tensor.add_async
                done = change(index, values)
                if kind in "wa":
                    done.result()
                for id_, value in zip(ids, values, strict=True):
                    expected[id_] = value if kind in "wW" else expected[id_] + value
        torch.testing.assert_close(writer[torch.arange(num_rows)], expected, rtol=0, atol=0)


def test_a_placement_of_other_books_is_refused():
    placement = Placement("node", 0, graph(10, 2, True).node_books[0], (0, 1), 2)
    with pytest.raises(ValueError, match="expected one of 10 ids and 2 partitions"):
        Placement.from_spec(placement.spec(), graph(11, 2, True))
    with pytest.raises(ValueError, match="the server has None for nodes of type 0"):
        Placement.from_spec(placement.spec(), None)


def test_parts_that_are_not_there_are_refused():
    by_part = {
        "node": (ValueError, r"shape\[0\] = 9: expected 10, the number of nodes of type 'node'"),
        ("node", "to", "node"): (ValueError, "no book of these edges"),
        "user": (KeyError, "user"),
        3: (TypeError, "part = 3: expected one of the types"),
    }
    with Servers(1, graph(10, 1, True)) as servers:
        for part, (error, text) in by_part.items():
            with pytest.raises(error, match=text):
                DistTensor((9, 2), part=part, world=servers.trainer())


@pytest.mark.parametrize("place", ["even", "arrays"])
def test_trainers_that_change_the_same_rows_at_once_tear_and_lose_none(place, monkeypatch):
    monkeypatch.setattr(exchange, "PIECE_BYTES", 1 << 14)
    with Servers(2, graph(200, 3, False)) as servers:
        part = None if place == "even" else "node"
        torn = []

        def write(world):
            value = world.rank + 1
            tensor = DistTensor((200, 50), torch.int32, "x", part=part, world=world)
            total = DistTensor((10, 3), torch.int64, "total", world=world)
            generator = torch.Generator().manual_seed(value)
            for _ in range(15):
                ids = torch.randperm(200, generator=generator)
                tensor.write_async(ids, torch.full((200, 50), value, dtype=torch.int32))
                rows = tensor[ids]
                torn.extend(rows[(rows != rows[:, :1]).any(1)])
                total.add_async(torch.arange(40) % 10, torch.full((40, 3), value))
            flush_all(world)

        trainers = servers.trainers(4)
        in_threads(write, trainers)
        rows = DistTensor.find("x", world=trainers[0])[:]
        assert not torn and (rows == rows[:, :1]).all() and rows.min() >= 1
        assert (DistTensor.find("total", world=trainers[0])[:] == 15 * 4 * (1 + 2 + 3 + 4)).all(), "all additions"


def test_readers_of_a_tensor_that_is_deleted_read_whole_rows_or_are_told():
    with Servers(2) as servers:
        reading, deleting = servers.trainers(2)
        tensor = DistTensor((500, 20), name="x", init_func="ones", world=reading)
        started = threading.Event()

        def read():
            with pytest.raises(LookupError, match="was deleted by trainer 1"):
                while True:
                    assert (tensor[:] == 1).all()
                    started.set()

        def delete():
            started.wait(60)
            DistTensor.find("x", world=deleting).delete()

        in_threads(lambda call: call(), [delete, read, read, read])
