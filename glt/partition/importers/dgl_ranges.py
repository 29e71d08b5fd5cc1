"""The ids that DGL gives to nodes and edges: ranges by partition, and inside a partition by type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glt.errors import PartitionError


@dataclass(frozen=True, eq=False)
class Ranges:
    """Global ids of DGL, of nodes or of edges: ranges by partition, and inside a partition by type.

    Attributes:
        begin, end: ``[num_parts, num_types]``, the ranges.
        first: ``[num_parts, num_types]``, id inside its type of the first of each range.
    """

    begin: np.ndarray
    end: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, ranges: np.ndarray) -> Ranges:
        """Checks ``ranges [num_types, num_parts, 2]``."""
        begin, end = ranges[:, :, 0].T, ranges[:, :, 1].T
        flat = np.stack([begin.ravel(), end.ravel()], 1).ravel()
        if flat.size and (flat[0] != 0 or (np.diff(flat) < 0).any() or (begin.ravel()[1:] != end.ravel()[:-1]).any()):
            raise ValueError("its ranges do not follow each other")
        sizes = end - begin
        return cls(begin, end, np.cumsum(sizes, 0) - sizes)

    @property
    def sizes(self) -> np.ndarray:
        return self.end - self.begin

    @property
    def totals(self) -> list[int]:
        """Number of ids of each type."""
        return self.sizes.sum(0).tolist()

    def owners(self, type_: int) -> np.ndarray:
        """Partition of each id of a type."""
        return np.repeat(np.arange(self.begin.shape[0]), self.sizes[:, type_])

    def locate(self, origin: Path, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns partition, type and id inside the type of global ids."""
        bad = np.flatnonzero((ids < 0) | (ids >= (self.end.max() if self.end.size else 0)))
        if bad.size:
            raise PartitionError(
                f"{origin} holds global id {ids[bad[0]]}, which is in no range of the partition config"
            )
        filled = np.flatnonzero(self.sizes.ravel())
        at = filled[np.searchsorted(self.begin.ravel()[filled], ids, side="right") - 1]
        part, type_ = np.divmod(at, self.begin.shape[1])
        return part, type_, ids - self.begin.ravel()[at] + self.first.ravel()[at]
