"""The demo's trainer, and what it prints."""

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
from glt.demo import Options


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
