"""What stands in the brackets behind a distributed tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from glt.data.arrays import as_ids


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows of a tensor, in an order.

    Attributes:
        ids: Their numbers ``[n]``, int64; None: consecutive ones.
        first: The first one's number, where they are consecutive.
        n: How many.
        is_single: Whether one was given by its number, so that there is no dimension for it.
    """

    ids: np.ndarray | None
    first: int
    n: int
    is_single: bool = False

    @classmethod
    def of(cls, index: Any, num_rows: int) -> Selection:
        """Takes an index: a number, a slice, a mask of all rows (bool, or zeros and ones in uint8), or ids in a tensor,
        an array or a list.

        Raises:
            IndexError: If there is no such row; names the first.
            TypeError: If it is nothing of that kind.
            ValueError: If a mask is of another length or holds other numbers, or ids have several dimensions.
        """
        if isinstance(index, slice):
            first, last, step = index.indices(num_rows)
            if step == 1:
                return cls(None, first, max(0, last - first))
            return cls(np.arange(first, last, step), 0, len(range(first, last, step)))
        if isinstance(index, tuple) or index is None or index is Ellipsis:
            raise TypeError(f"ids = {index!r}: expected rows, as a number, a slice, a mask, or ids; index the result")
        value = index if isinstance(index, Tensor | list) else np.asarray(index, order="C")
        if not isinstance(value, list) and value.ndim == 0:
            return cls._single(value.item(), num_rows)
        ids = as_ids(value, "ids", num_rows).numpy()
        wrong = np.flatnonzero((ids < 0) | (ids >= num_rows))
        if len(wrong):
            at = wrong[0]
            raise IndexError(f"ids[{at}] = {ids[at]}: expected 0 to {num_rows - 1}, the rows of the tensor")
        return cls(ids, 0, len(ids))

    @classmethod
    def _single(cls, id_: Any, num_rows: int) -> Selection:
        if isinstance(id_, bool) or not isinstance(id_, int):
            raise TypeError(f"ids = {id_!r}: expected an integer, a slice, a mask, or ids")
        if not 0 <= id_ < num_rows:
            raise IndexError(f"ids = {id_}: expected 0 to {num_rows - 1}, the rows of the tensor")
        return cls(None, id_, 1, is_single=True)

    def blocks(self, most: int) -> Iterator[tuple[int, Selection]]:
        """Some rows at a time, with the place where they begin among all."""
        for at in range(0, self.n, most):
            n = min(most, self.n - at)
            ids = None if self.ids is None else self.ids[at : at + n]
            yield at, Selection(ids, self.first + at, n)
