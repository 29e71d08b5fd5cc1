"""Layer-wise inference on served heterogeneous and relabelled graphs: what the models make of the whole graphs."""

import pytest
import torch
import torch_geometric.nn as pyg
from dist_typed_world import FOLLOWS, NUM_NODES, RATED, RATES, write_typed_world
from job_stage import job_of

import glt
from glt.distributed.graph.graph import DistGraph
from glt.distributed.graph.inference import infer_layerwise
from glt.distributed.graph.loaders import EdgeDataLoader
from glt.distributed.tensors.tensor import DistTensor
from glt.partition import load_id_map

Layers = list[pyg.HeteroConv]


def layers():
    torch.manual_seed(8)

    def conv(width):
        follows = pyg.GATv2Conv((-1, -1), width, edge_dim=2, add_self_loops=False)
        convs = {RATES: pyg.GraphConv((-1, -1), width), RATED: pyg.SAGEConv((-1, -1), width), FOLLOWS: follows}
        return pyg.HeteroConv(convs, aggr="sum")

    return [conv(8), conv(8), conv(3)]


def initialized(made, x, edge_index, given):
    """What the layers make of the whole graph, and with that their lazy parameters; the same ones everywhere."""
    torch.manual_seed(9)
    for at, layer in enumerate(made):
        x = layer(x, edge_index, **given)
        x = {t: each.relu() for t, each in x.items()} if at < 2 else x
    return {t: each.detach() for t, each in x.items()}


def original(root, type_):
    """The original ids of a relabelled type, in the order of the new ones."""
    return torch.as_tensor(load_id_map(root, type_).original.copy()).long()


def infer(root, whole, spill_dir, original_ids):
    x, edge_index, weight, attr = torch.load(whole)
    given = {"edge_weight_dict": {RATES: weight}, "edge_attr_dict": {FOLLOWS: attr}}
    model = layers()
    initialized(model, x, edge_index, given)
    graph = DistGraph("typed")
    attr_of = DistTensor((400, 2), name="attr", part=FOLLOWS)
    if glt.distributed.get_rank() == 0:
        is_relabelled = graph.world.data.manifest.edge_types[2].offsets is not None
        attr_of[torch.arange(400)] = attr[original(root, FOLLOWS)] if is_relabelled else attr
    glt.distributed.barrier(60.0)
    require_blocks(graph)
    options = {"batch_size": 11, "num_workers": 1, "spill_dir": spill_dir, "original_ids": original_ids}
    got = infer_layerwise(model, edge_weight="w", edge_attr={FOLLOWS: attr_of}, between=torch.relu, **options)
    rows = {t: each[torch.arange(NUM_NODES[t])].clone() for t, each in got.items()}
    glt.distributed.barrier(60.0)
    return rows


def require_blocks(graph):
    """Blocks that servers sample are the plain batches, taken apart."""
    edges = {RATES: torch.arange(glt.distributed.get_rank(), 700, 11)}
    given = {"with_edge": True, "collect_features": True, "random_seed": 4, "num_workers": 1}
    with (
        EdgeDataLoader(graph, edges, [3, 2], 30, **given) as plain,
        EdgeDataLoader(graph, edges, [3, 2], 30, blocks=True, **given) as layers,
    ):
        for batch, (input_nodes, positive, blocks) in zip(plain, layers, strict=True):
            assert torch.equal(positive[RATES].edge_index, batch[RATES].edge_label_index)
            assert torch.equal(blocks[0].edata["w"][RATES], batch[RATES].w)
            assert torch.equal(blocks[0].edata["w"][RATES], graph.edata[RATES]["w"][blocks[0].e_id[RATES]])
            for t, ids in input_nodes.items():
                assert torch.equal(ids, batch[t].n_id) and torch.equal(blocks[0].srcdata["x"][t], batch[t].x)


@pytest.mark.parametrize(
    ("relabel", "spills", "original_ids"), [(False, False, True), (True, False, True), (True, True, False)]
)
def test_types_of_served_graphs(tmp_path, relabel, spills, original_ids):
    weight, attr = torch.rand(700), torch.randn(400, 2)
    x = {t: torch.randn(count, 5) for t, count in NUM_NODES.items()}
    made = write_typed_world(tmp_path, 2, edge_attrs={RATES: {"w": weight}}, node_feat=x, relabel=relabel)
    given = {"edge_weight_dict": {RATES: weight}, "edge_attr_dict": {FOLLOWS: attr}}
    expected = initialized(layers(), x, made.edge_index, given)
    torch.save((x, made.edge_index, weight, attr), tmp_path / "whole.pt")
    with job_of(made.path, 2, 2) as job:
        for got in job.run(infer, made.path, tmp_path / "whole.pt", tmp_path if spills else None, original_ids):
            assert set(got) == set(expected) == {"user", "item"}
            for t, rows in got.items():
                order = torch.arange(NUM_NODES[t]) if original_ids else original(made.path, t)
                torch.testing.assert_close(rows, expected[t][order], rtol=1e-4, atol=1e-4)
