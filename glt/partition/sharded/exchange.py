"""How the ranks of a partitioning run agree, and how rows go to the ranks that write them, in bounded rounds; and the
slice of the graph that a rank holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from glt._collective import Collective
from glt.data.arrays import require_data
from glt.data.frames import is_frame
from glt.data.keys import KeyMap
from glt.errors import PeerLost
from glt.partition.format.book import group_by_owner
from glt.partition.format.files import scratch_array
from glt.partition.format.rows import Rows
from glt.partition.graph_input import NODE_TABLES, GraphInput
from glt.partition.methods.hotness import HotnessByType, NodeHotness, PartHotness, Values, hotness_by_type
from glt.partition.store_dtype import StoreDtype, packed_graph

Kind = tuple[np.dtype, tuple[int, ...]]  # dtype of a column, and shape of a row of it


class Exchange(Collective):
    """The ranks of a run; ``timeout_s`` is how long to wait for another one at a time, ``round_bytes`` the memory for
    rows that arrive at a time, the same on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float, round_bytes: int) -> None:
        super().__init__(group, timeout_s, "partitioning rank", "and run all of them again")
        self.round_bytes = round_bytes
        if self.rank < 0:
            raise ValueError("group: this process is no member of it; call partition_distributed in its members only")
        backends = dist.get_backend_config(group)
        if "cpu:gloo" not in backends:
            raise ValueError(f"group has the backends {backends!r}: expected gloo for host memory, 'cpu:gloo'")

    def parts(self, num_parts: int, rank: int | None = None) -> range:
        """Returns the partitions that a rank, by default this one, writes."""
        return range(self.rank if rank is None else rank, num_parts, self.world_size)

    def agree(self, given: dict[str, object]) -> None:
        """Raises ValueError on all ranks if values of an argument differ between ranks; names them and the ranks."""
        first, *others = self.gather({name: repr(value) for name, value in given.items()})
        for rank, other in enumerate(others, 1):
            for name in {**first, **other}:
                of_first, of_other = first.get(name, "None"), other.get(name, "None")
                if of_first != of_other:
                    raise ValueError(
                        f"{name} differs between ranks: rank 0 has {of_first}, rank {rank} has {of_other}; expected "
                        "the same on all of them"
                    )

    def gather_counts(self, counts: np.ndarray) -> np.ndarray:
        """Returns the int64 ``counts`` of all ranks, one rank after the other along a new first axis."""
        received = self.all_to_all([[counts]] * self.world_size)
        return np.stack([each.view(np.int64).reshape(counts.shape) for each in received])

    def gather_rows(
        self, rows: np.ndarray | Sequence[np.ndarray], num_rows: np.ndarray, scratch: Path | None = None
    ) -> np.ndarray:
        """Returns the slices of all ranks, ``num_rows [world_size]`` long, as one array; in a file in ``scratch``, if
        given, for an array of one dimension. A list has what each of the first ranks gets; the others get nothing.
        """
        of_ranks = [rows] * self.world_size if isinstance(rows, np.ndarray) else rows
        dtype, row_shape = of_ranks[0].dtype, of_ranks[0].shape[1:]
        first = first_rows(num_rows)
        size = int(first[-1]) if self.rank < len(of_ranks) else 0
        whole = np.empty((size, *row_shape), dtype) if scratch is None else scratch_array(scratch, size, dtype)
        step = self.round_rows([(dtype, row_shape)])
        for begin in range(0, int(num_rows.max()), step):
            if isinstance(rows, np.ndarray):  # one copy for all
                pieces = [[np.ascontiguousarray(rows[begin : begin + step])]] * self.world_size
            else:
                pieces = [[np.ascontiguousarray(each[begin : begin + step])] for each in rows]
            received = self.all_to_all(pieces + [[]] * (self.world_size - len(of_ranks)))
            for at, end, data in zip(first[:-1] + begin, first[1:], received, strict=True):
                to = whole[at : min(at + step, end)] if at < end else whole[:0]
                to[:] = data.view(dtype).reshape(to.shape)
        return whole

    def round_rows(self, kinds: Sequence[Kind]) -> int:
        """Returns how many rows a rank sends in a round so that one that gets all of all ranks gets ``round_bytes``."""
        row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
        return max(1, self.round_bytes // (self.world_size * max(1, row_bytes)))


@contextmanager
def exchange_of(group: dist.ProcessGroup | None, timeout_s: float, round_bytes: int) -> Iterator[Exchange]:
    """Yields the exchange of the ranks in ``group``, or of all, when all have come."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            "torch.distributed is not initialized: call torch.distributed.init_process_group('gloo') first, in each "
            "process that torchrun has started"
        )
    with ExitStack() as stack:
        if group is None:
            try:  # a group of its own has this deadline, and gloo, whatever the default group is for
                group = dist.new_group(timeout=timedelta(seconds=timeout_s), backend="gloo")
            except RuntimeError as error:
                raise PeerLost(
                    f"rank {dist.get_rank()} of {dist.get_world_size()} did not find all others within timeout_s = "
                    f"{timeout_s:g} s: expected all ranks to call partition_distributed; see the output of those that "
                    "did not"
                ) from error
            stack.callback(dist.destroy_process_group, group)
        yield stack.enter_context(Exchange(group, timeout_s, round_bytes))


def first_rows(num_rows: np.ndarray) -> np.ndarray:
    """Returns where the slice of each rank begins, given how many rows each has, and the number of all, at the end."""
    return np.concatenate([[0], np.cumsum(num_rows)])


def scatter_rows(
    exchange: Exchange,
    num_parts: int,
    kinds: Sequence[Kind],
    num_rows: np.ndarray,
    rows: Callable[[int, int], tuple[np.ndarray, Sequence[np.ndarray]]],
) -> Iterator[tuple[int, np.ndarray, list[np.ndarray]]]:
    """Sends rows of all ranks to the writers of their partitions; yields what came, round by round: from which rank,
    in order, how many rows of each of the own partitions, and their columns. Rows of a partition keep their order.

    ``num_rows [world_size]`` are the rows of each rank; ``rows``, called with the range of rows of a round, returns the
    partition of each and its columns. Memory: what a rank sends in a round, three times, and ``exchange.round_bytes``.
    """
    step = exchange.round_rows(kinds)
    own_rows = int(num_rows[exchange.rank])
    of_ranks = [np.array(exchange.parts(num_parts, rank), np.int64) for rank in range(exchange.world_size)]
    begins = np.cumsum([0, *(parts.size for parts in of_ranks)])
    place_of = np.empty(num_parts, np.min_scalar_type(num_parts - 1))  # where those of the first rank come first
    place_of[np.concatenate(of_ranks)] = np.arange(num_parts)
    for begin in range(0, int(num_rows.max()), step):
        owner, columns = rows(min(begin, own_rows), min(begin + step, own_rows))
        order, first = group_by_owner(place_of[owner], num_parts)
        grouped = [np.asarray(column)[order] for column in columns]
        pieces = [
            [np.diff(first[a : b + 1]), *(column[first[a] : first[b]] for column in grouped)]
            for a, b in pairwise(begins.tolist())
        ]
        for source, data in enumerate(exchange.all_to_all(pieces)):
            counts = data[: of_ranks[exchange.rank].nbytes].view(np.int64)
            yield source, counts, columns_of(data[counts.nbytes :], int(counts.sum()), kinds)


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
    """The slice of a rank: ``num_nodes`` of ``graph`` are those of the whole graph; ``node_rows`` and ``num_edges``
    ``[world_size, num_types]`` int64 are rows of node tables and edges of the slices of all ranks.
    """

    graph: GraphInput
    node_rows: np.ndarray
    num_edges: np.ndarray

    @classmethod
    def of(
        cls,
        exchange: Exchange,
        edge_dir: str,
        num_nodes: Any,
        edge_index: Any,
        tables: dict[str, Any],
        store_dtype: StoreDtype | None = None,
    ) -> GraphSlice:
        """Checks the slices of all ranks, of which tables are packed as ``store_dtype`` says."""
        node_types = list(num_nodes) if isinstance(num_nodes, Mapping) else [None]
        rows = [rows_of(tables, node_type) for node_type in node_types]
        try:
            graph = GraphInput.of(num_nodes, edge_index, num_rows=rows, **tables).expanding(edge_dir)
        except IndexError as error:  # which names a position
            raise IndexError(f"in the slice of rank {exchange.rank}: {error}") from error
        graph = _with_lists_of_one_length(exchange, graph)
        kinds = {name: _kind(name, table) for name, table in graph.tables() if not name.startswith("edge_index")}
        exchange.agree(kinds | {"TensorFrames": graph.schema.frames})
        graph = packed_graph(graph, store_dtype)  # not before: of other rows there may be as many bytes
        node_rows = exchange.gather_counts(np.array(rows, np.int64))
        for at, nodes in enumerate(graph.nodes):
            of_type = f" of type {nodes.node_type!r}" if graph.schema.is_hetero else ""
            if nodes.tables or nodes.time is not None:
                _require_all(f"tables of nodes{of_type} have", "rows", node_rows[:, at], nodes.num_nodes)
        return cls(graph, node_rows, exchange.gather_counts(np.array([e.num_edges for e in graph.edges], np.int64)))


def _with_lists_of_one_length(exchange: Exchange, graph: GraphInput) -> GraphInput:
    """The lists of TensorFrames filled up to the longest of all ranks."""
    inputs: dict[str, list[Any]] = {"node": [*graph.nodes], "edge": [*graph.edges]}
    places = [(each.level, each.type_index, name) for each in graph.schema.frames for name in each.lists()]
    widths = {repr(at): inputs[at[0]][at[1]].attrs[at[2]].row_shape[-1] for at in places}
    of_ranks = exchange.gather(widths)
    for level, at, name in places:
        given = inputs[level][at]
        rows, place = given.attrs[name], repr((level, at, name))
        missing = max(widths_of.get(place, 0) for widths_of in of_ranks) - widths[place]
        filled = replace(rows, array=np.pad(rows.array, ((0, 0), (0, 0), (0, missing))))
        inputs[level][at] = replace(given, attrs={**given.attrs, name: filled})
    return replace(graph, nodes=tuple(inputs["node"]), edges=tuple(inputs["edge"]))


def _require_all(what: str, noun: str, num_rows: np.ndarray, num_nodes: int) -> None:
    if num_rows.sum() != num_nodes:
        raise ValueError(
            f"{what} {num_rows.tolist()} {noun} on the ranks, {num_rows.sum()} together: expected num_nodes = "
            f"{num_nodes}, each node on one rank"
        )


def gather_argument(exchange: Exchange, name: str, value: Any, num_nodes: Any) -> Any:
    """Returns an argument that has an element for each node, given the slice of it that each rank has, whose
    :func:`structure` all agree on. Tensors and arrays in it, also inside of dicts and lists, come back as arrays of all
    nodes.
    """
    by_type = num_nodes if isinstance(num_nodes, Mapping) else {}
    if isinstance(value, Mapping):
        keys = sorted(value, key=repr)
        return {key: gather_argument(exchange, f"{name}[{key!r}]", value[key], by_type.get(key)) for key in keys}
    if isinstance(value, list | tuple):
        return [gather_argument(exchange, f"{name}[{at}]", each, num_nodes) for at, each in enumerate(value)]
    if isinstance(num_nodes, Mapping):  # an array that is of no type, which is refused where it is read
        num_nodes = None
    if not isinstance(value, np.ndarray | torch.Tensor):
        return value
    rows = Rows.of(name, value, value.shape[0] if value.ndim else 0, "node").given
    num_rows = exchange.gather_counts(np.array(len(rows)))
    if num_nodes is not None:
        _require_all(f"{name} has", "elements", num_rows, num_nodes)
    return exchange.gather_rows(rows, num_rows)


def structure(value: Any) -> object:
    """Returns what must be alike on all ranks of an argument: everything but lengths and contents of slices."""
    if isinstance(value, Mapping):
        return {key: structure(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return [structure(each) for each in value]
    if isinstance(value, KeyMap):
        return [value.columns, len(value)]
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
        if is_frame(value):
            return int(value.num_rows)
        if isinstance(value, np.ndarray | torch.Tensor) and value.ndim:
            require_data(value, name)
            return int(value.shape[0])
    return 0


def _kind(name: str, table: Rows | np.ndarray) -> object:
    if isinstance(table, Rows):
        return f"{table.torch_dtype} {['*', *table.row_shape]}"
    return True if name.startswith(("node_time", "edge_time")) else str(table.dtype)


class SlicedHotness(NodeHotness):
    """Hotness of nodes of one type, those of rank 0 first; every call is a collective of all ranks.

    No rank ever has the numbers of all nodes for more than one partition: what is asked of some nodes is answered where
    their numbers are, and the numbers for partition p go to rank ``p % world_size``, one partition after the other.
    ``of_parts`` are ``[num_rows[rank]]`` float32 or float64 of each partition, ``is_shared``: one array for all.
    """

    def __init__(self, exchange: Exchange, of_parts: PartHotness, is_shared: bool, num_rows: np.ndarray) -> None:
        super().__init__(of_parts)
        self._exchange, self._is_shared, self._num_rows = exchange, is_shared, num_rows

    def is_read(self) -> np.ndarray:
        return self._exchange.gather_rows(super().is_read(), self._num_rows)

    def map(self, nodes: np.ndarray, of: Values) -> list[np.ndarray]:
        first, rank = first_rows(self._num_rows), self._exchange.rank
        bounds = np.searchsorted(nodes, first)
        found = super().map(nodes[bounds[rank] : bounds[rank + 1]] - first[rank], of)
        return [self._exchange.gather_rows(each, np.diff(bounds)) for each in found]

    def columns(self) -> Iterator[tuple[int, np.ndarray]]:
        world_size, rank = self._exchange.world_size, self._exchange.rank
        if self._is_shared:
            column = self._exchange.gather_rows(self.arrays[0], self._num_rows)
            yield from ((idx, column) for idx in range(rank, self.num_parts, world_size))
            return
        for first in range(0, self.num_parts, world_size):
            wanted = self.arrays[first : first + world_size]
            column = self._exchange.gather_rows(wanted, self._num_rows)
            if rank < len(wanted):
                yield first + rank, column

    def of_all_parts(self, found: Mapping[int, Any]) -> list[Any]:
        everything = dict(pair for of_rank in self._exchange.gather(list(found.items())) for pair in of_rank)
        return [everything[idx] for idx in range(self.num_parts)]


def sliced_hotness(
    exchange: Exchange, name: str, value: Any, graph: GraphInput, num_parts: int
) -> HotnessByType | None:
    """Returns hotness as a partitioner of ``graph`` takes it, given the slice of it that each rank has; or None."""
    exchange.agree({name: structure(value)})
    if value is None:
        return None
    schema = graph.schema
    of_types = [_of_type(value, each if schema.is_hetero else None) for each in schema.node_types]
    rows = [_length_of_first(each) for each in of_types]
    found = hotness_by_type(name, value, schema, rows, num_parts)
    num_rows = exchange.gather_counts(np.array(rows, np.int64))
    by_type: list[NodeHotness | None] = []
    for at, (each, nodes) in enumerate(zip(found, graph.nodes, strict=True)):
        if each is None:
            by_type.append(None)
            continue
        of_type = f"[{nodes.node_type!r}]" if schema.is_hetero else ""
        _require_all(f"{name}{of_type} has", "numbers", num_rows[:, at], nodes.num_nodes)
        is_shared = not isinstance(of_types[at], list | tuple)
        by_type.append(SlicedHotness(exchange, each, is_shared, num_rows[:, at]))
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
