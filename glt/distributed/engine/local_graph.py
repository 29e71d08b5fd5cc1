"""What a GPU reads of the partitions that are read here: their edges as one graph, and their tables together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from glt._checks import format_size
from glt.data.arrays import from_array
from glt.data.dataset import Graph, placed_together
from glt.data.device import Accelerator, free_memory
from glt.data.feature import NO_ROW, Feature, TieredRows
from glt.data.schema import PartitionBook
from glt.data.topology import EdgeWeights, Topology
from glt.distributed.engine.local_partition import LocalPartition
from glt.sampler.config import SamplingConfig
from glt.sampler.device import DeviceSampling
from glt.sampler.graph import SampledGraph

if TYPE_CHECKING:
    from glt.distributed.engine.dataset import DistDataset

logger = logging.getLogger(__name__)

# The edges of the partitions that are read here, as one graph: what samplers on a GPU read.


class LocalGraph:
    """What a GPU of this process reads of a partitioned graph: once for all loaders of a dataset. ``graphs`` has, by
    edge type, the rows of all nodes, empty for partitions elsewhere; ``tables`` those of these partitions."""

    def __init__(self, dataset: DistDataset, partitions: Mapping[int, LocalPartition]) -> None:
        dataset.require_for_gpu()
        mode = dataset.load_args["graph_mode"]

        def rows(r: int, expanded: int) -> Topology:
            topologies = {p: part.graphs[r].topology for p, part in partitions.items()}
            return joined(topologies, dataset.node_books[expanded])

        @cache  # edge types that expand the same nodes share it
        def hotness_of(expanded: int) -> Tensor | None:
            """That of all nodes, where the partitioner was told; nodes of partitions elsewhere have no rows."""
            nodes = [part.nodes[expanded] for part in partitions.values()]
            if mode != "CUDA" or any(each.hotness is None for each in nodes):
                return None
            found = torch.zeros(dataset.num_nodes_of[expanded])
            for each in nodes:
                found[torch.from_numpy(each.ids)] = torch.from_numpy(each.hotness).float()
            return found

        self.graphs = tuple(
            Graph(rows(r, expanded), mode, graph.device, hotness=hotness_of(expanded))
            for r, ((expanded, _), graph) in enumerate(zip(dataset.ends, dataset.own.graphs, strict=True))
        )
        self._graph = SampledGraph(
            dataset.schema,
            dataset.edge_dir,
            dataset.num_nodes_of,
            tuple(each.topology for each in self.graphs),
            graphs=self.graphs,
        )
        books = {"node": dataset.node_books, "edge": dataset.edge_books}
        self.tables = LocalTables(partitions, books, dataset.own, dataset.num_sharers)

    def kernels(self, config: SamplingConfig, accelerator: Accelerator) -> DeviceSampling:
        """Returns what samples these rows on a GPU, on the current stream."""
        graph = replace(self._graph, time_level=config.time_level)
        placed_together(self.graphs, accelerator, self.tables.num_sharers)
        return DeviceSampling(graph, config, accelerator.device, lambda r: self.graphs[r].placed(accelerator))

    def close(self) -> None:
        """Gives back device memory and unpins all; no sampler may be using it."""
        for graph in self.graphs:
            graph.close()
        self.tables.close()


def joined(by_part: Mapping[int, Topology], book: PartitionBook) -> Topology:
    """Returns rows of all nodes of the whole graph; those of nodes of other partitions are empty.

    The columns of a single partition are used in place, with row offsets of all nodes. Those of several are copied,
    once per process: kernels find all rows of an edge type in one column.
    """
    parts = list(by_part.values())
    first = parts[0]
    size = (first.num_neighbor_nodes, first.num_nodes)
    indptr = first.indptr
    weights: Any = first.weights
    by_time: Any = first.by_time
    places: list[np.ndarray] = []  # of several partitions: where the edges of each go, row by row
    if book.num_parts > 1:  # else the one partition owns all nodes, in order
        owner, degree = book.owners(), np.zeros(book.num_ids, np.int64)
        owned = [np.flatnonzero(owner == p) for p in by_part]
        for ids, part in zip(owned, parts, strict=True):
            degree[ids] = np.diff(part.indptr.numpy())
        offsets = np.zeros(book.num_ids + 1, np.int64)
        np.cumsum(degree, out=offsets[1:])
        indptr = torch.from_numpy(offsets)
        if len(parts) > 1:
            for ids, part in zip(owned, parts, strict=True):
                begin = np.repeat(offsets[ids] - part.indptr.numpy()[:-1], degree[ids])
                places.append(begin + np.arange(part.num_edges))

    def column(of: Callable[[Topology], Any]) -> Any:
        columns = [of(part) for part in parts]
        if len(parts) == 1 or columns[0] is None:
            return columns[0]  # the rows of one partition follow each other as they do here
        wide = any(each.dtype == torch.int64 for each in columns)
        out = torch.empty(int(indptr[-1]), dtype=torch.int64 if wide else columns[0].dtype)
        for place, each in zip(places, columns, strict=True):
            out.numpy()[place] = each.numpy()  # by NumPy, which scatters unsigned numbers of 64 bits too
        return out

    if first.weights is not None and book.num_parts > 1:
        # The cut points depend on where a row begins: they are made again, of the integers that the weights became.
        weight_sum = column(lambda part: part.weights.weight_sum)  # type: ignore[union-attr]
        weights = EdgeWeights.build(indptr, row_differences(indptr.numpy(), weight_sum.numpy()).astype(np.float64))
    if first.by_time is not None:
        by_time = tuple(column(lambda part, i=i: part.by_time[i]) for i in range(3))  # type: ignore[misc]
    is_one = len(parts) == 1
    return Topology.from_rows(
        indptr,
        column(lambda part: part.indices),
        first.edge_ids if is_one else column(Topology.all_edge_ids),
        first_edge_id=first.first_edge_id if is_one else 0,
        weights=weights,
        by_time=by_time,
        layout=first.layout,
        num_nodes=size if first.layout == "CSC" else size[::-1],
        trusted=True,
    )


def row_differences(indptr: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Of inclusive sums within rows, what was summed up."""
    before = np.zeros_like(sums)
    before[1:] = sums[:-1]
    before[indptr[:-1][indptr[:-1] < indptr[1:]]] = 0
    return sums - before


# The tables of the partitions that are read here, together: what a GPU looks rows up in.


_MOST_TABLES = 8  # of tiers of a kernel, two each

Place = tuple[Accelerator, str, int, str]


class LocalTables:
    """Looks up rows of the nodes and edges of some partitions on a GPU, and of the nodes of others of which ``own`` has
    copies.

    The share ``split_ratio`` of each partition's rows is in device memory, the hottest; the others stay in the mapped
    files, pinned. Copies are all there, or, where the share is 0, none. Without a ``split_ratio`` rows take half of the
    memory that is free on the GPU when the first table is asked for, so that a model has the rest: all copies, if they
    fit, then an equal share of each table; ``num_sharers`` processes have a part of it each. Each table takes 4 bytes
    of device memory per node or edge of the graph more, but where nothing is kept and the partitions own ranges of ids
    that follow each other.
    """

    def __init__(
        self,
        partitions: Mapping[int, LocalPartition],
        books: Mapping[str, tuple[PartitionBook | None, ...]],
        own: LocalPartition,
        num_sharers: int = 1,
    ) -> None:
        self._parts = sorted(partitions)
        self._partitions = [partitions[p] for p in self._parts]
        self._books, self.num_sharers = books, num_sharers
        self._caches = [
            None if cache is None or self._owns(book, cache.ids) else cache
            for cache, book in zip(own.node_caches, books["node"], strict=True)
        ]
        self._placed: dict[Place, TieredRows] = {}
        self._shares: dict[Accelerator, tuple[float, bool]] = {}
        self._lock = threading.RLock()

    def _owns(self, book: PartitionBook | None, ids: np.ndarray) -> bool:
        """Whether these nodes are all of partitions that are read here."""
        return book is not None and bool(np.isin(book.owners()[ids], self._parts).all())

    def feature(self, kind: str, type_: int, name: str) -> Feature:
        """A table of the first partition: they are alike but for their rows."""
        return self._partitions[0].tables(kind, type_)[name]

    def copies(self, place: Accelerator, kind: str, type_: int, name: str) -> tuple[np.ndarray, Feature] | None:
        """Nodes of partitions elsewhere of which a GPU keeps rows of this table, ``[n]`` int64, and those."""
        return self._copies(kind, type_, name) if self.share(place)[1] else None

    def _copies(self, kind: str, type_: int, name: str) -> tuple[np.ndarray, Feature] | None:
        cache = self._caches[type_] if kind == "node" else None
        return None if cache is None or name not in cache.tables else (cache.ids, cache.tables[name])

    def share(self, place: Accelerator) -> tuple[float, bool]:
        """Which share of the rows of partitions a GPU keeps, and whether it keeps copies."""
        if (given := self._partitions[0].split_ratio) is not None:
            return given, given > 0
        with self._lock:
            if place not in self._shares:
                self._shares[place] = self._fitting(place)
            return self._shares[place]

    def _fitting(self, place: Accelerator) -> tuple[float, bool]:
        own = self._partitions[0]
        tables = [("node", t, name) for t, of_type in enumerate(own.node_tables) for name in of_type]
        copied = sum(copies[1].tensor.nbytes for each in tables if (copies := self._copies(*each)) is not None)
        tables += [("edge", t, name) for t, of_type in enumerate(own.edge_tables) for name in of_type]
        rows = sum(part.tables(kind, t)[name].tensor.nbytes for part in self._partitions for kind, t, name in tables)
        books = [self._books[kind][t] for kind, t, _ in tables]
        indices = sum(4 * book.num_ids for book in books if book is not None)  # where the row of each id is
        room = max(0, (free_memory(place.device) or 0) // 2 // self.num_sharers - indices)
        has_copies = 0 < copied <= room
        share = min(1.0, (room - copied * has_copies) / max(rows, 1))
        more = f", and {format_size(copied)} of copies of others'" if has_copies else ""
        logger.info("%s keeps %.0f%% of %s of rows%s", place, 100 * share, format_size(rows), more)
        return share, has_copies

    def gather(
        self, place: Accelerator, table: tuple[str, int, str], ids: Tensor, out: Tensor, positions: Tensor | None = None
    ) -> None:
        """Looks up rows of a table (kind, type, name) on the current stream, and waits for nothing. All is on the GPU:
        ``ids [n]``, int64; ``out [at least n, ...]``; the row of ``out`` for each id, uint32, by default 0, 1, 2, ...
        """
        with self._lock:
            key = (place, *table)
            if key not in self._placed:
                self._placed[key] = self._place(*key)
        self._placed[key].gather(ids, out, positions=positions, trusted=True, explain=_explain)

    def _place(self, place: Accelerator, kind: str, type_: int, name: str) -> TieredRows:
        features = [each.tables(kind, type_)[name] for each in self._partitions]
        book, copies = self._books[kind][type_], self.copies(place, kind, type_, name)
        assert book is not None, "tables of a partition come with a book"
        share, _ = self.share(place)
        tables: list[Tensor] = [feature.tensor for feature in features]
        hotness: list[Tensor | None] = [None] * len(tables)
        if 0 < share < 1:
            hotness = [part.hotness(kind, type_) for part in self._partitions]
        num_hot = [round(share * len(feature)) for feature in features]
        first = np.cumsum([0, *map(len, tables)])
        if len(tables) + (copies is not None) > _MOST_TABLES:
            tables, num_hot = [torch.cat(tables)], [round(share * sum(map(len, tables)))]
            hotness = [torch.cat([each for each in hotness if each is not None]) if 0 < share < 1 else None]
        first_id, row_of = book.first_id(self._parts[0]), None
        if copies is not None or not (
            book.has_ranges and self._parts == list(range(self._parts[0], self._parts[-1] + 1))
        ):
            first_id, rows = 0, self._rows(book, first[:-1])
            if copies is not None:
                ids, feature = copies
                there = rows[ids]
                rows[ids] = np.where(there == NO_ROW, first[-1] + np.arange(len(ids)), there)
                tables, hotness = [*tables, feature.tensor], [*hotness, None]
                num_hot.append(len(ids))
            row_of = from_array(rows)
        return TieredRows(
            tables,
            place.device,
            num_hot=num_hot,
            hotness=hotness,
            ids=(row_of, first_id),
            packing=features[0].packing,
            name=f"{name!r} of partitions {self._parts}",
        )

    def _rows(self, book: PartitionBook, first: np.ndarray) -> np.ndarray:
        """The row of each id among those of these partitions, ``first`` being the first of each; uint32."""
        of_part = np.full(book.num_parts, -1, np.int64)
        of_part[self._parts] = first
        begin = of_part[book.owners()]
        return np.where(begin < 0, NO_ROW, begin + book.rows()).astype(np.uint32)

    def check(self) -> None:
        """Waits for all gathers; raises the error of those that had one."""
        for each in list(self._placed.values()):
            each.check()

    def close(self) -> None:
        """Gives back device memory and unpins the rows; they are placed again when they are asked for again."""
        with self._lock:
            placed, self._placed = self._placed, {}
            self._shares.clear()
        for each in placed.values():
            each.close()


def _explain(ids: Tensor, positions: Tensor | None, num_out: int) -> NoReturn:
    raise IndexError(
        f"a sampled node or edge, of {len(ids)}, has no row: the book or a table of a partition is damaged"
    )
