"""Hotness of nodes from batches that were made, or from degrees alone.

Hotness says how often a node is read: one number per node, comparable within a node type. Partitioners place nodes and
fill caches by it. There are three sources. :meth:`glt.sampler.NeighborSampler.sample_prob` computes it from the graph,
the seeds and the options of a sampler. :func:`hotness_from_counts` counts in batches, whatever made them.
:func:`hotness_from_degrees` knows neither seeds nor fan-outs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import as_ids
from glt.data.schema import NodeType, Schema

_CHUNK = 1 << 24  # edges counted at a time


def hotness_from_counts(
    batches: Iterable[Any], num_nodes: int | Mapping[NodeType, int]
) -> Tensor | dict[NodeType, Tensor]:
    """Counts nodes in batches: the share of the batches that have each node.

    Exact in the limit of many batches, whatever the sampling options (times, weights, negatives). Nodes that are in few
    batches are known badly, and a cache chosen by the same counts looks better than it will be; 100 batches and more
    keep that small.

    Args:
        batches: A loader, or any iterable of ``Data`` or ``HeteroData`` with ``n_id``; iterated once.
        num_nodes: Number of nodes of the whole graph, or numbers by node type for ``HeteroData``.

    Returns:
        ``[num_nodes]`` float32, or a dict of such by node type.

    Raises:
        TypeError: If ``num_nodes`` is not as the batches need it, or a batch has no ``n_id``.
        IndexError: If a batch has a node outside of ``num_nodes``.
        KeyError: If a batch has a node type that ``num_nodes`` does not.
        ValueError: If there are no batches.
    """
    is_hetero = isinstance(num_nodes, Mapping)
    counts = {
        t: torch.zeros(n) for t, n in (num_nodes.items() if isinstance(num_nodes, Mapping) else [("", num_nodes)])
    }
    num_batches = 0
    for batch in batches:
        num_batches += 1
        if hasattr(batch, "node_types") != is_hetero:
            raise TypeError(
                f"num_nodes = {num_nodes!r} and a batch of type {type(batch).__name__}: expected a dict by node type "
                "for HeteroData, else an integer"
            )
        for node_type in batch.node_types if is_hetero else [""]:
            store = batch[node_type] if is_hetero else batch
            if "n_id" not in store:
                raise TypeError(f"batch {num_batches - 1} has no n_id: expected the batches of a neighbour loader")
            if node_type not in counts:
                raise KeyError(f"batch {num_batches - 1} has node type {node_type!r}: num_nodes has {list(counts)}")
            ids, known = store["n_id"].cpu().long().unique(), counts[node_type]
            if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < len(known):
                raise IndexError(
                    f"batch {num_batches - 1} has node {int(ids[-1])}{f' of type {node_type!r}' * is_hetero}: "
                    f"num_nodes = {len(known)}"
                )
            known[ids] += 1
    if num_batches == 0:
        raise ValueError("batches is empty: expected at least one batch to count in")
    found = {t: count / num_batches for t, count in counts.items()}
    return found if is_hetero else found[""]


def hotness_from_degrees(
    edge_index: Any, num_nodes: int | Mapping[NodeType, int], edge_dir: str = "in"
) -> Tensor | dict[NodeType, Tensor]:
    """Counts the edges by which sampling may reach each node, as a share of all edges.

    The simplest hotness: for when neither seeds nor fan-outs are known. It is the same for all partitions.

    Args:
        edge_index: ``[2, num_edges]`` integers, or a dict of such by edge type.
        num_nodes: Number of nodes, or a dict by node type.
        edge_dir: ``'in'``: edges are followed against their direction (``by_dst``), so that neighbours are sources;
            ``'out'``: along it (``by_src``).

    Returns:
        ``[num_nodes]`` float32, or a dict of such by node type.

    Raises:
        IndexError: If a node id is outside the graph.
        KeyError, TypeError, ValueError: If types or shapes do not fit.
    """
    if isinstance(num_nodes, Mapping) != isinstance(edge_index, Mapping):
        raise TypeError("num_nodes and edge_index: expected dicts by type of both, or of neither")
    schema = Schema(("",), (("", "", ""),), False)
    counts: list[Any] = [num_nodes]
    edges_of = [edge_index]
    if isinstance(num_nodes, Mapping) and isinstance(edge_index, Mapping):
        schema = Schema(tuple(num_nodes), tuple(edge_index))
        counts, edges_of = list(num_nodes.values()), list(edge_index.values())
    degrees = [np.zeros(count, np.int64) for count in counts]
    for (_, neighbor), edge_type, edges in zip(schema.ends(edge_dir), schema.edge_types, edges_of, strict=True):
        name = f"edge_index[{edge_type}]" if schema.is_hetero else "edge_index"
        if not hasattr(edges, "shape") or len(edges.shape) != 2 or edges.shape[0] != 2:
            raise ValueError(f"{name} has shape {list(getattr(edges, 'shape', []))}: expected [2, num_edges]")
        row = edges[0 if edge_dir == "in" else 1]
        for begin in range(0, row.shape[0], _CHUNK):  # edges may be mapped, and more than memory holds
            ids = as_ids(row[begin : begin + _CHUNK], name).numpy()
            if not 0 <= ids.min() <= ids.max() < degrees[neighbor].size:
                bad = ids.max() if ids.min() >= 0 else ids.min()
                raise IndexError(f"{name} has node {bad}: expected ids in [0, {degrees[neighbor].size})")
            degrees[neighbor] += np.bincount(ids, minlength=degrees[neighbor].size)
    num_edges = max(1, sum(int(degree.sum()) for degree in degrees))
    found = [torch.from_numpy((degree / num_edges).astype(np.float32)) for degree in degrees]
    return schema.by_node_type(found) if schema.is_hetero else found[0]
