"""What every partition shall have its share of: nodes of each label, and edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from glt._checks import check_flag
from glt.partition.format.book import Book
from glt.partition.format.manifest import EdgeLabelEntry, LabelEntry
from glt.partition.format.rows import CHUNK_IDS, Rows, chunks
from glt.partition.graph_input import EdgeInput, GraphInput, NodeInput

Label = tuple[int, ...]  # one number for each table of labels

MAX_LABELS: Final = 1 << 16  # of one node type: a label's number has 16 bits


@dataclass(frozen=True, eq=False)
class NodeLabels:
    """The labels that the nodes of one type are balanced by, ascending; ``of_node [num_nodes]`` uint16 are positions in
    them, None where all nodes have the only one.
    """

    labels: tuple[Label, ...]
    of_node: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Balance:
    """The balance that a partitioner was asked for: labels by position of the node type, None where nodes are not told
    apart; and whether each partition shall own its share of the edges of each type and label too.
    """

    nodes: tuple[NodeLabels, ...] | None
    edges: bool

    @classmethod
    def of(cls, graph: GraphInput, balance_ntypes: Any, balance_edges: bool) -> Balance:
        """Checks ``balance_ntypes`` and ``balance_edges`` of a partitioner."""
        check_flag("balance_edges", balance_edges)
        if balance_ntypes is None or balance_ntypes is False:
            return cls(None, balance_edges)
        tables: list[Any] = [None] * len(graph.nodes)
        if balance_ntypes is not True:
            tables = graph.schema.per_node_type("balance_ntypes", balance_ntypes)
        names = [
            f"balance_ntypes[{t!r}]" if graph.schema.is_hetero else "balance_ntypes" for t in graph.schema.node_types
        ]
        return cls(tuple(map(_node_labels, names, graph.nodes, tables)), balance_edges)

    def of_all_nodes(self, graph: GraphInput) -> tuple[np.ndarray | None, np.ndarray]:
        """Returns the labels of all nodes ``[nodes of all types]`` uint16, types one after the other, None where all
        have the same; and how many nodes have each, ``[num_labels]`` int64. Labels of different types differ.
        """
        if self.nodes is None:
            return None, np.array([graph.num_nodes])
        num_labels = sum(len(nodes.labels) for nodes in self.nodes)
        if num_labels > MAX_LABELS:
            raise ValueError(
                f"balance_ntypes: the node types have {num_labels} labels together: expected at most {MAX_LABELS}"
            )
        label = np.zeros(graph.num_nodes, np.uint16)
        at = num_before = 0
        for nodes, labels in zip(graph.nodes, self.nodes, strict=True):
            of_type = label[at : at + nodes.num_nodes]
            if labels.of_node is not None:
                of_type[:] = labels.of_node
            of_type += np.uint16(num_before)
            at += nodes.num_nodes
            num_before += len(labels.labels)
        return label, np.bincount(label, minlength=1)

    def entries(self, node_type: int, book: Book) -> tuple[LabelEntry, ...]:
        """Returns how many nodes of each label each partition has got, for the manifest."""
        if self.nodes is None:
            return ()
        labels, of_node = self.nodes[node_type].labels, self.nodes[node_type].of_node
        counts = np.zeros((book.num_parts, len(labels)), np.int64)
        for begin in range(0, book.owner.size if labels else 0, CHUNK_IDS):
            owner = book.owner[begin : begin + CHUNK_IDS]
            label = np.zeros_like(owner) if of_node is None else of_node[begin : begin + CHUNK_IDS]
            np.add.at(counts, (owner, label), 1)
        return tuple(
            LabelEntry.of(label, tuple(column)) for label, column in zip(labels, counts.T.tolist(), strict=True)
        )

    def edge_entries(self, edges: EdgeInput, book: Book) -> tuple[EdgeLabelEntry, ...]:
        """As :meth:`entries`, how many edges of a type go with nodes of each label; ``book`` is that of these nodes.
        Nothing where the nodes of the type have one label: the partitions' counts say the same."""
        if self.nodes is None or not self.edges or (of_node := self.nodes[edges.expanded].of_node) is None:
            return ()
        labels = self.nodes[edges.expanded].labels
        counts = np.zeros((book.num_parts, len(labels)), np.int64)
        for _, rows in chunks(edges.row_ids):
            np.add.at(counts, (book.owner[rows], of_node[rows]), 1)
        return tuple(
            EdgeLabelEntry.of(label, tuple(column)) for label, column in zip(labels, counts.T.tolist(), strict=True)
        )


def label_caps(count: np.ndarray, num_parts: int, imbalance: float) -> np.ndarray:
    """Returns how many nodes of each label a partition may have, given ``count [num_labels]`` of all: ``1 + imbalance``
    times the mean, or the mean rounded up where that is more.
    """
    return np.maximum(-(-count // num_parts), np.floor(count * ((1 + imbalance) / num_parts)).astype(np.int64))


def _node_labels(name: str, nodes: NodeInput, given: Any) -> NodeLabels:
    tables = list(given) if isinstance(given, list | tuple) else [] if given is None else [given]
    labels: list[Label] = [()]
    number = np.zeros(nodes.num_nodes if tables else 0, np.uint16)
    for at, table in enumerate(tables):
        column = _column(f"{name}[{at}]" if len(tables) > 1 else name, table, nodes.num_nodes)
        values = _distinct(column)
        # Combinations that occur: few of those that might.
        wide = np.empty(nodes.num_nodes, np.int64)
        for begin in range(0, column.size, CHUNK_IDS):
            chunk = slice(begin, begin + CHUNK_IDS)
            wide[chunk] = number[chunk].astype(np.int64) * values.size + np.searchsorted(values, column[chunk])
        found = _distinct(wide)
        if found.size > MAX_LABELS:
            raise ValueError(
                f"{name} has more than {MAX_LABELS} labels: expected few enough for each to be spread over the "
                "partitions; merge some"
            )
        labels = [(*labels[each // values.size], int(values[each % values.size])) for each in found.tolist()]
        number = np.searchsorted(found, wide).astype(np.uint16)
    if nodes.num_nodes == 0:
        labels = []
    return NodeLabels(tuple(labels), number if len(labels) > 1 else None)


def _column(name: str, table: Any, num_nodes: int) -> np.ndarray:
    rows = Rows.of(name, table, num_nodes, "node")
    if rows.row_shape != () or not rows.torch_dtype.startswith(("int", "uint", "bool")):
        raise TypeError(
            f"{name} has dtype {rows.torch_dtype} and shape {list(rows.array.shape)}: expected one integer or bool per "
            f"node, [{num_nodes}]; several tables of labels are a list"
        )
    return rows.given


def _distinct(values: np.ndarray) -> np.ndarray:
    distinct = [np.unique(piece) for _, piece in chunks(values)]
    return np.unique(np.concatenate(distinct)) if distinct else np.empty(0, np.int64)
