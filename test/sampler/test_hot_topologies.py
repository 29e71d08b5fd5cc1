"""Graphs larger than device memory: hot rows are read there, the others in place, and batches are the CPU's."""

import numpy as np
import pytest
import torch
from test_device_sampling import HETERO, HOMO, assert_same, on_host

import glt
from glt.data import Dataset, Graph, Topology
from glt.data.dataset import placed_together
from glt.data.device_topology import COLD, DeviceTopology, hottest_rows, num_bytes
from glt.loader import NeighborLoader
from glt.sampler import NeighborSampler
from glt.sampler.device_batch import DeviceBatch, PlacedRows
from glt.testing import random_graph

CPU = torch.device("cpu")
OPTIONS = [
    {},
    {"replace": True, "with_edge": False},
    {"disjoint": True},
    {"weight_attr": "edge_weight"},
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"sampler": "labor"},
    {"sampler": "labor", "weight_attr": "edge_weight"},
]


@pytest.fixture
def free(monkeypatch):
    """Sets how much memory is free on the "GPU", the host."""

    def set_free(num_bytes):
        monkeypatch.setattr("glt.data.device_topology.free_memory", lambda device: num_bytes)

    return set_free


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_are_those_of_the_cpu_and_read_the_copies(options, edge_dir, free, monkeypatch):
    monkeypatch.setattr("glt.data.device_topology.num_bytes", lambda _: 2**62)  # small graphs would fit
    attrs = {name: options.get(name) for name in ("time_attr", "weight_attr")}
    for data, kind, seeds in ((HOMO, 0, [5, 5, 0, 79, 31]), (HETERO, 1, [3, 0, 44])):
        sampler = NeighborSampler(
            Dataset.from_pyg(data, edge_dir=edge_dir, **attrs), [4, -1, 20], random_seed=1, **options
        )
        seeds = torch.tensor(seeds)
        time = sampler.graph.seed_time(kind, seeds) if sampler.is_temporal else None
        expected = sampler.sample([(kind, seeds)], time, batch_key=7)
        placed = []
        for topology in sampler.graph.topologies:
            columns = [topology.indices, topology.edge_ids, *(topology.by_time or ())[:2]]
            row_bytes = sum(column.element_size() for column in columns if column is not None)
            free(4 * (8 * topology.num_nodes + row_bytes * topology.num_edges // 2) // 3 + 4)
            placed.append(DeviceTopology(topology, CPU, "CUDA"))
        is_hot = torch.cat([each.hot.shift != COLD for each in placed])
        assert 5 <= int(is_hot.sum()) < len(is_hot) - 5, "some are hot, some are not"
        kernels = on_host(sampler, placed)
        spoilt = [
            spoil(topology, each.hot.shift) for topology, each in zip(sampler.graph.topologies, placed, strict=True)
        ]
        try:
            for _ in range(2):
                assert_same(kernels.launch(sampler.config, [(kind, seeds)], time, 7)(), expected)
        finally:
            for columns in spoilt:
                for column, before in columns:
                    column.copy_(before)


def spoil(topology, shift):
    """Makes nonsense of the columns where hot rows are: nothing may read them there."""
    columns = [topology.indices, topology.edge_ids, *(topology.by_time or ())[:2]]
    known = [(column, column.clone()) for column in columns if column is not None]
    hot = torch.repeat_interleave(shift != COLD, topology.degrees)
    for column, _ in known:
        column[hot] = 2**30
    return known


@pytest.mark.parametrize("hotness", [None, torch.rand(60, generator=torch.Generator().manual_seed(1))])
def test_rows_that_give_most_edges_for_their_bytes_are_kept(hotness):
    degree = np.random.default_rng(0).integers(0, 40, 60)
    degree[7] = 500  # more than there is room for
    indptr = np.concatenate([[0], np.cumsum(degree)])
    for room in (0, 5, 100, 400, 2000):
        shift, begins, ends = hottest_rows(indptr, hotness, room)
        kept = np.flatnonzero(shift != COLD)
        assert np.array_equal(begins, indptr[kept]) and np.array_equal(ends, indptr[kept + 1])
        assert np.array_equal(shift[kept] + begins, np.cumsum(ends - begins) - (ends - begins))
        assert degree[kept].sum() <= room
        hot = degree if hotness is None else hotness.numpy()
        score = hot * np.minimum(degree, 10) / np.maximum(degree, 1)
        left = [v for v in range(60) if degree[v] > 0 and v not in kept]
        assert all(degree[v] > room - degree[kept].sum() for v in left), "whatever fits is kept"
        for v in left:  # what takes its place is better, or is what fitted in the end
            worse = [u for u in kept if score[u] < 0.998 * score[v]]
            assert degree[worse].sum() < degree[v] or degree[v] > room


def test_a_hub_that_does_not_fit_ends_nothing():
    degree = np.full(100_001, 10)
    degree[1] = 100_000
    shift, begins, _ = hottest_rows(np.concatenate([[0], np.cumsum(degree)]), None, 100_000)
    assert len(begins) == 10_000 and shift[1] == COLD


@pytest.mark.parametrize("k", [5, 20, -1])
def test_other_copies_are_read_where_they_are(k):
    """A graph that was made of a batch's launches does not read the copies of before."""
    num_nodes, degree = 50, 30
    indptr = torch.arange(0, num_nodes * degree + 1, degree)
    indices = torch.randint(0, num_nodes, (num_nodes * degree,), generator=torch.Generator().manual_seed(1))

    def placed(hot):
        shift = torch.full((num_nodes,), COLD)
        for at, row in enumerate(hot):
            shift[row] = degree * at - indptr[row]
        copies = torch.cat([indices[indptr[row] : indptr[row + 1]] for row in hot])
        return PlacedRows.of(indptr, indices, num_neighbor_nodes=num_nodes, hot=(shift, copies, None))

    def neighbors(batch, rows):
        batch.launch([rows], [(0, torch.arange(10))], [[k]], batch_key=1)
        batch.finish()
        return batch.nodes(0, False)[0][batch.edges(0, True)[0]].clone()

    batch, before = DeviceBatch([num_nodes], [(0, 0)], CPU), placed(range(10))
    expected = [neighbors(batch, before) for _ in range(3)][-1]
    after = placed(range(9, -1, -1))
    for tensor in before.tensors[-3:-1]:
        tensor.zero_()
    assert torch.equal(neighbors(batch, after), expected)


def test_edge_types_share_the_room(free, monkeypatch):
    """By their bytes, and with the other processes that sample there."""
    dataset = Dataset.from_pyg(HETERO).with_mode("CUDA", "host")
    sizes = [num_bytes(graph.topology) for graph in dataset.graphs]
    found = []
    place = DeviceTopology.__init__

    def noted(self, *given, room=None, **options):
        found.append(room)
        place(self, *given, room=room, **options)

    monkeypatch.setattr(DeviceTopology, "__init__", noted)
    free(4 * sum(sizes))
    placed_together(dataset.graphs, "host", num_sharers=2)
    assert found == [3 * sum(sizes) // 2 * size // sum(sizes) for size in sizes]
    placed_together(dataset.graphs, "host")
    assert len(found) == len(sizes), "they are there"


def test_hotness_goes_with_the_graph(free):
    hotness = torch.rand(80, dtype=torch.bfloat16).requires_grad_()
    dataset = Dataset(Graph(Topology(HOMO.edge_index, 80, layout="CSC"), "CUDA", "host", hotness=hotness))
    assert torch.equal(dataset.with_mode("CUDA", "host").graphs[0].hotness, hotness.detach())
    dataset.init_node_features(torch.zeros(90, 1))
    assert torch.equal(dataset.graphs[0].hotness, torch.cat([hotness.detach(), torch.zeros(10, dtype=torch.bfloat16)]))
    free(1200)
    assert dataset.graphs[0].placed().hot is not None
    for wrong in (torch.full((80,), float("nan")), torch.zeros(80, dtype=torch.complex64), torch.zeros(79)):
        with pytest.raises(ValueError, match="hotness"):
            Graph(Topology(HOMO.edge_index, 80), hotness=wrong)


def test_a_graph_that_fits_is_whole(free):
    topology = Topology(HOMO.edge_index, 80)
    num_bytes = topology.indices.nbytes + topology.edge_ids.nbytes
    free(num_bytes * 4 // 3 + 4)
    placed = DeviceTopology(topology, CPU, "CUDA")
    assert placed.hot is None and placed.indices is not topology.indices
    free(num_bytes * 4 // 3 - 4)
    placed = DeviceTopology(topology, CPU, "CUDA")
    assert placed.hot is not None and placed.indices is topology.indices
    free(0)
    placed = DeviceTopology(topology, CPU, "CUDA")
    assert int((placed.hot.shift != COLD).sum()) == 0, "no room for any row"
    free(0)
    assert DeviceTopology(topology, CPU, "ZERO_COPY").hot is None, "it asks for none"


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_loaders_give_the_same_batches(free, subgraph_type):
    """Also where kernels read rows in place: induced edges, negatives, excluded edges."""
    topology = Topology(HOMO.edge_index, 80, layout="CSC")
    free(5000)
    hotness = torch.arange(80.0)
    graph = Graph(topology, "CUDA", "host", hotness=hotness)
    shift = graph.placed().hot.shift
    assert int((shift[40:] != COLD).sum()) > int((shift[:40] != COLD).sum()), "the hotness is that which was given"
    options = {"num_neighbors": [4, 3], "batch_size": 16, "random_seed": 3, "subgraph_type": subgraph_type}
    ours = NeighborLoader(Dataset(graph), input_nodes=torch.arange(80), **options)
    theirs = NeighborLoader(Dataset(Graph(topology)), input_nodes=torch.arange(80), **options)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.n_id, b.n_id) and torch.equal(a.edge_index, b.edge_index) and torch.equal(a.e_id, b.e_id)


def test_partitions_keep_rows_by_the_hotness_of_the_partitioner(free, tmp_path):
    graph = random_graph(200, 3000, seed=5)
    hotness = [np.random.default_rng(p).random(200).astype(np.float32) for p in range(2)]
    glt.partition.RandomPartitioner(
        tmp_path / "parts", 2, 200, graph.edge_index, node_feat=graph.x, hotness=hotness
    ).partition()
    free(6000)
    data = glt.distributed.DistDataset().load(tmp_path / "parts", 0, "CUDA", device="host")
    local = data.local_graph({0: data.own, 1: data.map_other(tmp_path / "parts", 1)})
    (graph,) = local.graphs
    owner = data.node_books[0].owners()
    expected = np.where(owner == 0, hotness[0], hotness[1])
    assert torch.equal(graph.hotness, torch.from_numpy(expected))
    shift, *_ = hottest_rows(graph.topology.indptr.numpy(), graph.hotness, (4500 - 1600) // 8)
    assert torch.equal(graph.placed().hot.shift, torch.from_numpy(shift))
