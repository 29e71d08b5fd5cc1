"""Files of tables whose rows come from all ranks at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glt.partition.partition_writer import PartitionWriter, Table


class DealtTables:
    """The rows of this rank's partitions: those of lower ranks come first, whoever's arrive first.

    Args:
        writer: Of this rank's partitions.
        tables: The tables, of which this rank has a slice.
        counts: ``[world_size, num_parts]`` int64, rows that each partition gets from each rank.
    """

    def __init__(self, writer: PartitionWriter, tables: Sequence[Table], counts: np.ndarray) -> None:
        self._writer = writer
        in_part = counts.sum(axis=0).tolist()
        self._files = [writer.row_writers(path_of, rows, in_part) for path_of, rows in tables]
        self._next = begins(counts)[:, list(writer.parts)]

    def put(self, source: int, counts: np.ndarray, columns: Sequence[np.ndarray]) -> None:
        """Writes the next rows of rank ``source``; ``counts`` says how many of each of this rank's partitions."""
        end = np.cumsum(counts)
        for at in np.flatnonzero(counts).tolist():
            mine = slice(end[at] - counts[at], end[at])
            for files, column in zip(self._files, columns, strict=True):
                files[at].put(self._next[source, at], column[mine])
        self._next[source] += counts

    def close(self) -> None:
        """Notes the files, which must be complete."""
        for files in self._files:
            self._writer.close(files)


def begins(counts: np.ndarray) -> np.ndarray:
    """Returns where the rows from each rank begin, ``[world_size, ...]``, given how many there are."""
    return np.cumsum(counts, axis=0) - counts
