"""What a distributed tensor is: its spec, which trainers and servers agree on, which server keeps each row, and the
first values."""

from __future__ import annotations

import hashlib
import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._checks import integer
from glt.data.schema import EdgeType, NodeType, PartitionBook, Schema
from glt.distributed.wire.calls import name_of, registered
from glt.partition.format.rows import stored_name

RowIds = np.ndarray | range
"""Numbers of rows ``[n]``, int64, or consecutive ones."""


def as_array(ids: RowIds) -> np.ndarray:
    return np.arange(ids.start, ids.stop) if isinstance(ids, range) else ids


class Portion(NamedTuple):
    """What one server has of some rows: their numbers there (``rows``), and where each stands among those that were
    asked for (``positions [n]``, uint32, or consecutive ones)."""

    server: int
    rows: RowIds
    positions: RowIds


@dataclass(frozen=True, eq=False)
class Placement:
    """Owners of rows: of nodes or edges, the server of the partition that owns these; else even ranges.

    A server that keeps several partitions has their rows one behind the other, by ascending partition. ``kind`` is
    ``'even'``, ``'node'`` or ``'edge'``, ``book`` gives the partition of each row and its number there, and
    ``server_of`` the server of each partition.
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
        """Places a tensor with the nodes or edges of type ``part``, or evenly for None. Raises KeyError or TypeError if
        that is no type, ValueError if there is no graph, or the type has another number of rows."""
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
        else:
            kind, at = "edge", schema.edge_index(part)
        book = getattr(world.data, f"{kind}_books")[at]
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
        """What a server needs to make the same again; books are not sent."""
        names = ("kind", "type_index", "num_rows", "num_servers")
        return {"server_of": list(self.server_of), **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_spec(cls, spec: dict[str, Any], data: Any) -> Placement:
        """Undoes :meth:`spec` with the books of a dataset; raises ValueError if they differ."""
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
        end, begin = [0] * self.num_servers, []
        for size, server in zip(_sizes(self.book), self.server_of, strict=True):
            begin.append(end[server])
            end[server] += size
        return begin

    def rows_on(self, server: int) -> int:
        return sum(size for size, of in zip(_sizes(self.book), self.server_of, strict=True) if of == server)

    def parts_on(self, server: int) -> Iterator[tuple[int, RowIds]]:
        """For each partition of a server, the number of its first row there, and the rows in the tensor."""
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
        """Which server has which of these rows; equal ones keep their order. IndexError names a row that is not
        there.
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


_MOST_DIMS = 4  # of a tensor in a message
_PIECE_BYTES = 32 << 20  # of first values that are made at a time


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor is made of. ``dtype`` is without ``torch.``; ``placement`` that of :meth:`Placement.spec`, ``init``
    of :func:`encode_init`; an anonymous tensor is freed when none of ``num_trainers`` holds it any more."""

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
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.torch_dtype.itemsize

    @property
    def table(self) -> str | None:
        """The stored table of the graph whose rows the tensor has, if it is one."""
        return self.init["table"] if self.init["kind"] == "table" else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TensorSpec:
        spec = cls(**{**values, "shape": tuple(int(size) for size in values["shape"])})
        if not isinstance(getattr(torch, str(spec.dtype), None), torch.dtype) or not spec.shape or min(spec.shape) < 0:
            raise ValueError(f"no tensor has dtype {spec.dtype!r} and shape {list(spec.shape)}")
        return spec

    def __str__(self) -> str:
        place = self.placement
        part = "even parts" if place["kind"] == "even" else f"parts of {place['kind']}s of type {place['type_index']}"
        return f"shape {list(self.shape)}, dtype {self.dtype}, {part}"


@dataclass(frozen=True)
class StoredTable:
    """A table that the graph was partitioned with, as first values: servers map its file, and copy its rows at the
    first write. ``kind`` is ``'node'`` or ``'edge'``; ``table`` its name in partitions."""

    kind: str
    type_index: int
    table: str


def require_writable(table: str, what: str) -> None:
    """Raises ValueError for the table of times, by which stored edges were sorted."""
    if table == "time":
        raise ValueError(
            f"{what} has the times that edges were sorted by when the graph was partitioned: they are read, and not "
            "written; partition it again with node_time = the new times, or keep yours under another name"
        )


# Arguments of users.


def checked_shape(shape: Any) -> tuple[int, ...]:
    """The shape of a tensor, rows first; raises TypeError or ValueError."""
    if isinstance(shape, str | bytes) or not isinstance(shape, Sequence):
        raise TypeError(
            f"shape = {shape!r}: expected the sizes of 1 to {_MOST_DIMS} dimensions, such as (num_nodes, 10)"
        )
    most = (1 << 63) - 1
    sizes = tuple(integer(f"shape[{at}]", size, 0, most, "below 2^63") for at, size in enumerate(shape))
    if not 1 <= len(sizes) <= _MOST_DIMS:
        raise ValueError(f"shape = {list(sizes)}: expected 1 to {_MOST_DIMS} dimensions, rows first; flatten the rows")
    return sizes


def checked_name(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name = {name!r}: expected text, or None")
    if name is not None and (not name or name.startswith("glt/")):
        raise ValueError(f"name = {name!r}: expected a name that does not begin with 'glt/', as glt's own do")
    return name


def checked_dtype(dtype: Any) -> str:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype = {dtype!r}: expected a torch.dtype, such as torch.float32")
    return stored_name(dtype, f"dtype = {dtype}")


def is_kind_of(number: bool | int | float | complex, dtype: torch.dtype) -> bool:
    """Whether a Python number may stand for one of ``dtype``: not 1.5 for an integer, nor 2 for a bool."""
    if dtype == torch.bool:
        return isinstance(number, bool)
    kinds = ((bool, torch.bool), (int, torch.int64), (float, torch.float32), (complex, torch.complex64))
    return any(isinstance(number, kind) and torch.can_cast(its, dtype) for kind, its in kinds)


def number_as(dtype: torch.dtype, number: bool | int | float | complex, what: str) -> Tensor:
    """A Python number as a tensor without dimensions; raises TypeError or ValueError if ``dtype`` does not hold it."""
    if not is_kind_of(number, dtype):
        raise TypeError(f"{what}: expected a number that {dtype} holds")
    try:
        return torch.full((), number, dtype=dtype)
    except (RuntimeError, OverflowError) as error:  # such as 300 as uint8
        raise ValueError(f"{what}: expected what {dtype} holds ({error})") from error


def encode_init(init_func: Any, dtype: torch.dtype, rng_seed: int) -> dict[str, Any]:
    """First values as plain values, for ``init_func`` of :class:`DistTensor` or a :class:`StoredTable`."""
    if isinstance(init_func, StoredTable):
        return {"kind": "table", "of": init_func.kind, "type": init_func.type_index, "table": init_func.table}
    if isinstance(rng_seed, bool) or not isinstance(rng_seed, int):
        raise TypeError(f"rng_seed = {rng_seed!r}: expected an integer")
    if init_func is None or (isinstance(init_func, str) and init_func in ("zeros", "ones")):
        return {"kind": "constant", "a": int(init_func == "ones")}
    kind, *given = init_func if isinstance(init_func, tuple | list) and init_func else (init_func,)
    if isinstance(kind, str) and kind in ("uniform", "normal"):
        low, high = _checked_range(init_func, kind, given or [0.0, 1.0], dtype)
        return {"kind": kind, "a": low, "b": high, "rng_seed": rng_seed}
    if kind == "constant" and len(given) == 1 and isinstance(given[0], bool | int | float):
        number_as(dtype, given[0], f"init_func = {init_func!r}")
        return {"kind": "constant", "a": given[0]}
    if given or not (callable(kind) or isinstance(kind, str)):
        raise ValueError(
            f"init_func = {init_func!r}: expected 'zeros', 'ones', ('constant', number), ('uniform', low, high), "
            "('normal', mean, deviation), or a function given to glt.distributed.register_server_function"
        )
    return {"kind": "function", "name": name_of(kind)}


def _checked_range(init_func: Any, kind: str, given: list[Any], dtype: torch.dtype) -> tuple[float, float]:
    if not dtype.is_floating_point:
        raise ValueError(f"init_func = {init_func!r}: expected a floating point dtype, not {dtype}")
    fits = len(given) == 2 and all(isinstance(x, int | float) and math.isfinite(x) for x in given)
    if not fits or (given[0] >= given[1] if kind == "uniform" else given[1] < 0):
        raise ValueError(
            f"init_func = {init_func!r}: expected ('uniform', low, high) with low < high, or ('normal', mean, "
            "deviation) with deviation >= 0"
        )
    return float(given[0]), float(given[1])


# First values, which servers fill in.


def needs_twice(init: dict[str, Any]) -> bool:
    """Whether filling in the tensor takes as much memory again."""
    return init["kind"] == "function" and not _takes_ids(registered(init["name"]))


def fill(rows: Tensor, spec: TensorSpec, placement: Placement, server: int, num_threads: int) -> None:
    """Fills in the rows of a server. Random values are draws of Philox by row, column, name and seed: they do not
    depend on the servers, nor, but for rounding, on the dtype. Raises ValueError if a function returns another dtype or
    shape."""
    init = spec.init
    if init["kind"] == "constant":
        rows.fill_(init["a"])  # zeros too: the memory is to be there now, and not at the first write
        return
    func = registered(init["name"]) if init["kind"] == "function" else None
    if func is not None and not _takes_ids(func):
        rows.copy_(_checked(func(tuple(rows.shape), rows.dtype), rows, init["name"]))
        return
    most = max(1, _PIECE_BYTES // max(spec.row_bytes, 1))
    for first, part in placement.parts_on(server):
        for at in range(0, len(part), most):
            ids = part[at : at + most]
            piece = rows[first + at : first + at + len(ids)]
            if func is None:
                _draw(piece, ids, spec, num_threads)
            else:
                values = func(tuple(piece.shape), rows.dtype, torch.from_numpy(as_array(ids)))
                piece.copy_(_checked(values, piece, init["name"]))


def _draw(piece: Tensor, ids: RowIds, spec: TensorSpec, num_threads: int) -> None:
    init = spec.init
    text = f"{init['rng_seed']} {spec.name}"  # so that tensors of one shape and seed differ
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    rows = piece.view(len(ids), math.prod(spec.row_shape))
    made = torch.float64 if rows.dtype == torch.float64 else torch.float32
    out = rows if rows.dtype == made else torch.empty(rows.shape, dtype=made)
    numbers, first = (None, ids.start) if isinstance(ids, range) else (ids, 0)
    is_normal = init["kind"] == "normal"
    _core.random_rows(out.numpy(), numbers, first, is_normal, init["a"], init["b"], key, num_threads)
    if out is not rows:
        rows.copy_(out)


def _takes_ids(func: Callable[..., Any]) -> bool:
    try:
        inspect.signature(func).bind("shape", "dtype", "ids")
    except (TypeError, ValueError):  # it takes two, or is a builtin without a signature
        return False
    return True


def _checked(made: Any, like: Tensor, name: str) -> Tensor:
    if not isinstance(made, Tensor) or made.dtype != like.dtype or made.shape != like.shape:
        kind = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(f"init_func {name!r} returned {kind}: expected {like.dtype} {list(like.shape)}")
    return made
