"""Learns from known accounts which others are mules, and writes a score for each account under its own number.

    python examples/tables/train.py --parts parts --out scores
    torchrun --standalone --nproc_per_node 2 examples/tables/train.py --parts parts --out scores

Each trainer writes its part of ``scores``: Parquet with the columns iban and score. Trainer 0 prints the average
precision on accounts that it has not learnt from.
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, HeteroConv

import glt
import glt.distributed as gd

TYPES = [("account", "pays", "account"), ("account", "is_paid_by", "account")]


class Model(nn.Module):
    """Two layers that read amounts and hours of payments, both ways, and a score."""

    def __init__(self, width: int, edge_width: int, hidden: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.convs = nn.ModuleList(
            HeteroConv(
                {t: GINEConv(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()), edge_dim=edge_width) for t in TYPES}
            )
            for _ in range(2)
        )
        self.last = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, edge_index: dict, edge_attr: dict) -> Tensor:
        rows = {"account": self.first(x)}
        for conv in self.convs:
            rows = {t: each.relu() + rows[t] for t, each in conv(rows, edge_index, edge_attr).items()}
        return self.last(rows["account"]).squeeze(1)


def average_precision(scores: Tensor, labels: Tensor) -> float:
    hits = labels[scores.argsort(descending=True)].double()
    return float((hits.cumsum(0) / torch.arange(1, len(hits) + 1) * hits).sum() / hits.sum())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="parts")
    parser.add_argument("--out", default="scores")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1:
        torch.distributed.init_process_group("gloo")
    gd.initialize(part_config=options.parts)
    graph = gd.DistGraph("bank", part_config=options.parts)
    accounts = graph.ndata["account"]

    def loader(nodes: Tensor, **given: object) -> gd.NodeDataLoader:
        return gd.NodeDataLoader(graph, {"account": nodes}, [10, 10], 128, random_seed=rank, **given)

    def logits(batch: object) -> Tensor:
        return model(batch["account"].x, batch.edge_index_dict, batch.edge_attr_dict)[: batch["account"].batch_size]

    labels = accounts["y"][torch.arange(graph.num_nodes("account"))]
    known = {name: accounts[f"{name}_mask"][torch.arange(len(labels))] & (labels >= 0) for name in ("train", "test")}
    seeds = gd.node_split(known["train"], ntype="account", remainder="pad")  # equal shares
    first = next(iter(loader(seeds[:1])))
    model = Model(first["account"].x.shape[1], first[TYPES[0]].edge_attr.shape[1])
    forward = nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = loader(seeds, shuffle=True)
    for epoch in range(options.epochs):
        for batch in batches:
            size = batch["account"].batch_size
            out = forward(batch["account"].x, batch.edge_index_dict, batch.edge_attr_dict)[:size]
            loss = F.binary_cross_entropy_with_logits(out, batch["account"].y[:size].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)

    model.eval()
    mine = gd.node_split(torch.ones(len(labels), dtype=torch.bool), ntype="account")
    with torch.no_grad():
        scores = torch.cat([logits(batch).sigmoid() for batch in loader(mine)])
    path = glt.tables.write({"score": scores}, options.out, ids=mine, keys=gd.node_keys()["account"], overwrite=True)
    print(f"trainer {rank} of {world_size}: {len(scores)} scores in {path}", flush=True)
    is_test = known["test"][mine]
    pairs = [(scores[is_test], labels[mine][is_test])]
    if world_size > 1:
        pairs = [None] * world_size
        torch.distributed.all_gather_object(pairs, (scores[is_test], labels[mine][is_test]))
    if rank == 0:
        precision = average_precision(*(torch.cat(each) for each in zip(*pairs, strict=True)))
        print(f"average precision on {int(known['test'].sum())} accounts: {precision:.3f}", flush=True)
    gd.finalize()


if __name__ == "__main__":
    main()
