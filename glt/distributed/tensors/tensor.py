"""A tensor whose rows servers keep: named, read and written from any trainer."""

from __future__ import annotations

import itertools
import logging
import os
import reprlib
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _deadlines as deadlines
from glt._checks import format_size
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids, require_data, require_in_range
from glt.data.schema import EdgeType, NodeType
from glt.distributed.context import World, require_world
from glt.distributed.tensors.checkpoint import load_tensors, save_tensors
from glt.distributed.tensors.exchange import ChangeSequence, Exchange, open_everywhere
from glt.distributed.tensors.spec import (
    Placement,
    RowIds,
    TensorSpec,
    checked_dtype,
    checked_name,
    checked_shape,
    encode_init,
    is_kind_of,
    number_as,
    require_writable,
)

logger = logging.getLogger(__name__)

_NOT_ADDED = (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


@short_traceback
class DistTensor:
    """A dense tensor whose rows are on the servers, read and written by row from any trainer.

    ``tensor[ids]`` reads, ``tensor[ids] = values`` writes and returns when the owners have acknowledged it. ``ids`` is
    a tensor, an array or a list of row numbers, a mask of all rows, a slice, or one number, which gives a row without
    the first dimension. A mask is of bools, or of zeros and ones in uint8, as DGL stores them and torch reads them:
    ids in uint8 are refused. A ``DistTensor`` as index or values is read whole. Negative numbers are refused, but in
    slices. Results are in CPU memory; tensors of ids and values may be anywhere.

    **Order.** Through one ``DistTensor``, changes take effect in the order in which they were asked for, and a read
    sees all that were asked for before it, acknowledged or not. Of other trainers (or other handles), a read sees what
    was acknowledged before it began: ``flush()`` waits for the acknowledgements of :meth:`write_async`, and a barrier
    behind it makes all trainers see it. Where a row is named several times in one write, the last value stays. Writers
    of the same row at the same time never mix: a row is one writer's or the other's. Several rows are not written at
    once: a reader may see some of them new and some old.

    **Creation.** All trainers create it with the same arguments, in any order, without waiting for each other: the
    first one makes it. A tensor with a name stays until it is deleted or the servers end; one without is freed as soon
    as all trainers have created it and none holds it any more, and is told apart by the order in which a trainer
    creates such tensors.

    Args:
        shape: Of the whole tensor, rows first, at most four dimensions.
        dtype: Any that glt stores, bfloat16 and float8 too.
        name: What it is found by; it does not begin with ``glt/``.
        init_func: First values: None or ``'zeros'``; ``'ones'``; ``('constant', number)``; ``'uniform'`` in [0, 1) or
            ``('uniform', low, high)``; ``'normal'`` or ``('normal', mean, deviation)``; or a function given to
            :func:`glt.distributed.register_server_function` on the servers (or its name), which they call as
            ``func(shape, dtype)`` with the shape of the rows that each keeps, or, if it takes three arguments, as
            ``func(shape, dtype, ids)`` for some rows at a time, with their numbers ``[shape[0]]``, int64. Random values
            are a function of the row, the column, the name and ``rng_seed``: the same with any number of servers.
        part: The node type or edge type that its rows belong to, to keep each where that node or edge is; ``"node"``
            and ``("node", "to", "node")`` of a homogeneous graph. None: even parts, in order.
        rng_seed: Of random first values.
        world: Default: that of this process.

    Attributes:
        placement: Which server keeps which row.
        generations: By server, the number by which it knows the tensor.
        is_deleted: Whether this handle has heard that the tensor was deleted.

    Raises:
        ValueError: If there is another tensor of this name (names both), or an argument is wrong.
        TypeError: If an argument is of the wrong type.
        MemoryError: If it does not fit into the memory of a server; no memory was taken then.
        LookupError: If no function is registered under the name of ``init_func``, or a server has lost its rows.
        glt.errors.PeerLost: If a server is lost.

    Example:
        >>> glt.distributed.initialize()
        >>> counts = glt.distributed.DistTensor([5], torch.int64, "counts")
        >>> counts.add(torch.tensor([0, 3, 3]), 1)
        >>> counts[:]
        tensor([1, 0, 0, 2, 0])
        >>> glt.distributed.finalize()
    """

    world: World
    spec: TensorSpec
    name: str
    dtype: torch.dtype
    shape: torch.Size
    is_deleted: bool

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        name: str | None = None,
        init_func: Any = None,
        part: NodeType | EdgeType | None = None,
        *,
        rng_seed: int = 0,
        world: World | None = None,
    ) -> None:
        world = require_world() if world is None else world
        sizes = checked_shape(shape)
        spec = TensorSpec(
            checked_name(name) or Handles.of(world).next_name(),
            sizes,
            checked_dtype(dtype),
            Placement.of(part, sizes[0], world).spec(),
            encode_init(init_func, dtype, rng_seed),
            name is None,
            world.num_trainers,
        )
        self._open(world, spec, "glt.tensor.create", spec.to_json())

    @classmethod
    @short_traceback
    def find(cls, name: str, *, world: World | None = None) -> DistTensor:
        """Finds a tensor that some trainer has created; LookupError names those there are."""
        self = cls.__new__(cls)
        self._open(require_world() if world is None else world, None, "glt.tensor.open", name)
        return self

    def _open(self, world: World, spec: TensorSpec | None, call: str, asked: Any) -> None:
        handles, handle = Handles.of(world), secrets.token_hex(8)
        handles.release_dropped()
        answers = open_everywhere(world, call, asked, handle)
        if spec is None:
            specs = [answer["spec"] for answer in answers]
            if any(each != specs[0] for each in specs):  # deleted and created again in between
                raise LookupError(f"tensor {specs[0]['name']!r} is being created or deleted: find it again")
            spec = TensorSpec.from_json(specs[0])
        self.world, self.spec = world, spec
        self.name, self.shape, self.dtype = spec.name, torch.Size(spec.shape), spec.torch_dtype
        self.is_deleted = False
        self.generations: tuple[Any, ...] = tuple(answer["generation"] for answer in answers)
        self.placement: Placement = Placement.from_spec(spec.placement, world.data)
        self._exchange = Exchange(world, self.placement, spec, self.generations)
        handles.hold(self, handle, self._exchange.sequences)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return len(self) * self.spec.row_bytes

    @short_traceback
    def __getitem__(self, ids: Any) -> Tensor:
        """Reads rows ``[n, ...]``. IndexError names the first row that is not there, LookupError who deleted the
        tensor; TypeError or ValueError if ``ids`` is no index, PeerLost if an owner is lost."""
        rows, is_single = _selected(ids, len(self))
        try:
            found = self._exchange.read(rows)
        except LookupError as error:
            self._notice_deletion(error)
            raise
        return found[0] if is_single else found

    @short_traceback
    def __setitem__(self, ids: Any, values: Any) -> None:
        """Writes values ``[n, ...]`` of the same dtype, or one number, and waits until that is acknowledged. Raises as
        reading; TypeError or ValueError also if values do not fit; nothing is written then."""
        self._wait(self._change("write", ids, values))

    @short_traceback
    def write_async(self, ids: Any, values: Any) -> Future[None]:
        """Writes rows; the future is done when that is acknowledged. ``values`` may be changed at once. Errors of
        arguments are raised here, later ones by the future and :meth:`flush`. Waits while an owner has more to do than
        a few pieces of 8 MiB."""
        return self._change("write", ids, values)

    @short_traceback
    def add(self, ids: Any, values: Any) -> None:
        """Adds to rows, and waits until that is acknowledged. A row that is named several times gets all of it. Each
        addition is rounded to the tensor's dtype. Additions of several trainers are all made, in any order: of floats
        the last bits depend on it. Raises as writing; TypeError also of bool and float8."""
        self._wait(self._change("add", ids, values))

    @short_traceback
    def add_async(self, ids: Any, values: Any) -> Future[None]:
        """As :meth:`add`, without waiting; see :meth:`write_async`."""
        return self._change("add", ids, values)

    @short_traceback
    def flush(self) -> None:
        """Waits until all changes made through this tensor are acknowledged; raises the first error since the last
        flush."""
        self._exchange.flush()

    def delete(self) -> None:
        """Deletes the tensor for all trainers: calls of others raise a LookupError that names this one."""
        numbered = enumerate(self.generations)
        replies = [self.world.call(server, "glt.tensor.delete", generation) for server, generation in numbered]
        for reply in replies:
            reply.result()
        self.is_deleted = True

    @short_traceback
    def save(self, path: str | os.PathLike[str]) -> None:
        save_tensors({"tensor": self}, path)

    @short_traceback
    def load(self, path: str | os.PathLike[str]) -> None:
        """Overwrites it with what :meth:`save` wrote, with any number of servers and trainers; see
        :func:`load_tensors`. One trainer does that."""
        load_tensors({"tensor": self}, path)

    def _change(self, kind: str, ids: Any, values: Any) -> Future[None]:
        rows, is_single = _selected(ids, len(self))
        if kind == "add" and self.dtype in _NOT_ADDED:
            raise TypeError(f"add to a tensor of {self.dtype}: expected integers, or floats of 16 bits and more")
        given = self._values(values, self.shape[1:] if is_single else torch.Size((len(rows), *self.shape[1:])))
        if self.spec.table is not None:
            require_writable(self.spec.table, f"tensor {self.name!r}")
            Handles.of(self.world).written.add(self.name)  # from now on loaders read it here
        return self._exchange.change(kind, rows, given.reshape(len(rows), *self.shape[1:]).contiguous())

    def _values(self, values: Any, shape: torch.Size) -> Tensor:
        if isinstance(values, bool | int | float | complex):
            return number_as(self.dtype, values, f"values = {values!r}").expand(shape)
        values = values[:] if isinstance(values, DistTensor) else values
        expected = "rows of numbers in a tensor, an array or a list, or one number"
        given = values if isinstance(values, Tensor) else as_tensor("values", values, expected)
        require_data(given, "values")
        is_list = not isinstance(values, Tensor | np.ndarray)
        if is_list and (not given.numel() or is_kind_of(given.flatten()[0].item(), self.dtype)):
            try:
                given = torch.as_tensor(values, dtype=self.dtype)  # a list has no dtype
            except (RuntimeError, OverflowError) as error:  # such as 300 as uint8
                raise ValueError(f"values = {values!r}: expected what {self.dtype} holds ({error})") from error
        if given.dtype != self.dtype:
            raise TypeError(
                f"values has dtype {given.dtype}: expected {self.dtype}, the tensor's; convert it with .to()"
            )
        if given.layout != torch.strided or given.shape != shape:
            raise ValueError(
                f"values is a {given.layout} tensor of shape {list(given.shape)}: expected a dense one of "
                f"{list(shape)}, a row for each of ids"
            )
        return given.detach().cpu().resolve_conj().resolve_neg()

    def _wait(self, done: Future[None]) -> None:
        try:
            self._exchange.wait(done)
        except Exception as error:
            self._notice_deletion(error)
            raise

    def _notice_deletion(self, error: Exception) -> None:
        self.is_deleted |= type(error) is LookupError  # a row that is not there is an IndexError

    def __reduce__(self) -> Any:
        raise TypeError(f"a DistTensor is not pickled: in the other process, use DistTensor.find({self.name!r})")

    @says
    def __repr__(self) -> str:
        state = ", deleted" if self.is_deleted else ""
        dtype = str(self.dtype).removeprefix("torch.")
        servers = f"on {self.world.num_servers} servers"
        return f"{self.name!r}, {dtype} {list(self.shape)}, {format_size(self.nbytes)} {servers}{state}"


def _selected(index: Any, num_rows: int) -> tuple[RowIds, bool]:
    """The rows that an index stands for, and whether it is one number, whose row has no first dimension. IndexError
    names the first row that is not there; TypeError or ValueError if it is no index, mask or ids of one dimension."""
    index = index[:] if isinstance(index, DistTensor) else index
    if isinstance(index, slice):
        first, last, step = index.indices(num_rows)
        return (range(first, max(first, last)) if step == 1 else np.arange(first, last, step)), False
    if isinstance(index, tuple) or index is None or index is Ellipsis:
        raise TypeError(f"ids = {index!r}: expected rows, as a number, a slice, a mask, or ids; index the result")
    value = index if isinstance(index, Tensor | list) else np.asarray(index, order="C")
    if not isinstance(value, list) and value.ndim == 0:
        id_ = value.item()
        if isinstance(id_, bool) or not isinstance(id_, int):
            raise TypeError(f"ids = {id_!r}: expected an integer, a slice, a mask, or ids")
        if not 0 <= id_ < num_rows:
            raise IndexError(f"ids = {id_} is outside [0, {num_rows}), the rows of the tensor")
        return range(id_, id_ + 1), True
    ids = as_ids(value, "ids", num_rows)
    require_in_range("ids", ids, num_rows, ", the rows of the tensor")
    return ids.numpy(), False


def as_tensor(name: str, given: Any, expected: str) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(given, order="C"))
    except (TypeError, ValueError) as error:  # text, objects, rows of several lengths
        raise TypeError(f"{name} = {reprlib.repr(given)}: expected {expected} ({error})") from error


# What a trainer holds: owners free a tensor when no trainer holds it any more.


class Handles:
    """The tensors of one world that this trainer holds (``open``), and names of the graph's tables that it has written
    to. A tensor may be collected anywhere, even under a lock of a call to its owners: it is then only put on a list,
    and a thread calls its owners."""

    def __init__(self, world: World) -> None:
        self.open: weakref.WeakSet[DistTensor] = weakref.WeakSet()
        self.written: set[str] = set()
        self._numbers = itertools.count()
        self._dropped: deque[_Dropped] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()  # whether to go on; may be put to within a put
        self._releasing = threading.Lock()
        self._world = weakref.ref(world)
        self._thread: threading.Thread | None = None
        weakref.finalize(world, self._wake.put, False).atexit = False

    @classmethod
    def of(cls, world: World) -> Handles:
        with _lock:
            if world not in _of_world:
                _of_world[world] = cls(world)
            return _of_world[world]

    def next_name(self) -> str:
        """A name that is the same in all trainers, which create tensors in the same order."""
        return f"glt/anonymous/{next(self._numbers)}"

    def hold(self, tensor: DistTensor, handle: str, sequences: list[ChangeSequence]) -> None:
        """Holds a tensor until it is collected and the changes of these sequences, one per server, are made."""
        self.open.add(tensor)
        weakref.finalize(tensor, _drop, self._dropped, self._wake, (handle, sequences)).atexit = False
        with self._releasing:
            if self._thread is None:
                args = self._wake, weakref.ref(self)
                self._thread = threading.Thread(target=_release_all, args=args, name="glt-release", daemon=True)
                self._thread.start()

    def release_dropped(self) -> None:
        """Asks the owners to release what was collected; does not wait."""
        with self._releasing:
            while self._dropped and (world := self._world()) is not None:
                handle, sequences = self._dropped.popleft()
                for server, each in enumerate(sequences):
                    try:
                        world.call(server, "glt.tensor.release", each.generation, handle, each.id, each.num_sent)
                    except RuntimeError as error:  # the server is lost, and its tensors with it
                        logger.info("a tensor was not released: %s", error)

    def end(self) -> None:
        with self._releasing:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._wake.put(False)
            thread.join(deadlines.JOIN_S)


_Dropped = tuple[str, list[ChangeSequence]]


def _drop(dropped: deque[_Dropped], wake: SimpleQueue[bool], what: _Dropped) -> None:
    dropped.append(what)
    wake.put(True)


def _release_all(wake: SimpleQueue[bool], handles: weakref.ref[Handles]) -> None:
    """Runs until the world ends or is collected."""
    while wake.get() and (known := handles()) is not None:
        known.release_dropped()
        del known


_lock = threading.Lock()
_of_world: weakref.WeakKeyDictionary[Any, Handles] = weakref.WeakKeyDictionary()


def flush_all(world: World) -> None:
    """Flushes all tensors of a world that this trainer holds: what a barrier does first."""
    handles = Handles.of(world)
    handles.release_dropped()
    for tensor in list(handles.open):
        tensor.flush()
