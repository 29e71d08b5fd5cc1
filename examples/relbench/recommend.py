"""Which products customers buy: RelBench's recommendation task, trained in one process, or by torchrun on partitions.

python recommend.py
torchrun --nproc-per-node 2 recommend.py
"""

import time

import torch
import torch.distributed as dist
from graph import RANK, WORLD_SIZE, Model, flags, graph_of, partition_of, sampling
from relbench.modeling.graph import get_link_train_table_input, num_dst_nodes
from shop import Buys, Shop
from torch.nn.parallel import DistributedDataParallel
from torch_geometric import seed_everything

import glt


def main():
    args = flags(epochs=4, num_neighbors=[16, 8])
    seed_everything(0)
    task = Buys(Shop())
    db = task.get_db()
    data, col_stats = graph_of(db)
    links = get_link_train_table_input(task.get_table("train"), task, num_dst_nodes(db, task))
    batches_of = (in_process if WORLD_SIZE == 1 else on_partitions)(args, data, links)

    model = Model(data, col_stats, args.channels, len(args.num_neighbors), args.channels, [task.dst_entity_table])
    trained = LinkLoss(model, task)
    if WORLD_SIZE > 1:
        trained = DistributedDataParallel(trained, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    began = time.perf_counter()
    for epoch in range(args.epochs):
        trained.train()
        for src, dst, negative in batches_of(epoch):
            optimizer.zero_grad()
            trained(src, dst, negative).backward()
            optimizer.step()
    seconds = time.perf_counter() - began
    if RANK == 0:
        for split, at in (("val", task.dataset.val_timestamp), ("test", task.dataset.test_timestamp)):
            table = task.get_table(split, mask_input_cols=False)
            predicted = predict(model, args, data, task, table, int(at.timestamp()))
            print(f"{split}: {task.evaluate(predicted, table)}", flush=True)
        print(f"{args.loader}, {WORLD_SIZE} trainers: {args.epochs} epochs in {seconds:.1f} s", flush=True)
    if WORLD_SIZE > 1:
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
        num_neighbors=args.num_neighbors,
        time_attr="time",
        src_nodes=links.src_nodes,
        dst_nodes=links.dst_nodes,
        num_dst_nodes=links.num_dst_nodes,
        src_time=links.src_time,
        share_same_time=True,
        batch_size=args.batch_size,
        **sampling(args),
    )
    return lambda epoch: loader


def on_partitions(args, data, links):
    """Batches of the same links from partitions: a loader around each end, and one around the negatives. This trainer
    takes every WORLD_SIZE-th link of a batch."""
    parts = partition_of(data, args.parts)
    table = glt.loader.LinkTable(links.src_nodes[1], links.dst_nodes[1], links.num_dst_nodes, links.src_time)

    def batches(epoch):
        drawn = table.draw(0, epoch, args.batch_size, True, True)[RANK::WORLD_SIZE]
        kinds = ((links.src_nodes[0], drawn.src), (links.dst_nodes[0], drawn.dst), (links.dst_nodes[0], drawn.negative))
        loaders = [
            glt.distributed.DistNeighborLoader(
                parts,
                args.num_neighbors,
                seeds,
                input_time=drawn.time,
                time_attr="time",
                batch_size=args.batch_size // WORLD_SIZE,
                collect_features=True,
                random_seed=3 * epoch + at,
                **sampling(args),
                worker_options=glt.distributed.MpDistSamplingWorkerOptions(),
            )
            for at, seeds in enumerate(kinds)
        ]
        yield from zip(*loaders, strict=True)
        for loader in loaders:
            loader.shutdown()

    return batches


@torch.no_grad()
def predict(model, args, data, task, table, seed_time):
    """The products that each customer of the table is most likely to buy after a time ``[rows, k]``."""
    model.eval()

    def embedded(node_type, nodes):
        at = torch.full((len(nodes),), seed_time)
        given = {"input_nodes": (node_type, nodes), "input_time": at, "time_attr": "time", "batch_size": 512}
        loader = glt.loader.NeighborLoader(data, args.num_neighbors, random_seed=0, **given)
        return torch.cat([model(batch, node_type) for batch in loader])

    products = embedded(task.dst_entity_table, torch.arange(data[task.dst_entity_table].tf.num_rows))
    customers = embedded(task.src_entity_table, torch.from_numpy(table.df[task.src_entity_col].to_numpy()))
    return (customers @ products.t()).topk(task.eval_k).indices.numpy()


if __name__ == "__main__":
    main()
