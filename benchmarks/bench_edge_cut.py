"""Edge-cut and time of the partitioners, on three real graphs and on S, into 4 and 16 partitions.

Claim: on skewed graphs FennelPartitioner cuts about as few edges as METIS, in a third of its time; where communities
are clear (coauthor_physics), up to twice as many. MetisPartitioner cuts as few as pymetis's own call, and can balance
edges too, which pymetis cannot. Without that, both put most edges of skewed graphs into few partitions.

Method: the time is that of `assign_nodes`, which is all that partitioners differ in, from checked input to the owner of
each node, the adjacency included; `write_s` is what writing the directory without features takes beside it. pymetis's
own call gets the symmetric graph ready made, and its time is the call alone. Without pymetis neither of the two runs.
Nodes without edges are removed from S: they would let METIS and Fennel put most edges into one partition. Balance is
the largest over the mean, 1 being even. Cut and balance do not depend on the machine; times are medians.

The real graphs are read from --data_root; those that are not there are named and left out.

    python -m benchmarks.bench_edge_cut [--rounds 3] [--data_root ../shared/data] [--toy]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np

from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, interleave, pinned
from benchmarks.partitioned import scratch_dir
from glt.partition import FennelPartitioner, MetisPartitioner, PartitionerBase, RandomPartitioner

NAMES = ("soc_slashdot0902", "tolokers", "coauthor_physics")
NUM_PARTS = (4, 16)


def real_graph(path: Path) -> tuple[int, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        edge_index = file["edge_index"]
        num_nodes = max(int(edge_index.max()) + 1, len(file["y"]) if "y" in file else 0)
    return num_nodes, edge_index


def connected(graph: graphs.BenchGraph) -> tuple[int, np.ndarray]:
    """The nodes that have edges, renumbered."""
    nodes = graph.connected_nodes()
    number = np.zeros(graph.num_nodes, np.int64)
    number[nodes] = np.arange(len(nodes))
    return len(nodes), number[graph.edge_index()]


def load_all(toy: bool, data_root: Path) -> dict[str, tuple[int, np.ndarray]]:
    if toy:
        return {"toy": connected(graphs.load("toy"))}
    found = {}
    for name in NAMES:
        if (data_root / f"{name}.npz").exists():
            found[name] = real_graph(data_root / f"{name}.npz")
        else:
            print(f"absent: {data_root / name}.npz")
    return found | {"S": connected(graphs.load("S"))}


def contestants(
    output_dir: Path, num_parts: int, num_nodes: int, edge_index: np.ndarray, pymetis: ModuleType | None
) -> dict[str, Callable[[], np.ndarray]]:
    """Ways to find the owner of each node."""

    def assign(partitioner: type[PartitionerBase], **options: object) -> np.ndarray:
        made = partitioner(output_dir, num_parts, num_nodes, edge_index, num_threads=1, **options)
        return np.asarray(made.assign_nodes(0, num_nodes))

    found = {
        "glt random": partial(assign, RandomPartitioner),
        "glt Fennel": partial(assign, FennelPartitioner),
        "glt Fennel, edges balanced": partial(assign, FennelPartitioner, balance_edges=True),
    }
    if pymetis is None:
        return found
    adjacency = pymetis.CSRAdjacency(*symmetric(num_nodes, edge_index))
    return found | {
        "glt METIS": partial(assign, MetisPartitioner),
        "glt METIS, edges balanced": partial(assign, MetisPartitioner, balance_edges=True),
        "pymetis": lambda: np.asarray(pymetis.part_graph(num_parts, adjacency).vertex_part),
    }


def symmetric(num_nodes: int, edge_index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """indptr and indices, int64, of both directions of each edge, once, without loops."""
    src, dst = edge_index.astype(np.int64)
    keys = np.unique(np.concatenate([src * num_nodes + dst, dst * num_nodes + src]))
    rows, cols = keys // num_nodes, keys % num_nodes
    keep = rows != cols
    return np.searchsorted(rows[keep], np.arange(num_nodes + 1)), cols[keep]


def largest_over_mean(counts: np.ndarray) -> float:
    return float(counts.max() / counts.mean())


def main() -> None:
    options = arguments(__doc__, rounds=3, data_root={"type": Path, "default": graphs.DATA_ROOT})
    report = Report("edge_cut", options.toy)
    pymetis = find_peers("pymetis").get("pymetis")
    for name, (num_nodes, edge_index) in load_all(options.toy, options.data_root).items():
        for num_parts in NUM_PARTS:
            with scratch_dir() as directory, pinned():
                measure(report, name, directory / "parts", num_parts, num_nodes, edge_index, pymetis, options.rounds)
    report.finish()


def measure(
    report: Report,
    name: str,
    output_dir: Path,
    num_parts: int,
    num_nodes: int,
    edge_index: np.ndarray,
    pymetis: ModuleType | None,
    rounds: int,
) -> None:
    owners: dict[str, np.ndarray] = {}

    def round_of(contestant: str, assign: Callable[[], np.ndarray]) -> float:
        owners[contestant] = assign()
        return float(edge_index.shape[1])

    found = contestants(output_dir, num_parts, num_nodes, edge_index, pymetis)
    timings = interleave({each: partial(round_of, each, assign) for each, assign in found.items()}, rounds, warmup=0)

    def write() -> float:
        RandomPartitioner(output_dir.with_name(f"{len(list(output_dir.parent.iterdir()))}"), num_parts, num_nodes,
                          edge_index, num_threads=1).partition()  # fmt: skip
        return 1

    write_s = interleave({"write": write}, rounds, warmup=0)["write"].median()
    for contestant, timing in timings.items():
        owner = owners[contestant]
        degree = np.bincount(edge_index[0], minlength=num_nodes)
        report.add(
            graph=name,
            parts=num_parts,
            partitioner=contestant,
            cut=float(np.mean(owner[edge_index[0]] != owner[edge_index[1]])),
            nodes=largest_over_mean(np.bincount(owner, minlength=num_parts)),
            edges=largest_over_mean(np.bincount(owner, weights=degree, minlength=num_parts)),
            assign_s=timing.median(),
            cpu_s=timing.cpu(),
            write_s=write_s,
        )


if __name__ == "__main__":
    main()
