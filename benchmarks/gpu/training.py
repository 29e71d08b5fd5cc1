"""Training GraphSAGE on a products-sized graph: a GPU sampler against sampling processes on the CPU.

Claim: with a sampler on its GPU the trainer waits for less of an epoch than with CPU workers, and epochs are shorter.
Samplers in the trainer's process are measured here, those in processes of their own (CPU workers, and one worker with a
sampler on the GPU) by the part ``training_workers``: together they may take longer than ten minutes. Both measure the
sampler with all in device memory, to compare by.

Method: the graph of ``sampling`` (2.4 million nodes, 121 million edges) with 100 floats per node and 47 classes, one
partition, one trainer; 196,615 seeds in batches of 1024, fan-out [15, 10, 5], three layers of 256. One epoch
unmeasured, then ``ROUNDS`` of each contestant, taking turns, or fewer where the budget ends (``num_epochs``). The first
batch of each is compared with that of another, element for element, before anything is timed. ``wait_share`` is the
share of the epoch that the trainer's thread spends in the loader. What the GPU itself waits is not in that: ``step_ms``
is what a step takes on batches that are there already, and ``lost_share`` the share of the epoch that is not such
steps, of all causes.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import glt
from benchmarks._harness import Report, require
from benchmarks.gpu.part import PartReport
from benchmarks.gpu.sampling import FAN_OUT, lognormal_graph
from glt.data import Dataset, Graph, Topology
from glt.partition import RandomPartitioner

ROUNDS = 3
NUM_FEATURES, NUM_CLASSES = 100, 47
NUM_RESIDENT = 8  # batches for the steps that wait for nothing
NUM_IN_CHANNEL = 5  # batches that the channel of each worker has room for: half of them the trainer may hold

Step = Callable[[Any], None]


def measure(report: PartReport, device: torch.device) -> None:
    """Measures samplers in the trainer's process."""
    _measure(report, device, in_workers=False)


def measure_workers(report: PartReport, device: torch.device) -> None:
    """Measures samplers in processes of their own."""
    _measure(report, device, in_workers=True)


def _measure(report: PartReport, device: torch.device, *, in_workers: bool) -> None:
    num_nodes, num_edges, num_seeds, batch_size, width = (
        (600, 6000, 60, 20, 8) if report.toy else (2_400_000, 121_000_000, 196_615, 1024, 256)
    )
    generator = torch.Generator().manual_seed(0)
    topology = lognormal_graph(num_nodes, num_edges, generator)
    x = torch.randn(num_nodes, NUM_FEATURES, generator=generator)
    y = torch.randint(0, NUM_CLASSES, (num_nodes,), generator=generator)
    seeds = torch.randperm(num_nodes, generator=generator)[:num_seeds]
    gpu = "host" if device.type == "cpu" else str(device)
    step = _training(width, device)
    with ExitStack() as stack:
        path = report.folder / f"parts-{num_nodes}-{num_edges}"
        if not path.exists():
            _partition(path, topology, x, y)
        made = _distributed(report, path, seeds, batch_size, gpu, in_workers)
        loaders: dict[str, Iterable[Any]] = {name: stack.enter_context(loader) for name, loader in made}
        if not in_workers:
            loaders["GPU, local, window of 8"] = _local(topology, x, y, seeds, batch_size, gpu)
        _require_equal(loaders)
        _require_whole(loaders)
        resident = list(itertools.islice(loaders["GPU, device memory"], NUM_RESIDENT))
        step_s = _resident(resident, step, device)
        found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in loaders}
        for _ in range(1 + (1 if report.toy else ROUNDS)):
            for name, loader in loaders.items():
                if report.has_room_for(max((each[0] for each in found[name]), default=0.0)):
                    found[name].append(_epoch(loader, step, device))
    for name, (_, *epochs) in ((name, epochs or [None]) for name, epochs in found.items()):
        if not epochs:
            continue  # named below, once the others have their rows
        epoch_s, wait_s = (float(np.median([each[i] for each in epochs])) for i in (0, 1))
        num_batches = epochs[0][2]
        report.add(
            what="training, GraphSAGE on products-sized", sampler=name, epoch_s=epoch_s, wait_share=wait_s / epoch_s,
            num_epochs=len(epochs), num_batches=num_batches, step_ms=step_s * 1e3,
            lost_share=max(0.0, 1 - num_batches * step_s / epoch_s),
        )  # fmt: skip
    if late := [name for name, epochs in found.items() if len(epochs) < 2]:
        raise RuntimeError(
            f"{'; '.join(late)}: no measured epoch in the time given; give this part a run of its own, or more --budget"
        )


def _partition(path: Path, topology: Topology, x: Tensor, y: Tensor) -> None:
    """One partition whose rows are those of the topology: in-edges, in the order of their positions."""
    row = torch.repeat_interleave(topology.degrees)
    RandomPartitioner(
        path, 1, topology.num_nodes, torch.stack([topology.indices.to(row.dtype), row]), node_feat=x, node_label=y,
        edge_assign_strategy="by_dst",
    ).partition()  # fmt: skip


def _distributed(
    report: Report, path: Path, seeds: Tensor, batch_size: int, gpu: str, in_workers: bool
) -> Iterator[tuple[str, glt.distributed.DistNeighborLoader]]:
    """Loaders of one trainer, with samplers in every place."""
    workers = 1 if report.toy else max(1, min(12, (os.cpu_count() or 1) - 3))
    where = {"master_addr": "127.0.0.1"}
    Mp, Here = (
        glt.distributed.MpDistSamplingWorkerOptions, glt.distributed.CollocatedDistSamplingWorkerOptions
    )  # fmt: skip
    glt.distributed.init_worker_group(1, 0, "bench")

    def loader(options: Any, **load: Any) -> glt.distributed.DistNeighborLoader:
        dataset = glt.distributed.DistDataset().load(path, 0, **load)
        return glt.distributed.DistNeighborLoader(
            dataset, FAN_OUT, seeds, batch_size, shuffle=True, collect_features=True, to_device=gpu, random_seed=0,
            worker_options=options,
        )  # fmt: skip

    on_gpu = {"graph_mode": "CUDA", "device": gpu, "split_ratio": 1.0}
    beside = loader(Here(**where), **on_gpu)
    yield "GPU, device memory", beside
    if in_workers:
        pinned = {"pin_memory": gpu != "host"}
        room = NUM_IN_CHANNEL * _batch_bytes(beside)  # the default, 256 MiB, is about one batch
        yield (
            f"CPU, {workers} workers",
            loader(Mp(num_workers=workers, worker_concurrency=2, channel_size=workers * room, **pinned, **where)),
        )
        yield (
            "GPU, one worker process",
            loader(Mp(num_workers=1, worker_devices=[gpu], channel_size=room, **pinned, **where), **on_gpu),
        )
    else:
        zero_copy = on_gpu | {"graph_mode": "ZERO_COPY", "split_ratio": 0.0}
        yield "GPU, zero copy", loader(Here(device=gpu, **where), **zero_copy)


def _batch_bytes(loader: glt.distributed.DistNeighborLoader) -> int:
    """Of the first batch, which will be the first again."""
    batch = next(iter(loader))
    loader.set_epoch(0)
    return sum(value.nbytes for value in batch.to_dict().values() if isinstance(value, Tensor))


def _local(
    topology: Topology, x: Tensor, y: Tensor, seeds: Tensor, batch_size: int, gpu: str
) -> glt.loader.NeighborLoader:
    """In the trainer's process, with rows in pinned host memory, those of eight batches fetched together."""
    rows = Topology.from_rows(topology.indptr, topology.indices, topology.edge_ids, layout="CSC", trusted=True)
    dataset = Dataset(Graph(rows, "CUDA", gpu), node_features=x, node_labels=y)
    return glt.loader.NeighborLoader(
        dataset, FAN_OUT, seeds, batch_size=batch_size, shuffle=True, random_seed=0, device=gpu, gather_window=8
    )


def _require_equal(loaders: dict[str, Iterable[Any]]) -> None:
    """The first batches, one after the other."""
    first = {name: next(iter(loader)) for name, loader in loaders.items()}
    (known_as, known), *others = first.items()
    for name, batch in others:
        for field in ("n_id", "edge_index", "x", "y", "input_id"):
            require(
                torch.equal(batch[field].cpu(), known[field].cpu()), f"{field} of {name!r} differs from {known_as!r}"
            )


def _require_whole(loaders: dict[str, Iterable[Any]]) -> None:
    """Batches must pass in one piece: those in pieces are in no pinned memory, and copies of them are waited for."""
    for name, loader in loaders.items():
        stats = loader.stats() if isinstance(loader, glt.distributed.DistNeighborLoader) else {}
        if num_in_pieces := stats.get("channel_num_oversize", 0):
            raise ValueError(
                f"{name!r}: {num_in_pieces:g} batches took more than half of the channel and passed in pieces; its "
                "figures would be those of another path. Give its worker_options a larger channel_size"
            )


def _training(width: int, device: torch.device) -> Step:
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(0)
    model = GraphSAGE(NUM_FEATURES, width, len(FAN_OUT), NUM_CLASSES).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def step(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        out = model(
            batch.x, batch.edge_index, num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )[: batch.batch_size]  # fmt: skip
        F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()

    return step


def _epoch(loader: Iterable[Any], step: Step, device: torch.device) -> tuple[float, float, int]:
    """Seconds of an epoch, those of them in the loader, and its batches."""
    wait_s, num_batches = 0.0, 0
    start = before = time.perf_counter()
    for batch in loader:
        wait_s += time.perf_counter() - before
        step(batch)
        num_batches += 1
        before = time.perf_counter()
    wait_s += time.perf_counter() - before
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, wait_s, num_batches


def _resident(batches: list[Any], step: Step, device: torch.device) -> float:
    """Seconds of a step on batches that are there: the median of the rounds."""
    return float(np.median([_epoch(batches, step, device)[0] / len(batches) for _ in range(ROUNDS)]))
