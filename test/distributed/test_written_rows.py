"""Rows that are written, moved, or owned by others are read right, or refused by name."""

import pickle
import shutil
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch.multiprocessing
from dist_typed_world import RATES
from dist_world import NUM_NODES

from glt import _core
from glt.data import Feature, Topology
from glt.data.schema import PartitionBook
from glt.distributed import DistDataset
from glt.distributed.context import get_context
from glt.distributed.engine.partitions import EdgeDirectory, GraphQueries
from glt.distributed.graph.graph import DistGraph
from glt.distributed.graph.loaders import EdgeDataLoader, NodeDataLoader
from glt.distributed.job.initialize import finalize, initialize
from glt.distributed.loader.loaders import DistNeighborLoader
from glt.distributed.options import CollocatedDistSamplingWorkerOptions
from glt.distributed.tensors.store import Shard
from glt.distributed.tensors.tensor import DistTensor
from glt.partition import RandomPartitioner

SEEDS = torch.arange(5, 300, 4)


def opened(path):
    initialize(part_config=path)
    return DistGraph("small")


@pytest.fixture(params=[1, 3])
def small(request, world):
    made = world(request.param, "in", "xye")
    yield opened(made.path), made
    finalize()


def rewrite(table, ids):
    """Writes rows, and returns all there are now."""
    rows = torch.arange(len(ids) * table.shape[1:].numel()).view(len(ids), *table.shape[1:]).to(table.dtype)
    table[ids] = rows
    return table[:]


@pytest.mark.parametrize("small, num_workers", [(1, 0), (3, 0), (3, 1)], indirect=["small"])
def test_batches_have_what_was_written(small, num_workers):
    graph, made = small

    def epoch(with_edge):
        options = {"random_seed": 3, "num_workers": num_workers, "with_edge": with_edge}
        with NodeDataLoader(graph, SEEDS, [4, 3], 16, **options) as loader:
            return list(loader)

    before = epoch(True)
    x, y = rewrite(graph.ndata["feat"], torch.arange(0, NUM_NODES, 2)), rewrite(graph.ndata["y"], SEEDS)
    edge_attr = rewrite(graph.edata["feat"], torch.arange(0, 1000, 3))
    after, without_ids = epoch(True), epoch(False)
    assert len(before) == len(after) == len(without_ids) > 0
    for old, new, plain in zip(before, after, without_ids, strict=True):
        assert torch.equal(old.edge_index, new.edge_index) and torch.equal(old.n_id, new.n_id)
        assert torch.equal(old.x, made.x[old.n_id]) and torch.equal(old.edge_attr, made.edge_attr[old.e_id])
        assert torch.equal(new.x, x[new.n_id]) and torch.equal(new.y, y[new.n_id])
        assert torch.equal(new.edge_attr, edge_attr[new.e_id])
        assert "e_id" not in plain
        assert all(torch.equal(plain[name], new[name]) for name in plain.keys() if torch.is_tensor(plain[name]))


def test_what_this_trainer_writes_is_in_the_batches_that_it_takes_next(small):
    graph, _ = small
    with NodeDataLoader(graph, SEEDS, [4, 3], 16) as loader:
        for at, batch in enumerate(loader):
            assert (batch.x[:, 0] == at).all() or at == 0
            graph.ndata["x"][:] = float(at + 1)


@pytest.mark.parametrize("name", ["x", "feat"])  # the one stands for the other
def test_what_is_assigned_to_the_name_of_a_table_is_in_batches(small, name):
    graph, made = small
    options = {"collect_features": True, "worker_options": CollocatedDistSamplingWorkerOptions()}
    wide = DistTensor((NUM_NODES, 9), torch.float64, "wide", part="node", init_func="ones")
    with (
        NodeDataLoader(graph, SEEDS, [4, 3], 16) as loader,
        DistNeighborLoader(graph.world.data, [4], SEEDS, 16, **options) as plain,
    ):
        graph.ndata[name] = wide
        assert graph.ndata["x"] is graph.ndata["feat"] is wide and "feat" not in list(graph.ndata)
        for batch in loader:
            assert torch.equal(batch.x, torch.ones(len(batch.n_id), 9, dtype=torch.float64))
        for batch in plain:  # the name is that graph's
            assert torch.equal(batch.x, made.x[batch.n_id])
        assert get_context() is not None


def test_every_loader_has_what_was_written_until_it_is_deleted(small):
    graph, made = small
    graph.ndata["x"][:] = 7.0
    options = {"collect_features": True, "worker_options": CollocatedDistSamplingWorkerOptions()}
    with (
        NodeDataLoader(graph, SEEDS, [4, 3], 16) as of_graph,
        DistNeighborLoader(graph.world.data, [4, 3], SEEDS, 16, **options) as of_data,
        NodeDataLoader(graph, SEEDS, [4, 3], 16, blocks=True, collect_features=True) as in_layers,
        NodeDataLoader(graph, SEEDS, [4, 3], 16, collect_features=False) as without,
    ):
        for loader in (of_graph, of_data):
            assert all((batch.x == 7).all() for batch in loader)
        assert all((blocks[0].srcdata["x"] == 7).all() for *_, blocks in in_layers)
        assert all("x" not in batch for batch in without)
        graph.ndata["x"].delete()
        for loader in (of_graph, of_data):
            assert all(torch.equal(batch.x, made.x[batch.n_id]) for batch in loader)
        assert torch.equal(graph.ndata["x"][:], made.x)


def test_edges_and_masks_that_servers_keep(small):
    graph, _ = small
    x = rewrite(graph.ndata["x"], torch.arange(0, NUM_NODES, 2))
    edges = DistTensor((graph.num_edges(),), torch.uint8, "edges", init_func=("constant", 0))
    edges[torch.arange(0, 100, 9)] = 1
    with EdgeDataLoader(graph, edges, [4, 3], 16) as loader:
        found = list(loader)
    assert torch.cat([batch.input_id for batch in found]).tolist() == list(range(0, 100, 9))
    assert all(torch.equal(batch.x, x[batch.n_id]) for batch in found)
    nodes = DistTensor((NUM_NODES,), torch.bool, "nodes")
    nodes[SEEDS] = True
    for mask in (nodes, nodes[:], nodes[:].numpy(), nodes[:].byte()):
        with NodeDataLoader(graph, mask, [4], 16) as loader:
            assert torch.equal(torch.cat([batch.input_id for batch in loader]), SEEDS)
    with pytest.raises(ValueError, match=r"input_nodes\[2\] = 2: expected 0 or 1; uint8 is a mask"):
        NodeDataLoader(graph, (torch.arange(NUM_NODES) % 5).to(torch.uint8), [4], 16)
    with pytest.raises(ValueError, match=r"input_nodes is a mask of 2 elements: expected \d+.*convert ids to int64"):
        NodeDataLoader(graph, torch.tensor([1, 0], dtype=torch.uint8), [4], 16)


@pytest.fixture
def typed(typed_world):
    made = typed_world(2, "in", "node")
    yield opened(made.path), made
    finalize()


def test_rows_of_types(typed):
    graph, _ = typed
    written = {t: rewrite(graph.ndata[t]["x"], torch.arange(0, graph.num_nodes(t), 3)) for t in ("user", "item")}
    with NodeDataLoader(graph, {RATES[0]: torch.arange(20)}, [4, 3], 8) as loader:
        for batch in loader:
            for t, rows in written.items():
                assert torch.equal(batch[t].x, rows[batch[t].n_id])


def test_times_that_sampling_goes_by_are_not_written(typed):
    graph, _ = typed
    timed = [t for t in graph.ntypes if "time" in graph.ndata[t]]
    assert timed
    for t in timed:
        before = graph.ndata[t]["time"][:]
        mine = DistTensor((graph.num_nodes(t),), torch.int64, part=t)
        for write, *given in (
            (graph.ndata[t]["time"].__setitem__, 0, 1),
            (graph.ndata[t]["time"].add, 0, 1),
            (graph.ndata[t].__setitem__, "time", mine),
        ):
            with pytest.raises(ValueError, match=r"time.* has the times that edges were sorted by .*partition it ag"):
                write(*given)
        assert torch.equal(graph.ndata[t]["time"][:], before)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_collocated_loader_goes_on_when_torch_has_moved_its_partition(on_device, alone, world):
    """On a device, which the host plays, columns and rows are read in place too."""
    load, given = ({"graph_mode": "ZERO_COPY"}, {"device": "host"}) if on_device else ({}, {})
    data = DistDataset().load(world(1).path, 0, **load)
    flags = {"collect_features": True, "worker_options": CollocatedDistSamplingWorkerOptions(**given)}
    with DistNeighborLoader(data, [3, 2], torch.arange(200), 50, **flags) as loader:
        assert any(batch.n_id[batch.edge_index[0]].any() for batch in loader)
        topology, x = data.graph.topology, data.node_features.tensor
        for tensor in (topology.indptr, topology.indices, topology.edge_ids, x):
            before = tensor.data_ptr()
            ForkingPickler.dumps(tensor)
            assert tensor.data_ptr() != before
        topology.indices.zero_()  # where it was, nobody writes any more
        x += 1
        for batch in loader:
            assert batch.num_edges and not batch.n_id[batch.edge_index[0]].any()
            assert torch.equal(batch.x, x[batch.n_id])


def test_edges_by_id(tmp_path):
    """Of edges that come in the order of their ids, the ids are looked up where the rows have them."""
    ends = torch.stack([torch.arange(200) // 5, torch.arange(200) % 7])
    RandomPartitioner(tmp_path / "parts", 2, 40, ends).partition()
    data = DistDataset().load(tmp_path / "parts", 0)
    directory, ids = EdgeDirectory(data.own, 0), data.graph.topology.edge_ids.long()
    assert bool((ids[1:] > ids[:-1]).all())
    is_here, found = directory.find(ids)
    assert bool(is_here.all()) and torch.equal(found, ends[:, ids])
    ForkingPickler.dumps(data.graph)
    data.graph.topology.edge_ids.add_(1000)
    is_here, found = directory.find(ids + 1000)
    assert bool(is_here.all()) and torch.equal(found, ends[:, ids])


def test_edges_by_ids_that_are_counted(tmp_path):
    ends = torch.stack([torch.arange(200) // 5, torch.arange(200) % 7])
    RandomPartitioner(tmp_path / "parts", 1, 40, ends).partition()
    data = DistDataset().load(tmp_path / "parts", 0)
    assert data.graph.topology.edge_ids is None
    directory, ids = EdgeDirectory(data.own, 0), torch.arange(210)
    is_here, found = directory.find(ids)
    assert is_here.tolist() == [True] * 200 + [False] * 10 and torch.equal(found, ends)
    assert directory.ids().tolist() == list(range(200))


def test_a_stored_table(world):
    data = DistDataset().load(world(1).path, 0)
    feature = data.edge_features
    shard = Shard(GraphQueries(data).stored_rows("edge", 0, "edge_attr", [0]), is_borrowed=True)
    rows = (0, len(feature))
    before = shard.read(rows)
    ForkingPickler.dumps(feature)
    feature.tensor.add_(1)
    assert torch.equal(shard.read(rows), before + 1)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("name", ["node_features", "node_labels", "edge_features"])
def test_rows_of_another_partition_are_refused(world, part, name):
    data = DistDataset().load(world(2).path, part)
    owner = (data.edge_books if name == "edge_features" else data.node_books)[0].owners()
    mine, other = np.flatnonzero(owner == part), int(np.flatnonzero(owner != part)[0])
    table = getattr(data, name)
    assert len(table[torch.from_numpy(mine)]) == len(mine)
    with pytest.raises(IndexError, match=rf"ids\[1\] = {other} belongs to partition {1 - part}, not here"):
        table[torch.tensor([int(mine[0]), other])]


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
    mine = torch.from_numpy(np.flatnonzero(data.node_books[0].owners() == 0))
    assert torch.equal(other.tables("node", 0)["x"][mine], world(2).x[mine])
