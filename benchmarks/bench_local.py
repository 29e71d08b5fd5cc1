"""Loaders over partitions that are all in this process, beside the loaders of one graph: CPU per batch.

Claim: where no partition is elsewhere, a loader over partitions takes at most twice the CPU of the loader in process.

Method: graph S in two partitions at random, one process, one core, no features, edge ids where both have them. Loaders
have the same seeds and ``random_seed``; of the first batch it is checked that both have the same nodes and edges, which
clusters have in another order, and of walks the same windows. They make an epoch of eight batches in turns.

    python -m benchmarks.bench_local [--rounds 7] [--toy]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.data import Data

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, interleave, pinned, require
from benchmarks.partitioned import NUM_PARTS, scratch_dir

STEPS = 8  # batches of an epoch
MAX_TIME = 10**6


def cases(small: int, num_nodes: int) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """By name the loaders, in process and over partitions, and what both are given; ``small`` divides sizes."""
    seeds = torch.arange(STEPS * (1024 // small))
    nodes = {"input_nodes": seeds, "batch_size": 1024 // small}
    neighbors = {**nodes, "num_neighbors": [15, 10, 5]}
    time = torch.randint(0, MAX_TIME, (len(seeds),), generator=torch.Generator().manual_seed(1))
    trees = {"input_nodes": seeds[: STEPS * (256 // small)], "batch_size": 256 // small, "num_neighbors": [10, 10]}
    return {
        "neighbours": ("NeighborLoader", "DistNeighborLoader", neighbors),
        "LABOR": ("NeighborLoader", "DistNeighborLoader", {**neighbors, "sampler": "labor"}),
        "by time, with a window": (
            "NeighborLoader",
            "DistNeighborLoader",
            {**neighbors, "time_attr": "edge_time", "input_time": time, "time_window": MAX_TIME // 2, "disjoint": True},
        ),
        "subgraphs of seeds (ShaDow)": (
            "NeighborLoader",
            "DistNeighborLoader",
            {**trees, "disjoint": True, "subgraph_type": "induced"},
        ),
        "HGT": (
            "HGTLoader",
            "DistHGTLoader",
            {
                "input_nodes": seeds[: STEPS * (128 // small)],
                "batch_size": 128 // small,
                "num_samples": [512 // small] * 4,
            },
        ),
        "clusters": (
            "ClusterLoader",
            "DistClusterLoader",
            {"cluster": torch.arange(num_nodes) * (4 * STEPS) // num_nodes, "batch_size": 4},
        ),
        "GraphSAINT's walks": (
            "GraphSAINTRandomWalkSampler",
            "DistGraphSAINTRandomWalkSampler",
            {"batch_size": 2000 // small, "walk_length": 2, "num_steps": STEPS},
        ),
        "walks, windows and negatives": (
            "RandomWalkLoader",
            "DistRandomWalkLoader",
            {**nodes, "walk_length": 20, "context_size": 10, "walks_per_node": 4},
        ),
        "PageRank": (
            "PageRankLoader",
            "DistPageRankLoader",
            {"input_nodes": seeds[: STEPS * (256 // small)], "batch_size": 256 // small, "num_neighbors": 32},
        ),
    }


def in_process(name: str, dataset: Any, ends: torch.Tensor, given: dict[str, Any]) -> Any:
    if name == "ClusterLoader":
        num_nodes = len(given["cluster"])
        data = Data(edge_index=ends, num_nodes=num_nodes, n_id=torch.arange(num_nodes))
        clusters = glt.loader.ClusterData(data, cluster=given["cluster"])
        return glt.loader.ClusterLoader(clusters, random_seed=1, batch_size=given["batch_size"])
    return getattr(glt.loader, name)(dataset, random_seed=1, **given)


def told(batch: Any) -> list[torch.Tensor]:
    """What two loaders' batches have to have in common."""
    if isinstance(batch, tuple):
        return list(batch)
    row, col = batch.edge_index.long()
    return [batch.n_id.long(), (row * batch.num_nodes + col).sort().values]


def epoch(loader: Any) -> float:
    """Of STEPS batches: what is sampled ahead of a trainer must not be another turn's work."""
    made = sum(1 for _ in loader)
    require(made == STEPS, f"an epoch has {STEPS} batches")
    return made


def main() -> None:
    options = arguments(__doc__, rounds=7)
    report = Report("local", options.toy)
    graph = graphs.load("toy" if options.toy else "S")
    ends = torch.from_numpy(graph.edge_index())
    time = torch.randint(0, MAX_TIME, (graph.num_edges,), generator=torch.Generator().manual_seed(0))
    data = Data(edge_index=ends, num_nodes=graph.num_nodes, edge_time=time)
    dataset = glt.data.Dataset.from_pyg(data, edge_dir="in", time_attr="edge_time")
    with scratch_dir() as directory, pinned():
        path = str(directory / "parts")
        glt.partition.RandomPartitioner(
            path, NUM_PARTS, graph.num_nodes, ends, edge_time=time, edge_assign_strategy="by_dst"
        ).partition()
        glt.distributed.initialize(part_config=path)
        world = glt.distributed.DistGraph("local").world
        try:
            for name, (here, over_parts, given) in cases(32 if options.toy else 1, graph.num_nodes).items():
                whole = in_process(here, dataset, ends, given)
                with_edge = {} if over_parts in ("DistRandomWalkLoader", "DistPageRankLoader") else {"with_edge": True}
                parted = getattr(glt.distributed, over_parts)(
                    world.data, random_seed=1, worker_options=world.worker_options(0), **with_edge, **given
                )
                with parted:
                    ours, theirs = told(next(iter(parted))), told(next(iter(whole)))
                    require(all(map(torch.equal, ours, theirs)), f"{name}: both loaders make the same batch")
                    contestants: dict[str, Callable[[], float]] = {
                        "in process": lambda loader=whole: epoch(loader),
                        "partitions here": lambda loader=parted: epoch(loader),
                    }
                    timings = interleave(contestants, options.rounds)
                base = timings["in process"]
                for loader, timing in timings.items():
                    report.add(
                        sampler=name, loader=loader, batch_ms=timing.median(1e3 / STEPS),
                        cpu_ms=timing.cpu(1e3 / STEPS), over_in_process_by_cpu=timing.cpu() / base.cpu(),
                    )  # fmt: skip
        finally:
            glt.distributed.finalize()
    report.finish()


if __name__ == "__main__":
    main()
