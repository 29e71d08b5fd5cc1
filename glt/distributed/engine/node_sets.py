"""Batches that are all edges among sets of nodes: where these nodes come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt.distributed.engine.partitions import RowsPart
from glt.distributed.engine.requests import OneHopRequest
from glt.distributed.engine.seeds import BatchStart, NodeSeeds, Seeds
from glt.distributed.engine.walks import walks_from
from glt.errors import MessageError
from glt.sampler.budgets import MOST_NEIGHBORS, drawn_nodes, hgt_nodes
from glt.sampler.negatives import drawn_items
from glt.sampler.walk_options import WalkOptions

if TYPE_CHECKING:
    from glt import _core
    from glt.distributed.engine.sampler import DistNeighborSampler


class HgtSeeds(NodeSeeds):
    """Each row is a node, as of :class:`NodeSeeds`; nodes of all types are drawn as of
    :class:`glt.sampler.HGTSampler`, ``num_samples`` by node type and iteration."""

    is_whole_batch = True

    def __init__(self, node_type: int, num_samples: Sequence[Sequence[int]]) -> None:
        super().__init__(node_type)
        self.num_samples = [list(each) for each in num_samples]

    def to_json(self) -> dict[str, Any]:
        return {"seeds": "hgt", "node_type": self.node_type, "num_samples": self.num_samples}

    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        start = await super().start(sampler, rows, input_id, batch_key)
        sampler.partitions.require_sound()
        num_nodes, ends = sampler.dataset.num_nodes_of, sampler.dataset.ends
        nodes = hgt_nodes(start.seeds, num_nodes, ends, self.num_samples, batch_key)
        while not nodes.is_done:
            await self._iterate(sampler, nodes, batch_key, start.stats)
        start.seeds = [*start.seeds, *drawn_nodes(nodes, len(num_nodes))]
        return start

    async def _iterate(
        self, sampler: DistNeighborSampler, nodes: _core.HgtNodes, batch_key: int, stats: dict[str, float]
    ) -> None:
        partitions, wanted, num_rows = sampler.partitions, [], []
        for r, (expanded, _) in enumerate(sampler.dataset.ends):
            newest = nodes.newest(expanded)
            num_rows.append(len(newest))
            for part, owned, positions in partitions.by_owner(expanded, newest):
                draws = MOST_NEIGHBORS, False, batch_key, nodes.iteration
                request = OneHopRequest(r, torch.from_numpy(owned), *draws, with_edge=False)
                wanted.append((positions, part, request))
        answers = await partitions.edges(wanted, sum(num_rows) * MOST_NEIGHBORS, stats)

        def take_and_draw() -> None:
            for r, several in enumerate(answers):
                nodes.take(r, *in_order(num_rows[r], several))
            nodes.draw()

        num_edges = sum(len(part[2]) for several in answers for part in several)
        await partitions.timed(stats, "sampling_s", num_edges, take_and_draw)


def in_order(num_rows: int, parts: Sequence[RowsPart]) -> tuple[np.ndarray, np.ndarray]:
    """The answers of partitions in the order of the question: edges of each row ``[num_rows]``, uint32, and the
    neighbours, row after row, int64. Raises MessageError if they do not fit the question."""
    count = np.zeros(num_rows, np.uint32)
    for positions, counts, neighbors, _ in parts:
        most = int(counts.max(initial=0))
        total = int(counts.sum(dtype=np.int64))
        if len(counts) != len(positions) or len(neighbors) != total or most > MOST_NEIGHBORS:
            raise MessageError(
                f"an answer has {len(counts)} rows of up to {most} edges, and {len(neighbors)} neighbours: expected "
                f"{len(positions)} rows of up to {MOST_NEIGHBORS}, and {total}; its sampler is another glt's"
            )
        count[positions] = counts
    begin = np.cumsum(count, dtype=np.int64) - count
    neighbor = np.empty(int(count.sum(dtype=np.int64)), np.int64)
    for positions, counts, neighbors, _ in parts:
        first = np.cumsum(counts, dtype=np.int64) - counts
        neighbor[np.repeat(begin[positions] - first, counts) + np.arange(len(neighbors))] = neighbors
    return count, neighbor


class ClusterSeeds(Seeds):
    """Each row is a cluster: column ``cluster``. ``nodes[t]`` are the nodes of type t, cluster after cluster, and those
    of cluster c begin at ``first[t][c]``."""

    is_whole_batch = True
    input_id = "input_id/n0"

    def __init__(self, nodes: Sequence[Tensor], first: Sequence[Tensor]) -> None:
        self.nodes, self.first = list(nodes), list(first)

    @classmethod
    def of(cls, clusters: Sequence[Tensor], num_clusters: int) -> ClusterSeeds:
        """Of the cluster of each node, by node type."""
        nodes, first = [], []
        for cluster in clusters:
            counts = torch.bincount(cluster, minlength=num_clusters)
            nodes.append(torch.sort(cluster, stable=True).indices)
            first.append(torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
        return cls(nodes, first)

    @classmethod
    def from_extras(cls, extras: dict[str, Tensor]) -> ClusterSeeds:
        types = range(len(extras) // 2)
        return cls([extras[f"nodes{t}"] for t in types], [extras[f"first{t}"] for t in types])

    def to_json(self) -> dict[str, Any]:
        return {"seeds": "clusters"}

    def extras(self) -> dict[str, Tensor]:
        named = {f"nodes{t}": each for t, each in enumerate(self.nodes)}
        return named | {f"first{t}": each for t, each in enumerate(self.first)}

    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        clusters = rows["cluster"].tolist()
        seeds = [
            (t, torch.cat([nodes[int(first[c]) : int(first[c + 1])] for c in clusters]))
            for t, (nodes, first) in enumerate(zip(self.nodes, self.first, strict=True))
        ]
        return BatchStart(seeds, known={self.input_id: rows["cluster"]})


class SaintSeeds(Seeds):
    """Each row is a step of an epoch, whatever it is: nodes are those of ``num_roots`` walks of ``walk_length`` steps
    from uniform nodes, in a graph of one type."""

    is_whole_batch = True
    input_id = "input_id/n0"

    def __init__(self, num_roots: int, walk_length: int) -> None:
        self.num_roots, self.walk_length = num_roots, walk_length

    def to_json(self) -> dict[str, Any]:
        return {"seeds": "saint", "num_roots": self.num_roots, "walk_length": self.walk_length}

    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        stats: dict[str, float] = {}
        roots = drawn_items(batch_key, sampler.dataset.num_nodes_of[0], np.arange(self.num_roots))
        options = WalkOptions(self.walk_length)
        walks = await walks_from(sampler, options, torch.from_numpy(roots), None, batch_key, stats)
        nodes = walks.reshape(-1).unique()
        return BatchStart([(0, nodes[nodes >= 0])], known={self.input_id: input_id}, stats=stats)
