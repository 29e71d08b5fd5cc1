"""What the samplers of a loader make batches around: nodes, and edges with negatives."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.sampler.anchors import Supervision
from glt.sampler.link import exclusions, link_batch, native_exclusions
from glt.sampler.negatives import Asked, Drawn, Endpoint, negative_rounds

if TYPE_CHECKING:
    from glt.distributed.engine.sampler import DistNeighborSampler


@dataclass
class BatchStart:
    """What a batch is sampled around.

    Attributes:
        seeds: Node ids ``[n]`` with the position of their type. Trees, of a disjoint batch, are numbered over all.
        seed_time: Latest time that each tree may sample ``[number of trees]``, int64; None where edges have no time.
        example: The row of the batch that each tree belongs to ``[number of trees]``, int64; None: the tree's number.
        exclusions: By position of the edge type, pairs ``(expanded [m], neighbour [m])`` whose edges are not sampled.
        known: Tensors that the batch will hold whatever is sampled, by the name in the message.
        shared_key: Key of the numbers of nodes, where batches share them; None: as the batch's own key says.
        stats: What it took to find it, by the names of :data:`glt.distributed.engine.sampler.STATS`.
    """

    seeds: list[tuple[int, Tensor]]
    seed_time: Tensor | None = None
    example: Tensor | None = None
    exclusions: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    known: dict[str, Tensor] = field(default_factory=dict)
    shared_key: int | None = None
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def num_seeds(self) -> int:
        return sum(len(nodes) for _, nodes in self.seeds)

    def native_exclusions(self, num_edge_types: int) -> list[_core.Exclusions | None]:
        """The exclusions by edge type, as native samplers take them."""
        return native_exclusions(self.exclusions, num_edge_types)


class Seeds(ABC):
    """What the rows of a loader's input are; ``input_id`` is the name of their positions there, in a message."""

    input_id: str
    is_whole_batch: ClassVar[bool] = False  # whether :meth:`start` makes all of it, or samples itself, on the CPU

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All that another process needs for :func:`seeds_from_json`, but for :meth:`extras`."""

    def extras(self) -> dict[str, Tensor]:
        """Tensors that go with it, too large for text: they are shared, not copied, for as long as the loader lives."""
        return {}

    @abstractmethod
    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        """Turns rows of the input, by column, into the start of a batch; ``input_id``: their positions there."""


# Seeds that are edges, and the negatives that go with them.


@dataclass(frozen=True, eq=False)
class Negatives:
    """What PyG's ``NegativeSampling`` says, without torch_geometric. Weights are of each node of an end
    ``[num_nodes]``; None: all alike."""

    mode: str
    amount: float
    src_weight: Tensor | None = None
    dst_weight: Tensor | None = None

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
        # Where PyG puts a field: of links with the seed edges, of triplets with the node types.
        src, dst = (f"n{end}" for end in self.ends)
        stores = {"src_index": (src,), "dst_pos_index": (dst,), "dst_neg_index": (dst,), "seed_time": (src, dst)}
        for name, tensor in batch.links.items():
            for store in stores.get(name, (f"l{self.edge_type}",)):
                known[f"{name}/{store}"] = tensor
        return BatchStart(batch.seeds, config.latest(batch.seed_time), batch.example, excluded, known)

    async def _negatives(
        self, sampler: DistNeighborSampler, drawn: Negatives, edges: SeedEdges, batch_key: int
    ) -> tuple[Tensor | None, Tensor]:
        src, dst = await self._ends_of(sampler, drawn)
        late = None if edges.time is None else sampler.config.latest(edges.time.numpy())
        rounds = negative_rounds(batch_key, drawn, src, dst, edges.row.numpy(), late)  # type: ignore[arg-type]
        while not rounds.done:
            rounds.accept(await self._check(sampler, rounds.asked()))
        return None if drawn.is_triplet() else torch.from_numpy(rounds.src), torch.from_numpy(rounds.dst)

    async def _check(self, sampler: DistNeighborSampler, asked: Asked) -> np.ndarray:
        """Which pairs are no edges of the whole graph, or which nodes are in time."""
        if isinstance(asked, Drawn):
            end = self.ends[("src", "dst").index(asked.side)]
            time = await sampler.partitions.look_up("node", end, "time", torch.from_numpy(asked.node))
            return time.numpy() <= asked.until  # type: ignore[no-any-return]
        src, dst = torch.from_numpy(asked.src), torch.from_numpy(asked.dst)
        center, neighbor = (dst, src) if sampler.dataset.edge_dir == "in" else (src, dst)
        return ~await sampler.partitions.has_edges(self.edge_type, center, neighbor)

    async def _ends_of(self, sampler: DistNeighborSampler, drawn: Negatives) -> tuple[Endpoint, Endpoint]:
        """What negatives are drawn from; found out once, by the batch that comes first. A failure is not kept: the
        epoch after it asks again."""

        async def find() -> tuple[Endpoint, Endpoint]:
            found = []
            for side, end in zip(("src", "dst"), self.ends, strict=True):
                earliest = await sampler.partitions.earliest_node(end) if sampler.config.time_level == "node" else None
                found.append(Endpoint.of(side, sampler.dataset.num_nodes_of[end], drawn, earliest))  # type: ignore[arg-type]
            return found[0], found[1]

        asked = self._endpoints
        if asked is None or (asked.done() and (asked.cancelled() or asked.exception() is not None)):
            asked = self._endpoints = asyncio.ensure_future(find())
        return await asyncio.shield(asked)


# Seeds that are nodes.


class NodeSeeds(Seeds):
    """Each row is a node: column ``node``; ``input_id`` where it is to be told in place of the position, and ``time``
    for temporal sampling as of other times than the nodes' own.
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
        start.seed_time = sampler.config.latest(start.seed_time)
        if self.with_mapping:
            start.known[f"mapping/n{self.node_type}"] = torch.arange(len(nodes))
        return start


# Seeds that are nodes, and others that are their labels.


class AnchorSeeds(NodeSeeds):
    """Each row is an anchor, as of :class:`NodeSeeds`; columns ``positive_at`` and ``negative_at`` tell where its
    labels are: the bounds of :class:`glt.sampler.anchors.Supervision`. Edges to positives are not sampled, as
    ``exclude_edges`` says.
    """

    def __init__(self, supervision: Supervision) -> None:
        super().__init__(supervision.ends[0])
        self.supervision = supervision

    def to_json(self) -> dict[str, Any]:
        return {"seeds": "anchors", "edge_type": self.supervision.edge_type, "ends": list(self.supervision.ends)}

    def extras(self) -> dict[str, Tensor]:
        return self.supervision.labels

    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        start = await super().start(sampler, rows, input_id, batch_key)
        given, config = self.supervision, sampler.config
        bounds = {kind: rows[f"{kind}_at"] for kind in given.labels}
        batch, hidden = given.batch(rows["node"], start.seed_time, bounds, config.disjoint)
        start.seeds, start.seed_time, start.example = batch.seeds, batch.seed_time, batch.example
        start.exclusions = given.exclusions(
            hidden, sampler.dataset.schema, sampler.dataset.edge_dir, config.exclude_edges
        )
        start.known |= {f"{name}/n{self.node_type}": y for name, y in batch.links.items()}
        return start
