"""Sampling with relabelling, beyond the homogeneous uniform case: by weight, by time, heterogeneous.

Claim: one thread, edge ids on, against pyg-lib: by weight without replacement, graph M, at least 30x; by time, graph M,
at least 10x, and a batch with a window takes no longer than one without by a quarter; heterogeneous (three node types,
six edge types of graph S's size, 24 million edges), at least 7x.

Method: as in ``bench_sampler``: 1024 distinct seeds with edges, contestants take turns on one core, each batch includes
handing over int64 arrays: pyg-lib's in fresh tensors, glt's in memory that earlier batches used. Weights are
exponentially distributed; times are uniform, ascending within a row, as both samplers want them, and every seed has a
time of its own; both samplers then keep the trees of seeds apart. Weights are drawn from as both keep them: glt as
prefix sums, pyg-lib as they are. Before anything is timed, batches are checked: edges are those that the ids name, none
occurs twice in a row, none is later than its seed, each node is expanded once and completely, and none of weight 0 is
drawn while heavier ones are left.

    python -m benchmarks.bench_options [--rounds 5] [--toy]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, interleave, pinned, require
from glt import _core

NODE_TYPES = ("a", "b", "c")
EDGE_TYPES = (
    ("a", "r0", "a"),
    ("b", "r1", "a"),
    ("c", "r2", "a"),
    ("a", "r3", "b"),
    ("c", "r4", "b"),
    ("b", "r5", "c"),
)


@dataclass(frozen=True)
class Sample:
    """One edge type of a batch, in global ids: per edge its neighbour, expanded node, tree (or 0) and id."""

    neighbor: np.ndarray
    center: np.ndarray
    tree: np.ndarray
    edge: np.ndarray


class Sampler(Protocol):
    def __call__(self, seeds: np.ndarray) -> int:
        """Samples a batch; returns the number of its edges, over all edge types."""

    def samples(self, seeds: np.ndarray) -> list[Sample]:
        """The same in global ids, to be checked."""


class GltSampler:
    """glt's native sampler on rows by type; ``seed_time`` makes it disjoint."""

    def __init__(
        self,
        csrs: list[_core.Csr],
        ends: list[tuple[int, int]],
        num_neighbors: list[int],
        seed_time: np.ndarray | None,
        **options: Any,
    ) -> None:
        self.csrs, self.ends, self.seed_time, self.options = csrs, ends, seed_time, options
        self.num_neighbors = [num_neighbors] * len(csrs)
        self.batch = _core.Batch([csrs[0].num_nodes] * (1 + max(max(pair) for pair in ends)), ends)
        self.number = 0

    def __call__(self, seeds: np.ndarray) -> int:
        self.number += 1
        batch, disjoint = self.batch, self.seed_time is not None
        batch.start([(0, seeds)], disjoint=disjoint, seed_time=None if not disjoint else self.seed_time[: len(seeds)])
        key = _core.batch_key(0, 0, self.number)
        batch.sample(self.csrs, self.num_neighbors, replace=False, batch_key=key, **self.options)
        handed_nodes, handed_edges = batch.hand_over()
        nodes, trees = zip(*handed_nodes, strict=True)
        edges = [(*ends, edge) for ends, edge in handed_edges]
        self.last = nodes, trees, edges
        return sum(len(row) for row, _, _ in edges)

    def samples(self, seeds: np.ndarray) -> list[Sample]:
        self(seeds)
        nodes, trees, edges = self.last
        return [
            in_global_ids(nodes[neighbor], nodes[center], trees[center], row, col, edge)
            for (center, neighbor), (row, col, edge) in zip(self.ends, edges, strict=True)
        ]


def in_global_ids(
    neighbors: np.ndarray,
    centers: np.ndarray,
    trees: np.ndarray | None,
    row: np.ndarray,
    col: np.ndarray,
    edge: np.ndarray,
) -> Sample:
    """``trees`` of the centers, where they have any."""
    tree = np.zeros_like(col) if trees is None else trees[col]
    return Sample(neighbors[row], centers[col], tree, edge)


class PygLib:
    """pyg-lib's homogeneous sampler."""

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, num_neighbors: list[int], **arrays: np.ndarray) -> None:
        self.rows = torch.from_numpy(np.array(indptr)), torch.from_numpy(indices.astype(np.int64))
        self.num_neighbors = num_neighbors
        self.options = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def __call__(self, seeds: np.ndarray) -> int:
        options: dict = dict(self.options)
        if "seed_time" in options:
            options |= {"seed_time": options["seed_time"][: len(seeds)], "disjoint": True}
        self.last = torch.ops.pyg.neighbor_sample(
            *self.rows, torch.from_numpy(seeds), self.num_neighbors, csc=True, return_edge_id=True, **options
        )
        return len(self.last[0])

    def samples(self, seeds: np.ndarray) -> list[Sample]:
        self(seeds)
        row, col, node, edge, *_ = (part.numpy() if isinstance(part, torch.Tensor) else part for part in self.last)
        ids, trees = (node[:, 1], node[:, 0]) if node.ndim == 2 else (node, None)
        return [in_global_ids(ids, ids, trees, row, col, edge)]


class TypedPygLib:
    """pyg-lib's heterogeneous sampler."""

    def __init__(self, rows: list[tuple[np.ndarray, np.ndarray]], num_neighbors: list[int]) -> None:
        names = ["__".join(edge_type) for edge_type in EDGE_TYPES]
        self.indptr = {name: torch.from_numpy(np.array(indptr)) for name, (indptr, _) in zip(names, rows, strict=True)}
        self.indices = {
            name: torch.from_numpy(ids.astype(np.int64)) for name, (_, ids) in zip(names, rows, strict=True)
        }
        self.num_neighbors = dict.fromkeys(names, num_neighbors)

    def __call__(self, seeds: np.ndarray) -> int:
        self.last = torch.ops.pyg.hetero_neighbor_sample(
            list(NODE_TYPES), list(EDGE_TYPES), self.indptr, self.indices, {"a": torch.from_numpy(seeds)},
            self.num_neighbors, None, None, None, None, True, False, True, False, "uniform", True,
        )  # fmt: skip
        return sum(len(row) for row in self.last[0].values())

    def samples(self, seeds: np.ndarray) -> list[Sample]:
        self(seeds)
        row, col, node, edge, *_ = self.last
        samples = []
        for source, relation, target in EDGE_TYPES:
            name = f"{source}__{relation}__{target}"
            ends = node[source].numpy(), node[target].numpy(), None
            samples.append(in_global_ids(*ends, row[name].numpy(), col[name].numpy(), edge[name].numpy()))
        return samples


def check(
    name: str,
    sample: Sample,
    indptr: np.ndarray,
    indices: np.ndarray,
    largest_count: int,
    weight: np.ndarray | None = None,
    time: np.ndarray | None = None,
    seed_time: np.ndarray | None = None,
    window: int = 1 << 60,
) -> None:
    """Raises unless the edges are those of the graph, distinct per row, as many as there may be, and allowed."""

    def expect(holds: bool, what: str) -> None:
        require(holds, f"{name}: {what}")

    edge, center = sample.edge, sample.center
    expect(len(edge) > 0, "nothing was sampled")
    expect(np.array_equal(indices[edge], sample.neighbor), "an edge does not come from the neighbour that it names")
    expect(bool(np.all((indptr[center] <= edge) & (edge < indptr[center + 1]))), "an edge is of another node")
    rows, row_of, counts = np.unique(np.stack([sample.tree, center]), axis=1, return_inverse=True, return_counts=True)
    row_of = row_of.reshape(-1)
    expect(len(np.unique(np.stack([row_of, edge]), axis=1)[0]) == len(edge), "an edge was drawn twice in a row")
    expect(int(counts.max()) <= largest_count, "a node has more edges than were asked for")
    available = np.diff(indptr)[rows[1]]
    if time is not None and seed_time is not None:
        age = seed_time[sample.tree] - time[edge]
        expect(bool(np.all((0 <= age) & (age <= window))), "an edge is later than its seed, or before its window")
        ages = [seed_time[t] - time[indptr[v] : indptr[v + 1]] for t, v in zip(rows[0], rows[1], strict=True)]
        available = np.array([np.sum((0 <= each) & (each <= window)) for each in ages])
    expect(bool(np.all(counts >= np.minimum(available, 1))), "a row is empty")
    if weight is not None:
        light = np.bincount(row_of, weights=weight[edge] == 0, minlength=len(counts)) > 0
        heavy = np.array([np.sum(weight[indptr[v] : indptr[v + 1]] > 0) for v in rows[1][light]])
        taken = np.bincount(row_of, weights=weight[edge] > 0, minlength=len(counts))[light]
        expect(bool(np.all(taken == heavy)), "an edge of weight 0 was drawn while heavier ones were left")


def bench(
    report: Report,
    case: str,
    graph: str,
    num_neighbors: list[int],
    samplers: dict[str, Sampler],
    batches: Sequence[np.ndarray],
    rounds: int,
) -> None:
    """Lets the samplers take turns, and adds a row for each."""

    def round_of(sampler: Sampler) -> Callable[[], float]:
        return lambda: float(sum(map(sampler, batches)))

    with pinned():
        timings = interleave({name: round_of(sampler) for name, sampler in samplers.items()}, rounds)
    scale = 1e3 / len(batches)
    for name, timing in timings.items():
        report.add(
            case=case, graph=graph, num_neighbors=str(num_neighbors), sampler=name,
            million_edges_per_s=timing.rate() / 1e6, batch_ms=timing.median(scale), quartiles=timing.quartiles(scale),
            cpu_ms=timing.cpu(scale), glt_over_this=timings["glt"].rate() / timing.rate(),
            by_cpu=timings["glt"].work[0] / timings["glt"].cpu() * timing.cpu() / timing.work[0],
        )  # fmt: skip


def weighted_csr(graph: graphs.BenchGraph) -> tuple[_core.Csr, np.ndarray]:
    """The graph with weights, a seventh of them zero, and the weights."""
    indptr = np.array(graph.indptr)
    weight = np.random.default_rng(1).exponential(size=graph.num_edges).astype(np.float32)
    weight[::7] = 0
    sums = np.empty(graph.num_edges, np.uint64)
    guide = np.empty(_core.weight_guide_size(graph.num_nodes, graph.num_edges), np.uint32)
    _core.build_weights(indptr, weight, sums, guide)
    return _core.Csr(indptr, np.array(graph.indices), weight_sum=sums, weight_guide=guide), weight


def timed_csr(graph: graphs.BenchGraph) -> tuple[_core.Csr, np.ndarray, np.ndarray]:
    """The graph with times below a million, the times, and those of the seeds of a batch."""
    indptr, rng = np.array(graph.indptr), np.random.default_rng(2)
    time = rng.integers(0, 1_000_000, graph.num_edges)
    row = np.repeat(np.arange(graph.num_nodes, dtype=np.int64), np.diff(indptr))
    time = np.sort(row * 1_000_000 + time) - row * 1_000_000  # ascending within each row
    seed_time = rng.integers(200_000, 1_000_000, len(graph.seed_batches(1)[0]))
    return _core.Csr(indptr, np.array(graph.indices), time=time), time, seed_time


def typed_rows(graph: graphs.BenchGraph) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[tuple[int, int]]]:
    """Rows of each edge type, and its ends: one graph's rows for all, but each with its neighbours renamed, so that
    hubs of one are not hubs of another."""
    indptr, rng = np.array(graph.indptr), np.random.default_rng(3)
    rows = [(indptr, rng.permutation(graph.num_nodes).astype(np.int32)[graph.indices]) for _ in EDGE_TYPES]
    return rows, [(NODE_TYPES.index(target), NODE_TYPES.index(source)) for source, _, target in EDGE_TYPES]


def bench_weights(report: Report, graph: graphs.BenchGraph, num_neighbors: list[int], peers: bool, rounds: int) -> None:
    indptr, indices = np.array(graph.indptr), np.array(graph.indices)
    csr, weight = weighted_csr(graph)
    samplers: dict = {"glt": GltSampler([csr], [(0, 0)], num_neighbors, None)}
    if peers:
        samplers["pyg_lib"] = PygLib(indptr, indices, num_neighbors, edge_weight=weight.astype(np.float64))
    batches = graph.seed_batches(4)
    for name, sampler in samplers.items():
        check(f"{name}, weights", sampler.samples(batches[0])[0], indptr, indices, max(num_neighbors), weight=weight)
    bench(report, "by weight", graph.name, num_neighbors, samplers, batches, rounds)


def bench_times(report: Report, graph: graphs.BenchGraph, num_neighbors: list[int], peers: bool, rounds: int) -> None:
    indptr, indices = np.array(graph.indptr), np.array(graph.indices)
    csr, time, seed_time = timed_csr(graph)
    batches, given = graph.seed_batches(4), ([csr], [(0, 0)], num_neighbors, seed_time)
    samplers: dict = {"glt": GltSampler(*given)}
    windows = {"glt, a window of all": 1_000_000, "glt, a window of a fifth": 200_000}
    samplers |= {name: GltSampler(*given, time_window=[window]) for name, window in windows.items()}
    samplers["glt, the last"] = GltSampler(*given, last=True)
    samplers["glt, by age"] = GltSampler(*given, half_life=[50_000])
    if peers:
        samplers["pyg_lib"] = PygLib(indptr, indices, num_neighbors, edge_time=time, seed_time=seed_time)
    for name, sampler in samplers.items():
        sample, window = sampler.samples(batches[0])[0], windows.get(name, 1 << 60)
        times = {"time": time, "seed_time": seed_time, "window": window}
        check(f"{name}, times", sample, indptr, indices, max(num_neighbors), **times)
    bench(report, "by time", graph.name, num_neighbors, samplers, batches, rounds)


def bench_types(report: Report, graph: graphs.BenchGraph, num_neighbors: list[int], peers: bool, rounds: int) -> None:
    rows, ends = typed_rows(graph)
    samplers: dict = {"glt": GltSampler([_core.Csr(*row) for row in rows], ends, num_neighbors, None)}
    if peers:
        samplers["pyg_lib"] = TypedPygLib(rows, num_neighbors)
    batches = graph.seed_batches(4)
    for name, sampler in samplers.items():
        for (row_begin, neighbors), sample in zip(rows, sampler.samples(batches[0]), strict=True):
            check(f"{name}, heterogeneous", sample, row_begin, neighbors, max(num_neighbors))
    bench(report, "heterogeneous", f"6 x {graph.name}", num_neighbors, samplers, batches, rounds)


def main() -> None:
    options = arguments(__doc__, rounds=5)
    report = Report("options", options.toy)
    peers = bool(find_peers("pyg_lib"))
    small, large = ("toy", "toy") if options.toy else ("S", "M")
    bench_weights(report, graphs.load(large), [15, 10, 5], peers, options.rounds)
    bench_times(report, graphs.load(large), [15, 10, 5], peers, options.rounds)
    bench_types(report, graphs.load(small), [10, 10, 5], peers, options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
