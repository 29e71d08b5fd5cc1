"""What personalised PageRank neighbours are: the options that decide them, and how a batch lays them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt._checks import check_at_least, real_number
from glt.data.schema import EdgeType, NodeType, Schema


@dataclass(frozen=True)
class PageRankOptions:
    """Options of page ranks, checked: build it with :meth:`checked`. They are those of
    :class:`glt.sampler.PageRankSampler`; node types are positions."""

    seed_type: int
    neighbor_type: int
    num_neighbors: int
    alpha: float
    epsilon: float

    @classmethod
    def checked(
        cls,
        schema: Schema,
        seed_type: int,
        num_neighbors: int,
        *,
        alpha: float = 0.15,
        epsilon: float = 1e-4,
        neighbor_type: NodeType | None = None,
    ) -> PageRankOptions:
        """Raises TypeError or ValueError, naming the option, if one does not fit."""
        num_neighbors = check_at_least("num_neighbors", num_neighbors, 1)
        alpha, epsilon = real_number("alpha", alpha, 1e-4), real_number("epsilon", epsilon, 1e-9)
        for name, value in (("alpha", alpha), ("epsilon", epsilon)):
            if value > 1:
                raise ValueError(f"{name} = {value!r}: expected at most 1")
        if neighbor_type is None:
            return cls(seed_type, seed_type, num_neighbors, alpha, epsilon)
        if not schema.is_hetero:
            raise ValueError(f"neighbor_type = {neighbor_type!r}: the graph has no node types, leave it out")
        if neighbor_type not in schema.node_types:
            raise ValueError(f"neighbor_type = {neighbor_type!r}: expected one of {list(schema.node_types)}")
        return cls(seed_type, schema.node_index(neighbor_type), num_neighbors, alpha, epsilon)

    def edge_type(self, schema: Schema) -> EdgeType:
        """The type of the edges of a heterogeneous batch. Raises ValueError if the graph has edges of this type."""
        names = schema.node_types
        edge_type = names[self.neighbor_type], "page_rank", names[self.seed_type]
        if edge_type in schema.edge_types:
            raise ValueError(
                f"the graph has edges of type {edge_type}, which is what those from a found node to its seed are "
                "called in a batch: rename the graph's"
            )
        return edge_type

    def room(self, num_seeds: int, num_nodes_of: Sequence[int]) -> PageRanks:
        """Where native code writes what it finds around so many seeds."""
        # Each node that is found has got at least alpha epsilon of what there is, but for the rounding of both.
        most = min(self.num_neighbors, int(num_nodes_of[self.neighbor_type]), int(1.001 / (self.alpha * self.epsilon)))
        most = max(1, most)
        return PageRanks(
            np.zeros(num_seeds, np.uint32), np.empty(num_seeds * most, np.int64), np.empty(num_seeds * most), most
        )

    def native(self, most: int) -> dict[str, Any]:
        """What native code is told, but for the types."""
        return {"num_neighbors": most, "stop": self.alpha, "residual_per_edge": self.epsilon}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def told(self, schema: Schema) -> dict[str, Any]:
        """The options for representations."""
        own = {"num_neighbors": self.num_neighbors, "alpha": self.alpha, "epsilon": self.epsilon}
        names = schema.node_types
        types = {"node_type": names[self.seed_type], "neighbor_type": names[self.neighbor_type]}
        return own | (types if len(names) > 1 else {})


@dataclass(frozen=True, eq=False)
class PageRanks:
    """What was found around each of n seeds: ``count [n]``, ``neighbor`` and ``score [n most]``, of which each seed has
    the first of ``most``. Memory that is not written is not taken."""

    count: np.ndarray
    neighbor: np.ndarray
    score: np.ndarray
    most: int

    def of(self, first: int, num_seeds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arrays of so many seeds from one on."""
        end, most = first + num_seeds, self.most
        rows = slice(first * most, end * most)
        return self.count[first:end], self.neighbor[rows], self.score[rows]

    def found(self) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers of neighbours ``[n]``, and neighbours and scores, one seed after the other ``[E]``; int64, int64 and
        float64."""
        count = self.count.astype(np.int64)
        seed = np.repeat(np.arange(len(count)), count)
        before = np.cumsum(count) - count
        at = seed * self.most + np.arange(len(seed)) - before[seed]
        return torch.from_numpy(count), torch.from_numpy(self.neighbor[at]), torch.from_numpy(self.score[at])


@dataclass(frozen=True)
class PageRankEdges:
    """A batch: seeds as given, then ``nodes``, those found beside them, by first occurrence; ``edge_index [2, E]`` from
    neighbours to seeds in local ids, int64; ``edge_weight [E]``, scores, float32."""

    nodes: Tensor
    edge_index: Tensor
    edge_weight: Tensor

    @classmethod
    def of(cls, options: PageRankOptions, seeds: Tensor, ranks: PageRanks) -> PageRankEdges:
        """Lays out what was found around ``seeds [n]``; of several rows of one seed, the first is its node."""
        count, neighbor, score = ranks.found()
        known = seeds[: len(seeds) if options.neighbor_type == options.seed_type else 0].numpy()
        ids = np.concatenate([known, neighbor.numpy()])
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        is_new = first >= len(known)
        new = np.sort(first[is_new])
        local = first
        local[is_new] = len(known) + np.searchsorted(new, first[is_new])
        col = torch.arange(len(seeds)).repeat_interleave(count)
        edge_index = torch.stack([torch.from_numpy(local[which.reshape(-1)[len(known) :]]), col])
        return cls(torch.from_numpy(ids[new]), edge_index, score.float())
