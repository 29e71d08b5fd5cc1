"""Which customers stay: RelBench's entity task, trained in one process, or by torchrun on partitions.

python entity.py
torchrun --nproc-per-node 2 entity.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from graph import Model, graph_of
from relbench.modeling.graph import get_node_train_table_input
from shop import Shop, Stays
from torch.nn.parallel import DistributedDataParallel
from torch_geometric import seed_everything

import glt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["glt", "pyg"], default="glt")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--parts", default="shop-parts", help="where torchrun's trainers put partitions")
    args = parser.parse_args()
    seed_everything(0)
    task = Stays(Shop())
    data, col_stats = graph_of(task.get_db())
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    loader_of = in_process if world_size == 1 else on_partitions
    tables = {split: task.get_table(split, mask_input_cols=False) for split in ("train", "val", "test")}
    inputs = {split: get_node_train_table_input(table, task) for split, table in tables.items()}
    loaders = loader_of(args, data, inputs)

    model = Model(data, col_stats, args.channels, 2, 1)
    trained = model if world_size == 1 else DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    began = time.perf_counter()
    for _ in range(args.epochs):
        trained.train()
        for batch in loaders["train"]:
            optimizer.zero_grad()
            logits = trained(batch, task.entity_table).view(-1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch[task.entity_table].y.float())
            loss.backward()
            optimizer.step()
    seconds = time.perf_counter() - began

    for split in ("val", "test"):
        predicted = predict(model, loaders[split], task.entity_table, len(tables[split]))
        if int(os.environ.get("RANK", 0)) == 0:
            print(f"{split}: {task.evaluate(predicted, tables[split])}", flush=True)
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{args.loader}, {world_size} trainers: {args.epochs} epochs in {seconds:.1f} s", flush=True)


@torch.no_grad()
def predict(model, loader, entity_table, num_rows):
    """What the model says of each row of the table; every trainer its own rows, added up."""
    model.eval()
    found = torch.zeros(num_rows, dtype=torch.float64)
    for batch in loader:
        found[batch[entity_table].input_id] = model(batch, entity_table).view(-1).sigmoid().double()
    if dist.is_initialized():
        dist.all_reduce(found)
    return found.numpy()


def in_process(args, data, inputs):
    if args.loader == "pyg":
        from torch_geometric.loader import NeighborLoader
    else:
        from glt.loader import NeighborLoader
    return {
        split: NeighborLoader(
            data,
            num_neighbors=[32, 16],
            time_attr="time",
            input_nodes=each.nodes,
            input_time=each.time,
            transform=each.transform,
            batch_size=args.batch_size,
            shuffle=split == "train",
        )
        for split, each in inputs.items()
    }


def on_partitions(args, data, inputs):
    """The same of trainers that each hold a partition: rank r trains on every world_size-th row."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        given = glt.partition.graph_arguments(data, time_attr="time")
        glt.partition.RandomPartitioner(args.parts, world_size, **given, overwrite=True).partition()
    dist.barrier()
    glt.distributed.init_worker_group(world_size, rank)
    parts = glt.distributed.DistDataset().load(args.parts, rank)
    return {
        split: glt.distributed.DistNeighborLoader(
            parts,
            [32, 16],
            (each.nodes[0], each.nodes[1][rank::world_size]),
            input_time=each.time[rank::world_size],
            input_id=torch.arange(rank, len(each.time), world_size),
            time_attr="time",
            transform=each.transform,
            batch_size=args.batch_size // world_size,
            shuffle=split == "train",
            drop_last=split == "train",
            collect_features=True,
            worker_options=glt.distributed.MpDistSamplingWorkerOptions(),
        )
        for split, each in inputs.items()
    }


if __name__ == "__main__":
    main()
