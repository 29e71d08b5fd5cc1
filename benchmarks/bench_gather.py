"""Gathering feature rows: 106 thousand rows of 512 bytes, at random, from 1 GiB.

Claim: at least 1.6x torch.index_select into a reused buffer; no page faults in steady state.

Method: one core; four sets of ids per round, uniform over the rows; contestants take turns, each with the next four of
forty sets, so that nobody finds in the cache what the one before it read: some processors cache all rows of four.
"fresh" lets the contestant make its output, as `x[ids]` does; "reused" writes into one buffer; "recycled" is
glt.data.Feature, which takes every output from glt's pool, as a loader does. The features of graphlearn_torch and
dgl.graphbolt take part where those can be imported. Results are compared with plain indexing before anything is timed.
Page faults are the median of a round of four.

    python -m benchmarks.bench_gather [--rounds 9] [--toy]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch

from benchmarks._harness import Report, arguments, find_peers, interleave, pinned, require
from glt import _core
from glt.data import Feature

WIDTH = 128  # floats: 512 bytes
SETS_PER_ROUND = 4


def contestants(table: torch.Tensor, num_ids: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Ways to fetch the rows ``ids`` (int64) of ``table``."""
    rows = table.numpy()
    reused = torch.zeros(num_ids, table.shape[1])

    def glt_reused(ids: torch.Tensor) -> torch.Tensor:
        _core.gather_rows(rows, ids.numpy(), reused.numpy())
        return reused

    def numpy_reused(ids: torch.Tensor) -> torch.Tensor:
        np.take(rows, ids.numpy(), axis=0, out=reused.numpy(), mode="clip")  # any other mode buffers the output
        return reused

    peers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    for name, peer in find_peers("graphlearn_torch", "dgl.graphbolt").items():
        if name == "graphlearn_torch":
            own = table.clone()  # it moves what it is given into shared memory
            peers["graphlearn_torch, fresh"] = peer.data.Feature(own, with_gpu=False).__getitem__
        else:
            peers["dgl.graphbolt, fresh"] = peer.TorchBasedFeature(table).read
    return {
        "glt, reused": glt_reused,
        "glt, recycled": Feature(table).gather,
        "torch.index_select, reused": lambda ids: torch.index_select(table, 0, ids, out=reused),
        "torch.index_select, fresh": lambda ids: torch.index_select(table, 0, ids),
        "numpy take, reused": numpy_reused,
        "numpy take, fresh": lambda ids: torch.from_numpy(rows.take(ids.numpy(), axis=0)),
        **peers,
    }


def main() -> None:
    options = arguments(__doc__, rounds=9)
    report = Report("gather", options.toy)
    num_rows, num_ids = (1 << 12, 1000) if options.toy else (1 << 21, 106_000)
    generator = torch.Generator().manual_seed(0)
    table = torch.empty(num_rows, WIDTH).uniform_(generator=generator)
    sets = [torch.randint(num_rows, (num_ids,), generator=generator) for _ in range(40)]
    turns = itertools.cycle(sets)

    def round_of(gather: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], float]:
        def run() -> float:
            return float(sum(gather(ids).nbytes for ids in itertools.islice(turns, SETS_PER_ROUND)))

        return run

    gathers = contestants(table, num_ids)
    for name, gather in gathers.items():
        require(torch.equal(gather(sets[0]), table[sets[0]]), f"{name} gathers wrong rows")
    with pinned():
        timings = interleave({name: round_of(gather) for name, gather in gathers.items()}, options.rounds)
    base = timings["torch.index_select, reused"].rate()
    for name, timing in timings.items():
        report.add(
            gather=name,
            gb_per_s=timing.rate() / 1e9,
            best=timing.best_rate() / 1e9,
            gather_ms=timing.median(1e3 / SETS_PER_ROUND),
            quartiles=timing.quartiles(1e3 / SETS_PER_ROUND),
            page_faults=int(np.median(timing.page_faults)),
            over_index_select_reused=timing.rate() / base,
        )
    report.finish()


if __name__ == "__main__":
    main()
