"""All partitions of a graph, some read here and the others asked: by a sampler, and by questions about the graph."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._spans import book
from glt.channel.message import read_message
from glt.data.feature import Feature
from glt.data.topology import Topology
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.local_partition import EdgesRequest, LocalPartition, count_neighbors
from glt.distributed.engine.requests import (
    EarliestRequest,
    HasEdgesRequest,
    OneHopRequest,
    Request,
    RowsRequest,
)
from glt.distributed.engine.row_lookup import RowLookup, WindowRequest, by_owner, bytes_of_row
from glt.distributed.wire.threads import ConcurrentEventLoop
from glt.distributed.wire.transport import Peer, Transport


class PartitionRouter:
    """Which process to ask for what a partition owns: ``peer_of`` partition, over ``transport``.

    Among several that serve a partition this process
    keeps to one, others to others. A partition that no peer serves is a ValueError that names it.
    """

    def __init__(self, transport: Transport, peers: Sequence[Peer], me: Peer, num_partitions: int) -> None:
        self.transport = transport
        self.peer_of: list[Peer] = []
        for part in range(num_partitions):
            serving = [peer for peer in peers if peer.partition_idx == part]
            if not serving:
                loaded = sorted({peer.partition_idx for peer in peers})
                raise ValueError(
                    f"partition_idx: no trainer loaded partition {part} of {num_partitions}; the trainers loaded "
                    f"{loaded}. Load each partition on at least one trainer"
                )
            same_worker = [peer for peer in serving if peer.worker == me.worker] or serving
            self.peer_of.append(same_worker[me.rank % len(same_worker)])

    def ask(self, part: int, requests: Sequence[Request]) -> list[asyncio.Future[Tensor]]:
        """Asks the owner of a partition several things at a time. On the loop, as :meth:`Transport.call_all`."""
        calls = [(request.method, request.encode()) for request in requests]
        return self.transport.call_all(self.peer_of[part], calls)


def tensors_of(reply: Tensor) -> dict[str, Tensor]:
    """The tensors of a reply, which alias its bytes; raises what the peer raised, with its traceback in the text."""
    message = read_message(reply)
    message.raise_if_error()
    return message.tensors


T = TypeVar("T")

SHORT = 1 << 15  # items of a native call that takes well under a millisecond
LONG = SHORT + 1  # the size of a call that may always take longer

# What one partition answered: positions in the frontier, counts, neighbours, edges or their times.
RowsPart = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]

# A request for edges: positions of its nodes in the frontier, the partition that owns them, and what to ask it.
EdgesWanted = tuple[np.ndarray, int, EdgesRequest]


class Partitions:
    """Answers from any partition: ``local`` ones are read here, by index, those ``elsewhere`` are asked.

    All methods that wait raise :class:`glt.errors.PeerLost` if a process that owns what is asked for is gone, and
    :class:`glt.errors.RemoteError` if it raised an exception, with its traceback.
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

    def require_sound(self) -> None:
        """Raises PartitionError if a file of a partition that is read here was found to be damaged."""
        for part in self.local.values():
            part.require_sound()

    async def edges(self, wanted: Sequence[EdgesWanted], size: int, stats: dict[str, float]) -> list[list[RowsPart]]:
        """Returns, by edge type, what partitions answered: those elsewhere are asked at once, those here are read
        meanwhile.
        """
        here: list[EdgesWanted] = []
        asked: dict[int, list[EdgesWanted]] = defaultdict(list)
        for each in wanted:
            (here if each[1] in self.local else asked[each[1]]).append(each)
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
            edge = tensors["edge"].numpy() if request.with_edge or request.with_time else None
            parts[request.edge_type].append((positions, tensors["count"].numpy(), tensors["neighbor"].numpy(), edge))
        return parts

    def _read_here(self, wanted: Sequence[EdgesWanted], parts: list[list[RowsPart]]) -> None:
        for positions, part, request in wanted:
            rows = self.local[part].edges(request)
            count = np.empty(len(positions), np.uint32)
            neighbor = np.empty(rows.num_edges, np.int64)
            edge = np.empty(rows.num_edges, np.int64) if request.with_edge or request.with_time else None
            rows.copy_out(count, neighbor, edge)
            parts[request.edge_type].append((positions, count, neighbor, edge))

    def ask_for_rows(self, rows: Sequence[RowLookup]) -> None:
        """Asks each partition for all rows that it has, of all types at once."""
        asked: dict[int, list[tuple[RowLookup, np.ndarray, RowsRequest, WindowRequest | None]]] = defaultdict(list)
        for each in rows:
            for part, ids, positions, names, of_window in each.remote:
                request = RowsRequest(each.kind, each.type, torch.from_numpy(ids), names)
                asked[part].append((each, positions, request, of_window))
        for part, several in asked.items():
            replies = self.ask(part, [request for _, _, request, _ in several])
            for (each, positions, request, of_window), reply in zip(several, replies, strict=True):
                each.replies.append((request.ids.numpy(), positions, reply))
                if of_window is not None:
                    of_window.reply = reply

    async def rows_came(self, rows: Sequence[RowLookup], stats: dict[str, float]) -> None:
        """Waits for what :meth:`ask_for_rows` has asked for, and other batches of a window, on the account of a
        batch."""
        for each in rows:
            for ids, positions, reply in each.replies:
                each.answers.append((ids, positions, await self.answer(reply, stats)))
            for request, which, positions in each.shared:
                tensors = await self._shared_answer(request, stats)
                each.borrowed.append((which, positions, tensors))
                stats["window_bytes"] += len(which) * sum(bytes_of_row(table) for table in tensors.values())

    async def _shared_answer(self, request: WindowRequest, stats: dict[str, float]) -> dict[str, Tensor]:
        start = time.perf_counter()
        await request.has_asked
        assert request.reply is not None, "rows are claimed to be asked for"
        tensors = tensors_of(await request.reply)
        book(stats, "remote_s", start, time.perf_counter())
        return tensors

    async def look_up(self, kind: str, type_: int, table: str, ids: Tensor) -> Tensor:
        """Returns rows of one table, ``[len(ids), ...]``."""
        rows = RowLookup(self.dataset, self.local, kind, type_, ids.numpy(), table)
        self.ask_for_rows([rows])
        ((name, (dtype, shape)),) = rows.specs.items()
        out = {name: torch.empty(shape, dtype=dtype)}
        for ids_asked, positions, reply in rows.replies:
            rows.answers.append((ids_asked, positions, tensors_of(await reply)))
        rows.gather(out)
        return out[name]

    async def has_edges(
        self, edge_type: int, centers: Tensor, neighbors: Tensor, stats: dict[str, float] | None = None
    ) -> np.ndarray:
        """Says which pairs ``[n]``, int64, are edges of the whole graph, bool; ``centers`` are the ends that would be
        expanded. ``stats`` is the account of a batch."""
        found = np.empty(len(centers), bool)
        wanted: list[tuple[np.ndarray, int, HasEdgesRequest]] = []
        for part, nodes, positions in self.by_owner(self.dataset.ends[edge_type][0], centers.numpy()):
            others = torch.from_numpy(neighbors.numpy()[positions])
            wanted.append((positions, part, HasEdgesRequest(edge_type, torch.from_numpy(nodes), others)))
        asked = [(at, self.ask(part, [request])[0]) for at, part, request in wanted if part not in self.local]
        for positions, part, request in wanted:
            if part in self.local:
                found[positions] = self.local[part].has_edges(request).numpy()
        for positions, reply in asked:
            tensors = tensors_of(await reply) if stats is None else await self.answer(reply, stats)
            found[positions] = tensors["found"].numpy()
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
        """As :func:`by_owner`, of nodes."""
        return by_owner(self.dataset.node_books[node_type], nodes)

    def ask(self, part: int, requests: Sequence[Request]) -> list[asyncio.Future[Tensor]]:
        """Asks the owner of a partition several things at a time."""
        assert self.router is not None
        return self.router.ask(part, requests)

    async def answer(self, reply: asyncio.Future[Tensor], stats: dict[str, float]) -> dict[str, Tensor]:
        """Waits for a reply, on the account of a batch."""
        start = time.perf_counter()
        tensors = tensors_of(await reply)
        book(stats, "remote_s", start, time.perf_counter())
        stats["remote_bytes"] = stats.get("remote_bytes", 0.0) + sum(t.nbytes for t in tensors.values())
        return tensors

    async def timed(self, stats: dict[str, float], stage: str, size: int, call: Callable[..., T], *args: Any) -> T:
        """Runs a native call and books the time that it ran, not the time that it queued. One on more than ``SHORT``
        items runs off the loop; below that, switching threads twice would cost about as much as it holds up the other
        batches."""

        def run() -> tuple[T, float, float]:
            start = time.perf_counter()
            result = call(*args)
            return result, start, time.perf_counter()

        result, *times = run() if size <= SHORT else await self.loop.run_native(run)
        book(stats, stage, *times)
        return result


class EdgeDirectory:
    """What can be asked about the edges of one type that a partition holds, besides rows.

    Each index is made when it is first needed, and kept: 4 to 8 bytes per edge for finding edges by id, 4 to 8 per node
    of the neighbours' type for their degrees, 8 to 16 per edge for their edges.
    """

    def __init__(self, part: LocalPartition, edge_type: int) -> None:
        self.part, self.edge_type = part, edge_type
        self.topology = part.graphs[edge_type].topology
        self._making = threading.RLock()  # cached_property would let several threads make the same

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Finds edges by id ``[n]``, int64: which of them are here, bool, and sources and destinations of those ``[2,
        m]``."""
        with self._making:
            sorted_ids, order = self._by_id
        # In one dtype, else NumPy would widen all ids; and in order, since far jumps in long arrays cost most.
        wanted, back = np.unique(ids.numpy().clip(-1, np.iinfo(sorted_ids.dtype).max), return_inverse=True)
        wanted = wanted.astype(sorted_ids.dtype)
        at = np.searchsorted(sorted_ids, wanted)
        is_here = np.zeros(len(wanted), bool)
        inside = at < len(sorted_ids)
        is_here[inside] = sorted_ids[at[inside]] == wanted[inside]
        position = at[is_here] if order is None else order[at[is_here]].astype(np.int64)
        row = np.searchsorted(self.topology.indptr.numpy(), position, side="right") - 1
        center = torch.from_numpy(np.asarray(self.part.expanded(self.edge_type)[row], np.int64))
        neighbor = self.topology.indices[torch.from_numpy(position)].long()
        ends = torch.stack([neighbor, center] if self.topology.edge_dir == "in" else [center, neighbor])
        found = is_here[back]
        rank = np.cumsum(is_here) - 1  # among those that are here
        return torch.from_numpy(found), ends[:, torch.from_numpy(rank[back[found]])]

    def ids(self) -> Tensor:
        """Ids of the edges that are here, ascending ``[E]``, int64."""
        with self._making:
            return torch.from_numpy(self._by_id[0].astype(np.int64))

    def degrees(self, nodes: Tensor, far: bool) -> Tensor:
        """How many edges are here of nodes that this partition owns and expands, or, ``far``, of any nodes at the other
        end; ``[n]`` int64."""
        if not far:
            book = self.topology.book
            assert book is not None
            _core.require_owned(book.native, nodes.numpy(), self.part.index)
            row = torch.from_numpy(book.rows(nodes.numpy()))
            return self.topology.indptr[row + 1] - self.topology.indptr[row]
        num_nodes = self.topology.num_neighbor_nodes
        wrong = ((nodes < 0) | (nodes >= num_nodes)).nonzero()
        if len(wrong):
            raise IndexError(f"nodes[{int(wrong[0])}] = {int(nodes[wrong[0]])} is outside [0, {num_nodes})")
        with self._making:
            return self._far_counts[nodes].long()

    def far_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of any nodes at the other end, the edges that are here: their number by node ``[n]``, the nodes that this
        partition expands ``[E]``, and the ids of the edges ``[E]``, ascending for each node; all int64."""
        with self._making:
            csr = self._far_side.csr
        hop = _core.OneHop(csr, nodes.numpy(), -1, False, 0, 0, self.edge_type, with_edge=True)
        return copied(hop, len(nodes))

    @property
    def _by_id(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Ids of the edges, ascending, and where each is; None where they are in that order already."""
        return (self._ids, None) if self._sorted is None else self._sorted

    @property
    def _ids(self) -> np.ndarray:
        ids = self.topology.edge_ids  # where they are now: torch may move them
        return self._counted_ids if ids is None else ids.numpy()

    @cached_property
    def _counted_ids(self) -> np.ndarray:
        return self.topology.all_edge_ids().numpy()

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray] | None:
        ids = self._ids
        if len(ids) == 0 or bool((ids[1:] > ids[:-1]).all()):
            return None
        order = np.argsort(ids, kind="stable")
        narrow = np.uint32 if len(ids) <= np.iinfo(np.uint32).max else np.int64
        return ids[order], order.astype(narrow)

    @cached_property
    def _far_counts(self) -> Tensor:
        indices = self.topology.indices.numpy()
        counts = np.zeros(self.topology.num_neighbor_nodes, np.int64)
        count_neighbors(indices, counts)
        return torch.from_numpy(counts.astype(np.int32 if len(indices) < 2**31 else np.int64))

    @cached_property
    def _far_side(self) -> Topology:
        ends, ids = self.part.all_edges(self.edge_type)
        size = self.topology.size
        return Topology(ends, size, edge_ids=ids, layout="CSR" if self.topology.layout == "CSC" else "CSC")


def copied(hop: _core.OneHop, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a hop found: edges by node ``[n]``, int64, and of each edge the other end and the id ``[E]``, int64."""
    count = np.empty(num_nodes, np.uint32)
    neighbor, edge = np.empty(hop.num_edges, np.int64), np.empty(hop.num_edges, np.int64)
    hop.copy_out(count, neighbor, edge)
    return torch.from_numpy(count.astype(np.int64)), torch.from_numpy(neighbor), torch.from_numpy(edge)


Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class GraphQueries:
    """Answers questions about the partitions whose files are on this host. Types are positions in the schema."""

    def __init__(self, dataset: DistDataset) -> None:
        self.dataset = dataset
        self._lock = threading.Lock()
        self._parts: dict[int, LocalPartition] = {dataset.partition_idx: dataset.own}
        self._directories: dict[tuple[int, int], EdgeDirectory] = {}

    def part(self, part: int) -> LocalPartition:
        """A partition."""
        data = self.dataset
        _require_position("partition", part, data.num_partitions)
        with self._lock:
            if part not in self._parts:
                self._parts[part] = data.map_other(data.load_args["graph_dir"], part, is_loaded=False)
            found = self._parts[part]
        found.require_sound()
        return found

    def directory(self, part: int, edge_type: int) -> EdgeDirectory:
        """The edges of a type in a partition."""
        own = self.part(part)
        _require_position("edge type", edge_type, len(own.graphs))
        with self._lock:
            return self._directories.setdefault((part, edge_type), EdgeDirectory(own, edge_type))

    def has_edges(self, part: int, edge_type: int, centers: Tensor, neighbors: Tensor) -> Tensor:
        """See :meth:`LocalPartition.has_edges`."""
        return self.part(part).has_edges(HasEdgesRequest(edge_type, _ids(centers), _ids(neighbors)))

    def sample(
        self, part: int, edge_type: int, nodes: Tensor, num_neighbors: int, replace: bool, key: int, weighted: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One hop from nodes that the partition owns; returns what :func:`copied` does."""
        nodes = _ids(nodes)
        asked = OneHopRequest(
            edge_type, nodes, int(num_neighbors), bool(replace), int(key) % 2**64, 0, True, bool(weighted)
        )
        return copied(self.part(part).one_hop(asked), len(nodes))

    def book(self, kind: str, type_index: int) -> dict[str, Tensor]:
        """Owners and rows of all nodes (``kind='node'``) or edges of a type: what :class:`PartitionBook` is made of."""
        if kind not in ("node", "edge"):
            raise ValueError(f"kind = {kind!r}: expected 'node' or 'edge'")
        book = (self.dataset.node_books if kind == "node" else self.dataset.edge_books)[type_index]
        if book is None:
            raise ValueError(f"{kind}s of type {type_index} have no book")
        columns = {"owner": book.owner, "row_of": book.row_of, "offset": book.offset}
        return {name: column for name, column in columns.items() if column is not None}

    def stored_rows(self, kind: str, type_index: int, table: str, parts: list[int]) -> Feature:
        """The rows of a stored table that these partitions own, one partition behind the other ``[rows, ...]``; mapped
        memory, not a copy, where it is one partition.
        """
        found = []
        for part in parts:
            tables = self.part(part).tables(kind, type_index)
            if table not in tables:
                raise LookupError(f"partition {part} has no {kind} table {table!r}: there are {sorted(tables)}")
            found.append(tables[table])
        rows = found[0].tensor if len(found) == 1 else torch.cat([each.tensor for each in found])
        return Feature(rows, store_dtype=found[0].packing)


def graph_calls(queries: GraphQueries) -> dict[str, Call]:
    """What trainers may ask, by name; each takes the caller, its arguments and its keyword arguments."""

    def answer(query: Callable[..., Any], caller: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return query(*args, **kwargs)

    edges = queries.directory
    calls: dict[str, Callable[..., Any]] = {
        "degrees": lambda part, edge_type, nodes, far: edges(part, edge_type).degrees(_ids(nodes), far),
        "find_edges": lambda part, edge_type, ids: edges(part, edge_type).find(_ids(ids)),
        "far_edges": lambda part, edge_type, nodes: edges(part, edge_type).far_edges(_ids(nodes)),
        "edge_ids": lambda part, edge_type: edges(part, edge_type).ids(),
        "has_edges": queries.has_edges,
        "sample": queries.sample,
        "book": queries.book,
    }
    return {f"glt.graph.{name}": partial(answer, query) for name, query in calls.items()}


def _require_position(what: str, value: Any, count: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise ValueError(f"{what} {value!r} is asked for: there are {count}, from 0")


def _ids(ids: Any) -> Tensor:
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1:
        raise TypeError(f"ids are {ids!r}: expected a one-dimensional int64 tensor")
    return ids.contiguous()
