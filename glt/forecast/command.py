"""The command ``glt forecast``: how fast a job will be on how many hosts, and what limits it.

Exit status: 0 when the forecast is printed, 1 if the directory is damaged or incomplete, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from glt.distributed.engine.local_partition import node_hotness
from glt.errors import PartitionError
from glt.forecast.batches import GraphTracer
from glt.forecast.costs import Costs, costs_path
from glt.forecast.counts import Placement
from glt.forecast.grid import (
    Choice,
    SeedBatches,
    best_choice,
    count_grid,
    random_owners,
    rescaled_owners,
    sketch,
)
from glt.forecast.model import Cluster, Shape
from glt.partition import load_partition

T = TypeVar("T")

_CLUSTER = {
    "cores": ("num_cores", float, 16.0, "cores of a host that sample"),
    "nic": ("nic_gbit", float, 25.0, "network card, Gbit/s"),
    "rtt-ms": ("rtt_ms", float, 0.2, "round trip between hosts, ms"),
    "disk": ("disk_mb_s", float, 1000.0, "reading partitions, MB/s"),
    "disk-reads": ("disk_reads_per_s", float, 100_000.0, "rows that the disk reads at random per second"),
    "memory": ("memory_gb", float, 64.0, "memory of a host, GB"),
    "feature-memory": ("feature_memory_gb", float, None, "memory for features, GB: other rows stay on disk"),
    "trainers": ("num_trainers", int, 1, "trainers per host, one per GPU"),
    "step-ms": ("step_ms", float, 0.0, "what a trainer takes for a batch, ms; 0: it is never the slow one"),
    "workers": ("num_workers", int, 0, "sampling processes per host; 0: what fits best"),
    "concurrency": ("worker_concurrency", int, 4, "batches in flight per sampling process"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Counts the messages and rows of real batches, exactly, and forecasts from these and the costs of this machine "
        "how many batches a cluster makes, what limits it, and which number of hosts, workers and which cache fit. "
        "Give a partition directory, or --nodes and --edges of a graph that there is not yet. Exit status 0: printed; "
        "1: the directory is damaged or incomplete; 2: wrong usage."
    )
    parser.add_argument("graph_dir", nargs="?", metavar="DIR", help="what a partitioner wrote, all partitions")
    graph = parser.add_argument_group("a graph that is only described")
    graph.add_argument("--nodes", type=int, help="number of nodes")
    graph.add_argument("--edges", type=int, help="number of directed edges")
    graph.add_argument("--degree-law", type=float, help="exponent of the degrees, above 2 (default 2.5)")
    graph.add_argument("--feature-bytes", type=int, help="bytes of the features of a node (default 512)")
    job = parser.add_argument_group("the job")
    job.add_argument("--fanout", default="15,10,5", help="edges per node and hop (default %(default)s)")
    job.add_argument("--batch", type=int, default=1024, help="seeds in a batch (default %(default)s)")
    job.add_argument("--seeds", help="ids of the seeds, a .npy file (default: all nodes)")
    job.add_argument("--local-seeds", action="store_true", help="each host trains on the seeds that it owns")
    job.add_argument(
        "--cache-ratios",
        help="caches to look at, shares of the nodes (default 0,0.05,0.2; of a directory that has caches: those)",
    )
    job.add_argument("--windows", default="1,8", help="gather_window to look at, up to 8 (default %(default)s)")
    job.add_argument("--batches", type=int, default=32, help="batches to sample (default %(default)s)")
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument("--hosts", help="numbers of hosts, for example 2,4,8 (default: 2 to 1024)")
    for flag, (_, kind, default, help_) in _CLUSTER.items():
        shown = "all are in memory" if default is None else "%(default)s"
        cluster.add_argument(f"--{flag}", type=kind, default=default, help=f"{help_} (default: {shown})")
    costs = parser.add_argument_group("costs")
    costs.add_argument("--calibrate", action="store_true", help="measure this machine for a minute, and keep it")
    costs.add_argument("--costs", help="a file of costs (default: of this machine if it was calibrated)")
    parser.add_argument("--json", action="store_true", help="print JSON")


@dataclass
class _Job:
    """What is forecast: a graph that can be sampled, where its nodes are for any number of hosts, and its size."""

    name: str
    tracer: GraphTracer
    shape: Shape
    seeds: np.ndarray
    placement: Callable[[int, np.ndarray | None], Placement]
    cache_ratios: list[float]
    notes: list[str]
    memory_hotness: Callable[[], np.ndarray]  # by which owners keep rows in memory


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Forecasts, prints, and returns the exit status."""
    try:
        report = _report(arguments)
    except (PartitionError, OSError) as error:
        print(f"glt forecast: {error}", file=sys.stderr)
        return 1
    except (ValueError, TypeError, IndexError) as error:
        parser.error(str(error))
    print(json.dumps(report, indent=1) if arguments.json else "\n".join(_lines(report)))
    return 0


def _report(arguments: argparse.Namespace) -> dict[str, Any]:
    fan_out = _numbers("--fanout", arguments.fanout, int, lambda n: n >= -1 and n != 0, "edges per hop, or -1 for all")
    windows = _numbers("--windows", arguments.windows, int, lambda n: 1 <= n <= 8, "1 to 8")
    ratios = None
    if arguments.cache_ratios is not None:
        ratios = _numbers("--cache-ratios", arguments.cache_ratios, float, lambda r: 0 <= r <= 1, "shares from 0 to 1")
    for name in ("batch", "batches"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} = {getattr(arguments, name)}: expected at least 1")
    wanted = [2**n for n in range(1, 11)]
    if arguments.hosts is not None:
        wanted = _numbers("--hosts", arguments.hosts, int, lambda n: 1 <= n <= 4096, "1 to 4096")
    cluster = Cluster(**{field: getattr(arguments, flag.replace("-", "_")) for flag, (field, *_) in _CLUSTER.items()})
    costs, source = _costs(arguments)
    job = _of_directory(arguments, fan_out) if arguments.graph_dir is not None else _described(arguments, fan_out)
    hotness = job.tracer.hotness(job.seeds, arguments.batch)
    kept_by = None if cluster.feature_memory_gb is None else job.memory_hotness()
    everyone = SeedBatches(job.tracer, job.seeds, arguments.batch, arguments.batches)
    found: list[tuple[int, Choice]] = []
    for num_hosts in wanted:
        placement = job.placement(num_hosts, hotness)
        seeds = everyone
        if arguments.local_seeds and num_hosts > 1:
            owner = placement.owner[job.seeds]
            of_hosts = [job.seeds[owner == host] for host in range(num_hosts)]
            seeds = SeedBatches(job.tracer, of_hosts, arguments.batch, arguments.batches)
            if not seeds:
                job.notes.append(f"{num_hosts} hosts are left out: they own less than a batch of seeds each")
                continue
        if ratios is None and placement.cached is not None:
            asked = [sum(map(len, placement.cached)) / placement.num_parts / len(placement.owner)]
        else:
            asked = job.cache_ratios if ratios is None else ratios
            placement = replace(placement, cached=None, hotness=hotness)
        placement, hosts = replace(placement, memory_hotness=kept_by), replace(cluster, num_hosts=num_hosts)
        counted = count_grid(
            seeds, placement, bytes_of_row=job.shape.bytes_of_row, cache_ratios=asked if num_hosts > 1 else [0.0],
            windows=windows if num_hosts > 1 else [1], memory_ratio=hosts.memory_ratio(job.shape),
            num_edges=job.shape.num_edges,
        )  # fmt: skip
        found.append((num_hosts, best_choice(counted, job.shape, hosts, costs)))
    if not found:
        raise ValueError(
            f"--hosts = {wanted}: no host owns a whole batch of seeds; give fewer hosts or a smaller --batch"
        )
    rows = [_row(num_hosts, choice, len(job.seeds), arguments.batch) for num_hosts, choice in found]
    return {
        "graph": job.name,
        "costs": {"source": source, **asdict(costs)},
        "hosts": rows,
        "recommendation": _recommendation(rows, cluster),
        "notes": job.notes,
    }


def _costs(arguments: argparse.Namespace) -> tuple[Costs, str]:
    if arguments.calibrate:
        if arguments.costs is not None:
            raise ValueError(f"--calibrate and --costs {arguments.costs}: expected one of them")
        from glt.forecast.calibration import calibrate  # starts processes: not needed otherwise

        costs, path = calibrate(), costs_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        costs.write(path)
        return costs, f"measured now, kept in {path}"
    if arguments.costs is not None:
        return Costs.read(arguments.costs), arguments.costs
    if costs_path().exists():
        return Costs.read(costs_path()), str(costs_path())
    return Costs(), "glt's own, of a busy machine: --calibrate measures this one"


def _of_directory(arguments: argparse.Namespace, fan_out: list[int]) -> _Job:
    for name in ("nodes", "edges", "degree_law", "feature_bytes"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} and a directory: expected one of them")
    tracer, dataset = GraphTracer.of_directory(arguments.graph_dir, fan_out)
    owner, num_parts = dataset.node_books[0].owners(), dataset.num_partitions
    parts = [load_partition(arguments.graph_dir, part, verify=False) for part in range(num_parts)]
    caches = [None if part.nodes[0].cache is None else part.nodes[0].cache.ids for part in parts]
    cached = [each for each in caches if each is not None]
    sizes = {name: dtype.itemsize * row.numel() for name, (dtype, row) in dataset.own.node_specs[0].items()}
    mapped = sizes.get("y", 0) + sizes.get("time", 0)
    shape = Shape(dataset.num_nodes_of[0], dataset.num_edges_of[0], sum(sizes.values()), mapped)

    def placement(num_hosts: int, hotness: np.ndarray | None) -> Placement:
        if num_hosts == num_parts:
            return Placement(owner, num_parts, cached=cached if len(cached) == num_parts else None)
        return Placement(rescaled_owners(owner, num_parts, num_hosts), num_hosts)

    notes = [
        f"placed as in {arguments.graph_dir} for {num_parts} hosts; for fewer its partitions are merged, for more they "
        "are split at random"
    ]

    def memory_hotness() -> np.ndarray:
        found = np.zeros(shape.num_nodes)
        for part in parts:
            found[part.nodes[0].ids] = node_hotness(part, 0).numpy()
        return found

    seeds = _seeds(arguments.seeds, shape.num_nodes)
    return _Job(str(arguments.graph_dir), tracer, shape, seeds, placement, [0.0, 0.05, 0.2], notes, memory_hotness)


def _described(arguments: argparse.Namespace, fan_out: list[int]) -> _Job:
    if arguments.nodes is None or arguments.edges is None:
        raise ValueError("neither a directory nor --nodes and --edges are given: expected one of them")
    if arguments.seeds is not None:
        raise ValueError(f"--seeds = {arguments.seeds}: a graph that is only described has no ids; leave it out")
    exponent = 2.5 if arguments.degree_law is None else arguments.degree_law
    if not exponent > 2 or not math.isfinite(exponent):
        raise ValueError(f"--degree-law = {exponent:g}: expected an exponent above 2, where the mean degree is finite")
    bytes_of_row = 512 if arguments.feature_bytes is None else arguments.feature_bytes
    shape = Shape(arguments.nodes, arguments.edges, bytes_of_row)
    tracer, share, degrees = sketch(shape.num_nodes, shape.num_edges, exponent, fan_out)
    trace = tracer.trace(np.random.default_rng(0).permutation(tracer.num_nodes)[: arguments.batch])
    most = trace.num_edges + trace.begin[1]
    notes = ["owners are random: what a partitioner saves is not in a description"]
    if share < 1:
        notes.append(
            f"sampled from a graph of {share:.2%} of the nodes with the same degrees, whose batches overlap more: the "
            f"whole graph's have up to {most / len(trace.nodes) - 1:.0%} more nodes and rows"
        )

    def placement(num_hosts: int, hotness: np.ndarray | None) -> Placement:
        return Placement(random_owners(tracer.num_nodes, num_hosts), num_hosts, hotness=hotness)

    name = f"{shape.num_nodes} nodes, {shape.num_edges} edges, exponent {exponent:g}"
    seeds = np.arange(tracer.num_nodes)
    return _Job(name, tracer, shape, seeds, placement, [0.0, 0.05, 0.2], notes, lambda: degrees)


def _seeds(path: str | None, num_nodes: int) -> np.ndarray:
    if path is None:
        return np.arange(num_nodes)
    seeds = np.load(Path(path), allow_pickle=False)
    if seeds.ndim != 1 or seeds.dtype.kind not in "iu" or seeds.size == 0:
        raise ValueError(f"--seeds = {path}: it holds {seeds.dtype} {list(seeds.shape)}, expected ids, [n] integers")
    wrong = seeds[(seeds < 0) | (seeds >= num_nodes)]
    if wrong.size:
        raise ValueError(f"--seeds = {path}: it has node {wrong[0]}, expected ids in [0, {num_nodes})")
    return np.unique(seeds.astype(np.int64))


def _numbers(flag: str, text: str, kind: Callable[[str], T], fits: Callable[[T], bool], expected: str) -> list[T]:
    try:
        numbers = [kind(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(map(fits, numbers)):
        raise ValueError(f"{flag} = {text!r}: expected numbers with commas between them, {expected}")
    return numbers


def _row(num_hosts: int, choice: Choice, num_seeds: int, batch_size: int) -> dict[str, Any]:
    job = choice.job
    counts = job.counts
    return {
        "num_hosts": num_hosts,
        "batches_per_s": job.batches_per_s,
        "bottleneck": job.bottleneck,
        "limits": job.limits,
        "num_workers": job.cluster.workers,
        "cache_ratio": choice.cache_ratio,
        "gather_window": choice.gather_window,
        "cpu_s": job.cpu_s,
        "latency_s": job.latency_s,
        "waiting_s": job.waiting_s,
        "sent_bytes": job.sent_bytes,
        "disk_s": job.disk_s,
        "num_messages": counts.num_messages,
        "num_peers": counts.peers,
        "memory_bytes": job.memory_bytes,
        "memory_fits": job.fits,
        "start_s": job.start_s,
        "counts": asdict(counts),
    }


def _recommendation(rows: list[dict[str, Any]], cluster: Cluster) -> str:
    """One sentence: the most hosts of which each doubling still gave half as much again."""
    fitting = [row for row in rows if row["memory_fits"]]
    if not fitting:
        least = min(rows, key=lambda row: row["memory_bytes"])
        return (
            f"No number of hosts fits into {cluster.memory_gb:g} GB each: {least['num_hosts']} hosts need "
            f"{least['memory_bytes'] / 1e9:.0f} GB each."
        )
    chosen = fitting[0]
    for row in fitting[1:]:
        growth = math.log(row["batches_per_s"] / chosen["batches_per_s"])
        if growth < math.log(1.5) * math.log2(row["num_hosts"] / chosen["num_hosts"]):
            break
        chosen = row
    return (
        f"Take {chosen['num_hosts']} hosts with num_workers={chosen['num_workers']}, "
        f"cache_ratio={chosen['cache_ratio']:g} and gather_window={chosen['gather_window']}: "
        f"{chosen['batches_per_s']:.0f} batches/s, limited by the {chosen['bottleneck']}."
    )


def _lines(report: dict[str, Any]) -> list[str]:
    heads = (
        "hosts",
        "batches/s",
        "limited by",
        "workers",
        "cache",
        "window",
        "MB/batch",
        "messages",
        "ms/batch",
        "GB/host",
    )
    table = [heads]
    for row in report["hosts"]:
        table.append(
            (
                str(row["num_hosts"]),
                f"{row['batches_per_s']:.0f}",
                row["bottleneck"],
                str(row["num_workers"]),
                f"{row['cache_ratio']:.3g}",
                str(row["gather_window"]),
                f"{row['sent_bytes'] / 1e6:.2f}",
                f"{row['num_messages']:.0f}",
                f"{row['latency_s'] * 1e3:.1f}",
                f"{row['memory_bytes'] / 1e9:.1f}" + ("" if row["memory_fits"] else " !"),
            )
        )
    widths = [max(len(line[at]) for line in table) for at in range(len(heads))]
    lines = [report["graph"], f"costs: {report['costs']['source']}", ""]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    if not all(row["memory_fits"] for row in report["hosts"]):
        lines.append("! more than the memory of a host")
    return [*lines, "", report["recommendation"], *(f"Note: {note}." for note in report["notes"])]
