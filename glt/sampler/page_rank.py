"""The nodes of highest personalised PageRank around seeds, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._checks import check_at_least, real_number
from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids, require_in_range
from glt.data.schema import NodeType
from glt.sampler.graph import NeighborOutput, SampledGraph, sampled_graph

if TYPE_CHECKING:
    from glt.sampler.graph import Source

_MOST_BYTES = 256 << 20  # of the room for neighbours and scores, before it is known how many there are


@short_traceback
class PageRankSampler:
    """Finds around each seed the nodes of highest personalised PageRank, as PPRGo and ShaDow take their neighbours.

    A walk from the seed ends at each node with chance ``alpha``, else goes along an edge drawn uniformly from those of
    all edge types; at a node without edges it ends. A node's score is the chance that the walk ends there, from below:
    forward push stops when at no node more than ``epsilon`` times the number of its edges is left. Scores are integers
    until they are returned, so that the result does not depend on the number of threads, nor on how the graph is
    partitioned.

    Args:
        data: As of :class:`NeighborSampler`. Walks go along edges, from source to destination; in a dataset or graph
            with ``edge_dir='in'``, against them.
        num_neighbors: How many nodes of each seed at most, the seed itself left out.
        alpha: 1e-4 to 1.
        epsilon: 1e-9 to 1. A seed takes up to 1 / (``alpha`` ``epsilon``) steps along edges.
        node_type: Of the seeds; needed if there are several.
        neighbor_type: Of the nodes that are found. Default: that of the seeds.
        num_threads: Threads per call.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.

    Source: Andersen, Chung and Lang, "Local graph partitioning using PageRank vectors", FOCS 2006, in rounds;
    Bojchevski et al., "Scaling graph neural networks with approximate PageRank", KDD 2020.

    Example:
        >>> sampler = glt.sampler.PageRankSampler(glt.testing.ring_graph().to_dataset(), num_neighbors=2)
        >>> found, score = sampler.sample([5, 9])
        >>> found.nbr.tolist(), found.nbr_num.tolist(), [round(each, 3) for each in score.tolist()]
        ([3, 1, 7, 5], [2, 2], [0.092, 0.067, 0.092, 0.067])
    """

    def __init__(
        self,
        data: Source | SampledGraph,
        num_neighbors: int,
        *,
        alpha: float = 0.15,
        epsilon: float = 1e-4,
        node_type: NodeType | None = None,
        neighbor_type: NodeType | None = None,
        num_threads: int = 1,
    ) -> None:
        check_at_least("num_neighbors", num_neighbors, 1)
        check_at_least("num_threads", num_threads, 1)
        self.num_neighbors: int = num_neighbors
        self.alpha: float = real_number("alpha", alpha, 1e-4)
        self.epsilon: float = real_number("epsilon", epsilon, 1e-9)
        for name, value in (("alpha", self.alpha), ("epsilon", self.epsilon)):
            if value > 1:
                raise ValueError(f"{name} = {value!r}: expected at most 1")
        self.num_threads: int = num_threads
        self.graph: SampledGraph = sampled_graph(data, edge_dir="out", time_attr=None, weight_attr=None)
        schema = self.graph.schema
        if node_type is None and len(schema.node_types) > 1:
            raise ValueError(f"node_type is not given: expected that of the seeds, one of {list(schema.node_types)}")
        self._seed_type = schema.node_index(node_type)
        self._neighbor_type = self._seed_type if neighbor_type is None else schema.node_index(neighbor_type)

    def sample(self, seeds: Any) -> tuple[NeighborOutput, Tensor]:
        """Finds the nodes around each seed; around all nodes, ``torch.arange(num_nodes)``, that is a table.

        Args:
            seeds: Ids ``[n]``; one that comes twice is answered twice.

        Returns:
            The nodes, seed after seed, highest score first, of equal ones the lowest id; and their scores ``[E]``,
            float64.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            TypeError, ValueError: If they are no ids.
        """
        ids = as_ids(seeds, "seeds")
        num_nodes = [int(each) for each in self.graph.num_nodes]
        require_in_range("seeds", ids, num_nodes[self._seed_type], f" (num_nodes = {num_nodes[self._seed_type]})")
        most = max(1, min(self.num_neighbors, num_nodes[self._neighbor_type]))
        csrs = [topology.csr_unweighted for topology in self.graph.topologies]
        together = max(1, _MOST_BYTES // (16 * most))
        counts, neighbors, scores = [], [], []
        for first in range(0, max(len(ids), 1), together):
            some = ids[first : first + together].numpy()
            count = np.empty(len(some), np.uint32)
            neighbor = np.empty(len(some) * most, np.int64)
            score = np.empty(len(some) * most)
            _core.page_ranks(
                csrs,
                self.graph.ends,
                len(num_nodes),
                self._seed_type,
                self._neighbor_type,
                some,
                count,
                neighbor,
                score,
                num_neighbors=most,
                stop=self.alpha,
                residual_per_edge=self.epsilon,
                num_threads=self.num_threads,
            )
            kept = (np.arange(most) < count[:, None]).reshape(-1)
            counts.append(torch.from_numpy(count.astype(np.int64)))
            neighbors.append(torch.from_numpy(neighbor[kept]))
            scores.append(torch.from_numpy(score[kept]))
        return NeighborOutput(torch.cat(neighbors), torch.cat(counts), None), torch.cat(scores)

    @says
    def __repr__(self) -> str:
        types = self.graph.schema.node_types
        told: dict[str, Any] = {"num_neighbors": self.num_neighbors, "alpha": self.alpha, "epsilon": self.epsilon}
        if len(types) > 1:
            told |= {"node_type": types[self._seed_type], "neighbor_type": types[self._neighbor_type]}
        return options(told)
