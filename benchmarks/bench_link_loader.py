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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader as PygLinkNeighborLoader

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, in_fresh_process, require
from benchmarks.bench_loader import check, compare, data_of


def check_pairs(graph: graphs.BenchGraph, data: Data, pairs: torch.Tensor, batch: Data, name: str) -> None:
    """Raises unless the batch's positives are the pairs that it names, and glt's negatives no edges."""
    check(data, batch, name)
    ends = batch.n_id[batch.edge_label_index]
    positive = batch.edge_label > 0
    right = torch.equal(ends[:, positive], pairs[:, batch.input_id]) and int((~positive).sum()) == int(positive.sum())
    rows = (graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v in ends[1, ~positive].tolist())
    false_negatives = sum(int(u in row) for u, row in zip(ends[0, ~positive].tolist(), rows, strict=True))
    require(right and not (name == "glt" and false_negatives), f"{name}: a batch's pairs are wrong")


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
    check_batch = partial(check_pairs, graph, data, pairs)
    return compare(loaders, check_batch, rounds, graph=graph.name, num_neighbors=str(num_neighbors))


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
