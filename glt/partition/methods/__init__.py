"""Which partition a node goes to: random, by frequency, by adjacency (Fennel), METIS, or as the caller says."""

from __future__ import annotations

import importlib
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Method:
    """A partitioner by the name that users choose it by.

    Attributes:
        class_name: Its class in :mod:`glt.partition`: nothing is imported that was not chosen.
        options: Arguments of its own, which other partitioners may not have.
        help: What it is good for.
    """

    class_name: str
    options: Set[str]
    help: str

    def load(self) -> Any:
        """Returns the class."""
        return getattr(importlib.import_module("glt.partition"), self.class_name)


METHODS: Final = {
    "random": Method("RandomPartitioner", {"random_seed"}, "even, at random"),
    "frequency": Method("FrequencyPartitioner", {"random_seed"}, "nodes go where they are read most; needs --hotness"),
    "metis": Method(
        "MetisPartitioner",
        {"random_seed", "imbalance", "objtype"},
        "few edges between partitions, in memory, by pymetis",
    ),
    "fennel": Method(
        "FennelPartitioner",
        {"random_seed", "imbalance", "num_passes"},
        "few edges between partitions, in bounded memory",
    ),
    "assigned": Method("AssignedPartitioner", {"owners"}, "as --owners says"),
}
