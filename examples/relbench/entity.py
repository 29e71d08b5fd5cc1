"""Which customers stay: RelBench's entity task, trained in one process, or by torchrun on partitions.

python entity.py
torchrun --nproc-per-node 2 entity.py
"""

import time

import torch
import torch.distributed as dist
from graph import RANK, WORLD_SIZE, Model, flags, graph_of, partition_of, sampling
from relbench.modeling.graph import get_node_train_table_input
from shop import Shop, Stays
from torch.nn.parallel import DistributedDataParallel
from torch_geometric import seed_everything

import glt


def main():
    args = flags(epochs=3, num_neighbors=[32, 16])
    seed_everything(0)
    task = Stays(Shop())
    data, col_stats = graph_of(task.get_db())
    loader_of = in_process if WORLD_SIZE == 1 else on_partitions
    tables = {split: task.get_table(split, mask_input_cols=False) for split in ("train", "val", "test")}
    inputs = {split: get_node_train_table_input(table, task) for split, table in tables.items()}
    loaders = loader_of(args, data, inputs)

    model = Model(data, col_stats, args.channels, len(args.num_neighbors), 1)
    trained = model if WORLD_SIZE == 1 else DistributedDataParallel(model, find_unused_parameters=True)
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
        if RANK == 0:
            print(f"{split}: {task.evaluate(predicted, tables[split])}", flush=True)
    if RANK == 0:
        print(f"{args.loader}, {WORLD_SIZE} trainers: {args.epochs} epochs in {seconds:.1f} s", flush=True)


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
            num_neighbors=args.num_neighbors,
            time_attr="time",
            input_nodes=each.nodes,
            input_time=each.time,
            transform=each.transform,
            batch_size=args.batch_size,
            shuffle=split == "train",
            **sampling(args),
        )
        for split, each in inputs.items()
    }


def on_partitions(args, data, inputs):
    """The same of trainers that each hold a partition: this one takes every WORLD_SIZE-th row."""
    parts, loaders = partition_of(data, args.parts), {}
    for split, each in inputs.items():
        is_train, num_rows = split == "train", len(each.time)
        # All trainers have as many batches to train on.
        rows = torch.arange(RANK, num_rows // WORLD_SIZE * WORLD_SIZE if is_train else num_rows, WORLD_SIZE)
        loaders[split] = glt.distributed.DistNeighborLoader(
            parts,
            args.num_neighbors,
            (each.nodes[0], each.nodes[1][rows]),
            input_time=each.time[rows],
            input_id=rows,
            time_attr="time",
            transform=each.transform,
            batch_size=args.batch_size // WORLD_SIZE,
            shuffle=is_train,
            collect_features=True,
            **sampling(args),
            worker_options=glt.distributed.MpDistSamplingWorkerOptions(),
        )
    return loaders


if __name__ == "__main__":
    main()
