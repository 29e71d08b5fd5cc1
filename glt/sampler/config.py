"""What to sample: the options that decide a batch, besides the graph, the seeds and the key."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from glt.data.schema import HOMOGENEOUS, EdgeType, Schema
from glt.sampler import conflicts
from glt.sampler.num_neighbors import per_edge_type

SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")
TEMPORAL_STRATEGIES = ("uniform", "last")
TIME_LEVELS = ("node", "edge")
EXCLUSIONS = ("self", "reverse")


@dataclass(frozen=True)
class SamplingConfig:
    """Options of a multi-hop sample, checked: build it with :meth:`checked`.

    Attributes:
        num_neighbors: Edges per node, for each edge type and hop; -1 takes all, 0 none.
        replace: Draw with replacement: exactly that many draws for every node with an edge. -1 still takes each once.
        with_edge: Return edge ids.
        disjoint: A tree per seed, which shares no node with the others. Always so when temporal.
        weighted: Draw edges with probability proportional to their weight.
        temporal: ``'uniform'`` or ``'last'``: only edges no later than the seed, drawn uniformly or the latest of
            them; None: time plays no role.
        time_level: What carries the time, ``'node'`` or ``'edge'``; None when not temporal.
        subgraph_type: ``'directional'``: the sampled edges; ``'bidirectional'``: and their reverses; ``'induced'``: all
            edges among the sampled nodes.
        exclude_edges: ``'self'``: the seed edges of a link batch are not sampled; ``'reverse'``: nor their reverses. An
            edge type: the same, naming the type that holds the reverses.
    """

    num_neighbors: tuple[tuple[int, ...], ...]
    replace: bool = False
    with_edge: bool = True
    disjoint: bool = False
    weighted: bool = False
    temporal: str | None = None
    time_level: str | None = None
    subgraph_type: str = "directional"
    exclude_edges: str | EdgeType | None = None

    @property
    def num_hops(self) -> int:
        return len(self.num_neighbors[0]) if self.num_neighbors else 0

    @property
    def last(self) -> bool:
        """Whether the latest edges are taken."""
        return self.temporal == "last"

    def no_room(self, num_seeds: int) -> str:
        """What to say when there is no memory for a batch."""
        return (
            f"no memory for a batch around {num_seeds} seeds with num_neighbors = {self.num_neighbors}, replace = "
            f"{self.replace}: use smaller batches, fewer hops or smaller counts"
        )

    @classmethod
    def checked(cls, num_neighbors: Any, schema: Schema = HOMOGENEOUS, **options: Any) -> SamplingConfig:
        """Checks and normalises the options.

        Args:
            num_neighbors: In any form of :func:`glt.sampler.num_neighbors.per_edge_type`.
            schema: The types of the graph.
            **options: The other attributes; enums of PyG stand for their values.

        Raises:
            TypeError, ValueError: Naming the option, the value and what was expected, or both of two options that
                exclude each other.
        """
        options = {name: getattr(value, "value", value) for name, value in options.items()}
        if isinstance(options.get("exclude_edges"), list):
            options["exclude_edges"] = tuple(options["exclude_edges"])
        for name, known in (
            ("subgraph_type", SUBGRAPH_TYPES),
            ("temporal", (None, *TEMPORAL_STRATEGIES)),
            ("time_level", (None, *TIME_LEVELS)),
            ("exclude_edges", (None, *EXCLUSIONS, *schema.edge_types)),
        ):
            if name in options and options[name] not in known:
                raise ValueError(f"{name} = {options[name]!r}: expected one of {list(known)}")
        for name in ("replace", "with_edge", "disjoint", "weighted"):
            if name in options and not isinstance(options[name], bool):
                raise TypeError(f"{name} = {options[name]!r}: expected True or False")
        config = cls(per_edge_type(num_neighbors, schema, options.get("replace", False)), **options)
        conflicts.refuse(
            subgraph_type=config.subgraph_type,
            disjoint=config.disjoint,
            time_attr=config.temporal and conflicts.GIVEN,
            weight_attr=conflicts.GIVEN if config.weighted else None,
            exclude_edges=config.exclude_edges,
        )
        return config if config.temporal is None else replace(config, disjoint=True)

    def to_json(self) -> dict[str, Any]:
        """Returns the options as values that JSON keeps, but for tuples, which it turns into lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, options: dict[str, Any]) -> SamplingConfig:
        """Rebuilds what :meth:`to_json` described; the options were checked when that config was made."""
        exclude = options["exclude_edges"]
        return cls(
            **{
                **options,
                "num_neighbors": tuple(tuple(counts) for counts in options["num_neighbors"]),
                "exclude_edges": tuple(exclude) if isinstance(exclude, list) else exclude,
            }
        )
