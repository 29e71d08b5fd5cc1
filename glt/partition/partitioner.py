"""The base of all partitioners: an assignment of nodes becomes a partition directory."""

import json
import logging
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glt.partition import arguments, layout
from glt.partition.book import Book, owner_dtype
from glt.partition.layout import EDGE, NODE
from glt.partition.manifest import EdgeTypeEntry, FeatureEntry, Manifest, NodeTypeEntry, installed_version
from glt.partition.npy_file import BLOCK_BYTES
from glt.partition.partition_writer import PartitionWriter, count_cut_edges, require_free, staging
from glt.partition.rows import Rows

logger = logging.getLogger(__name__)

Array = np.ndarray | torch.Tensor


class PartitionerBase(ABC):
    """Splits a graph and its features by node and writes the result to disk.

    To write a partitioner of your own, override :meth:`assign_nodes`, and :meth:`strategy_arguments` if it has
    arguments of its own::

        class ModuloPartitioner(PartitionerBase):
            def assign_nodes(self):
                return np.arange(self.num_nodes) % self.num_parts

        ModuloPartitioner("parts", num_parts=2, num_nodes=4, edge_index=edge_index).partition()

    An edge goes to the partition of its source or of its destination; node features and labels follow the node, edge
    features the edge. Inputs are never copied whole, and may be memory-mapped. Peak memory beside the inputs is about
    32 bytes per node plus two chunks of features; the sorted edges pass through a scratch file in the file system of
    ``output_dir``, which needs room for 8 bytes per edge (16 with more than 2**31 nodes and edges) beside the result.

    Args:
        output_dir: Directory to create. It appears in one rename when everything is written; until then a directory
            named ``<output_dir>.tmp-...`` lies beside it. Must not exist, or be empty.
        num_parts: Number of partitions, 1 to 2**16.
        num_nodes: Number of nodes, 1 to 2**32 - 1; node ids are in ``[0, num_nodes)``.
        edge_index: Source and destination of each edge, ``[2, num_edges]``, int32 or int64, tensor or array. The id of
            an edge is its position here.
        node_feat: Optional tensor or array ``[num_nodes, ...]`` of at most four dimensions; of any dtype that
            NumPy has too, bfloat16, float8 (all but e8m0fnu) or complex32.
        edge_feat: Optional tensor or array ``[num_edges, ...]``, likewise.
        edge_assign_strategy: ``"by_src"`` for sampling along out-edges (a row holds the out-edges of a node), or
            ``"by_dst"`` for sampling along in-edges. ``"by_des"``, as the reference tutorial spells it, means
            ``"by_dst"``.
        chunk_size: Feature rows copied at a time. The result does not depend on it.
        device: Accepted for compatibility: partitioning runs on the host and its result never depends on the device.
            ``torch.device('cpu')``, or a cuda device of this machine.
        node_label: Optional tensor or array ``[num_nodes, ...]``.

    Raises:
        TypeError, ValueError: If an argument is unusable; names the argument, its value and what was expected.
        IndexError: If a node id is out of range; names the first.
        PartitionError: If ``output_dir`` is not empty.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int,
        edge_index: Array,
        node_feat: Array | None = None,
        edge_feat: Array | None = None,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        device: torch.device | str | int = torch.device("cpu"),  # noqa: B008 (immutable)
        node_label: Array | None = None,
    ) -> None:
        self.output_dir = Path(os.path.realpath(output_dir))  # a link to it stays one, and leads to the result
        # 2**32 - 1 nodes: rows are numbered in 32 bits. 2**16 partitions: far above any cluster.
        self.num_parts = arguments.integer("num_parts", num_parts, 1, 2**16, "the number of partitions")
        self.num_nodes = arguments.integer("num_nodes", num_nodes, 1, 2**32 - 1, "the number of nodes")
        self.chunk_size = arguments.integer("chunk_size", chunk_size, 1, 2**63 - 1, "feature rows copied at a time")
        self.edge_assign_strategy = arguments.strategy(edge_assign_strategy)
        self.device = arguments.host_device(device)
        self.edge_index = arguments.edge_index(edge_index, self.num_nodes)
        self.node_feat = self._rows("node_feat", node_feat, self.num_nodes, "node")
        self.node_label = self._rows("node_label", node_label, self.num_nodes, "node")
        self.edge_feat = self._rows("edge_feat", edge_feat, self.num_edges, "edge")
        require_free(self.output_dir)

    @abstractmethod
    def assign_nodes(self) -> Array:
        """Returns the partition of each node: ``[num_nodes]`` integers in ``[0, num_parts)``.

        Called once by :meth:`partition`. ``self.edge_index`` is a NumPy array ``[2, num_edges]`` of checked node ids.
        """

    def strategy_arguments(self) -> dict[str, Any]:
        """Returns the arguments that determine :meth:`assign_nodes`, for the manifest; must be JSON."""
        return {}

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def edge_dir(self) -> str:
        """``"out"`` when edges belong to their source, ``"in"`` when they belong to their destination."""
        return "out" if self.edge_assign_strategy == "by_src" else "in"

    def partition(self, progress: bool = False) -> Manifest:
        """Writes the partition directory.

        Args:
            progress: Whether to draw a tqdm bar of bytes written.

        Returns:
            The manifest: counts, edge cut, balance, checksums and the run id. Its summary is logged at level INFO.

        Raises:
            PartitionError: If ``output_dir`` is not empty.
            TypeError, ValueError: If :meth:`assign_nodes` returned no owner of each node, or a partition has more than
                2**32 - 1 rows of edge features.
            OSError: If it cannot be written, for example because the disk is full. Nothing is left behind.
        """
        strategy_arguments = json.loads(json.dumps(self.strategy_arguments()))  # as the manifest will read it
        where = f"{type(self).__name__}.assign_nodes"
        owner = arguments.owners(
            self.assign_nodes(), self.num_nodes, self.num_parts, owner_dtype(self.num_parts), where
        )
        book = Book.of(owner, self.num_parts)
        with staging(self.output_dir) as root:
            manifest = self._write(root, book, strategy_arguments, progress)
        logger.info("%s, in %s", manifest.summary(), self.output_dir)
        return manifest

    def _write(self, root: Path, book: Book, strategy_arguments: dict[str, Any], progress: bool) -> Manifest:
        row_ids, col_ids = self.edge_index if self.edge_dir == "out" else self.edge_index[::-1]
        bar = None
        if progress:
            from tqdm import tqdm

            bar = tqdm(desc="partition", unit="B", unit_scale=True)
        try:
            writer = PartitionWriter(root, self.chunk_size, bar.update if bar is not None else lambda _: None)
            writer.nodes(NODE, book)
            part_num_edges = writer.graph(EDGE, row_ids, col_ids, book)
            if self.node_feat is not None:
                writer.node_rows(lambda idx: layout.node_feat(idx, NODE), self.node_feat, book)
            if self.node_label is not None:
                writer.node_rows(lambda idx: layout.node_label(idx, NODE), self.node_label, book)
            if self.edge_feat is not None:
                writer.edge_rows(EDGE, row_ids, self.edge_feat, book, part_num_edges)
        finally:
            if bar is not None:
                bar.close()
        manifest = Manifest(
            num_parts=self.num_parts,
            edge_dir=self.edge_dir,
            strategy=type(self).__name__,
            arguments=strategy_arguments,
            checksum_block_bytes=BLOCK_BYTES,
            node_types={NODE: self._node_entry(book)},
            edge_types={layout.edge_type_name(EDGE): self._edge_entry(book, part_num_edges)},
            files=writer.files,
            glt_version=installed_version(),
        ).signed()
        manifest.write(root)  # last: a directory without it does not load
        return manifest

    def _node_entry(self, book: Book) -> NodeTypeEntry:
        return NodeTypeEntry(
            num_nodes=self.num_nodes,
            part_num_nodes=book.counts,
            balance_ratio=_balance(book.counts),
            feat=_feature_entry(self.node_feat),
            label=_feature_entry(self.node_label),
        )

    def _edge_entry(self, book: Book, part_num_edges: tuple[int, ...]) -> EdgeTypeEntry:
        num_cut_edges = count_cut_edges(self.edge_index, book.owner)
        edge_cut_ratio = num_cut_edges / max(self.num_edges, 1)
        row_bytes = 0 if self.node_feat is None else self.node_feat.array[:1].nbytes
        return EdgeTypeEntry(
            num_edges=self.num_edges,
            part_num_edges=part_num_edges,
            balance_ratio=_balance(part_num_edges),
            num_cut_edges=num_cut_edges,
            edge_cut_ratio=edge_cut_ratio,
            remote_bytes_per_edge=edge_cut_ratio * row_bytes,
            feat=_feature_entry(self.edge_feat),
        )

    @staticmethod
    def _rows(name: str, value: object, num_rows: int, what: str) -> Rows | None:
        return None if value is None else Rows.of(name, value, num_rows, what)


def _feature_entry(rows: Rows | None) -> FeatureEntry | None:
    return None if rows is None else FeatureEntry(rows.torch_dtype, rows.row_shape)


def _balance(counts: tuple[int, ...]) -> float:
    return sum(counts) / (len(counts) * max(counts)) if max(counts) else 1.0
