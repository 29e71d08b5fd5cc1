"""``manifest.json``: what a partition directory holds, and how to tell that it still does."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np

from glt.data.schema import EdgeType, NodeType, Schema
from glt.errors import PartitionError
from glt.partition.arguments import chunks
from glt.partition.format import layout
from glt.partition.format.book import Book
from glt.partition.format.files import FileEntry, Rows
from glt.partition.graph_input import EdgeInput, NodeInput
from glt.partition.hotness import ReadForecast

FORMAT: Final = "glt-partition"
VERSION: Final = 3  # 1: no types; 2: no attributes, no relabelling, no caches, no balance


@dataclass(frozen=True)
class FeatureEntry:
    """One table of features or labels: its torch dtype, and the shape of a row (``()`` for a 1-d table)."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LabelEntry:
    """The nodes of one type that have one label in ``balance_ntypes``.

    Attributes:
        label: The label; of several tables of labels, one number from each; ``()`` where the type itself is balanced.
        num_nodes: In all partitions.
        part_num_nodes: In each partition.
        balance_ratio: Mean over largest partition; 1 is perfectly even.
    """

    label: tuple[int, ...]
    num_nodes: int
    part_num_nodes: tuple[int, ...]
    balance_ratio: float

    @classmethod
    def of(cls, label: tuple[int, ...], part_num_nodes: tuple[int, ...]) -> LabelEntry:
        return cls(label, sum(part_num_nodes), part_num_nodes, balance_ratio(part_num_nodes))


@dataclass(frozen=True)
class NodeTypeEntry:
    """The nodes of one type.

    Attributes:
        node_type: The type.
        num_nodes: In all partitions.
        part_num_nodes: In each partition.
        balance_ratio: Mean over largest partition; 1 is perfectly even.
        feat: Node features, if any.
        label: Node labels, if any.
        has_time: Whether there are node times.
        attrs: Named tables, if any.
        balanced_labels: The labels that the partitioner was asked to balance, ascending; none where it was not asked.
        offsets: With relabelling, where the ids of each partition begin, and the number of nodes: ``[num_parts + 1]``;
            else None.
        forecast: Where features will be read from; None without hotness or without features.
    """

    node_type: NodeType
    num_nodes: int
    part_num_nodes: tuple[int, ...]
    balance_ratio: float
    feat: FeatureEntry | None
    label: FeatureEntry | None
    has_time: bool
    attrs: dict[str, FeatureEntry]
    balanced_labels: tuple[LabelEntry, ...]
    offsets: tuple[int, ...] | None
    forecast: ReadForecast | None


@dataclass(frozen=True)
class EdgeTypeEntry:
    """The edges of one type.

    Attributes:
        edge_type: The type: source, relation, destination.
        num_edges: In all partitions.
        part_num_edges: In each partition.
        balance_ratio: Mean over largest partition; 1 is perfectly even.
        num_cut_edges: Edges whose ends have different owners.
        edge_cut_ratio: ``num_cut_edges / num_edges``, 0 without edges.
        remote_bytes_per_edge: Bytes of node features expected from another partition when an edge is followed, each
            edge being as likely as any other and nothing cached.
        feat: Edge features, if any.
        has_weight: Whether there are edge weights.
        has_time: Whether edges have times, their own or those of their neighbours.
        attrs: Named tables, if any.
        offsets: As of nodes.
    """

    edge_type: EdgeType
    num_edges: int
    part_num_edges: tuple[int, ...]
    balance_ratio: float
    num_cut_edges: int
    edge_cut_ratio: float
    remote_bytes_per_edge: float
    feat: FeatureEntry | None
    has_weight: bool
    has_time: bool
    attrs: dict[str, FeatureEntry]
    offsets: tuple[int, ...] | None

    @property
    def has_rows(self) -> bool:
        """Whether partitions have rows of edges, and with them a book of edges."""
        return self.feat is not None or bool(self.attrs)


@dataclass(frozen=True)
class Manifest:
    """Everything known about a partition directory.

    Attributes:
        num_parts: Number of partitions.
        edge_dir: ``"out"``: a row holds the out-edges of a node (CSR, assigned ``by_src``); ``"in"``: its in-edges
            (CSC, assigned ``by_dst``).
        strategy: Name of the partitioner's class.
        arguments: What determines its result besides the graph, for example ``{"random_seed": 0}``.
        checksum_block_bytes: Size of the blocks behind every file's checksum.
        time_level: Whose times edges have: ``"edge"`` (their own), ``"node"`` (that of the neighbour, the end that does
            not own them) or None.
        is_hetero: Whether the partitioner was given dicts by type.
        node_types: In the order of the partitioner's ``num_nodes``; a homogeneous graph has the one type ``"node"``.
        edge_types: In the order of the partitioner's ``edge_index``, which is part of the key of random draws; a
            homogeneous graph has the one type ``("node", "to", "node")``.
        files: By path relative to the root, with ``/`` between names.
        glt_version: Version of glt that wrote the directory.
        run_id: Digest of all of the above, file checksums included. Two directories with the same run id hold the same
            data and their partitions may be mixed; ranks compare it to make sure that they serve one run.
        format: ``"glt-partition"``.
        version: Version of the format.
    """

    num_parts: int
    edge_dir: str
    strategy: str
    arguments: dict[str, Any]
    checksum_block_bytes: int
    time_level: str | None
    is_hetero: bool
    node_types: tuple[NodeTypeEntry, ...]
    edge_types: tuple[EdgeTypeEntry, ...]
    files: dict[str, FileEntry]
    glt_version: str
    run_id: str = ""
    format: str = FORMAT
    version: int = VERSION

    @property
    def schema(self) -> Schema:
        """The types, in order."""
        return Schema(
            tuple(entry.node_type for entry in self.node_types),
            tuple(entry.edge_type for entry in self.edge_types),
            self.is_hetero,
        )

    @property
    def is_relabelled(self) -> bool:
        """Whether ids are those that the partitioner gave, with ``relabel=True``."""
        return self.node_types[0].offsets is not None

    @property
    def num_nodes(self) -> int:
        """Nodes of all types in all partitions."""
        return sum(entry.num_nodes for entry in self.node_types)

    @property
    def num_edges(self) -> int:
        """Edges of all types in all partitions."""
        return sum(entry.num_edges for entry in self.edge_types)

    @property
    def part_num_nodes(self) -> tuple[int, ...]:
        """Nodes of all types in each partition."""
        return _sums(entry.part_num_nodes for entry in self.node_types)

    @property
    def part_num_edges(self) -> tuple[int, ...]:
        """Edges of all types in each partition."""
        return _sums([(0,) * self.num_parts, *(entry.part_num_edges for entry in self.edge_types)])

    @property
    def edge_cut_ratio(self) -> float:
        """Share of all edges whose ends have different owners."""
        return sum(entry.num_cut_edges for entry in self.edge_types) / max(self.num_edges, 1)

    @property
    def forecast(self) -> ReadForecast | None:
        """Where node features of all types will be read from; None without hotness."""
        return ReadForecast.of_all([entry.forecast for entry in self.node_types if entry.forecast is not None])

    def summary(self) -> str:
        """Returns the report of a run in one line; of several types, the least balanced and the most remote count."""
        nodes = min(entry.balance_ratio for entry in self.node_types)
        edges = min((entry.balance_ratio for entry in self.edge_types), default=1.0)
        remote = max((entry.remote_bytes_per_edge for entry in self.edge_types), default=0.0)
        labels = [label.balance_ratio for entry in self.node_types for label in entry.balanced_labels]
        of_labels = f", of {len(labels)} labels {min(labels):.3f}" if labels else ""
        types = f" of {len(self.node_types)} and {len(self.edge_types)} types" if self.is_hetero else ""
        reads = "" if self.forecast is None else self.forecast.summary() + ", "
        return (
            f"{self.strategy}: {self.num_nodes} nodes and {self.num_edges} edges{types} in {self.num_parts} "
            f"partitions, edge_dir '{self.edge_dir}', edge cut {self.edge_cut_ratio:.1%}, balance of nodes "
            f"{nodes:.3f}{of_labels} and of edges {edges:.3f} (mean over largest), {remote:.1f} remote feature bytes "
            f"per edge, {reads}run {self.run_id}"
        )

    def signed(self) -> Manifest:
        """Returns the same manifest with its run id."""
        return replace(self, run_id=digest_of(asdict(self)))

    def write(self, root: Path) -> None:
        """Writes ``manifest.json`` into ``root``; the last file of a directory to be written."""
        (root / layout.MANIFEST).write_bytes(text_of(asdict(self)))

    def to_json(self) -> dict[str, Any]:
        """Returns all but the list of files, for those who hold no partition."""
        return asdict(replace(self, files={}))

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Manifest:
        """Rebuilds what :meth:`to_json` described."""
        return _parse(document)

    @classmethod
    def read(cls, root: Path) -> Manifest:
        """Reads the manifest of the partition directory ``root``.

        Raises:
            PartitionError: If there is none, if this version of glt cannot read it, or if it was altered.
        """
        path = root / layout.MANIFEST
        if not root.is_dir():
            raise PartitionError(f"{root} is not a directory: expected what a partitioner wrote; partition first")
        try:
            content = path.read_bytes()
            document = json.loads(content)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise PartitionError(
                f"{path} is missing: {root} is not a partition directory, or its partitioner was stopped half-way; "
                "partition again"
            ) from error
        except ValueError as error:  # not JSON, or not UTF-8
            raise PartitionError(f"{path} is truncated or altered ({error}): partition again") from error
        found = document.get("format") if isinstance(document, dict) else None
        if found != FORMAT:
            raise PartitionError(f"{path} has format {found!r}: expected {FORMAT!r}; partition again with glt")
        if document.get("version") != VERSION:
            raise PartitionError(
                f"{path} has version {document.get('version')!r}: this glt ({installed_version()}) reads version "
                f"{VERSION}; install the glt that wrote it ({document.get('glt_version')}), or partition again"
            )
        # Byte for byte: a space for a newline would say the same, but is not what was written either.
        if document.get("run_id") != digest_of(document) or text_of(document) != content:
            raise PartitionError(
                f"{path} was altered: its contents do not have run_id {document.get('run_id')!r}; copy the "
                "directory again, or partition again"
            )
        try:
            return _parse(document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise PartitionError(
                f"{path} does not follow version {VERSION} of the format ({type(error).__name__}: {error}); "
                "partition again"
            ) from error


def balance_ratio(counts: tuple[int, ...]) -> float:
    """Returns the mean of ``counts`` over the largest: 1 is perfectly even, as is nothing at all."""
    return sum(counts) / (len(counts) * max(counts)) if max(counts) else 1.0


def installed_version() -> str:
    """Returns the version of the installed glt, ``"source"`` when it runs from a source tree."""
    try:
        return metadata.version("glt")
    except metadata.PackageNotFoundError:
        return "source"


def text_of(document: dict[str, Any]) -> bytes:
    """Returns a manifest as it is written."""
    return (json.dumps(document, indent=1) + "\n").encode()


def digest_of(document: dict[str, Any]) -> str:
    """Returns what identifies a manifest: a digest of all of it but its ``run_id``."""
    content = {key: value for key, value in document.items() if key != "run_id"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _feature(entry: dict[str, Any] | None) -> FeatureEntry | None:
    return None if entry is None else FeatureEntry(**{**entry, "shape": tuple(entry["shape"])})


def _forecast(entry: dict[str, Any] | None) -> ReadForecast | None:
    return None if entry is None else ReadForecast(**{name: tuple(values) for name, values in entry.items()})


def _features(entries: dict[str, Any]) -> dict[str, FeatureEntry]:
    return {name: FeatureEntry(**{**entry, "shape": tuple(entry["shape"])}) for name, entry in entries.items()}


def _label(entry: dict[str, Any]) -> LabelEntry:
    return LabelEntry(**{**entry, "label": tuple(entry["label"]), "part_num_nodes": tuple(entry["part_num_nodes"])})


def _offsets(entry: dict[str, Any]) -> tuple[int, ...] | None:
    if entry["offsets"] is None:
        return None
    counts = entry["part_num_nodes"] if "part_num_nodes" in entry else entry["part_num_edges"]
    expected = tuple(accumulate(counts, initial=0))
    if tuple(entry["offsets"]) != expected:
        raise ValueError(f"offsets = {entry['offsets']}: expected {list(expected)}, the sums of the partitions' counts")
    return expected


def _node_type(entry: dict[str, Any]) -> NodeTypeEntry:
    parsed = {
        "part_num_nodes": tuple(entry["part_num_nodes"]),
        "offsets": _offsets(entry),
        "feat": _feature(entry["feat"]),
        "label": _feature(entry["label"]),
        "forecast": _forecast(entry["forecast"]),
        "attrs": _features(entry["attrs"]),
        "balanced_labels": tuple(map(_label, entry["balanced_labels"])),
    }
    return NodeTypeEntry(**{**entry, **parsed})


def _edge_type(entry: dict[str, Any]) -> EdgeTypeEntry:
    parsed = {
        "edge_type": tuple(entry["edge_type"]),
        "part_num_edges": tuple(entry["part_num_edges"]),
        "offsets": _offsets(entry),
        "feat": _feature(entry["feat"]),
        "attrs": _features(entry["attrs"]),
    }
    return EdgeTypeEntry(**{**entry, **parsed})


def _parse(document: dict[str, Any]) -> Manifest:
    parsed = {
        "node_types": tuple(map(_node_type, document["node_types"])),
        "edge_types": tuple(map(_edge_type, document["edge_types"])),
        "files": {
            path: FileEntry(**{**entry, "shape": tuple(entry["shape"])}) for path, entry in document["files"].items()
        },
    }
    manifest = Manifest(**{**document, **parsed})
    _ = manifest.schema  # raises where the types do not fit together
    types: list[NodeTypeEntry | EdgeTypeEntry] = [*manifest.node_types, *manifest.edge_types]
    if any((each.offsets is not None) != manifest.is_relabelled for each in types):
        raise ValueError("offsets are given of some types only: expected all of them, or none")
    return manifest


def _sums(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*counts, strict=True)))


# How the values of masks and classes are spread over partitions.


MAX_VALUES: Final = 64  # a table with more distinct values counts something else than classes


@dataclass(frozen=True)
class ValueCount:
    """One value of a table.

    Attributes:
        table: Name of the table, for example ``"label"``.
        value: The value; ``True`` of a mask.
        part_counts: Nodes with it in each partition that was counted.
        balance_ratio: Mean over largest partition; 1 is perfectly even.
    """

    table: str
    value: int | bool
    part_counts: tuple[int, ...]
    balance_ratio: float


def count_values(table: str, parts: Sequence[np.ndarray]) -> tuple[ValueCount, ...]:
    """Counts the values of a table in each partition.

    Args:
        table: Its name.
        parts: Its rows in each partition.

    Returns:
        One count for each value, ascending; of a mask for ``True`` only. Nothing unless the table has one boolean or
        integer per node and at most ``MAX_VALUES`` values.
    """
    if not parts or any(rows.dtype.kind not in "biu" or rows.size != len(rows) for rows in parts):
        return ()
    counts: dict[int | bool, list[int]] = {}
    for at, rows in enumerate(parts):
        for _, chunk in chunks(rows.reshape(-1)):
            values, found = np.unique(chunk, return_counts=True)
            for value, count in zip(values.tolist(), found.tolist(), strict=True):
                counts.setdefault(value, [0] * len(parts))[at] += count
            if len(counts) > MAX_VALUES:
                return ()
    wanted = [True] if parts[0].dtype.kind == "b" else sorted(counts)
    return tuple(
        ValueCount(table, value, tuple(per_part), balance(per_part))
        for value in wanted
        if (per_part := counts.get(value, [0] * len(parts)))
    )


def balance(counts: Sequence[int]) -> float:
    """Returns mean over largest; 1 where there is nothing to balance."""
    return sum(counts) / (len(counts) * max(counts)) if any(counts) else 1.0


# What the manifest says of the types of a graph, from what a partitioner was given and made of it.


def node_entry(
    nodes: NodeInput,
    book: Book,
    balanced_labels: tuple[LabelEntry, ...],
    reads: ReadForecast | None,
    relabelled: bool,
) -> NodeTypeEntry:
    """Returns the entry of a node type.

    Args:
        nodes, book: The nodes and their owners.
        balanced_labels: What was asked to be balanced, and what came of it.
        reads: What caches are expected to save, if hotness was given.
        relabelled: Whether ids were made contiguous.
    """
    return NodeTypeEntry(
        node_type=nodes.node_type,
        num_nodes=nodes.num_nodes,
        part_num_nodes=book.counts,
        balance_ratio=balance_ratio(book.counts),
        feat=_feature_entry(nodes.feat),
        label=_feature_entry(nodes.label),
        has_time=nodes.time is not None,
        attrs=_attr_entries(nodes.attrs),
        balanced_labels=balanced_labels,
        offsets=_offsets_of(book.counts) if relabelled else None,
        forecast=reads,
    )


def edge_entry(
    edges: EdgeInput, neighbors: NodeInput, part_num_edges: tuple[int, ...], num_cut_edges: int, relabelled: bool
) -> EdgeTypeEntry:
    """Returns the entry of an edge type.

    Args:
        edges, neighbors: The edges, and the nodes at the ends that do not own them.
        part_num_edges: Edges of each partition.
        num_cut_edges: Edges whose ends have different owners.
        relabelled: Whether ids were made contiguous.
    """
    num_edges = sum(part_num_edges)
    edge_cut_ratio = num_cut_edges / max(num_edges, 1)
    feat = neighbors.feat
    row_bytes = 0 if feat is None else feat.array.itemsize * math.prod(feat.row_shape)
    return EdgeTypeEntry(
        edge_type=edges.edge_type,
        num_edges=num_edges,
        part_num_edges=part_num_edges,
        balance_ratio=balance_ratio(part_num_edges),
        num_cut_edges=num_cut_edges,
        edge_cut_ratio=edge_cut_ratio,
        remote_bytes_per_edge=edge_cut_ratio * row_bytes,
        feat=_feature_entry(edges.feat),
        has_weight=edges.weight is not None,
        has_time=edges.has_time,
        attrs=_attr_entries(edges.attrs),
        offsets=_offsets_of(part_num_edges) if relabelled else None,
    )


def _feature_entry(rows: Rows | None) -> FeatureEntry | None:
    return None if rows is None else FeatureEntry(rows.torch_dtype, rows.row_shape)


def _attr_entries(attrs: Mapping[str, Rows]) -> dict[str, FeatureEntry]:
    return {name: FeatureEntry(rows.torch_dtype, rows.row_shape) for name, rows in attrs.items()}


def _offsets_of(counts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(counts, initial=0))
