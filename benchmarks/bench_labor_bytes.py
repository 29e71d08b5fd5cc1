"""Bytes that LABOR saves in a job of two trainers, of features and of edges, with rows kept or not.

Claim: with LABOR fewer bytes come from the other partition, and where batches share their choice fewer still, since the
rows that samplers keep serve more of them.

Method: two random partitions with 128 floats per node, two trainers on this machine that ask each other for what they
do not own (``read_local=False``), collocated loaders, shuffled, half of the seeds each; counted by the loaders
(``stats()``) over ``--rounds`` epochs, the first with nothing kept. ``remote_mb`` came from the other partition, in an
epoch of both trainers; ``of_plain`` is that over drawing neighbours with the same memory for rows (``cache``: the
default, which holds all rows of these graphs; a tenth of the other partition's rows; none). ``hit_ratio`` is the share
of the rows of foreign nodes that had been kept. Each batch is checked to have the features of its nodes. Time is not
taken: the trainers share the machine.

    python -m benchmarks.bench_labor_bytes [--rounds 2] [--toy]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, require
from benchmarks.bench_cache import real
from benchmarks.graphs import DATA_ROOT
from benchmarks.partitioned import NUM_FEATURES, NUM_PARTS, features_of, scratch_dir
from glt.testing.cluster import Cluster, Trainer

SAMPLERS: dict[str, dict[str, Any]] = {
    "neighbor": {},
    "labor": {"sampler": "labor"},
    "labor, 8 batches": {"sampler": "labor", "batch_dependency": 8},
    "labor, 64 batches": {"sampler": "labor", "batch_dependency": 64},
}
CACHES = ("default", "a tenth", "none")
NUM_SEEDS = 64 * 1024  # of S: an epoch of 32 batches for each trainer


@dataclass(frozen=True)
class Work:
    """A graph in partitions, and what each trainer samples of it."""

    name: str
    num_nodes: int
    path: str
    num_neighbors: list[int]
    seeds: list[torch.Tensor]  # of each trainer
    batch_size: int

    def worker_options(self, cache: str, port: int) -> glt.distributed.CollocatedDistSamplingWorkerOptions:
        tenth = self.num_nodes // NUM_PARTS // 10 * NUM_FEATURES * 4
        budget = {"default": {}, "a tenth": {"cache_memory_budget": tenth}, "none": {"cache_memory_budget": 0}}[cache]
        return glt.distributed.CollocatedDistSamplingWorkerOptions(
            master_addr="localhost", master_port=port, read_local=False, **budget
        )


def synthetic(name: str) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Nodes, edges and seeds of an R-MAT graph."""
    graph = graphs.load(name)
    seeds = np.random.default_rng(0).permutation(graph.connected_nodes())[:NUM_SEEDS]
    return graph.num_nodes, torch.from_numpy(graph.edge_index()), torch.from_numpy(seeds)


def count(trainer: Trainer, work: Work, num_epochs: int) -> list[dict[str, float]]:
    """What the loaders of one trainer count, of each sampler and memory in turn."""
    torch.set_num_threads(1)
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "bench")
    found = []
    for sampling in SAMPLERS.values():
        for cache in CACHES:
            dataset = glt.distributed.DistDataset().load(work.path, trainer.rank)
            options = work.worker_options(cache, trainer.port)
            with glt.distributed.DistNeighborLoader(
                dataset, work.num_neighbors, work.seeds[trainer.rank], work.batch_size, shuffle=True,
                collect_features=True, random_seed=trainer.rank, worker_options=options, **sampling,
            ) as loader:  # fmt: skip
                for batch in (batch for _ in range(num_epochs) for batch in loader):
                    right = torch.equal(batch.x[:, 0], batch.n_id.float())
                    require(right, f"{work.name}: a batch has features of other nodes")
                found.append(loader.stats())
    return found


def measure(
    report: Report, name: str, graph: tuple[int, torch.Tensor, torch.Tensor], batch_size: int, num_neighbors: list[int],
    num_epochs: int,
) -> None:  # fmt: skip
    num_nodes, edge_index, seeds = graph
    with scratch_dir() as directory:
        path = str(directory / "parts")
        glt.partition.RandomPartitioner(
            path, NUM_PARTS, num_nodes, edge_index, node_feat=features_of(torch.arange(num_nodes)),
            edge_assign_strategy="by_dst",
        ).partition()  # fmt: skip
        work = Work(name, num_nodes, path, num_neighbors, list(seeds.tensor_split(NUM_PARTS)), batch_size)
        with Cluster(NUM_PARTS, count, work, num_epochs, deadline_s=600) as cluster:
            of_ranks = cluster.results()
    ways = [(sampler, cache) for sampler in SAMPLERS for cache in CACHES]
    plain: dict[str, float] = {}
    for (sampler, cache), *counted in zip(ways, *of_ranks, strict=True):
        total = {each: sum(stats[each] for stats in counted) for each in counted[0]}
        foreign = total["num_remote_nodes"] + total["num_cached_nodes"]
        remote_mb = total["remote_bytes"] / num_epochs / 1e6
        report.add(
            graph=name,
            num_neighbors=str(num_neighbors),
            sampler=sampler,
            cache=cache,
            batches=int(total["num_batches"]) // num_epochs,
            nodes=total["num_nodes"] / total["num_batches"],
            remote_mb=remote_mb,
            of_plain=remote_mb / plain.setdefault(cache, remote_mb),
            hit_ratio=total["num_cached_nodes"] / foreign,
        )


def main() -> None:
    options = arguments(__doc__, rounds=2)
    report = Report("labor_bytes", options.toy)
    print(f"{NUM_FEATURES} floats per node, {NUM_PARTS} trainers")
    if options.toy:
        measure(report, "toy", synthetic("toy"), 256, [5, 5], 1)
    else:
        name = "coauthor_physics"
        if (DATA_ROOT / f"{name}.npz").exists():
            task = real(name)
            measure(report, name, (task.num_nodes, task.edge_index, task.seeds), 512, [10, 10], options.rounds)
        else:
            print(f"absent: {name} in {DATA_ROOT}")
        measure(report, "S", synthetic("S"), 1024, [10, 10], options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
