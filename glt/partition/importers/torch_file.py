"""Reads what other libraries saved with ``torch.save`` or ``pickle``, and executes nothing of it (law 7).

``torch.load(weights_only=True)`` refuses what some of them put around their tensors (a ``defaultdict``, a TorchScript
object). Here a pickle may name tensors, their storages and dtypes, plain containers, and a fixed list of foreign
classes, instead of which come inert records. Tensors of zip files (``torch.save`` since 1.6) are mapped, not read.
"""

from __future__ import annotations

import collections
import errno
import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from torch import Tensor

from glt.errors import PartitionError

_LOCAL_HEADER_BYTES: Final = 30  # of a zip record, before its name and extra field
_NAMES: Final = "Bool Byte Char Short Int Long Half BFloat16 Float Double ComplexFloat ComplexDouble".split()
_DTYPES: Final = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()
_STORAGES: Final = {f"{name}Storage": getattr(torch, dtype) for name, dtype in zip(_NAMES, _DTYPES, strict=True)}
_BOOKS: Final = "graphlearn_torch.partition.partition_book"
_GRAPHBOLT: Final = "dgl.graphbolt.impl.fused_csc_sampling_graph"
_RECORDS: Final = (
    *(("torch", "ScriptObject"), (_GRAPHBOLT, "FusedCSCSamplingGraph")),
    *((_BOOKS, name) for name in ("GLTPartitionBook", "RangePartitionBook", "OffsetId2Index")),
)


class Record:
    """Stands for an object of a foreign class: its class's ``name`` and the ``state`` that was pickled."""

    __slots__ = ("state",)
    name = ""
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_torch(path: Path) -> Any:
    """Returns the object in a file of ``torch.save``; its tensors are maps that are never written back.

    Raises:
        PartitionError: If the file is missing or damaged, or names anything but tensors and plain containers.
    """
    with _damage_named(path), open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            return torch.load(path, map_location="cpu", weights_only=True)
        archive = _Archive(path, file)
        return _Unpickler(io.BytesIO(archive.read("data.pkl")), archive.storage).load()


def read_pickles(path: Path) -> Generator[Any, None, None]:
    """Yields the objects of pickles that follow each other in a file, one at a time in memory; errors as
    :func:`read_torch`."""
    with _damage_named(path), open(path, "rb") as file:
        while file.peek(1):
            yield _Unpickler(file, _no_storage).load()


def read_plain(path: Path) -> Any:
    """Returns the pickled object of a file that may hold plain values only; errors as :func:`read_torch`."""
    with _damage_named(path), open(path, "rb") as file:
        return _PlainUnpickler(file).load()


class _damage_named:
    """Turns what a damaged file makes the readers raise into a PartitionError that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, PartitionError | GeneratorExit) or not isinstance(error, Exception):
            return
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise PartitionError(f"{self._path} is missing: copy the directory again") from error
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # torch seeks where damaged bytes send it
            return
        # Whatever a damaged pickle makes the unpickler stumble over: it promises no particular exception.
        raise PartitionError(
            f"{self._path} cannot be read: expected tensors and plain containers as the library wrote them; copy the "
            f"directory again ({type(error).__name__}: {error})"
        ) from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, expected plain values")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, storage: Callable[[Any], _Storage]) -> None:
        super().__init__(file)
        self._storage = storage
        # Classes of this unpickler's own: what a pickle does to one, no other pickle sees.
        self._records = {key: type(key[1], (Record,), {"__slots__": (), "name": key[1]}) for key in _RECORDS}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _StorageType(_STORAGES[name])
        if (module, name) in self._records:
            return self._records[module, name]
        if (module, name) in _CALLABLES:
            return _CALLABLES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no tensor and no plain container")

    def persistent_load(self, pid: Any) -> _Storage:
        return self._storage(pid)


@dataclass(frozen=True)
class _StorageType:
    dtype: torch.dtype | None


@dataclass(frozen=True, eq=False)
class _Storage:
    """The bytes of a storage, and the dtype of its numbers (None if the tensor brings it)."""

    data: Tensor
    dtype: torch.dtype | None

    def tensor(self, dtype: torch.dtype | None, offset: int, size: tuple, stride: tuple) -> Tensor:
        if dtype is None:
            raise pickle.UnpicklingError("it has a tensor without a dtype")
        if 0 in size:
            return torch.empty(size, dtype=dtype)
        return self.data.view(dtype).as_strided(size, stride, offset)  # checks the bounds


# What a pickle may call. They have no attributes that a pickle could set.
class _TensorV2:
    __slots__ = ()

    def __call__(self, storage: _Storage, offset: int, size: tuple, stride: tuple, *_: Any) -> Tensor:
        return storage.tensor(storage.dtype, offset, size, stride)


class _TensorV3:
    __slots__ = ()

    def __call__(
        self, storage: _Storage, offset: int, size: tuple, stride: tuple, grad: Any, hooks: Any, dtype: Any, *_: Any
    ) -> Tensor:
        return storage.tensor(dtype, offset, size, stride)


class _SubclassedTensor:
    __slots__ = ()

    def __call__(self, rebuild: Any, kind: Any, arguments: tuple, *_: Any) -> Tensor:
        if not isinstance(rebuild, _TensorV2 | _TensorV3):
            raise pickle.UnpicklingError("it rebuilds a tensor in a way of its own")
        return rebuild(*arguments)


class _StorageBytes:
    __slots__ = ()

    def __call__(self, data: bytes) -> _Storage:
        typed = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if not isinstance(typed, torch.storage.TypedStorage):
            raise pickle.UnpicklingError(f"it holds a {type(typed).__name__} where a storage belongs")
        # .untyped() warns that storages are deprecated, to everybody who has one.
        return _Storage(torch.empty(0, dtype=torch.uint8).set_(typed._untyped_storage), typed.dtype)


_CALLABLES: Final = {
    ("torch._utils", "_rebuild_tensor_v2"): _TensorV2(),
    ("torch._utils", "_rebuild_tensor_v3"): _TensorV3(),
    ("torch._tensor", "_rebuild_from_type_v2"): _SubclassedTensor(),
    ("torch.storage", "_load_from_bytes"): _StorageBytes(),
    ("torch.storage", "UntypedStorage"): _StorageType(None),
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("__builtin__", "dict"): dict,
    ("builtins", "dict"): dict,
}


def _no_storage(pid: Any) -> _Storage:
    raise pickle.UnpicklingError("it refers to a storage outside itself")


class _Archive:
    """The zip file that ``torch.save`` writes, mapped."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._zip = zipfile.ZipFile(file)
        self._infos = {info.filename.partition("/")[2]: info for info in self._zip.infolist()}
        self._map = np.memmap(path, np.uint8, mode="c")
        if "byteorder" in self._infos and self.read("byteorder") != b"little":
            raise ValueError("it was written on a big-endian machine")

    def read(self, name: str) -> bytes:
        return self._zip.read(self._infos[name])

    def storage(self, pid: Any) -> _Storage:
        _, kind, key, _, _ = pid
        info = self._infos[f"data/{key}"]
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"its record data/{key} is compressed")
        header = self._map[info.header_offset : info.header_offset + _LOCAL_HEADER_BYTES].tobytes()
        name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
        begin = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        data = self._map[begin : begin + info.file_size]
        if data.size != info.file_size:
            raise ValueError(f"its record data/{key} is cut short")
        return _Storage(torch.from_numpy(data), kind.dtype)  # a storage of its own: tensors are checked against its end
