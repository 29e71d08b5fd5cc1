"""The edges of the partitions that are read here, as one graph: what samplers on a GPU read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt.data.device import Accelerator
from glt.data.graph import Graph
from glt.data.partition_book import PartitionBook
from glt.data.topology import Topology
from glt.distributed.local_partition import LocalPartition
from glt.distributed.local_tables import LocalTables
from glt.sampler.config import SamplingConfig
from glt.sampler.device import DeviceSampling
from glt.sampler.graph import SampledGraph

if TYPE_CHECKING:
    from glt.distributed.dist_dataset import DistDataset


class LocalGraph:
    """What a GPU of this process reads of a partitioned graph: once for all loaders of a dataset.

    Args:
        dataset: One of the partitions, and what is known of all.
        partitions: Those that are read here, by index.

    Attributes:
        graphs: By edge type, the rows of all nodes; those of nodes of partitions elsewhere are empty.
        tables: The tables of these partitions' nodes and edges.

    Raises:
        ValueError: If the dataset was loaded for samplers on the CPU.
    """

    def __init__(self, dataset: DistDataset, partitions: Mapping[int, LocalPartition]) -> None:
        mode = require_for_gpu(dataset)

        def rows(r: int, expanded: int) -> Topology:
            topologies = {p: part.graphs[r].topology for p, part in partitions.items()}
            return joined(topologies, dataset.node_books[expanded])

        self.graphs = tuple(
            Graph(rows(r, expanded), mode, graph.device)
            for r, ((expanded, _), graph) in enumerate(zip(dataset.ends, dataset.own.graphs, strict=True))
        )
        self._graph = SampledGraph(
            dataset.schema, dataset.edge_dir, dataset.num_nodes_of, tuple(each.topology for each in self.graphs),
            graphs=self.graphs,
        )  # fmt: skip
        self.tables = LocalTables(partitions, {"node": dataset.node_books, "edge": dataset.edge_books})

    def kernels(self, config: SamplingConfig, accelerator: Accelerator) -> DeviceSampling:
        """Returns what samples these rows on a GPU, on the current stream.

        Raises:
            ValueError: If an option is one that kernels lack.
        """
        graph = replace(self._graph, time_level=config.time_level)
        return DeviceSampling(graph, config, accelerator.device, lambda r: self.graphs[r].placed(accelerator))

    def close(self) -> None:
        """Gives back device memory and unpins all; no sampler may be using it."""
        for graph in self.graphs:
            graph.close()
        self.tables.close()


def require_for_gpu(dataset: DistDataset) -> str:
    """Returns the mode that a dataset was loaded with, for samplers on a GPU.

    Raises:
        ValueError: If that is ``'CPU'``.
    """
    mode = dataset.load_args["graph_mode"]
    if mode == "CPU":
        raise ValueError(
            "graph_mode = 'CPU': the partition was loaded for samplers on the CPU; load it with graph_mode='CUDA' or "
            "'ZERO_COPY' for a GPU"
        )
    return str(mode)


def joined(by_part: Mapping[int, Topology], book: PartitionBook) -> Topology:
    """Returns rows of all nodes of the whole graph; those of nodes of other partitions are empty.

    Args:
        by_part: The rows of partitions, by index, in the order of the ids that each owns.
        book: Who owns which.

    The columns of a single partition are used in place, with row offsets of all nodes. Those of several are copied,
    once per process: kernels find all rows of an edge type in one column.
    """
    parts = list(by_part.values())
    first = parts[0]
    size = (first.num_neighbor_nodes, first.num_nodes)
    shared: dict[str, Any] = {
        "layout": first.layout, "num_nodes": size if first.layout == "CSC" else size[::-1], "trusted": True
    }  # fmt: skip
    if book.num_parts == 1:  # which owns all nodes, in order
        return Topology.from_rows(
            first.indptr, first.indices, first.edge_ids, weights=first.weights, by_time=first.by_time, **shared
        )
    owner, degree = book.owners(), np.zeros(book.num_ids, np.int64)
    owned = [np.flatnonzero(owner == p) for p in by_part]
    for ids, part in zip(owned, parts, strict=True):
        degree[ids] = np.diff(part.indptr.numpy())
    indptr = np.zeros(book.num_ids + 1, np.int64)
    np.cumsum(degree, out=indptr[1:])
    if len(parts) == 1:  # its rows follow each other as they do here
        weights = first.weights and (
            first.weights.weight_sum, torch.from_numpy(weight_guide(indptr, first.weights.weight_sum.numpy())),
        )  # fmt: skip
        return Topology.from_rows(
            torch.from_numpy(indptr), first.indices, first.edge_ids, weights=weights, by_time=first.by_time, **shared
        )
    # Where the edges of each partition go: its rows, one after the other, each to its own place.
    places = [
        torch.from_numpy(np.repeat(indptr[ids] - part.indptr.numpy()[:-1], degree[ids]) + np.arange(part.num_edges))
        for ids, part in zip(owned, parts, strict=True)
    ]

    def column(of: Callable[[Topology], Tensor | None]) -> Any:
        columns = [of(part) for part in parts]
        if columns[0] is None:
            return None
        wide = any(each.dtype == torch.int64 for each in columns)  # type: ignore[union-attr]
        dtype = torch.int64 if wide else columns[0].dtype
        out = torch.empty(int(indptr[-1]), dtype=dtype)
        for place, each in zip(places, columns, strict=True):
            assert each is not None, "partitions of one graph have the same columns"
            # By NumPy, which scatters unsigned numbers of 64 bits too.
            out.numpy()[place.numpy()] = each.numpy()
        return out

    weights = by_time = None
    if first.weights is not None:
        weight_sum = column(lambda part: part.weights and part.weights.weight_sum)
        weights = weight_sum, torch.from_numpy(weight_guide(indptr, weight_sum.numpy()))
    if first.by_time is not None:
        by_time = tuple(column(lambda part, i=i: part.by_time and part.by_time[i]) for i in range(3))  # type: ignore[misc]
    return Topology.from_rows(
        torch.from_numpy(indptr), column(lambda part: part.indices), column(lambda part: part.edge_ids),
        weights=weights, by_time=by_time, **shared,
    )  # fmt: skip


def weight_guide(indptr: np.ndarray, weight_sum: np.ndarray) -> np.ndarray:
    """The cut points of rows whose sums are known, as ``csrc/core/weights.h`` has them: they depend on where a row
    begins.

    Args:
        indptr: Row offsets ``[num_rows + 1]``, int64.
        weight_sum: Sums within each row ``[E]``, uint64.
    """
    begin, end = indptr[:-1], indptr[1:]
    total = np.zeros(len(begin), np.uint64)
    has_edges = end > begin
    total[has_edges] = weight_sum[end[has_edges] - 1]
    size = ((end >> 3) - (begin >> 3) + 1).astype(np.uint64)
    shift = np.zeros(len(begin), np.uint64)
    large = total > size
    above = total[large] - np.uint64(1)
    bits = _bit_width(above) - _bit_width(size[large])
    shift[large] = bits + ((above >> bits) >= size[large])
    # Every cut point of every row: the first edge whose sum exceeds it, the last one where none does.
    row = np.repeat(np.arange(len(begin)), size.astype(np.int64))
    number = np.arange(len(row)) - np.repeat(
        np.cumsum(size.astype(np.int64)) - size.astype(np.int64), size.astype(np.int64)
    )
    cut = number.astype(np.uint64) << shift[row]
    low, high = begin[row].copy(), np.maximum(end[row] - 1, begin[row])
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        exceeds = np.zeros(len(row), bool)
        exceeds[open_] = weight_sum[middle[open_]] > cut[open_]
        high = np.where(open_ & exceeds, middle, high)
        low = np.where(open_ & ~exceeds, middle + 1, low)
    guide = np.zeros((int(indptr[-1]) >> 3) + len(begin), np.uint32)
    guide[(begin[row] >> 3) + row + number] = low - begin[row]
    return guide


def _bit_width(values: np.ndarray) -> np.ndarray:
    """Of positive integers of 64 bits, exactly: a double would round."""
    width = np.zeros(len(values), np.uint64)
    left = values.copy()
    for step in (32, 16, 8, 4, 2, 1):
        large = left >= np.uint64(1) << np.uint64(step)
        width[large] += np.uint64(step)
        left[large] >>= np.uint64(step)
    return width + np.uint64(1)
