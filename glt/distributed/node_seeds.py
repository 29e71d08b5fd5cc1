"""Seeds that are nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glt.distributed.batch_start import BatchStart, Seeds

if TYPE_CHECKING:
    from glt.distributed.dist_neighbor_sampler import DistNeighborSampler


class NodeSeeds(Seeds):
    """Each row is a node: column ``node``; ``input_id`` where it is to be told in place of the position, and ``time``
    for temporal sampling as of other times than the nodes' own.

    Args:
        node_type: Position of the type of the nodes.
        with_mapping: Tell where each seed stands among the sampled nodes of its type.
    """

    def __init__(self, node_type: int, with_mapping: bool = False) -> None:
        self.node_type, self.with_mapping = node_type, with_mapping
        self.input_id = f"input_id/n{node_type}"

    def to_json(self) -> dict[str, Any]:
        return {"seeds": "nodes", "node_type": self.node_type, "with_mapping": self.with_mapping}

    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        nodes, time = rows["node"], rows.get("time")
        start = BatchStart([(self.node_type, nodes)], time, known={self.input_id: rows.get("input_id", input_id)})
        if time is not None:
            start.known[f"seed_time/n{self.node_type}"] = time
        elif sampler.config.temporal is not None:
            start.seed_time = await sampler.partitions.look_up("node", self.node_type, "time", nodes)
        if self.with_mapping:
            start.known[f"mapping/n{self.node_type}"] = torch.arange(len(nodes))
        return start
