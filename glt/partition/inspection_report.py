"""What :func:`glt.partition.inspect_partitions` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glt.data.schema import EdgeType, NodeType
from glt.partition.label_counts import ValueCount
from glt.partition.manifest import LabelEntry
from glt.partition.read_forecast import ReadForecast


@dataclass(frozen=True)
class NodeReport:
    """The nodes of one type.

    Attributes:
        node_type: The type.
        num_nodes: In all partitions.
        part_num_nodes: In each partition.
        balance_ratio: Mean over largest partition; 1 is perfectly even.
        tables: dtype and row shape of each table, by name: ``feat``, ``label``, ``time``, and named ones.
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
    """The edges of one type.

    Attributes:
        edge_type: The type.
        num_edges: In all partitions.
        part_num_edges: In each partition.
        balance_ratio: Mean over largest partition; 1 is perfectly even.
        edge_cut_ratio: Share of the edges whose ends have different owners.
        remote_bytes_per_edge: Bytes of node features expected from another partition when an edge is followed.
        tables: dtype and row shape of each table, by name: ``feat``, ``weight``, ``time``, and named ones.
    """

    edge_type: EdgeType
    num_edges: int
    part_num_edges: tuple[int, ...]
    balance_ratio: float
    edge_cut_ratio: float
    remote_bytes_per_edge: float
    tables: dict[str, str]


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
        edge_dir: ``"out"`` or ``"in"``.
        is_hetero: Whether the graph has types.
        is_relabelled: Whether ids were made contiguous by partition (``relabel=True``), with maps back.
        time_level: Whose times edges have: ``"edge"``, ``"node"`` or None.
        num_parts: Partitions of the run.
        parts: Those of them that are here; a host needs its own only.
        num_nodes, num_edges, edge_cut_ratio: Of all types.
        nodes, edges: By type.
        hosts: Bytes that each host needs.
        num_files, num_bytes: What is here, according to the manifest.
        unlisted: Files that the manifest does not know; nothing reads them.
        bad: Files that are missing, truncated or altered.
        verified: Whether contents were compared with the checksums; otherwise sizes and headers only.
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
