"""The entry to distributed partitioning."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, overload

import numpy as np
import torch.distributed as dist

from glt.data.schema import NodeType
from glt.partition.arguments import integer
from glt.partition.book import Book
from glt.partition.distributed.agreement import agree
from glt.partition.distributed.assigner import make_assigner
from glt.partition.distributed.cache_files import write_caches
from glt.partition.distributed.deal import Parts
from glt.partition.distributed.directory import SharedDirectory, shared_staging
from glt.partition.distributed.edge_files import EdgeFiles
from glt.partition.distributed.exchange import Exchange
from glt.partition.distributed.node_files import write_book, write_nodes
from glt.partition.distributed.outline import disk_bytes
from glt.partition.distributed.slices import EDGE_TABLES, NODE_TABLES, GraphSlice, gather_rows
from glt.partition.graph_input import NodeInput
from glt.partition.manifest import Manifest
from glt.partition.npy_file import FileEntry
from glt.partition.partition_writer import PartitionWriter
from glt.partition.partitioner import IdsOf, PartitionerBase, PerEdgeType, PerNodeType
from glt.partition.read_forecast import ReadForecast
from glt.partition.relabelling import relabel_nodes
from glt.partition.staging import require_space

logger = logging.getLogger(__name__)

ROUND_BYTES: Final = 64 << 20


@overload
def partition_distributed(
    partitioner: type[PartitionerBase],
    output_dir: str | os.PathLike[str],
    num_parts: int,
    num_nodes: int | Mapping[NodeType, int],
    edge_index: PerEdgeType,
    node_feat: PerNodeType | None = None,
    edge_feat: PerEdgeType | None = None,
    *,
    return_mapping: Literal[True],
    **arguments: Any,
) -> tuple[Manifest, IdsOf, IdsOf]: ...


@overload
def partition_distributed(
    partitioner: type[PartitionerBase],
    output_dir: str | os.PathLike[str],
    num_parts: int,
    num_nodes: int | Mapping[NodeType, int],
    edge_index: PerEdgeType,
    node_feat: PerNodeType | None = None,
    edge_feat: PerEdgeType | None = None,
    *,
    return_mapping: Literal[False] = False,
    **arguments: Any,
) -> Manifest: ...


def partition_distributed(
    partitioner: type[PartitionerBase],
    output_dir: str | os.PathLike[str],
    num_parts: int,
    num_nodes: int | Mapping[NodeType, int],
    edge_index: PerEdgeType,
    node_feat: PerNodeType | None = None,
    edge_feat: PerEdgeType | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    timeout_s: float = 1800.0,
    round_bytes: int = ROUND_BYTES,
    return_mapping: bool = False,
    **arguments: Any,
) -> Manifest | tuple[Manifest, IdsOf, IdsOf]:
    """Partitions a graph of which every rank has a slice; all ranks call it together.

    The result is, byte for byte, what ``partitioner(...).partition()`` writes on one machine: edges, and rows of each
    table, are those of rank 0, then those of rank 1, and so on, and the id of an edge is its position in that order.
    Slices may differ in length, and be empty. ::

        torch.distributed.init_process_group("gloo")  # torchrun has started this on every machine
        partition_distributed(
            RandomPartitioner, "parts", num_parts=8, num_nodes=10**9, edge_index=my_edges, node_feat=my_rows
        )

    Rank r writes the partitions ``p % world_size == r``. Ranks that share the file system of ``output_dir`` write one
    directory; others write one of their own, with the books, the manifest of all files, and their partitions: what a
    host needs that serves them. With ``relabel`` the maps of ids stand in for the books.

    Memory of a rank beside its slice: the owners of all nodes (1 byte each, 2 with more than 256 partitions), 4 bytes
    more for each node of the type at hand, 12 for each that it owns, ``sort_memory_bytes``, and twice ``round_bytes``.
    With hotness, also three of its numbers for each node of the type at hand, that is, the numbers for one partition
    and what choosing from them takes: never those for all. What :class:`FrequencyPartitioner` takes to assign nodes
    every rank takes; of their numbers it looks at those in its own slice.
    Disk beside the result: a scratch file of the edges of one type that it owns, 12 to 16 bytes each, weights and times
    extra, the sort's own, and 8 bytes per node with node times.

    Args:
        partitioner: A class that assigns nodes by their ids, such as :class:`RandomPartitioner`, or by their hotness,
            :class:`FrequencyPartitioner`; or :class:`AssignedPartitioner` for an assignment made elsewhere, such as by
            :class:`FennelPartitioner` or :class:`MetisPartitioner`, which look at edges and are refused.
        output_dir: As of :class:`PartitionerBase`; may differ between ranks.
        num_parts: As of :class:`PartitionerBase`. More than there are ranks is usual, fewer is possible.
        num_nodes: Of the whole graph.
        edge_index: The slice of this rank, ``[2, n]``; ids are of the whole graph.
        node_feat, edge_feat: The slices of this rank.
        group: Ranks that take part, and whose collectives on host memory are gloo's; its own timeout applies too.
            Default: all of them.
        timeout_s: How long to wait for another rank at a time: more than the slowest of them may be behind, which is
            mostly in reading its slice and in sorting its edges. One that dies is missed at once.
        round_bytes: Memory for rows that arrive at a time. The result does not depend on it.
        return_mapping: As of :meth:`PartitionerBase.partition`, with ``relabel``.
        arguments: Other arguments of ``partitioner``. Node and edge tables, ``balance_ntypes`` and ``owners`` are
            slices too, and so is each array in ``hotness`` and ``probs``, where a rank without nodes gives arrays of
            none. All others are the same on all ranks, but ``chunk_size``, ``num_threads`` and ``sort_memory_bytes``
            may differ.

    Returns:
        The manifest, the same on all ranks. With ``return_mapping`` also the original id of each new node id and of
        each new edge id, mapped from ``output_dir``, on all ranks.

    Raises:
        TypeError, ValueError, KeyError, IndexError, PartitionError, OSError: As the partitioner; or ValueError if
            arguments differ between ranks or slices do not fit together. No directory is left behind.
        RemoteError: If another rank has raised; with its error and traceback. The leader of a directory, its lowest
            rank, raises PartitionError where its file system lacks the space that is forecast.
        PeerLost: If another rank has died, or ``timeout_s`` has passed.
    """
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or not timeout_s > 0:
        raise ValueError(f"timeout_s = {timeout_s!r}: expected seconds above 0")
    with Exchange(group, timeout_s) as exchange:
        exchange.stage = "the comparison of arguments"
        integer("round_bytes", round_bytes, 1, 2**40, "memory for rows that arrive at a time")
        agree(exchange, {"partitioner": getattr(partitioner, "__name__", partitioner), "round_bytes": round_bytes})
        tables = {name: arguments.pop(name, None) for name in NODE_TABLES + EDGE_TABLES if not name.endswith("_feat")}
        tables |= {"node_feat": node_feat, "edge_feat": edge_feat}
        assigner, strategy_arguments = make_assigner(
            exchange, partitioner, output_dir, num_parts, num_nodes, edge_index, arguments, round_bytes
        )
        assigner.require_relabel(return_mapping)
        exchange.stage = "the comparison of slices"
        slices = GraphSlice.of(exchange, assigner.graph.edge_dir, num_nodes, edge_index, tables)
        assigner.caches.require_use(slices.graph.nodes)
        run = _Run(exchange, assigner, strategy_arguments, slices, round_bytes)
        with shared_staging(assigner.output_dir, exchange) as directory:
            manifest = run.write(directory)
        if exchange.rank == 0:
            logger.info("%s, in %s", manifest.summary(), assigner.output_dir)
    return (manifest, *assigner.original_ids()) if return_mapping else manifest


class _Run:
    def __init__(
        self,
        exchange: Exchange,
        assigner: PartitionerBase,
        strategy_arguments: dict[str, Any],
        slices: GraphSlice,
        round_bytes: int,
    ) -> None:
        self._exchange = exchange
        self._assigner = assigner
        self._strategy_arguments = strategy_arguments
        self._slices = slices
        self._round_bytes = round_bytes
        self._parts = Parts(assigner.num_parts, exchange.rank, exchange.world_size)

    def write(self, directory: SharedDirectory) -> Manifest:
        """Writes everything into the staging directory."""
        exchange, assigner, graph = self._exchange, self._assigner, self._slices.graph
        exchange.stage = "the forecast"
        here = [rank for rank, leader in enumerate(directory.leaders) if leader == exchange.rank]
        if here:  # this rank leads
            require_space(assigner.output_dir, disk_bytes(assigner, self._slices, here))
        exchange.stage = "the assignment of nodes"
        books = assigner.books()
        agree(exchange, {"what assign_nodes returned": [_digest(book) for book in books]})
        is_leader = bool(here)
        leaders = sorted(set(directory.leaders))
        writer = PartitionWriter(
            directory.root, assigner.chunk_size, assigner.num_threads, lambda _: None, self._parts.own
        )
        times, reads = self._write_nodes(writer, books, is_leader)
        thread_bytes = assigner.sort_memory_bytes // assigner.num_threads
        graphs = []
        for at, edges in enumerate(graph.edges):
            exchange.stage = f"the edges of type {edges.edge_type}"
            files = EdgeFiles(
                exchange, writer, self._parts, replace(edges, neighbor_time=times[edges.neighbor]),
                self._slices.num_edges[:, at], books, assigner.relabel, self._round_bytes,
            )  # fmt: skip
            graphs.append(files.write(leaders, thread_bytes))
        exchange.stage = "the end"
        manifest = assigner.manifest(graph, books, reads, graphs, self._files(writer), self._strategy_arguments)
        if is_leader:
            manifest.write(directory.root)  # last: a directory without it does not load
        return manifest

    def _write_nodes(
        self, writer: PartitionWriter, books: list[Book], is_leader: bool
    ) -> tuple[list[np.ndarray | None], list[ReadForecast | None]]:
        """Writes all nodes; returns by type the times of all of them, if they have any, and the expected reads."""
        relabel = self._assigner.relabel
        times: list[np.ndarray | None] = []
        reads: list[ReadForecast | None] = []
        for at, (nodes, book) in enumerate(zip(self._slices.graph.nodes, books, strict=True)):
            self._exchange.stage = f"the nodes of type {nodes.node_type!r}"
            if is_leader and relabel:
                relabel_nodes(writer, nodes.node_type, book)
            elif is_leader:
                write_book(writer, nodes, book)
            num_rows = self._slices.node_rows[:, at]
            time = nodes.time
            if time is not None:  # all of them: edges have the times of neighbours that others own
                time = gather_rows(self._exchange, time.astype(np.int64), num_rows, self._round_bytes, writer.root)
            times.append(time)
            whole = replace(nodes, time=time)
            write_nodes(self._exchange, writer, self._parts, whole, num_rows, book, relabel, self._round_bytes)
            reads.append(self._write_caches(writer, at, whole, book))
        return times, reads

    def _write_caches(self, writer: PartitionWriter, at: int, nodes: NodeInput, book: Book) -> ReadForecast | None:
        self._exchange.stage = f"the caches of nodes of type {nodes.node_type!r}"
        plan = self._assigner.caches.plan(at, nodes, book)
        if plan is None:
            return None
        writer.node_hotness(nodes.node_type, plan.own)
        if any(plan.forecast.num_cached):
            new_id = book.position() if self._assigner.relabel else None
            num_rows = self._slices.node_rows[:, at]
            write_caches(self._exchange, writer, nodes, num_rows, plan.cached(), new_id, self._round_bytes)
        return plan.forecast

    def _files(self, writer: PartitionWriter) -> dict[str, FileEntry]:
        """Returns the entries of the files of all ranks."""
        files = {}
        for of_rank in self._exchange.gather({path: vars(entry) for path, entry in writer.files.items()}):
            for path, entry in of_rank.items():
                files[path] = FileEntry(**{**entry, "shape": tuple(entry["shape"])})
        return files


def _digest(book: Book) -> str:
    return hashlib.blake2b(book.owner.data, digest_size=16).hexdigest()
