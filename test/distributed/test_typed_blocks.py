"""Blocks of heterogeneous graphs, with tables of nodes and edges: they are the plain batch, taken apart."""

import pytest
import torch
import torch_geometric.nn as pyg
from dist_typed_world import FOLLOWS, NUM_NODES, RATED, RATES, write_typed_world
from dist_world import standalone_job

from glt.data.schema import reverse_edge_type
from glt.distributed.graph.loaders import (
    EdgeDataLoader,
    GlobalUniform,
    MultiLayerFullNeighborSampler,
    NodeDataLoader,
    PerSourceUniform,
)

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


OPTIONS = {
    "sampler": [4, 3],
    "batch_size": 20,
    "shuffle": True,
    "random_seed": 5,
    "with_edge": True,
    "collect_features": True,
}


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
    assert not blocks[0].edata and not blocks[0].srcdata and not blocks[0].dstdata
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
