"""The in-process link loader: pairs and negatives in, their sampled neighbourhood with 128 floats per node out.

Claim: at least 3x torch_geometric.loader.LinkNeighborLoader (with pyg-lib), in one process, although negatives are
checked against the graph here and not there.

Method: as in ``bench_loader``: one core, the same PyG Data object and the same arguments for both loaders, which take
turns, a fresh process per graph. 1024 edges per batch in random order, one negative for each, fan-outs [10, 5]. A batch
of each loader is checked first: edges, features and pairs are those that its ids name; glt's negatives are no edges.

    python -m benchmarks.bench_link_loader [--rounds 7] [--toy]
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader as PygLinkNeighborLoader

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, in_fresh_process, interleave, pinned
from benchmarks.bench_loader import BATCHES_PER_ROUND, check, data_of, endless, round_of


def check_pairs(
    graph: graphs.BenchGraph, data: Data, batch: Data, pairs: torch.Tensor, name: str, strict: bool
) -> None:
    """Raises unless the batch's positives are the pairs that it names, and (if strict) its negatives no edges."""
    check(data, batch, name)
    ends = batch.n_id[batch.edge_label_index]
    positive = batch.edge_label > 0
    right = torch.equal(ends[:, positive], pairs[:, batch.input_id]) and int((~positive).sum()) == int(positive.sum())
    rows = (graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v in ends[1, ~positive].tolist())
    false_negatives = sum(int(u in row) for u, row in zip(ends[0, ~positive].tolist(), rows, strict=True))
    if not right or (strict and false_negatives):
        raise ValueError(f"{name}: a batch's pairs are wrong; the figures would mean nothing")


def bench(graph_name: str, num_neighbors: list[int], rounds: int, with_pyg: bool) -> list[dict[str, Any]]:
    """The rows of the report for one graph."""
    graph = graphs.load(graph_name)
    data = data_of(graph)
    batch_size = min(1024, graph.num_edges // 64)
    chosen = torch.from_numpy(np.random.default_rng(0).choice(graph.num_edges, 32 * batch_size, replace=False))
    pairs = data.edge_index[:, chosen]
    options: dict[str, Any] = {
        "num_neighbors": num_neighbors, "edge_label_index": pairs, "batch_size": batch_size, "neg_sampling": "binary",
    }  # fmt: skip
    loaders = {"glt": glt.loader.LinkNeighborLoader(data, random_seed=0, **options)}
    if with_pyg:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it recommends what is not installed
            loaders["torch_geometric"] = PygLinkNeighborLoader(data, **options)
    with pinned():
        iterators = {name: endless(loader) for name, loader in loaders.items()}
        for name, iterator in iterators.items():
            check_pairs(graph, data, next(iterator), pairs, name, strict=name == "glt")
        timings = interleave({name: round_of(iterator) for name, iterator in iterators.items()}, rounds)
    rows = []
    for name, timing in timings.items():
        low, mid, high = timing.quartiles(1e3 / BATCHES_PER_ROUND)
        row = {"graph": graph.name, "num_neighbors": str(num_neighbors), "loader": name, "batch_ms": mid}
        row |= {"quartiles": f"{low:.3g}-{high:.3g}", "cpu_ms": timing.cpu(1e3 / BATCHES_PER_ROUND)}
        row |= {"glt_over_this": timings["glt"].rate() / timing.rate(), "by_cpu": timing.cpu() / timings["glt"].cpu()}
        rows.append(row)
    return rows


def main() -> None:
    options = arguments(__doc__, rounds=7)
    report = Report("link_loader", options.toy)
    with_pyg = bool(find_peers("pyg_lib", "torch_sparse"))
    if not with_pyg:
        print("absent: torch_geometric.loader.LinkNeighborLoader (it needs pyg_lib or torch_sparse)")
    for name, num_neighbors in [("toy", [5, 3])] if options.toy else [("S", [10, 5]), ("M", [10, 5])]:
        for row in in_fresh_process(bench, name, num_neighbors, options.rounds, with_pyg):
            report.add(**row)
    report.finish()


if __name__ == "__main__":
    main()
