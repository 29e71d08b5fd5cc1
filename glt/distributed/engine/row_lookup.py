"""Rows of tables for the nodes and edges of a batch: who has them, and how they get into the batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import as_numpy, pooled_empty
from glt.data.feature import Source
from glt.data.schema import PartitionBook
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.local_partition import LocalPartition, NodeCache

if TYPE_CHECKING:
    from glt.distributed.engine.client_rows import ClientRows

Specs = dict[str, tuple[torch.dtype, tuple[int, ...]]]
RowSpecs = Mapping[str, tuple[torch.dtype, torch.Size]]  # of the tables of a type: dtype and shape of a row


def by_owner(book: PartitionBook, ids: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Sorts ids by owner: each partition that owns some, its ids, and where they stand in ``ids``."""
    grouped, positions, bounds = book.group(ids)
    groups = [(part, slice(bounds[part], bounds[part + 1])) for part in range(len(bounds) - 1)]
    return [(part, grouped[group], positions[group]) for part, group in groups if group.start != group.stop]


def in_message(name: str, kind: str, type_: int) -> str:
    """What an attribute of a type of nodes or edges is called in a message."""
    return f"{name}/{kind[0]}{type_}"


# Rows of other partitions that were asked for before, kept for the batches to come.


class RowCache:
    """Copies of rows of the nodes of one type that partitions elsewhere own: those that batches ask for the most.

    Rows of partitions are never written, so that a copy is as good as the row. Memory is taken as rows come:
    ``num_slots`` rows of all tables at most, and 19 bytes for each.
    """

    def __init__(self, specs: RowSpecs, num_slots: int) -> None:
        self.slots = _core.SlotCache(num_slots)
        self.tables: dict[str, Tensor] = {
            name: empty_rows((self.slots.num_slots, *shape), dtype) for name, (dtype, shape) in specs.items()
        }

    def keep(self, ids: np.ndarray, rows: Mapping[str, Tensor]) -> None:
        """Copies what came for these ids, if it is worth it."""
        pins, which, slots = self.slots.admit(ids)
        if len(which):
            for name, table in self.tables.items():
                _core.gather_rows(as_numpy(rows[name]), which, as_numpy(table), None, slots)
            pins.written()


def bytes_of_row(table: Tensor) -> int:
    return table.element_size() * table.shape[1:].numel()


def empty_rows(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A table whose memory is taken as rows are written. NumPy asks for huge pages: rows are read in no order."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)  # torch does not view bytes that are none as another dtype
    return torch.from_numpy(np.empty(nbytes, np.uint8)).view(dtype).view(shape)


def row_caches(dataset: DistDataset, local: Mapping[int, LocalPartition], budget_bytes: int) -> list[RowCache | None]:
    """The caches of a sampler, by node type: they take ``budget_bytes`` together at most, each its share of the bytes
    of all rows elsewhere. None where there are no such rows, or no budget."""
    elsewhere = [
        num_nodes - sum(len(part.nodes[t].owned) for part in local.values())
        for t, num_nodes in enumerate(dataset.num_nodes_of)
    ]
    specs = dataset.own.node_specs
    caches = zip(specs, num_slots_of(specs, elsewhere, budget_bytes), strict=True)
    return [RowCache(each, num_slots) if num_slots else None for each, num_slots in caches]


def num_slots_of(
    specs: Sequence[RowSpecs], counts: Sequence[int], budget_bytes: int, least_bytes: int = 0
) -> list[int]:
    """How many rows of each type of nodes to keep, of so many with these tables, in ``budget_bytes``: each type gets
    its share of the bytes of all rows, which count as ``least_bytes`` at least."""
    row_bytes = [sum(dtype.itemsize * shape.numel() for dtype, shape in each.values()) for each in specs]
    row_bytes = [max(SLOT_BYTES + size, least_bytes) for size in row_bytes]
    counts = [n if each else 0 for n, each in zip(counts, specs, strict=True)]
    all_bytes = sum(n * size for n, size in zip(counts, row_bytes, strict=True))
    # An id may be in one small set of slots only: with half as many more there are few that are full.
    most = [min(n * 3 // 2 + _SLOTS_OF_SET, n * budget_bytes // max(all_bytes, 1)) if n else 0 for n in counts]
    return [num_slots - num_slots % _SLOTS_OF_SET for num_slots in most]


SLOT_BYTES, _SLOTS_OF_SET = 19, 16  # of _core.SlotCache


# Rows of other partitions that several batches need at about the same time: one asks, all read the answer.


class RowWindow:
    """Which rows of partitions elsewhere the batches of a window have asked for, each of them once, and the answers.

    No batch waits for another to be sampled: the first that needs a row claims it and asks at once. The answers are
    kept until the one that made the window and all batches that :meth:`join` have left it. From any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 1
        self._asked: dict[tuple[str, int, tuple[str, ...]], tuple[_core.RowClaims, list[WindowRequest]]] = {}

    def join(self) -> None:
        with self._lock:
            self._num_users += 1

    def leave(self) -> None:
        """Drops all answers with the last that leaves."""
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0:
                self._asked.clear()

    def claim(
        self, asking: AskingBatch, rows: RowLookup, names: tuple[str, ...], ids: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, WindowRequest, list[Shared]]:
        """Sorts ids into those that this batch is to ask for, with positions and the request to be made of them, and
        what others ask for; an id that the batch has twice it asks for once."""
        with self._lock:
            claims, requests = self._asked.setdefault((rows.kind, rows.type, names), (_core.RowClaims(), []))
            number, request = len(requests), WindowRequest(asking, names)
            requests.append(request)
        ids, positions, others = claims.claim(ids, positions, number)
        return ids, positions, request, [(requests[whose], which, at) for whose, which, at in others]


class WindowRequest:
    """What a batch of a window asks a partition for: rows of the tables ``names``. ``reply`` is there once the batch
    ``has_asked``."""

    def __init__(self, asking: AskingBatch, names: tuple[str, ...]) -> None:
        self.has_asked, self.names = asking.has_asked, names
        self.reply: asyncio.Future[Tensor] | None = None


Shared = tuple[WindowRequest, np.ndarray, np.ndarray]  # rows of the answer to a request, and positions


class AskingBatch:
    """A batch of a window, from before it claims rows until it has asked for them: a context on the loop. If it fails
    within, so do those that count on its rows, as they would if the partition failed."""

    def __init__(self, window: RowWindow) -> None:
        self.window = window
        self.has_asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> AskingBatch:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.has_asked.done():  # cancelled, with all batches of the loop
            return
        if error is None:
            self.has_asked.set_result(None)
        else:
            self.has_asked.set_exception(error)
            self.has_asked.exception()  # none may count on it: asyncio is not to say that nobody looked


class RowLookup:
    """Ids of one type of nodes or edges and where their rows come from, of one table or of all; positions are those in
    the batch.

    Attributes:
        specs: Dtype and shape of each table's rows, by the name in the message.
        local: Partition here, ids, and positions; None: all, in order.
        copies: Copies that the partition here has of others' rows.
        copied: Rows of them, and positions.
        cache: Rows that were asked for before; None: without.
        cached: Slots of them, pinned, and positions.
        remote: Partition elsewhere, ids, positions, and of which tables: of copied nodes only those that are not; and
            the request that a window of batches knows it by, if there is one.
        replies: Ids, positions, and the answers with their rows.
        answers: The same, once they are here.
        shared: What is asked for with other rows of the window: requests, rows of their answers, and positions.
        borrowed: Those rows, positions, and the answers, once they are here.
        to_send: Which rows a client that has kept some lacks: all else is about those. None: it keeps none.
    """

    def __init__(
        self,
        data: DistDataset,
        local: Mapping[int, LocalPartition],
        kind: str,
        type_: int,
        ids: np.ndarray,
        table: str | None = None,
        cache: RowCache | None = None,
        client: ClientRows | None = None,
        asking: AskingBatch | None = None,
    ) -> None:
        to_send = None if client is None else client.split(ids)
        if to_send is not None:
            ids = to_send.ids
        tables = data.own.tables(kind, type_)
        if table is not None:
            tables = {table: tables[table]}
        self.kind, self.type, self.names = kind, type_, tuple(tables)
        # To a client of another host rows go as they are stored: it unpacks them.
        layouts = {
            name: (t.dtype, t.row_shape) if to_send is None else (t.tensor.dtype, t.tensor.shape[1:])
            for name, t in tables.items()
        }
        self.specs: Specs = {
            in_message(name, kind, type_): (dtype, (len(ids), *shape)) for name, (dtype, shape) in layouts.items()
        }
        self._packings = {
            name: t.packing.native if t.packing is not None and to_send is None else None for name, t in tables.items()
        }
        if to_send is not None:
            self.specs |= to_send.specs
        self.to_send = to_send
        self.local: list[tuple[LocalPartition, np.ndarray, np.ndarray | None]] = []
        self.copies: NodeCache | None = None
        self.copied: list[tuple[np.ndarray, np.ndarray]] = []
        self.cache = cache
        self.cached: list[tuple[np.ndarray, np.ndarray]] = []
        self._pins: list[_core.PinnedSlots] = []
        self.remote: list[tuple[int, np.ndarray, np.ndarray, tuple[str, ...], WindowRequest | None]] = []
        self.replies: list[tuple[np.ndarray, np.ndarray, asyncio.Future[Tensor]]] = []
        self.answers: list[tuple[np.ndarray, np.ndarray, Mapping[str, Tensor]]] = []
        self._asking = asking
        self.shared: list[Shared] = []
        self.borrowed: list[tuple[np.ndarray, np.ndarray, Mapping[str, Tensor]]] = []
        copies = data.own.node_caches[type_] if kind == "node" else None
        if copies is not None and not copies.tables.keys().isdisjoint(tables):
            self.copies = copies
        if tables and data.num_partitions == 1:
            self.local.append((data.own, ids, None))
        elif tables:
            book = (data.node_books if kind == "node" else data.edge_books)[type_]
            assert book is not None, "tables of a partition come with a book"
            for part, owned, positions in by_owner(book, ids):
                if part in local:
                    self.local.append((local[part], owned, positions))
                else:
                    self._ask(part, owned, positions)

    def _ask(self, part: int, ids: np.ndarray, positions: np.ndarray) -> None:
        """Leaves to a partition elsewhere what there is no copy of."""
        if self.copies is not None:
            rows, at, rest, rest_at = self.copies.index.split(ids, positions)
            if len(rows):
                self.copied.append((rows, at))
                lacking = tuple(name for name in self.names if name not in self.copies.tables)
                if lacking:
                    inside = np.isin(positions, at, assume_unique=True)
                    self._leave(part, ids[inside], positions[inside], lacking)
            ids, positions = rest, rest_at
        if self.cache is not None and len(ids):
            pins, slots, at, ids, positions = self.cache.slots.look_up(ids, positions)
            self._pins.append(pins)
            if len(slots):
                self.cached.append((slots, at))
        self._leave(part, ids, positions, self.names)

    def _leave(self, part: int, ids: np.ndarray, positions: np.ndarray, names: tuple[str, ...]) -> None:
        """Leaves to a partition what no batch of the window has asked it for."""
        request = None
        if self._asking is not None and len(ids):
            ids, positions, request, shared = self._asking.window.claim(self._asking, self, names, ids, positions)
            self.shared += shared
        if len(ids):
            self.remote.append((part, ids, positions, names, request))

    @property
    def num_remote(self) -> int:
        """Ids that partitions elsewhere are asked for, those apart of which there are copies in some tables."""
        return sum(len(ids) for _, ids, _, names, _ in self.remote if names == self.names)

    @property
    def num_cached(self) -> int:
        """Ids of partitions elsewhere of whose rows there are copies here."""
        return sum(len(rows) for rows, _ in (*self.copied, *self.cached))

    @property
    def num_shared(self) -> int:
        """Ids of partitions elsewhere whose rows the window asks for anyway, those apart of which there are copies in
        some tables."""
        return sum(len(rows) for request, rows, _ in self.shared if request.names == self.names)

    @property
    def cached_bytes(self) -> int:
        """Bytes of rows that partitions elsewhere are not asked for, since there are copies here."""
        copies = [each for name in self.names for each in (*self._copies_of(name), *self._kept_of(name))]
        return sum(len(which) * bytes_of_row(table) for table, which, _ in copies)

    def _copies_of(self, name: str) -> list[tuple[Tensor, np.ndarray, np.ndarray]]:
        if self.copies is None or name not in self.copies.tables:
            return []
        return [(self.copies.tables[name].tensor, rows, at) for rows, at in self.copied]

    def _kept_of(self, name: str) -> list[tuple[Tensor, np.ndarray, np.ndarray]]:
        return [] if self.cache is None else [(self.cache.tables[name], slots, at) for slots, at in self.cached]

    def gather(self, out: Mapping[str, Tensor], stats: dict[str, float] | None = None) -> None:
        """Writes all rows into the tensors of the message: once, from the first to the last. What had to be read from
        disk is added to ``stats``."""
        for name in self.names:
            sources: list[Source] = []
            for part, ids, at in self.local:
                sources += part.tables(self.kind, self.type)[name].sources(ids, at, stats)
            sources += [(*each, None, 0) for each in self._from_elsewhere(name, with_copies=True)]
            target = as_numpy(out[in_message(name, self.kind, self.type)])
            _core.gather_from(sources, target, self._packings[name])
        if self.to_send is not None:
            self.to_send.write(out)

    @property
    def copied_ids(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids of partitions elsewhere of whose rows the partition here has copies, and positions."""
        return [] if self.copies is None else [(self.copies.ids[rows], at) for rows, at in self.copied]

    def gather_from_elsewhere(self, name: str, with_copies: bool) -> tuple[Tensor, np.ndarray]:
        """Of one table, the rows ``[n, ...]`` that partitions elsewhere own, as batches have them, and their positions
        ``[n]``, with or without those of which the partition here has copies. Raises ValueError unless all are here."""
        found = self._from_elsewhere(name, with_copies)
        dtype, (num_rows, *shape) = self.specs[in_message(name, self.kind, self.type)]
        num_here = sum(len(ids) for _, ids, _ in self.local)
        if not with_copies and self.copies is not None and name in self.copies.tables:
            num_here += sum(len(rows) for rows, _ in self.copied)
        rows = pooled_empty((num_rows - num_here, *shape), dtype)
        bounds = np.cumsum([0, *(len(at) for *_, at in found)], dtype=np.uint32)
        places = [np.arange(begin, end, dtype=np.uint32) for begin, end in pairwise(bounds.tolist())]
        pairs = zip(found, places, strict=True)
        sources: list[Any] = [(table, which, at, None, 0) for (table, which, _), at in pairs]
        _core.gather_from(sources, as_numpy(rows), self._packings[name])
        return rows, np.concatenate([at for *_, at in found]) if found else np.empty(0, np.uint32)

    def _from_elsewhere(self, name: str, with_copies: bool) -> list[tuple[np.ndarray, np.ndarray | None, np.ndarray]]:
        """Tables, which of their rows (None: all, in order), and their positions."""
        copies = [*(self._copies_of(name) if with_copies else ()), *self._kept_of(name)]
        found: list[Any] = [(as_numpy(rows), which, at) for rows, which, at in copies]
        found += [(as_numpy(rows[name]), which, at) for which, at, rows in self.borrowed if name in rows]
        return found + [(as_numpy(rows[name]), None, at) for _, at, rows in self.answers if name in rows]

    def done(self) -> None:
        """The rows are where they belong: what came is left to the batches to come, and slots to others."""
        if self.cache is not None:
            for ids, _, rows in self.answers:
                if len(rows) == len(self.names):
                    self.cache.keep(ids, rows)
        self.answers, self.replies, self.cached, self._pins = [], [], [], []
        self.shared, self.borrowed = [], []
        if self.to_send is not None:
            self.to_send.done()
