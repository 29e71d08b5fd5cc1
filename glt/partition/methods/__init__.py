"""Which partition a node goes to: random, by frequency, by adjacency (Fennel), METIS, or as the caller says."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Method:
    """A partitioner by the name that users choose it by.

    Attributes:
        module, class_name: Where it is: nothing is imported that was not chosen.
        options: Arguments of its own, which other partitioners may not have.
        help: What it is good for.
    """

    module: str
    class_name: str
    options: frozenset[str]
    help: str

    def load(self) -> Any:
        """Returns the class."""
        try:
            return getattr(importlib.import_module(self.module), self.class_name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"--method: this glt has no {self.class_name} ({error})") from error


METHODS: Final = {
    "random": Method(f"{__name__}.partitioners", "RandomPartitioner", frozenset({"random_seed"}), "even, at random"),
    "frequency": Method(
        f"{__name__}.partitioners",
        "FrequencyPartitioner",
        frozenset({"random_seed"}),
        "nodes go where they are read most; needs --hotness",
    ),
    "metis": Method(
        f"{__name__}.metis",
        "MetisPartitioner",
        frozenset({"random_seed", "imbalance", "objtype"}),
        "few edges between partitions, in memory, by pymetis",
    ),
    "fennel": Method(
        f"{__name__}.edge_cut",
        "FennelPartitioner",
        frozenset({"random_seed", "imbalance", "num_passes"}),
        "few edges between partitions, in bounded memory",
    ),
    "assigned": Method(f"{__name__}.partitioners", "AssignedPartitioner", frozenset({"owners"}), "as --owners says"),
}
