"""What a launch costs, alone and in a captured graph, and what a scan by looking back saves (M6).

Claims (H200): a kernel in a graph follows the one before after 1 to 1.5 microseconds, a launch of its own after 3 to 4;
a scan in one launch, whose blocks look back, takes less than the two launches that the sampling kernels have, while its
tiles are few. Prefix sums are compared before they are timed.
"""

from __future__ import annotations

import ctypes

import torch

from benchmarks._harness import Report, require
from benchmarks.gpu.launches import median_ms, seconds_of
from benchmarks.gpu.probes import launch

ROUNDS = 15
CHAIN = 13  # kernels of a batch of three hops


def measure(report: Report, device: torch.device) -> None:
    if device.type == "cpu":
        print("M6 gaps: left out, its kernels are for a GPU")
        return
    _measure_chains(report, device)
    for num in (5000,) if report.toy else (1 << 13, 1 << 17, 1 << 20):
        _measure_scans(report, device, num)


def _measure_chains(report: Report, device: torch.device) -> None:
    def chain(_: int = 0) -> None:
        launch("launch_nothing", device, ctypes.c_int(CHAIN))

    chain()  # compiled and loaded before it is captured
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for name, run in (("launch by launch", chain), ("one graph", lambda _: graph.replay())):
        for with_host in (False, True):
            ms = median_ms(seconds_of(run, device, ROUNDS, with_host=with_host))
            report.add(
                what="M6 gaps", of=f"{CHAIN} empty kernels, {name}", with_host=with_host, us_per_kernel=ms * 1e3 / CHAIN
            )


def _measure_scans(report: Report, device: torch.device, num: int) -> None:
    given = torch.randint(0, 2, (num,), dtype=torch.int32, device=device)
    expected = (given.cumsum(0) - given).int()
    out, room = torch.empty_like(given), torch.zeros(num // 1024 + 2, dtype=torch.int64, device=device)
    for name, probe in (("two launches", "scan_by_two"), ("looking back", "scan_by_one")):

        def scan(_: int, probe: str = probe) -> None:
            launch(probe, device, given, num, room, out)

        scan(0)
        require(torch.equal(out, expected), f"{probe}: wrong sums")
        ms = median_ms(seconds_of(scan, device, ROUNDS))
        report.add(what="M6 gaps", of=f"scan of {num}, {name}", with_host=False, us_per_kernel=ms * 1e3)
