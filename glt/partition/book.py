"""The partition book: who owns each id, and at which row of the owner's arrays."""

from dataclasses import dataclass

import numpy as np


def owner_dtype(num_parts: int) -> np.dtype:
    """Returns the smallest unsigned dtype that holds the owners ``0 .. num_parts - 1``."""
    return np.min_scalar_type(num_parts - 1)


def id_dtype(num_ids: int) -> np.dtype:
    """Returns int32 when the ids ``0 .. num_ids - 1`` fit, else int64."""
    return np.dtype(np.int32 if num_ids - 1 <= np.iinfo(np.int32).max else np.int64)


def group_by_owner(owner: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups positions by owner, keeping their order inside each group.

    Args:
        owner: Shape ``[n]``, each in ``[0, num_parts)``.
        num_parts: Number of groups.

    Returns:
        ``order [n]`` (int64, positions, group after group) and ``offset [num_parts + 1]`` (int64): group ``p`` is
        ``order[offset[p]:offset[p + 1]]``.
    """
    order = np.argsort(owner, kind="stable")  # a radix sort for the narrow dtypes of a book
    offset = np.zeros(num_parts + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=num_parts), out=offset[1:])
    return order, offset


@dataclass(frozen=True, eq=False)
class Book:
    """Owners of all nodes of one type.

    Attributes:
        owner: ``[num_nodes]``, smallest unsigned dtype.
        order: ``[num_nodes]`` int64, node ids grouped by owner, ascending inside a group.
        offset: ``[num_parts + 1]`` int64, where each group starts in ``order``.
    """

    owner: np.ndarray
    order: np.ndarray
    offset: np.ndarray

    @classmethod
    def of(cls, owner: np.ndarray, num_parts: int) -> "Book":
        """Builds the book of ``owner``, whose values are in ``[0, num_parts)``."""
        return cls(owner, *group_by_owner(owner, num_parts))

    @property
    def num_parts(self) -> int:
        return self.offset.size - 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of nodes of each partition."""
        return tuple(np.diff(self.offset).tolist())

    def ids(self, partition_idx: int) -> np.ndarray:
        """Returns the ids that a partition owns, ascending (int64)."""
        return self.order[self.offset[partition_idx] : self.offset[partition_idx + 1]]

    def position(self) -> np.ndarray:
        """Returns the place of each node in ``order`` (uint32): rows of all partitions, one after the other."""
        position = np.empty(self.order.size, np.uint32)
        position[self.order] = np.arange(self.order.size, dtype=np.uint32)
        return position

    def row(self) -> np.ndarray:
        """Returns the row of each node inside the arrays of its owner (uint32)."""
        return self.position() - self.offset[:-1].astype(np.uint32)[self.owner]
