"""Sampling whole batches with relabelling, from device memory and with the columns in pinned memory.

Goals (H200, W0 of the plan: 2.4 million nodes, 121 million edges, 1024 seeds, [15, 10, 5]): 3 G edges/s from device
memory, 0.3 G edges/s with the columns read in place over PCIe. "hot half" has half of the edges in device memory, those
of the rows that are read most, and no goal.

Beside it the same without a CUDA graph (M6) and with a hash table in place of the dense stamps (M8: both on the
trace of W0, whose batches they relabel alike).

Method: from seeds on the host to tensors on the device, with the one wait of a batch. "one at a time" is the median of
batches that are waited for each by itself; "one ahead" is what loaders do, the mean of batches of which each is asked
for before the one before it is waited for. Batches are compared with the CPU's, bit for bit, before they are timed. The
CPU is one thread of this machine, in the same run.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from benchmarks._harness import Report, require
from benchmarks.gpu.launches import median_ms, seconds_of
from glt.data import Graph, Topology
from glt.data.device_topology import num_bytes
from glt.sampler import NeighborSampler
from glt.sampler.device import DeviceSampling
from glt.sampler.graph import Finish

ROUNDS = 15
FAN_OUT = [15, 10, 5]
CONTESTANTS: dict[str, tuple[dict[str, bool], dict[str, int]]] = {  # options of the sampler, and of its kernels
    "uniform": ({}, {}),
    "M6: no graph": ({}, {"replays": False}),  # launch by launch
    "M8: by hash": ({}, {"dense_limit": 0}),  # a hash table in place of a word per node
    "replace": ({"replace": True}, {}),
    "disjoint": ({"disjoint": True}, {}),
    "without edge ids": ({"with_edge": False}, {}),
}
TIERS = {  # the graph's mode, and the goal of "uniform"
    "CUDA": ("CUDA", 3000.0),
    "hot half": ("CUDA", None),
    "ZERO_COPY": ("ZERO_COPY", 300.0),
}


def measure(report: Report, device: torch.device) -> None:
    num_nodes, num_edges, num_seeds = (2000, 40_000, 16) if report.toy else (2_400_000, 121_000_000, 1024)
    generator = torch.Generator().manual_seed(0)
    topology = lognormal_graph(num_nodes, num_edges, generator)
    many = [torch.randperm(num_nodes, generator=generator)[:num_seeds] for _ in range(ROUNDS + 2)]
    for tier, (mode, goal) in TIERS.items():
        gpu = device if device.type == "cuda" else "host"
        graph = Graph(topology, mode, gpu)
        is_half = tier == "hot half"
        # Where rows begin is there whole, and is taken off the room for edges.
        columns = graph.placed(gpu, 8 * num_nodes + num_bytes(topology) // 2 if is_half else None)
        require((columns.hot is not None) == is_half, f"{tier}: not as much of the graph is on the GPU as it says")
        for name, (options, of_kernels) in CONTESTANTS.items():
            if is_half and name != "uniform":
                continue
            sampler = NeighborSampler(Graph(topology), FAN_OUT, random_seed=0, **options)
            kernels = DeviceSampling(
                sampler.graph, sampler.config, device, lambda _, columns=columns: columns, **of_kernels
            )
            _measure(report, device, sampler, kernels, many, tier, goal if name == "uniform" else None, name)
        graph.close()


def lognormal_graph(num_nodes: int, num_edges: int, generator: torch.Generator) -> Topology:
    """About so many edges; degrees fall off as in the plan's W0, neighbours by degree."""
    degree = torch.empty(num_nodes).log_normal_(0, 1.17, generator=generator)
    degree = (degree * (num_edges / degree.sum())).round().long()
    indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    torch.cumsum(degree, 0, out=indptr[1:])
    # The row that an edge drawn at random is in: nodes by their degrees.
    ends = torch.randint(int(indptr[-1]), (int(indptr[-1]),), generator=generator)
    indices = (torch.searchsorted(indptr, ends, right=True) - 1).to(torch.int32)
    return Topology.from_rows(indptr, indices, trusted=True)


def _measure(
    report: Report, device: torch.device, sampler: NeighborSampler, kernels: DeviceSampling, many: list[Tensor],
    tier: str, goal: float | None, options: str,
) -> None:  # fmt: skip
    expected = sampler.sample([(0, many[0])], batch_key=0)
    out = kernels.launch(sampler.config, [(0, many[0])], None, 0)()
    for name in ("node", "row", "col", "edge", "batch"):
        a, b = getattr(out, name), getattr(expected, name)
        same = a is b if a is None or b is None else torch.equal(a.cpu(), b)
        require(same, f"{tier} {options}: {name} differs from the CPU's")
    num_edges: list[int] = []

    def launch(number: int) -> None:
        out = kernels.launch(sampler.config, [(0, many[number])], None, number)()
        num_edges.append(sum(out.num_sampled_edges))

    ms = median_ms(seconds_of(launch, device, ROUNDS, with_host=True))
    edges = sorted(num_edges)[len(num_edges) // 2]
    ahead_ms, ahead_edges = _one_ahead(device, sampler, kernels, many)
    start = time.perf_counter()
    for number, seeds in enumerate(many[:5]):
        sampler.sample([(0, seeds)], batch_key=number)
    cpu_ms = (time.perf_counter() - start) / 5 * 1e3
    for how, some, taken in (("one at a time", edges, ms), ("one ahead", ahead_edges, ahead_ms)):
        report.add(
            what="W0 sampling, glt", tier=tier, options=options, batches=how, edges=some, ms=taken,
            m_edges_per_s=some / taken / 1e3, cpu_ms=cpu_ms, goal=goal,
        )  # fmt: skip


def _one_ahead(
    device: torch.device, sampler: NeighborSampler, kernels: DeviceSampling, many: list[Tensor]
) -> tuple[float, int]:
    """Milliseconds and edges of a batch, on average."""

    def begun(number: int) -> Finish:
        return kernels.launch(sampler.config, [(0, many[number])], None, number)

    num_edges: list[int] = []
    finish, start = begun(0), 0.0
    for number in range(1, len(many) + 1):
        if number == 7:  # once the memory of both has its graph
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            num_edges, start = [], time.perf_counter()
        following = begun(number) if number < len(many) else None
        num_edges.append(sum(finish().num_sampled_edges))
        if following is not None:
            finish = following
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / len(num_edges) * 1e3, sum(num_edges) // len(num_edges)
