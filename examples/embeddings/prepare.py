"""Holds a tenth of the edges of a graph back, and partitions the rest.

    python examples/embeddings/prepare.py --output_dir line --num_parts 2
    python examples/embeddings/prepare.py --output_dir line --data ../shared/data/mathoverflow.npz

Writes the partitions to ``parts``, and edges that are to be found again to ``held_out.npy``.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from glt.partition import RandomPartitioner


def toy_edges(num_nodes: int = 600, num_groups: int = 6, degree: int = 16) -> torch.Tensor:
    """Groups of nodes that know each other: nine of ten edges stay in a group. ``[2, E]``."""
    rng = np.random.default_rng(0)
    source = np.repeat(np.arange(num_nodes), degree)
    near = rng.integers(num_nodes // num_groups, size=len(source)) * num_groups + source % num_groups
    target = np.where(rng.random(len(source)) < 0.9, near, rng.integers(num_nodes, size=len(source)))
    return torch.from_numpy(np.stack([source, target]))


def distinct(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Each edge once, and no loops: what is held back must not be seen in training."""
    source, target = edge_index.long()
    pairs = torch.unique((source * num_nodes + target)[source != target])
    return torch.stack([pairs // num_nodes, pairs % num_nodes])


def prepare(output_dir: Path, data: str | None = None, num_parts: int = 1, random_seed: int = 0) -> None:
    """Does what the program does."""
    if data is None:
        edges = toy_edges()
    else:
        with np.load(data, allow_pickle=False) as file:
            edges = torch.from_numpy(file["edge_index"])
    num_nodes = int(edges.max()) + 1
    edges = distinct(edges, num_nodes)
    order = torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(random_seed))
    held_out, train = edges[:, order].tensor_split([edges.shape[1] // 10], dim=1)
    output_dir.mkdir(parents=True, exist_ok=True)
    RandomPartitioner(
        output_dir / "parts", num_parts, num_nodes, train.contiguous(), random_seed=random_seed
    ).partition()  # fmt: skip
    np.save(output_dir / "held_out.npy", held_out.numpy())
    print(f"{num_nodes} nodes, {train.shape[1]} edges in {num_parts} partitions, {held_out.shape[1]} held back")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--data", help="an .npz file as in ../shared/data; without it, a toy graph")
    parser.add_argument("--num_parts", type=int, default=1)
    prepare(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
