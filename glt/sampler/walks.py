"""Random walks in this process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._checks import check_at_least, check_one_of
from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids
from glt.data.schema import EdgeType, NodeType
from glt.sampler.config import GIVEN, TIME_BOUNDS, Conflict, refuse_conflicts
from glt.sampler.graph import NeighborOutput, SampledGraph, sampled_graph
from glt.sampler.order import CallKeys, check_random_seed, draw_random_seed

if TYPE_CHECKING:
    from glt.sampler.graph import Source

_PATH, _NODE2VEC = "a metapath of several edge types", "p or q"
_CONFLICTS = (
    Conflict({_NODE2VEC: GIVEN, "restart_prob": GIVEN}, "a step that begins at the seed came from no node"),
    Conflict({_NODE2VEC: GIVEN, "time_attr": GIVEN}, "node2vec asks whether edges exist, which changes with time"),
    Conflict({_NODE2VEC: GIVEN, _PATH: GIVEN}, "node2vec asks for edges between nodes two steps apart"),
)


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
        check_at_least("walk_length", walk_length, 1)
        if walk_length > _core.most_walk_steps:
            raise ValueError(f"walk_length = {walk_length}: expected at most {_core.most_walk_steps}")
        for name, value, least, most in (
            ("p", p, 0.01, 100),
            ("q", q, 0.01, 100),
            ("restart_prob", restart_prob, 0, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise ValueError(f"{name} = {value!r}: expected a number, {least} to {most}")
        check_one_of("time_bound", time_bound, TIME_BOUNDS)
        refuse_conflicts(weight_attr=weight_attr, time_attr=time_attr, time_bound=time_bound)
        check_at_least("num_threads", num_threads, 1)
        self.walk_length: int = walk_length
        self.num_threads: int = num_threads
        self.random_seed: int = check_random_seed(draw_random_seed() if random_seed is None else random_seed)
        self.graph: SampledGraph = sampled_graph(data, edge_dir="out", time_attr=time_attr, weight_attr=weight_attr)
        if time_attr is not None and self.graph.time_level != "edge":
            raise ValueError(f"time_attr = {time_attr!r}: it has times of nodes; expected those of edges")
        self._path = _path_of(self.graph, metapath)
        given = {
            "time_attr": time_attr,
            "restart_prob": restart_prob or None,
            _NODE2VEC: None if p == q == 1 else (p, q),
            _PATH: metapath if len(self._path) > 1 or len({*self.graph.ends[self._path[0]]}) > 1 else None,
        }
        for conflict in _CONFLICTS:
            if conflict.holds(given):
                first, second = conflict.options
                raise ValueError(f"{first} and {second} are set: {conflict.why}; leave one out")
        self._timed = time_attr is not None
        self._earlier = time_bound == "<"
        self._weighted = weight_attr is not None
        self._options: dict[str, Any] = {"restart": restart_prob, "back": 1 / p, "far": 1 / q, "earlier": self._earlier}
        self._told = {
            "p": p,
            "q": q,
            "restart_prob": restart_prob,
            "weight_attr": weight_attr,
            "time_attr": time_attr,
            "time_bound": time_bound,
        }
        self._call_keys = CallKeys()

    def walk(self, seeds: Any, *, seed_time: Any = None, batch_key: int | None = None) -> Tensor:
        """Walks from each seed.

        Args:
            seeds: Ids ``[n]`` of nodes of the type at which the metapath begins; one that comes twice has two walks.
            seed_time: With ``time_attr``, the latest time of each walk's first edge, ``[n]``, int64.
            batch_key: Key of the draws, in [0, 2^64), such as :meth:`BatchIndex.key`. Default: a new one in every call.

        Returns:
            Ids ``[n, walk_length + 1]``, int64: the seed, and the node after each step; -1 behind a node from which
            there is no step.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            TypeError, ValueError: If an argument does not fit.
        """
        ids = as_ids(seeds, "seeds")
        time = self._latest(seed_time, len(ids))
        key = self._call_keys.next(self.random_seed) if batch_key is None else batch_key
        out = torch.empty(len(ids) * (self.walk_length + 1), dtype=torch.int64)
        _core.walk(
            self._csrs,
            ids.numpy(),
            out.numpy(),
            self.walk_length,
            path=self._path,
            batch_key=key,
            seed_time=time,
            num_threads=self.num_threads,
            **self._options,
        )
        return out.view(len(ids), self.walk_length + 1)

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
        check_at_least("num_neighbors", num_neighbors, 1)
        check_at_least("num_walks", num_walks, 1)
        start, end = self.graph.ends[self._path[0]][0], self.graph.ends[self._path[-1]][1]
        if start != end:
            types = self.graph.schema.node_types
            raise ValueError(f"metapath: it ends at {types[end]!r} nodes: expected {types[start]!r}, where it begins")
        if self._timed:
            raise ValueError("time_attr is set: visits are counted of walks without times")
        ids = as_ids(seeds, "seeds")
        walks = self.walk(ids.repeat_interleave(num_walks), batch_key=batch_key).numpy()
        stride = len(self._path)
        ends = walks[:, stride::stride].reshape(len(ids), num_walks * (self.walk_length // stride))
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
    def _csrs(self) -> list[_core.Csr]:
        """The rows of each edge type: by time, with weights, or plain."""
        return [
            t.csr_by_time if self._timed and t.by_time is not None else t.csr if self._weighted else t.csr_unweighted
            for t in self.graph.topologies
        ]

    def _latest(self, seed_time: Any, num_seeds: int) -> np.ndarray | None:
        if not self._timed:
            if seed_time is not None:
                raise ValueError("seed_time is given, and time_attr is not set: it compares with the times of edges")
            return None
        if seed_time is None:
            raise ValueError("seed_time is not given: walks back in time need one time per seed")
        time = as_ids(seed_time, "seed_time")
        if len(time) != num_seeds:
            raise ValueError(f"seed_time has {len(time)} times: expected one for each of {num_seeds} seeds")
        if self._earlier and num_seeds and int(time.min()) == -(2**63):
            raise ValueError("seed_time has -2^63 and time_bound = '<': no time is earlier; use '<='")
        return (time - 1 if self._earlier else time).numpy()

    @property
    def node_types(self) -> list[NodeType]:
        """That of each node of a walk, ``walk_length + 1``."""
        types, ends = self.graph.schema.node_types, [self.graph.ends[each] for each in self._path]
        steps = (ends[i % len(ends)] for i in range(self.walk_length))
        return [types[ends[0][0]], *(types[end] for _, end in steps)]

    def to_json(self) -> dict[str, Any]:
        """What walks depend on, beside the graph and their keys, by the names that users know."""
        metapath = [self.graph.schema.edge_types[each] for each in self._path]
        return {"walk_length": self.walk_length, **self._told, "metapath": metapath}

    def told(self) -> dict[str, Any]:
        """The options that are not as by default, for representations."""
        plain = {
            "p": 1.0,
            "q": 1.0,
            "restart_prob": 0.0,
            "weight_attr": None,
            "time_attr": None,
            "time_bound": "<=",
        }
        told: dict[str, Any] = {"walk_length": self.walk_length}
        return told | {name: value for name, value in self._told.items() if value != plain[name]}

    @says
    def __repr__(self) -> str:
        return options(self.told())


def _path_of(graph: SampledGraph, metapath: Sequence[EdgeType] | None) -> list[int]:
    """The positions of its edge types; raises TypeError or ValueError if it is no path."""
    types = graph.schema.edge_types
    if metapath is None:
        if len(types) != 1:
            raise ValueError(f"metapath is not given: expected a list of edge types, of {list(types)}")
        start, end = graph.ends[0]
        if start != end:
            raise ValueError(
                f"metapath is not given, and {types[0]} leads to nodes of another type: expected edge types that lead "
                "back, too"
            )
        return [0]
    if isinstance(metapath, str) or not isinstance(metapath, Sequence) or not metapath:
        raise TypeError(f"metapath = {metapath!r}: expected a list of edge types, such as [('user', 'buys', 'item')]")
    unknown = [each for each in metapath if tuple(each) not in types]
    if unknown:
        raise ValueError(f"metapath names edge type {unknown[0]!r}: the graph has {list(types)}")
    path = [types.index(tuple(each)) for each in metapath]
    for before, after in pairwise(metapath):
        ends, begins = graph.ends[types.index(tuple(before))][1], graph.ends[types.index(tuple(after))][0]
        if ends != begins:
            names = graph.schema.node_types
            raise ValueError(
                f"metapath: {tuple(after)} begins at {names[begins]!r} nodes, and {tuple(before)} before it ends at "
                f"{names[ends]!r}: expected the same"
            )
    return path
