"""Trains GraphSAGE with trainers that torchrun may restart: training goes on within the epoch, at the last checkpoint.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/elastic.py --checkpoint elastic.pt

When a trainer fails, torchrun ends the others and starts all again. After every so many batches trainer 0 writes a file
with the model, the optimizer and where each trainer's loader stands. A batch is a function of seeds, options and its
number, so the trainers get the batches that were left, and each seed is trained once in the history that counts.
Several hosts need a file system that all see.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import glt
from glt.data.synthetic import synthetic_graph
from glt.loader import NeighborLoader


def refuse_a_kept_store():
    """torchrun keeps one store over restarts, in which trainers may find addresses of those that died."""
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if kept and os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0":
        raise SystemExit(
            "torchrun keeps its store over restarts, and restarted trainers may wait for ones that died: set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, and give torchrun --standalone or --rdzv-backend c10d"
        )


def save(path, rank, world_size, model, optimizer, loader):
    """Writes all or nothing: what is read at a restart is whole, whenever trainers are killed."""
    states = [None] * world_size if rank == 0 else None
    dist.gather_object(loader.state_dict(), states)
    if rank == 0:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loaders": states}
        torch.save(saved, f"{path}.new")
        os.replace(f"{path}.new", path)


def resume(path, rank, world_size, model, optimizer, loader):
    saved = torch.load(path, weights_only=True)
    if len(saved["loaders"]) != world_size:
        raise SystemExit(
            f"{path} is of {len(saved['loaders'])} trainers, and there are {world_size}: start as many as before, "
            "since each goes on with its own seeds"
        )
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loaders"][rank])


def train(options):
    context = glt.distributed.init_worker_group()  # as torchrun says
    rank, world_size = context.rank, context.world_size
    torch.manual_seed(0)
    torch.set_num_threads(1)
    task = synthetic_graph(2000, num_classes=4)
    num_seeds = len(task.train_idx) // world_size  # as many for each: DDP wants as many batches
    seeds = task.train_idx[rank * num_seeds : (rank + 1) * num_seeds]
    loader = NeighborLoader(
        task.to_pyg(), [5, 5], input_nodes=seeds, batch_size=options.batch_size, shuffle=True, random_seed=rank
    )
    model = DistributedDataParallel(GraphSAGE(task.x.shape[1], 32, 2, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if Path(options.checkpoint).exists():
        resume(options.checkpoint, rank, world_size, model, optimizer, loader)

    while loader.state_dict()["epoch"] < options.epochs:
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            place = loader.state_dict()  # of the batch that comes next
            if options.seeds_log:
                with open(f"{options.seeds_log}.{os.environ['TORCHELASTIC_RESTART_COUNT']}.{rank}", "a") as file:
                    print(place["epoch"], place["next_batch"], batch.input_id.tolist(), file=file)
            if place["next_batch"] % options.every == 0:
                save(options.checkpoint, rank, world_size, model, optimizer, loader)
        if rank == 0:
            print(f"Epoch {place['epoch'] - 1}: loss {loss.item():.4f}", flush=True)


def main(options):
    refuse_a_kept_store()
    dist.init_process_group("gloo")
    # The model is freed before the group: one that outlives it may wait for gloo's threads, and they for Python's lock.
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="the file; training goes on from it where it exists")
    parser.add_argument(
        "--every", type=int, default=5, help="batches between checkpoints; one is written at each epoch's end"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seeds-log", help="writes the seeds of each batch to SEEDS_LOG.RESTART.RANK")
    options = parser.parse_args()
    if options.every < 1:
        parser.error(f"--every {options.every}: expected at least 1 batch")
    main(options)
