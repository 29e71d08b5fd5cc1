"""Reads node classification tasks from where people keep them: plain ``.npz`` files, PyG's ``Data``, OGB."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import NpzFile
from glt.data.schema import HOMOGENEOUS, EdgeType, Schema
from glt.data.tasks import HeteroNodeTask, LinkTask, NodeTask, with_reverses

if TYPE_CHECKING:
    from torch_geometric.data import Data


def read_npz(path: str | Path, split: Literal["default", "split20"] = "default") -> NodeTask:
    """Reads a homogeneous graph from one ``.npz`` file of plain arrays; nothing in it is unpickled.

    The file holds ``edge_index [2, E]`` (an undirected graph stores both directions), ``y [N]``, ``train_idx``,
    ``val_idx``, ``test_idx``, and the features either dense as ``x [N, F]`` or as a CSR matrix in ``x_indptr``,
    ``x_indices``, ``x_data`` and ``x_shape``. Sparse features come back dense: ``N * F * 4`` bytes.

    Args:
        path: The file.
        split: ``'split20'`` reads ``split20_{train,val,test}_idx`` (20 training nodes per class) in place of the
            default three.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an array is missing or does not fit the others; names the file and the array.
    """
    if split not in ("default", "split20"):
        raise ValueError(f"read_npz: split = {split!r}, expected 'default' or 'split20'")
    prefix = "" if split == "default" else f"{split}_"
    with NpzFile(path, "read_npz") as file:
        y, edge_index, x = _ids(file, "y"), _ids(file, "edge_index"), torch.from_numpy(file.features("x"))
        sets = _sets(file, prefix)
    try:
        return NodeTask(file.path.stem, len(y), edge_index, x, y, **sets, num_classes=_num_classes(y))
    except ValueError as error:
        raise ValueError(f"read_npz: {file.path}: {error}") from error


def read_pyg(data: Data, name: str = "data") -> NodeTask:
    """Takes a task from a PyG ``Data`` with ``edge_index``, ``x``, ``y``, ``train_mask``, ``val_mask``, ``test_mask``.

    Raises:
        ValueError: If one of them is missing, a mask is not one bool per node, or ``y`` is not one class per node.
    """
    for key in ("edge_index", "x", "y", "train_mask", "val_mask", "test_mask"):
        if data.get(key) is None:
            raise ValueError(f"read_pyg: data.{key} is missing; data has {sorted(data.keys())}")
    num_nodes = int(data.num_nodes)
    sets = {}
    for key in ("train_mask", "val_mask", "test_mask"):
        mask = data[key]
        if mask.dtype != torch.bool or tuple(mask.shape) != (num_nodes,):
            raise ValueError(
                f"read_pyg: data.{key} is {mask.dtype} of shape {list(mask.shape)}, expected bool of [{num_nodes}]; "
                f"where a data set comes with several splits, select one column first"
            )
        sets[key.replace("mask", "idx")] = mask.nonzero().view(-1)
    y = data.y.view(-1) if data.y.dim() == 2 and data.y.size(1) == 1 else data.y
    if y.dim() != 1 or y.is_floating_point():
        raise ValueError(f"read_pyg: data.y is {y.dtype} of shape {list(y.shape)}, expected one integer class per node")
    y = y.long()
    return NodeTask(name, num_nodes, data.edge_index, data.x.float(), y, **sets, num_classes=_num_classes(y))


def read_ogb(name: str, root: str | Path, undirected: bool = False) -> NodeTask:
    """Reads a homogeneous OGB node classification data set, such as ``ogbn-products`` or ``ogbn-arxiv``.

    ``ogb`` keeps what it has parsed as a pickle in ``root`` and unpickles it the next time: read only folders that you
    trust. glt itself pickles nothing.

    Args:
        name: OGB's name of the data set.
        root: Folder of OGB's data sets. What is not there yet is downloaded to it by ``ogb``, which asks on the
            terminal before it downloads more than 1 GB.
        undirected: Add the reverse of every edge and drop duplicates: the custom for ``ogbn-arxiv``, which is stored
            directed. ``ogbn-products`` comes with both directions already.

    Raises:
        ImportError: If ``ogb`` is not installed.
        OSError: If the data set is neither in ``root`` nor can be downloaded.
        ValueError: If OGB does not know the name, or it is not a single-label task on one homogeneous graph with
            node features.
    """
    try:
        nodeproppred = importlib.import_module("ogb.nodeproppred")
    except ImportError as error:
        raise ImportError(f"read_ogb: {name} needs the package ogb ({error}): pip install 'glt[ogb]'") from error
    graph, labels, split = _load_ogb(nodeproppred, name, Path(root))

    labels = np.asarray(labels) if not isinstance(labels, dict) else np.empty((0, 0))
    if "edge_index" not in graph or graph.get("node_feat") is None or labels.ndim != 2 or labels.shape[1] != 1:
        raise ValueError(
            f"read_ogb: {name} is not a single-label task on one homogeneous graph with node features "
            f"(it has {sorted(graph)}, labels of shape {list(labels.shape)}); try ogbn-products or ogbn-arxiv"
        )
    edge_index = torch.from_numpy(np.ascontiguousarray(graph["edge_index"], np.int64))
    if undirected:
        from torch_geometric.utils import to_undirected

        edge_index = to_undirected(edge_index, num_nodes=int(graph["num_nodes"]))
    # Nodes without a label have NaN where labels are floats (ogbn-papers100M).
    y = torch.from_numpy(np.nan_to_num(labels[:, 0], nan=-1).astype(np.int64))
    x = torch.from_numpy(np.ascontiguousarray(graph["node_feat"], np.float32))
    train, val, test = (torch.from_numpy(np.array(split[key], np.int64)) for key in ("train", "valid", "test"))
    return NodeTask(name, int(graph["num_nodes"]), edge_index, x, y, train, val, test, _num_classes(y))


def _num_classes(y: Tensor) -> int:
    return int(y.max()) + 1 if len(y) else 0


def _load_ogb(nodeproppred: ModuleType, name: str, root: Path) -> tuple[dict, object, dict]:
    try:
        with _ogb_cache_readable():
            dataset = nodeproppred.NodePropPredDataset(name=name, root=str(root))
            split = dataset.get_idx_split()
    except OSError as error:
        raise OSError(f"read_ogb: {name} is not in {root} and could not be downloaded: {error}") from error
    graph, labels = dataset[0]
    return graph, labels, split


@contextmanager
def _ogb_cache_readable() -> Iterator[None]:
    """Lets ogb read back its own cache, a pickle that torch.load refuses by default since torch 2.6."""
    switch = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before


# Reads tasks on graphs of several types, and on links, from plain ``.npz`` files.


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
        sets, y = _sets(file, prefix), _ids(file, f"{target}/y")
    try:
        return HeteroNodeTask(
            name=file.path.stem,
            num_nodes=num_nodes,
            edge_index=with_reverses(edge_index) if reverse else edge_index,
            x=x,
            target=target,
            y=y,
            **sets,
            num_classes=_num_classes(y),
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
        sets = _sets(file)
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
        index = sets[name]
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < edges.size(1):
            raise ValueError(f"read_links_npz: {file.path}: {name} holds ids outside [0, {edges.size(1)})")
        return schema.by_edge_type([position[index[group_of[index] == i]] for i in range(len(groups))])

    try:
        return LinkTask(
            name=file.path.stem,
            schema=schema,
            num_nodes=dict.fromkeys(schema.node_types, num_nodes),
            edge_index=schema.by_edge_type([edges[:, group] for group in groups]),
            **{name: part(name) for name in sets},
            edge_time={} if time is None else schema.by_edge_type([time[group] for group in groups]),
        )
    except (ValueError, IndexError) as error:
        raise ValueError(f"read_links_npz: {file.path}: {error}") from error


def _sets(file: NpzFile, prefix: str = "") -> dict[str, Any]:
    return {f"{name}_idx": _ids(file, f"{prefix}{name}_idx") for name in ("train", "val", "test")}


def _ids(file: NpzFile, key: str) -> Tensor:
    return torch.from_numpy(file.array(key).astype(np.int64))


def _edge_type(file: NpzFile, name: str) -> list[str]:
    parts = name.removesuffix("/edge_index").split("__")
    if len(parts) != 3:
        raise ValueError(f"{file.reader}: {file.path}: array {name!r} is not named SRC__REL__DST/edge_index")
    return parts
