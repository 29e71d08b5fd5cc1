"""What random reads cost: device memory (M1), pinned host memory (M3), and the bus at its best (M5).

Each read is a row of so many bytes, fetched by the gather kernel and written once to device memory. M1 asks how many
32-byte sectors a second device memory gives, and whether that falls with the footprint; M3 how many requests a second
the bus takes, at which size it is full, and whether the order of the ids matters (a cliff between random and sorted
ids is the device's page table: huge pages under the memory changed nothing). Not measured: other granularities of L2
fetches.
"""

from __future__ import annotations

import torch

from benchmarks._harness import Report
from benchmarks.gpu.launches import RawTable, median_ms, pinned_memory, seconds_of

ROUNDS = 7


def measure(report: Report, device: torch.device) -> None:
    gib = 1 << (14 if report.toy else 30)
    num_ids = 300 if report.toy else 1 << 22
    room = gib * 200 if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    for footprint in (1,) if report.toy else (1, 8, 64, 120):
        if footprint * gib < room * 0.9:
            rows = torch.zeros(footprint * gib // 32, 32, dtype=torch.uint8, device=device)
            rows[:: max(1, len(rows) // 1000)] = 7
            _read(report, device, rows, num_ids, "M1 random reads", "device", footprint, "random")
            del rows
    for footprint in (1,) if report.toy else (1, 16):
        memory = torch.zeros(footprint * gib, dtype=torch.uint8)
        memory[:: max(1, len(memory) // 1000)] = 7
        with pinned_memory(memory, device) as memory:
            for row_bytes in (32, 512) if report.toy else (32, 64, 128, 256, 512):
                rows = memory.view(-1, row_bytes)
                num = min(num_ids, len(rows))
                for order in ("random", "sorted", "by 4096 rows"):
                    _read(report, device, rows, num, "M3 zero-copy reads", "pinned", footprint, order)
            if footprint == 1:
                _copy(report, device, memory)


def _copy(report: Report, device: torch.device, memory: torch.Tensor) -> None:
    there = torch.empty(len(memory), dtype=torch.uint8, device=device)
    ms = median_ms(seconds_of(lambda _: there.copy_(memory, non_blocking=True), device, ROUNDS))
    report.add(what="M5 copy to the device", tier="pinned", footprint_gib=1, ms=ms, gb_per_s=memory.nbytes / ms / 1e6)


def _read(
    report: Report, device: torch.device, rows: torch.Tensor, num_ids: int, what: str, tier: str, footprint: int,
    order: str,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    many = []
    for _ in range(3):
        ids = torch.randint(len(rows), (num_ids,), generator=generator)
        if order == "sorted":
            ids = ids.sort().values
        elif order != "random":
            ids = ids[(ids >> 12).argsort(stable=True)]
        many.append(ids.to(device))
    table = RawTable(rows, device)
    table.check(many[0][:1000])
    out = torch.empty(num_ids, rows.shape[1], dtype=torch.uint8, device=device)
    ms = median_ms(seconds_of(lambda number: table.gather(many[number % 3], out), device, ROUNDS))
    report.add(
        what=what, tier=tier, footprint_gib=footprint, row_bytes=rows.shape[1], order=order, ms=ms,
        gb_per_s=out.nbytes / ms / 1e6, m_reads_per_s=num_ids / ms / 1e3,
    )  # fmt: skip
