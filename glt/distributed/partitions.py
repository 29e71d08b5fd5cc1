"""All partitions of a graph, as a sampler sees them: some are read here, the others are asked."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt.distributed.dist_dataset import DistDataset
from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.local_partition import LocalPartition
from glt.distributed.requests import EarliestRequest, HasEdgesRequest, InducedRequest, OneHopRequest, Request
from glt.distributed.router import PartitionRouter, tensors_of
from glt.distributed.row_lookup import RowLookup

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
