"""Recommends items that go with an item, as PinSAGE does: from the items that short walks visit most.

    python examples/pinsage_recommendation.py

Walks item -> user -> item from each item count which items they visit; the ten most visited are its neighbours, and
how often they were visited weighs them (Ying et al., "Graph convolutional neural networks for web-scale recommender
systems", KDD 2018). On this graph of items, LinkNeighborLoader samples around pairs of items that one user chose, and
around drawn ones, which are to score lower. Tested on pairs that were held back: how often the other item is among the
ten of highest score, of all items.

Expected: about 0.4 after one epoch, a few seconds on one core; ten items at random have 0.01, and little more than 0.43
can be: a taste has twenty items, and a tenth of the choices are stray.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphConv

from glt.loader import LinkNeighborLoader
from glt.sampler import RandomWalkSampler

CHOSE, CHOSEN_BY = ("user", "chose", "item"), ("item", "chosen_by", "user")


def read_choices(num_users: int, num_items: int, seed: int) -> tuple[Tensor, Tensor]:
    """Which user chose which item, ``[n]`` each: users choose eight items of a taste that they share with others. Your
    own would be two columns of a table."""
    draws = torch.Generator().manual_seed(seed)
    taste = torch.randint(0, num_items // 20, (num_users, 1), generator=draws)
    items = (taste * 20 + torch.randint(0, 20, (num_users, 8), generator=draws)) % num_items
    stray = torch.rand(items.shape, generator=draws) < 0.1
    items[stray] = torch.randint(0, num_items, (int(stray.sum()),), generator=draws)
    return torch.arange(num_users).repeat_interleave(8), items.reshape(-1)


def graph_of_items(user: Tensor, item: Tensor, num_users: int, num_items: int, args: argparse.Namespace) -> Data:
    """Edges from the items that walks from an item visit most to that item, and the shares of these visits."""
    choices = HeteroData()
    choices["user"].num_nodes, choices["item"].num_nodes = num_users, num_items
    choices[CHOSE].edge_index = torch.stack([user, item])
    choices[CHOSEN_BY].edge_index = torch.stack([item, user])
    walks = RandomWalkSampler(choices, walk_length=4, metapath=[CHOSEN_BY, CHOSE], random_seed=args.seed)
    items = torch.arange(num_items)
    found, visits = walks.top_visited(items, args.num_neighbors, num_walks=args.num_walks)
    target = items.repeat_interleave(found.nbr_num)
    share = visits / torch.zeros(num_items).index_add_(0, target, visits.float())[target]
    return Data(edge_index=torch.stack([found.nbr, target]), edge_weight=share, num_nodes=num_items)


class PinSage(nn.Module):
    """Items as embeddings, and two layers over the items that are visited most."""

    def __init__(self, num_items: int, channels: int) -> None:
        super().__init__()
        self.item = nn.Embedding(num_items, channels)
        nn.init.normal_(self.item.weight, std=0.1)
        self.conv1 = GraphConv(channels, channels)
        self.conv2 = GraphConv(channels, channels)

    def forward(self, n_id: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        x = self.item(n_id)
        x = x + self.conv2(self.conv1(x, edge_index, edge_weight).relu(), edge_index, edge_weight)
        return F.normalize(x, dim=-1)


def train_epoch(model: PinSage, loader: LinkNeighborLoader, optimizer: torch.optim.Optimizer) -> float:
    """One pass over the pairs; returns the mean loss."""
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        x = model(batch.n_id, batch.edge_index, batch.edge_weight)
        query, positive = x[batch.src_index], x[batch.dst_pos_index]
        negative = x[batch.dst_neg_index].view(len(query), -1, x.size(1))
        score, others = (query * positive).sum(-1, keepdim=True), (query.unsqueeze(1) * negative).sum(-1)
        loss = F.relu(others - score + 0.2).mean()  # PinSAGE's: a margin between them
        loss.backward()
        optimizer.step()
        total += loss.item() * len(query)
    return total / len(loader.dataset)


@torch.no_grad()
def hit_rate(model: PinSage, data: Data, pairs: Tensor, top: int = 10) -> float:
    """How often the second item of a pair is among the ``top`` of highest score to the first."""
    x = model(torch.arange(data.num_nodes), data.edge_index, data.edge_weight)
    score = x[pairs[0]] @ x.T
    score[torch.arange(len(score)), pairs[0]] = -2  # the item itself
    return float((score.topk(top).indices == pairs[1].unsqueeze(1)).any(1).float().mean())


def main(args: argparse.Namespace) -> float:
    """Trains, and returns the hit rate on pairs of users who were held back."""
    torch.manual_seed(args.seed)
    user, item = read_choices(args.num_users, args.num_items, args.seed)
    of_user = item.view(-1, 8)
    num_train = int(0.9 * args.num_users)
    train = user < num_train
    data = graph_of_items(user[train], item[train], args.num_users, args.num_items, args)
    pairs = [torch.stack([of_user[rows, 0], of_user[rows, 1]]) for rows in (slice(num_train), slice(num_train, None))]
    pairs[0] = torch.cat([torch.stack([of_user[:num_train, i], of_user[:num_train, i + 1]]) for i in range(7)], 1)
    pairs = [each[:, each[0] != each[1]] for each in pairs]
    loader = LinkNeighborLoader(
        data, [-1, -1], edge_label_index=pairs[0], neg_sampling={"mode": "triplet", "amount": 4},
        batch_size=args.batch_size, shuffle=True, random_seed=args.seed,
    )  # fmt: skip
    model = PinSage(args.num_items, args.hidden_channels)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    rate = 0.0
    for epoch in range(args.epochs):
        loss = train_epoch(model, loader, optimizer)
        rate = hit_rate(model, data, pairs[1])
        print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Hit rate of 10: {rate:.4f}")
    return rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--num_users", type=int, default=4000)
    parser.add_argument("--num_items", type=int, default=1000)
    parser.add_argument("--num_neighbors", type=int, default=10)
    parser.add_argument("--num_walks", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--hidden_channels", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.num_items < 20:
        parser.error(f"--num_items {args.num_items}: expected at least 20, the items of a taste")
    main(args)
