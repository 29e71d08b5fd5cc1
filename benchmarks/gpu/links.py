"""Link batches: the negatives and the excluded edges of one, on the GPU and on a thread of the CPU.

Claim: a link batch, with as many negatives as seed edges and its seed edges left out, takes less than twice the time of
a batch around as many nodes. There are two waits: for the negatives, and for the batch. Batches are compared with the
CPU's before they are timed.
"""

from __future__ import annotations

import time

import torch
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from benchmarks._harness import Report, require
from benchmarks.gpu.launches import median_ms, seconds_of
from benchmarks.gpu.sampling import lognormal_graph
from glt.data import Graph
from glt.data.device import Accelerator
from glt.sampler import NeighborSampler
from glt.sampler.device import DeviceSampling

ROUNDS = 9


class _OnDevice(NeighborSampler):
    """A sampler whose batches are the kernels', on a GPU or, at toy size, in the host's hands."""

    def __init__(self, graph: Graph, place: torch.device, columns: object, **options: object) -> None:
        super().__init__(graph, [15, 10, 5], random_seed=0, **options)  # type: ignore[arg-type]
        self.__dict__["on_device"] = DeviceSampling(self.graph, self.config, place, lambda _: columns)  # type: ignore
        self.accelerator = Accelerator(place)


def measure(report: Report, device: torch.device) -> None:
    num_nodes, num_edges, num_seeds = (2000, 40_000, 16) if report.toy else (2_400_000, 121_000_000, 512)
    generator = torch.Generator().manual_seed(0)
    topology = lognormal_graph(num_nodes, num_edges, generator)
    graph = Graph(topology, "CUDA" if device.type == "cuda" else "CPU")
    columns = graph.placed(device) if device.type == "cuda" else topology
    rows = torch.repeat_interleave(topology.degrees)
    at = [torch.randint(len(rows), (num_seeds,), generator=generator) for _ in range(ROUNDS + 2)]
    links = [EdgeSamplerInput(None, rows[each], topology.indices[each].long()) for each in at]
    for mode in ("binary", "triplet"):
        negatives = NegativeSampling(mode, 1)
        options = {"exclude_edges": "self"}
        on_cpu = NeighborSampler(Graph(topology), [15, 10, 5], random_seed=0, **options)
        sampler = _OnDevice(Graph(topology), device, columns, **options)
        expected = on_cpu.sample_from_edges(links[0], negatives, batch_key=0)
        got = sampler.sample_from_edges(links[0], negatives, batch_key=0)
        for name in ("node", "row", "col", "edge"):
            same = torch.equal(getattr(got, name).cpu(), getattr(expected, name))
            require(same, f"{mode}: {name} differs from the CPU's")

        def batch(number: int, sampler: NeighborSampler = sampler, of: NegativeSampling = negatives) -> None:
            sampler.sample_from_edges(links[number], of, batch_key=number)

        ms = median_ms(seconds_of(batch, device, ROUNDS, with_host=True))
        start = time.perf_counter()
        for number in range(3):
            on_cpu.sample_from_edges(links[number], negatives, batch_key=number)
        report.add(what="link batches, glt", negatives=mode, links=num_seeds, ms=ms,
                   cpu_ms=(time.perf_counter() - start) / 3 * 1e3)  # fmt: skip
    graph.close()
