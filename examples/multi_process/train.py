"""Trains GraphSAGE with any number of trainers on one machine, which share one graph in memory. See README.md.

    python examples/multi_process/train.py
    python examples/multi_process/train.py --num_trainers 4 --data ../shared/data/cora.npz --epochs 10

Each trainer is a process with a GPU, if there is one for it; DDP sums their gradients.
"""

import argparse
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from mapped import mapped_bytes, with_children
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import glt
from glt.data.synthetic import synthetic_graph
from glt.data.tasks import read_npz
from glt.demo.job import scaled


@dataclass(frozen=True)
class Job:
    """What every trainer is told: no graph, only where it is."""

    options: argparse.Namespace
    part_config: str
    rendezvous: str
    num_features: int
    num_classes: int


def train(rank: int, job: Job) -> None:
    """What the process of a trainer does."""
    options, num_trainers = job.options, job.options.num_trainers
    torch.manual_seed(0)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // num_trainers))
    num_gpus = torch.cuda.device_count()
    device = torch.device("cuda", rank % num_gpus) if num_gpus else torch.device("cpu")
    if num_gpus:
        torch.cuda.set_device(device)
    backend = "nccl" if num_trainers <= num_gpus else "gloo"  # nccl wants a GPU of its own for each
    dist.init_process_group(backend, init_method=f"file://{job.rendezvous}", rank=rank, world_size=num_trainers)
    glt.distributed.init_worker_group(num_trainers, rank)

    # Mapped, not read: the memory that it takes is taken once, whoever looks.
    directory, _ = glt.partition.read_part_config(job.part_config)
    dataset = glt.distributed.DistDataset().load(directory, 0)

    def loader(split: str) -> glt.distributed.DistNeighborLoader:
        is_train = split == "train"
        # Equally many nodes and with them batches for each trainer: DDP wants that. What is counted comes once.
        seeds = glt.distributed.node_split(
            dataset.node_attrs[f"{split}_mask"].tensor, dataset, rank=rank, num_trainers=num_trainers,
            remainder="pad" if is_train else "keep",
        )  # fmt: skip
        workers = options.num_workers if is_train else 0
        return glt.distributed.DistNeighborLoader(
            dataset,
            options.num_neighbors,
            input_nodes=seeds,
            batch_size=options.batch_size,
            shuffle=is_train,
            collect_features=True,
            to_device=device,
            random_seed=rank,
            worker_options=(
                glt.distributed.MpDistSamplingWorkerOptions(num_workers=workers, pin_memory=device.type == "cuda")
                if workers
                else glt.distributed.CollocatedDistSamplingWorkerOptions()
            ),
        )

    model = DistributedDataParallel(
        GraphSAGE(job.num_features, options.hidden_channels, len(options.num_neighbors), job.num_classes).to(device),
        device_ids=[device] if device.type == "cuda" else None,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    with loader("train") as train_loader, loader("val") as val_loader, loader("test") as test_loader:
        for epoch in range(options.epochs):
            train_loader.set_epoch(epoch)
            loss, accuracy = train_epoch(model, train_loader, optimizer), evaluate(model, val_loader)
            if rank == 0:
                print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Val: {accuracy:.4f}", flush=True)
        accuracy = evaluate(model, test_loader)
        dist.barrier()  # all have the graph mapped
        resident, proportional = mapped_bytes(directory, with_children(os.getpid()))
        memory = glt.distributed.gather_metrics(sums={"resident": resident, "proportional": proportional})
    if rank == 0:
        print(f"test accuracy {accuracy:.4f}")
        print(
            f"the graph takes {memory['proportional'] / 1e6:.2f} MB of memory; with a copy for each of its users it "
            f"would take {memory['resident'] / 1e6:.2f} MB",
            flush=True,
        )
    del model, optimizer  # before the group: freeing DDP later would wait for one of gloo's threads
    dist.destroy_process_group()


def forward(model: torch.nn.Module, batch: Data) -> Tensor:
    """Logits of the seeds. With the counts per hop, PyG computes in each layer only what the next one reads."""
    return model(
        batch.x, batch.edge_index, num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )[: batch.batch_size]  # fmt: skip


def train_epoch(
    model: DistributedDataParallel, loader: glt.distributed.DistNeighborLoader, optimizer: torch.optim.Optimizer
) -> float:
    """One pass of all trainers over their shares; returns the mean loss of all nodes."""
    model.train()
    total, count = 0.0, 0
    for batch in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(model, batch), batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        total, count = total + float(loss.detach()) * batch.batch_size, count + batch.batch_size
    return glt.distributed.gather_metrics({"loss": total / max(count, 1)}, count=count)["loss"]


@torch.no_grad()
def evaluate(model: DistributedDataParallel, loader: glt.distributed.DistNeighborLoader) -> float:
    """The share of right predictions, over the shares of all trainers."""
    model.eval()
    y_pred, y_true = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    for batch in loader:
        # Not through DDP, whose forward may talk to the other trainers: they may have a batch less.
        y_pred.append(forward(model.module, batch).argmax(dim=-1).cpu())
        y_true.append(batch.y[: batch.batch_size].cpu())
    return glt.distributed.gather_metrics(y_pred=torch.cat(y_pred), y_true=torch.cat(y_true))["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="an .npz file as in ../shared/data; without it, a synthetic graph")
    parser.add_argument("--num_trainers", type=int, default=max(torch.cuda.device_count(), 2))
    parser.add_argument("--num_workers", type=int, default=0, help="sampling processes of each; 0: threads of its own")
    parser.add_argument("--num_neighbors", type=lambda text: [int(k) for k in text.split(",")], default=[15, 10])
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--hidden_channels", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    if options.num_trainers < 1:
        parser.error(f"--num_trainers {options.num_trainers}: expected at least 1")

    with tempfile.TemporaryDirectory(prefix="glt-example-") as folder:
        task = scaled(read_npz(options.data)) if options.data else synthetic_graph()
        print(f"{task.num_nodes:,} nodes and {task.num_edges:,} edges for {options.num_trainers} trainers", flush=True)
        num_features, num_classes = task.num_features, task.num_classes
        manifest = glt.partition.partition_graph(  # with masks of the nodes to train, validate and test
            task.to_pyg(), "graph", 1, f"{folder}/graph", part_method="random", reshuffle=False
        )
        del task  # it is on disk now, and in the page cache
        print(f"the graph takes {sum(file.num_bytes for file in manifest.files.values()) / 1e6:.2f} MB of disk")
        job = Job(options, f"{folder}/graph/graph.json", f"{folder}/rendezvous", num_features, num_classes)
        mp.spawn(train, args=(job,), nprocs=options.num_trainers)


if __name__ == "__main__":
    main()
