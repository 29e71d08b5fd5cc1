"""Batches of walks over partitions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.distributed.engine.partitions import LONG
from glt.distributed.engine.requests import OneHopRequest
from glt.distributed.engine.seeds import BatchStart, Seeds
from glt.sampler.walk_options import WalkOptions

if TYPE_CHECKING:
    from glt.distributed.engine.sampler import DistNeighborSampler


class WalkSeeds(Seeds):
    """Each row is a node: column ``node``, and ``time`` of walks back in time. The batch has no nodes and edges, but
    under the name ``walks`` those of :meth:`glt.sampler.RandomWalkSampler.walk`, one seed after the other.
    """

    is_whole_batch = True

    def __init__(self, node_type: int, options: WalkOptions, walks_per_node: int) -> None:
        self.node_type, self.options, self.walks_per_node = node_type, options, walks_per_node
        self.input_id, self.walks = f"input_id/n{node_type}", f"walks/n{node_type}"

    def to_json(self) -> dict[str, Any]:
        told = {"seeds": "walks", "node_type": self.node_type, "walks_per_node": self.walks_per_node}
        return told | self.options.to_json()

    async def start(
        self, sampler: DistNeighborSampler, rows: dict[str, Tensor], input_id: Tensor, batch_key: int
    ) -> BatchStart:
        nodes = rows["node"].repeat_interleave(self.walks_per_node)
        time = None if "time" not in rows else rows["time"].repeat_interleave(self.walks_per_node)
        stats: dict[str, float] = {}
        walks = await walks_from(sampler, self.options, nodes, time, batch_key, stats)
        known = {self.input_id: input_id, self.walks: walks}
        return BatchStart([(self.node_type, nodes[:0])], known=known, stats=stats)


async def walks_from(
    sampler: DistNeighborSampler,
    options: WalkOptions,
    nodes: Tensor,
    time: Tensor | None,
    batch_key: int,
    stats: dict[str, float],
) -> Tensor:
    """Walks from nodes ``[n]`` over all partitions, as :meth:`glt.sampler.RandomWalkSampler.walk`, on the account of a
    batch."""
    latest = options.latest(time, len(nodes))
    given = nodes.numpy(), None if latest is None else latest.numpy()
    out = torch.empty(len(nodes), options.walk_length + 1, dtype=torch.int64)
    spec, flat = options.spec(batch_key), out.view(-1).numpy()
    sampler.partitions.require_sound()
    if sampler.is_local:
        csrs = sampler.rows_of_all(options.weighted, options.timed)
        walk = partial(_core.walk, csrs, given[0], flat, spec, given[1])
        await sampler.partitions.timed(stats, "sampling_s", LONG, walk)
        return out
    walks = _core.Walks(given[0], flat, spec, given[1])
    # Asks the owners of the nodes that walks are at, step after step.
    partitions, dataset = sampler.partitions, sampler.dataset
    while not walks.is_done:
        edge_type, num_draws = walks.edge_type, walks.num_draws
        topology = dataset.own.graphs[edge_type].topology
        at, tree, until = walks.rows()
        with_time = until is not None and topology.by_time is not None
        wanted = []
        for part, owned, positions in partitions.by_owner(dataset.ends[edge_type][0], at):
            request = OneHopRequest(
                edge_type,
                torch.from_numpy(owned),
                num_draws,
                True,
                batch_key,
                walks.hop,
                with_edge=False,
                weighted=options.weighted and topology.weights is not None,
                tree=torch.from_numpy(tree[positions]),
                seed_time=torch.from_numpy(until[positions]) if until is not None and with_time else None,
                with_time=with_time,
            )
            wanted.append((positions, part, request))
        answers = (await partitions.edges(wanted, len(at) * num_draws, stats))[edge_type]
        count = np.zeros(len(at), np.uint32)
        neighbor, times = np.empty((2, len(at), num_draws), np.int64)
        for positions, counts, neighbors, of_edges in answers:
            count[positions] = counts
            found = positions[counts > 0]
            neighbor[found] = neighbors.reshape(-1, num_draws)
            if of_edges is not None:
                times[found] = of_edges.reshape(-1, num_draws)
        has_edge = count > 0
        walks.take(count, neighbor[has_edge].reshape(-1), times[has_edge].reshape(-1) if with_time else None)
        centers, others = walks.checks()
        if len(centers):
            pairs = torch.from_numpy(centers), torch.from_numpy(others)
            is_edge = await partitions.has_edges(edge_type, *pairs, stats)
            walks.judge(is_edge.view(np.uint8))
    return out
