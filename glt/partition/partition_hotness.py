"""What partitioners balance and place nodes by, out of the tables of a graph."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glt.data.arrays import load_npy

_LABELS = ("label", "y")


def balance_tables(graph: Mapping[str, Any], names: list[str] | None, by_type: bool) -> Any:
    """Returns ``balance_ntypes`` of a partitioner.

    Args:
        graph: Arguments of the partitioner.
        names: Of tables of nodes: ``label`` (or ``y``) for the labels, else attributes.
        by_type: Whether types are told apart.

    Raises:
        ValueError: If there is no such table; names those there are.
    """
    if not names:
        return by_type or None
    if not isinstance(graph["num_nodes"], Mapping):
        return _tables(graph, names, None)
    found = {node_type: _tables(graph, names, node_type) for node_type in graph["num_nodes"]}
    missing = [name for name in names if not any(_table(graph, name, t) is not None for t in found)]
    if missing:
        raise ValueError(_unknown("--balance", missing[0], graph))
    return {node_type: tables for node_type, tables in found.items() if tables}


def hotness_of(graph: Mapping[str, Any], given: argparse.Namespace) -> Any:
    """Returns the hotness that the flags ask for, or None: one table, or one for each partition; by type where there
    are types. Around seeds draws are by weight where edges have weights; times are not looked at, since what a batch
    reads depends on the times of its seeds, which are not known here.

    Raises:
        ImportError: If this glt cannot compute it.
        ValueError: If flags are missing or there are no such seeds.
    """
    if given.hotness is None:
        for flag in ("seeds", "num_neighbors", "batch_size"):
            if getattr(given, flag) is not None:
                raise ValueError(f"--{flag.replace('_', '-')} is for --hotness seeds: add that, or leave it out")
        return None
    if given.hotness == "degree":
        from glt.sampler import hotness_from_degrees

        return hotness_from_degrees(graph["edge_index"], graph["num_nodes"], given.edge_dir)
    if given.seeds is None or given.num_neighbors is None:
        raise ValueError("--hotness seeds needs --seeds and --num-neighbors")
    from glt.data import Dataset
    from glt.sampler import NeighborSampler

    node_type, ids = _seeds(graph, given.seeds)
    if len(ids) < given.num_parts:
        raise ValueError(
            f"--seeds {given.seeds} holds {len(ids)} seeds for --num-parts {given.num_parts}: expected at least one "
            "for each partition, which is read for its piece of them; name more seeds, or use --hotness degree"
        )
    weight = graph.get("edge_weight")
    dataset = Dataset.from_arrays(graph["edge_index"], graph["num_nodes"], edge_weight=weight, edge_dir=given.edge_dir)
    sampler = NeighborSampler(dataset, given.num_neighbors, weight_attr=None if weight is None else "weight")
    options = {} if given.batch_size is None else {"batch_size": given.batch_size}
    bounds = [idx * len(ids) // given.num_parts for idx in range(given.num_parts + 1)]
    pieces = [torch.from_numpy(ids[a:b]) for a, b in pairwise(bounds)]
    return [sampler.sample_prob(p if node_type is None else (node_type, p), **options) for p in pieces]


def _seeds(graph: Mapping[str, Any], given: str) -> tuple[str | None, np.ndarray]:
    node_type, name = None, given
    if isinstance(graph["num_nodes"], Mapping):
        node_type, equals, name = given.partition("=")
        if not equals or node_type not in graph["num_nodes"]:
            raise ValueError(f"--seeds {given}: expected TYPE=NAME, TYPE one of {', '.join(graph['num_nodes'])}")
    if name.endswith(".npy"):
        if not Path(name).is_file():
            raise ValueError(f"--seeds: {name} does not exist")
        seeds = load_npy(name, f"--seeds {given}")
    else:
        table = _table(graph, name, node_type)
        if table is None:
            raise ValueError(_unknown("--seeds", name, graph))
        seeds = np.asarray(table)
    if seeds.dtype == bool and seeds.ndim == 1:
        seeds = np.flatnonzero(seeds)
    if seeds.dtype.kind not in "iu" or seeds.ndim != 1:
        raise ValueError(f"--seeds {given} holds {seeds.dtype} {list(seeds.shape)}: expected a mask, or ids of nodes")
    return node_type, seeds.astype(np.int64, copy=False)


def _tables(graph: Mapping[str, Any], names: list[str], node_type: str | None) -> list[Any]:
    found = []
    for name in names:
        table = _table(graph, name, node_type)
        if table is None and node_type is None:
            raise ValueError(_unknown("--balance", name, graph))
        if table is not None:
            # OGB's have one column.
            found.append(table.reshape(-1) if table.ndim == 2 and table.shape[1] == 1 else table)
    return found


def _table(graph: Mapping[str, Any], name: str, node_type: str | None) -> Any:
    labels, attrs = graph.get("node_label"), graph.get("node_attrs", {})
    if node_type is not None:
        labels, attrs = (labels or {}).get(node_type), attrs.get(node_type, {})
    return labels if name in _LABELS else attrs.get(name)


def _unknown(flag: str, name: str, graph: Mapping[str, Any]) -> str:
    attrs = graph.get("node_attrs", {})
    if isinstance(graph["num_nodes"], Mapping):
        attrs = {each for named in attrs.values() for each in named}
    known = ["label"] * ("node_label" in graph) + sorted(attrs)
    return f"{flag} {name}: no nodes have that: expected one of {', '.join(known) or '(there are no tables of nodes)'}"
