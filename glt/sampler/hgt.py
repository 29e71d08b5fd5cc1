"""HGT sampling: as many nodes of each type as is asked, by how much those that are there lead to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from glt import _core
from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.schema import NodeType
from glt.sampler.budgets import MOST_NEIGHBORS, drawn_nodes, hgt_nodes, samples_per_type
from glt.sampler.neighbor_sampler import NeighborSampler

if TYPE_CHECKING:
    from glt.sampler.graph import Output, SampledGraph, Source


@short_traceback
class HGTSampler(NeighborSampler):
    """Samples a fixed number of nodes of each type, as ``torch_geometric.sampler.HGTSampler``.

    A node that joins the batch gives each of its neighbours, the nodes that have an edge to it (or, with
    ``edge_dir='out'``, that it has an edge to), one part of as many as it has such edges, along each edge type. Nodes
    are drawn, without replacement, in proportion to the squares of what they have been given. A node with more than 50
    edges of a type gives to 50 of them, drawn anew for each batch, as in PyG. A batch has all edges among its nodes,
    where PyG leaves out edges of such nodes at random.

    Args:
        data: As of :class:`NeighborSampler`; a graph of one type is a graph with types.
        num_samples: Nodes to draw in each iteration, of each node type: a list, or a dict by node type.
        with_edge, random_seed, num_threads: As of :class:`NeighborSampler`.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.

    Source: Hu et al., "Heterogeneous Graph Transformer", WWW 2020, Algorithm 2; budgets in fixed point.

    Example:
        >>> from torch_geometric.sampler import NodeSamplerInput
        >>> dataset = glt.testing.ring_graph().to_dataset()
        >>> sampler = glt.sampler.HGTSampler(dataset, [2, 2], random_seed=0)
        >>> sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([5]))).node
        tensor([5, 3, 4, 1, 2])
    """

    def __init__(
        self,
        data: Source | SampledGraph,
        num_samples: Sequence[int] | Mapping[NodeType, Sequence[int]],
        *,
        with_edge: bool = True,
        random_seed: int | None = None,
        num_threads: int = 1,
    ) -> None:
        given: dict[str, Any] = {"random_seed": random_seed, "num_threads": num_threads, "device": "cpu"}
        super().__init__(data, [], subgraph_type="induced", with_edge=with_edge, **given)
        self.num_samples: list[list[int]] = samples_per_type(num_samples, self.graph.schema)

    def sample(
        self,
        seeds: Sequence[tuple[int, Tensor]],
        seed_time: Tensor | None = None,
        *,
        batch_key: int | None = None,
        shared_key: int | None = None,
        exclusions: Any = None,
    ) -> Output:
        """Samples around seeds of any types, as :meth:`NeighborSampler.sample`; there are no times."""
        for name, value in (("seed_time", seed_time), ("shared_key", shared_key)):
            if value is not None:
                raise ValueError(f"{name} is given: nodes are drawn by budget, which knows no times and numbers")
        key = self._call_keys.of_call(self.random_seed, batch_key)
        drawn = self._drawn(seeds, key)
        return super().sample([*seeds, *drawn], batch_key=key, exclusions=exclusions)

    def _drawn(self, seeds: Sequence[tuple[int, Tensor]], key: int) -> list[tuple[int, Tensor]]:
        num_nodes, ends = [int(each) for each in self.graph.num_nodes], self.graph.ends
        nodes = hgt_nodes(seeds, num_nodes, ends, self.num_samples, key)
        while not nodes.is_done:
            for r, (expanded, _) in enumerate(ends):
                newest = nodes.newest(expanded)
                draws = MOST_NEIGHBORS, False, key, nodes.iteration
                options: dict[str, Any] = {"with_edge": False, "num_threads": self.num_threads, "name": "seeds"}
                hop = _core.OneHop(self.csrs[r], newest, *draws, edge_type=r, **options)
                count, neighbor = np.empty(len(newest), np.uint32), np.empty(hop.num_edges, np.int64)
                hop.copy_out(count, neighbor)
                nodes.take(r, count, neighbor)
            nodes.draw()
        return drawn_nodes(nodes, len(num_nodes))

    def sample_prob(self, *given: Any, **options: Any) -> Any:
        """Raises NotImplementedError: budgets do not follow edges one by one, as hops do."""
        raise NotImplementedError(
            "sample_prob of an HGTSampler: it is estimated for hops alone; count the nodes of batches, and give these "
            "to glt.sampler.hotness_from_counts"
        )

    def told(self) -> dict[str, Any]:
        """``num_samples`` as users give it."""
        by_type = self.graph.schema.by_node_type(self.num_samples)
        return {"num_samples": by_type if self.is_hetero else self.num_samples[0]}

    @says
    def __repr__(self) -> str:
        return f"{options(self.told())}, random_seed={self.random_seed}"
