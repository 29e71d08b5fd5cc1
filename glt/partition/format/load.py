"""Loads one partition by mapping its files."""

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from glt import _core
from glt._checks import available_memory, check_flag, integer
from glt._reprs import repr_of_fields, says, typed
from glt._tracebacks import short_traceback
from glt.data.arrays import has_huge_pages
from glt.data.keys import KeyMap
from glt.data.schema import EdgeType, NodeType, PartitionBook, Schema
from glt.errors import PartitionError
from glt.partition.format import layout
from glt.partition.format.book import IdMap
from glt.partition.format.files import map_file
from glt.partition.format.manifest import EdgeTypeEntry, FeatureEntry, Manifest, NodeTypeEntry
from glt.partition.format.part_config import read_part_config
from glt.partition.format.remote import local_directory
from glt.partition.format.rows import Array, as_torch_dtype
from glt.partition.format.verify import REMEMBERED_BYTES, Contents, Record, Watch


@dataclass(frozen=True, eq=False)
class CachePart:
    """Copies of rows that other partitions own, of the nodes of one type that this one is expected to read most.

    ``ids [cached]`` int64 are ascending; the other attributes are their rows, None where nodes of the type have none.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> glt.partition.RandomPartitioner(
        ...     "cached", 2, 40, graph.edge_index, node_feat=graph.x, hotness=torch.arange(40.0), cache_ratio=0.1
        ... ).partition()
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='out', 18 files, 4.7 KB)
        >>> glt.partition.load_partition("cached", 0).nodes[0].cache
        CachePart(ids=int64 [4], feat=float32 [4, 4])
    """

    ids: np.ndarray
    feat: Array
    label: Array | None
    time: np.ndarray | None
    attrs: dict[str, Array]

    __repr__ = repr_of_fields


@dataclass(frozen=True, eq=False)
class NodePart:
    """The nodes of one type: what every partition knows of all of them, and what this one owns.

    Attributes:
        book: Owner of every node of the graph, and its row in the arrays of its owner.
        feat, label: Rows of the owned nodes, ``[rows, ...]``, or None. As stored: where the manifest's entry has a
            ``store_dtype``, ``[rows, row_bytes]`` uint8, which its ``packing`` describes; so are caches and ``attrs``.
        time: Times of the owned nodes, ``[rows]`` int64, or None.
        attrs: Named tables of the owned nodes, ``[rows, ...]``.
        id_map: Original ids, where nodes were relabelled, else None.
        owned: The owned nodes: their ids, ascending, ``[rows]`` int64, mapped; or a range where nodes were relabelled.
        cache: Rows of some nodes of other partitions, or None.
        keys: The keys of all nodes of the type, or None.
        hotness: How often the trainers of this partition are expected to read each owned node ``[rows]``, float32 or
            float64, or None where the partitioner was given no hotness.

    Example:
        >>> glt.partition.load_partition("parts", 0).nodes[0]
        NodePart(book=PartitionBook(arrays, num_ids=40, num_parts=2), feat=float32 [20, 4], label=int64 [20],
        owned=int64 [20])
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
    keys: KeyMap | None

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids of the owned nodes, ascending, ``[rows]`` int64: row ``r`` belongs to node ``ids[r]``."""
        return np.arange(self.owned.start, self.owned.stop) if isinstance(self.owned, range) else self.owned

    __repr__ = repr_of_fields


@dataclass(frozen=True, eq=False)
class TimedEdges:
    """The edges of :class:`EdgePart` a second time, with its ``indptr``, sorted by ``time [edges]`` int64 inside each
    row; equal times keep their order.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> glt.partition.RandomPartitioner("timed", 2, 40, graph.edge_index, edge_time=torch.arange(80)).partition()
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='out', 16 files, 4.7 KB)
        >>> glt.partition.load_partition("timed", 0).edges[0].by_time
        TimedEdges(indices=int32 [40], edge_ids=int32 [40], time=int64 [40])
    """

    indices: np.ndarray
    edge_ids: np.ndarray
    time: np.ndarray

    __repr__ = repr_of_fields


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

    Example:
        >>> glt.partition.load_partition("parts", 0).edges[0]
        EdgePart(indptr=int64 [21], indices=int32 [40], edge_ids=int32 [40])
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

    __repr__ = repr_of_fields


@dataclass(frozen=True, eq=False)
class Partition:
    """One partition of a graph, mapped from disk; ``nodes`` and ``edges`` are by position of the type in ``schema``.

    Arrays are :class:`numpy.memmap` objects in mode ``"c"``: writable in memory, never written back, and shared in the
    page cache by all processes of a host. A dtype that NumPy lacks (bfloat16) comes as a tensor on such a map.
    ``manifest`` is that of the whole directory, ``directory``; compare ``manifest.run_id`` between ranks.

    Example:
        >>> part = glt.partition.load_partition("parts", 0)
        >>> part
        Partition(0 of 2, 20 nodes, 40 edges, edge_dir='in')
        >>> part.nodes[0].feat.shape
        (20, 4)
    """

    manifest: Manifest
    index: int
    schema: Schema
    nodes: tuple[NodePart, ...]
    edges: tuple[EdgePart, ...]
    directory: Path
    watch: Watch = field(default_factory=Watch)

    def require_sound(self) -> None:
        """Raises PartitionError, which names the file and the block, if a large file was found to be damaged since it
        was loaded. Loaders call it for each batch; it costs less than a microsecond."""
        self.watch.require_sound()

    def wait_until_verified(self, timeout_s: float) -> bool:
        """Whether all files have been compared with their checksums, within ``timeout_s`` seconds. Raises as
        :meth:`require_sound`."""
        return self.watch.wait(timeout_s)

    @says
    def __repr__(self) -> str:
        owned = sum(len(node.owned) for node in self.nodes), sum(len(edge.edge_ids) for edge in self.edges)
        nodes = typed(owned[0], "nodes", len(self.nodes))
        edges = typed(owned[1], "edges", len(self.edges))
        return f"{self.index} of {self.manifest.num_parts}, {nodes}, {edges}, edge_dir={self.manifest.edge_dir!r}"


@short_traceback
def load_partition(
    root_dir: str | os.PathLike[str],
    partition_idx: int,
    verify: bool | Literal["elsewhere"] = True,
) -> Partition:
    """Maps one partition and the books. Other partitions need not be on this machine.

    Args:
        root_dir: What the partitioner was given as ``output_dir``; or the JSON part_config in it; or a URL of a copy of
            it (``s3://``, ``gs://``, ``abfs://``, ``https://``): what the partition needs is copied to ``$GLT_CACHE``
            (default ``~/.cache/glt``), once per host, and compared with its checksums.
        partition_idx: Which partition, in ``[0, num_parts)``.
        verify: Whether to compare contents with the checksums: all of each file. A file of more than 64 MiB is compared
            once per host, until it is written again: what was found is remembered in ``$TMPDIR``. ``'elsewhere'``:
            another process of this host compares them. Files up to 1 GiB are compared before this function returns,
            larger ones by a thread behind, and :meth:`Partition.require_sound` says what it found. Size, shape and
            dtype of every file are always compared with the manifest, and the manifest with its own digest.

    Raises:
        TypeError: If ``partition_idx`` is not an integer, or ``verify`` none of the above.
        PartitionError: If something is missing, truncated, altered or from another run, or ``partition_idx`` is not in
            the directory; names the file.

    Example:
        >>> glt.partition.load_partition("parts", 1)
        Partition(1 of 2, 20 nodes, 40 edges, edge_dir='in')
    """
    if verify != "elsewhere":
        check_flag("verify", verify)
    root = local_directory(root_dir, partition_idx)
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

    files = _Files(root, manifest, index, verify, is_behind=True)
    nodes, edges = map(files.nodes, manifest.node_types), map(files.edges, manifest.edge_types)
    return Partition(manifest, index, manifest.schema, tuple(nodes), tuple(edges), root, files.watch())


@short_traceback
def load_id_map(
    root_dir: str | os.PathLike[str], type_: NodeType | EdgeType | None = None, verify: bool = True
) -> IdMap:
    """Maps the original ids of the nodes or edges of one type, of a directory written with ``relabel=True``.

    Args:
        root_dir: What the partitioner was given as ``output_dir``; only the manifest and the maps need to be there.
        type_: A node type or an edge type; None stands for the only node type. Of a homogeneous graph ``"node"`` or
            ``("node", "to", "node")``.
        verify: Whether to compare contents with the checksums, before this function returns.

    Raises:
        PartitionError: If the directory was not relabelled, or something is missing, truncated or altered.
        KeyError: If there is no such type; names those there are.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> manifest = glt.partition.RandomPartitioner("relabelled", 2, 40, graph.edge_index, relabel=True).partition()
        >>> glt.partition.load_id_map("relabelled")
        IdMap(original=int32 [40], new=int32 [40])
    """
    check_flag("verify", verify)
    root = local_directory(root_dir, 0)
    manifest = Manifest.read(root)
    files, schema = _Files(root, manifest, 0, verify), manifest.schema
    if type_ is None or isinstance(type_, str):
        nodes = manifest.node_types[schema.node_index(type_)]
        found = files.id_map("node", nodes.node_type, nodes.num_nodes)
    else:
        edges = manifest.edge_types[schema.edge_index(type_)]
        found = files.id_map("edge", edges.edge_type, edges.num_edges)
    if found is None:
        raise PartitionError(f"{root} was written without relabel=True: its ids are those of the input")
    return found


@dataclass(frozen=True)
class _Files:
    """The files of a directory, of which partition ``index`` is looked at."""

    root: Path
    manifest: Manifest
    index: int
    verify: bool | Literal["elsewhere"]
    is_behind: bool = False  # whether large files may be compared while they are used
    unverified: list[tuple[Contents, Record]] = field(default_factory=list)

    @cached_property
    def in_huge_pages(self) -> frozenset[str]:
        """Files of this partition that are to be in pages of 2 MiB: larger ones than 64 MiB, as far as half of the
        available memory takes them together with those of all other partitions that are on this host, graphs first. Of
        what memory does not take, each miss would read 2 MiB."""
        if not has_huge_pages():
            return frozenset()
        here = {None, *(i for i in range(self.manifest.num_parts) if (self.root / layout.part(i)).is_dir())}
        files = [(path, entry.num_bytes) for path, entry in self.manifest.files.items()]
        large = [(path, size) for path, size in files if size > REMEMBERED_BYTES and layout.part_of(path) in here]
        large.sort(key=lambda file: "/graph/" not in file[0])
        fitting = int(np.searchsorted(np.cumsum([size for _, size in large]), available_memory()[0] // 2, "right"))
        return frozenset(path for path, _ in large[:fitting] if layout.part_of(path) in (None, self.index))

    @cached_property
    def ends(self) -> tuple[tuple[int, int], ...]:
        return self.manifest.schema.ends(self.manifest.edge_dir)

    def map(self, path: str, shape: tuple[int, ...], dtype: str = "", wanted: object = True) -> Any:
        """Maps a file of this shape and torch dtype, by default of integers, as a tensor where NumPy lacks the dtype;
        returns None if it is not ``wanted``."""
        if not wanted:
            return None
        entry = self.manifest.file(self.root, path)
        if entry.shape != shape or entry.torch_dtype not in ((dtype,) if dtype else _INTEGERS):
            raise PartitionError(
                f"{self.root / layout.MANIFEST} lists {path} with {entry.torch_dtype} {list(entry.shape)}: its types "
                f"call for {dtype or 'integers'} {list(shape)}; partition again"
            )
        origin = f"run {self.manifest.run_id}"
        contents = Contents(
            self.root / path,
            entry,
            self.manifest.checksum_block_bytes,
            origin,
            in_huge_pages=path in self.in_huge_pages,
        )
        array = map_file(contents.path, entry, origin=origin)
        if path in self.in_huge_pages:
            pages: mmap.mmap = array._mmap  # type: ignore[attr-defined]
            pages.madvise(mmap.MADV_HUGEPAGE)  # what is read through it comes in pages of 2 MiB
        record = Record.of(contents) if self.verify and self.is_behind and contents.is_large else None
        if record is not None:
            if contents.in_huge_pages and self.verify is True and record.found() is None and record.lock():
                contents.drop_small_pages()  # unless another process is at it
            self.unverified.append((contents, record))
        elif self.verify is True:
            contents.compare_once()
        return as_torch_dtype(array, entry.torch_dtype)

    def watch(self) -> Watch:
        watch = Watch(self.unverified)
        if self.verify is True:
            watch.compare_behind()
        return watch

    def table(self, path: str, rows: int, entry: FeatureEntry | None) -> Any:
        if entry is None:
            return None
        dtype, shape = entry.stored
        return self.map(path, (rows, *shape), dtype)

    def attrs(
        self, kind: str, type_: NodeType | EdgeType, rows: int, entries: Mapping[str, FeatureEntry]
    ) -> dict[str, Array]:
        return {name: self.table(layout.attr(self.index, kind, type_, name), rows, e) for name, e in entries.items()}

    def book(self, offsets: tuple[int, ...] | None, kind: str, type_: NodeType | EdgeType, size: int) -> PartitionBook:
        if offsets is not None:
            return PartitionBook.of_ranges(offsets)
        owner = self.map(layout.shared(f"{kind}_book", type_), (size,))
        row = self.map(layout.shared(f"{kind}_row", type_), (size,), "uint32")
        try:
            return PartitionBook.of_arrays(owner, row, self.manifest.num_parts)
        except (TypeError, ValueError) as error:
            raise PartitionError(f"{self.root / layout.shared(f'{kind}_book', type_)}: {error}") from error

    def id_map(self, kind: str, type_: NodeType | EdgeType, size: int) -> IdMap | None:
        if not self.manifest.is_relabelled:
            return None
        return IdMap(*(self.map(layout.shared(f"{kind}_{each}", type_), (size,)) for each in ("map", "map_inverse")))

    def nodes(self, entry: NodeTypeEntry) -> NodePart:
        type_, offsets, index, size = entry.node_type, entry.offsets, self.index, entry.num_nodes
        path_of, rows = partial(layout.in_part, index), entry.part_num_nodes[index]
        cache, hotness = None, path_of("node_hotness", type_)  # directories of before have no hotness
        if entry.forecast is not None and index < len(kept := entry.forecast.num_cached) and kept[index]:
            cache = CachePart(
                ids=self.map(path_of("cache", type_, "ids"), (kept[index],), "int64"),
                feat=self.table(path_of("cache", type_, "feat"), kept[index], entry.feat),
                label=self.table(path_of("cache", type_, "label"), kept[index], entry.label),
                time=self.map(path_of("cache", type_, "time"), (kept[index],), "int64", entry.has_time),
                attrs=self.attrs("cache", type_, kept[index], entry.attrs),
            )
        kind = self.manifest.files[hotness].torch_dtype if hotness in self.manifest.files else ""
        return NodePart(
            book=self.book(offsets, "node", type_, size),
            feat=self.table(path_of("node_feat", type_), rows, entry.feat),
            label=self.table(path_of("node_label", type_), rows, entry.label),
            time=self.map(path_of("node_time", type_), (rows,), "int64", entry.has_time),
            attrs=self.attrs("node_attr", type_, rows, entry.attrs),
            id_map=self.id_map("node", type_, size),
            owned=range(*offsets[index:][:2]) if offsets else self.map(path_of("node_ids", type_), (rows,), "int64"),
            cache=cache,
            hotness=self.map(hotness, (rows,), "float64" if kind == "float64" else "float32", kind),
            keys=self.keys(entry),
        )

    def keys(self, entry: NodeTypeEntry) -> KeyMap | None:
        if entry.keys is None:
            return None
        folder = layout.keys(entry.node_type)
        for path in [each for each in self.manifest.files if each.startswith(f"{folder}/")]:
            self.map(path, self.manifest.files[path].shape, self.manifest.files[path].torch_dtype)
        keys = KeyMap(self.root / folder, entry.keys)
        if len(keys) != entry.num_nodes:
            raise PartitionError(
                f"{self.root / folder} has {len(keys)} keys of {entry.num_nodes} nodes of type {entry.node_type!r}: "
                "partition again"
            )
        return keys

    def edges(self, entry: EdgeTypeEntry) -> EdgePart:
        type_, offsets, size, num_edges = (
            entry.edge_type,
            entry.offsets,
            entry.num_edges,
            entry.part_num_edges[self.index],
        )
        expanded = self.manifest.node_types[self.ends[self.manifest.edge_types.index(entry)][0]]
        rows = expanded.part_num_nodes[self.index]
        path_of = partial(layout.in_part, self.index, "graph", type_)
        by_time = None
        if entry.has_time:
            by_time = TimedEdges(
                self.map(path_of("by_time/indices"), (num_edges,)),
                self.map(path_of("by_time/edge_ids"), (num_edges,)),
                self.map(path_of("by_time/time"), (num_edges,), "int64"),
            )
        guide_size = _core.weight_guide_size(rows, num_edges) if entry.has_weight else 0
        return EdgePart(
            indptr=self.map(path_of("indptr"), (rows + 1,), "int64"),
            indices=self.map(path_of("indices"), (num_edges,)),
            edge_ids=self.map(path_of("edge_ids"), (num_edges,)),
            weight_sum=self.map(path_of("weight_sum"), (num_edges,), "uint64", entry.has_weight),
            weight_guide=self.map(path_of("weight_guide"), (guide_size,), "uint32", entry.has_weight),
            by_time=by_time,
            feat=self.table(layout.in_part(self.index, "edge_feat", type_), num_edges, entry.feat),
            book=self.book(offsets, "edge", type_, size) if entry.has_rows or offsets else None,
            attrs=self.attrs("edge_attr", type_, num_edges, entry.attrs),
            id_map=self.id_map("edge", type_, size),
        )


_INTEGERS = ("int32", "int64", "uint8", "uint16", "uint32")
