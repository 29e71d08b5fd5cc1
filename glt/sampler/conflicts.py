"""Options that cannot be combined: one table, read by every sampler and loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GIVEN = object()
"""In a rule: any value but None. As a value: given, but not worth printing."""


@dataclass(frozen=True)
class Conflict:
    """Two options whose values cannot meet.

    Attributes:
        first, first_value, second, second_value: Names in the user's words, and the values that clash: one value,
            :data:`GIVEN`, or None for "not given".
        why: The reason, and what to do.
        error: What is raised: ValueError, but where PyG raises another.
    """

    first: str
    first_value: Any
    second: str
    second_value: Any
    why: str
    error: type[Exception] = ValueError

    def holds(self, options: dict[str, Any]) -> bool:
        """Whether ``options`` has both; an option that it does not mention is none of its business."""
        pairs = (self.first, self.first_value), (self.second, self.second_value)
        return all(name in options and _matches(options[name], clash) for name, clash in pairs)


CONFLICTS = (
    Conflict(
        "subgraph_type", "induced", "disjoint", True,
        "an induced subgraph has all edges between its nodes, disjoint trees have none between them; leave one out",
    ),
    Conflict(
        "subgraph_type", "induced", "time_attr", GIVEN,
        "temporal sampling is disjoint, each tree as of its seed's time; use subgraph_type='directional'",
    ),
    Conflict(
        "weight_attr", GIVEN, "time_attr", GIVEN,
        "weighted draws among the edges before a time are not supported; leave one out",
    ),
    Conflict(
        "temporal_strategy", "last", "time_attr", None,
        "the last edges by time need a time; name the attribute that holds it",
    ),
    Conflict("input_time", GIVEN, "time_attr", None, "seed times compare with the times that time_attr names; name it"),
    Conflict(
        "time_level", "edge", "input_time", None,
        "times of edges say nothing of when a seed is looked at; give one time per seed",
    ),
    Conflict(
        "edge_label_time", GIVEN, "time_attr", None,
        "times of seed edges compare with the times that time_attr names; name it",
    ),
    Conflict(
        "time_attr", GIVEN, "edge_label_time", None,
        "an edge has no time of its own at which to look at its ends; give one time per seed edge",
    ),
    Conflict(
        "sample_direction", "backward", "time_attr", GIVEN,
        "time runs one way; expand nodes along their in-edges", NotImplementedError,
    ),
    Conflict(
        "neg_sampling", GIVEN, "neg_sampling_ratio", GIVEN,
        "the ratio is PyG's old name for neg_sampling={'mode': 'binary', 'amount': ratio}; leave it out",
    ),
    Conflict(
        "filter_per_worker", False, "data", "DistDataset",
        "the samplers of a partition look features up where they are; leave filter_per_worker out, or look up features "
        "yourself, with collect_features=False and transform",
    ),
    Conflict("directed", False, "subgraph_type", "bidirectional", "directed=False is PyG's old name for 'induced'"),
    Conflict(
        "exclude_edges", GIVEN, "subgraph_type", "induced",
        "the excluded edges would come back among the induced ones; leave one out",
    ),
    Conflict(
        "exclude_edges", "self", "subgraph_type", "bidirectional",
        "the reverse of a reverse edge is the excluded edge again; use exclude_edges='reverse'",
    ),
)  # fmt: skip
"""Every combination that is refused."""


def refuse(**options: Any) -> None:
    """Raises if two of ``options`` cannot be combined.

    Args:
        **options: Options by the user's name for them; None: not given.

    Raises:
        NotImplementedError, ValueError: Naming both options, their values and the reason.
    """
    for conflict in CONFLICTS:
        if conflict.holds(options):
            both = (_described(name, options[name]) for name in (conflict.first, conflict.second))
            raise conflict.error(f"{' and '.join(both)}: {conflict.why}")


def _matches(value: Any, clash: Any) -> bool:
    if clash is GIVEN:
        return value is not None
    return value is None if clash is None else isinstance(value, type(clash)) and value == clash


def _described(name: str, value: Any) -> str:
    if value is None:
        return f"{name!r} is not set"  # in PyG's words, for which people search
    return f"{name} = {value!r}" if isinstance(value, str | bool) else f"{name!r} is set"
