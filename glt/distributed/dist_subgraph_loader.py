"""Enclosing subgraphs of nodes, for one trainer of a distributed job."""

from __future__ import annotations

from typing import Any

from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_neighbor_loader import DistNeighborLoader
from glt.distributed.node_seeds import NodeSeeds
from glt.distributed.refusal import telling_of_misspellings, telling_the_others


class DistSubGraphLoader(DistNeighborLoader):
    """Samples around seed nodes and returns *all* edges among the nodes found, with where the seeds are.

    The batches of :class:`glt.loader.SubGraphLoader` on the whole graph: those of :class:`DistNeighborLoader` with
    ``subgraph_type='induced'``, plus ``mapping [batch_size]``: seed i is node ``mapping[i]`` of its type.

    Args:
        data, num_neighbors, input_nodes, **kwargs: As in :class:`DistNeighborLoader`. The fan-outs bound which nodes
            are found, not which edges are returned.

    Raises:
        The same as :class:`DistNeighborLoader`.
    """

    @telling_of_misspellings
    def __init__(
        self, data: DistDataset | None, num_neighbors: Any, input_nodes: Any, *args: Any, **kwargs: Any
    ) -> None:
        subgraph_type = kwargs.pop("subgraph_type", "induced")
        with telling_the_others(kwargs.get("worker_options")):
            if getattr(subgraph_type, "value", subgraph_type) != "induced":
                raise ValueError(
                    f"subgraph_type = {subgraph_type!r}: subgraphs are 'induced'; use DistNeighborLoader for others"
                )
        super().__init__(data, num_neighbors, input_nodes, *args, subgraph_type="induced", **kwargs)

    def _seeds(self) -> NodeSeeds:
        return NodeSeeds(self._seed_type, with_mapping=True)
