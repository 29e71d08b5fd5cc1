"""Random and even assignment of nodes."""

import os
from typing import Any

import numpy as np
import torch

from glt import _core
from glt.partition.arguments import integer
from glt.partition.book import owner_dtype
from glt.partition.partitioner import Array, PartitionerBase


class RandomPartitioner(PartitionerBase):
    """Gives every partition the same number of nodes, up to one, chosen at random.

    The assignment is a function of ``(num_nodes, num_parts, random_seed)`` alone: the same seed gives the same
    directory, byte for byte, whatever the chunk size.

    Args:
        random_seed: Seed of the permutation, in ``[0, 2**64)``.

    The other arguments, the errors and the memory needed are those of :class:`PartitionerBase`.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int,
        edge_index: Array,
        node_feat: Array | None = None,
        edge_feat: Array | None = None,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        device: torch.device | str | int = torch.device("cpu"),  # noqa: B008 (immutable)
        node_label: Array | None = None,
        random_seed: int = 0,
    ) -> None:
        self.random_seed = integer("random_seed", random_seed, 0, 2**64 - 1, "the seed of the permutation")
        super().__init__(
            output_dir,
            num_parts,
            num_nodes,
            edge_index,
            node_feat=node_feat,
            edge_feat=edge_feat,
            edge_assign_strategy=edge_assign_strategy,
            chunk_size=chunk_size,
            device=device,
            node_label=node_label,
        )

    def assign_nodes(self) -> np.ndarray:
        permutation = np.arange(self.num_nodes)
        _core.shuffle(permutation, self.random_seed, 0)
        owner = np.empty(self.num_nodes, owner_dtype(self.num_parts))
        for idx in range(self.num_parts):
            begin, end = idx * self.num_nodes // self.num_parts, (idx + 1) * self.num_nodes // self.num_parts
            owner[permutation[begin:end]] = idx
        return owner

    def strategy_arguments(self) -> dict[str, Any]:
        return {"random_seed": self.random_seed}
