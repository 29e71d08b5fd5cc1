"""The two JSON files of a partition directory: ``manifest.json``, which says what the directory holds and how to tell
that it still does, and the part_config ``<graph_name>.json`` beside it, which names the graph, with the keys of DGL's.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import lru_cache
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from glt._checks import format_size
from glt._reprs import says, typed
from glt.data.schema import EdgeType, NodeType, Schema
from glt.errors import PartitionError
from glt.partition.format import layout
from glt.partition.format.files import FileEntry, Rows

FORMAT: Final = "glt-partition"
VERSION: Final = 3  # 1: no types; 2: no attributes, no relabelling, no caches, no balance


@dataclass(frozen=True)
class FeatureEntry:
    """One table of features or labels: its torch dtype, and the shape of a row (``()`` for a 1-d table)."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, rows: Rows) -> FeatureEntry:
        return cls(rows.torch_dtype, rows.row_shape)


@dataclass(frozen=True)
class LabelEntry:
    """The nodes of one type that have one label in ``balance_ntypes``.

    ``label`` has one number from each table of labels; it is ``()`` where the type itself is balanced.
    """

    label: tuple[int, ...]
    num_nodes: int
    part_num_nodes: tuple[int, ...]
    balance_ratio: float

    @classmethod
    def of(cls, label: tuple[int, ...], part_num_nodes: tuple[int, ...]) -> LabelEntry:
        return cls(label, sum(part_num_nodes), part_num_nodes, balance_ratio(part_num_nodes))


@dataclass(frozen=True)
class EdgeLabelEntry:
    """The edges of one type that go with the nodes of one label, as :class:`LabelEntry`."""

    label: tuple[int, ...]
    num_edges: int
    part_num_edges: tuple[int, ...]
    balance_ratio: float

    @classmethod
    def of(cls, label: tuple[int, ...], part_num_edges: tuple[int, ...]) -> EdgeLabelEntry:
        return cls(label, sum(part_num_edges), part_num_edges, balance_ratio(part_num_edges))


@dataclass(frozen=True)
class ReadForecast:
    """Where the features of one node type will be read from, according to the hotness that the partitioner was given.

    Attributes:
        num_reads: Rows read by each partition, per batch if the hotness was a probability.
        remote_ratio: Share of them that another partition owns.
        hit_ratio: Share of these that are in the partition's cache; 0 without reads.
        num_cached: Nodes in the cache of each partition.
    """

    num_reads: tuple[float, ...]
    remote_ratio: tuple[float, ...]
    hit_ratio: tuple[float, ...]
    num_cached: tuple[int, ...]

    @property
    def num_remote_reads(self) -> float:
        """Rows that another partition owns, read by all partitions."""
        return sum(map(operator.mul, self.num_reads, self.remote_ratio))

    @property
    def num_hits(self) -> float:
        """Of these, rows that are in the cache of the partition that reads them."""
        remote = map(operator.mul, self.num_reads, self.remote_ratio)
        return sum(map(operator.mul, remote, self.hit_ratio))

    @property
    def total_remote_ratio(self) -> float:
        """Share of the reads of all partitions that another one owns and no cache answers."""
        reads = sum(self.num_reads)
        return (self.num_remote_reads - self.num_hits) / reads if reads else 0.0

    @property
    def total_hit_ratio(self) -> float:
        """Share of the reads of all partitions of rows that another one owns that caches answer."""
        return self.num_hits / self.num_remote_reads if self.num_remote_reads else 0.0

    def summary(self) -> str:
        """Returns the forecast in one line."""
        text = f"{self.total_remote_ratio:.1%} of feature reads expected to be remote"
        if any(self.num_cached):
            shown = " ".join(map(str, self.num_cached[:16])) + (" ..." if len(self.num_cached) > 16 else "")
            text += f", caches ({shown} nodes) answering {self.total_hit_ratio:.1%} of those that would be without them"
        return text

    @classmethod
    def of_all(cls, forecasts: Sequence[ReadForecast]) -> ReadForecast | None:
        """Returns the forecast of all node types together; None without any."""
        if not forecasts:
            return None
        names = ("num_reads", "remote_ratio", "hit_ratio")
        reads, remote, hits = (np.array([getattr(each, name) for each in forecasts], float) for name in names)
        remote *= reads
        hits *= remote
        reads, remote, hits = reads.sum(0), remote.sum(0), hits.sum(0)
        return cls(
            tuple(reads.tolist()),
            tuple(np.divide(remote, reads, out=np.zeros_like(reads), where=reads > 0).tolist()),
            tuple(np.divide(hits, remote, out=np.zeros_like(reads), where=remote > 0).tolist()),
            tuple(map(sum, zip(*(each.num_cached for each in forecasts), strict=True))),
        )


@dataclass(frozen=True)
class NodeTypeEntry:
    """The nodes of one type; ``balance_ratio`` is mean over largest partition, 1 being even, and ``offsets [num_parts +
    1]``, with relabelling, where the ids of each partition begin. ``balanced_labels`` are those that the partitioner
    was asked to balance, ascending; ``forecast`` is None without hotness or without features.
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
    """The edges of one type, as :class:`NodeTypeEntry`; ``num_cut_edges`` have ends of different owners, and
    ``remote_bytes_per_edge`` are the bytes of node features expected from another partition when an edge is followed,
    each edge being as likely as any other and nothing cached. ``has_time``: edges have times, their own or their
    neighbours'. ``balanced_labels`` are those of the nodes that the edges go with, where the partitioner was asked to
    balance edges and labels.
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
    balanced_labels: tuple[EdgeLabelEntry, ...] = ()  # directories of earlier versions do not say

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
        node_types, edge_types: In the order of the partitioner's ``num_nodes`` and ``edge_index``, the latter part of
            the key of random draws; a homogeneous graph has the types ``"node"`` and ``("node", "to", "node")``.
        files: By path relative to the root, with ``/`` between names.
        glt_version: Version of glt that wrote the directory.
        run_id: Digest of all of the above, file checksums included. Two directories with the same run id hold the same
            data and their partitions may be mixed.
        format, version: ``"glt-partition"``, and the version of the format.

    Example:
        >>> from pathlib import Path
        >>> manifest = glt.partition.Manifest.read(Path("parts"))
        >>> manifest
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='in', 14 files, 4.1 KB)
        >>> manifest.part_num_nodes
        (20, 20)
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
        return tuple(sum(entry.part_num_nodes[part] for entry in self.node_types) for part in range(self.num_parts))

    @property
    def part_num_edges(self) -> tuple[int, ...]:
        """Edges of all types in each partition."""
        return tuple(sum(entry.part_num_edges[part] for entry in self.edge_types) for part in range(self.num_parts))

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
        manifest: Manifest = _parsed(cls, document)
        _ = manifest.schema  # raises where the types do not fit together
        types = [(each.part_num_nodes, each.offsets) for each in manifest.node_types]
        types += [(each.part_num_edges, each.offsets) for each in manifest.edge_types]
        for counts, offsets in types:
            if (offsets is not None) != manifest.is_relabelled:
                raise ValueError("offsets are given of some types only: expected all of them, or none")
            if offsets is not None and offsets != (expected := tuple(accumulate(counts, initial=0))):
                raise ValueError(f"offsets = {offsets}: expected {expected}, the sums of the partitions' counts")
        return manifest

    @classmethod
    def read(cls, root: str | os.PathLike[str]) -> Manifest:
        """Reads the manifest of the partition directory ``root``.

        Raises:
            PartitionError: If there is none, if this version of glt cannot read it, or if it was altered.
        """
        root = Path(root)
        path = root / layout.MANIFEST
        if not root.is_dir():
            raise PartitionError(f"{root} is not a directory: expected what a partitioner wrote; partition first")
        try:
            content = path.read_bytes()
            document = json.loads(content)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise PartitionError(
                f"{path} is missing: {root} is not a partition directory, or its partitioner was stopped half-way: "
                "expected a partition directory, or its <graph_name>.json; partition again"
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
            return cls.from_json(document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise PartitionError(
                f"{path} does not follow version {VERSION} of the format ({type(error).__name__}: {error}); "
                "partition again"
            ) from error

    @says
    def __repr__(self) -> str:
        nodes = typed(self.num_nodes, "nodes", len(self.node_types))
        edges = typed(self.num_edges, "edges", len(self.edge_types))
        files = f"{len(self.files)} files, {format_size(sum(entry.num_bytes for entry in self.files.values()))}"
        return f"{self.num_parts} partitions by {self.strategy}, {nodes}, {edges}, edge_dir={self.edge_dir!r}, {files}"


def balance_ratio(counts: Sequence[int]) -> float:
    """Returns the mean of ``counts`` over the largest: 1 is perfectly even, as is nothing at all."""
    return sum(counts) / (len(counts) * max(counts)) if any(counts) else 1.0


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


_hints_of = lru_cache(get_type_hints)


def _parsed(kind: Any, value: Any) -> Any:
    """Undoes what JSON does to a value of type ``kind``: objects become dataclasses again, lists tuples."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints_of(kind)
        return kind(**{name: _parsed(hints[name], each) for name, each in value.items()})
    origin, of = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _parsed(of[0], value)
    if origin is tuple:
        return tuple(_parsed(of[0], each) for each in value)
    if origin is dict:
        return {key: _parsed(of[1], each) for key, each in value.items()}
    return value


_SUFFIX: Final = ".json"
_OURS: Final = "glt"  # the key that DGL's own files lack


class PartConfig(NamedTuple):
    """The directory of a partitioned graph, and its name: the directory's where :func:`partition_graph` was told
    none.

    Example:
        >>> glt.partition.read_part_config("parts").graph_name
        'parts'
    """

    directory: Path
    graph_name: str


def require_graph_name(name: object) -> str:
    """Returns ``name``; raises TypeError or ValueError if it is no text, or cannot be a file's name."""
    if not isinstance(name, str):
        raise TypeError(f"graph_name = {name!r}: expected text")
    num_bytes = len((name + _SUFFIX).encode("utf-8", "surrogatepass"))
    if not name or name.startswith(".") or "/" in name or "\0" in name or num_bytes > 255:
        raise ValueError(
            f"graph_name = {name!r}: expected a name for the file <graph_name>.json: some characters, no '/', no '.' "
            "in front, 250 bytes at most"
        )
    if name + _SUFFIX == layout.MANIFEST:
        raise ValueError(f"graph_name = {name!r}: {layout.MANIFEST} is the manifest's file; choose another name")
    return name


def write_part_config(directory: str | os.PathLike[str], graph_name: str, part_method: str, **more: Any) -> Path:
    """Writes the part_config of a whole partition directory, with the keys ``more`` too, and returns its path.

    Its keys are DGL's: ``graph_name, part_method, num_parts, halo_hops, num_nodes, num_edges, ntypes, etypes``; of a
    relabelled directory ``node_map`` and ``edge_map``, by type a ``[first id, end]`` for each partition, which count
    nodes of all types together as DGL does; of others the paths of the books; ``part-<i>``, the folders of a partition.
    ``halo_hops`` is 1: of the nodes around a partition it has the ids. ``glt`` names the manifest and the run.

    Raises:
        PartitionError: If there is no whole partition directory.
        TypeError, ValueError: If the name is unusable.
    """
    root = Path(directory)
    manifest = Manifest.read(root)
    nodes, edges = manifest.node_types, manifest.edge_types
    node_names, edge_names = dgl_names(manifest)
    if manifest.is_relabelled:
        node_map: list[Any] = _ranges([entry.part_num_nodes for entry in nodes])
        edge_map: list[Any] = _ranges([entry.part_num_edges for entry in edges])
    else:
        node_map = [layout.shared("node_book", each.node_type) for each in nodes]
        edge_map = [layout.shared("edge_book", each.edge_type) if each.has_rows else None for each in edges]
    document: dict[str, Any] = {
        "graph_name": require_graph_name(graph_name),
        "part_method": part_method,
        "num_parts": manifest.num_parts,
        "halo_hops": 1,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        "ntypes": {name: at for at, name in enumerate(node_names)},
        "etypes": {name: at for at, name in enumerate(edge_names)},
        "node_map": dict(zip(node_names, node_map, strict=True)),
        "edge_map": dict(zip(edge_names, edge_map, strict=True)),
    }
    folders = {"node_feats": "node_feat", "edge_feats": "edge_feat", "part_graph": "graph"}
    for part in range(manifest.num_parts):
        document[f"part-{part}"] = {key: f"{layout.part(part)}/{folder}" for key, folder in folders.items()}
    document |= more
    document[_OURS] = {"manifest": layout.MANIFEST, "run_id": manifest.run_id}
    path = root / (graph_name + _SUFFIX)
    partial = root / f".{layout.MANIFEST}-{os.getpid()}"  # a name that fits, however long the graph's is
    try:
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def read_part_config(path: str | os.PathLike[str]) -> PartConfig:
    """Returns the partition directory and the name of the graph that a part_config speaks of.

    Args:
        path: The JSON file that :func:`partition_graph` or ``glt import dgl`` wrote; a partition directory; or DGL's
            own file, where it lies beside the manifest of the directory that was imported from it.

    Raises:
        PartitionError: If there is no such directory, or the file is of another one; says what to do.

    Example:
        >>> glt.partition.partition_graph(glt.testing.ring_graph().to_data(), "ring", 2, "ring", part_method="random")
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='in', 16 files, 5.5 KB)
        >>> glt.partition.read_part_config("ring/ring.json").graph_name
        'ring'
    """
    given = Path(os.path.abspath(path))
    if given.is_dir():
        names = graph_names(given, Manifest.read(given))
        if len(names) > 1:
            raise PartitionError(f"{given} has the part_configs of {names}: name one of them, such as {names[0]}.json")
        return PartConfig(given, names[0] if names else given.name)
    document = _document(given)
    if document is None:
        raise PartitionError(
            f"{given} is no part_config: expected the JSON file that glt.partition.partition_graph wrote, or a "
            "partition directory"
        )
    ours = document.get(_OURS)
    if ours is None and not (given.parent / layout.MANIFEST).exists():
        raise PartitionError(
            f"{given} is DGL's own, and its partitions were not imported: run 'glt import dgl {given} --out DIR', "
            "and give DIR"
        )
    manifest = Manifest.read(given.parent)
    if ours is None:
        found = tuple(document.get(key) for key in ("num_parts", "num_nodes", "num_edges"))
        expected = (manifest.num_parts, manifest.num_nodes, manifest.num_edges)
        if found != expected:
            raise PartitionError(
                f"{given} is of another graph than the {layout.MANIFEST} beside it: (num_parts, num_nodes, num_edges) "
                f"= {found}, but {expected} there"
            )
    elif ours.get("run_id") != manifest.run_id:
        raise PartitionError(
            f"{given} is of run {ours.get('run_id')}, but the partitions beside it are of run {manifest.run_id}: copy "
            f"the file that belongs to them, or give the directory {given.parent} itself"
        )
    return PartConfig(given.parent, str(document["graph_name"]))


def graph_names(root: Path, manifest: Manifest) -> list[str]:
    """The names that part_configs in a partition directory give to its graph, ascending."""
    names = []
    for path in sorted(root.glob(f"*{_SUFFIX}")):
        document = _document(path) if path.name != layout.MANIFEST else None
        if document is not None and document.get(_OURS, {}).get("run_id") == manifest.run_id:
            names.append(path.name.removesuffix(_SUFFIX))
    return names


def dgl_names(manifest: Manifest) -> tuple[list[str], list[str]]:
    """What DGL calls the node types and the edge types: ``_N`` and ``_N:_E:_N`` where there are none."""
    if not manifest.is_hetero:
        return ["_N"], ["_N:_E:_N"]
    # A colon inside a name would make two types of one.
    edges = [[part.replace("%", "%25").replace(":", "%3A") for part in each.edge_type] for each in manifest.edge_types]
    return [entry.node_type for entry in manifest.node_types], [":".join(parts) for parts in edges]


def _ranges(counts: Sequence[tuple[int, ...]]) -> list[list[list[int]]]:
    """Ids of all types together: partition after partition, in each type after type."""
    ranges: list[list[list[int]]] = [[] for _ in counts]
    at = 0
    for of_partition in zip(*counts, strict=True):
        for of_type, count in zip(ranges, of_partition, strict=True):
            of_type.append([at, at + count])
            at += count
    return ranges


def _document(path: Path) -> dict[str, Any] | None:
    """The contents of a part_config, DGL's or glt's; None if it is none."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise PartitionError(
            f"{path} is missing: expected the part_config that glt.partition.partition_graph wrote, or a partition "
            "directory"
        ) from error
    except (ValueError, OSError):
        return None
    keys = ("graph_name", "num_parts", "node_map", "edge_map")
    if not isinstance(document, dict) or not all(key in document for key in keys):
        return None
    return document if isinstance(document.get(_OURS, {}), dict) else None
