"""Reads tasks on graphs of several types, and on links, from plain ``.npz`` files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glt.data.hetero_task import HeteroNodeTask, with_reverses
from glt.data.link_task import LinkTask
from glt.data.npz_file import NpzFile
from glt.data.schema import HOMOGENEOUS, EdgeType, Schema


def read_hetero_npz(path: str | Path, split: str = "default", *, reverse: bool = True) -> HeteroNodeTask:
    """Reads a heterogeneous graph whose arrays are named ``TYPE/x``, ``TYPE/y`` and ``SRC__REL__DST/edge_index``.

    The type with ``y`` is the one to classify; ``meta`` says how many nodes each type has. Sparse features come back
    dense, as in :func:`glt.data.readers.read_npz`.

    Args:
        path: The file.
        split: ``'default'`` reads ``TYPE/{train,val,test}_idx``; another name, such as ``'split20'``, reads
            ``TYPE/split20_{train,val,test}_idx``.
        reverse: Add to every relation its reverse, named ``rev_...``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an array is missing or does not fit the others; names the file and the array.
    """
    with NpzFile(path, "read_hetero_npz") as file:
        types = file.meta().get("node_types", {})
        num_nodes = {name: int(about["num_nodes"]) for name, about in types.items()}
        targets = [name for name in num_nodes if f"{name}/y" in file]
        if len(targets) != 1:
            raise ValueError(f"read_hetero_npz: {file.path} has y for {targets}, expected it for one node type")
        target = targets[0]
        edge_index: dict[EdgeType, Tensor] = {}
        for name in file.names:
            if name.endswith("/edge_index"):
                source, relation, destination = _edge_type(file, name)
                edge_index[source, relation, destination] = _ids(file, name)
        x = {
            name: torch.from_numpy(file.features(f"{name}/x"))
            for name in num_nodes
            if f"{name}/x" in file or f"{name}/x_indptr" in file
        }
        prefix = f"{target}/" if split == "default" else f"{target}/{split}_"
        parts = {name: _ids(file, f"{prefix}{name}_idx") for name in ("train", "val", "test")}
        y = _ids(file, f"{target}/y")
    try:
        return HeteroNodeTask(
            name=file.path.stem,
            num_nodes=num_nodes,
            edge_index=with_reverses(edge_index) if reverse else edge_index,
            x=x,
            target=target,
            y=y,
            train_idx=parts["train"],
            val_idx=parts["val"],
            test_idx=parts["test"],
            num_classes=int(y.max()) + 1 if len(y) else 0,
        )
    except ValueError as error:
        raise ValueError(f"read_hetero_npz: {file.path}: {error}") from error


def read_links_npz(
    path: str | Path, *, relations: Sequence[str] | None = None, node_type: str = "node", typed: bool = True
) -> LinkTask:
    """Reads a link prediction task: ``edge_index [2, E]`` and the edge ids ``train_idx``, ``val_idx``, ``test_idx``.

    Where the file has ``edge_type [E]``, edges are grouped by it into the edge types of one node type, keeping their
    order; where it has ``edge_time [E]``, the task has times. Reverse relations come with :meth:`LinkTask.to_pyg`.

    Args:
        path: The file.
        relations: Name of each value of ``edge_type``. Default: ``'relation_0'``, ``'relation_1'``, ...
        node_type: Name of the node type.
        typed: False reads all edges as of one type, into a homogeneous task.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an array is missing or does not fit the others, or names are too few; names the file.
    """
    with NpzFile(path, "read_links_npz") as file:
        num_nodes = int(file.meta().get("num_nodes", 0))
        edges = _ids(file, "edge_index")
        splits = {name: _ids(file, f"{name}_idx") for name in ("train", "val", "test")}
        time = _ids(file, "edge_time") if "edge_time" in file else None
        kind = _ids(file, "edge_type") if typed and "edge_type" in file else None
    if kind is None:
        schema, groups = HOMOGENEOUS, [torch.arange(edges.size(1))]
    else:
        num_relations = int(kind.max()) + 1 if len(kind) else 0
        names = [f"relation_{i}" for i in range(num_relations)] if relations is None else list(relations)
        if len(kind) != edges.size(1) or len(names) < num_relations or (len(kind) and int(kind.min()) < 0):
            raise ValueError(
                f"read_links_npz: {file.path}: edge_type has {len(kind)} elements up to {num_relations - 1}, expected "
                f"one in [0, {len(names)}) for each of {edges.size(1)} edges"
            )
        schema = Schema((node_type,), tuple((node_type, name, node_type) for name in names))
        groups = [(kind == i).nonzero().view(-1) for i in range(len(names))]

    # Edge ids of the file become positions within their group.
    position = torch.empty(edges.size(1), dtype=torch.int64)
    group_of = torch.empty(edges.size(1), dtype=torch.int64)
    for i, group in enumerate(groups):
        position[group], group_of[group] = torch.arange(len(group)), i

    def part(name: str) -> dict[EdgeType, Tensor]:
        index = splits[name]
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < edges.size(1):
            raise ValueError(f"read_links_npz: {file.path}: {name}_idx holds ids outside [0, {edges.size(1)})")
        return schema.by_edge_type([position[index[group_of[index] == i]] for i in range(len(groups))])

    try:
        return LinkTask(
            name=file.path.stem,
            schema=schema,
            num_nodes=dict.fromkeys(schema.node_types, num_nodes),
            edge_index=schema.by_edge_type([edges[:, group] for group in groups]),
            train_idx=part("train"),
            val_idx=part("val"),
            test_idx=part("test"),
            edge_time={} if time is None else schema.by_edge_type([time[group] for group in groups]),
        )
    except (ValueError, IndexError) as error:
        raise ValueError(f"read_links_npz: {file.path}: {error}") from error


def _ids(file: NpzFile, key: str) -> Tensor:
    return torch.from_numpy(file.array(key).astype(np.int64))


def _edge_type(file: NpzFile, name: str) -> list[str]:
    parts = name.removesuffix("/edge_index").split("__")
    if len(parts) != 3:
        raise ValueError(f"{file.reader}: {file.path}: array {name!r} is not named SRC__REL__DST/edge_index")
    return parts
