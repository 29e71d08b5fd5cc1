"""Sampling with relabelling: seeds in, a batch in local ids out.

Claim: one thread, without replacement, edge ids on, graph M: at least 12x pyg-lib and 6x the best peer. Two threads, on
one batch or on two in flight: at least 1.7x one, where two processes are that. Beside them two processes that share
nothing, each with a graph of its own: what the machine, its neighbours at work, lets two threads be. And a model of
what 2, 4 and 8 threads on one batch can be at most, by the time of the part that threads share and of that which one
does.

Method: 1024 distinct seeds with edges per batch, the same seeds for all; one core; contestants take turns round by
round, and a ratio is the median of those of each round; each batch includes handing node, row, col and edge ids over as
int64 arrays, GraphBolt's all but the last as int32. glt and GraphBolt get int32 columns, the others int64, the only
ones that they take. GLT draws with replacement, which is less work: it has no other way. Output is where each puts it:
theirs in fresh tensors, glt's in memory that earlier batches used. Before anything is timed, every contestant's batches
are checked against the graph: each edge exists where its id says, no edge occurs twice (GLT's may), each node is
expanded once and completely (min(k, degree) edges), nodes are distinct with the seeds first.

    python -m benchmarks.bench_sampler [--rounds 7] [--toy]
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks import graphs
from benchmarks._harness import Report, Timing, arguments, collection_off, find_peers, interleave, pinned, require
from benchmarks.peer_samplers import NAMES, WITH_REPLACEMENT, Sample, Sampler, peer_samplers
from glt import _core

PATIENCE = 300  # seconds
CASES = [("S", [15, 10, 5]), ("M", [15, 10, 5]), ("M", [10, 10, 10]), ("M", [25, 10])]


class GltSampler:
    """glt's native sampler with its state, as one thread uses it."""

    def __init__(self, csr: _core.Csr, num_neighbors: Sequence[int], num_threads: int = 1) -> None:
        self.csr, self.num_neighbors, self.num_threads = csr, list(num_neighbors), num_threads
        self.batch = _core.Batch([csr.num_nodes], [(0, 0)])
        self.number = 0

    def __call__(self, seeds: np.ndarray) -> Sample:
        self.number += 1
        key = _core.batch_key(0, 0, self.number)
        batch = self.batch
        batch.start([(0, seeds)])
        batch.sample([self.csr], [self.num_neighbors], replace=False, batch_key=key, num_threads=self.num_threads)
        ((node, _),), ((ends, edge),) = batch.hand_over()
        return node, ends[0], ends[1], edge


def csr_of(graph: graphs.BenchGraph) -> _core.Csr:
    """The graph in memory with 2 MiB pages, as Topology makes its arrays and NumPy those of the peers."""
    return _core.Csr(np.array(graph.indptr), np.array(graph.indices))


def check(graph: graphs.BenchGraph, num_neighbors: list[int], seeds: np.ndarray, sample: Sample, name: str) -> None:
    """Raises unless ``sample`` is a batch of distinct ``seeds``, without replacement if the sampler has that."""
    node, row, col, edge = sample

    def expect(holds: bool, what: str) -> None:
        require(holds, f"{name}, graph {graph.name}, {num_neighbors}: {what}")

    expect(np.array_equal(node[: len(seeds)], seeds), "the seeds do not come first")
    expect(len(np.unique(node)) == len(node), "a node has two local ids")
    expect(np.array_equal(graph.indices[edge], node[row]), "an edge does not come from the neighbour that it names")
    begin, end = graph.indptr[node[col]], graph.indptr[node[col] + 1]
    expect(bool(np.all((begin <= edge) & (edge < end))), "an edge does not belong to the node that was expanded")
    expect(name in WITH_REPLACEMENT or len(np.unique(edge)) == len(edge), "an edge was drawn twice")
    degree, drawn = np.diff(graph.indptr)[node], np.bincount(col, minlength=len(node))
    first, last = 0, len(seeds)  # the frontier, in local ids: the nodes that the previous hop discovered
    for k in num_neighbors:
        whole = np.array_equal(drawn[first:last], np.minimum(degree[first:last], k))
        expect(whole, "a node of the frontier has not min(k, degree) neighbours")
        into_frontier = row[(col >= first) & (col < last)]
        first, last = last, max(last, int(into_frontier.max(initial=-1)) + 1)
    expect(last == len(node), "a node is reached by no edge")
    expect(int(drawn[first:].sum()) == 0, "a node of the last hop was expanded")


def round_of(sampler: Sampler, batches: Iterable[np.ndarray]) -> Callable[[], float]:
    """One round: all batches in turn; returns the edges sampled."""
    return lambda: float(sum(len(sampler(seeds)[1]) for seeds in batches))


@contextlib.contextmanager
def round_in_threads(samplers: Sequence[Sampler], batches: list[np.ndarray]) -> Iterator[Callable[[], float]]:
    """One round in which each sampler has a thread of its own, that takes the next batch when it has done one.

    The threads stay from round to round, as a loader's do: the kernel takes milliseconds to spread new ones over cores.
    """
    with contextlib.ExitStack() as stack:
        threads = [(sampler, stack.enter_context(ThreadPoolExecutor(1))) for sampler in samplers]

        def run() -> float:
            left = iter(batches)
            shares = [thread.submit(round_of(sampler, left)) for sampler, thread in threads]
            return sum(share.result(PATIENCE) for share in shares)

        yield run


@contextlib.contextmanager
def round_in_processes(
    graph: graphs.BenchGraph, num_neighbors: list[int], batches: list[np.ndarray]
) -> Iterator[Callable[[], float]]:
    """The same in this process and another one, that shares nothing with it but the number of the next batch."""
    context = multiprocessing.get_context("spawn")
    number = context.Value("q")
    mine, theirs = context.Pipe()
    given = (theirs, number, graph.name, num_neighbors, batches)
    other = context.Process(target=serve_rounds, args=given, daemon=True)
    other.start()
    theirs.close()

    def answer() -> float:
        if not mine.poll(PATIENCE):
            raise TimeoutError(f"the other process has not answered for {PATIENCE} s")
        return mine.recv()

    try:
        sampler = GltSampler(csr_of(graph), num_neighbors)

        def run() -> float:
            number.value = 0
            mine.send("round")
            return share_of_round(sampler, number, batches) + answer()

        answer()
        yield run
    finally:
        mine.close()  # it ends by that
        other.join(PATIENCE)


def serve_rounds(
    asked: Connection, number: Any, graph_name: str, num_neighbors: list[int], batches: list[np.ndarray]
) -> None:
    """Takes part in a round for every message, and answers how many edges it has sampled, until nobody can ask."""
    sampler = GltSampler(csr_of(graphs.load(graph_name)), num_neighbors)
    with contextlib.suppress(EOFError, ConnectionError):
        asked.send(0.0)
        while asked.recv():
            asked.send(share_of_round(sampler, number, batches))


def share_of_round(sampler: Sampler, number: Any, batches: list[np.ndarray]) -> float:
    """Samples the next batch, as long as there is one; ``number``: of batches taken by anybody, a shared counter."""
    edges = 0.0
    while True:
        if not number.get_lock().acquire(timeout=PATIENCE):
            raise TimeoutError(f"the other process has held the number of the next batch for {PATIENCE} s")
        taken = number.value
        number.value += 1
        number.get_lock().release()
        if taken >= len(batches):
            return edges
        edges += len(sampler(batches[taken])[1])


def bench_one_thread(
    report: Report, graph: graphs.BenchGraph, num_neighbors: list[int], peers: Sequence[str], rounds: int
) -> None:
    csr = csr_of(graph)
    samplers = {"glt": GltSampler(csr, num_neighbors), **peer_samplers(graph, num_neighbors, peers)}
    batches = graph.seed_batches(8)
    for name, sampler in samplers.items():
        for seeds in batches[:2]:
            check(graph, num_neighbors, seeds, sampler(seeds), name)
    with pinned():
        timings = interleave({name: round_of(sampler, batches) for name, sampler in samplers.items()}, rounds)
    best_peer = max((timing.rate() for name, timing in timings.items() if name != "glt"), default=None)
    for name, timing in timings.items():
        ratios = {"glt_over_this": timings["glt"].over(timing), "by_cpu": timing.cpu() / timings["glt"].cpu()}
        add(report, graph, num_neighbors, name, timing, len(batches), **ratios)
    if best_peer is not None:
        report.rows[-len(timings)]["glt_over_best_peer"] = timings["glt"].rate() / best_peer


def bench_two_threads(report: Report, graph: graphs.BenchGraph, num_neighbors: list[int], rounds: int) -> None:
    csr = csr_of(graph)
    batches = graph.seed_batches(128 if graph.name == "S" else 32)  # rounds of a tenth of a second or two
    one, both = GltSampler(csr, num_neighbors), GltSampler(csr, num_neighbors, 2)
    check(graph, num_neighbors, batches[0], both(batches[0]), "glt, two threads")
    flights = [GltSampler(csr, num_neighbors) for _ in range(2)]
    with pinned(2) as cores:
        if len(cores) < 2:
            print("two threads: not measured, one core only")
            return
        with (
            round_in_threads(flights, batches) as in_threads,
            round_in_processes(graph, num_neighbors, batches) as in_processes,
        ):
            contestants = {
                "glt, one thread": round_of(one, batches),
                "glt, two threads on one batch": round_of(both, batches),
                "glt, two batches in flight": in_threads,
                "glt, two processes, nothing shared": in_processes,
            }
            timings = interleave(contestants, 3 * rounds)
    for name, timing in timings.items():
        over_one = timing.over(timings["glt, one thread"])
        add(report, graph, num_neighbors, name, timing, len(batches), over_one_thread=over_one)
    report.rows[-1]["cpu_ms"] = None  # that of the other process is not known here


def bench_more_threads(report: Report, graph: graphs.BenchGraph, num_neighbors: list[int], rounds: int) -> None:
    """What ``n`` threads on one batch can be at most: n times one, and the time of both parts of a batch over that of
    the part that one thread does, which goes on beside the others. ``both_over_batch`` says how much longer the two
    parts take than a batch, for which nothing lies in arrays in between."""
    csr, seconds = csr_of(graph), []
    whole, batch = GltSampler(csr, num_neighbors), _core.Batch([csr.num_nodes], [(0, 0)])
    with pinned(), collection_off():
        for number, seeds in enumerate(graph.seed_batches(8) * (1 + rounds), 1):
            start = time.perf_counter()
            node, *_ = whole(seeds)
            took = time.perf_counter() - start
            same, rows_s, ids_s = sample_in_parts(csr, batch, num_neighbors, seeds, _core.batch_key(0, 0, number))
            require(np.array_equal(node, same), f"graph {graph.name}: a batch made in two parts is another one")
            seconds.append((took, rows_s, ids_s))
    whole_s, rows_s, ids_s = np.median(seconds[8:], axis=0)
    for num_threads in (2, 4, 8):
        report.add(
            graph=graph.name,
            num_neighbors=str(num_neighbors),
            sampler=f"{num_threads} threads, at most",
            over_one_thread=float(min(num_threads, (rows_s + ids_s) / ids_s)),
            rows_ms=float(1e3 * rows_s),
            local_ids_ms=float(1e3 * ids_s),
            both_over_batch=float((rows_s + ids_s) / whole_s),
        )


def sample_in_parts(
    csr: _core.Csr, batch: _core.Batch, num_neighbors: list[int], seeds: np.ndarray, key: int
) -> tuple[np.ndarray, float, float]:
    """The nodes of a batch; the seconds that reading rows took, which threads share; and those of finding local ids and
    handing over, which one thread does. What is read lies in arrays in between, as if other partitions had answered."""
    rows_s, begin = 0.0, time.perf_counter()
    batch.start([(0, seeds)])
    ids_s = time.perf_counter() - begin
    for hop, k in enumerate(num_neighbors):
        frontier = batch.frontier(0)
        begin = time.perf_counter()
        rows = _core.OneHop(csr, frontier, k, replace=False, batch_key=key, hop=hop)
        rows_s += time.perf_counter() - begin
        count, (neighbor, edge) = np.empty(len(frontier), np.uint32), np.empty((2, rows.num_edges), np.int64)
        rows.copy_out(count, neighbor, edge)
        part = np.arange(len(frontier), dtype=np.uint32), count, neighbor, edge
        begin = time.perf_counter()
        batch.expand_from(0, [part])
        batch.end_hop()
        ids_s += time.perf_counter() - begin
    begin = time.perf_counter()
    ((node, _),), _ = batch.hand_over()
    return node, rows_s, ids_s + time.perf_counter() - begin


def add(
    report: Report,
    graph: graphs.BenchGraph,
    num_neighbors: list[int],
    name: str,
    timing: Timing,
    num_batches: int,
    **ratios: float,
) -> None:
    scale = 1e3 / num_batches
    row: dict[str, Any] = {"graph": graph.name, "num_neighbors": str(num_neighbors), "sampler": name}
    row |= {"million_edges_per_s": timing.rate() / 1e6, "best": timing.best_rate() / 1e6}
    row |= {"batch_ms": timing.median(scale), "quartiles": timing.quartiles(scale), "cpu_ms": timing.cpu(scale)}
    report.add(**row, **ratios)


def main() -> None:
    options = arguments(__doc__, rounds=7)
    report = Report("sampler", options.toy)
    peers = list(find_peers(*NAMES))
    for name, num_neighbors in [("toy", [5, 3])] if options.toy else CASES:
        bench_one_thread(report, graphs.load(name), num_neighbors, peers, options.rounds)
    for name, num_neighbors in [("toy", [5, 3])] if options.toy else CASES[:2]:
        bench_two_threads(report, graphs.load(name), num_neighbors, options.rounds)
        bench_more_threads(report, graphs.load(name), num_neighbors, options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
