"""The entry to distributed partitioning, and the run of a rank."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, overload

import numpy as np
import torch.distributed as dist

from glt._checks import integer
from glt._progress import progress_bar
from glt._tracebacks import short_traceback
from glt.data.schema import NodeType
from glt.partition.format.book import id_dtype, owner_dtype
from glt.partition.format.files import require_space
from glt.partition.format.manifest import Manifest
from glt.partition.graph_input import EDGE_TABLES, NODE_TABLES, EdgeInput, GraphInput
from glt.partition.methods.partitioner import IdsOf, PartitionerBase, PerEdgeType, PerNodeType
from glt.partition.sharded.exchange import (
    Exchange,
    GraphSlice,
    exchange_of,
    gather_argument,
    sliced_hotness,
    structure,
)
from glt.partition.sharded.files import RankWriter, shared_staging


def make_assigner(
    exchange: Exchange,
    partitioner: type[PartitionerBase],
    output_dir: str | os.PathLike[str],
    num_parts: int,
    num_nodes: Any,
    edge_index: Any,
    arguments: dict[str, Any],
) -> tuple[PartitionerBase, dict[str, Any]]:
    """Returns the partitioner of a graph without edges and tables, which assigns as that of the whole graph does, and
    its own arguments as the manifest will read them. Takes slices out of ``arguments``.
    """
    if not (isinstance(partitioner, type) and issubclass(partitioner, PartitionerBase)):
        raise TypeError(f"partitioner = {partitioner!r}: expected a subclass of PartitionerBase")
    if partitioner.needs_graph:
        raise ValueError(
            f"partitioner = {partitioner.__name__}: its assignment needs the whole graph, which no rank has; assign "
            f"nodes where all edges can be read, owners = {partitioner.__name__}(...).books()[0].owner, and pass "
            "AssignedPartitioner with owners, a slice of them on each rank; or use RandomPartitioner or "
            "FrequencyPartitioner (a partitioner of your own that looks at ids and hotness only says needs_graph = "
            "False)"
        )
    if arguments.get("overwrite"):
        raise ValueError(
            "overwrite = True: partition_distributed writes new directories only, on each host its part; delete the "
            "old one there, or choose another output_dir"
        )
    for name in sorted(partitioner.node_arguments | {"balance_ntypes"}):
        exchange.agree({name: structure(arguments.get(name))})
        if name in arguments:
            arguments[name] = gather_argument(exchange, name, arguments[name], num_nodes)
    no_edges: Any = np.empty((2, 0), np.int64)
    if isinstance(edge_index, Mapping):
        no_edges = dict.fromkeys(edge_index, no_edges)
    whole = GraphInput.of(num_nodes, no_edges)
    num_parts = integer("num_parts", num_parts, 1, 2**16, "the number of partitions")
    given: dict[str, object] = {"num_parts": num_parts, "num_nodes": [nodes.num_nodes for nodes in whole.nodes]}
    types = {"num_nodes.keys()": whole.schema.node_types, "edge_index.keys()": whole.schema.edge_types}
    exchange.agree(given | types)
    name = partitioner.hotness_argument
    hotness = sliced_hotness(exchange, name, arguments.get(name), whole, num_parts)
    if hotness is not None:
        arguments[name] = hotness
    for name, parameter in [*inspect.signature(partitioner).parameters.items()][4:]:  # after edge_index
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        is_needed = parameter.default is parameter.empty and not is_variadic
        if name not in arguments and (is_needed or name == "probs"):
            raise TypeError(f"{name} is missing: {partitioner.__name__} needs it, a slice of it on each rank")
    assigner = partitioner(output_dir, num_parts, num_nodes, no_edges, **arguments)
    given = {name: getattr(assigner, name) for name in ("edge_assign_strategy", "relabel")}
    given |= {"cache_ratio": assigner.caches.ratio, "cache_memory_budget": assigner.caches.budget_bytes}
    strategy_arguments = assigner.strategy_arguments()
    exchange.agree(given | strategy_arguments)
    return assigner, json.loads(json.dumps(strategy_arguments))


def disk_bytes(assigner: PartitionerBase, slices: GraphSlice, ranks: Sequence[int]) -> int:
    """Returns the space that the partitions of some ranks need, scratch files included, if all own equally much."""
    num_edges = slices.num_edges.sum(axis=0).tolist()
    indexes = [np.broadcast_to(np.zeros((), np.int64), (2, count)) for count in num_edges]  # which take no memory
    pairs = zip(slices.graph.edges, indexes, strict=True)
    graph = replace(slices.graph, edges=tuple(replace(edges, index=index) for edges, index in pairs))
    num_parts, world_size = assigner.num_parts, len(slices.num_edges)
    share = sum(len(range(rank, num_parts, world_size)) for rank in ranks) / num_parts
    collected = max([0, *(_collected(each, graph) for each in graph.edges)])
    times = sum(8 * nodes.num_nodes for nodes in graph.nodes if nodes.time is not None)
    of_parts = assigner.forecast_of(graph).disk_bytes + collected
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


@short_traceback
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

    Example:
        >>> from glt.testing.cluster import free_port
        >>> address = f"tcp://localhost:{free_port()}"  # torchrun gives its own
        >>> torch.distributed.init_process_group("gloo", address, rank=0, world_size=1)
        >>> graph = glt.testing.ring_graph()  # with more ranks, a slice of it on each
        >>> glt.partition.partition_distributed(glt.partition.RandomPartitioner, "shared", 2, 40, graph.edge_index)
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='out', 10 files, 2.7 KB)
        >>> torch.distributed.destroy_process_group()
    """
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or not timeout_s > 0:
        raise ValueError(f"timeout_s = {timeout_s!r}: expected seconds above 0")
    with exchange_of(group, timeout_s, round_bytes) as exchange:
        exchange.stage = "the comparison of arguments"
        integer("round_bytes", round_bytes, 1, 2**40, "memory for rows that arrive at a time")
        store_dtype = arguments.pop("store_dtype", None)
        given = {"partitioner": getattr(partitioner, "__name__", partitioner), "round_bytes": round_bytes}
        exchange.agree(given | {"store_dtype": structure(store_dtype)})
        tables = {name: arguments.pop(name, None) for name in NODE_TABLES + EDGE_TABLES if not name.endswith("_feat")}
        tables |= {"node_feat": node_feat, "edge_feat": edge_feat}
        assigner, strategy_arguments = make_assigner(
            exchange, partitioner, output_dir, num_parts, num_nodes, edge_index, arguments
        )
        assigner.require_relabel(return_mapping)
        exchange.stage = "the comparison of slices"
        slices = GraphSlice.of(exchange, assigner.graph.edge_dir, num_nodes, edge_index, tables, store_dtype)
        assigner.caches.require_use(slices.graph.nodes)
        with shared_staging(assigner.output_dir, exchange) as (root, leaders):
            exchange.stage = "the forecast"
            here = [rank for rank, leader in enumerate(leaders) if leader == exchange.rank]
            if here:  # this rank leads
                require_space(assigner.output_dir, disk_bytes(assigner, slices, here))
            exchange.stage = "the assignment of nodes"
            books = assigner.books()
            digests = [hashlib.blake2b(book.owner.data, digest_size=16).hexdigest() for book in books]
            exchange.agree({"what assign_nodes returned": digests})
            parts = exchange.parts(assigner.num_parts)
            is_shown = None if exchange.rank == 0 else False
            with progress_bar("partition, rank 0", None, is_shown) as advance:
                writer = RankWriter(exchange, slices, leaders, root, parts, advance, **assigner.writer_options)
                manifest = assigner.write(writer, slices.graph, books, strategy_arguments)
            if here:
                manifest.write(root)  # last: a directory without it does not load
        if exchange.rank == 0:
            logger.info("%s, in %s", manifest.summary(), assigner.output_dir)
    return (manifest, *assigner.original_ids()) if return_mapping else manifest
