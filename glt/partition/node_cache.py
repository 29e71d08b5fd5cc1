"""Which nodes a partition keeps copies of, what that will save, and how hot its own nodes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt.data.schema import Schema
from glt.partition.arguments import integer
from glt.partition.book import Book
from glt.partition.graph_input import NodeInput
from glt.partition.hotness_input import checked_hotness
from glt.partition.node_hotness import NodeHotness
from glt.partition.read_forecast import ReadForecast

_ID_BYTES = 8
_HOTNESS_BYTES = 8  # at most: it is written as it was given, float32 or float64


@dataclass(frozen=True, eq=False)
class CachePlan:
    """What caches hold of one node type.

    Attributes:
        ids: By partition, of those that this process looks at: the ids in its cache, ascending.
        own: By the same partitions, how often each reads the nodes that it owns ``[rows]``, by ascending id.
        forecast: The reads expected with the caches of all partitions.
    """

    ids: dict[int, np.ndarray]
    own: dict[int, np.ndarray]
    forecast: ReadForecast

    def cached(self) -> dict[int, np.ndarray]:
        """Returns ``ids`` without those of empty caches."""
        return {idx: ids for idx, ids in self.ids.items() if ids.size}


@dataclass(frozen=True, eq=False)
class CacheInput:
    """Hotness and the room for caches, as a partitioner is given them; by node type.

    Attributes:
        hotness: Of each partition, or None.
        ratio: Largest cache of a partition, as a share of the nodes of the type; 0: no limit by this.
        budget_bytes: The same in bytes of rows and ids; 0: no limit by this.
    """

    hotness: tuple[NodeHotness | None, ...]
    ratio: tuple[float, ...]
    budget_bytes: tuple[int, ...]

    @classmethod
    def of(
        cls, schema: Schema, num_nodes: Sequence[int], num_parts: int, name: str, hotness: Any, ratio: Any, budget: Any
    ) -> CacheInput:
        """Checks the arguments of a partitioner.

        Args:
            schema, num_nodes, num_parts: Of the graph.
            name: What ``hotness`` is called in messages.
            hotness: In any form of :func:`glt.partition.hotness_input.hotness_by_type`, or None; or
                :class:`HotnessByType`.
            ratio: A number in [0, 1], or a dict of such by node type.
            budget: A number of bytes, or a dict of such by node type.

        Raises:
            KeyError, TypeError, ValueError: If one does not fit; names it, its value and what was expected.
        """
        by_type = checked_hotness(name, hotness, schema, num_nodes, num_parts)
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
        """Raises ValueError if room for caches is given, but no node can be in one: there are no features of nodes that
        have hotness, or the budget is below a row."""
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
        """Chooses the hottest nodes that each partition does not own; None without hotness or without features.

        Of equally hot nodes the smaller ids are chosen. Needs a copy of the hotness of one partition.
        """
        hotness = self.hotness[node_type]
        if hotness is None or nodes.feat is None:
            return None
        most = self._most_rows(node_type, nodes)
        ids: dict[int, np.ndarray] = {}
        own: dict[int, np.ndarray] = {}
        figures = {}
        for idx, column in hotness.columns():
            foreign = book.owner != idx
            own[idx] = column[~foreign]
            ids[idx], *figures[idx] = _plan_part(column, foreign, most)
        num_reads, remote_ratio, hit_ratio, num_cached = zip(*hotness.of_all_parts(figures), strict=True)
        return CachePlan(ids, own, ReadForecast(num_reads, remote_ratio, hit_ratio, num_cached))

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
    tables = sum(rows.array.itemsize * int(np.prod(rows.row_shape, dtype=np.int64)) for rows in nodes.tables)
    return _ID_BYTES * (2 if nodes.time is not None else 1) + tables


def _plan_part(hotness: np.ndarray, foreign: np.ndarray, most: int) -> tuple[np.ndarray, float, float, float, int]:
    """The ids to cache, the expected reads, the share of those that are remote, of these in the cache, and the ids'
    number."""
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
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} = {value!r}: expected a number in [0, 1], a share of the nodes of a type")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value!r}: expected a number in [0, 1], a share of the nodes of a type")
    return float(value)


def _bytes(name: str, value: Any) -> int:
    return integer(name, value, 0, 2**63 - 1, "bytes of the cache of a partition, 0 for no limit by bytes")
