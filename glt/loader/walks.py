"""Windows of random walks and negatives, from which embeddings of nodes are trained."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from glt._checks import check_at_least, refuse_unknown
from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.arrays import checked_times, require_in_range
from glt.data.dataset import Dataset
from glt.data.schema import EdgeType, NodeType, Schema
from glt.loader.keyed import OF_TORCH, KeyedLoader
from glt.loader.seeds import checked_nodes, ids_of_keys
from glt.sampler.negatives import Endpoint
from glt.sampler.order import BatchIndex, as_json, crc32_of
from glt.sampler.walk_options import WalkOptions
from glt.sampler.walks import RandomWalkSampler

if TYPE_CHECKING:
    from glt.sampler.graph import SampledGraph, Source


@dataclass(frozen=True)
class WalkWindows:
    """What batches are made of walks: windows of ``context_size`` nodes, and ``num_negative_samples`` sequences of
    negatives for each walk. ``types`` are those of the nodes of a walk, with ``num_nodes_of`` each; ``offsets``: where
    in one embedding of ``num_nodes`` rows those of a type begin."""

    types: Sequence[NodeType]
    num_nodes_of: Mapping[NodeType, int]
    context_size: int
    num_negative_samples: int

    @classmethod
    def of(
        cls,
        walks: WalkOptions,
        schema: Schema,
        ends: Sequence[tuple[int, int]],
        num_nodes_of: Sequence[int],
        context_size: int,
        num_negative_samples: int,
    ) -> WalkWindows:
        """Raises ValueError if a number does not fit."""
        num_negative_samples = check_at_least("num_negative_samples", num_negative_samples, 1)
        context_size = check_at_least("context_size", context_size, 2)
        if context_size > walks.walk_length + 1:
            raise ValueError(
                f"context_size = {context_size}: expected at most the nodes of a walk, walk_length + 1 = "
                f"{walks.walk_length + 1}"
            )
        sizes = dict(zip(schema.node_types, map(int, num_nodes_of), strict=True))
        return cls(walks.node_types(schema, ends), sizes, context_size, num_negative_samples)

    @cached_property
    def offsets(self) -> dict[NodeType, int]:
        names = sorted({*self.types})
        return dict(zip(names, accumulate((self.num_nodes_of[each] for each in names[:-1]), initial=0), strict=True))

    @cached_property
    def num_nodes(self) -> int:
        return sum(self.num_nodes_of[each] for each in self.offsets)

    def batch(self, walks: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """Windows of these walks, and negatives drawn by this key."""
        windows = self._windows(walks)
        return windows[windows[:, -1] >= 0], self._windows(self._negatives(walks[:, 0], key))

    def _windows(self, walks: Tensor) -> Tensor:
        rows = walks
        if len(self.offsets) > 1:
            first = torch.tensor([self.offsets[each] for each in self.types])
            rows = torch.where(walks < 0, walks, walks + first)
        return rows.unfold(1, self.context_size, 1).reshape(-1, self.context_size)

    def _negatives(self, seeds: Tensor, key: int) -> Tensor:
        seeds = seeds.repeat_interleave(self.num_negative_samples)
        drawn = np.empty((len(self.types) - 1, len(seeds)), np.int64)
        for step, node_type in enumerate(self.types[1:]):
            slots = np.arange(step * len(seeds), (step + 1) * len(seeds))
            drawn[step] = Endpoint("dst", self.num_nodes_of[node_type]).draw(key, slots, np.zeros_like(slots))
        return torch.cat([seeds[:, None], torch.from_numpy(drawn).T], 1)

    def to_json(self) -> dict[str, Any]:
        return {"context_size": self.context_size, "num_negative_samples": self.num_negative_samples}


def seeds_of_walks(given: Any, node_type: int, schema: Schema, num_nodes_of: Sequence[int]) -> Tensor:
    """Returns the ids of seeds, which must be of the type at which walks begin. Raises IndexError, TypeError or
    ValueError if they do not fit."""
    seed_type, columns = checked_nodes(given, schema, num_nodes_of)
    if seed_type != node_type:
        names = schema.node_types
        raise ValueError(
            f"input_nodes is of type {names[seed_type]!r}: expected {names[node_type]!r}, where the metapath begins"
        )
    return columns["node"]


def require_times_of_walks(input_time: Any, time_attr: str | None) -> None:
    if (input_time is None) != (time_attr is None):
        raise ValueError("input_time and time_attr: expected both, of walks back in time, or neither")


def told_of_walks(walks: WalkOptions, windows: WalkWindows, walks_per_node: int) -> dict[str, Any]:
    """The options of a loader of walks that are not those by default, for representations."""
    own = {**windows.to_json(), "walks_per_node": walks_per_node}
    return walks.told() | {name: value for name, value in own.items() if value != 1}


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
        input_nodes: Seeds, of the node type at which the metapath begins: ids, keys, or a bool mask over all nodes; of
            a heterogeneous graph a pair of the type and these. Default: all nodes.
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
        for name in ("dataset", "collate_fn"):  # PyTorch Lightning gives them
            kwargs.pop(name, None)
        refuse_unknown("RandomWalkLoader", kwargs, OF_TORCH | {*locals()})
        walks_per_node = check_at_least("walks_per_node", walks_per_node, 1)
        self._choose_seed(random_seed, kwargs)
        self.walks_per_node: int = walks_per_node
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
        graph, walk = self._walks.graph, self._walks.options
        self.windows: WalkWindows = WalkWindows.of(
            walk, graph.schema, graph.ends, graph.num_nodes, context_size, num_negative_samples
        )
        first = graph.ends[walk.path[0]][0]
        if input_nodes is None:
            ids = torch.arange(graph.num_nodes[first])
            input_nodes = (graph.schema.node_types[first], ids) if graph.schema.is_hetero else ids
        given = ids_of_keys(input_nodes, data.ids) if isinstance(data, Dataset) else input_nodes
        self._seeds = seeds_of_walks(given, first, graph.schema, graph.num_nodes)
        require_times_of_walks(input_time, time_attr)
        self._time = None if input_time is None else checked_times("input_time", input_time, len(self._seeds))
        super().__init__(range(len(self._seeds)), collate_fn=self.collate_fn, **kwargs)  # type: ignore[arg-type]
        self._complete_order()

    def collate_fn(self, index: BatchIndex) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Walks from the seeds of a batch, and draws its negatives."""
        require_in_range("positions that sampler yields", index.input_id, len(self._seeds))
        began_s = time.perf_counter()
        seeds = self._seeds[index.input_id].repeat_interleave(self.walks_per_node)
        times = None if self._time is None else self._time[index.input_id].repeat_interleave(self.walks_per_node)
        walks = self._walks.walk(seeds, seed_time=times, batch_key=index.key)
        batch = self.windows.batch(walks, index.key)
        self._counts.take_walks(len(index), began_s)
        return batch

    @property
    def offsets(self) -> dict[NodeType, int]:
        return self.windows.offsets

    @property
    def num_nodes(self) -> int:
        return self.windows.num_nodes

    def _fingerprint(self) -> dict[str, Any]:
        graph = self._walks.graph
        fields = {
            "num_nodes": [int(n) for n in graph.num_nodes],
            "num_edges": [int(topology.num_edges) for topology in graph.topologies],
            "seeds_crc32": crc32_of({"node": self._seeds, "time": self._time}),
        }
        own = {"walks_per_node": self.walks_per_node, **self.windows.to_json(), **self._walks.options.to_json()}
        return as_json(self._order_options() | own | fields)  # type: ignore[no-any-return]

    @says
    def __repr__(self) -> str:
        where = f"in {self.num_workers} processes" if self.num_workers else "in this process"
        told = told_of_walks(self._walks.options, self.windows, self.walks_per_node)
        told |= {"shuffle": self._shuffles, "drop_last": self.drop_last}
        count, size = self._num_batches(), self.batch_size
        batches = f"{'' if count is None else f'{count} '}batches{'' if size is None else f' of {size} nodes'}"
        return f"{where}, {batches}, {len(self._seeds)} seeds, {options(told | {'random_seed': self.random_seed})}"
