"""Learning tasks on graphs, and their readers: plain ``.npz`` files, PyG's ``Data``, OGB."""

from __future__ import annotations

import importlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from glt._checks import is_of_machine, naming_the_limit
from glt._reprs import brief, says, typed
from glt.data.arrays import BAD_HEADER
from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


_SETS = ("train_idx", "val_idx", "test_idx")


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

    Example:
        >>> task = glt.data.synthetic.synthetic_graph(num_nodes=200)
        >>> task
        NodeTask('synthetic', 200 nodes, 2494 edges, x: float32 [200, 64], 16 classes, 100/50/50 to train/validate/test)
        >>> task.to_pyg().train_mask.sum()
        tensor(100)
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
        _check_edges(self.name, "edge_index", self.edge_index, self.num_nodes, self.num_nodes)
        _check_rows(self.name, "x", self.x, self.num_nodes)
        _check_rows(self.name, "y", self.y, self.num_nodes)
        _check_sets(self, self.num_nodes)

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

    @says
    def __repr__(self) -> str:
        splits = f"{len(self.train_idx)}/{len(self.val_idx)}/{len(self.test_idx)} to train/validate/test"
        graph = f"{self.num_nodes} nodes, {self.num_edges} edges, x: {brief(self.x)}"
        return f"{self.name!r}, {graph}, {self.num_classes} classes, {splits}"


def _masks(task: NodeTask | HeteroNodeTask, num_nodes: int) -> dict[str, Tensor]:
    masks = {}
    for name in _SETS:
        masks[name.replace("idx", "mask")] = mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[getattr(task, name)] = True
    return masks


def _check_edges(task: str, name: str, edges: Tensor, num_sources: int, num_targets: int) -> None:
    if edges.dim() != 2 or edges.size(0) != 2:
        raise ValueError(f"{task}: {name} has shape {list(edges.shape)}, expected [2, num_edges]")
    _check_range(task, f"{name}[0]", edges[0], num_sources)
    _check_range(task, f"{name}[1]", edges[1], num_targets)


def _check_rows(task: str, name: str, rows: Tensor, num_nodes: int) -> None:
    if len(rows) != num_nodes:
        raise ValueError(f"{task}: {name} has {len(rows)} rows, expected one per node ({num_nodes})")


def _check_sets(task: NodeTask | HeteroNodeTask, num_nodes: int) -> None:
    for name in _SETS:
        index = getattr(task, name)
        _check_range(task.name, name, index, num_nodes)
        _check_range(task.name, f"y[{name}]", task.y[index], task.num_classes)


def _check_range(task: str, name: str, values: Tensor, end: int) -> None:
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

    Example:
        >>> task = glt.data.synthetic.synthetic_hetero_graph(num_papers=200, num_authors=100, num_venues=8)
        >>> task.target, task.to_pyg().node_types
        ('paper', ['paper', 'author', 'venue'])
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
        for edge_type, edges in self.edge_index.items():
            ends = self.num_nodes[edge_type[0]], self.num_nodes[edge_type[2]]
            _check_edges(self.name, f"edge_index of {'__'.join(edge_type)}", edges, *ends)
        tables = {"y": {self.target: self.y}, "x": self.x, "node_time": self.node_time}
        for name, by_type in tables.items():
            for node_type, rows in by_type.items():
                schema.node_index(node_type)  # refuses what is no type of the graph
                _check_rows(self.name, f"{name} of {node_type}", rows, self.num_nodes[node_type])
        _check_sets(self, self.num_nodes[self.target])

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

    @says
    def __repr__(self) -> str:
        nodes = typed(sum(self.num_nodes.values()), "nodes", len(self.num_nodes))
        edges = typed(sum(edges.size(1) for edges in self.edge_index.values()), "edges", len(self.edge_index))
        splits = f"{len(self.train_idx)}/{len(self.val_idx)}/{len(self.test_idx)} to train/validate/test"
        return f"{self.name!r}, {nodes}, {edges}, {self.num_classes} classes of {self.target!r}, {splits}"


def with_reverses(edge_index: Mapping[EdgeType, Tensor]) -> dict[EdgeType, Tensor]:
    """Adds to every relation its reverse, ``(target, rev_relation, source)``, with equal edge ids, so that messages
    reach all types; raises ValueError if one is there already.

    Example:
        >>> edges = {("user", "buys", "item"): torch.tensor([[0], [5]])}
        >>> list(glt.data.tasks.with_reverses(edges))
        [('user', 'buys', 'item'), ('item', 'rev_buys', 'user')]
    """
    both = dict(edge_index)
    for edge_type, edges in edge_index.items():
        reverse = reverse_of(edge_type)
        if reverse in both:
            raise ValueError(f"edge type {reverse} is there already: expected relations of one direction")
        both[reverse] = edges.flip(0)
    return both


def reverse_of(edge_type: EdgeType) -> EdgeType:
    """The edge type that :func:`with_reverses` adds for one.

    Example:
        >>> glt.data.tasks.reverse_of(("user", "buys", "item"))
        ('item', 'rev_buys', 'user')
    """
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

    Example:
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> sets = {"train_idx": [0], "val_idx": [1], "test_idx": [2]}
        >>> meta = np.frombuffer(b'{"num_nodes": 4}', np.uint8)
        >>> np.savez("links.npz", edge_index=edges, meta=meta, **sets)
        >>> task = glt.data.tasks.read_links_npz("links.npz")
        >>> task.to_pyg()
        Data(num_nodes=4, edge_index=[2, 2])
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
            ends = self.num_nodes[edge_type[0]], self.num_nodes[edge_type[2]]
            _check_edges(self.name, f"edge_index of {label}", edges, *ends)
            if edge_type in self.edge_time and len(self.edge_time[edge_type]) != edges.size(1):
                raise ValueError(f"{self.name}: edge_time of {label} has not one time per edge ({edges.size(1)})")
            for name in _SETS:
                _check_range(self.name, f"{name} of {label}", getattr(self, name)[edge_type], edges.size(1))

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
        data = HeteroData() if self.schema.is_hetero else Data()
        for node_type, num_nodes in self.num_nodes.items():
            store = data[node_type] if self.schema.is_hetero else data
            store.num_nodes = num_nodes
        for edge_type in self.schema.edge_types:
            kept = slice(None) if edges == "all" else self.train_idx[edge_type]
            edges_of, times = self.edge_index[edge_type][:, kept], self.edge_time.get(edge_type)
            if self.schema.is_hetero:
                there, back = data[edge_type], data[reverse_of(edge_type)]
                there.edge_index, back.edge_index = edges_of, edges_of.flip(0)
                if times is not None:
                    there.time = back.time = times[kept]
            else:
                data.edge_index = torch.cat([edges_of, edges_of.flip(0)], 1)
                if times is not None:
                    data.edge_time = times[kept].repeat(2)
        return data

    @says
    def __repr__(self) -> str:
        nodes = typed(sum(self.num_nodes.values()), "nodes", len(self.num_nodes))
        edges = typed(sum(edges.size(1) for edges in self.edge_index.values()), "edges", len(self.edge_index))
        splits = "/".join(str(sum(map(len, each.values()))) for each in (self.train_idx, self.val_idx, self.test_idx))
        return f"{self.name!r}, {nodes}, {edges}, {splits} to train/validate/test"


# Tasks in ``.npz`` files of plain arrays, nothing of which is unpickled.


class NpzFile:
    """The arrays of an open ``.npz`` file, read with errors that name them.

    Example:
        >>> np.savez("task.npz", y=np.arange(3))
        >>> glt.data.tasks.NpzFile("task.npz").ids("y")
        tensor([0, 1, 2])
    """

    def __init__(self, path: str | Path) -> None:
        try:
            with naming_the_limit(path):
                self._arrays = np.load(path, allow_pickle=False)
        except (*BAD_HEADER, OSError, zipfile.BadZipFile) as error:
            if is_of_machine(error):
                raise
            raise ValueError(f"it is not a readable .npz file: {error}") from error
        if not isinstance(self._arrays, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array, expected an .npz file of named arrays")
        self.names: list[str] = self._arrays.files
        self.close: Callable[[], None] = self._arrays.close

    def array(self, key: str) -> np.ndarray:
        if key not in self.names:
            raise ValueError(f"it has no array {key!r}; it has {sorted(self.names)}")
        try:
            array: np.ndarray = self._arrays[key]
        except Exception as error:  # zlib, zipfile and numpy each have their own way to say "damaged"
            raise ValueError(f"array {key!r} cannot be read: {error}") from error
        return array

    def ids(self, key: str) -> Tensor:
        return torch.from_numpy(self.array(key).astype(np.int64))

    def sets(self, prefix: str = "") -> dict[str, Any]:
        return {name: self.ids(f"{prefix}{name}") for name in _SETS}

    def meta(self) -> dict[str, Any]:
        try:
            meta = json.loads(self.array("meta").tobytes())
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"array 'meta' is no JSON in bytes: {error}") from error
        if not isinstance(meta, dict):
            raise ValueError(f"array 'meta' holds {meta!r}: expected a JSON object")
        return meta

    def features(self, key: str) -> Tensor:
        """Reads a float32 matrix, dense as ``key``, or as CSR in ``key_indptr``, ``key_indices``, ``key_data`` and
        ``key_shape``, which comes back dense."""
        if key in self.names or f"{key}_indptr" not in self.names:
            return torch.from_numpy(np.ascontiguousarray(self.array(key), np.float32))
        indptr, columns, values, shape = (
            self.array(f"{key}_{part}") for part in ("indptr", "indices", "data", "shape")
        )
        num_rows, num_columns = (int(size) for size in shape)
        counts = np.diff(indptr)
        sizes = len(counts), counts.sum(), len(values)
        if sizes != (num_rows, len(columns), len(columns)) or counts.min(initial=0) < 0:
            raise ValueError(
                f"{key}_indptr ({len(indptr)} offsets), {key}_indices ({len(columns)}) and {key}_data ({len(values)}) "
                f"do not describe a CSR matrix of {key}_shape [{num_rows}, {num_columns}]"
            )
        if len(columns) and not 0 <= columns.min() <= columns.max() < num_columns:
            raise ValueError(
                f"{key}_indices spans [{columns.min()}, {columns.max()}], {key}_shape has {num_columns} columns"
            )
        x = np.zeros((num_rows, num_columns), np.float32)
        # add, not assign: a CSR matrix may list a cell twice and means the sum.
        np.add.at(x, (np.repeat(np.arange(num_rows), counts), columns), values.astype(np.float32))
        return torch.from_numpy(x)

    @says
    def __repr__(self) -> str:
        return ", ".join(self.names)


@contextmanager
def _opened(path: str | Path, reader: str) -> Iterator[NpzFile]:
    """The arrays of a file; what is wrong with them, or with what is made of them, names the reader and the file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{reader}: {path} does not exist or is not a file")
    try:
        with closing(NpzFile(path)) as file:
            yield file
    except (ValueError, IndexError) as error:
        raise ValueError(f"{reader}: {path}: {error}") from error


def read_npz(path: str | Path, split: Literal["default", "split20"] = "default") -> NodeTask:
    """Reads a homogeneous graph from one ``.npz`` file of plain arrays; nothing in it is unpickled.

    The file holds ``edge_index [2, E]`` (an undirected graph stores both directions), ``y [N]``, ``train_idx``,
    ``val_idx``, ``test_idx``, and the features either dense as ``x [N, F]`` or as a CSR matrix in ``x_indptr``,
    ``x_indices``, ``x_data`` and ``x_shape``. Sparse features come back dense: ``N * F * 4`` bytes. ``split='split20'``
    reads ``split20_{train,val,test}_idx`` (20 training nodes per class) in place of the default three.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an array is missing or does not fit the others; names the file and the array.

    Example:
        >>> task = glt.data.synthetic.synthetic_graph(num_nodes=200)
        >>> sets = {"train_idx": task.train_idx, "val_idx": task.val_idx, "test_idx": task.test_idx}
        >>> np.savez("task.npz", edge_index=task.edge_index, x=task.x, y=task.y, **sets)
        >>> glt.data.tasks.read_npz("task.npz")
        NodeTask('task', 200 nodes, 2494 edges, x: float32 [200, 64], 16 classes, 100/50/50 to train/validate/test)
    """
    if split not in ("default", "split20"):
        raise ValueError(f"read_npz: split = {split!r}, expected 'default' or 'split20'")
    with _opened(path, "read_npz") as file:
        y, sets = file.ids("y"), file.sets("" if split == "default" else f"{split}_")
        edge_index, x = file.ids("edge_index"), file.features("x")
        return NodeTask(Path(path).stem, len(y), edge_index, x, y, **sets, num_classes=_num_classes(y))


def read_hetero_npz(path: str | Path, split: str = "default", *, reverse: bool = True) -> HeteroNodeTask:
    """Reads a heterogeneous graph whose arrays are named ``TYPE/x``, ``TYPE/y`` and ``SRC__REL__DST/edge_index``.

    The type with ``y`` is the one to classify; ``meta`` says how many nodes each type has. Sparse features come back
    dense, as in :func:`read_npz`, whose errors these are.

    Args:
        path: The file.
        split: ``'default'`` reads ``TYPE/{train,val,test}_idx``; another name, such as ``'split20'``, reads
            ``TYPE/split20_{train,val,test}_idx``.
        reverse: Add to every relation its reverse, named ``rev_...``.

    Example:
        >>> meta = np.frombuffer(b'{"node_types": {"user": {"num_nodes": 2}, "item": {"num_nodes": 3}}}', np.uint8)
        >>> sets = {f"user/{name}_idx": [0] for name in ("train", "val", "test")}
        >>> arrays = {"user__buys__item/edge_index": [[0, 1], [2, 0]], "user/y": [0, 1]}
        >>> np.savez("task.npz", meta=meta, **arrays, **sets, **{"user/x": np.ones((2, 4), np.float32)})
        >>> glt.data.tasks.read_hetero_npz("task.npz")
        HeteroNodeTask('task', 5 nodes of 2 types, 4 edges of 2 types, 2 classes of 'user', 1/1/1 to
        train/validate/test)
    """
    with _opened(path, "read_hetero_npz") as file:
        types = file.meta().get("node_types", {})
        num_nodes = {name: int(about["num_nodes"]) for name, about in types.items()}
        targets = [name for name in num_nodes if f"{name}/y" in file.names]
        if len(targets) != 1:
            raise ValueError(f"it has y for {targets}, expected it for one node type")
        target = targets[0]
        edge_index: dict[EdgeType, Tensor] = {}
        for key in file.names:
            if key.endswith("/edge_index"):
                edge_type = tuple(key.removesuffix("/edge_index").split("__"))
                if len(edge_type) != 3:
                    raise ValueError(f"array {key!r} is not named SRC__REL__DST/edge_index")
                edge_index[edge_type] = file.ids(key)
        if reverse:
            edge_index = with_reverses(edge_index)
        has_x = [name for name in num_nodes if {f"{name}/x", f"{name}/x_indptr"} & {*file.names}]
        x = {name: file.features(f"{name}/x") for name in has_x}
        y, sets = file.ids(f"{target}/y"), file.sets(f"{target}/" if split == "default" else f"{target}/{split}_")
        graph = num_nodes, edge_index, x, target
        return HeteroNodeTask(Path(path).stem, *graph, y, **sets, num_classes=_num_classes(y))


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

    Example:
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> sets = {"train_idx": [0], "val_idx": [1], "test_idx": [2]}
        >>> meta = np.frombuffer(b'{"num_nodes": 4}', np.uint8)
        >>> np.savez("links.npz", edge_index=edges, meta=meta, **sets)
        >>> glt.data.tasks.read_links_npz("links.npz")
        LinkTask('links', 4 nodes, 3 edges, 1/1/1 to train/validate/test)
    """
    with _opened(path, "read_links_npz") as file:
        edges, sets = file.ids("edge_index"), file.sets()
        num_edges = edges.size(1)
        schema, kind = HOMOGENEOUS, torch.zeros(num_edges, dtype=torch.int64)
        if typed and "edge_type" in file.names:
            kind = file.ids("edge_type")
            num_relations = int(kind.max()) + 1 if len(kind) else 0
            names = [f"relation_{i}" for i in range(num_relations)] if relations is None else list(relations)
            if len(kind) != num_edges or len(names) < num_relations or (len(kind) and int(kind.min()) < 0):
                raise ValueError(
                    f"edge_type has {len(kind)} elements up to {num_relations - 1}, expected one in [0, {len(names)}) "
                    f"for each of {num_edges} edges"
                )
            schema = Schema((node_type,), tuple((node_type, name, node_type) for name in names))
        groups = [(kind == i).nonzero().view(-1) for i in range(len(schema.edge_types))]

        # Edge ids of the file become positions within their group.
        position = torch.empty(num_edges, dtype=torch.int64)
        for group in groups:
            position[group] = torch.arange(len(group))
        for name, index in sets.items():
            _check_range(Path(path).stem, name, index, num_edges)
            sets[name] = schema.by_edge_type([position[index[kind[index] == i]] for i in range(len(groups))])
        time = file.ids("edge_time") if "edge_time" in file.names else None
        return LinkTask(
            name=Path(path).stem,
            schema=schema,
            num_nodes=dict.fromkeys(schema.node_types, int(file.meta().get("num_nodes", 0))),
            edge_index=schema.by_edge_type([edges[:, group] for group in groups]),
            **sets,
            edge_time={} if time is None else schema.by_edge_type([time[group] for group in groups]),
        )


# Tasks of others.


def read_pyg(data: Data, name: str = "data") -> NodeTask:
    """Takes a task from a PyG ``Data`` with ``edge_index``, ``x``, ``y``, ``train_mask``, ``val_mask``, ``test_mask``.

    Raises:
        ValueError: If one of them is missing, a mask is not one bool per node, or ``y`` is not one class per node.

    Example:
        >>> data = glt.data.synthetic.synthetic_graph(num_nodes=200).to_pyg()
        >>> glt.data.tasks.read_pyg(data, "mine")
        NodeTask('mine', 200 nodes, 2494 edges, x: float32 [200, 64], 16 classes, 100/50/50 to train/validate/test)
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

    Example:
        >>> task = glt.data.tasks.read_ogb("ogbn-products", root="data")  # doctest: +SKIP
    """
    try:
        nodeproppred = importlib.import_module("ogb.nodeproppred")
    except ImportError as error:
        raise ImportError(f"read_ogb: {name} needs the package ogb ({error}): pip install ogb") from error
    try:
        with _ogb_cache_readable():
            dataset = nodeproppred.NodePropPredDataset(name=name, root=str(root))
            split = dataset.get_idx_split()
    except OSError as error:
        raise OSError(f"read_ogb: {name} is not in {root} and could not be downloaded: {error}") from error
    graph, labels = dataset[0]
    labels = np.asarray(labels) if not isinstance(labels, dict) else np.empty((0, 0))
    if "edge_index" not in graph or graph.get("node_feat") is None or labels.ndim != 2 or labels.shape[1] != 1:
        raise ValueError(
            f"read_ogb: {name} is not a single-label task on one homogeneous graph with node features "
            f"(it has {sorted(graph)}, labels of shape {list(labels.shape)}); try ogbn-products or ogbn-arxiv"
        )
    num_nodes = int(graph["num_nodes"])
    edge_index = torch.from_numpy(np.ascontiguousarray(graph["edge_index"], np.int64))
    if undirected:
        from torch_geometric.utils import to_undirected

        edge_index = to_undirected(edge_index, num_nodes=num_nodes)
    # Nodes without a label have NaN where labels are floats (ogbn-papers100M).
    y = torch.from_numpy(np.nan_to_num(labels[:, 0], nan=-1).astype(np.int64))
    x = torch.from_numpy(np.ascontiguousarray(graph["node_feat"], np.float32))
    train, val, test = (torch.from_numpy(np.array(split[key], np.int64)) for key in ("train", "valid", "test"))
    return NodeTask(name, num_nodes, edge_index, x, y, train, val, test, _num_classes(y))


def _num_classes(y: Tensor) -> int:
    return int(y.max()) + 1 if len(y) else 0


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
