"""The whole graph as a partitioner sees it: one type of nodes, edges in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glt import _core
from glt.partition.arguments import CHUNK_IDS
from glt.partition.book import id_dtype
from glt.partition.graph_input import EdgeInput, GraphInput
from glt.partition.npy_file import scratch_array


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Neighbours of each node along edges in either direction; nodes are numbered one type after the other.

    Parallel edges are there as often as they are in the graph, self loops are not.

    Attributes:
        indptr: ``[num_nodes + 1]`` int64.
        indices: ``[2 * edges that are no loops]``, int32 where the ids fit, else int64; in a nameless file.
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
    def of(cls, graph: GraphInput, directory: Path) -> Adjacency:
        """Builds the adjacency of ``graph`` in nameless files in ``directory``.

        They take 24 bytes per edge while it is built and 8 after that, twice as many with more than 2**31 nodes; in
        memory there are 8 bytes per node.
        """
        offset = np.cumsum([0, *(nodes.num_nodes for nodes in graph.nodes)])
        num_nodes = int(offset[-1])
        num_edges = sum(src.size for edges in graph.edges for src, _ in _without_loops(edges, offset))
        rows, cols, indices = (scratch_array(directory, 2 * num_edges, id_dtype(num_nodes)) for _ in range(3))
        at = 0
        for edges in graph.edges:
            for src, dst in _without_loops(edges, offset):
                for first, second in ((src, dst), (dst, src)):
                    rows[at : at + src.size], cols[at : at + src.size] = first, second
                    at += src.size
        indptr = np.empty(num_nodes + 1, np.int64)
        _core.build_csr(rows, cols, num_nodes, num_nodes, indptr, indices)
        return cls(indptr, indices)


def _without_loops(edges: EdgeInput, offset: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for begin in range(0, edges.num_edges, CHUNK_IDS):
        chunk = slice(begin, begin + CHUNK_IDS)
        src = edges.row_ids[chunk] + offset[edges.expanded]
        dst = edges.col_ids[chunk] + offset[edges.neighbor]
        keep = src != dst
        yield src[keep], dst[keep]
