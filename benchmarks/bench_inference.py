"""Layer-wise inference over all nodes: nodes per second, against the loop that one would write.

Claim: `infer_layerwise` computes all nodes about as fast as a loop over slices of the whole adjacency in one process,
though its graph is partitioned, its layers are kept on servers (here: in this process) or in mapped files, and it holds
two batches in memory and not the graph.

Method: GraphSAGE of two layers and 64 channels, 64 features, all in-edges, batches of 4096 nodes, one process and one
core. A round is the whole model over all nodes. The loop has the in-edges of all nodes ready as CSC, slices them for a
batch, renumbers its nodes by torch.unique, and keeps layers in plain tensors. `model.inference` of torch_geometric
needs pyg-lib or torch-sparse, and is left out without. All results are compared with the full-batch model first.

    python -m benchmarks.bench_inference [--rounds 3] [--toy]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch_geometric
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, interleave, pinned
from benchmarks.partitioned import scratch_dir
from glt.partition import RandomPartitioner

WIDTH, BATCH = 64, 4096


def slices_loop(model: GraphSAGE, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The plain loop."""
    num_nodes = len(x)
    for layer in range(model.num_layers):
        outputs = []
        for first in range(0, num_nodes, BATCH):
            seeds = torch.arange(first, min(first + BATCH, num_nodes))
            bounds = indptr[first : first + len(seeds) + 1]
            source = indices[int(bounds[0]) : int(bounds[-1])]
            target = torch.repeat_interleave(torch.arange(len(seeds)), bounds.diff())
            others, local = torch.unique(source, return_inverse=True)
            nodes = torch.cat([seeds, others])
            edge_index = torch.stack([local + len(seeds), target])
            outputs.append(model.inference_per_layer(layer, x[nodes], edge_index, len(seeds)))
        x = torch.cat(outputs)
    return x


def contestants(
    model: GraphSAGE, x: Tensor, edge_index: Tensor, scratch: Path
) -> dict[str, Callable[[], Tensor]]:  # fmt: skip
    num_nodes = len(x)
    order = edge_index[1].sort(stable=True)
    indices = edge_index[0][order.indices]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(order.values, minlength=num_nodes).cumsum(0)])
    every = torch.arange(num_nodes)
    found = {
        "glt": lambda: glt.distributed.infer_layerwise(model, batch_size=BATCH)[every],
        "glt, mapped files": lambda: glt.distributed.infer_layerwise(model, batch_size=BATCH, spill_dir=scratch),
        "a loop over slices": lambda: slices_loop(model, x, indptr, indices),
    }
    if torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE:
        data = Data(x=x, edge_index=edge_index)
        loader = NeighborLoader(data, [-1], batch_size=BATCH)
        found["torch_geometric"] = lambda: model.inference(loader)
    else:
        print("absent: pyg-lib and torch-sparse, which torch_geometric's NeighborLoader needs")
    return found


def main() -> None:
    options = arguments(__doc__, rounds=3)
    report = Report("inference", options.toy)
    graph = graphs.load("toy" if options.toy else "S")
    edge_index = torch.from_numpy(graph.edge_index()).long()
    torch.manual_seed(0)
    x, model = torch.randn(graph.num_nodes, WIDTH), GraphSAGE(WIDTH, WIDTH, 2, WIDTH).eval()
    with scratch_dir() as scratch, pinned():
        RandomPartitioner(
            scratch / "parts", 2, graph.num_nodes, edge_index, node_feat=x, edge_assign_strategy="by_dst", num_threads=1
        ).partition()  # fmt: skip
        glt.distributed.initialize(part_config=scratch / "parts")
        try:
            found = contestants(model, x, edge_index, scratch)
            with torch.no_grad():
                expected = model(x, edge_index)
            for name, run in found.items():
                torch.testing.assert_close(run(), expected, rtol=1e-3, atol=1e-4, msg=f"{name} is wrong")
            rounds = {name: lambda run=run: float(len(run())) for name, run in found.items()}
            timings = interleave(rounds, options.rounds, warmup=0)
        finally:
            glt.distributed.finalize()
    base = timings["a loop over slices"]
    for name, timing in timings.items():
        report.add(
            graph=graph.name, contestant=name, nodes_per_s=timing.rate(), round_s=timing.median(),
            ratio=timing.rate() / base.rate(), by_cpu=base.cpu() / timing.cpu(),
        )  # fmt: skip
    report.finish()


if __name__ == "__main__":
    main()
