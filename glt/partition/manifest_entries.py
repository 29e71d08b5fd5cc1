"""What the manifest says of the types of a graph, from what a partitioner was given and made of it."""

import math
from collections.abc import Mapping
from itertools import accumulate

from glt.partition.book import Book
from glt.partition.graph_input import EdgeInput, NodeInput
from glt.partition.manifest import EdgeTypeEntry, FeatureEntry, LabelEntry, NodeTypeEntry, balance_ratio
from glt.partition.read_forecast import ReadForecast
from glt.partition.rows import Rows


def node_entry(
    nodes: NodeInput,
    book: Book,
    balanced_labels: tuple[LabelEntry, ...],
    reads: ReadForecast | None,
    relabelled: bool,
) -> NodeTypeEntry:
    """Returns the entry of a node type.

    Args:
        nodes, book: The nodes and their owners.
        balanced_labels: What was asked to be balanced, and what came of it.
        reads: What caches are expected to save, if hotness was given.
        relabelled: Whether ids were made contiguous.
    """
    return NodeTypeEntry(
        node_type=nodes.node_type,
        num_nodes=nodes.num_nodes,
        part_num_nodes=book.counts,
        balance_ratio=balance_ratio(book.counts),
        feat=_feature_entry(nodes.feat),
        label=_feature_entry(nodes.label),
        has_time=nodes.time is not None,
        attrs=_attr_entries(nodes.attrs),
        balanced_labels=balanced_labels,
        offsets=_offsets(book.counts) if relabelled else None,
        forecast=reads,
    )


def edge_entry(
    edges: EdgeInput, neighbors: NodeInput, part_num_edges: tuple[int, ...], num_cut_edges: int, relabelled: bool
) -> EdgeTypeEntry:
    """Returns the entry of an edge type.

    Args:
        edges, neighbors: The edges, and the nodes at the ends that do not own them.
        part_num_edges: Edges of each partition.
        num_cut_edges: Edges whose ends have different owners.
        relabelled: Whether ids were made contiguous.
    """
    num_edges = sum(part_num_edges)
    edge_cut_ratio = num_cut_edges / max(num_edges, 1)
    feat = neighbors.feat
    row_bytes = 0 if feat is None else feat.array.itemsize * math.prod(feat.row_shape)
    return EdgeTypeEntry(
        edge_type=edges.edge_type,
        num_edges=num_edges,
        part_num_edges=part_num_edges,
        balance_ratio=balance_ratio(part_num_edges),
        num_cut_edges=num_cut_edges,
        edge_cut_ratio=edge_cut_ratio,
        remote_bytes_per_edge=edge_cut_ratio * row_bytes,
        feat=_feature_entry(edges.feat),
        has_weight=edges.weight is not None,
        has_time=edges.has_time,
        attrs=_attr_entries(edges.attrs),
        offsets=_offsets(part_num_edges) if relabelled else None,
    )


def _feature_entry(rows: Rows | None) -> FeatureEntry | None:
    return None if rows is None else FeatureEntry(rows.torch_dtype, rows.row_shape)


def _attr_entries(attrs: Mapping[str, Rows]) -> dict[str, FeatureEntry]:
    return {name: FeatureEntry(rows.torch_dtype, rows.row_shape) for name, rows in attrs.items()}


def _offsets(counts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(counts, initial=0))
