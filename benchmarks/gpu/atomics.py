"""Random stamps into a table (M2): what relabelling costs where the table does not fit into the L2 cache.

Claim: a 32-bit ``RED.MAX`` that nobody waits for costs a memory transaction, so that a table within the L2 cache (50 MB
on an H200) takes several times as many stamps a second as one beyond it. Checked first: the lowest occurrence wins.
"""

from __future__ import annotations

import ctypes

import torch

from benchmarks._harness import Report, require
from benchmarks.gpu.launches import median_ms, seconds_of
from benchmarks.gpu.probes import launch

ROUNDS = 9
NUM_STAMPS = 1 << 22


def measure(report: Report, device: torch.device) -> None:
    if device.type == "cpu":
        print("M2 stamps: left out, its kernels are for a GPU")
        return
    num_stamps = 1 << 12 if report.toy else NUM_STAMPS
    for megabytes in (1,) if report.toy else (10, 40, 160, 640, 4096):
        for name, dtype, word in (("stamp32", torch.int32, ctypes.c_uint32), ("stamp64", torch.int64, ctypes.c_uint64)):
            table = torch.zeros((megabytes << 20) // dtype.itemsize, dtype=dtype, device=device)
            at = torch.randint(len(table), (num_stamps,), device=device)
            top = 2**31 - 1  # signed and unsigned alike
            launch(name, device, table, at, num_stamps, word(top))
            first = torch.full((len(table),), num_stamps, device=device)
            first.scatter_reduce_(0, at, torch.arange(num_stamps, device=device), "amin")
            require(torch.equal(table[at].long(), top - first[at]), f"{name}: the lowest occurrence does not win")
            table.zero_()

            def stamp(_: int, name: str = name, table: torch.Tensor = table, at: torch.Tensor = at,
                      top: object = word(top)) -> None:  # fmt: skip
                launch(name, device, table, at, num_stamps, top)  # type: ignore[arg-type]

            ms = median_ms(seconds_of(stamp, device, ROUNDS))
            report.add(
                what="M2 stamps", word_bits=8 * dtype.itemsize, table_mb=megabytes, ms=ms,
                m_stamps_per_s=num_stamps / ms / 1e3,
            )  # fmt: skip
