"""What a gather over the bus costs the training beside it (part of M9).

A loop of matrix products on one stream, alone and while another stream gathers rows from pinned memory with few blocks
or with all: how much longer the products take.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks._harness import Report
from benchmarks.gpu.launches import RawTable, median_ms, pinned_memory, seconds_of

ROUNDS = 9


def measure(report: Report, device: torch.device) -> None:
    size, num_products, num_rows, num_ids = (64, 2, 2000, 200) if report.toy else (8192, 20, 1 << 22, 1 << 20)
    a = torch.randn(size, size, device=device, dtype=torch.float32 if report.toy else torch.bfloat16)
    ids = torch.randint(num_rows, (num_ids,), generator=torch.Generator().manual_seed(0)).to(device)
    out = torch.empty(num_ids, 512, dtype=torch.uint8, device=device)
    side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def products(_: int) -> None:
        for _ in range(num_products):
            torch.mm(a, a)

    with pinned_memory(torch.zeros(num_rows, 512, dtype=torch.uint8), device) as rows:
        table = RawTable(rows, device)
        table.check(ids[:1000])

        def beside(max_blocks: int, number: int) -> None:
            if side is None:
                table.gather(ids, out)
            else:
                side.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(side):
                    for _ in range(4):  # longer than the products
                        table.gather(ids, out, max_blocks)
            products(number)

        alone = median_ms(seconds_of(products, device, ROUNDS))
        report.add(what="M9 products", gather="none", ms=alone, slowdown=1.0)
        for max_blocks in (8, 32, 0):
            ms = median_ms(seconds_of(partial(beside, max_blocks), device, ROUNDS))
            gather = f"pinned, blocks: {max_blocks or 'all'}"
            report.add(what="M9 products", gather=gather, ms=ms, slowdown=ms / alone)
