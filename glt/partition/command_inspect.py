"""The command ``glt inspect``.

Exit status: 0 if everything that is here is sound (a host may hold some partitions only), 1 if a file is damaged or
missing or the directory is none of glt's, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from glt._checks import format_size
from glt.errors import PartitionError
from glt.partition.inspection import inspect_partitions
from glt.partition.inspection_report import Inspection

DESCRIPTION = (
    "Reports what a partition directory holds: types, counts, edge cut, balance, bytes per host. Exit status 0: what "
    "is here is sound; 1: a file is damaged or missing; 2: wrong usage."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = DESCRIPTION
    parser.add_argument("dir", help="the partition directory, or a host's copy of some of its partitions")
    parser.add_argument(
        "--verify", action="store_true", help="read every file and compare it with its checksum, not only its size"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--hosts",
        nargs="+",
        metavar="HOST=PARTS",
        help="which partitions each host gets, for example node0=0,1 node1=2,3; one per host by default",
    )


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Prints the report and returns the exit status."""
    try:
        hosts = _hosts(arguments.hosts)
        report = inspect_partitions(
            arguments.dir, hosts=hosts, verify=arguments.verify, progress=arguments.verify and sys.stderr.isatty()
        )
    except PartitionError as error:
        print(f"glt inspect: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))
    if arguments.json:
        print(json.dumps(asdict(report), indent=1))
    else:
        print("\n".join(_lines(report)))
    for each in report.bad:
        print(f"glt inspect: {each.reason}", file=sys.stderr)
    return 1 if report.bad else 0


def _hosts(given: Sequence[str] | None) -> dict[str, list[int]] | None:
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
