"""MLPerf's R-GAT on partitions of a graph in IGBH's layout: a trainer for each, DDP, sampling processes beside them.

    torchrun --standalone --nproc_per_node 2 examples/igbh/train.py --parts igbh-parts --val_share 0.2

Fan-outs, layers, heads and dropout are MLPerf's; the rest of it is ``--batch_size 512 --lr 0.001 --hidden_channels 512
--num_classes 2983``. See README.md.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from layout import LABEL_FILES, SIZES, split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv
from torch_geometric.typing import EdgeType
from torch_geometric.utils import trim_to_layer

import glt


class RGAT(nn.Module):
    """Layers of a GAT for each edge type, summed, and a linear layer on papers."""

    def __init__(
        self,
        edge_types: list[EdgeType],
        num_features: int,
        channels: int,
        num_classes: int,
        num_layers: int,
        heads: int,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            HeteroConv(
                {
                    edge_type: GATConv(
                        num_features if layer == 0 else channels, channels // heads, heads, add_self_loops=False
                    )
                    for edge_type in edge_types
                }
            )
            for layer in range(num_layers)
        )
        self.dropout = nn.Dropout(0.2)
        self.classes = nn.Linear(channels, num_classes)

    def forward(self, batch: HeteroData) -> Tensor:
        """Logits of the seeds. A layer computes only what the next one reads."""
        x, edge_index = batch.x_dict, batch.edge_index_dict
        for layer, conv in enumerate(self.convs):
            x, edge_index, _ = trim_to_layer(
                layer, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict, x, edge_index
            )
            x = conv(x, edge_index)
            if layer < len(self.convs) - 1:
                x = {node_type: self.dropout(F.leaky_relu(each)) for node_type, each in x.items()}
        return self.classes(x["paper"][: batch["paper"].batch_size])


def labels_of(batch: HeteroData) -> Tensor:
    return batch["paper"].y[: batch["paper"].batch_size].long()


def train_epoch(
    model: DistributedDataParallel, loader: glt.distributed.DistNeighborLoader, optimizer: torch.optim.Optimizer
) -> tuple[float, float]:
    """One pass of all trainers over their shares; returns the mean loss of all papers, and batches of all a second."""
    model.train()
    total, count, num_batches, begin = 0.0, 0, 0, time.perf_counter()
    for batch in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), labels_of(batch))
        loss.backward()
        optimizer.step()
        size = batch["paper"].batch_size
        total, count, num_batches = total + float(loss.detach()) * size, count + size, num_batches + 1
    rate = num_batches / (time.perf_counter() - begin)
    said = glt.distributed.gather_metrics({"loss": total / max(count, 1)}, count=count, sums={"rate": rate})
    return said["loss"], said["rate"]


@torch.no_grad()
def evaluate(model: DistributedDataParallel, loader: glt.distributed.DistNeighborLoader) -> float:
    """The share of right classes, over the shares of all trainers."""
    model.eval()
    y_pred, y_true = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    for batch in loader:
        # Not through DDP, whose forward may talk to the other trainers: they may have a batch less.
        y_pred.append(model.module(batch).argmax(dim=-1).cpu())
        y_true.append(labels_of(batch).cpu())
    return glt.distributed.gather_metrics(y_pred=torch.cat(y_pred), y_true=torch.cat(y_true))["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="igbh-parts", help="what partition.py wrote: a partition for each trainer")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--num_classes", type=int, choices=LABEL_FILES, default=19)
    parser.add_argument("--val_share", type=float, default=0.2, help="of labelled papers, to validate")
    parser.add_argument("--num_neighbors", type=lambda text: [int(k) for k in text.split(",")], default=[15, 10, 5])
    parser.add_argument("--num_workers", type=int, default=1, help="sampling processes of each; 0: threads of its own")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--hidden_channels", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    if not 0 < args.val_share <= 0.4:
        parser.error(f"--val_share {args.val_share}: expected above 0 and at most 0.4, for 0.6 train")
    if args.epochs < 1:
        parser.error(f"--epochs {args.epochs}: expected at least 1")
    if args.heads < 1 or args.hidden_channels < 1 or args.hidden_channels % args.heads:
        parser.error(f"--hidden_channels {args.hidden_channels}: expected a multiple of --heads {args.heads}")

    torch.manual_seed(args.seed)
    num_gpus = torch.cuda.device_count()
    on_host = int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % num_gpus) if num_gpus else torch.device("cpu")
    dist.init_process_group("nccl" if on_host <= num_gpus else "gloo")  # nccl wants a GPU of its own for each
    rank, num_trainers = dist.get_rank(), dist.get_world_size()
    glt.distributed.init_worker_group(num_trainers, rank)
    dataset = glt.distributed.DistDataset().load(args.parts, rank)

    def loader(papers: Tensor, is_train: bool) -> glt.distributed.DistNeighborLoader:
        # Equally many papers and with them batches for each trainer: DDP wants that. What is counted comes once.
        share = glt.distributed.node_split(papers, dataset, "paper", remainder="pad" if is_train else "keep")
        return glt.distributed.DistNeighborLoader(
            dataset,
            args.num_neighbors,
            ("paper", share),
            args.batch_size,
            shuffle=is_train,
            collect_features=True,
            to_device=device,
            random_seed=args.seed + rank,
            worker_options=(
                glt.distributed.MpDistSamplingWorkerOptions(
                    num_workers=args.num_workers, pin_memory=device.type == "cuda"
                )
                if is_train and args.num_workers
                else glt.distributed.CollocatedDistSamplingWorkerOptions()
            ),
        )

    papers = split(args.size, args.num_classes, dataset.num_nodes["paper"], args.seed, args.val_share)
    num_features = dataset.node_features["paper"].shape[1]
    num_layers = len(args.num_neighbors)
    model = DistributedDataParallel(
        RGAT(
            dataset.schema.edge_types, num_features, args.hidden_channels, args.num_classes, num_layers, args.heads
        ).to(device),
        device_ids=[device] if num_gpus else None,
        find_unused_parameters=True,  # the last layer computes papers only
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    with loader(papers["train"], is_train=True) as train_loader, loader(papers["val"], is_train=False) as val_loader:
        for epoch in range(args.epochs):
            train_loader.set_epoch(epoch)
            loss, rate = train_epoch(model, train_loader, optimizer)
            accuracy = evaluate(model, val_loader)
            if rank == 0:
                print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Val: {accuracy:.4f}, {rate:.2f} batches/s", flush=True)
    if rank == 0:
        print(f"validation accuracy {accuracy:.4f}", flush=True)
    del model, optimizer  # before the group: freeing DDP later would wait for one of gloo's threads
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
