"""The partition book: who owns each id, and at which row of the owner's arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import NativeView, Packed, from_array


class PartitionBook:
    """Owners and rows of all ids of one type of nodes or edges; made by :meth:`of_arrays` or :meth:`of_ranges`.

    A graph whose ids were left alone needs two arrays, 5 to 8 bytes per id. In a relabelled one each partition owns a
    range of ids, rows count from its beginning, and ``num_parts + 1`` numbers suffice.

    Attributes:
        num_ids, num_parts: Of all partitions.
        owner, row_of: Owner of each id ``[num_ids]``, uint8, uint16 or uint32, and its row in the owner's arrays,
            uint32; None with ranges.
        offset: With ranges, partition ``p`` owns the ids ``offset[p]`` to ``offset[p + 1] - 1``, int64; else None.
    """

    owner: Tensor | None = None
    row_of: Tensor | None = None
    offset: Tensor | None = None
    num_ids: int
    num_parts: int

    @classmethod
    def of_arrays(cls, owner: Any, row_of: Any, num_parts: int) -> PartitionBook:
        """Wraps the owner and the row of each id, tensors or arrays, without copying them; raises TypeError or
        ValueError if dtypes or sizes do not fit. Owners are checked when they are met."""
        self = cls.__new__(cls)
        self.owner, self.row_of = _tensor(owner), _tensor(row_of)
        if self.row_of.dtype != torch.uint32 or self.row_of.shape != self.owner.shape:
            raise ValueError(
                f"row_of is {self.row_of.dtype} {list(self.row_of.shape)}: expected uint32, one row per owner, "
                f"{list(self.owner.shape)}"
            )
        self._open(num_parts)
        return self

    @classmethod
    def of_ranges(cls, offset: Any) -> PartitionBook:
        """Takes the offsets ``[num_parts + 1]``: where the range of each partition begins, and the number of ids;
        raises TypeError or ValueError if they are not integers from 0 that never fall."""
        self = cls.__new__(cls)
        self.offset = _tensor(np.asarray(offset, np.int64) if isinstance(offset, list | tuple) else offset)
        self._open()
        return self

    def _open(self, num_parts: int = 0) -> None:
        self._view = NativeView((self.owner, self.offset), partial(_native_book, self.owner, self.offset, num_parts))
        self.num_ids, self.num_parts = self.native.num_ids, self.native.num_parts

    @property
    def native(self) -> _core.Book:
        return self._view.get()

    @property
    def has_ranges(self) -> bool:
        return self.offset is not None

    def first_id(self, part: int) -> int:
        """The id of a partition's first row where it owns a range of them; 0 where ``row_of`` maps ids to rows."""
        return 0 if self.offset is None else int(self.offset[part])

    def group(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Groups ids ``[n]``, int64, by owner, keeping their order inside each group. Returns the ids by owner, where
        each stood (uint32), and the bounds of the groups ``[num_parts + 1]``. Raises IndexError, naming the first, if
        there is no such id, or the book names no partition."""
        return _core.group_by_owner(self.native, ids)

    def owners(self, ids: np.ndarray | None = None) -> np.ndarray:
        """The owner of each of these ids, or of all, ``[n]`` int64; raises IndexError naming the first that there is
        not."""
        if ids is not None:
            return _core.find_owners(self.native, np.ascontiguousarray(ids, np.int64))
        if self.offset is not None:
            return np.repeat(np.arange(self.num_parts), np.diff(self.offset.numpy()))
        assert self.owner is not None
        return self.owner.numpy().astype(np.int64)

    def rows(self, ids: np.ndarray | None = None) -> np.ndarray:
        """The row of each of these ids, or of all, in the arrays of its owner, ``[n]`` int64; errors as of
        :meth:`owners`."""
        ids = np.arange(self.num_ids) if ids is None else np.ascontiguousarray(ids, np.int64)
        owner = self.owners(ids)  # names a bad id
        if self.offset is not None:
            return ids - self.offset.numpy()[owner]
        assert self.row_of is not None
        return self.row_of.numpy()[ids].astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        arrays = {name: Packed.of(getattr(self, name)) for name in ("owner", "row_of", "offset")}
        return {**arrays, "num_parts": self.num_parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.owner, self.row_of, self.offset = (Packed.open(state[name]) for name in ("owner", "row_of", "offset"))
        self._open(state["num_parts"])

    def __repr__(self) -> str:
        kind = "ranges" if self.has_ranges else "arrays"
        return f"PartitionBook({kind}, num_ids={self.num_ids}, num_parts={self.num_parts})"


def _native_book(owner: Tensor | None, offset: Tensor | None, num_parts: int) -> _core.Book:
    if offset is not None:
        return _core.Book.of_ranges(offset.numpy())
    assert owner is not None
    return _core.Book(owner.numpy(), num_parts)


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else from_array(array)
