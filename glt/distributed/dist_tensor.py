"""A tensor whose rows servers keep: named, read and written from any trainer."""

from __future__ import annotations

import os
import reprlib
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import require_data
from glt.data.schema import EdgeType, NodeType
from glt.distributed.store.checkpoint import load_tensors, save_tensors
from glt.distributed.store.exchange import Exchange
from glt.distributed.store.handles import Handles
from glt.distributed.store.initial_values import encode_init
from glt.distributed.store.opening import open_everywhere
from glt.distributed.store.placement import Placement
from glt.distributed.store.selection import Selection
from glt.distributed.store.stored_table import require_writable
from glt.distributed.store.tensor_spec import TensorSpec, checked_dtype, checked_name, checked_shape, is_kind_of
from glt.distributed.world import World, require_world


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

    **Creation.** All trainers create it with the same arguments, in any order; the first one makes it, nobody waits. A
    tensor with a name stays until it is deleted or the servers end; one without is freed as soon as all trainers have
    created it and none holds it any more, and is told apart by the order in which a trainer creates such tensors.

    Args:
        shape: Of the whole tensor, rows first, at most four dimensions.
        dtype: Any that glt stores, bfloat16 and float8 too.
        name: What it is found by; it does not begin with ``glt/``.
        init_func: First values: None or ``'zeros'``; ``'ones'``; ``('constant', number)``; ``('uniform', low, high)``;
            ``('normal', mean, deviation)``; or a function given to :func:`glt.distributed.register_server_function` on
            the servers (or its name), which they call as ``func(shape, dtype)`` with the shape of the rows that each
            keeps, or, if it takes three arguments, as ``func(shape, dtype, ids)`` for some rows at a time, with their
            numbers. Random values are a function of the row, the column, the name and ``rng_seed``: the same with any
            number of servers.
        part: The node type or edge type that its rows belong to, to keep each where that node or edge is; ``"node"``
            and ``("node", "to", "node")`` of a homogeneous graph. None: even parts, in order.
        rng_seed: Of random first values.
        world: Default: that of this process.

    Attributes:
        name, shape, dtype, world: As given.
        placement: Which server keeps which row.
        generations: By server, the number by which it knows the tensor.
        is_deleted: Whether this handle was told that there is no such tensor any more.

    Raises:
        ValueError: If there is another tensor of this name (names both), or an argument is wrong.
        TypeError: If an argument is of the wrong type.
        MemoryError: If it does not fit into the memory of a server; no memory was taken then.
        LookupError: If no function is registered under the name of ``init_func``, or a server has lost its rows.
        glt.errors.PeerLost: If a server is lost.
    """

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
        checked = checked_shape(shape)
        placement = Placement.of(part, checked[0], world)
        spec = TensorSpec(
            checked_name(name) or Handles.of(world).next_name(), checked, checked_dtype(dtype), placement.spec(),
            encode_init(init_func, dtype, rng_seed), name is None, world.num_trainers,
        )  # fmt: skip
        self._open(world, spec, "glt.tensor.create", (spec.to_json(),))

    @classmethod
    def find(cls, name: str, *, world: World | None = None) -> DistTensor:
        """Finds a tensor that some trainer has created.

        Raises:
            LookupError: If there is none of this name; names those there are.
        """
        self = cls.__new__(cls)
        self._open(require_world() if world is None else world, None, "glt.tensor.open", (name,))
        return self

    def _open(self, world: World, spec: TensorSpec | None, call: str, args: tuple[Any, ...]) -> None:
        handles, handle = Handles.of(world), secrets.token_hex(8)
        handles.tell()
        found = open_everywhere(world, call, args, handle)
        told = [each["spec"] for each in found if "spec" in each]
        if any(each != told[0] for each in told):  # deleted and created again in between
            raise LookupError(f"tensor {told[0]['name']!r} is being created or deleted: find it again")
        spec = TensorSpec.from_json(told[0]) if spec is None else spec
        self.world, self.spec = world, spec
        self.name, self.shape, self.dtype = spec.name, torch.Size(spec.shape), spec.torch_dtype
        self.is_deleted = False
        self.generations = tuple(each["generation"] for each in found)
        self.placement = Placement.from_spec(spec.placement, world.data)
        self._exchange = Exchange(world, self.placement, spec, self.generations, handle)
        handles.hold(self, handle, self.generations, self._exchange.lines)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return len(self) * self.spec.row_bytes

    def __getitem__(self, ids: Any) -> Tensor:
        """Reads rows ``[n, ...]``.

        Raises:
            IndexError: If there is no such row; names the first.
            LookupError: If the tensor was deleted; says by which trainer.
            TypeError, ValueError: If ``ids`` is no index.
            glt.errors.PeerLost: If an owner is lost.
        """
        selection = self._selected(ids)
        try:
            rows = self._exchange.read(selection)
        except LookupError as error:
            self._learn_from(error)
            raise
        return rows[0] if selection.is_single else rows

    def __setitem__(self, ids: Any, values: Any) -> None:
        """Writes rows, and waits until that is acknowledged.

        Args:
            ids: Which.
            values: ``[n, ...]``, of the same dtype, or one number for all elements.

        Raises:
            TypeError, ValueError: Besides those of reading, if the dtype or shape of values does not fit; nothing is
                written then.
        """
        self._wait(self._change("write", ids, values))

    def write_async(self, ids: Any, values: Any) -> Future[None]:
        """Writes rows; the future is done when that is acknowledged. ``values`` may be changed at once.

        Errors of arguments are raised here. What goes wrong later is raised by the future, and by :meth:`flush`. Waits
        while an owner has more to do than a few pieces of 8 MiB.
        """
        return self._change("write", ids, values)

    def add(self, ids: Any, values: Any) -> None:
        """Adds to rows, and waits until that is acknowledged. A row that is named several times gets all of it.

        Each addition is rounded to the tensor's dtype. Additions of several trainers at the same time are all made, in
        some order: of floating point numbers, the last bits depend on it.

        Raises:
            TypeError: As of writing; and if the tensor is of bool or float8.
        """
        self._wait(self._change("add", ids, values))

    def add_async(self, ids: Any, values: Any) -> Future[None]:
        """As :meth:`add`, without waiting; see :meth:`write_async`."""
        return self._change("add", ids, values)

    def flush(self) -> None:
        """Waits until all changes made through this tensor are acknowledged.

        Raises:
            Exception: The first that a change met since the last flush.
        """
        self._exchange.flush()

    def delete(self) -> None:
        """Deletes the tensor, for everyone: whoever holds it gets a LookupError that names this trainer."""
        replies = [
            self.world.call(server, "glt.tensor.delete", generation)
            for server, generation in enumerate(self.generations)
        ]
        for reply in replies:
            reply.result()
        self.is_deleted = True

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves it; see :func:`save_tensors`. One trainer does that."""
        save_tensors({"tensor": self}, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Overwrites it with what :meth:`save` wrote, with any number of servers and trainers; see
        :func:`load_tensors`. One trainer does that."""
        load_tensors({"tensor": self}, path)

    def _selected(self, ids: Any) -> Selection:
        return Selection.of(ids[:] if isinstance(ids, DistTensor) else ids, len(self))

    def _change(self, kind: str, ids: Any, values: Any) -> Future[None]:
        selection = self._selected(ids)
        if kind == "add" and self.dtype in _NOT_ADDED:
            raise TypeError(f"add to a tensor of {self.dtype}: expected integers, or floats of 16 bits and more")
        given = self._values(selection, values)
        if self.spec.table is not None:
            require_writable(self.spec.table, f"tensor {self.name!r}")
            Handles.of(self.world).written.add(self.name)  # from now on loaders read it here
        return self._exchange.change(kind, selection, given)

    def _values(self, selection: Selection, values: Any) -> Tensor:
        shape = self.shape[1:] if selection.is_single else torch.Size((selection.n, *self.shape[1:]))
        if isinstance(values, bool | int | float | complex):
            return self._filled(selection, values)
        values = values[:] if isinstance(values, DistTensor) else values
        given = values if isinstance(values, Tensor) else _converted(values)
        require_data(given, "values")
        if not isinstance(values, Tensor | np.ndarray) and (
            not given.numel() or is_kind_of(given.flatten()[0].item(), self.dtype)
        ):
            given = self._held(lambda: torch.as_tensor(values, dtype=self.dtype), values)  # a list has no dtype
        if given.dtype != self.dtype:
            raise TypeError(
                f"values has dtype {given.dtype}: expected {self.dtype}, the tensor's; convert it with .to()"
            )
        if given.layout != torch.strided or given.shape != shape:
            raise ValueError(
                f"values is a {given.layout} tensor of shape {list(given.shape)}: expected a dense one of "
                f"{list(shape)}, a row for each of ids"
            )
        return given.detach().cpu().resolve_conj().resolve_neg().reshape(selection.n, *self.shape[1:]).contiguous()

    def _filled(self, selection: Selection, number: Any) -> Tensor:
        if not is_kind_of(number, self.dtype):
            raise TypeError(f"values = {number!r}: expected a number that {self.dtype} holds")
        shape = (selection.n, *self.shape[1:])
        return self._held(lambda: torch.full((), number, dtype=self.dtype).expand(shape).contiguous(), number)

    def _held(self, make: Callable[[], Tensor], values: Any) -> Tensor:
        try:
            return make()
        except (RuntimeError, OverflowError) as error:  # such as 300 as uint8
            raise ValueError(f"values = {values!r}: expected what {self.dtype} holds ({error})") from error

    def _wait(self, done: Future[None]) -> None:
        try:
            done.result()
        except Exception as error:
            self._exchange.forgive(error)
            self._learn_from(error)
            raise

    def _learn_from(self, error: Exception) -> None:
        self.is_deleted |= type(error) is LookupError  # of the tensor: rows that are not there are an IndexError

    def __reduce__(self) -> Any:
        raise TypeError(f"a DistTensor is not pickled: in the other process, use DistTensor.find({self.name!r})")

    def __repr__(self) -> str:
        return f"DistTensor({self.name!r}, {list(self.shape)}, {self.dtype})"


def _converted(values: Any) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(values, order="C"))
    except (TypeError, ValueError) as error:  # text, objects, rows of several lengths
        raise TypeError(
            f"values = {reprlib.repr(values)}: expected rows of numbers in a tensor, an array or a list, or one number "
            f"({error})"
        ) from error


_NOT_ADDED = (
    torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip


def flush_all(world: World) -> None:
    """Flushes all tensors of a world that this trainer holds: what a barrier does first."""
    handles = Handles.of(world)
    handles.tell()
    for tensor in list(handles.open):
        tensor.flush()
