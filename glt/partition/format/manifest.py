"""The manifest of a partition directory: what it holds, and how to tell that it still does."""

from __future__ import annotations

import errno
import hashlib
import json
import operator
import os
import stat
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from importlib import metadata
from itertools import accumulate
from math import isfinite, prod
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

import numpy as np

from glt._checks import check_one_of, format_size, integer, naming_the_limit
from glt._reprs import says, typed
from glt.data.frames import Frame
from glt.data.packing import Packing, PackingError
from glt.data.schema import EdgeType, NodeType, Schema, check_edge_dir
from glt.errors import PartitionError
from glt.partition.format import layout
from glt.partition.format.files import FileEntry
from glt.partition.format.rows import Rows

FORMAT: Final = "glt-partition"
VERSION: Final = 3  # 1: no types; 2: no attributes, no relabelling, no caches, no balance
MAX_PARTS: Final = 1 << 16  # far above any cluster
_BLOCK_BYTES: Final = 64, 1 << 30
_MOST: Final = 1 << 62  # of a count
_MOST_BYTES: Final = 1 << 30  # of the file


@dataclass(frozen=True)
class FeatureEntry:
    """One table of features or labels: its torch dtype, and the shape of a row (``()`` for a 1-d table). With
    ``store_dtype`` its rows are stored packed, and ``error`` says by how much that has changed them.
    """

    dtype: str
    shape: tuple[int, ...]
    store_dtype: str | None = None  # directories of before pack no rows
    error: PackingError | None = None

    @classmethod
    def of(cls, rows: Rows, error: PackingError | None) -> FeatureEntry:
        packing = rows.packing
        if packing is None:
            return cls(rows.torch_dtype, rows.row_shape)
        return cls("float32", packing.row_shape, packing.store_dtype, error)

    def __str__(self) -> str:
        stored = f" stored as {self.store_dtype}, {self.error}" if self.store_dtype is not None else ""
        return f"{self.dtype} {list(self.shape)}{stored}"

    @property
    def packing(self) -> Packing | None:
        """How rows are packed; None where they are stored as they are."""
        return None if self.store_dtype is None else Packing.of(self.store_dtype, self.shape)

    @property
    def stored(self) -> tuple[str, tuple[int, ...]]:
        """The dtype and the shape of a row as files have them."""
        return (self.dtype, self.shape) if self.packing is None else ("uint8", (self.packing.row_bytes,))


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
    keys: dict[str, str] | None = None  # columns of :class:`glt.data.KeyMap`; directories of before have none


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
        frames: Tables that together are a TensorFrame of batches.

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
    frames: tuple[Frame, ...] = ()  # directories of before have none

    @property
    def schema(self) -> Schema:
        """The types, in order."""
        return Schema(
            tuple(entry.node_type for entry in self.node_types),
            tuple(entry.edge_type for entry in self.edge_types),
            self.is_hetero,
            self.frames,
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

    def file(self, root: Path, path: str) -> FileEntry:
        """The entry of a file; raises PartitionError if the manifest of ``root`` lists none."""
        if path not in self.files:
            raise PartitionError(f"{root / layout.MANIFEST} lists no {path}, which its types call for: partition again")
        return self.files[path]

    def write(self, root: Path) -> None:
        """Writes ``manifest.json`` into ``root``; the last file of a directory to be written."""
        (root / layout.MANIFEST).write_bytes(text_of(asdict(self)))

    def to_json(self) -> dict[str, Any]:
        """Returns all but the list of files, for those who hold no partition."""
        return asdict(replace(self, files={}))

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Manifest:
        """Rebuilds what :meth:`to_json` described; raises TypeError or ValueError if it describes no partitions."""
        manifest: Manifest = _parsed(cls, document, "manifest")
        integer("num_parts", manifest.num_parts, 1, MAX_PARTS, "the number of partitions")
        integer("checksum_block_bytes", manifest.checksum_block_bytes, *_BLOCK_BYTES, "the bytes of a block")
        check_edge_dir(manifest.edge_dir)
        check_one_of("time_level", manifest.time_level, (None, "edge", "node"))
        _ = manifest.schema  # raises where the types do not fit together
        for entry in manifest.node_types:
            manifest._require_counts(entry.node_type, entry.num_nodes, entry.part_num_nodes, entry.offsets)
        for edges in manifest.edge_types:
            manifest._require_counts(edges.edge_type, edges.num_edges, edges.part_num_edges, edges.offsets)
        forecasts = [each.forecast for each in manifest.node_types if each.forecast is not None]
        by_part = [each for of in forecasts for each in (of.num_reads, of.remote_ratio, of.hit_ratio, of.num_cached)]
        by_part += [label.part_num_nodes for each in manifest.node_types for label in each.balanced_labels]
        by_part += [label.part_num_edges for each in manifest.edge_types for label in each.balanced_labels]
        wrong = next((each for each in by_part if len(each) != manifest.num_parts), None)
        if wrong is not None:
            raise ValueError(f"{wrong} is of {len(wrong)} partitions: expected {manifest.num_parts}")
        for frame in manifest.frames:
            manifest._require_tables(frame)
        types: list[NodeTypeEntry | EdgeTypeEntry] = [*manifest.node_types, *manifest.edge_types]
        for table in [table for each in types for table in (each.feat, *each.attrs.values()) if table is not None]:
            if table.packing is not None and table.dtype != "float32":
                raise ValueError(f"a table of {table.dtype} is stored as {table.store_dtype}: expected float32")
            if (table.packing is None) != (table.error is None):
                raise ValueError(f"a table is stored as {table.store_dtype}, its error is {table.error}: expected both")
        for labels in [each.label for each in manifest.node_types if each.label is not None]:
            if labels.store_dtype is not None:
                raise ValueError(f"labels are stored as {labels.store_dtype}: expected them as they are")
        for path, file in manifest.files.items():
            _require_file(path, file, manifest.checksum_block_bytes)
        return manifest

    def _require_counts(
        self, type_: NodeType | EdgeType, total: int, counts: tuple[int, ...], offsets: tuple[int, ...] | None
    ) -> None:
        if len(counts) != self.num_parts or sum(counts) != total:
            raise ValueError(
                f"{type_!r} has {total} ids, and {sum(counts)} in {len(counts)} partitions: expected as many, in "
                f"{self.num_parts} partitions"
            )
        if (offsets is not None) != self.is_relabelled:
            raise ValueError("offsets are given of some types only: expected all of them, or none")
        if offsets is not None and offsets != (expected := tuple(accumulate(counts, initial=0))):
            raise ValueError(f"offsets = {offsets}: expected {expected}, the sums of the partitions' counts")

    def _require_tables(self, frame: Frame) -> None:
        check_one_of("level", frame.level, ("node", "edge"))
        types: tuple[NodeTypeEntry | EdgeTypeEntry, ...] = self.node_types if frame.level == "node" else self.edge_types
        attrs = types[frame.type_index].attrs if frame.type_index < len(types) else {}
        if missing := [name for name in frame.tables() if name not in attrs]:
            raise ValueError(f"frame {frame.name!r} has no table {missing[0]!r}: expected one of {sorted(attrs)}")

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
            content = read_regular(path, _MOST_BYTES)
            document = json.loads(content)
        except FileNotFoundError as error:
            raise PartitionError(
                f"{path} is missing: {root} is not a partition directory, or its partitioner was stopped half-way: "
                "expected a partition directory, or its <graph_name>.json; partition again"
            ) from error
        except PartitionError:
            raise
        except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
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
        except (TypeError, ValueError) as error:
            raise PartitionError(
                f"{path} does not follow version {VERSION} of the format: {error}; partition again"
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


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Reads a file; raises PartitionError if it is no regular file (a pipe would be waited for, a device has no end), a
    loop of links, or too long, and OSError as :func:`open` does."""
    try:
        with naming_the_limit(path):
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        what = "a loop of symbolic links" if error.errno == errno.ELOOP else "a socket or device"
        raise PartitionError(f"{path} is {what}: expected a file; copy the directory again") from error
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise PartitionError(f"{path} is missing: what has its name is no file; copy the directory again")
        if found.st_size > most_bytes:
            raise PartitionError(
                f"{path} has {found.st_size} bytes: expected at most {most_bytes}; it is not what a partitioner wrote"
            )
        with naming_the_limit(path), open(opened, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(opened)


def _require_file(path: str, entry: FileEntry, block_bytes: int) -> None:
    if path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"it lists the file {path!r}: expected a path inside the directory")
    num_digits = 8 * -(-entry.num_bytes // block_bytes)
    if len(entry.checksum) != num_digits or not set(entry.checksum) <= set("0123456789abcdef"):
        raise ValueError(
            f"the checksum of {path} has {len(entry.checksum)} characters: expected {num_digits} hexadecimal digits, 8 "
            f"for each block of {block_bytes} of its {entry.num_bytes} bytes"
        )
    try:
        itemsize = np.dtype(entry.dtype).itemsize
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"the dtype of {path} is {entry.dtype!r}: expected one of NumPy's") from error
    if itemsize * prod(entry.shape) > entry.num_bytes:
        raise ValueError(f"{path} has {entry.num_bytes} bytes: expected room for {entry.dtype} {list(entry.shape)}")


_hints_of = lru_cache(get_type_hints)


def _parsed(kind: Any, value: Any, where: str) -> Any:
    """Undoes what JSON does to a value of type ``kind``: objects become dataclasses again, lists tuples. Raises
    TypeError or ValueError, which names the place, if it is of another kind."""
    if kind is Any:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints_of(kind)
        needed = {each.name for each in fields(kind) if each.default is MISSING}  # others came with later versions
        if not isinstance(value, dict) or not needed <= value.keys() <= hints.keys():
            found = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"{where} has {found}: expected {sorted(hints)}")
        return kind(**{name: _parsed(hints[name], each, f"{where}.{name}") for name, each in value.items()})
    origin, of = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _parsed(of[0], value, where)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = [of[0]] * len(value) if of[-1] is ... else of
        if len(kinds) == len(value):
            return tuple(
                _parsed(k, each, f"{where}[{at}]") for at, (k, each) in enumerate(zip(kinds, value, strict=True))
            )
    if origin is dict and isinstance(value, dict):
        return {key: _parsed(of[1], each, f"{where}[{key!r}]") for key, each in value.items()}
    if kind is int and type(value) is int and 0 <= value < _MOST:
        return value
    if kind is float and type(value) in (int, float) and isfinite(value):
        return float(value)
    if kind in (str, bool) and type(value) is kind:
        return value
    shown = repr(value)
    raise ValueError(
        f"{where} = {shown[:80]}{'...' if len(shown) > 80 else ''}: expected {getattr(kind, '__name__', kind)}"
    )
