"""Weights and times: they follow their edges into the rows, of every source of graphs."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch

from glt import _core
from glt.data import Dataset, Topology
from glt.data.topology import EdgeWeights, TimedEdges
from glt.testing import random_graph

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")
GRAPH = random_graph(60, 500, seed=2)
NUM_EDGES = GRAPH.edge_index.size(1)
SHUFFLED = torch.from_numpy(np.random.default_rng(0).permutation(NUM_EDGES))
WEIGHT = (torch.arange(NUM_EDGES) % 7).to(torch.float32)
TIME = (SHUFFLED * 31) % 40  # many ties


def weights_of(topology):
    """Weights of the edges in row order, up to a factor per row."""
    sums, indptr = topology.weights.weight_sum.numpy().astype(np.float64), topology.indptr.tolist()
    return [np.diff(sums[begin:end], prepend=0.0) for begin, end in pairwise(indptr)]


@pytest.mark.parametrize("layout", ["CSR", "CSC"])
@pytest.mark.parametrize("given_ids", [False, True])
def test_weights_follow_their_edges(layout, given_ids):
    ids = SHUFFLED + 2**31 if given_ids else None
    topology = Topology(GRAPH.edge_index, 60, edge_ids=ids, layout=layout, edge_weight=WEIGHT)
    plain = Topology(GRAPH.edge_index, 60, edge_ids=ids, layout=layout)
    assert torch.equal(topology.indices, plain.indices) and torch.equal(topology.edge_ids, plain.edge_ids)
    assert topology.edge_ids.dtype == plain.edge_ids.dtype and plain.weights is None
    position = Topology(GRAPH.edge_index, 60, layout=layout).edge_ids.long()
    expected = WEIGHT[position].double().split(topology.degrees.tolist())
    for found, wanted in zip(weights_of(topology), expected, strict=True):
        if wanted.sum() > 0:
            np.testing.assert_allclose(found / found.sum(), wanted / wanted.sum(), rtol=1e-12)
    assert topology.csr.num_edges == NUM_EDGES


@pytest.mark.parametrize("layout", ["CSR", "CSC"])
@pytest.mark.parametrize("given_ids", [False, True])
def test_times_make_a_second_order_and_leave_the_first_alone(layout, given_ids):
    ids = SHUFFLED if given_ids else None
    topology = Topology(GRAPH.edge_index, 60, edge_ids=ids, layout=layout, edge_time=TIME.int())
    plain = Topology(GRAPH.edge_index, 60, edge_ids=ids, layout=layout)
    assert torch.equal(topology.indices, plain.indices) and torch.equal(topology.edge_ids, plain.edge_ids)
    row, col = GRAPH.edge_index if layout == "CSR" else GRAPH.edge_index.flip(0)
    order = np.lexsort([np.arange(NUM_EDGES), TIME.numpy(), row.numpy()])
    assert np.array_equal(topology.by_time.time, TIME.numpy()[order])
    assert np.array_equal(topology.by_time.indices, col.numpy()[order])
    assert np.array_equal(topology.by_time.edge_ids, order if ids is None else ids.numpy()[order])
    assert topology.by_time.time.dtype == torch.int64
    assert topology.csr_by_time.num_edges == NUM_EDGES
    with pytest.raises(ValueError, match="the edges have no times: expected a topology built with edge_time"):
        _ = plain.csr_by_time


def test_edges_sorted_by_time_already_share_their_columns():
    topology = Topology(GRAPH.edge_index, 60, layout="CSC", edge_time=np.arange(NUM_EDGES))
    assert topology.by_time.indices is topology.indices and topology.by_time.edge_ids is topology.edge_ids


def test_ready_arrays_are_wrapped_without_a_copy_and_checked():
    built = Topology(GRAPH.edge_index, 60, layout="CSC", edge_weight=WEIGHT, edge_time=TIME)
    rows = {"layout": "CSC", "num_nodes": (60, 60)}
    wrapped = Topology.from_rows(
        built.indptr, built.indices, built.edge_ids, **rows, weights=built.weights, by_time=built.by_time
    )
    assert wrapped.weights.weight_sum.data_ptr() == built.weights.weight_sum.data_ptr()
    assert wrapped.by_time.time is built.by_time.time
    copy = pickle.loads(pickle.dumps(wrapped))
    assert torch.equal(copy.weights.weight_sum, built.weights.weight_sum) and copy.csr_by_time.num_edges == NUM_EDGES
    falling = TimedEdges(built.indices, built.edge_ids, built.by_time.time.flip(0))
    with pytest.raises(ValueError, match="time"):
        Topology.from_rows(built.indptr, built.indices, built.edge_ids, **rows, by_time=falling)
    with pytest.raises(ValueError, match="weight_guide"):
        Topology.from_rows(
            built.indptr, built.indices, **rows, weights=(built.weights.weight_sum, built.weights.weight_guide[:-1])
        )


def picked(csr, num_neighbors, **options):
    """Edge ids that the core samples of every node of GRAPH, and the node of each."""
    nodes = np.arange(60)
    hop = _core.OneHop(csr, nodes, num_neighbors, False, 7, 0, **options)
    count, neighbor, edge = (np.empty(n, t) for n, t in ((60, np.uint32), *[(hop.num_edges, np.int64)] * 2))
    hop.copy_out(count, neighbor, edge)
    return edge, np.repeat(nodes, count)


def test_the_core_samples_by_them():
    topology = Topology(GRAPH.edge_index, 60, layout="CSC", edge_weight=WEIGHT, edge_time=TIME)
    target = GRAPH.edge_index[1]
    edge, node = picked(topology.csr, 1)
    assert np.array_equal(target[edge], node)
    has_weight = torch.zeros(60).index_add_(0, target, WEIGHT) > 0
    assert bool((WEIGHT[edge][has_weight[node]] > 0).all()), "zero weights while others remain"
    edge, node = picked(topology.csr_by_time, -1, seed_time=np.full(60, 20))
    assert np.array_equal(np.sort(edge), torch.nonzero(TIME <= 20).view(-1)), "all edges of the past, and no others"


@pytest.mark.parametrize("layout", ["CSR", "CSC"])
def test_more_nodes_keep_weights_and_times(layout):
    wider = Topology(GRAPH.edge_index, 60, layout=layout, edge_weight=WEIGHT, edge_time=TIME).widened((65, 70))
    direct = Topology(GRAPH.edge_index, (65, 70), layout=layout, edge_weight=WEIGHT, edge_time=TIME)
    for found, expected in zip(wider.weights, direct.weights, strict=True):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(wider.indptr, direct.indptr) and wider.csr.num_nodes == direct.csr.num_nodes
    checked = Topology.from_rows(wider.indptr, wider.indices, layout=layout, num_nodes=(65, 70), weights=wider.weights)
    assert checked.csr.num_edges == NUM_EDGES


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (torch.tensor([1.0, -2.0]), ValueError, r"edge_weight\[1\] = -2.0: expected finite weights of at least 0"),
        (torch.tensor([float("nan"), 1]), ValueError, r"edge_weight\[0\] = nan"),
        (np.array([1.0, np.inf]), ValueError, r"edge_weight\[1\] = inf"),
        (torch.ones(3), ValueError, r"edge_weight has shape \[3\]: expected one weight per edge, \[2\]"),
        (torch.ones(2, dtype=torch.complex64), TypeError, "edge_weight has dtype torch.complex64"),
        (torch.tensor([1, 2**53 + 1]), ValueError, r"edge_weight holds integers above 2\^53"),
    ],
)
def test_weights_that_are_none(weight, error, message):
    with pytest.raises(error, match=message):
        Topology(torch.tensor([[0, 1], [1, 0]]), edge_weight=weight)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool]
)
def test_weights_of_any_dtype(dtype):
    edges = torch.tensor([[0, 0, 0], [1, 2, 0]])
    topology = Topology(edges, edge_weight=torch.tensor([[1], [0], [1]]).to(dtype))
    found = weights_of(topology)[0]
    assert found[0] == found[2] > 0 == found[1]


@pytest.mark.parametrize(
    ("time", "error", "message"),
    [
        (torch.tensor([1.5, 2.0]), TypeError, "edge_time has dtype torch.float32: expected integers"),
        (torch.tensor([1]), ValueError, r"edge_time has shape \[1\]: expected one time per edge, \[2\]"),
        (torch.tensor([True, False]), TypeError, r"edge_time has dtype torch.bool"),
    ],
)
def test_times_that_are_none(time, error, message):
    with pytest.raises(error, match=message):
        Topology(torch.tensor([[0, 1], [1, 0]]), edge_time=time)


def test_no_edges():
    none = torch.empty(2, 0, dtype=torch.int64)
    topology = Topology(none, 3, edge_weight=[], edge_time=[])
    assert topology.csr.num_edges == topology.csr_by_time.num_edges == 0
    assert Topology(none, 0, edge_weight=torch.empty(0), edge_time=torch.empty(0, dtype=torch.int64)).csr.num_rows == 0


EDGES = {WRITES: torch.tensor([[0, 1, 0], [2, 2, 2]]), CITES: torch.tensor([[3, 1, 0], [2, 2, 2]])}


def test_a_datasets_weights_are_of_some_edge_types():
    dataset = Dataset.from_arrays(EDGES, edge_weight={CITES: torch.tensor([1.0, 0, 2])})
    writes, cites = (graph.topology for graph in dataset.graphs)
    assert writes.weights is None and weights_of(cites)[2][1] == 0
    with pytest.raises(ValueError, match=r"edge type \('paper', 'cites', 'paper'\): edge_weight\[0\] = -1.0"):
        Dataset.from_arrays(EDGES, edge_weight={CITES: torch.tensor([-1.0, 0, 2])})
    single = Dataset()
    single.init_graph(EDGES[CITES], edge_weights=torch.ones(3), edge_times=torch.tensor([3, 1, 2]))
    single.init_node_features(torch.zeros(9, 1))
    assert len(single.graph.topology.weights.weight_guide) == 9 and single.time_level == "edge"
    assert single.graph.csr_by_time.num_nodes == single.graph.csr.num_nodes == 9


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_node_s_time_is_that_of_the_edges_it_is_the_neighbour_of(edge_dir):
    time = {"paper": torch.tensor([7, 5, 9, 1])}
    dataset = Dataset.from_arrays(EDGES, node_time=time, edge_dir=edge_dir)
    assert (dataset.time_attr, dataset.time_level) == ("time", "node")
    assert dataset.node_tables[dataset.schema.node_index("paper")]["time"].tensor is not None
    writes, cites = (graph.topology for graph in dataset.graphs)
    if edge_dir == "in":
        assert writes.by_time is None, "authors have no time: unconstrained"
        assert cites.by_time.time.tolist() == [1, 5, 7] and cites.by_time.indices.tolist() == [3, 1, 0]
    else:
        assert writes.by_time.time.tolist() == [9, 9, 9] and cites.by_time.time.tolist() == [9, 9, 9]
    with pytest.raises(ValueError, match=r"node_time\['paper'\] has shape \[3\]: expected one time per node, \[4\]"):
        Dataset.from_arrays(EDGES, {"paper": 4}, node_time={"paper": torch.tensor([1, 2, 3])})
    with pytest.raises(TypeError, match=r"node_time\['paper'\] has dtype torch.float32"):
        Dataset.from_arrays(EDGES, node_time={"paper": torch.zeros(4)})
    with pytest.raises(ValueError, match="node_time and edge_time are both given"):
        Dataset.from_arrays(EDGES, node_time=time, edge_time={CITES: torch.arange(3)})


def test_edge_times_by_edge_type():
    dataset = Dataset.from_arrays(EDGES, edge_time={WRITES: torch.tensor([5, 3, 4])})
    assert (dataset.time_attr, dataset.time_level) == ("time", "edge")
    assert dataset.graphs[0].topology.by_time.edge_ids.tolist() == [1, 2, 0]
    assert dataset.graphs[1].topology.by_time is None
    with pytest.raises(ValueError, match="no times"):
        _ = dataset.graphs[1].csr_by_time


def hetero_data():
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 4, 2
    data[WRITES].edge_index, data[CITES].edge_index = EDGES[WRITES], EDGES[CITES]
    data["paper"].year = torch.tensor([7, 5, 9, 1])
    data[CITES].when = torch.tensor([3, 1, 2])
    data[WRITES].weight = torch.tensor([1, 2, 3])
    return data


def test_from_pyg_decides_the_level_as_pyg_does():
    by_node = Dataset.from_pyg(hetero_data(), time_attr="year", weight_attr="weight")
    assert (by_node.time_attr, by_node.time_level) == ("year", "node")
    assert by_node.get_graph(CITES).topology.by_time.time.tolist() == [1, 5, 7]
    assert by_node.get_graph(WRITES).topology.by_time is None
    assert by_node.get_graph(WRITES).topology.weights is not None and by_node.get_graph(CITES).topology.weights is None
    by_edge = Dataset.from_pyg(hetero_data(), time_attr="when")
    assert by_edge.time_level == "edge" and by_edge.get_graph(CITES).topology.by_time.edge_ids.tolist() == [1, 2, 0]

    data = GRAPH.to_data()
    data.when, data.seen = TIME, torch.arange(60)
    data.edge_weight = WEIGHT
    dataset = Dataset.from_pyg(data, time_attr="when", weight_attr="edge_weight")
    direct = Dataset.from_arrays(GRAPH.edge_index, 60, edge_time=TIME, edge_weight=WEIGHT)
    assert dataset.time_level == direct.time_level == "edge"
    for found, expected in zip(dataset.graph.topology.by_time, direct.graph.topology.by_time, strict=True):
        assert torch.equal(found, expected)
    assert sorted(dataset.edge_tables[0]) == ["edge_attr", "edge_weight", "when"], "batches have them, as in PyG"
    assert Dataset.from_pyg(data, time_attr="seen").time_level == "node"


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_times_out_of_stores_are_those_of_the_data(edge_dir):
    pytest.importorskip("torch_geometric")
    from glt.data.stores import DatasetFeatureStore, DatasetGraphStore, dataset_of_stores

    data = hetero_data()
    plain = Dataset.from_pyg(data)
    stores = DatasetFeatureStore(plain), DatasetGraphStore(plain)
    for name in ("year", "when"):
        expected = Dataset.from_pyg(data, time_attr=name, edge_dir=edge_dir)
        read = dataset_of_stores(*stores, edge_dir=edge_dir, time_attr=name)
        assert (read.time_attr, read.time_level) == (name, expected.time_level)
        for edge_type in (WRITES, CITES):
            ours, theirs = (d.get_graph(edge_type).topology.by_time for d in (read, expected))
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert torch.equal(ours.time, theirs.time) and torch.equal(ours.indices, theirs.indices)
    data = GRAPH.to_data()
    data.when = TIME
    single = dataset_of_stores(data, data, time_attr="when", edge_dir=edge_dir)
    expected = Dataset.from_pyg(data, time_attr="when", edge_dir=edge_dir).graph.topology.by_time
    assert all(map(torch.equal, single.graph.topology.by_time, expected))
    own = Dataset.from_pyg(data, time_attr="when")
    assert dataset_of_stores(None, DatasetGraphStore(own)).time_level == "edge"


@pytest.mark.parametrize("degree", [2, 3, 1000, 1025])
def test_weights_that_are_far_apart_count_as_the_documented_range(degree):
    """What the docstrings of edge_weight and weight_attr say."""
    weight = np.full(degree, 1e-300)
    weight[0] = 1.99
    total = EdgeWeights.build(torch.tensor([0, degree]), weight).weight_sum.numpy().astype(np.int64)
    smallest, largest = np.diff(total).min(), total[0]
    assert 0 < smallest / largest < 2 * degree * 1e-18
    weight[1:] = 2 * degree * 1e-18
    total = EdgeWeights.build(torch.tensor([0, degree]), weight).weight_sum.numpy().astype(np.int64)
    assert np.allclose(np.diff(total) / total[0], weight[1] / weight[0], rtol=1)
