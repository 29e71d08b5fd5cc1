"""Where the time of a batch goes on the GPU: microseconds of each kernel and copy, as CUPTI saw them.

Claim: none of its own; it says what to improve. Method: W0 batches as in ``sampling``, launch by launch, one at a time;
means over batches. "all" is what the device was busy with, "batch" the host's time of one, CUPTI's cost included.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict

import torch

from benchmarks._harness import Report
from benchmarks.gpu.sampling import FAN_OUT, lognormal_graph
from glt.data import Graph
from glt.sampler import NeighborSampler
from glt.sampler.device import DeviceSampling

BATCHES, UNMEASURED = 20, 4


def measure(report: Report, device: torch.device) -> None:
    if device.type == "cpu":
        print("kernels by time: left out, CUPTI looks at GPUs")
        return
    num_nodes, num_edges, num_seeds = (2000, 40_000, 16) if report.toy else (2_400_000, 121_000_000, 1024)
    generator = torch.Generator().manual_seed(0)
    topology = lognormal_graph(num_nodes, num_edges, generator)
    many = [torch.randperm(num_nodes, generator=generator)[:num_seeds] for _ in range(UNMEASURED + BATCHES)]
    for mode in ("CUDA", "ZERO_COPY"):
        graph = Graph(topology, mode)
        columns = graph.placed(device)
        sampler = NeighborSampler(Graph(topology), FAN_OUT, random_seed=0)
        kernels = DeviceSampling(
            sampler.graph, sampler.config, device, lambda _, columns=columns: columns, replays=False
        )
        for number in range(UNMEASURED):
            kernels.launch(sampler.config, [(0, many[number])], None, number)()
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for number in range(UNMEASURED, UNMEASURED + BATCHES):
                kernels.launch(sampler.config, [(0, many[number])], None, number)()
            torch.cuda.synchronize(device)
            batch_us = (time.perf_counter() - start) / BATCHES * 1e6
        _report(report, mode, profile, batch_us)
        graph.close()


def _report(report: Report, mode: str, profile: torch.profiler.profile, batch_us: float) -> None:
    us, times = defaultdict(float), defaultdict(int)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found = re.search(r"glt::cuda::(\w+(?:<[^<>]*>)?)>", event.name)
            name = found[1] if found else event.name[:40]
            us[name] += event.time_range.elapsed_us() / BATCHES
            times[name] += 1
    for name in sorted(us, key=lambda name: -us[name]):
        report.add(what="kernels by time", tier=mode, kernel=name, us=us[name], times=times[name] / BATCHES)
    for name, taken in (("all", sum(us.values())), ("batch", batch_us)):
        report.add(what="kernels by time", tier=mode, kernel=name, us=taken, times=None)
