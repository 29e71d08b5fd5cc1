"""The base of partitioners that look at the edges: all nodes are assigned at once."""

import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from typing_extensions import Unpack  # which torch needs too

from glt import _core
from glt.data.schema import NodeType
from glt.partition.adjacency import Adjacency, scratch_bytes
from glt.partition.balance import label_caps, owned_edges
from glt.partition.book import owner_dtype
from glt.partition.forecast import BASE_BYTES, Forecast
from glt.partition.partitioner import GraphArguments, PartitionerBase, PerEdgeType, PerNodeType
from glt.partition.staging import scratch_directory

GAMMA: Final = 1.5  # exponent of a partition's cost in its size, the choice of Fennel's paper


class AdjacencyPartitioner(PartitionerBase):
    """Assigns the nodes of all types together, by the graph without types and directions.

    Subclasses override :meth:`assign_all`.

    Args:
        imbalance: By how much a partition may exceed the mean, in ``[0, 1]``: no partition has more than
            ``1 + imbalance`` times the mean number of nodes, or the mean rounded up where that is more; with
            ``balance_ntypes``, of nodes of each label too. With ``balance_edges`` the same is aimed at for the edges
            that partitions own, but may be out of reach, for example where one node has more edges than that.

    The other arguments are those of :class:`PartitionerBase`, as are the errors.
    """

    balances: ClassVar[frozenset[str]] = frozenset({"balance_ntypes", "balance_edges"})
    assign_edge_ns: ClassVar[float] = 0
    """Time that assigning takes per edge, for :meth:`forecast`."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int],
        edge_index: PerEdgeType,
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
        self.imbalance = float(imbalance)
        super().__init__(output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, **graph)
        if sum(nodes.num_nodes for nodes in self.graph.nodes) >= 1 << 32:
            raise ValueError(
                f"num_nodes = {num_nodes}: expected less than 2**32 in all, which {type(self).__name__} numbers "
                "one type after the other in 32 bits; RandomPartitioner takes more"
            )
        self._label, self._label_count = self.balance.of_all_nodes(self.graph)
        if self._label_count.size * self.num_parts > 1 << 26:
            raise ValueError(
                f"balance_ntypes has {self._label_count.size} labels for num_parts = {self.num_parts}: expected at "
                f"most {(1 << 26) // self.num_parts}; merge some"
            )
        self._owner: np.ndarray | None = None

    @abstractmethod
    def assign_all(self, adjacency: Adjacency, label: np.ndarray | None, label_cap: np.ndarray) -> np.ndarray:
        """Returns the partition of each node of all types, ``[adjacency.num_nodes]``, in the dtype of a book.

        Called with two partitions at least.

        Args:
            adjacency: The graph.
            label: What is balanced of each node, ``[num_nodes]`` uint16; None: all have label 0.
            label_cap: ``[num_labels]`` int64, most nodes of each label that a partition may have.
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
        """Returns the most memory that :meth:`assign_all` takes, for :meth:`forecast`.

        Args:
            num_nodes: Nodes of all types.
            num_neighbors: Twice the number of edges: as many as there can be in the adjacency.
        """

    def forecast(self) -> Forecast:
        expected = super().forecast()
        if self.num_parts == 1:
            return expected
        num_nodes = sum(nodes.num_nodes for nodes in self.graph.nodes)
        num_edges = sum(edges.num_edges for edges in self.graph.edges)
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

    def owned_edges(self) -> np.ndarray | None:
        """Returns the edges that go with each node of all types, ``[num_nodes]`` int64; None: they are not balanced."""
        return owned_edges(self.graph) if self.balance.edges else None

    def edge_cap(self, edges: np.ndarray | None) -> int:
        """Returns how many edges a partition is to own at most, given :meth:`owned_edges`; 0: they are not balanced."""
        return 0 if edges is None else int(edges.sum() / self.num_parts * (1 + self.imbalance)) + 1

    def keep_caps(
        self,
        adjacency: Adjacency,
        label: np.ndarray | None,
        label_cap: np.ndarray,
        edges: np.ndarray | None,
        random_seed: int,
        owner: np.ndarray,
    ) -> int:
        """Moves nodes out of partitions that have too many, of a label or of all, or, as far as there is room, too many
        edges; returns how often.

        Args:
            adjacency, label, label_cap: See :meth:`assign_all`.
            edges: See :meth:`owned_edges`.
            random_seed: By which ties are broken.
            owner: ``[num_nodes]``, in the dtype of a book; changed in place.
        """
        (node_cap,) = label_caps(np.array([adjacency.num_nodes]), self.num_parts, self.imbalance)
        return _core.move_overfull(
            adjacency.indptr, adjacency.indices, self.num_parts, label, label_cap, edges, self.edge_cap(edges),
            int(node_cap), base_penalty(adjacency), random_seed, owner,
        )  # fmt: skip

    def _assign_all(self) -> np.ndarray:
        if self.num_parts == 1:
            return np.zeros(self._label_count.sum(), owner_dtype(1))
        caps = label_caps(self._label_count, self.num_parts, self.imbalance)
        with scratch_directory(self.output_dir) as directory:
            adjacency = Adjacency.of(
                self.graph, directory, self.num_threads, self.sort_memory_bytes // self.num_threads
            )
        return self.assign_all(adjacency, self._label, caps)


def base_penalty(adjacency: Adjacency) -> float:
    """Returns Fennel's cost of a node's place in a partition of mean load, in neighbours."""
    return GAMMA * max(adjacency.num_edges, 1) / max(adjacency.num_nodes, 1)
