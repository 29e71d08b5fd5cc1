"""Loads one partition by mapping its files."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from glt._checks import integer
from glt.data.schema import EdgeType, NodeType, PartitionBook, Schema
from glt.errors import PartitionError
from glt.partition.format import layout
from glt.partition.format.book import IdMap
from glt.partition.format.files import WHOLE_BYTES, Array, FileEntry, as_torch_dtype, map_file
from glt.partition.format.manifest import EdgeTypeEntry, FeatureEntry, Manifest, NodeTypeEntry
from glt.partition.format.part_config import read_part_config


@dataclass(frozen=True, eq=False)
class CachePart:
    """Copies of rows that other partitions own, of the nodes of one type that this one is expected to read most.

    ``ids [cached]`` int64 are ascending; the other attributes are their rows, None where nodes of the type have none.
    """

    ids: np.ndarray
    feat: Array
    label: Array | None
    time: np.ndarray | None
    attrs: dict[str, Array]


@dataclass(frozen=True, eq=False)
class NodePart:
    """The nodes of one type: what every partition knows of all of them, and what this one owns.

    Attributes:
        book: Owner of every node of the graph, and its row in the arrays of its owner.
        feat, label: Rows of the owned nodes, ``[rows, ...]``, or None.
        time: Times of the owned nodes, ``[rows]`` int64, or None.
        attrs: Named tables of the owned nodes, ``[rows, ...]``.
        id_map: Original ids, where nodes were relabelled, else None.
        owned: The owned nodes: their ids, ascending, ``[rows]`` int64, mapped; or a range where nodes were relabelled.
        cache: Rows of some nodes of other partitions, or None.
        hotness: How often the trainers of this partition are expected to read each owned node ``[rows]``, float32 or
            float64, or None where the partitioner was given no hotness.
    """

    book: PartitionBook
    feat: Array | None
    label: Array | None
    time: np.ndarray | None
    attrs: dict[str, Array]
    id_map: IdMap | None
    owned: np.ndarray | range
    cache: CachePart | None
    hotness: np.ndarray | None

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids of the owned nodes, ascending, ``[rows]`` int64: row ``r`` belongs to node ``ids[r]``."""
        return np.arange(self.owned.start, self.owned.stop) if isinstance(self.owned, range) else self.owned


@dataclass(frozen=True, eq=False)
class TimedEdges:
    """The edges of :class:`EdgePart` a second time, with its ``indptr``, sorted by ``time [edges]`` int64 inside each
    row; equal times keep their order.
    """

    indices: np.ndarray
    edge_ids: np.ndarray
    time: np.ndarray


@dataclass(frozen=True, eq=False)
class EdgePart:
    """The edges of one type that a partition owns: one row for each owned node of the type that is expanded.

    That is the source's type where ``manifest.edge_dir`` is ``"out"``, else the destination's.

    Attributes:
        indptr: Where the edges of each row begin, ``[rows + 1]`` int64.
        indices: Id of the node at the other end of each edge, ``[edges]``, int32 or int64.
        edge_ids: Id of each edge, ascending inside a row: its position in the partitioner's ``edge_index``, or where
            edges were relabelled, in the same list sorted by owner.
        weight_sum, weight_guide: What ``_core.build_weights`` made of the weights of these rows (``[edges]`` uint64,
            ``[_core.weight_guide_size(rows, edges)]`` uint32); None without weights.
        by_time: The same edges sorted by time; None without times.
        feat: Features of the owned edges by ascending edge id, ``[edges, ...]``, or None.
        book: Owner of every edge of the graph, and its row in the tables of its owner; None where edges have neither
            tables nor new ids.
        attrs: Named tables of the owned edges by ascending edge id, ``[edges, ...]``.
        id_map: Original ids, where edges were relabelled, else None.
    """

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray
    weight_sum: np.ndarray | None
    weight_guide: np.ndarray | None
    by_time: TimedEdges | None
    feat: Array | None
    book: PartitionBook | None
    attrs: dict[str, Array]
    id_map: IdMap | None


@dataclass(frozen=True, eq=False)
class Partition:
    """One partition of a graph, mapped from disk; ``nodes`` and ``edges`` are by position of the type in ``schema``.

    Arrays are :class:`numpy.memmap` objects in mode ``"c"``: writable in memory, never written back, and shared in the
    page cache by all processes of a host. A dtype that NumPy lacks (bfloat16) comes as a tensor on such a map.
    ``manifest`` is that of the whole directory; compare ``manifest.run_id`` between ranks.
    """

    manifest: Manifest
    index: int
    schema: Schema
    nodes: tuple[NodePart, ...]
    edges: tuple[EdgePart, ...]


def load_partition(
    root_dir: str | os.PathLike[str], partition_idx: int, verify: bool = True, verify_whole_bytes: int = WHOLE_BYTES
) -> Partition:
    """Maps one partition and the books. Other partitions need not be on this machine.

    Args:
        root_dir: What the partitioner was given as ``output_dir``; or the JSON part_config in it.
        partition_idx: Which partition, in ``[0, num_parts)``.
        verify: Whether to compare contents with the checksums. Size, shape and dtype of every file are always compared
            with the manifest, and the manifest with its own digest.
        verify_whole_bytes: Files up to this size are verified whole. Of larger ones, eight blocks of 4 MiB are, the
            first and the last among them, so that loading does not read all features.

    Raises:
        TypeError: If ``partition_idx`` is not an integer.
        PartitionError: If something is missing, truncated, altered or from another run, or ``partition_idx`` is not in
            the directory; names the file.
    """
    root = Path(os.path.abspath(root_dir))
    if root.is_file():
        root = read_part_config(root).directory
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

    files = _Files(root, manifest, verify, verify_whole_bytes)
    return Partition(
        manifest=manifest,
        index=index,
        schema=manifest.schema,
        nodes=tuple(_node_part(files, index, entry) for entry in manifest.node_types),
        edges=tuple(_edge_part(files, index, entry) for entry in manifest.edge_types),
    )


def load_id_map(
    root_dir: str | os.PathLike[str], type_: NodeType | EdgeType | None = None, verify: bool = True
) -> IdMap:
    """Maps the original ids of the nodes or edges of one type, of a directory written with ``relabel=True``.

    Args:
        root_dir: What the partitioner was given as ``output_dir``; only the manifest and the maps need to be there.
        type_: A node type or an edge type; None stands for the only node type. Of a homogeneous graph ``"node"`` or
            ``("node", "to", "node")``.
        verify: Whether to compare contents with the checksums, as :func:`load_partition` does.

    Raises:
        PartitionError: If the directory was not relabelled, or something is missing, truncated or altered.
        KeyError: If there is no such type; names those there are.
    """
    root = Path(os.path.abspath(root_dir))
    manifest = Manifest.read(root)
    files = _Files(root, manifest, verify, WHOLE_BYTES)
    if type_ is None or isinstance(type_, str):
        nodes = manifest.node_types[manifest.schema.node_index(type_)]
        found = _node_map(files, nodes)
    else:
        edges = manifest.edge_types[manifest.schema.edge_index(type_)]
        found = _edge_map(files, edges)
    if found is None:
        raise PartitionError(f"{root} was written without relabel=True: its ids are those of the input")
    return found


@dataclass(frozen=True)
class _Files:
    root: Path
    manifest: Manifest
    verify: bool
    whole_bytes: int

    def map(self, path: str) -> np.ndarray:
        return map_file(
            self.root / path,
            self._entry(path),
            origin=f"run {self.manifest.run_id}",
            block_bytes=self.manifest.checksum_block_bytes,
            whole_bytes=self.whole_bytes,
            verify=self.verify,
        )

    def map_if(self, wanted: object, path: str) -> np.ndarray | None:
        return self.map(path) if wanted else None

    def table(self, feature: FeatureEntry | None, path: str) -> Array | None:
        return None if feature is None else self._table(path)

    def tables(self, features: dict[str, FeatureEntry], path_of: Callable[[str], str]) -> dict[str, Array]:
        return {name: self._table(path_of(name)) for name in features}

    def _table(self, path: str) -> Array:
        return as_torch_dtype(self.map(path), self._entry(path).torch_dtype)

    def book(self, offsets: tuple[int, ...] | None, owner: str, row: str) -> PartitionBook:
        if offsets is not None:
            return PartitionBook.of_ranges(offsets)
        return PartitionBook.of_arrays(self.map(owner), self.map(row), self.manifest.num_parts)

    def id_map(self, offsets: tuple[int, ...] | None, original: str, new: str) -> IdMap | None:
        return None if offsets is None else IdMap(self.map(original), self.map(new))

    def _entry(self, path: str) -> FileEntry:
        if path not in self.manifest.files:
            raise PartitionError(
                f"{self.root / layout.MANIFEST} lists no {path}, which its types call for: partition again"
            )
        return self.manifest.files[path]


def _node_part(files: _Files, index: int, entry: NodeTypeEntry) -> NodePart:
    node_type = entry.node_type
    hotness = layout.node_hotness(index, node_type)  # which directories of before lack
    return NodePart(
        book=files.book(entry.offsets, layout.node_book(node_type), layout.node_row(node_type)),
        feat=files.table(entry.feat, layout.node_feat(index, node_type)),
        label=files.table(entry.label, layout.node_label(index, node_type)),
        time=files.map_if(entry.has_time, layout.node_time(index, node_type)),
        attrs=files.tables(entry.attrs, partial(layout.node_attr, index, node_type)),
        id_map=_node_map(files, entry),
        owned=(
            range(*entry.offsets[index : index + 2])
            if entry.offsets is not None
            else files.map(layout.node_ids(index, node_type))
        ),
        cache=_cache_part(files, index, entry),
        hotness=files.map_if(hotness in files.manifest.files, hotness),
    )


def _cache_part(files: _Files, index: int, entry: NodeTypeEntry) -> CachePart | None:
    if entry.forecast is None or entry.forecast.num_cached[index] == 0:
        return None
    path_of = partial(layout.cache, index, entry.node_type)
    feat = files.table(entry.feat, path_of("feat"))
    assert feat is not None, "a forecast is of features"
    return CachePart(
        ids=files.map(path_of("ids")),
        feat=feat,
        label=files.table(entry.label, path_of("label")),
        time=files.map_if(entry.has_time, path_of("time")),
        attrs=files.tables(entry.attrs, partial(layout.cache_attr, index, entry.node_type)),
    )


def _node_map(files: _Files, entry: NodeTypeEntry) -> IdMap | None:
    name = entry.node_type
    return files.id_map(entry.offsets, layout.node_map(name), layout.node_map_inverse(name))


def _edge_map(files: _Files, entry: EdgeTypeEntry) -> IdMap | None:
    name = entry.edge_type
    return files.id_map(entry.offsets, layout.edge_map(name), layout.edge_map_inverse(name))


def _edge_part(files: _Files, index: int, entry: EdgeTypeEntry) -> EdgePart:
    edge_type = entry.edge_type
    path_of = partial(layout.graph, index, edge_type)
    by_time = None
    if entry.has_time:
        names = ("indices", "edge_ids", "time")
        by_time = TimedEdges(**{name: files.map(path_of(f"by_time/{name}")) for name in names})
    return EdgePart(
        indptr=files.map(path_of("indptr")),
        indices=files.map(path_of("indices")),
        edge_ids=files.map(path_of("edge_ids")),
        weight_sum=files.map_if(entry.has_weight, path_of("weight_sum")),
        weight_guide=files.map_if(entry.has_weight, path_of("weight_guide")),
        by_time=by_time,
        feat=files.table(entry.feat, layout.edge_feat(index, edge_type)),
        book=(
            files.book(entry.offsets, layout.edge_book(edge_type), layout.edge_row(edge_type))
            if entry.has_rows or entry.offsets is not None
            else None
        ),
        attrs=files.tables(entry.attrs, partial(layout.edge_attr, index, edge_type)),
        id_map=_edge_map(files, entry),
    )
