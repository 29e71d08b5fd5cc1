"""The whole in-process loader: sampling, 128 floats per node, labels, a PyG Data object per batch.

Claim: on graph M at least 8x torch_geometric.loader.NeighborLoader (with pyg-lib), in one process.

Method: one core; 1024 distinct seeds per batch, fan-outs [15, 10, 5], the same PyG Data object for both loaders, both
called with the same arguments. GLT's loader takes part where graphlearn_torch can be imported; it draws with
replacement. Loaders take turns, a round being a few batches of a running iteration. Each graph has a
fresh process: whether malloc returns large blocks to the kernel, which then costs thousands of page faults per batch,
depends on what the process did before. A batch of each loader is checked first: its edges are those that e_id names,
its features and labels are those of its nodes.

    python -m benchmarks.bench_loader [--rounds 7] [--toy]
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PygNeighborLoader

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, in_fresh_process, interleave, pinned, require

NUM_FEATURES = 128
BATCHES_PER_ROUND = 8


def data_of(graph: graphs.BenchGraph) -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.empty(graph.num_nodes, NUM_FEATURES).uniform_(generator=generator),
        y=torch.randint(47, (graph.num_nodes,), generator=generator),
        edge_index=torch.from_numpy(graph.edge_index()),
    )


def check(data: Data, batch: Data, name: str) -> None:
    """Raises unless the batch's edges are those that it names and its rows are those of its nodes."""
    node, edge = (batch.node, batch.edge) if name == "graphlearn_torch" else (batch.n_id, batch.e_id)
    edges_right = torch.equal(data.edge_index[:, edge], node[batch.edge_index])
    right = edges_right and torch.equal(batch.x, data.x[node]) and torch.equal(batch.y, data.y[node])
    require(right, f"{name}: a batch does not agree with the graph")


def compare(
    loaders: dict[str, Any], check: Callable[[Data, str], None], rounds: int, **first: object
) -> list[dict[str, Any]]:
    """The rows of the report for loaders, which take turns, after a first batch of each was checked; ``first`` are
    columns of all."""

    def endless(loader: Any) -> Iterator[Data]:
        while True:
            yield from loader

    def round_of(batches: Iterator[Data]) -> float:
        return float(sum(1 for _ in itertools.islice(batches, BATCHES_PER_ROUND)))

    with pinned():
        iterators = {name: endless(loader) for name, loader in loaders.items()}
        for name, iterator in iterators.items():
            check(next(iterator), name)
        timings = interleave({name: partial(round_of, iterator) for name, iterator in iterators.items()}, rounds)
    scale = 1e3 / BATCHES_PER_ROUND
    return [
        {
            **first,
            "loader": name,
            "batch_ms": timing.median(scale),
            "quartiles": timing.quartiles(scale),
            "cpu_ms": timing.cpu(scale),
            "page_faults_per_batch": int(np.median(timing.page_faults)) // BATCHES_PER_ROUND,
            "glt_over_this": timings["glt"].rate() / timing.rate(),
            "by_cpu": timing.cpu() / timings["glt"].cpu(),
        }
        for name, timing in timings.items()
    ]


def peer_loader(data: Data, num_neighbors: list[int], seeds: torch.Tensor, batch_size: int) -> Any:
    """GLT's, seeded: without a seed its sampler is slower by a factor of ten to twenty."""
    import graphlearn_torch

    dataset = graphlearn_torch.data.Dataset(edge_dir="in")
    dataset.init_graph(data.edge_index, layout="COO", graph_mode="CPU")
    dataset.init_node_features(data.x, with_gpu=False)
    dataset.init_node_labels(data.y)
    return graphlearn_torch.loader.NeighborLoader(
        dataset, num_neighbors, seeds, batch_size=batch_size, with_edge=True, device=torch.device("cpu"), seed=1
    )


def bench(graph_name: str, num_neighbors: list[int], rounds: int, peers: list[str]) -> list[dict[str, Any]]:
    """The rows of the report for one graph."""
    graph = graphs.load(graph_name)
    data = data_of(graph)
    seeds = torch.from_numpy(np.concatenate(graph.seed_batches(32)))
    batch_size = len(seeds) // 32
    options: dict[str, Any] = {"num_neighbors": num_neighbors, "input_nodes": seeds, "batch_size": batch_size}
    loaders = {"glt": glt.loader.NeighborLoader(data, shuffle=False, random_seed=0, **options)}
    if "torch_geometric" in peers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it recommends what is not installed
            loaders["torch_geometric"] = PygNeighborLoader(data, shuffle=False, **options)
    if "graphlearn_torch" in peers:
        loaders["graphlearn_torch"] = peer_loader(data, num_neighbors, seeds, batch_size)
    return compare(loaders, partial(check, data), rounds, graph=graph.name, num_neighbors=str(num_neighbors))


def main() -> None:
    options = arguments(__doc__, rounds=7)
    report = Report("loader", options.toy)
    peers = list(find_peers("graphlearn_torch"))
    if find_peers("pyg_lib", "torch_sparse"):  # PyG's loader needs one of them, and prefers the first
        peers.append("torch_geometric")
    else:
        print("absent: torch_geometric.loader.NeighborLoader (it needs pyg_lib or torch_sparse)")
    for name, num_neighbors in [("toy", [5, 3])] if options.toy else [("S", [15, 10, 5]), ("M", [15, 10, 5])]:
        for row in in_fresh_process(bench, name, num_neighbors, options.rounds, peers):
            report.add(**row)
    report.finish()


if __name__ == "__main__":
    main()
