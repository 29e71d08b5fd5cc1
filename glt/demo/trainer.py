"""The demo's trainer, its options, and what it prints."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from tqdm import tqdm

import glt.distributed
from glt.data.device import missing_for_cuda

PLACES = ("auto", "cpu", "gpu", "host")


@dataclass(frozen=True)
class Options:
    """What to train on what, and how; the flags of the same names say more.

    Raises:
        ValueError: If a value is out of its range; names it.
    """

    dataset: str = "synthetic"
    data_root: str = "data"
    partition_dir: str | None = None
    num_parts: int = 2
    mode: str = "worker"
    sample_on: str = "auto"
    num_workers: int = 1
    concurrency: int = 4
    num_neighbors: tuple[int, ...] = (15, 10)
    batch_size: int = 512
    epochs: int = 5
    hidden_channels: int = 64
    lr: float = 0.01
    dropout: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("num_parts", 1 <= self.num_parts <= 2**16, "1 to 65536")
        for name in ("num_workers", "concurrency", "batch_size", "epochs", "hidden_channels"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        self._check("mode", self.mode in ("worker", "collocated"), "'worker' or 'collocated'")
        self._check("sample_on", self.sample_on in PLACES, f"one of {', '.join(PLACES)}")
        self._check("lr", self.lr > 0, "above 0")
        self._check("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        # Each trainer adds its rank; its samplers take seeds below 2^63.
        self._check("seed", 0 <= self.seed < 2**63 - self.num_parts, f"0 to {2**63 - self.num_parts - 1}")
        hops = self.num_neighbors
        self._check("num_neighbors", len(hops) > 0 and all(k >= -1 for k in hops), "one number per hop, -1 for all")

    def _check(self, name: str, is_valid: bool, expected: str) -> None:
        if not is_valid:
            raise ValueError(f"{name} = {getattr(self, name)!r}, expected {expected}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one flag per option; ``Options(**vars(parsed))`` checks their values."""
    add, default = parser.add_argument, Options()
    text = "synthetic, ogbn-products, ogbn-arxiv, an .npz file, or its name in --data_root"
    add("--dataset", default=default.dataset, help=text)
    add("--data_root", default=default.data_root, help="folder of OGB's data sets and of .npz files")
    text = "where to write the partitions, or to reuse those of an earlier run; a temporary folder if not given"
    add("--partition_dir", help=text)
    add("--num_parts", type=int, default=default.num_parts, help="partitions, and trainers: one each")
    text = "sample in own processes, or in the trainer's"
    add("--mode", default=default.mode, choices=("worker", "collocated"), help=text)
    text = (
        "auto: the GPU that trains, if there is one, with the whole graph in its memory; host: a GPU's kernels, "
        "run by the CPU, for tests"
    )
    add("--sample_on", default=default.sample_on, choices=PLACES, help=text)
    add("--num_workers", type=int, default=default.num_workers, help="sampling processes per trainer (worker mode)")
    add("--concurrency", type=int, default=default.concurrency, help="batches in flight per sampler")
    text = "neighbours per hop, -1 for all; as many layers"
    add("--num_neighbors", type=_hops, default=default.num_neighbors, metavar="K,K,...", help=text)
    add("--batch_size", type=int, default=default.batch_size, help="seeds per batch and trainer")
    add("--epochs", type=int, default=default.epochs, help="passes over the training nodes")
    add("--hidden_channels", type=int, default=default.hidden_channels, help="width of GraphSAGE")
    add("--lr", type=float, default=default.lr, help="learning rate of Adam")
    add("--dropout", type=float, default=default.dropout, help="probability")
    add("--seed", type=int, default=default.seed, help="of the graph, its partitions, the samples and the model")


def _hops(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected whole numbers separated by commas, such as 15,10"
        ) from None


@dataclass(frozen=True)
class Job:
    """What every trainer is told.

    Attributes:
        partition_dir: The partitioned graph; trainer ``r`` serves partition ``r``.
        work_dir: Scratch folder; the trainers meet there, and rank 0 leaves ``result.json``.
        seeds: By set (``train``, ``val``, ``test``) and rank, the node ids of that rank.
    """

    options: Options
    partition_dir: str
    work_dir: str
    seeds: dict[str, list[Tensor]]
    num_features: int
    num_classes: int


class Model(torch.nn.Module):
    """PyG's GraphSAGE behind a linear layer, so that messages are ``hidden_channels`` wide and not as the features."""

    def __init__(self, num_features: int, num_classes: int, options: Options) -> None:
        super().__init__()
        width, num_layers = options.hidden_channels, len(options.num_neighbors)
        self.encoder = torch.nn.Linear(num_features, width)
        self.sage = GraphSAGE(width, width, num_layers, num_classes, dropout=options.dropout)

    def forward(self, batch: Data) -> Tensor:
        """Logits of the seeds. With the counts per hop, PyG computes in each layer only what the next one reads."""
        logits = self.sage(
            self.encoder(batch.x),
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
        return logits[: batch.batch_size]


def train(rank: int, job: Job) -> None:
    """Trains as rank ``rank`` of ``job.options.num_parts``: the target of ``torch.multiprocessing.spawn``."""
    options, world_size = job.options, job.options.num_parts
    torch.manual_seed(options.seed)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world_size))
    device = (
        torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    )
    dist.init_process_group(
        # NCCL takes no two ranks on one GPU.
        "nccl" if device.type == "cuda" and world_size <= torch.cuda.device_count() else "gloo",
        init_method=f"file://{job.work_dir}/rendezvous",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(minutes=10),
    )
    glt.distributed.init_worker_group(world_size, rank, "demo")
    dataset = glt.distributed.DistDataset()
    dataset.load(graph_dir=job.partition_dir, partition_idx=rank, **placing(options, device))

    model = DistributedDataParallel(
        Model(job.num_features, job.num_classes, options).to(device),
        device_ids=[device] if device.type == "cuda" else None,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)

    # Evaluation is short: it is sampled inside the trainer, which spares two more sets of sampling processes.
    with (
        make_loader(job, rank, dataset, "train", device) as train_loader,
        make_loader(job, rank, dataset, "val", device) as val_loader,
        make_loader(job, rank, dataset, "test", device) as test_loader,
    ):
        epochs = []
        for epoch in range(options.epochs):
            train_loader.set_epoch(epoch)
            report = train_epoch(model, optimizer, train_loader, device)
            report["val_accuracy"] = evaluate(model, val_loader, device)
            epochs.append(report)
            if rank == 0:
                print(epoch_line(epoch, report), flush=True)
        test_accuracy = evaluate(model, test_loader, device)
        stats = sum_over_ranks(train_loader.stats(), device)
    if rank == 0:
        result = {"epochs": epochs, "test_accuracy": test_accuracy, "stats": stats}
        Path(job.work_dir, "result.json").write_text(json.dumps(result))
    # With the group gone, freeing DDP would join a thread of gloo that waits for the GIL.
    del model, optimizer
    dist.destroy_process_group()


def placing(options: Options, device: torch.device) -> dict[str, Any]:
    """How a partition is loaded: with ``graph_mode='CUDA'`` all samplers and all rows are on that GPU, else on the
    CPU."""
    if options.sample_on == "cpu" or (options.sample_on == "auto" and missing_for_cuda() is not None):
        return {"graph_mode": "CPU"}
    where = options.sample_on if options.sample_on == "host" else str(device) if device.type == "cuda" else "cuda"
    return {"graph_mode": "CUDA", "device": where, "split_ratio": 1.0}


def make_loader(
    job: Job, rank: int, dataset: glt.distributed.DistDataset, split: str, device: torch.device
) -> glt.distributed.DistNeighborLoader:
    options = job.options
    worker_options: glt.distributed.MpDistSamplingWorkerOptions | glt.distributed.CollocatedDistSamplingWorkerOptions
    if split == "train" and options.mode == "worker":
        worker_options = glt.distributed.MpDistSamplingWorkerOptions(
            num_workers=options.num_workers, worker_concurrency=options.concurrency, pin_memory=device.type == "cuda"
        )
    else:
        worker_options = glt.distributed.CollocatedDistSamplingWorkerOptions(worker_concurrency=options.concurrency)
    return glt.distributed.DistNeighborLoader(
        dataset,
        options.num_neighbors,
        input_nodes=job.seeds[split][rank],
        batch_size=options.batch_size,
        shuffle=split == "train",
        collect_features=True,
        to_device=device,
        random_seed=options.seed + rank,
        worker_options=worker_options,
    )


def train_epoch(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: Iterable[Data], device: torch.device
) -> dict[str, float]:
    """One pass over the loaders of all ranks; the report is of all ranks together and the same on each."""
    model.train()
    totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss of all seeds, seeds, edges
    is_shown = dist.get_rank() == 0 and sys.stderr.isatty()
    start = time.perf_counter()
    with model.join(), tqdm(loader, "training", leave=False, disable=not is_shown) as batches:
        for batch in batches:
            optimizer.zero_grad()
            logits = model(batch)
            loss = F.cross_entropy(logits, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            totals += totals.new_tensor([loss.item() * batch.batch_size, batch.batch_size, batch.edge_index.size(1)])
    dist.all_reduce(totals)
    seconds = time.perf_counter() - start
    loss_sum, num_seeds, num_edges = totals.tolist()
    speed = {"epoch_s": seconds, "edges_per_s": num_edges / seconds}
    return {"loss": loss_sum / num_seeds, "num_edges": num_edges, **speed}


@torch.no_grad()
def evaluate(model: DistributedDataParallel, loader: Iterable[Data], device: torch.device) -> float:
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for batch in loader:
        # Not through DDP, whose forward may talk to the other ranks: they may have more or fewer batches.
        predicted = model.module(batch).argmax(dim=-1)
        counts[0] += (predicted == batch.y[: batch.batch_size]).sum()
        counts[1] += batch.batch_size
    dist.all_reduce(counts)
    num_right, num_seeds = counts.tolist()
    return num_right / max(num_seeds, 1)


def sum_over_ranks(stats: dict[str, float], device: torch.device) -> dict[str, float]:
    """Adds up the counters of all ranks' loaders; ratios and gauges mean nothing as sums and are left out."""
    names = [name for name in stats if name.startswith("num_") or name.endswith(("_s", "_bytes"))]
    totals = torch.tensor([stats[name] for name in names], dtype=torch.float64, device=device)
    dist.all_reduce(totals)
    return dict(zip(names, totals.tolist(), strict=True))


def epoch_line(epoch: int, report: dict[str, float]) -> str:
    return (
        f"Epoch: {epoch:02d}, Loss: {report['loss']:.4f}, Val: {report['val_accuracy']:.4f}, "
        f"Time: {report['epoch_s']:.2f}s, Sampled: {report['edges_per_s'] / 1e6:.2f} M edges/s"
    )
