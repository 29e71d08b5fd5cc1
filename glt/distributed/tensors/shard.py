"""The rows of one distributed tensor that a server keeps, and the order in which trainers change them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import available_memory
from glt.data.arrays import NativeView, as_numpy, pooled_empty

Rows = Tensor | tuple[int, int]
"""Numbers of rows ``[n]``, int64; or the first of consecutive rows and how many."""


class Shard:
    """Rows that many threads read and change at a time: none is ever seen, or left, half-written.

    Args:
        tensor: The rows ``[num_rows, ...]``, on the CPU.
        is_borrowed: Whether the memory has another owner, such as a mapped file: the first change copies it.
        num_threads: Of native code, where there is much to do; results do not depend on it.
    """

    def __init__(self, tensor: Tensor, is_borrowed: bool = False, num_threads: int = 1) -> None:
        self.is_borrowed, self.num_threads = is_borrowed, num_threads
        self._put(tensor.detach().contiguous())
        self._copying = threading.Lock()

    def _put(self, tensor: Tensor) -> None:
        view = NativeView([tensor], lambda: _core.RowTable(as_numpy(tensor)))
        view.get()  # before another thread can: there must be one table for all, since it has the locks
        self.tensor, self._view = tensor, view

    @property
    def table(self) -> _core.RowTable:
        """The native table over the rows."""
        return self._view.get()

    def read(self, rows: Rows) -> Tensor:
        """Returns rows ``[n, ...]``; raises IndexError, which names the first row that is not there."""
        numbers, first, n = self._numbers(rows)
        out = pooled_empty((n, *self.tensor.shape[1:]), self.tensor.dtype)
        self.table.read(numbers, first, as_numpy(out), self.num_threads)
        return out

    def write(self, rows: Rows, values: Tensor) -> None:
        """Replaces rows by ``values [n, ...]``; of those that are named several times, the last value stays.

        Raises:
            IndexError, TypeError, ValueError: If rows or values do not fit; nothing is written then.
        """
        numbers, first = self._checked(rows, values)
        self.own().write(numbers, first, as_numpy(values.contiguous()), self.num_threads)

    def add(self, rows: Rows, values: Tensor) -> None:
        """Adds ``values [n, ...]`` to rows; those that are named several times get all of it, in the order given.

        Raises as :meth:`write`; TypeError also of bool and float8.
        """
        numbers, first = self._checked(rows, values)
        self.own().add(numbers, first, as_numpy(values.contiguous()), self.dtype, self.num_threads)

    @property
    def dtype(self) -> str:
        """Without ``torch.``, as native code takes it."""
        return str(self.tensor.dtype).removeprefix("torch.")

    def own(self) -> _core.RowTable:
        """The table, of rows that may be changed: borrowed ones are copied first."""
        with self._copying:
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

    def _checked(self, rows: Rows, values: Tensor) -> tuple[np.ndarray | None, int]:
        if values.dtype != self.tensor.dtype:
            raise TypeError(f"values has dtype {values.dtype}: expected {self.tensor.dtype}, the tensor's")
        numbers, first, n = self._numbers(rows)
        if values.shape != (n, *self.tensor.shape[1:]):
            raise ValueError(f"values has shape {list(values.shape)}: expected {[n, *self.tensor.shape[1:]]}")
        return numbers, first

    def _numbers(self, rows: Rows) -> tuple[np.ndarray | None, int, int]:
        """Numbers of rows or None, the first, and how many; a range is checked before memory is taken for its rows."""
        if isinstance(rows, Tensor):
            return rows.contiguous().numpy(), 0, len(rows)
        first, n = map(int, rows)
        if not 0 <= first <= first + n <= len(self):
            raise IndexError(f"rows {first} to {first + n - 1} are outside [0, {len(self)})")
        return None, first, n

    def __len__(self) -> int:
        return len(self.tensor)


class ChangeOrder:
    """Makes the changes of one handle in the order of their numbers, from 1, on whichever threads they arrive.

    Each begins when the one before is done, well or badly.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_done = 0
        self._ended = False

    def end(self) -> None:
        """Fails all waits: the trainer is gone."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, number: int) -> None:
        """Waits until the change of this number is done; raises RuntimeError if it does not come."""
        with self._changed:
            has_come = self._changed.wait_for(lambda: self._num_done >= number or self._ended, deadlines.TURN_S)
            if self._ended:
                raise RuntimeError("the trainer of this change is gone")
            if not has_come:
                raise RuntimeError(
                    f"change {self._num_done + 1} of a tensor did not come within {deadlines.TURN_S:g} s; "
                    "later ones wait for it"
                )

    @contextmanager
    def making(self, number: int) -> Iterator[None]:
        """Waits for the changes before this one, and counts this one as done at the end."""
        try:
            self.wait(number - 1)
            yield
        finally:
            with self._changed:
                self._num_done = max(self._num_done, number)
                self._changed.notify_all()
