"""Load: 4 servers, 64 clients, uneven speeds, clients that read nothing, are stopped, or come and go.

Claims: 4 servers with a sampling process each, 16 clients of each, batches of graph S (64 seeds, [10, 5], 128 floats
per node, 0.9 MB):

- Clients that take batches as fast as they come get equal shares of their server, within a tenth. Where a quarter of
  them are slow, those get what they ask for, and the others equal shares of the rest.
- A sampling process holds at most ``prefetch_size`` + ``worker_concurrency`` batches for a loader, and no more than
  ``buffer_size``, also when nothing is read.
- A client that reads nothing, or whose process is stopped, takes nothing from the others.
- 1,000 clients that come, take a batch and go leave nothing: a tenth are killed, the others say goodbye or hang up.

Method: each client has sessions with all servers of its own, and a loader; 16 of them, four of each server, are threads
of a process. They do nothing with batches, so that the sampling processes are the bottleneck, all on this machine:
through shared memory, and by sockets as from another host. The first batch of each client is checked. All take batches
for the same seconds, those of starting not counted. Then a share is a client's batches over the mean of its server; the
wait is from asking for a batch to having it; "got over asked" is the least of the batches of a slow client over those
it would take if none had to be waited for. "rate over without" is over the mean of the windows before and after,
without the one more. Memory is what ``/proc/PID/status`` says of anonymous and shared pages, the most of any process.

    python -m benchmarks.bench_load [--toy] [--parts "shared memory" sockets visits]
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, require
from benchmarks.bench_distributed import start_method
from benchmarks.crowd import WAYS, Taken, World, come_and_be_killed, crowd
from benchmarks.partitioned import scratch_dir, write_partitions
from glt.distributed.server.api import get_server
from glt.testing.cluster import free_port, take_census

NUM_SERVERS, NUM_CLIENTS, NUM_PROCESSES, NUM_VISITS = 4, 64, 4, 1000
WINDOW_S, WARM_S = 4.0, 1.0
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "small": {"buffer_size": "2MB", "prefetch_size": 2, "worker_concurrency": 2},
}
DEADLINE_S = 180.0
MB = 1e6


# -- processes -----------------------------------------------------------------------------------------------------


def server(rank: int, partition_dir: str, num_servers: int, port: int, commands: Connection) -> None:
    torch.set_num_threads(1)
    logging.getLogger().setLevel("ERROR")  # it warns of clients that are lost
    dataset = glt.distributed.DistDataset().load(partition_dir, rank)
    glt.distributed.init_server(num_servers, None, rank, dataset, "127.0.0.1", port, max_workers=1)
    commands.send([os.getpid(), *get_server().pool.pids().values()])
    while commands.recv() is not None:
        commands.send(glt.distributed.server_stats())
    glt.distributed.wait_and_shutdown_server(0.0)


class Processes:
    """Processes that obey commands, with a pipe each; ended with this block."""

    def __init__(self, program: Callable[..., None], arguments: Sequence[tuple[Any, ...]], name: str) -> None:
        context = start_method()
        self.pipes, self.processes = [], []
        for number, args in enumerate(arguments):
            ours, theirs = context.Pipe()
            process = context.Process(target=program, args=(*args, theirs), name=f"{name} {number}")
            process.start()
            theirs.close()  # so that its death ends the pipe
            self.pipes.append(ours)
            self.processes.append(process)

    def tell(self, told: Sequence[Any]) -> None:
        for pipe, each in zip(self.pipes, told, strict=True):
            pipe.send(each)

    def hear(self) -> list[Any]:
        heard = []
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if not pipe.poll(DEADLINE_S):
                raise TimeoutError(f"{process.name} did not answer within {DEADLINE_S:g} s")
            try:
                heard.append(pipe.recv())
            except EOFError:
                process.join(DEADLINE_S)
                raise RuntimeError(f"{process.name} died with exit code {process.exitcode}") from None
        return heard

    def ask(self, *told: Any) -> list[Any]:
        """Asks all the same."""
        self.tell([told] * len(self.pipes))
        return self.hear()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(BrokenPipeError):  # it died: that was reported when it was asked
                pipe.send(None)
        for process in self.processes:
            process.join(DEADLINE_S)
            if process.exitcode is None:
                process.kill()
                process.join()


class Clients(Processes):
    """Processes of clients; rank ``first`` and those after it, in turn."""

    def __init__(self, world: World, num_clients: int, num_processes: int, name: str) -> None:
        super().__init__(crowd, [(world,)] * num_processes, name)
        self.name, self.num_clients = name, num_clients
        block = -(-num_clients // num_processes)
        self.ranks = [range(i * block, min(num_clients, (i + 1) * block)) for i in range(num_processes)]

    def join(self, options: Mapping[str, Any]) -> None:
        self.tell([("join", (ranks, self.num_clients, self.name, options)) for ranks in self.ranks])
        self.hear()

    def set_going(self, naps: Mapping[int, float], seconds: float) -> None:
        begin_s = time.monotonic() + min(WARM_S, seconds)
        self.tell([("run", (begin_s, begin_s + seconds, naps))] * len(self.pipes))

    def run(self, seconds: float, naps: Mapping[int, float] = {}) -> list[Taken]:
        self.set_going(naps, seconds)
        return sorted((each for some in self.hear() for each in some), key=lambda each: each.rank)

    def do(self, name: str) -> list[Any]:
        return self.ask(name, ())


# -- what they hold ------------------------------------------------------------------------------------------------


def status_bytes(pid: int, *names: str) -> int:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(lines[name].split()[0]) for name in names) << 10


def memory_of(pids: Sequence[int]) -> int:
    """The most that one of these processes holds, but for files."""
    return max(status_bytes(pid, "RssAnon", "RssShmem") for pid in pids)


def num_mapped(pid: int) -> int:
    """Rings and tables of seeds that a process has mapped."""
    return sum("/memfd:glt-" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


# -- fairness ------------------------------------------------------------------------------------------------------


def shares(taken: Sequence[Taken], num_servers: int) -> list[float]:
    """Of each client: its batches over the mean of those of its server."""
    counts = [[len(each.waits) for each in taken if each.rank % num_servers == rank] for rank in range(num_servers)]
    return [count / np.mean(some) for some in counts if some for count in some]


def row_of(taken: Sequence[Taken], num_servers: int, seconds: float) -> dict[str, Any]:
    waits = np.concatenate([each.waits for each in taken])
    p50, p99 = np.percentile(waits, [50, 99]) * 1e3
    found = shares(taken, num_servers)
    row: dict[str, Any] = {"clients": len(taken), "batches_per_s": len(waits) / seconds}
    row |= {"least_share": min(found), "largest_share": max(found)}
    return row | {"p50_ms": float(p50), "p99_ms": float(p99), "longest_ms": float(waits.max() * 1e3)}


def measure_shares(
    report: Report, clients: Clients, pids: Sequence[int], num_servers: int, seconds: float, way: str
) -> None:
    """All as fast as they can; then a quarter of them slow: at a third and a sixth of what they had."""
    every = clients.run(seconds)
    row = row_of(every, num_servers, seconds) | {"sampler_mb": memory_of(pids) / MB}
    report.add(way=way, what="all as fast as they can", **row)
    share_s = seconds / np.mean([len(each.waits) for each in every])
    fourths = [rank for rank in range(clients.num_clients) if rank // num_servers % 4 == 3]  # as many of each server
    naps = {rank: float(share_s * (3, 6)[rank // num_servers // 4 % 2]) for rank in fourths}
    both = clients.run(seconds, naps)
    slow, fast = ([each for each in both if (each.rank in naps) == is_slow] for is_slow in (True, False))
    report.add(way=way, what="three quarters that are fast", **row_of(fast, num_servers, seconds))
    got = min(len(each.waits) * naps[each.rank] / seconds for each in slow)
    waits = np.concatenate([each.waits for each in slow])
    p50, p99 = np.percentile(waits, [50, 99]) * 1e3
    row: dict[str, Any] = {"clients": len(slow), "batches_per_s": len(waits) / seconds, "got_over_asked": got}
    report.add(way=way, what="a quarter that is slow", **row, p50_ms=float(p50), p99_ms=float(p99))


def measure_idle(report: Report, world: World, clients: Clients, num_servers: int, seconds: float) -> None:
    """What the others get while some read nothing, and while some are stopped."""
    before = clients.run(seconds)
    for is_stopped in (False, True):
        with Clients(world, num_servers, 1, "stopped" if is_stopped else "readers-of-nothing") as guests:
            guests.join({})
            if is_stopped:
                guests.set_going({}, DEADLINE_S)
                time.sleep(WARM_S)
                os.kill(guests.processes[0].pid, signal.SIGSTOP)
            else:
                guests.do("read_nothing")
            beside = clients.run(seconds)
            if is_stopped:
                guests.processes[0].kill()
        after = clients.run(seconds)
        row, without = row_of(beside, num_servers, seconds), np.mean([num_batches(before), num_batches(after)])
        what = f"all but one more of each server, which {'is stopped' if is_stopped else 'reads nothing'}"
        report.add(way=world.way, what=what, **row, rate_over_without=float(num_batches(beside) / without))
        before = after


def num_batches(taken: Sequence[Taken]) -> int:
    return sum(len(each.waits) for each in taken)


def measure_memory(report: Report, world: World, servers: Processes, pids: Sequence[Sequence[int]], count: int) -> None:
    """Clients that ask for an epoch and read nothing: how much each sampling process holds for them."""
    for name, options in SETTINGS.items():
        before = memory_of([each[1] for each in pids])
        with Clients(world, count, min(count, NUM_PROCESSES), f"memory-{name}") as clients:
            clients.join(options)
            clients.do("read_nothing")
            held = wait_until_still(servers)
            memory = memory_of([each[1] for each in pids])
        num_made = sum(each["num_batches"] for each in held)
        row = {"clients": count, "batches_held": sum(each["num_unread"] + each["num_queued"] for each in held) / count}
        row |= {"mb_per_batch": sum(each["sent_bytes"] for each in held) / num_made / MB}
        row |= {"sampler_mb": memory / MB, "added_mb": (memory - before) / MB}
        row |= {"server_mb": memory_of([each[0] for each in pids]) / MB}
        report.add(way=world.way, what=f"nothing is read, {name} settings", **row)


def wait_until_still(servers: Processes) -> list[dict[str, float]]:
    """Waits until servers make no batches any more; returns what they count."""
    made = -1.0
    deadline = time.monotonic() + DEADLINE_S
    while True:
        totals = [each["totals"] for each in servers.ask("stats")]
        now = sum(each["num_batches"] + each["num_queued"] for each in totals)
        if now == made and not any(each["num_running"] for each in totals):
            return totals
        require(time.monotonic() < deadline, "servers go on making batches for clients that read nothing")
        made = now
        time.sleep(1.5)  # they report every second


# -- clients that come and go --------------------------------------------------------------------------------------


def holdings(pids: Sequence[int]) -> dict[str, int]:
    """What processes of servers hold, the most of each kind that one of them does."""
    found = [take_census(pid) for pid in pids]
    return {
        "threads": max(each.num_threads for each in found),
        "descriptors": max(len(each.fds) for each in found),
        "memory": memory_of(pids),
        "mapped": max(num_mapped(pid) for pid in pids),
        "in_dev_shm": len(os.listdir("/dev/shm")),
    }


def visit(world: World, first: int, count: int, group: str, num_processes: int) -> None:
    """``count`` clients come, take a batch and go; of ten, one is killed."""
    num_killed = count // 10
    context, ranks = start_method(), range(first, first + count - num_killed)
    with Clients(world, 0, num_processes, group) as clients:
        clients.tell([("come_and_go", (ranks[i::num_processes], 1 << 20, group)) for i in range(num_processes)])
        for begun in range(0, num_killed, num_processes):
            some = range(begun, min(num_killed, begun + num_processes))
            killed = [
                context.Process(target=come_and_be_killed, args=(world, ranks.stop + each, 1 << 20, group))
                for each in some
            ]
            for process in killed:
                process.start()
            for process in killed:
                process.join(DEADLINE_S)
                require(process.exitcode == -signal.SIGKILL, f"a client ended with {process.exitcode}")
        clients.hear()


def measure_visits(report: Report, world: World, servers: Processes, pids: Sequence[Sequence[int]], count: int) -> None:
    every = [pid for each in pids for pid in each]
    visit(world, 0, max(20, count // 10), "warm", 2)
    wait_until_left(servers)
    before, start = holdings(every), time.monotonic()
    visit(world, 0, count, "visitors", 2)
    seconds = time.monotonic() - start
    wait_until_left(servers)
    after = holdings(every)
    row: dict[str, Any] = {"clients": count, "clients_per_s": count / seconds}
    row |= {f"more_{name}": after[name] - before[name] for name in ("threads", "descriptors", "mapped", "in_dev_shm")}
    report.add(
        way=world.way, what="clients that come and go", **row, added_mb=(after["memory"] - before["memory"]) / MB
    )


def wait_until_left(servers: Processes) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while any(each["num_clients"] or each["num_loaders"] for each in servers.ask("stats")):
        require(time.monotonic() < deadline, "servers keep clients or loaders that have gone")
        time.sleep(0.1)
    time.sleep(1.0)  # what is closed goes on threads of its own


def main() -> None:
    parts = {"nargs": "*", "choices": (*WAYS, "visits"), "default": (*WAYS, "visits")}
    options = arguments(__doc__, rounds=1, parts=parts)
    report = Report("load", options.toy)
    torch.set_num_threads(1)
    is_toy = options.toy
    num_servers, num_clients, seconds = (2, 8, 0.3) if is_toy else (NUM_SERVERS, NUM_CLIENTS, WINDOW_S)
    graph = graphs.load("toy" if is_toy else "S")
    with scratch_dir() as directory:
        partition_dir, port = write_partitions(graph, directory, num_servers), free_port()
        asked: tuple[tuple[int, ...], int] = ((5, 3), 16) if is_toy else ((10, 5), 64)
        world = World(num_servers, port, graph.name, *asked)
        told = [(rank, partition_dir, num_servers, port) for rank in range(num_servers)]
        with Processes(server, told, "server") as servers:
            pids = servers.hear()
            for way in [each for each in WAYS if each in options.parts]:
                there = replace(world, way=way)
                with Clients(there, num_clients, 2 if is_toy else NUM_PROCESSES, "crowd") as clients:
                    clients.join({})
                    measure_shares(report, clients, [each[1] for each in pids], num_servers, seconds, way)
                    measure_idle(report, there, clients, num_servers, seconds / 2)
                measure_memory(report, there, servers, pids, num_clients)
            if "visits" in options.parts:
                for way in WAYS:
                    there = replace(world, way=way)
                    measure_visits(report, there, servers, pids, 20 if is_toy else NUM_VISITS // 2)
    report.finish()


if __name__ == "__main__":
    main()
