"""Distributed sampling: two partitions, two trainers and their sampling workers, all on this machine.

Claims: graph S, 128 floats per node, 1024 seeds, [15, 10, 5]: worker mode costs at most 1.6 times the CPU of the same
batch in one process, summed over all processes; 2.4 times where the other partition is on another host.

Method: the machine's cores are shared by trainers and workers, so CPU time, not wall time, says what the machinery
costs: user and system time of the trainers and of everything they started, from before an epoch to after it. Trainers
take the batches and do nothing else. Rounds alternate between an epoch of glt.loader.NeighborLoader in one process, one
of worker mode and one of collocated mode; who does not run is idle, and what idling costs is reported too. By default
the partitions of a host are read directly; "asking" turns that off (``read_local=False``), so that half of each batch
comes from the other trainer: by glt's own connections, or "over rpc". On one host the first go over a Unix socket, and
rpc reads the memory of the other process; "another host" is one: the trainers are in network namespaces of this
machine, with a cable between them (veth), which takes root; with TLS, "encrypted". "uncached": no rows are kept.

GLT's worker and collocated modes take part where GLT can be imported (see peer_jobs.py), with its own partitions of the
same graph, the same seeds and as many workers.

In the first epoch every batch is checked: its edges exist, features and labels are those of its nodes, each seed comes
once. Wall time is per batch of the job: both trainers together. The stages are the loaders' own (see ``stats()``).

    python -m benchmarks.bench_distributed [--rounds 3] [--toy] [--modes "worker, asking" "worker, asking over rpc"]
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.multiprocessing as mp

import glt
from benchmarks import graphs, peer_jobs
from benchmarks._harness import Report, Timing, arguments, find_peers, require
from benchmarks.partitioned import NUM_PARTS, features_of, labels_of, obey, scratch_dir, write_partitions
from glt.testing import network
from glt.testing.cluster import free_port

MODES = (
    "worker",
    "collocated",
    *("worker, asking", "worker, asking over rpc"),
    *("collocated, asking", "collocated, asking over rpc"),
    *("worker, asking another host", "worker, asking another host, uncached", "worker, asking another host, encrypted"),
    *("worker, asking another host over rpc",),
)
DEADLINE_S = 180  # for anything a trainer is asked to do


@dataclass(frozen=True)
class Job:
    """What a trainer or server needs to know."""

    mode: str  # worker | collocated | server, and words of MODES
    graph_name: str
    partition_dir: str
    seeds: list[torch.Tensor]  # of each trainer
    num_neighbors: list[int]
    batch_size: int
    port: int
    num_servers: int = 0
    has_latency: bool = False  # whether a loader of one batch is made, too
    hosts: tuple[str, str] | None = None  # network namespaces, of modes with "another host"
    tls: glt.distributed.TlsOptions | None = None  # of modes that are "encrypted"

    @property
    def address(self) -> str:
        """Of rank 0."""
        return network.ADDRESSES[0] if self.hosts else "127.0.0.1"

    def enter(self, host: int) -> None:
        """Moves this process to the host where it belongs."""
        if self.hosts:
            network.enter(self.hosts[host])
            # torch's rpc looks its own address up, and finds the loopback.
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = network.device_of(self.hosts[host])


def trainer(rank: int, job: Job, commands: Connection) -> None:
    """Obeys commands; answers (number of batches, seconds, stats of the loader)."""
    torch.set_num_threads(1)
    dataset: glt.distributed.DistDataset | None = None
    options: Any
    budget = 0 if "uncached" in job.mode else "64MB"
    if job.mode.startswith("server"):
        job.enter(1)
        glt.distributed.init_client(job.num_servers, len(job.seeds), rank, job.address, job.port, tls=job.tls)
        options = glt.distributed.RemoteDistSamplingWorkerOptions(worker_concurrency=8, cache_memory_budget=budget)
    else:
        job.enter(rank % 2)
        glt.distributed.init_worker_group(len(job.seeds), rank, "bench")
        dataset = glt.distributed.DistDataset().load(job.partition_dir, rank)
        is_worker = job.mode.startswith("worker")
        kind = (
            glt.distributed.MpDistSamplingWorkerOptions
            if is_worker
            else glt.distributed.CollocatedDistSamplingWorkerOptions
        )
        options = kind(
            job.address,
            job.port,
            worker_concurrency=8,
            cache_memory_budget=budget,
            tls=job.tls,
            read_local="asking" not in job.mode,
            transport="rpc" if "over rpc" in job.mode else "tcp",
        )

    def loader_of(seeds: torch.Tensor) -> glt.distributed.DistNeighborLoader:
        return stack.enter_context(
            glt.distributed.DistNeighborLoader(
                dataset, job.num_neighbors, seeds, job.batch_size, with_edge=True, collect_features=True,
                random_seed=0, worker_options=options,
            )
        )  # fmt: skip

    with contextlib.ExitStack() as stack:
        seeds = job.seeds[rank]
        loader = loader_of(seeds)
        single = loader_of(seeds[: job.batch_size]) if job.has_latency else None
        check = partial(check_epoch, graphs.load(job.graph_name), loader, seeds)
        obey(commands, check, loader, single if rank == 0 else None, loader.stats)
    glt.distributed.shutdown_client()


def placed(job: Job, mode: str, hosts: tuple[str, str] | None, certificates: Path) -> Job:
    """The job of a mode: on two hosts, and encrypted, where that is what its name says."""
    tls = None
    if "encrypted" in mode:
        tls = certificate_for(network.ADDRESSES, certificates)
    return replace(job, mode=mode, port=free_port(), hosts=hosts if "another host" in mode else None, tls=tls)


def certificate_for(addresses: Sequence[str], directory: Path) -> glt.distributed.TlsOptions:
    """One that all processes share, and trust."""
    key, cert = str(directory / "key.pem"), str(directory / "cert.pem")
    names = ",".join(f"IP:{address}" for address in addresses)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=bench", "-addext", f"subjectAltName={names}", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return glt.distributed.TlsOptions(cert, key, cert)


@contextlib.contextmanager
def hosts_for(modes: Sequence[str]) -> Iterator[tuple[tuple[str, str] | None, list[str]]]:
    """Two hosts, if modes need them, and the modes that can run: without root, those of two hosts cannot."""
    remote = [mode for mode in modes if "another host" in mode]
    with contextlib.ExitStack() as stack:
        hosts = None
        try:
            hosts = stack.enter_context(network.two_hosts()) if remote else None
        except OSError as error:
            print(f"left out: {', '.join(remote)} ({error})")
        yield hosts, [mode for mode in modes if hosts or mode not in remote]


def check_epoch(graph: graphs.BenchGraph, loader: Any, seeds: torch.Tensor) -> int:
    """Raises unless every batch agrees with the graph and each seed comes once, in order; returns the batches seen."""
    seen = []
    for batch in loader:
        node = batch.n_id
        neighbor, expanded = (node[ends].numpy() for ends in batch.edge_index)
        edge = batch.e_id.numpy()
        right = np.array_equal(graph.indices[edge], neighbor)
        right &= bool(np.all((graph.indptr[expanded] <= edge) & (edge < graph.indptr[expanded + 1])))
        right &= torch.equal(batch.x, features_of(node)) and torch.equal(batch.y, labels_of(node))
        require(right, f"batch {len(seen)} does not agree with graph {graph.name}")
        seen.append(node[: batch.batch_size])
    require(torch.equal(torch.cat(seen), seeds), "an epoch did not bring each seed once, in order")
    return len(seen)


def start_method() -> Any:
    """Processes are forked from one that has imported torch and glt: of new ones, most of the time is importing."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["glt", "benchmarks._harness", "torch_geometric.data"])
    return context


class Trainers:
    """The trainers of one mode, one per partition, waiting for commands.

    Args:
        job: Given to each; has a ``mode``.
        program: What each runs: ``program(rank, job, commands)``.
        count: How many.
    """

    def __init__(self, job: Any, program: Callable[[int, Any, Connection], None] = trainer, count: int = NUM_PARTS):
        context = start_method()
        self.pipes, self.processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=program, args=(rank, job, theirs), name=f"{job.mode} trainer {rank}")
            process.start()
            theirs.close()  # so that a trainer's death ends the pipe
            self.pipes.append(ours)
            self.processes.append(process)

    def cpu_seconds(self) -> float:
        """CPU time so far of the trainers and of everything they started."""
        return self.cpu_of(self.processes)

    @staticmethod
    def cpu_of(started: list[Any]) -> float:
        """CPU time so far of processes and of all that descend from them."""
        processes = [psutil.Process(process.pid) for process in started]
        family = [*processes, *(child for process in processes for child in process.children(recursive=True))]
        return sum(times.user + times.system for times in (process.cpu_times() for process in family))

    def ask(self, command: str) -> list[tuple[int, float, dict[str, Any]]]:
        """Sends ``command`` to all, returns the answers by rank."""
        for pipe in self.pipes:
            pipe.send(command)
        answers = []
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if not pipe.poll(DEADLINE_S):
                raise TimeoutError(f"{process.name} did not finish {command!r} within {DEADLINE_S} s")
            try:
                answers.append(pipe.recv())
            except EOFError:
                process.join(DEADLINE_S)
                raise RuntimeError(
                    f"{process.name} died with exit code {process.exitcode}; see its traceback"
                ) from None
        return answers

    def stop(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(BrokenPipeError):  # it died: that was reported when it was asked
                pipe.send("stop")
        self.end(self.processes)

    @staticmethod
    def end(processes: list[Any]) -> None:
        for process in processes:
            process.join(DEADLINE_S)
            if process.exitcode is None:
                process.kill()
                process.join()


def local_loader(graph: graphs.BenchGraph, seeds: torch.Tensor, num_neighbors: list[int], batch_size: int) -> Any:
    from torch_geometric.data import Data

    nodes = torch.arange(graph.num_nodes)
    data = Data(x=features_of(nodes), y=labels_of(nodes), edge_index=torch.from_numpy(graph.edge_index()))
    return glt.loader.NeighborLoader(
        data, num_neighbors=num_neighbors, input_nodes=seeds, batch_size=batch_size, shuffle=False, random_seed=0
    )


def seeds_of(graph: graphs.BenchGraph) -> tuple[list[torch.Tensor], int]:
    """The seeds of each trainer, all nodes that have edges, in as many whole batches; and the size of a batch."""
    nodes = torch.from_numpy(np.random.default_rng(0).permutation(graph.connected_nodes()))
    batch_size = 64 if graph.name == "toy" else 1024
    num_batches = len(nodes) // batch_size // NUM_PARTS
    return list(nodes[: NUM_PARTS * num_batches * batch_size].chunk(NUM_PARTS)), batch_size


def measure(
    report: Report,
    graph: graphs.BenchGraph,
    num_neighbors: list[int],
    rounds: int,
    directory: Path,
    chosen: Sequence[str],
) -> None:
    partition_dir = write_partitions(graph, directory)
    seeds, batch_size = seeds_of(graph)
    loader = local_loader(graph, torch.cat(seeds), num_neighbors, batch_size)
    check_epoch(graph, loader, torch.cat(seeds))
    local = Timing()
    job = Job("", graph.name, partition_dir, seeds, num_neighbors, batch_size, 0)
    peers: list[peer_jobs.PeerJob] = []
    if not report.toy and set(chosen) == set(MODES) and find_peers("graphlearn_torch"):
        names = ["GLT, worker", "GLT, collocated"]
        peers = peer_jobs.prepare(names, graph, NUM_PARTS, seeds, num_neighbors, batch_size, directory)
    rows = []
    with contextlib.ExitStack() as stack:
        hosts, possible = stack.enter_context(hosts_for(chosen))
        # One mode at a time beside the one process: a mode holds gigabytes.
        for each in (*(placed(job, mode, hosts, directory) for mode in possible), *peers):
            group, timing, ratios = (
                Trainers(each, trainer if isinstance(each, Job) else peer_jobs.trainer),
                Timing(),
                [],
            )
            try:
                group.ask("check")
                for _ in range(rounds):
                    before = group.cpu_seconds()
                    run_local(loader, local)
                    idle_s = group.cpu_seconds() - before
                    stats = run_group(group, timing)
                    ratios.append(timing.cpu_seconds[-1] / local.cpu_seconds[-1])
            finally:
                group.stop()
            idle_percent = idle_s / local.seconds[-1] * 100
            rows.append((each.mode, timing, float(np.median(ratios)), idle_percent, stages_of(stats)))
    for mode, timing, ratio, idle_percent, stages in (("one process", local, 1.0, 0.0, {}), *rows):
        row: dict[str, Any] = {"graph": graph.name, "mode": mode}
        row |= {"cpu_ms_per_batch": timing.cpu(1e3) / timing.work[0], "over_one_process": ratio}
        row |= {"wall_ms_per_batch": timing.median(1e3) / timing.work[0], "idle_cpu_percent": idle_percent, **stages}
        report.add(**row)


def stages_of(stats: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds per batch of each stage, over all ranks, since the loaders were made (the checking epoch included);
    of a peer nothing.

    Stages overlap: while a batch waits for remote rows (remote) or for room in its channel (blocked), others go on.
    """
    if not any(stats):
        return {}
    num_batches = sum(of_rank["num_batches"] for of_rank in stats)
    names = ("sampling_s", "remote_s", "gathering_s", "blocked_s", "wait_s", "collate_s")
    return {f"{name[:-2]}_ms": sum(of_rank[name] for of_rank in stats) / num_batches * 1e3 for name in names}


def run_local(loader: Any, timing: Timing) -> None:
    start, cpu_start = time.perf_counter(), time.process_time()
    timing.work.append(sum(1 for _ in loader))
    timing.seconds.append(time.perf_counter() - start)
    timing.cpu_seconds.append(time.process_time() - cpu_start)


def run_group(group: Trainers, timing: Timing, command: str = "epoch") -> list[dict[str, Any]]:
    cpu_start = group.cpu_seconds()
    answers = group.ask(command)
    timing.cpu_seconds.append(group.cpu_seconds() - cpu_start)
    timing.work.append(sum(num_batches for num_batches, _, _ in answers))
    timing.seconds.append(max(seconds for _, seconds, _ in answers))
    return [stats for _, _, stats in answers]


def main() -> None:
    options = arguments(__doc__, rounds=3, modes={"nargs": "*", "choices": MODES, "default": MODES})
    report = Report("distributed", options.toy)
    torch.set_num_threads(1)
    graph, num_neighbors = graphs.load("toy" if options.toy else "S"), [5, 3] if options.toy else [15, 10, 5]
    with scratch_dir() as directory:
        measure(report, graph, num_neighbors, options.rounds, directory, options.modes)
    if set(options.modes) == set(MODES):
        report.finish()
    else:
        report.print_rows(report.rows)  # part of them: what is kept has all


if __name__ == "__main__":
    main()
