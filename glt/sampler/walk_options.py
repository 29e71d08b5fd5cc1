"""What random walks are: the options that decide them, besides the graph, the seeds and the key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from torch import Tensor

from glt import _core
from glt._checks import check_at_least, check_one_of
from glt.data.arrays import checked_times
from glt.data.schema import EdgeType, NodeType, Schema
from glt.sampler.config import GIVEN, TIME_BOUNDS, Conflict, refuse_conflicts

_PATH, _NODE2VEC = "a metapath of several edge types", "p or q"
_CONFLICTS = (
    Conflict({_NODE2VEC: GIVEN, "restart_prob": GIVEN}, "a step that begins at the seed came from no node"),
    Conflict({_NODE2VEC: GIVEN, "time_attr": GIVEN}, "node2vec asks whether edges exist, which changes with time"),
    Conflict({_NODE2VEC: GIVEN, _PATH: GIVEN}, "node2vec asks for edges between nodes two steps apart"),
)


@dataclass(frozen=True)
class WalkOptions:
    """Options of random walks, checked: build it with :meth:`checked`. They are those of
    :class:`glt.sampler.RandomWalkSampler`; ``path`` are the positions of the edge types, ``weighted`` and ``timed``
    whether steps are drawn by weight, and go back in time."""

    walk_length: int
    path: tuple[int, ...] = (0,)
    p: float = 1.0
    q: float = 1.0
    restart_prob: float = 0.0
    weighted: bool = False
    timed: bool = False
    time_bound: str = "<="

    @classmethod
    def checked(
        cls,
        schema: Schema,
        ends: Sequence[tuple[int, int]],
        walk_length: int,
        *,
        p: float = 1.0,
        q: float = 1.0,
        metapath: Sequence[EdgeType] | None = None,
        restart_prob: float = 0.0,
        weight_attr: str | None = None,
        time_attr: str | None = None,
        time_bound: str = "<=",
    ) -> WalkOptions:
        """Checks the options. ``ends`` are the positions of the node types from which and to which steps along each
        edge type go.

        Raises:
            TypeError, ValueError: Naming the option, the value and what was expected, or both of two options that
                exclude each other.
        """
        walk_length = check_at_least("walk_length", walk_length, 1)
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
        path = _path_of(schema, ends, metapath)
        start, end = (schema.node_types[each] for each in (ends[path[0]][0], ends[path[-1]][1]))
        if walk_length > len(path) and start != end:
            raise ValueError(
                f"walk_length = {walk_length} and metapath has {len(path)} steps, from {start!r} to {end!r} nodes: "
                "longer walks go along it again; expected one that leads back, or fewer steps"
            )
        given = {
            "time_attr": time_attr,
            "restart_prob": restart_prob or None,
            _NODE2VEC: None if p == q == 1 else (p, q),
            _PATH: metapath if len(path) > 1 or len({*ends[path[0]]}) > 1 else None,
        }
        for conflict in _CONFLICTS:
            if conflict.holds(given):
                first, second = conflict.options
                raise ValueError(f"{first} and {second} are set: {conflict.why}; leave one out")
        timed, weighted = time_attr is not None, weight_attr is not None
        return cls(walk_length, path, float(p), float(q), float(restart_prob), weighted, timed, time_bound)

    def spec(self, batch_key: int) -> _core.WalkSpec:
        """What native walks are told."""
        return _core.WalkSpec(
            self.walk_length,
            path=self.path,
            batch_key=batch_key,
            restart=self.restart_prob,
            back=1 / self.p,
            far=1 / self.q,
            earlier=self.time_bound == "<",
        )

    def latest(self, seed_time: Any, num_seeds: int) -> Tensor | None:
        """The latest times of the first edges, given those of seeds; raises TypeError or ValueError if they do not
        fit."""
        if not self.timed:
            if seed_time is not None:
                raise ValueError("seed_time is given, and time_attr is not set: it compares with the times of edges")
            return None
        if seed_time is None:
            raise ValueError("seed_time is not given: walks back in time need one time per seed")
        time = checked_times("seed_time", seed_time, num_seeds)
        if self.time_bound == "<=":
            return time
        if num_seeds and int(time.min()) == -(2**63):
            raise ValueError("seed_time has -2^63 and time_bound = '<': no time is earlier; use '<='")
        return time - 1

    def node_types(self, schema: Schema, ends: Sequence[tuple[int, int]]) -> list[NodeType]:
        """The type of each node of a walk, ``walk_length + 1``."""
        steps = [ends[self.path[step % len(self.path)]][1] for step in range(self.walk_length)]
        return [schema.node_types[each] for each in (ends[self.path[0]][0], *steps)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, options: dict[str, Any]) -> WalkOptions:
        """Rebuilds what :meth:`to_json` described, without checks."""
        return cls(**options | {"path": tuple(options["path"])})

    def told(self) -> dict[str, Any]:
        """The options that are not those of plain walks, for representations."""
        plain = {each.name: each.default for each in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != plain[name]}


def _path_of(schema: Schema, ends: Sequence[tuple[int, int]], metapath: Sequence[EdgeType] | None) -> tuple[int, ...]:
    """The positions of its edge types; raises TypeError or ValueError if it is no path."""
    types, names = schema.edge_types, schema.node_types
    if metapath is None:
        if len(types) != 1:
            raise ValueError(f"metapath is not given: expected a list of edge types, of {list(types)}")
        start, end = ends[0]
        if start != end:
            raise ValueError(
                f"metapath is not given, and {types[0]} leads to nodes of another type: expected edge types that lead "
                "back, too"
            )
        return (0,)
    if isinstance(metapath, str) or not isinstance(metapath, Sequence) or not metapath:
        raise TypeError(f"metapath = {metapath!r}: expected a list of edge types, such as [('user', 'buys', 'item')]")
    for at, each in enumerate(metapath):
        if not isinstance(each, Sequence):
            raise TypeError(f"metapath[{at}] = {each!r}: expected an edge type, one of {list(types)}")
    unknown = [each for each in metapath if tuple(each) not in types]
    if unknown:
        raise ValueError(f"metapath names edge type {unknown[0]!r}: the graph has {list(types)}")
    path = tuple(types.index((each[0], each[1], each[2])) for each in metapath)
    for before, after in pairwise(path):
        end, begin = ends[before][1], ends[after][0]
        if end != begin:
            raise ValueError(
                f"metapath: {types[after]} begins at {names[begin]!r} nodes, and {types[before]} before it ends at "
                f"{names[end]!r}: expected the same"
            )
    return path
