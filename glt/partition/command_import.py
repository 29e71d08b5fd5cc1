"""The command ``glt import``.

Exit status: 0 when the directory is written, 1 if the source is damaged, incomplete or none of that library's, or the
result is in the way of something, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from glt.errors import PartitionError
from glt.partition.format.manifest import Manifest
from glt.partition.importers import import_dgl, import_glt, import_pyg
from glt.partition.importers.foreign_files import read_torch

_IMPORTERS: Final[dict[str, Callable[..., Manifest]]] = {"glt": import_glt, "pyg": import_pyg, "dgl": import_dgl}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Turns the partition directory of another library into one of glt, with the same assignment of nodes. Nothing "
        "in it is executed. Exit status 0: written; 1: the source is damaged or incomplete, or the output is not "
        "empty; 2: wrong usage."
    )
    libraries = parser.add_subparsers(dest="library", required=True, metavar="library")
    for name, source, help_ in (
        ("glt", "GLT's root_dir", "what partitioners of graphlearn_torch wrote"),
        ("pyg", "PyG's root", "what torch_geometric.distributed.Partitioner wrote"),
        ("dgl", "DGL's partition config (JSON), or its directory", "what dgl.distributed.partition_graph wrote"),
    ):
        library = libraries.add_parser(name, help=help_)
        library.add_argument("source", help=source)
        library.add_argument("--out", required=True, help="the directory to write; new or empty")
        library.add_argument(
            "--relabel", action="store_true", help="make ids contiguous by partition, with maps back to the source's"
        )
        if name != "pyg":
            library.add_argument(
                "--renumber-edges", action="store_true", help="number edges anew where the source stored no ids of them"
            )
        if name == "glt":
            library.add_argument(
                "--edge-assign-strategy",
                choices=("by_src", "by_dst"),
                default=argparse.SUPPRESS,
                help="needed only where edges do not tell",
            )
        if name == "dgl":
            library.add_argument(
                "--table",
                nargs="+",
                default=[],
                metavar="ARGUMENT=NAME",
                help="which of DGL's tables is node_feat, node_label, node_time, edge_feat, edge_weight or edge_time",
            )
            library.add_argument("--leave-out", nargs="+", default=[], metavar="NAME", help="tables not to import")
            for which in ("nids", "eids"):
                library.add_argument(f"--orig-{which}", help=f"a .pt file with the orig_{which} that DGL returned")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Imports, prints the summary and returns the exit status."""
    try:
        manifest = _import(arguments)
    except (PartitionError, OSError) as error:
        print(f"glt import: {error}", file=sys.stderr)
        return 1
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    print(f"{manifest.summary()}, in {arguments.out}")
    return 0


def _import(arguments: argparse.Namespace) -> Manifest:
    options: dict[str, Any] = vars(arguments).copy()
    library, source, out = (options.pop(name) for name in ("library", "source", "out"))
    if library == "dgl":
        options["tables"] = dict(map(_table, options.pop("table")))
        for name in ("orig_nids", "orig_eids"):
            options[name] = None if options[name] is None else read_torch(Path(options[name]))
    return _IMPORTERS[library](source, out, **options)


def _table(given: str) -> tuple[str, str]:
    argument, equals, name = given.partition("=")
    if not equals or not name:
        raise ValueError(f"argument --table: {given!r}: expected ARGUMENT=NAME, for example node_feat=feat")
    return argument, name
