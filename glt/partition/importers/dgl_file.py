"""Reads DGL's binary files: dicts of tensors (``save_tensors``), graphs (``save_graphs``, format 2), and GraphBolt's
graphs.

Everything is little-endian; strings and vectors begin with their length in 64 bits. Arrays are views of a map of the
file. The layout was learned from DGL's ``src/graph/serialize``, ``ndarray.h``, ``unit_graph.cc``, ``aten/coo.h`` and
``aten/csr.h``. Readers raise PartitionError if a file is missing, another one, or damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch

from glt.errors import PartitionError
from glt.partition.format.files import Array
from glt.partition.importers.imported import integers
from glt.partition.importers.torch_file import Record, read_torch

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


@dataclass(frozen=True, eq=False)
class DglGraph:
    """The graph of one partition, with local ids.

    Attributes:
        num_nodes, num_edges: Counts, those of other partitions' copies included.
        edges: Called with ``begin, end``, returns sources, destinations and edge ids of a range of the edges.
        ndata, edata: Tables by name, rows by local id.
    """

    num_nodes: int
    num_edges: int
    edges: Callable[[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]
    ndata: dict[str, Array]
    edata: dict[str, Array]


def read_tensors(path: Path) -> dict[str, Array]:
    """Returns what ``dgl.data.save_tensors`` wrote."""
    return _read(path, _tensors)


def read_graph(path: Path) -> DglGraph:
    """Returns the one graph, of one type of nodes and edges, that ``dgl.save_graphs`` wrote."""
    return _read(path, _graph)


def of_coo(row: np.ndarray, col: np.ndarray, ids: np.ndarray | None) -> Callable[[int, int], tuple]:
    """Edges of a graph in COO, as :class:`DglGraph` wants them; ``ids`` None: an edge's id is its place."""
    return lambda begin, end: (row[begin:end], col[begin:end], _ids(ids, begin, end))


def of_csr(indptr: np.ndarray, indices: np.ndarray, ids: np.ndarray | None, csc: bool) -> Callable[[int, int], tuple]:
    """Edges of a graph in CSR (rows are sources) or CSC (rows are destinations)."""

    def edges(begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = np.searchsorted(indptr, np.arange(begin, end), side="right") - 1
        ends = (indices[begin:end], rows) if csc else (rows, indices[begin:end])
        return *ends, _ids(ids, begin, end)

    return edges


def _ids(ids: np.ndarray | None, begin: int, end: int) -> np.ndarray:
    return np.arange(begin, end) if ids is None else ids[begin:end]


def _read(path: Path, parse: Callable[[_Stream], Item]) -> Item:
    try:
        data = np.memmap(path, np.uint8, mode="c") if path.stat().st_size else np.empty(0, np.uint8)
        return parse(_Stream(data))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PartitionError(f"{path} is missing: copy the directory again") from error
    except (ValueError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise PartitionError(f"{path} is damaged or no file of DGL ({error}): copy the directory again") from error


class _Stream:
    """A mapped file, read from front to back."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
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


def _tensors(stream: _Stream) -> dict[str, Array]:
    stream.expect(_TENSORS, "dict of tensors")
    count = stream.numbers("Q")
    found = dict(stream.vector(stream.named))
    if len(found) != count:
        raise ValueError(f"it has {len(found)} tensors, its header says {count}")
    return found


def _graph(stream: _Stream) -> DglGraph:
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


def _meta_graph(stream: _Stream) -> None:
    stream.expect(_META_GRAPH, "meta graph")
    _csr(stream)


def _unit_graph(stream: _Stream) -> tuple[int, Callable[[int, int], tuple]]:
    stream.expect(_UNIT_GRAPH, "relation")
    stored, _ = stream.numbers("qq")
    # Since DGL 0.5 a set of bits above 2**32: COO, CSR, CSC; before, the number of one of them.
    formats = stored & 0xFFFFFFFF if stored >> 32 else {1: 1, 2: 2, 3: 4}.get(stored, 0)
    found = []
    for bit, read in ((1, _coo), (2, _csr), (4, _csr)):
        if formats & bit:
            _meta_graph(stream)
            rows, cols, ids = read(stream)
            found.append((cols.size, of_coo(rows, cols, ids) if bit == 1 else of_csr(rows, cols, ids, bit == 4)))
    if not found:
        raise ValueError(f"a relation is stored in format {stored:#x}, expected COO, CSR or CSC")
    return found[0]


def _coo(stream: _Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    stream.expect(_COO, "COO matrix")
    stream.numbers("qq")
    row, col, ids = (np.asarray(stream.array()) for _ in range(3))
    stream.numbers("BB")
    return row, col, ids if ids.size else None


def _csr(stream: _Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    stream.expect(_CSR, "CSR matrix")
    stream.numbers("qq")
    indptr, indices, ids = (np.asarray(stream.array()) for _ in range(3))
    stream.numbers("B")
    return indptr, indices, ids if ids.size else None


# Reads the graphs that DGL's GraphBolt saves with ``torch.save``, without GraphBolt and without unpickling.


def read_graphbolt(path: Path) -> DglGraph:
    """Returns the graph of a ``fused_csc_sampling_graph.pt``, saved with ``torch.save``; nothing is unpickled, and its
    types of edges are the table ``_TYPE`` of edata.
    """
    graph = read_torch(path)
    try:
        if not isinstance(graph, Record):
            raise TypeError(f"it holds a {type(graph).__name__}")
        state, _ = graph.state["_c_csc_graph"].state
        tensors = state["independent_tensors"]
        indptr, indices = (integers(path, name, tensors[name]) for name in ("indptr", "indices"))
        edata = dict(state.get("edge_attributes", {}))
        if "type_per_edge" in tensors:
            edata["_TYPE"] = tensors["type_per_edge"]
        ndata = dict(state.get("node_attributes", {}))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, PartitionError):
            raise
        raise PartitionError(f"{path} is no FusedCSCSamplingGraph ({type(error).__name__}: {error})") from error
    # Edges have no local ids but their places, by which edge_attributes are stored.
    return DglGraph(indptr.size - 1, indices.size, of_csr(indptr, indices, None, csc=True), ndata, edata)
