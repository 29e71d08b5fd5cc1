"""Server mode: two servers of a partition each sample for clients, all on this machine.

Claims: graph S, 128 floats per node, 1024 seeds, [15, 10, 5], 22 MB per batch: a server's batch costs at most 1.4 times
the CPU of worker mode where its client is on the same host, 1.7 times where it is on another, and with TLS 1.5 times
what it does without; several clients of one sampling process share it equally, slowest / fastest at least 0.9.

Method: as in bench_distributed, whose worker mode takes turns with each mode of servers round by round: as many
sampling processes, the same seeds and batches. CPU time is that of all processes together: trainers, servers, samplers.
Wall time is per batch of the job: both trainers together. Latency is an epoch of one batch on one trainer, the others
idle: the time from asking to having it, nothing sampled ahead. "asking" turns reading the other partition's files off.
For "another host" the clients are in another network namespace of this machine than the servers (which takes root), and
the client keeps 64 MiB of rows; of "uncached", none. "encrypted": with TLS.

Then 1, 2 and 4 clients of one server with one sampling process, each with as many batches; they do nothing else with
them, so that the sampling process is the bottleneck: the rate of all clients together should hold.

GLT's server mode takes part where GLT can be imported (see peer_jobs.py), with its own partitions of the same graph
and the same seeds: two servers, two clients, each with a sampling process on its server and 8 batches at a time.

    python -m benchmarks.bench_server [--rounds 5] [--toy] [--modes worker server ...]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import graphs, peer_jobs
from benchmarks._harness import Report, Timing, arguments, find_peers
from benchmarks.bench_distributed import (
    Job,
    Trainers,
    hosts_for,
    placed,
    run_group,
    seeds_of,
    stages_of,
    start_method,
    trainer,
)
from benchmarks.partitioned import NUM_LATENCIES, NUM_PARTS, scratch_dir, write_partitions
from glt.testing.cluster import free_port

MODES = (
    *("worker", "server", "worker, asking", "server, asking"),
    *("server on another host", "server on another host, uncached"),
    *("server on another host, encrypted", "server on another host, uncached, encrypted"),
)
CLIENTS = (1, 2, 4)


def server(rank: int, job: Job) -> None:
    torch.set_num_threads(1)
    job.enter(0)
    dataset, read_local = glt.distributed.DistDataset().load(job.partition_dir, rank), "asking" not in job.mode
    me = job.num_servers, len(job.seeds), rank, dataset, job.address, job.port
    glt.distributed.init_server(*me, read_local=read_local, tls=job.tls)
    glt.distributed.wait_and_shutdown_server()


class Served(Trainers):
    """Clients that wait for commands, and their servers; what both run is given a job."""

    def __init__(
        self, job: Any, server: Callable[[int, Any], None], trainer: Callable[[int, Any, Connection], None]
    ) -> None:
        context = start_method()
        self.servers = [
            context.Process(target=server, args=(rank, job), name=f"{job.mode} server {rank}")
            for rank in range(job.num_servers)
        ]
        for process in self.servers:
            process.start()
        super().__init__(job, trainer, len(job.seeds))

    def cpu_seconds(self) -> float:
        return super().cpu_seconds() + self.cpu_of(self.servers)

    def stop(self) -> None:
        super().stop()  # servers end when their clients have left
        self.end(self.servers)


def start(job: Any) -> Trainers:
    if isinstance(job, peer_jobs.PeerJob):
        return Served(job, peer_jobs.server, peer_jobs.trainer)
    if job.mode.startswith("server"):
        return Served(job, server, trainer)
    return Trainers(job, trainer, len(job.seeds))


def measure_modes(
    report: Report, job: Job, peer: peer_jobs.PeerJob | None, rounds: int, chosen: Sequence[str], directory: Path
) -> None:
    """Worker mode, and each other mode in turns with it, one at a time: a mode holds gigabytes."""
    with contextlib.ExitStack() as stack:
        hosts, modes = stack.enter_context(hosts_for(chosen))
        for word in "", ", asking":
            those = [mode for mode in modes if mode != f"worker{word}" and ("asking" in mode) == bool(word)]
            jobs: list[Any] = [placed(job, mode, hosts, directory) for mode in those]
            if peer is not None and not word:
                jobs.append(peer)
            if jobs or f"worker{word}" in modes:
                measure_pairs(report, placed(job, f"worker{word}", hosts, directory), jobs, rounds)


def measure_pairs(report: Report, worker: Job, jobs: list[Any], rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        rival = stack.enter_context(Contestant(worker))
        for each in jobs:
            with Contestant(each) as other:
                for _ in range(rounds):
                    ratio = rival.epoch(), other.epoch()
                    other.ratios.append(ratio[1] / ratio[0])
                    rival.latency()
                    other.latency()
            other.report(report, worker.graph_name, rival)
        if not jobs:
            for _ in range(rounds):
                rival.epoch()
                rival.latency()
        rival.report(report, worker.graph_name, rival)


class Contestant:
    """A mode, started and checked, and what its rounds took."""

    def __init__(self, job: Any) -> None:
        self.mode, self.group = job.mode, start(job)
        self.epochs, self.singles, self.ratios = Timing(), Timing(), list[float]()
        self.stats: list[dict[str, Any]] = []

    def __enter__(self) -> Contestant:
        try:
            self.group.ask("check")
        except BaseException:
            self.group.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.group.stop()

    def epoch(self) -> float:
        """Its CPU seconds."""
        self.stats = run_group(self.group, self.epochs)
        return self.epochs.cpu_seconds[-1]

    def latency(self) -> None:
        run_group(self.group, self.singles, "latency")

    def report(self, report: Report, graph: str, rival: Contestant) -> None:
        row: dict[str, Any] = {"mode": self.mode, "batches_per_s": self.epochs.rate()}
        row |= {"wall_ms_per_batch": self.epochs.median(1e3) / self.epochs.work[0]}
        row |= {"latency_ms": self.singles.median(1e3) / NUM_LATENCIES}
        row |= {"cpu_ms_per_batch": self.epochs.cpu(1e3) / self.epochs.work[0]}
        row |= {"cpu_over_worker": float(np.median(self.ratios)) if self.ratios else 1.0}
        report.add(graph=graph, **row, **stages_of(self.stats))


def measure_clients(report: Report, job: Job, rounds: int) -> None:
    """One server with one sampling process, and more and more clients."""
    share = job.seeds[0]
    with contextlib.ExitStack() as stack:
        groups = {}
        for count in CLIENTS[:2] if report.toy else CLIENTS:
            told = replace(
                job, mode="server", num_servers=1, seeds=[share] * count, port=free_port(), has_latency=False
            )
            groups[count] = start(told)
            stack.callback(groups[count].stop)
        for group in groups.values():
            group.ask("check")
        rounds_of: dict[int, list[tuple[float, float, float]]] = {count: [] for count in groups}
        for _ in range(rounds):
            for count, group in groups.items():
                before = group.cpu_seconds()
                answers = group.ask("epoch")
                cpu_s, seconds = group.cpu_seconds() - before, [each for _, each, _ in answers]
                total = sum(num_batches for num_batches, _, _ in answers)
                rounds_of[count].append((total / max(seconds), min(seconds) / max(seconds), cpu_s / total * 1e3))
    for count, found in rounds_of.items():
        rate, fairness, cpu_ms = np.median(np.array(found), axis=0).tolist()
        row = {"mode": f"{count} clients of one sampler", "batches_per_s": rate, "cpu_ms_per_batch": cpu_ms}
        report.add(graph=job.graph_name, **row, slowest_over_fastest=fairness)


def main() -> None:
    options = arguments(__doc__, rounds=5, modes={"nargs": "*", "choices": MODES})
    report = Report("server", options.toy)
    torch.set_num_threads(1)
    graph = graphs.load("toy" if options.toy else "S")
    seeds, batch_size = seeds_of(graph)
    neighbors = [5, 3] if options.toy else [15, 10, 5]
    with scratch_dir() as directory:
        partitions = write_partitions(graph, directory)
        job = Job("", graph.name, partitions, seeds, neighbors, batch_size, 0, NUM_PARTS, has_latency=True)
        peer = None
        if not options.toy and find_peers("graphlearn_torch"):
            (peer,) = peer_jobs.prepare(["GLT, server"], graph, NUM_PARTS, seeds, neighbors, batch_size, directory)
        modes = options.modes or (MODES[:2] if options.toy else MODES)
        measure_modes(report, job, peer, options.rounds, modes, directory)
        if options.modes:
            report.print_rows(report.rows)  # part of them: what is kept has all
            return
        whole = write_partitions(graph, directory / "whole", 1)
        measure_clients(report, replace(job, partition_dir=whole), options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
