"""Layers made of sampled hops are what full propagation over them says."""

import pytest
import torch
from dist_typed_world import FOLLOWS, RATES
from torch_geometric.nn import SAGEConv

import glt
from glt.distributed.graph.blocks import to_block
from glt.distributed.graph.graph import DistGraph
from glt.distributed.job.worlds import StandaloneWorld


def open_graph(path):
    return DistGraph("small", world=StandaloneWorld(glt.distributed.DistDataset().load(path, 0)))


def test_layers_compute_what_the_whole_graph_does(world):
    made = world(2)
    graph, ends = open_graph(made.path), made.graph.edge_index
    torch.manual_seed(0)
    convs = [SAGEConv(made.x.shape[1], 8), SAGEConv(8, 3)]
    whole = made.x
    for conv in convs:
        whole = conv(whole, ends)
    seeds = first = torch.tensor([5, 599, 0, 77])
    blocks = []
    for _ in convs:
        block = to_block(graph.sample_neighbors(seeds, -1), seeds)
        assert torch.equal(block.src_id[: block.num_dst], seeds) and torch.equal(block.dst_id, seeds)
        assert torch.equal(block.src_id[block.edge_index], ends[:, block.e_id])
        blocks.insert(0, block)
        seeds = block.src_id
    x = graph.ndata["feat"][blocks[0].src_id]
    for conv, block in zip(convs, blocks, strict=True):
        x = conv((x, x[: block.num_dst]), block.edge_index)
    assert torch.allclose(x, whole[first], atol=1e-5)


def test_typed_layers(typed_world):
    made = typed_world(2)
    graph = open_graph(made.path)
    seeds = {"item": torch.tensor([3, 1, 40]), "user": torch.tensor([9])}
    block = to_block(graph.sample_neighbors(seeds, {RATES: 4, FOLLOWS: -1}), seeds)
    for node_type, ids in seeds.items():
        assert torch.equal(block.src_id[node_type][: len(ids)], ids) and block.num_dst[node_type] == len(ids)
        assert len(block.src_id[node_type].unique()) == block.num_src[node_type]
    for edge_type in (RATES, FOLLOWS):
        source, target = block.edge_index[edge_type]
        known = made.edge_index[edge_type][:, block.e_id[edge_type]]
        assert torch.equal(block.src_id[edge_type[0]][source], known[0])
        assert torch.equal(seeds[edge_type[2]][target], known[1])
    assert block.num_src["ghost"] == 0
    every = to_block(graph.sample_neighbors(seeds, {RATES: 4, FOLLOWS: -1}))
    assert torch.equal(every.src_id["ghost"], block.src_id["ghost"])
    assert set(every.dst_id["item"].tolist()) <= set(seeds["item"].tolist())


def test_wrong_seeds_are_named(world, typed_world):
    graph = open_graph(world(1).path)
    busy = graph.in_degrees().argsort()[-2:]
    frontier = graph.sample_neighbors(busy, 3)
    with pytest.raises(ValueError, match=f"seeds name node {int(busy[0])} more than once"):
        to_block(frontier, torch.cat([busy, busy[:1]]))
    with pytest.raises(ValueError, match=f"edge into node {int(busy[1])}, which is no seed"):
        to_block(frontier, busy[:1])
    assert to_block(graph.sample_neighbors([], 3), []).num_src == 0
    with pytest.raises(TypeError, match="frontier is a Tensor: expected what sample_neighbors returns"):
        to_block(frontier.edge_index, busy)
    typed = open_graph(typed_world(2).path)
    with pytest.raises(TypeError, match="expected a dict by node type"):
        to_block(typed.sample_neighbors({"item": [1]}, 2), [1])
