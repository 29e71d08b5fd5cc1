"""Which of its edges a node takes: the sampling law in plain Python, one draw and one edge at a time.

The native core is equal to it bit for bit, because every decision compares integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

__all__ = ["integer_weights", "reference_picks"]

Draw = Callable[[int, int], int]  # (number of the draw, bound) -> a number in [0, bound)


def reference_picks(
    draw: Draw,
    degree: int,
    k: int,
    replace: bool = False,
    *,
    excluded: Collection[int] = (),
    weight: Sequence[int] | None = None,
    time: Sequence[int] | None = None,
    seed_time: int | None = None,
    last: bool = False,
) -> list[int]:
    """Returns which of the edges 0, ..., ``degree`` - 1 a node takes, in order.

    Args:
        draw: The draws of the node.
        degree: Its number of edges.
        k: Edges to take; -1 takes all.
        replace: Draw with replacement: exactly k draws if there is an edge to take; -1 still takes each once.
        excluded: Edges that may not be taken.
        weight: Integer weights of the edges (see :func:`integer_weights`). Default: all edges are equally likely.
        time: Times of the edges, never falling. Only edges with time <= ``seed_time`` may be taken.
        seed_time: See ``time``. Default: edges of all times.
        last: Only the k latest of the edges that may be taken.
    """
    rest = [e for e in range(degree) if e not in excluded]
    if seed_time is not None:
        assert time is not None
        rest = [e for e in rest if time[e] <= seed_time]
    if last and 0 <= k < len(rest):
        rest = rest[len(rest) - k :]
    if not rest:
        return []
    if replace and k >= 0:
        if weight is None or sum(weight[e] for e in rest) == 0:
            return [rest[draw(i, len(rest))] for i in range(k)]
        return [_fall_on(rest, weight, draw, i) for i in range(k)]
    if k < 0 or k >= len(rest):
        return rest
    picks: list[int] = []
    if weight is not None:
        while len(picks) < k and sum(weight[e] for e in rest) > 0:
            picks.append(_fall_on(rest, weight, draw, len(picks)))
            rest.remove(picks[-1])
    return picks + [rest[at] for at in _floyd(len(rest), k - len(picks), draw, len(picks))]


def _fall_on(edges: list[int], weight: Sequence[int], draw: Draw, number: int) -> int:
    """The edge that a draw falls on when the weights of ``edges`` stand side by side."""
    left = draw(number, sum(weight[e] for e in edges))
    for e in edges:
        left -= weight[e]
        if left < 0:
            return e
    raise AssertionError("a draw is below the sum of the weights")


def _floyd(n: int, k: int, draw: Draw, first_draw: int) -> list[int]:
    """Floyd's algorithm: a number drawn twice stands for the largest one so far."""
    picks: list[int] = []
    for i in range(k):
        largest = n - k + i
        pick = draw(first_draw + i, largest + 1)
        picks.append(largest if pick in picks else pick)
    return picks


def integer_weights(weight: Sequence[float]) -> list[int]:
    """Returns the weights of one row as integers that are proportional but for rounding and add up to below 2^62.

    All are multiplied by one power of two and cut; a positive weight becomes at least 1.
    """
    _, exponent = math.frexp(max(weight, default=0.0))
    scale = 61 - exponent - len(weight).bit_length()
    return [max(1, int(math.ldexp(w, scale))) if w > 0 else 0 for w in weight]
