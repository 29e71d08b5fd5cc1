"""Sampling from partitions that are all here: the hops of a batch in one call, against one partition at a time.

Claim: however many partitions there are, one call costs less than sorting each hop by owner, asking each partition and
stitching the answers, which is what a batch with partitions elsewhere needs.

Method: graph S, [15, 10, 5], 1024 seeds, edge ids; owners at random; one thread, one core; contestants take turns on
the same seeds. Every contestant's batches are compared with those of the whole graph before anything is timed. Without
the event loop and its threads: what is timed is the native calls and the Python between them.

    python -m benchmarks.bench_parts [--rounds 9] [--toy]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks import graphs
from benchmarks._harness import Report, arguments, interleave, pinned, require
from glt import _core

Sampler = Callable[[np.ndarray, int], _core.Batch]


def parts_of(graph: graphs.BenchGraph, num_parts: int) -> tuple[_core.Book, list[_core.Csr]]:
    """The rows of the graph, each with a random owner."""
    indptr, indices = np.array(graph.indptr), np.array(graph.indices)
    owner = np.random.default_rng(0).integers(0, num_parts, graph.num_nodes)
    book, row_of = _core.Book(owner.astype(np.uint8), num_parts), np.empty(graph.num_nodes, np.uint32)
    owned = [np.flatnonzero(owner == part) for part in range(num_parts)]
    for nodes in owned:
        row_of[nodes] = np.arange(len(nodes))
    parts = []
    for part, nodes in enumerate(owned):
        degree = np.diff(indptr)[nodes]
        begin = np.concatenate([[0], np.cumsum(degree)])
        edge = np.arange(begin[-1]) + np.repeat(indptr[nodes] - begin[:-1], degree)
        parts.append(
            _core.Csr(begin, indices[edge], edge.astype(np.int32), row_of, graph.num_nodes, book=book, part=part)
        )
    return book, parts


def in_one_call(num_nodes: int, csr: _core.Csr | list[_core.Csr], num_neighbors: list[int]) -> Sampler:
    batch = _core.Batch([num_nodes], [(0, 0)])

    def sample(seeds: np.ndarray, key: int) -> _core.Batch:
        batch.start([(0, seeds)])
        batch.sample([csr], [num_neighbors], replace=False, batch_key=key)
        return batch

    return sample


def part_by_part(book: _core.Book, parts: list[_core.Csr], num_neighbors: list[int], num_nodes: int) -> Sampler:
    batch = _core.Batch([num_nodes], [(0, 0)])

    def ask(csr: _core.Csr, nodes: np.ndarray, hop: int, key: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = _core.OneHop(csr, nodes, num_neighbors[hop], False, key, hop)
        count, (neighbor, edge) = np.empty(len(nodes), np.uint32), np.empty((2, rows.num_edges), np.int64)
        rows.copy_out(count, neighbor, edge)
        return count, neighbor, edge

    def sample(seeds: np.ndarray, key: int) -> _core.Batch:
        batch.start([(0, seeds)])
        for hop in range(len(num_neighbors)):
            nodes, positions, bounds = _core.group_by_owner(book, batch.frontier(0))
            shares = [(csr, slice(bounds[p], bounds[p + 1])) for p, csr in enumerate(parts)]
            batch.expand_from(0, [(positions[at], *ask(csr, nodes[at], hop, key)) for csr, at in shares])
            batch.end_hop()
        return batch

    return sample


def edges_of(batch: _core.Batch) -> tuple[np.ndarray, ...]:
    row, col, edge = np.empty((3, batch.num_edges(0)), np.int64)
    batch.copy_edges(0, row, col, edge)
    return batch.nodes(0), row, col, edge


def main() -> None:
    options = arguments(__doc__, rounds=9)
    report = Report("parts", options.toy)
    graph = graphs.load("toy" if options.toy else "S")
    num_neighbors, batches = [5, 3] if options.toy else [15, 10, 5], graph.seed_batches(20)
    whole = _core.Csr(np.array(graph.indptr), np.array(graph.indices))
    samplers = {"glt, whole graph": in_one_call(graph.num_nodes, whole, num_neighbors)}
    for num_parts in (2, 8, 32):
        book, parts = parts_of(graph, num_parts)
        samplers[f"glt, {num_parts} parts, one call"] = in_one_call(graph.num_nodes, parts, num_neighbors)
        samplers[f"glt, {num_parts} parts, one by one"] = part_by_part(book, parts, num_neighbors, graph.num_nodes)
    expected = edges_of(samplers["glt, whole graph"](batches[0], 1))
    for name, sampler in samplers.items():
        found = edges_of(sampler(batches[0], 1))
        require(all(map(np.array_equal, found, expected)), f"{name}: another batch than that of the whole graph")

    def round_of(sampler: Sampler) -> Callable[[], float]:
        return lambda: float(sum(sampler(seeds, number).num_edges(0) for number, seeds in enumerate(batches)))

    with pinned():
        timings = interleave({name: round_of(sampler) for name, sampler in samplers.items()}, options.rounds)
    base = timings["glt, whole graph"].cpu()
    for name, timing in timings.items():
        scale = 1e3 / len(batches)
        report.add(
            sampler=name, batch_ms=timing.median(scale), best_ms=min(timing.seconds) * scale,
            quartiles=timing.quartiles(scale), over_whole_by_cpu=timing.cpu() / base,
        )  # fmt: skip
    report.finish()


if __name__ == "__main__":
    main()
