"""Steps of sparse optimizers where the rows are: what all trainers bring is merged once, then applied."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import available_memory
from glt.data.arrays import NativeView, as_numpy, pooled_empty
from glt.distributed.tensors.meeting import Meetings
from glt.distributed.tensors.spec import Placement, TensorSpec, fill, needs_twice

# The rows of one distributed tensor that a server keeps.


Rows = Tensor | tuple[int, int]


class Shard:
    """Rows that many threads read and change at a time: none is ever seen, or left, half-written.

    Reading and changing are done by native code without the GIL. Results do not depend on ``num_threads``; of calls
    that overlap, each row is dealt with by one after the other.

    Args:
        tensor: The rows ``[num_rows, ...]``, on the CPU.
        is_borrowed: Whether they are somebody else's, such as a mapped file's: they are only read, and the first change
            copies them.
        num_threads: Threads to use where there is much to do.

    Attributes:
        tensor: The rows. What is not done through this class is not guarded, except under the locks of ``table``.
    """

    def __init__(self, tensor: Tensor, is_borrowed: bool = False, num_threads: int = 1) -> None:
        self.is_borrowed, self.num_threads = is_borrowed, num_threads
        self._put(tensor.detach().contiguous())
        self._lock = threading.Lock()  # of the copy

    def _put(self, tensor: Tensor) -> None:
        view = NativeView([tensor], lambda: _core.RowTable(as_numpy(tensor)))
        view.get()  # before another thread can: there has to be one for all, since it has the locks
        self.tensor, self._view = tensor, view

    @property
    def table(self) -> _core.RowTable:
        """The native table over the rows."""
        return self._view.get()

    def read(self, rows: Rows) -> Tensor:
        """Returns rows ``[n, ...]``.

        Args:
            rows: Their numbers ``[n]``, int64; or a first one and how many.

        Raises:
            IndexError: If there is no such row; names the first.
        """
        numbers, first, n = self._parts(rows)
        out = pooled_empty((n, *self.tensor.shape[1:]), self.tensor.dtype)
        self.table.read(numbers, first, as_numpy(out), self.num_threads)
        return out

    def write(self, rows: Rows, values: Tensor) -> None:
        """Replaces rows by ``values [n, ...]``; of those that are named several times, the last value stays.

        Raises:
            IndexError: As of :meth:`read`; nothing is written then.
            TypeError, ValueError: If ``values`` do not fit.
        """
        self._require_fit(rows, values)
        numbers, first, _ = self._parts(rows)
        self.own().write(numbers, first, as_numpy(values.contiguous()), self.num_threads)

    def add(self, rows: Rows, values: Tensor) -> None:
        """Adds ``values [n, ...]`` to rows; those that are named several times get all of it, in the order given.

        Raises:
            TypeError: Besides those of :meth:`write`: of bool and float8.
        """
        self._require_fit(rows, values)
        numbers, first, _ = self._parts(rows)
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        self.own().add(numbers, first, as_numpy(values.contiguous()), dtype, self.num_threads)

    def own(self) -> _core.RowTable:
        """The table, of rows that are this shard's own: those that were borrowed are copied first."""
        with self._lock:
            if self.is_borrowed:
                room_bytes, limit = available_memory()
                if self.tensor.nbytes > room_bytes:
                    raise MemoryError(
                        f"the first write to mapped rows copies them, which takes {self.tensor.nbytes / 1e9:.3g} GB: "
                        f"{limit} is {room_bytes / 1e9:.3g} GB"
                    )
                self._put(self.tensor.clone())
                self.is_borrowed = False
            return self.table

    def _require_fit(self, rows: Rows, values: Tensor) -> None:
        if values.dtype != self.tensor.dtype:
            raise TypeError(f"values has dtype {values.dtype}: expected {self.tensor.dtype}, the tensor's")
        expected = (self._parts(rows)[2], *self.tensor.shape[1:])
        if values.shape != expected:
            raise ValueError(f"values has shape {list(values.shape)}: expected {list(expected)}")

    def _parts(self, rows: Rows) -> tuple[np.ndarray | None, int, int]:
        """Numbers of rows or None, the first, and how many; a range is checked before room is made for its rows."""
        if isinstance(rows, Tensor):
            return rows.contiguous().numpy(), 0, len(rows)
        first, n = map(int, rows)
        if not 0 <= first <= first + n <= len(self):
            raise IndexError(f"rows {first} to {first + n - 1} are outside [0, {len(self)})")
        return None, first, n

    def __len__(self) -> int:
        return len(self.tensor)


# The order in which the changes of one handle are made, whichever threads they come to.


class Turn:
    """Numbers of changes, from 1. They are begun in the order of their numbers, each when the one before is done, well
    or badly; whoever waits therefore waits for one that has a thread already."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_done = 0
        self._ended = False

    def end(self) -> None:
        """Nobody waits any more: what is still to come does not count on those before it, which may never come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, number: int) -> None:
        """Waits until the change of this number is done.

        Raises:
            RuntimeError: If it does not come, or was ended.
        """
        with self._changed:
            come = self._changed.wait_for(lambda: self._num_done >= number or self._ended, deadlines.TURN_S)
            if self._ended:
                raise RuntimeError("the trainer of this change is gone")
            if not come:
                raise RuntimeError(
                    f"change {self._num_done + 1} of a tensor did not come within {deadlines.TURN_S:g} s; "
                    "later ones wait for it"
                )

    @contextmanager
    def of(self, number: int) -> Iterator[None]:
        """Waits for the turn of a change, and ends it."""
        try:
            self.wait(number - 1)
            yield
        finally:
            with self._changed:
                self._num_done = max(self._num_done, number)
                self._changed.notify_all()


# A distributed tensor of which a server keeps some rows.


@dataclass(eq=False)
class StoredTensor:
    """A tensor of which this server keeps some rows.

    Attributes:
        spec: What it is.
        generation: Its number; no other tensor of this store, or of another that this one follows, has it.
        placement: Who keeps its rows.
        shard: Those of this server.
        created_by: Who made it.
        handles: Who holds it: trainers and the names they gave their handles.
        seen: Ranks of the trainers that have created it, or have left.
        peers: Its numbers on all servers; None until all are known to have it.
        turns: Of handles, the order of their changes.
        num_reads, num_writes, read_bytes, written_bytes: Since it was made; additions are writes.
    """

    spec: TensorSpec
    generation: int
    placement: Placement
    shard: Shard
    created_by: str
    handles: set[tuple[Any, str]] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    turns: dict[tuple[Any, str], Turn] = field(default_factory=dict)
    peers: list[int] | None = None
    num_reads: int = 0
    num_writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def stats(self) -> dict[str, Any]:
        """What the server has of it, and what was done with it."""
        return {
            "shape": list(self.spec.shape),
            "dtype": self.spec.dtype,
            "num_rows": len(self.shard),
            "num_bytes": self.shard.tensor.nbytes,
            "num_holders": len(self.handles),
            "num_reads": self.num_reads,
            "num_writes": self.num_writes,
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
        }


# The distributed tensors of a server: made, found and deleted by name, read and written by number.


_MOST_TOMBSTONES = 4096


class Holder(Protocol):
    """A trainer as the store sees it: a :class:`~glt.distributed.server.sessions.ClientSession`, or this process."""

    rank: int


Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class TensorStore:
    """Tensors of one server.

    Args:
        rank: Of the server.
        data: A dataset with ``node_books`` and ``edge_books``; None: tensors in even parts only.
        owner: What to call the server in errors.
        tables: Gives the rows of a table of the graph that partitions own: ``tables(kind, type_index, table,
            partitions)``; None: there are none.
        num_threads: For reading, changing and filling in many rows. Default: all processors, eight at most.
    """

    def __init__(
        self,
        rank: int = 0,
        data: Any = None,
        owner: str = "this process",
        tables: Callable[[str, int, str, list[int]], Tensor] | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.rank, self.data, self.owner, self.tables = rank, data, owner, tables
        self.num_threads = num_threads or min(8, len(os.sched_getaffinity(0)))
        self._lock = threading.Lock()
        self._creating = threading.Lock()  # one at a time: memory is forecast for one
        self._tensors: dict[int, StoredTensor] = {}
        self._named: dict[str, int] = {}
        self._ends: OrderedDict[int, str] = OrderedDict()  # what became of those that are no more
        self._gone: weakref.WeakSet[Any] = weakref.WeakSet()  # trainers whose calls may still be under way
        self._last = time.time_ns()  # so that a server that was restarted gives other numbers than before

    # -- by name -----------------------------------------------------------------------------------------------------

    def create(self, holder: Any, told: dict[str, Any], handle: str) -> dict[str, Any]:
        """Makes a tensor, or finds the same one.

        Args:
            holder: Who asks.
            told: See :meth:`TensorSpec.to_json`.
            handle: What the trainer calls what it holds; :meth:`release` gives it up.

        Returns:
            ``generation``, its number; whether it ``is_new``; and its ``peers``, see :meth:`made`.

        Raises:
            ValueError: If there is another one of this name, or it cannot be placed here.
            MemoryError: If it does not fit.
        """
        spec = TensorSpec.from_json(told)
        with self._creating:
            found = self._find(spec.name)
            if found is None:
                made = self._make(holder, spec)
                self._hold(made, holder, handle)
                return {"generation": made.generation, "is_new": True, "peers": None}
            if found.spec != spec:
                raise ValueError(_mismatch(spec, found))
            self._hold(found, holder, handle)
            return {"generation": found.generation, "is_new": False, "peers": found.peers}

    def made(self, generation: int, peers: list[int]) -> None:
        """Takes note of the numbers of a tensor on all servers: where one has another later, its rows are lost."""
        self.stored(generation).peers = [int(each) for each in peers]

    def _make(self, holder: Any, spec: TensorSpec) -> StoredTensor:
        placement = Placement.from_spec(spec.placement, self.data)
        num_rows = placement.rows_on(self.rank)
        if placement.num_rows != spec.shape[0]:
            raise ValueError(f"shape[0] = {spec.shape[0]}: expected {placement.num_rows}, the rows that are placed")
        if spec.init["kind"] == "table":
            rows = self._stored_rows(spec, placement, num_rows)
            return self._keep(holder, spec, placement, Shard(rows, is_borrowed=True, num_threads=self.num_threads))
        self._require_room(spec, num_rows * (1 + needs_twice(spec.init)))
        try:
            rows = torch.empty((num_rows, *spec.row_shape), dtype=spec.torch_dtype)
        except RuntimeError as error:  # the kernel promises no more, whatever is available
            raise MemoryError(f"tensor {spec.name!r} ({spec}) on {self.owner}: {error}") from error
        shard = Shard(rows, num_threads=self.num_threads)
        fill(shard.tensor, spec, placement, self.rank, self.num_threads)  # large pages were asked for by now
        return self._keep(holder, spec, placement, shard)

    def _keep(self, holder: Any, spec: TensorSpec, placement: Placement, shard: Shard) -> StoredTensor:
        with self._lock:
            self._last += 1
            made = StoredTensor(spec, self._last, placement, shard, _who(holder))
            self._tensors[made.generation] = made
            self._named[spec.name] = made.generation
        return made

    def _stored_rows(self, spec: TensorSpec, placement: Placement, num_rows: int) -> Tensor:
        """Those of a table that the graph was partitioned with, mapped from its file."""
        if self.tables is None:
            raise ValueError(f"{self.owner} has no graph: there are no stored tables")
        parts = [part for part, server in enumerate(placement.server_of) if server == self.rank]
        init = spec.init
        rows = (
            self.tables(init["of"], init["type"], init["table"], parts)
            if parts
            else torch.empty((0, *spec.row_shape), dtype=spec.torch_dtype)
        )
        if rows.shape != (num_rows, *spec.row_shape) or rows.dtype != spec.torch_dtype:
            raise ValueError(f"{spec}: the stored table has {num_rows} rows of {rows.dtype} {list(rows.shape[1:])}")
        return rows

    def _require_room(self, spec: TensorSpec, num_rows: int) -> None:
        need_bytes = num_rows * spec.row_bytes
        room_bytes, limit = available_memory()
        if need_bytes > room_bytes:
            raise MemoryError(
                f"tensor {spec.name!r} ({spec}) needs {need_bytes / 1e9:.3g} GB for {num_rows} rows on {self.owner}: "
                f"{limit} is {room_bytes / 1e9:.3g} GB. Use a smaller dtype, more servers, or delete other tensors"
            )

    def open(self, holder: Any, name: str, handle: str) -> dict[str, Any]:
        """Finds a tensor; returns its ``spec``, ``generation`` and ``peers``.

        Raises:
            LookupError: If there is none of this name; names those there are.
        """
        found = self._find(name)
        if found is None:
            with self._lock:
                names = sorted(self._named)
            raise LookupError(f"name = {name!r}: {self.owner} has no such tensor; it has {names}")
        self._hold(found, holder, handle)
        return {"generation": found.generation, "spec": found.spec.to_json(), "peers": found.peers}

    def _find(self, name: str) -> StoredTensor | None:
        with self._lock:
            generation = self._named.get(name)
            return None if generation is None else self._tensors[generation]

    def _hold(self, stored: StoredTensor, holder: Any, handle: str) -> None:
        with self._lock:
            stored.handles.add((holder, handle))
            stored.seen.add(holder.rank)

    # -- the end -----------------------------------------------------------------------------------------------------

    def delete(self, holder: Any, generation: int) -> None:
        """Deletes a tensor; whoever holds it gets an error that says who did. Deleting it again does nothing."""
        with self._lock:
            self._remove(generation, f"was deleted by {_who(holder)}")

    def undo(self, holder: Any, generation: int, why: str) -> None:
        """Removes what could not be created on all servers."""
        with self._lock:
            self._remove(generation, f"could not be created by {_who(holder)}: {why}")

    def release(self, holder: Any, generation: int, handle: str, line: str = "", after: int = 0) -> None:
        """Gives up a handle; the last one of an anonymous tensor frees it.

        Args:
            holder, generation, handle: As given when it was made or found.
            line, after: What its last changes were known by, and how many these were: they are made first.
        """
        with self._lock:
            stored = self._tensors.get(generation)
        if stored is None:
            return
        if after:
            self._turn(stored, holder, line).wait(after)
        with self._lock:
            stored.turns.pop((holder, line), None)
            if generation in self._tensors:
                stored.handles.discard((holder, handle))
                self._free_if_unheld(stored)

    def end_session(self, holder: Any) -> None:
        """Gives up all that a trainer holds."""
        with self._lock:
            self._gone.add(holder)
            for stored in list(self._tensors.values()):
                for key, turn in stored.turns.items():
                    if key[0] is holder:
                        turn.end()
                stored.handles = {each for each in stored.handles if each[0] is not holder}
                stored.turns = {key: turn for key, turn in stored.turns.items() if key[0] is not holder}
                stored.seen.add(holder.rank)
                self._free_if_unheld(stored)

    def _free_if_unheld(self, stored: StoredTensor) -> None:
        everyone = len(stored.seen) >= stored.spec.num_trainers  # none is still to come
        if stored.spec.is_anonymous and everyone and not stored.handles:
            self._remove(stored.generation, "was freed, since no trainer held it any more")

    def _remove(self, generation: int, why: str) -> None:
        stored = self._tensors.pop(generation, None)
        if stored is None:
            return
        if self._named.get(stored.spec.name) == generation:
            del self._named[stored.spec.name]
        self._ends[generation] = f"tensor {stored.spec.name!r} {why}"
        while len(self._ends) > _MOST_TOMBSTONES:
            self._ends.popitem(last=False)

    # -- rows --------------------------------------------------------------------------------------------------------

    def stored(self, generation: int) -> StoredTensor:
        """The tensor of a number.

        Raises:
            LookupError: If there is none any more; says who deleted it.
        """
        with self._lock:
            stored = self._tensors.get(generation)
            if stored is not None:
                return stored
            end = self._ends.get(generation)
        raise LookupError(
            f"{end}: create it again, or find the one that has its name now"
            if end is not None
            else f"{self.owner} has no tensor number {generation}: it was restarted since, or the tensor was deleted"
        )

    def read(self, holder: Any, generation: int, rows: Rows, handle: str = "", after: int = 0) -> Tensor:
        """See :meth:`Shard.read`; the first ``after`` changes of a handle are made by then."""
        stored = self.stored(generation)
        if after:
            self._turn(stored, holder, handle).wait(after)
        found = stored.shard.read(rows)
        with self._lock:
            stored.num_reads += 1
            stored.read_bytes += found.nbytes
        return found

    def write(
        self, holder: Any, generation: int, rows: Rows, values: Tensor, handle: str = "", number: int = 0
    ) -> None:
        """See :meth:`Shard.write`; it is the change of this ``number`` of a handle, or 0: of no order."""
        self._change(Shard.write, holder, generation, rows, values, handle, number)

    def add(self, holder: Any, generation: int, rows: Rows, values: Tensor, handle: str = "", number: int = 0) -> None:
        """See :meth:`Shard.add` and :meth:`write`."""
        self._change(Shard.add, holder, generation, rows, values, handle, number)

    def _change(
        self,
        change: Callable[[Shard, Rows, Tensor], None],
        holder: Any,
        generation: int,
        rows: Rows,
        values: Tensor,
        handle: str,
        number: int,
    ) -> None:
        stored = self.stored(generation)
        with self._turn(stored, holder, handle).of(number) if number else nullcontext():
            change(stored.shard, rows, values)
        with self._lock:
            stored.num_writes += 1
            stored.written_bytes += values.nbytes

    def _turn(self, stored: StoredTensor, holder: Any, handle: str) -> Turn:
        with self._lock:
            if holder in self._gone:
                raise RuntimeError("the trainer of this change is gone")
            return stored.turns.setdefault((holder, handle), Turn())

    # -- what there is -----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of all tensors."""
        with self._lock:
            return sorted(self._named)

    def written(self) -> list[str]:
        """Names of the tables of the graph whose rows here are no longer those of the files."""
        with self._lock:
            return [
                each.spec.name
                for each in self._tensors.values()
                if each.spec.table is not None and not each.shard.is_borrowed
            ]

    def stats(self) -> dict[str, dict[str, Any]]:
        """Numbers of each tensor, by name: see :meth:`StoredTensor.stats`."""
        with self._lock:
            return {each.spec.name: each.stats() for each in self._tensors.values()}


def store_calls(store: TensorStore) -> dict[str, Call]:
    """What trainers may ask of a store, by name; each takes who asks, its arguments and its keyword arguments."""
    return {
        "glt.tensor.create": lambda who, args, kwargs: store.create(who, *args, **kwargs),
        "glt.tensor.open": lambda who, args, kwargs: store.open(who, *args, **kwargs),
        "glt.tensor.release": lambda who, args, kwargs: store.release(who, *args, **kwargs),
        "glt.tensor.delete": lambda who, args, kwargs: store.delete(who, *args, **kwargs),
        "glt.tensor.made": lambda who, args, kwargs: store.made(*args, **kwargs),
        "glt.tensor.undo": lambda who, args, kwargs: store.undo(who, *args, **kwargs),
        "glt.tensor.read": lambda who, args, kwargs: store.read(who, *args, **kwargs),
        "glt.tensor.write": lambda who, args, kwargs: store.write(who, *args, **kwargs),
        "glt.tensor.add": lambda who, args, kwargs: store.add(who, *args, **kwargs),
        "glt.tensor.written": lambda who, args, kwargs: store.written(),
        "glt.tensor.names": lambda who, args, kwargs: store.names(),
    }


def _who(holder: Any) -> str:
    return f"trainer {holder.rank}, {holder}"


def _mismatch(spec: TensorSpec, found: StoredTensor) -> str:
    other = found.spec
    what = "" if str(other) != str(spec) else f" and init_func {other.init}, not {spec.init}"
    return (
        f"tensor {spec.name!r} cannot be created with {spec}: it exists with {other}{what}, created by "
        f"{found.created_by}. Use another name, find it by DistTensor.find({spec.name!r}), or delete it first"
    )


def row_update_calls(store: TensorStore, meetings: Meetings) -> dict[str, Call]:
    """What trainers of a sparse optimizer may ask of a server, by name.

    Both are meetings of all trainers, with the arguments of :meth:`Meetings.arrive`: ``glt.rows.exchange`` gives each
    what all of them bring, by rank, and ``glt.rows.step`` takes a step with it, see :func:`apply`.
    """

    def exchange(who: Any, tag: str, number: int, num: int, timeout_s: float, told: Any) -> Future[list[Any]]:
        return meetings.arrive(tag, number, who, num, told, finish=list, timeout_s=timeout_s)

    def step(who: Any, tag: str, number: int, num: int, timeout_s: float, parts: Any) -> Future[list[bool]]:
        return meetings.arrive(
            tag, number, who, num, parts, finish=lambda all_: apply(store, all_), timeout_s=timeout_s
        )

    return {
        "glt.rows.exchange": lambda who, args, kwargs: exchange(who, *args),
        "glt.rows.step": lambda who, args, kwargs: step(who, *args),
    }


def require_equal(everyone: Sequence[Any], what: str = "") -> None:
    """Raises ValueError where trainers bring different values; names which, by path, and two trainers."""
    for rank, theirs in enumerate(everyone):
        found = _difference(everyone[0], theirs, what)
        if found is not None:
            path, first, other = found
            raise ValueError(
                f"{path} = {other!r} on trainer {rank}, {first!r} on trainer 0: expected the same on all trainers"
            )


def _difference(first: Any, other: Any, path: str) -> tuple[str, Any, Any] | None:
    if isinstance(first, Mapping) and isinstance(other, Mapping) and first.keys() == other.keys():
        pairs = [(f"{path}.{key}" if path else str(key), first[key], other[key]) for key in first]
    elif isinstance(first, list | tuple) and isinstance(other, list | tuple) and len(first) == len(other):
        pairs = [(f"{path}[{at}]", *both) for at, both in enumerate(zip(first, other, strict=True))]
    else:
        return None if first == other else (path, first, other)
    return next((found for at, a, b in pairs if (found := _difference(a, b, at)) is not None), None)


def apply(store: TensorStore, everyone: Sequence[Sequence[Mapping[str, Any]]]) -> list[bool]:
    """Takes a step with the gradients of all trainers, on the rows that are kept here.

    Args:
        store: With the weights and the state.
        everyone: By trainer, then by embedding: ``told``, the same for all trainers, and ``rows [n]`` (int64) of this
            server with ``grads [n, dim]`` (float32), or None. ``told`` has the ``kind`` of optimizer, the ``name`` of
            the embedding, its ``options``, the generations of ``weights`` and ``state``, and ``num_steps`` before this.

    Returns:
        For each embedding, whether any trainer had a gradient: then this was a step, even of no rows here.

    Raises:
        ValueError: If trainers were told different things.
        LookupError: If a tensor was deleted.
        IndexError: If a row is not of this server. Nothing has been changed then.
    """
    require_equal([[each["told"] for each in parts] for parts in everyone], "embeddings")
    updates = []
    for parts in zip(*everyone, strict=True):
        told = parts[0]["told"]
        brought = [(each["rows"], each["grads"]) for each in parts if each["rows"] is not None]
        shards = [store.stored(generation).shard for generation in (told["weights"], *told["state"])]
        updates.append((told, brought, shards, _merge(brought, shards[0])))
    for told, brought, shards, merge in updates:
        if brought:
            _KINDS[told["kind"]](merge, shards, told["options"], told["num_steps"] + 1, len(everyone))
    return [bool(brought) for _, brought, _, _ in updates]


def _merge(brought: Sequence[tuple[Tensor, Tensor]], weights: Shard) -> _core.RowMerge:
    num_rows, dim = weights.tensor.shape
    return _core.RowMerge([(rows.numpy(), grads.numpy()) for rows, grads in brought], num_rows, dim)


def _adagrad(
    merge: _core.RowMerge, shards: Sequence[Shard], options: Mapping[str, Any], step: int, num_trainers: int
) -> None:
    lr = options["lr"] / (1 + (step - 1) * options["lr_decay"])
    weights, total = (shard.own() for shard in shards)
    scale = _scale(options, num_trainers)
    merge.adagrad(weights, _dtype(shards[0]), total, scale, lr, options["eps"], torch.get_num_threads())


def _adam(
    merge: _core.RowMerge, shards: Sequence[Shard], options: Mapping[str, Any], step: int, num_trainers: int
) -> None:
    beta1, beta2 = options["betas"]
    step_size = options["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    weights, mean, square = (shard.own() for shard in shards)
    scale = _scale(options, num_trainers)
    merge.adam(
        weights,
        _dtype(shards[0]),
        mean,
        square,
        scale,
        step_size,
        1 - beta1,
        1 - beta2,
        options["eps"],
        torch.get_num_threads(),
    )


_KINDS: dict[str, Callable[[_core.RowMerge, Sequence[Shard], Mapping[str, Any], int, int], None]] = {
    "adagrad": _adagrad,
    "adam": _adam,
}


def _scale(options: Mapping[str, Any], num_trainers: int) -> float:
    scale = 1.0 / num_trainers if options["reduction"] == "mean" else 1.0
    return -scale if options["maximize"] else scale


def _dtype(shard: Shard) -> str:
    return str(shard.tensor.dtype).removeprefix("torch.")
