"""Reads the files of other libraries and executes nothing of them (law 7): what ``torch.save`` or ``pickle`` wrote, and
DGL's binary files.

``torch.load(weights_only=True)`` refuses what some of them put around their tensors (a ``defaultdict``, a TorchScript
object). Here a pickle may name tensors, their storages and dtypes, plain containers, and a fixed list of foreign
classes, instead of which come inert records. Tensors of zip files (``torch.save`` since 1.6) are mapped, not read.

DGL's are dicts of tensors (``save_tensors``), graphs (``save_graphs``, format 2), and GraphBolt's graphs. Everything is
little-endian; strings and vectors begin with their length in 64 bits; arrays are views of a map of the file. The layout
was learned from DGL's ``src/graph/serialize``, ``ndarray.h``, ``unit_graph.cc``, ``aten/coo.h`` and ``aten/csr.h``.
Readers raise PartitionError if a file is missing, another one, or damaged.
"""

from __future__ import annotations

import collections
import errno
import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt.errors import PartitionError
from glt.partition.format.rows import Array
from glt.partition.importers.imported import integers

_LOCAL_HEADER_BYTES: Final = 30  # of a zip record, before its name and extra field
_NAMES: Final = "Bool Byte Char Short Int Long Half BFloat16 Float Double ComplexFloat ComplexDouble".split()
_TORCH_DTYPES: Final = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()
_STORAGES: Final = {f"{name}Storage": getattr(torch, dtype) for name, dtype in zip(_NAMES, _TORCH_DTYPES, strict=True)}
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
    """Returns the object in a file of ``torch.save``; its tensors are maps that are never written back."""
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


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turns what a damaged file makes the readers raise into a PartitionError that names the file."""
    try:
        yield
    except PartitionError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PartitionError(f"{path} is missing: copy the directory again") from error
    except Exception as error:  # the unpickler promises no particular exception for a damaged pickle
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # torch seeks where damaged bytes send it
            raise
        raise PartitionError(
            f"{path} cannot be read: expected tensors and plain containers as the library wrote them; copy the "
            f"directory again ({type(error).__name__}: {error})"
        ) from error


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


# What a pickle may call. They have no attributes that a pickle could set.
class _RebuiltTensor:
    """Version 2 and 3, which also has the dtype of a storage without one."""

    __slots__ = ()

    def __call__(self, storage: _Storage, offset: int, size: tuple, stride: tuple, *more: Any) -> Tensor:
        dtype = more[2] if storage.dtype is None else storage.dtype
        if 0 in size:
            return torch.empty(size, dtype=dtype)
        return storage.data.view(dtype).as_strided(size, stride, offset)  # checks the bounds


class _SubclassedTensor:
    __slots__ = ()

    def __call__(self, rebuild: Any, kind: Any, arguments: tuple, *_: Any) -> Tensor:
        if not isinstance(rebuild, _RebuiltTensor):
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
    ("torch._utils", "_rebuild_tensor_v2"): _RebuiltTensor(),
    ("torch._utils", "_rebuild_tensor_v3"): _RebuiltTensor(),
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


_TENSORS: Final = 0xDD5A9FBE3FA2443F
_GRAPHS: Final = 0xDD2E4FF046B4A13F
_HETERO_GRAPH: Final = 0xDD589FBE35224ABF
_META_GRAPH: Final = 0xDD3C5FFE20046ABF
_UNIT_GRAPH: Final = 0xDD2E60F0F6B4A127
_COO: Final = 0xDD61FFD305DFF127
_CSR: Final = 0xDD6CD31205DFF127
_ARRAY: Final = 0xDD5E40F096B4A13F
_HEADER_BYTES: Final = 4096
_MAX_DIMS: Final = 64
# (type code, bits): kDGLInt, kDGLUInt, kDGLFloat; bfloat16 is code 4, and bool 6 as in DLPack.
_DTYPES: Final = {
    (code, bits): np.dtype(f"<{kind}{bits // 8}")
    for code, kind, widths in ((0, "i", (8, 16, 32, 64)), (1, "u", (8, 16, 32, 64)), (2, "f", (16, 32, 64)))
    for bits in widths
} | {(6, 8): np.dtype(bool)}
_BFLOAT16: Final = (4, 16)

Item = TypeVar("Item")
_Edges = Callable[[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class DglGraph:
    """The graph of one partition, with local ids; copies of other partitions' nodes and edges are counted.

    ``edges``, called with ``begin, end``, returns sources, destinations and edge ids of a range of the edges; ``ndata``
    and ``edata`` are tables by name, rows by local id.
    """

    num_nodes: int
    num_edges: int
    edges: _Edges
    ndata: dict[str, Array]
    edata: dict[str, Array]


def read_tensors(path: Path) -> dict[str, Array]:
    """Returns what ``dgl.data.save_tensors`` wrote."""
    with _damage_named(path):
        stream = _Stream(path)
        stream.expect(_TENSORS, "dict of tensors")
        count = stream.numbers("Q")
        found = dict(stream.vector(stream.named))
        if len(found) != count:
            raise ValueError(f"it has {len(found)} tensors, its header says {count}")
        return found


def read_graph(path: Path) -> DglGraph:
    """Returns the one graph, of one type of nodes and edges, that ``dgl.save_graphs`` wrote."""
    with _damage_named(path):
        stream = _Stream(path)
        stream.expect(_GRAPHS, "file of graphs")
        version, kind, num_graphs = stream.numbers("QQQ")
        if (version, kind, num_graphs) != (2, 2, 1):
            raise ValueError(f"it has format {version} of kind {kind} with {num_graphs} graphs, expected 2, 2 and 1")
        stream.at = _HEADER_BYTES
        stream.at = stream.numbers("Q")  # behind the labels
        stream.expect(_HETERO_GRAPH, "graph")
        _meta_graph(stream)
        (edges,) = stream.vector(lambda: _unit_graph(stream))
        (num_nodes,) = stream.vector(lambda: stream.numbers("q"))
        (ndata,) = stream.vector(lambda: dict(stream.vector(stream.named)))
        (edata,) = stream.vector(lambda: dict(stream.vector(stream.named)))
        return DglGraph(num_nodes, *edges, ndata, edata)


def _edges_of(kind: str, first: np.ndarray, second: np.ndarray, ids: np.ndarray | None) -> _Edges:
    """Edges of a matrix as :class:`DglGraph` wants them. ``first`` and ``second`` are sources and destinations of a
    ``"coo"``; else where the edges of each source (``"csr"``) or destination (``"csc"``) begin, and their other ends.
    ``ids`` None: an edge's id is its place."""

    def edges(begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        places = np.arange(begin, end)
        own = first[begin:end] if kind == "coo" else np.searchsorted(first, places, side="right") - 1
        other = second[begin:end]
        if ids is not None:
            places = ids[begin:end]
        return (other, own, places) if kind == "csc" else (own, other, places)

    return edges


class _Stream:
    """A mapped file, read from front to back."""

    def __init__(self, path: Path) -> None:
        self._data = np.memmap(path, np.uint8, mode="c") if path.stat().st_size else np.empty(0, np.uint8)
        self.at = 0

    def bytes(self, count: int) -> np.ndarray:
        if count < 0 or self.at + count > self._data.size:
            raise ValueError(f"it ends at byte {self._data.size}, within {count} bytes from {self.at}")
        self.at += count
        return self._data[self.at - count : self.at]

    def numbers(self, format_: str) -> Any:
        found = struct.unpack(f"<{format_}", self.bytes(struct.calcsize(f"<{format_}")).tobytes())
        return found[0] if len(found) == 1 else found

    def expect(self, magic: int, what: str) -> None:
        at, found = self.at, self.numbers("Q")
        if found != magic:
            raise ValueError(f"byte {at} begins no {what}: {found:#x}, expected {magic:#x}")

    def text(self) -> str:
        return self.bytes(self.numbers("Q")).tobytes().decode()

    def vector(self, item: Callable[[], Item]) -> list[Item]:
        count = self.numbers("Q")
        if count > self._data.size:  # each item takes a byte at least
            raise ValueError(f"it lists {count} items")
        return [item() for _ in range(count)]

    def named(self) -> tuple[str, Array]:
        name = self.text()
        return name, self.array()

    def array(self) -> Array:
        self.expect(_ARRAY, "array")
        _, _, _, num_dims, code, bits, lanes = self.numbers("QiiiBBH")
        if not 0 <= num_dims <= _MAX_DIMS or lanes != 1:
            raise ValueError(f"an array has {num_dims} dimensions and {lanes} lanes")
        shape = struct.unpack(f"<{num_dims}q", self.bytes(8 * num_dims).tobytes())
        dtype = np.dtype("<u2") if (code, bits) == _BFLOAT16 else _DTYPES.get((code, bits))
        if dtype is None:
            raise ValueError(f"an array has dtype code {code} of {bits} bits, which glt does not know")
        size = int(np.prod([int(each) for each in shape], dtype=object)) if shape else 1
        num_bytes = self.numbers("q")
        if min(shape, default=0) < 0 or num_bytes != size * dtype.itemsize:
            raise ValueError(f"an array of shape {list(shape)} has {num_bytes} bytes")
        array = self.bytes(num_bytes).view(dtype).reshape(shape)
        return torch.from_numpy(array).view(torch.bfloat16) if (code, bits) == _BFLOAT16 else array


def _unit_graph(stream: _Stream) -> tuple[int, _Edges]:
    stream.expect(_UNIT_GRAPH, "relation")
    stored, _ = stream.numbers("qq")
    # Since DGL 0.5 a set of bits above 2**32: COO, CSR, CSC; before, the number of one of them.
    formats = stored & 0xFFFFFFFF if stored >> 32 else {1: 1, 2: 2, 3: 4}.get(stored, 0)
    found = []
    for bit, kind in ((1, "coo"), (2, "csr"), (4, "csc")):
        if formats & bit:
            _meta_graph(stream)
            matrix = _matrix(stream, kind)
            found.append((matrix[1].size, _edges_of(kind, *matrix)))
    if not found:
        raise ValueError(f"a relation is stored in format {stored:#x}, expected COO, CSR or CSC")
    return found[0]


def _matrix(stream: _Stream, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    stream.expect(_COO if kind == "coo" else _CSR, f"{kind.upper()} matrix")
    stream.numbers("qq")
    first, second, ids = (np.asarray(stream.array()) for _ in range(3))
    stream.numbers("BB" if kind == "coo" else "B")
    return first, second, ids if ids.size else None


def _meta_graph(stream: _Stream) -> None:
    stream.expect(_META_GRAPH, "meta graph")
    _matrix(stream, "csr")


def read_graphbolt(path: Path) -> DglGraph:
    """Returns the graph of a ``fused_csc_sampling_graph.pt``, which GraphBolt saved with ``torch.save``; its types of
    edges are the table ``_TYPE`` of edata.
    """
    graph = read_torch(path)
    with _damage_named(path):
        if not isinstance(graph, Record):
            raise TypeError(f"it holds a {type(graph).__name__}, no FusedCSCSamplingGraph")
        state, _ = graph.state["_c_csc_graph"].state
        tensors = state["independent_tensors"]
        indptr, indices = (integers(path, name, tensors[name]) for name in ("indptr", "indices"))
        edata = dict(state.get("edge_attributes", {}))
        if "type_per_edge" in tensors:
            edata["_TYPE"] = tensors["type_per_edge"]
        ndata = dict(state.get("node_attributes", {}))
    # Edges have no local ids but their places, by which edge_attributes are stored.
    return DglGraph(indptr.size - 1, indices.size, _edges_of("csc", indptr, indices, None), ndata, edata)
