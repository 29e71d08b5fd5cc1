"""The flags of ``glt partition``, and the arguments of partitioners and readers that they stand for."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from glt._checks import parse_size
from glt.data.arrays import map_npy


@dataclass(frozen=True)
class Method:
    """A partitioner by the name that users choose it by.

    Attributes:
        module, class_name: Where it is: nothing is imported that was not chosen.
        options: Arguments of its own, which other partitioners may not have.
        help: What it is good for.
    """

    module: str
    class_name: str
    options: frozenset[str]
    help: str

    def load(self) -> Any:
        """Returns the class.

        Raises:
            ValueError: If this glt does not have it.
        """
        try:
            return getattr(importlib.import_module(self.module), self.class_name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"--method: this glt has no {self.class_name} ({error})") from error


METHODS: Final = {
    "random": Method(
        "glt.partition.random_partitioner", "RandomPartitioner", frozenset({"random_seed"}), "even, at random"
    ),
    "frequency": Method(
        "glt.partition.frequency_partitioner", "FrequencyPartitioner", frozenset({"random_seed"}),
        "nodes go where they are read most; needs --hotness",
    ),
    "metis": Method(
        "glt.partition.metis_partitioner", "MetisPartitioner", frozenset({"random_seed", "imbalance", "objtype"}),
        "few edges between partitions, in memory, by pymetis",
    ),
    "fennel": Method(
        "glt.partition.fennel_partitioner", "FennelPartitioner", frozenset({"random_seed", "imbalance", "num_passes"}),
        "few edges between partitions, in bounded memory",
    ),
    "assigned": Method(
        "glt.partition.assigned_partitioner", "AssignedPartitioner", frozenset({"owners"}),
        "as --owners says",
    ),
}  # fmt: skip

DESCRIPTION: Final = (
    "Partitions a graph on disk. Exit status 0: done; 1: failed on the way; 2: cannot be done as asked; 130: stopped. "
    "Nothing is left behind but a whole directory."
)

# Flags whose values a partitioner takes under the same name.
_PASSED: Final = ("random_seed", "imbalance", "objtype", "num_passes", "chunk_size", "num_threads", "sort_memory_bytes",
                  "relabel", "balance_edges", "cache_ratio", "cache_memory_budget", "owners")  # fmt: skip
_OWN: Final = frozenset().union(*(method.options for method in METHODS.values()))
_SIZES: Final = ("sort_memory_bytes", "cache_memory_budget")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all flags."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add("input", help="directory of .npy files, OGB folder, description (.json, .toml), saved PyG graph (.pt), or a "
        "table of edges: Parquet or CSV files, a directory of them, a quoted pattern")  # fmt: skip
    add("--out", required=True, help="directory to create")
    add("--num-parts", type=int, required=True, metavar="N", help="number of partitions")
    methods = "; ".join(f"{name}: {method.help}" for name, method in METHODS.items())
    add("--method", choices=METHODS, default="random", help=f"{methods} (default: random)")
    add("--graph-name", metavar="NAME",
        help="write a part_config NAME.json beside the manifest, with DGL's keys; DistGraph takes either")  # fmt: skip
    add("--edge-dir", choices=("in", "out"), default="in",
        help="which edges of a node are sampled, and lie with it: in (PyG's; default) or out")  # fmt: skip
    add("--dry-run", action="store_true",
        help="print the forecast and stop; tables are counted, not read, unless --balance or --hotness needs values"
    )  # fmt: skip
    add("--no-progress", action="store_true", help="no progress bar; there is none but on a terminal anyway")
    add("--scratch", metavar="DIR", help="where tables lie while they are partitioned (default: beside --out)")

    how = parser.add_argument_group("how to partition")
    add = how.add_argument
    add("--seed", type=int, dest="random_seed", metavar="N", help="of all that is left to chance (default: 0)")
    add("--relabel", action="store_const", const=True, help="new ids: each partition owns a range")
    add("--imbalance", type=float, metavar="X", help="by how much a partition may exceed the mean (default: 0.05)")
    add("--objtype", choices=("cut", "vol"), help="what METIS minimises (default: cut)")
    add("--passes", type=int, dest="num_passes", metavar="N", help="most passes of fennel over the edges (default: 12)")
    add("--owners", action="append", metavar="FILE", help="an .npy file of the partition of each node; of a graph of "
        "types TYPE=FILE, once for each type")  # fmt: skip
    add("--balance", action="append", metavar="NAME",
        help="spread nodes of each value of this table evenly: label, or an attribute such as train_mask; may be given "
        "again")  # fmt: skip
    add("--balance-types", action="store_true", help="spread nodes of each type evenly")
    add("--balance-edges", action="store_const", const=True, help="spread edges evenly too")
    add("--chunk-size", type=int, metavar="ROWS", help="rows of features that a thread copies at a time")
    add("--num-threads", type=int, metavar="N", help="default: one for each core")
    add("--sort-memory", dest="sort_memory_bytes", metavar="SIZE", help="for sorting edges, such as 512MB")

    hot = parser.add_argument_group("hotness and caches")
    add = hot.add_argument
    add("--hotness", choices=("degree", "seeds"),
        help="how often nodes are read: by their edges, or by sampling around --seeds with --num-neighbors, by the "
        "weights of edges where they have some, and as if there were no times, which holds the graph in memory"
    )  # fmt: skip
    add("--seeds", metavar="NAME", help="a mask among the attributes of nodes, or an .npy file of ids; of a graph of "
        "types TYPE=NAME. Partition i is read for the i-th of N equal pieces of them")  # fmt: skip
    add("--num-neighbors", type=_hops, metavar="K,K,...",
        help="neighbours per hop, -1 for all; =-1,... where that comes first")  # fmt: skip
    add("--batch-size", type=int, metavar="N", help="seeds of a batch (default: that of sample_prob)")
    add("--cache-ratio", type=float, metavar="X", help="share of the nodes of a type of which each partition keeps "
        "copies that it does not own")  # fmt: skip
    add("--cache-memory", dest="cache_memory_budget", metavar="SIZE", help="the same in bytes, such as 2GB")

    read = parser.add_argument_group("PyG graphs and OGB folders")
    add = read.add_argument
    add("--weight-attr", metavar="NAME", help="attribute of edges of a .pt graph to sample by")
    add("--time-attr", metavar="NAME", help="attribute of nodes or edges of a .pt graph to sample by")
    add("--add-inverse-edge", action=argparse.BooleanOptionalAction, default=None,
        help="whether OGB's edges are followed by their reverses (default: as OGB does)")  # fmt: skip

    tables = parser.add_argument_group(
        "tables of edges", "A column is NAME or NAME:DTYPE; several, NAME,NAME,..., are side by side. A description "
        "file can say more: see glt.partition.inputs.description.",
    )  # fmt: skip
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
    """Returns the arguments of a partitioner that were given as they are.

    Raises:
        ValueError: If the method does not have one.
    """
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


def reader_options(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of :func:`glt.partition.read_graph`."""
    csv = {"header": False} if given.no_header else {}
    csv |= {"delimiter": given.delimiter} if given.delimiter is not None else {}
    edges = {
        "feat": _column(given.edge_feat),
        "weight": _column(given.edge_weight),
        "time": _column(given.edge_time),
        "attrs": _attrs(given.edge_attr),
        "src": _column(given.src),
        "dst": _column(given.dst),
    }
    nodes = {
        "files": given.nodes,
        "id": _column(given.node_id),
        "num_nodes": given.num_nodes,
        "feat": _column(given.node_feat),
        "label": _column(given.node_label),
        "time": _column(given.node_time),
        "attrs": _attrs(given.node_attr),
    }
    edges, nodes = ({key: value for key, value in table.items() if value is not None} for table in (edges, nodes))
    if given.nodes is not None:
        nodes |= csv
    return {
        "nodes": nodes or None,
        "edges": edges | csv or None,
        "add_inverse_edge": given.add_inverse_edge,
        "weight_attr": given.weight_attr,
        "time_attr": given.time_attr,
    }


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
