"""The whole graph as a partitioner sees it: one type of nodes, edges in both directions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from glt import _core
from glt.partition.book import id_dtype
from glt.partition.graph_input import EdgeInput, GraphInput
from glt.partition.npy_file import BLOCK_BYTES, scratch_file

CHUNK_EDGES: Final = 1 << 18  # looked at together: some 10 MiB


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Neighbours of each node along edges in either direction; nodes are numbered one type after the other.

    Parallel edges are there as often as they are in the graph, self loops are not.

    Attributes:
        indptr: ``[num_nodes + 1]`` int64.
        indices: ``[2 * edges that are no loops]``, int32 where the ids fit, else int64; mapped, and writable.
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
    def of(cls, graph: GraphInput, directory: Path, num_threads: int, thread_bytes: int) -> Adjacency:
        """Builds the adjacency of ``graph`` by the external sort of :mod:`glt.partition.graph_writer`.

        Memory is 13 bytes per node, 8 of which are kept, and ``thread_bytes`` for each thread; files, see
        :func:`scratch_bytes`. Those that are kept may be removed from ``directory`` at once.

        Args:
            graph: The graph, of at most 2**32 - 1 nodes in all.
            directory: Where files are made.
            num_threads: Threads.
            thread_bytes: Memory of each for sorting.
        """
        offset = np.cumsum([0, *(nodes.num_nodes for nodes in graph.nodes)])
        num_nodes = int(offset[-1])
        num_ends = 2 * sum(src.size for edges in graph.edges for src, _ in _without_loops(edges, offset))
        dtype, edge_ids = id_dtype(num_nodes), id_dtype(num_ends)
        rows, cols = (_mapped(directory, dtype, num_ends) for _ in range(2))
        at = 0
        for edges in graph.edges:
            for src, dst in _without_loops(edges, offset):
                for first, second in ((src, dst), (dst, src)):
                    rows[at : at + src.size], cols[at : at + src.size] = first, second
                    at += src.size
        indptr = np.empty(num_nodes + 1, np.int64)
        position, everyone = np.arange(num_nodes, dtype=np.uint32), np.zeros(num_nodes, np.uint8)
        _core.count_rows(rows, cols, position, everyone, everyone, 1, indptr, num_threads=num_threads)
        paths = [directory / name for name in ("adjacency", "edge_ids")]
        files = [
            [(_core.BlockFile(os.fsencode(path), num_ends * each.itemsize, BLOCK_BYTES), 0)]
            for path, each in zip(paths, (dtype, edge_ids), strict=True)
        ]
        _, sort_bytes, _ = _core.edge_sort_plan(
            num_ends, num_ends, 0, False, dtype.itemsize, edge_ids.itemsize, thread_bytes
        )
        with scratch_file(directory, sort_bytes) as scratch:
            _core.sort_edges(
                rows, cols, None, None, False, num_nodes, position, [0, num_nodes], indptr,
                [*files, *([],) * 5], dtype.itemsize, edge_ids.itemsize, scratch, thread_bytes, num_threads=num_threads,
            )  # fmt: skip
        paths[1].unlink()
        return cls(indptr, np.memmap(paths[0], dtype, "r+") if num_ends else np.empty(0, dtype))


def scratch_bytes(graph: GraphInput) -> int:
    """Returns the most that the files of :meth:`Adjacency.of` take at a time: 56 bytes per edge, 64 with more than
    2**30 edges, 80 with more than 2**31 nodes too."""
    num_ends = 2 * sum(edges.num_edges for edges in graph.edges)
    node = id_dtype(sum(nodes.num_nodes for nodes in graph.nodes)).itemsize
    edge = id_dtype(num_ends).itemsize
    return num_ends * (3 * node + edge + (12 if num_ends <= 2**32 else 16))


def _without_loops(edges: EdgeInput, offset: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for begin in range(0, edges.num_edges, CHUNK_EDGES):
        chunk = slice(begin, begin + CHUNK_EDGES)
        src = edges.row_ids[chunk] + offset[edges.expanded]
        dst = edges.col_ids[chunk] + offset[edges.neighbor]
        keep = src != dst
        yield src[keep], dst[keep]


def _mapped(directory: Path, dtype: np.dtype, size: int) -> np.ndarray:
    if size == 0:
        return np.empty(0, dtype)
    with scratch_file(directory, size * dtype.itemsize) as scratch, os.fdopen(os.dup(scratch), "r+b") as file:
        return np.memmap(file, dtype, "r+", shape=(size,))
