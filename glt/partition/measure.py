"""What a report measures in the files of a partition directory: the cut matrix, degrees and hotness.

Files are mapped and read front to back, ``CHUNK_IDS`` numbers at a time. Beside the page cache that takes under 100 MB,
and a few kilobytes for each edge type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from glt.data.schema import EdgeType, NodeType
from glt.errors import PartitionError
from glt.partition.format import layout
from glt.partition.format.files import map_file
from glt.partition.format.manifest import Manifest, NodeTypeEntry
from glt.partition.format.rows import chunks

MAX_GROUPS: Final = 32  # rows of a cut matrix; of more partitions equally many neighbours share a row
NODE_SHARES: Final = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_HOT_BINS: Final = 1 << 16  # the upper half of a float32, which for numbers of at least 0 ascends with them

_SHARED_KINDS: Final = ("node_book", "node_row", "edge_book", "edge_row")
_MAP_KINDS: Final = ("node_map", "node_map_inverse", "edge_map", "edge_map_inverse")
_KINDS: Final = {
    **dict.fromkeys(_SHARED_KINDS, "books"),
    **dict.fromkeys(_MAP_KINDS, "id maps"),
    "keys": "keys",
    "graph": "topology",
    "node_ids": "node ids",
    "node_feat": "node features",
    "edge_feat": "edge features",
    "node_attr": "node attributes",
    "edge_attr": "edge attributes",
    "node_label": "labels",
    "node_time": "times of nodes",
    "node_hotness": "hotness",
    "cache": "caches",
}


@dataclass(frozen=True)
class Degrees:
    """Stored degrees of the nodes of the partitions that were read; ``median`` is the lower one.

    ``histogram[0]`` counts nodes without edges, and ``histogram[k]`` degrees from ``2**(k - 1)`` to ``2**k - 1``.
    """

    num_nodes: int
    num_edges: int
    max_degree: int
    median: int
    histogram: tuple[int, ...]

    @classmethod
    def of(cls, counts: Counter[int]) -> Degrees:
        """Sums up the number of nodes by degree."""
        most, num_nodes, seen, median = max(counts, default=0), counts.total(), 0, 0
        for degree in sorted(counts):
            seen += counts[degree]
            if 2 * seen >= num_nodes:
                median = degree
                break
        histogram = [0] * (most.bit_length() + 1)
        for degree, count in counts.items():
            histogram[degree.bit_length()] += count
        num_edges = sum(degree * count for degree, count in counts.items())
        return cls(num_nodes, num_edges, most, median, tuple(histogram))

    @property
    def mean(self) -> float:
        """Edges per node."""
        return self.num_edges / self.num_nodes if self.num_nodes else 0.0

    @property
    def num_isolated(self) -> int:
        """Nodes without an edge in the stored direction."""
        return self.histogram[0]


@dataclass(frozen=True, eq=False)
class EdgeMeasure:
    """Edges of one type, of the partitions that were read: ``cut [num_groups, num_groups]`` int64 counts them by group
    of the node that is expanded and of its neighbour, ``num_local`` those whose ends have one owner. ``num_read
    [num_groups]`` int64 are the partitions of each group that were read.
    """

    edge_type: EdgeType
    degrees: Degrees
    cut: np.ndarray
    num_local: int
    num_read: np.ndarray


@dataclass(frozen=True)
class HotnessMeasure:
    """How partitions read the nodes of one type that they own: the hottest ``NODE_SHARES[i]`` of them draw
    ``read_share[i]`` of those reads, within a hundredth of that share."""

    node_type: NodeType
    read_share: tuple[float, ...]


@dataclass(frozen=True)
class Measures:
    """All of it; ``groups`` are first and last partition of each row of the cut matrices, ``part_bytes`` bytes by
    partition (None: the files that all hosts need) and kind, ``table_bytes`` by table and dtype, and ``unread`` says
    what could not be measured."""

    groups: tuple[tuple[int, int], ...]
    edges: tuple[EdgeMeasure, ...]
    hotness: tuple[HotnessMeasure, ...]
    part_bytes: dict[int | None, dict[str, int]]
    table_bytes: dict[tuple[str, str], int]
    unread: tuple[str, ...]


def measured_bytes(manifest: Manifest, parts: Sequence[int]) -> int:
    """Bytes that :func:`measure` reads, for a progress bar."""
    return sum(
        manifest.files[path].num_bytes
        for part in parts
        for type_ in manifest.schema.edge_types
        for name in ("indptr", "indices")
        if (path := layout.in_part(part, "graph", type_, name)) in manifest.files
    )


def measure(
    root: Path, manifest: Manifest, parts: Sequence[int], bad: set[str], advance: Callable[[int], object]
) -> Measures:
    """Measures the partitions ``parts`` of the directory ``root``, without the files ``bad``. What a damaged file
    spoils is left out whole, and said in ``unread``."""
    size = -(-manifest.num_parts // MAX_GROUPS)
    group_of = np.arange(manifest.num_parts) // size
    begins = np.arange(0, manifest.num_parts, size)
    num_groups, ends = begins.size, np.minimum(begins + size, manifest.num_parts)
    files, unread = _Files(root, manifest, bad), list[str]()
    edges: list[EdgeMeasure] = []
    for at, entry in enumerate(manifest.edge_types):
        neighbor = manifest.node_types[manifest.schema.ends(manifest.edge_dir)[at][1]]
        counts, cut, num_local = Counter[int](), np.zeros((num_groups, num_groups), np.int64), 0
        num_read = np.zeros(num_groups, np.int64)
        owners: _Owners | None = None
        try:
            owners = _Owners(files, neighbor)
        except PartitionError as error:
            unread.append(f"edges {' '.join(entry.edge_type)}: {error}")
        for part in parts:
            if owners is None:
                break
            paths = [layout.in_part(part, "graph", entry.edge_type, name) for name in ("indptr", "indices")]
            try:
                indptr, indices = map(files.map, paths)
                degrees = _degrees(paths[0], indptr, indices.size, advance)
                row = _owned(paths[1], indices, owners, advance)
            except PartitionError as error:
                unread.append(str(error))
                continue
            counts.update(degrees)
            cut[group_of[part]] += np.add.reduceat(row, begins)
            num_local += int(row[part])
            num_read[group_of[part]] += 1
        edges.append(EdgeMeasure(entry.edge_type, Degrees.of(counts), cut, num_local, num_read))
    hotness = [found for entry in manifest.node_types if (found := _hotness(files, entry.node_type, parts, unread))]
    by_part, by_table = _bytes(manifest, parts)
    groups = tuple((begin, end - 1) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True))
    return Measures(groups, tuple(edges), tuple(hotness), by_part, by_table, tuple(unread))


@dataclass(frozen=True)
class _Files:
    root: Path
    manifest: Manifest
    bad: set[str]

    def map(self, path: str) -> np.ndarray:
        if path in self.bad:
            raise PartitionError(f"{path} is missing or damaged: its partition is left out")
        entry = self.manifest.file(self.root, path)
        return map_file(self.root / path, entry, origin=f"run {self.manifest.run_id}")


class _Owners:
    """Who owns nodes of one type: of the book, or of the ranges of relabelled ids."""

    def __init__(self, files: _Files, entry: NodeTypeEntry) -> None:
        self.num_nodes, self.num_parts = entry.num_nodes, files.manifest.num_parts
        self._ends = None if entry.offsets is None else np.array(entry.offsets[1:])
        self._book = np.empty(0, np.uint8)
        if entry.offsets is None:
            self._book = files.map(path := layout.shared("node_book", entry.node_type))
            if any(piece.max() >= self.num_parts for _, piece in chunks(self._book)):
                raise PartitionError(f"{path} names a partition that there is not: copy the directory again")

    def count(self, ids: np.ndarray) -> np.ndarray:
        """Returns how many of the ids each partition owns, int64 ``[num_parts]``."""
        owner = self._book[ids] if self._ends is None else np.searchsorted(self._ends, ids, side="right")
        return np.bincount(owner, minlength=self.num_parts)


def _owned(path: str, indices: np.ndarray, owners: _Owners, advance: Callable[[int], object]) -> np.ndarray:
    counts = np.zeros(owners.num_parts, np.int64)
    for _, piece in chunks(indices):
        if not 0 <= piece.min() <= piece.max() < owners.num_nodes:
            raise PartitionError(f"{path} names a node that there is not: its partition is left out; copy it again")
        counts += owners.count(piece)
        advance(piece.nbytes)
    return counts


def _degrees(path: str, indptr: np.ndarray, num_edges: int, advance: Callable[[int], object]) -> Counter[int]:
    counts = Counter[int]()
    spoilt = f"{path} does not count up to its {num_edges} edges: its partition is left out; copy it again"
    if indptr.size == 0 or indptr[0] != 0 or indptr[-1] != num_edges:
        raise PartitionError(spoilt)
    for begin, piece in chunks(indptr[:-1]):
        degrees = np.diff(indptr[begin : begin + piece.size + 1].astype(np.int64))
        if degrees.min() < 0:
            raise PartitionError(spoilt)
        values, found = np.unique(degrees, return_counts=True)
        counts.update(dict(zip(values.tolist(), found.tolist(), strict=True)))
        advance(piece.nbytes)
    return counts


def _hotness(files: _Files, node_type: NodeType, parts: Sequence[int], unread: list[str]) -> HotnessMeasure | None:
    paths = [layout.in_part(part, "node_hotness", node_type) for part in parts]
    num_nodes, reads = np.zeros(_HOT_BINS, np.int64), np.zeros(_HOT_BINS)
    for path in [path for path in paths if path in files.manifest.files]:
        try:
            for _, piece in chunks(files.map(path)):
                if not (piece.min() >= 0 and piece.max() < np.inf):
                    raise PartitionError(f"{path} holds numbers below 0, or none: left out; copy it again")
                with np.errstate(over="ignore"):
                    bins = (piece.astype(np.float32) + np.float32(0)).view(np.uint32) >> 16  # + 0: there is a -0
                num_nodes += np.bincount(bins, minlength=_HOT_BINS)
                reads += np.bincount(bins, piece, minlength=_HOT_BINS)
        except PartitionError as error:
            unread.append(f"hotness of nodes {node_type}: {error}")
            return None
    if not reads.any():
        return None
    # The hottest first; nodes of one bin differ by less than a hundredth, and count as equal.
    descending = np.flatnonzero(num_nodes)[::-1]
    x, y = (np.concatenate([[0.0], np.cumsum(of[descending]) / of.sum()]) for of in (num_nodes, reads))
    return HotnessMeasure(node_type, tuple(np.interp(NODE_SHARES, x, y).tolist()))


def _bytes(
    manifest: Manifest, parts: Sequence[int]
) -> tuple[dict[int | None, dict[str, int]], dict[tuple[str, str], int]]:
    here: dict[int | None, dict[str, int]] = {None: {}, **{part: {} for part in parts}}
    tables: Counter[tuple[str, str]] = Counter()
    for path, entry in manifest.files.items():
        part = layout.part_of(path)
        if part not in here:
            continue
        names = path.split("/")[0 if part is None else 1 :]
        kind = _KINDS.get(names[0], names[0])
        here[part][kind] = here[part].get(kind, 0) + entry.num_bytes
        if names[0] in ("node_feat", "edge_feat", "node_label", "node_attr", "edge_attr"):
            tables["/".join(names).removesuffix(".npy"), entry.torch_dtype] += entry.num_bytes
    return here, dict(tables)


def expected_cut(manifest: Manifest) -> float:
    """Share of edges that a random assignment with partitions of these sizes would cut."""
    cut = 0.0
    for entry, (expanded, neighbor) in zip(manifest.edge_types, manifest.schema.ends(manifest.edge_dir), strict=True):
        ends = [np.array(manifest.node_types[each].part_num_nodes, float) for each in (expanded, neighbor)]
        first, second = (each / max(each.sum(), 1) for each in ends)
        cut += entry.num_edges * (1 - float(first @ second))
    return cut / max(manifest.num_edges, 1)
