"""How hot nodes are for each partition, what caches of the hottest hold, and what that saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from glt._checks import integer
from glt.data.arrays import require_data
from glt.data.schema import Schema
from glt.partition.format.book import Book
from glt.partition.format.manifest import ReadForecast
from glt.partition.format.rows import CHUNK_IDS, require_plain
from glt.partition.graph_input import GraphInput, NodeInput, first_where

Values = Callable[[np.ndarray], Sequence[np.ndarray]]


class NodeHotness:
    """Numbers of at least 0 of the nodes of one type, of each partition ``[num_nodes]`` float32 or float64: they are
    asked for of some nodes for all partitions (:meth:`map`), or of all nodes for one partition (:meth:`columns`), since
    they may be spread over ranks (:class:`glt.partition.sharded.exchange.SlicedHotness`).
    """

    def __init__(self, of_parts: Sequence[np.ndarray]) -> None:
        self.arrays = tuple(of_parts)
        self.num_parts = len(self.arrays)

    def is_read(self) -> np.ndarray:
        """Returns which nodes are read for any partition: bool ``[num_nodes]``."""
        read = np.zeros(len(self.arrays[0]), bool)
        for each in {id(each): each for each in self.arrays}.values():
            read |= each > 0
        return read

    def map(self, nodes: np.ndarray, of: Values) -> list[np.ndarray]:
        """Returns what ``of`` says of nodes ``[n]``, ids ascending: arrays ``[n, ...]``. It is called with the float64
        numbers ``[num_parts, m]`` of ``m`` of the nodes, about 8 MiB, in order, also of none, and returns arrays ``[m,
        ...]``.
        """
        of_none = of(np.empty((self.num_parts, 0)))
        found = [np.empty((nodes.size, *each.shape[1:]), each.dtype) for each in of_none]
        step = CHUNK_IDS // self.num_parts + 1
        for begin in range(0, nodes.size, step):
            piece = nodes[begin : begin + step]
            values = np.stack([each[piece] for each in self.arrays]).astype(np.float64, copy=False)
            for whole, rows in zip(found, of(values), strict=True):
                whole[begin : begin + step] = rows
        return found

    def columns(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields partitions and the numbers of all nodes for each, ``[num_nodes]``: of those partitions that this
        process looks at. To be read to the end.
        """
        yield from enumerate(self.arrays)

    def of_all_parts(self, found: Mapping[int, Any]) -> list[Any]:
        """Returns by partition what was found in :meth:`columns`: values that JSON can hold."""
        return [found[idx] for idx in range(self.num_parts)]


@dataclass(frozen=True, eq=False)
class HotnessByType:
    """Hotness that is checked already, by position of the node type; None for types without."""

    by_type: tuple[NodeHotness | None, ...]


_MOST: Final = 1e30  # a float32 holds it, and the sum of 2**32 of them, the most nodes that a type has, is finite

# Of one node type, one array [num_nodes] per partition; the same array where they do not differ.
PartHotness = tuple[np.ndarray, ...]


def hotness_by_type(
    name: str, value: object, schema: Schema, num_nodes: Sequence[int], num_parts: int
) -> list[PartHotness | None]:
    """Checks hotness, called ``name`` in messages; returns it by node type, None for types that none is given for.

    ``value`` is, of each partition, in a list or tuple, ``[num_nodes]`` numbers of at least 0; or such numbers once,
    for all partitions. In a heterogeneous graph it is a dict of such by node type, or a list of dicts.
    """
    if schema.is_hetero and isinstance(value, list | tuple):
        _require_parts(name, value, num_parts)
        of_parts = [schema.per_node_type(f"{name}[{i}]", each) for i, each in enumerate(value)]
        per_type: list[Any] = []
        for node_type, several in zip(schema.node_types, zip(*of_parts, strict=True), strict=True):
            absent = [i for i, each in enumerate(several) if each is None]
            if 0 < len(absent) < num_parts:
                raise ValueError(f"{name}[{absent[0]}] has no {node_type!r}, which others have: pass it in all of them")
            per_type.append(None if absent else several)
    else:
        per_type = schema.per_node_type(name, value)
    found: list[PartHotness | None] = []
    for at, (given, count) in enumerate(zip(per_type, num_nodes, strict=True)):
        where = f"{name}[{schema.node_types[at]!r}]" if schema.is_hetero else name
        if given is None:
            found.append(None)
        elif isinstance(given, list | tuple):
            _require_parts(where, given, num_parts)
            found.append(tuple(_array(f"{where}[{i}]", each, count) for i, each in enumerate(given)))
        else:
            found.append((_array(where, given, count),) * num_parts)
    return found


def _require_parts(name: str, value: Sequence[Any], num_parts: int) -> None:
    if len(value) != num_parts:
        raise ValueError(
            f"{name} has {len(value)} elements: expected one for each partition, num_parts = {num_parts}, in order"
        )


def _array(name: str, value: object, num_nodes: int) -> np.ndarray:
    require_data(value, name)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, Mapping):
        raise TypeError(f"{name} is a dict: expected numbers, one per node")
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        got = getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"{name} is of {got}: expected a tensor or array of real numbers, [{num_nodes}]")
    require_plain(name, value)
    if value.shape != (num_nodes,):
        raise ValueError(f"{name} has shape {list(value.shape)}: expected one number per node, [{num_nodes}]")
    hotness = value if value.dtype in (np.float32, np.float64) else value.astype(np.float32)
    bad = first_where(hotness, lambda piece: ~((piece >= 0) & (piece <= _MOST)))
    if bad is not None:
        raise ValueError(
            f"{name}[{bad}] = {hotness[bad]}: expected finite numbers of at least 0, whose sum is finite too: at most "
            f"{_MOST:g}, such as the probabilities of NeighborSampler.sample_prob"
        )
    return hotness


_ID_BYTES = 8
_HOTNESS_BYTES = 8  # at most: it is written as it was given, float32 or float64


@dataclass(frozen=True, eq=False)
class CachePlan:
    """What caches hold of one node type.

    ``own`` says, of each partition that this process looks at, how often it reads the nodes that it owns, by ascending
    id; ``cached`` are the ids in its cache, ascending, of those that have any; ``forecast`` counts the caches of all
    partitions.
    """

    cached: dict[int, np.ndarray]
    own: dict[int, np.ndarray]
    forecast: ReadForecast


@dataclass(frozen=True, eq=False)
class CacheInput:
    """Hotness and the room for caches, by node type: ``ratio`` is the largest cache of a partition as a share of the
    nodes of the type, ``budget_bytes`` the same in bytes of rows and ids; 0 does not limit.
    """

    hotness: tuple[NodeHotness | None, ...]
    ratio: tuple[float, ...]
    budget_bytes: tuple[int, ...]

    @classmethod
    def of(cls, graph: GraphInput, num_parts: int, name: str, hotness: Any, ratio: Any, budget: Any) -> CacheInput:
        """Checks ``hotness`` (called ``name``; in any form of :func:`hotness_by_type`, None, or
        :class:`HotnessByType`), ``cache_ratio`` and ``cache_memory_budget`` of a partitioner.
        """
        schema = graph.schema
        if isinstance(hotness, HotnessByType):
            by_type = hotness.by_type
        else:
            found = hotness_by_type(name, hotness, schema, [each.num_nodes for each in graph.nodes], num_parts)
            by_type = tuple(None if each is None else NodeHotness(each) for each in found)
        ratios = tuple(_ratio(*each) for each in _per_type("cache_ratio", ratio, schema))
        budgets = tuple(_bytes(*each) for each in _per_type("cache_memory_budget", budget, schema))
        if hotness is None and (any(ratios) or any(budgets)):
            wanted = f"cache_ratio = {ratio!r}" if any(ratios) else f"cache_memory_budget = {budget!r}"
            raise ValueError(
                f"{wanted} without {name}: what is worth caching is not known; pass {name}, one array for each "
                "partition, from NeighborSampler.sample_prob or glt.sampler.hotness_from_degrees"
            )
        return cls(by_type, ratios, budgets)

    def require_use(self, nodes: Sequence[NodeInput]) -> None:
        """Raises ValueError if room for caches is given, but no node can be in one."""
        asked = [at for at in range(len(nodes)) if self.ratio[at] or self.budget_bytes[at]]
        given = " and ".join(
            f"{name} = {values[0] if len(set(values)) == 1 else list(values)}"
            for name, values in (("cache_ratio", self.ratio), ("cache_memory_budget", self.budget_bytes))
            if any(values)
        )
        cached = [at for at in asked if self.hotness[at] is not None and nodes[at].feat is not None]
        if asked and not cached:
            raise ValueError(
                f"{given}: there is nothing to cache, since no nodes that have hotness have features: pass node_feat, "
                "or leave it out"
            )
        if asked and all(0 < self.budget_bytes[at] < _row_bytes(nodes[at]) for at in cached):
            least = min(_row_bytes(nodes[at]) for at in cached)
            raise ValueError(
                f"{given}: no row fits into a cache: expected at least {least} bytes, which a row takes with its id, "
                "or leave it out"
            )

    def plan(self, node_type: int, nodes: NodeInput, book: Book) -> CachePlan | None:
        """Chooses the hottest nodes that each partition does not own, of equally hot ones the smaller ids; None without
        hotness or without features.
        """
        hotness = self.hotness[node_type]
        if hotness is None or nodes.feat is None:
            return None
        most = self._most_rows(node_type, nodes)
        cached: dict[int, np.ndarray] = {}
        own: dict[int, np.ndarray] = {}
        figures = {}
        for idx, column in hotness.columns():
            foreign = book.owner != idx
            own[idx] = column[~foreign]
            ids, *figures[idx] = _plan_part(column, foreign, most)
            if ids.size:
                cached[idx] = ids
        return CachePlan(cached, own, ReadForecast(*zip(*hotness.of_all_parts(figures), strict=True)))

    def _most_rows(self, node_type: int, nodes: NodeInput) -> int:
        ratio, budget = self.ratio[node_type], self.budget_bytes[node_type]
        if ratio == 0 and budget == 0:
            return 0
        by_ratio = int(ratio * nodes.num_nodes) if ratio else nodes.num_nodes
        return min(by_ratio, budget // _row_bytes(nodes)) if budget else by_ratio

    def most_files(self, num_parts: int, nodes: Sequence[NodeInput]) -> tuple[int, int]:
        """Returns how many bytes caches and the hotness of owned nodes may take at most, and in how many files."""
        num_bytes = num_files = 0
        for at, each in enumerate(nodes):
            most = 0 if self.hotness[at] is None or each.feat is None else self._most_rows(at, each)
            if self.hotness[at] is not None and each.feat is not None:
                num_bytes += each.num_nodes * _HOTNESS_BYTES
                num_files += num_parts
            num_bytes += num_parts * most * _row_bytes(each)
            if most:  # ids, and times, beside the tables
                num_files += num_parts * (1 + (each.time is not None) + len(each.tables))
        return num_bytes, num_files


def _row_bytes(nodes: NodeInput) -> int:
    """Bytes of a node in a cache: its id, its time, its rows."""
    tables = sum(rows.row_bytes for rows in nodes.tables)
    return _ID_BYTES * (2 if nodes.time is not None else 1) + tables


def _plan_part(hotness: np.ndarray, foreign: np.ndarray, most: int) -> tuple[np.ndarray, float, float, float, int]:
    """Returns the ids to cache, the expected reads, the share of them that is remote, of that the share in the cache,
    and the number of ids.
    """
    # How NumPy groups the terms of a sum depends on how they lie in memory, and the manifest must not.
    num_reads = float(np.require(hotness, requirements=("C", "A")).sum(dtype=np.float64))
    remote = np.where(foreign, hotness, 0)
    num_remote = float(remote.sum(dtype=np.float64))
    ids = _hottest(remote, most)
    hits = float(remote[ids].sum(dtype=np.float64))
    return (
        ids,
        num_reads,
        num_remote / num_reads if num_reads else 0.0,
        min(hits / num_remote, 1.0) if num_remote else 0.0,
        len(ids),
    )


def _hottest(hotness: np.ndarray, most: int) -> np.ndarray:
    """Positions of the ``most`` largest positive elements, ascending; among equal ones the first."""
    num_positive = int(np.count_nonzero(hotness))
    if most >= num_positive:
        return np.flatnonzero(hotness)
    if most == 0:
        return np.empty(0, np.int64)
    least = np.partition(hotness, hotness.size - most)[hotness.size - most]
    chosen = hotness > least
    equal = np.flatnonzero(hotness == least)[: most - np.count_nonzero(chosen)]
    chosen[equal] = True
    return np.flatnonzero(chosen)


def _per_type(name: str, value: Any, schema: Schema) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return [(name, value)] * len(schema.node_types)
    given = schema.per_node_type(name, value)
    return [(f"{name}[{t!r}]", 0 if each is None else each) for t, each in zip(schema.node_types, given, strict=True)]


def _ratio(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:
        error = ValueError if is_number else TypeError
        raise error(f"{name} = {value!r}: expected a number in [0, 1], a share of the nodes of a type")
    return float(value)


def _bytes(name: str, value: Any) -> int:
    return integer(name, value, 0, 2**63 - 1, "bytes of the cache of a partition, 0 for no limit by bytes")
