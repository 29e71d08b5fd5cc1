"""The distributed tensors of a server: made, found and deleted by name, read and changed by number, and updated by
steps of sparse optimizers."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import available_memory
from glt.data.arrays import NativeView, as_numpy, pooled_empty
from glt.data.feature import Feature
from glt.distributed.tensors.barrier import Barriers, Member, require_equal
from glt.distributed.tensors.spec import Placement, TensorSpec, fill, needs_twice

Rows = Tensor | tuple[int, int]
"""Numbers of rows ``[n]``, int64; or the first of consecutive rows and how many."""


class Shard:
    """Rows ``[num_rows, ...]`` on the CPU that many threads read and change: none is ever seen, or left, half-written.
    The first change copies a borrowed tensor, such as a mapped file, and unpacks it where its rows are packed.
    ``num_threads`` are those of native code."""

    def __init__(self, rows: Tensor | Feature, is_borrowed: bool = False, num_threads: int = 1) -> None:
        feature = rows if isinstance(rows, Feature) else Feature(rows)
        self.is_borrowed, self.num_threads = is_borrowed, num_threads
        self._packed = None if feature.packing is None else feature
        self.torch_dtype, self.row_shape = feature.dtype, feature.row_shape
        self._put(feature.tensor)
        self._copying = threading.Lock()

    def _put(self, tensor: Tensor) -> None:
        view = NativeView([tensor], lambda: _core.RowTable(as_numpy(tensor)))
        view.get()  # before another thread can: there must be one table for all, since it has the locks
        self.tensor, self._view = tensor, view

    @property
    def table(self) -> _core.RowTable:
        return self._view.get()

    def read(self, rows: Rows) -> Tensor:
        """Returns rows ``[n, ...]``; IndexError names the first that is not there."""
        numbers, first, n = self._numbers(rows)
        if (packed := self._packed) is not None:
            ids = torch.arange(first, first + n) if numbers is None else torch.from_numpy(numbers)
            return packed.gather(ids, num_threads=self.num_threads)
        out = pooled_empty((n, *self.row_shape), self.torch_dtype)
        self.table.read(numbers, first, as_numpy(out), self.num_threads)
        return out

    def write(self, rows: Rows, values: Tensor) -> None:
        """Replaces rows by ``values [n, ...]``; of a row named several times the last value stays. Raises IndexError,
        TypeError or ValueError if they do not fit; nothing is written then."""
        numbers, first = self._checked(rows, values)
        self.own().write(numbers, first, as_numpy(values.contiguous()), self.num_threads)

    def add(self, rows: Rows, values: Tensor) -> None:
        """Adds ``values [n, ...]`` to rows, several times to a row named several times. Raises as :meth:`write`;
        TypeError also of bool and float8."""
        numbers, first = self._checked(rows, values)
        self.own().add(numbers, first, as_numpy(values.contiguous()), self.dtype, self.num_threads)

    @property
    def dtype(self) -> str:
        return str(self.torch_dtype).removeprefix("torch.")

    def own(self) -> _core.RowTable:
        with self._copying:
            if self.is_borrowed:
                num_bytes = len(self) * math.prod(self.row_shape) * self.torch_dtype.itemsize
                _require_room(num_bytes, "the first write to mapped rows copies them, which takes")
                self._put(self.tensor.clone() if self._packed is None else self._packed.dense())
                self.is_borrowed, self._packed = False, None
            return self.table

    def _checked(self, rows: Rows, values: Tensor) -> tuple[np.ndarray | None, int]:
        if values.dtype != self.torch_dtype:
            raise TypeError(f"values has dtype {values.dtype}: expected {self.torch_dtype}, the tensor's")
        numbers, first, n = self._numbers(rows)
        if values.shape != (n, *self.row_shape):
            raise ValueError(f"values has shape {list(values.shape)}: expected {[n, *self.row_shape]}")
        return numbers, first

    def _numbers(self, rows: Rows) -> tuple[np.ndarray | None, int, int]:
        """Numbers of rows or None, the first, and how many; a range is checked before memory is taken for its rows."""
        if isinstance(rows, Tensor):
            return rows.contiguous().numpy(), 0, len(rows)
        first, n = map(int, rows)
        if not 0 <= first <= first + n <= len(self):
            raise IndexError(f"rows {first} to {first + n - 1} are outside [0, {len(self)})")
        return None, first, n

    def __len__(self) -> int:
        return len(self.tensor)


def _require_room(num_bytes: int, what: str, of: str = "", remedy: str = "") -> None:
    room_bytes, limit = available_memory()
    if num_bytes > room_bytes:
        raise MemoryError(f"{what} {num_bytes / 1e9:.3g} GB{of}: {limit} is {room_bytes / 1e9:.3g} GB{remedy}")


class ChangeOrder:
    """Makes the changes of one handle in the order of their numbers, from 1, on any threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_done = 0
        self._ended = False

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, number: int) -> None:
        """Waits until the change of this number is done; raises RuntimeError if it does not come."""
        with self._changed:
            has_come = self._changed.wait_for(lambda: self._num_done >= number or self._ended, deadlines.TURN_S)
            if self._ended:
                raise RuntimeError("the trainer of this change is gone")
            if not has_come:
                raise RuntimeError(
                    f"change {self._num_done + 1} of a tensor did not come within {deadlines.TURN_S:g} s; "
                    "later ones wait for it"
                )

    @contextmanager
    def making(self, number: int) -> Iterator[None]:
        """Waits for the changes before this one; it is done at the end, well or badly."""
        try:
            self.wait(number - 1)
            yield
        finally:
            with self._changed:
                self._num_done = max(self._num_done, number)
                self._changed.notify_all()


_MOST_TOMBSTONES = 4096

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""What a server answers a call with: takes who asks, the arguments and the keyword arguments."""


@dataclass(eq=False)
class StoredTensor:
    """A tensor of which this server keeps some rows.

    ``generation`` is its number, which no other tensor has, not even of this server before a restart; ``handles`` the
    trainers that hold it, with their names for it; ``seen`` the ranks of the ``group`` that made it which have created
    it or left; ``orders`` those of each trainer and sequence; ``peers`` its numbers on all servers, None until all are
    known to have it. Counters count since it was made; additions are writes.
    """

    spec: TensorSpec
    generation: int
    placement: Placement
    shard: Shard
    created_by: str
    group: str
    handles: set[tuple[Any, str]] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    orders: dict[tuple[Any, str], ChangeOrder] = field(default_factory=dict)
    peers: list[int] | None = None
    num_reads: int = 0
    num_writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def note(self, holder: Member) -> None:
        """A trainer has created it, or has left. Of other groups, such as those who only read, none is waited for."""
        if holder.group == self.group:
            self.seen.add(holder.rank)

    def stats(self) -> dict[str, Any]:
        counted = ("num_reads", "num_writes", "read_bytes", "written_bytes")
        return {
            "shape": list(self.spec.shape),
            "dtype": self.spec.dtype,
            "num_rows": len(self.shard),
            "num_bytes": self.shard.tensor.nbytes,
            "num_holders": len(self.handles),
            **{name: getattr(self, name) for name in counted},
        }


class TensorStore:
    """Tensors of one server. A ``holder`` is the trainer that asks, a ``handle`` its name for what it holds. ``owner``
    names the server in errors; ``tables(kind, type_index, table, partitions)`` gives rows of the graph; without
    ``data`` there are tensors in even parts only. Default of ``num_threads``: all processors, eight at most."""

    def __init__(
        self,
        rank: int = 0,
        data: Any = None,
        owner: str = "this process",
        tables: Callable[[str, int, str, list[int]], Feature] | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.rank, self.data, self.owner, self.tables = rank, data, owner, tables
        self.num_threads = num_threads or min(8, len(os.sched_getaffinity(0)))
        self._lock = threading.Lock()
        self._creating = threading.Lock()  # one at a time: memory is forecast for one
        self._tensors: dict[int, StoredTensor] = {}
        self._named: dict[str, int] = {}
        self._tombstones: OrderedDict[int, str] = OrderedDict()  # why tensors are no more
        self._gone: weakref.WeakSet[Any] = weakref.WeakSet()  # trainers whose calls may still be under way
        self._last = time.time_ns()  # so that a server that was restarted gives other numbers than before

    # -- by name -----------------------------------------------------------------------------------------------------

    def create(self, holder: Member, values: dict[str, Any], handle: str) -> dict[str, Any]:
        """Makes a tensor of the ``values`` of :meth:`TensorSpec.to_json`, or finds the same one; returns its
        ``generation``, whether it ``is_new``, and its ``peers``. Raises ValueError if there is another of this name or
        it cannot be placed here, MemoryError if it does not fit."""
        spec = TensorSpec.from_json(values)
        with self._creating:
            found = self._find(spec.name)
            is_new = found is None
            if found is None:
                found = self._make(holder, spec)
            elif found.spec != spec:
                raise ValueError(_mismatch(spec, found))
            self._hold(found, holder, handle)
            return {"generation": found.generation, "is_new": is_new, "peers": found.peers}

    def confirm(self, generation: int, peers: list[int]) -> None:
        self.stored(generation).peers = [int(each) for each in peers]

    def _make(self, holder: Member, spec: TensorSpec) -> StoredTensor:
        placement = Placement.from_spec(spec.placement, self.data)
        if placement.num_rows != spec.shape[0]:
            raise ValueError(f"shape[0] = {spec.shape[0]}: expected {placement.num_rows}, the rows that are placed")
        if spec.table is not None:
            shard = Shard(self._table(spec, placement), is_borrowed=True, num_threads=self.num_threads)
        else:
            shard = self._filled(spec, placement)
        with self._lock:
            self._last += 1
            made = StoredTensor(spec, self._last, placement, shard, _described(holder), holder.group)
            self._tensors[made.generation] = made
            self._named[spec.name] = made.generation
        return made

    def _filled(self, spec: TensorSpec, placement: Placement) -> Shard:
        num_rows = placement.rows_on(self.rank)
        num_needed = num_rows * (1 + needs_twice(spec.init))
        what, of = f"tensor {spec.name!r} ({spec}) needs", f" for {num_needed} rows on {self.owner}"
        remedy = ". Use a smaller dtype, more servers, or delete other tensors"
        _require_room(num_needed * spec.row_bytes, what, of, remedy)
        try:
            rows = torch.empty((num_rows, *spec.row_shape), dtype=spec.torch_dtype)
        except RuntimeError as error:  # the kernel promises no more, whatever is available
            raise MemoryError(f"tensor {spec.name!r} ({spec}) on {self.owner}: {error}") from error
        shard = Shard(rows, num_threads=self.num_threads)
        fill(shard.tensor, spec, placement, self.rank, self.num_threads)  # large pages were asked for by now
        return shard

    def _table(self, spec: TensorSpec, placement: Placement) -> Feature:
        if self.tables is None:
            raise ValueError(f"{self.owner} has no graph: there are no stored tables")
        rows = Feature(torch.empty((0, *spec.row_shape), dtype=spec.torch_dtype))
        parts = [part for part, server in enumerate(placement.server_of) if server == self.rank]
        if parts:
            rows = self.tables(spec.init["of"], spec.init["type"], spec.init["table"], parts)
        num_rows = placement.rows_on(self.rank)
        if rows.shape != (num_rows, *spec.row_shape) or rows.dtype != spec.torch_dtype:
            raise ValueError(f"{spec}: the stored table has {num_rows} rows of {rows.dtype} {list(rows.row_shape)}")
        return rows

    def open(self, holder: Member, name: str, handle: str) -> dict[str, Any]:
        """Finds a tensor; returns its ``spec``, ``generation`` and ``peers``. LookupError names those there are."""
        found = self._find(name)
        if found is None:
            raise LookupError(f"name = {name!r}: {self.owner} has no such tensor; it has {self.names()}")
        self._hold(found, holder, handle)
        return {"generation": found.generation, "spec": found.spec.to_json(), "peers": found.peers}

    def _find(self, name: str) -> StoredTensor | None:
        with self._lock:
            generation = self._named.get(name)
            return None if generation is None else self._tensors[generation]

    def _hold(self, stored: StoredTensor, holder: Member, handle: str) -> None:
        with self._lock:
            stored.handles.add((holder, handle))
            stored.note(holder)

    # -- the end -----------------------------------------------------------------------------------------------------

    def delete(self, holder: Member, generation: int, failure: str = "") -> None:
        """Deletes a tensor for all trainers, or what could not be created because of a ``failure``; later calls raise
        who did. Deleting it again does nothing."""
        why = f"could not be created by {_described(holder)}: {failure}"
        with self._lock:
            self._remove(generation, why if failure else f"was deleted by {_described(holder)}")

    def release(self, holder: Member, generation: int, handle: str, sequence: str = "", num_changes: int = 0) -> None:
        """Gives up a handle, after the changes of its sequence; the last handle of an anonymous tensor frees it."""
        with self._lock:
            stored = self._tensors.get(generation)
        if stored is None:
            return
        self._wait_for(stored, holder, sequence, num_changes)
        with self._lock:
            stored.orders.pop((holder, sequence), None)
            if generation in self._tensors:
                stored.handles.discard((holder, handle))
                self._free_if_unheld(stored)

    def end_session(self, holder: Member) -> None:
        with self._lock:
            self._gone.add(holder)
            for stored in list(self._tensors.values()):
                for key in [key for key in stored.orders if key[0] is holder]:
                    stored.orders.pop(key).end()
                stored.handles = {each for each in stored.handles if each[0] is not holder}
                stored.note(holder)
                self._free_if_unheld(stored)

    def _free_if_unheld(self, stored: StoredTensor) -> None:
        is_seen_by_all = len(stored.seen) >= stored.spec.num_trainers
        if stored.spec.is_anonymous and is_seen_by_all and not stored.handles:
            self._remove(stored.generation, "was freed, since no trainer held it any more")

    def _remove(self, generation: int, why: str) -> None:
        stored = self._tensors.pop(generation, None)
        if stored is None:
            return
        if self._named.get(stored.spec.name) == generation:
            del self._named[stored.spec.name]
        self._tombstones[generation] = f"tensor {stored.spec.name!r} {why}"
        while len(self._tombstones) > _MOST_TOMBSTONES:
            self._tombstones.popitem(last=False)

    # -- rows --------------------------------------------------------------------------------------------------------

    def stored(self, generation: int) -> StoredTensor:
        """The tensor of a number; LookupError says who deleted it."""
        with self._lock:
            stored = self._tensors.get(generation)
            if stored is not None:
                return stored
            why = self._tombstones.get(generation)
        if why is not None:
            raise LookupError(f"{why}: create it again, or find the one that has its name now")
        raise LookupError(
            f"{self.owner} has no tensor number {generation}: it was restarted since, or the tensor deleted long ago"
        )

    def read(self, holder: Member, generation: int, rows: Rows, sequence: str = "", num_changes: int = 0) -> Tensor:
        """See :meth:`Shard.read`; the first ``num_changes`` of a sequence are made by then."""
        stored = self.stored(generation)
        self._wait_for(stored, holder, sequence, num_changes)
        found = stored.shard.read(rows)
        with self._lock:
            stored.num_reads += 1
            stored.read_bytes += found.nbytes
        return found

    def change(
        self, holder: Any, generation: int, kind: str, rows: Rows, values: Tensor, sequence: str = "", number: int = 0
    ) -> None:
        """Writes or adds (``kind``) rows, see :class:`Shard`, as change ``number`` of a sequence; 0: of none."""
        stored = self.stored(generation)
        make = {"write": stored.shard.write, "add": stored.shard.add}[kind]
        with self._order(stored, holder, sequence).making(number) if number else nullcontext():
            make(rows, values)
        with self._lock:
            stored.num_writes += 1
            stored.written_bytes += values.nbytes

    def _wait_for(self, stored: StoredTensor, holder: Member, sequence: str, num_changes: int) -> None:
        """Waits until a trainer's first changes are made. Those of one that may only read were refused; and it is not
        to hold threads by waiting for changes that never come."""
        if num_changes and not holder.is_guest:
            self._order(stored, holder, sequence).wait(num_changes)

    def _order(self, stored: StoredTensor, holder: Any, sequence: str) -> ChangeOrder:
        with self._lock:
            if holder in self._gone:
                raise RuntimeError("the trainer of this change is gone")
            return stored.orders.setdefault((holder, sequence), ChangeOrder())

    # -- what there is -----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._named)

    def written(self) -> list[str]:
        """Names of the tables of the graph whose rows here are no longer those of the files."""
        with self._lock:
            tables = [each for each in self._tensors.values() if each.spec.table is not None]
            return [each.spec.name for each in tables if not each.shard.is_borrowed]

    def stats(self) -> dict[str, dict[str, Any]]:
        with self._lock:
            return {each.spec.name: each.stats() for each in self._tensors.values()}

    def calls(self) -> dict[str, Call]:
        return {
            "glt.tensor.create": lambda holder, args, kwargs: self.create(holder, *args),
            "glt.tensor.open": lambda holder, args, kwargs: self.open(holder, *args),
            "glt.tensor.confirm": lambda holder, args, kwargs: self.confirm(*args),
            "glt.tensor.release": lambda holder, args, kwargs: self.release(holder, *args),
            "glt.tensor.delete": lambda holder, args, kwargs: self.delete(holder, *args),
            "glt.tensor.read": lambda holder, args, kwargs: self.read(holder, *args),
            "glt.tensor.change": lambda holder, args, kwargs: self.change(holder, *args),
            "glt.tensor.written": lambda holder, args, kwargs: self.written(),
        }


def _described(holder: Member) -> str:
    return f"trainer {holder.rank}, {holder}"


def _mismatch(spec: TensorSpec, found: StoredTensor) -> str:
    other = found.spec
    what = "" if str(other) != str(spec) else f" and init_func {other.init}, not {spec.init}"
    return (
        f"tensor {spec.name!r} cannot be created with {spec}: it exists with {other}{what}, created by "
        f"{found.created_by}. Use another name, find it by DistTensor.find({spec.name!r}), or delete it first"
    )


def update_calls(store: TensorStore, barriers: Barriers) -> dict[str, Call]:
    """What sparse optimizers ask of a server, with the arguments of :meth:`Barriers.arrive`: ``glt.rows.exchange``
    gives each trainer the values of all, by rank; ``glt.rows.step`` takes a step with them."""
    return {
        "glt.rows.exchange": lambda who, args, kwargs: barriers.arrive(who, *args, combine=list),
        "glt.rows.step": lambda who, args, kwargs: barriers.arrive(
            who, *args, combine=lambda values: take_step(store, values)
        ),
    }


def take_step(store: TensorStore, values: Sequence[Sequence[Mapping[str, Any]]]) -> list[bool]:
    """Takes a step with the gradients of all trainers, on the rows that are kept here.

    ``values``, by trainer and embedding, have ``rows [n]`` (int64) of this server with ``grads [n, dim]`` (float32), or
    None, and ``about``, the same for all trainers: ``kind`` of optimizer, ``name``, ``options``, the generations of
    ``weights`` and ``state``, and ``num_steps`` before this. Returns for each embedding whether any trainer had a
    gradient: then this was a step, even of no rows here. Raises ValueError, LookupError or IndexError before anything
    is changed.
    """
    require_equal([[each["about"] for each in parts] for parts in values], "embeddings")
    steps = []
    for parts in zip(*values, strict=True):
        about = parts[0]["about"]
        grads = [(each["rows"].numpy(), each["grads"].numpy()) for each in parts if each["rows"] is not None]
        shards = [store.stored(generation).shard for generation in (about["weights"], *about["state"])]
        steps.append((about, shards, bool(grads), _core.RowMerge(grads, len(shards[0]), *shards[0].row_shape)))
    for about, shards, has_grads, merge in steps:
        if has_grads:
            options = about["options"]
            scale = 1.0 / len(values) if options["reduction"] == "mean" else 1.0
            update = _UPDATES[about["kind"]]
            update(merge, shards, options, about["num_steps"] + 1, -scale if options["maximize"] else scale)
    return [has_grads for _, _, has_grads, _ in steps]


def _adagrad(
    merge: _core.RowMerge, shards: Sequence[Shard], options: Mapping[str, Any], step: int, scale: float
) -> None:
    lr = options["lr"] / (1 + (step - 1) * options["lr_decay"])
    weights, total = (shard.own() for shard in shards)
    merge.adagrad(weights, shards[0].dtype, total, scale, lr, options["eps"], torch.get_num_threads())


def _adam(merge: _core.RowMerge, shards: Sequence[Shard], options: Mapping[str, Any], step: int, scale: float) -> None:
    beta1, beta2 = options["betas"]
    lr = options["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    weights, mean, square = (shard.own() for shard in shards)
    factors = scale, lr, 1 - beta1, 1 - beta2, options["eps"]
    merge.adam(weights, shards[0].dtype, mean, square, *factors, torch.get_num_threads())


_Update = Callable[[_core.RowMerge, Sequence[Shard], Mapping[str, Any], int, float], None]
_UPDATES: dict[str, _Update] = {"adagrad": _adagrad, "adam": _adam}
