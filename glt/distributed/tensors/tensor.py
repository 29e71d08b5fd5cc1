"""A tensor whose rows servers keep: named, read and written from any trainer."""

from __future__ import annotations

import itertools
import json
import logging
import os
import reprlib
import secrets
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from glt import _deadlines as deadlines
from glt._checks import check_path
from glt.data.arrays import from_array, require_data
from glt.data.schema import EdgeType, NodeType
from glt.distributed.tensors.exchange import Exchange, open_everywhere
from glt.distributed.tensors.spec import (
    Placement,
    Selection,
    TensorSpec,
    checked_dtype,
    checked_name,
    checked_shape,
    encode_init,
    is_kind_of,
    require_writable,
)
from glt.distributed.world import World, require_world
from glt.errors import CheckpointError, PartitionError
from glt.partition.format.files import BLOCK_BYTES, FileEntry, NpyWriter, Rows, as_torch_dtype, map_file, npy_bytes
from glt.partition.format.manifest import digest_of, installed_version, text_of
from glt.partition.format.staging import require_space, staging

if TYPE_CHECKING:
    from glt.distributed.tensors.exchange import Line


# Distributed tensors on disk: open ``.npy`` files in the order of the rows, and a manifest with checksums.
#
# ::
#
# manifest.json format, version, what each file holds, its size and checksum; what the caller adds tensor0.npy ... one
# per tensor, whole, as NumPy maps them (bfloat16 and float8 as unsigned integers)
#
# Nothing of it depends on how many servers or trainers there were.


FORMAT: Final = "glt-tensors"
VERSION: Final = 1
_MANIFEST: Final = "manifest.json"
_BLOCK_BYTES: Final = 64 << 20  # of rows in memory at a time


def save_tensors(
    tensors: Mapping[str, DistTensor], path: str | os.PathLike[str], about: Mapping[str, Any] | None = None
) -> None:
    """Saves tensors into a directory that appears when it is whole: a failure, or a kill, leaves none that loads.

    When this returns, the disk has it: it survives a crash of the host.

    One trainer calls it, and its disk gets the files. What others write meanwhile is there or not, row by row: where
    that matters, let them wait at a barrier before and after.

    Args:
        tensors: By the name to save each under.
        path: A new or empty directory.
        about: More to keep, as JSON has it, for example a number of steps.

    Raises:
        glt.errors.CheckpointError: If ``path`` is taken, or the disk has no room for it, which is found out before
            anything is read.
        OSError: If the disk fills up or fails.
        glt.errors.PeerLost: If a server is lost.
    """
    check_path("path", path, "a directory")
    target = Path(path)
    try:
        with staging(target, "path", durable=True) as directory:
            require_space(target, sum(map(_file_bytes, tensors.values())), "path")  # what dead runs left is gone
            _write(tensors, directory, dict(about or {}))
    except PartitionError as error:
        raise CheckpointError(str(error)) from error


def _write(tensors: Mapping[str, DistTensor], directory: Path, about: dict[str, Any]) -> None:
    files: dict[str, FileEntry] = {}
    for i, tensor in enumerate(tensors.values()):
        stored = _stored(tensor)
        name = f"tensor{i}.npy"
        writer = NpyWriter(directory / name, stored.array.dtype, tuple(tensor.shape), stored.torch_dtype)
        for first, last in _blocks(tensor):
            rows = tensor[first:last]
            writer.write(Rows.of("rows", rows, last - first, "row").array)
        files[name] = writer.close()
    document = {
        "format": FORMAT,
        "version": VERSION,
        "glt_version": installed_version(),
        "checksum_block_bytes": BLOCK_BYTES,
        "tensors": dict(zip(tensors, files, strict=True)),
        "files": {name: asdict(entry) for name, entry in files.items()},
        "about": about,
    }
    document = json.loads(json.dumps(document))  # as it will be read: a digest of tuples would be another
    (directory / _MANIFEST).write_bytes(text_of({**document, "run_id": digest_of(document)}))


def load_tensors(tensors: Mapping[str, DistTensor], path: str | os.PathLike[str]) -> dict[str, Any]:
    """Overwrites tensors with saved ones, and returns what was added in ``about``.

    One trainer calls it, and reads the files from its disk; the others wait at a barrier. Nothing is written before all
    names, shapes, dtypes and checksums have been compared.

    Args:
        tensors: By the name that each was saved under; some of those that were saved, or all.
        path: What :func:`save_tensors` wrote.

    Raises:
        glt.errors.CheckpointError: If a file is missing, damaged or of another save; names it.
        LookupError: If no tensor was saved under a name; names those that were.
        ValueError: If a saved tensor has another shape or dtype.
        glt.errors.PeerLost: If a server is lost.
    """
    saved = Checkpoint.open(path)
    for name, tensor in tensors.items():
        saved.require_fit(name, tensor)
    arrays = {name: saved.array(name) for name in tensors}
    for name, tensor in tensors.items():
        rows = as_torch_dtype(arrays[name], saved.entry(name).torch_dtype)
        whole = rows if isinstance(rows, torch.Tensor) else from_array(rows)
        for first, last in _blocks(tensor):
            tensor.write_async(slice(first, last), whole[first:last])
        tensor.flush()
    return saved.about


@dataclass(frozen=True)
class Checkpoint:
    """A directory that :func:`save_tensors` wrote.

    Attributes:
        path: The directory.
        tensors: By name, the file of each.
        files: By name of the file, what it must be.
        about: What was added.
        id: Digest of all that.
    """

    path: Path
    tensors: dict[str, str]
    files: dict[str, FileEntry]
    about: dict[str, Any]
    id: str
    block_bytes: int

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Reads the manifest.

        Raises:
            glt.errors.CheckpointError: If there is none, or it was altered, or this glt cannot read it.
        """
        check_path("path", path, "a directory that was saved")
        root = Path(path)
        manifest = root / _MANIFEST
        try:
            content = manifest.read_bytes()
            document = json.loads(content)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointError(
                f"{manifest} is missing: {root} holds no saved tensors, or not all of them"
            ) from error
        except ValueError as error:
            raise CheckpointError(f"{manifest} is truncated or altered ({error}): {_REMEDY}") from error
        found = (document.get("format"), document.get("version")) if isinstance(document, dict) else (None, None)
        if found != (FORMAT, VERSION):
            raise CheckpointError(
                f"{manifest} has format {found[0]!r} of version {found[1]!r}: this glt ({installed_version()}) reads "
                f"{FORMAT!r} of version {VERSION}"
            )
        if document.get("run_id") != digest_of(document) or text_of(document) != content:
            raise CheckpointError(f"{manifest} was altered: it does not have its digest; {_REMEDY}")
        try:
            return cls._of(root, document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CheckpointError(
                f"{manifest} does not follow version {VERSION} of the format ({type(error).__name__}: {error})"
            ) from error

    @classmethod
    def _of(cls, root: Path, document: dict[str, Any]) -> Checkpoint:
        files = {
            name: FileEntry(**{**entry, "shape": tuple(entry["shape"])}) for name, entry in document["files"].items()
        }
        tensors, about = dict(document["tensors"]), dict(document["about"])
        if not files.keys() >= set(tensors.values()) or any(Path(name).name != name for name in files):
            raise ValueError(f"tensors {tensors} in files {list(files)}")
        return cls(root, tensors, files, about, document["run_id"], int(document["checksum_block_bytes"]))

    def entry(self, name: str) -> FileEntry:
        """What the file of a tensor is.

        Raises:
            LookupError: If there is none of this name; names those there are.
        """
        if name not in self.tensors:
            raise LookupError(f"{self.path} has no tensor {name!r}: it has {sorted(self.tensors)}")
        return self.files[self.tensors[name]]

    def array(self, name: str) -> np.ndarray:
        """Maps the rows of a tensor, after comparing all of them with their checksums.

        Raises:
            glt.errors.CheckpointError: If the file is missing, damaged or of another save; names it.
        """
        entry = self.entry(name)
        try:
            return map_file(
                self.path / self.tensors[name],
                entry,
                origin=f"save {self.id}",
                block_bytes=self.block_bytes,
                whole_bytes=sys.maxsize,
                verify=True,
                remedy=_REMEDY,
            )
        except PartitionError as error:
            raise CheckpointError(str(error)) from error

    def require_fit(self, name: str, tensor: DistTensor) -> None:
        """Raises unless a saved tensor has the shape and dtype of this one."""
        entry, dtype = self.entry(name), str(tensor.dtype).removeprefix("torch.")
        if entry.shape != tuple(tensor.shape) or entry.torch_dtype != dtype:
            raise ValueError(
                f"tensor {name!r} was saved in {self.path} with shape {list(entry.shape)}, dtype {entry.torch_dtype}: "
                f"expected shape {list(tensor.shape)}, dtype {dtype}, as {tensor.name!r} has"
            )


_REMEDY = "copy the directory again, or load another one"


def _stored(tensor: DistTensor) -> Rows:
    return Rows.of("tensor", torch.empty((0, *tensor.shape[1:]), dtype=tensor.dtype), 0, "row")


def _file_bytes(tensor: DistTensor) -> int:
    return npy_bytes(_stored(tensor).array.dtype, tuple(tensor.shape))


def _blocks(tensor: DistTensor) -> list[tuple[int, int]]:
    """Ranges of rows, some at a time."""
    most = max(1, _BLOCK_BYTES // max(tensor.spec.row_bytes, 1))
    return [(first, min(first + most, len(tensor))) for first in range(0, len(tensor), most)]


# What a trainer holds of distributed tensors, so that their owners learn what nobody holds any more.


logger = logging.getLogger(__name__)


class Handles:
    """Those of one world.

    A tensor may be collected anywhere, in the middle of a call to its owner, say, or under a lock of that: it is then
    only noted down, and a thread tells its owners. That the trainer leaves tells them, too.

    Attributes:
        open: The tensors that are held.
        written: Names of tables of the graph that this trainer has written to.
    """

    def __init__(self, world: World) -> None:
        self.open: weakref.WeakSet[DistTensor] = weakref.WeakSet()
        self.written: set[str] = set()
        self._numbers = itertools.count()
        self._dropped: deque[_Dropped] = deque()
        self._news: SimpleQueue[bool] = SimpleQueue()  # whether it goes on; may be put to within a put
        self._telling = threading.Lock()
        self._world = weakref.ref(world)
        self._thread: threading.Thread | None = None
        weakref.finalize(world, self._news.put, False).atexit = False

    @classmethod
    def of(cls, world: World) -> Handles:
        """The one of a world."""
        with _lock:
            if world not in _of_world:
                _of_world[world] = cls(world)
            return _of_world[world]

    def next_name(self) -> str:
        """For a tensor without one; the same in all trainers, which create them in the same order."""
        return f"glt/anonymous/{next(self._numbers)}"

    def hold(self, tensor: DistTensor, handle: str, generations: tuple[int, ...], lines: list[Line]) -> None:
        """Notes that a tensor is held, until it is collected; its last changes go before that is told."""
        self.open.add(tensor)
        weakref.finalize(tensor, _drop, self._dropped, self._news, (handle, generations, lines)).atexit = False
        with self._telling:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_tell_all, args=(self._news, weakref.ref(self)), name="glt-release", daemon=True
                )
                self._thread.start()

    def tell(self) -> None:
        """Tells the owners what is not held any more, before anything that they are asked later; waits for nothing."""
        with self._telling:
            while self._dropped:
                handle, generations, lines = self._dropped.popleft()
                world = self._world()
                if world is None:
                    return  # and all that it held with it
                for server, (generation, line) in enumerate(zip(generations, lines, strict=True)):
                    try:
                        world.call(server, "glt.tensor.release", generation, handle, line.handle, line.num_changes)
                    except RuntimeError as error:  # lost, and its tensors with it
                        logger.info("a tensor was not released: %s", error)

    def end(self) -> None:
        """Ends the thread, since the world ends."""
        with self._telling:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._news.put(False)
            thread.join(deadlines.JOIN_S)


_Dropped = tuple[str, tuple[int, ...], "list[Line]"]


def _drop(dropped: deque[_Dropped], news: SimpleQueue[bool], what: _Dropped) -> None:
    dropped.append(what)
    news.put(True)


def _tell_all(news: SimpleQueue[bool], handles: weakref.ref[Handles]) -> None:
    """Runs until the world ends, or is there no more."""
    while news.get() and (known := handles()) is not None:
        known.tell()
        del known


_lock = threading.Lock()
_of_world: weakref.WeakKeyDictionary[Any, Handles] = weakref.WeakKeyDictionary()


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
            checked_name(name) or Handles.of(world).next_name(),
            checked,
            checked_dtype(dtype),
            placement.spec(),
            encode_init(init_func, dtype, rng_seed),
            name is None,
            world.num_trainers,
        )
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
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)


def flush_all(world: World) -> None:
    """Flushes all tensors of a world that this trainer holds: what a barrier does first."""
    handles = Handles.of(world)
    handles.tell()
    for tensor in list(handles.open):
        tensor.flush()
