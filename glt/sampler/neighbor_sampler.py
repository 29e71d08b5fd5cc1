"""Neighbour sampling in this process, behind PyG's sampler interface."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplerOutput

from glt import _core
from glt.data import pool
from glt.data.arrays import as_ids
from glt.data.dataset import Dataset
from glt.data.graph import Graph
from glt.data.topology import Topology
from glt.sampler.config import SamplingConfig
from glt.sampler.seed_order import check_random_seed, draw_random_seed


@dataclass(frozen=True)
class NeighborOutput:
    """One hop: neighbours of the seeds, seed after seed.

    Attributes:
        nbr: Neighbour ids ``[E]``, int64.
        nbr_num: Sampled edges per seed ``[S]``, int64; sums to E.
        edge: Edge ids ``[E]``, int64, or None.
    """

    nbr: Tensor
    nbr_num: Tensor
    edge: Tensor | None


class NeighborSampler(BaseSampler):
    """Samples multi-hop neighbourhoods, uniformly, with or without replacement.

    A batch is a function of (graph, seeds, options, key) alone, whatever the number of threads. Works as the
    ``neighbor_sampler`` argument of PyG's ``NeighborLoader``.

    Args:
        graph: A :class:`~glt.data.Graph`, a :class:`~glt.data.Dataset` or a PyG ``Data``.
        num_neighbors: Edges per node and hop; -1 takes all. A node is expanded once, at the hop that discovers it.
        replace: Draw with replacement: exactly that many edges for every node that has one.
        with_edge: Return edge ids.
        random_seed: Seed of the draws, in [0, 2^63). Default: drawn from torch's generator.
        num_threads: Threads per batch; the result does not depend on it.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit; names it.

    Source: Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987) on Philox4x32-10 (Salmon et al., SC 2011).
    """

    def __init__(
        self,
        graph: Graph | Dataset | Data,
        num_neighbors: Sequence[int],
        *,
        replace: bool = False,
        with_edge: bool = True,
        random_seed: int | None = None,
        num_threads: int = 1,
    ) -> None:
        self.graph = _graph_of(graph)
        self.config = SamplingConfig.checked(num_neighbors, replace=replace, with_edge=with_edge)
        self.random_seed = check_random_seed(draw_random_seed() if random_seed is None else random_seed)
        if num_threads < 1:
            raise ValueError(f"num_threads = {num_threads}: expected at least 1")
        self.num_threads = num_threads
        self._reset()

    def _reset(self) -> None:
        self._spare: list[_core.Batch] = []  # one per thread that samples at the same time, kept for their memory
        self._lock = threading.Lock()
        self._num_calls = 0

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_spare", "_lock", "_num_calls")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def num_neighbors(self) -> list[int]:
        return list(self.config.num_neighbors[0])

    @property
    def edge_permutation(self) -> None:
        """None: edge ids are the original ones already."""
        return None

    def sample_one_hop(self, seeds: Tensor, num_neighbors: int, *, batch_key: int | None = None) -> NeighborOutput:
        """Samples up to ``num_neighbors`` edges of each seed; duplicate seeds get the same picks.

        Args:
            seeds: Node ids ``[S]``.
            num_neighbors: Edges per seed; -1 takes all. Used in place of the sampler's own.
            batch_key: Key of the draws, in [0, 2^64). Default: a new one in every call.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            TypeError, ValueError: If ``seeds`` or ``num_neighbors`` does not fit.
        """
        config = SamplingConfig.checked([num_neighbors], replace=self.config.replace, with_edge=self.config.with_edge)
        key = self._next_key() if batch_key is None else batch_key
        seeds = as_ids(seeds, "seeds")
        hop = _core.OneHop(
            self.graph.csr,
            seeds.numpy(),
            num_neighbors,
            config.replace,
            key,
            0,
            with_edge=config.with_edge,
            num_threads=self.num_threads,
            name="seeds",
        )
        count = torch.empty(len(seeds), dtype=torch.uint32)
        nbr = torch.empty(hop.num_edges, dtype=torch.int64)
        edge = torch.empty_like(nbr) if config.with_edge else None
        hop.copy_out(count.numpy(), nbr.numpy(), None if edge is None else edge.numpy())
        return NeighborOutput(nbr, count.to(torch.int64), edge)

    def sample_from_nodes(self, index: NodeSamplerInput, *, batch_key: int | None = None) -> SamplerOutput:
        """Samples the neighbourhood of ``index.node``.

        Args:
            index: PyG's sampler input; ``index.time`` must be None.
            batch_key: Key of the draws (:meth:`BatchIndex.key`). Default: a new one in every call.

        Returns:
            ``node [N]`` in order of first occurrence, seeds first and as given; ``row, col [E]`` in local ids, sorted
            by ``col``, running neighbour -> expanded node; ``edge [E]`` original edge ids, or None without
            ``with_edge``; all int64. Counts per hop as lists; ``metadata`` is ``(index.input_id, index.time)``.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            ValueError: If ``index`` has times or a node type.
        """
        if index.time is not None or index.input_type is not None:
            raise ValueError("seed times and node types: expected a homogeneous graph without input_time")
        seeds = as_ids(index.node, "seeds")
        key = self._next_key() if batch_key is None else batch_key
        with self._lock:
            batch = self._spare.pop() if self._spare else _core.Batch([self.graph.num_nodes], [(0, 0)])
        config = self.config
        batch.start([(0, seeds.numpy())], config.with_edge)
        batch.sample(
            [self.graph.csr], config.num_neighbors, replace=config.replace, batch_key=key,
            num_threads=self.num_threads,
        )  # fmt: skip
        num_edges = batch.num_edges(0)
        node = pool.empty((batch.num_nodes(0),), torch.int64)
        edge_index = pool.empty((2, num_edges), torch.int64)
        edge = pool.empty((num_edges,), torch.int64) if config.with_edge else None
        row, col = edge_index[0], edge_index[1]
        batch.copy_nodes(0, node.numpy())
        batch.copy_edges(0, row.numpy(), col.numpy(), None if edge is None else edge.numpy())
        counts = batch.num_sampled_nodes(0), batch.num_sampled_edges(0)
        with self._lock:
            self._spare.append(batch)
        return SamplerOutput(
            node=node, row=row, col=col, edge=edge, batch=None, num_sampled_nodes=counts[0],
            num_sampled_edges=counts[1], metadata=(index.input_id, index.time),
        )  # fmt: skip

    def sample_from_edges(self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None) -> SamplerOutput:
        """Not there yet.

        Raises:
            ValueError: Always.
        """
        raise ValueError("sample_from_edges: this version samples from nodes only; use a node loader")

    def _next_key(self) -> int:
        """A key for a call outside a loader's batches. The copies of a sampler in DataLoader workers must differ."""
        with self._lock:
            call = self._num_calls
            self._num_calls += 1
        worker = torch.utils.data.get_worker_info()
        seed = self.random_seed if worker is None else _core.batch_key(self.random_seed, 0, worker.seed)
        return _core.batch_key(seed, 2**32 - 1, call)

    def __repr__(self) -> str:
        return f"NeighborSampler({self.graph!r}, num_neighbors={self.num_neighbors})"


def _graph_of(graph: Graph | Dataset | Data) -> Graph:
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, Dataset):
        return graph.graph
    if isinstance(graph, Data):
        if graph.edge_index is None:
            raise ValueError("data has no edge_index: expected a Data with edge_index [2, E]")
        return Graph(Topology(graph.edge_index, graph.num_nodes, layout="CSC"))
    raise TypeError(
        f"graph has type {type(graph).__name__}: expected a glt Graph or Dataset, or a homogeneous PyG Data"
    )
