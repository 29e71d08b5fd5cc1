"""Trains GraphSAGE with DDP on a graph that only servers hold. See README.md beside this file.

    torchrun --standalone --nproc_per_node 2 examples/server_client/client.py --num_classes 16

Each rank is a client: a server samples its share of the training nodes, and the batches come over the network. The
shares of two clients differ by a node at most, so that one may have a batch more: DDP's ``join`` takes care of that.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import glt


def make_loader(options: argparse.Namespace, split: str) -> glt.distributed.DistNeighborLoader:
    """This client's share of a split of the servers' nodes."""
    return glt.distributed.DistNeighborLoader(
        data=None,  # it is on the servers
        num_neighbors=options.num_neighbors,
        input_nodes=split,
        batch_size=options.batch_size,
        shuffle=split == "train",
        collect_features=True,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(
            server_rank=dist.get_rank() % options.num_servers,
            num_workers=options.num_workers,
            worker_concurrency=4,
            buffer_size="64MB",
            prefetch_size=4,
        ),
    )


def forward(model: torch.nn.Module, batch: Data) -> Tensor:
    """Logits of the seeds. With the counts per hop, PyG computes in each layer only what the next one reads."""
    return model(
        batch.x, batch.edge_index, num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )[: batch.batch_size]  # fmt: skip


def train_epoch(
    model: DistributedDataParallel, loader: glt.distributed.DistNeighborLoader, optimizer: torch.optim.Optimizer
) -> float:
    """One pass over the shares of all clients; returns the mean loss of all their seeds."""
    model.train()
    totals = torch.zeros(2, dtype=torch.float64)
    with model.join():
        for batch in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(model, batch), batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            totals += torch.tensor([loss.item() * batch.batch_size, batch.batch_size])
    dist.all_reduce(totals)
    return float(totals[0] / totals[1])


@torch.no_grad()
def evaluate(model: DistributedDataParallel, loader: glt.distributed.DistNeighborLoader) -> float:
    """Share of right answers over the shares of all clients."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    for batch in loader:
        # Not through DDP, whose forward may talk to the other clients: they may have fewer batches.
        right = forward(model.module, batch).argmax(dim=-1) == batch.y[: batch.batch_size]
        counts += torch.tensor([int(right.sum()), batch.batch_size])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1].clamp(min=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_classes", type=int, required=True, help="as partition.py says")
    parser.add_argument("--num_servers", type=int, default=2)
    parser.add_argument("--server_addr", default="localhost", help="host of server 0")
    parser.add_argument("--server_port", type=int, default=11111, help="port of server 0")
    parser.add_argument("--num_workers", type=int, default=1, help="sampling processes that work for this client")
    parser.add_argument("--num_neighbors", type=lambda text: [int(k) for k in text.split(",")], default=[15, 10])
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--hidden_channels", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    dist.init_process_group("gloo")  # torchrun has told who is where; MASTER_ADDR is that of the clients
    rank, num_clients = dist.get_rank(), dist.get_world_size()
    glt.distributed.init_client(
        options.num_servers, num_clients, rank, master_addr=options.server_addr, master_port=options.server_port
    )
    torch.manual_seed(0)
    with (
        make_loader(options, "train") as train_loader,
        make_loader(options, "valid") as valid_loader,
        make_loader(options, "test") as test_loader,
    ):
        num_features = next(iter(test_loader)).x.size(1)  # only servers know; an epoch may be left early
        model = DistributedDataParallel(
            GraphSAGE(num_features, options.hidden_channels, len(options.num_neighbors), options.num_classes)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(options.epochs):
            loss, accuracy = train_epoch(model, train_loader, optimizer), evaluate(model, valid_loader)
            if rank == 0:
                print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Val: {accuracy:.4f}", flush=True)
        accuracy, stats = evaluate(model, test_loader), train_loader.stats()
    if rank == 0:
        print(f"test accuracy {accuracy:.4f}")
        print(f"{stats['num_batches']:.0f} batches, waited {stats['wait_s']:.2f} s for them", flush=True)
    glt.distributed.shutdown_client()
    del model, optimizer  # before the group: freeing DDP later would wait for one of gloo's threads
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
