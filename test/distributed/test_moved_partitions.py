"""Sampling and serving go on when torch has moved the memory of a partition; see test/data/test_moved_memory.py."""

from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing

import glt
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, context
from glt.distributed.engine.queries import EdgeDirectory, GraphQueries
from glt.distributed.tensors.shard import Shard
from glt.partition import RandomPartitioner


@pytest.mark.parametrize("on_device", [False, True])
def test_a_collocated_loader(on_device, monkeypatch, world):
    """On a device, which the host plays, columns and rows are read in place too."""
    monkeypatch.setattr(context, "_context", None)
    glt.distributed.init_worker_group(1, 0, "alone")
    load, given = ({"graph_mode": "ZERO_COPY"}, {"device": "host"}) if on_device else ({}, {})
    data = DistDataset().load(world(1).path, 0, **load)
    with glt.distributed.DistNeighborLoader(
        data, [3, 2], torch.arange(200), 50, collect_features=True,
        worker_options=CollocatedDistSamplingWorkerOptions(**given),
    ) as loader:  # fmt: skip
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
    RandomPartitioner(tmp_path / "parts", 1, 40, ends).partition()
    data = DistDataset().load(tmp_path / "parts", 0)
    directory, ids = EdgeDirectory(data.own, 0), torch.arange(200)
    is_here, found = directory.find(ids)
    assert bool(is_here.all()) and torch.equal(found, ends)
    ForkingPickler.dumps(data.graph)
    data.graph.topology.edge_ids.add_(1000)
    is_here, found = directory.find(ids + 1000)
    assert bool(is_here.all()) and torch.equal(found, ends)


def test_a_stored_table(world):
    data = DistDataset().load(world(1).path, 0)
    feature = data.edge_features
    shard = Shard(GraphQueries(data).stored_rows("edge", 0, "edge_attr", [0]), is_borrowed=True)
    rows = (0, len(feature))
    before = shard.read(rows)
    ForkingPickler.dumps(feature)
    feature.tensor.add_(1)
    assert torch.equal(shard.read(rows), before + 1)
