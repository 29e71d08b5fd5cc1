"""What loaders over a :class:`DistGraph` sample, as DGL says it: edges of each layer, and negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_geometric.sampler import NegativeSampling

from glt._checks import check_at_least, check_count, check_flag, real_number
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids
from glt.distributed.graph.blocks import Block, to_block
from glt.distributed.graph.graph import INT32_MAX, DistGraph


@short_traceback
@dataclass(frozen=True)
class MultiLayerNeighborSampler:
    """How many edges each layer samples, the first being that of the widest neighbourhood: the reverse of PyG's order.

    Args:
        fanouts: Edges per node, by layer; -1: all.
        replace: Draw with replacement.
        prob: Any name: draw proportionally to the weights that the graph was partitioned with.

    Example:
        >>> glt.distributed.MultiLayerNeighborSampler([10, 25]).num_neighbors()
        [25, 10]
    """

    fanouts: Sequence[int]
    replace: bool = False
    prob: str | None = None

    def __post_init__(self) -> None:
        _check_layers(self.fanouts, self.prob)
        check_flag("replace", self.replace)

    def num_neighbors(self) -> list[int]:
        """In PyG's order: the hop from the seeds comes first."""
        return list(reversed(self.fanouts))

    def options(self) -> dict[str, Any]:
        """What it says to a loader besides, by the loader's names."""
        return {"replace": self.replace, "weight_attr": self.prob}

    def sample(self, graph: DistGraph, seeds: Any) -> tuple[Any, Any, list[Block]]:
        """Samples at once, hop by hop, around seeds: ids ``[n]``, each once, or by node type. Returns input nodes,
        seeds, and the blocks, the widest first."""
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


@short_traceback
@dataclass(frozen=True)
class LaborSampler:
    """LABOR: as many edges in each layer as of :class:`MultiLayerNeighborSampler`, and fewer nodes, since nodes with
    common neighbours take the same ones (``sampler="labor"`` of :class:`glt.distributed.DistNeighborLoader`).

    For loaders: numbers of nodes belong to batches, which sampling by hand has none of.

    Args:
        fanouts, prob: As of :class:`MultiLayerNeighborSampler`. Each edge is taken once: there is no ``replace``.
        batch_dependency: How many batches in succession share the choice, so that a cache of rows serves more of them.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.

    Example:
        >>> glt.distributed.LaborSampler([10, 25], batch_dependency=8).num_neighbors()
        [25, 10]
    """

    fanouts: Sequence[int]
    prob: str | None = field(default=None, kw_only=True)  # DGL has others in between
    batch_dependency: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        _check_layers(self.fanouts, self.prob)
        check_at_least("batch_dependency", self.batch_dependency, 1)

    def num_neighbors(self) -> list[int]:
        """In PyG's order: the hop from the seeds comes first."""
        return list(reversed(self.fanouts))

    def options(self) -> dict[str, Any]:
        """What it says to a loader besides, by the loader's names."""
        return {"sampler": "labor", "batch_dependency": self.batch_dependency, "weight_attr": self.prob}


def MultiLayerFullNeighborSampler(num_layers: int) -> MultiLayerNeighborSampler:
    """All edges in each of ``num_layers`` layers.

    Example:
        >>> glt.distributed.MultiLayerFullNeighborSampler(2)
        MultiLayerNeighborSampler(fanouts=[-1, -1], replace=False, prob=None)
    """
    num_layers = check_count("num_layers", num_layers, 1, 1024)
    return MultiLayerNeighborSampler([-1] * num_layers)


def PerSourceUniform(k: int) -> NegativeSampling:
    """For each seed edge ``k`` destinations that its source has no edge to.

    Example:
        >>> glt.distributed.PerSourceUniform(5)
        NegativeSampling(mode=<NegativeSamplingMode.triplet: 'triplet'>, amount=5, src_weight=None, dst_weight=None)
    """
    k = check_count("k", k, 1, INT32_MAX)
    return NegativeSampling("triplet", k)


def GlobalUniform(k: float) -> NegativeSampling:
    """``k`` times as many pairs as there are seed edges, of any nodes, that are no edges.

    Example:
        >>> glt.distributed.GlobalUniform(2.0)
        NegativeSampling(mode=<NegativeSamplingMode.binary: 'binary'>, amount=2.0, src_weight=None, dst_weight=None)
    """
    real_number("k", k, above=True)
    return NegativeSampling("binary", k)


def _check_layers(fanouts: Any, prob: Any) -> None:
    if not isinstance(fanouts, list | tuple) or not fanouts:
        raise ValueError(f"fanouts = {fanouts!r}: expected a list with a number for each layer")
    for at, fanout in enumerate(fanouts):
        check_count(f"fanouts[{at}]", fanout, -1, INT32_MAX)
    if prob is not None and not isinstance(prob, str):
        raise TypeError(f"prob = {prob!r}: expected a name, for the weights of the graph, or None")
