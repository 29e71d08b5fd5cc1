"""Tables of rows as partitions store them: what NumPy has, what it lacks as raw integers, and packed rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from glt.data.arrays import from_array, require_data
from glt.data.packing import FLOATS, Packing, RowPacker

Array = np.ndarray | torch.Tensor
CHUNK_IDS: Final = 1 << 20  # ids looked at together: 8 MiB


def chunks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields pieces of at most ``CHUNK_IDS`` elements, each with the position of its first."""
    for begin in range(0, array.size, CHUNK_IDS):
        yield begin, array[begin : begin + CHUNK_IDS]


# What NumPy stores as it is, and what it lacks, which is stored as raw unsigned integers of the same width.
_NUMPY: Final = frozenset(
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128".split()
)
RAW: Final = {
    getattr(torch, name): raw
    for raw, names in (
        (torch.uint8, "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"),
        (torch.uint16, "bfloat16"),
        (torch.uint32, "complex32"),
    )
    for name in names.split()
}
_MAX_DIMS: Final = 4  # of a tensor in a message


class PackedRows:
    """``given [num_rows, ...]``, of a floating ``torch_dtype``, as an array ``[num_rows, row_bytes]`` of packed rows,
    each of which is made when it is read: by a slice or, as copies that caches get, by numbers.

    ``packer`` sums up the errors of slices. ``name`` is the table's in errors.
    """

    dtype = np.dtype(np.uint8)
    itemsize = 1

    def __init__(self, given: np.ndarray, torch_dtype: str, packing: Packing, name: str) -> None:
        self.given, self._torch_dtype, self.packing, self._name = given, torch_dtype, packing, name
        self.shape = len(given), packing.row_bytes
        self.packer = RowPacker(packing, name)

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, at: slice | np.ndarray) -> np.ndarray:
        if isinstance(at, slice):
            return self.packed(*at.indices(len(self))[:2])
        return RowPacker(self.packing, self._name).pack(self._rows(at)).numpy()

    def packed(self, begin: int, end: int, num_threads: int = 1) -> np.ndarray:
        """As a slice."""
        return self.packer.pack(self._rows(slice(begin, end)), begin, num_threads).numpy()

    def _rows(self, at: slice | np.ndarray) -> torch.Tensor:
        rows, dtype = from_array(self.given[at]), getattr(torch, self._torch_dtype)
        return rows.view(dtype) if dtype in RAW else rows


@dataclass(frozen=True, eq=False)
class Rows:
    """``array [num_rows, ...]`` as it is stored, and the name of its torch dtype, such as ``"bfloat16"``."""

    array: np.ndarray | PackedRows
    torch_dtype: str

    def packed(self, store_dtype: str, name: str) -> Rows:
        """The same rows, of the table ``name``, packed. Raises TypeError if they are not floats."""
        assert isinstance(self.array, np.ndarray)
        if getattr(torch, self.torch_dtype) not in FLOATS:
            raise TypeError(
                f"store_dtype = {store_dtype!r} of {name}, which is {self.torch_dtype}: expected a table of floats "
                "up to 64 bits"
            )
        packing = Packing.of(store_dtype, self.row_shape)
        return Rows(PackedRows(self.array, self.torch_dtype, packing, name), "uint8")

    @property
    def packing(self) -> Packing | None:
        """How rows are packed; None where they are not."""
        return self.array.packing if isinstance(self.array, PackedRows) else None

    @property
    def given(self) -> np.ndarray:
        """What it was made of."""
        return self.array.given if isinstance(self.array, PackedRows) else self.array

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def row_bytes(self) -> int:
        return self.array.itemsize * math.prod(self.row_shape)

    @property
    def moved_bytes(self) -> int:
        """Memory of a row that is on its way: packed rows are float32 first."""
        return self.row_bytes + (0 if self.packing is None else 4 * self.packing.num_columns)

    @classmethod
    def of(cls, name: str, value: object, num_rows: int, what: str) -> Rows:
        """Takes a tensor or an array (also a memmap) ``[num_rows, ...]`` without copying it.

        ``name`` is the argument, and ``what`` a row: ``"node"`` or ``"edge"``, both for messages.
        """
        array, torch_dtype = _as_array(name, value)
        if array.ndim == 0 or array.shape[0] != num_rows:
            raise ValueError(
                f"{name} has shape {list(array.shape)}: expected one row per {what}, that is {num_rows} rows"
            )
        if array.ndim > _MAX_DIMS:
            raise ValueError(
                f"{name} has shape {list(array.shape)}: expected at most {_MAX_DIMS} dimensions, the first counted, "
                "which is what a batch carries; flatten the rows, for example with .flatten(1)"
            )
        return cls(array, torch_dtype)


def torch_dtype_name(dtype: np.dtype) -> str:
    """Returns the name of the torch dtype that equals ``dtype``; raises TypeError where there is none."""
    try:
        return str(torch.from_numpy(np.empty(0, dtype)).dtype).removeprefix("torch.")
    except ValueError as error:  # foreign byte order
        raise TypeError(str(error)) from error


def stored_name(dtype: torch.dtype, what: str, remedy: str = "") -> str:
    """Returns the name of a dtype that is stored, such as ``"bfloat16"``; else raises TypeError beginning with
    ``what``."""
    name = str(dtype).removeprefix("torch.")
    if dtype not in RAW and name not in _NUMPY:
        known = sorted(_NUMPY.union(str(each).removeprefix("torch.") for each in RAW))
        raise TypeError(f"{what}: expected one of {', '.join(known)}{remedy}")
    return name


def as_torch_dtype(array: np.ndarray, torch_dtype: str) -> Array:
    """Returns ``array`` itself where NumPy has ``torch_dtype``, else a tensor of that dtype on the same memory."""
    dtype = getattr(torch, torch_dtype)
    return torch.from_numpy(array).view(dtype) if dtype in RAW else array


def require_plain(name: str, value: np.ndarray) -> None:
    """Raises TypeError for arrays that mean something else than their elements, or are indexed otherwise."""
    if isinstance(value, np.ma.MaskedArray | np.matrix):
        hint = "fill it with .filled(...)" if isinstance(value, np.ma.MaskedArray) else "pass np.asarray(...) of it"
        raise TypeError(f"{name} is a {type(value).__name__}: expected a plain numpy.ndarray or a torch.Tensor; {hint}")


def _as_array(name: str, value: object) -> tuple[np.ndarray, str]:
    if isinstance(value, torch.Tensor):
        require_data(value, name)
        if value.layout != torch.strided:
            raise TypeError(f"{name} has layout {value.layout}: expected a dense tensor; call .to_dense() first")
        # Conjugates and negations may be lazy in torch; what is stored is their values.
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        torch_dtype = stored_name(tensor.dtype, f"{name} has dtype {tensor.dtype}", "; convert it with .to()")
        raw = RAW.get(tensor.dtype)
        return (tensor if raw is None else tensor.view(raw)).numpy(), torch_dtype
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} is a {type(value).__name__}: expected a torch.Tensor or a numpy.ndarray")
    require_plain(name, value)
    try:
        return value, torch_dtype_name(value.dtype)
    except TypeError as error:
        raise TypeError(
            f"{name} has dtype {value.dtype!r}: expected a dtype that torch has, in native byte order; "
            "convert it with .astype(...) first"
        ) from error
