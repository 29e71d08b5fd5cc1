"""Multi-hop sampling and feature lookup over partitions, many batches at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.channel.message import MessageLayout
from glt.data.arrays import as_numpy
from glt.distributed.batch_start import BatchStart
from glt.distributed.dist_dataset import DistDataset, LocalPartition, OwnedTables
from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.requests import OneHopRequest, RowsRequest
from glt.distributed.router import PartitionRouter, tensors_of
from glt.sampler.config import SamplingConfig

T = TypeVar("T")
R = TypeVar("R")

_SHORT = 1 << 15  # items of a native call that takes well under a millisecond
_LONG = _SHORT + 1  # the size of a call that may always take longer

# What a batch reports about its own making, in this order, as float64 in the message's "stats".
STATS = ("sampling_s", "remote_s", "gathering_s", "blocked_s", "num_remote_nodes", "num_nodes", "num_edges",
         "remote_bytes")  # fmt: skip


# What one partition answered: positions in the frontier, counts, neighbours, edges.
_HopPart = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]

# Nodes by owner, where each stands in the frontier, and the bounds of the owners' groups.
_Frontier = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass
class _Rows:
    """Ids of one kind and where their rows come from."""

    kind: str
    num_ids: int
    tables: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    local: list[tuple[int, np.ndarray, np.ndarray | None]]  # partition, ids, positions; None: all, in order
    remote: list[tuple[int, np.ndarray, np.ndarray]]
    replies: list[tuple[np.ndarray, asyncio.Future[Tensor]]] = field(default_factory=list)

    def name(self, table: str) -> str:
        """What the rows of a table are called in the message."""
        return f"{table}/{self.kind[0]}0"


@dataclass
class SampledBatch:
    """A batch whose edges are sampled and whose remote rows are on their way; :meth:`DistNeighborSampler.fill` writes
    it out.

    Attributes:
        specs: Dtype and shape of each tensor of the batch, by PyG's names.
    """

    specs: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    _batch: _core.Batch
    _rows: list[_Rows]
    _known: dict[str, Tensor]
    stats: dict[str, float]


class DistNeighborSampler:
    """Samples from a partition here and, through the router, from the partitions elsewhere.

    The hops of a batch follow each other; each is routed by owner, and local rows are sampled while remote ones are in
    flight. While one batch waits, others go on: see :class:`ConcurrentEventLoop`. The result is the one that
    :class:`glt.sampler.NeighborSampler` gives on the whole graph, bit for bit.

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
        self._need_edge = config.with_edge or (collect_features and dataset.edges is not None)
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
        seeds = start.seeds[0][1]
        batch = self._spare.pop() if self._spare else _core.Batch(self.dataset.num_nodes)
        if self.dataset.num_partitions == 1:
            await self._timed(stats, "sampling_s", _LONG, self._sample_here, batch, seeds, batch_key)
        else:
            await self._sample_everywhere(batch, seeds, batch_key, stats)
        specs: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "n_id/n0": (torch.int64, (batch.num_nodes,)),
            "edge_index/e0": (torch.int64, (2, batch.num_edges)),
            "num_sampled_nodes": (torch.int64, (1, len(batch.num_sampled_nodes))),
            "num_sampled_edges": (torch.int64, (1, len(batch.num_sampled_edges))),
            "stats": (torch.float64, (len(STATS),)),
        }
        specs |= {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in start.known.items()}
        if self.config.with_edge:
            specs["e_id/e0"] = (torch.int64, (batch.num_edges,))
        rows: list[_Rows] = []
        if self.collect_features:
            rows = await self._timed(stats, "sampling_s", batch.num_nodes, self._locate_rows, batch)
            for group in rows:
                self._ask_for_rows(group)
                specs |= {group.name(n): (dtype, (group.num_ids, *shape)) for n, (dtype, shape) in group.tables.items()}
            stats["num_remote_nodes"] = sum(len(ids) for _, ids, _ in rows[0].remote)
            labels = self.dataset.whole_node_labels
            if labels is not None:
                specs["y/n0"] = (labels.dtype, (batch.num_nodes, *labels.row_shape))
        stats["num_nodes"], stats["num_edges"] = batch.num_nodes, batch.num_edges
        return SampledBatch(specs, batch, rows, start.known, stats)

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
                start = time.perf_counter()
                tensors = tensors_of(await reply)
                sampled.stats["remote_s"] += time.perf_counter() - start
                sampled.stats["remote_bytes"] += sum(t.nbytes for t in tensors.values())
                await self._timed(sampled.stats, "gathering_s", _LONG, _scatter, rows, tensors, positions, out)
        out["stats"].copy_(torch.tensor([sampled.stats[name] for name in STATS], dtype=torch.float64))
        self._spare.append(sampled._batch)

    def _sample_here(self, batch: _core.Batch, seeds: Tensor, batch_key: int) -> None:
        config = self.config
        batch.sample(
            self.dataset.graph.csr, seeds.numpy(), list(config.num_neighbors), config.replace, batch_key,
            self._need_edge,
        )  # fmt: skip

    async def _sample_everywhere(
        self, batch: _core.Batch, seeds: Tensor, batch_key: int, stats: dict[str, float]
    ) -> None:
        data, config = self.dataset, self.config
        frontier = await self._timed(stats, "sampling_s", len(seeds), self._start, batch, seeds)
        for hop, num_neighbors in enumerate(config.num_neighbors):
            nodes, positions, bounds = frontier
            asked, here = [], []
            for part in range(data.num_partitions):
                group = slice(bounds[part], bounds[part + 1])
                if group.start == group.stop:
                    continue
                if part in self.local:
                    here.append((part, group))
                    continue
                assert self.router is not None
                request = OneHopRequest(
                    torch.from_numpy(nodes[group]), num_neighbors, config.replace, batch_key, hop, self._need_edge
                )
                asked.append((positions[group], _ask(self.router.sample_one_hop, part, request)))
            parts: list[_HopPart] = []
            for part, group in here:
                size = int(group.stop - group.start) * (num_neighbors if num_neighbors >= 0 else _LONG)
                sampled = await self._timed(
                    stats, "sampling_s", size, self._one_hop_here, part, nodes[group], num_neighbors, batch_key, hop
                )
                parts.append((positions[group], *sampled))
            start = time.perf_counter()
            for where, reply in asked:
                tensors = tensors_of(await reply)
                edge = tensors["edge"].numpy() if self._need_edge else None
                parts.append((where, tensors["count"].numpy(), tensors["neighbor"].numpy(), edge))
                stats["remote_bytes"] += sum(t.nbytes for t in tensors.values())
            stats["remote_s"] += time.perf_counter() - start
            is_last = hop + 1 == len(config.num_neighbors)
            frontier = await self._timed(
                stats, "sampling_s", sum(len(part[2]) for part in parts), self._expand, batch, parts, is_last
            )

    def _start(self, batch: _core.Batch, seeds: Tensor) -> _Frontier:
        batch.start(seeds.numpy(), self._need_edge)
        return _core.group_by_owner(self.dataset.nodes.book, self.dataset.num_partitions, batch.frontier())

    def _expand(self, batch: _core.Batch, parts: list[_HopPart], is_last: bool) -> _Frontier:
        """Takes in a hop, and sorts the next frontier by owner at once: each call on the pool costs a thread switch."""
        batch.expand_from(parts)
        nodes = np.empty(0, np.int64) if is_last else batch.frontier()
        return _core.group_by_owner(self.dataset.nodes.book, self.dataset.num_partitions, nodes)

    def _one_hop_here(
        self, part: int, nodes: np.ndarray, num_neighbors: int, batch_key: int, hop: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        rows = _core.OneHop(
            self.local[part].graph.csr,
            nodes,
            num_neighbors,
            self.config.replace,
            batch_key,
            hop,
            self._need_edge,
        )
        count = np.empty(len(nodes), np.uint32)
        neighbor = np.empty(rows.num_edges, np.int64)
        edge = np.empty(rows.num_edges, np.int64) if self._need_edge else None
        rows.copy_out(count, neighbor, edge)
        return count, neighbor, edge

    def _locate_rows(self, batch: _core.Batch) -> list[_Rows]:
        """Sorts the nodes (and edges) of a batch by who has their rows."""
        rows = [self._group_rows("node", self.dataset.nodes, batch.nodes())]
        if self.dataset.edges is not None:
            rows.append(self._group_rows("edge", self.dataset.edges, batch.edges()))
        return rows

    def _group_rows(self, kind: str, owned: OwnedTables, ids: np.ndarray) -> _Rows:
        tables = {name: (table.dtype, tuple(table.row_shape)) for name, table in owned.tables.items()}
        data = self.dataset
        if data.num_partitions == 1:
            return _Rows(kind, len(ids), tables, [(data.partition_idx, ids, None)], [])
        grouped, positions, bounds = _core.group_by_owner(owned.book, data.num_partitions, ids)
        rows = _Rows(kind, len(ids), tables, [], [])
        for part in range(data.num_partitions):
            group = slice(bounds[part], bounds[part + 1])
            if group.start != group.stop:
                to = rows.local if part in self.local else rows.remote
                to.append((part, grouped[group], positions[group]))
        return rows

    def _ask_for_rows(self, rows: _Rows) -> None:
        if self.router is None or not rows.tables:
            return
        for part, ids, positions in rows.remote:
            request = RowsRequest(rows.kind, torch.from_numpy(ids), tuple(rows.tables))
            rows.replies.append((positions, _ask(self.router.gather_rows, part, request)))

    def _fill_here(self, sampled: SampledBatch, out: dict[str, Tensor]) -> None:
        batch, edge_index = sampled._batch, out["edge_index/e0"].numpy()
        edge = out["e_id/e0"].numpy() if self.config.with_edge else None
        batch.copy_out(out["n_id/n0"].numpy(), edge_index[0], edge_index[1], edge)
        for name, tensor in sampled._known.items():
            out[name].copy_(tensor)
        out["num_sampled_nodes"].copy_(torch.tensor([batch.num_sampled_nodes]))
        out["num_sampled_edges"].copy_(torch.tensor([batch.num_sampled_edges]))
        for rows in sampled._rows:
            for part, ids, positions in rows.local:
                where = None if positions is None else torch.from_numpy(positions)
                for name, table in self.local[part].tables[rows.kind].items():
                    table.gather(torch.from_numpy(ids), out[rows.name(name)], positions=where)
        if self.collect_features and self.dataset.whole_node_labels is not None:
            self.dataset.whole_node_labels.gather(out["n_id/n0"], out["y/n0"])

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


def _ask(call: Callable[[int, R], Future[Tensor]], part: int, request: R) -> asyncio.Future[Tensor]:
    return asyncio.wrap_future(call(part, request))


def _scatter(rows: _Rows, tensors: dict[str, Tensor], positions: np.ndarray, out: dict[str, Tensor]) -> None:
    for name, table in tensors.items():
        _core.gather_rows(as_numpy(table), None, as_numpy(out[rows.name(name)]), None, positions)
