"""The hops of a batch: what is expanded, who is asked for it, and how the answers come together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.distributed.batch_start import BatchStart
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.frontier import Frontier, Group
from glt.distributed.partitions import LONG, EdgesWanted, Partitions, RowsPart
from glt.distributed.requests import InducedRequest, OneHopRequest
from glt.sampler.config import SamplingConfig

# Expanded nodes and neighbours whose edges are not sampled.
_Pairs = tuple[Tensor, Tensor]


class HopLoop:
    """Samples the edges of batches, hop after hop.

    Args:
        dataset: The partition here.
        config: What to sample.
        partitions: Where all of them are.
        with_edge: Fetch edge ids.
    """

    def __init__(self, dataset: DistDataset, config: SamplingConfig, partitions: Partitions, with_edge: bool) -> None:
        self.dataset, self.config, self.partitions, self.with_edge = dataset, config, partitions, with_edge
        self._num_node_types, self._num_edge_types = len(dataset.schema.node_types), len(dataset.schema.edge_types)

    async def run(self, batch: _core.Batch, start: BatchStart, batch_key: int, stats: dict[str, float]) -> None:
        """Samples a batch.

        Args:
            batch: Takes the edges.
            start: What it is sampled around.
            batch_key: Key of the draws.
            stats: Of the batch; adds its times and bytes.
        """
        if not self.partitions.elsewhere:
            await self.partitions.timed(stats, "sampling_s", LONG, self._sample_here, batch, start, batch_key)
        else:
            await self._sample_everywhere(batch, start, batch_key, stats)

    def _begin(self, batch: _core.Batch, start: BatchStart) -> None:
        time = None if start.seed_time is None else start.seed_time.numpy()
        seeds = [(node_type, nodes.numpy()) for node_type, nodes in start.seeds]
        batch.start(seeds, self.with_edge, self.config.disjoint, time)

    def _sample_here(self, batch: _core.Batch, start: BatchStart, batch_key: int) -> None:
        config = self.config
        exclusions: list[_core.Exclusions | None] = [None] * self._num_edge_types
        for r, pairs in start.exclusions.items():
            exclusions[r] = _core.Exclusions(*(side.numpy() for side in pairs))
        self._begin(batch, start)
        rows = self._rows(config.weighted, config.temporal is not None)
        batch.sample(
            rows, config.num_neighbors, replace=config.replace, batch_key=batch_key, last=config.last,
            exclusions=exclusions,
        )  # fmt: skip
        if config.subgraph_type == "induced":
            batch.induce(self._rows(False, False))

    def _rows(self, weighted: bool, timed: bool) -> list[list[_core.Csr]]:
        """Of all partitions, by edge type: what hops are sampled from."""
        parts = [self.partitions.local[part] for part in range(self.dataset.num_partitions)]
        return [[part.csr(r, weighted, timed) for part in parts] for r in range(self._num_edge_types)]

    async def _sample_everywhere(
        self, batch: _core.Batch, start: BatchStart, batch_key: int, stats: dict[str, float]
    ) -> None:
        num_seeds = sum(len(nodes) for _, nodes in start.seeds)
        excluded = self._owners_exclusions(start)
        timed = self.partitions.timed
        frontiers = await timed(stats, "sampling_s", num_seeds, self._start, batch, start)
        for hop in range(self.config.num_hops):
            wanted: list[EdgesWanted] = []
            size = 0
            for r, frontier in self._expanded(hop, frontiers):
                num_neighbors = self.config.num_neighbors[r][hop]
                for group in frontier.groups():
                    request = self._request(r, hop, batch_key, group, excluded)
                    wanted.append((group.positions, group.part, request))
                    if group.part in self.partitions.local:
                        size += len(group.nodes) * (num_neighbors if num_neighbors >= 0 else LONG)
            parts = await self.partitions.edges(wanted, size, stats)
            num_edges = sum(len(part[2]) for several in parts for part in several)
            frontiers = await timed(stats, "sampling_s", num_edges, self._expand, batch, start, parts, hop)
        if self.config.subgraph_type == "induced":
            await self._induce_everywhere(batch, stats)

    async def _induce_everywhere(self, batch: _core.Batch, stats: dict[str, float]) -> None:
        wanted: list[EdgesWanted] = []
        nodes = await self.partitions.timed(stats, "sampling_s", 0, self._nodes, batch)
        for r, (expanded, neighbor) in enumerate(self.dataset.ends):
            if len(nodes[neighbor]) == 0:
                continue
            members = torch.from_numpy(nodes[neighbor])
            for part, owned, positions in self.partitions.by_owner(expanded, nodes[expanded]):
                request = InducedRequest(r, torch.from_numpy(owned), members, self.with_edge)
                wanted.append((positions, part, request))
        parts = await self.partitions.edges(wanted, LONG, stats)
        await self.partitions.timed(stats, "sampling_s", LONG, self._induce, batch, parts)

    def _nodes(self, batch: _core.Batch) -> list[np.ndarray]:
        return [batch.nodes(t) for t in range(self._num_node_types)]

    def _induce(self, batch: _core.Batch, parts: list[list[RowsPart]]) -> None:
        batch.begin_induce()
        for r, several in enumerate(parts):
            if several:
                batch.induce_from(r, several)

    def _owners_exclusions(self, start: BatchStart) -> dict[tuple[int, int], _Pairs]:
        """Excluded pairs by edge type and by the partition that has the edges: nobody is sent the others'."""
        found: dict[tuple[int, int], _Pairs] = {}
        for r, (center, neighbor) in start.exclusions.items():
            for part, nodes, positions in self.partitions.by_owner(self.dataset.ends[r][0], center.numpy()):
                found[r, part] = torch.from_numpy(nodes), torch.from_numpy(neighbor.numpy()[positions])
        return found

    def _expanded(self, hop: int, frontiers: Sequence[Frontier | None]) -> list[tuple[int, Frontier]]:
        """The edge types that a hop samples, and what it expands along them."""
        found = []
        for r, (expanded, _) in enumerate(self.dataset.ends):
            frontier = frontiers[expanded]
            if frontier is not None and self.config.num_neighbors[r][hop] != 0:
                found.append((r, frontier))
        return found

    def _request(
        self, edge_type: int, hop: int, batch_key: int, group: Group, excluded: Mapping[tuple[int, int], _Pairs]
    ) -> OneHopRequest:
        config = self.config
        topology = self.dataset.own.graphs[edge_type].topology
        timed = group.seed_time is not None and topology.by_time is not None
        return OneHopRequest(
            edge_type, group.nodes, config.num_neighbors[edge_type][hop], config.replace, batch_key, hop,
            self.with_edge, config.weighted and topology.weights is not None, timed and config.last,
            group.tree, group.seed_time if timed else None, excluded.get((edge_type, group.part)),
        )  # fmt: skip

    def _start(self, batch: _core.Batch, start: BatchStart) -> list[Frontier | None]:
        self._begin(batch, start)
        return self._frontiers(batch, start, 0)

    def _expand(
        self, batch: _core.Batch, start: BatchStart, parts: list[list[RowsPart]], hop: int
    ) -> list[Frontier | None]:
        """Takes in a hop, and sorts the next frontier by owner at once: each call on the pool costs a thread switch."""
        for r, several in enumerate(parts):
            if several:
                batch.expand_from(r, several)
        batch.end_hop()
        return self._frontiers(batch, start, hop + 1)

    def _frontiers(self, batch: _core.Batch, start: BatchStart, hop: int) -> list[Frontier | None]:
        """By node type, what is expanded next along any edge type; None: nothing."""
        found: list[Frontier | None] = [None] * self._num_node_types
        if hop == self.config.num_hops:
            return found
        data = self.dataset
        for r, (t, _) in enumerate(data.ends):
            if found[t] is None and self.config.num_neighbors[r][hop] != 0:
                found[t] = Frontier.of(batch, t, data.node_books[t], start.seed_time, self.config.disjoint)
        return found
