"""Small graphs of several types, and what a sampler must make of any graph of PyG's, by the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from glt.data.schema import HOMOGENEOUS, Schema
from glt.sampler.config import SamplingConfig
from glt.testing.batches import expect
from glt.testing.reference import ReferenceEdges, ReferenceTypedBatch, reference_typed_batch

__all__ = ["check_typed_batch", "random_hetero_graph", "reference_output"]

# Source, relation, target, number of edges; two types between the same ends, one without edges.
_EDGE_TYPES = (
    ("user", "follows", "user", 240),
    ("user", "buys", "item", 300),
    ("item", "rev_buys", "user", 300),
    ("user", "rates", "item", 90),
    ("item", "of", "shop", 60),
    ("shop", "sells", "item", 0),
)
_NUM_NODES = {"user": 60, "item": 45, "shop": 8}


def random_hetero_graph(seed: int = 0) -> HeteroData:
    """A graph with everything that breaks samplers of several types.

    There are hubs, isolated nodes, self-loops, parallel edges, two edge types between the same node types, a type
    without edges, and types that lack the attributes which others have. Node features are ids: row i of ``x`` is i, and
    row e of ``edge_attr`` is e. ``user`` and ``item`` nodes have a ``time``, all edges but those of ``shop`` an
    ``edge_time`` and an ``edge_weight``, a quarter of which is 0. ``rev_buys`` holds the reverses of ``buys``.
    """
    rng = np.random.default_rng(seed)
    data = HeteroData()
    for node_type, num_nodes in _NUM_NODES.items():
        data[node_type].x = torch.arange(num_nodes, dtype=torch.float32).view(-1, 1).repeat(1, 3)
        data[node_type].y = torch.arange(num_nodes)
        if node_type != "shop":
            data[node_type].time = torch.from_numpy(rng.integers(0, 20, num_nodes))
    for source, relation, target, num_edges in _EDGE_TYPES:
        ends = np.stack([_NUM_NODES[end] * rng.random(num_edges) ** 2 * 0.9 for end in (source, target)])
        store = data[source, relation, target]
        store.edge_index = torch.from_numpy(ends.astype(np.int64))
        if relation == "rev_buys":
            store.edge_index = data["user", "buys", "item"].edge_index.flip([0])
        store.edge_attr = torch.arange(num_edges, dtype=torch.float32).view(-1, 1).repeat(1, 2)
        if source != "shop":
            weight = rng.random(num_edges) * (rng.random(num_edges) < 0.75)
            store.edge_weight = torch.from_numpy(weight)
            store.edge_time = torch.from_numpy(rng.integers(0, 20, num_edges))
    return data


def reference_output(
    data: Data | HeteroData,
    seeds: Sequence[tuple[int, Sequence[int]]],
    config: SamplingConfig,
    key: int,
    *,
    seed_time: Sequence[int] | None = None,
    time_attr: str | None = None,
    weight_attr: str | None = None,
    edge_dir: str = "in",
    exclusions: Any = None,
) -> ReferenceTypedBatch:
    """Samples one batch of ``data`` by the letter of the law; the options are those of a glt sampler.

    Args:
        data: The graph.
        seeds: Node types, by position, and ids.
        config: Checked options. Bidirectional and induced edges are not made here: the sampled ones are returned.
        key: The key of the batch, see :func:`glt.testing.reference_key`.
        seed_time: Time of each tree. Default: the seeds' own.
        time_attr, weight_attr, edge_dir: As in :class:`glt.sampler.NeighborSampler`.
        exclusions: As in :func:`glt.testing.reference_typed_batch`.
    """
    hetero = isinstance(data, HeteroData)
    schema = Schema(*data.metadata()) if hetero else HOMOGENEOUS
    node_stores = [data[t] for t in schema.node_types] if hetero else [data]
    edge_stores = [data[t] for t in schema.edge_types] if hetero else [data]
    level = config.time_level
    edges = []
    for store, (expanded, found) in zip(edge_stores, schema.ends(edge_dir), strict=True):
        center, neighbor = store["edge_index"].numpy()[:: -1 if edge_dir == "in" else 1]
        time = store.get(time_attr) if level == "edge" else None
        node_time = node_stores[found].get(time_attr) if level == "node" else None
        edges.append(
            ReferenceEdges(
                expanded,
                found,
                center,
                neighbor,
                node_time.numpy()[neighbor] if node_time is not None else None if time is None else time.numpy(),
                store.get(weight_attr).numpy() if config.weighted and store.get(weight_attr) is not None else None,
            )
        )
    if level == "node" and seed_time is None:
        seed_time = [int(node_stores[t][time_attr][i]) for t, ids in seeds for i in ids]
    return reference_typed_batch(
        len(schema.node_types),
        edges,
        seeds,
        config.num_neighbors,
        key=key,
        replace=config.replace,
        disjoint=config.disjoint,
        seed_time=seed_time,
        last=config.last,
        exclusions=exclusions,
    )


def check_typed_batch(
    batch: Data | HeteroData, data: Data | HeteroData, num_hops: int, *, bidirectional: bool = False, **times: Any
) -> None:
    """Checks what every batch of ``data`` promises, of one type or several, whatever the options.

    Args:
        batch: The batch of a loader along in-edges.
        data: The whole graph.
        num_hops: Length of the fan-outs.
        bidirectional: Whether the batch holds reverses too, with the ids of the edges that they reverse; edges of
            ``rev_`` types then follow the order of those types.
        **times: ``time_attr``: the attribute that the batch obeys; ``seed_time``: time of each seed, if not its own.

    Raises:
        AssertionError: Naming the first promise that is broken.
    """
    hetero = isinstance(data, HeteroData)
    node_stores: dict[Any, Any] = {t: batch[t] for t in data.node_types} if hetero else {None: batch}
    edge_stores: dict[Any, Any] = {t: batch[t] for t in data.edge_types} if hetero else {None: batch}
    if hetero:
        expect(list(batch.node_types) == list(data.node_types), "every node type is there")
        expect(list(batch.edge_types) == list(data.edge_types), "every edge type is there")
    directional = all("num_sampled_edges" in store for store in edge_stores.values())
    for node_type, store in node_stores.items():
        _check_rows(store, data[node_type] if hetero else data, "n_id", [k for k in store if "edge" not in k])
        expect(store.num_nodes == len(store.n_id), f"{node_type}: one n_id per node")
        if directional:
            _check_counts(store.num_sampled_nodes, num_hops + 1, len(store.n_id))
    for edge_type, store in edge_stores.items():
        source, target = (node_stores[t] for t in (edge_type[0], edge_type[2])) if hetero else (batch, batch)
        row, col = store.edge_index
        expect(store.edge_index.dtype == source.n_id.dtype, f"{edge_type}: edge_index has the dtype of n_id")
        inside = len(row) == 0 or bool((row < len(source.n_id)).all() and (col < len(target.n_id)).all())
        expect(inside, f"{edge_type}: local ids are below the number of nodes")
        sorted_by = row if bidirectional and hetero and edge_type[1].startswith("rev_") else col
        expect(bool((sorted_by[1:] >= sorted_by[:-1]).all()), f"{edge_type}: edges are sorted by column")
        if "e_id" in store:
            ends = torch.stack([source.n_id[row], target.n_id[col]])
            whole: Any = data[edge_type] if hetero else data
            expected = whole["edge_index"][:, store.e_id]
            right = (ends == expected).all(0) | (bidirectional & (ends == expected.flip([0])).all(0))
            expect(bool(right.all()), f"{edge_type}: n_id[edge_index] is e_id's edge")
            _check_rows(store, whole, "e_id", [k for k in store if "edge" in k and k != "edge_index"])
        if directional:
            _check_counts(store.num_sampled_edges, num_hops, len(row))
        if "batch" in source:
            expect(torch.equal(source.batch[row], target.batch[col]), f"{edge_type}: trees share no edge")
    if times:
        _check_times(node_stores, edge_stores, **times)


def _check_rows(store: Any, whole: Any, ids: str, names: Any) -> None:
    for name in names:
        value = whole[name] if name in whole else None
        if (
            isinstance(value, torch.Tensor)
            and value.dim()
            and len(value) == (whole.num_nodes if ids == "n_id" else whole.num_edges)
        ):
            expect(torch.equal(store[name], value[store[ids]]), f"{name} holds the source's rows")
            expect(store[name].dtype == value.dtype, f"{name} keeps its dtype")


def _check_counts(counts: Any, length: int, total: int) -> None:
    expect(type(counts) is list and all(type(c) is int for c in counts), f"counts are a list of int: {counts!r}")
    expect(len(counts) == length and sum(counts) == total, f"counts {counts}: expected {length} that sum to {total}")


def _check_times(node_stores: Any, edge_stores: Any, time_attr: str = "time", seed_time: Any = None) -> None:
    (seeds,) = (store for store in node_stores.values() if "batch_size" in store)
    if seed_time is None:
        seed_time = seeds[time_attr][: seeds.batch_size]
    for node_type, store in node_stores.items():
        if time_attr in store and "edge" not in time_attr:
            first = seeds.batch_size if store is seeds else 0
            late = store[time_attr][first:] > seed_time[store.batch[first:]]
            expect(not bool(late.any()), f"{node_type}: no neighbour is later than its seed")
    for edge_type, store in edge_stores.items():
        if time_attr in store and "edge" in time_attr:
            tree = (node_stores[edge_type[2]] if edge_type else store).batch[store.edge_index[1]]
            expect(not bool((store[time_attr] > seed_time[tree]).any()), f"{edge_type}: no edge is later than its seed")
