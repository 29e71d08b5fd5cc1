"""GPUs keep the hottest rows of a partition: by what the partitioner was told, else by the edges that lead there."""

import numpy as np
import pytest
import torch

import glt
from glt.data.device import require_accelerator
from glt.distributed.engine.local_partition import row_hotness
from glt.partition import RandomPartitioner, load_partition
from glt.partition.format import layout
from glt.testing import random_graph

NUM_NODES, NUM_EDGES = 50, 400
GRAPH = random_graph(NUM_NODES, NUM_EDGES, seed=4)
HOST = require_accelerator("host", "device")


def hotness(num_parts):
    return [np.random.default_rng(p).integers(0, 9, NUM_NODES).astype(np.float32) for p in range(num_parts)]


def partitioned(root, num_parts, **given):
    RandomPartitioner(
        root / "parts", num_parts, NUM_NODES, GRAPH.edge_index, node_feat=GRAPH.x, edge_feat=GRAPH.edge_attr,
        edge_assign_strategy="by_dst", **given,
    ).partition()  # fmt: skip
    return root / "parts"


@pytest.mark.parametrize("relabel", [False, True])
def test_partitions_say_how_often_they_read_their_own_nodes(tmp_path, relabel):
    root = partitioned(tmp_path, 3, hotness=hotness(3), relabel=relabel)
    for p, hot in enumerate(hotness(3)):
        part = load_partition(root, p)
        (nodes,) = part.nodes
        original = nodes.ids if nodes.id_map is None else nodes.id_map.original[nodes.ids]
        assert row_hotness(part, 0).tolist() == hot[original].tolist()
        assert layout.node_hotness(p, "node") in part.manifest.files


@pytest.mark.parametrize("step", [1 << 24, 7])
def test_without_hotness_the_edges_that_lead_to_a_node_count(tmp_path, step, monkeypatch):
    monkeypatch.setattr("glt.distributed.engine.local_partition._STEP", step)
    root = partitioned(tmp_path, 2)
    for p in range(2):
        part = load_partition(root, p)
        assert part.nodes[0].hotness is None
        owned = part.nodes[0].ids
        rows = torch.isin(GRAPH.edge_index[1], torch.from_numpy(owned))  # in-edges of the owned nodes
        found = torch.bincount(GRAPH.edge_index[0][rows], minlength=NUM_NODES)
        assert row_hotness(part, 0).tolist() == found[owned].tolist()


@pytest.mark.parametrize("relabel", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("here", [(0,), (1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_a_gpu_keeps_the_hottest_rows_and_finds_all(tmp_path, here, known, relabel):
    root = partitioned(tmp_path, 3, relabel=relabel, **({"hotness": hotness(3)} if known else {}))
    data = glt.distributed.DistDataset().load(root, here[0], "CUDA", device="host", split_ratio=0.3)
    local = {here[0]: data.own} | {p: data.map_other(root, p) for p in here[1:]}
    tables = data.local_graph(local).tables
    ids = torch.from_numpy(np.concatenate([local[p].nodes[0].ids for p in here]))
    out = torch.empty(len(ids), *GRAPH.x.shape[1:])
    where = torch.from_numpy(np.random.default_rng(1).permutation(len(ids)).astype(np.uint32))
    tables.gather(HOST, "node", 0, "x", ids, out, where)
    tables.check()
    assert torch.equal(out[where.long()], GRAPH.x[data.map_to_original(ids)])
    (placed,) = tables._placed.values()
    for p, hot in zip(here, placed._hot, strict=True):
        hottest = torch.argsort(row_hotness(load_partition(root, p), 0), descending=True, stable=True)
        rows = local[p].node_tables[0]["x"].tensor[hottest[: round(0.3 * len(hottest))]]
        assert torch.equal(hot.view(torch.float32).view_as(rows), rows)
    edges = torch.from_numpy(np.flatnonzero(np.isin(data.edge_books[0].owners(), here)))
    found = torch.empty(len(edges), *GRAPH.edge_attr.shape[1:], dtype=GRAPH.edge_attr.dtype)
    tables.gather(HOST, "edge", 0, "edge_attr", edges, found)
    tables.check()
    assert torch.equal(found, GRAPH.edge_attr[data.map_to_original(edges, ("node", "to", "node"))])
    elsewhere = torch.from_numpy(np.setdiff1d(np.arange(NUM_NODES), ids.numpy()))
    if len(elsewhere):
        tables.gather(HOST, "node", 0, "x", elsewhere[:1], out)
        with pytest.raises(IndexError, match="has no row"):
            tables.check()


def test_where_all_rows_are_kept_none_are_told_apart(tmp_path):
    data = glt.distributed.DistDataset().load(partitioned(tmp_path, 1), 0, "CUDA", device="host", split_ratio=1.0)
    tables, out = data.local_graph({0: data.own}).tables, torch.empty_like(GRAPH.x)
    tables.gather(HOST, "node", 0, "x", torch.arange(NUM_NODES), out)
    (placed,) = tables._placed.values()
    assert torch.equal(out, GRAPH.x) and placed.num_hot == NUM_NODES
    assert data.node_features.hotness is None and not any(len(rows) - n for rows, n in placed._tiers[1:])


def test_more_partitions_than_a_kernel_has_tiers_for(tmp_path, monkeypatch):
    """Their rows are copied into one table, whose hottest are kept, whichever partition owns them."""
    monkeypatch.setattr("glt.distributed.engine.local_partition._MOST_TABLES", 2)
    root = partitioned(tmp_path, 3, hotness=hotness(3))
    data = glt.distributed.DistDataset().load(root, 0, "CUDA", device="host", split_ratio=0.2)
    local = {0: data.own} | {p: data.map_other(root, p) for p in (1, 2)}
    tables, out = data.local_graph(local).tables, torch.empty_like(GRAPH.x)
    tables.gather(HOST, "node", 0, "x", torch.arange(NUM_NODES), out)
    (placed,) = tables._placed.values()
    assert torch.equal(out, GRAPH.x)
    ids = np.concatenate([local[p].nodes[0].ids for p in range(3)])
    hot = np.concatenate([hotness(3)[p][local[p].nodes[0].ids] for p in range(3)])
    hottest = ids[np.argsort(-hot, kind="stable")[: round(0.2 * NUM_NODES)]]
    assert torch.equal(
        placed._hot[0].view(torch.float32).view(len(hottest), -1), GRAPH.x[hottest].view(len(hottest), -1)
    )
