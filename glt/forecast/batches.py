"""Batches as a forecast needs them: which nodes each hop found, and how many edges each node gave.

A batch is a function of graph, seeds, options and key, and not of where nodes are. So a batch that is sampled once
serves every placement, and counting messages is arithmetic over its nodes and their owners.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glt import _core
from glt._checks import check_at_least, check_path
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.distributed.engine.dataset import DistDataset
from glt.sampler.config import SamplingConfig

_HOT_EPOCH = 2**32 - 3  # of the keys of batches by which hotness is counted: none that a loader or sample_prob reaches


@dataclass(frozen=True, eq=False)
class BatchTrace:
    """One sampled batch of a graph with one type of nodes.

    Attributes:
        nodes: Ids ``[N]`` in the order in which they were found, seeds first; int64, each once.
        begin: Where the nodes of each hop begin among them, ``[hops + 2]``: seeds are ``nodes[:begin[1]]``, and hop
            ``h`` expands ``nodes[begin[h]:begin[h + 1]]``.
        num_edges_of: Edges that each expanded node gave, ``[begin[hops]]`` int64.

    Example:
        >>> csr = glt.testing.ring_graph().to_dataset().get_graph().csr
        >>> tracer = glt.forecast.GraphTracer([csr], 40, [2, 2])
        >>> tracer.trace(np.array([5, 7])).num_edges_of.tolist()
        [2, 2, 2, 2, 2]
    """

    nodes: np.ndarray
    begin: np.ndarray
    num_edges_of: np.ndarray

    @property
    def num_hops(self) -> int:
        return len(self.begin) - 2

    @property
    def num_edges(self) -> int:
        return int(self.num_edges_of.sum())

    @says
    def __repr__(self) -> str:
        return f"{self.begin[1]} seeds, {len(self.nodes)} nodes, {self.num_edges} edges, {self.num_hops} hops"


@short_traceback
class GraphTracer:
    """Samples batches of a graph as loaders do, and keeps what a forecast needs of them.

    Args:
        csrs: Rows of the graph, those of each partition; one if the graph is whole.
        num_nodes: Of the graph.
        num_neighbors: Edges per node and hop, -1 for all; sampling is uniform, without replacement.

    Raises:
        TypeError, ValueError: If ``num_neighbors`` does not fit.

    Example:
        >>> graph = glt.testing.ring_graph().to_dataset().get_graph()
        >>> tracer = glt.forecast.GraphTracer([graph.csr], 40, [2, 2])
        >>> tracer.trace(np.array([5, 7]))
        BatchTrace(2 seeds, 7 nodes, 10 edges, 2 hops)
    """

    def __init__(self, csrs: Sequence[_core.Csr], num_nodes: int, num_neighbors: Sequence[int]) -> None:
        self.config: SamplingConfig = SamplingConfig.checked(list(num_neighbors), with_edge=False)
        self.num_nodes: int = check_at_least("num_nodes", num_nodes, 1)
        self._csrs = list(csrs)
        self._batch = _core.Batch([self.num_nodes], [(0, 0)])

    @says
    def __repr__(self) -> str:
        return f"{self.num_nodes} nodes, {len(self._csrs)} partitions, {self.config.says()}"

    @classmethod
    def of_arrays(cls, indptr: np.ndarray, indices: np.ndarray, num_neighbors: Sequence[int]) -> GraphTracer:
        """Takes the rows of a whole graph: ``indptr [num_nodes + 1]`` int64, ``indices [num_edges]`` int32 or int64."""
        return cls([_core.Csr(indptr, indices)], len(indptr) - 1, num_neighbors)

    @classmethod
    def of_directory(
        cls, graph_dir: str | os.PathLike[str], num_neighbors: Sequence[int]
    ) -> tuple[GraphTracer, DistDataset]:
        """Maps all partitions of a directory, which must be on this host; returns the dataset of the first, too.

        Raises:
            glt.errors.PartitionError: If a partition is missing or damaged; names the file.
            ValueError: If the graph has several types of nodes or edges.
        """
        check_path("graph_dir", graph_dir, "a partition directory")
        dataset = DistDataset().load(graph_dir, 0, verify=False)
        if dataset.schema.is_hetero:
            types = len(dataset.schema.node_types), len(dataset.schema.edge_types)
            raise ValueError(
                f"graph_dir = {os.fspath(graph_dir)!r} has {types[0]} types of nodes and {types[1]} of edges: a "
                "forecast counts graphs with one type of each"
            )
        parts = [dataset.own]
        parts += [dataset.map_other(graph_dir, part) for part in range(1, dataset.num_partitions)]
        tracer = cls([part.csr(0, False, False) for part in parts], dataset.num_nodes_of[0], num_neighbors)
        return tracer, dataset

    def trace(self, seeds: np.ndarray, batch_key: int = 0) -> BatchTrace:
        """Samples one batch around ``seeds [n]``, int64.

        Raises:
            IndexError: If a seed is outside the graph.
        """
        batch, config = self._batch, self.config
        batch.start([(0, np.ascontiguousarray(seeds, np.int64))], False, False, None)
        csrs = self._csrs[0] if len(self._csrs) == 1 else self._csrs
        batch.sample([csrs], config.num_neighbors, replace=False, batch_key=batch_key)
        begin = np.cumsum([0, *batch.num_sampled_nodes(0)])
        row, col = (np.empty(batch.num_edges(0), np.int64) for _ in range(2))
        batch.copy_edges(0, row, col)
        return BatchTrace(batch.nodes(0).copy(), begin, np.bincount(col, minlength=begin[config.num_hops]))

    def traces(self, batches: Sequence[np.ndarray], epoch: int = 0) -> list[BatchTrace]:
        """Samples batches with the keys of the batches of an epoch, in order."""
        return [self.trace(seeds, _core.batch_key(0, epoch, index)) for index, seeds in enumerate(batches)]

    def hotness(self, seeds: np.ndarray, batch_size: int, num_batches: int = 256) -> np.ndarray:
        """Counts nodes in batches other than those that are traced: the share of batches that have each node,
        ``[num_nodes]`` float32."""
        counts = np.zeros(self.num_nodes, np.float32)
        rng = np.random.default_rng(1)
        for index in range(num_batches):
            chosen = rng.choice(seeds, min(batch_size, len(seeds)), replace=False)
            counts[self.trace(chosen, _core.batch_key(0, _HOT_EPOCH, index)).nodes] += 1
        return counts / num_batches


def batches_of(seeds: np.ndarray, batch_size: int, most: int, random_seed: int = 0) -> list[np.ndarray]:
    """Cuts shuffled seeds into at most ``most`` whole batches, of an epoch or of several; fewer seeds than a batch make
    smaller batches. Empty if there are no seeds."""
    if len(seeds) == 0:
        return []
    rng, size = np.random.default_rng(random_seed), min(batch_size, len(seeds))
    found: list[np.ndarray] = []
    while len(found) < most:
        order = rng.permutation(seeds)
        whole = len(order) // size * size
        found += list(order[:whole].reshape(-1, size))
    return found[:most]
