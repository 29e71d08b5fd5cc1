"""The command ``glt partition``: from a graph on disk to a partition directory.

Exit status: 0 if the directory is whole (or, with ``--dry-run``, the forecast printed), 1 if the run failed on its way,
for example for lack of room, 2 if what was asked for cannot be done: a wrong flag, an input that cannot be read, an
output directory that is not empty (without ``--overwrite``); 130 after Ctrl-C. Errors are one line on stderr, and leave
nothing behind.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from glt._checks import format_size, parse_size
from glt._progress import is_on_terminal
from glt.data.arrays import load_npy, map_npy
from glt.partition.format.files import require_free, require_writable
from glt.partition.format.manifest import Manifest
from glt.partition.format.part_config import require_graph_name, write_part_config
from glt.partition.inputs import read_graph
from glt.partition.methods import METHODS

_LABELS = ("label", "y")


def balance_tables(graph: Mapping[str, Any], names: list[str] | None, by_type: bool) -> Any:
    """Returns ``balance_ntypes`` of a partitioner: the tables of nodes of these names, ``label`` (or ``y``) for the
    labels.
    """
    if not names:
        return by_type or None
    counts = graph["num_nodes"]
    found: dict[str | None, list[Any]] = {node_type: [] for node_type in (counts if _is_hetero(graph) else [None])}
    for name in names:
        tables = {node_type: _table(graph, name, node_type) for node_type in found}
        if all(table is None for table in tables.values()):
            raise ValueError(_unknown("--balance", name, graph))
        for node_type, table in tables.items():
            if table is not None:
                # OGB's have one column.
                found[node_type].append(table.reshape(-1) if table.ndim == 2 and table.shape[1] == 1 else table)
    return {node_type: tables for node_type, tables in found.items() if tables} if _is_hetero(graph) else found[None]


def hotness_of(graph: Mapping[str, Any], given: argparse.Namespace) -> Any:
    """Returns the hotness that the flags ask for, or None. Around seeds draws are by weight where edges have weights;
    times are not looked at, since what a batch reads depends on the times of its seeds, which are not known here.
    """
    if given.hotness is None:
        for flag in ("seeds", "num_neighbors", "batch_size"):
            if getattr(given, flag) is not None:
                raise ValueError(f"--{flag.replace('_', '-')} is for --hotness seeds: add that, or leave it out")
        return None
    if given.hotness == "degree":
        from glt.sampler import hotness_from_degrees

        return hotness_from_degrees(graph["edge_index"], graph["num_nodes"], given.edge_dir)
    if given.seeds is None or given.num_neighbors is None:
        raise ValueError("--hotness seeds needs --seeds and --num-neighbors")
    from glt.data import Dataset
    from glt.sampler import NeighborSampler

    node_type, ids = _seeds(graph, given.seeds)
    if len(ids) < given.num_parts:
        raise ValueError(
            f"--seeds {given.seeds} holds {len(ids)} seeds for --num-parts {given.num_parts}: expected at least one "
            "for each partition, which is read for its piece of them; name more seeds, or use --hotness degree"
        )
    weight = graph.get("edge_weight")
    dataset = Dataset.from_arrays(graph["edge_index"], graph["num_nodes"], edge_weight=weight, edge_dir=given.edge_dir)
    sampler = NeighborSampler(dataset, given.num_neighbors, weight_attr=None if weight is None else "weight")
    options = {} if given.batch_size is None else {"batch_size": given.batch_size}
    bounds = [idx * len(ids) // given.num_parts for idx in range(given.num_parts + 1)]
    pieces = [torch.from_numpy(ids[a:b]) for a, b in pairwise(bounds)]
    return [sampler.sample_prob(p if node_type is None else (node_type, p), **options) for p in pieces]


def _seeds(graph: Mapping[str, Any], given: str) -> tuple[str | None, np.ndarray]:
    node_type, name = None, given
    if _is_hetero(graph):
        node_type, equals, name = given.partition("=")
        if not equals or node_type not in graph["num_nodes"]:
            raise ValueError(f"--seeds {given}: expected TYPE=NAME, TYPE one of {', '.join(graph['num_nodes'])}")
    if name.endswith(".npy"):
        if not Path(name).is_file():
            raise ValueError(f"--seeds: {name} does not exist")
        seeds = load_npy(name, f"--seeds {given}")
    else:
        table = _table(graph, name, node_type)
        if table is None:
            raise ValueError(_unknown("--seeds", name, graph))
        seeds = np.asarray(table)
    if seeds.dtype == bool and seeds.ndim == 1:
        seeds = np.flatnonzero(seeds)
    if seeds.dtype.kind not in "iu" or seeds.ndim != 1:
        raise ValueError(f"--seeds {given} holds {seeds.dtype} {list(seeds.shape)}: expected a mask, or ids of nodes")
    return node_type, seeds.astype(np.int64, copy=False)


def _is_hetero(graph: Mapping[str, Any]) -> bool:
    return isinstance(graph["num_nodes"], Mapping)


def _table(graph: Mapping[str, Any], name: str, node_type: str | None) -> Any:
    labels, attrs = graph.get("node_label"), graph.get("node_attrs", {})
    if node_type is not None:
        labels, attrs = (labels or {}).get(node_type), attrs.get(node_type, {})
    return labels if name in _LABELS else attrs.get(name)


def _unknown(flag: str, name: str, graph: Mapping[str, Any]) -> str:
    attrs = graph.get("node_attrs", {})
    if _is_hetero(graph):
        attrs = {each for named in attrs.values() for each in named}
    known = ["label"] * ("node_label" in graph) + sorted(attrs)
    return f"{flag} {name}: no nodes have that: expected one of {', '.join(known) or '(there are no tables of nodes)'}"


# Flags whose values a partitioner takes under the same name.
_PASSED: Final = (
    *("random_seed", "imbalance", "objtype", "num_passes", "owners", "relabel", "balance_edges", "overwrite"),
    *("chunk_size", "num_threads", "sort_memory_bytes", "cache_ratio", "cache_memory_budget"),
)
_OWN: Final = frozenset().union(*(method.options for method in METHODS.values()))
_SIZES: Final = ("sort_memory_bytes", "cache_memory_budget")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all flags."""
    parser.description = (
        "Partitions a graph on disk. Exit status 0: done; 1: failed on the way; 2: cannot be done as asked; 130: "
        "stopped. Nothing is left behind but a whole directory."
    )
    add = parser.add_argument
    text = (
        "directory of .npy files, OGB folder, description (.json, .toml), saved PyG graph (.pt), or a "
        "table of edges: Parquet or CSV files, a directory of them, a quoted pattern"
    )
    add("input", help=text)
    add("--out", required=True, help="directory to create")
    text = "replace the partitions that are in --out, once the new ones are whole"
    add("--overwrite", action="store_const", const=True, default=False, help=text)
    add("--num-parts", type=int, required=True, metavar="N", help="number of partitions")
    methods = "; ".join(f"{name}: {method.help}" for name, method in METHODS.items())
    add("--method", choices=METHODS, default="random", help=f"{methods} (default: random)")
    text = "write a part_config NAME.json beside the manifest, with DGL's keys; DistGraph takes either"
    add("--graph-name", metavar="NAME", help=text)
    text = "which edges of a node are sampled, and lie with it: in (PyG's; default) or out"
    add("--edge-dir", choices=("in", "out"), default="in", help=text)
    text = "print the forecast and stop; tables are counted, not read, unless --balance or --hotness needs values"
    add("--dry-run", action="store_true", help=text)
    add("--no-progress", action="store_true", help="no progress bar; there is none but on a terminal anyway")
    add("--scratch", metavar="DIR", help="where tables lie while they are partitioned (default: beside --out)")

    how = parser.add_argument_group("how to partition")
    add = how.add_argument
    add("--seed", type=int, dest="random_seed", metavar="N", help="of all that is left to chance (default: 0)")
    add("--relabel", action="store_const", const=True, help="new ids: each partition owns a range")
    add("--imbalance", type=float, metavar="X", help="by how much a partition may exceed the mean (default: 0.05)")
    add("--objtype", choices=("cut", "vol"), help="what METIS minimises (default: cut)")
    add("--passes", type=int, dest="num_passes", metavar="N", help="most passes of fennel over the edges (default: 12)")
    text = "an .npy file of the partition of each node; of a graph of types TYPE=FILE, once for each type"
    add("--owners", action="append", metavar="FILE", help=text)
    text = (
        "spread nodes of each value of this table evenly: label, or an attribute such as train_mask; may be given again"
    )
    add("--balance", action="append", metavar="NAME", help=text)
    add("--balance-types", action="store_true", help="spread nodes of each type evenly")
    add("--balance-edges", action="store_const", const=True, help="spread edges evenly too")
    text = (
        "store features smaller: float16, bfloat16, int8 or int4, in batches float32 again; or TABLE=int8, of a graph "
        "of types TYPE=int8 or TYPE:TABLE=int8, once for each, edge types as a__r__b"
    )
    add("--store-dtype", action="append", metavar="DTYPE", help=text)
    add("--chunk-size", type=int, metavar="ROWS", help="rows of features that a thread copies at a time")
    add("--num-threads", type=int, metavar="N", help="default: one for each core")
    add("--sort-memory", dest="sort_memory_bytes", metavar="SIZE", help="for sorting edges, such as 512MB")

    hot = parser.add_argument_group("hotness and caches")
    add = hot.add_argument
    text = (
        "how often nodes are read: by their edges, or by sampling around --seeds with --num-neighbors, by the "
        "weights of edges where they have some, and as if there were no times, which holds the graph in memory"
    )
    add("--hotness", choices=("degree", "seeds"), help=text)
    text = (
        "a mask among the attributes of nodes, or an .npy file of ids; of a graph of "
        "types TYPE=NAME. Partition i is read for the i-th of N equal pieces of them"
    )
    add("--seeds", metavar="NAME", help=text)
    text = "neighbours per hop, -1 for all; =-1,... where that comes first"
    add("--num-neighbors", type=_hops, metavar="K,K,...", help=text)
    add("--batch-size", type=int, metavar="N", help="seeds of a batch (default: that of sample_prob)")
    text = "share of the nodes of a type of which each partition keeps copies that it does not own"
    add("--cache-ratio", type=float, metavar="X", help=text)
    add("--cache-memory", dest="cache_memory_budget", metavar="SIZE", help="the same in bytes, such as 2GB")

    read = parser.add_argument_group("PyG graphs and OGB folders")
    add = read.add_argument
    add("--weight-attr", metavar="NAME", help="attribute of edges of a .pt graph to sample by")
    add("--time-attr", metavar="NAME", help="attribute of nodes or edges of a .pt graph to sample by")
    text = "whether OGB's edges are followed by their reverses (default: as OGB does)"
    add("--add-inverse-edge", action=argparse.BooleanOptionalAction, default=None, help=text)

    tables = parser.add_argument_group(
        "tables of edges",
        "A column is NAME or NAME:DTYPE; several, NAME,NAME,..., are side by side. A description "
        "file can say more: see glt.partition.inputs.read.",
    )
    add = tables.add_argument
    add("--src", metavar="COLUMN", help="ids of sources (default: src)")
    add("--dst", metavar="COLUMN", help="ids of destinations (default: dst)")
    for kind in ("edge", "node"):
        if kind == "node":
            add("--nodes", metavar="FILES", help="a table of nodes, as that of edges (default: none)")
            add("--node-id", metavar="COLUMN", help="ids 0, 1, ... in any order (default: numbers of rows)")
            add("--num-nodes", type=int, metavar="N", help="default: rows of --nodes, else as ids need")
            add("--node-label", metavar="COLUMN", help="labels")
        else:
            add("--edge-weight", metavar="COLUMN", help="weights to sample by")
        add(f"--{kind}-feat", metavar="COLUMNS", help=f"features of {kind}s")
        add(f"--{kind}-time", metavar="COLUMN", help="times to sample by")
        add(f"--{kind}-attr", metavar="COLUMN", action="append", help="an attribute of this name; may be given again")
    add("--no-header", action="store_true", help="CSV files have no names of columns: they are f0, f1, ...")
    add("--delimiter", metavar="C", help="between the columns of CSV")


def partitioner_options(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of a partitioner that were given as they are; raises ValueError if the method does not have
    one."""
    options = {name: getattr(given, name) for name in _PASSED if getattr(given, name) is not None}
    for name in sorted(options.keys() & _OWN - METHODS[given.method].options):
        takers = [other for other, method in METHODS.items() if name in method.options]
        raise ValueError(
            f"{name} = {options[name]!r} is not for --method {given.method}: it is for {', '.join(takers)}"
        )
    for name in options.keys() & set(_SIZES):
        options[name] = parse_size(options[name], name)
    if given.method == "assigned":
        options["owners"] = _owners(options.get("owners", []))
    if given.store_dtype is not None:
        options["store_dtype"] = _store_dtype(given.store_dtype)
    options["edge_assign_strategy"] = "by_dst" if given.edge_dir == "in" else "by_src"
    return options


def _owners(given: list[str]) -> Any:
    if not given:
        raise ValueError("--method assigned needs --owners")
    if len(given) == 1 and "=" not in given[0]:
        return map_npy(Path(given[0]))
    owners = {}
    for each in given:
        node_type, equals, path = each.partition("=")
        if not equals:
            raise ValueError(f"--owners {each}: expected TYPE=FILE for each type of nodes")
        owners[node_type] = map_npy(Path(path))
    return owners


def _store_dtype(given: list[str]) -> Any:
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    wanted: dict[Any, Any] = {}
    for each in given:
        where, equals, store_dtype = each.rpartition("=")
        if not equals:
            raise ValueError(f"--store-dtype {each}: expected one dtype for all features, or TABLE=DTYPE for each")
        name, colon, table = where.partition(":")
        type_ = tuple(name.split("__")) if name.count("__") == 2 else name
        of_type = wanted.setdefault(type_, {}) if colon else None
        if (type_ in wanted and not colon) or (colon and (not isinstance(of_type, dict) or table in of_type)):
            raise ValueError(f"--store-dtype {each}: {name} is given before; name each table once")
        if of_type is None:
            wanted[type_] = store_dtype
        else:
            of_type[table] = store_dtype
    return wanted


def reader_options(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of :func:`glt.partition.read_graph`."""

    def columns(**flags: str) -> dict[str, Any]:
        return {key: _column(getattr(given, flag)) for key, flag in flags.items()}

    csv = {"header": False} if given.no_header else {}
    csv |= {"delimiter": given.delimiter} if given.delimiter is not None else {}
    edges = columns(feat="edge_feat", weight="edge_weight", time="edge_time", src="src", dst="dst")
    edges["attrs"] = _attrs(given.edge_attr)
    nodes = {"files": given.nodes, "num_nodes": given.num_nodes, "attrs": _attrs(given.node_attr)}
    nodes |= columns(id="node_id", feat="node_feat", label="node_label", time="node_time")
    edges, nodes = ({key: value for key, value in table.items() if value is not None} for table in (edges, nodes))
    if given.nodes is not None:
        nodes |= csv
    same = {name: getattr(given, name) for name in ("add_inverse_edge", "weight_attr", "time_attr")}
    return {"nodes": nodes or None, "edges": edges | csv or None, **same}


def _column(given: str | None) -> Any:
    """A field of a description."""
    if given is None:
        return None
    names, colon, dtype = given.rpartition(":") if ":" in given else (given, "", "")
    columns = names.split(",")
    field = {"columns": columns} if len(columns) > 1 else {"column": names}
    return field | {"dtype": dtype} if colon else field


def _attrs(given: list[str] | None) -> dict[str, Any] | None:
    return None if given is None else {each.rpartition(":")[0] or each: _column(each) for each in given}


def _hops(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers separated by commas") from None


_MOST_LABELS: Final = 16  # in the report, of a type of nodes

# What a wrong flag, or a wrong input, ends in.
_REFUSED: Final = (
    *(ValueError, TypeError, LookupError, ImportError),
    *(FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError),
)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Partitions and returns the exit status."""
    start = time.monotonic()
    try:
        try:
            partitioner = _partitioner(arguments)
        except _REFUSED as error:
            return _fail(2, error)
        counts = f"{partitioner.graph.num_nodes} nodes and {partitioner.graph.num_edges} edges"
        print(f"forecast: {counts}: {partitioner.forecast().summary()}", flush=True)
        if arguments.dry_run:
            return 0
        manifest = partitioner.partition(progress=False if arguments.no_progress else None)
        if arguments.graph_name is not None:
            write_part_config(partitioner.output_dir, arguments.graph_name, arguments.method)
    except KeyboardInterrupt:
        return _fail(130, "stopped; nothing is left behind")
    except (ValueError, TypeError, OSError, MemoryError) as error:
        return _fail(1, error)
    print("\n".join(_report(manifest, partitioner.output_dir, time.monotonic() - start)))
    return 0


def _partitioner(arguments: argparse.Namespace) -> Any:
    chosen = METHODS[arguments.method].load()
    options = partitioner_options(arguments)
    if arguments.graph_name is not None:
        require_graph_name(arguments.graph_name)
    out = Path(arguments.out)
    require_free(out, overwrite=arguments.overwrite)  # before hours of reading
    require_writable(out)
    if is_on_terminal() and not arguments.no_progress:
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
    return chosen(out, arguments.num_parts, graph, **options)


def _scratch(arguments: argparse.Namespace, out: Path) -> Path:
    """A directory in the file system of the result, which has the room, unless another is named."""
    if arguments.scratch is not None:
        if not Path(arguments.scratch).is_dir():
            raise ValueError(f"--scratch {arguments.scratch} is not a directory: expected one with room for the tables")
        return Path(arguments.scratch)
    return next(parent for parent in out.absolute().parents if parent.is_dir())


def _report(manifest: Manifest, out: Path, seconds: float) -> list[str]:
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines = [manifest.summary(), *_balanced(manifest)]
    if manifest.is_hetero:
        lines += [
            f"  {nodes.node_type}: {nodes.num_nodes} nodes, balance {nodes.balance_ratio:.3f}"
            for nodes in manifest.node_types
        ]
        lines += [
            f"  {' '.join(edges.edge_type)}: {edges.num_edges} edges, cut {edges.edge_cut_ratio:.1%}, balance "
            f"{edges.balance_ratio:.3f}"
            for edges in manifest.edge_types
        ]
    # What is mapped counts for as long as it is in memory, although the kernel may drop it at any time.
    lines.append(
        f"{out}: {format_size(num_bytes)} in {len(manifest.files)} files, in {seconds:.1f} s, at most "
        f"{format_size(peak)} of memory, mapped files included"
    )
    return lines


def _balanced(manifest: Manifest) -> list[str]:
    lines = []
    of_nodes = [
        (nodes.node_type, "nodes", [(each, each.part_num_nodes) for each in nodes.balanced_labels])
        for nodes in manifest.node_types
    ]
    of_edges = [
        (" ".join(edges.edge_type), "edges", [(each, each.part_num_edges) for each in edges.balanced_labels])
        for edges in manifest.edge_types
    ]
    types: list[Any] = [*of_nodes, *of_edges]
    for type_, what, labels in types:
        for each, parts in labels[:_MOST_LABELS]:
            label = ", ".join(map(str, each.label)) or "all"
            counts = " ".join(map(str, parts))
            lines.append(f"  {type_}, {label}: {sum(parts)} {what} ({counts}), balance {each.balance_ratio:.3f}")
        if len(labels) > _MOST_LABELS:
            least = min(each.balance_ratio for each, _ in labels)
            lines.append(f"  {type_}: {len(labels)} labels, the least even {least:.3f}")
    return lines


def _fail(status: int, error: BaseException | str) -> int:
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    kind = type(error).__name__ if isinstance(error, BaseException) and not str(text) else ""
    print(f"glt partition: {' '.join(str(text).split()) or kind}", file=sys.stderr)
    return status
