"""The nodes of highest personalised PageRank around seeds, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glt import _core
from glt._checks import check_at_least
from glt._reprs import options as told_options
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids, require_in_range
from glt.data.schema import NodeType
from glt.sampler.graph import NeighborOutput, SampledGraph, sampled_graph
from glt.sampler.page_rank_options import PageRankOptions, PageRanks

if TYPE_CHECKING:
    from glt.sampler.graph import Source

_SEEDS_PER_CALL = 1024  # and thread
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
        epsilon: 1e-9 to 1. A seed takes up to 1 / (``alpha`` ``epsilon``) steps along edges, 67,000 by default.
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
        num_threads = check_at_least("num_threads", num_threads, 1)
        self.num_threads: int = num_threads
        self.graph: SampledGraph = sampled_graph(data, edge_dir="out", time_attr=None, weight_attr=None)
        schema = self.graph.schema
        if node_type is None and len(schema.node_types) > 1:
            raise ValueError(f"node_type is not given: expected that of the seeds, one of {list(schema.node_types)}")
        self.options: PageRankOptions = PageRankOptions.checked(
            schema,
            schema.node_index(node_type),
            num_neighbors,
            alpha=alpha,
            epsilon=epsilon,
            neighbor_type=neighbor_type,
        )

    def sample(self, seeds: Any) -> tuple[NeighborOutput, Tensor]:
        """Finds the nodes around each seed; around all nodes, ``torch.arange(num_nodes)``, that is a table.

        Args:
            seeds: Ids ``[n]``, or a mask over all nodes of their type; one that comes twice is answered twice.

        Returns:
            The nodes, seed after seed, highest score first, of equal ones the lowest id; and their scores ``[E]``,
            float64.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            TypeError, ValueError: If they are no ids.
        """
        seed_type, num_nodes = self.options.seed_type, [int(each) for each in self.graph.num_nodes]
        ids = as_ids(seeds, "seeds", num_nodes[seed_type])
        require_in_range("seeds", ids, num_nodes[seed_type], f" (num_nodes = {num_nodes[seed_type]})")
        most = self.options.room(0, num_nodes).most
        together = max(1, _MOST_BYTES // (16 * most))
        found = [self.ranks(some).found() for some in ids.split(together)]
        count, neighbor, score = (torch.cat(each) for each in zip(*found, strict=True))
        return NeighborOutput(neighbor, count, None), score

    def ranks(self, seeds: Tensor) -> PageRanks:
        """As :meth:`sample`, of ids ``[n]`` that are known to be in the graph, before they are packed."""
        options, num_nodes = self.options, self.graph.num_nodes
        room = options.room(len(seeds), num_nodes)
        csrs = [topology.csr_unweighted for topology in self.graph.topologies]
        types = self.graph.ends, len(num_nodes), options.seed_type, options.neighbor_type
        native = {**options.native(room.most), "num_threads": self.num_threads}
        # A native call cannot be interrupted; between two of them Ctrl-C is heeded.
        together = _SEEDS_PER_CALL * self.num_threads
        for first in range(0, len(seeds), together):
            some = seeds[first : first + together].numpy()
            _core.page_ranks(csrs, *types, some, *room.of(first, len(some)), **native)
        return room

    @says
    def __repr__(self) -> str:
        return told_options(self.options.told(self.graph.schema))
