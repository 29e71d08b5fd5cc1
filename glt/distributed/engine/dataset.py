"""One partition of a dataset, and what every process knows about the whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from glt._checks import format_size, parse_size
from glt._reprs import says, typed
from glt._tracebacks import short_traceback
from glt.data.arrays import as_rows, from_array, load_saved, map_npy
from glt.data.feature import Feature
from glt.data.keys import KeyMaps
from glt.data.schema import EdgeType, NodeType, PartitionBook, Schema
from glt.distributed.engine.local_partition import LocalPartition, Placing
from glt.errors import PartitionError
from glt.partition import IdMap, NodePart, load_partition
from glt.partition.format.book import checked_ids
from glt.partition.format.manifest import Manifest
from glt.partition.format.remote import local_directory

if TYPE_CHECKING:
    from glt.distributed.engine.local_graph import LocalGraph

_graphs_lock = threading.Lock()

LabelFile = str | os.PathLike[str]


class DistDataset:
    """The partition that this process samples from, mapped from disk: all processes of a host share one copy.

    Attributes:
        partition_idx, num_partitions: Which partition of how many.
        schema: The types of nodes and edges; in attributes that end in ``_of``, and in all that is not a user's, a type
            is its position there.
        num_nodes_of, num_edges_of: Of the whole graph, by type.
        num_neighbor_nodes_of: By edge type, nodes of the type that is not expanded.
        edge_dir: ``'out'`` for directories written with ``by_src``, ``'in'`` with ``by_dst``.
        node_books: By node type, the :class:`~glt.data.schema.PartitionBook` of all nodes of the whole graph.
        edge_books: By edge type, that of all edges; None where edges have no tables and no
            new ids.
        whole_node_labels: By node type, labels of all nodes where a file with them was given; else None.
        own: Graphs and tables of the partition.
        num_sharers: How many workers of the same trainer or server sample on the GPU that this one does, each with
            device memory of its own.
        hot_rows: By partition, where a process of this host has its hot rows in memory: for processes that share them.

    Example:
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> dataset
        DistDataset(partition 0 of 2, 40 nodes, 80 edges, edge_dir='in', 4.1 KB in all partitions)
    """

    def __init__(self) -> None:
        self._args: dict[str, Any] | None = None
        self._told_hot_rows: dict[int, Any] = {}

    @short_traceback
    def load(
        self,
        graph_dir: str | os.PathLike[str],
        partition_idx: int,
        graph_mode: str = "CPU",
        *,
        device: str | int | torch.device | None = None,
        split_ratio: float | None = None,
        feature_memory: int | str | None = None,
        whole_node_label_file: LabelFile | Mapping[NodeType, LabelFile] | None = None,
        verify: bool | Literal["elsewhere"] = True,
    ) -> DistDataset:
        """Loads a partition from the directory that a partitioner wrote.

        Args:
            graph_dir: The partitioner's ``output_dir``, or a URL: see :func:`glt.partition.load_partition`.
            partition_idx: Which partition, in ``[0, num_parts)``.
            graph_mode: Where samplers on a GPU find the edges: see :class:`glt.data.Graph`. ``'CUDA'`` makes its GPU
                the default of all samplers; with ``'ZERO_COPY'`` they are told to use one. They sample the partitions
                that are read here, several joined into one graph in memory of the process, and ask for the others.
            device: The GPU, as for :class:`glt.data.Graph`.
            split_ratio: Share of the rows of each table that GPUs keep in their memory, in [0, 1]; the others are
                pinned where they are mapped. Of nodes the hottest: by the hotness that the partitioner was given, else
                those to which most edges of the partition lead. Of edges those that are most likely to be drawn from
                such nodes. Copies of other partitions' rows (``cache_ratio``) are kept too. Default: what half of the
                memory takes that is free on the GPU when rows are first looked up; 0 keeps none.
            feature_memory: For features that do not fit in memory: bytes, or a text such as ``'2 GiB'``, that features
                and named tables may take. Those that fit as wholes are mapped, the smallest first; of the others the
                hottest nodes' rows are kept in the rest, once for this process and all that sample for it, and all
                other rows are read from disk as batches need them, many at a time. Hotness is that of ``split_ratio``.
                Batches are the same. Default: all are mapped, and take what memory there is.
            whole_node_label_file: A ``.pt`` file (a tensor, read without unpickling anything else) or ``.npy`` file
                with the labels of all nodes, in place of labels stored with the partition; also of a relabelled graph
                in the order of the original ids. Of a heterogeneous graph, a dict of such files by node type; types
                that it does not name keep the stored ones.
            verify: Compare files with their checksums, as :func:`glt.partition.load_partition` does: those up to 1 GiB
                before this method returns, larger ones behind. If one of these is found to be damaged, loaders raise
                PartitionError at the next batch.

        Returns:
            This dataset.

        Raises:
            glt.errors.PartitionError: If the directory is damaged or has no such partition; names the file.
            TypeError: If ``partition_idx`` is not an integer, or label files are not given by type where there are
                types.
            KeyError: If a label file is for a node type that there is not.
            ValueError: If ``graph_mode`` is unknown, or not ``'CPU'`` with ``feature_memory``, a GPU is asked for that
                cannot be used here, or a label file is missing or does not fit.
            OSError: With ``feature_memory``, if hot rows cannot be read; names the file and the row. Later
                loaders raise it as :class:`glt.errors.RemoteError`, if the file was cut or the disk fails.
        """
        if feature_memory is not None:
            feature_memory = parse_size(feature_memory, "feature_memory", 0)
            if graph_mode != "CPU":
                raise ValueError(
                    f"feature_memory = {feature_memory} and graph_mode = {graph_mode!r}: GPUs look rows up in memory, "
                    "which must hold all of them; load with graph_mode='CPU', or leave feature_memory out"
                )
        if split_ratio and graph_mode == "CPU":
            raise ValueError(f"split_ratio = {split_ratio} and graph_mode = 'CPU': rows are kept for samplers on a GPU")
        graph_dir = local_directory(graph_dir, partition_idx)
        part = load_partition(graph_dir, partition_idx, verify=verify)
        manifest, schema = part.manifest, part.schema
        files = [path and os.path.abspath(path) for path in _label_files(schema, whole_node_label_file)]
        args = {
            "graph_dir": str(graph_dir),
            "partition_idx": int(partition_idx),
            "graph_mode": graph_mode,
            "device": None if device is None else device if isinstance(device, int) else str(device),
            "split_ratio": split_ratio,
            "feature_memory": feature_memory,
            "whole_node_label_file": (
                {t: path for t, path in schema.by_node_type(files).items() if path} if schema.is_hetero else files[0]
            ),
        }
        self.manifest: Manifest = manifest
        self.schema: Schema = schema
        self._verify = bool(verify)
        self._placing = Placing(graph_mode, device, split_ratio, feature_memory)
        self._local_graphs: dict[frozenset[int], LocalGraph] = {}
        self.num_sharers: int = 1
        self.partition_idx: int = part.index
        self.num_partitions: int = manifest.num_parts
        self.num_nodes_of: tuple[int, ...] = tuple(entry.num_nodes for entry in manifest.node_types)
        self.num_edges_of: tuple[int, ...] = tuple(entry.num_edges for entry in manifest.edge_types)
        self.edge_dir: str = manifest.edge_dir
        self.ends: tuple[tuple[int, int], ...] = schema.ends(self.edge_dir)
        self.num_neighbor_nodes_of: tuple[int, ...] = tuple(self.num_nodes_of[neighbor] for _, neighbor in self.ends)
        self.whole_node_labels: tuple[Feature | None, ...] = tuple(
            None if path is None else Feature(_read_labels(Path(path), schema, t, self.num_nodes_of[t]), rows)
            for t, (path, rows) in enumerate(zip(files, map(_original_rows, part.nodes), strict=True))
        )
        self._labelled = [labels is not None for labels in self.whole_node_labels]
        self.hot_rows: dict[int, Any] = {}
        if self._told_hot_rows:
            self.hot_rows, self._told_hot_rows = self._told_hot_rows, {}
        told = self.hot_rows.get(part.index)
        self.own: LocalPartition = LocalPartition(part, self._placing, self._labelled, told, is_own=True)
        self.hot_rows[part.index] = self.own.on_disk.told
        self.node_books: tuple[PartitionBook, ...] = tuple(node.book for node in part.nodes)
        self.edge_books: tuple[PartitionBook | None, ...] = tuple(edge.book for edge in part.edges)
        self.ids: KeyMaps = KeyMaps(
            {t: node.keys for t, node in zip(schema.node_types, part.nodes, strict=True) if node.keys is not None}
        )
        self._id_maps = {
            "node": tuple(node.id_map for node in part.nodes),
            "edge": tuple(edge.id_map for edge in part.edges),
        }
        self._args = args
        return self

    def map_other(
        self, graph_dir: str | os.PathLike[str], partition_idx: int, is_loaded: bool = True
    ) -> LocalPartition:
        """Maps another partition of the same graph, whose files are on this host, to read it without asking a process.
        ``is_loaded``: a process of this host has loaded it, and compares it with its checksums; else this one does.

        Raises:
            glt.errors.PartitionError: If it cannot be read, or is of another partitioning run.
        """
        verify: bool | Literal["elsewhere"] = "elsewhere" if self._verify and is_loaded else self._verify
        part = load_partition(graph_dir, partition_idx, verify=verify)
        if part.manifest.run_id != self.manifest.run_id:
            raise PartitionError(
                f"partition {partition_idx} in {os.fspath(graph_dir)!r} is of run {part.manifest.run_id}: expected "
                f"{self.manifest.run_id}, the run of partition {self.partition_idx}"
            )
        # Who owns what is read in one copy only, the one that was verified.
        nodes = tuple(replace(n, book=book) for n, book in zip(part.nodes, self.node_books, strict=True))
        edges = tuple(replace(e, book=book) for e, book in zip(part.edges, self.edge_books, strict=True))
        told, part = self.hot_rows.get(part.index), replace(part, nodes=nodes, edges=edges)
        return LocalPartition(part, self._placing, self._labelled, told, is_own=False)

    @property
    def sampling_device(self) -> str | int | None:
        """The GPU that samplers use unless they are told otherwise; None: the CPU."""
        args = self.load_args
        return None if args["graph_mode"] != "CUDA" else "cuda" if args["device"] is None else args["device"]

    def require_for_gpu(self) -> None:
        """Raises ValueError, which refuses samplers on a GPU, if ``graph_mode`` is ``'CPU'``."""
        if self.load_args["graph_mode"] == "CPU":
            raise ValueError(
                "graph_mode = 'CPU': the partition was loaded for samplers on the CPU; load it with graph_mode='CUDA' "
                "or 'ZERO_COPY' for a GPU"
            )

    def local_graph(self, partitions: Mapping[int, LocalPartition]) -> LocalGraph:
        """What GPUs read of the partitions that are read here, by index; made once for all loaders that read these.
        Raises ValueError if ``graph_mode`` is ``'CPU'``."""
        from glt.distributed.engine.local_graph import LocalGraph  # processes without a GPU do without

        with _graphs_lock:
            key = frozenset(partitions)
            if key not in self._local_graphs:
                self._local_graphs[key] = LocalGraph(self, dict(sorted(partitions.items())))
            return self._local_graphs[key]

    def all_edges(self, edge_type: int) -> tuple[Tensor, Tensor]:
        """The edges of a type that are here: see :meth:`LocalPartition.all_edges`."""
        return self.own.all_edges(edge_type)

    def __getattr__(self, name: str) -> Any:
        # Reached only for what load() would have set.
        if not name.startswith("_") and self.__dict__.get("_args", ...) is None:
            raise AttributeError(f"the dataset has no {name} yet: call load(graph_dir=..., partition_idx=...) first")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def load_args(self) -> dict[str, Any]:
        """The arguments of :meth:`load`."""
        if self._args is None:
            raise ValueError("the dataset is empty: call load(graph_dir=..., partition_idx=...) first")
        return dict(self._args)

    @property
    def num_nodes(self) -> Any:
        """Number of nodes of the whole graph, or numbers by node type."""
        return self._face("node", self.num_nodes_of)

    @property
    def num_edges(self) -> Any:
        """Number of edges of the whole graph, or numbers by edge type."""
        return self._face("edge", self.num_edges_of)

    @property
    def graph(self) -> Any:
        """Rows of the owned nodes, as a :class:`glt.data.Graph` or a dict by edge type; neighbours have global ids."""
        return self._face("edge", self.own.graphs)

    @property
    def node_features(self) -> Any:
        """Features of the owned nodes: a :class:`glt.data.Feature` or None, or a dict of the node types that have
        some."""
        return self._face("node", [tables.get("x") for tables in self.own.node_tables])

    @property
    def node_labels(self) -> Any:
        """Labels of the owned nodes, or of all nodes where a label file was given; as :attr:`node_features`."""
        stored = [tables.get("y") for tables in self.own.node_tables]
        whole = self.whole_node_labels
        return self._face("node", [a if a is not None else b for a, b in zip(whole, stored, strict=True)])

    @property
    def edge_features(self) -> Any:
        """Features of the owned edges; as :attr:`node_features`, by edge type."""
        return self._face("edge", [tables.get("edge_attr") for tables in self.own.edge_tables])

    @property
    def node_attrs(self) -> Any:
        """Named tables of the owned nodes, such as ``train_mask``: :class:`glt.data.Feature` by name, or such dicts by
        node type."""
        return self._named("node", [node.attrs for node in self.manifest.node_types], self.own.node_tables)

    @property
    def edge_attrs(self) -> Any:
        """Named tables of the owned edges; as :attr:`node_attrs`, by edge type."""
        return self._named("edge", [edge.attrs for edge in self.manifest.edge_types], self.own.edge_tables)

    def _named(self, kind: str, names: Sequence[Any], tables: Sequence[dict[str, Feature]]) -> Any:
        by_type = [{name: own[name] for name in each} for each, own in zip(names, tables, strict=True)]
        return self._face(kind, [each or None for each in by_type]) if self.schema.is_hetero else by_type[0]

    @property
    def node_map(self) -> Any:
        """Original id of each node of the whole graph, ``[num_nodes]`` int32 or int64, mapped, or a dict by node type;
        None where the graph was partitioned without ``relabel``. What :func:`glt.partition.to_original_order` takes."""
        return self._originals("node")

    @property
    def edge_map(self) -> Any:
        """Original id of each edge of the whole graph; as :attr:`node_map`, by edge type."""
        return self._originals("edge")

    @short_traceback
    def map_to_original(self, ids: Any, type_: NodeType | EdgeType | None = None) -> Tensor:
        """Returns the ids that nodes or edges had in the input of the partitioner.

        Args:
            ids: Ids as batches have them, such as ``n_id`` and ``e_id``: integers of any shape.
            type_: A node type or an edge type; None stands for the nodes of a homogeneous graph, whose edges are
                ``("node", "to", "node")``.

        Returns:
            An int64 tensor of the same shape; the ids themselves where the graph was partitioned without ``relabel``.

        Raises:
            IndexError: If there is no such id; names the first.
            KeyError: If there is no such type; names those there are.
            TypeError: If ``ids`` are no integers.
        """
        found, num_ids = self._id_map(type_)
        return checked_ids(ids, num_ids) if found is None else found.to_original(ids)

    @short_traceback
    def map_from_original(self, ids: Any, type_: NodeType | EdgeType | None = None) -> Tensor:
        """Returns the ids that original nodes or edges have here, for example of seeds; as :meth:`map_to_original`."""
        found, num_ids = self._id_map(type_)
        return checked_ids(ids, num_ids) if found is None else found.to_new(ids)

    def _id_map(self, type_: NodeType | EdgeType | None) -> tuple[IdMap | None, int]:
        if type_ is None or isinstance(type_, str):
            at = self.schema.node_index(type_)
            return self._id_maps["node"][at], self.num_nodes_of[at]
        at = self.schema.edge_index(type_)
        return self._id_maps["edge"][at], self.num_edges_of[at]

    def _originals(self, kind: str) -> Any:
        if not self.manifest.is_relabelled:
            return None
        maps = self._id_maps[kind]
        return self._face(kind, [None if of is None else from_array(of.original) for of in maps])

    def _face(self, kind: str, values: Sequence[Any]) -> Any:
        if not self.schema.is_hetero:
            return values[0]
        named = self.schema.by_node_type(values) if kind == "node" else self.schema.by_edge_type(values)
        return {type_: value for type_, value in named.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """What :meth:`from_json` needs in another process of this host to map the same files."""
        more = {"run_id": self.manifest.run_id, "hot_rows": list(self.hot_rows.items())}
        return {**self.load_args, **more, "verify": "elsewhere" if self._verify else False}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> DistDataset:
        """The dataset of another process. Raises PartitionError if its directory is not what that process loaded any
        more."""
        self = cls()
        self.__setstate__(told)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self.to_json()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._args = None
        args = dict(state)
        run_id, self._told_hot_rows = args.pop("run_id"), dict(args.pop("hot_rows"))
        self.load(**args)  # the process that sent this verifies it
        if self.manifest.run_id != run_id:
            raise PartitionError(
                f"{args['graph_dir']!r} holds run {self.manifest.run_id} now: expected {run_id}, which the process "
                "that sent this dataset had loaded; partition into a new directory, or load the dataset again"
            )

    @says
    def __repr__(self) -> str:
        if self._args is None:
            return "empty"
        nodes = typed(sum(self.num_nodes_of), "nodes", len(self.schema.node_types))
        edges = typed(sum(self.num_edges_of), "edges", len(self.schema.edge_types))
        size = format_size(sum(entry.num_bytes for entry in self.manifest.files.values()))
        modes = "" if self._args["graph_mode"] == "CPU" else f", graph_mode={self._args['graph_mode']!r}"
        part = f"partition {self.partition_idx} of {self.num_partitions}"
        return f"{part}, {nodes}, {edges}, edge_dir={self.edge_dir!r}{modes}, {size} in all partitions"


def _original_rows(nodes: NodePart) -> Tensor | None:
    """Rows of a table in the order of the original ids, as a feature looks them up; None where those are the ids."""
    if nodes.id_map is None:
        return None
    original = nodes.id_map.original  # a view where int32 holds the ids, which are never negative
    return from_array(original.view(np.uint32) if original.itemsize == 4 else original.astype(np.uint32))


def _label_files(schema: Schema, given: Any) -> list[Any]:
    if given is not None and schema.is_hetero and not isinstance(given, Mapping):
        raise TypeError(
            f"whole_node_label_file = {given!r}: expected a dict by node type, one file each, the graph having the "
            f"node types {list(schema.node_types)}"
        )
    return schema.per_node_type("whole_node_label_file", given)


def _read_labels(path: Path, schema: Schema, node_type: int, num_nodes: int) -> Tensor:
    if not path.exists():
        raise ValueError(f"whole_node_label_file = {str(path)!r} does not exist")
    if path.suffix == ".npy":
        labels = as_rows(map_npy(path, f"whole_node_label_file = {str(path)!r}"), "whole_node_label_file")
    else:
        labels = load_saved(path, f"whole_node_label_file = {str(path)!r}", "a tensor", mmap=True)
    what = f"node of type {schema.node_types[node_type]!r}" if schema.is_hetero else "node"
    if not isinstance(labels, Tensor) or labels.dim() == 0 or len(labels) != num_nodes:
        shape = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(
            f"whole_node_label_file = {str(path)!r} holds {shape}: expected one label per {what}, {num_nodes}"
        )
    return labels
