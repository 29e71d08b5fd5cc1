"""The whole graph in outline, as a forecast needs it: how many rows of what kind, but none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from glt.partition.book import id_dtype, owner_dtype
from glt.partition.distributed.slices import GraphSlice
from glt.partition.forecast import Forecast, forecast
from glt.partition.graph_input import EdgeInput, GraphInput
from glt.partition.partitioner import PartitionerBase
from glt.partition.rows import Rows


def outline(slices: GraphSlice) -> GraphInput:
    """Returns the graph with its true counts and kinds of rows; all of them are zero and take no memory."""
    graph = slices.graph
    nodes = tuple(
        replace(
            each, feat=_rows(each.feat, each.num_nodes), label=_rows(each.label, each.num_nodes),
            time=_column(each.time, each.num_nodes),
            attrs=_attrs(each.attrs, each.num_nodes),
        )
        for each in graph.nodes
    )  # fmt: skip
    counts = slices.num_edges.sum(axis=0).tolist()
    edges = tuple(
        replace(
            each, edge_index=np.broadcast_to(np.zeros((), np.int64), (2, count)),
            row_ids=_zeros(each.row_ids, count), col_ids=_zeros(each.col_ids, count),
            feat=_rows(each.feat, count), weight=_column(each.weight, count), time=_column(each.time, count),
            attrs=_attrs(each.attrs, count),
        )
        for each, count in zip(graph.edges, counts, strict=True)
    )  # fmt: skip
    return replace(graph, nodes=nodes, edges=edges)


def forecast_of(assigner: PartitionerBase, graph: GraphInput) -> Forecast:
    """Returns what the partitioner would take on one machine, given the outline of the graph."""
    expected = forecast(
        graph,
        assigner.num_parts,
        assigner.num_threads,
        assigner.sort_memory_bytes // assigner.num_threads,
        assigner.chunk_size,
        assigner.assign_node_bytes,
        assigner.relabel,
    )
    return expected.with_files(*assigner.caches.most_files(assigner.num_parts, graph.nodes))


def disk_bytes(assigner: PartitionerBase, slices: GraphSlice, ranks: Sequence[int]) -> int:
    """Returns the space that the partitions of some ranks need, scratch files included, if all own equally much."""
    graph = outline(slices)
    share = sum(len(range(rank, assigner.num_parts, len(slices.num_edges))) for rank in ranks) / assigner.num_parts
    collected = max([0, *(_collected(each, graph) for each in graph.edges)])
    times = sum(8 * nodes.num_nodes for nodes in graph.nodes if nodes.time is not None)
    of_parts = forecast_of(assigner, graph).disk_bytes + collected
    books = _book_bytes(graph, assigner)  # a leader writes those of all partitions
    return int(share * of_parts + (1 - share) * books) + len(ranks) * times


def _book_bytes(graph: GraphInput, assigner: PartitionerBase) -> int:
    """Bytes of books, or of the maps of ids, beside their headers and checksums."""

    def of(num_ids: int) -> int:
        return num_ids * (2 * id_dtype(num_ids).itemsize if assigner.relabel else owner_bytes + 4)

    owner_bytes = owner_dtype(assigner.num_parts).itemsize
    with_book = [edges.num_edges for edges in graph.edges if assigner.relabel or edges.tables]
    return sum(map(of, [*(nodes.num_nodes for nodes in graph.nodes), *with_book]))


def _collected(edges: EdgeInput, graph: GraphInput) -> int:
    node = id_dtype(max(graph.nodes[edges.expanded].num_nodes, graph.nodes[edges.neighbor].num_nodes)).itemsize
    weight = 0 if edges.weight is None else edges.weight.itemsize
    time = 0 if edges.time is None else 8
    return edges.num_edges * (2 * node + id_dtype(edges.num_edges).itemsize + weight + time)


def _attrs(attrs: dict[str, Rows], num_rows: int) -> dict[str, Rows]:
    return {name: Rows(_zeros(rows.array, num_rows), rows.torch_dtype) for name, rows in attrs.items()}


def _column(array: np.ndarray | None, num_rows: int) -> np.ndarray | None:
    return None if array is None else _zeros(array, num_rows)


def _rows(rows: Rows | None, num_rows: int) -> Rows | None:
    return None if rows is None else Rows(_zeros(rows.array, num_rows), rows.torch_dtype)


def _zeros(like: np.ndarray, num_rows: int) -> np.ndarray:
    return np.broadcast_to(np.zeros((), like.dtype), (num_rows, *like.shape[1:]))
