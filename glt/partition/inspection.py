"""What a partition directory holds, as a report: counts, cut, balance, bytes per host, and what is damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from glt.data.arrays import map_npy
from glt.data.schema import NodeType
from glt.errors import PartitionError
from glt.partition import layout
from glt.partition.inspection_report import BadFile, EdgeReport, HostReport, Inspection, NodeReport
from glt.partition.label_counts import ValueCount, count_values
from glt.partition.manifest import FeatureEntry, Manifest
from glt.partition.npy_file import map_file
from glt.partition.part_config import graph_names

_PLAIN: Final = {"time": "int64 []", "weight": "uint64 []"}  # of weights, what draws need: their sums


def inspect_partitions(
    root_dir: str | os.PathLike[str],
    *,
    hosts: Mapping[str, Sequence[int]] | None = None,
    verify: bool = False,
    progress: bool = False,
) -> Inspection:
    """Reports what a partition directory, or a host's copy of some of its partitions, holds.

    Damaged files do not stop the report; they are listed in it.

    Args:
        root_dir: What the partitioner was given as ``output_dir``.
        hosts: Partitions by name of host, to count bytes; one partition per host if None.
        verify: Whether to read every file and compare it with its checksum; else sizes and headers are checked.
        progress: Whether to draw a tqdm bar of bytes verified.

    Raises:
        PartitionError: If the manifest is missing, damaged or of another version; names it.
        ValueError: If ``hosts`` names a partition that there is not, or leaves one out.
    """
    root = Path(os.path.abspath(root_dir))
    manifest = Manifest.read(root)
    parts = tuple(part for part in range(manifest.num_parts) if (root / layout.part(part)).is_dir())
    here = [path for path in manifest.files if (part := layout.part_of(path)) is None or part in parts]
    host_reports = _hosts(manifest, hosts)
    with _bar(sum(manifest.files[path].num_bytes for path in here) if verify and progress else None) as advance:
        bad = tuple(_bad_files(root, manifest, here, verify, advance))
    unreadable = {each.path for each in bad}
    return Inspection(
        root=str(root),
        run_id=manifest.run_id,
        version=manifest.version,
        glt_version=manifest.glt_version,
        strategy=manifest.strategy,
        arguments=manifest.arguments,
        edge_dir=manifest.edge_dir,
        is_hetero=manifest.is_hetero,
        is_relabelled=manifest.is_relabelled,
        time_level=manifest.time_level,
        num_parts=manifest.num_parts,
        parts=parts,
        num_nodes=manifest.num_nodes,
        num_edges=manifest.num_edges,
        edge_cut_ratio=manifest.edge_cut_ratio,
        nodes=tuple(_node_reports(root, manifest, parts, unreadable)),
        edges=tuple(_edge_reports(manifest)),
        hosts=host_reports,
        num_files=len(here),
        num_bytes=sum(manifest.files[path].num_bytes for path in here),
        unlisted=tuple(_unlisted(root, manifest)),
        bad=bad,
        verified=verify,
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
    part_bytes, shared_bytes = [0] * manifest.num_parts, 0
    for path, entry in manifest.files.items():
        owner = layout.part_of(path)
        if owner is None:
            shared_bytes += entry.num_bytes
        else:
            part_bytes[owner] += entry.num_bytes
    return tuple(
        HostReport(host, tuple(parts), shared_bytes + sum(part_bytes[part] for part in set(parts)))
        for host, parts in by_host.items()
    )


@contextmanager
def _bar(num_bytes: int | None) -> Iterator[Callable[[int], object]]:
    if num_bytes is None:
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(desc="verify", total=num_bytes, unit="B", unit_scale=True) as bar:
        yield bar.update


def _bad_files(
    root: Path, manifest: Manifest, paths: Sequence[str], verify: bool, advance: Callable[[int], object]
) -> Iterator[BadFile]:
    for path in paths:
        try:
            map_file(
                root / path,
                entry := manifest.files[path],
                origin=f"run {manifest.run_id}",
                block_bytes=manifest.checksum_block_bytes,
                whole_bytes=entry.num_bytes,  # all of it, however large
                verify=verify,
                advance=advance,
            )
        except PartitionError as error:
            yield BadFile(path, str(error))


def _unlisted(root: Path, manifest: Manifest) -> Iterator[str]:
    ours = {layout.MANIFEST, *(f"{name}.json" for name in graph_names(root, manifest))}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if not path.is_dir() and name not in manifest.files and name not in ours:
            yield name


def _node_reports(root: Path, manifest: Manifest, parts: tuple[int, ...], unreadable: set[str]) -> Iterator[NodeReport]:
    for entry in manifest.node_types:
        stored = {"feat": entry.feat, "label": entry.label} | _named(entry.attrs)
        paths = {"label": [layout.node_label(part, entry.node_type) for part in parts]} if entry.label else {}
        for shown, name in zip(_named(entry.attrs), entry.attrs, strict=True):
            paths[shown] = [layout.node_attr(part, entry.node_type, name) for part in parts]
        values: list[ValueCount] = []
        for name, files in paths.items():
            if unreadable.isdisjoint(files):
                arrays = [map_npy(root / path, mode="r") for path in files]
                values += count_values(name, arrays)
        yield NodeReport(
            entry.node_type,
            entry.num_nodes,
            entry.part_num_nodes,
            entry.balance_ratio,
            _tables(stored, time=entry.has_time),
            tuple(values),
            tuple(_cache_bytes(manifest, part, entry.node_type) for part in range(manifest.num_parts)),
            entry.balanced_labels,
            entry.forecast,
        )


def _cache_bytes(manifest: Manifest, part: int, node_type: NodeType) -> int:
    directory = f"{layout.part(part)}/cache/{layout.node_type_name(node_type)}/"
    return sum(entry.num_bytes for path, entry in manifest.files.items() if path.startswith(directory))


def _edge_reports(manifest: Manifest) -> Iterator[EdgeReport]:
    for entry in manifest.edge_types:
        yield EdgeReport(
            entry.edge_type,
            entry.num_edges,
            entry.part_num_edges,
            entry.balance_ratio,
            entry.edge_cut_ratio,
            entry.remote_bytes_per_edge,
            _tables({"feat": entry.feat} | _named(entry.attrs), weight=entry.has_weight, time=entry.has_time),
        )


def _named(attrs: Mapping[str, FeatureEntry]) -> dict[str, FeatureEntry | None]:
    """Named tables, by names that are not those of others."""
    return {f"attribute {name}" if name in ("feat", "label", *_PLAIN) else name: each for name, each in attrs.items()}


def _tables(stored: Mapping[str, FeatureEntry | None], **has: bool) -> dict[str, str]:
    tables = {name: f"{table.dtype} {list(table.shape)}" for name, table in stored.items() if table is not None}
    return tables | {name: _PLAIN[name] for name, there in has.items() if there}
