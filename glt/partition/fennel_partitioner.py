"""Streaming assignment of nodes: Fennel with restreaming."""

import logging
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from typing_extensions import Unpack  # which torch needs too

from glt import _core
from glt.data.schema import NodeType
from glt.partition.adjacency import Adjacency
from glt.partition.adjacency_partitioner import AdjacencyPartitioner, base_penalty
from glt.partition.arguments import integer
from glt.partition.book import owner_dtype
from glt.partition.partitioner import GraphArguments, PerEdgeType, PerNodeType

logger = logging.getLogger(__name__)

TEMPERING: Final = 1.5  # how much dearer load is in each pass than in the one before
WORTH_A_PASS: Final = 0.01  # of the edges cut


class FennelPartitioner(AdjacencyPartitioner):
    """Cuts few edges at little more than the cost of random assignment, in bounded memory.

    Nodes pass one after the other, and each goes to the partition with the largest score: the number of its neighbours
    there, less the marginal cost of the partition's load (Tsourakakis et al., "FENNEL: streaming graph partitioning for
    massive scale graphs", WSDM 2014). Further passes know where the last one put all nodes (Nishimura and Ugander,
    "Restreaming graph partitioning: simple versatile algorithms for advanced balancing", KDD 2013); load becomes dearer
    from pass to pass, and of all passes the assignment that cuts the fewest edges is taken. After two passes in
    succession that gained less than 1% there are no more.

    In graphs with hubs, few edges are cut where most of them share a partition, whose nodes are as many as any other's:
    with ``balance_edges`` more edges are cut, but work is even too.

    Memory is two books and 9 bytes per node of all types (17 with ``balance_edges``, 2 more with ``balance_ntypes``),
    whatever the number of edges: these lie in both directions in a scratch file, which each pass reads in order. Making
    it takes 56 bytes per edge in the file system of ``output_dir``, beside the memory and before the files that
    :class:`PartitionerBase` speaks of.

    Args:
        random_seed: Seed by which ties are broken, in ``[0, 2**64)``. The same seed and graph give the same directory,
            byte for byte.
        num_passes: Most passes over the edges, at least 1.

    The other arguments are those of :class:`AdjacencyPartitioner`, as are the errors.
    """

    assign_edge_ns: ClassVar[float] = 500  # some seven passes over both ends of an edge, and the sort

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int],
        edge_index: PerEdgeType,
        node_feat: PerNodeType | None = None,
        edge_feat: PerEdgeType | None = None,
        *,
        random_seed: int = 0,
        num_passes: int = 12,
        imbalance: float = 0.05,
        **graph: Unpack[GraphArguments],
    ) -> None:
        self.random_seed = integer("random_seed", random_seed, 0, 2**64 - 1, "the seed that breaks ties")
        self.num_passes = integer("num_passes", num_passes, 1, 1000, "the most passes over the edges")
        super().__init__(
            output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, imbalance=imbalance, **graph
        )

    def assign_all(self, adjacency: Adjacency, label: np.ndarray | None, label_cap: np.ndarray) -> np.ndarray:
        edges = self.owned_edges()
        edge_cap = self.edge_cap(edges)
        owner = np.zeros(adjacency.num_nodes, owner_dtype(self.num_parts))
        best, fewest, num_idle = owner, -1, 0
        for number in range(self.num_passes):
            num_cut = _core.fennel_pass(
                adjacency.indptr, adjacency.indices, self.num_parts, label, label_cap, edges, edge_cap,
                base_penalty(adjacency) * TEMPERING**number, number == 0, self.random_seed, owner,
            )  # fmt: skip
            logger.info("pass %d cuts %d of %d edges", number + 1, num_cut, adjacency.num_edges)
            num_idle = num_idle + 1 if number > 0 and num_cut > (1 - WORTH_A_PASS) * fewest else 0
            if number == 0 or num_cut < fewest:
                best, fewest = owner.copy(), num_cut
            if num_idle == 2:
                break
        if label is not None:
            num_moved = self.keep_caps(adjacency, label, label_cap, edges, self.random_seed, best)
            logger.debug("%d nodes were in partitions that had enough of all labels together", num_moved)
        return best

    def assign_bytes(self, num_nodes: int, num_neighbors: int) -> int:
        per_node = 2 * owner_dtype(self.num_parts).itemsize + 8 * self.balance.edges
        return per_node * num_nodes + num_nodes // 8

    def strategy_arguments(self) -> dict[str, Any]:
        return super().strategy_arguments() | {"random_seed": self.random_seed, "num_passes": self.num_passes}
