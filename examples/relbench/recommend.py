"""Which products customers buy: RelBench's recommendation task, trained in one process, or by torchrun on partitions.

python recommend.py
torchrun --nproc-per-node 2 recommend.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from graph import Model, graph_of
from relbench.modeling.graph import get_link_train_table_input, num_dst_nodes
from shop import Buys, Shop
from torch.nn.parallel import DistributedDataParallel
from torch_geometric import seed_everything

import glt

NUM_NEIGHBORS = [16, 8]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["glt", "pyg"], default="glt")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--parts", default="shop-parts", help="where torchrun's trainers put partitions")
    args = parser.parse_args()
    seed_everything(0)
    task = Buys(Shop())
    db = task.get_db()
    data, col_stats = graph_of(db)
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    links = get_link_train_table_input(task.get_table("train"), task, num_dst_nodes(db, task))
    source = data if world_size == 1 else on_partitions(args, data)

    model = Model(data, col_stats, args.channels, len(NUM_NEIGHBORS), args.channels, [task.dst_entity_table])
    trained = LinkLoss(model, task)
    if world_size > 1:
        trained = DistributedDataParallel(trained, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    began = time.perf_counter()
    batches_of = in_process(args, data, links) if world_size == 1 else from_partitions(args, source, links)
    for epoch in range(args.epochs):
        trained.train()
        for src, dst, negative in batches_of(epoch):
            optimizer.zero_grad()
            trained(src, dst, negative).backward()
            optimizer.step()
    seconds = time.perf_counter() - began
    if rank == 0:
        for split, at in (("val", task.dataset.val_timestamp), ("test", task.dataset.test_timestamp)):
            table = task.get_table(split, mask_input_cols=False)
            predicted = predict(model, data, task, table, int(at.timestamp()))
            print(f"{split}: {task.evaluate(predicted, table)}", flush=True)
        print(f"{args.loader}, {world_size} trainers: {args.epochs} epochs in {seconds:.1f} s", flush=True)
    if world_size > 1:
        dist.barrier()


class LinkLoss(torch.nn.Module):
    """That a destination scores above the negatives of the whole batch (BPR)."""

    def __init__(self, model, task):
        super().__init__()
        self.model, self.task = model, task

    def forward(self, src, dst, negative):
        of_src = self.model(src, self.task.src_entity_table)
        of_dst, of_negative = (self.model(each, self.task.dst_entity_table) for each in (dst, negative))
        score = (of_src * of_dst).sum(1, keepdim=True) - of_src @ of_negative.t()
        return torch.nn.functional.softplus(-score).mean()


def in_process(args, data, links):
    if args.loader == "pyg":
        from relbench.modeling.loader import LinkNeighborLoader
    else:
        from glt.loader import RelBenchLinkNeighborLoader as LinkNeighborLoader
    loader = LinkNeighborLoader(
        data=data,
        num_neighbors=NUM_NEIGHBORS,
        time_attr="time",
        src_nodes=links.src_nodes,
        dst_nodes=links.dst_nodes,
        num_dst_nodes=links.num_dst_nodes,
        src_time=links.src_time,
        share_same_time=True,
        batch_size=args.batch_size,
    )
    return lambda epoch: loader


def on_partitions(args, data):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        given = glt.partition.graph_arguments(data, time_attr="time")
        glt.partition.RandomPartitioner(args.parts, world_size, **given, overwrite=True).partition()
    dist.barrier()
    glt.distributed.init_worker_group(world_size, rank)
    return glt.distributed.DistDataset().load(args.parts, rank)


def from_partitions(args, parts, links):
    """Batches of the same links from partitions: a loader around each end, and one around the negatives. Rank r takes
    every world_size-th link of a batch."""
    table = glt.loader.LinkTable(links.src_nodes[1], links.dst_nodes[1], links.num_dst_nodes, links.src_time)
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def batches(epoch):
        drawn = table.draw(0, epoch, args.batch_size, True, True)[rank::world_size]
        kinds = ((links.src_nodes[0], drawn.src), (links.dst_nodes[0], drawn.dst), (links.dst_nodes[0], drawn.negative))
        loaders = [
            glt.distributed.DistNeighborLoader(
                parts,
                NUM_NEIGHBORS,
                seeds,
                input_time=drawn.time,
                time_attr="time",
                batch_size=args.batch_size // world_size,
                collect_features=True,
                random_seed=3 * epoch + at,
                worker_options=glt.distributed.MpDistSamplingWorkerOptions(),
            )
            for at, seeds in enumerate(kinds)
        ]
        yield from zip(*loaders, strict=True)
        for loader in loaders:
            loader.shutdown()

    return batches


@torch.no_grad()
def predict(model, data, task, table, seed_time):
    """The products that each customer of the table is most likely to buy after a time ``[rows, k]``."""
    model.eval()

    def embedded(node_type, nodes):
        at = torch.full((len(nodes),), seed_time)
        given = {"input_nodes": (node_type, nodes), "input_time": at, "time_attr": "time", "batch_size": 512}
        loader = glt.loader.NeighborLoader(data, NUM_NEIGHBORS, random_seed=0, **given)
        return torch.cat([model(batch, node_type) for batch in loader])

    products = embedded(task.dst_entity_table, torch.arange(data[task.dst_entity_table].tf.num_rows))
    customers = embedded(task.src_entity_table, torch.from_numpy(table.df[task.src_entity_col].to_numpy()))
    return (customers @ products.t()).topk(task.eval_k).indices.numpy()


if __name__ == "__main__":
    main()
