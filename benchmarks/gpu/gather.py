"""Gathering the feature rows of a batch: from device memory, from pinned memory, from both (microbenchmark M7).

Goals (H200, W0 of the plan: 2.4 million rows, 509 thousand distinct ids a batch): 400-byte rows from device memory at
1.8 TB/s useful, from pinned memory at 54 GB/s, which is what a copy over the bus takes.

Method: useful bytes are those of the rows, counted once. Each round has ids of its own, so that no cache knows them.
Features are compared with the CPU's gather before they are timed.
"""

from __future__ import annotations

import torch

from benchmarks._harness import Report, require
from benchmarks.gpu.launches import median_ms, seconds_of
from glt.data import Feature
from glt.data.device import HOST
from glt.data.feature import TieredRows
from glt.data.packing import STORE_DTYPES
from glt.loader.window_gather import WindowGather

ROUNDS = 15
CONTESTANTS = (  # name, share of the rows in device memory, blocks
    ("device", 1.0, 0),
    ("device 20%, pinned", 0.2, 0),
    ("device 20%, pinned", 0.2, 32),
    ("pinned", 0.0, 0),
    ("pinned", 0.0, 8),
    ("pinned", 0.0, 32),
)


def measure(report: Report, device: torch.device) -> None:
    num_rows, num_ids = (3000, 400) if report.toy else (2_400_000, 509_000)
    generator = torch.Generator().manual_seed(0)
    many = [torch.randperm(num_rows, generator=generator)[:num_ids] for _ in range(4)]
    for row_bytes in (400,) if report.toy else (200, 400, 512, 1024):
        table = torch.empty(num_rows, row_bytes // 4).uniform_(generator=generator)
        for tier, ratio, max_blocks in CONTESTANTS:
            _measure(report, device, table, many, tier, ratio, max_blocks)
        _measure_window(report, device, table, generator)
        if device.type == "cuda":
            _measure_torch(report, device, table, many)
    table = torch.empty(num_rows, 128).normal_(generator=generator)
    for kind in STORE_DTYPES:
        _measure(report, device, table, many, f"device, {kind} to float32", 1.0, 0, kind)
        _measure(report, device, table, many, f"pinned, {kind} to float32", 0.0, 0, kind)


def _measure(
    report: Report, device: torch.device, table: torch.Tensor, many: list[torch.Tensor], tier: str, ratio: float,
    max_blocks: int, store_dtype: str | None = None,
) -> None:  # fmt: skip
    feature = Feature(table, store_dtype=store_dtype)
    rows = TieredRows(feature.tensor, device, num_hot=round(ratio * len(table)), packing=feature.packing)
    ids = [each.to(device) for each in many]
    options = {"explain": feature._explain, "max_blocks": max_blocks}
    right = torch.equal(rows.gather(ids[0], **options).cpu(), feature.gather(many[0]))
    require(right, f"{tier}: wrong rows")
    row_bytes = feature.tensor[0].nbytes
    out = torch.empty(len(many[0]), table.shape[1], device=device)

    def launch(number: int) -> None:
        rows.gather(ids[number % len(ids)], out, wait=False, **options)

    ms = median_ms(seconds_of(launch, device, ROUNDS, before=rows.check))
    rows.check()
    rows.close()
    goal = {"device": 1800.0, "pinned": 54.0}.get(tier) if row_bytes == 400 else None
    report.add(
        what="M7 gather, glt", tier=tier, row_bytes=row_bytes, blocks=max_blocks or "all", ms=ms,
        gb_per_s=len(many[0]) * row_bytes / ms / 1e6, goal=goal,
    )  # fmt: skip


def _measure_window(report: Report, device: torch.device, table: torch.Tensor, generator: torch.Generator) -> None:
    """Eight batches at once, each distinct row fetched once; the ids fall off as a graph's degrees do."""
    num_ids, num_rows = (400, len(table)) if report.toy else (509_000, len(table))
    batches = [(num_rows * torch.rand(num_ids, generator=generator) ** 2).long() for _ in range(8)]
    feature = Feature(table, device=device if device.type == "cuda" else None)
    window, ids = (
        WindowGather(feature, device if device.type == "cuda" else HOST),
        [batch.to(device) for batch in batches],
    )
    for rows, batch in zip(window.gather(ids), batches, strict=True):
        if not torch.equal(rows.cpu(), feature[batch]):
            raise ValueError("window: wrong rows; its figures would mean nothing")
    ms = median_ms(seconds_of(lambda _: list(window.gather(ids)), device, 5, with_host=True))
    ratio = 8 * num_ids / len(torch.cat(batches).unique())
    report.add(
        what="M7 gather, glt", tier=f"pinned, window of 8 ({ratio:.1f} x)", row_bytes=table[0].nbytes, blocks="all",
        ms=ms / 8, gb_per_s=8 * num_ids * table[0].nbytes / ms / 1e6, goal=None,
    )  # fmt: skip
    feature.close()


def _measure_torch(report: Report, device: torch.device, table: torch.Tensor, many: list[torch.Tensor]) -> None:
    """torch.index_select from device memory, and what a trainer does without pinned reads: gather, then copy."""
    there, ids = table.to(device), [each.to(device) for each in many]
    out = torch.empty(len(many[0]), table.shape[1], device=device)
    feature, staging = Feature(table), torch.empty(len(many[0]), table.shape[1]).pin_memory()

    def gather_then_copy(number: int) -> None:
        feature.gather(many[number % len(many)], staging, num_threads=16)
        out.copy_(staging, non_blocking=True)

    contestants = {
        ("torch.index_select", "device"): lambda number: torch.index_select(there, 0, ids[number % len(ids)], out=out),
        ("glt on 16 CPU threads, copy", "host"): gather_then_copy,
    }
    for (what, tier), launch in contestants.items():
        ms = median_ms(seconds_of(launch, device, ROUNDS, with_host=tier == "host"))
        row_bytes = table[0].nbytes
        report.add(
            what=what, tier=tier, row_bytes=row_bytes, blocks="-", ms=ms, gb_per_s=out.nbytes / ms / 1e6, goal=None
        )
