"""Server mode: two servers of a partition each sample for clients, all on this machine.

Claims: graph S, 128 floats per node, 1024 seeds, [15, 10, 5]: the way over servers (22 MB per batch, twice through
buffers of the kernel, and looking after the connection) costs at most as much CPU as the batch itself in worker mode;
several clients of one sampling process share it equally, slowest / fastest at least 0.9.

Method: as in bench_distributed, whose worker mode takes turns with server mode round by round: as many sampling
processes, the same seeds and batches. CPU time is that of all processes together: trainers, servers, samplers. Wall
time is per batch of the job: both trainers together. Latency is an epoch of one batch on one trainer, the others idle:
the time from asking to having it, nothing sampled ahead. "asking" turns reading the other partition's files off.

Then 1, 2 and 4 clients of one server with one sampling process, each with as many batches; they do nothing else with
them, so that the sampling process is the bottleneck: the rate of all clients together should hold.

GLT's server mode takes part where GLT can be imported (see peer_jobs.py), with its own partitions of the same graph
and the same seeds: two servers, two clients, each with a sampling process on its server and 8 batches at a time.

    python -m benchmarks.bench_server [--rounds 5] [--toy]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import graphs, peer_jobs
from benchmarks._harness import Report, Timing, arguments, find_peers
from benchmarks.bench_distributed import (
    Job,
    Trainers,
    run_group,
    seeds_of,
    stages_of,
    start_method,
    trainer,
)
from benchmarks.partitioned import NUM_LATENCIES, NUM_PARTS, scratch_dir, write_partitions
from glt.testing.cluster import free_port

MODES = ("worker", "server", "worker, asking", "server, asking")
CLIENTS = (1, 2, 4)


def server(rank: int, job: Job) -> None:
    torch.set_num_threads(1)
    dataset = glt.distributed.DistDataset().load(job.partition_dir, rank)
    glt.distributed.init_server(
        job.num_servers, len(job.seeds), rank, dataset, "127.0.0.1", job.port, read_local="asking" not in job.mode
    )
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


def start(job: Job) -> Trainers:
    if job.mode.startswith("server"):
        return Served(job, server, trainer)
    return Trainers(job, trainer, len(job.seeds))


def measure_modes(report: Report, job: Job, peer: peer_jobs.PeerJob | None, rounds: int) -> None:
    """Server mode against worker mode."""
    modes = MODES[:2] if report.toy else MODES
    with contextlib.ExitStack() as stack:
        groups = {mode: start(replace(job, mode=mode, port=free_port(), has_latency=True)) for mode in modes}
        if peer is not None:
            groups[peer.mode] = Served(peer, peer_jobs.server, peer_jobs.trainer)
        epochs = {mode: Timing() for mode in groups}
        for group in groups.values():
            stack.callback(group.stop)
        for group in groups.values():
            group.ask("check")
        singles = {mode: Timing() for mode in groups}
        stats: dict[str, list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for mode, group in groups.items():
                stats[mode] = run_group(group, epochs[mode])
            for mode, group in groups.items():
                run_group(group, singles[mode], "latency")
    for mode, timing in epochs.items():
        per_batch = timing.cpu(1e3) / timing.work[0]
        rival = epochs["worker, asking" if "asking" in mode else "worker"]
        row: dict[str, Any] = {"mode": mode, "batches_per_s": timing.rate()}
        row |= {"wall_ms_per_batch": timing.median(1e3) / timing.work[0]}
        row |= {"latency_ms": singles[mode].median(1e3) / NUM_LATENCIES}
        row |= {"cpu_ms_per_batch": per_batch, "over_worker_ms": per_batch - rival.cpu(1e3) / rival.work[0]}
        report.add(graph=job.graph_name, **row, **stages_of(stats[mode]))


def measure_clients(report: Report, job: Job, rounds: int) -> None:
    """One server with one sampling process, and more and more clients."""
    share = job.seeds[0]
    with contextlib.ExitStack() as stack:
        groups = {}
        for count in CLIENTS[:2] if report.toy else CLIENTS:
            told = replace(job, mode="server", num_servers=1, seeds=[share] * count, port=free_port())
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
    options = arguments(__doc__, rounds=5)
    report = Report("server", options.toy)
    torch.set_num_threads(1)
    graph = graphs.load("toy" if options.toy else "S")
    seeds, batch_size = seeds_of(graph)
    neighbors = [5, 3] if options.toy else [15, 10, 5]
    with scratch_dir() as directory:
        job = Job("", graph.name, write_partitions(graph, directory), seeds, neighbors, batch_size, 0, NUM_PARTS)
        peer = None
        if not options.toy and find_peers("graphlearn_torch"):
            (peer,) = peer_jobs.prepare(["GLT, server"], graph, NUM_PARTS, seeds, neighbors, batch_size, directory)
        measure_modes(report, job, peer, options.rounds)
        whole = write_partitions(graph, directory / "whole", 1)
        measure_clients(report, replace(job, partition_dir=whole), options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
