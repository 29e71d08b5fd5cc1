"""Learns two embeddings of each node from the edges of a graph without features, and finds held back edges by them.

LINE with second-order proximity (Tang et al., WWW 2015, arXiv 1503.03578), which is node2vec with a window of one: an
edge (u, v) is likely where ``source[u]`` and ``target[v]`` point the same way. Servers keep both embeddings, and update
them.

    python examples/embeddings/train.py --dir line                                    # one process does it all
    torchrun --nproc_per_node 2 examples/embeddings/train.py --dir line               # two trainers, the first serves
    glt launch --num-servers 2 --num-trainers 2 --part-config line/parts examples/embeddings/train.py --dir line

Trainer 0 prints how often an edge that was held back scores higher than its source with a node drawn at random, for
this model and for one without structure, which learns that every edge leads to a node drawn at random: one in two. The
figures do not depend on how many trainers and servers there are.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import glt
from glt.distributed import DistEmbedding, DistGraph, SparseAdam


@dataclass(frozen=True)
class Options:
    """How to learn; see the program's ``--help``."""

    dim: int = 32
    epochs: int = 3
    batch_size: int = 2048
    num_negatives: int = 4
    lr: float = 0.02
    random_seed: int = 0


class Line(nn.Module):
    """Scores of pairs of nodes.

    Args:
        source, target: The embeddings, :class:`DistEmbedding` s or those of torch.
    """

    def __init__(self, source: nn.Module, target: nn.Module) -> None:
        super().__init__()
        self.source, self.target = source, target

    def forward(self, ends: Tensor, negatives: Tensor) -> Tensor:
        """The loss of edges ``[2, n]`` against drawn targets ``[n, num_negatives]``."""
        source = self.source(ends[0])
        good = (source * self.target(ends[1])).sum(1)
        bad = (self.target(negatives) @ source.unsqueeze(2)).squeeze(2)
        return -(nn.functional.logsigmoid(good) + nn.functional.logsigmoid(-bad).sum(1)).mean()


def batches(
    num_edges: int, num_nodes: int, options: Options, rank: int, num_trainers: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """A trainer's part of each batch: ids of edges, negatives, and targets for learning without structure.

    All trainers draw the same batch and take their part of it, so that what is learnt does not depend on their number.
    """
    size = options.batch_size
    for epoch in range(options.epochs):
        rng = torch.Generator().manual_seed(options.random_seed * 1000 + epoch)
        order = torch.randperm(num_edges, generator=rng)
        for first in range(0, num_edges - num_edges % size, size):
            negatives = torch.randint(num_nodes, (size, options.num_negatives), generator=rng)
            anywhere = torch.randint(num_nodes, (size,), generator=rng)
            mine = slice(rank * size // num_trainers, (rank + 1) * size // num_trainers)
            yield order[first : first + size][mine], negatives[mine], anywhere[mine]


def train(
    model: Line, optimizer: torch.optim.Optimizer, ends_of: Callable[[Tensor], Tensor], num_edges: int, num_nodes: int,
    options: Options, rank: int = 0, num_trainers: int = 1, has_structure: bool = True,
) -> float:  # fmt: skip
    """Learns; returns the last loss. ``ends_of`` gives the ends ``[2, n]`` of edges."""
    loss = torch.zeros(())
    for edges, negatives, anywhere in batches(num_edges, num_nodes, options, rank, num_trainers):
        ends = ends_of(edges)
        if not has_structure:
            ends = torch.stack([ends[0], anywhere])
        optimizer.zero_grad()
        loss = model(ends, negatives)
        loss.backward()
        optimizer.step()
    return loss.item()


def chance_of_order(source: Tensor, target: Tensor, held_out: Tensor, random_seed: int = 0) -> float:
    """How often a held back edge scores higher than its source with a node drawn at random (20 for each edge)."""
    rng = torch.Generator().manual_seed(random_seed)
    drawn = torch.randint(len(target), (held_out.shape[1], 20), generator=rng)
    rows = source[held_out[0]]
    good = (rows * target[held_out[1]]).sum(1, keepdim=True)
    bad = (target[drawn] @ rows.unsqueeze(2)).squeeze(2)
    return ((good > bad).double() + (good == bad).double() / 2).mean().item()


def learn(graph: DistGraph, options: Options, held_out: Tensor, has_structure: bool) -> float:
    """Learns new embeddings, and returns what they are worth."""
    shape = graph.num_nodes(), options.dim
    first = ("uniform", -0.5 / options.dim**0.5, 0.5 / options.dim**0.5)
    source, target = (
        DistEmbedding(*shape, name, first, part=graph.ntypes[0], rng_seed=options.random_seed)
        for name in ("source", "target")
    )
    model = Line(source, target)
    optimizer = SparseAdam(model, lr=options.lr)
    rank, num_trainers = glt.distributed.get_rank(), glt.distributed.num_trainers()
    loss = train(model, optimizer, graph.find_edges, graph.num_edges(), shape[0], options, rank, num_trainers,
                 has_structure)  # fmt: skip
    if rank == 0:
        print(f"{'with' if has_structure else 'without'} structure: loss {loss:.4f}", flush=True)
    found = chance_of_order(source.weight[:], target.weight[:], held_out, options.random_seed)
    graph.barrier()
    if rank == 0:
        for embedding in (source, target):
            embedding.weight.delete()  # the names are needed again
    graph.barrier()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="what prepare.py has written")
    for name, value in vars(Options()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help="default: %(default)s")
    given = vars(parser.parse_args())
    folder = given.pop("dir")
    options = Options(**given)
    glt.distributed.initialize(part_config=folder / "parts")
    graph = DistGraph("graph")
    held_out = torch.from_numpy(np.load(folder / "held_out.npy"))
    if glt.distributed.get_rank() == 0:
        num_trainers = glt.distributed.num_trainers()
        print(f"{graph.num_nodes()} nodes, {graph.num_edges()} edges, trainers: {num_trainers}", flush=True)
    found, without = (learn(graph, options, held_out, has_structure) for has_structure in (True, False))
    if glt.distributed.get_rank() == 0:
        print(f"edges found: {found:.4f}, without structure {without:.4f}, margin {found - without:.4f}")
    glt.distributed.finalize()


if __name__ == "__main__":
    main()
