"""Which trainer gets which of the selected items, from their numbers alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import Final, NamedTuple

import numpy as np

REMAINDERS: Final = ("keep", "drop", "pad")


class Interval(NamedTuple):
    """Of the selected items of a partition, in order, those from ``begin`` to ``end - 1``."""

    partition: int
    begin: int
    end: int


def split_counts(
    counts: Sequence[int],
    homes: Sequence[Collection[int]],
    *,
    force_even: bool = True,
    remainder: str = "keep",
) -> list[list[Interval]]:
    """Divides the selected items of all partitions among trainers, each item once, and as many as can be to trainers
    for which its partition is local.

    No split whose shares are as even has more local items. Two trainers of a host get neighbouring pieces of what it
    has; a trainer's remote items are the last ones of partitions that have more than their own trainers may take.

    Args:
        counts: Selected items of each partition ``[num_partitions]``.
        homes: For each trainer, the partitions that are local to it. Trainers of one host have the same ones, those of
            different hosts have none in common. Partitions in no home, and trainers without one, are as good as any.
        force_even: Whether shares differ by one item at most. Else trainers get what is local to them, those with the
            same home equally much, and what is local to nobody goes to the smallest shares.
        remainder: What becomes of the items that are too many for shares of one size: ``'keep'``: the first trainers
            with enough local ones have one more; ``'drop'``: they are left out; ``'pad'``: trainers without one get the
            first of their share again (those with none at all an item of another).

    Returns:
        For each trainer its intervals, the local ones first. It is a function of the arguments alone.

    Raises:
        ValueError: If an argument is unusable; names it.
    """
    sizes = np.asarray(counts, np.int64)
    if sizes.ndim != 1 or (sizes < 0).any():
        raise ValueError(f"counts = {counts!r}: expected one number of at least 0 per partition")
    if remainder not in REMAINDERS:
        raise ValueError(f"remainder = {remainder!r}: expected one of {list(REMAINDERS)}")
    if remainder != "keep" and not force_even:
        raise ValueError(
            f"remainder = {remainder!r} makes all shares equal, but force_even is False: leave one of them out"
        )
    groups = _groups(homes, len(sizes))
    num_trainers, total = len(homes), int(sizes.sum())
    lines = {home: _line(sorted(home), sizes) for home in groups}
    orphans = _line(sorted(set(range(len(sizes))).difference(*groups)), sizes)
    here = {home: _length(line) for home, line in lines.items()}

    if force_even:
        wanted = _even_sizes(total, num_trainers, groups, here, extra=remainder != "drop")
        local = {home: min(here[home], sum(wanted[rank] for rank in ranks)) for home, ranks in groups.items()}
    else:
        local = here
    shares: list[list[Interval]] = [[] for _ in homes]
    spare: list[Interval] = []
    for home, ranks in groups.items():
        at = 0
        for rank, size in zip(ranks, _evenly(local[home], len(ranks)), strict=True):
            shares[rank] = _cut(lines[home], at, at + size)
            at += size
        spare += _cut(lines[home], at, here[home])
    spare += orphans
    own = [_length(share) for share in shares]
    if not force_even:
        wanted = _filled(own, _length(spare))
    at = 0
    for rank, share in enumerate(shares):
        share += _cut(spare, at, at + wanted[rank] - own[rank])
        at += wanted[rank] - own[rank]
    if remainder == "pad" and total % num_trainers:
        _pad(shares, -(-total // num_trainers))
    return shares


def _groups(homes: Sequence[Collection[int]], num_partitions: int) -> dict[frozenset[int], list[int]]:
    """Trainers by home, in order of the first of each."""
    if not homes:
        raise ValueError("homes is empty: expected the local partitions of at least one trainer")
    groups: dict[frozenset[int], list[int]] = {}
    for rank, home in enumerate(homes):
        if not isinstance(home, Collection) or not all(isinstance(part, Integral) for part in home):
            raise TypeError(f"homes[{rank}] = {home!r}: expected the partitions of that trainer's host, such as [0, 1]")
        for part in home:
            if not 0 <= part < num_partitions:
                raise ValueError(f"homes[{rank}] names partition {part}: expected 0 to {num_partitions - 1}")
        groups.setdefault(frozenset(home), []).append(rank)
    seen: dict[int, int] = {}
    for home, (rank, *_) in groups.items():
        for part in sorted(home):
            if part in seen:
                raise ValueError(
                    f"homes[{rank}] = {sorted(home)} and homes[{seen[part]}] = {sorted(homes[seen[part]])} share "
                    f"partition {part}, but are not the same: expected trainers of one host, or of two"
                )
            seen[part] = rank
    return groups


def _even_sizes(
    total: int, num_trainers: int, groups: dict[frozenset[int], list[int]], here: dict[frozenset[int], int], extra: bool
) -> list[int]:
    """Sizes of the shares: those that are one larger are where there are local items for it, if anywhere."""
    size, more = divmod(total, num_trainers)
    sizes = [size] * num_trainers
    if not extra:
        return sizes
    for home, ranks in groups.items():
        for rank in ranks[: min(max(0, here[home] - size * len(ranks)), more)]:
            sizes[rank] += 1
            more -= 1
    for rank in [rank for rank in range(num_trainers) if sizes[rank] == size][:more]:
        sizes[rank] += 1
    return sizes


def _evenly(total: int, num_shares: int) -> list[int]:
    size, more = divmod(total, num_shares)
    return [size + (at < more) for at in range(num_shares)]


def _filled(sizes: list[int], total: int) -> list[int]:
    """Adds ``total`` items to the smallest sizes, the first of equal ones first."""
    filled = list(sizes)
    order = sorted(range(len(sizes)), key=lambda rank: sizes[rank])
    # The ``num`` smallest are raised to the level of the next one, for as long as there is enough.
    num, level, left = 1, sizes[order[0]], total
    while num < len(order) and (sizes[order[num]] - level) * num <= left:
        left -= (sizes[order[num]] - level) * num
        level = sizes[order[num]]
        num += 1
    for rank, more in zip(sorted(order[:num]), _evenly(left, num), strict=True):
        filled[rank] = level + more
    return filled


def _pad(shares: list[list[Interval]], size: int) -> None:
    whole = [share for share in shares if _length(share) == size]
    for at, share in enumerate(each for each in shares if _length(each) < size):
        part, begin, _ = (share or whole[at % len(whole)])[0]
        share.append(Interval(part, begin, begin + 1))


def _line(parts: Iterable[int], sizes: np.ndarray) -> list[Interval]:
    """All items of some partitions, one partition after the other."""
    return [Interval(part, 0, int(sizes[part])) for part in parts if sizes[part]]


def _length(line: Iterable[Interval]) -> int:
    return sum(end - begin for _, begin, end in line)


def _cut(line: Sequence[Interval], begin: int, end: int) -> list[Interval]:
    """The items ``begin`` to ``end - 1`` of a line."""
    found, at = [], 0
    for part, first, last in line:
        low, high = max(begin - at, 0), min(end - at, last - first)
        if low < high:
            found.append(Interval(part, first + low, first + high))
        at += last - first
    return found
