"""A table of rows: NumPy on disk, together with the torch dtype that it stands for.

NumPy has no bfloat16 (nor float8, nor complex32), so such tensors are stored as raw unsigned integers of the
same width.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from glt.data.arrays import require_data

Array = np.ndarray | torch.Tensor

_RAW: Final = {
    torch.bfloat16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.complex32: torch.uint32,
}

# What NumPy stores as it is.
_NUMPY: Final = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
        torch.int64, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    }
)  # fmt: skip
_MAX_DIMS: Final = 4  # of a tensor in a message


@dataclass(frozen=True, eq=False)
class Rows:
    """``array [num_rows, ...]`` as it is stored, and the name of its torch dtype, such as ``"bfloat16"``."""

    array: np.ndarray
    torch_dtype: str

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @classmethod
    def of(cls, name: str, value: object, num_rows: int, what: str) -> "Rows":
        """Takes a tensor or an array without copying it.

        Args:
            name: The argument, for messages.
            value: Tensor or array (also a memmap) of shape ``[num_rows, ...]``, at most four dimensions.
            num_rows: Rows expected.
            what: What a row stands for, for messages: ``"node"`` or ``"edge"``.

        Raises:
            TypeError: For anything else, or for a dtype that torch does not have.
            ValueError: If the number of rows is wrong, or there are more than four dimensions.
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
    """Returns the name of a torch dtype that is stored, such as ``"bfloat16"``; raises TypeError, beginning with
    ``what``, for another."""
    if dtype not in _RAW and dtype not in _NUMPY:
        known = sorted(str(each).removeprefix("torch.") for each in _NUMPY | _RAW.keys())
        raise TypeError(f"{what}: expected one of {', '.join(known)}{remedy}")
    return str(dtype).removeprefix("torch.")


def as_torch_dtype(array: np.ndarray, torch_dtype: str) -> Array:
    """Returns ``array`` itself where NumPy has ``torch_dtype``, else a tensor of that dtype on the same memory."""
    dtype = getattr(torch, torch_dtype)
    return torch.from_numpy(array).view(dtype) if dtype in _RAW else array


def is_storage_of(dtype: np.dtype, torch_dtype: str) -> bool:
    """Tells whether arrays of ``dtype`` may hold what ``torch_dtype`` names."""
    wanted = getattr(torch, torch_dtype, None)
    if wanted in _RAW:
        return torch_dtype_name(dtype) == str(_RAW[wanted]).removeprefix("torch.")
    return isinstance(wanted, torch.dtype) and torch_dtype_name(dtype) == torch_dtype


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
        raw = _RAW.get(tensor.dtype)
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
