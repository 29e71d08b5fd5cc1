"""Samplers and negative samplers under the names that DGL has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_geometric.sampler import NegativeSampling

from glt._checks import check_flag, real_number
from glt.data.arrays import as_ids
from glt.distributed.blocks import Block, to_block
from glt.distributed.dist_graph import INT32_MAX, DistGraph
from glt.distributed.options import check_count


@dataclass(frozen=True)
class MultiLayerNeighborSampler:
    """How many edges each layer samples, the first being that of the widest neighbourhood: the reverse of PyG's order.

    Args:
        fanouts: Edges per node, by layer; -1: all.
        replace: Draw with replacement.
        prob: Any name: draw proportionally to the weights that the graph was partitioned with.
    """

    fanouts: Sequence[int]
    replace: bool = False
    prob: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.fanouts, list | tuple) or not self.fanouts:
            raise ValueError(f"fanouts = {self.fanouts!r}: expected a list with a number for each layer")
        for at, fanout in enumerate(self.fanouts):
            check_count(f"fanouts[{at}]", fanout, -1, INT32_MAX)
        check_flag("replace", self.replace)
        if self.prob is not None and not isinstance(self.prob, str):
            raise TypeError(f"prob = {self.prob!r}: expected a name, for the weights of the graph, or None")

    def num_neighbors(self) -> list[int]:
        """In PyG's order: the hop from the seeds comes first."""
        return list(reversed(self.fanouts))

    def sample(self, graph: DistGraph, seeds: Any) -> tuple[Any, Any, list[Block]]:
        """Samples here and now, hop by hop: input nodes, seeds, and the blocks, the widest first.

        Args:
            graph: Where.
            seeds: Ids ``[n]``, each once; of a heterogeneous graph a dict of such by node type.
        """
        if isinstance(seeds, Mapping):
            seeds = {t: as_ids(ids, f"seeds[{t!r}]", graph.num_nodes(t)) for t, ids in seeds.items()}
        else:
            seeds = as_ids(seeds, "seeds", graph.num_nodes(graph.ntypes[0]) if len(graph.ntypes) == 1 else None)
        nodes, blocks = seeds, []
        for fanout in self.num_neighbors():
            hop = graph.sample_neighbors(nodes, fanout, replace=self.replace, prob=self.prob)
            blocks.append(to_block(hop, nodes))
            nodes = blocks[-1].src_id
        return nodes, seeds, blocks[::-1]


def MultiLayerFullNeighborSampler(num_layers: int) -> MultiLayerNeighborSampler:
    """All edges in each of ``num_layers`` layers."""
    check_count("num_layers", num_layers, 1, 1024)
    return MultiLayerNeighborSampler([-1] * num_layers)


def PerSourceUniform(k: int) -> NegativeSampling:
    """For each seed edge ``k`` destinations that its source has no edge to."""
    check_count("k", k, 1, INT32_MAX)
    return NegativeSampling("triplet", k)


def GlobalUniform(k: float) -> NegativeSampling:
    """``k`` times as many pairs as there are seed edges, of any nodes, that are no edges."""
    real_number("k", k, above=True)
    return NegativeSampling("binary", k)
