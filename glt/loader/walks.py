"""Windows of random walks and negatives, from which embeddings of nodes are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from glt._checks import check_at_least, refuse_unknown
from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids
from glt.data.dataset import Dataset
from glt.data.schema import EdgeType, NodeType
from glt.loader.keyed import OF_TORCH, KeyedLoader
from glt.loader.seeds import checked_times, ids_of_keys, require_nodes, split_node_type
from glt.sampler.negatives import Endpoint
from glt.sampler.order import BatchIndex, as_json, crc32_of
from glt.sampler.walks import RandomWalkSampler

if TYPE_CHECKING:
    from glt.sampler.graph import SampledGraph, Source


@short_traceback
class RandomWalkLoader(KeyedLoader, DataLoader[Any]):
    """Batches of windows of random walks, and of negatives, as the losses of PyG's ``Node2Vec`` and ``MetaPath2Vec``
    take them.

    A batch is ``(pos_rw, neg_rw)``, int64, each ``[number of windows, context_size]``: the first node of a window is
    paired with each of the others. ``pos_rw`` are the windows of walks from ``batch_size`` seeds; a window that reaches
    beyond the end of its walk is left out. ``neg_rw`` are those of ``num_negative_samples`` sequences for each walk, of
    its seed and nodes drawn uniformly of the type that the walk has there. With several node types, nodes are rows of
    one embedding for all: those of a type begin at ``offsets[type]``, and there are ``num_nodes``.

    For a fixed ``random_seed`` the batches of an epoch are always the same, whatever the number of threads and workers.

    Args:
        data: As of :class:`glt.sampler.RandomWalkSampler`.
        walk_length: Steps of a walk; ``Node2Vec`` counts nodes, which are one more.
        context_size: Nodes of a window, 2 to ``walk_length`` + 1.
        input_nodes: Seeds, of the node type at which the metapath begins: ids, keys, or a bool mask over all nodes, or
            a pair of the type and these. Default: all nodes.
        input_time: With ``time_attr``, the latest time of the first edge of the walks from each seed, int64.
        walks_per_node: Walks from each seed.
        num_negative_samples: Sequences of negatives for each walk.
        p, q, metapath, restart_prob, weight_attr, time_attr, time_bound: As of
            :class:`glt.sampler.RandomWalkSampler`.
        random_seed: Seed of shuffling, walks and negatives, in [0, 2^63). Default: drawn from torch's generator.
        num_threads: Threads that walk.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle`` and ``num_workers``.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or two exclude each other; names them.

    Source: Mikolov et al., "Distributed representations of words and phrases and their compositionality", NIPS 2013, on
    walks as of Grover and Leskovec, "node2vec", KDD 2016, and Dong et al., "metapath2vec", KDD 2017.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.loader.RandomWalkLoader(data, walk_length=5, context_size=3, batch_size=10, random_seed=7)
        >>> loader
        RandomWalkLoader(in this process, 4 batches of 10 nodes, 40 seeds, walk_length=5, context_size=3, random_seed=7)
        >>> pos_rw, neg_rw = next(iter(loader))
        >>> pos_rw.shape, neg_rw.shape
        (torch.Size([40, 3]), torch.Size([40, 3]))
    """

    def __init__(
        self,
        data: Source | SampledGraph,
        walk_length: int,
        context_size: int,
        *,
        input_nodes: Any = None,
        input_time: Any = None,
        walks_per_node: int = 1,
        num_negative_samples: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        metapath: Sequence[EdgeType] | None = None,
        restart_prob: float = 0.0,
        weight_attr: str | None = None,
        time_attr: str | None = None,
        time_bound: str = "<=",
        random_seed: int | None = None,
        num_threads: int = 1,
        **kwargs: Any,
    ) -> None:
        refuse_unknown("RandomWalkLoader", kwargs, OF_TORCH - {"dataset", "collate_fn"} | {*locals()})
        check_at_least("walks_per_node", walks_per_node, 1)
        check_at_least("num_negative_samples", num_negative_samples, 1)
        self._choose_seed(random_seed, kwargs)
        self._walks = RandomWalkSampler(
            data,
            walk_length,
            p=p,
            q=q,
            metapath=metapath,
            restart_prob=restart_prob,
            weight_attr=weight_attr,
            time_attr=time_attr,
            time_bound=time_bound,
            random_seed=self.random_seed,
            num_threads=num_threads,
        )
        check_at_least("context_size", context_size, 2)
        if context_size > walk_length + 1:
            raise ValueError(
                f"context_size = {context_size}: expected at most the nodes of a walk, walk_length + 1 = "
                f"{walk_length + 1}"
            )
        self.context_size: int = context_size
        self.walks_per_node: int = walks_per_node
        self.num_negative_samples: int = num_negative_samples
        types = self._walks.node_types
        num_nodes_of = dict(zip(self._walks.graph.schema.node_types, self._walks.graph.num_nodes, strict=True))
        self.offsets: dict[NodeType, int] = {}
        self.num_nodes: int = 0
        for each in sorted({*types}):
            self.offsets[each] = self.num_nodes
            self.num_nodes += num_nodes_of[each]
        self._rows = torch.tensor([self.offsets[each] for each in types])  # of each position of a walk
        self._ends = [Endpoint("dst", num_nodes_of[each]) for each in types[1:]]
        given = ids_of_keys(input_nodes, data.ids) if isinstance(data, Dataset) else input_nodes
        self._seeds = _seeds_of(given, types[0], num_nodes_of[types[0]], self._walks.graph.schema.is_hetero)
        if (input_time is None) != (time_attr is None):
            raise ValueError("input_time and time_attr: expected both, of walks back in time, or neither")
        self._time = None if input_time is None else checked_times("input_time", input_time, len(self._seeds))
        super().__init__(range(len(self._seeds)), collate_fn=self.collate_fn, **kwargs)  # type: ignore[arg-type]
        self._complete_order()

    def collate_fn(self, index: BatchIndex) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Walks from the seeds of a batch, and draws its negatives."""
        seeds = self._seeds[index.input_id].repeat_interleave(self.walks_per_node)
        time = None if self._time is None else self._time[index.input_id].repeat_interleave(self.walks_per_node)
        walks = self._walks.walk(seeds, seed_time=time, batch_key=index.key)
        windows = self._windows(walks)
        return windows[windows[:, -1] >= 0], self._windows(self._negatives(seeds, index.key))

    def _windows(self, walks: Tensor) -> Tensor:
        rows = walks + self._rows if len(self.offsets) == 1 else torch.where(walks < 0, walks, walks + self._rows)
        return rows.unfold(1, self.context_size, 1).reshape(-1, self.context_size)

    def _negatives(self, seeds: Tensor, key: int) -> Tensor:
        seeds = seeds.repeat_interleave(self.num_negative_samples)
        drawn = np.empty((len(self._ends), len(seeds)), np.int64)
        for step, end in enumerate(self._ends):
            slots = np.arange(step * len(seeds), (step + 1) * len(seeds))
            end.draw(key, slots, 0, drawn[step])
        return torch.cat([seeds[:, None], torch.from_numpy(drawn).T], 1)

    def _take_seed(self, random_seed: int) -> None:
        super()._take_seed(random_seed)
        self._walks.random_seed = random_seed

    def _fingerprint(self) -> dict[str, Any]:
        graph = self._walks.graph
        fields = {
            "num_nodes": [int(n) for n in graph.num_nodes],
            "num_edges": [int(topology.num_edges) for topology in graph.topologies],
            "seeds_crc32": crc32_of({"node": self._seeds, "time": self._time}),
        }
        return as_json(self._order_options() | self._walks.to_json() | self._own_options() | fields)  # type: ignore[no-any-return]

    def _own_options(self) -> dict[str, Any]:
        names = ("context_size", "walks_per_node", "num_negative_samples")
        return {name: getattr(self, name) for name in names}

    @says
    def __repr__(self) -> str:
        where = f"in {self.num_workers} processes" if self.num_workers else "in this process"
        own = {name: value for name, value in self._own_options().items() if value != 1}
        told = self._walks.told() | own | {"shuffle": self._shuffles, "drop_last": self.drop_last}
        count, size = self._num_batches(), self.batch_size
        batches = f"{'' if count is None else f'{count} '}batches{'' if size is None else f' of {size} nodes'}"
        return f"{where}, {batches}, {len(self._seeds)} seeds, {options(told | {'random_seed': self.random_seed})}"


def _seeds_of(given: Any, node_type: NodeType, num_nodes: int, is_hetero: bool) -> Tensor:
    named, nodes = split_node_type(given)
    if named is not None and (not is_hetero or named != node_type):
        expected = f"{node_type!r}, where the metapath begins" if is_hetero else "ids without a type"
        raise ValueError(f"input_nodes is of type {named!r}: expected {expected}")
    if nodes is None:
        return torch.arange(num_nodes)
    seeds = as_ids(nodes, "input_nodes", num_nodes)
    require_nodes(seeds, num_nodes, f" of type {node_type!r}" if is_hetero else "")
    return seeds
