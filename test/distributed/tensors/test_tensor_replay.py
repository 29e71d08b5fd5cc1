"""Random reads, writes and additions equal a serial replay, wherever rows are kept; threads tear no row."""

import threading
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from store_world import Servers, graph, in_threads

from glt.distributed.tensors import exchange
from glt.distributed.tensors.spec import Placement
from glt.distributed.tensors.tensor import DistTensor


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


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 80), st.integers(1, 6), st.integers(1, 4), st.sampled_from(["even", "ranges", "arrays"]))
def test_a_placement_has_each_row_once(num_rows, num_parts, num_servers, place):
    if place == "even":
        placement = Placement.evenly(num_rows, num_servers)
    else:
        books = graph(num_rows, num_parts, place == "ranges")
        server_of = tuple(part % num_servers for part in range(num_parts))
        placement = Placement("node", 0, books.node_books[0], server_of, num_servers)
        assert Placement.from_spec(placement.spec(), books).spec() == placement.spec()
    ids = [np.empty(placement.rows_on(server), np.int64) for server in range(num_servers)]
    for server in range(num_servers):
        for first, numbers in placement.parts_on(server):
            ids[server][first : first + len(numbers)] = numbers
    assert sorted(np.concatenate(ids)) == list(range(num_rows))
    for asked in (np.random.default_rng(0).integers(0, max(num_rows, 1), 3 * num_rows), range(num_rows // 3, num_rows)):
        answer = np.full(len(asked), -1)
        for server, rows, positions in placement.portions(asked):
            answer[positions] = ids[server][rows]
        np.testing.assert_array_equal(answer, asked)


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
def test_trainers_that_write_the_same_rows_at_once_tear_none(place, monkeypatch):
    monkeypatch.setattr(exchange, "PIECE_BYTES", 1 << 14)
    with Servers(2, graph(200, 3, False)) as servers:
        part = None if place == "even" else "node"
        torn = []

        def write(world):
            value = world.rank + 1
            tensor = DistTensor((200, 50), torch.int32, "x", part=part, world=world)
            generator = torch.Generator().manual_seed(value)
            for _ in range(15):
                ids = torch.randperm(200, generator=generator)
                tensor.write_async(ids, torch.full((200, 50), value, dtype=torch.int32))
                rows = tensor[ids]
                torn.extend(rows[(rows != rows[:, :1]).any(1)])
            tensor.flush()

        trainers = servers.trainers(4)
        in_threads(write, trainers)
        rows = DistTensor.find("x", world=trainers[0])[:]
        assert not torn and (rows == rows[:, :1]).all() and rows.min() >= 1


def test_additions_of_trainers_are_all_there():
    with Servers(2) as servers:
        trainers = servers.trainers(4)

        def add(world):
            tensor = DistTensor((10, 3), torch.int64, "x", world=world)
            for step in range(20):
                tensor.add_async(torch.arange(40) % 10, torch.full((40, 3), step))
            tensor.flush()

        in_threads(add, trainers)
        assert (DistTensor.find("x", world=trainers[0])[:] == 4 * 4 * sum(range(20))).all()


def test_readers_of_a_tensor_that_is_deleted_read_whole_rows_or_are_told():
    with Servers(2) as servers:
        reading, deleting = servers.trainers(2)
        tensor = DistTensor((500, 20), name="x", init_func="ones", world=reading)
        started, told = threading.Event(), []

        def read():
            try:
                while True:
                    assert (tensor[:] == 1).all()
                    started.set()
            except LookupError as error:
                told.append(str(error))

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait(60)
        DistTensor.find("x", world=deleting).delete()
        for thread in threads:
            thread.join(60)
        assert len(told) == 3 and all("was deleted by trainer 1" in each for each in told)
