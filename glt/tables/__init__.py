"""Tables of users, with their own keys, to a graph with dense ids; and results under these keys."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.tables.descriptions.description import Description
    from glt.tables.directory import build
    from glt.tables.guesses.guess import describe
    from glt.tables.guesses.relbench import describe_relbench
    from glt.tables.results import write
    from glt.tables.slices import read_slice

__all__ = ["Description", "build", "describe", "describe_relbench", "read_slice", "write"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "descriptions.description": ["Description"],
        "directory": ["build"],
        "guesses.guess": ["describe"],
        "guesses.relbench": ["describe_relbench"],
        "results": ["write"],
        "slices": ["read_slice"],
    },
)
