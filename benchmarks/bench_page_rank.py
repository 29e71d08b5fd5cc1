"""Personalised PageRank around seeds: milliseconds of one thread per seed, beside PyG's ``get_ppr``, compiled by numba.

Claim: at least three times as fast.

Method: 256 distinct seeds with edges, the 50 nodes of highest score of each; PyG's function returns all, unsorted. Both
leave less than ``epsilon`` per edge; of the first 16 seeds it is checked that no score differs by more than what is
left could bring to it. Contestants take turns.

    python -m benchmarks.bench_page_rank [--rounds 5] [--toy]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, interleave, pinned, require
from glt import _core

ALPHA, NUM_NEIGHBORS, NUM_SEEDS, CHECKED = 0.15, 50, 256, 16

Scores = tuple[np.ndarray, np.ndarray, np.ndarray]
Listed = tuple[list[list[int]], list[list[float]]]


def ours(csr: _core.Csr, seeds: np.ndarray, epsilon: float) -> Scores:
    count, neighbor = np.empty(len(seeds), np.uint32), np.empty(len(seeds) * NUM_NEIGHBORS, np.int64)
    score = np.empty(len(seeds) * NUM_NEIGHBORS)
    given = [csr], [(0, 0)], 1, 0, 0, seeds, count, neighbor, score
    _core.page_ranks(*given, num_neighbors=NUM_NEIGHBORS, stop=ALPHA, residual_per_edge=epsilon)
    return count, neighbor.reshape(-1, NUM_NEIGHBORS), score.reshape(-1, NUM_NEIGHBORS)


def peer(indptr: np.ndarray, indices: np.ndarray) -> Callable[[np.ndarray, float], Listed] | None:
    numba = find_peers("numba").get("numba")
    if numba is None:
        return None
    from torch_geometric.utils import ppr

    compiled = numba.jit(nopython=True)(ppr._get_ppr)
    return lambda seeds, epsilon: compiled(indptr, indices, ALPHA, epsilon, seeds)


def check(found: Scores, theirs: Listed) -> None:
    for i, (nodes, scores) in enumerate(zip(*theirs, strict=True)):
        known = dict(zip(nodes, scores, strict=True))
        left = 2 * (1 - sum(scores)) + 1e-9
        count = found[0][i]
        for node, score in zip(found[1][i][:count], found[2][i][:count], strict=True):
            require(abs(known.get(node, 0.0) - score) < left, f"scores around seed {i} are alike")


def bench(report: Report, graph: graphs.BenchGraph, epsilon: float, rounds: int) -> None:
    indptr, indices = np.array(graph.indptr), np.array(graph.indices)
    csr = _core.Csr(indptr, indices)
    (seeds,) = graph.seed_batches(1, NUM_SEEDS)
    contestants: dict[str, Callable[[], object]] = {"glt": lambda: ours(csr, seeds, epsilon)}
    theirs = peer(indptr, indices.astype(np.int64))
    if theirs is not None:
        some = seeds[:CHECKED]
        check(ours(csr, some, epsilon), theirs(some, epsilon))
        contestants["torch_geometric"] = lambda: theirs(seeds, epsilon)
    with pinned():
        timings = interleave(contestants, rounds)
    for name, timing in timings.items():
        beside = timings.get("torch_geometric") if name == "glt" else None
        report.add(
            graph=graph.name,
            epsilon=epsilon,
            name=name,
            seed_ms=timing.median(1e3 / len(seeds)),
            faster_by=None if beside is None else beside.median() / timing.median(),
        )


def main() -> None:
    options = arguments(__doc__, rounds=5)
    report = Report("page_rank", options.toy)
    for name in ("toy",) if options.toy else ("S", "M"):
        for epsilon in (1e-4,) if options.toy else (1e-4, 1e-5):
            bench(report, graphs.load(name), epsilon, options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
