"""The kernels of the peers beside ours, where they were built for a GPU: GLT (graphlearn_torch) and GraphBolt of DGL.

Claim: none of its own; the peers' figures stand beside those of parts ``sampling`` and ``gather``.

Method: W0 of the plan as in ``sampling``, rows as in ``gather``; from seeds on the host to a batch in local ids with
edge ids on the GPU, and from ids on the GPU to rows there, one at a time; medians, one contestant after the other.
Batches are checked against the graph first (benchmarks/bench_sampler.py), rows against torch's. GraphBolt's operations
are called hop by hop on int32 columns, as it is fastest; GLT takes int64 columns alone. Without a GPU the same lines
call the peers' CPU samplers.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._harness import Report, find_peers, require
from benchmarks.bench_sampler import check
from benchmarks.gpu.launches import median_ms, seconds_of
from benchmarks.gpu.sampling import FAN_OUT, lognormal_graph
from benchmarks.peer_samplers import WITH_REPLACEMENT, graphbolt_hops
from glt.data import Feature, Graph, Topology
from glt.data.feature import TieredRows
from glt.sampler import NeighborSampler
from glt.sampler.device import DeviceSampling

ROUNDS = 9
ROW_BYTES = 400
PEERS = ("graphlearn_torch", "dgl.graphbolt")
Sampled = tuple[Tensor, Tensor, Tensor, Tensor]  # node, row (neighbour), col (expanded node), edge id
Sampler = Callable[[int, Tensor], Sampled]
Gather = Callable[[Tensor], Tensor]
Close = Callable[[], object]


def measure(report: Report, device: torch.device) -> None:
    num_nodes, num_edges, num_seeds = (2000, 40_000, 16) if report.toy else (2_400_000, 121_000_000, 1024)
    generator = torch.Generator().manual_seed(0)
    topology = lognormal_graph(num_nodes, num_edges, generator)
    with_edges = (topology.indptr.diff() > 0).nonzero().view(-1)
    many = [with_edges[torch.randperm(len(with_edges), generator=generator)[:num_seeds]] for _ in range(ROUNDS + 2)]
    peers = [name for name in find_peers(*PEERS) if device.type == "cpu" or _has_kernels(name)]
    for name in PEERS:
        if name not in peers:
            report.add(what="absent", by=name)  # the page is to say so
    for tier in ("CUDA", "ZERO_COPY"):
        _sampling(report, device, topology, many, tier, peers)
    num_ids = num_nodes // 5
    table = torch.empty(num_nodes, ROW_BYTES // 4).uniform_(generator=generator)
    ids = [torch.randperm(num_nodes, generator=generator)[:num_ids].to(device) for _ in range(ROUNDS + 2)]
    for tier in ("device", "pinned"):
        _gathering(report, device, table, ids, tier, peers)


def _has_kernels(name: str) -> bool:
    if name == "graphlearn_torch":
        from graphlearn_torch import py_graphlearn_torch as native

        found = hasattr(native, "CUDARandomSampler")
    else:
        found = torch._C._dispatch_has_kernel_for_dispatch_key("graphbolt::unique_and_compact_batched", "CUDA")
    if not found:
        print(f"absent: kernels of {name} (it was built for the CPU)")
    return found


def _sampling(
    report: Report, device: torch.device, topology: Topology, many: Sequence[Tensor], tier: str, peers: Sequence[str]
) -> None:
    makers = {"glt": _glt, "graphlearn_torch": _graphlearn_torch, "dgl.graphbolt": _graphbolt}
    bench_graph: Any = types.SimpleNamespace(
        name="W0", indptr=topology.indptr.numpy(), indices=topology.indices.numpy()
    )
    for name in ("glt", *peers):
        sampler, close = makers[name](topology, tier, device)
        sample: Any = tuple(each.cpu().numpy().astype(np.int64) for each in sampler(0, many[0]))
        on_cpu = device.type == "cpu"
        try:
            check(bench_graph, FAN_OUT, many[0].numpy(), sample, name if on_cpu else f"{name} on {tier}")
        except ValueError as error:
            if name == "glt":
                raise
            print(error)
            close()
            continue
        num_edges: list[int] = []

        def launch(number: int, sampler: Sampler = sampler, num_edges: list[int] = num_edges) -> None:
            num_edges.append(len(sampler(number, many[number])[1]))

        ms = median_ms(seconds_of(launch, device, ROUNDS, with_host=True))
        edges = sorted(num_edges)[len(num_edges) // 2]
        note = "with replacement" if on_cpu and name in WITH_REPLACEMENT else ""
        report.add(
            what="W0 sampling", by=name, tier=tier, note=note, ms=ms, edges=edges, m_edges_per_s=edges / ms / 1e3,
            gb_per_s=None,
        )  # fmt: skip
        close()


def _glt(topology: Topology, tier: str, device: torch.device) -> tuple[Sampler, Close]:
    graph = Graph(topology, tier if device.type == "cuda" else "CPU")
    columns = graph.placed(device) if device.type == "cuda" else topology
    sampler = NeighborSampler(Graph(topology), FAN_OUT, random_seed=0)
    kernels = DeviceSampling(sampler.graph, sampler.config, device, lambda _: columns)

    def sample(number: int, seeds: Tensor) -> Sampled:
        out = kernels.launch(sampler.config, [(0, seeds)], None, number)()
        return out.node, out.row, out.col, out.edge

    return sample, graph.close


def _graphlearn_torch(topology: Topology, tier: str, device: torch.device) -> tuple[Sampler, Close]:
    import graphlearn_torch

    # Of its own: it shares what it is given, by which torch puts the memory elsewhere.
    csc = topology.indices.long(), topology.indptr.clone()
    there = graphlearn_torch.data.Topology(csc, input_layout="CSC", layout="CSC")
    graph = graphlearn_torch.data.Graph(there, tier if device.type == "cuda" else "CPU", device.index)
    sampler = graphlearn_torch.sampler.NeighborSampler(
        graph, FAN_OUT, device=device, with_edge=True, edge_dir="in", seed=1
    )

    def sample(_: int, seeds: Tensor) -> Sampled:
        made = sampler.sample_from_nodes(seeds)
        return made.node, made.row, made.col, made.edge

    return sample, _nothing


def _graphbolt(topology: Topology, tier: str, device: torch.device) -> tuple[Sampler, Close]:
    from dgl import graphbolt

    graph = graphbolt.fused_csc_sampling_graph(topology.indptr, topology.indices.int())
    if device.type == "cuda":
        graph = graph.to(device) if tier == "CUDA" else graph.pin_memory_() or graph

    def sample(_: int, seeds: Tensor) -> Sampled:
        return graphbolt_hops(graph, FAN_OUT, seeds.to(device).int())

    return sample, _nothing


def _gathering(
    report: Report, device: torch.device, table: Tensor, ids: Sequence[Tensor], tier: str, peers: Sequence[str]
) -> None:
    makers = {"glt": _glt_rows, "graphlearn_torch": _graphlearn_torch_rows, "dgl.graphbolt": _graphbolt_rows}
    expected = table[ids[0].cpu()]
    for name in ("glt", *peers):
        gather, close = makers[name](table, tier, device)
        require(torch.equal(gather(ids[0]).cpu(), expected), f"{name}, {tier}: wrong rows")
        turns = functools.partial(_turn, gather, ids)
        ms = median_ms(seconds_of(turns, device, ROUNDS, with_host=True))
        report.add(
            what="rows of 400 bytes", by=name, tier=tier, note="", ms=ms, edges=None, m_edges_per_s=None,
            gb_per_s=expected.nbytes / ms / 1e6,
        )  # fmt: skip
        close()


def _turn(gather: Gather, ids: Sequence[Tensor], number: int) -> None:
    gather(ids[number])


def _glt_rows(table: Tensor, tier: str, device: torch.device) -> tuple[Gather, Close]:
    rows = TieredRows(table, device, num_hot=len(table) if tier == "device" else 0)
    explain = Feature(table)._explain

    def gather(ids: Tensor) -> Tensor:
        out = torch.empty(len(ids), table.shape[1], device=device)
        rows.gather(ids, out, wait=False, explain=explain)
        return out

    return gather, rows.close


def _graphlearn_torch_rows(table: Tensor, tier: str, device: torch.device) -> tuple[Gather, Close]:
    import graphlearn_torch

    on_gpu = device.type == "cuda"
    groups = [graphlearn_torch.data.DeviceGroup(0, [device.index])] if on_gpu else None
    feature = graphlearn_torch.data.Feature(
        table.clone(), split_ratio=1.0 if tier == "device" else 0.0, device_group_list=groups, device=device.index,
        with_gpu=on_gpu,
    )  # fmt: skip
    return feature.__getitem__, _nothing


def _graphbolt_rows(table: Tensor, tier: str, device: torch.device) -> tuple[Gather, Close]:
    if device.type == "cuda":
        table = table.to(device) if tier == "device" else table.pin_memory()
    return functools.partial(torch.ops.graphbolt.index_select, table), _nothing


def _nothing() -> None:
    pass
