"""Learns node embeddings three times: with LABOR, with neighbours drawn for each node, and with all neighbours.

    python examples/labor_embeddings.py
    python examples/labor_embeddings.py --data ../shared/data/cora.npz

Unsupervised GraphSAGE, as in unsupervised_sage.py, on nine tenths of the links. LABOR (``sampler="labor"``; Balin and
Catalyurek, NeurIPS 2023) takes as many edges per node as drawing does, and fewer nodes: those are the rows that a batch
fetches. All three begin with the same weights and are judged alike, by embeddings from all neighbours: by a linear
classifier on the labels, and by how often a held out link scores above a pair without one (AUC).

Expected of LABOR, of drawing, and of all neighbours: on the synthetic graph accuracy 0.79, 0.79 and 0.81, AUC 0.65 for
all three, from batches of 2,200, 2,600 and 5,000 nodes, in 50 s on one core; on cora accuracy 0.70, 0.70 and 0.72, AUC
0.90, 0.91 and 0.90, from 1,300, 1,300 and 1,900 nodes, since cora's nodes have few neighbours.
"""

import argparse
from typing import NamedTuple

import torch
import torch.nn.functional as F
from link_prediction import area_under_curve
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.transforms import RandomLinkSplit
from unsupervised_sage import linear_accuracy, train_epoch

from glt.data.synthetic import synthetic_graph
from glt.data.tasks import NodeTask, read_npz
from glt.loader import LinkNeighborLoader


class Learned(NamedTuple):
    """What one way of sampling came to: mean nodes of a batch, the last epoch's loss, and what its embeddings find."""

    nodes: float
    loss: float
    accuracy: float
    auc: float


class NodeCount:
    """A loader's transform that counts."""

    def __init__(self) -> None:
        self.num_nodes, self.num_batches = 0, 0

    def __call__(self, batch: Data) -> Data:
        self.num_nodes, self.num_batches = self.num_nodes + batch.num_nodes, self.num_batches + 1
        return batch


def learn(task: NodeTask, train: Data, test: Data, links: torch.Tensor, args: argparse.Namespace, way: str) -> Learned:
    """Trains on ``links [2, n]`` with one way of sampling."""
    count = NodeCount()
    labor = {"sampler": "labor", "batch_dependency": args.batch_dependency} if way == "labor" else {}
    loader = LinkNeighborLoader(
        train, [-1] * len(args.num_neighbors) if way == "all" else args.num_neighbors, edge_label_index=links,
        batch_size=args.batch_size, shuffle=True, exclude_edges="reverse", random_seed=args.seed, transform=count,
        neg_sampling={"mode": "triplet", "amount": args.num_negatives}, **labor,
    )  # fmt: skip
    torch.manual_seed(args.seed)
    model = GraphSAGE(task.num_features, args.hidden_channels, num_layers=len(args.num_neighbors))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for _ in range(args.epochs):
        loss = train_epoch(model, loader, optimizer)
    model.eval()
    with torch.no_grad():
        z = model(train.x, train.edge_index)
        source, target = test.edge_label_index
        auc = area_under_curve((z[source] * z[target]).sum(dim=-1), test.edge_label)
    return Learned(count.num_nodes / count.num_batches, loss, linear_accuracy(z, task), auc)


def main(args: argparse.Namespace) -> dict[str, Learned]:
    """Trains all three; returns what each came to."""
    seed_everything(args.seed)  # RandomLinkSplit draws negatives from numpy and random
    task = read_npz(args.data) if args.data else synthetic_graph(5000)
    data = task.to_pyg()
    data.x = F.normalize(data.x - data.x.mean(dim=0))  # a mean that all share hides what differs
    split = RandomLinkSplit(0.0, 0.1, is_undirected=True, add_negative_train_samples=False, split_labels=False)
    train, _, test = split(data)
    links = train.edge_label_index
    links = links[:, torch.randperm(links.size(1))[: args.max_links]]
    found = {}
    for way in ("labor", "neighbor", "all"):
        found[way] = learn(task, train, test, links, args, way)
        print(
            f"{way + ':':<9} {found[way].nodes:.0f} nodes per batch, Loss: {found[way].loss:.4f}, "
            f"Linear accuracy: {found[way].accuracy:.4f}, Test AUC: {found[way].auc:.4f}",
            flush=True,
        )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", help="an .npz of ../shared/data; without it, a synthetic graph")
    parser.add_argument("--num_neighbors", type=lambda text: [int(k) for k in text.split(",")], default=[5, 5])
    parser.add_argument("--batch_dependency", type=int, default=1, help="batches in succession that LABOR chooses for")
    parser.add_argument("--num_negatives", type=int, default=2, help="per link")
    parser.add_argument("--max_links", type=int, default=5000, help="to train on")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--hidden_channels", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
