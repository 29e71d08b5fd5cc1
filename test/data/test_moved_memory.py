"""torch may move the memory of a tensor that glt reads: what is read then is the memory where it is now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

import glt
from glt import _core
from glt.data import Feature, Topology
from glt.data.schema import PartitionBook
from glt.sampler import NeighborSampler
from glt.testing import check_batch, random_graph

IDS = torch.arange(40)


def sent(tensor: Tensor) -> None:
    """As ``mp.spawn`` and ``mp.Queue`` do with what they are given."""
    ForkingPickler.dumps(tensor)


def shared(tensor: Tensor) -> None:
    tensor.share_memory_()


def moved(tensors: Iterable[Tensor | None], move: Callable[[Tensor], None] = sent) -> None:
    for tensor in tensors:
        if tensor is not None:
            before = tensor.data_ptr()
            move(tensor)
            assert tensor.data_ptr() != before, "torch has not moved it: this tests nothing"


@pytest.mark.parametrize("move", [sent, shared])
def test_rows_of_a_feature(move: Callable[[Tensor], None]) -> None:
    x, row_of = torch.rand(40, 5), torch.arange(40).flip(0).to(torch.uint32)
    feature, indexed = Feature(x), Feature(x, row_of)
    assert torch.equal(feature[IDS], x) and torch.equal(indexed[IDS], x.flip(0))
    moved([x], move)
    moved([row_of.view(torch.int32)], move)
    x += 1  # where it was, nobody writes any more
    row_of.view(torch.int32).copy_(IDS)
    assert torch.equal(feature[IDS], x) and torch.equal(indexed[IDS], x)


def neighbors(csr: _core.Csr) -> Tensor:
    """All neighbours of all nodes, as the core reads them."""
    nodes = np.arange(50)
    hop = _core.OneHop(csr, nodes, -1, False, 0, 0)
    neighbor, edge = torch.empty(hop.num_edges, dtype=torch.int64), torch.empty(hop.num_edges, dtype=torch.int64)
    hop.copy_out(np.empty(len(nodes), np.uint32), neighbor.numpy(), edge.numpy())
    return neighbor


def test_rows_of_a_topology() -> None:
    topology = Topology(random_graph(50, 400).edge_index, 50, layout="CSC")
    assert neighbors(topology.csr).any()
    moved([topology.indices])
    topology.indices.zero_()
    assert not neighbors(topology.csr).any()


@pytest.mark.parametrize("at", range(9))
def test_each_column_of_a_topology_is_looked_after(at: int) -> None:
    """The views that read a column are made anew when it alone has moved; those that do not, are not."""
    ends, book = random_graph(50, 400).edge_index, PartitionBook.of_arrays(
        torch.zeros(50, dtype=torch.uint8), torch.arange(50).to(torch.uint32), 1
    )  # fmt: skip
    whole = Topology(ends, 50, edge_weight=torch.rand(400), edge_time=torch.arange(400).flip(0))
    assert whole.weights is not None and whole.by_time is not None
    topology = Topology.from_rows(
        whole.indptr, whole.indices, whole.edge_ids, weights=whole.weights, by_time=whole.by_time, book=book
    )
    assert book.owner is not None and book.row_of is not None and whole.edge_ids is not None
    of_all = [whole.indptr, book.owner, book.row_of.view(torch.int32)]
    of_plain = [whole.indices, whole.edge_ids]
    of_weighted = [array.view(torch.int64 if array.element_size() == 8 else torch.int32) for array in whole.weights]
    of_timed = [whole.by_time.indices, whole.by_time.time]
    column = [*of_all, *of_plain, *of_weighted, *of_timed][at]
    before = topology.csr_unweighted, topology.csr, topology.csr_by_time
    assert (topology.csr_unweighted, topology.csr, topology.csr_by_time) == before
    moved([column])
    plain, weighted, timed = (
        new is not old
        for new, old in zip((topology.csr_unweighted, topology.csr, topology.csr_by_time), before, strict=True)
    )
    expected = {3: (True, True, True), 5: (True, True, False), 7: (False, True, False), 9: (False, False, True)}
    assert (plain, weighted, timed) == next(reads for end, reads in expected.items() if at < end)


@pytest.mark.parametrize("has_ranges", [False, True])
def test_owners_of_a_book(has_ranges: bool) -> None:
    owner = torch.arange(6, dtype=torch.uint8) // 3
    book = PartitionBook.of_ranges(torch.tensor([0, 3, 6])) if has_ranges else (
        PartitionBook.of_arrays(owner, torch.zeros(6, dtype=torch.uint32), 2)
    )  # fmt: skip
    ids = np.arange(6)
    assert book.owners(ids).tolist() == [0, 0, 0, 1, 1, 1]
    ForkingPickler.dumps(book)
    if book.offset is not None:
        book.offset[1] = 2
    else:
        owner[2] = 1
    assert book.owners(ids).tolist() == [0, 0, 1, 1, 1, 1]


def test_a_loader_goes_on_after_its_graph_was_sent_to_another_process() -> None:
    graph = random_graph(500, 5000)
    data = graph.to_data()
    data.edge_time = torch.arange(5000)
    with_times: dict[str, Any] = {"time_attr": "edge_time", "input_time": torch.full((500,), 2500)}
    for options in ({}, {"subgraph_type": "induced"}, with_times):
        loader, unmoved = (
            glt.loader.NeighborLoader(data.clone(), [4, 3], batch_size=50, random_seed=1, **options) for _ in range(2)
        )
        for each in (loader, unmoved):
            next(iter(each))
        ForkingPickler.dumps(loader.data)
        ForkingPickler.dumps(loader.node_sampler)
        trash = [torch.full((5000,), 7) for _ in range(50)]  # takes the memory that is free now
        for batch, before in zip(loader, unmoved, strict=True):
            assert torch.equal(batch.n_id, before.n_id) and torch.equal(batch.edge_index, before.edge_index)
            assert torch.equal(batch.x, before.x) and torch.equal(batch.e_id, before.e_id)
            if not options:
                check_batch(batch, graph.edge_index, [4, 3], num_nodes=500, x=graph.x, y=graph.y)
        del trash


def test_a_sampler_of_links_goes_on() -> None:
    data = random_graph(500, 5000).to_data()
    sampler = NeighborSampler(data, [4], random_seed=1)
    asked = EdgeSamplerInput(None, torch.arange(20), torch.arange(20, 40), None)
    before = sampler.sample_from_edges(asked, NegativeSampling("binary"), batch_key=5)
    ForkingPickler.dumps(sampler)
    after = sampler.sample_from_edges(asked, NegativeSampling("binary"), batch_key=5)
    assert torch.equal(before.node, after.node) and torch.equal(before.row, after.row)
