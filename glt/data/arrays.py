"""Tensors as NumPy arrays, without copies: what the native core reads and writes."""

from __future__ import annotations

import os
import reprlib
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt.data.npy_array import map_npy

# The core moves rows as bytes, so a dtype that NumPy lacks travels as an integer of the same size.
_CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def as_numpy(tensor: Tensor) -> np.ndarray:
    """Returns ``tensor`` (CPU, contiguous, any dtype) as an array that shares its memory."""
    if tensor.dtype == torch.bfloat16 or not _numpy_has(tensor.dtype):
        if tensor.dim() == 0:
            tensor = tensor.reshape(1)
        tensor = tensor.view(_CARRIER[tensor.element_size()])
    return tensor.detach().numpy()


def _numpy_has(dtype: torch.dtype) -> bool:
    return dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
                     torch.float32, torch.float64, torch.complex64, torch.complex128)  # fmt: skip


def require_data(value: Any, name: str) -> None:
    """Raises, naming it, if ``value`` is a tensor of no use: ValueError on the meta device, where tensors have a shape,
    but no data; TypeError of a nested one, which has no shape."""
    if isinstance(value, Tensor) and value.is_nested:
        raise TypeError(
            f"{name} is a nested tensor: expected a dense one, such as that of torch.nested.to_padded_tensor"
        )
    if isinstance(value, Tensor) and value.is_meta:
        raise ValueError(
            f"{name} is a tensor {list(value.shape)} on the meta device, which has no data: expected one in CPU "
            "memory; was it made under torch.device('meta')?"
        )


class Packed(NamedTuple):
    """A tensor on its way through pickle, which loads tensors of 16, 32 and 64 bits without sign wrongly or not at all
    (torch 2.13: ``UntypedStorage has no attribute dtype``): they travel as signed ones.
    """

    tensor: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor | None) -> Any:
        """Packs a tensor where that is needed."""
        if tensor is None or tensor.dtype not in (torch.uint16, torch.uint32, torch.uint64):
            return tensor
        return cls(tensor.view(_CARRIER[tensor.element_size()]), tensor.dtype)

    @staticmethod
    def open(packed: Any) -> Any:
        """Undoes :meth:`of`."""
        return packed.tensor.view(packed.dtype) if isinstance(packed, Packed) else packed


def from_array(array: np.ndarray) -> Tensor:
    """Returns ``array`` as a tensor that shares its memory; a read-only one too, since glt does not write into what it
    is given."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))


def as_ids(value: Any, name: str, num_ids: int | None = None) -> Tensor:
    """Returns ``value`` as a contiguous one-dimensional int64 CPU tensor of ids; see :func:`ids_in_place`."""
    return ids_in_place(value, name, num_ids).to(device="cpu", dtype=torch.int64).contiguous()


def ids_in_place(value: Any, name: str, num_ids: int | None = None) -> Tensor:
    """Returns ``value`` as a one-dimensional tensor of ids, of the integer type and on the device that it is.

    Args:
        value: A tensor, array or sequence of integers; a mask stands for the positions of its true elements.
        name: What to call it in errors.
        num_ids: How many ids there are: a mask has one element for each, bool, or zeros and ones in uint8, which is
            always one, as in torch and DGL. Default: nobody knows, only bool is a mask.

    Raises:
        TypeError: If it does not hold integers.
        ValueError: If it is not one-dimensional, a mask of another length, or one of uint8 that holds other numbers.
    """
    ids = value if isinstance(value, Tensor) else _converted(value, name)
    require_data(ids, name)
    if ids.layout != torch.strided:
        raise TypeError(f"{name} has layout {ids.layout}: expected a dense tensor, such as that of .to_dense()")
    if ids.dim() != 1:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}: expected one dimension")
    if is_mask(ids, num_ids):
        _require_mask(ids, name, num_ids)
        ids = ids.nonzero().view(-1)
    if ids.numel() == 0 and not isinstance(value, Tensor):
        ids = ids.to(torch.int64)
    if ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"{name} has dtype {ids.dtype}: expected integer ids")
    return ids


def _converted(value: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:  # text, objects, lists of several lengths, integers of more than 64 bits
        raise TypeError(
            f"{name} = {reprlib.repr(value)}: expected integer ids, or a mask, as a tensor, array or list ({error})"
        ) from error


def is_mask(ids: Any, num_ids: int | None) -> bool:
    """Whether a tensor says by position what is chosen of ``num_ids``; see :func:`ids_in_place`."""
    return isinstance(ids, Tensor) and (ids.dtype == torch.bool or (num_ids is not None and ids.dtype == torch.uint8))


def _require_mask(mask: Tensor, name: str, num_ids: int | None) -> None:
    wider = "" if mask.dtype == torch.bool else "; uint8 is a mask: convert ids to int64, with .long()"
    if num_ids is not None and len(mask) != num_ids:
        raise ValueError(f"{name} is a mask of {len(mask)} elements: expected {num_ids}, one for each id{wider}")
    if mask.dtype == torch.uint8 and mask.numel() and int(mask.max()) > 1:
        at = int((mask > 1).nonzero()[0])
        raise ValueError(f"{name}[{at}] = {int(mask[at])}: expected 0 or 1{wider}")


def as_rows(value: Any, name: str) -> Tensor:
    """Returns a table of rows as a tensor that shares the memory of what was given.

    Args:
        value: A tensor, an array (memory-mapped too), the path of an ``.npy`` file, which is mapped, or a sequence.
        name: What to call it in errors.

    Raises:
        TypeError: If it is none of these, or a sparse tensor.
        ValueError: If it has no rows, or the file is no ``.npy`` file.
    """
    if isinstance(value, str | os.PathLike):
        value = map_npy(value, f"{name} = {os.fspath(value)!r}", "r")
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise TypeError(f"{name} has dtype {value.dtype}: expected numbers")
        value = from_array(value)
    elif isinstance(value, list | tuple):
        value = torch.as_tensor(value)
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        kind = f"{value.layout} tensor" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} is a {kind}: expected a dense tensor, an array or the path of an .npy file")
    require_data(value, name)
    if value.dim() == 0:
        raise ValueError(f"{name} is a single value: expected one row per node or edge")
    return value
