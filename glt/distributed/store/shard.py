"""The rows of one distributed tensor that a server keeps."""

from __future__ import annotations

import threading

import numpy as np
from torch import Tensor

from glt import _core
from glt._checks import available_memory
from glt.data import arrays as pool
from glt.data.arrays import NativeView, as_numpy

Rows = Tensor | tuple[int, int]


class Shard:
    """Rows that many threads read and change at a time: none is ever seen, or left, half-written.

    Reading and changing are done by native code without the GIL. Results do not depend on ``num_threads``; of calls
    that overlap, each row is dealt with by one after the other.

    Args:
        tensor: The rows ``[num_rows, ...]``, on the CPU.
        is_borrowed: Whether they are somebody else's, such as a mapped file's: they are only read, and the first change
            copies them.
        num_threads: Threads to use where there is much to do.

    Attributes:
        tensor: The rows. What is not done through this class is not guarded, except under the locks of ``table``.
    """

    def __init__(self, tensor: Tensor, is_borrowed: bool = False, num_threads: int = 1) -> None:
        self.is_borrowed, self.num_threads = is_borrowed, num_threads
        self._put(tensor.detach().contiguous())
        self._lock = threading.Lock()  # of the copy

    def _put(self, tensor: Tensor) -> None:
        view = NativeView([tensor], lambda: _core.RowTable(as_numpy(tensor)))
        view.get()  # before another thread can: there has to be one for all, since it has the locks
        self.tensor, self._view = tensor, view

    @property
    def table(self) -> _core.RowTable:
        """The native table over the rows."""
        return self._view.get()

    def read(self, rows: Rows) -> Tensor:
        """Returns rows ``[n, ...]``.

        Args:
            rows: Their numbers ``[n]``, int64; or a first one and how many.

        Raises:
            IndexError: If there is no such row; names the first.
        """
        numbers, first, n = self._parts(rows)
        out = pool.empty((n, *self.tensor.shape[1:]), self.tensor.dtype)
        self.table.read(numbers, first, as_numpy(out), self.num_threads)
        return out

    def write(self, rows: Rows, values: Tensor) -> None:
        """Replaces rows by ``values [n, ...]``; of those that are named several times, the last value stays.

        Raises:
            IndexError: As of :meth:`read`; nothing is written then.
            TypeError, ValueError: If ``values`` do not fit.
        """
        self._require_fit(rows, values)
        numbers, first, _ = self._parts(rows)
        self.own().write(numbers, first, as_numpy(values.contiguous()), self.num_threads)

    def add(self, rows: Rows, values: Tensor) -> None:
        """Adds ``values [n, ...]`` to rows; those that are named several times get all of it, in the order given.

        Raises:
            TypeError: Besides those of :meth:`write`: of bool and float8.
        """
        self._require_fit(rows, values)
        numbers, first, _ = self._parts(rows)
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        self.own().add(numbers, first, as_numpy(values.contiguous()), dtype, self.num_threads)

    def own(self) -> _core.RowTable:
        """The table, of rows that are this shard's own: those that were borrowed are copied first."""
        with self._lock:
            if self.is_borrowed:
                room_bytes, limit = available_memory()
                if self.tensor.nbytes > room_bytes:
                    raise MemoryError(
                        f"the first write to mapped rows copies them, which takes {self.tensor.nbytes / 1e9:.3g} GB: "
                        f"{limit} is {room_bytes / 1e9:.3g} GB"
                    )
                self._put(self.tensor.clone())
                self.is_borrowed = False
            return self.table

    def _require_fit(self, rows: Rows, values: Tensor) -> None:
        if values.dtype != self.tensor.dtype:
            raise TypeError(f"values has dtype {values.dtype}: expected {self.tensor.dtype}, the tensor's")
        expected = (self._parts(rows)[2], *self.tensor.shape[1:])
        if values.shape != expected:
            raise ValueError(f"values has shape {list(values.shape)}: expected {list(expected)}")

    def _parts(self, rows: Rows) -> tuple[np.ndarray | None, int, int]:
        """Numbers of rows or None, the first, and how many; a range is checked before room is made for its rows."""
        if isinstance(rows, Tensor):
            return rows.contiguous().numpy(), 0, len(rows)
        first, n = map(int, rows)
        if not 0 <= first <= first + n <= len(self):
            raise IndexError(f"rows {first} to {first + n - 1} are outside [0, {len(self)})")
        return None, first, n

    def __len__(self) -> int:
        return len(self.tensor)
