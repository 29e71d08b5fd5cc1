"""Which node has an edge to which: compressed rows over out-edges (CSR) or in-edges (CSC)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._reprs import says, size_of
from glt.data.arrays import NativeView, Packed, as_numpy, from_array, require_data
from glt.data.schema import PartitionBook, check_edge_dir

# Sources and destinations of edges, in whatever holds them.


def endpoints(edge_index: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns sources and destinations ``[E]``, both int32 or both int64; raises TypeError or ValueError."""
    if not _is_list(edge_index):
        raise TypeError(
            f"edge_index is a {type(edge_index).__name__}: expected sources and destinations, [2, num_edges], int32 or "
            "int64; of a graph without edges torch.empty(2, 0, dtype=torch.int64)"
        )
    is_array = isinstance(edge_index, Tensor | np.ndarray)
    if (is_array and edge_index.ndim != 2) or len(edge_index) != 2:
        shape = tuple(edge_index.shape) if is_array else (len(edge_index),)
        hint = "; pass edge_index.T" if len(shape) == 2 and shape[1] == 2 else ""
        raise ValueError(f"edge_index has shape {shape}: expected [2, num_edges], sources and destinations{hint}")
    for name, ends in zip(("sources", "destinations"), edge_index, strict=True):
        if not _is_list(ends):
            raise TypeError(f"edge_index: the {name} are a {type(ends).__name__}, expected ids [num_edges]")
    row, col = (_ids(ends) for ends in edge_index)
    if len(row) != len(col):
        raise ValueError(f"edge_index has {len(row)} sources and {len(col)} destinations: expected as many")
    if row.dtype != col.dtype or row.dtype not in (np.int32, np.int64):
        raise TypeError(
            f"edge_index has dtypes {row.dtype} and {col.dtype}: expected int32 or int64 for both; ids are "
            "positions of nodes, counted from 0"
        )
    return row, col


def _is_list(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | Sequence) and not isinstance(value, str)


def coo_of(edges: Any, layout: str) -> Any:
    """Returns edges in a sparse layout as sources and destinations in the order given: ``'COO'`` ``[2, E]``, ``'CSR'``
    (row offsets, destinations), ``'CSC'`` (sources, column offsets). Raises ValueError if offsets do not fit ids."""
    if layout == "COO":
        return edges
    if layout not in ("CSR", "CSC"):
        raise ValueError(f"layout = {layout!r}: expected 'COO', 'CSR' or 'CSC'")
    first, second = (_ids(each) for each in edges)
    offsets, ids = (first, second) if layout == "CSR" else (second, first)
    counts = np.diff(offsets)
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(ids) or counts.min(initial=0) < 0:
        pair = "(row offsets, destinations)" if layout == "CSR" else "(sources, column offsets)"
        raise ValueError(
            f"edge_index has {len(offsets)} offsets which do not rise from 0 to {len(ids)}, the number of ids: "
            f"expected the pair {pair}, as layout = {layout!r} says"
        )
    rows = np.repeat(np.arange(len(counts), dtype=ids.dtype), counts)
    return (rows, ids) if layout == "CSR" else (ids, rows)


def _ids(ends: Any) -> np.ndarray:
    if not isinstance(ends, Tensor | np.ndarray) and len(ends) == 0:
        return np.empty(0, np.int64)  # an empty list has no dtype of its own; torch would call it float
    require_data(ends, "edge_index")
    return as_numpy(from_array(ends) if isinstance(ends, np.ndarray) else torch.as_tensor(ends).cpu().contiguous())


# Edges in the order of their times, for sampling the past of a seed.


class TimedEdges(NamedTuple):
    """A second set of columns over the same row offsets: within a row, edges by time, ties in their input order. ``time
    [E]`` is int64 and never falls within a row."""

    indices: Tensor
    edge_ids: Tensor | None
    time: Tensor

    @classmethod
    def build(cls, indptr: Tensor, indices: Tensor, edge_ids: Tensor | None, time: np.ndarray) -> TimedEdges:
        order = np.empty(len(time), np.int64)
        _core.sort_rows_by_time(indptr.numpy(), time, order)
        if bool((order[1:] > order[:-1]).all()):  # sorted as it came, as logs of events are: share the columns
            return cls(indices, edge_ids, torch.from_numpy(time))
        if edge_ids is None:
            ids = order.astype(np.int32 if len(order) - 1 <= _INT32_MAX else np.int64, copy=False)
        else:
            ids = edge_ids.numpy()[order]
        return cls(*(torch.from_numpy(a) for a in (indices.numpy()[order], ids, time[order])))


def as_times(value: Any, name: str, size: int, each: str = "edge") -> np.ndarray:
    """Returns one time per edge (or node) as int64; raises TypeError or ValueError."""
    tensor = _column(value, name, size, f"time per {each}")
    is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype in (torch.bool, torch.uint64))
    if not is_integer and (size > 0 or isinstance(value, Tensor)):
        raise TypeError(f"{name} has dtype {tensor.dtype}: expected integers, such as seconds; convert it to int64")
    return as_numpy(tensor.cpu().to(torch.int64).contiguous())


def _column(value: Any, name: str, size: int, expected: str) -> Tensor:
    """One value per edge or node, given as ``[size]`` or ``[size, 1]``."""
    require_data(value, name)
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    if tensor.dim() == 2 and tensor.size(1) == 1:
        tensor = tensor.view(-1)
    if tuple(tensor.shape) != (size,):
        raise ValueError(f"{name} has shape {list(tensor.shape)}: expected one {expected}, [{size}]")
    return tensor


# Weights of edges, in the form that draws proportional to weight read.


class EdgeWeights(NamedTuple):
    """Integer weights of the edges of every row: inclusive prefix sums within each row ``[E]`` uint64, and cut points
    into them (Chen & Asau, "On generating random variates from an empirical distribution", AIIE Transactions 6, 1974),
    uint32, ``_core.weight_guide_size(num_rows, E)`` of them."""

    weight_sum: Tensor
    weight_guide: Tensor

    @classmethod
    def build(cls, indptr: Tensor, weight: np.ndarray) -> EdgeWeights:
        """Sums up weights ``[E]``, float32 or float64, in row order."""
        weight_sum = np.empty(len(weight), np.uint64)
        weight_guide = np.empty(_core.weight_guide_size(len(indptr) - 1, len(weight)), np.uint32)
        _core.build_weights(indptr.numpy(), weight, weight_sum, weight_guide)
        return cls(torch.from_numpy(weight_sum), torch.from_numpy(weight_guide))

    def with_empty_rows(self, num_rows: int) -> EdgeWeights:
        """The same for a graph with that many more empty rows at its end."""
        guide = np.concatenate([self.weight_guide.numpy(), np.zeros(num_rows, np.uint32)])
        return EdgeWeights(self.weight_sum, torch.from_numpy(guide))


def as_weights(value: Any, num_edges: int, name: str = "edge_weight") -> np.ndarray:
    """Returns one weight per edge as float32 or float64, without loss; raises TypeError or ValueError, naming the first
    that is negative or not finite."""
    tensor = _column(value, name, num_edges, "weight per edge")
    if tensor.is_complex():
        raise TypeError(f"{name} has dtype {tensor.dtype}: expected real numbers")
    if tensor.dtype not in (torch.float32, torch.float64):
        wide = not tensor.is_floating_point() and tensor.dtype.itemsize > 2
        given, tensor = tensor, tensor.to(torch.float64 if wide else torch.float32)
        if wide and num_edges and not torch.equal(tensor.to(given.dtype), given):
            raise ValueError(f"{name} holds integers above 2^53: expected weights that a double holds exactly")
    weight = as_numpy(tensor.cpu().contiguous())
    # Here rather than when the rows are built: the position to name is the user's.
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(bad):
        raise ValueError(
            f"{name}[{bad[0]}] = {weight[bad[0]]}: expected finite weights of at least 0; a weight of 0 keeps an "
            "edge out while others remain"
        )
    return weight


Size = tuple[int, int]

_INT32_MAX = 2**31 - 1
_LAYOUTS = ("CSR", "CSC")


class Topology:
    """Edges of one type in compressed rows; the edges of a row keep the order in which they were given.

    Built by counting sort: besides the result it needs no memory. Ids are stored as int32 when they fit, else as int64.

    Args:
        edge_index: Source and destination ids, shape ``[2, E]``, int32 or int64, or a pair of such rows.
        num_nodes: Number of nodes, or of ``(source nodes, destination nodes)`` where they are of different types.
            Default: one more than the largest id, isolated tail nodes being unknown.
        edge_ids: Ids of the edges, shape ``[E]``, int32 or int64, at least 0. Default: positions in ``edge_index``.
        layout: ``'CSR'`` expands a node along its out-edges, ``'CSC'`` along its in-edges (PyG's direction).
        edge_weight: Weight of each edge ``[E]``, at least 0, for draws proportional to weight. In a row of d edges a
            weight above 0 counts as no less than about 2 d 10^-18 times the largest.
        edge_time: Time of each edge ``[E]``, integers, for sampling edges up to a time.

    Attributes:
        num_nodes, num_neighbor_nodes: Numbers of nodes that can be expanded (destinations for ``'CSC'``, sources for
            ``'CSR'``), and of those at the other end.
        indptr: Row offsets ``[num_rows + 1]``, int64.
        indices, edge_ids: Neighbour ids and edge ids ``[E]``. ``edge_ids`` is None where an id is ``first_edge_id``
            plus the position in ``indices``, as of edges that were given in the order of the rows: samplers compute
            such ids, which is faster than reading them. :meth:`all_edge_ids` returns them in either case.
        weights, by_time: :class:`~glt.data.topology.EdgeWeights` and :class:`~glt.data.topology.TimedEdges`, or None.
        book, part: Owners of the nodes, and the partition that these rows are of; None and 0 where all nodes have rows.

    Raises:
        IndexError: If an id is outside the graph; names the first.
        TypeError, ValueError: If shapes, dtypes, weights, times or the layout do not fit.

    Example:
        >>> topology = glt.data.Topology([[0, 0, 1], [1, 2, 2]], num_nodes=3)
        >>> topology
        Topology(3 nodes, 3 edges, CSR, 44 B)
        >>> topology.degrees
        tensor([2, 1, 0])
    """

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    first_edge_id: int = 0
    weights: EdgeWeights | None = None
    by_time: TimedEdges | None = None
    layout: str
    num_nodes: int
    num_neighbor_nodes: int
    book: PartitionBook | None = None
    part: int = 0
    _trusted: bool = True

    def __init__(
        self,
        edge_index: Any,
        num_nodes: int | Size | None = None,
        *,
        edge_ids: Tensor | None = None,
        layout: str = "CSR",
        edge_weight: Any = None,
        edge_time: Any = None,
    ) -> None:
        self.layout = _checked_layout(layout)
        source, target = endpoints(edge_index)
        num_sources, num_targets = _checked_size(num_nodes, source, target)
        row, col = (target, source) if layout == "CSC" else (source, target)
        ends = (num_targets, num_sources) if layout == "CSC" else (num_sources, num_targets)
        self.num_nodes, self.num_neighbor_nodes = ends
        num_edges = len(row)
        ids_in = None if edge_ids is None else _checked_edge_ids(edge_ids, num_edges)
        weight = None if edge_weight is None else as_weights(edge_weight, num_edges)
        time = None if edge_time is None else as_times(edge_time, "edge_time", num_edges)
        # Weights and times follow the edges into the rows by their positions, which then stand in for the ids.
        by_position = ids_in is None or weight is not None or time is not None
        largest_id = num_edges - 1 if by_position or ids_in is None else int(ids_in.max(initial=0))
        # NumPy asks for 2 MiB pages for large arrays, which torch does not: random reads miss the TLB less often.
        indptr = np.empty(self.num_nodes + 1, np.int64)
        indices = np.empty(num_edges, np.int32 if self.num_neighbor_nodes - 1 <= _INT32_MAX else np.int64)
        ids = np.empty(num_edges, np.int32 if largest_id <= _INT32_MAX else np.int64)
        names = (f"edge_index[{int(layout == each)}]" for each in ("CSC", "CSR"))
        given = None if by_position else ids_in
        try:
            in_order = _core.build_csr(row, col, *ends, indptr, indices, ids, given, None, largest_id, *names)
        except IndexError as error:  # of an id: raised here, so that tracebacks are short
            raise IndexError(*error.args) from None
        self.indptr, self.indices = torch.from_numpy(indptr), torch.from_numpy(indices)
        position: Any = slice(None) if by_position and in_order else ids
        if by_position and ids_in is not None:
            ids = ids_in[position].astype(np.int32 if ids_in.max(initial=0) <= _INT32_MAX else np.int64, copy=False)
            in_order = False
        self.edge_ids = None if in_order else torch.from_numpy(ids)
        if weight is not None:
            self.weights = EdgeWeights.build(self.indptr, weight[position])
        if time is not None:
            self.by_time = TimedEdges.build(self.indptr, self.indices, self.edge_ids, time[position])

    @classmethod
    def from_rows(
        cls,
        indptr: Tensor,
        indices: Tensor,
        edge_ids: Tensor | None = None,
        *,
        layout: str = "CSR",
        num_nodes: int | Size | None = None,
        weights: tuple[Tensor, Tensor] | None = None,
        by_time: tuple[Tensor, Tensor | None, Tensor] | None = None,
        book: PartitionBook | None = None,
        part: int = 0,
        trusted: bool = False,
        first_edge_id: int = 0,
    ) -> Topology:
        """Wraps rows that exist already, without copying them; the arguments are as the attributes, ``weights`` and
        ``by_time`` as tuples. Edge ids that are None count up from ``first_edge_id``, those by time by positions there.
        ``num_nodes`` is that of the whole graph, or ``(source nodes, destination nodes)``; default: the number of rows.
        Sampling refuses nodes of other partitions than ``part``. ``trusted`` skips the check that every neighbour id is
        in range and times do not fall (checksummed files).

        Raises:
            IndexError: If a neighbour id is out of range; names the first.
            TypeError, ValueError: If dtypes or shapes do not fit, ``indptr`` falls, or the layout is unknown.
        """
        for name, column in (("indptr", indptr), ("indices", indices), ("edge_ids", edge_ids)):
            if column is not None and column.layout != torch.strided:
                raise TypeError(f"{name} has layout {column.layout}: expected a dense tensor, that of .to_dense()")
        self = cls.__new__(cls)
        self.layout = _checked_layout(layout)
        size = len(indptr) - 1 if num_nodes is None else num_nodes
        sources, targets = (size, size) if isinstance(size, int) else size
        self.num_nodes, self.num_neighbor_nodes = (targets, sources) if layout == "CSC" else (sources, targets)
        self.indptr, self.indices, self.edge_ids, self.first_edge_id = indptr, indices, edge_ids, first_edge_id
        self.weights = None if weights is None else EdgeWeights(*weights)
        self.by_time = None if by_time is None else TimedEdges(*by_time)
        self.book, self.part = book, part
        self._trusted = trusted
        _ = self.csr  # validates
        if self.by_time is not None:
            _ = self.csr_by_time
        return self

    def widened(self, size: Size) -> Topology:
        """Returns the same edges among more nodes ``(source nodes, destination nodes)``, sharing all columns."""
        if self.book is not None or size[0] < self.size[0] or size[1] < self.size[1]:
            raise ValueError(f"size = {size}: expected at least {self.size}, of a graph that has a row for every node")
        if size == self.size:
            return self
        missing = size[self.layout == "CSC"] - self.num_nodes
        indptr = torch.cat([self.indptr, self.indptr[-1:].expand(missing)]) if missing else self.indptr
        weights = None if self.weights is None else self.weights.with_empty_rows(missing)
        sources, targets = size
        nodes, neighbors = (targets, sources) if self.layout == "CSC" else size
        return self._changed(indptr=indptr, weights=weights, num_nodes=nodes, num_neighbor_nodes=neighbors)

    def with_times(self, time: np.ndarray) -> Topology:
        """Returns the same edges, sharing all columns, with times in row order ``[E]``, int64."""
        ids = self.all_edge_ids() if self.first_edge_id else self.edge_ids
        return self._changed(by_time=TimedEdges.build(self.indptr, self.indices, ids, time))

    def _changed(self, **attributes: Any) -> Topology:
        other = Topology.__new__(Topology)
        other.__setstate__({**self.__getstate__(), **attributes, "_trusted": True})
        _ = other.csr  # validates
        return other

    @property
    def csr(self) -> _core.Csr:
        """The validated native view, with weights where there are any."""
        return self._views["plain" if self.weights is None else "weighted"].get()

    @property
    def csr_unweighted(self) -> _core.Csr:
        """The native view of samplers that draw uniformly."""
        return self._views["plain"].get()

    @property
    def csr_by_time(self) -> _core.Csr:
        """The validated native view of temporal sampling; raises ValueError if the edges have no times."""
        if self.by_time is None:
            raise ValueError("the edges have no times: expected a topology built with edge_time")
        return self._views["timed"].get()

    @cached_property
    def _views(self) -> dict[str, NativeView[_core.Csr]]:
        plain = {"indptr": self.indptr, "indices": self.indices, "edge_ids": self.edge_ids}
        columns: dict[str, dict[str, Tensor | None]] = {"plain": plain}
        if self.weights is not None:
            columns["weighted"] = {**plain, **self.weights._asdict()}
        if self.by_time is not None:
            columns["timed"] = {**plain, **self.by_time._asdict()}
        options = {"num_nodes": self.num_nodes, "num_neighbor_nodes": self.num_neighbor_nodes}
        options |= {"check_indices": not self._trusted, "part": self.part, "first_edge_id": self.first_edge_id}
        owners = () if self.book is None else (self.book.owner, self.book.row_of, self.book.offset)
        return {
            name: NativeView((*of_view.values(), *owners), partial(_native_csr, of_view, self.book, options))
            for name, of_view in columns.items()
        }

    def all_edge_ids(self) -> Tensor:
        """Returns the ids of all edges ``[E]`` in the order of the rows: ``edge_ids``, made where they are None."""
        if self.edge_ids is not None:
            return self.edge_ids
        end = self.first_edge_id + self.num_edges
        return torch.arange(self.first_edge_id, end, dtype=torch.int32 if end - 1 <= _INT32_MAX else torch.int64)

    def coo(self) -> Tensor:
        """Returns sources and destinations ``[2, E]``, int64, in the order of the rows; not of a partition."""
        if self.book is not None:
            raise ValueError("these rows are of a partition: expected a graph that has a row for every node")
        ends = torch.empty(2, self.num_edges, dtype=torch.int64)
        neighbor = int(self.layout == "CSR")
        ends[neighbor] = self.indices
        nodes = torch.arange(self.num_nodes)
        ends[1 - neighbor] = torch.repeat_interleave(nodes, self.degrees, output_size=self.num_edges)
        return ends

    @property
    def size(self) -> Size:
        """Numbers of ``(source nodes, destination nodes)``."""
        ends = (self.num_nodes, self.num_neighbor_nodes)
        return ends if self.layout == "CSR" else (ends[1], ends[0])

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def num_edge_ids(self) -> int:
        """One more than the largest id of an edge; 0 without edges. Reads all ids where these are stored."""
        if self.num_edges == 0:
            return 0
        return self.first_edge_id + self.num_edges if self.edge_ids is None else int(self.edge_ids.max()) + 1

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    @property
    def edge_dir(self) -> str:
        """``'out'`` for CSR, ``'in'`` for CSC."""
        return "out" if self.layout == "CSR" else "in"

    @property
    def degrees(self) -> Tensor:
        """Edges per row ``[num_rows]``, int64."""
        return self.indptr[1:] - self.indptr[:-1]

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in dict(self.__dict__).items() if k != "_views"}  # another thread may add that meanwhile
        if self.weights is not None:
            state["weights"] = tuple(Packed.of(array) for array in self.weights)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.get("weights") is not None:
            state["weights"] = EdgeWeights(*(Packed.open(array) for array in state["weights"]))
        self.__dict__.update(state)

    @property
    def arrays(self) -> tuple[Tensor | None, ...]:
        """All memory that it has; None for what it lacks."""
        return self.indptr, self.indices, self.edge_ids, *(self.weights or ()), *(self.by_time or ())

    @says
    def __repr__(self) -> str:
        nodes = self.num_nodes if self.num_nodes == self.num_neighbor_nodes else self.size
        kinds = {"weighted": self.weights, "timed": self.by_time}
        extra = "".join(f", {name}" for name, has in kinds.items() if has is not None)
        return f"{nodes} nodes, {self.num_edges} edges, {self.layout}{extra}, {size_of(self.arrays)}"


def _native_csr(columns: dict[str, Tensor | None], book: PartitionBook | None, options: dict[str, Any]) -> _core.Csr:
    arrays: dict[str, Any] = {name: column.numpy() for name, column in columns.items() if column is not None}
    if book is None:
        return _core.Csr(**arrays, **options)
    if book.row_of is not None:
        arrays["row_of"] = book.row_of.numpy()
    return _core.Csr(**arrays, **options, book=book.native)


def layout_of(edge_dir: str) -> str:
    check_edge_dir(edge_dir)
    return "CSC" if edge_dir == "in" else "CSR"


def _checked_layout(layout: str) -> str:
    if layout not in _LAYOUTS:
        raise ValueError(f"layout = {layout!r}: expected 'CSR' (out-edges) or 'CSC' (in-edges)")
    return layout


def _checked_size(num_nodes: int | Size | None, source: np.ndarray, target: np.ndarray) -> Size:
    if num_nodes is None:
        num_nodes = max(int(ends.max(initial=-1)) + 1 for ends in (source, target))
    sources, targets = (num_nodes, num_nodes) if isinstance(num_nodes, int) else num_nodes
    if sources < 0 or targets < 0:
        raise ValueError(f"num_nodes = {num_nodes}: expected at least 0")
    return sources, targets


def _checked_edge_ids(edge_ids: Any, num_edges: int) -> np.ndarray:
    ids = as_numpy(_column(edge_ids, "edge_ids", num_edges, "id per edge").cpu().contiguous())
    if ids.dtype not in (np.int32, np.int64):
        raise TypeError(f"edge_ids has dtype {ids.dtype}: expected int32 or int64")
    if ids.min(initial=0) < 0:
        raise ValueError(f"edge_ids has a negative id, {ids.min()}: expected ids of at least 0")
    return ids
