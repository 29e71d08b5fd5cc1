"""How the ranks of a partitioning run agree, and how rows go to the ranks that write them, in bounded rounds; and the
slice of the graph that a rank holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from glt._checks import integer
from glt._collective import Collective
from glt.data.arrays import require_data
from glt.errors import PeerLost
from glt.partition.format.files import Rows, scratch_array
from glt.partition.graph_input import NODE_TABLES, GraphInput
from glt.partition.methods.hotness import (
    HotnessByType,
    NodeHotness,
    PartHotness,
    Values,
    any_read,
    hotness_by_type,
    map_rows,
)

Kind = tuple[np.dtype, tuple[int, ...]]  # dtype of a column, and shape of a row of it


class Exchange(Collective):
    """The ranks of a run.

    Args:
        group: The ranks that take part; None: all of them.
        timeout_s: How long to wait for another rank at a time.
        round_bytes: Memory for rows that arrive at a time; the same on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float, round_bytes: int) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "torch.distributed is not initialized: call torch.distributed.init_process_group('gloo') first, in "
                "each process that torchrun has started"
            )
        self._is_mine = group is None
        # A group of one's own has this deadline, and gloo, whatever the default group is for.
        super().__init__(_new_group(timeout_s) if group is None else group, timeout_s, "partitioning rank", _REMEDY)
        self.round_bytes = round_bytes
        if self.rank < 0:
            raise ValueError("group: this process is no member of it; call partition_distributed in its members only")
        backends = dist.get_backend_config(self._group)
        if "cpu:gloo" not in backends:
            raise ValueError(f"group has the backends {backends!r}: expected gloo for host memory, 'cpu:gloo'")

    def __enter__(self) -> Exchange:
        try:
            return super().__enter__()
        except BaseException:
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._leave()

    def agree(self, given: dict[str, object]) -> None:
        """Raises ValueError on all ranks if values of an argument differ between ranks; names them and the ranks."""
        everyone: list[dict[str, Any]] = self.gather({name: repr(value) for name, value in given.items()})
        first = everyone[0]
        for rank, other in enumerate(everyone):
            for name in (*first, *(name for name in other if name not in first)):
                if first.get(name) != other.get(name):
                    raise ValueError(
                        f"{name} differs between ranks: rank 0 has {first.get(name, 'none')}, rank {rank} has "
                        f"{other.get(name, 'none')}; expected the same on all of them"
                    )

    def gather_counts(self, counts: np.ndarray) -> np.ndarray:
        """Returns the int64 ``counts`` of all ranks, one rank after the other along a new first axis."""
        received = self.all_to_all([[counts]] * self.world_size)
        return np.stack([each.view(np.int64).reshape(counts.shape) for each in received])

    def gather_rows(self, rows: np.ndarray, num_rows: np.ndarray, scratch: Path | None = None) -> np.ndarray:
        """Returns the slices of all ranks as one array; in a file in ``scratch``, if given.

        Args:
            rows: The slice of this rank; of the same dtype and shape of a row on all of them.
            num_rows: ``[world_size]``, of all ranks.
            scratch: A directory, for an array of one dimension.
        """
        first = first_rows(num_rows)
        shape = (int(first[-1]), *rows.shape[1:])
        whole = np.empty(shape, rows.dtype) if scratch is None else scratch_array(scratch, shape[0], rows.dtype)
        step = self.round_rows([(rows.dtype, rows.shape[1:])])
        for begin in range(0, int(num_rows.max()), step):
            piece = np.ascontiguousarray(rows[begin : begin + step])
            received = self.all_to_all([[piece]] * self.world_size)
            for at, end, data in zip(first[:-1] + begin, first[1:], received, strict=True):
                to = whole[at : min(at + step, end)] if at < end else whole[:0]
                to[:] = data.view(rows.dtype).reshape(to.shape)
        return whole

    def round_rows(self, kinds: Sequence[Kind]) -> int:
        """Returns how many rows a rank sends in a round so that one that gets all of all ranks gets ``round_bytes``."""
        row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
        return max(1, self.round_bytes // (self.world_size * max(1, row_bytes)))

    def _leave(self) -> None:
        if self._is_mine:
            dist.destroy_process_group(self._group)


_REMEDY = "and run all of them again"


def _new_group(timeout_s: float) -> dist.ProcessGroup:
    try:
        return dist.new_group(timeout=timedelta(seconds=timeout_s), backend="gloo")
    except RuntimeError as error:
        raise PeerLost(
            f"rank {dist.get_rank()} of {dist.get_world_size()} did not find all others within timeout_s = "
            f"{timeout_s:g} s: expected all ranks to call partition_distributed; see the output of those that did not"
        ) from error


def first_rows(num_rows: np.ndarray) -> np.ndarray:
    """Returns where the slice of each rank begins, given how many rows each has, and the number of all, at the end."""
    return np.concatenate([[0], np.cumsum(num_rows)])


@dataclass(frozen=True)
class Parts:
    """Which rank writes which partition: partition p is rank p % world_size's.

    Attributes:
        num_parts: Number of partitions.
        rank, world_size: This rank, and how many there are.
    """

    num_parts: int
    rank: int
    world_size: int

    def of(self, rank: int) -> range:
        return range(rank, self.num_parts, self.world_size)

    @property
    def own(self) -> range:
        return self.of(self.rank)

    @cached_property
    def place(self) -> np.ndarray:
        """Place of each partition when those of the first rank come first: ``[num_parts]``, smallest unsigned dtype."""
        order = np.concatenate([np.array(self.of(rank), np.int64) for rank in range(self.world_size)])
        place = np.empty(self.num_parts, np.min_scalar_type(self.num_parts - 1))
        place[order] = np.arange(self.num_parts)
        return place


@dataclass(frozen=True)
class Batch:
    """Rows that came from one rank in one round.

    Attributes:
        source: The rank.
        counts: Rows of each of the own partitions, which follow each other.
        columns: Their columns, each ``[sum(counts), ...]``, in the order of the source.
    """

    source: int
    counts: np.ndarray
    columns: list[np.ndarray]


def scatter_rows(
    exchange: Exchange,
    parts: Parts,
    kinds: Sequence[Kind],
    num_rows: np.ndarray,
    rows: Callable[[int, int], tuple[np.ndarray, Sequence[np.ndarray]]],
) -> Iterator[Batch]:
    """Sends rows of all ranks to the writers of their partitions.

    Memory: what a rank sends in a round, three times, and ``exchange.round_bytes`` for what arrives.

    Args:
        exchange: Connects the ranks.
        parts: Who writes which partition.
        kinds: Of each column.
        num_rows: ``[world_size]``, rows of each rank.
        rows: Called with the range of rows of a round, returns the partition of each and its columns.

    Yields:
        What came, round by round, from the ranks in order. Rows of a partition keep their order.
    """
    step = exchange.round_rows(kinds)
    own_rows = int(num_rows[exchange.rank])
    first_place = np.cumsum([0, *(len(parts.of(rank)) for rank in range(exchange.world_size))])
    for begin in range(0, int(num_rows.max()), step):
        owner, columns = rows(min(begin, own_rows), min(begin + step, own_rows))
        place = parts.place[owner]
        order = np.argsort(place, kind="stable")
        counts = np.bincount(place, minlength=parts.num_parts)
        first = np.concatenate([[0], np.cumsum(counts)])[first_place]
        grouped = [np.asarray(column)[order] for column in columns]
        pieces = [
            [counts[first_place[r] : first_place[r + 1]], *(column[first[r] : first[r + 1]] for column in grouped)]
            for r in range(exchange.world_size)
        ]
        for source, data in enumerate(exchange.all_to_all(pieces)):
            in_part = data[: 8 * len(parts.own)].view(np.int64)
            yield Batch(source, in_part, columns_of(data[in_part.nbytes :], int(in_part.sum()), kinds))


def columns_of(data: np.ndarray, num_rows: int, kinds: Sequence[Kind]) -> list[np.ndarray]:
    """Returns the columns of so many rows, given the bytes of one after the other."""
    at, columns = 0, []
    for dtype, shape in kinds:
        num_bytes = num_rows * math.prod(shape) * dtype.itemsize
        columns.append(data[at : at + num_bytes].view(dtype).reshape(num_rows, *shape))
        at += num_bytes
    return columns


@dataclass(frozen=True, eq=False)
class GraphSlice:
    """The slice of a rank, and how long those of all ranks are.

    Attributes:
        graph: The slice; its ``num_nodes`` are those of the whole graph.
        node_rows: ``[world_size, num_node_types]`` int64, rows of node tables.
        num_edges: ``[world_size, num_edge_types]`` int64.
    """

    graph: GraphInput
    node_rows: np.ndarray
    num_edges: np.ndarray

    @classmethod
    def of(
        cls, exchange: Exchange, edge_dir: str, num_nodes: Any, edge_index: Any, tables: dict[str, Any]
    ) -> GraphSlice:
        """Checks the slices of all ranks.

        Raises:
            TypeError, ValueError, KeyError, IndexError: As :meth:`GraphInput.of`, or if slices do not fit together.
        """
        node_types = list(num_nodes) if isinstance(num_nodes, Mapping) else [None]
        rows = [rows_of(tables, node_type) for node_type in node_types]
        try:
            graph = GraphInput.of(num_nodes, edge_index, num_rows=rows, **tables).expanding(edge_dir)
        except IndexError as error:  # which names a position
            raise IndexError(f"in the slice of rank {exchange.rank}: {error}") from error
        exchange.agree(_kinds(graph))
        node_rows = exchange.gather_counts(np.array(rows, np.int64))
        for at, nodes in enumerate(graph.nodes):
            found = node_rows[:, at]
            if (nodes.tables or nodes.time is not None) and found.sum() != nodes.num_nodes:
                of_type = f" of type {nodes.node_type!r}" if graph.schema.is_hetero else ""
                raise ValueError(
                    f"tables of nodes{of_type} have {found.tolist()} rows on the ranks, {found.sum()} together: "
                    f"expected num_nodes = {nodes.num_nodes}, each node on one rank"
                )
        return cls(graph, node_rows, exchange.gather_counts(np.array([e.num_edges for e in graph.edges], np.int64)))


def gather_argument(exchange: Exchange, name: str, value: Any, num_nodes: Any) -> Any:
    """Returns an argument that has an element for each node, given the slice of it that each rank has.

    Tensors and arrays in it, which may be inside of dicts and lists, come back as arrays of all nodes.

    Raises:
        ValueError: If arguments differ between ranks, or there are not ``num_nodes`` elements together; names how many
            each rank has.
    """
    exchange.agree({name: structure(value)})
    return _gathered(exchange, name, value, num_nodes)


def _gathered(exchange: Exchange, name: str, value: Any, num_nodes: Any) -> Any:
    if isinstance(value, Mapping):
        counts = num_nodes if isinstance(num_nodes, Mapping) else {}
        return {
            key: _gathered(exchange, f"{name}[{key!r}]", value[key], counts.get(key)) for key in sorted(value, key=repr)
        }
    if isinstance(value, list | tuple):
        return [_gathered(exchange, f"{name}[{at}]", each, num_nodes) for at, each in enumerate(value)]
    if isinstance(num_nodes, Mapping):  # an array that is of no type, which is refused where it is read
        num_nodes = None
    if not isinstance(value, np.ndarray | torch.Tensor):
        return value
    rows = Rows.of(name, value, value.shape[0] if value.ndim else 0, "node").array
    num_rows = exchange.gather_counts(np.array([len(rows)]))[:, 0]
    if num_nodes is not None and num_rows.sum() != num_nodes:
        raise ValueError(
            f"{name} has {num_rows.tolist()} elements on the ranks, {num_rows.sum()} together: expected num_nodes = "
            f"{num_nodes}, each node on one rank"
        )
    return exchange.gather_rows(rows, num_rows)


def structure(value: Any) -> object:
    """Returns what must be alike on all ranks of an argument: everything but lengths and contents of slices."""
    if isinstance(value, Mapping):
        return {key: structure(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return [structure(each) for each in value]
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} [*{''.join(f', {size}' for size in value.shape[1:])}]"
    return value


def rows_of(tables: dict[str, Any], node_type: str | None) -> int:
    """Rows of the first table of a node type; whether all have as many, and what they are, is checked later."""
    for name in NODE_TABLES:
        value = tables[name]
        if node_type is not None:
            value = value.get(node_type) if isinstance(value, Mapping) else None
        if name == "node_attrs":
            value = next(iter(value.values()), None) if isinstance(value, Mapping) else None
        if isinstance(value, np.ndarray | torch.Tensor) and value.ndim:
            require_data(value, name)
            return int(value.shape[0])
    return 0


def _kinds(graph: GraphInput) -> dict[str, object]:
    """Which tables there are, and of what kind, by name."""
    kinds: dict[str, object] = {}

    def add(name: str, of_type: str, rows: Rows | None) -> None:
        kinds[name + of_type] = None if rows is None else f"{rows.torch_dtype} {['*', *rows.row_shape]}"

    for nodes in graph.nodes:
        of_type = f"[{nodes.node_type!r}]" if graph.schema.is_hetero else ""
        add("node_feat", of_type, nodes.feat)
        add("node_label", of_type, nodes.label)
        kinds["node_time" + of_type] = nodes.time is not None
        for name, rows in nodes.attrs.items():
            add("node_attrs", f"{of_type}[{name!r}]", rows)
    for edges in graph.edges:
        of_type = f"[{edges.edge_type!r}]" if graph.schema.is_hetero else ""
        add("edge_feat", of_type, edges.feat)
        kinds["edge_weight" + of_type] = None if edges.weight is None else str(edges.weight.dtype)
        kinds["edge_time" + of_type] = edges.time is not None
        for name, rows in edges.attrs.items():
            add("edge_attrs", f"{of_type}[{name!r}]", rows)
    return kinds


class SlicedHotness(NodeHotness):
    """Hotness of nodes of one type, those of rank 0 first; every call is a collective of all ranks.

    No rank ever has the numbers of all nodes for more than one partition: what is asked of some nodes is answered where
    their numbers are, and the numbers for partition p go to rank ``p % world_size``, one partition after the other.

    Args:
        exchange: Connects the ranks.
        of_parts: Of each partition ``[num_rows[rank]]`` float32 or float64, of one dtype on all ranks.
        is_shared: Whether one array is that of all partitions.
        num_rows: ``[world_size]``, nodes of each rank.
    """

    def __init__(self, exchange: Exchange, of_parts: PartHotness, is_shared: bool, num_rows: np.ndarray) -> None:
        self._exchange = exchange
        self._of_parts = of_parts
        self._is_shared = is_shared
        self._num_rows = num_rows
        self._first = first_rows(num_rows)
        self.num_parts = len(of_parts)

    def is_read(self) -> np.ndarray:
        return self._exchange.gather_rows(any_read(self._of_parts), self._num_rows)

    def map(self, nodes: np.ndarray, of: Values) -> list[np.ndarray]:
        bounds = np.searchsorted(nodes, self._first)
        rank = self._exchange.rank
        mine = nodes[bounds[rank] : bounds[rank + 1]] - self._first[rank]
        found = map_rows(self._of_parts, mine, of)
        return [self._exchange.gather_rows(each, np.diff(bounds)) for each in found]

    def columns(self) -> Iterator[tuple[int, np.ndarray]]:
        world_size, rank = self._exchange.world_size, self._exchange.rank
        if self._is_shared:
            column = self._exchange.gather_rows(self._of_parts[0], self._num_rows)
            yield from ((idx, column) for idx in range(rank, self.num_parts, world_size))
            return
        for first in range(0, self.num_parts, world_size):
            wanted = self._of_parts[first : first + world_size]
            column = self._column(wanted)
            if rank < len(wanted):
                yield first + rank, column

    def of_all_parts(self, found: Mapping[int, Any]) -> list[Any]:
        everything = dict(pair for of_rank in self._exchange.gather(list(found.items())) for pair in of_rank)
        return [everything[idx] for idx in range(self.num_parts)]

    def _column(self, wanted: Sequence[np.ndarray]) -> np.ndarray:
        """Sends the slices of ``wanted[r]`` to each rank r, and returns what comes of the one for this rank."""
        exchange, dtype = self._exchange, self._of_parts[0].dtype
        column = np.empty(int(self._first[-1]) if exchange.rank < len(wanted) else 0, dtype)
        step = exchange.round_rows([(dtype, ())])
        for begin in range(0, int(self._num_rows.max()), step):
            pieces: list[list[np.ndarray]] = [[np.ascontiguousarray(each[begin : begin + step])] for each in wanted]
            received = exchange.all_to_all(pieces + [[]] * (exchange.world_size - len(wanted)))
            for at, data in zip((self._first[:-1] + begin).tolist(), received, strict=True):
                piece = data.view(dtype)
                if piece.size:
                    column[at : at + piece.size] = piece
        return column


def sliced_hotness(
    exchange: Exchange, name: str, value: Any, graph: GraphInput, num_parts: Any
) -> HotnessByType | None:
    """Returns hotness as a partitioner of ``graph`` takes it, given the slice of it that each rank has; None where it
    is None.

    Raises:
        TypeError, ValueError, KeyError: As :func:`hotness_by_type`, or if slices do not fit together.
    """
    exchange.agree({name: structure(value)})
    if value is None:
        return None
    schema = graph.schema
    num_parts = integer("num_parts", num_parts, 1, 2**16, "the number of partitions")
    of_types = [_of_type(value, each if schema.is_hetero else None) for each in schema.node_types]
    rows = [_length_of_first(each) for each in of_types]
    found = hotness_by_type(name, value, schema, rows, num_parts)
    num_rows = exchange.gather_counts(np.array(rows, np.int64))
    by_type: list[NodeHotness | None] = []
    for at, (each, count) in enumerate(zip(found, [nodes.num_nodes for nodes in graph.nodes], strict=True)):
        if each is not None and num_rows[:, at].sum() != count:
            of_type = f"[{schema.node_types[at]!r}]" if schema.is_hetero else ""
            raise ValueError(
                f"{name}{of_type} has {num_rows[:, at].tolist()} numbers on the ranks, {num_rows[:, at].sum()} "
                f"together: expected num_nodes = {count}, each node on one rank"
            )
        is_shared = not isinstance(of_types[at], list | tuple)
        by_type.append(None if each is None else SlicedHotness(exchange, each, is_shared, num_rows[:, at]))
    return HotnessByType(tuple(by_type))


def _of_type(value: Any, node_type: str | None) -> Any:
    """What is given of one node type: a list of arrays, an array, or None; anything where ``value`` is of no use."""
    if node_type is None:
        return value
    if isinstance(value, list | tuple):
        return [each.get(node_type) if isinstance(each, Mapping) else None for each in value]
    return value.get(node_type) if isinstance(value, Mapping) else None


def _length_of_first(value: Any) -> int:
    """Length of the first array; whether all have as many elements is checked later."""
    if isinstance(value, list | tuple):
        value = next((each for each in value if isinstance(each, np.ndarray | torch.Tensor)), None)
    return int(value.shape[0]) if isinstance(value, np.ndarray | torch.Tensor) and value.ndim else 0
