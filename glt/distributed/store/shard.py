"""The rows of one distributed tensor that a server keeps."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

Rows = Tensor | tuple[int, int]


class Shard:
    """Rows that many threads read and write at a time; a row is never seen, or left, half-written.

    Args:
        tensor: The rows ``[num_rows, ...]``, contiguous.
        is_borrowed: Whether they are somebody else's, such as a mapped file's: the first write then copies them.
    """

    def __init__(self, tensor: Tensor, is_borrowed: bool = False) -> None:
        self.tensor, self.is_borrowed = tensor, is_borrowed
        self._lock = threading.Lock()

    def read(self, rows: Rows) -> Tensor:
        """Returns rows ``[n, ...]``: those of these numbers (int64 ``[n]``), or a first one and how many."""
        with self._lock:
            return self.tensor[_index(rows)].clone()

    def write(self, rows: Rows, values: Tensor) -> None:
        """Replaces rows; of those that are named several times, the last value stays."""
        with self._lock:
            self._own()
            for row, value in zip(_numbers(rows), values, strict=True):
                self.tensor[row] = value

    def add(self, rows: Rows, values: Tensor) -> None:
        """Adds to rows; those that are named several times get all of it, in the order given."""
        with self._lock:
            self._own()
            for row, value in zip(_numbers(rows), values, strict=True):
                self.tensor[row] += value

    def _own(self) -> None:
        if self.is_borrowed:
            self.tensor, self.is_borrowed = self.tensor.clone(), False


def _index(rows: Rows) -> Tensor | slice:
    return slice(rows[0], rows[0] + rows[1]) if isinstance(rows, tuple) else rows


def _numbers(rows: Rows) -> list[int]:
    return list(range(rows[0], rows[0] + rows[1])) if isinstance(rows, tuple) else torch.as_tensor(rows).tolist()
