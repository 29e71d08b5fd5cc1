"""What the samplers of a loader make: the kinds of seeds, the table of its input, and the job that holds all of it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.channel.message import MessageKind, MessageLayout, read_message
from glt.channel.shm import SharedMemory
from glt.distributed.engine.partitions import LONG
from glt.distributed.engine.requests import OneHopRequest
from glt.sampler.config import SamplingConfig
from glt.sampler.link import exclusions, link_batch
from glt.sampler.negatives import Candidates, Endpoint, negative_rounds
from glt.sampler.order import SeedOrder
from glt.sampler.walk_options import WalkOptions

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
        found: list[_core.Exclusions | None] = [None] * num_edge_types
        for r, pairs in self.exclusions.items():
            found[r] = _core.Exclusions(*(side.numpy() for side in pairs))
        return found


class Seeds(ABC):
    """What the rows of a loader's input are; ``input_id`` is the name of their positions there, in a message."""

    input_id: str
    is_whole_batch: ClassVar[bool] = False  # whether :meth:`start` makes all of it, on the CPU

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


# Seeds that are nodes from which walks begin.


class WalkSeeds(Seeds):
    """Each row is a node: column ``node``, and ``time`` of walks back in time. The batch has no nodes and edges, but
    under the name ``walks`` those of :meth:`glt.sampler.RandomWalkSampler.walk`, one seed after the other.
    """

    is_whole_batch = True

    def __init__(self, node_type: int, options: WalkOptions, walks_per_node: int) -> None:
        self.node_type, self.options, self.walks_per_node = node_type, options, walks_per_node
        self.input_id, self.walks = f"input_id/n{node_type}", f"walks/n{node_type}"

    def to_json(self) -> dict[str, Any]:
        told = {"seeds": "walks", "node_type": self.node_type, "walks_per_node": self.walks_per_node}
        return told | self.options.to_json()

    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        nodes = rows["node"].repeat_interleave(self.walks_per_node)
        time = None if "time" not in rows else rows["time"].repeat_interleave(self.walks_per_node)
        latest = self.options.latest(time, len(nodes))
        given = nodes.numpy(), None if latest is None else latest.numpy()
        out = torch.empty(len(nodes), self.options.walk_length + 1, dtype=torch.int64)
        spec, flat = self.options.spec(batch_key), out.view(-1).numpy()
        start = BatchStart([(self.node_type, nodes[:0])], known={self.input_id: input_id, self.walks: out})
        start.stats = dict.fromkeys(("sampling_s", "remote_s", "remote_bytes"), 0.0)
        sampler.partitions.require_sound()
        if sampler.is_local:
            csrs = sampler.rows_of_all(self.options.weighted, self.options.timed)
            walk = partial(_core.walk, csrs, given[0], flat, spec, given[1])
            await sampler.partitions.timed(start.stats, "sampling_s", LONG, walk)
        else:
            await self._step_by_step(sampler, _core.Walks(given[0], flat, spec, given[1]), batch_key, start.stats)
        return start

    async def _step_by_step(
        self, sampler: DistNeighborSampler, walks: _core.Walks, batch_key: int, stats: dict[str, float]
    ) -> None:
        """Asks the owners of the nodes that walks are at, step after step."""
        partitions, dataset = sampler.partitions, sampler.dataset
        while not walks.is_done:
            edge_type, num_draws = walks.edge_type, walks.num_draws
            topology = dataset.own.graphs[edge_type].topology
            nodes, tree, time = walks.rows()
            with_time = time is not None and topology.by_time is not None
            wanted = []
            for part, owned, positions in partitions.by_owner(dataset.ends[edge_type][0], nodes):
                request = OneHopRequest(
                    edge_type,
                    torch.from_numpy(owned),
                    num_draws,
                    True,
                    batch_key,
                    walks.hop,
                    with_edge=False,
                    weighted=self.options.weighted and topology.weights is not None,
                    tree=torch.from_numpy(tree[positions]),
                    seed_time=torch.from_numpy(time[positions]) if time is not None and with_time else None,
                    with_time=with_time,
                )
                wanted.append((positions, part, request))
            answers = (await partitions.edges(wanted, len(nodes) * num_draws, stats))[edge_type]
            count = np.zeros(len(nodes), np.uint32)
            neighbor, times = np.empty((2, len(nodes), num_draws), np.int64)
            for positions, counts, neighbors, of_edges in answers:
                count[positions] = counts
                found = positions[counts > 0]
                neighbor[found] = neighbors.reshape(-1, num_draws)
                if of_edges is not None:
                    times[found] = of_edges.reshape(-1, num_draws)
            has_edge = count > 0
            walks.take(count, neighbor[has_edge].reshape(-1), times[has_edge].reshape(-1) if with_time else None)
            centers, others = walks.checks()
            if len(centers):
                pairs = torch.from_numpy(centers), torch.from_numpy(others)
                is_edge = await partitions.has_edges(edge_type, *pairs, stats)
                walks.judge(is_edge.view(np.uint8))


def seeds_from_json(options: dict[str, Any], extras: dict[str, Tensor]) -> Seeds:
    """Rebuilds what :meth:`Seeds.to_json` and :meth:`Seeds.extras` described."""
    if options["seeds"] == "nodes":
        return NodeSeeds(options["node_type"], options["with_mapping"])
    if options["seeds"] == "walks":
        named = {name: value for name, value in options.items() if name not in ("seeds", "node_type", "walks_per_node")}
        return WalkSeeds(options["node_type"], WalkOptions.from_json(named), options["walks_per_node"])
    (source, target), given = options["ends"], options["negatives"]
    return LinkSeeds(options["edge_type"], (source, target), given and Negatives(**given, **dict[str, Any](extras)))


# The input of a loader: what is known of each seed, as columns of one length.


_EXTRA = "extra/"


class SeedTable:
    """Named tensors with one row per seed, such as ``node [n]`` and ``time [n]``."""

    def __init__(self, columns: Mapping[str, Tensor], extras: Mapping[str, Tensor] | None = None) -> None:
        self.columns, self.extras = dict(columns), dict(extras or {})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, input_id: Tensor) -> dict[str, Tensor]:
        """The rows of these seeds, ``[len(input_id), ...]`` each."""
        return {name: column[input_id] for name, column in self.columns.items()}

    def share(self) -> SharedMemory:
        """Copies the table into shared memory, for processes that inherit it and :meth:`read` it."""
        tensors = self.columns | {_EXTRA + name: tensor for name, tensor in self.extras.items()}
        layout = MessageLayout.like(tensors)
        memory = SharedMemory(layout.nbytes, "glt-seeds")
        layout.write(memory.tensor(), tensors, MessageKind.REQUEST)
        return memory

    @classmethod
    def read(cls, memory: SharedMemory) -> SeedTable:
        """The table that :meth:`share` wrote, in place."""
        tensors = read_message(memory.tensor()).tensors
        extras = {name.removeprefix(_EXTRA): tensors.pop(name) for name in list(tensors) if name.startswith(_EXTRA)}
        return cls(tensors, extras)


@dataclass(frozen=True)
class SamplingJob:
    """What a loader has sampled, wherever its samplers are. The random seed of ``order`` comes with each epoch."""

    config: SamplingConfig
    seeds: Seeds
    table: SeedTable
    order: SeedOrder
    collect_features: bool

    def to_json(self) -> dict[str, Any]:
        """All but the table, which goes through shared memory or beside the JSON."""
        return {
            "config": self.config.to_json(),
            "seeds": self.seeds.to_json(),
            "order": asdict(self.order),
            "collect_features": self.collect_features,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any], table: SeedTable) -> SamplingJob:
        """Rebuilds what :meth:`to_json` described; further entries are ignored."""
        seeds = seeds_from_json(told["seeds"], table.extras)
        config, order = SamplingConfig.from_json(told["config"]), SeedOrder(**told["order"])
        return cls(config, seeds, table, order, told["collect_features"])
