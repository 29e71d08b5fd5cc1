"""One partition of a dataset, and what every process knows about the whole."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt.data.feature import Feature
from glt.data.graph import Graph
from glt.data.schema import HOMOGENEOUS
from glt.data.topology import Topology
from glt.errors import PartitionError
from glt.partition import Partition, load_partition
from glt.partition.manifest import Manifest


@dataclass(frozen=True, eq=False)
class OwnedTables:
    """Tables of which each partition has the rows that it owns.

    Attributes:
        book: Owner of each id of the whole graph, smallest unsigned dtype.
        tables: By name, the rows that this partition owns, looked up by global id.
    """

    book: np.ndarray
    tables: dict[str, Feature]


@dataclass(frozen=True, eq=False)
class LocalPartition:
    """What can be read of a partition that this process has mapped.

    Attributes:
        graph: The rows of the nodes that it owns; neighbours have global ids.
        tables: Rows that it owns, by kind (``'node'``, ``'edge'``) and name.
    """

    graph: Graph
    tables: dict[str, dict[str, Feature]]


class DistDataset:
    """The partition that this process samples from, mapped from disk: all processes of a host share one copy.

    Attributes:
        partition_idx, num_partitions: Which partition of how many.
        num_nodes, num_edges: Of the whole graph.
        schema: The types there are.
        edge_dir: ``'out'`` for directories written with ``by_src``, ``'in'`` with ``by_dst``.
        graph: The rows of the owned nodes; neighbours have global ids.
        nodes: Book and tables of nodes: ``'x'`` (features) and ``'y'`` (labels), where there are any.
        edges: Book and tables of edges: ``'edge_attr'``; None without edge features.
        whole_node_labels: Labels of all nodes, where a file with them was given; else None.
        own: Graph and tables of the partition.
    """

    def __init__(self) -> None:
        self._args: dict[str, Any] | None = None

    def load(
        self,
        graph_dir: str | os.PathLike[str],
        partition_idx: int,
        graph_mode: str = "CPU",
        *,
        whole_node_label_file: str | os.PathLike[str] | None = None,
        verify: bool = True,
    ) -> DistDataset:
        """Loads a partition from the directory that a partitioner wrote.

        Args:
            graph_dir: The partitioner's ``output_dir``.
            partition_idx: Which partition, in ``[0, num_parts)``.
            graph_mode: ``'CPU'`` or ``'ZERO_COPY'``; see :class:`glt.data.Graph`.
            whole_node_label_file: A ``.pt`` file (a tensor, read without unpickling anything else) or ``.npy`` file
                with the labels of all nodes, in place of labels stored with the partition.
            verify: Compare files with their checksums: those up to 64 MiB whole, larger ones in eight places.

        Returns:
            This dataset.

        Raises:
            glt.errors.PartitionError: If the directory is damaged or has no such partition; names the file.
            TypeError: If ``partition_idx`` is not an integer.
            ValueError: If ``graph_mode`` is unknown, or the label file is missing or does not fit.
        """
        part = load_partition(graph_dir, partition_idx, verify=verify)
        self._args = {
            "graph_dir": os.path.abspath(graph_dir),
            "partition_idx": int(partition_idx),
            "graph_mode": graph_mode,
            "whole_node_label_file": whole_node_label_file and os.path.abspath(whole_node_label_file),
        }
        manifest = part.manifest
        self.manifest: Manifest = manifest
        self._graph_mode = graph_mode
        self.partition_idx = part.index
        self.num_partitions = manifest.num_parts
        self.num_nodes, self.num_edges = manifest.num_nodes, manifest.num_edges
        self.edge_dir = manifest.edge_dir
        self.schema = HOMOGENEOUS
        self.whole_node_labels = None
        if whole_node_label_file is not None:
            self.whole_node_labels = Feature(_read_labels(Path(whole_node_label_file), manifest.num_nodes))
        self.own = self._map(part)
        self.graph = self.own.graph
        self.nodes = OwnedTables(part.node_book, self.own.tables["node"])
        self.edges: OwnedTables | None = None
        if part.edge_book is not None and self.own.tables["edge"]:
            self.edges = OwnedTables(part.edge_book, self.own.tables["edge"])
        return self

    def map_other(self, graph_dir: str | os.PathLike[str], partition_idx: int) -> LocalPartition:
        """Maps another partition of the same graph, whose files are on this host, to read it without asking anyone.

        Args:
            graph_dir: Where it is.
            partition_idx: Which one.

        Raises:
            glt.errors.PartitionError: If it cannot be read, or is of another partitioning run.
        """
        part = load_partition(graph_dir, partition_idx, verify=False)  # whoever samples from it has verified it
        if part.manifest.run_id != self.manifest.run_id:
            raise PartitionError(
                f"partition {partition_idx} in {os.fspath(graph_dir)!r} is of run {part.manifest.run_id}: expected "
                f"{self.manifest.run_id}, the run of partition {self.partition_idx}"
            )
        return self._map(part)

    def _map(self, part: Partition) -> LocalPartition:
        node_row = torch.from_numpy(part.node_row)
        node_book = torch.from_numpy(part.node_book)
        topology = Topology.from_rows(
            torch.from_numpy(part.indptr),
            torch.from_numpy(part.indices),
            torch.from_numpy(part.edge_ids),
            layout="CSR" if self.edge_dir == "out" else "CSC",
            num_nodes=self.num_nodes,
            row_of=node_row,
            owner=node_book,
            part=part.index,
            trusted=True,  # the sampler still refuses ids out of range, when it meets them
        )
        labels = None if self.whole_node_labels is not None else part.node_label
        nodes = {"x": part.node_feat, "y": labels}
        tables: dict[str, dict[str, Feature]] = {"node": {}, "edge": {}}
        tables["node"] |= {
            name: Feature(_tensor(t), node_row, (node_book, part.index)) for name, t in nodes.items() if t is not None
        }
        if part.edge_feat is not None and part.edge_row is not None and part.edge_book is not None:
            owner = (torch.from_numpy(part.edge_book), part.index)
            tables["edge"]["edge_attr"] = Feature(_tensor(part.edge_feat), torch.from_numpy(part.edge_row), owner)
        return LocalPartition(Graph(topology, self._graph_mode), tables)

    def __getattr__(self, name: str) -> Any:
        # Reached only for what load() would have set.
        if not name.startswith("_") and self.__dict__.get("_args", ...) is None:
            raise AttributeError(f"the dataset has no {name} yet: call load(graph_dir=..., partition_idx=...) first")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def load_args(self) -> dict[str, Any]:
        """The arguments of :meth:`load`: all that another process of this host needs to map the same files."""
        if self._args is None:
            raise ValueError("the dataset is empty: call load(graph_dir=..., partition_idx=...) first")
        return dict(self._args)

    @property
    def node_features(self) -> Feature | None:
        """Features of the owned nodes."""
        return self.nodes.tables.get("x")

    @property
    def node_labels(self) -> Feature | None:
        """Labels of the owned nodes, or of all nodes where a label file was given."""
        return self.whole_node_labels or self.nodes.tables.get("y")

    def __getstate__(self) -> dict[str, Any]:
        return self.load_args

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._args = None
        self.load(**state, verify=False)  # the process that sent this has verified it

    def __repr__(self) -> str:
        if self._args is None:
            return "DistDataset(empty)"
        return (
            f"DistDataset(partition {self.partition_idx} of {self.num_partitions}, num_nodes={self.num_nodes}, "
            f"num_edges={self.num_edges}, edge_dir={self.edge_dir!r})"
        )


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def _read_labels(path: Path, num_nodes: int) -> Tensor:
    if not path.exists():
        raise ValueError(f"whole_node_label_file = {str(path)!r} does not exist")
    if path.suffix == ".npy":
        labels = torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
    else:
        try:
            labels = torch.load(path, mmap=True, weights_only=True)
        except (RuntimeError, pickle.UnpicklingError) as error:
            raise ValueError(
                f"whole_node_label_file = {str(path)!r}: expected a tensor written by torch.save ({error})"
            ) from error
    if not isinstance(labels, Tensor) or labels.dim() == 0 or len(labels) != num_nodes:
        shape = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(
            f"whole_node_label_file = {str(path)!r} holds {shape}: expected one label per node, {num_nodes}"
        )
    return labels
