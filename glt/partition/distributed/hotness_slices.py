"""Hotness of nodes of which every rank has some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glt.data.schema import Schema
from glt.partition.arguments import integer
from glt.partition.distributed.agreement import agree
from glt.partition.distributed.exchange import Exchange
from glt.partition.distributed.slices import first_rows, gather_rows, structure
from glt.partition.hotness_input import PartHotness, hotness_by_type
from glt.partition.node_hotness import HotnessByType, NodeHotness, Values, any_read, map_rows


class SlicedHotness(NodeHotness):
    """Hotness of nodes of one type, those of rank 0 first; every call is a collective of all ranks.

    No rank ever has the numbers of all nodes for more than one partition: what is asked of some nodes is answered where
    their numbers are, and the numbers for partition p go to rank ``p % world_size``, one partition after the other.

    Args:
        exchange: Connects the ranks.
        of_parts: Of each partition ``[num_rows[rank]]`` float32 or float64, of one dtype on all ranks.
        is_shared: Whether one array is that of all partitions.
        num_rows: ``[world_size]``, nodes of each rank.
        round_bytes: Memory for numbers that arrive at a time.
    """

    def __init__(
        self, exchange: Exchange, of_parts: PartHotness, is_shared: bool, num_rows: np.ndarray, round_bytes: int
    ) -> None:
        self._exchange = exchange
        self._of_parts = of_parts
        self._is_shared = is_shared
        self._num_rows = num_rows
        self._first = first_rows(num_rows)
        self._round_bytes = round_bytes
        self.num_parts = len(of_parts)

    def is_read(self) -> np.ndarray:
        return gather_rows(self._exchange, any_read(self._of_parts), self._num_rows, self._round_bytes)

    def map(self, nodes: np.ndarray, of: Values) -> list[np.ndarray]:
        bounds = np.searchsorted(nodes, self._first)
        rank = self._exchange.rank
        mine = nodes[bounds[rank] : bounds[rank + 1]] - self._first[rank]
        found = map_rows(self._of_parts, mine, of)
        return [gather_rows(self._exchange, each, np.diff(bounds), self._round_bytes) for each in found]

    def columns(self) -> Iterator[tuple[int, np.ndarray]]:
        world_size, rank = self._exchange.world_size, self._exchange.rank
        if self._is_shared:
            column = gather_rows(self._exchange, self._of_parts[0], self._num_rows, self._round_bytes)
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
        step = max(1, self._round_bytes // (exchange.world_size * dtype.itemsize))
        for begin in range(0, int(self._num_rows.max()), step):
            pieces: list[list[np.ndarray]] = [[np.ascontiguousarray(each[begin : begin + step])] for each in wanted]
            received = exchange.all_to_all(pieces + [[]] * (exchange.world_size - len(wanted)))
            for at, data in zip((self._first[:-1] + begin).tolist(), received, strict=True):
                piece = data.view(dtype)
                if piece.size:
                    column[at : at + piece.size] = piece
        return column


def sliced_hotness(
    exchange: Exchange,
    name: str,
    value: Any,
    schema: Schema,
    num_nodes: Sequence[int],
    num_parts: Any,
    round_bytes: int,
) -> HotnessByType | None:
    """Returns hotness as a partitioner takes it, given the slice of it that each rank has.

    Args:
        exchange: Connects the ranks.
        name: The argument, for messages.
        value: As of :func:`glt.partition.hotness_input.hotness_by_type`, of the nodes of this rank; or None, on all.
        schema, num_nodes, num_parts: Of the whole graph.
        round_bytes: Memory for numbers that arrive at a time.

    Raises:
        TypeError, ValueError, KeyError: As :func:`hotness_by_type`, or if slices do not fit together.
    """
    agree(exchange, {name: structure(value)})
    if value is None:
        return None
    num_parts = integer("num_parts", num_parts, 1, 2**16, "the number of partitions")
    of_types = [_of_type(value, each if schema.is_hetero else None) for each in schema.node_types]
    rows = [_num_rows(each) for each in of_types]
    found = hotness_by_type(name, value, schema, rows, num_parts)
    num_rows = exchange.gather_counts(np.array(rows, np.int64))
    by_type: list[NodeHotness | None] = []
    for at, (each, count) in enumerate(zip(found, num_nodes, strict=True)):
        if each is not None and num_rows[:, at].sum() != count:
            of_type = f"[{schema.node_types[at]!r}]" if schema.is_hetero else ""
            raise ValueError(
                f"{name}{of_type} has {num_rows[:, at].tolist()} numbers on the ranks, {num_rows[:, at].sum()} "
                f"together: expected num_nodes = {count}, each node on one rank"
            )
        is_shared = not isinstance(of_types[at], list | tuple)
        by_type.append(None if each is None else SlicedHotness(exchange, each, is_shared, num_rows[:, at], round_bytes))
    return HotnessByType(tuple(by_type))


def _of_type(value: Any, node_type: str | None) -> Any:
    """What is given of one node type: a list of arrays, an array, or None; anything where ``value`` is of no use."""
    if node_type is None:
        return value
    if isinstance(value, list | tuple):
        return [each.get(node_type) if isinstance(each, Mapping) else None for each in value]
    return value.get(node_type) if isinstance(value, Mapping) else None


def _num_rows(value: Any) -> int:
    """Length of the first array; whether all have as many elements is checked later."""
    if isinstance(value, list | tuple):
        value = next((each for each in value if isinstance(each, np.ndarray | torch.Tensor)), None)
    return int(value.shape[0]) if isinstance(value, np.ndarray | torch.Tensor) and value.ndim else 0
