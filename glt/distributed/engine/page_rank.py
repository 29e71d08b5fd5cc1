"""Batches of nodes of highest personalised PageRank, over partitions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glt import _core
from glt.distributed.engine.partitions import LONG, EdgesWanted, RowsPart
from glt.distributed.engine.requests import DegreesRequest, OneHopRequest
from glt.distributed.engine.seeds import BatchStart, Seeds
from glt.sampler.page_rank_options import PageRankEdges, PageRankOptions

if TYPE_CHECKING:
    from glt.distributed.engine.sampler import DistNeighborSampler


class PageRankSeeds(Seeds):
    """Each row is a node: column ``node``; ``input_id`` where it is to be told in place of the position. The batch has
    the seeds and the nodes found around them, no sampled edges, and :attr:`edges` ``[2, E]`` and :attr:`weights`
    ``[E]`` of :class:`PageRankEdges`.
    """

    is_whole_batch = True
    edges, weights = "page_rank_edges", "page_rank_weights"

    def __init__(self, options: PageRankOptions) -> None:
        self.options = options
        self.input_id = f"input_id/n{options.seed_type}"

    def to_json(self) -> dict[str, Any]:
        return {"seeds": "page ranks", **self.options.to_json()}

    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        options, dataset, partitions, nodes = self.options, sampler.dataset, sampler.partitions, rows["node"]
        num_types = len(dataset.schema.node_types)
        room = options.room(len(nodes), dataset.num_nodes_of)
        asked: Any = num_types, options.seed_type, options.neighbor_type, nodes.numpy(), *room.of(0, len(nodes))
        stats: dict[str, float] = {}
        partitions.require_sound()
        if sampler.is_local:
            csrs = sampler.rows_of_all(False, False)
            call = partial(_core.page_ranks, csrs, dataset.ends, *asked, **options.native(room.most))
            await partitions.timed(stats, "sampling_s", LONG, call)
        else:
            await self._step_by_step(sampler, _core.PageRanks(dataset.ends, *asked, **options.native(room.most)), stats)
        found = await partitions.timed(stats, "sampling_s", LONG, PageRankEdges.of, options, nodes, room)
        known = {self.input_id: rows.get("input_id", input_id)}
        known |= {self.edges: found.edge_index, self.weights: found.edge_weight}
        seeds = [(options.seed_type, nodes), (options.neighbor_type, found.nodes)]
        return BatchStart(seeds, known=known, stats=stats)

    async def _step_by_step(
        self, sampler: DistNeighborSampler, ranks: _core.PageRanks, stats: dict[str, float]
    ) -> None:
        """Asks the owners of nodes for their degrees, and for the rows of those that are pushed; each once a batch."""
        partitions, dataset = sampler.partitions, sampler.dataset
        while not ranks.is_done:
            owners = [partitions.by_owner(t, ranks.asked(t)) for t in range(len(dataset.schema.node_types))]
            wanted: list[EdgesWanted] = []
            for r, (expanded, _) in enumerate(dataset.ends):
                for part, owned, positions in owners[expanded]:
                    nodes = torch.from_numpy(owned)
                    whole = OneHopRequest(r, nodes, -1, False, 0, 0, with_edge=False)
                    wanted.append((positions, part, whole if ranks.wants_rows else DegreesRequest(r, nodes)))
            answers = await partitions.edges(wanted, LONG, stats)
            await partitions.timed(stats, "sampling_s", LONG, self._go_on, ranks, answers)

    @staticmethod
    def _go_on(ranks: _core.PageRanks, answers: list[list[RowsPart]]) -> None:
        for edge_type, parts in enumerate(answers):
            for positions, count, neighbor, _ in parts:
                ranks.take(edge_type, positions, count, neighbor)
        ranks.go_on()
