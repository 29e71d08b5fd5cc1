"""Random walks in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._checks import check_at_least
from glt._reprs import options as told_options
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids
from glt.data.schema import EdgeType
from glt.sampler.graph import NeighborOutput, SampledGraph, sampled_graph
from glt.sampler.order import CallKeys, check_random_seed, draw_random_seed
from glt.sampler.walk_options import WalkOptions

if TYPE_CHECKING:
    from glt.sampler.graph import Source


@short_traceback
class RandomWalkSampler:
    """Walks from seeds along edges, step after step: uniformly, by weight, as node2vec does, along a metapath, with
    restarts, or back in time.

    A walk is a function of (graph, options, key, its position among the seeds), whatever the number of threads. Its
    picks are those of a hop of :class:`NeighborSampler` with ``replace`` in a tree of its own.

    Args:
        data: As of :class:`NeighborSampler`. A walk goes along edges, from source to destination; in a dataset or graph
            with ``edge_dir='in'``, against them.
        walk_length: Steps, 1 to 255.
        p, q: Of node2vec, 0.01 to 100. A step goes back to the node before with weight 1 / ``p``, to a node that has an
            edge to that one with weight 1, to others with weight 1 / ``q``. Weights of edges count too.
        metapath: The edge types of the steps, over and over. Each begins where the one before ends. Needed if there are
            several edge types.
        restart_prob: The chance of being at the seed again before each traversal of the metapath (of one edge type,
            before each step). The walk shows the step that follows.
        weight_attr: Attribute with weights of edges, as of :class:`NeighborSampler`.
        time_attr: Attribute with times of edges, int64. Walks go back in time: each edge is no later than the one
            before it, the first no later than its seed's time. Steps along types without times keep the time.
        time_bound: ``'<='``, or ``'<'``: each edge is earlier than the one before it.
        random_seed: Seed of the draws, in [0, 2^63). Default: drawn from torch's generator.
        num_threads: Threads per call; the result does not depend on it.

    Raises:
        TypeError, ValueError: If an argument does not fit, or two exclude each other; names them.

    Source: Grover and Leskovec, "node2vec", KDD 2016, by rejection (Yang et al., "KnightKing", SOSP 2019).

    Example:
        >>> dataset = glt.testing.ring_graph().to_dataset()
        >>> sampler = glt.sampler.RandomWalkSampler(dataset, walk_length=3, random_seed=0)
        >>> sampler.walk(torch.tensor([5, 9])).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        data: Source | SampledGraph,
        walk_length: int,
        *,
        p: float = 1.0,
        q: float = 1.0,
        metapath: Sequence[EdgeType] | None = None,
        restart_prob: float = 0.0,
        weight_attr: str | None = None,
        time_attr: str | None = None,
        time_bound: str = "<=",
        random_seed: int | None = None,
        num_threads: int = 1,
    ) -> None:
        num_threads = check_at_least("num_threads", num_threads, 1)
        self.num_threads: int = num_threads
        self.random_seed: int = check_random_seed(draw_random_seed() if random_seed is None else random_seed)
        self.graph: SampledGraph = sampled_graph(data, edge_dir="out", time_attr=time_attr, weight_attr=weight_attr)
        if time_attr is not None and self.graph.time_level != "edge":
            raise ValueError(f"time_attr = {time_attr!r}: it has times of nodes; expected those of edges")
        self.options: WalkOptions = WalkOptions.checked(
            self.graph.schema,
            self.graph.ends,
            walk_length,
            p=p,
            q=q,
            metapath=metapath,
            restart_prob=restart_prob,
            weight_attr=weight_attr,
            time_attr=time_attr,
            time_bound=time_bound,
        )
        self._call_keys = CallKeys()

    def walk(self, seeds: Any, *, seed_time: Any = None, batch_key: int | None = None) -> Tensor:
        """Walks from each seed.

        Args:
            seeds: Ids ``[n]`` of nodes of the type at which the metapath begins, or a mask over all of them; one that
                comes twice has two walks.
            seed_time: With ``time_attr``, the latest time of each walk's first edge, ``[n]``, int64.
            batch_key: Key of the draws, in [0, 2^64), such as :meth:`BatchIndex.key`. Default: a new one in every call.

        Returns:
            Ids ``[n, walk_length + 1]``, int64: the seed, and the node after each step; -1 behind a node from which
            there is no step.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            TypeError, ValueError: If an argument does not fit.
        """
        ids = as_ids(seeds, "seeds", self._num_first)
        time = self.options.latest(seed_time, len(ids))
        key = self._call_keys.of_call(self.random_seed, batch_key)
        out = torch.empty(len(ids), self.options.walk_length + 1, dtype=torch.int64)
        seed_times = None if time is None else time.numpy()
        _core.walk(self._csrs, ids.numpy(), out.view(-1).numpy(), self.options.spec(key), seed_times, self.num_threads)
        return out

    def top_visited(
        self, seeds: Any, num_neighbors: int, *, num_walks: int = 10, batch_key: int | None = None
    ) -> tuple[NeighborOutput, Tensor]:
        """The nodes that walks from each seed visit most, as PinSAGE takes its neighbours (Ying et al., KDD 2018).

        Args:
            seeds: As of :meth:`walk`.
            num_neighbors: How many of each seed at most.
            num_walks: Walks from each seed. Visits count at the end of each traversal of the metapath; those of the
                seed itself do not.
            batch_key: As of :meth:`walk`.

        Returns:
            The neighbours, seed after seed, most visits first, of equal ones the lowest id; and ``[E]``, int64, how
            often each was visited.

        Raises:
            IndexError, TypeError, ValueError: As of :meth:`walk`; or if the metapath does not end where it begins.
        """
        num_neighbors = check_at_least("num_neighbors", num_neighbors, 1)
        num_walks = check_at_least("num_walks", num_walks, 1)
        path, ends_of = self.options.path, self.graph.ends
        start, end = ends_of[path[0]][0], ends_of[path[-1]][1]
        if start != end:
            types = self.graph.schema.node_types
            raise ValueError(f"metapath: it ends at {types[end]!r} nodes: expected {types[start]!r}, where it begins")
        if self.options.timed:
            raise ValueError("time_attr is set: visits are counted of walks without times")
        ids = as_ids(seeds, "seeds", self._num_first)
        walks = self.walk(ids.repeat_interleave(num_walks), batch_key=batch_key).numpy()
        stride = len(path)
        ends = walks[:, stride::stride].reshape(len(ids), num_walks * (self.options.walk_length // stride))
        num_nodes = self.graph.num_nodes[start]
        seed = np.broadcast_to(np.arange(len(ids))[:, None], ends.shape)
        counts = (ends >= 0) & (ends != ids.numpy()[:, None])
        pair, visits = np.unique(seed[counts] * num_nodes + ends[counts], return_counts=True)
        of, node = np.divmod(pair, num_nodes)
        order = np.lexsort((node, -visits, of))
        of, node, visits = of[order], node[order], visits[order]
        rank = np.arange(len(of)) - np.searchsorted(of, of)
        kept = rank < num_neighbors
        num = np.bincount(of[kept], minlength=len(ids))
        found = NeighborOutput(torch.from_numpy(node[kept]), torch.from_numpy(num), None)
        return found, torch.from_numpy(visits[kept])

    @property
    def _num_first(self) -> int:
        """How many nodes there are where walks begin."""
        return int(self.graph.num_nodes[self.graph.ends[self.options.path[0]][0]])

    @property
    def _csrs(self) -> list[_core.Csr]:
        """The rows of each edge type: by time, with weights, or plain."""
        if self.options.timed:
            return [t.csr_unweighted if t.by_time is None else t.csr_by_time for t in self.graph.topologies]
        return [t.csr if self.options.weighted else t.csr_unweighted for t in self.graph.topologies]

    @says
    def __repr__(self) -> str:
        return told_options(self.options.told())
