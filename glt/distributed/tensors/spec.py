"""The first values of a distributed tensor: made by its owners, equal wherever a row is."""

from __future__ import annotations

import hashlib
import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import as_ids
from glt.data.partition_book import PartitionBook
from glt.data.schema import EdgeType, NodeType, Schema
from glt.distributed.wire.calls import name_of, registered
from glt.partition.format.files import stored_name

# Which server keeps each row of a distributed tensor, and where it keeps it.


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
        return cls(
            "even", 0, PartitionBook.of_ranges(bounds), tuple(range(num_servers)), (0,) * num_servers, num_servers
        )

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
            raise ValueError(
                f"part = {part!r}: partitions have no book of these edges, having no rows of them; "
                "use None for even parts"
            )
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
            "kind": self.kind,
            "type_index": self.type_index,
            "num_rows": self.num_rows,
            "server_of": list(self.server_of),
            "num_servers": self.num_servers,
        }

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
            raise ValueError(
                f"the server has {book} for {kind}s of type {at}: expected one of {spec['num_rows']} ids "
                f"and {len(server_of)} partitions, the trainer's"
            )
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


# What stands in the brackets behind a distributed tensor.


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows of a tensor, in an order.

    Attributes:
        ids: Their numbers ``[n]``, int64; None: consecutive ones.
        first: The first one's number, where they are consecutive.
        n: How many.
        is_single: Whether one was given by its number, so that there is no dimension for it.
    """

    ids: np.ndarray | None
    first: int
    n: int
    is_single: bool = False

    @classmethod
    def of(cls, index: Any, num_rows: int) -> Selection:
        """Takes an index: a number, a slice, a mask of all rows (bool, or zeros and ones in uint8), or ids in a tensor,
        an array or a list.

        Raises:
            IndexError: If there is no such row; names the first.
            TypeError: If it is nothing of that kind.
            ValueError: If a mask is of another length or holds other numbers, or ids have several dimensions.
        """
        if isinstance(index, slice):
            first, last, step = index.indices(num_rows)
            if step == 1:
                return cls(None, first, max(0, last - first))
            return cls(np.arange(first, last, step), 0, len(range(first, last, step)))
        if isinstance(index, tuple) or index is None or index is Ellipsis:
            raise TypeError(f"ids = {index!r}: expected rows, as a number, a slice, a mask, or ids; index the result")
        value = index if isinstance(index, Tensor | list) else np.asarray(index, order="C")
        if not isinstance(value, list) and value.ndim == 0:
            return cls._single(value.item(), num_rows)
        ids = as_ids(value, "ids", num_rows).numpy()
        wrong = np.flatnonzero((ids < 0) | (ids >= num_rows))
        if len(wrong):
            at = wrong[0]
            raise IndexError(f"ids[{at}] = {ids[at]}: expected 0 to {num_rows - 1}, the rows of the tensor")
        return cls(ids, 0, len(ids))

    @classmethod
    def _single(cls, id_: Any, num_rows: int) -> Selection:
        if isinstance(id_, bool) or not isinstance(id_, int):
            raise TypeError(f"ids = {id_!r}: expected an integer, a slice, a mask, or ids")
        if not 0 <= id_ < num_rows:
            raise IndexError(f"ids = {id_}: expected 0 to {num_rows - 1}, the rows of the tensor")
        return cls(None, id_, 1, is_single=True)

    def blocks(self, most: int) -> Iterator[tuple[int, Selection]]:
        """Some rows at a time, with the place where they begin among all."""
        for at in range(0, self.n, most):
            n = min(most, self.n - at)
            ids = None if self.ids is None else self.ids[at : at + n]
            yield at, Selection(ids, self.first + at, n)


# A table that a graph was partitioned with, as the first values of a distributed tensor.


@dataclass(frozen=True)
class StoredTable:
    """Names one. Servers take its rows from the mapped files, and copy them when somebody first writes.

    Attributes:
        kind: ``'node'`` or ``'edge'``.
        type_index: Position of the type.
        table: Its name in partitions: ``'x'``, ``'y'``, ``'time'``, ``'edge_attr'`` or that of a named table.
    """

    kind: str
    type_index: int
    table: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"kind": "table", "of": self.kind, "type": self.type_index, "table": self.table}


def require_writable(table: str, what: str) -> None:
    """Raises ValueError if samplers decide by the rows of a table, which are those of the files, sorted for them."""
    if table == "time":
        raise ValueError(
            f"{what} has the times that edges were sorted by when the graph was partitioned: they are read, and not "
            "written; partition it again with node_time = the new times, or keep yours under another name"
        )


# What a distributed tensor is: all that trainers and servers must agree on.


_MOST_DIMS = 4  # of a tensor in a message


@dataclass(frozen=True)
class TensorSpec:
    """What one is made of.

    Attributes:
        name: Of the tensor.
        shape: Of the whole tensor, rows first.
        dtype: Without ``torch.``, for example ``"bfloat16"``.
        placement: What :meth:`Placement.spec` gives.
        init: What :func:`glt.distributed.tensors.spec.encode_init` gives.
        is_anonymous: Whether it is freed when nobody holds it.
        num_trainers: That create it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    placement: dict[str, Any]
    init: dict[str, Any]
    is_anonymous: bool
    num_trainers: int

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def table(self) -> str | None:
        """The table of the graph whose rows it has; None: it is no such."""
        return self.init["table"] if self.init["kind"] == "table" else None

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.torch_dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> TensorSpec:
        """Undoes :meth:`to_json`.

        Raises:
            TypeError, ValueError: If it is no such thing.
        """
        spec = cls(**{**told, "shape": tuple(int(size) for size in told["shape"])})
        if not isinstance(getattr(torch, str(spec.dtype), None), torch.dtype) or not spec.shape or min(spec.shape) < 0:
            raise ValueError(f"no tensor has dtype {spec.dtype!r} and shape {list(spec.shape)}")
        return spec

    def __str__(self) -> str:
        place = self.placement
        part = "even parts" if place["kind"] == "even" else f"parts of {place['kind']}s of type {place['type_index']}"
        return f"shape {list(self.shape)}, dtype {self.dtype}, {part}"


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Returns the shape of a tensor, rows first.

    Raises:
        TypeError, ValueError: If it is none.
    """
    if isinstance(shape, str | bytes) or not isinstance(shape, Sequence):
        raise TypeError(
            f"shape = {shape!r}: expected the sizes of 1 to {_MOST_DIMS} dimensions, such as (num_nodes, 10)"
        )
    sizes = tuple(int(size) if isinstance(size, np.integer) else size for size in shape)
    for at, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"shape[{at}] = {size!r}: expected an integer")
        if not 0 <= size < 1 << 63:
            raise ValueError(f"shape[{at}] = {size}: expected 0 or more, and below 2^63")
    if not 1 <= len(sizes) <= _MOST_DIMS:
        raise ValueError(f"shape = {list(sizes)}: expected 1 to {_MOST_DIMS} dimensions, rows first; flatten the rows")
    return sizes


def checked_name(name: Any) -> str | None:
    """Returns the name of a tensor, or None.

    Raises:
        TypeError, ValueError: If it is none that a user may give.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name = {name!r}: expected text, or None")
    if name is not None and (not name or name.startswith("glt/")):
        raise ValueError(f"name = {name!r}: expected a name that does not begin with 'glt/', as glt's own do")
    return name


def is_kind_of(number: bool | int | float | complex, dtype: torch.dtype) -> bool:
    """Whether a number of Python's may stand for one of ``dtype``: not 1.5 for an integer, nor 2 for a bool."""
    if dtype == torch.bool:
        return isinstance(number, bool)
    kinds = ((bool, torch.bool), (int, torch.int64), (float, torch.float32), (complex, torch.complex64))
    return any(isinstance(number, kind) and torch.can_cast(its, dtype) for kind, its in kinds)


def checked_dtype(dtype: Any) -> str:
    """Returns the name of the dtype of a tensor.

    Raises:
        TypeError: If glt does not store it.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype = {dtype!r}: expected a torch.dtype, such as torch.float32")
    return stored_name(dtype, f"dtype = {dtype}")


_PIECE_BYTES = 32 << 20
_RANDOM = ("uniform", "normal")


def encode_init(init_func: Any, dtype: torch.dtype, rng_seed: int) -> dict[str, Any]:
    """Returns plain values for what a user asked for.

    Args:
        init_func: None or ``'zeros'``; ``'ones'``; ``('constant', number)``; ``'uniform'`` in [0, 1) or ``('uniform',
            low, high)``; ``'normal'`` or ``('normal', mean, deviation)``; a function registered on the servers, or its
            name; a :class:`StoredTable`.
        dtype: Of the tensor.
        rng_seed: Of random values.

    Raises:
        TypeError, ValueError: If it is nothing of that kind, or random values are asked for of integers.
    """
    if isinstance(init_func, StoredTable):
        return init_func.to_json()
    if isinstance(rng_seed, bool) or not isinstance(rng_seed, int):
        raise TypeError(f"rng_seed = {rng_seed!r}: expected an integer")
    if init_func is None or (isinstance(init_func, str) and init_func in ("zeros", "ones")):
        return {"kind": "constant", "a": int(init_func == "ones")}
    kind, *given = init_func if isinstance(init_func, tuple | list) and init_func else (init_func,)
    if isinstance(kind, str) and kind in _RANDOM:
        return {"kind": kind, **_checked_range(init_func, kind, given or [0.0, 1.0], dtype), "rng_seed": rng_seed}
    if kind == "constant" and len(given) == 1 and isinstance(given[0], bool | int | float):
        if not is_kind_of(given[0], dtype):
            raise TypeError(f"init_func = {init_func!r}: expected a number that {dtype} holds")
        try:
            torch.full((), given[0], dtype=dtype)
        except (RuntimeError, OverflowError) as error:  # such as 300 as uint8
            raise ValueError(f"init_func = {init_func!r}: expected what {dtype} holds ({error})") from error
        return {"kind": "constant", "a": given[0]}
    if given or not (callable(kind) or isinstance(kind, str)):
        raise ValueError(
            f"init_func = {init_func!r}: expected 'zeros', 'ones', ('constant', number), ('uniform', low, high), "
            "('normal', mean, deviation), or a function given to glt.distributed.register_server_function"
        )
    return {"kind": "function", "name": name_of(kind)}


def _checked_range(init_func: Any, kind: str, given: list[Any], dtype: torch.dtype) -> dict[str, float]:
    if not dtype.is_floating_point:
        raise ValueError(f"init_func = {init_func!r}: expected a floating point dtype, not {dtype}")
    fits = len(given) == 2 and all(isinstance(x, int | float) and math.isfinite(x) for x in given)
    if not fits or (given[0] >= given[1] if kind == "uniform" else given[1] < 0):
        raise ValueError(
            f"init_func = {init_func!r}: expected ('uniform', low, high) with low < high, or ('normal', mean, "
            "deviation) with deviation >= 0"
        )
    return {"a": float(given[0]), "b": float(given[1])}


def needs_twice(init: dict[str, Any]) -> bool:
    """Whether as much memory is needed besides the tensor while it is filled in."""
    return init["kind"] == "function" and not _takes_rows(registered(init["name"]))


def fill(rows: Tensor, spec: TensorSpec, placement: Placement, server: int, num_threads: int) -> None:
    """Fills in the rows of a server.

    Random values are draws of Philox by row, column, name and seed: they do not depend on who owns which row, nor on
    the dtype but for its rounding. A function is called as ``func(shape, dtype)`` with the shape of all rows of this
    server, as DGL's are, or, if it takes a third argument, as ``func(shape, dtype, ids)`` with the numbers in the
    tensor of some of its rows ``[shape[0]]``, int64, which lets it give values that do not depend on the servers.

    Raises:
        TypeError, ValueError: If a function returns another dtype or shape.
    """
    init = spec.init
    if init["kind"] == "constant":
        rows.fill_(init["a"])  # written, so that the memory is there now and not when it is needed
    elif init["kind"] == "function":
        func = registered(init["name"])
        if _takes_rows(func):
            for at, ids in _pieces(placement, server, _piece_rows(spec)):
                piece = rows[at : at + _count(ids)]
                numbers = torch.from_numpy(np.arange(*ids) if isinstance(ids, tuple) else ids)
                piece.copy_(_checked(func(tuple(piece.shape), rows.dtype, numbers), piece, init["name"]))
        else:
            rows.copy_(_checked(func(tuple(rows.shape), rows.dtype), rows, init["name"]))
    else:
        _fill_random(rows, spec, placement, server, num_threads)


def _fill_random(rows: Tensor, spec: TensorSpec, placement: Placement, server: int, num_threads: int) -> None:
    init = spec.init
    text = f"{init['rng_seed']} {spec.name}"  # tensors of one shape and seed are not to be alike
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    made = torch.float64 if rows.dtype == torch.float64 else torch.float32
    width = math.prod(spec.row_shape)
    for at, ids in _pieces(placement, server, _piece_rows(spec)):
        piece = rows[at : at + _count(ids)].view(_count(ids), width)
        out = piece if rows.dtype == made else torch.empty(piece.shape, dtype=made)
        numbers, first = (None, ids[0]) if isinstance(ids, tuple) else (ids, 0)
        is_normal = init["kind"] == "normal"
        _core.random_rows(out.numpy(), numbers, first, is_normal, init["a"], init["b"], key, num_threads)
        if out is not piece:
            piece.copy_(out)


def _pieces(placement: Placement, server: int, most: int) -> Iterator[tuple[int, tuple[int, int] | np.ndarray]]:
    """Rows of a server, some at a time: the number of the first one there, and what they are numbered in the tensor:
    the first and one more than the last, or all of them."""
    if not placement.has_spans:
        ids = placement.ids_on(server)
        yield from ((at, ids[at : at + most]) for at in range(0, len(ids), most))
        return
    for span in placement.spans(0, placement.num_rows):
        if span.server == server:
            for at in range(0, span.num_rows, most):
                yield span.row + at, (span.first + at, span.first + min(at + most, span.num_rows))


def _count(ids: tuple[int, int] | np.ndarray) -> int:
    return ids[1] - ids[0] if isinstance(ids, tuple) else len(ids)


def _piece_rows(spec: TensorSpec) -> int:
    return max(1, _PIECE_BYTES // max(spec.row_bytes, 1))


def _takes_rows(func: Callable[..., Any]) -> bool:
    try:
        inspect.signature(func).bind("shape", "dtype", "ids")
    except (TypeError, ValueError):  # it takes two; or nobody can tell
        return False
    return True


def _checked(made: Any, like: Tensor, name: str) -> Tensor:
    if not isinstance(made, Tensor) or made.dtype != like.dtype or made.shape != like.shape:
        kind = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(f"init_func {name!r} returned {kind}: expected {like.dtype} {list(like.shape)}")
    return made
