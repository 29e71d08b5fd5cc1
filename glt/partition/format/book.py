"""The partition book: who owns each id, and at which row of the owner's arrays."""

from dataclasses import dataclass

import numpy as np

from glt.partition.format.files import chunks


def owner_dtype(num_parts: int) -> np.dtype:
    """Returns the smallest unsigned dtype that holds the owners ``0 .. num_parts - 1``."""
    return np.min_scalar_type(num_parts - 1)


def id_dtype(num_ids: int) -> np.dtype:
    """Returns int32 when the ids ``0 .. num_ids - 1`` fit, else int64."""
    return np.dtype(np.int32 if num_ids - 1 <= np.iinfo(np.int32).max else np.int64)


def group_by_owner(owner: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups the positions of ``owner [n]`` by owner, keeping their order inside each group.

    Returns:
        ``order [n]`` int64 and ``offset [num_parts + 1]`` int64: group ``p`` is ``order[offset[p]:offset[p + 1]]``.
    """
    order = np.argsort(owner, kind="stable")  # a radix sort for the narrow dtypes of a book
    return order, _offsets(owner, num_parts)


@dataclass(frozen=True, eq=False)
class Book:
    """Owners of all nodes of one type.

    Attributes:
        owner: ``[num_nodes]``, smallest unsigned dtype.
        offset: ``[num_parts + 1]`` int64, where the rows of each partition begin among those of all.
    """

    owner: np.ndarray
    offset: np.ndarray

    @classmethod
    def of(cls, owner: np.ndarray, num_parts: int) -> "Book":
        return cls(owner, _offsets(owner, num_parts))

    @property
    def num_parts(self) -> int:
        return self.offset.size - 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of nodes of each partition."""
        return tuple(np.diff(self.offset).tolist())

    def position(self) -> np.ndarray:
        """Returns the row of each node (uint32), counted over all partitions, one after the other."""
        position = np.empty(self.owner.size, np.uint32)
        begins = self.offset[:-1].copy()
        for begin, owner in chunks(self.owner):
            order, offset = group_by_owner(owner, self.num_parts)
            shift = np.repeat(begins - offset[:-1], np.diff(offset))
            position[begin : begin + owner.size][order] = np.arange(owner.size) + shift
            begins += np.diff(offset)
        return position


def _offsets(owner: np.ndarray, num_parts: int) -> np.ndarray:
    offset = np.zeros(num_parts + 1, np.int64)
    for _, piece in chunks(owner):  # bincount makes int64 of what it is given
        offset[1:] += np.bincount(piece, minlength=num_parts)
    return np.cumsum(offset, out=offset)
