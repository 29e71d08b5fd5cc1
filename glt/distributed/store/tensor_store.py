"""The distributed tensors of a server: made, found and deleted by name, read and written by number."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from glt._checks import available_memory
from glt.distributed.store.initial_values import fill, needs_twice
from glt.distributed.store.placement import Placement
from glt.distributed.store.shard import Rows, Shard
from glt.distributed.store.stored_tensor import StoredTensor
from glt.distributed.store.tensor_spec import TensorSpec
from glt.distributed.store.turn import Turn

_MOST_TOMBSTONES = 4096


class Holder(Protocol):
    """A trainer as the store sees it: a :class:`~glt.distributed.service.session.Session`, or the process itself."""

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
        self, rank: int = 0, data: Any = None, owner: str = "this process",
        tables: Callable[[str, int, str, list[int]], Tensor] | None = None, num_threads: int | None = None,
    ) -> None:  # fmt: skip
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
            f"{end}: create it again, or find the one that has its name now" if end is not None else
            f"{self.owner} has no tensor number {generation}: it was restarted since, or the tensor deleted long ago"
        )  # fmt: skip

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
    ) -> None:  # fmt: skip
        """See :meth:`Shard.write`; it is the change of this ``number`` of a handle, or 0: of no order."""
        self._change(Shard.write, holder, generation, rows, values, handle, number)

    def add(
        self, holder: Any, generation: int, rows: Rows, values: Tensor, handle: str = "", number: int = 0
    ) -> None:  # fmt: skip
        """See :meth:`Shard.add` and :meth:`write`."""
        self._change(Shard.add, holder, generation, rows, values, handle, number)

    def _change(
        self, change: Callable[[Shard, Rows, Tensor], None], holder: Any, generation: int, rows: Rows, values: Tensor,
        handle: str, number: int,
    ) -> None:  # fmt: skip
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
