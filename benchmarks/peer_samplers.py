"""The peers' samplers, all called alike: distinct seeds in, the batch of their neighbourhoods in local ids out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import graphs

Sample = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # node, row (neighbour), col (expanded node), edge id
Sampler = Callable[[np.ndarray], Sample]

NAMES = ("pyg_lib", "torch_sparse", "graphlearn_torch", "dgl.graphbolt")
WITH_REPLACEMENT = ("graphlearn_torch",)  # on a CPU it has no other way to draw


def peer_samplers(graph: graphs.BenchGraph, num_neighbors: list[int], peers: Sequence[str]) -> dict[str, Sampler]:
    """Those of ``peers``, which can be imported, on int64 columns: but for GraphBolt's the only ones that they take."""
    if not peers:
        return {}
    indptr, indices = torch.from_numpy(np.array(graph.indptr)), torch.from_numpy(graph.indices.astype(np.int64))
    makers = dict(zip(NAMES, (_pyg_lib, _torch_sparse, _graphlearn_torch, _graphbolt), strict=True))
    return {name: makers[name](indptr, indices, num_neighbors) for name in peers}


def graphbolt_labor(graph: graphs.BenchGraph, num_neighbors: list[int]) -> Sampler:
    """GraphBolt's LABOR."""
    return _graphbolt(
        torch.from_numpy(np.array(graph.indptr)), torch.from_numpy(np.array(graph.indices)), num_neighbors, labor=True
    )


def _pyg_lib(indptr: torch.Tensor, indices: torch.Tensor, num_neighbors: list[int]) -> Sampler:
    def sample(seeds: np.ndarray) -> Sample:
        row, col, node, edge, *_ = torch.ops.pyg.neighbor_sample(
            indptr, indices, torch.from_numpy(seeds), num_neighbors, csc=True, replace=False, return_edge_id=True
        )
        return node.numpy(), row.numpy(), col.numpy(), edge.numpy()

    return sample


def _torch_sparse(indptr: torch.Tensor, indices: torch.Tensor, num_neighbors: list[int]) -> Sampler:
    def sample(seeds: np.ndarray) -> Sample:
        node, row, col, edge = torch.ops.torch_sparse.neighbor_sample(
            indptr, indices, torch.from_numpy(seeds), num_neighbors, False, True
        )
        return node.numpy(), row.numpy(), col.numpy(), edge.numpy()

    return sample


def _graphlearn_torch(indptr: torch.Tensor, indices: torch.Tensor, num_neighbors: list[int]) -> Sampler:
    """With a seed: without one it makes a new generator for every node, and is slower by a factor of ten to twenty."""
    import graphlearn_torch

    topology = graphlearn_torch.data.Topology((indices, indptr), input_layout="CSC", layout="CSC")
    sampler = graphlearn_torch.sampler.NeighborSampler(
        graphlearn_torch.data.Graph(topology, "CPU"), num_neighbors, device=torch.device("cpu"), with_edge=True,
        edge_dir="in", seed=1,
    )  # fmt: skip

    def sample(seeds: np.ndarray) -> Sample:
        made = sampler.sample_from_nodes(torch.from_numpy(seeds))
        return made.node.numpy(), made.row.numpy(), made.col.numpy(), made.edge.numpy()

    return sample


def _graphbolt(indptr: torch.Tensor, indices: torch.Tensor, num_neighbors: list[int], labor: bool = False) -> Sampler:
    """Its two operations, hop by hop, without the data pipes of its loader, and as fast as they go: on int32 columns,
    of which it makes int32 ids.

    Only the nodes that the hop before found are expanded, as everybody else does, so that batches are alike. Its loader
    expands all nodes again in every hop.
    """
    from dgl import graphbolt

    narrow = torch.from_numpy(indices.numpy().astype(np.int32))  # memory of NumPy's has 2 MiB pages, torch's has not
    graph = graphbolt.fused_csc_sampling_graph(indptr, narrow)

    def sample(seeds: np.ndarray) -> Sample:
        node, row, col, edge = graphbolt_hops(graph, num_neighbors, torch.from_numpy(seeds).int(), labor=labor)
        return node.numpy(), row.numpy(), col.numpy(), edge.numpy()

    return sample


def graphbolt_hops(
    graph: Any, num_neighbors: Sequence[int], seeds: torch.Tensor, *, labor: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch by GraphBolt's operations, in :data:`Sample`'s order, where ``seeds`` are; int32 but for edge ids."""
    from dgl import graphbolt

    sample = graph.sample_layer_neighbors if labor else graph.sample_neighbors
    node, begin = seeds, 0
    none = seeds[:0]
    rows, cols, edges = [], [], []
    for k in num_neighbors:
        end = len(node)
        hop = sample(node[begin:], torch.tensor([k]))
        neighbor = hop.sampled_csc.indices
        frontier = torch.arange(begin, end, dtype=torch.int32, device=seeds.device)
        cols.append(graphbolt.expand_indptr(hop.sampled_csc.indptr, torch.int32, frontier, len(neighbor)))
        ((node, row, *_),) = torch.ops.graphbolt.unique_and_compact_batched([neighbor], [none], [node], 0, 1)
        rows.append(row)
        edges.append(hop.original_edge_ids)
        begin = end
    return node, torch.cat(rows), torch.cat(cols), torch.cat(edges)
