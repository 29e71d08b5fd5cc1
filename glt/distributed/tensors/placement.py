"""Which server keeps each row of a distributed tensor, and where."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from glt.data.schema import EdgeType, NodeType, PartitionBook, Schema

RowIds = np.ndarray | range
"""Numbers of rows ``[n]``, int64, or consecutive ones."""


def as_array(ids: RowIds) -> np.ndarray:
    return np.arange(ids.start, ids.stop) if isinstance(ids, range) else ids


class Portion(NamedTuple):
    """What one server has of some rows.

    Attributes:
        rows: Their numbers on the server.
        positions: Where each stands among those that were asked for ``[n]``, uint32, or consecutive ones.
    """

    server: int
    rows: RowIds
    positions: RowIds


@dataclass(frozen=True, eq=False)
class Placement:
    """Owners of rows: of nodes or edges, the server of the partition that owns these; else even ranges.

    A server that keeps several partitions has their rows one behind the other, by ascending partition.

    Attributes:
        kind: ``'even'``, ``'node'`` or ``'edge'``.
        type_index: Of the type of nodes or edges; 0 with ``'even'``.
        book: Partition of each row, and its number there.
        server_of: By partition, the server.
        num_servers: Of all, also those that keep nothing.
    """

    kind: str
    type_index: int
    book: PartitionBook
    server_of: tuple[int, ...]
    num_servers: int

    @classmethod
    def evenly(cls, num_rows: int, num_servers: int) -> Placement:
        """A range of rows per server; their lengths differ by one at most."""
        bounds = [num_rows * server // num_servers for server in range(num_servers + 1)]
        return cls("even", 0, PartitionBook.of_ranges(bounds), tuple(range(num_servers)), num_servers)

    @classmethod
    def of(cls, part: NodeType | EdgeType | None, num_rows: int, world: Any) -> Placement:
        """Places a tensor of ``num_rows`` rows with the nodes or edges of type ``part``, or evenly for None.

        Raises:
            KeyError: If there is no such type.
            TypeError: If ``part`` is no type.
            ValueError: If there is no graph, or the type has another number of rows.
        """
        if part is None:
            return cls.evenly(num_rows, world.num_servers)
        if world.data is None:
            raise ValueError(f"part = {part!r}: there is no graph yet, only even parts (None); make a DistGraph first")
        schema: Schema = world.data.schema
        if not isinstance(part, str | tuple | list):
            raise TypeError(
                f"part = {part!r}: expected one of the types {[*schema.node_types, *schema.edge_types]}, or None for "
                "even parts"
            )
        if isinstance(part, str):
            kind, at = "node", schema.node_index(part)
            book = world.data.node_books[at]
        else:
            kind, at = "edge", schema.edge_index(part)
            book = world.data.edge_books[at]
        if book is None:
            raise ValueError(
                f"part = {part!r}: partitions have no book of these edges, having no rows of them; "
                "use None for even parts"
            )
        if book.num_ids != num_rows:
            raise ValueError(
                f"shape[0] = {num_rows}: expected {book.num_ids}, the number of {kind}s of type {part!r}, or "
                "part = None for a tensor of any length"
            )
        return cls(kind, at, book, tuple(map(world.owner_of, range(book.num_parts))), world.num_servers)

    def spec(self) -> dict[str, Any]:
        """What a server needs to make the same again, see :meth:`from_spec`; books are not sent."""
        return {
            "kind": self.kind,
            "type_index": self.type_index,
            "num_rows": self.num_rows,
            "server_of": list(self.server_of),
            "num_servers": self.num_servers,
        }

    @classmethod
    def from_spec(cls, spec: dict[str, Any], data: Any) -> Placement:
        """Makes again what :meth:`spec` described, with the books of a dataset; raises ValueError if they differ."""
        kind, at, num_servers = spec["kind"], int(spec["type_index"]), int(spec["num_servers"])
        if kind == "even":
            return cls.evenly(int(spec["num_rows"]), num_servers)
        books: Sequence[PartitionBook | None] = () if data is None else getattr(data, f"{kind}_books")
        book = books[at] if 0 <= at < len(books) else None
        server_of = tuple(map(int, spec["server_of"]))
        if book is None or book.num_ids != spec["num_rows"] or book.num_parts != len(server_of):
            raise ValueError(
                f"the server has {book} for {kind}s of type {at}: expected one of {spec['num_rows']} ids "
                f"and {len(server_of)} partitions, the trainer's"
            )
        return cls(kind, at, book, server_of, num_servers)

    @property
    def num_rows(self) -> int:
        return self.book.num_ids

    @cached_property
    def _begin(self) -> list[int]:
        """By partition, the number of its first row on its server."""
        end, begin = [0] * self.num_servers, []
        for size, server in zip(_sizes(self.book), self.server_of, strict=True):
            begin.append(end[server])
            end[server] += size
        return begin

    def rows_on(self, server: int) -> int:
        return sum(size for size, of in zip(_sizes(self.book), self.server_of, strict=True) if of == server)

    def parts_on(self, server: int) -> Iterator[tuple[int, RowIds]]:
        """Yields, for each partition of a server, the number of its first row there, and in the tensor those of all."""
        owners = self.book.owners() if self.book.offset is None else None
        for part, of in enumerate(self.server_of):
            if of != server:
                continue
            if owners is None:
                yield self._begin[part], self._range(part)
            else:
                ids = np.flatnonzero(owners == part)
                in_order = np.empty_like(ids)
                in_order[self.book.rows(ids)] = ids
                yield self._begin[part], in_order

    def portions(self, ids: RowIds) -> list[Portion]:
        """Says which server has which of these rows of the tensor; equal ones keep their order.

        Raises:
            IndexError: If there is no such row; names the first.
        """
        if isinstance(ids, range) and self.book.has_ranges:
            return list(self._consecutive(ids))
        grouped, positions, bounds = self.book.group(as_array(ids))
        rows = self.book.rows(grouped)
        parts = np.flatnonzero(np.diff(bounds)).tolist()
        if len(parts) == 1:
            (part,) = parts
            return [Portion(self.server_of[part], rows + self._begin[part], range(len(rows)))]
        by_server: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        for part in parts:
            here = slice(bounds[part], bounds[part + 1])
            pieces = by_server.setdefault(self.server_of[part], [])
            pieces.append((rows[here] + self._begin[part], positions[here]))
        return [
            Portion(server, *(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))
            for server, pieces in by_server.items()
        ]

    def _consecutive(self, ids: range) -> Iterator[Portion]:
        for part, server in enumerate(self.server_of):
            owned = self._range(part)
            first, last = max(ids.start, owned.start), min(ids.stop, owned.stop)
            if first < last:
                row = self._begin[part] + first - owned.start
                yield Portion(server, range(row, row + last - first), range(first - ids.start, last - ids.start))

    def _range(self, part: int) -> range:
        return range(self._bounds[part], self._bounds[part + 1])

    @cached_property
    def _bounds(self) -> list[int]:
        """Where the ranges of partitions begin, and the last one ends."""
        assert self.book.offset is not None
        return self.book.offset.tolist()


_sizes_of: weakref.WeakKeyDictionary[PartitionBook, list[int]] = weakref.WeakKeyDictionary()


def _sizes(book: PartitionBook) -> list[int]:
    """How many ids each partition owns; counted once, since there may be billions."""
    found = _sizes_of.get(book)
    if found is None:
        if book.offset is not None:
            found = np.diff(book.offset.numpy()).tolist()
        else:
            assert book.owner is not None
            found = np.bincount(book.owner.numpy(), minlength=book.num_parts).tolist()
        _sizes_of[book] = found
    return found
