"""The command ``glt build``.

Exit status: 0 when the graph is written, 1 if a table does not fit or cannot be read, or there is no room, 2 for wrong
usage.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from glt._checks import format_size
from glt.errors import TableError

_OTHERS: Final = ("dropped", "merged", "added", "replaced")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Builds a graph with dense ids from tables in Parquet or CSV: numbers keys, fits features on training rows and "
        "applies them, and joins edges. 'glt partition OUT/graph.json' partitions the result. Exit status 0: written; "
        "1: a table does not fit, cannot be read, or there is no room; 2: wrong usage."
    )
    parser.add_argument("description", help="what the tables are, in .toml or .json: see the guide 'Tables'")
    parser.add_argument("--out", required=True, metavar="DIR", help="the directory to make")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a graph that is there, when the new one is whole"
    )
    parser.add_argument(
        "--update",
        metavar="OLD",
        help="a graph that was built with this description: rows of files that it has not read are added, old ids stay",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing; say what is to be read and written, and what of a sample of edges would be dropped",
    )
    parser.add_argument("--resume", action="store_true", help="go on behind the steps that an ended build has done")
    parser.add_argument(
        "--engine",
        choices=("duckdb", "spark"),
        default="duckdb",
        help="what joins and sorts: DuckDB here, or Spark (default: duckdb)",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="such as 4GB; what does not fit goes to files (default: half of what is free)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="of the engine (default: one per core)")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Builds, prints what was kept of each table and returns the exit status."""
    try:
        from glt.tables.directory import build

        counted = build(
            arguments.description,
            arguments.out,
            engine=arguments.engine,
            update=arguments.update,
            memory=arguments.memory,
            num_threads=arguments.threads,
            overwrite=arguments.overwrite,
            resume=arguments.resume,
            dry_run=arguments.dry_run,
        )
    except KeyboardInterrupt:
        print("glt build: --resume goes on behind the steps that are done", file=sys.stderr)
        raise
    except (TableError, OSError, MemoryError) as error:
        print(f"glt build: {error}", file=sys.stderr)
        return 1
    except (ValueError, TypeError, ImportError) as error:
        parser.error(str(error))
    if arguments.dry_run:
        _print_plan(counted)
        return 0
    for kind in ("node_types", "edge_types"):
        for name, counts in counted[kind].items():
            what = [f"{counts[f'num_{each}']:,} {each}" for each in _OTHERS if counts[f"num_{each}"]]
            others = ", ".join(["", *what])
            print(f"{name}: {counts['num_read']:,} rows read, {counts['num_kept']:,} kept{others}")
    for each in counted["warnings"]:
        print(f"warning: {each}", file=sys.stderr)
    print(
        f"written to {arguments.out}, see its report.html; next: glt partition {arguments.out}/graph.json --out DIR "
        f"--num-parts N"
    )
    return 0


def _print_plan(plan: dict[str, Any]) -> None:
    for name, table in [*plan["node_types"].items(), *plan["edge_types"].items()]:
        about = "" if table["num_rows_is_exact"] else "about "
        print(
            f"{name}: {about}{table['num_rows']:,} rows in {table['num_files']:,} files, "
            f"{format_size(table['num_bytes'])}"
        )
        if table.get("num_sampled_without_end"):
            what = {"error": "the build ends with an error", "drop": "such are dropped", "add": "their nodes are added"}
            print(
                f"  {table['num_sampled_without_end']:,} of {table['num_sampled']:,} edges that were looked at have "
                f"an end "
                f"that no table has: {what[table['missing']]}"
            )
    memory = plan["memory_bytes"]
    print(f"memory: {'that of Spark' if memory is None else f'at most {format_size(memory)}'}")
    print(
        f"disk: up to {format_size(plan['disk_bytes'])}, and {format_size(plan['scratch_bytes'])} while it builds; "
        f"{format_size(plan['free_bytes'])} are free"
    )
    print(f"time: about {plan['seconds']:,.0f} s here")
