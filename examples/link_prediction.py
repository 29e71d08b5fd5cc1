"""Predicts missing links of a graph: GraphSAGE trained on existing links against strict negatives.

    python examples/link_prediction.py
    python examples/link_prediction.py --data ../shared/data/cora.npz
    python examples/link_prediction.py --data ../shared/data/amazon_computers.npz --exclude_edges none

Links of a batch are not used to predict themselves: ``exclude_edges='reverse'`` takes them and their reverses out of
the neighbourhoods while sampling, so that no training links have to be set aside. Negatives are pairs without an edge,
uniformly. Printed is the area under the ROC curve (AUC) over held-out links and as many pairs without a link.

Expected test AUC: 0.69 on the synthetic graph, half of whose links are drawn at random, and 0.91 on cora, in 15 s on
one core; 0.89 on amazon_computers with ``--epochs 4``, 30 s.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.transforms import RandomLinkSplit

from glt.data.synthetic import synthetic_graph
from glt.data.tasks import read_npz
from glt.loader import LinkNeighborLoader


class LinkPredictor(nn.Module):
    """Scores a pair of nodes by the product of their embeddings."""

    def __init__(self, in_channels: int, hidden_channels: int) -> None:
        super().__init__()
        self.sage = GraphSAGE(in_channels, hidden_channels, num_layers=2)

    def forward(self, batch: Data) -> Tensor:
        z = self.sage(batch.x, batch.edge_index)
        source, target = batch.edge_label_index
        return (z[source] * z[target]).sum(dim=-1)


def area_under_curve(score: Tensor, label: Tensor) -> float:
    """The probability that a positive scores higher than a negative, ties counting half (Mann-Whitney)."""
    _, inverse, counts = score.unique(return_inverse=True, return_counts=True)
    rank = (counts.cumsum(0) - (counts - 1) / 2)[inverse]  # of equal scores, the mean
    num_pos = int(label.sum())
    num_neg = len(label) - num_pos
    return float((rank[label > 0].sum() - num_pos * (num_pos + 1) / 2) / (num_pos * num_neg))


def train_epoch(model: LinkPredictor, loader: LinkNeighborLoader, optimizer: torch.optim.Optimizer) -> float:
    """One pass over the training links; returns the mean loss."""
    model.train()
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch), batch.edge_label.float())
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch.input_id)
    return total / len(loader.dataset)


@torch.no_grad()
def evaluate(model: LinkPredictor, loader: LinkNeighborLoader) -> float:
    """AUC over the loader's labelled pairs."""
    model.eval()
    scores, labels = zip(*((model(batch), batch.edge_label) for batch in loader), strict=True)
    return area_under_curve(torch.cat(scores), torch.cat(labels))


def main(args: argparse.Namespace) -> float:
    """Trains, and returns the test AUC at the best validation AUC."""
    seed_everything(args.seed)  # RandomLinkSplit draws negatives from numpy and random
    data = (read_npz(args.data) if args.data else synthetic_graph(2000)).to_pyg()
    data.x = F.normalize(data.x - data.x.mean(dim=0))  # a mean that all share hides what differs
    # Messages travel along training links only; held-out ones come with negatives of their own.
    split = RandomLinkSplit(0.05, 0.1, is_undirected=True, add_negative_train_samples=False, split_labels=False)
    train_data, val_data, test_data = split(data)
    common = {"num_neighbors": args.num_neighbors, "batch_size": args.batch_size, "random_seed": 1}
    links = train_data.edge_label_index
    links = links[:, torch.randperm(links.size(1))[: args.max_links]]
    train_loader = LinkNeighborLoader(
        train_data, edge_label_index=links, neg_sampling="binary", shuffle=True,
        exclude_edges=None if args.exclude_edges == "none" else args.exclude_edges, **common,
    )  # fmt: skip
    val_loader, test_loader = (
        LinkNeighborLoader(held, edge_label_index=held.edge_label_index[:, i], edge_label=held.edge_label[i], **common)
        for held in (val_data, test_data)
        for i in [torch.randperm(held.edge_label.numel())[: args.max_links // 2]]
    )
    model = LinkPredictor(data.num_features, args.hidden_channels)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    best_val, test = 0.0, 0.0
    for epoch in range(args.epochs):
        loss = train_epoch(model, train_loader, optimizer)
        val = evaluate(model, val_loader)
        if val > best_val:
            best_val, test = val, evaluate(model, test_loader)
        print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Val AUC: {val:.4f}, Test AUC: {test:.4f}")
    return test


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", help="an .npz of ../shared/data; without it, a synthetic graph")
    parser.add_argument("--exclude_edges", choices=["reverse", "self", "none"], default="reverse")
    parser.add_argument("--num_neighbors", type=lambda text: [int(k) for k in text.split(",")], default=[10, 10])
    parser.add_argument(
        "--max_links", type=int, default=5000, help="to train on; half as many pairs to validate and to test"
    )
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--hidden_channels", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
