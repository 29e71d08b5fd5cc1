"""A partition answers for what it owns; asked for anything else, it names the owner and returns nobody's data."""

import pickle
import shutil

import numpy as np
import pytest
import torch

from glt import _core
from glt.data import Feature, Topology
from glt.data.partition_book import PartitionBook
from glt.distributed import DistDataset


@pytest.fixture(params=[0, 1])
def dataset(request, world):
    return DistDataset().load(world(2).path, request.param)


def _split(owner, part):
    """The ids that ``part`` owns, and one that it does not."""
    return torch.from_numpy(np.flatnonzero(owner == part)), int(np.flatnonzero(owner != part)[0])


@pytest.mark.parametrize("name", ["node_features", "node_labels", "edge_features"])
def test_rows_of_another_partition_are_refused(dataset, name):
    part = dataset.partition_idx
    book = (dataset.edge_books if name == "edge_features" else dataset.node_books)[0]
    assert book is not None
    table = getattr(dataset, name)
    mine, other = _split(book.owners(), part)
    assert len(table[mine]) == len(mine)
    with pytest.raises(IndexError, match=rf"ids\[1\] = {other} belongs to partition {1 - part}, not here"):
        table[torch.tensor([int(mine[0]), other])]


def test_rows_of_nodes_of_another_partition_are_refused(dataset):
    part = dataset.partition_idx
    mine, other = _split(dataset.node_books[0].owners(), part)
    csr = dataset.graph.csr
    assert _core.OneHop(csr, mine.numpy(), 3, False, 1, 0, with_edge=False).num_edges > 0
    with pytest.raises(
        IndexError, match=rf"\[1\] = {other} belongs to partition {1 - part}, not here \(partition {part}"
    ):
        _core.OneHop(csr, np.array([int(mine[0]), other]), 3, False, 1, 0, with_edge=False)


def _book(kind):
    """Three ids, of which partition 1 owns the last two."""
    if kind == "ranges":
        return PartitionBook.of_ranges([0, 1, 3])
    return PartitionBook.of_arrays(np.array([0, 1, 1], kind), np.array([0, 0, 1], np.uint32), 2)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "ranges"])
@pytest.mark.parametrize("pickled", [False, True])
def test_tables_and_rows_take_books_of_every_kind(kind, pickled):
    book = _book(kind)
    topology = Topology.from_rows(torch.tensor([0, 1, 2]), torch.tensor([2, 0]), num_nodes=3, book=book, part=1)
    table = Feature(torch.tensor([7.0, 8.0]), owned=(book, 1))
    if pickled:
        book, topology, table = pickle.loads(pickle.dumps((book, topology, table)))
    assert (book.num_ids, book.num_parts, book.has_ranges) == (3, 2, kind == "ranges")
    assert book.owners().tolist() == [0, 1, 1] and book.rows().tolist() == [0, 0, 1]
    assert book.owners(np.array([2, 0])).tolist() == [1, 0] and book.rows([2, 0]).tolist() == [1, 0]
    assert _core.OneHop(topology.csr, np.array([1, 2]), -1, False, 1, 0, with_edge=False).num_edges == 2
    with pytest.raises(IndexError, match=r"\[0\] = 0 belongs to partition 0, not here \(partition 1\)"):
        _core.OneHop(topology.csr, np.array([0]), -1, False, 1, 0, with_edge=False)
    assert table[torch.tensor([2, 1, 2])].tolist() == [8.0, 7.0, 8.0]
    with pytest.raises(IndexError, match=r"ids\[1\] = 0 belongs to partition 0, not here \(partition 1\)"):
        table[torch.tensor([1, 0])]
    for bad in (3, -1):
        with pytest.raises(IndexError, match=rf"ids\[0\] = {bad} is outside \[0, 3\)"):
            book.rows([bad])
    with pytest.raises(ValueError, match="book has 3 ids: expected 4"):
        Topology.from_rows(torch.tensor([0, 1, 2]), torch.tensor([2, 0]), num_nodes=4, book=book, part=1)


def test_a_book_without_a_row_for_each_owner_is_refused():
    with pytest.raises(ValueError, match=r"row_of is torch.uint32 \[2\]: expected uint32, one row per owner, \[3\]"):
        PartitionBook.of_arrays(np.zeros(3, np.uint8), np.zeros(2, np.uint32), 1)
    with pytest.raises(ValueError, match=r"row_of is torch\.int64"):
        PartitionBook.of_arrays(np.zeros(3, np.uint8), np.zeros(3, np.int64), 1)


def test_a_table_without_owner_is_read_as_before():
    assert Feature(torch.tensor([7.0, 8.0]))[torch.tensor([1])].tolist() == [8.0]


def test_one_copy_of_the_book_says_who_owns_what(world, tmp_path):
    """Another trainer's directory is mapped without being verified: its book is not looked at."""
    copy = tmp_path / "copy"
    shutil.copytree(world(2).path, copy)
    (owners,) = copy.glob("node_book/*.npy")
    mapped = np.load(owners, mmap_mode="r+")
    mapped[:] = 1 - mapped
    mapped.flush()
    data = DistDataset().load(world(2).path, 1)
    other = data.map_other(copy, 0)
    assert other.nodes[0].book is data.node_books[0]
    mine, _ = _split(data.node_books[0].owners(), 0)
    features = other.tables("node", 0)["x"]
    wanted = world(2).x
    assert wanted is not None and torch.equal(features[mine], wanted[mine])
