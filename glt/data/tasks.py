"""Learning tasks on graphs, and their readers: plain ``.npz`` files, PyG's ``Data``, OGB."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import NpzFile
from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


@dataclass(frozen=True)
class NodeTask:
    """A homogeneous graph whose nodes are to be classified.

    Attributes:
        name: What to call it in reports.
        num_nodes: Number of nodes ``N``.
        edge_index: Source and destination of each edge, ``[2, E]`` int64. Undirected graphs store both directions.
        x: Features, ``[N, F]`` float32.
        y: Class of each node, ``[N]`` int64. Negative where unknown; such nodes are in none of the three sets.
        train_idx, val_idx, test_idx: Node ids to learn from, to choose by and to report, ``[.]`` int64.
        num_classes: Number of classes.

    Raises:
        ValueError: If sizes disagree, or an id or a class is out of range; names the first offender.
    """

    name: str
    num_nodes: int
    edge_index: Tensor
    x: Tensor
    y: Tensor
    train_idx: Tensor
    val_idx: Tensor
    test_idx: Tensor
    num_classes: int

    def __post_init__(self) -> None:
        _check_shape(self.name, "edge_index", self.edge_index)
        check_range(self.name, "edge_index", self.edge_index.reshape(-1), self.num_nodes)
        for part in ("x", "y"):
            rows = len(getattr(self, part))
            if rows != self.num_nodes:
                raise ValueError(f"{self.name}: {part} has {rows} rows, expected one per node ({self.num_nodes})")
        for part in ("train_idx", "val_idx", "test_idx"):
            index = getattr(self, part)
            check_range(self.name, part, index, self.num_nodes)
            check_range(self.name, f"y[{part}]", self.y[index], self.num_classes)

    @property
    def num_edges(self) -> int:
        """Number of stored edges: an undirected one counts twice."""
        return self.edge_index.size(1)

    @property
    def num_features(self) -> int:
        return self.x.size(1)

    def to_pyg(self) -> Data:
        """The same task as PyG's ``Data``, the three sets as ``train_mask``, ``val_mask`` and ``test_mask``."""
        from torch_geometric.data import Data

        return Data(x=self.x, edge_index=self.edge_index, y=self.y, **_masks(self, self.num_nodes))


def _masks(task: NodeTask | HeteroNodeTask, num_nodes: int) -> dict[str, Tensor]:
    masks = {}
    for split in ("train", "val", "test"):
        masks[f"{split}_mask"] = mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[getattr(task, f"{split}_idx")] = True
    return masks


def _check_shape(task: str, name: str, edges: Tensor) -> None:
    if edges.dim() != 2 or edges.size(0) != 2:
        raise ValueError(f"{task}: {name} has shape {list(edges.shape)}, expected [2, num_edges]")


def check_range(task: str, name: str, values: Tensor, end: int) -> None:
    if values.numel() == 0 or (int(values.min()) >= 0 and int(values.max()) < end):
        return
    at = int(((values < 0) | (values >= end)).nonzero()[0])
    raise ValueError(f"{task}: {name} holds {int(values[at])} at position {at}, expected ids in [0, {end})")


@dataclass(frozen=True)
class HeteroNodeTask:
    """A heterogeneous graph of which the nodes of one type are to be classified; as :class:`NodeTask`, but:

    Attributes:
        num_nodes: Number of nodes of each type; its order is that of the types.
        edge_index: Source and destination of the edges of each type, ``[2, E]`` int64.
        x: Features by node type, ``[N, F]`` float32; some types may have none.
        target: The node type to classify, whose are ``y`` and the three sets.
        node_time: Times by node type, ``[N]`` int64; empty where there are none.
    """

    name: str
    num_nodes: dict[NodeType, int]
    edge_index: dict[EdgeType, Tensor]
    x: dict[NodeType, Tensor]
    target: NodeType
    y: Tensor
    train_idx: Tensor
    val_idx: Tensor
    test_idx: Tensor
    num_classes: int
    node_time: dict[NodeType, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        schema = self.schema
        schema.node_index(self.target)
        for (source, relation, target), edges in self.edge_index.items():
            name = f"edge_index[{source}, {relation}, {target}]"
            _check_shape(self.name, name, edges)
            check_range(self.name, f"{name}[0]", edges[0], self.num_nodes[source])
            check_range(self.name, f"{name}[1]", edges[1], self.num_nodes[target])
        tables = {"y": {self.target: self.y}, "x": self.x, "node_time": self.node_time}
        for name, by_type in tables.items():
            for node_type, rows in by_type.items():
                expected = self.num_nodes[schema.node_types[schema.node_index(node_type)]]
                if len(rows) != expected:
                    raise ValueError(
                        f"{self.name}: {name} of {node_type} has {len(rows)} rows, expected one per node ({expected})"
                    )
        for name in ("train_idx", "val_idx", "test_idx"):
            index = getattr(self, name)
            check_range(self.name, name, index, self.num_nodes[self.target])
            check_range(self.name, f"y[{name}]", self.y[index], self.num_classes)

    @property
    def schema(self) -> Schema:
        return Schema(tuple(self.num_nodes), tuple(self.edge_index))

    @property
    def num_edges(self) -> int:
        return sum(edges.size(1) for edges in self.edge_index.values())

    def to_pyg(self) -> HeteroData:
        """The same task as PyG's ``HeteroData``: the three sets as masks, times as ``time``."""
        from torch_geometric.data import HeteroData

        data = HeteroData()
        for node_type, num_nodes in self.num_nodes.items():
            data[node_type].num_nodes = num_nodes
            if node_type in self.x:
                data[node_type].x = self.x[node_type]
            if node_type in self.node_time:
                data[node_type].time = self.node_time[node_type]
        data[self.target].y = self.y
        for name, mask in _masks(self, self.num_nodes[self.target]).items():
            data[self.target][name] = mask
        for edge_type, edges in self.edge_index.items():
            data[edge_type].edge_index = edges
        return data


def with_reverses(edge_index: Mapping[EdgeType, Tensor]) -> dict[EdgeType, Tensor]:
    """Adds to every relation its reverse, ``(target, rev_relation, source)``, with equal edge ids, so that messages
    reach all types; raises ValueError if one is there already."""
    both = dict(edge_index)
    for edge_type, edges in edge_index.items():
        reverse = reverse_of(edge_type)
        if reverse in both:
            raise ValueError(f"edge type {reverse} is there already: expected relations of one direction")
        both[reverse] = edges.flip(0)
    return both


def reverse_of(edge_type: EdgeType) -> EdgeType:
    source, relation, target = edge_type
    return target, f"rev_{relation}", source


@dataclass(frozen=True)
class LinkTask:
    """A directed graph whose edges are split into those to learn from, to choose by and to report.

    Attributes:
        name, num_nodes: As of :class:`HeteroNodeTask`.
        schema: The types, one of each in a homogeneous graph.
        edge_index: Source and destination of the edges of each type, all three sets together, ``[2, E]`` int64.
        train_idx, val_idx, test_idx: Positions in ``edge_index`` by edge type, ``[.]`` int64.
        edge_time: Times by edge type, ``[E]`` int64; empty where there are none.

    Raises:
        ValueError: If sizes disagree or an id is out of range; names the first offender.
    """

    name: str
    schema: Schema
    num_nodes: dict[NodeType, int]
    edge_index: dict[EdgeType, Tensor]
    train_idx: dict[EdgeType, Tensor]
    val_idx: dict[EdgeType, Tensor]
    test_idx: dict[EdgeType, Tensor]
    edge_time: dict[EdgeType, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for edge_type in self.schema.edge_types:
            edges, label = self.edge_index[edge_type], "__".join(edge_type)
            _check_shape(self.name, f"edge_index of {label}", edges)
            for end in (0, 1):
                count = self.num_nodes[edge_type[2 * end]]
                check_range(self.name, f"edge_index[{end}] of {label}", edges[end], count)
            if edge_type in self.edge_time and len(self.edge_time[edge_type]) != edges.size(1):
                raise ValueError(f"{self.name}: edge_time of {label} has not one time per edge ({edges.size(1)})")
            for name in ("train_idx", "val_idx", "test_idx"):
                check_range(self.name, f"{name} of {label}", getattr(self, name)[edge_type], edges.size(1))

    def links(self, split: Literal["train", "val", "test"]) -> dict[EdgeType, Tensor]:
        """The edges of a set, ``[2, .]`` by edge type: what to predict."""
        index: dict[EdgeType, Tensor] = getattr(self, f"{split}_idx")
        return {edge_type: edges[:, index[edge_type]] for edge_type, edges in self.edge_index.items()}

    @property
    def num_edges(self) -> int:
        return sum(edges.size(1) for edges in self.edge_index.values())

    def to_pyg(self, edges: Literal["train", "all"] = "train") -> Data | HeteroData:
        """The graph to pass messages on, with both directions: ``rev_...`` relations in a ``HeteroData``, in a ``Data``
        the reversed edges behind the others. Times are the edges' ``time``. ``edges='train'`` leaves out what is to be
        predicted; ``'all'`` is for sampling by time, which hides it: ValueError where there are no times."""
        from torch_geometric.data import Data, HeteroData

        if edges not in ("train", "all"):
            raise ValueError(f"{self.name}: edges = {edges!r}, expected 'train' or 'all'")
        if edges == "all" and not self.edge_time:
            raise ValueError(f"{self.name}: edges = 'all' would show what is to be predicted: there are no edge times")
        data = HeteroData() if self.schema.is_hetero else Data(num_nodes=next(iter(self.num_nodes.values())))
        if self.schema.is_hetero:
            for node_type, num_nodes in self.num_nodes.items():
                data[node_type].num_nodes = num_nodes
        for edge_type in self.schema.edge_types:
            kept = slice(None) if edges == "all" else self.train_idx[edge_type]
            edge_index, time = self.edge_index[edge_type][:, kept], self.edge_time.get(edge_type)
            time = None if time is None else time[kept]
            if self.schema.is_hetero:
                data[edge_type].edge_index, data[reverse_of(edge_type)].edge_index = edge_index, edge_index.flip(0)
                if time is not None:
                    data[edge_type].time = data[reverse_of(edge_type)].time = time
            else:
                data.edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
                if time is not None:
                    data.edge_time = torch.cat([time, time])
        return data


def read_npz(path: str | Path, split: Literal["default", "split20"] = "default") -> NodeTask:
    """Reads a homogeneous graph from one ``.npz`` file of plain arrays; nothing in it is unpickled.

    The file holds ``edge_index [2, E]`` (an undirected graph stores both directions), ``y [N]``, ``train_idx``,
    ``val_idx``, ``test_idx``, and the features either dense as ``x [N, F]`` or as a CSR matrix in ``x_indptr``,
    ``x_indices``, ``x_data`` and ``x_shape``. Sparse features come back dense: ``N * F * 4`` bytes. ``split='split20'``
    reads ``split20_{train,val,test}_idx`` (20 training nodes per class) in place of the default three.

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
        root: Folder of OGB's data sets. ``ogb`` downloads to it what is not there yet, and asks on the terminal before
            it downloads more than 1 GB.
        undirected: Add the reverse of every edge and drop duplicates: the custom for ``ogbn-arxiv``, which is stored
            directed. ``ogbn-products`` comes with both directions already.

    Raises:
        ImportError: If ``ogb`` is not installed.
        OSError: If the data set is neither in ``root`` nor can be downloaded.
        ValueError: If OGB does not know the name, or it is not a single-label task on one homogeneous graph with node
            features.
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
    dense, as in :func:`read_npz`, whose errors these are.

    Args:
        path: The file.
        split: ``'default'`` reads ``TYPE/{train,val,test}_idx``; another name, such as ``'split20'``, reads
            ``TYPE/split20_{train,val,test}_idx``.
        reverse: Add to every relation its reverse, named ``rev_...``.
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
        edge_index = with_reverses(edge_index) if reverse else edge_index
        sets["num_classes"] = _num_classes(y)
        return HeteroNodeTask(file.path.stem, num_nodes, edge_index, x, target, y, **sets)
    except ValueError as error:
        raise ValueError(f"read_hetero_npz: {file.path}: {error}") from error


def read_links_npz(
    path: str | Path, *, relations: Sequence[str] | None = None, node_type: str = "node", typed: bool = True
) -> LinkTask:
    """Reads a link prediction task: ``edge_index [2, E]`` and the edge ids ``train_idx``, ``val_idx``, ``test_idx``;
    errors are those of :func:`read_npz`.

    Where the file has ``edge_type [E]``, edges are grouped by it into the edge types of one node type, keeping their
    order; where it has ``edge_time [E]``, the task has times. Reverse relations come with :meth:`LinkTask.to_pyg`.

    Args:
        path: The file.
        relations: Name of each value of ``edge_type``. Default: ``'relation_0'``, ``'relation_1'``, ...
        node_type: Name of the node type.
        typed: False reads all edges as of one type, into a homogeneous task.
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
