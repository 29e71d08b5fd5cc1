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
import sys
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import graphs, peer_jobs
from benchmarks._harness import Report, Timing, arguments, find_peers
from benchmarks.bench_distributed import DEADLINE_S, Trainers, check_epoch, run_group, stages_of, start_method
from benchmarks.partitioned import NUM_PARTS, scratch_dir, write_partitions
from benchmarks.peer_jobs import NUM_LATENCIES
from glt.testing.cluster import free_port

MODES = ("worker", "server", "worker, asking", "server, asking")
CLIENTS = (1, 2, 4)


@dataclass(frozen=True)
class Job:
    """What a trainer or server needs to know."""

    mode: str  # worker | server, and perhaps "asking"
    graph_name: str
    partition_dir: str
    num_servers: int
    seeds: list[torch.Tensor]  # of each trainer
    num_neighbors: list[int]
    batch_size: int
    port: int


def trainer(rank: int, job: Job, commands: Connection) -> None:
    """Obeys commands; answers (number of batches, seconds, stats of the loader)."""
    torch.set_num_threads(1)
    dataset: glt.distributed.DistDataset | None = None
    options: Any
    if job.mode.startswith("server"):
        glt.distributed.init_client(job.num_servers, len(job.seeds), rank, "127.0.0.1", job.port)
        options = glt.distributed.RemoteDistSamplingWorkerOptions(worker_concurrency=8)
    else:
        glt.distributed.init_worker_group(len(job.seeds), rank, "bench")
        dataset = glt.distributed.DistDataset().load(job.partition_dir, rank)
        options = glt.distributed.MpDistSamplingWorkerOptions(
            worker_concurrency=8, master_addr="127.0.0.1", master_port=job.port, read_local="asking" not in job.mode
        )
    flags: dict[str, Any] = {"with_edge": True, "collect_features": True, "random_seed": 0, "worker_options": options}
    seeds, size = job.seeds[rank], job.batch_size
    with (
        glt.distributed.DistNeighborLoader(dataset, job.num_neighbors, seeds, size, **flags) as loader,
        glt.distributed.DistNeighborLoader(dataset, job.num_neighbors, seeds[:size], size, **flags) as single,
    ):
        graph = graphs.load(job.graph_name)
        while (command := commands.recv()) != "stop":
            num_batches, start = 0, time.perf_counter()
            if command == "check":
                num_batches = check_epoch(graph, loader, seeds)
            elif command == "epoch":
                num_batches = sum(1 for _ in loader)
            elif rank == 0:
                num_batches = sum(1 for _ in range(NUM_LATENCIES) for _ in single)
            commands.send((num_batches, time.perf_counter() - start, loader.stats()))
    glt.distributed.shutdown_client()


def server(rank: int, job: Job) -> None:
    torch.set_num_threads(1)
    dataset = glt.distributed.DistDataset().load(job.partition_dir, rank)
    glt.distributed.init_server(
        job.num_servers, len(job.seeds), rank, dataset, "127.0.0.1", job.port, read_local="asking" not in job.mode
    )
    glt.distributed.wait_and_shutdown_server()


class Served(Trainers):
    """Clients that wait for commands, and their servers.

    Args:
        job: Given to each.
        of: Its functions ``server`` and ``trainer`` are what they run.
    """

    def __init__(self, job: Any, of: ModuleType) -> None:
        context = start_method()
        self.servers = [
            context.Process(target=of.server, args=(rank, job), name=f"{job.mode} server {rank}")
            for rank in range(job.num_servers)
        ]
        for process in self.servers:
            process.start()
        super().__init__(job, of.trainer, len(job.seeds))

    def cpu_seconds(self) -> float:
        return super().cpu_seconds() + self.cpu_of(self.servers)

    def stop(self) -> None:
        super().stop()  # servers end when their clients have left
        for process in self.servers:
            process.join(DEADLINE_S)
            if process.exitcode is None:
                process.kill()
                process.join()


def start(job: Job) -> Trainers:
    if job.mode.startswith("server"):
        return Served(job, sys.modules[__name__])
    return Trainers(job, trainer, len(job.seeds))


def measure_modes(report: Report, job: Job, peer: peer_jobs.PeerJob | None, rounds: int) -> None:
    """Server mode against worker mode."""
    modes = MODES[:2] if report.toy else MODES
    with contextlib.ExitStack() as stack:
        groups = {mode: start(replace(job, mode=mode, port=free_port())) for mode in modes}
        if peer is not None:
            groups[peer.mode] = Served(peer, peer_jobs)
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
        row |= {"wall_ms_per_batch": timing.quartiles(1e3)[1] / timing.work[0]}
        row |= {"latency_ms": singles[mode].quartiles(1e3)[1] / NUM_LATENCIES}
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
    nodes = torch.from_numpy(np.random.default_rng(0).permutation(graph.connected_nodes()))
    batch_size = 64 if options.toy else 1024
    num_batches = len(nodes) // batch_size // NUM_PARTS
    seeds = list(nodes[: NUM_PARTS * num_batches * batch_size].chunk(NUM_PARTS))
    neighbors = [5, 3] if options.toy else [15, 10, 5]
    with scratch_dir() as directory:
        job = Job("", graph.name, write_partitions(graph, directory), NUM_PARTS, seeds, neighbors, batch_size, 0)
        peer = None
        if not options.toy and find_peers("graphlearn_torch"):
            (peer,) = peer_jobs.prepare(["GLT, server"], graph, NUM_PARTS, seeds, neighbors, batch_size, directory)
        measure_modes(report, job, peer, options.rounds)
        whole = write_partitions(graph, directory / "whole", 1)
        measure_clients(report, replace(job, partition_dir=whole), options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
