"""Arrays that are too large for memory while they are being read: appended to nameless files, then mapped."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from pathlib import Path

import numpy as np

CHUNK_BYTES = 16 << 20
_MAP_NORESERVE = 0x4000  # Linux; Python's mmap does not name it everywhere


class ScratchRows:
    """Rows of ``dtype`` and ``row_shape`` that arrive in pieces, in a file in ``directory``, which should not be
    memory.

    The file has no name: the kernel frees it with the last reference, even after SIGKILL, and may drop its pages from
    memory at any time.
    """

    def __init__(self, directory: Path, dtype: np.dtype, row_shape: tuple[int, ...] = ()) -> None:
        self.directory, self.dtype, self.row_shape = directory, dtype, row_shape
        self._file = tempfile.TemporaryFile(dir=directory, prefix="glt-")
        weakref.finalize(self, self._file.close)  # where reading ends in an error
        self._num_rows = 0

    def __len__(self) -> int:
        return self._num_rows

    def append(self, rows: np.ndarray) -> None:
        assert rows.dtype == self.dtype and rows.shape[1:] == self.row_shape
        if rows.size:
            self._file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        self._num_rows += len(rows)

    def append_all(self, others: np.ndarray) -> None:
        """Adds the rows of an array that may be mapped, a piece at a time."""
        step = max(1, CHUNK_BYTES // max(1, others[:1].nbytes))
        for begin in range(0, len(others), step):
            self.append(others[begin : begin + step].astype(self.dtype, copy=False))

    def array(self) -> np.ndarray:
        """Returns ``[rows, *row_shape]``, mapped; nothing can be added after that."""
        shape = (self._num_rows, *self.row_shape)
        with self._file:
            self._file.flush()
            if os.fstat(self._file.fileno()).st_size == 0:
                return np.empty(shape, self.dtype)
            return np.memmap(self._file, self.dtype, mode="c", shape=shape)


def blank(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Returns zeros of any size: they take no memory until they are written, for reading them finds the kernel's one
    page of zeros.
    """
    num_bytes = dtype.itemsize * math.prod(shape)
    if num_bytes == 0:
        return np.zeros(shape, dtype)
    room = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return np.frombuffer(room, dtype).reshape(shape)


def pair(directory: Path, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Returns ``[2, num_edges]``, mapped, of two arrays of ids ``[num_edges]``."""
    rows = ScratchRows(directory, pair_dtype(src, dst))
    rows.append_all(src)
    rows.append_all(dst)
    return rows.array().reshape(2, -1) if len(rows) else np.empty((2, 0), np.int64)


def pair_dtype(src: np.ndarray, dst: np.ndarray) -> np.dtype:
    """Returns the dtype of :func:`pair`."""
    narrow = all(np.can_cast(ids.dtype, np.int32) for ids in (src, dst))
    return np.dtype(np.int32 if narrow else np.int64)


def by_id(directory: Path, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns ``out`` with ``out[ids] = rows``, mapped, for ``ids`` that are a permutation."""
    if rows.size == 0:
        return rows
    with tempfile.TemporaryFile(dir=directory, prefix="glt-") as file:
        os.posix_fallocate(file.fileno(), 0, rows.nbytes)  # a full disk is an OSError here, a SIGBUS later
        out = np.memmap(file, rows.dtype, mode="r+", shape=rows.shape)
    step = max(1, CHUNK_BYTES // max(1, rows[:1].nbytes))
    for begin in range(0, len(rows), step):
        out[ids[begin : begin + step]] = rows[begin : begin + step]
    return out
