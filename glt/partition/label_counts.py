"""How the values of masks and classes are spread over partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from glt.partition.arguments import chunks

MAX_VALUES: Final = 64  # a table with more distinct values counts something else than classes


@dataclass(frozen=True)
class ValueCount:
    """One value of a table.

    Attributes:
        table: Name of the table, for example ``"label"``.
        value: The value; ``True`` of a mask.
        part_counts: Nodes with it in each partition that was counted.
        balance_ratio: Mean over largest partition; 1 is perfectly even.
    """

    table: str
    value: int | bool
    part_counts: tuple[int, ...]
    balance_ratio: float


def count_values(table: str, parts: Sequence[np.ndarray]) -> tuple[ValueCount, ...]:
    """Counts the values of a table in each partition.

    Args:
        table: Its name.
        parts: Its rows in each partition.

    Returns:
        One count for each value, ascending; of a mask for ``True`` only. Nothing unless the table has one boolean or
        integer per node and at most ``MAX_VALUES`` values.
    """
    if not parts or any(rows.dtype.kind not in "biu" or rows.size != len(rows) for rows in parts):
        return ()
    counts: dict[int | bool, list[int]] = {}
    for at, rows in enumerate(parts):
        for _, chunk in chunks(rows.reshape(-1)):
            values, found = np.unique(chunk, return_counts=True)
            for value, count in zip(values.tolist(), found.tolist(), strict=True):
                counts.setdefault(value, [0] * len(parts))[at] += count
            if len(counts) > MAX_VALUES:
                return ()
    wanted = [True] if parts[0].dtype.kind == "b" else sorted(counts)
    return tuple(
        ValueCount(table, value, tuple(per_part), balance(per_part))
        for value in wanted
        if (per_part := counts.get(value, [0] * len(parts)))
    )


def balance(counts: Sequence[int]) -> float:
    """Returns mean over largest; 1 where there is nothing to balance."""
    return sum(counts) / (len(counts) * max(counts)) if any(counts) else 1.0
