"""Rows of pinned host memory by TMA against loads of 16 bytes (M4), with few blocks of either.

Claim (H200): bytes in flight decide. TMA keeps a ring of rows in shared memory and needs 2 to 4 blocks for 48 GB/s; the
gather kernel, whose bytes in flight are registers, needs more. Rows are compared before they are timed.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from benchmarks._harness import Report, require
from benchmarks.gpu.launches import RawTable, median_ms, pinned_memory, seconds_of
from benchmarks.gpu.probes import launch

ROUNDS = 7
RING_BYTES = 160 << 10  # of shared memory


def measure(report: Report, device: torch.device) -> None:
    if device.type == "cpu":
        print("M4 bulk reads: left out, its kernels are for a GPU")
        return
    if torch.cuda.get_device_capability(device)[0] < 9:
        print(f"M4 bulk reads: left out, {torch.cuda.get_device_name(device)} has no TMA")
        return
    gib, num_ids = (1 << 16, 500) if report.toy else (1 << 30, 1 << 20)
    memory = torch.randint(0, 255, (4 * gib,), dtype=torch.uint8)
    with pinned_memory(memory, device) as memory:
        _measure(report, device, memory, num_ids)


def _measure(report: Report, device: torch.device, memory: torch.Tensor, num_ids: int) -> None:
    for row_bytes in (256,) if report.toy else (256, 512, 1024):
        rows = memory.view(-1, row_bytes)
        ids = torch.randint(len(rows), (num_ids,), generator=torch.Generator().manual_seed(0))
        expected, there = rows[ids], ids.to(device)
        out = torch.empty(num_ids, row_bytes, dtype=torch.uint8, device=device)
        table = RawTable(rows, device)
        for blocks in (1, 2, 4, 8, 16):
            tma = functools.partial(_by_tma, device, rows, there, out, blocks)
            loads = functools.partial(_by_loads, table, there, out, blocks)
            for name, run in (("TMA", tma), ("loads of 16 bytes", loads)):
                out.zero_()
                run(0)
                require(torch.equal(out.cpu(), expected), f"{name}, {blocks} blocks: wrong rows")
                ms = median_ms(seconds_of(run, device, ROUNDS))
                report.add(
                    what="M4 bulk reads", by=name, row_bytes=row_bytes, blocks=blocks, ms=ms,
                    gb_per_s=out.nbytes / ms / 1e6,
                )  # fmt: skip


def _by_tma(
    device: torch.device, rows: torch.Tensor, ids: torch.Tensor, out: torch.Tensor, blocks: int, _: int
) -> None:
    width = rows.shape[1]
    slots = min(256, RING_BYTES // width)
    launch(
        "gather_by_tma", device, rows, ctypes.c_uint32(width), ids, len(ids), out, ctypes.c_int(slots),
        ctypes.c_int(blocks),
    )  # fmt: skip


def _by_loads(table: RawTable, ids: torch.Tensor, out: torch.Tensor, blocks: int, _: int) -> None:
    table.gather(ids, out, blocks)
