"""What to sample: the options that decide a batch, besides the graph, the seeds and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from torch import Tensor

from glt import _core
from glt._checks import check_at_least, check_flag, check_one_of, integer
from glt._reprs import options
from glt.data.schema import HOMOGENEOUS, EdgeType, Schema

GIVEN = object()  # in a rule: any value but None; as a value: given, but not worth printing


@dataclass(frozen=True)
class Conflict:
    """Two options, by the user's names, whose values exclude each other: one value, :data:`GIVEN`, or None for "not
    given"; why, and what to do; and what is raised, ValueError where PyG raises no other."""

    options: dict[str, Any]
    why: str
    error: type[Exception] = ValueError

    def holds(self, given: dict[str, Any]) -> bool:
        """Whether both values are given; an option that ``given`` does not mention has no value."""
        return all(name in given and _matches(given[name], value) for name, value in self.options.items())


# Every combination that is refused, by every sampler and loader.
CONFLICTS = (
    Conflict(
        {"subgraph_type": "induced", "time_attr": GIVEN},
        "among all edges between its nodes are later ones than the seed; use subgraph_type='directional'",
    ),
    Conflict(
        {"weight_attr": GIVEN, "time_attr": GIVEN},
        "weighted draws among the edges before a time are not supported; leave one out",
    ),
    Conflict(
        {"temporal_strategy": "last", "time_attr": None},
        "the last edges by time need a time; name the attribute that holds it",
    ),
    Conflict(
        {"sampler": "labor", "replace": True},
        "nodes take the neighbours whose numbers are lowest, each once; leave one out",
    ),
    Conflict(
        {"sampler": "labor", "temporal_strategy": "last"},
        "the last edges are no choice among edges; use 'uniform' or 'decay', or leave sampler out",
    ),
    Conflict(
        {"temporal_strategy": "decay", "time_attr": None},
        "draws by age need a time; name the attribute that holds it",
    ),
    Conflict(
        {"temporal_strategy": "decay", "half_life": None},
        "draws by age need to know in what time a weight halves; give it, in the unit of the times",
    ),
    Conflict({"temporal_strategy": "uniform", "half_life": GIVEN}, "only temporal_strategy='decay' draws by age"),
    Conflict({"temporal_strategy": "last", "half_life": GIVEN}, "only temporal_strategy='decay' draws by age"),
    Conflict({"time_window": GIVEN, "time_attr": None}, "a window bounds the times that time_attr names; name it"),
    Conflict({"time_bound": "<", "time_attr": None}, "the bound is one of the times that time_attr names; name it"),
    Conflict(
        {"input_time": GIVEN, "time_attr": None}, "seed times compare with the times that time_attr names; name it"
    ),
    Conflict(
        {"time_level": "edge", "input_time": None},
        "times of edges say nothing of when a seed is looked at; give one time per seed",
    ),
    Conflict(
        {"edge_label_time": GIVEN, "time_attr": None},
        "times of seed edges compare with the times that time_attr names; name it",
    ),
    Conflict(
        {"time_attr": GIVEN, "edge_label_time": None},
        "an edge has no time of its own at which to look at its ends; give one time per seed edge",
    ),
    Conflict(
        {"sample_direction": "backward", "time_attr": GIVEN},
        "time runs one way; expand nodes along their in-edges",
        NotImplementedError,
    ),
    Conflict(
        {"neg_sampling": GIVEN, "neg_sampling_ratio": GIVEN},
        "the ratio is PyG's old name for neg_sampling={'mode': 'binary', 'amount': ratio}; leave it out",
    ),
    Conflict(
        {"filter_per_worker": False, "data": "DistDataset"},
        "the samplers of a partition look features up where they are; leave filter_per_worker out, or look up features "
        "yourself, with collect_features=False and transform",
    ),
    Conflict({"directed": False, "subgraph_type": "bidirectional"}, "directed=False is PyG's old name for 'induced'"),
    Conflict(
        {"exclude_edges": GIVEN, "subgraph_type": "induced"},
        "the excluded edges would come back among the induced ones; leave one out",
    ),
    Conflict(
        {"exclude_edges": "self", "subgraph_type": "bidirectional"},
        "the reverse of a reverse edge is the excluded edge again; use exclude_edges='reverse'",
    ),
)


def refuse_conflicts(**given: Any) -> None:
    """Raises ValueError, or what PyG raises, if two options exclude each other; names both, their values and the
    reason. Options go by the user's names; None: not given."""
    for conflict in CONFLICTS:
        if conflict.holds(given):
            both = " and ".join(_described(name, given[name]) for name in conflict.options)
            raise conflict.error(f"{both}: {conflict.why}")


def _matches(value: Any, clash: Any) -> bool:
    if clash is GIVEN:
        return value is not None
    return value is None if clash is None else isinstance(value, type(clash)) and value == clash


def _described(name: str, value: Any) -> str:
    if value is None:
        return f"{name!r} is not set"  # in PyG's words, for which people search
    return f"{name} = {value!r}" if isinstance(value, str | bool) else f"{name!r} is set"


MAX_HOPS = 255
MAX_DRAWS = 1 << 20  # with replacement, per node and hop: they take memory however few edges the node has


def per_edge_type(num_neighbors: Any, schema: Schema, replace: bool = False) -> tuple[tuple[int, ...], ...]:
    """Returns the counts of each edge type, hop by hop, in the schema's order.

    Args:
        num_neighbors: One count per hop (a list, tuple, or one-dimensional tensor or array) for all edge types; a dict
            of such by edge type (``(src, rel, dst)``, ``(src, dst)`` or ``'src__rel__dst'``); or PyG's
            ``NumNeighbors``. -1 takes all edges, 0 none. Without hops, a batch is its seeds.
        schema: The edge types there are.
        replace: Whether to draw with replacement, which bounds the counts.

    Raises:
        TypeError, ValueError: Naming the element, its value and what was expected.
    """
    values, default = num_neighbors, None
    if hasattr(values, "values") and hasattr(values, "default"):  # NumNeighbors, without importing PyG
        values, default = num_neighbors.values, num_neighbors.default
    if not isinstance(values, Mapping):
        return (_counts("num_neighbors", values, replace),) * len(schema.edge_types)
    given = {
        _edge_type("num_neighbors", key): _counts(f"num_neighbors[{key!r}]", value, replace)
        for key, value in values.items()
    }
    unknown = [t for t in given if t not in schema.edge_types]
    if not given and not schema.is_hetero:
        raise ValueError(f"num_neighbors = {num_neighbors!r}: expected a list with one count per hop")
    if unknown or not schema.is_hetero:
        raise ValueError(
            f"num_neighbors names edge type {(unknown or list(given))[0]}: Not all edge types specified in "
            f"'num_neighbors' exist in the graph, which has {_known(schema)}"
        )
    rest = None if default is None else _counts("num_neighbors.default", default, replace)
    missing = [t for t in schema.edge_types if t not in given]
    if missing and rest is None:
        raise ValueError(
            f"num_neighbors: Missing number of neighbors for edge type '{missing[0]}'; expected a list for each of "
            f"{_known(schema)}, or NumNeighbors(values, default)"
        )
    counts = tuple(given.get(t) or rest or () for t in schema.edge_types)
    by_hops = {len(c): t for c, t in zip(counts, schema.edge_types, strict=True)}
    if len(by_hops) > 1:
        raise ValueError(
            "num_neighbors: Number of hops must be the same across all edge types, but there are "
            + " and ".join(f"{hops} of {edge_type}" for hops, edge_type in by_hops.items())
        )
    return counts


def _counts(name: str, counts: Any, replace: bool) -> tuple[int, ...]:
    if isinstance(counts, Tensor | np.ndarray) and counts.ndim == 1:
        counts = counts.tolist()
    if isinstance(counts, str | int) or not isinstance(counts, Sequence):
        raise TypeError(f"{name} = {counts!r}: expected a list with one count per hop, such as [15, 10]")
    if len(counts) > MAX_HOPS:
        raise ValueError(f"{name} has {len(counts)} hops: expected at most {MAX_HOPS}")
    for hop, count in enumerate(counts):
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{name}[{hop}] = {count!r}: expected an integer")
        if not -1 <= count < 2**31:
            raise ValueError(f"{name}[{hop}] = {count}: expected -1 (all), 0 (none) or a count below 2^31")
        if replace and count > MAX_DRAWS:
            raise ValueError(
                f"{name}[{hop}] = {count} and replace = True: that many edges would be drawn for every node; expected "
                f"at most {MAX_DRAWS}, or -1, which takes each edge once"
            )
    return tuple(int(count) for count in counts)


def times_by_edge_type(
    name: str, given: Any, least: int, schema: Schema, timed: Sequence[bool] | None = None
) -> tuple[int | None, ...] | None:
    """Returns a time for each edge type, in the schema's order, None where there is none: ``given`` is an integer for
    all, or a dict by edge type; None: None. Raises TypeError or ValueError unless they are at least ``least``, or if it
    names a type that is not ``timed``."""
    if given is None:
        return None
    by_type = {_edge_type(name, key): value for key, value in given.items()} if isinstance(given, Mapping) else None
    unknown = [each for each in by_type or () if each not in schema.edge_types]
    if unknown:
        known = list(schema.edge_types) if schema.is_hetero else "no types: expected an integer"
        raise ValueError(f"{name} names edge type {unknown[0]}: the graph has {known}")
    for edge_type, has_time in zip(schema.edge_types, timed or (), strict=False):
        if by_type is not None and edge_type in by_type and not has_time:
            raise ValueError(f"{name} names edge type {edge_type}, which has no times: leave it out")

    def checked(value: Any) -> int:
        return integer(name, value, least, 2**63 - 1, "in the unit of the times")

    if by_type is None:
        return (checked(given),) * len(schema.edge_types)
    times = {each: checked(value) for each, value in by_type.items()}
    return tuple(map(times.get, schema.edge_types))


def _edge_type(name: str, key: Any) -> EdgeType:
    parts = tuple(key.split("__")) if isinstance(key, str) else tuple(key) if isinstance(key, tuple | list) else ()
    if len(parts) == 2:
        parts = (parts[0], "to", parts[1])  # PyG's default relation
    if len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"{name} names {key!r}: expected an edge type, (source type, relation, target type)")
    return parts[0], parts[1], parts[2]


def _known(schema: Schema) -> str:
    return str(list(schema.edge_types)) if schema.is_hetero else "no types: expected a list with one count per hop"


SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")
SAMPLERS = ("neighbor", "labor")
TEMPORAL_STRATEGIES = ("uniform", "last", "decay")
TIME_BOUNDS = ("<=", "<")
TIME_LEVELS = ("node", "edge")
EXCLUSIONS = ("self", "reverse")


@dataclass(frozen=True)
class SamplingConfig:
    """Options of a multi-hop sample, checked: build it with :meth:`checked`. They are those of
    :class:`glt.sampler.NeighborSampler`, with ``num_neighbors`` for each edge type and hop; ``disjoint`` is always so
    when temporal. ``weighted``: draw edges with probability proportional to their weight. ``temporal``: ``'uniform'``,
    ``'last'`` or ``'decay'``, None: time plays no role; ``time_level``: what carries the time, ``'node'`` or
    ``'edge'``; ``time_window`` and ``half_life``: one for each edge type, or None.
    ``sampler``: ``'neighbor'`` or ``'labor'``.

    Example:
        >>> config = glt.sampler.SamplingConfig(num_neighbors=((15, 10),), replace=True)  # by edge type
        >>> config.num_hops
        2
    """

    num_neighbors: tuple[tuple[int, ...], ...]
    sampler: str = "neighbor"
    batch_dependency: int = 1
    replace: bool = False
    with_edge: bool = True
    disjoint: bool = False
    weighted: bool = False
    temporal: str | None = None
    time_level: str | None = None
    time_bound: str = "<="
    time_window: tuple[int | None, ...] | None = None
    half_life: tuple[int | None, ...] | None = None
    subgraph_type: str = "directional"
    exclude_edges: str | EdgeType | None = None

    @property
    def num_hops(self) -> int:
        return len(self.num_neighbors[0]) if self.num_neighbors else 0

    @property
    def last(self) -> bool:
        return self.temporal == "last"

    @property
    def native_times(self) -> dict[str, list[int]]:
        """``time_window`` and ``half_life`` as the native sampler takes them, given :meth:`latest` as seed times: by
        edge type, -1 and 0 where there is none; empty: none anywhere."""
        below = self.time_bound == "<"
        return {
            "time_window": [-1 if each is None else each - below for each in self.time_window or ()],
            "half_life": [each or 0 for each in self.half_life or ()],
        }

    def numbers(self, batch_key: int, shared_key: int | None = None) -> dict[str, int]:
        """What the native sampler is told of the numbers of nodes, if it needs them; ``shared_key`` is that of a window
        of batches (:meth:`glt.sampler.BatchIndex.shared_key`), by default that of the batch alone."""
        if self.sampler != "labor":
            return {}
        return {"shared_key": _core.shared_key(batch_key, 0, 0) if shared_key is None else shared_key}

    def latest(self, seed_time: Any) -> Any:
        """The latest times that may be sampled, given those of seeds, int64, or None. Raises ValueError if there is
        none."""
        if seed_time is None or self.time_bound == "<=":
            return seed_time
        if len(seed_time) and int(seed_time.min()) == -(2**63):
            raise ValueError("a seed's time is -2^63 and time_bound = '<': no time is earlier; use '<='")
        return seed_time - 1

    def no_room(self, num_seeds: int) -> str:
        return (
            f"no memory for a batch around {num_seeds} seeds with num_neighbors = {self.num_neighbors}, replace = "
            f"{self.replace}: use smaller batches, fewer hops or smaller counts"
        )

    @classmethod
    def checked(
        cls,
        num_neighbors: Any,
        schema: Schema = HOMOGENEOUS,
        *,
        timed: Sequence[bool] | None = None,
        **options: Any,
    ) -> SamplingConfig:
        """Checks and normalises the options: ``num_neighbors`` in any form of :func:`per_edge_type`, ``time_window``
        and ``half_life`` as one integer or by edge type, and the other attributes; enums of PyG stand for their values.
        ``timed``: which edge types have times, where that is known.

        Raises:
            TypeError, ValueError: Naming the option, the value and what was expected, or both of two options that
                exclude each other.
        """
        options = {name: getattr(value, "value", value) for name, value in options.items()}
        if isinstance(options.get("exclude_edges"), list):
            options["exclude_edges"] = tuple(options["exclude_edges"])
        for name, known in (
            ("sampler", SAMPLERS),
            ("subgraph_type", SUBGRAPH_TYPES),
            ("temporal", (None, *TEMPORAL_STRATEGIES)),
            ("time_level", (None, *TIME_LEVELS)),
            ("time_bound", TIME_BOUNDS),
            ("exclude_edges", (None, *EXCLUSIONS, *schema.edge_types)),
        ):
            if name in options:
                check_one_of(name, options[name], known)
        for name in ("replace", "with_edge", "disjoint", "weighted"):
            if name in options:
                check_flag(name, options[name])
        if "batch_dependency" in options:
            options["batch_dependency"] = check_at_least("batch_dependency", options["batch_dependency"], 1)
        least = {"time_window": int(options.get("time_bound") == "<"), "half_life": 1}
        for name in least.keys() & options.keys():
            options[name] = times_by_edge_type(name, options[name], least[name], schema, timed)
        config = cls(per_edge_type(num_neighbors, schema, options.get("replace", False)), **options)
        refuse_conflicts(
            sampler=config.sampler,
            replace=config.replace,
            subgraph_type=config.subgraph_type,
            disjoint=config.disjoint,
            time_attr=config.temporal and GIVEN,
            temporal_strategy=config.temporal,
            time_bound=config.time_bound,
            time_window=config.time_window,
            half_life=config.half_life,
            weight_attr=GIVEN if config.weighted else None,
            exclude_edges=config.exclude_edges,
        )
        if config.batch_dependency > 1 and config.sampler != "labor":
            raise ValueError(
                f"batch_dependency = {config.batch_dependency} and sampler = {config.sampler!r}: only nodes of "
                "sampler='labor' have numbers that batches can share; leave one out"
            )
        return config if config.temporal is None else replace(config, disjoint=True)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, options: dict[str, Any]) -> SamplingConfig:
        """Rebuilds what :meth:`to_json` described, without checks."""
        counts, exclude = options["num_neighbors"], options["exclude_edges"]
        exclude = tuple(exclude) if isinstance(exclude, list) else exclude
        times = {name: options[name] and tuple(options[name]) for name in ("time_window", "half_life")}
        return cls(**{**options, **times, "num_neighbors": tuple(map(tuple, counts)), "exclude_edges": exclude})

    def says(self) -> str:
        """The options that are not those of a plain sampler, for reprs."""
        fan_outs = [list(each) for each in self.num_neighbors]
        told: dict[str, Any] = {"num_neighbors": fan_outs[0] if len({*self.num_neighbors}) == 1 else fan_outs}
        plain = {each.name: each.default for each in fields(self)}
        times = ("temporal", "time_bound", "time_window", "half_life")
        kind = ("sampler", "batch_dependency", "replace", "disjoint", "weighted")
        for name in (*kind, *times, "subgraph_type", "exclude_edges"):
            if getattr(self, name) != plain[name]:
                told[name] = getattr(self, name)
        return options(told)
