"""The partitioner that assigns the nodes of a graph in slices."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from glt.partition.arguments import integer
from glt.partition.distributed.agreement import agree
from glt.partition.distributed.exchange import Exchange
from glt.partition.distributed.hotness_slices import sliced_hotness
from glt.partition.distributed.slices import gather_argument
from glt.partition.graph_input import GraphInput
from glt.partition.partitioner import PartitionerBase


def make_assigner(
    exchange: Exchange,
    partitioner: type[PartitionerBase],
    output_dir: str | os.PathLike[str],
    num_parts: int,
    num_nodes: Any,
    edge_index: Any,
    arguments: dict[str, Any],
    round_bytes: int,
) -> tuple[PartitionerBase, dict[str, Any]]:
    """Returns the partitioner of a graph without edges and tables, which assigns as that of the whole graph does, and
    its own arguments as the manifest will read them.

    Arguments as of :func:`partition_distributed`; ``arguments`` without tables, changed here.
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
    for name in sorted(partitioner.node_arguments | {"balance_ntypes"}):
        gathered = gather_argument(exchange, name, arguments.get(name), round_bytes)
        if name in arguments:
            arguments[name] = gathered
    no_edges: Any = np.empty((2, 0), np.int64)
    if isinstance(edge_index, Mapping):
        no_edges = dict.fromkeys(edge_index, no_edges)
    outline = GraphInput.of("out", num_nodes, no_edges, *[None] * 6)
    counts = [nodes.num_nodes for nodes in outline.nodes]
    num_parts = integer("num_parts", num_parts, 1, 2**16, "the number of partitions")
    whole: dict[str, object] = {
        "num_parts": num_parts,
        "num_nodes": counts,
        "num_nodes.keys()": outline.schema.node_types,
    }
    agree(exchange, whole | {"edge_index.keys()": outline.schema.edge_types})
    name = partitioner.hotness_argument
    hotness = sliced_hotness(exchange, name, arguments.get(name), outline.schema, counts, num_parts, round_bytes)
    if hotness is not None:
        arguments[name] = hotness
    assigner = partitioner(output_dir, num_parts, num_nodes, no_edges, **arguments)
    given: dict[str, object] = {
        "edge_assign_strategy": assigner.edge_assign_strategy,
        "relabel": assigner.relabel,
        "cache_ratio": assigner.caches.ratio,
        "cache_memory_budget": assigner.caches.budget_bytes,
    }
    agree(exchange, given)
    strategy_arguments = assigner.strategy_arguments()
    agree(exchange, strategy_arguments)
    return assigner, json.loads(json.dumps(strategy_arguments))
