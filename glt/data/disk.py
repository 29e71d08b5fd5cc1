"""Rows that do not fit in memory: read from their file as they are looked up, but for hot ones."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import format_size, parse_size
from glt._progress import progress_bar
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_numpy, map_npy, pooled_empty
from glt.data.device import Accelerator
from glt.data.feature import Feature, Source, TieredRows, checked_hotness
from glt.data.packing import Packing
from glt.data.schema import PartitionBook

_ROWS_AT_ONCE = 1 << 16  # that are read into memory

logger = logging.getLogger(__name__)


class HotRows:
    """Which rows of a table are in memory: ``numbers [n]``, int64, ascending, of ``num_rows``. An index of them takes a
    quarter of a byte for each row of the table."""

    def __init__(self, numbers: np.ndarray, num_rows: int) -> None:
        self.numbers = numbers
        self.index = _core.RowIndex(numbers, num_rows)
        # The same, kept: torch sends a tensor to a process that is spawned as memory that ends with the tensor.
        self.tensor = torch.from_numpy(numbers)

    @staticmethod
    def bytes_of_row(row_bytes: int) -> int:
        """Memory that a row takes, the index apart."""
        return row_bytes + 8


def hottest(hotness: Tensor | None, num_rows: int, num_hot: int) -> np.ndarray:
    """The numbers of the hottest rows, or of the first ones, ascending ``[num_hot]``, int64."""
    if hotness is None or num_hot == num_rows:
        return np.arange(num_hot)
    cold, hotness = num_rows - num_hot, hotness.detach()
    numbers = (hotness.float() if hotness.dtype == torch.bfloat16 else hotness).numpy()  # NumPy lacks it
    return np.sort(np.argpartition(numbers, cold)[cold:])


@short_traceback
class DiskFeature(Feature):
    """A table of rows that do not fit in memory: some are kept there, the others read from disk as they are looked up.

    A mapped page that is not in memory is read alone, and its reader waits. Here all rows of a call are asked for at
    once, past the page cache, which they would only push others out of. A file system that cannot do that is read
    through the page cache, as a line of the log and the ``repr`` say.

    Args:
        path: An ``.npy`` file of rows ``[num_rows, ...]``, which must not change.
        memory: Bytes, or a text such as ``'2 GiB'``, for rows that are kept in memory: the hottest by ``hotness``, else
            the first ones. They are read now. Forks share them.
        hotness: How often each row is wanted, in any unit ``[num_rows]``; see
            :meth:`glt.sampler.NeighborSampler.sample_prob`.
        dtype: That of the rows, where the file has integers of the same size in place of one that NumPy lacks, such as
            ``torch.bfloat16``. Default: the file's.
        owned: As of :class:`Feature`.
        store_dtype: The :class:`Packing` by which rows of uint8 are packed, if they are.

    Raises:
        OSError: If the file cannot be opened, and later, when rows are looked up, if it was cut or cannot be read, or
            the disk does not answer within a minute; names the file and the row.
        TypeError, ValueError: If it is no ``.npy`` file, or an argument does not fit. No GPU looks rows up.

    Example:
        >>> np.save("rows.npy", np.arange(6.0).reshape(3, 2))
        >>> glt.data.DiskFeature("rows.npy").gather(torch.tensor([2, 0]))
        tensor([[4., 5.],
                [0., 1.]], dtype=torch.float64)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        memory: int | str = 0,
        *,
        hotness: Tensor | None = None,
        dtype: torch.dtype | None = None,
        owned: tuple[PartitionBook, int] | None = None,
        store_dtype: Packing | None = None,
    ) -> None:
        if store_dtype is not None and not isinstance(store_dtype, Packing):
            raise TypeError(
                f"store_dtype = {store_dtype!r}: expected a Packing, by which the rows of the file are packed already; "
                "a file of unpacked rows is read as it is"
            )
        # What is read later, and by processes that this is sent to, is the same file wherever they work.
        self._path = os.path.abspath(path)
        array = map_npy(self._path)
        if array.ndim == 0 or not array.flags.c_contiguous:
            raise ValueError(f"path = {self._path!r} holds an array {list(array.shape)}: expected rows in C order")
        if array.dtype.kind not in "biufc" or not array.dtype.isnative:
            raise TypeError(
                f"path = {self._path!r} holds {array.dtype}: expected numbers in the byte order of this machine"
            )
        tensor = torch.from_numpy(array)
        if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype.itemsize != array.itemsize):
            raise ValueError(
                f"dtype = {dtype!r}: expected a torch.dtype of {array.itemsize} bytes, as {array.dtype} of the file"
            )
        super().__init__(tensor if dtype is None else tensor.view(dtype), owned=owned, store_dtype=store_dtype)
        self._kept: tuple[HotRows, Tensor] | None = None
        self.row_bytes: int = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        place = self._path, array.offset, self.row_bytes, len(array)  # type: ignore[attr-defined]
        self._disk = _core.DiskRows(*place, deadlines.DISK_S)
        if self._disk.why_buffered:
            logger.warning("%s is read through the page cache: %s", self._path, self._disk.why_buffered)
        num_hot = min(len(self), parse_size(memory, "memory", 0) // HotRows.bytes_of_row(self.row_bytes))
        hotness = checked_hotness(hotness, len(self))
        if num_hot:
            self.keep(HotRows(hottest(hotness, len(self), num_hot), len(self)))

    def keep(self, hot: HotRows, table: Tensor | None = None, is_filled: bool = False) -> None:
        """Has rows in memory from now on, in a table ``[n, ...]`` of the dtype that they are stored in: they are read
        into it, unless another process has done so."""
        if table is None:
            table = torch.empty((len(hot.numbers), *self.tensor.shape[1:]), dtype=self.tensor.dtype)
        if not is_filled:
            into, numbers = as_numpy(table), hot.numbers
            with progress_bar(f"hot rows of {self._path}", len(numbers), unit=" rows") as advance:
                for begin in range(0, len(numbers), _ROWS_AT_ONCE):
                    some = slice(begin, begin + _ROWS_AT_ONCE)
                    advance(len(numbers[some]))
                    self._disk.read(numbers[some], into[some])
        self._kept = hot, table

    @property
    def num_hot(self) -> int:
        """How many rows are kept in memory."""
        return 0 if self._kept is None else len(self._kept[1])

    def sources(
        self, ids: np.ndarray, positions: np.ndarray | None, stats: dict[str, float] | None = None
    ) -> list[Source]:
        row_of = None if self.row_of is None else self.row_of.numpy()
        rows, found = _core.number_rows(ids, len(self), row_of, self._first_id), []
        if self._kept is not None:
            hot, table = self._kept
            at = np.arange(len(rows), dtype=np.uint32) if positions is None else positions
            hot_rows, hot_at, rows, positions = hot.index.split(rows, at)
            found.append((as_numpy(table), hot_rows, hot_at, None, 0))
        began_s = time.perf_counter()
        read = as_numpy(pooled_empty((len(rows), *self.tensor.shape[1:]), self.tensor.dtype))
        _, num_bytes = self._disk.read(rows, read)
        if stats is not None:
            stats["disk_s"] += time.perf_counter() - began_s
            stats["disk_bytes"] += num_bytes
            stats["num_disk_rows"] += len(rows)
            stats["num_hot_rows"] += len(ids) - len(rows)
        return [*found, (read, None, positions, None, 0)]

    def _gather(
        self, ids: Tensor, out: Tensor, positions: Tensor | None, num_threads: int, packing: tuple[str, int] | None
    ) -> None:
        if self.owned is not None:
            _core.require_owned(self.owned[0].native, ids.numpy(), self.owned[1])
        try:
            for table, rows, at, _, _ in self.sources(ids.numpy(), None if positions is None else positions.numpy()):
                _core.gather_rows(table, rows, as_numpy(out), None, at, num_threads, 0, packing)
        except IndexError as error:  # of an id: raised here, so that tracebacks are short
            raise IndexError(*error.args) from None

    def placed(self, device: Accelerator | torch.device | str | int) -> TieredRows:
        raise ValueError(f"device = {device!r}: rows of {self._path} stay on disk, where no GPU looks them up")

    def __getstate__(self) -> dict[str, Any]:
        hot = None if self._kept is None else (self._kept[0].tensor, self._kept[1])
        return {
            "path": self._path,
            "options": {"dtype": self.tensor.dtype, "owned": self.owned, "store_dtype": self.packing},
            "hot": hot,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], **state["options"])  # type: ignore[misc]
        if state["hot"] is not None:
            numbers, table = state["hot"]
            self.keep(HotRows(numbers.numpy(), len(self)), table, is_filled=True)

    @says
    def __repr__(self) -> str:
        stored = "" if self.packing is None else f", stored as {self.packing.store_dtype}"
        way = " through the page cache" if self._disk.why_buffered else ""
        size = format_size(self.row_bytes * len(self))
        return f"{self.dtype} {list(self.shape)}{stored}, {size} on disk{way}, {self.num_hot} rows in memory"
