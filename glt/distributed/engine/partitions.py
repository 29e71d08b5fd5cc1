"""All partitions of a graph, as a sampler sees them: some are read here, the others are asked."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.channel.message import read_message
from glt.data.arrays import as_numpy
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.event_loop import ConcurrentEventLoop
from glt.distributed.engine.local_partition import LocalPartition, NodeCache
from glt.distributed.engine.requests import (
    EarliestRequest,
    HasEdgesRequest,
    InducedRequest,
    OneHopRequest,
    Request,
    RowsRequest,
)
from glt.distributed.wire.transport import Peer, Transport

# Which process to ask for what a partition owns.


class PartitionRouter:
    """Sends requests to a process that serves the partition.

    Args:
        transport: Carries them.
        peers: All processes that serve partitions, this one among them.
        me: This process. Among several that serve a partition it keeps to one, others to others.

    Raises:
        ValueError: If a partition is served by nobody; names it.
    """

    def __init__(self, transport: Transport, peers: Sequence[Peer], me: Peer, num_partitions: int) -> None:
        self.transport = transport
        self.peer_of: list[Peer] = []
        for part in range(num_partitions):
            serving = [peer for peer in peers if peer.partition_idx == part]
            if not serving:
                loaded = sorted({peer.partition_idx for peer in peers})
                raise ValueError(
                    f"partition_idx: nobody loaded partition {part} of {num_partitions}; the trainers loaded {loaded}. "
                    "Load each partition on at least one trainer"
                )
            same_worker = [peer for peer in serving if peer.worker == me.worker] or serving
            self.peer_of.append(same_worker[me.rank % len(same_worker)])

    def ask(self, part: int, requests: Sequence[Request]) -> list[Future[Tensor]]:
        """Asks the owner of a partition several things at a time."""
        calls = [(request.method, request.encode()) for request in requests]
        return self.transport.call_all(self.peer_of[part], calls)


def tensors_of(reply: Tensor) -> dict[str, Tensor]:
    """The tensors of a reply, which alias its bytes; raises what the peer raised, with its traceback in the text."""
    message = read_message(reply)
    message.raise_if_error()
    return message.tensors


# Rows of tables for the nodes and edges of a batch: who has them, and how they get into the batch.


Specs = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass
class RowLookup:
    """Ids of one type of nodes or edges and where their rows come from.

    Attributes:
        kind, type: Of what: ``'node'`` or ``'edge'``, and the position of the type.
        names: Of the tables.
        specs: Dtype and shape of each table's rows, by the name in the message.
        local: Partition here, ids, and where in the batch their rows go; None: all, in order.
        cache: Copies that the partition here has of others' rows.
        cached: Rows of them, and where in the batch they go.
        remote: Partition elsewhere, ids, where in the batch their rows go, and of which tables: of nodes in the cache
            only those that it lacks.
        replies: Their answers, and where in the batch the rows go.
    """

    kind: str
    type: int
    names: tuple[str, ...]
    specs: Specs
    local: list[tuple[LocalPartition, np.ndarray, np.ndarray | None]] = field(default_factory=list)
    cache: NodeCache | None = None
    cached: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    remote: list[tuple[int, np.ndarray, np.ndarray, tuple[str, ...]]] = field(default_factory=list)
    replies: list[tuple[np.ndarray, asyncio.Future[Tensor]]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        data: DistDataset,
        local: Mapping[int, LocalPartition],
        kind: str,
        type_: int,
        ids: np.ndarray,
        table: str | None = None,
    ) -> RowLookup:
        """Sorts ids by who has their rows, of one table or of all."""
        tables = data.own.tables(kind, type_)
        if table is not None:
            tables = {table: tables[table]}
        specs: Specs = {
            in_message(name, kind, type_): (table.dtype, (len(ids), *table.row_shape)) for name, table in tables.items()
        }
        self = cls(kind, type_, tuple(tables), specs)
        cache = data.own.node_caches[type_] if kind == "node" else None
        if cache is not None and not cache.tables.keys().isdisjoint(tables):
            self.cache = cache
        if not tables:
            return self
        if data.num_partitions == 1:
            self.local.append((data.own, ids, None))
            return self
        book = (data.node_books if kind == "node" else data.edge_books)[type_]
        assert book is not None, "tables of a partition come with a book"
        grouped, positions, bounds = book.group(ids)
        for part in range(data.num_partitions):
            group = slice(bounds[part], bounds[part + 1])
            if group.start == group.stop:
                continue
            if part in local:
                self.local.append((local[part], grouped[group], positions[group]))
            else:
                self._ask(part, grouped[group], positions[group])
        return self

    def _ask(self, part: int, ids: np.ndarray, positions: np.ndarray) -> None:
        """Leaves to a partition elsewhere what the cache does not have."""
        if self.cache is not None:
            rows, at, rest, rest_at = self.cache.index.split(ids, positions)
            if len(rows):
                self.cached.append((rows, at))
                lacking = tuple(name for name in self.names if name not in self.cache.tables)
                if lacking:
                    inside = np.isin(positions, at, assume_unique=True)
                    self.remote.append((part, ids[inside], positions[inside], lacking))
            ids, positions = rest, rest_at
        if len(ids):
            self.remote.append((part, ids, positions, self.names))

    @property
    def num_remote(self) -> int:
        """Ids that partitions elsewhere are asked for, those apart of which the cache has some tables."""
        return sum(len(ids) for _, ids, _, names in self.remote if names == self.names)

    @property
    def num_cached(self) -> int:
        """Ids of partitions elsewhere whose rows the cache has."""
        return sum(len(rows) for rows, _ in self.cached)

    def requests(self) -> list[tuple[int, np.ndarray, RowsRequest]]:
        """What to ask of which partition, and where in the batch the rows go."""
        return [
            (part, positions, RowsRequest(self.kind, self.type, torch.from_numpy(ids), names))
            for part, ids, positions, names in self.remote
        ]

    def gather_local(self, out: Mapping[str, Tensor]) -> None:
        """Writes the rows that are here, copies of others' among them, into the tensors of the message."""
        for partition, ids, positions in self.local:
            where = None if positions is None else torch.from_numpy(positions)
            tables = partition.tables(self.kind, self.type)
            for name in self.names:
                into = out[in_message(name, self.kind, self.type)]
                tables[name].gather(torch.from_numpy(ids), into, positions=where)
        if self.cache is not None:
            for rows, positions in self.cached:
                for name in self.names:
                    if name in self.cache.tables:
                        into = out[in_message(name, self.kind, self.type)]
                        at = torch.from_numpy(positions)
                        self.cache.tables[name].gather(torch.from_numpy(rows), into, positions=at)

    def scatter(self, rows: Mapping[str, Tensor], positions: np.ndarray, out: Mapping[str, Tensor]) -> None:
        """Writes what a partition answered into the tensors of the message."""
        for name, table in rows.items():
            into = as_numpy(out[in_message(name, self.kind, self.type)])
            _core.gather_rows(as_numpy(table), None, into, None, positions)


def in_message(name: str, kind: str, type_: int) -> str:
    """What an attribute of a type of nodes or edges is called in a message."""
    return f"{name}/{kind[0]}{type_}"


T = TypeVar("T")

SHORT = 1 << 15  # items of a native call that takes well under a millisecond
LONG = SHORT + 1  # the size of a call that may always take longer

# What one partition answered: positions in the frontier, counts, neighbours, edges.
RowsPart = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]

# A request for edges: positions of its nodes in the frontier, the partition that owns them, and what to ask it.
EdgesWanted = tuple[np.ndarray, int, OneHopRequest | InducedRequest]


class Partitions:
    """Answers from any partition, wherever it is.

    All methods that wait raise :class:`glt.errors.PeerLost` if a process that owns what is asked for is gone, and
    :class:`glt.errors.RemoteError` if it raised an exception, with its traceback.

    Attributes:
        local: The partitions that are read here, by index.
        elsewhere: The others.

    Args:
        dataset: The partition here.
        others: Further partitions that are read here, by index.
        router: Where the partitions are that are not read here; None if there are none.
        loop: Where native calls run.

    Raises:
        ValueError: If there are partitions elsewhere and no router.
    """

    def __init__(
        self,
        dataset: DistDataset,
        others: Mapping[int, LocalPartition],
        router: PartitionRouter | None,
        loop: ConcurrentEventLoop,
    ) -> None:
        self.dataset, self.router, self.loop = dataset, router, loop
        self.local = {dataset.partition_idx: dataset.own, **others}
        self.elsewhere = sorted(set(range(dataset.num_partitions)) - set(self.local))
        if router is None and self.elsewhere:
            raise ValueError(f"partitions {self.elsewhere} are not read here: a router to them is needed")

    async def edges(self, wanted: Sequence[EdgesWanted], size: int, stats: dict[str, float]) -> list[list[RowsPart]]:
        """Returns, by edge type, what partitions answered: those elsewhere are asked at once, those here are read
        meanwhile.

        Args:
            wanted: What to ask.
            size: About how many edges will come from here.
            stats: Of the batch; adds its times and bytes.
        """
        here = [each for each in wanted if each[1] in self.local]
        asked: dict[int, list[EdgesWanted]] = defaultdict(list)
        for each in wanted:
            if each[1] not in self.local:
                asked[each[1]].append(each)
        replies = [
            (positions, request, reply)
            for part, several in asked.items()
            for (positions, _, request), reply in zip(several, self.ask(part, [q for *_, q in several]), strict=True)
        ]
        parts: list[list[RowsPart]] = [[] for _ in self.dataset.ends]
        if here:
            await self.timed(stats, "sampling_s", size, self._read_here, here, parts)
        for positions, request, reply in replies:
            tensors = await self.answer(reply, stats)
            edge = tensors["edge"].numpy() if request.with_edge else None
            parts[request.edge_type].append((positions, tensors["count"].numpy(), tensors["neighbor"].numpy(), edge))
        return parts

    def _read_here(self, wanted: Sequence[EdgesWanted], parts: list[list[RowsPart]]) -> None:
        for positions, part, request in wanted:
            rows = self.local[part].edges(request)
            count = np.empty(len(positions), np.uint32)
            neighbor = np.empty(rows.num_edges, np.int64)
            edge = np.empty(rows.num_edges, np.int64) if request.with_edge else None
            rows.copy_out(count, neighbor, edge)
            parts[request.edge_type].append((positions, count, neighbor, edge))

    def ask_for_rows(self, rows: Sequence[RowLookup]) -> None:
        """Asks each partition for all rows that it has, of all types at once."""
        asked: dict[int, list[tuple[RowLookup, np.ndarray, Request]]] = defaultdict(list)
        for each in rows:
            for part, positions, request in each.requests():
                asked[part].append((each, positions, request))
        for part, several in asked.items():
            replies = self.ask(part, [request for _, _, request in several])
            for (each, positions, _), reply in zip(several, replies, strict=True):
                each.replies.append((positions, reply))

    async def look_up(self, kind: str, type_: int, table: str, ids: Tensor) -> Tensor:
        """Returns rows of one table, ``[len(ids), ...]``.

        Args:
            kind, type_: Of what: ``'node'`` or ``'edge'``, and the position of the type.
            table: Its name.
            ids: Ids, int64.
        """
        rows = RowLookup.of(self.dataset, self.local, kind, type_, ids.numpy(), table)
        self.ask_for_rows([rows])
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
        """
        found = np.empty(len(centers), bool)
        asked: list[tuple[np.ndarray, asyncio.Future[Tensor]]] = []
        here: list[tuple[np.ndarray, int, HasEdgesRequest]] = []
        for part, nodes, positions in self.by_owner(self.dataset.ends[edge_type][0], centers.numpy()):
            others = torch.from_numpy(neighbors.numpy()[positions])
            request = HasEdgesRequest(edge_type, torch.from_numpy(nodes), others)
            if part in self.local:
                here.append((positions, part, request))
            else:
                asked.append((positions, self.ask(part, [request])[0]))
        for positions, part, request in here:
            found[positions] = self.local[part].has_edges(request).numpy()
        for positions, reply in asked:
            found[positions] = tensors_of(await reply)["found"].numpy()
        return found

    async def earliest_node(self, node_type: int) -> tuple[int, int] | None:
        """The node of the smallest time of the whole graph, the first of several, and that time; None without times."""
        request = EarliestRequest(node_type)
        asked = [self.ask(part, [request])[0] for part in self.elsewhere]
        found = [each for part in self.local.values() if (each := part.earliest_node(request)) is not None]
        for reply in asked:
            node_and_time = tensors_of(await reply)["earliest"].tolist()
            if node_and_time:
                found.append((node_and_time[0], node_and_time[1]))
        return min(found, key=lambda each: (each[1], each[0]), default=None)

    def by_owner(self, node_type: int, nodes: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Sorts nodes by owner: partition, its nodes, and where they stand in ``nodes``."""
        grouped, positions, bounds = self.dataset.node_books[node_type].group(nodes)
        groups = [(part, slice(bounds[part], bounds[part + 1])) for part in range(self.dataset.num_partitions)]
        return [(part, grouped[group], positions[group]) for part, group in groups if group.start != group.stop]

    def ask(self, part: int, requests: Sequence[Request]) -> list[asyncio.Future[Tensor]]:
        """Asks the owner of a partition several things at a time."""
        assert self.router is not None
        return [asyncio.wrap_future(reply) for reply in self.router.ask(part, requests)]

    async def answer(self, reply: asyncio.Future[Tensor], stats: dict[str, float]) -> dict[str, Tensor]:
        """Waits for a reply, on the account of a batch."""
        start = time.perf_counter()
        tensors = tensors_of(await reply)
        stats["remote_s"] += time.perf_counter() - start
        stats["remote_bytes"] += sum(t.nbytes for t in tensors.values())
        return tensors

    async def timed(self, stats: dict[str, float], stage: str, size: int, call: Callable[..., T], *args: Any) -> T:
        """Runs a native call and books the time that it ran, not the time that it queued.

        A call on more than ``SHORT`` items runs off the loop. Below that, switching threads twice would cost about
        as much as the call holds up the other batches.
        """

        def run() -> tuple[T, float]:
            start = time.perf_counter()
            result = call(*args)
            return result, time.perf_counter() - start

        result, seconds = run() if size <= SHORT else await self.loop.run_native(run)
        stats[stage] += seconds
        return result
