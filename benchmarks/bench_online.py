"""One-shot sampling for models that answer requests: the batch of given seeds, now, from a server on this machine.

Claim: graph S, 128 floats per node, [10, 5] neighbours: a request costs no more CPU than a batch of that size through a
loader that was made once and samples ahead, plus a tenth; and the first batch of a loader that is made for the request
takes many times as long.

Method: one server with one sampling process, one client, which does nothing with the batches. For 1, 16 and 64 seeds
and 1, 8 and 32 requests in flight, round by round in turns:

- "request": SamplingClient.asample, so many awaited at a time; the time of each from asking to having the batch;
- "loader": a DistNeighborLoader of that batch size, made once, with as many batches in flight (worker_concurrency and
  prefetch_size), iterated; the time of each step, which is short where batches were sampled ahead;
- "new loader": one made for each request, by as many threads, its first batch taken, and shut down.

p50 and p99 are over the requests of a round, then the median of the rounds; CPU time is of all processes, per request.

    python -m benchmarks.bench_online [--rounds 5] [--toy]
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, require
from benchmarks.bench_distributed import Trainers, start_method
from benchmarks.partitioned import features_of, labels_of, scratch_dir, write_partitions
from glt.testing.cluster import free_port

NEIGHBORS = [10, 5]
NUM_SEEDS, IN_FLIGHT = (1, 16, 64), (1, 8, 32)
NUM_REQUESTS = {"request": 400, "loader": 400, "new loader": 16}  # in a round


def serve(partition_dir: str, port: int) -> None:
    torch.set_num_threads(1)
    dataset = glt.distributed.DistDataset().load(partition_dir, 0)
    glt.distributed.init_server(1, 1, 0, dataset, "127.0.0.1", port)
    glt.distributed.wait_and_shutdown_server()


def options_of(in_flight: int) -> glt.distributed.RemoteDistSamplingWorkerOptions:
    return glt.distributed.RemoteDistSamplingWorkerOptions(
        worker_concurrency=in_flight, prefetch_size=in_flight, buffer_size="64MB"
    )


@dataclass
class Cell:
    """One way of asking, for so many seeds with so many in flight: by round, the p50 and p99 of its requests, how many
    came per second, and CPU seconds of each."""

    way: str
    num_seeds: int
    in_flight: int
    ask: Callable[[int], list[float]]
    rounds: list[tuple[float, float, float, float]] = field(default_factory=list)

    def run(self, count: int, server: Any) -> None:
        cpu_s, start = Trainers.cpu_of([server]) + time.process_time(), time.perf_counter()
        taken = self.ask(count)
        seconds = time.perf_counter() - start
        cpu_s = Trainers.cpu_of([server]) + time.process_time() - cpu_s
        p50, p99 = np.percentile(taken, [50, 99])
        self.rounds.append((p50, p99, count / seconds, cpu_s / count))

    def row(self, rival: Cell) -> dict[str, Any]:
        p50, p99, rate, cpu_s = np.median(np.array(self.rounds), axis=0).tolist()
        by_cpu = np.median(np.array(self.rounds)[:, 3] / np.array(rival.rounds)[:, 3])
        row: dict[str, Any] = {"seeds": self.num_seeds, "in_flight": self.in_flight, "way": self.way}
        row |= {"p50_ms": p50 * 1e3, "p99_ms": p99 * 1e3, "per_s": rate, "cpu_ms": cpu_s * 1e3}
        return row | {"by_cpu_over_loader": float(by_cpu)}


def asking(client: glt.distributed.SamplingClient, seeds: Iterator[torch.Tensor], in_flight: int) -> Any:
    async def ask_in_turn(count: Iterator[int], taken: list[float]) -> None:
        for _ in count:
            nodes, start = next(seeds), time.perf_counter()
            await client.asample(nodes)
            taken.append(time.perf_counter() - start)

    async def ask_all(count: int) -> list[float]:
        taken: list[float] = []
        left = iter(range(count))
        await asyncio.gather(*(ask_in_turn(left, taken) for _ in range(in_flight)))
        return taken

    return lambda count: asyncio.run(ask_all(count))


def stepping(loader: glt.distributed.DistNeighborLoader) -> Callable[[int], list[float]]:
    def step(count: int) -> list[float]:
        taken, batches = [], iter(loader)
        for _ in range(count):
            start = time.perf_counter()
            next(batches)
            taken.append(time.perf_counter() - start)
        return taken

    return step


def making(seeds: Iterator[torch.Tensor], in_flight: int) -> Callable[[int], list[float]]:
    def make(nodes: torch.Tensor) -> float:
        start = time.perf_counter()
        with glt.distributed.DistNeighborLoader(
            None, NEIGHBORS, nodes, len(nodes), collect_features=True, random_seed=0, worker_options=options_of(1)
        ) as loader:
            next(iter(loader))
            taken = time.perf_counter() - start
        return taken

    def make_all(count: int) -> list[float]:
        with ThreadPoolExecutor(in_flight) as pool:
            return list(pool.map(make, itertools.islice(seeds, count)))

    return make_all


def check(client: glt.distributed.SamplingClient, graph: graphs.BenchGraph, nodes: torch.Tensor) -> None:
    """The answer agrees with the graph, and is the first batch of a loader of these seeds."""
    batch = client.sample(nodes)
    neighbor, expanded = (batch.n_id[ends].numpy() for ends in batch.edge_index)
    have = {(int(v), int(u)) for v in np.unique(expanded) for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]}
    right = all((int(v), int(u)) in have for v, u in zip(expanded, neighbor, strict=True))
    right &= torch.equal(batch.x, features_of(batch.n_id)) and torch.equal(batch.y, labels_of(batch.n_id))
    require(right and torch.equal(batch.n_id[: len(nodes)], nodes), "an answer does not agree with the graph")
    with glt.distributed.DistNeighborLoader(
        None, NEIGHBORS, nodes, len(nodes), collect_features=True, random_seed=0, worker_options=options_of(1)
    ) as loader:
        first = next(iter(loader))
    same = torch.equal(first.n_id, batch.n_id) and torch.equal(first.edge_index, batch.edge_index)
    require(same, "an answer is not the first batch of a loader of its seeds")


def measure(report: Report, graph: graphs.BenchGraph, server: Any, rounds: int) -> None:
    nodes = torch.from_numpy(np.random.default_rng(0).permutation(graph.connected_nodes()))
    cells: list[Cell] = []
    with contextlib.ExitStack() as stack:
        for num_seeds, in_flight in itertools.product(
            *((NUM_SEEDS[:2], IN_FLIGHT[:2]) if report.toy else (NUM_SEEDS, IN_FLIGHT))
        ):
            pieces = [each for each in nodes.split(num_seeds) if len(each) == num_seeds]
            seeds = itertools.cycle(pieces)
            client = stack.enter_context(
                glt.distributed.SamplingClient(NEIGHBORS, collect_features=True, worker_options=options_of(in_flight))
            )
            check(client, graph, pieces[0])
            needed = NUM_REQUESTS["loader"] * num_seeds
            loader = stack.enter_context(
                glt.distributed.DistNeighborLoader(
                    None, NEIGHBORS, nodes.repeat(-(-needed // len(nodes)))[:needed], num_seeds, collect_features=True,
                    random_seed=0, worker_options=options_of(in_flight),
                )
            )  # fmt: skip
            place = num_seeds, in_flight
            cells.append(Cell("loader", *place, stepping(loader)))
            cells.append(Cell("request", *place, asking(client, seeds, in_flight)))
            cells.append(Cell("new loader", *place, making(seeds, in_flight)))
        for number in range(rounds + 1):
            for cell in cells:
                count = NUM_REQUESTS[cell.way]
                cell.run(count // 10 if report.toy else count, server)
                if number == 0:
                    cell.rounds.clear()  # warm now
    for first in range(0, len(cells), 3):
        for cell in cells[first : first + 3]:
            report.add(graph=graph.name, **cell.row(cells[first]))


def main() -> None:
    options = arguments(__doc__, rounds=5)
    report = Report("online", options.toy)
    torch.set_num_threads(1)
    graph = graphs.load("toy" if options.toy else "S")
    with scratch_dir() as directory:
        partition_dir, port = write_partitions(graph, directory, 1), free_port()
        server = start_method().Process(target=serve, args=(partition_dir, port), name="server")
        server.start()
        try:
            glt.distributed.init_client(1, 1, 0, "127.0.0.1", port)
            measure(report, graph, server, options.rounds)
            glt.distributed.shutdown_client()
        finally:
            Trainers.end([server])
    report.finish()


if __name__ == "__main__":
    main()
