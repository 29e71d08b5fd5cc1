"""What a partitioner will take, before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from glt import _core
from glt.partition.format.book import id_dtype, owner_dtype
from glt.partition.format.files import BLOCK_BYTES, npy_bytes
from glt.partition.graph_input import EdgeInput, GraphInput, NodeInput
from glt.partition.methods.writer import SortMemory

# Measured on a virtual machine of two Zen 4 cores, and rounded; a guess on any other.
EDGE_NS: Final = 150  # of one thread: counting, spreading and sorting an edge
BYTE_NS: Final = 1.5  # of one thread: copying a byte of a row, its checksum included
NODE_NS: Final = 150  # assigning a node at random, and everything else that one thread does alone
DISK_BYTES_PER_S: Final = 500e6
BASE_BYTES: Final = 16 << 20  # stacks, allocators, short chunks
_MANIFEST_BYTES: Final = 250  # of one file's entry, without its checksums
_SMALL_HEADER: Final = npy_bytes(np.dtype(np.int64), (0,))


@dataclass(frozen=True)
class Forecast:
    """What :meth:`PartitionerBase.partition` will take.

    Attributes:
        peak_memory_bytes: Memory beside the inputs and the page cache: the books, what sorting takes, and the chunks of
            rows that are under way.
        result_bytes: Size of the finished directory.
        scratch_bytes: Largest scratch file beside it.
        work_bytes: What the progress bar counts: bytes of edges read, of scratch files and of the result written.
        seconds: Estimate, from rates of this module; of the assignment, only a random one is included.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> forecast = glt.partition.RandomPartitioner("random", 2, 40, graph.edge_index).forecast()
        >>> forecast.result_bytes > 0 and forecast.peak_memory_bytes > 0
        True
    """

    peak_memory_bytes: int
    result_bytes: int
    scratch_bytes: int
    work_bytes: int
    seconds: float

    @property
    def disk_bytes(self) -> int:
        """Free space that is needed in the file system of the directory."""
        return self.result_bytes + self.scratch_bytes

    def with_files(self, data_bytes: int, num_files: int) -> Forecast:
        """Returns the forecast of a result that has so many files more, which hold so many bytes together."""
        num_bytes = _file_bytes(data_bytes, num_files)
        return replace(self, result_bytes=self.result_bytes + num_bytes, work_bytes=self.work_bytes + num_bytes)

    def summary(self) -> str:
        """Returns the forecast in one line."""
        return (
            f"about {self.peak_memory_bytes / 1e6:.0f} MB of memory beside the inputs, "
            f"{self.result_bytes / 1e6:.0f} MB on disk, {self.scratch_bytes / 1e6:.0f} MB of scratch files and "
            f"{self.seconds:.0f} s"
        )


def forecast(
    graph: GraphInput,
    num_parts: int,
    num_threads: int,
    thread_bytes: int,
    chunk_size: int,
    assign_node_bytes: int,
    relabel: bool = False,
) -> Forecast:
    """Forecasts a run, each of whose threads sorts edges in ``thread_bytes`` and copies ``chunk_size`` rows at a
    time."""
    result_bytes = 1000 + sum(_file_bytes(*each) for each in _files(graph, num_parts, relabel))
    peaks = [assign_node_bytes * max(nodes.num_nodes for nodes in graph.nodes)]
    inputs: list[NodeInput | EdgeInput] = [*graph.nodes, *graph.edges]
    tables = [rows for each in inputs for rows in each.tables]
    # Rows that a thread has under way: themselves, and where they go.
    peaks += [min(chunk_size, len(rows.array)) * (rows.moved_bytes + 16) * num_threads for rows in tables]
    scratch, read = [0], 0
    for edges in graph.edges:
        num_nodes, num_neighbors = graph.nodes[edges.expanded].num_nodes, graph.nodes[edges.neighbor].num_nodes
        memory = SortMemory.of(edges, num_neighbors, thread_bytes)
        sort_bytes = memory.thread_bytes * min(num_threads, edges.num_edges / memory.bucket_edges)
        peaks.append(12 * num_nodes + int(sort_bytes))
        if relabel and edges.neighbor != edges.expanded:
            peaks[-1] += 4 * num_neighbors
        scratch.append(memory.scratch_bytes)
        read += edges.index.nbytes
    alone_s = 1e-9 * NODE_NS * graph.num_nodes
    shared_s = 1e-9 * (EDGE_NS * graph.num_edges + BYTE_NS * result_bytes) / num_threads
    written = result_bytes + sum(scratch)
    return Forecast(
        peak_memory_bytes=BASE_BYTES + owner_dtype(num_parts).itemsize * graph.num_nodes + max(peaks),
        result_bytes=result_bytes,
        scratch_bytes=max(scratch),
        work_bytes=read + written,
        seconds=max(alone_s + shared_s, written / DISK_BYTES_PER_S),
    )


def _file_bytes(data_bytes: int, num_files: int) -> int:
    """Files with their headers, and what the manifest says of them."""
    checksums = 8 * (data_bytes // BLOCK_BYTES + num_files)
    return data_bytes + num_files * (_SMALL_HEADER + _MANIFEST_BYTES) + checksums


def _files(graph: GraphInput, num_parts: int, relabel: bool) -> Iterator[tuple[int, int]]:
    """Yields sizes of the files of a directory: bytes in so many files together."""
    owner_bytes = owner_dtype(num_parts).itemsize
    for nodes in graph.nodes:
        num_nodes = nodes.num_nodes
        if relabel:
            yield num_nodes * 2 * id_dtype(num_nodes).itemsize, 2
        else:
            yield num_nodes * owner_bytes, 1
            yield num_nodes * 4, 1
            yield num_nodes * 8, num_parts
        for rows in nodes.tables:
            yield num_nodes * rows.row_bytes, num_parts
        if nodes.time is not None:
            yield num_nodes * 8, num_parts
    for edges in graph.edges:
        num_edges, num_nodes = edges.num_edges, graph.nodes[edges.expanded].num_nodes
        edge_bytes = id_dtype(num_edges).itemsize
        ids = id_dtype(graph.nodes[edges.neighbor].num_nodes).itemsize + edge_bytes
        yield (num_nodes + num_parts) * 8, num_parts
        yield num_edges * ids, 2 * num_parts
        if edges.weight is not None:
            yield num_edges * 8 + _core.weight_guide_size(num_nodes, num_edges) * 4, 2 * num_parts
        if edges.has_time:
            yield num_edges * (ids + 8), 3 * num_parts
        if relabel:
            yield num_edges * 2 * edge_bytes, 2
        elif edges.tables:
            yield num_edges * (owner_bytes + 4), 2
        for rows in edges.tables:
            yield num_edges * rows.row_bytes, num_parts
