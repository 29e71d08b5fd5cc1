"""What to sample: the options that decide a batch, besides the graph, the seeds and the key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingConfig:
    """Options of a multi-hop sample.

    Args:
        num_neighbors: Edges per node and hop; -1 takes all, 0 none.
        replace: Draw with replacement: exactly that many draws for every node with an edge.
        with_edge: Return edge ids.
    """

    num_neighbors: tuple[int, ...]
    replace: bool = False
    with_edge: bool = True

    @classmethod
    def checked(cls, num_neighbors: Sequence[int], replace: bool = False, with_edge: bool = True) -> SamplingConfig:
        """Checks and normalises the options.

        Raises:
            TypeError, ValueError: Naming the option, the value and what was expected.
        """
        if isinstance(num_neighbors, str | int) or not isinstance(num_neighbors, Sequence):
            raise TypeError(f"num_neighbors = {num_neighbors!r}: expected a list with one count per hop")
        if not num_neighbors or len(num_neighbors) > 255:
            raise ValueError(f"num_neighbors has {len(num_neighbors)} hops: expected 1 to 255")
        for hop, count in enumerate(num_neighbors):
            if isinstance(count, bool) or not hasattr(count, "__index__"):
                raise TypeError(f"num_neighbors[{hop}] = {count!r}: expected an integer")
            if not -1 <= count < 2**31:
                raise ValueError(f"num_neighbors[{hop}] = {count}: expected -1 (all), 0 (none) or a count below 2^31")
            if replace and count == -1:
                raise ValueError(f"num_neighbors[{hop}] = -1 with replace=True: drawing with replacement needs a count")
        return cls(tuple(int(n) for n in num_neighbors), bool(replace), bool(with_edge))
