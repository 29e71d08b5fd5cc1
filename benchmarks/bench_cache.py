"""Rows of features that a batch fetches from other partitions, by partitioner and size of the caches.

Claim: frequency partitioning and caches save remote rows as forecast: the hit rate in the manifest is within two points
of the one that the loaders count.

Method: two partitions, two trainers on this machine that ask each other for what they do not own
(``read_local=False``), collocated loaders of [15, 10, 5], shuffled, three epochs; counted by the loaders themselves
(see ``stats()``). Seeds are split at random, a half for each trainer, as the reference's tutorial does; hotness is
``sample_prob`` of the halves. METIS, where pymetis is installed, is measured with seeds where their nodes
are ("local"), which is how it is used, and so is frequency partitioning by the same seeds. A remote row is a node that
neither the partition nor its cache has. Features are narrow: counts do not depend on their width.

    python -m benchmarks.bench_cache [--rounds 3] [--toy]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, require
from benchmarks.graphs import DATA_ROOT
from benchmarks.partitioned import scratch_dir
from glt.testing.cluster import Cluster, Trainer

NUM_PARTS = 2
NUM_NEIGHBORS = [15, 10, 5]
CACHE_RATIOS = (0.0, 0.05, 0.2)
REAL = ("cora", "amazon_computers", "soc_slashdot0902")


@dataclass(frozen=True)
class Task:
    """A graph and the seeds of all trainers: edges are followed against their direction."""

    name: str
    num_nodes: int
    edge_index: torch.Tensor
    seeds: torch.Tensor

    @property
    def batch_size(self) -> int:
        """That of the tutorial, but at least eight batches per epoch and trainer."""
        return max(1, min(1024, len(self.seeds) // NUM_PARTS // 8))


@dataclass(frozen=True)
class Run:
    """One partition directory and how it is read."""

    partitioner: str
    cache_ratio: float
    path: str
    seeds: list[torch.Tensor]  # of each trainer


def synthetic(name: str) -> Task:
    graph = graphs.load(name)
    nodes = np.random.default_rng(0).permutation(graph.connected_nodes())
    return Task(
        name, graph.num_nodes, torch.from_numpy(graph.edge_index()), torch.from_numpy(nodes[: len(nodes) // 10])
    )


def real(name: str) -> Task:
    with np.load(DATA_ROOT / f"{name}.npz", allow_pickle=False) as file:
        edge_index = file["edge_index"].astype(np.int64)
        meta = json.loads(bytes(file["meta"]))
        num_nodes = int(max(meta.get("num_nodes", 0), edge_index.max() + 1))
        seeds = file["train_idx"] if "train_idx" in file else np.arange(0, num_nodes, 5)
    shuffled = np.random.default_rng(0).permutation(seeds.astype(np.int64))
    return Task(name, num_nodes, torch.from_numpy(edge_index), torch.from_numpy(shuffled))


def write_runs(task: Task, root: Path) -> Iterator[Run]:
    """Partitions a graph in all ways, one after the other."""
    topology = glt.data.Topology(task.edge_index, task.num_nodes, layout="CSC")
    sampler = glt.sampler.NeighborSampler(glt.data.Graph(topology), NUM_NEIGHBORS)
    common: dict[str, Any] = {
        "num_parts": NUM_PARTS, "num_nodes": task.num_nodes, "edge_index": task.edge_index,
        "edge_assign_strategy": "by_dst",
    }  # fmt: skip
    features = torch.arange(task.num_nodes, dtype=torch.float32).view(-1, 1)

    def probs_of(seeds: list[torch.Tensor]) -> list[torch.Tensor]:
        return [sampler.sample_prob(each, task.num_nodes, batch_size=task.batch_size) for each in seeds]

    halves = list(task.seeds.tensor_split(NUM_PARTS))
    ways = [("random", "RandomPartitioner", halves), ("frequency", "FrequencyPartitioner", halves)]
    if find_peers("pymetis"):
        glt.partition.MetisPartitioner(root / "metis", balance_edges=True, **common).partition()
        owner = torch.from_numpy(glt.partition.load_partition(root / "metis", 0).nodes[0].book.owners())
        local = [task.seeds[owner[task.seeds] == part] for part in range(NUM_PARTS)]
        ways += [("metis, local", "MetisPartitioner", local), ("frequency, local", "FrequencyPartitioner", local)]
    for name, partitioner, seeds in ways:
        given: dict[str, Any] = {"probs" if partitioner == "FrequencyPartitioner" else "hotness": probs_of(seeds)}
        if partitioner == "MetisPartitioner":
            given["balance_edges"] = True  # R-MAT has many nodes without edges, which balance nothing
        for ratio in CACHE_RATIOS:
            path = root / f"{name}-{ratio}"
            getattr(glt.partition, partitioner)(
                path, node_feat=features, cache_ratio=ratio, **given, **common
            ).partition()
            yield Run(name, ratio, str(path), seeds)


def count(trainer: Trainer, runs: list[Run], batch_size: int, num_epochs: int) -> list[dict[str, float]]:
    """What the loaders of one trainer count."""
    torch.set_num_threads(1)
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "bench")
    found = []
    for run in runs:
        dataset = glt.distributed.DistDataset().load(run.path, trainer.rank)
        options = glt.distributed.CollocatedDistSamplingWorkerOptions(
            master_addr="localhost", master_port=trainer.port, read_local=False
        )
        with glt.distributed.DistNeighborLoader(
            dataset, NUM_NEIGHBORS, run.seeds[trainer.rank], batch_size=batch_size, shuffle=True,
            collect_features=True, random_seed=trainer.rank, worker_options=options,
        ) as loader:  # fmt: skip
            for batch in (batch for _ in range(num_epochs) for batch in loader):
                right = torch.equal(batch.x.view(-1), batch.n_id.float())
                require(right, f"{run.path}: a batch has features of other nodes")
            found.append(loader.stats())
    return found


def measure(report: Report, task: Task, num_epochs: int) -> None:
    with scratch_dir() as directory:
        runs = list(write_runs(task, directory))
        with Cluster(NUM_PARTS, count, runs, task.batch_size, num_epochs, deadline_s=900) as cluster:
            of_ranks = cluster.results()
        for run, *counted in zip(runs, *of_ranks, strict=True):
            manifest = glt.partition.Manifest.read(Path(run.path))
            forecast = manifest.forecast
            assert forecast is not None, "all runs are given hotness"
            total = {name: sum(stats[name] for stats in counted) for name in counted[0]}
            foreign = total["num_remote_nodes"] + total["num_cached_nodes"]
            # A forecast counts reads per batch; trainers with more seeds have more batches.
            reads = np.array([stats["num_batches"] for stats in counted]) * forecast.num_reads
            remote = reads * forecast.remote_ratio
            hits = remote * forecast.hit_ratio
            report.add(
                graph=task.name,
                partitioner=run.partitioner,
                cache_ratio=run.cache_ratio,
                remote_rows_per_batch=round(total["num_remote_nodes"] / total["num_batches"], 1),
                remote_ratio=total["num_remote_nodes"] / total["num_nodes"],
                forecast_remote_ratio=float((remote - hits).sum() / reads.sum()),
                hit_ratio=total["num_cached_nodes"] / foreign,
                forecast_hit_ratio=float(hits.sum() / remote.sum()),
                edge_cut_ratio=manifest.edge_cut_ratio,
            )


def main() -> None:
    options = arguments(__doc__, rounds=3)
    report = Report("cache", options.toy)
    tasks = [synthetic("toy" if options.toy else "S")]
    if not options.toy:
        absent = [name for name in REAL if not (DATA_ROOT / f"{name}.npz").exists()]
        if absent:
            print(f"absent: {', '.join(absent)} in {DATA_ROOT}")
        tasks = [real(name) for name in REAL if name not in absent] + tasks
    for task in tasks:
        measure(report, task, options.rounds)
    report.finish()
    worst = max(abs(row["hit_ratio"] - row["forecast_hit_ratio"]) for row in report.rows)
    print(f"largest error of a forecast hit rate: {100 * worst:.1f} points")


if __name__ == "__main__":
    main()
