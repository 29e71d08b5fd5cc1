"""The nodes that a hop expands, by who owns them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.partition_book import PartitionBook


@dataclass(frozen=True)
class Group:
    """Nodes of a frontier that one partition owns.

    Attributes:
        part: Which partition.
        positions: Where in the frontier they stand ``[n]``, uint32.
        nodes: Their ids ``[n]``, int64.
        tree: Their trees in a disjoint batch ``[n]``, uint32; else None.
        seed_time: Times of those trees' seeds ``[n]``, int64; None without times.
    """

    part: int
    positions: np.ndarray
    nodes: Tensor
    tree: Tensor | None
    seed_time: Tensor | None


@dataclass(frozen=True)
class Frontier:
    """The frontier of one node type, sorted by owner."""

    nodes: np.ndarray
    positions: np.ndarray
    bounds: np.ndarray
    tree: np.ndarray | None
    seed_time: np.ndarray | None

    @classmethod
    def of(
        cls, batch: _core.Batch, node_type: int, book: PartitionBook, seed_time: Tensor | None,
        disjoint: bool,
    ) -> Frontier:  # fmt: skip
        """Sorts the frontier of a batch by owner.

        Args:
            book: Owners of the nodes of the type.
            seed_time: Time of each tree; None without times.
            disjoint: Whether the batch has trees.
        """
        nodes, positions, bounds = book.group(batch.frontier(node_type))
        tree = batch.frontier_trees(node_type)[positions] if disjoint else None
        time = None if seed_time is None or tree is None else seed_time.numpy()[tree]
        return cls(nodes, positions, bounds, tree, time)

    def groups(self) -> Iterator[Group]:
        """The owners' shares; none is empty."""
        for part in range(len(self.bounds) - 1):
            group = slice(self.bounds[part], self.bounds[part + 1])
            if group.start != group.stop:
                tree, time = (None if a is None else torch.from_numpy(a[group]) for a in (self.tree, self.seed_time))
                yield Group(part, self.positions[group], torch.from_numpy(self.nodes[group]), tree, time)
