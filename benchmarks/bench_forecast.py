"""What `glt forecast` predicts, beside hosts on links of 1 to 25 Gbit/s and 0.1 to 2 ms.

Claim: a job makes as many batches per second as is predicted, within 15%.

Method: 2, 3 and 4 hosts (:mod:`benchmarks.links`), each with a random partition of graph S, a trainer and a sampling
process; rows of 512 bytes, nothing cached. "large" batches are 1,024 seeds and [15, 10, 5], "small" ones 128 and [5,
5]; "1" or "4" of them are in flight per sampling process. The forecast is given the counts of such batches; the costs
that :func:`glt.forecast.calibrate` measures with this graph on two of the hosts, between the runs, their mean over all
of them; what two streams of TCP that cross on such links get, as the card's rate; and the cores that were left: the
hosts share those of this machine with what carries their packets (``/proc/stat``, epoch by epoch). The speed of a core
here changes by a third within seconds: ``cost_spread`` says by how much calibrations differed in the CPU of a batch.
The rate of an epoch is that of its middle, without the first and last eighth. ``ratio`` is predicted over measured, the
median of the epochs; ``cpu_ratio`` the same of CPU seconds per batch; ``limit`` the bottleneck that the forecast names;
``given_cpu`` what ``ratio`` is when the forecast is told the CPU seconds.

    python -m benchmarks.bench_forecast [--rounds 3] [--toy] [--hosts 2 3 4]
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, astuple, dataclass
from functools import partial
from multiprocessing.connection import Connection
from statistics import median

import numpy as np
import psutil
import torch

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, require
from benchmarks.bench_distributed import Trainers
from benchmarks.links import Link, Links, place
from benchmarks.partitioned import NUM_FEATURES, features_of, scratch_dir, write_partitions
from glt.forecast import (
    Cluster,
    Costs,
    Counts,
    GraphTracer,
    JobForecast,
    Placement,
    Shape,
    calibrate,
    count_batches,
    forecast_job,
)
from glt.testing.cluster import free_port

LINKS = (Link(1, 0.1), Link(1, 2), Link(10, 0.1), Link(10, 1), Link(25, 0.1), Link(25, 2))
CALIBRATED = Link(10, 0.1)
HOSTS = (2, 3, 4)
CONCURRENCY = (1, 4)
NUM_COUNTED = 8  # batches of each host
WITHIN = 0.15


@dataclass(frozen=True)
class Work:
    """What a batch is, and how many each trainer takes."""

    name: str
    batch_size: int
    num_neighbors: tuple[int, ...]
    num_batches: int


WORKS = (Work("large", 1024, (15, 10, 5), 64), Work("small", 128, (5, 5), 400))
TOYS = (Work("small", 16, (5, 5), 8),)


@dataclass(frozen=True)
class Job:
    """What a trainer needs to know."""

    mode: str
    hosts: tuple[str, ...]  # network namespaces
    partition_dir: str
    seeds: list[torch.Tensor]
    work: Work
    concurrency: int
    port: int


@dataclass(frozen=True)
class Epoch:
    """What was measured: batches per second of all hosts, cores that were left for them, and CPU seconds per batch."""

    rate: float
    cores: float
    cpu_s: float


@dataclass(frozen=True)
class Found:
    """The epochs of a job on a link, and what is forecast of it."""

    job: Job
    counts: Counts
    link: Link
    crossing_gbit: float
    epochs: list[Epoch]

    def forecast(self, shape: Shape, epoch: Epoch, costs: Costs) -> JobForecast:
        hosts = len(self.job.hosts)
        cluster = Cluster(
            hosts, epoch.cores / hosts, self.crossing_gbit, self.link.rtt_ms, num_workers=1,
            worker_concurrency=self.job.concurrency,
        )  # fmt: skip
        return forecast_job(self.counts, shape, cluster, costs)


def trainer(rank: int, job: Job, commands: Connection) -> None:
    """Answers each command with an epoch: (its batches, batches per second in its middle)."""
    torch.set_num_threads(1)
    address = place(job.hosts, rank)
    glt.distributed.init_worker_group(len(job.hosts), rank, "bench")
    options = glt.distributed.MpDistSamplingWorkerOptions(
        address, job.port, num_workers=1, worker_concurrency=job.concurrency, read_local=False, cache_memory_budget=0
    )
    dataset = glt.distributed.DistDataset().load(job.partition_dir, rank)
    with glt.distributed.DistNeighborLoader(
        dataset, list(job.work.num_neighbors), job.seeds[rank], job.work.batch_size, random_seed=rank,
        collect_features=True, worker_options=options,
    ) as loader:  # fmt: skip
        for batch in loader:  # this epoch is not measured
            require(torch.equal(batch.x, features_of(batch.n_id)), "rows are not those of their nodes")
        while commands.recv() != "stop":
            at = [time.monotonic() for _ in loader]
            edge = max(1, len(at) // 8)
            rate = (len(at) - 2 * edge) / (at[-1 - edge] - at[edge - 1])
            commands.send((len(at), rate))


def busy_seconds() -> float:
    """Of all cores of this machine so far."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def count(graph: graphs.BenchGraph, partition_dir: str, work: Work, seeds: list[torch.Tensor]) -> Counts:
    tracer, dataset = GraphTracer.of_directory(partition_dir, list(work.num_neighbors))
    placement = Placement(dataset.node_books[0].owners(), len(seeds))
    of_home = [own.split(work.batch_size)[:NUM_COUNTED] for own in seeds]
    traces = [tracer.trace(batch.numpy()) for batches in of_home for batch in batches]
    homes = [home for home, batches in enumerate(of_home) for _ in batches]
    return count_batches(traces, homes, placement, bytes_of_row=4 * NUM_FEATURES, num_edges=graph.num_edges)


def run(job: Job, hosts: Links, links: tuple[Link, ...], rounds: int) -> dict[Link, list[Epoch]]:
    """The job's epochs on each of the links."""
    group, found = Trainers(job, trainer, len(job.hosts)), {}
    try:
        for link in links:
            hosts.shape(link)
            group.ask("epoch")
            epochs = []
            for _ in range(rounds):
                start, cpu, busy = time.monotonic(), group.cpu_seconds(), busy_seconds()
                answers = group.ask("epoch")
                wall, cpu = time.monotonic() - start, group.cpu_seconds() - cpu
                cores = psutil.cpu_count() - (busy_seconds() - busy - cpu) / wall
                rate, num_batches = (sum(answer[at] for answer in answers) for at in (1, 0))
                epochs.append(Epoch(rate, cores, cpu / num_batches))
            found[link] = epochs
    finally:
        group.stop()
    return found


def costs_now(graph: graphs.BenchGraph, hosts: Links, is_toy: bool) -> Costs:
    """Of this graph on two of the hosts."""
    hosts.shape(CALIBRATED)
    node_feat = features_of(torch.arange(graph.num_nodes))
    edge_index, where = torch.from_numpy(graph.edge_index()), partial(place, hosts.names)
    found = Costs() if is_toy else calibrate(edge_index=edge_index, node_feat=node_feat, place=where)
    print(found, flush=True)
    return found


def measure(
    graph: graphs.BenchGraph, hosts: Links, num_hosts: int, rounds: int, parts: str, is_toy: bool
) -> tuple[list[Found], list[Costs]]:
    """What so many hosts make, and what was calibrated between their runs."""
    links = LINKS[: 1 if is_toy else None]
    rates, found, costs = dict[Link, float](), list[Found](), list[Costs]()
    for link in links:
        hosts.shape(link)
        rates[link] = hosts.crossing_gbit()
    nodes = torch.from_numpy(np.random.default_rng(0).permutation(graph.connected_nodes()))
    names = hosts.names[:num_hosts]
    for work in TOYS if is_toy else WORKS:
        seeds = list(nodes[: num_hosts * work.num_batches * work.batch_size].chunk(num_hosts))
        counts = count(graph, parts, work, seeds)
        costs.append(costs_now(graph, hosts, is_toy))
        for concurrency in CONCURRENCY[: 1 if is_toy else None]:
            job = Job(f"{work.name}, {concurrency}", names, parts, seeds, work, concurrency, free_port())
            for link, epochs in run(job, hosts, links, rounds).items():
                found.append(Found(job, counts, link, rates[link], epochs))
        print(f"{num_hosts} hosts: {work.name} batches are measured", flush=True)
    return found, costs


def compare(report: Report, graph: graphs.BenchGraph, found: list[Found], calibrated: list[Costs]) -> None:
    """Adds what was measured beside what is forecast with the mean of the costs."""
    costs = Costs(*np.mean([astuple(each) for each in calibrated], axis=0))
    shape = Shape(graph.num_nodes, graph.num_edges, 4 * NUM_FEATURES)
    for each in found:
        forecasts, told = [each.forecast(shape, epoch, costs) for epoch in each.epochs], []
        for epoch, forecast in zip(each.epochs, forecasts, strict=True):
            factor = epoch.cpu_s / sum(forecast.cpu_s.values())
            right = Costs(**{name: cost * factor for name, cost in asdict(costs).items()})
            told.append(each.forecast(shape, epoch, right).batches_per_s / epoch.rate)
        alone = [sum(each.forecast(shape, each.epochs[0], one).cpu_s.values()) for one in calibrated]
        pairs = list(zip(forecasts, each.epochs, strict=True))
        report.add(
            hosts=len(each.job.hosts), gbit=each.link.gbit, crossing_gbit=each.crossing_gbit, rtt_ms=each.link.rtt_ms,
            batches=each.job.mode, cores=median(epoch.cores for epoch in each.epochs),
            measured=median(epoch.rate for epoch in each.epochs),
            ratio=median(forecast.batches_per_s / epoch.rate for forecast, epoch in pairs),
            cpu_ratio=median(sum(forecast.cpu_s.values()) / epoch.cpu_s for forecast, epoch in pairs),
            given_cpu=median(told), cost_spread=max(alone) / min(alone), limit=forecasts[0].bottleneck,
        )  # fmt: skip


def main() -> None:
    options = arguments(__doc__, 3, hosts={"nargs": "+", "type": int, "default": list(HOSTS)})
    report = Report("forecast", options.toy)
    graph = graphs.load("toy" if options.toy else "S")
    numbers = options.hosts[: 1 if options.toy else None]
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(Links(max(numbers)))
        except OSError as error:
            print(f"glt forecast is left out: {error}")
            return
        directory = stack.enter_context(scratch_dir())
        found, costs = list[Found](), list[Costs]()
        for num_hosts in numbers:
            parts = write_partitions(graph, directory / str(num_hosts), num_hosts)
            some, calibrated = measure(graph, hosts, num_hosts, options.rounds, parts, options.toy)
            found, costs = found + some, costs + calibrated
        compare(report, graph, found, [*costs, costs_now(graph, hosts, options.toy)])
    off = [abs(row["ratio"] - 1) for row in report.rows]
    over = sum(each > WITHIN for each in off)
    told = [abs(row["given_cpu"] - 1) for row in report.rows]
    print(f"given the CPU seconds: off by {median(told):.0%} (median), {max(told):.0%} at most")
    print(f"off by {median(off):.0%} (median), {max(off):.0%} at most; {over} of {len(off)} by more than {WITHIN:.0%}")
    report.finish()


if __name__ == "__main__":
    main()
