"""Rows of float32 that are stored smaller: 16 bits for an element, or 8 or 4 and a factor for each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._checks import check_one_of, integer

STORE_DTYPES: Final = ("float16", "bfloat16", "int8", "int4")
FLOATS: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

_LARGEST: Final = {"int8": 127, "int4": 7}
_STEP_BYTES: Final = 4 << 20  # of float32 that a thread packs at a time


@dataclass(frozen=True)
class Packing:
    """How rows ``row_shape`` of float32 are stored: as ``store_dtype``, ``'float16'``, ``'bfloat16'``, ``'int8'`` or
    ``'int4'``.

    A packed table is ``[num_rows, row_bytes]`` uint8; ``csrc/core/packed_rows.h`` says what is in a row. With int8 and
    int4 a row has a factor, its largest magnitude over 127 or 7, and each element the nearest multiple of it, so that
    it is off by half a factor at most, where that is no subnormal number.

    Attributes:
        store_dtype: Its name.
        row_shape: Shape of a row as it is looked up.

    Example:
        >>> packing = glt.data.Packing("int8", (100,))
        >>> packing.row_bytes
        104
    """

    store_dtype: str
    row_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        check_one_of("store_dtype", self.store_dtype, STORE_DTYPES)
        for each in self.row_shape:
            integer("row_shape", each, 0, 2**63 - 1, "elements of a row along a dimension")

    @classmethod
    def of(cls, store_dtype: Any, row_shape: tuple[int, ...], name: str = "store_dtype") -> Packing:
        """Checks ``store_dtype``, a name or a dtype of torch or NumPy, called ``name`` in errors."""
        if isinstance(store_dtype, torch.dtype):
            store_dtype = str(store_dtype).removeprefix("torch.")
        elif isinstance(store_dtype, np.dtype | type):  # np.dtype("float16") equals its name, and is no text
            store_dtype = np.dtype(store_dtype).name
        check_one_of(name, store_dtype, STORE_DTYPES)
        return cls(store_dtype, tuple(row_shape))

    @property
    def num_columns(self) -> int:
        return math.prod(self.row_shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of a packed row."""
        if self.store_dtype not in _LARGEST:
            return 2 * self.num_columns
        elements = self.num_columns if self.store_dtype == "int8" else (self.num_columns + 1) // 2
        return 4 + (elements + 3) // 4 * 4

    @property
    def native(self) -> tuple[str, int]:
        """As the native core takes it."""
        return self.store_dtype, self.num_columns


@dataclass(frozen=True)
class PackingError:
    """By how much packed numbers differ from what they were made of, infinite and missing ones apart.

    Attributes:
        rms_ratio: Root of the mean square of the differences over that of the numbers; 0 if all are 0.
        largest: The largest difference.
    """

    rms_ratio: float
    largest: float

    @classmethod
    def of_sums(cls, *sums: tuple[float, float, float]) -> PackingError:
        """Of a table that several packers packed, given the ``sums`` of each, to three digits: sums of floats depend
        on their order."""
        square_error, square = (math.fsum(each[at] for each in sums) for at in (0, 1))
        largest = max((each[2] for each in sums), default=0.0)
        ratio = math.sqrt(square_error / square) if square else 0.0
        return cls(float(f"{ratio:.3g}"), float(f"{largest:.3g}"))

    def __str__(self) -> str:
        return f"off by {self.rms_ratio:.2g} of the numbers' root mean square, {self.largest:.2g} at most"


class RowPacker:
    """Packs rows piece by piece, and sums up by how much they change. ``name`` is the table's in errors.

    Attributes:
        sums: Of the squares of the differences and of the numbers, and the largest difference: what
            :meth:`PackingError.of_sums` takes.
    """

    def __init__(self, packing: Packing, name: str) -> None:
        self.packing, self.name = packing, name
        self.sums = (0.0, 0.0, 0.0)

    def pack(self, rows: Tensor, first_row: int = 0, num_threads: int = 1) -> Tensor:
        """Returns rows ``[n, ...]`` of a floating dtype packed, ``[n, row_bytes]`` uint8; errors count them from
        ``first_row``. The result does not depend on ``num_threads``.

        Raises ValueError, naming the first, of a number that cannot be stored: of int8 and int4 all must be finite;
        float16 holds up to 65504, the others what float32 does.
        """
        packed = torch.empty((len(rows), self.packing.row_bytes), dtype=torch.uint8)
        step = max(1, num_threads * _STEP_BYTES // max(1, 4 * self.packing.num_columns))
        for begin in range(0, len(rows), step):
            some = rows[begin : begin + step].reshape(-1)
            numbers = some.to(torch.float32).contiguous()
            if rows.dtype == torch.float64 and bool((lost := numbers.isinf() & some.isfinite()).any()):
                self._refuse(some, int(lost.nonzero()[0]), first_row + begin)
            into = packed[begin : begin + step].numpy()
            bad, *sums = _core.pack_rows(numbers.numpy(), into, self.packing.store_dtype, num_threads)
            if bad >= 0:
                self._refuse(some, bad, first_row + begin)
            square_error, square, largest = self.sums
            self.sums = square_error + sums[0], square + sums[1], max(largest, sums[2])
        return packed

    def _refuse(self, numbers: Tensor, at: int, first_row: int) -> NoReturn:
        kind = self.packing.store_dtype
        most = torch.finfo(torch.float32 if kind in _LARGEST else getattr(torch, kind)).max
        what = "finite numbers only" if kind in _LARGEST and not numbers[at].isfinite() else f"numbers up to {most:g}"
        row, column = divmod(at, self.packing.num_columns)
        raise ValueError(
            f"{self.name}[{first_row + row}] has {numbers[at].item():g} at position {column}: it is to be stored as "
            f"{kind}, which has {what}; replace it, or choose another store_dtype"
        )
