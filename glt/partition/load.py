"""Loads one partition by mapping its files."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glt.errors import PartitionError
from glt.partition import layout
from glt.partition.arguments import integer
from glt.partition.layout import EDGE, NODE
from glt.partition.manifest import Manifest
from glt.partition.npy_file import WHOLE_BYTES, map_file
from glt.partition.partitioner import Array
from glt.partition.rows import as_torch_dtype


@dataclass(frozen=True, eq=False)
class Partition:
    """One partition of a homogeneous graph, mapped from disk.

    Arrays are :class:`numpy.memmap` objects in mode ``"c"``: writable in memory, never written back, and shared in the
    page cache by all processes of a host for as long as nobody writes. A dtype that NumPy lacks (bfloat16) comes as a
    tensor on such a map.

    Attributes:
        manifest: Of the whole directory; compare ``manifest.run_id`` between ranks.
        index: Number of this partition.
        node_book: Owner of every node of the graph, ``[num_nodes]``, smallest unsigned dtype.
        node_row: Row of every node inside the arrays of its owner, ``[num_nodes]`` uint32.
        node_ids: Ids of the owned nodes, ascending, ``[rows]`` int64: row ``r`` belongs to node ``node_ids[r]``.
        indptr: Where the edges of each row begin, ``[rows + 1]`` int64.
        indices: Id of the node at the other end of each edge, ``[edges]``, int32 or int64.
        edge_ids: Id of each edge, its position in the partitioner's ``edge_index``; ascending inside a row.
        node_feat: Features of the owned nodes, ``[rows, ...]``, or None.
        edge_feat: Features of the owned edges by ascending edge id, ``[edges, ...]``, or None.
        node_label: Labels of the owned nodes, ``[rows, ...]``, or None.
        edge_book: Owner of every edge of the graph, ``[num_edges]``; only with edge features.
        edge_row: Row of every edge inside ``edge_feat`` of its owner, ``[num_edges]`` uint32; only with edge features.
    """

    manifest: Manifest
    index: int
    node_book: np.ndarray
    node_row: np.ndarray
    node_ids: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray
    node_feat: Array | None
    edge_feat: Array | None
    node_label: Array | None
    edge_book: np.ndarray | None
    edge_row: np.ndarray | None


def load_partition(
    root_dir: str | os.PathLike[str],
    partition_idx: int,
    verify: bool = True,
    verify_whole_bytes: int = WHOLE_BYTES,
) -> Partition:
    """Maps one partition and the books. Other partitions need not be on this machine.

    Size, shape and dtype of every file are always checked against the manifest, and the manifest against its own
    digest.

    Args:
        root_dir: What the partitioner was given as ``output_dir``.
        partition_idx: Which partition, in ``[0, num_parts)``.
        verify: Whether to compare contents with the checksums too. A second process that loads what a first one has
            verified may pass False.
        verify_whole_bytes: Files up to this size are verified whole. Of larger ones, eight blocks of 4 MiB are, the
            first and the last among them, so that loading does not read all features.

    Raises:
        TypeError: If ``partition_idx`` is not an integer.
        PartitionError: If something is missing, truncated, altered or from another run, or ``partition_idx`` is not in
            the directory; names the file.
    """
    root = Path(os.path.abspath(root_dir))
    manifest = Manifest.read(root)
    try:
        index = integer("partition_idx", partition_idx, 0, manifest.num_parts - 1, f"a partition of {root}")
    except ValueError as error:
        raise PartitionError(str(error)) from error
    part = root / layout.part(index)
    if not part.is_dir():
        raise PartitionError(
            f"{part} is missing: {root / layout.MANIFEST} lists {manifest.num_parts} partitions; copy {part.name} of "
            f"run {manifest.run_id} to this machine, or load another partition_idx"
        )

    def mapped(path: str) -> np.ndarray:
        if path not in manifest.files:
            raise PartitionError(
                f"{root / layout.MANIFEST} lists no {path}: expected a homogeneous graph, found node types "
                f"{sorted(manifest.node_types)} and edge types {sorted(manifest.edge_types)}"
            )
        return map_file(
            root / path,
            manifest.files[path],
            origin=f"run {manifest.run_id}",
            block_bytes=manifest.checksum_block_bytes,
            whole_bytes=verify_whole_bytes,
            verify=verify,
        )

    def optional(path: str) -> np.ndarray | None:
        return mapped(path) if path in manifest.files else None

    def features(path: str) -> Array | None:
        array = optional(path)
        return None if array is None else as_torch_dtype(array, manifest.files[path].torch_dtype)

    return Partition(
        manifest=manifest,
        index=index,
        node_book=mapped(layout.node_book(NODE)),
        node_row=mapped(layout.node_row(NODE)),
        node_ids=mapped(layout.node_ids(index, NODE)),
        indptr=mapped(layout.graph(index, EDGE, "indptr")),
        indices=mapped(layout.graph(index, EDGE, "indices")),
        edge_ids=mapped(layout.graph(index, EDGE, "edge_ids")),
        node_feat=features(layout.node_feat(index, NODE)),
        edge_feat=features(layout.edge_feat(index, EDGE)),
        node_label=features(layout.node_label(index, NODE)),
        edge_book=optional(layout.edge_book(EDGE)),
        edge_row=optional(layout.edge_row(EDGE)),
    )
