"""Counts and forecasts over a grid: hosts, caches, windows and workers; and what of it to choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from glt.data.synthetic import synthetic_graph
from glt.forecast.batches import BatchTrace, GraphTracer, batches_of
from glt.forecast.costs import Costs
from glt.forecast.counts import Counts, Placement, count_batches
from glt.forecast.model import Cluster, JobForecast, Shape, forecast_job

RUN: Final = 8  # batches of one home that follow each other: the largest window that is looked at
MOST_EDGES: Final = 6_000_000  # of a graph that is drawn to be sampled: some seconds
_GOOD: Final = 0.98  # of the best rate: a smaller setting that reaches this is as good


class SeedBatches:
    """The batches of trainers, sampled once.

    Args:
        tracer: What samples.
        seeds: Of all trainers: any may have any. Or, by partition, those of its trainers.
        batch_size: Seeds in a batch.
        num_batches: How many to sample, rounded up to whole runs.
        rotations: How many homes each batch of ``seeds`` of all is looked at from.
    """

    def __init__(
        self,
        tracer: GraphTracer,
        seeds: np.ndarray | Sequence[np.ndarray],
        batch_size: int,
        num_batches: int,
        rotations: int = 4,
    ) -> None:
        runs = -(-num_batches // RUN)
        self._of_home: dict[int, list[BatchTrace]] = {}
        self._shared: list[list[BatchTrace]] = []
        self._rotations = rotations
        if isinstance(seeds, np.ndarray):
            traces = tracer.traces(batches_of(seeds, batch_size, runs * RUN))
            self._shared = [traces[at : at + RUN] for at in range(0, len(traces), RUN)]
        else:
            for home in sorted({at * len(seeds) // runs for at in range(runs)}):
                if len(seeds[home]) >= batch_size:
                    self._of_home[home] = tracer.traces(batches_of(seeds[home], batch_size, RUN, home))

    def __bool__(self) -> bool:
        """Whether any home has a whole batch."""
        return bool(self._shared or self._of_home)

    def of(self, num_parts: int) -> tuple[list[BatchTrace], list[int]]:
        """Batches and homes, as :func:`glt.forecast.count_batches` takes them."""
        if self._of_home:
            runs = [(home, traces) for home, traces in self._of_home.items()]
        else:
            total = len(self._shared) * self._rotations
            homes = [at * num_parts // total for at in range(total)]
            runs = list(zip(homes, self._shared * self._rotations, strict=True))
        return [trace for _, traces in runs for trace in traces], [home for home, traces in runs for _ in traces]


def random_owners(num_nodes: int, num_parts: int, random_seed: int = 0) -> np.ndarray:
    """Equally many nodes for each partition, up to one, at random."""
    order = np.random.default_rng(random_seed).permutation(num_nodes)
    return (order * num_parts // num_nodes).astype(np.min_scalar_type(max(num_parts - 1, 1)))


def rescaled_owners(owner: np.ndarray, num_before: int, num_parts: int) -> np.ndarray:
    """Owners for fewer partitions, by merging those with neighbouring numbers, or for more, by splitting each at
    random: what is close for fewer, and no better than what a partitioner finds for more."""
    if num_parts <= num_before:
        return (owner.astype(np.int64) * num_parts // num_before).astype(np.uint16)
    inside = np.random.default_rng(0).random(len(owner))
    return np.minimum((owner + inside) * num_parts / num_before, num_parts - 1).astype(np.uint16)


@dataclass(frozen=True)
class Choice:
    """A setting and its forecast."""

    cache_ratio: float
    gather_window: int
    job: JobForecast


def worker_counts(cluster: Cluster) -> list[int]:
    """Sampling processes per host to look at: what is told, else powers of two up to the cores."""
    if cluster.num_workers:
        return [cluster.num_workers]
    return [n for n in (1, 2, 4, 8, 16, 32, 64) if n < cluster.workers] + [cluster.workers]


def best_choice(counted: dict[tuple[float, int], Counts], shape: Shape, cluster: Cluster, costs: Costs) -> Choice:
    """Of all settings whose memory fits, the one that takes least memory among those close to the best rate; where none
    fits, the one that takes least."""
    choices = [
        Choice(
            ratio, window, forecast_job(counts, shape, replace(cluster, num_workers=workers), costs, cache_ratio=ratio)
        )
        for (ratio, window), counts in counted.items()
        for workers in worker_counts(cluster)
    ]
    fitting = [each for each in choices if each.job.fits]
    if not fitting:
        return min(choices, key=lambda each: each.job.memory_bytes)
    best = max(each.job.batches_per_s for each in fitting)
    good = [each for each in fitting if each.job.batches_per_s >= _GOOD * best]
    return min(good, key=lambda each: (each.job.memory_bytes, each.gather_window))


def count_grid(
    seeds: SeedBatches,
    placement: Placement,
    *,
    bytes_of_row: int,
    cache_ratios: Sequence[float],
    windows: Sequence[int],
    num_edges: int,
    memory_ratio: float = 1.0,
) -> dict[tuple[float, int], Counts]:
    """Counts for each cache and window."""
    traces, homes = seeds.of(placement.num_parts)
    return {
        (ratio, window): count_batches(
            traces, homes, placement, bytes_of_row=bytes_of_row, cache_ratio=ratio, gather_window=window,
            memory_ratio=memory_ratio, num_edges=num_edges,
        )
        for ratio in cache_ratios
        for window in windows
    }  # fmt: skip


def sketch(
    num_nodes: int, num_edges: int, exponent: float, num_neighbors: Sequence[int]
) -> tuple[GraphTracer, float, np.ndarray]:
    """Draws a graph of the degrees that are told, with as many nodes as ``MOST_EDGES`` allow; returns what samples it,
    its share of the nodes, and their degrees. Raises ValueError if there is no such graph."""
    share = min(1.0, MOST_EDGES / max(num_edges, 1))
    nodes = max(int(num_nodes * share), 100)
    degree = num_edges / num_nodes
    if degree >= nodes:
        raise ValueError(f"edges = {num_edges}: {degree:.0f} per node are too many for a graph of {num_nodes} nodes")
    task = synthetic_graph(nodes, min(16, nodes), 1, degree, 0.5, exponent)
    edges = task.edge_index.numpy()
    indptr = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(edges[0], minlength=nodes), out=indptr[1:])  # sorted by source, and symmetric
    return GraphTracer.of_arrays(indptr, edges[1].astype(np.int32), num_neighbors), nodes / num_nodes, np.diff(indptr)
