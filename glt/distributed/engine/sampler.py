"""Multi-hop sampling and feature lookup over partitions, many batches at a time."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.channel.message import MessageLayout
from glt.data.device import Event
from glt.data.schema import PartitionBook
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.event_loop import ConcurrentEventLoop
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.partitions import (
    LONG,
    EdgesWanted,
    PartitionRouter,
    Partitions,
    RowLookup,
    RowsPart,
    Specs,
    in_message,
)
from glt.distributed.engine.requests import InducedRequest, OneHopRequest
from glt.sampler.config import SamplingConfig

if TYPE_CHECKING:
    from glt.sampler.device_batch import DeviceBatch


# How a batch begins: from rows of the loader's input to the nodes that are sampled around.


@dataclass
class BatchStart:
    """What a batch is sampled around.

    Attributes:
        seeds: Node ids ``[n]`` with the position of their type. Trees, of a disjoint batch, are numbered over all.
        seed_time: Time of each tree ``[number of trees]``, int64; None where edges have no time.
        example: The row of the batch that each tree belongs to ``[number of trees]``, int64; None: the tree's number.
        exclusions: By position of the edge type, pairs ``(expanded [m], neighbour [m])`` whose edges are not sampled.
        known: Tensors that the batch will hold whatever is sampled, by the name in the message.
    """

    seeds: list[tuple[int, Tensor]]
    seed_time: Tensor | None = None
    example: Tensor | None = None
    exclusions: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    known: dict[str, Tensor] = field(default_factory=dict)


class Seeds(ABC):
    """What the rows of a loader's input are.

    Attributes:
        input_id: Name, in a message, of the positions of a batch's rows in the input.
    """

    input_id: str

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All that another process needs to know, for :func:`glt.distributed.engine.seeds.seeds_from_json`,
        but for :meth:`extras`."""

    def extras(self) -> dict[str, Tensor]:
        """Tensors that go with it, too large for text: for as long as the loader they are shared, not copied."""
        return {}

    @abstractmethod
    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        """Turns rows of the input into the start of a batch.

        Args:
            sampler: May be asked about edges.
            rows: The rows, by column.
            input_id: Their positions in the input.
            batch_key: Key of the batch's draws.
        """


# The nodes that a hop expands, by who owns them.


@dataclass(frozen=True)
class Group:
    """Nodes of a frontier that one partition owns.

    Attributes:
        part: Which partition.
        positions: Where in the frontier they stand ``[n]``, uint32.
        nodes: Their ids ``[n]``, int64.
        tree: Their trees in a disjoint batch ``[n]``, uint32; else None.
        seed_time: Times of those trees' seeds ``[n]``, int64; None without times.
    """

    part: int
    positions: np.ndarray
    nodes: Tensor
    tree: Tensor | None
    seed_time: Tensor | None


@dataclass(frozen=True)
class Frontier:
    """The frontier of one node type, sorted by owner."""

    nodes: np.ndarray
    positions: np.ndarray
    bounds: np.ndarray
    tree: np.ndarray | None
    seed_time: np.ndarray | None

    @classmethod
    def of(
        cls,
        batch: _core.Batch,
        node_type: int,
        book: PartitionBook,
        seed_time: Tensor | None,
        disjoint: bool,
    ) -> Frontier:
        """Sorts the frontier of a batch by owner.

        Args:
            book: Owners of the nodes of the type.
            seed_time: Time of each tree; None without times.
            disjoint: Whether the batch has trees.
        """
        nodes, positions, bounds = book.group(batch.frontier(node_type))
        tree = batch.frontier_trees(node_type)[positions] if disjoint else None
        time = None if seed_time is None or tree is None else seed_time.numpy()[tree]
        return cls(nodes, positions, bounds, tree, time)

    def groups(self) -> Iterator[Group]:
        """The owners' shares; none is empty."""
        for part in range(len(self.bounds) - 1):
            group = slice(self.bounds[part], self.bounds[part + 1])
            if group.start != group.stop:
                tree, time = (None if a is None else torch.from_numpy(a[group]) for a in (self.tree, self.seed_time))
                yield Group(part, self.positions[group], torch.from_numpy(self.nodes[group]), tree, time)


# The hops of a batch: what is expanded, who is asked for it, and how the answers come together.


# Expanded nodes and neighbours whose edges are not sampled.
_Pairs = tuple[Tensor, Tensor]


class HopLoop:
    """Samples the edges of batches, hop after hop.

    Args:
        dataset: The partition here.
        config: What to sample.
        partitions: Where all of them are.
        with_edge: Fetch edge ids.
    """

    def __init__(self, dataset: DistDataset, config: SamplingConfig, partitions: Partitions, with_edge: bool) -> None:
        self.dataset, self.config, self.partitions, self.with_edge = dataset, config, partitions, with_edge
        self._num_node_types, self._num_edge_types = len(dataset.schema.node_types), len(dataset.schema.edge_types)

    async def run(self, batch: _core.Batch, start: BatchStart, batch_key: int, stats: dict[str, float]) -> None:
        """Samples a batch whose partitions are partly elsewhere.

        Args:
            batch: Takes the edges.
            start: What it is sampled around.
            batch_key: Key of the draws.
            stats: Of the batch; adds its times and bytes.
        """
        num_seeds = sum(len(nodes) for _, nodes in start.seeds)
        excluded = self._owners_exclusions(start)
        timed = self.partitions.timed
        frontiers = await timed(stats, "sampling_s", num_seeds, self._start, batch, start)
        for hop in range(self.config.num_hops):
            wanted: list[EdgesWanted] = []
            size = 0
            for r, frontier in self._expanded(hop, frontiers):
                num_neighbors = self.config.num_neighbors[r][hop]
                for group in frontier.groups():
                    request = self._request(r, hop, batch_key, group, excluded)
                    wanted.append((group.positions, group.part, request))
                    if group.part in self.partitions.local:
                        size += len(group.nodes) * (num_neighbors if num_neighbors >= 0 else LONG)
            parts = await self.partitions.edges(wanted, size, stats)
            num_edges = sum(len(part[2]) for several in parts for part in several)
            frontiers = await timed(stats, "sampling_s", num_edges, self._expand, batch, start, parts, hop)
        if self.config.subgraph_type == "induced":
            await self._induce_everywhere(batch, stats)

    def _begin(self, batch: _core.Batch, start: BatchStart) -> None:
        time = None if start.seed_time is None else start.seed_time.numpy()
        seeds = [(node_type, nodes.numpy()) for node_type, nodes in start.seeds]
        batch.start(seeds, self.with_edge, self.config.disjoint, time)

    def sample_here(self, batch: _core.Batch, start: BatchStart, batch_key: int) -> None:
        """Samples a batch whose partitions are all read here, on this thread."""
        config = self.config
        exclusions: list[_core.Exclusions | None] = [None] * self._num_edge_types
        for r, pairs in start.exclusions.items():
            exclusions[r] = _core.Exclusions(*(side.numpy() for side in pairs))
        self._begin(batch, start)
        rows = self._rows(config.weighted, config.temporal is not None)
        batch.sample(
            rows,
            config.num_neighbors,
            replace=config.replace,
            batch_key=batch_key,
            last=config.last,
            exclusions=exclusions,
        )
        if config.subgraph_type == "induced":
            batch.induce(self._rows(False, False))

    def _rows(self, weighted: bool, timed: bool) -> list[list[_core.Csr]]:
        """Of all partitions, by edge type: what hops are sampled from."""
        parts = [self.partitions.local[part] for part in range(self.dataset.num_partitions)]
        return [[part.csr(r, weighted, timed) for part in parts] for r in range(self._num_edge_types)]

    async def _induce_everywhere(self, batch: _core.Batch, stats: dict[str, float]) -> None:
        wanted: list[EdgesWanted] = []
        nodes = await self.partitions.timed(stats, "sampling_s", 0, self._nodes, batch)
        for r, (expanded, neighbor) in enumerate(self.dataset.ends):
            if len(nodes[neighbor]) == 0:
                continue
            members = torch.from_numpy(nodes[neighbor])
            for part, owned, positions in self.partitions.by_owner(expanded, nodes[expanded]):
                request = InducedRequest(r, torch.from_numpy(owned), members, self.with_edge)
                wanted.append((positions, part, request))
        parts = await self.partitions.edges(wanted, LONG, stats)
        await self.partitions.timed(stats, "sampling_s", LONG, self._induce, batch, parts)

    def _nodes(self, batch: _core.Batch) -> list[np.ndarray]:
        return [batch.nodes(t) for t in range(self._num_node_types)]

    def _induce(self, batch: _core.Batch, parts: list[list[RowsPart]]) -> None:
        batch.begin_induce()
        for r, several in enumerate(parts):
            if several:
                batch.induce_from(r, several)

    def _owners_exclusions(self, start: BatchStart) -> dict[tuple[int, int], _Pairs]:
        """Excluded pairs by edge type and by the partition that has the edges: nobody is sent the others'."""
        found: dict[tuple[int, int], _Pairs] = {}
        for r, (center, neighbor) in start.exclusions.items():
            for part, nodes, positions in self.partitions.by_owner(self.dataset.ends[r][0], center.numpy()):
                found[r, part] = torch.from_numpy(nodes), torch.from_numpy(neighbor.numpy()[positions])
        return found

    def _expanded(self, hop: int, frontiers: Sequence[Frontier | None]) -> list[tuple[int, Frontier]]:
        """The edge types that a hop samples, and what it expands along them."""
        found = []
        for r, (expanded, _) in enumerate(self.dataset.ends):
            frontier = frontiers[expanded]
            if frontier is not None and self.config.num_neighbors[r][hop] != 0:
                found.append((r, frontier))
        return found

    def _request(
        self, edge_type: int, hop: int, batch_key: int, group: Group, excluded: Mapping[tuple[int, int], _Pairs]
    ) -> OneHopRequest:
        config = self.config
        topology = self.dataset.own.graphs[edge_type].topology
        timed = group.seed_time is not None and topology.by_time is not None
        return OneHopRequest(
            edge_type,
            group.nodes,
            config.num_neighbors[edge_type][hop],
            config.replace,
            batch_key,
            hop,
            self.with_edge,
            config.weighted and topology.weights is not None,
            timed and config.last,
            group.tree,
            group.seed_time if timed else None,
            excluded.get((edge_type, group.part)),
        )

    def _start(self, batch: _core.Batch, start: BatchStart) -> list[Frontier | None]:
        self._begin(batch, start)
        return self._frontiers(batch, start, 0)

    def _expand(
        self, batch: _core.Batch, start: BatchStart, parts: list[list[RowsPart]], hop: int
    ) -> list[Frontier | None]:
        """Takes in a hop, and sorts the next frontier by owner at once: each call on the pool costs a thread switch."""
        for r, several in enumerate(parts):
            if several:
                batch.expand_from(r, several)
        batch.end_hop()
        return self._frontiers(batch, start, hop + 1)

    def _frontiers(self, batch: _core.Batch, start: BatchStart, hop: int) -> list[Frontier | None]:
        """By node type, what is expanded next along any edge type; None: nothing."""
        found: list[Frontier | None] = [None] * self._num_node_types
        if hop == self.config.num_hops:
            return found
        data = self.dataset
        for r, (t, _) in enumerate(data.ends):
            if found[t] is None and self.config.num_neighbors[r][hop] != 0:
                found[t] = Frontier.of(batch, t, data.node_books[t], start.seed_time, self.config.disjoint)
        return found


# What a batch reports about its own making, in this order, as float64 in the message's "stats".
STATS = (
    "sampling_s",
    "remote_s",
    "gathering_s",
    "blocked_s",
    "num_remote_nodes",
    "num_cached_nodes",
    "num_nodes",
    "num_edges",
    "remote_bytes",
)


@dataclass
class SampledBatch:
    """A batch whose edges are sampled and whose remote rows are on their way; :meth:`DistNeighborSampler.fill` writes
    it out.

    Attributes:
        specs: Dtype and shape of each tensor of the batch, by the names of :mod:`glt.distributed.loader.collate`.
        stats: What it reports about its making, by the names of ``STATS``.
    """

    specs: Specs
    stats: dict[str, float]
    _batch: Any
    _rows: list[RowLookup]
    _start: BatchStart

    @property
    def layout(self) -> MessageLayout:
        """The message that the batch becomes."""
        return MessageLayout(self.specs)

    def write_stats(self, out: Mapping[str, Tensor]) -> None:
        out["stats"].copy_(torch.tensor([self.stats[name] for name in STATS], dtype=torch.float64))


class DistNeighborSampler:
    """Samples from a partition here and, through the router, from the partitions elsewhere.

    The hops of a batch follow each other. All that a hop asks of other partitions, over all edge types, is asked at
    once, and local rows are sampled while that is in flight. While one batch waits, others go on: see
    :class:`ConcurrentEventLoop`. The result is the one that :class:`glt.sampler.NeighborSampler` gives on the whole
    graph, bit for bit.

    Args:
        dataset: The partition here.
        config: What to sample.
        router: Where the partitions are that are not read here; None if there are none.
        loop: Where native calls run.
        collect_features: Look up node features, labels and edge features.
        others: Further partitions that are read here, by index (:meth:`DistDataset.map_other`).
        spare: Where batches are kept for their memory, 4 bytes per node each: samplers of the same dataset and loop may
            share it. Default: a place of its own.
        partitions: What reads and asks them.

    Attributes:
        is_local: Whether one native call makes a batch: all partitions are read here, and sampled by the CPU.

    Raises:
        ValueError: If there are several partitions and no router.
    """

    def __init__(
        self,
        dataset: DistDataset,
        config: SamplingConfig,
        router: PartitionRouter | None,
        loop: ConcurrentEventLoop,
        collect_features: bool = True,
        others: Mapping[int, LocalPartition] | None = None,
        spare: list[_core.Batch] | None = None,
        *,
        partitions: type[Partitions] = Partitions,
    ) -> None:
        self.partitions = partitions(dataset, others or {}, router, loop)
        self.dataset, self.config, self.loop = dataset, config, loop
        self.collect_features = collect_features
        schema = dataset.schema
        self._num_node_types, self._num_edge_types = len(schema.node_types), len(schema.edge_types)
        need_edge = config.with_edge or (collect_features and any(dataset.own.edge_tables))
        self._hops = HopLoop(dataset, config, self.partitions, need_edge)
        self._spare = [] if spare is None else spare
        self.is_local = not self.partitions.elsewhere

    async def sample(self, start: BatchStart, batch_key: int) -> SampledBatch:
        """Samples the edges of a batch and asks for its remote rows.

        Args:
            start: What it is sampled around.
            batch_key: Key of the draws, in [0, 2^64); see :meth:`glt.sampler.BatchIndex.key`.

        Raises:
            IndexError: If a seed is outside the graph.
            glt.errors.PeerLost: If a process that owns part of the neighbourhood is gone.
            glt.errors.RemoteError: If it raised an exception; carries its traceback.
        """
        if self.is_local:
            return await self.loop.run_native(self.sample_here, start, batch_key)
        stats, rows = dict.fromkeys(STATS, 0.0), []
        batch = self._new_batch()
        try:
            await self._hops.run(batch, start, batch_key, stats)
        except MemoryError as error:
            raise self._no_room(start) from error
        if self.collect_features:
            num_nodes = sum(batch.num_nodes(t) for t in range(self._num_node_types))
            rows = await self.partitions.timed(stats, "sampling_s", num_nodes, self._locate_rows, batch)
            self.partitions.ask_for_rows(rows)
        return self._sampled(batch, start, rows, stats)

    def sample_here(self, start: BatchStart, batch_key: int) -> SampledBatch:
        """As :meth:`sample`, on the calling thread, of a sampler that :attr:`is_local`."""
        stats, began_s = dict.fromkeys(STATS, 0.0), time.perf_counter()
        batch = self._new_batch()
        try:
            self._hops.sample_here(batch, start, batch_key)
        except MemoryError as error:
            raise self._no_room(start) from error
        rows = self._locate_rows(batch) if self.collect_features else []
        sampled = self._sampled(batch, start, rows, stats)
        stats["sampling_s"] = time.perf_counter() - began_s
        return sampled

    def _no_room(self, start: BatchStart) -> MemoryError:
        return MemoryError(self.config.no_room(sum(len(nodes) for _, nodes in start.seeds)))

    def _sampled(self, batch: Any, start: BatchStart, rows: list[RowLookup], stats: dict[str, float]) -> SampledBatch:
        specs = self._specs(batch, start)
        num_nodes = [batch.num_nodes(t) for t in range(self._num_node_types)]
        stats["num_nodes"] = sum(num_nodes)
        stats["num_edges"] = sum(batch.num_edges(r) for r in range(self._num_edge_types))
        for each in rows:
            specs |= each.specs
        stats["num_remote_nodes"] = sum(each.num_remote for each in rows if each.kind == "node")
        stats["num_cached_nodes"] = sum(each.num_cached for each in rows)
        for t, labels in enumerate(self.dataset.whole_node_labels if self.collect_features else ()):
            if labels is not None:
                specs[in_message("y", "node", t)] = (labels.dtype, (num_nodes[t], *labels.row_shape))
        return SampledBatch(specs, stats, batch, rows, start)

    def _new_batch(self) -> Any:
        """What takes the hops of a batch: a ``_core.Batch``, or what answers as it does."""
        return self._spare.pop() if self._spare else _core.Batch(self.dataset.num_nodes_of, self.dataset.ends)

    def _specs(self, batch: _core.Batch | DeviceBatch, start: BatchStart) -> Specs:
        """What a batch holds, rows of tables apart."""
        hops = self.config.num_hops
        specs: Specs = {"stats": (torch.float64, (len(STATS),))}
        if self.config.subgraph_type == "directional":  # other edges belong to no hop
            specs["num_sampled_nodes"] = (torch.int64, (self._num_node_types, hops + 1))
            specs["num_sampled_edges"] = (torch.int64, (self._num_edge_types, hops))
        for t in range(self._num_node_types):
            specs[f"n_id/n{t}"] = (torch.int64, (batch.num_nodes(t),))
            if self.config.disjoint:
                specs[f"batch/n{t}"] = (torch.int64, (batch.num_nodes(t),))
        for r in range(self._num_edge_types):
            specs[f"edge_index/e{r}"] = (torch.int64, (2, batch.num_edges(r)))
            if self.config.with_edge:
                specs[f"e_id/e{r}"] = (torch.int64, (batch.num_edges(r),))
        return specs | {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in start.known.items()}

    async def fill(self, sampled: SampledBatch, out: dict[str, Tensor]) -> Event | None:
        """Writes the batch into tensors of its ``specs``, remote rows as they arrive.

        Args:
            sampled: What :meth:`sample` returned; its memory goes to the next batch afterwards.
            out: CPU tensors of the dtypes and shapes of ``sampled.specs``, under the same names.

        Returns:
            None: they are filled. Of samplers on a GPU, what a stream waits for before it uses them.

        Raises:
            glt.errors.PeerLost, glt.errors.RemoteError: As :meth:`sample`, for rows of features.
        """
        await self.partitions.timed(sampled.stats, "gathering_s", LONG, self._fill_here, sampled, out)
        for rows in sampled._rows:
            for positions, reply in rows.replies:
                tensors = await self.partitions.answer(reply, sampled.stats)
                await self.partitions.timed(
                    sampled.stats, "gathering_s", LONG, self._scatter, rows, tensors, positions, out
                )
        sampled.write_stats(out)
        return self._finished(sampled)

    def fill_here(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        """As :meth:`fill`, on the calling thread, of a sampler that :attr:`is_local`."""
        began_s = time.perf_counter()
        self._fill_here(sampled, out)
        sampled.stats["gathering_s"] = time.perf_counter() - began_s
        sampled.write_stats(out)
        self._finished(sampled)

    def _scatter(
        self, rows: RowLookup, tables: Mapping[str, Tensor], positions: np.ndarray, out: dict[str, Tensor]
    ) -> None:
        """Writes what a partition answered to its places."""
        rows.scatter(tables, positions, out)

    def _finished(self, sampled: SampledBatch) -> Event | None:
        """All has been asked for that fills the batch; returns what is to be waited for."""
        self._spare.append(sampled._batch)
        return None

    def _locate_rows(self, batch: _core.Batch) -> list[RowLookup]:
        """Sorts the nodes (and edges) of a batch by who has their rows."""
        own = self.dataset.own
        nodes = [(t, batch.nodes(t)) for t in range(self._num_node_types) if own.node_tables[t]]
        edges = [(r, batch.edges(r)) for r in range(self._num_edge_types) if own.edge_tables[r]]
        return [
            RowLookup.of(self.dataset, self.partitions.local, kind, type_, ids)
            for kind, several in (("node", nodes), ("edge", edges))
            for type_, ids in several
        ]

    def _fill_here(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        self._fill_batch(sampled, out)
        for rows in sampled._rows:
            rows.gather_local(out)
        if self.collect_features:
            for t, labels in enumerate(self.dataset.whole_node_labels):
                if labels is not None:
                    labels.gather(out[f"n_id/n{t}"], out[in_message("y", "node", t)])

    def _fill_batch(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        """All but the rows of tables."""
        batch, start = sampled._batch, sampled._start
        for t in range(self._num_node_types):
            tree = out[f"batch/n{t}"] if self.config.disjoint else None
            batch.copy_nodes(t, _written(out[f"n_id/n{t}"]), None if tree is None else _written(tree))
            if tree is not None and start.example is not None:
                tree.copy_(start.example.to(tree.device)[tree])
        for r in range(self._num_edge_types):
            row, col = out[f"edge_index/e{r}"]
            edge = _written(out[f"e_id/e{r}"]) if self.config.with_edge else None
            batch.copy_edges(r, _written(row), _written(col), edge)
        if "num_sampled_nodes" in out:
            num_nodes = [batch.num_sampled_nodes(t) for t in range(self._num_node_types)]
            num_edges = [batch.num_sampled_edges(r) for r in range(self._num_edge_types)]
            for name, counts in (("num_sampled_nodes", num_nodes), ("num_sampled_edges", num_edges)):
                out[name].copy_(torch.tensor(counts, dtype=torch.int64).view(out[name].shape))
        for name, tensor in start.known.items():
            out[name].copy_(tensor)


def _written(tensor: Tensor) -> Any:
    """What a batch writes to: an array for the CPU's, the tensor itself where it is on a GPU."""
    return tensor if tensor.is_cuda else tensor.numpy()
