"""glt.testing."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from glt.loader import NeighborLoader
from glt.testing import check_batch, random_graph, reference_batch, ring_graph
from glt.testing.batches import check_typed_batch
from glt.testing.cluster import Cluster

GRAPH = random_graph(100, 1500, seed=3)


def test_the_random_graph_has_what_breaks_samplers():
    source, target = GRAPH.edge_index
    assert GRAPH.edge_index.shape == (2, 1500) and int(GRAPH.edge_index.max()) < 100
    degree = torch.bincount(torch.cat([source, target]), minlength=100)
    assert (degree == 0).sum() >= 15, "isolated nodes"
    assert torch.bincount(target).max() > 200, "hubs"
    assert (source == target).any(), "self-loops"
    assert len(GRAPH.edge_index.unique(dim=1).t()) < 1500, "duplicate edges"
    assert torch.equal(random_graph(100, 1500, seed=3).edge_index, GRAPH.edge_index)
    for tiny in (random_graph(1, 5), random_graph(3, 0)):
        assert tiny.edge_index.numel() == 0 or int(tiny.edge_index.max()) < tiny.num_nodes


def test_the_ring_and_its_reference_batch_fit_in_a_head():
    ring = ring_graph(5, 2)
    assert ring.edge_index.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [1, 2, 2, 3, 3, 4, 4, 0, 0, 1]]
    batch = reference_batch(ring.edge_index, 5, [2, 0], [-1, 1], random_seed=1)
    assert batch.node.tolist() == [2, 0, 1, 3, 4]
    assert batch.edge.tolist()[:4] == [1, 2, 7, 8] and batch.num_sampled_edges == [4, 3]
    assert batch.row.tolist()[:4] == [1, 2, 3, 4] and batch.col.tolist() == [0, 0, 1, 1, 2, 3, 4]
    out = reference_batch(ring.edge_index, 5, [3], [-1], edge_dir="out")
    assert out.node.tolist() == [3, 4, 0] and out.edge.tolist() == [6, 7]


def swap_edges(batch):
    batch.edge_index, batch.e_id = batch.edge_index.flip(1), batch.e_id.flip(0)


def reverse_edges(batch):
    batch.edge_index = batch.edge_index.flip(0)


def shift_ids(batch):
    batch.edge_index = (batch.edge_index + 1) % len(batch.n_id)


def repeat_edge(batch):
    col = batch.edge_index[1]
    first = int(torch.nonzero(col[1:] == col[:-1])[0])
    batch.e_id[first + 1], batch.edge_index[0, first + 1] = (
        batch.e_id[first].clone(),
        batch.edge_index[0, first].clone(),
    )


def drop_edge(batch):
    batch.edge_index, batch.e_id, batch.edge_attr = batch.edge_index[:, :-1], batch.e_id[:-1], batch.edge_attr[:-1]
    batch.num_sampled_edges = [*batch.num_sampled_edges[:-1], batch.num_sampled_edges[-1] - 1]


def renumber(batch):
    """Exchanges two nodes of the last hop everywhere: consistent, but not in order of first occurrence."""
    a, b = len(batch.n_id) - 2, len(batch.n_id) - 1
    order = torch.arange(len(batch.n_id))
    order[[a, b]] = order[[b, a]]
    batch.edge_index, batch.n_id, batch.x, batch.y = (
        order[batch.edge_index],
        *(t[order] for t in (batch.n_id, batch.x, batch.y)),
    )


BREAK = {
    "sorted": swap_edges,
    "reversed": reverse_edges,
    "shifted": shift_ids,
    "repeated": repeat_edge,
    "dropped": drop_edge,
    "renumbered": renumber,
    "counts as tensor": lambda b: b.update({"num_sampled_nodes": torch.tensor(b.num_sampled_nodes)}),
    "counts cut short": lambda b: b.update({"num_sampled_edges": b.num_sampled_edges[:-1]}),
    "counts moved": lambda b: b.update({"num_sampled_nodes": [b.batch_size, *b.num_sampled_nodes[:0:-1]]}),
    "features": lambda b: b.x.__setitem__((0, 0), -1.0),
    "labels": lambda b: b.update({"y": b.y[: b.batch_size]}),
    "label type": lambda b: b.update({"y": b.y.int()}),
    "edge features": lambda b: b.update({"edge_attr": b.edge_attr.flip(0)}),
    "input ids": lambda b: b.update({"input_id": b.input_id[:-1]}),
    "seeds": lambda b: b.update({"n_id": b.n_id.flip(0)}),
}


@pytest.mark.parametrize("broken", BREAK)
def test_check_batch_notices(broken):
    seeds = [*range(10, 40), 12]
    options = {"seeds": seeds, "num_nodes": 100, "x": GRAPH.x, "y": GRAPH.y, "edge_attr": GRAPH.edge_attr}
    (batch,) = NeighborLoader(GRAPH.to_data(), [3, 2], torch.tensor(seeds), batch_size=31, random_seed=0)
    check_batch(batch, GRAPH.edge_index, [3, 2], **options)
    BREAK[broken](batch)
    with pytest.raises((AssertionError, RuntimeError), match=r"broken promise|out of bounds"):
        check_batch(batch, GRAPH.edge_index, [3, 2], **options)


@pytest.mark.parametrize("broken", ["features", "edge features", "counts cut short"])
def test_check_typed_batch_notices_of_one_type_too(broken):
    (batch,) = NeighborLoader(GRAPH.to_data(), [3, 2], torch.arange(30), batch_size=30, random_seed=0)
    check_typed_batch(batch, GRAPH.to_data(), 2)
    BREAK[broken](batch)
    with pytest.raises(AssertionError, match="broken promise"):
        check_typed_batch(batch, GRAPH.to_data(), 2)


def test_check_batch_goes_by_the_beginning_of_a_name():
    knowledge = torch.arange(100.0)
    (batch,) = NeighborLoader(GRAPH.to_data(), [3, 2], torch.arange(30), batch_size=30, random_seed=0)
    batch.knowledge = knowledge[batch.n_id]
    check_batch(batch, GRAPH.edge_index, [3, 2], num_nodes=100, knowledge=knowledge)
    batch.knowledge += 1
    with pytest.raises(AssertionError, match="knowledge holds the source's rows"):
        check_batch(batch, GRAPH.edge_index, [3, 2], num_nodes=100, knowledge=knowledge)


def test_check_batch_without_edge_ids():
    (batch,) = NeighborLoader(GRAPH.to_data(), [3, 2], torch.arange(40), batch_size=40, random_seed=0)
    del batch.e_id, batch.edge_attr
    check_batch(batch, GRAPH.edge_index, [3, 2], num_nodes=100, edge_attr=GRAPH.edge_attr)
    batch.edge_index = torch.from_numpy(np.roll(batch.edge_index.numpy(), 1, axis=1))
    with pytest.raises(AssertionError):
        check_batch(batch, GRAPH.edge_index, [3, 2], num_nodes=100)


def do_nothing(trainer):
    pass


@pytest.mark.parametrize(("name", "is_ours"), [("glt-test", True), ("cuda.shm.test", False)])
def test_files_in_shared_memory_are_left_behind_unless_they_are_cudas(name, is_ours):
    with Cluster(1, do_nothing) as cluster:
        cluster.results()
        left = Path("/dev/shm") / f"{name}.{os.getpid()}"
        left.touch()
        try:
            assert (str(left) in cluster.leftovers()) == is_ours
        finally:
            left.unlink()
