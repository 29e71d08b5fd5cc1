"""Loaders over a DistGraph: what DGL's code does with them comes out right."""

import re

import pytest
import torch
import torch_geometric.nn as pyg
from dist_typed_world import FOLLOWS, NUM_NODES, RATED, RATES, write_typed_world
from dist_world import standalone_job, told_to_a_second_thread
from torch_geometric.data import Data
from torch_geometric.sampler.base import SubgraphType

from glt.data.schema import reverse_edge_type
from glt.distributed.graph.blocks import EID, NID, to_block
from glt.distributed.graph.loaders import DistDataLoader, EdgeDataLoader, NodeDataLoader
from glt.distributed.graph.samplers import (
    GlobalUniform,
    LaborSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    PerSourceUniform,
)
from glt.distributed.tensors.tensor import DistTensor
from glt.loader import LinkNeighborLoader, NeighborLoader

SEEDS = torch.arange(5, 300, 4)
REFUSED = r"thread '.*' asks this loader for a batch while thread 'MainThread' does: .*create one for each"


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
        ({"exclude": "both"}, "exclude = 'both': expected one of"),
        ({"exclude": "reverse_types"}, "expected reverse_etypes to name the reverse of"),
        ({"exclude": "self", "reverse_etypes": {}}, "expected 'reverse_types'"),
    ):
        with pytest.raises(ValueError, match=words):
            EdgeDataLoader(graph, **{"edges": {RATES: edges}, "sampler": [2], **given})
    with pytest.raises(KeyError, match="expected one of"):
        EdgeDataLoader(graph, edges, [2])


LATE = (torch.arange(30) * 7 + 11) % 50
NEWER = {
    "labor": (LaborSampler([2, 3]), {"sampler": "labor"}, {}),
    "labor, by weight, shared": (
        LaborSampler([2, 3], prob="weight", batch_dependency=2),
        {"sampler": "labor", "weight_attr": "weight", "batch_dependency": 2},
        {},
    ),
    "window": ([3, 2], {}, {"time_attr": "time", "time_window": 15, "time_bound": "<"}),
    "decay": ([3, 2], {}, {"time_attr": "time", "temporal_strategy": "decay", "half_life": {RATES: 4, RATED: 9}}),
}


@pytest.mark.parametrize("case", NEWER)
def test_batches_are_those_of_the_loaders_in_process(case, typed):
    """Around nodes, around edges, and in blocks."""
    graph, made = typed
    sampler, of_sampler, options = NEWER[case]
    data, items, edges = made.to_data(), torch.arange(30), torch.arange(0, 60, 2)
    common = {"batch_size": 8, "shuffle": True, "random_seed": 5, **options}
    late = ({"input_time": LATE}, {"edge_label_time": LATE}) if options else ({}, {})
    of_links = (RATES, made.edge_index[RATES][:, edges])
    pairs = [
        (
            NodeDataLoader(graph, {"item": items}, sampler, with_edge=True, **common, **late[0]),
            NeighborLoader(data, [3, 2], ("item", items), **common, **late[0], **of_sampler),
        ),
        (
            EdgeDataLoader(graph, {RATES: edges}, sampler, with_edge=True, **common, **late[1]),
            LinkNeighborLoader(data, [3, 2], of_links, **common, **late[1], **of_sampler),
        ),
    ]
    for loader, in_process in pairs:
        for batch, expected in zip(loader, in_process, strict=True):
            assert all(torch.equal(batch[t].n_id, expected[t].n_id) for t in graph.ntypes)
            for edge_type in graph.schema.edge_types:
                assert torch.equal(batch[edge_type].edge_index, expected[edge_type].edge_index)
                assert torch.equal(batch[edge_type].e_id, expected[edge_type].e_id)
    layers = NodeDataLoader(graph, {"item": items}, sampler, blocks=True, **common, **late[0])
    again = NeighborLoader(data, [3, 2], ("item", items), **common, **late[0], **of_sampler)
    for (input_nodes, _, _), expected in zip(layers, again, strict=True):
        assert all(torch.equal(ids, expected[t].n_id) for t, ids in input_nodes.items())


def test_to_block():
    graph = Data(edge_index=torch.tensor([[9, 3, 9, 7], [3, 7, 7, 3]]), e_id=torch.arange(4), num_nodes=12)
    block = to_block(graph, [7, 3, 5])
    assert (block.src_id.tolist(), block.dst_id.tolist()) == ([7, 3, 5, 9], [7, 3, 5])
    assert block.edge_index.tolist() == [[3, 1, 3, 0], [1, 0, 0, 1]] and block.e_id.tolist() == [0, 1, 2, 3]
    assert to_block(graph).dst_id.tolist() == [3, 7]
    nothing = to_block(Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=3), [2, 0])
    assert (nothing.num_src, nothing.num_dst) == (2, 2) and nothing.to("cpu").edge_index.shape == (2, 0)
    for wrong, seeds, error, words in (
        (graph, [7], ValueError, "edge into node 3, which is no seed"),
        (graph, [7, 3, 7], ValueError, "seeds name node 7 more than once"),
        (graph.edge_index, [7], TypeError, "frontier is a Tensor: expected what sample_neighbors returns"),
    ):
        with pytest.raises(error, match=words):
            to_block(wrong, seeds)


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


def test_what_does_not_fit_is_named(small):
    graph, _ = small
    both, workers = MultiLayerNeighborSampler([2], replace=True), graph.world.worker_options(1)
    nodes = [
        (ValueError, "subgraph_type = 'induced' with blocks", {"blocks": True, "subgraph_type": "induced"}),
        (ValueError, "directed = False with blocks", {"blocks": True, "directed": False}),
        (TypeError, "num_neighbors is given", {"num_neighbors": [3]}),
        (ValueError, "num_workers = 1 with worker_options", {"num_workers": 1, "worker_options": workers}),
        (ValueError, "replace = False with MultiLayerNeighborSampler", {"sampler": both, "replace": False}),
        (TypeError, "sampler = 'labor': .* for LABOR a LaborSampler", {"sampler": "labor"}),
        (ValueError, "batch_dependency = 2 with LaborSampler", {"sampler": LaborSampler([2]), "batch_dependency": 2}),
        (ValueError, "sampler = 'labor' and replace = True", {"sampler": LaborSampler([2]), "replace": True}),
    ]
    for error, words, given in nodes:
        with pytest.raises(error, match=words):
            NodeDataLoader(**{"graph": graph, "nodes": SEEDS, "sampler": [2], **given})
    calls = [
        (ValueError, r"sampler = \[\] with blocks", lambda: EdgeDataLoader(graph, SEEDS, [], blocks=True)),
        (ValueError, r"edges has shape \[6000, 2\]", lambda: EdgeDataLoader(graph, graph.edata["edge_attr"], [2])),
        (IndexError, r"edge_ids\[0\] = 9000", lambda: EdgeDataLoader(graph, [9000], [2])),
        (TypeError, "collate_fn = None", lambda: DistDataLoader(SEEDS, 2)),
        (TypeError, "dataset is a int", lambda: DistDataLoader(3, 2, collate_fn=len)),
        (ValueError, "queue_size = 0", lambda: DistDataLoader(SEEDS, 2, collate_fn=len, queue_size=0)),
    ]
    for error, words, call in calls:
        with pytest.raises(error, match=words):
            call()
    directional = NodeDataLoader(graph, SEEDS, [2], blocks=True, subgraph_type=SubgraphType.directional)
    assert len(next(iter(directional))) == 3


EDGES = torch.arange(0, 700, 9)

WEIGHT = torch.rand(700, generator=torch.Generator().manual_seed(3))

ATTR = torch.randn(400, 2, generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module", params=["in", "out"])
def made(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("blocks")
    return write_typed_world(root, 2, request.param, edge_attrs={RATES: {"w": WEIGHT}, FOLLOWS: {"v": ATTR}})


@pytest.fixture
def graph(made):
    with standalone_job(made.path) as opened:
        yield opened


def require_layers(blocks, batch):
    """They have all that the batch has."""
    assert len(blocks) == 2
    kinds = [t for t in batch.edge_types if "edge_index" in batch[t]]
    wide, near = blocks
    for block in blocks:
        assert set(block.edge_index) == set(kinds) == set(block.e_id)
        assert (block.srcdata[NID], block.dstdata[NID], block.edata[EID]) == (block.src_id, block.dst_id, block.e_id)
        for t, ends in block.edge_index.items():
            count = ends.size(1)
            assert torch.equal(ends, batch[t].edge_index[:, :count])
            assert torch.equal(block.e_id[t], batch[t].e_id[:count])
            for name in ("edge_attr", "w", "v"):
                assert (t in block.edata.get(name, {})) == (name in batch[t])
                if name in batch[t]:
                    assert torch.equal(block.edata[name][t], batch[t][name][:count])
            if count:
                assert int(ends[0].max()) < block.num_src[t[0]] and int(ends[1].max()) < block.num_dst[t[2]]
        for t in batch.node_types:
            for ids, tables in ((block.src_id[t], block.srcdata), (block.dst_id[t], block.dstdata)):
                assert torch.equal(ids, batch[t].n_id[: len(ids)])
                for name in ("x", "y", "time"):
                    assert (t in tables.get(name, {})) == (name in batch[t])
                    if name in batch[t]:
                        assert torch.equal(tables[name][t], batch[t][name][: len(ids)])
    for t in batch.node_types:
        assert torch.equal(wide.dst_id[t], near.src_id[t]) and torch.equal(wide.src_id[t], batch[t].n_id)
        assert near.num_dst[t] == batch[t].num_sampled_nodes[0]
    for t in kinds:
        assert torch.equal(wide.edge_index[t], batch[t].edge_index)
        assert near.edge_index[t].size(1) == batch[t].num_sampled_edges[0]


OPTIONS = {"sampler": [4, 3], "batch_size": 20, "shuffle": True, "random_seed": 5}
OPTIONS |= {"with_edge": True, "collect_features": True}


@pytest.mark.parametrize("negatives", [None, PerSourceUniform(2), GlobalUniform(1.5)])
@pytest.mark.parametrize("exclude", [None, "self"])
def test_blocks_of_edges_are_the_plain_batch(negatives, exclude, graph):
    label = None if negatives is not None and negatives.is_triplet() else torch.arange(len(EDGES)) % 3 + 1
    given = {"edges": {RATES: EDGES}, "negative_sampler": negatives, "exclude": exclude, "edge_label": label, **OPTIONS}
    plain, layers = EdgeDataLoader(graph, **given), EdgeDataLoader(graph, blocks=True, **given)
    ends, seen = graph.find_edges(EDGES, RATES), []
    for batch, parts in zip(plain, layers, strict=True):
        input_nodes, positive, blocks = parts[0], parts[1], parts[-1]
        require_layers(blocks, batch)
        assert all(torch.equal(input_nodes[t], batch[t].n_id) for t in NUM_NODES)
        assert len(parts) == (3 if negatives is None else 4)
        for pairs in parts[1:-1]:
            assert pairs.edge_types == [RATES] and pairs.node_types == list(NUM_NODES)
            assert all(torch.equal(pairs[t].n_id, blocks[-1].dst_id[t]) for t in NUM_NODES)
        ids = positive[RATES].input_id
        assert torch.equal(ids, batch[RATES].input_id)
        seen.append(ids)
        at = positive[RATES].edge_index
        known = torch.stack([positive["user"].n_id[at[0]], positive["item"].n_id[at[1]]])
        assert torch.equal(known, ends[:, ids.div(9, rounding_mode="floor")])
        if negatives is not None:
            at = parts[2][RATES].edge_index
            assert at.size(1) == int(negatives.amount * len(ids))
            drawn = torch.stack([parts[2]["user"].n_id[at[0]], parts[2]["item"].n_id[at[1]]])
            assert not bool(graph.has_edges_between(drawn[0], drawn[1], RATES).any())
        if label is not None:
            assert torch.equal(positive[RATES].edge_label, batch[RATES].edge_label[: len(ids)])
        else:
            assert "edge_label" not in positive[RATES]
            chosen = batch["item"].dst_neg_index
            assert torch.equal(parts[2][RATES].edge_index[1], chosen.flatten())
            assert torch.equal(parts[2][RATES].edge_index[0], batch["user"].src_index.repeat_interleave(2))
    assert torch.equal(torch.cat(seen).sort().values, EDGES)


def test_blocks_of_nodes_are_the_plain_batch(made, graph):
    given = {"nodes": {"item": torch.arange(0, 60, 2)}, **OPTIONS}
    plain, layers = NodeDataLoader(graph, **given), NodeDataLoader(graph, blocks=True, **given)
    for batch, (_, seeds, blocks) in zip(plain, layers, strict=True):
        require_layers(blocks, batch)
        assert list(seeds) == ["item"] and torch.equal(seeds["item"], batch["item"].n_id[: batch["item"].batch_size])
    (_, _, blocks) = next(iter(NodeDataLoader(graph, blocks=True, **given | {"collect_features": False})))
    assert list(blocks[0].srcdata) == list(blocks[0].dstdata) == [NID], "ids, and no tables"
    moved = next(iter(layers))[2][0].to("meta")
    assert moved.edata["w"][RATES if made.edge_dir == "in" else reverse_edge_type(RATES)].is_meta


def test_reverses_are_excluded(made, graph):
    given = {"exclude": "reverse_types", "reverse_etypes": {RATES: RATED}}
    loader = EdgeDataLoader(graph, {RATES: EDGES}, [-1], 20, blocks=True, with_edge=True, **given)
    for _, positive, (block,) in loader:
        seeds = set(map(tuple, graph.find_edges(positive[RATES].input_id, RATES).t().tolist()))
        stored = RATES if made.edge_dir == "in" else reverse_edge_type(RATES)
        assert not seeds & set(map(tuple, graph.find_edges(block.e_id[stored], RATES).t().tolist()))
        back = RATED if made.edge_dir == "in" else reverse_edge_type(RATED)
        assert not seeds & set(map(tuple, graph.find_edges(block.e_id[back], RATED).flip(0).t().tolist()))


def test_a_model_on_blocks_with_edge_values(tmp_path):
    torch.manual_seed(2)
    x = {t: torch.randn(count, 5) for t, count in NUM_NODES.items()}
    made = write_typed_world(tmp_path, 2, edge_attrs={RATES: {"w": WEIGHT}}, node_feat=x)
    convs = []
    for _ in range(2):
        follows = pyg.GATv2Conv((-1, -1), 6, edge_dim=2, add_self_loops=False)
        by_type = {RATES: pyg.GraphConv((-1, -1), 6), RATED: pyg.SAGEConv((-1, -1), 6), FOLLOWS: follows}
        convs.append(pyg.HeteroConv(by_type))
    whole = x
    attr = {FOLLOWS: made.edge_feat[FOLLOWS].float()}
    for conv in convs:
        whole = conv(whole, made.edge_index, edge_weight_dict={RATES: WEIGHT}, edge_attr_dict=attr)
    with standalone_job(made.path) as graph:
        full = MultiLayerFullNeighborSampler(2)
        items = torch.arange(0, 60, 7)
        loader = NodeDataLoader(graph, {"item": items}, full, 4, blocks=True, collect_features=True, with_edge=True)
        by_hand = iter([full.sample(graph, {"item": each}) for each in items.split(4)])
        for input_nodes, seeds, blocks in loader:
            h = blocks[0].srcdata["x"]
            assert all(torch.equal(h[t], x[t][ids]) for t, ids in input_nodes.items())
            for conv, block in zip(convs, blocks, strict=True):
                edge_attr = {FOLLOWS: block.edata["edge_attr"][FOLLOWS].float()}
                h = conv(h, block.edge_index, edge_weight_dict=block.edata["w"], edge_attr_dict=edge_attr)
                h = {t: each[: block.num_dst[t]] for t, each in h.items()}
            torch.testing.assert_close(h["item"], whole["item"][seeds["item"]], rtol=1e-4, atol=1e-4)
            _, _, (wide, near) = next(by_hand)
            for block, other in ((wide, blocks[0]), (near, blocks[1])):
                assert torch.equal(block.dst_id["item"].sort().values, other.dst_id["item"].sort().values)
                assert torch.equal(block.e_id[RATES].sort().values, other.e_id[RATES].sort().values)


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


def test_a_second_thread_is_refused_while_the_first_waits_for_a_batch(small):
    graph, _ = small
    for make in (NodeDataLoader, EdgeDataLoader):
        with make(graph, torch.arange(20), [2], batch_size=5) as loader:
            num_batches, told = told_to_a_second_thread(loader)
        assert num_batches == 4 and len(told) == 8 and all(re.search(REFUSED, each) for each in told), told
    loader = DistDataLoader(torch.arange(20), 5, collate_fn=lambda ids: next(batches))
    batches = iter(loader)
    with pytest.raises(RuntimeError, match=REFUSED):
        next(batches)
