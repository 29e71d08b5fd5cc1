"""Multi-hop sampling and feature lookup over partitions, many batches at a time."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.channel.message import MessageLayout
from glt.distributed.batch_start import BatchStart
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.frontier import Frontier, Group
from glt.distributed.local_partition import LocalPartition
from glt.distributed.requests import EarliestRequest, HasEdgesRequest, OneHopRequest, Request
from glt.distributed.router import PartitionRouter, tensors_of
from glt.distributed.row_lookup import RowLookup, Specs, in_message
from glt.sampler.config import SamplingConfig

T = TypeVar("T")

_SHORT = 1 << 15  # items of a native call that takes well under a millisecond
_LONG = _SHORT + 1  # the size of a call that may always take longer

# What a batch reports about its own making, in this order, as float64 in the message's "stats".
STATS = ("sampling_s", "remote_s", "gathering_s", "blocked_s", "num_remote_nodes", "num_nodes", "num_edges",
         "remote_bytes")  # fmt: skip


# What one partition answered: positions in the frontier, counts, neighbours, edges.
_HopPart = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]

# Expanded nodes and neighbours whose edges are not sampled.
_Pairs = tuple[Tensor, Tensor]


@dataclass
class SampledBatch:
    """A batch whose edges are sampled and whose remote rows are on their way; :meth:`DistNeighborSampler.fill` writes
    it out.

    Attributes:
        specs: Dtype and shape of each tensor of the batch, by the names of :mod:`glt.distributed.collate`.
        stats: What it reports about its making, by the names of ``STATS``.
    """

    specs: Specs
    stats: dict[str, float]
    _batch: _core.Batch
    _rows: list[RowLookup]
    _start: BatchStart


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
    ) -> None:
        self.local = {dataset.partition_idx: dataset.own, **(others or {})}
        if router is None and len(self.local) < dataset.num_partitions:
            elsewhere = sorted(set(range(dataset.num_partitions)) - set(self.local))
            raise ValueError(f"partitions {elsewhere} are not read here: a router to them is needed")
        self.dataset, self.config, self.router, self.loop = dataset, config, router, loop
        self.collect_features = collect_features
        schema = dataset.schema
        self._num_node_types, self._num_edge_types = len(schema.node_types), len(schema.edge_types)
        self._need_edge = config.with_edge or (collect_features and any(dataset.own.edge_tables))
        self._spare: list[_core.Batch] = []  # one per batch in flight, kept for their memory

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
        stats = dict.fromkeys(STATS, 0.0)
        batch = self._spare.pop() if self._spare else _core.Batch(self.dataset.num_nodes_of, self.dataset.ends)
        if self.dataset.num_partitions == 1:
            await self._timed(stats, "sampling_s", _LONG, self._sample_here, batch, start, batch_key)
        else:
            await self._sample_everywhere(batch, start, batch_key, stats)
        specs = self._specs(batch, start)
        num_nodes = [batch.num_nodes(t) for t in range(self._num_node_types)]
        stats["num_nodes"] = sum(num_nodes)
        stats["num_edges"] = sum(batch.num_edges(r) for r in range(self._num_edge_types))
        rows: list[RowLookup] = []
        if self.collect_features:
            rows = await self._timed(stats, "sampling_s", sum(num_nodes), self._locate_rows, batch)
            self._ask_for_rows(rows)
            for each in rows:
                specs |= each.specs
            stats["num_remote_nodes"] = sum(each.num_remote for each in rows if each.kind == "node")
            for t, labels in enumerate(self.dataset.whole_node_labels):
                if labels is not None:
                    specs[in_message("y", "node", t)] = (labels.dtype, (num_nodes[t], *labels.row_shape))
        return SampledBatch(specs, stats, batch, rows, start)

    def _specs(self, batch: _core.Batch, start: BatchStart) -> Specs:
        """What a batch holds, rows of tables apart."""
        hops = self.config.num_hops
        specs: Specs = {
            "num_sampled_nodes": (torch.int64, (self._num_node_types, hops + 1)),
            "num_sampled_edges": (torch.int64, (self._num_edge_types, hops)),
            "stats": (torch.float64, (len(STATS),)),
        }
        for t in range(self._num_node_types):
            specs[f"n_id/n{t}"] = (torch.int64, (batch.num_nodes(t),))
            if self.config.disjoint:
                specs[f"batch/n{t}"] = (torch.int64, (batch.num_nodes(t),))
        for r in range(self._num_edge_types):
            specs[f"edge_index/e{r}"] = (torch.int64, (2, batch.num_edges(r)))
            if self.config.with_edge:
                specs[f"e_id/e{r}"] = (torch.int64, (batch.num_edges(r),))
        return specs | {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in start.known.items()}

    async def fill(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        """Writes the batch into tensors of its ``specs``, remote rows as they arrive.

        Args:
            sampled: What :meth:`sample` returned; its memory goes to the next batch afterwards.
            out: CPU tensors of the dtypes and shapes of ``sampled.specs``, under the same names.

        Raises:
            glt.errors.PeerLost, glt.errors.RemoteError: As :meth:`sample`, for rows of features.
        """
        await self._timed(sampled.stats, "gathering_s", _LONG, self._fill_here, sampled, out)
        for rows in sampled._rows:
            for positions, reply in rows.replies:
                tensors = await self._answer(reply, sampled.stats)
                await self._timed(sampled.stats, "gathering_s", _LONG, rows.scatter, tensors, positions, out)
        out["stats"].copy_(torch.tensor([sampled.stats[name] for name in STATS], dtype=torch.float64))
        self._spare.append(sampled._batch)

    async def look_up(self, kind: str, type_: int, table: str, ids: Tensor) -> Tensor:
        """Returns rows of a table ``[len(ids), ...]``, wherever they are.

        Raises:
            glt.errors.PeerLost, glt.errors.RemoteError: As :meth:`sample`.
        """
        rows = RowLookup.of(self.dataset, self.local, kind, type_, ids.numpy(), table)
        self._ask_for_rows([rows])
        ((name, (dtype, shape)),) = rows.specs.items()
        out = {name: torch.empty(shape, dtype=dtype)}
        rows.gather_local(out)
        for positions, reply in rows.replies:
            rows.scatter(tensors_of(await reply), positions, out)
        return out[name]

    async def has_edges(self, edge_type: int, centers: Tensor, neighbors: Tensor) -> np.ndarray:
        """Says which pairs are edges of the whole graph ``[n]``, bool.

        Args:
            edge_type: Of which type.
            centers: Ids ``[n]`` of the ends that would be expanded, int64.
            neighbors: Ids ``[n]`` of the other ends, int64.

        Raises:
            glt.errors.PeerLost, glt.errors.RemoteError: As :meth:`sample`.
        """
        book = self.dataset.node_books[self.dataset.ends[edge_type][0]]
        grouped, positions, bounds = _core.group_by_owner(book, self.dataset.num_partitions, centers.numpy())
        found = np.empty(len(centers), bool)
        asked: list[tuple[np.ndarray, asyncio.Future[Tensor]]] = []
        here: list[tuple[int, np.ndarray, HasEdgesRequest]] = []
        for part in range(self.dataset.num_partitions):
            group = slice(bounds[part], bounds[part + 1])
            if group.start == group.stop:
                continue
            others = torch.from_numpy(neighbors.numpy()[positions[group]])
            request = HasEdgesRequest(edge_type, torch.from_numpy(grouped[group]), others)
            if part in self.local:
                here.append((part, positions[group], request))
            else:
                asked.append((positions[group], self._ask(part, [request])[0]))
        for part, where, request in here:
            found[where] = self.local[part].has_edges(request).numpy()
        for where, reply in asked:
            found[where] = tensors_of(await reply)["found"].numpy()
        return found

    async def earliest_node(self, node_type: int) -> tuple[int, int] | None:
        """The node of the smallest time of the whole graph, the first of several, and that time; None without times."""
        request = EarliestRequest(node_type)
        elsewhere = [part for part in range(self.dataset.num_partitions) if part not in self.local]
        asked = [self._ask(part, [request])[0] for part in elsewhere]
        found = [each for part in self.local.values() if (each := part.earliest_node(request)) is not None]
        for reply in asked:
            node_and_time = tensors_of(await reply)["earliest"].tolist()
            if node_and_time:
                found.append((node_and_time[0], node_and_time[1]))
        return min(found, key=lambda each: (each[1], each[0]), default=None)

    def _begin(self, batch: _core.Batch, start: BatchStart) -> None:
        time = None if start.seed_time is None else start.seed_time.numpy()
        seeds = [(node_type, nodes.numpy()) for node_type, nodes in start.seeds]
        batch.start(seeds, self._need_edge, self.config.disjoint, time)

    def _sample_here(self, batch: _core.Batch, start: BatchStart, batch_key: int) -> None:
        config, own = self.config, self.dataset.own
        exclusions: list[_core.Exclusions | None] = [None] * self._num_edge_types
        for r, pairs in start.exclusions.items():
            exclusions[r] = _core.Exclusions(*(side.numpy() for side in pairs))
        self._begin(batch, start)
        batch.sample(
            [own.csr(r, config.weighted, config.temporal is not None) for r in range(self._num_edge_types)],
            config.num_neighbors, replace=config.replace, batch_key=batch_key, last=config.last, exclusions=exclusions,
        )  # fmt: skip

    async def _sample_everywhere(
        self, batch: _core.Batch, start: BatchStart, batch_key: int, stats: dict[str, float]
    ) -> None:
        num_seeds = sum(len(nodes) for _, nodes in start.seeds)
        excluded = self._owners_exclusions(start)
        frontiers = await self._timed(stats, "sampling_s", num_seeds, self._start, batch, start)
        for hop in range(self.config.num_hops):
            here: list[tuple[np.ndarray, int, OneHopRequest]] = []
            asked: dict[int, list[tuple[np.ndarray, OneHopRequest]]] = defaultdict(list)
            for r, frontier in self._expanded(hop, frontiers):
                for group in frontier.groups():
                    request = self._request(r, hop, batch_key, group, excluded)
                    if group.part in self.local:
                        here.append((group.positions, group.part, request))
                    else:
                        asked[group.part].append((group.positions, request))
            replies = [
                (positions, request.edge_type, reply)
                for part, several in asked.items()
                for (positions, request), reply in zip(several, self._ask(part, [q for _, q in several]), strict=True)
            ]
            parts: list[list[_HopPart]] = [[] for _ in range(self._num_edge_types)]
            size = sum(len(q.nodes) * (q.num_neighbors if q.num_neighbors >= 0 else _LONG) for _, _, q in here)
            await self._timed(stats, "sampling_s", size, self._sample_local, here, parts)
            for positions, r, reply in replies:
                tensors = await self._answer(reply, stats)
                edge = tensors["edge"].numpy() if self._need_edge else None
                parts[r].append((positions, tensors["count"].numpy(), tensors["neighbor"].numpy(), edge))
            num_edges = sum(len(part[2]) for several in parts for part in several)
            frontiers = await self._timed(stats, "sampling_s", num_edges, self._expand, batch, start, parts, hop)

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
        own = self.dataset.own
        timed = group.seed_time is not None and own.graphs[edge_type].topology.by_time is not None
        return OneHopRequest(
            edge_type, group.nodes, config.num_neighbors[edge_type][hop], config.replace, batch_key, hop,
            self._need_edge, config.weighted and own.weighted[edge_type] is not None, timed and config.last,
            group.tree, group.seed_time if timed else None, excluded.get((edge_type, group.part)),
        )  # fmt: skip

    def _owners_exclusions(self, start: BatchStart) -> dict[tuple[int, int], _Pairs]:
        """Excluded pairs by edge type and by the partition that has the edges: nobody is sent the others'."""
        found: dict[tuple[int, int], _Pairs] = {}
        for r, (center, neighbor) in start.exclusions.items():
            book = self.dataset.node_books[self.dataset.ends[r][0]]
            grouped, positions, bounds = _core.group_by_owner(book, self.dataset.num_partitions, center.numpy())
            for part in range(self.dataset.num_partitions):
                group = slice(bounds[part], bounds[part + 1])
                if group.start != group.stop:
                    others = neighbor.numpy()[positions[group]]
                    found[r, part] = torch.from_numpy(grouped[group]), torch.from_numpy(others)
        return found

    def _start(self, batch: _core.Batch, start: BatchStart) -> list[Frontier | None]:
        self._begin(batch, start)
        return self._frontiers(batch, start, 0)

    def _expand(
        self, batch: _core.Batch, start: BatchStart, parts: list[list[_HopPart]], hop: int
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
                found[t] = Frontier.of(
                    batch, t, data.node_books[t], data.num_partitions, start.seed_time, self.config.disjoint
                )
        return found

    def _sample_local(self, asked: list[tuple[np.ndarray, int, OneHopRequest]], parts: list[list[_HopPart]]) -> None:
        for positions, part, request in asked:
            rows = self.local[part].one_hop(request)
            count = np.empty(len(positions), np.uint32)
            neighbor = np.empty(rows.num_edges, np.int64)
            edge = np.empty(rows.num_edges, np.int64) if self._need_edge else None
            rows.copy_out(count, neighbor, edge)
            parts[request.edge_type].append((positions, count, neighbor, edge))

    def _locate_rows(self, batch: _core.Batch) -> list[RowLookup]:
        """Sorts the nodes (and edges) of a batch by who has their rows."""
        own = self.dataset.own
        nodes = [(t, batch.nodes(t)) for t in range(self._num_node_types) if own.node_tables[t]]
        edges = [(r, batch.edges(r)) for r in range(self._num_edge_types) if own.edge_tables[r]]
        return [
            RowLookup.of(self.dataset, self.local, kind, type_, ids)
            for kind, several in (("node", nodes), ("edge", edges))
            for type_, ids in several
        ]

    def _ask_for_rows(self, rows: Sequence[RowLookup]) -> None:
        """Asks each partition for all that it has, of all types at once."""
        asked: dict[int, list[tuple[RowLookup, np.ndarray, Request]]] = defaultdict(list)
        for each in rows:
            for part, positions, request in each.requests():
                asked[part].append((each, positions, request))
        for part, several in asked.items():
            replies = self._ask(part, [request for _, _, request in several])
            for (each, positions, _), reply in zip(several, replies, strict=True):
                each.replies.append((positions, reply))

    def _fill_here(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        batch, start = sampled._batch, sampled._start
        for t in range(self._num_node_types):
            tree = out[f"batch/n{t}"] if self.config.disjoint else None
            batch.copy_nodes(t, out[f"n_id/n{t}"].numpy(), None if tree is None else tree.numpy())
            if tree is not None and start.example is not None:
                tree.copy_(start.example[tree])
        for r in range(self._num_edge_types):
            row, col = out[f"edge_index/e{r}"].numpy()
            batch.copy_edges(r, row, col, out[f"e_id/e{r}"].numpy() if self.config.with_edge else None)
        out["num_sampled_nodes"].copy_(
            torch.tensor([batch.num_sampled_nodes(t) for t in range(self._num_node_types)])
        )  # fmt: skip
        out["num_sampled_edges"].copy_(
            torch.tensor([batch.num_sampled_edges(r) for r in range(self._num_edge_types)])
        )  # fmt: skip
        for name, tensor in start.known.items():
            out[name].copy_(tensor)
        for rows in sampled._rows:
            rows.gather_local(out)
        if self.collect_features:
            for t, labels in enumerate(self.dataset.whole_node_labels):
                if labels is not None:
                    labels.gather(out[f"n_id/n{t}"], out[in_message("y", "node", t)])

    def _ask(self, part: int, requests: Sequence[Request]) -> list[asyncio.Future[Tensor]]:
        assert self.router is not None
        return [asyncio.wrap_future(reply) for reply in self.router.ask(part, requests)]

    async def _answer(self, reply: asyncio.Future[Tensor], stats: dict[str, float]) -> dict[str, Tensor]:
        start = time.perf_counter()
        tensors = tensors_of(await reply)
        stats["remote_s"] += time.perf_counter() - start
        stats["remote_bytes"] += sum(t.nbytes for t in tensors.values())
        return tensors

    async def _timed(self, stats: dict[str, float], stage: str, size: int, call: Callable[..., T], *args: Any) -> T:
        """Runs a native call and books the time that it ran, not the time that it queued.

        A call on more than ``_SHORT`` items runs off the loop. Below that, switching threads twice would cost about
        as much as the call holds up the other batches.
        """

        def run() -> tuple[T, float]:
            start = time.perf_counter()
            result = call(*args)
            return result, time.perf_counter() - start

        result, seconds = run() if size <= _SHORT else await self.loop.run_native(run)
        stats[stage] += seconds
        return result


def layout_of(sampled: SampledBatch) -> MessageLayout:
    """The message that the batch becomes."""
    return MessageLayout(sampled.specs)
