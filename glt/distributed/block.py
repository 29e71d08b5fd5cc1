"""A sampled hop as one layer of a model: seeds and what they receive from, numbered from 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt.data.arrays import as_ids


def to_block(frontier: Data | HeteroData, seeds: Any) -> Data | HeteroData:
    """Makes a layer of what :meth:`DistGraph.sample_neighbors` has sampled, with ``edge_dir='in'``::

        for fanout in (10, 25):
            block = to_block(g.sample_neighbors(seeds, fanout), seeds)
            blocks.insert(0, block)
            seeds = block.n_id

        for conv, block in zip(convs, blocks):
            x = conv((x, x[: block.batch_size]), block.edge_index)

    Args:
        frontier: Edges that end in the seeds, with ids of the graph.
        seeds: Ids ``[n]``, each once; of a heterogeneous graph, a dict of such by node type.

    Returns:
        ``n_id``: the seeds, then the nodes that they receive from, as they first come; ``edge_index`` of positions in
        that, and ``e_id``; ``batch_size``, the number of seeds. By type where there are types; node types without
        nodes have none, and edge types are those of ``frontier``.

    Raises:
        ValueError: If a seed is named twice, or an edge does not end in one; names it.
        TypeError: If seeds are not by type where there are types.
    """
    if isinstance(frontier, Data):
        ids = as_ids(seeds, "seeds")
        nodes, target = _Numbered(ids, frontier.edge_index[:1]), frontier.edge_index[1]
        ends = torch.stack([nodes.positions(frontier.edge_index[0]), nodes.seeds_of(target)])
        return Data(
            edge_index=ends, e_id=frontier.e_id, n_id=nodes.ids, batch_size=len(ids), num_nodes=len(nodes.ids)
        )  # fmt: skip
    if not isinstance(seeds, Mapping):
        raise TypeError(f"seeds have type {type(seeds).__name__}: expected a dict by node type, the graph having types")
    given = {t: as_ids(ids, f"seeds[{t!r}]") for t, ids in seeds.items()}
    none = torch.empty(0, dtype=torch.int64)
    block, numbered = HeteroData(), {}
    for node_type in frontier.node_types:
        sources = [frontier[t].edge_index[0] for t in frontier.edge_types if t[0] == node_type]
        nodes = numbered[node_type] = _Numbered(given.get(node_type, none), sources)
        block[node_type].n_id, block[node_type].num_nodes = nodes.ids, len(nodes.ids)
        block[node_type].batch_size = nodes.num_seeds
    for edge_type in frontier.edge_types:
        source, target = frontier[edge_type].edge_index
        block[edge_type].edge_index = torch.stack(
            [numbered[edge_type[0]].positions(source), numbered[edge_type[2]].seeds_of(target)]
        )
        block[edge_type].e_id = frontier[edge_type].e_id
    return block


class _Numbered:
    """Nodes of a layer: the seeds, then the others as they first come."""

    def __init__(self, seeds: Tensor, sources: Any) -> None:
        every = torch.cat([seeds, *sources])
        self._sorted, back = torch.unique(every, return_inverse=True)
        first = torch.full((len(self._sorted),), len(every))
        first = first.scatter_reduce(0, back, torch.arange(len(every)), "amin")
        order = first.argsort()
        self.ids, self.num_seeds = self._sorted[order], len(seeds)
        self._position = torch.empty_like(order)
        self._position[order] = torch.arange(len(order))
        if len(seeds) and not torch.equal(self.ids[: len(seeds)], seeds):
            values, counts = seeds.unique(return_counts=True)
            raise ValueError(f"seeds name node {int(values[counts > 1][0])} more than once: expected each once")

    def positions(self, ids: Tensor) -> Tensor:
        """Where these nodes are, which are all there."""
        return self._position[torch.searchsorted(self._sorted, ids)]

    def seeds_of(self, ids: Tensor) -> Tensor:
        """Which seeds these nodes are.

        Raises:
            ValueError: If one is none.
        """
        at = torch.searchsorted(self._sorted, ids).clamp(max=max(0, len(self._sorted) - 1))
        found = self._position[at] if len(self._sorted) else at
        wrong = torch.ones_like(ids, dtype=torch.bool) if not len(self._sorted) else self._sorted[at] != ids
        wrong |= found >= self.num_seeds
        if bool(wrong.any()):
            raise ValueError(
                f"frontier has an edge into node {int(ids[wrong][0])}, which is no seed: expected in-edges of the seeds"
            )
        return found
