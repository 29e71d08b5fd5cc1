"""Streaming assignment of nodes: Fennel with restreaming."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
from typing_extensions import Unpack  # which torch needs too

from glt import _core
from glt._checks import integer
from glt._tracebacks import short_traceback
from glt.data.schema import HOMOGENEOUS, NodeType
from glt.partition.format import layout
from glt.partition.format.book import Book, id_dtype, owner_dtype
from glt.partition.format.files import scratch_array, scratch_directory
from glt.partition.format.rows import chunks
from glt.partition.graph_input import EdgeInput, GraphInput
from glt.partition.methods.balance import label_caps
from glt.partition.methods.forecast import BASE_BYTES, Forecast
from glt.partition.methods.partitioner import GraphArguments, PartitionerBase, PerEdgeType, PerNodeType
from glt.partition.methods.writer import PartitionWriter, write_graph

# The whole graph as a partitioner sees it: one type of nodes, edges in both directions.


CHUNK_EDGES: Final = 1 << 18  # looked at together: some 10 MiB


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Neighbours of each node along edges in either direction; nodes are numbered one type after the other. Parallel
    edges are there as often as they are in the graph, self loops are not.

    ``indices``, int32 where the ids fit, else int64, are mapped, and writable.
    """

    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_nodes(self) -> int:
        return self.indptr.size - 1

    @property
    def num_edges(self) -> int:
        """Edges of the graph that are no loops."""
        return self.indices.size // 2

    @classmethod
    def of(cls, graph: GraphInput, writer: PartitionWriter) -> Adjacency:
        """Builds the adjacency of ``graph``, of at most 2**32 - 1 nodes, as the edges of a single partition.

        Memory is 13 bytes per node, 8 of which are kept, and what ``writer`` sorts in; files below ``writer.root``, see
        :func:`scratch_bytes`, may be removed at once.
        """
        offset = np.cumsum([0, *(nodes.num_nodes for nodes in graph.nodes)])
        num_nodes = int(offset[-1])
        num_ends = 2 * sum(src.size for edges in graph.edges for src, _ in _without_loops(edges, offset))
        index = scratch_array(writer.root, 2 * num_ends, id_dtype(num_nodes)).reshape(2, num_ends)
        at = 0
        for edges in graph.edges:
            for ends in _without_loops(edges, offset):
                for both in (ends, ends[::-1]):
                    index[:, at : at + both[0].size] = both
                    at += both[0].size
        (edge_type,) = HOMOGENEOUS.edge_types
        both_ways = EdgeInput(edge_type, 0, 0, index, None, None, None, None, {})
        write_graph(writer, both_ways, [Book.of(np.zeros(num_nodes, np.uint8), 1)])
        indptr, indices = (writer.root / layout.in_part(0, "graph", edge_type, name) for name in ("indptr", "indices"))
        return cls(np.load(indptr), np.lib.format.open_memmap(indices, "r+"))


def scratch_bytes(graph: GraphInput) -> int:
    """Returns the most that the files of :meth:`Adjacency.of` take at a time."""
    num_ends = 2 * graph.num_edges
    node = id_dtype(graph.num_nodes).itemsize
    edge = id_dtype(num_ends).itemsize
    return num_ends * (3 * node + edge + (12 if num_ends <= 2**32 else 16)) + 8 * graph.num_nodes


def _without_loops(edges: EdgeInput, offset: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for begin in range(0, edges.num_edges, CHUNK_EDGES):
        chunk = slice(begin, begin + CHUNK_EDGES)
        src = edges.row_ids[chunk] + offset[edges.expanded]
        dst = edges.col_ids[chunk] + offset[edges.neighbor]
        keep = src != dst
        yield src[keep], dst[keep]


MAX_KINDS: Final = 16  # of edges of a node type that are balanced each; METIS does little with more constraints
GAMMA: Final = 1.5  # exponent of a partition's cost in its size, the choice of Fennel's paper


@short_traceback
class AdjacencyPartitioner(PartitionerBase):
    """Assigns the nodes of all types together, by the graph without types and directions.

    Subclasses override :meth:`assign_all`.

    Args:
        imbalance: By how much a partition may exceed the mean, in ``[0, 1]``: no partition has more than
            ``1 + imbalance`` times the mean number of nodes, or the mean rounded up where that is more; with
            ``balance_ntypes``, of nodes of each label too. With ``balance_edges`` the same is aimed at for the edges
            that partitions own, of each edge type, and of each label of the nodes that they go with (DGL's in-degrees
            of the nodes of a type or mask, where edges are assigned ``by_dst``). It may be out of reach, for example
            where one node has more edges than that. Where nodes of a type own edges of more than 16 types, the 15 with
            the most edges count each, and the others together.

    The other arguments are those of :class:`PartitionerBase`, as are the errors.

    Example:
        >>> issubclass(glt.partition.MetisPartitioner, glt.partition.AdjacencyPartitioner)
        True
    """

    balances: ClassVar[frozenset[str]] = frozenset({"balance_ntypes", "balance_edges"})
    assign_edge_ns: ClassVar[float] = 0
    """Time that assigning takes per edge, for :meth:`forecast`."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int] | GraphInput,
        edge_index: PerEdgeType | None = None,
        node_feat: PerNodeType | None = None,
        edge_feat: PerEdgeType | None = None,
        *,
        imbalance: float = 0.05,
        **graph: Unpack[GraphArguments],
    ) -> None:
        if isinstance(imbalance, bool) or not isinstance(imbalance, int | float) or not 0 <= imbalance <= 1:
            raise ValueError(
                f"imbalance = {imbalance!r}: expected a number from 0 to 1, by which a partition may exceed the mean"
            )
        self.imbalance: float = float(imbalance)
        super().__init__(output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, **graph)
        if self.graph.num_nodes >= 1 << 32:
            raise ValueError(
                f"num_nodes = {self.graph.num_nodes}: expected less than 2**32 in all, which {type(self).__name__} "
                "numbers one type after the other in 32 bits; RandomPartitioner takes more"
            )
        self._label, self._label_count = self.balance.of_all_nodes(self.graph)
        most = (1 << 26) // (self.num_parts * max(1, sum(map(len, self.edge_kinds))))
        if self._label_count.size > most:
            of_edges = " and edges that are balanced" if self.balance.edges else ""
            raise ValueError(
                f"balance_ntypes has {self._label_count.size} labels for num_parts = {self.num_parts}{of_edges}: "
                f"expected at most {most}; merge some"
            )
        self._owner: np.ndarray | None = None

    @abstractmethod
    def assign_all(self, adjacency: Adjacency, label: np.ndarray | None, label_cap: np.ndarray) -> np.ndarray:
        """Returns the partition of each node of all types, ``[adjacency.num_nodes]``, in the dtype of a book.

        Called with two partitions at least. ``label [num_nodes]`` uint16 is what is balanced of each node, None where
        all have label 0; ``label_cap [num_labels]`` int64 is the most nodes of each label that a partition may have.
        """

    def assign_nodes(self, node_type: int, num_nodes: int) -> np.ndarray:
        if self._owner is None:
            self._owner = self._assign_all()
        begin = sum(nodes.num_nodes for nodes in self.graph.nodes[:node_type])
        return self._owner[begin : begin + num_nodes]

    def strategy_arguments(self) -> dict[str, Any]:
        return {"imbalance": self.imbalance, "balance_edges": self.balance.edges}

    @abstractmethod
    def assign_bytes(self, num_nodes: int, num_neighbors: int) -> int:
        """Returns the most memory that :meth:`assign_all` takes; ``num_neighbors`` is twice the number of edges."""

    @short_traceback
    def forecast(self) -> Forecast:
        expected = super().forecast()
        if self.num_parts == 1:
            return expected
        num_nodes, num_edges = self.graph.num_nodes, self.graph.num_edges
        label_bytes = 0 if self._label is None else self._label.nbytes
        peaks = (13 * num_nodes + self.sort_memory_bytes, 8 * num_nodes + self.assign_bytes(num_nodes, 2 * num_edges))
        # What the adjacency takes is gone before the result is written, so that it lies where the result will.
        more_scratch = scratch_bytes(self.graph) - expected.result_bytes
        return replace(
            expected,
            peak_memory_bytes=max(expected.peak_memory_bytes, BASE_BYTES + label_bytes + max(peaks)),
            scratch_bytes=max(expected.scratch_bytes, more_scratch),
            seconds=expected.seconds + 1e-9 * num_edges * self.assign_edge_ns,
        )

    @property
    def edge_kinds(self) -> list[list[list[EdgeInput]]]:
        """By node type, the edges that go with its nodes, as kinds of which each is balanced: a kind for each edge
        type, of more than ``MAX_KINDS`` for the largest. Empty: they are not balanced."""
        if not self.balance.edges:
            return []
        kinds = []
        for node_type in range(len(self.graph.nodes)):
            owned = [edges for edges in self.graph.edges if edges.expanded == node_type]
            owned.sort(key=lambda edges: -edges.num_edges)
            alone = owned if len(owned) <= MAX_KINDS else owned[: MAX_KINDS - 1]
            rest = owned[len(alone) :]
            kinds.append([[edges] for edges in alone] + [rest] * bool(rest))
        return kinds

    def owned_edges(self) -> list[np.ndarray]:
        """Returns the edges that go with each node, ``[num_nodes, kinds]`` int64 by node type; empty: they are not
        balanced."""
        counts = []
        for nodes, kinds in zip(self.graph.nodes, self.edge_kinds, strict=False):
            counts.append(np.zeros((nodes.num_nodes, len(kinds)), np.int64))
            for at, kind in enumerate(kinds):
                for edges in kind:
                    for _, rows in chunks(edges.row_ids):
                        np.add.at(counts[-1][:, at], rows, 1)
        return counts

    def edge_sums(self, owned: Sequence[np.ndarray], label: np.ndarray | None, num_labels: int) -> np.ndarray:
        """Returns how many edges of each kind the nodes of each label have, ``[kinds of all node types, num_labels]``
        int64, given :meth:`owned_edges`."""
        sums, begin = [], 0
        for counts in owned:
            of_type = np.zeros(len(counts), np.uint16) if label is None else label[begin : begin + len(counts)]
            begin += len(counts)
            for column in counts.T:
                sums.append(np.zeros(num_labels, np.int64))
                np.add.at(sums[-1], of_type, column)
        return np.array(sums, np.int64).reshape(-1, num_labels)

    def edge_caps(self, sums: np.ndarray) -> np.ndarray:
        """Returns how many of these edges a partition is to own at most, ``[sums.size]`` int64."""
        return (sums.reshape(-1) / self.num_parts * (1 + self.imbalance)).astype(np.int64) + 1

    def keep_caps(
        self,
        adjacency: Adjacency,
        label: np.ndarray | None,
        label_cap: np.ndarray,
        owned: Sequence[np.ndarray],
        random_seed: int,
        owner: np.ndarray,
    ) -> int:
        """Moves nodes out of partitions that have too many, of a label or of all, or, as far as there is room, too many
        edges; returns how often. ``random_seed`` breaks ties; ``owner [num_nodes]`` is changed in place.
        """
        (node_cap,) = label_caps(np.array([adjacency.num_nodes]), self.num_parts, self.imbalance)
        edge_cap = self.edge_caps(self.edge_sums(owned, label, label_cap.size))
        given = (adjacency.indptr, adjacency.indices, self.num_parts, label, label_cap, owned, edge_cap)
        return _core.move_overfull(*given, int(node_cap), base_penalty(adjacency), random_seed, owner)

    def _assign_all(self) -> np.ndarray:
        if self.num_parts == 1:
            return np.zeros(self._label_count.sum(), owner_dtype(1))
        caps = label_caps(self._label_count, self.num_parts, self.imbalance)
        with scratch_directory(self.output_dir) as directory:
            writer = PartitionWriter(directory, [0], lambda _: None, **self.writer_options | {"relabel": False})
            adjacency = Adjacency.of(self.graph, writer)
        return self.assign_all(adjacency, self._label, caps)


def base_penalty(adjacency: Adjacency) -> float:
    """Returns Fennel's cost of a node's place in a partition of mean load, in neighbours."""
    return GAMMA * max(adjacency.num_edges, 1) / max(adjacency.num_nodes, 1)


logger = logging.getLogger(__name__)

TEMPERING: Final = 1.5  # how much dearer load is in each pass than in the one before
WORTH_A_PASS: Final = 0.01  # of the edges cut


@short_traceback
class FennelPartitioner(AdjacencyPartitioner):
    """Cuts few edges at little more than the cost of random assignment, in bounded memory.

    Nodes pass one after the other, and each goes to the partition with the largest score: the number of its neighbours
    there, less the marginal cost of the partition's load (Tsourakakis et al., "FENNEL: streaming graph partitioning for
    massive scale graphs", WSDM 2014). Further passes know where the last one put all nodes (Nishimura and Ugander,
    "Restreaming graph partitioning: simple versatile algorithms for advanced balancing", KDD 2013); load becomes dearer
    from pass to pass, and of all passes the assignment that cuts the fewest edges is taken. After two passes in
    succession that gained less than 1% there are no more.

    In graphs with hubs most of these share a partition; with ``balance_edges`` more edges are cut, but work is even
    too.

    Memory is two books and 9 bytes per node of all types (with ``balance_edges`` 8 more for each edge type whose edges
    go with it, with ``balance_ntypes`` 2 more), whatever the number of edges: these lie in both directions in a scratch
    file. Making it takes 56 bytes per edge and 8 per node in the file system of ``output_dir``, before the files that
    :class:`PartitionerBase` speaks of.

    Args:
        random_seed: Seed by which ties are broken, in ``[0, 2**64)``. The same seed and graph give the same directory,
            byte for byte.
        num_passes: Most passes over the edges, at least 1.

    The other arguments are those of :class:`AdjacencyPartitioner`, as are the errors.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> manifest = glt.partition.FennelPartitioner("fennel", 2, graph.num_nodes, graph.edge_index).partition()
        >>> manifest.edge_cut_ratio < 0.2
        True
    """

    assign_edge_ns: ClassVar[float] = 500  # some seven passes over both ends of an edge, and the sort

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int] | GraphInput,
        edge_index: PerEdgeType | None = None,
        node_feat: PerNodeType | None = None,
        edge_feat: PerEdgeType | None = None,
        *,
        random_seed: int = 0,
        num_passes: int = 12,
        imbalance: float = 0.05,
        **graph: Unpack[GraphArguments],
    ) -> None:
        self.random_seed: int = integer("random_seed", random_seed, 0, 2**64 - 1, "the seed that breaks ties")
        self.num_passes: int = integer("num_passes", num_passes, 1, 1000, "the most passes over the edges")
        super().__init__(
            output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, imbalance=imbalance, **graph
        )

    def assign_all(self, adjacency: Adjacency, label: np.ndarray | None, label_cap: np.ndarray) -> np.ndarray:
        owned = self.owned_edges()
        edge_cap = self.edge_caps(self.edge_sums(owned, label, label_cap.size))
        given = (adjacency.indptr, adjacency.indices, self.num_parts, label, label_cap, owned, edge_cap)
        owner = np.zeros(adjacency.num_nodes, owner_dtype(self.num_parts))
        best, fewest, num_idle = owner, -1, 0
        for number in range(self.num_passes):
            penalty = base_penalty(adjacency) * TEMPERING**number
            num_cut = _core.fennel_pass(*given, penalty, number == 0, self.random_seed, owner)
            logger.info("pass %d cuts %d of %d edges", number + 1, num_cut, adjacency.num_edges)
            num_idle = num_idle + 1 if number > 0 and num_cut > (1 - WORTH_A_PASS) * fewest else 0
            if number == 0 or num_cut < fewest:
                best, fewest = owner.copy(), num_cut
            if num_idle == 2:
                break
        if label is not None or owned:
            num_moved = self.keep_caps(adjacency, label, label_cap, owned, self.random_seed, best)
            logger.debug("%d nodes were in partitions that had enough of all labels together, or of edges", num_moved)
        return best

    def assign_bytes(self, num_nodes: int, num_neighbors: int) -> int:
        per_node = 2 * owner_dtype(self.num_parts).itemsize
        owned = sum(8 * len(kinds) * self.graph.nodes[t].num_nodes for t, kinds in enumerate(self.edge_kinds))
        return per_node * num_nodes + num_nodes // 8 + owned

    def strategy_arguments(self) -> dict[str, Any]:
        return super().strategy_arguments() | {"random_seed": self.random_seed, "num_passes": self.num_passes}
