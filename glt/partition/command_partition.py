"""The command ``glt partition``: from a graph on disk to a partition directory.

Exit status: 0 if the directory is whole (or, with ``--dry-run``, the forecast printed), 1 if the run failed on its way,
for example for lack of room, 2 if what was asked for cannot be done: a wrong flag, an input that cannot be read, an
output directory that is not empty; 130 after Ctrl-C. Errors are one line on stderr, and leave nothing behind.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import Any, Final

from glt._checks import format_size
from glt.errors import PartitionError
from glt.partition.inputs import read_graph
from glt.partition.manifest import Manifest
from glt.partition.part_config import require_graph_name, write_part_config
from glt.partition.partition_hotness import balance_tables, hotness_of
from glt.partition.partition_options import METHODS, add_arguments, partitioner_options, reader_options
from glt.partition.staging import require_free, require_writable

__all__ = ["add_arguments", "run"]

_MOST_LABELS: Final = 16  # in the report, of a type of nodes

# What a wrong flag, or a wrong input, ends in.
_REFUSED = (
    PartitionError, ValueError, TypeError, LookupError, ImportError, FileNotFoundError, PermissionError,
    NotADirectoryError, IsADirectoryError,
)  # fmt: skip


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Partitions and returns the exit status."""
    start = time.monotonic()
    try:
        try:
            partitioner = _partitioner(arguments)
        except _REFUSED as error:
            return _fail(2, error)
        print(_forecast(partitioner), flush=True)
        if arguments.dry_run:
            return 0
        manifest = partitioner.partition(progress=_shows_progress(arguments))
        if arguments.graph_name is not None:
            write_part_config(partitioner.output_dir, arguments.graph_name, arguments.method)
    except KeyboardInterrupt:
        return _fail(130, "stopped; nothing is left behind")
    except (PartitionError, ValueError, TypeError, OSError, MemoryError) as error:
        return _fail(1, error)
    print("\n".join(_report(manifest, partitioner.output_dir, time.monotonic() - start)))
    return 0


def _partitioner(arguments: argparse.Namespace) -> Any:
    chosen = METHODS[arguments.method].load()
    options = partitioner_options(arguments)
    if arguments.graph_name is not None:
        require_graph_name(arguments.graph_name)
    out = Path(arguments.out)
    require_free(out)  # before hours of reading
    require_writable(out)
    if _shows_progress(arguments):
        print(f"reading {arguments.input}", file=sys.stderr)
    # Labels and seeds are values; all else that a forecast depends on is sizes.
    outline = arguments.dry_run and not arguments.balance and arguments.hotness is None
    graph = read_graph(arguments.input, _scratch(arguments, out), outline=outline, **reader_options(arguments))
    balance = balance_tables(graph, arguments.balance, arguments.balance_types)
    if balance is not None:
        options["balance_ntypes"] = balance
    hotness = hotness_of(graph, arguments)
    if hotness is not None:
        options["probs" if arguments.method == "frequency" else "hotness"] = hotness
    elif arguments.method == "frequency":
        raise ValueError("--method frequency places nodes by how often they are read: add --hotness")
    return chosen(out, arguments.num_parts, **graph, **options)


def _shows_progress(arguments: argparse.Namespace) -> bool:
    return sys.stderr.isatty() and not arguments.no_progress


def _scratch(arguments: argparse.Namespace, out: Path) -> Path:
    """A directory in the file system of the result, which has the room, unless another is named."""
    if arguments.scratch is not None:
        if not Path(arguments.scratch).is_dir():
            raise ValueError(f"--scratch {arguments.scratch} is not a directory: expected one with room for the tables")
        return Path(arguments.scratch)
    return next(parent for parent in out.absolute().parents if parent.is_dir())


def _forecast(partitioner: Any) -> str:
    nodes, edges = partitioner.graph.nodes, partitioner.graph.edges
    counts = f"{sum(n.num_nodes for n in nodes)} nodes and {sum(e.num_edges for e in edges)} edges"
    return f"forecast: {counts}: {partitioner.forecast().summary()}"


def _report(manifest: Manifest, out: Path, seconds: float) -> list[str]:
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines = [manifest.summary(), *_balanced(manifest)]
    if manifest.is_hetero:
        for nodes in manifest.node_types:
            lines.append(f"  {nodes.node_type}: {nodes.num_nodes} nodes, balance {nodes.balance_ratio:.3f}")
        for edges in manifest.edge_types:
            lines.append(
                f"  {' '.join(edges.edge_type)}: {edges.num_edges} edges, cut {edges.edge_cut_ratio:.1%}, balance "
                f"{edges.balance_ratio:.3f}"
            )
    # What is mapped counts for as long as it is in memory, although the kernel may drop it at any time.
    lines.append(
        f"{out}: {format_size(num_bytes)} in {len(manifest.files)} files, in {seconds:.1f} s, at most "
        f"{format_size(peak)} of memory, mapped files included"
    )
    return lines


def _balanced(manifest: Manifest) -> list[str]:
    lines = []
    for nodes in manifest.node_types:
        for each in nodes.balanced_labels[:_MOST_LABELS]:
            label = ", ".join(map(str, each.label)) or "all"
            counts = " ".join(map(str, each.part_num_nodes))
            lines.append(
                f"  {nodes.node_type}, {label}: {each.num_nodes} nodes ({counts}), balance {each.balance_ratio:.3f}"
            )
        if len(nodes.balanced_labels) > _MOST_LABELS:
            least = min(each.balance_ratio for each in nodes.balanced_labels)
            lines.append(f"  {nodes.node_type}: {len(nodes.balanced_labels)} labels, the least even {least:.3f}")
    return lines


def _fail(status: int, error: BaseException | str) -> int:
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    kind = type(error).__name__ if isinstance(error, BaseException) and not str(text) else ""
    print(f"glt partition: {' '.join(str(text).split()) or kind}", file=sys.stderr)
    return status
