"""Batches of ShaDow, GraphSAINT, Cluster-GCN, random parts and HGT: milliseconds of one thread, beside PyG's loaders.

Claim: on the graph of medium size, M, ShaDow and GraphSAINT's walks at least five times as fast as PyG's with
torch-sparse; HGT at least four times as fast as torch-sparse's (pyg-lib has none).

Method: loaders make the batches of an epoch, without features, in turns; PyG's with the same options. Before that, of
the first batch of each of ours it is checked that it has all edges among its nodes, of ShaDow among those of each of 32
seeds. HGT runs on three node types and six edge types, each with the edges of S. Clusters are runs of ids, and PyG's
loaders of clusters and random parts need no torch-sparse. PyG's GraphSAINTEdgeSampler draws a number per edge of the
graph for each edge of a batch, tens of gigabytes at a time, and is left out.

    python -m benchmarks.bench_subgraphs [--rounds 5] [--toy]
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
import torch_geometric.loader as pyg
from torch_geometric.data import Data, HeteroData

import glt.loader
from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, interleave, pinned, require

STEPS = 4  # batches of a turn
TYPES = ("a", "b", "c")

Make = Callable[[Any], Any]


def first_batches(loader: Any) -> float:
    """Makes the first batches of an epoch; returns how many."""
    made = 0
    for _ in loader:
        made += 1
        if made == STEPS:
            break
    return made


def options(name: str, graph: graphs.BenchGraph, data: Data) -> dict[str, Any]:
    small = 32 if graph.name == "toy" else 1
    seeds = torch.from_numpy(np.concatenate(graph.seed_batches(STEPS, 256 // small)))
    clusters = torch.arange(graph.num_nodes) // max(1, graph.num_nodes // 512)
    return {
        "ShaDowKHopSampler": {"depth": 2, "num_neighbors": 10, "node_idx": seeds, "batch_size": 256 // small},
        "GraphSAINTNodeSampler": {"batch_size": 6000 // small, "num_steps": STEPS},
        "GraphSAINTEdgeSampler": {"batch_size": 4000 // small, "num_steps": STEPS},
        "GraphSAINTRandomWalkSampler": {"batch_size": 2000 // small, "walk_length": 2, "num_steps": STEPS},
        "RandomNodeLoader": {"num_parts": 512 // small, "shuffle": True},
        "ClusterLoader": {"batch_size": 4, "shuffle": True, "cluster": clusters},
    }[name]


def ours(name: str, data: Any, given: dict[str, Any]) -> Any:
    given = dict(given)
    if name == "ClusterLoader":
        data = glt.loader.ClusterData(data, cluster=given.pop("cluster"))
    return getattr(glt.loader, name)(data, random_seed=1, **given)


def theirs(name: str, data: Any, given: dict[str, Any]) -> Any:
    given = dict(given)
    if name == "ClusterLoader":
        known = glt.loader.ClusterData(data, cluster=given.pop("cluster"))
        _ = known.data, known.partition  # PyG's own would be made by METIS
        data = known
    return getattr(pyg, name)(data, **given)


def require_induced(graph: graphs.BenchGraph, batch: Data, name: str) -> None:
    """All edges among the nodes of a batch, or of a graph of the batch, and no others."""
    num_graphs = 32 if name == "ShaDowKHopSampler" else 1
    ptr = batch.ptr.tolist() if name == "ShaDowKHopSampler" else [0, batch.num_nodes]
    row, col = batch.edge_index.numpy()
    for first, end in islice(pairwise(ptr), num_graphs):
        nodes = batch.n_id[first:end].numpy()
        here = (row >= first) & (row < end)
        found = np.sort(batch.n_id.numpy()[row[here]] * graph.num_nodes + batch.n_id.numpy()[col[here]])
        begin, counts = graph.indptr[nodes], np.diff(graph.indptr)[nodes]
        position = np.repeat(begin - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        neighbors = np.asarray(graph.indices[position], np.int64)
        among = np.isin(neighbors, nodes)
        wanted = np.sort(np.repeat(nodes, counts)[among] * graph.num_nodes + neighbors[among])
        require(np.array_equal(found, wanted), f"{name} has all edges among the nodes of a batch, and no others")


def bench_one_type(report: Report, graph: graphs.BenchGraph, rounds: int, has_sparse: bool) -> None:
    ends = torch.from_numpy(graph.edge_index())
    data = Data(edge_index=ends, num_nodes=graph.num_nodes, n_id=torch.arange(graph.num_nodes))
    for name in (
        "ShaDowKHopSampler",
        "GraphSAINTNodeSampler",
        "GraphSAINTEdgeSampler",
        "GraphSAINTRandomWalkSampler",
        "RandomNodeLoader",
        "ClusterLoader",
    ):
        given = options(name, graph, data)
        loader = ours(name, data, given)
        require_induced(graph, next(iter(loader)), name)
        loaders = {"glt": loader}
        if name == "GraphSAINTEdgeSampler" and graph.name != "toy":
            print(f"PyG's {name} has no part in this: it draws batch_size times num_edges random numbers at once")
        elif has_sparse or name in ("RandomNodeLoader", "ClusterLoader"):
            loaders["torch_geometric"] = theirs(name, data, given)
        run(report, graph.name, name, loaders, rounds)


def bench_hgt(report: Report, graph: graphs.BenchGraph, rounds: int, has_sparse: bool) -> None:
    ends = torch.from_numpy(graph.edge_index())
    small = 32 if graph.name == "toy" else 1
    data = HeteroData()
    for node_type in TYPES:
        data[node_type].num_nodes = graph.num_nodes
        data[node_type].n_id = torch.arange(graph.num_nodes)
    for source, target in (("a", "a"), ("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"), ("c", "a")):
        data[source, "to", target].edge_index = ends
    seeds = "a", torch.from_numpy(np.concatenate(graph.seed_batches(STEPS, 128 // small)))
    given = {"num_samples": [512 // small] * 4, "input_nodes": seeds, "batch_size": 128 // small}
    loaders = {"glt": glt.loader.HGTLoader(data, random_seed=1, **given)}
    batch = next(iter(loaders["glt"]))
    for each in TYPES:
        drawn = batch[each].n_id[len(batch[each].get("input_id", ())) :]
        require(0 < len(drawn) == len(drawn.unique()) <= 2048 // small, f"HGTLoader draws {each} nodes, each once")
    if has_sparse:
        loaders["torch_geometric"] = pyg.HGTLoader(data, **given)
    run(report, f"{graph.name}, 3 node types", "HGTLoader", loaders, rounds)


def run(report: Report, graph: str, name: str, loaders: dict[str, Any], rounds: int) -> None:
    contestants: dict[str, Callable[[], float]] = {
        key: lambda loader=loader: first_batches(loader) for key, loader in loaders.items()
    }
    with pinned():
        timings = interleave(contestants, rounds)
    for key, timing in timings.items():
        peer = timings.get("torch_geometric")
        faster = timing.over(peer) if key == "glt" and peer is not None else None
        report.add(graph=graph, loader=name, name=key, batch_ms=timing.median(1e3 / STEPS), faster_by=faster)


def main() -> None:
    given = arguments(__doc__, rounds=5)
    torch.set_num_threads(1)
    has_sparse = "torch_sparse" in find_peers("torch_sparse")
    report = Report("subgraphs", given.toy)
    for name in ("toy",) if given.toy else ("S", "M"):
        bench_one_type(report, graphs.load(name), given.rounds, has_sparse)
    bench_hgt(report, graphs.load("toy" if given.toy else "S"), given.rounds, has_sparse)
    report.finish()


if __name__ == "__main__":
    main()
