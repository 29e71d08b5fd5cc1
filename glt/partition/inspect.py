"""The command ``glt inspect``: reports what a partition directory holds.

Exit status: 0 if everything that is here is sound (a host may hold some partitions only), 1 if a file is damaged or
missing or the directory is none of glt's, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from glt._checks import format_size
from glt._progress import progress_bar
from glt._reprs import says, typed
from glt._tracebacks import short_traceback
from glt._urls import is_url
from glt.data.arrays import map_npy
from glt.data.schema import EdgeType, NodeType
from glt.errors import PartitionError
from glt.partition.format import layout
from glt.partition.format.files import map_file
from glt.partition.format.manifest import (
    EdgeLabelEntry,
    FeatureEntry,
    LabelEntry,
    Manifest,
    ReadForecast,
    balance_ratio,
)
from glt.partition.format.part_config import graph_names
from glt.partition.format.rows import chunks
from glt.partition.format.verify import Contents
from glt.partition.measure import measure, measured_bytes
from glt.partition.report import html_report

MAX_VALUES: Final = 64  # a table with more distinct values counts something else than classes


@dataclass(frozen=True)
class ValueCount:
    """One value of the table of this name; ``part_counts`` are the nodes with it in each partition that was counted,
    and ``balance_ratio`` mean over largest.
    """

    table: str
    value: int | bool
    part_counts: tuple[int, ...]
    balance_ratio: float


def count_values(table: str, parts: Sequence[np.ndarray]) -> tuple[ValueCount, ...]:
    """Counts the values of a table, given its rows in each partition.

    Returns:
        One count for each value, ascending; of a mask for ``True`` only. Nothing unless the table has one boolean or
        integer per node and at most ``MAX_VALUES`` values.
    """
    if not parts or any(rows.dtype.kind not in "biu" or rows.size != len(rows) for rows in parts):
        return ()
    counts: list[Counter[int | bool]] = [Counter() for _ in parts]
    for count, rows in zip(counts, parts, strict=True):
        for _, chunk in chunks(rows.reshape(-1)):
            values, found = np.unique(chunk, return_counts=True)
            count.update(dict(zip(values.tolist(), found.tolist(), strict=True)))
            if len(set().union(*counts)) > MAX_VALUES:
                return ()
    wanted = [True] if parts[0].dtype.kind == "b" else sorted(set().union(*counts))
    per_part = [tuple(count[value] for count in counts) for value in wanted]
    return tuple(
        ValueCount(table, value, each, balance_ratio(each)) for value, each in zip(wanted, per_part, strict=True)
    )


@dataclass(frozen=True)
class NodeReport:
    """The nodes of one type.

    Attributes:
        node_type: The type.
        num_nodes: In all partitions.
        part_num_nodes: In each partition.
        balance_ratio: Mean over largest partition; 1 is perfectly even.
        tables: dtype and row shape of each table, and how it is stored if otherwise, by name: ``feat``, ``label``,
            ``time``, and named ones.
        values: How often each value of boolean and integer tables, such as masks and classes, is in each partition
            that is here.
        part_cache_bytes: Size of each partition's cache of nodes of this type that others own, their ids included.
        balanced: What the partitioner was asked to balance (``balance_ntypes``), and how far it came.
        forecast: Where features will be read from, and what caches will answer; None without hotness.
    """

    node_type: NodeType
    num_nodes: int
    part_num_nodes: tuple[int, ...]
    balance_ratio: float
    tables: dict[str, str]
    values: tuple[ValueCount, ...]
    part_cache_bytes: tuple[int, ...]
    balanced: tuple[LabelEntry, ...]
    forecast: ReadForecast | None


@dataclass(frozen=True)
class EdgeReport:
    """The edges of one type; as :class:`NodeReport`, and ``remote_bytes_per_edge``, the bytes of node features expected
    from another partition when an edge is followed. ``balanced`` are the edges of nodes of each label, where edges and
    labels were balanced.
    """

    edge_type: EdgeType
    num_edges: int
    part_num_edges: tuple[int, ...]
    balance_ratio: float
    edge_cut_ratio: float
    remote_bytes_per_edge: float
    tables: dict[str, str]
    balanced: tuple[EdgeLabelEntry, ...]


@dataclass(frozen=True)
class HostReport:
    """What a host needs: its partitions, and the books that every host has."""

    host: str
    parts: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class BadFile:
    """A file that is not what the partitioner wrote, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Inspection:
    """The report of :func:`inspect_partitions`.

    Attributes:
        root: The directory.
        run_id, version, glt_version: Of the manifest: which run, which format, which glt wrote it.
        strategy, arguments: The partitioner and what determined its result.
        edge_dir, is_hetero, time_level: As of :class:`Manifest`.
        is_relabelled: Whether ids were made contiguous by partition (``relabel=True``), with maps back.
        num_parts: Partitions of the run.
        parts: Those of them that are here; a host needs its own only.
        num_nodes, num_edges, edge_cut_ratio: Of all types.
        nodes, edges: By type.
        hosts: Bytes that each host needs.
        num_files, num_bytes: What is here, according to the manifest.
        unlisted: Files that the manifest does not know; nothing reads them.
        bad: Files that are missing, truncated or altered.
        verified: Whether contents were compared with the checksums; otherwise sizes and headers only.

    Example:
        >>> glt.partition.inspect_partitions("parts").hosts[0]
        HostReport(host='host0', parts=(0,), num_bytes=2352)
    """

    root: str
    run_id: str
    version: int
    glt_version: str
    strategy: str
    arguments: dict[str, Any]
    edge_dir: str
    is_hetero: bool
    is_relabelled: bool
    time_level: str | None
    num_parts: int
    parts: tuple[int, ...]
    num_nodes: int
    num_edges: int
    edge_cut_ratio: float
    nodes: tuple[NodeReport, ...]
    edges: tuple[EdgeReport, ...]
    hosts: tuple[HostReport, ...]
    num_files: int
    num_bytes: int
    unlisted: tuple[str, ...]
    bad: tuple[BadFile, ...]
    verified: bool

    @property
    def is_complete(self) -> bool:
        """Whether all partitions are here."""
        return len(self.parts) == self.num_parts

    @says
    def __repr__(self) -> str:
        here = (
            f"{self.num_parts} partitions" if self.is_complete else f"{len(self.parts)} of {self.num_parts} partitions"
        )
        nodes, edges = typed(self.num_nodes, "nodes", len(self.nodes)), typed(self.num_edges, "edges", len(self.edges))
        state = f"{len(self.bad)} bad files" if self.bad else "verified" if self.verified else "not verified"
        cut = f"{self.edge_cut_ratio:.1%} of edges cut"
        return f"{here} by {self.strategy}, {nodes}, {edges}, {cut}, {format_size(self.num_bytes)}, {state}"


# What an inspection says as the manifest does.
_OF_MANIFEST: Final = (
    *("run_id", "version", "glt_version", "strategy", "arguments", "edge_dir", "is_hetero", "is_relabelled"),
    *("time_level", "num_parts", "num_nodes", "num_edges", "edge_cut_ratio"),
)
_PLAIN: Final = {"time": "int64 []", "weight": "uint64 []"}  # of weights, what draws need: their sums


@short_traceback
def inspect_partitions(
    root_dir: str | os.PathLike[str],
    *,
    hosts: Mapping[str, Sequence[int]] | None = None,
    verify: bool = False,
    progress: bool | None = None,
) -> Inspection:
    """Reports what a partition directory, or a host's copy of some of its partitions, holds.

    Damaged files do not stop the report; they are listed in it.

    Args:
        root_dir: What the partitioner was given as ``output_dir``.
        hosts: Partitions by name of host, to count bytes; one partition per host if None.
        verify: Whether to read every file and compare it with its checksum; else sizes and headers are checked.
        progress: Whether to draw a tqdm bar of bytes verified once it has taken two seconds. Default: if stderr is a
            terminal.

    Raises:
        PartitionError: If the manifest is missing, damaged or of another version; names it.
        ValueError: If ``hosts`` names a partition that there is not, or leaves one out; or ``root_dir`` is a URL.

    Example:
        >>> glt.partition.inspect_partitions("parts", verify=True)
        Inspection(2 partitions by RandomPartitioner, 40 nodes, 80 edges, 60.0% of edges cut, 4.1 KB, verified)
    """
    if is_url(root_dir):
        raise ValueError(
            f"root_dir = {os.fspath(root_dir)!r}: expected a directory of this machine; load_partition compares what "
            "it copies of a URL with the checksums"
        )
    root = Path(os.path.abspath(root_dir))
    manifest = Manifest.read(root)
    parts = tuple(part for part in range(manifest.num_parts) if (root / layout.part(part)).is_dir())
    here = [path for path in manifest.files if (part := layout.part_of(path)) is None or part in parts]
    num_bytes = sum(manifest.files[path].num_bytes for path in here)
    host_reports = _hosts(manifest, hosts)
    with progress_bar("verify", num_bytes, progress if verify else False) as advance:
        bad = tuple(_bad_files(root, manifest, here, verify, advance))
    known = {*manifest.files, layout.MANIFEST, *(f"{name}.json" for name in graph_names(root, manifest))}
    present = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if not path.is_dir()]
    of_manifest: dict[str, Any] = {name: getattr(manifest, name) for name in _OF_MANIFEST}
    return Inspection(
        root=str(root),
        parts=parts,
        nodes=tuple(_node_reports(root, manifest, parts, {each.path for each in bad})),
        edges=tuple(_edge_reports(manifest)),
        hosts=host_reports,
        num_files=len(here),
        num_bytes=num_bytes,
        unlisted=tuple(name for name in present if name not in known),
        bad=bad,
        verified=verify,
        **of_manifest,
    )


def _hosts(manifest: Manifest, hosts: Mapping[str, Sequence[int]] | None) -> tuple[HostReport, ...]:
    by_host = {f"host{part}": (part,) for part in range(manifest.num_parts)} if hosts is None else hosts
    for host, parts in by_host.items():
        for part in parts:
            if not 0 <= part < manifest.num_parts:
                raise ValueError(f"hosts[{host!r}] holds {part}: expected partitions 0 to {manifest.num_parts - 1}")
    left_out = set(range(manifest.num_parts)).difference(*by_host.values())
    if left_out:
        raise ValueError(f"hosts leaves out partition {min(left_out)}: expected each on a host")
    num_bytes: Counter[int | None] = Counter()  # by partition; None: of all hosts
    for path, entry in manifest.files.items():
        num_bytes[layout.part_of(path)] += entry.num_bytes
    return tuple(
        HostReport(host, tuple(parts), sum(num_bytes[part] for part in {None, *parts}))
        for host, parts in by_host.items()
    )


def _bad_files(
    root: Path, manifest: Manifest, paths: Sequence[str], verify: bool, advance: Callable[[int], object]
) -> Iterator[BadFile]:
    for path in paths:
        try:
            entry, origin = manifest.files[path], f"run {manifest.run_id}"
            if verify:
                Contents(root / path, entry, manifest.checksum_block_bytes, origin).compare(advance)
            map_file(root / path, entry, origin=origin)
        except PartitionError as error:
            yield BadFile(path, str(error))


def _node_reports(root: Path, manifest: Manifest, parts: tuple[int, ...], unreadable: set[str]) -> Iterator[NodeReport]:
    for entry in manifest.node_types:
        type_ = entry.node_type
        paths = {"label": [layout.in_part(part, "node_label", type_) for part in parts]} if entry.label else {}
        for shown, name in zip(_named(entry.attrs), entry.attrs, strict=True):
            paths[shown] = [layout.attr(part, "node_attr", type_, name) for part in parts]
        values: list[ValueCount] = []
        for name, files in paths.items():
            for path in files:
                manifest.file(root, path)
            if unreadable.isdisjoint(files):
                values += count_values(name, [map_npy(root / path, mode="r") for path in files])
        tables = _tables({"feat": entry.feat, "label": entry.label} | _named(entry.attrs), time=entry.has_time)
        caches = tuple(_cache_bytes(manifest, part, type_) for part in range(manifest.num_parts))
        counts = (entry.num_nodes, entry.part_num_nodes, entry.balance_ratio)
        yield NodeReport(type_, *counts, tables, tuple(values), caches, entry.balanced_labels, entry.forecast)


def _cache_bytes(manifest: Manifest, part: int, node_type: NodeType) -> int:
    directory = f"{layout.part(part)}/cache/{layout.node_type_name(node_type)}/"
    return sum(entry.num_bytes for path, entry in manifest.files.items() if path.startswith(directory))


def _edge_reports(manifest: Manifest) -> Iterator[EdgeReport]:
    for entry in manifest.edge_types:
        tables = _tables({"feat": entry.feat} | _named(entry.attrs), weight=entry.has_weight, time=entry.has_time)
        counts = (entry.num_edges, entry.part_num_edges, entry.balance_ratio)
        cut = (entry.edge_cut_ratio, entry.remote_bytes_per_edge)
        yield EdgeReport(entry.edge_type, *counts, *cut, tables, entry.balanced_labels)


def _named(attrs: Mapping[str, FeatureEntry]) -> dict[str, FeatureEntry | None]:
    """Named tables, by names that are not those of others."""
    return {f"attribute {name}" if name in ("feat", "label", *_PLAIN) else name: each for name, each in attrs.items()}


def _tables(stored: Mapping[str, FeatureEntry | None], **has: bool) -> dict[str, str]:
    tables = {name: str(table) for name, table in stored.items() if table is not None}
    return tables | {name: _PLAIN[name] for name, there in has.items() if there}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Reports what a partition directory holds: types, counts, edge cut, balance, bytes per host. Exit status 0: "
        "what is here is sound; 1: a file is damaged or missing; 2: wrong usage."
    )
    parser.add_argument("dir", help="the partition directory, or a host's copy of some of its partitions")
    parser.add_argument(
        "--verify", action="store_true", help="read every file and compare it with its checksum, not only its size"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also write a page that needs no network: sizes, balance, cut, degrees, hotness, caches, what to change",
    )
    parser.add_argument(
        "--hosts",
        nargs="+",
        metavar="HOST=PARTS",
        help="which partitions each host gets, for example node0=0,1 node1=2,3; one per host by default",
    )


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Prints the report and returns the exit status."""
    page = None if arguments.html is None else Path(arguments.html)
    try:
        hosts = _asked_hosts(arguments.hosts)
        if page is not None:
            _require_place(page, Path(arguments.dir))
        report = inspect_partitions(arguments.dir, hosts=hosts, verify=arguments.verify)
    except PartitionError as error:
        print(f"glt inspect: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))
    unread: tuple[str, ...] = ()
    if page is not None:
        try:
            unread = _write_page(report, page)
        except OSError as error:
            parser.error(f"argument --html: {arguments.html!r} cannot be written: {error.strerror}")
    try:
        print(json.dumps(asdict(report), indent=1) if arguments.json else "\n".join(_lines(report)), flush=True)
    except BrokenPipeError:  # the reader, such as head, has enough; Python would complain again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    for reason in [each.reason for each in report.bad] or unread:  # what is missing is not measured either
        print(f"glt inspect: {reason}", file=sys.stderr)
    return 1 if report.bad or unread else 0


def _require_place(page: Path, root: Path) -> None:
    """Raises ValueError unless a page can be written there, before hours go into measuring."""
    if root.resolve() in page.resolve().parents:
        raise ValueError(f"argument --html: {str(page)!r} is inside the partition directory: choose a place outside it")
    if page.is_dir() or not os.access(page if page.exists() else page.parent, os.W_OK):
        raise ValueError(
            f"argument --html: {str(page)!r} cannot be written: expected the name of a file, in a directory that is "
            "there and that this user may write to"
        )


def _write_page(report: Inspection, page: Path) -> tuple[str, ...]:
    """Writes the page; returns what could not be measured."""
    root, manifest, bad = Path(report.root), Manifest.read(report.root), {each.path for each in report.bad}
    with progress_bar("measure", measured_bytes(manifest, report.parts)) as advance:
        measures = measure(root, manifest, report.parts, bad, advance)
    page.write_text(html_report(report, measures, manifest), encoding="utf-8")
    return measures.unread


def _asked_hosts(given: Sequence[str] | None) -> dict[str, list[int]] | None:
    if given is None:
        return None
    hosts = {}
    for each in given:
        host, equals, parts = each.rpartition("=")
        if not equals or not all(part.isdecimal() for part in parts.split(",")):
            raise ValueError(f"argument --hosts: {each!r}: expected HOST=PARTS, for example node0=0,1")
        hosts[host] = [int(part) for part in parts.split(",")]
    return hosts


def _lines(report: Inspection) -> list[str]:
    arguments = ", ".join(f"{name}={value!r}" for name, value in report.arguments.items())
    lines = [
        report.root,
        f"  run {report.run_id}, format version {report.version}, written by glt {report.glt_version}",
        f"  {report.strategy}({arguments}): {report.num_parts} partitions, edge_dir '{report.edge_dir}'"
        + (f", times of {report.time_level}s" if report.time_level else "")
        + (", ids relabelled to be contiguous" if report.is_relabelled else ""),
        f"  {_count(report.num_nodes, 'node')}, {_count(report.num_edges, 'edge')}, "
        f"edge cut {report.edge_cut_ratio:.1%}",
    ]
    if not report.is_complete:
        here = ", ".join(map(str, report.parts)) or "none"
        lines.append(f"  incomplete copy: partitions {here} of {report.num_parts} are here")
    for nodes in report.nodes:
        lines.append(f"nodes {nodes.node_type}: {_spread(nodes.num_nodes, nodes.part_num_nodes, nodes.balance_ratio)}")
        lines += [f"  {name}: {table}" for name, table in nodes.tables.items()]
        if nodes.forecast is not None:
            lines.append(f"  {nodes.forecast.summary()}")
        lines += [
            f"  {each.table} = {each.value}: {_spread(sum(each.part_counts), each.part_counts, each.balance_ratio)}"
            for each in nodes.values
        ]
        if any(nodes.part_cache_bytes):
            lines.append(f"  caches: {', '.join(map(format_size, nodes.part_cache_bytes))}")
        lines += [
            f"  balanced {' '.join(map(str, each.label)) or 'as a type'}: "
            f"{_spread(each.num_nodes, each.part_num_nodes, each.balance_ratio)}"
            for each in nodes.balanced
        ]
    for edges in report.edges:
        lines.append(
            f"edges {' '.join(edges.edge_type)}: "
            f"{_spread(edges.num_edges, edges.part_num_edges, edges.balance_ratio)}, "
            f"cut {edges.edge_cut_ratio:.1%}, {edges.remote_bytes_per_edge:.1f} remote feature bytes per edge"
        )
        lines += [f"  {name}: {table}" for name, table in edges.tables.items()]
        lines += [
            f"  balanced of nodes {' '.join(map(str, each.label))}: "
            f"{_spread(each.num_edges, each.part_num_edges, each.balance_ratio)}"
            for each in edges.balanced
        ]
    lines.append("hosts:")
    lines += [
        f"  {each.host}: {format_size(each.num_bytes)} (partitions {', '.join(map(str, each.parts))} and the books)"
        for each in report.hosts
    ]
    checked = "contents verified" if report.verified else "sizes and headers checked; --verify reads the contents"
    lines.append(
        f"{_count(report.num_files, 'file')}, {format_size(report.num_bytes)}: {checked}, {len(report.bad)} bad"
    )
    lines += [f"  not of this run, and never read: {path}" for path in report.unlisted]
    return lines


def _spread(total: int, parts: Sequence[int], balance_ratio: float) -> str:
    shown = " ".join(map(str, parts[:16])) + (" ..." if len(parts) > 16 else "")
    return f"{total} ({shown}), balance {balance_ratio:.3f}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
