"""Loaders over a DistGraph: what DGL's code does with them comes out right."""

import pytest
import torch
import torch_geometric.nn as pyg
from dist_typed_world import FOLLOWS, RATES
from dist_world import standalone_job
from torch_geometric.data import Data
from torch_geometric.sampler.base import SubgraphType

from glt.distributed.graph.blocks import to_block
from glt.distributed.graph.loaders import (
    DistDataLoader,
    EdgeDataLoader,
    GlobalUniform,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NodeDataLoader,
    PerSourceUniform,
)
from glt.distributed.tensors.tensor import DistTensor

SEEDS = torch.arange(5, 300, 4)


@pytest.fixture
def small(world):
    made = world(2, "in", "xye")
    with standalone_job(made.path) as graph:
        yield graph, made


@pytest.fixture
def typed(typed_world):
    made = typed_world(2, "in")
    with standalone_job(made.path) as graph:
        yield graph, made


class Sage(torch.nn.Module):
    """On blocks, as DGL's example has it, and on the whole graph."""

    def __init__(self, width):
        super().__init__()
        self.convs = torch.nn.ModuleList([pyg.SAGEConv(width, 8), pyg.SAGEConv(8, 3)])

    def forward(self, blocks, x):
        for at, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
            assert len(x) == block.num_src
            x = conv((x, x[: block.num_dst]), block.edge_index)
            x = x.relu() if at == 0 else x
        return x

    def whole(self, x, edge_index):
        return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)


def loaders(graph):
    full = MultiLayerFullNeighborSampler(2)
    return {
        "blocks": NodeDataLoader(graph, SEEDS, full, 16, shuffle=True, blocks=True),
        "in PyG's order": NodeDataLoader(graph, SEEDS, [-1, -1], 16, blocks=True, with_edge=True),
        "by hand": DistDataLoader(SEEDS, 16, True, lambda seeds: full.sample(graph, seeds), num_threads=2),
    }


@pytest.mark.parametrize("name", ["blocks", "in PyG's order", "by hand"])
def test_a_model_on_blocks_makes_what_it_makes_of_the_whole_graph(name, small):
    graph, made = small
    assert made.x is not None
    torch.manual_seed(1)
    model = Sage(made.x.size(1))
    expected = model.whole(made.x, made.graph.edge_index)
    seen = []
    for input_nodes, seeds, blocks in loaders(graph)[name]:
        got = model(blocks, graph.ndata["x"][input_nodes])
        torch.testing.assert_close(got, expected[seeds], rtol=1e-4, atol=1e-5)
        assert torch.equal(blocks[1].src_id, blocks[0].dst_id) and torch.equal(blocks[1].dst_id, seeds)
        for block in blocks:
            if block.e_id is not None:
                ends = torch.stack([block.src_id[block.edge_index[0]], block.dst_id[block.edge_index[1]]])
                assert torch.equal(ends, made.graph.edge_index[:, block.e_id])
        seen.append(seeds)
    assert torch.equal(torch.cat(seen).sort().values, SEEDS)


def test_fanouts_are_in_the_order_of_layers(small):
    graph, _ = small
    sampler = MultiLayerNeighborSampler([4, 1])
    for _, _, (wide, near) in NodeDataLoader(graph, SEEDS, sampler, 32, blocks=True):
        assert int(torch.bincount(near.edge_index[1]).max()) == 1
        assert int(torch.bincount(wide.edge_index[1]).max()) in (2, 3, 4)
    _, _, (wide, near) = sampler.sample(graph, SEEDS)
    assert int(torch.bincount(near.edge_index[1]).max()) == 1
    assert int(torch.bincount(wide.edge_index[1]).max()) == 4


def test_batches_are_pygs_unless_blocks_are_asked_for(small):
    graph, made = small
    loader = NodeDataLoader(graph, SEEDS, [3, 2], 16, drop_last=True)
    batches = list(loader)
    assert len(batches) == len(loader) == len(SEEDS) // 16
    for batch in batches:
        assert isinstance(batch, Data) and torch.equal(batch.x, made.x[batch.n_id]) and batch.batch_size == 16


def pairs(ends):
    return set(map(tuple, ends.t().tolist()))


@pytest.mark.parametrize("exclude", [None, "self", "reverse", "reverse_id"])
def test_edges_and_what_is_excluded(exclude, small):
    graph, made = small
    ends = made.graph.edge_index
    edges = torch.arange(0, 6000, 25)
    leaked = 0
    for batch in EdgeDataLoader(graph, edges, [-1, -1], 30, exclude=exclude, with_edge=True):
        label = batch.n_id[batch.edge_label_index]
        assert torch.equal(label, ends[:, batch.input_id])
        sampled = pairs(ends[:, batch.e_id])
        leaked += len(pairs(label) & sampled)
        if exclude in ("reverse", "reverse_id"):
            assert not pairs(label.flip(0)) & sampled
    assert (leaked == 0) == (exclude is not None)


@pytest.mark.parametrize("negatives", [PerSourceUniform(3), GlobalUniform(2.0), None])
def test_graphs_of_seed_edges(negatives, small):
    graph, made = small
    edges = torch.arange(0, 6000, 50)
    known = pairs(made.graph.edge_index)
    at = 0
    for given in EdgeDataLoader(graph, edges, [3, 3], 20, negative_sampler=negatives, blocks=True):
        input_nodes, positive, blocks = given[0], given[1], given[-1]
        ids = edges[at : at + 20]
        assert torch.equal(positive.n_id[positive.edge_index], made.graph.edge_index[:, ids])
        assert torch.equal(input_nodes, blocks[0].src_id) and torch.equal(positive.n_id, blocks[-1].dst_id)
        assert len(given) == (3 if negatives is None else 4)
        if negatives is not None:
            negative = given[2].n_id[given[2].edge_index]
            assert negative.size(1) == int(negatives.amount * len(ids)) and not pairs(negative) & known
            if negatives.is_triplet():
                assert torch.equal(negative[0], made.graph.edge_index[0, ids].repeat_interleave(3))
        at += 20


def test_types(typed):
    graph, _ = typed
    users = torch.arange(0, graph.num_nodes("user"), 3)
    loader = NodeDataLoader(graph, {"user": users}, [3, 2], 8, blocks=True, with_edge=True)
    seen = []
    for input_nodes, seeds, (wide, near) in loader:
        assert list(seeds) == ["user"] and near.num_dst["user"] == len(seeds["user"]) and near.num_dst["item"] == 0
        assert all(torch.equal(input_nodes[t], wide.src_id[t]) for t in graph.ntypes)
        assert all(torch.equal(wide.dst_id[t], near.src_id[t]) for t in graph.ntypes)
        for block in (wide, near):
            for (source, relation, target), ends in block.edge_index.items():
                got = torch.stack([block.src_id[source][ends[0]], block.dst_id[target][ends[1]]])
                assert torch.equal(
                    got, graph.find_edges(block.e_id[source, relation, target], (source, relation, target))
                )
        seen.append(seeds["user"])
    assert torch.equal(torch.cat(seen), users)
    edges = torch.arange(20)
    batch = next(iter(EdgeDataLoader(graph, {RATES: edges}, [2], 20)))
    assert torch.equal(batch[RATES].input_id, edges)
    for given, words in (
        ({"edges": {RATES: edges, FOLLOWS: edges}}, "edges are of 2 types"),
        ({"edges": {RATES: torch.ones(3, dtype=torch.bool)}}, "edges is a mask of 3 elements"),
        ({"exclude": "both"}, "exclude = 'both': expected None or one of"),
        ({"exclude": "reverse_types"}, "expected reverse_etypes to name the reverse of"),
        ({"exclude": "self", "reverse_etypes": {}}, "expected 'reverse_types'"),
    ):
        with pytest.raises(ValueError, match=words):
            EdgeDataLoader(graph, **{"edges": {RATES: edges}, "sampler": [2], **given})
    with pytest.raises(KeyError, match="expected one of"):
        EdgeDataLoader(graph, edges, [2])


def test_to_block():
    graph = Data(edge_index=torch.tensor([[9, 3, 9, 7], [3, 7, 7, 3]]), e_id=torch.arange(4), num_nodes=12)
    block = to_block(graph, [7, 3, 5])
    assert (block.src_id.tolist(), block.dst_id.tolist()) == ([7, 3, 5, 9], [7, 3, 5])
    assert block.edge_index.tolist() == [[3, 1, 3, 0], [1, 0, 0, 1]] and block.e_id.tolist() == [0, 1, 2, 3]
    assert to_block(graph).dst_id.tolist() == [3, 7]
    nothing = to_block(Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=3), [2, 0])
    assert (nothing.num_src, nothing.num_dst) == (2, 2) and nothing.to("cpu").edge_index.shape == (2, 0)
    with pytest.raises(ValueError, match="edge into node 3, which is no seed"):
        to_block(graph, [7])
    with pytest.raises(ValueError, match="seeds name node 7 more than once"):
        to_block(graph, [7, 3, 7])


def test_batches_of_any_function_come_in_order():
    for shuffle in (False, True):
        loader = DistDataLoader(torch.arange(50), 8, shuffle, lambda ids: ids * 2, num_threads=3, random_seed=4)
        first, second = torch.cat(list(loader)), torch.cat(list(loader))
        assert torch.equal(first.sort().values, 2 * torch.arange(50)) and len(loader) == 7
        assert torch.equal(first, second) != shuffle
    assert list(DistDataLoader("abcde", 2, collate_fn="".join, drop_last=True)) == ["ab", "cd"]

    def fails(ids):
        if 20 in ids:
            raise OSError("no such place")
        return int(ids[0])

    got = []
    with pytest.raises(OSError, match="no such place"):
        got.extend(DistDataLoader(torch.arange(50), 8, collate_fn=fails))
    assert got == [0, 8] and next(iter(DistDataLoader(torch.arange(50), 8, collate_fn=fails))) == 0


def test_masks_that_servers_keep(small):
    graph, _ = small
    num_nodes, num_edges, edge_type = graph.num_nodes(), graph.num_edges(), ("node", "to", "node")
    makers = [
        (torch.bool, "node", num_nodes, NodeDataLoader),
        (torch.uint8, "node", num_nodes, NodeDataLoader),
        (torch.bool, edge_type, num_edges, EdgeDataLoader),
    ]
    for dtype, kind, num, make in makers:
        mask = DistTensor((num,), dtype, part=kind)
        mask[SEEDS] = torch.ones(len(SEEDS), dtype=dtype)
        got = torch.cat([batch.input_id for batch in make(graph, mask, [2], 32)])
        assert torch.equal(got, SEEDS)
    directional = NodeDataLoader(graph, SEEDS, [2], blocks=True, subgraph_type=SubgraphType.directional)
    assert len(next(iter(directional))) == 3


def test_what_does_not_fit_is_named(small):
    graph, _ = small
    both, workers = MultiLayerNeighborSampler([2], replace=True), graph.world.worker_options(1)
    nodes = [
        (TypeError, "graph is a int", {"graph": 3}),
        (ValueError, "num_workers = -1", {"num_workers": -1}),
        (ValueError, "subgraph_type = 'induced' with blocks", {"blocks": True, "subgraph_type": "induced"}),
        (ValueError, "directed = False with blocks", {"blocks": True, "directed": False}),
        (TypeError, "blocks = 'yes'", {"blocks": "yes"}),
        (TypeError, "num_neighbors is given", {"num_neighbors": [3]}),
        (ValueError, "num_workers = 1 with worker_options", {"num_workers": 1, "worker_options": workers}),
        (ValueError, "replace = False with MultiLayerNeighborSampler", {"sampler": both, "replace": False}),
    ]
    for error, words, given in nodes:
        with pytest.raises(error, match=words):
            NodeDataLoader(**{"graph": graph, "nodes": SEEDS, "sampler": [2], **given})
    calls = [
        (ValueError, r"sampler = \[\] with blocks", lambda: EdgeDataLoader(graph, SEEDS, [], blocks=True)),
        (ValueError, r"edges has shape \[6000, 2\]", lambda: EdgeDataLoader(graph, graph.edata["edge_attr"], [2])),
        (IndexError, r"edge_ids\[0\] = 9000", lambda: EdgeDataLoader(graph, [9000], [2])),
        (ValueError, r"fanouts = \[\]", lambda: MultiLayerNeighborSampler([])),
        (TypeError, "collate_fn = None", lambda: DistDataLoader(SEEDS, 2)),
        (TypeError, "dataset is a int", lambda: DistDataLoader(3, 2, collate_fn=len)),
        (ValueError, "queue_size = 0", lambda: DistDataLoader(SEEDS, 2, collate_fn=len, queue_size=0)),
    ]
    for error, words, call in calls:
        with pytest.raises(error, match=words):
            call()
