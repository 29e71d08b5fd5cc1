"""Loaders with ``num_workers="auto"`` beside the default, in process and over partitions.

Claim: epochs take no longer than with the default by more than a tenth; where more workers help, they take less. In the
first epoch, in which numbers are tried, that costs some tenths of a second.

Method: graph S, 128 floats per node, seeds and ``random_seed`` the same. Trainers take batches at once, or work on each
for as long as the default loader makes two, waiting as for a GPU, or calculating on a core. The first epochs of both
loaders are timed alone, those after it in turns.

    python -m benchmarks.bench_auto [--rounds 3] [--toy]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch_geometric.data import Data

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, interleave
from benchmarks.partitioned import features_of, scratch_dir, write_partitions


def waits(seconds: float) -> None:
    time.sleep(seconds)


def calculates(seconds: float) -> None:
    rows, until = torch.rand(64, 64), time.perf_counter() + seconds
    while time.perf_counter() < until:
        rows = (rows @ rows).softmax(dim=1)


def epoch(loader: Any, work: Callable[[float], None] | None, work_s: float) -> float:
    num_batches = 0
    for _ in loader:
        num_batches += 1
        if work is not None:
            work(work_s)
    return num_batches


def main() -> None:
    options = arguments(__doc__, rounds=3)
    report = Report("auto", options.toy)
    graph = graphs.load("toy" if options.toy else "S")
    num_batches, size = (10, 8) if options.toy else (160, 256)
    nodes = torch.arange(graph.num_nodes)
    given = {"num_neighbors": [10, 5], "input_nodes": nodes[: num_batches * size], "batch_size": size, "random_seed": 1}
    with scratch_dir() as directory:
        path = write_partitions(graph, directory)
        glt.distributed.init_worker_group(1, 0)
        parts = glt.distributed.DistDataset().load(path, 0)
        edge_index = torch.from_numpy(graph.edge_index())
        whole = Data(x=features_of(nodes), edge_index=edge_index, num_nodes=graph.num_nodes)

        def in_process(num_workers: Any) -> Any:
            return glt.loader.NeighborLoader(whole, num_workers=num_workers, **given)

        def in_workers(num_workers: Any) -> Any:
            where = glt.distributed.MpDistSamplingWorkerOptions(num_workers=num_workers)
            return glt.distributed.DistNeighborLoader(parts, collect_features=True, worker_options=where, **given)

        modes: dict[str, tuple[Callable[[Any], Any], int]] = {"in process": (in_process, 0), "workers": (in_workers, 1)}
        for mode, (make, default) in modes.items():
            for name, work in {"takes batches": None, "waits": waits, "calculates": calculates}.items():
                loaders = {"default": make(default), "auto": make("auto")}
                begin_s, work_s, first_s = time.perf_counter(), 0.0, {}
                if work is not None:
                    work_s = 2 * (epoch(loaders["default"], None, 0.0) and time.perf_counter() - begin_s) / num_batches
                for each, loader in loaders.items():
                    began_s = time.perf_counter()
                    epoch(loader, work, work_s)
                    first_s[each] = time.perf_counter() - began_s
                turns = {each: partial(epoch, loader, work, work_s) for each, loader in loaders.items()}
                timings = interleave(turns, options.rounds, warmup=0)
                report.add(
                    mode=mode, trainer=name, loader="glt", default_ms=timings["default"].median(1e3 / num_batches),
                    auto_ms=timings["auto"].median(1e3 / num_batches), chosen=loaders["auto"].stats()["num_workers"],
                    over_default=1 / timings["auto"].over(timings["default"]),
                    first_epoch_s=first_s["default"], first_epoch_auto_s=first_s["auto"],
                )  # fmt: skip
                for loader in loaders.values():
                    if mode == "workers":
                        loader.shutdown()
    report.finish()


if __name__ == "__main__":
    main()
