"""Which server keeps each row of a distributed tensor, and where it keeps it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from glt.data.partition_book import PartitionBook
from glt.data.schema import EdgeType, NodeType, Schema


class Portion(NamedTuple):
    """What one server has of some rows.

    Attributes:
        server: Which one.
        rows: Rows there ``[n]``, int64.
        positions: Where each stood in what was asked ``[n]``, uint32; None: all of it, in order.
    """

    server: int
    rows: np.ndarray
    positions: np.ndarray | None


class Span(NamedTuple):
    """Consecutive rows of one server that are consecutive in the tensor, too.

    Attributes:
        server: Which one.
        row: The first one's number there.
        first: The first one's number in the tensor.
        num_rows: How many.
    """

    server: int
    row: int
    first: int
    num_rows: int


@dataclass(frozen=True, eq=False)
class Placement:
    """Owners of rows: those of nodes or edges with the partition that owns these, or even ranges.

    A server that keeps several partitions has their rows one behind the other, by ascending partition.

    Attributes:
        kind: ``'even'``, ``'node'`` or ``'edge'``.
        type_index: Of the type of nodes or edges; 0 with ``'even'``.
        book: Part of each row, and its number there.
        server_of: By part, the server.
        base: By part, the number of its first row on its server.
        num_servers: Of all, also those that keep nothing.
    """

    kind: str
    type_index: int
    book: PartitionBook
    server_of: tuple[int, ...]
    base: tuple[int, ...]
    num_servers: int

    @classmethod
    def evenly(cls, num_rows: int, num_servers: int) -> Placement:
        """A range of rows per server; their lengths differ by one at most."""
        bounds = [num_rows * server // num_servers for server in range(num_servers + 1)]
        return cls("even", 0, PartitionBook.of_ranges(bounds), tuple(range(num_servers)), (0,) * num_servers,
                   num_servers)  # fmt: skip

    @classmethod
    def by_book(
        cls, kind: str, type_index: int, book: PartitionBook, num_servers: int, owner_of: Callable[[int], int]
    ) -> Placement:
        """Rows of nodes or edges, with the servers of their partitions.

        Args:
            kind: ``'node'`` or ``'edge'``.
            type_index: Which type of these.
            book: Of that type.
            num_servers: Of all servers.
            owner_of: Gives the server of a partition.
        """
        server_of = tuple(owner_of(part) for part in range(book.num_parts))
        return cls(kind, type_index, book, server_of, _bases(_sizes(book), server_of, num_servers), num_servers)

    @classmethod
    def of(cls, part: NodeType | EdgeType | None, num_rows: int | None, world: Any) -> Placement:
        """What a user asked for.

        Args:
            part: A node type, an edge type, or None: evenly. Of a homogeneous graph, the nodes are ``"node"`` and the
                edges ``("node", "to", "node")``.
            num_rows: Of the tensor; None: as many as the type has.
            world: With ``data``, ``num_servers`` and ``owner_of``.

        Raises:
            KeyError: If there is no such type.
            ValueError: If there is no graph, or the type has another number of rows.
        """
        if part is None:
            assert num_rows is not None
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
            raise ValueError(f"part = {part!r}: partitions have no book of these edges, having no rows of them; "
                             "use None for even parts")  # fmt: skip
        if num_rows is not None and book.num_ids != num_rows:
            raise ValueError(
                f"shape[0] = {num_rows}: expected {book.num_ids}, the number of {kind}s of type {part!r}, or "
                "part = None for a tensor of any length"
            )
        return cls.by_book(kind, at, book, world.num_servers, world.owner_of)

    @property
    def num_rows(self) -> int:
        return self.book.num_ids

    @property
    def has_spans(self) -> bool:
        """Whether consecutive rows are consecutive on their servers."""
        return self.book.has_ranges

    def spec(self) -> dict[str, Any]:
        """What a server needs to make the same again, see :meth:`from_spec`; books are not sent."""
        return {
            "kind": self.kind, "type_index": self.type_index, "num_rows": self.num_rows,
            "server_of": list(self.server_of), "num_servers": self.num_servers,
        }  # fmt: skip

    @classmethod
    def from_spec(cls, spec: dict[str, Any], data: Any) -> Placement:
        """Makes again what :meth:`spec` described, with the books of ``data``, a dataset.

        Raises:
            ValueError: If that has no such book, or one of another length.
        """
        kind, at, num_servers = spec["kind"], int(spec["type_index"]), int(spec["num_servers"])
        if kind == "even":
            return cls.evenly(int(spec["num_rows"]), num_servers)
        books: Sequence[PartitionBook | None] = () if data is None else getattr(data, f"{kind}_books")
        book = books[at] if 0 <= at < len(books) else None
        server_of = spec["server_of"]
        if book is None or book.num_ids != spec["num_rows"] or book.num_parts != len(server_of):
            raise ValueError(f"the server has {book} for {kind}s of type {at}: expected one of {spec['num_rows']} ids "
                             f"and {len(server_of)} partitions, the trainer's")  # fmt: skip
        return cls.by_book(kind, at, book, num_servers, lambda part: int(server_of[part]))

    def rows_on(self, server: int) -> int:
        """How many rows a server keeps."""
        return sum(size for size, of in zip(_sizes(self.book), self.server_of, strict=True) if of == server)

    def ids_on(self, server: int) -> np.ndarray:
        """Numbers in the tensor of the rows that a server keeps, in its order ``[n]``, int64."""
        parts = [part for part, of in enumerate(self.server_of) if of == server]
        if self.book.offset is not None:
            at = self.book.offset.numpy()
            found = [np.arange(at[part], at[part + 1]) for part in parts]
        else:
            owners = self.book.owners()
            found = []
            for part in parts:
                ids = np.flatnonzero(owners == part)
                placed = np.empty_like(ids)
                placed[self.book.rows(ids)] = ids
                found.append(placed)
        return np.concatenate([np.empty(0, np.int64), *found])

    def portions(self, ids: np.ndarray) -> list[Portion]:
        """Says who has these rows.

        Args:
            ids: Rows of the tensor ``[n]``, int64; equal ones keep their order.

        Raises:
            IndexError: If there is no such row; names the first.
        """
        grouped, positions, bounds = self.book.group(ids)
        rows = self.book.rows(grouped)
        found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        for part in np.flatnonzero(np.diff(bounds)).tolist():
            here = slice(bounds[part], bounds[part + 1])
            found.setdefault(self.server_of[part], []).append((rows[here] + self.base[part], positions[here]))
        if len(found) == 1 and len(next(iter(found.values()))) == 1:
            ((server, pieces),) = found.items()
            return [Portion(server, pieces[0][0], None)]
        return [
            Portion(server, np.concatenate([each[0] for each in pieces]), np.concatenate([each[1] for each in pieces]))
            for server, pieces in found.items()
        ]

    def spans(self, first: int, last: int) -> Iterator[Span]:
        """Who has the rows ``first`` to ``last - 1``, of a placement that has spans."""
        assert self.book.offset is not None
        offset = self.book.offset.tolist()
        for part, server in enumerate(self.server_of):
            begin, end = max(first, offset[part]), min(last, offset[part + 1])
            if begin < end:
                yield Span(server, self.base[part] + begin - offset[part], begin, end - begin)


_counted: weakref.WeakKeyDictionary[PartitionBook, list[int]] = weakref.WeakKeyDictionary()


def _sizes(book: PartitionBook) -> list[int]:
    """How many ids each partition owns; counted once, since there may be billions."""
    found = _counted.get(book)
    if found is None:
        if book.offset is not None:
            found = np.diff(book.offset.numpy()).tolist()
        else:
            assert book.owner is not None
            found = np.bincount(book.owner.numpy(), minlength=book.num_parts).tolist()
        _counted[book] = found
    return found


def _bases(sizes: Sequence[int], server_of: Sequence[int], num_servers: int) -> tuple[int, ...]:
    base = [0] * len(sizes)
    for server in range(num_servers):
        parts = [part for part, of in enumerate(server_of) if of == server]
        for part, at in zip(parts, accumulate((sizes[part] for part in parts), initial=0), strict=False):
            base[part] = at
    return tuple(base)
