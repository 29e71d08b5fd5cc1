"""Seeds that are edges, and the negatives that go with them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt.distributed.batch_start import BatchStart, Seeds
from glt.sampler.link import exclusions, link_batch
from glt.sampler.negatives import Candidates, Endpoint, negative_rounds

if TYPE_CHECKING:
    from glt.distributed.dist_neighbor_sampler import DistNeighborSampler


@dataclass(frozen=True, eq=False)
class Negatives:
    """What PyG's ``NegativeSampling`` says; sampling processes do without torch_geometric.

    Attributes:
        mode: ``'binary'`` or ``'triplet'``.
        amount: Negatives per positive.
        src_weight, dst_weight: Weight of each node of an end ``[num_nodes]``; None: all alike.
    """

    mode: str
    amount: float
    src_weight: Tensor | None = None
    dst_weight: Tensor | None = None

    def is_binary(self) -> bool:
        return self.mode == "binary"

    def is_triplet(self) -> bool:
        return self.mode == "triplet"


@dataclass(frozen=True)
class SeedEdges:
    """The seed edges of a batch; the fields of PyG's ``EdgeSamplerInput``."""

    input_id: Tensor
    row: Tensor
    col: Tensor
    label: Tensor | None
    time: Tensor | None


class LinkSeeds(Seeds):
    """Each row is an edge: columns ``row`` and ``col``; ``label`` and ``time`` where there are any, and ``input_id``
    where it is to be told in place of the position.

    Args:
        edge_type: Position of the type of the edges.
        ends: Positions of the node types of source and destination.
        negatives: What to draw; None: nothing.
    """

    def __init__(self, edge_type: int, ends: tuple[int, int], negatives: Negatives | None) -> None:
        self.edge_type, self.ends, self.negatives = edge_type, ends, negatives
        self.input_id = f"input_id/l{edge_type}"
        self._endpoints: asyncio.Future[tuple[Endpoint, Endpoint]] | None = None

    def to_json(self) -> dict[str, Any]:
        drawn = self.negatives
        spec = None if drawn is None else {"mode": drawn.mode, "amount": drawn.amount}
        return {"seeds": "links", "edge_type": self.edge_type, "ends": list(self.ends), "negatives": spec}

    def extras(self) -> dict[str, Tensor]:
        found = {} if self.negatives is None else vars(self.negatives)
        return {name: weight for name, weight in found.items() if isinstance(weight, Tensor)}

    @classmethod
    def from_json(
        cls, extras: dict[str, Tensor], edge_type: int, ends: list[int], negatives: dict[str, Any] | None
    ) -> LinkSeeds:
        """Rebuilds what :meth:`to_json` and :meth:`extras` described."""
        drawn = None
        if negatives is not None:
            weights = extras.get("src_weight"), extras.get("dst_weight")
            drawn = Negatives(negatives["mode"], negatives["amount"], *weights)
        return cls(edge_type, (ends[0], ends[1]), drawn)

    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        edges = SeedEdges(input_id, rows["row"], rows["col"], rows.get("label"), rows.get("time"))
        negatives = None
        if self.negatives is not None:
            negatives = await self._negatives(sampler, self.negatives, edges, batch_key)
        schema, config = sampler.dataset.schema, sampler.config
        # The shared functions read no more of PyG's classes than these have.
        batch = link_batch(edges, self.ends, config.disjoint, self.negatives, negatives)  # type: ignore[arg-type]
        excluded = exclusions(edges, self.edge_type, schema, sampler.dataset.edge_dir, config.exclude_edges)  # type: ignore[arg-type]
        known = {self.input_id: rows.get("input_id", input_id)}
        for name, tensor in batch.links.items():
            for store in self._stores(name):
                known[f"{name}/{store}"] = tensor
        return BatchStart(batch.seeds, batch.seed_time, batch.example, excluded, known)

    def _stores(self, name: str) -> tuple[str, ...]:
        """Where PyG puts a field: of links with the seed edges, of triplets with the node types."""
        src, dst = (f"n{end}" for end in self.ends)
        return {
            "src_index": (src,), "dst_pos_index": (dst,), "dst_neg_index": (dst,), "seed_time": (src, dst),
        }.get(name, (f"l{self.edge_type}",))  # fmt: skip

    async def _negatives(
        self, sampler: DistNeighborSampler, drawn: Negatives, edges: SeedEdges, batch_key: int
    ) -> tuple[Tensor | None, Tensor]:
        src, dst = await self._ends_of(sampler, drawn)
        late = None if edges.time is None else edges.time.numpy()
        rounds = negative_rounds(batch_key, drawn, src, dst, edges.row.numpy(), late)  # type: ignore[arg-type]
        while not rounds.done:
            rounds.accept(await self._check(sampler, rounds.candidates()))
        return None if drawn.is_triplet() else torch.from_numpy(rounds.src), torch.from_numpy(rounds.dst)

    async def _check(self, sampler: DistNeighborSampler, asked: Candidates) -> np.ndarray:
        """Which candidates are no edges of the whole graph, and in time."""
        src, dst = torch.from_numpy(asked.src), torch.from_numpy(asked.dst)
        center, neighbor = (dst, src) if sampler.dataset.edge_dir == "in" else (src, dst)
        valid = ~await sampler.partitions.has_edges(self.edge_type, center, neighbor)
        for node, until, end in ((src, asked.src_until, self.ends[0]), (dst, asked.dst_until, self.ends[1])):
            if until is not None:
                valid &= (await sampler.partitions.look_up("node", end, "time", node)).numpy() <= until
        return valid

    async def _ends_of(self, sampler: DistNeighborSampler, drawn: Negatives) -> tuple[Endpoint, Endpoint]:
        """What negatives are drawn from; found out once, by whichever batch comes first. A failure is not kept: the
        epoch after it asks again."""
        asked = self._endpoints
        if asked is None or (asked.done() and (asked.cancelled() or asked.exception() is not None)):
            self._endpoints = asyncio.ensure_future(self._find_ends(sampler, drawn))
        assert self._endpoints is not None
        return await asyncio.shield(self._endpoints)

    async def _find_ends(self, sampler: DistNeighborSampler, drawn: Negatives) -> tuple[Endpoint, Endpoint]:
        found = []
        for side, end in zip(("src", "dst"), self.ends, strict=True):
            earliest = await sampler.partitions.earliest_node(end) if sampler.config.time_level == "node" else None
            found.append(Endpoint.of(side, sampler.dataset.num_nodes_of[end], drawn, earliest))  # type: ignore[arg-type]
        return found[0], found[1]
