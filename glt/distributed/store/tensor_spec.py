"""What a distributed tensor is: all that trainers and servers must agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from glt.partition.format.files import stored_name

_MOST_DIMS = 4  # of a tensor in a message


@dataclass(frozen=True)
class TensorSpec:
    """What one is made of.

    Attributes:
        name: Of the tensor.
        shape: Of the whole tensor, rows first.
        dtype: Without ``torch.``, for example ``"bfloat16"``.
        placement: What :meth:`Placement.spec` gives.
        init: What :func:`glt.distributed.store.initial_values.encode_init` gives.
        is_anonymous: Whether it is freed when nobody holds it.
        num_trainers: That create it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    placement: dict[str, Any]
    init: dict[str, Any]
    is_anonymous: bool
    num_trainers: int

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def table(self) -> str | None:
        """The table of the graph whose rows it has; None: it is no such."""
        return self.init["table"] if self.init["kind"] == "table" else None

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.torch_dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> TensorSpec:
        """Undoes :meth:`to_json`.

        Raises:
            TypeError, ValueError: If it is no such thing.
        """
        spec = cls(**{**told, "shape": tuple(int(size) for size in told["shape"])})
        if not isinstance(getattr(torch, str(spec.dtype), None), torch.dtype) or not spec.shape or min(spec.shape) < 0:
            raise ValueError(f"no tensor has dtype {spec.dtype!r} and shape {list(spec.shape)}")
        return spec

    def __str__(self) -> str:
        place = self.placement
        part = "even parts" if place["kind"] == "even" else f"parts of {place['kind']}s of type {place['type_index']}"
        return f"shape {list(self.shape)}, dtype {self.dtype}, {part}"


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Returns the shape of a tensor, rows first.

    Raises:
        TypeError, ValueError: If it is none.
    """
    if isinstance(shape, str | bytes) or not isinstance(shape, Sequence):
        raise TypeError(
            f"shape = {shape!r}: expected the sizes of 1 to {_MOST_DIMS} dimensions, such as (num_nodes, 10)"
        )
    sizes = tuple(int(size) if isinstance(size, np.integer) else size for size in shape)
    for at, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"shape[{at}] = {size!r}: expected an integer")
        if not 0 <= size < 1 << 63:
            raise ValueError(f"shape[{at}] = {size}: expected 0 or more, and below 2^63")
    if not 1 <= len(sizes) <= _MOST_DIMS:
        raise ValueError(f"shape = {list(sizes)}: expected 1 to {_MOST_DIMS} dimensions, rows first; flatten the rows")
    return sizes


def checked_name(name: Any) -> str | None:
    """Returns the name of a tensor, or None.

    Raises:
        TypeError, ValueError: If it is none that a user may give.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name = {name!r}: expected text, or None")
    if name is not None and (not name or name.startswith("glt/")):
        raise ValueError(f"name = {name!r}: expected a name that does not begin with 'glt/', as glt's own do")
    return name


def is_kind_of(number: bool | int | float | complex, dtype: torch.dtype) -> bool:
    """Whether a number of Python's may stand for one of ``dtype``: not 1.5 for an integer, nor 2 for a bool."""
    if dtype == torch.bool:
        return isinstance(number, bool)
    kinds = ((bool, torch.bool), (int, torch.int64), (float, torch.float32), (complex, torch.complex64))
    return any(isinstance(number, kind) and torch.can_cast(its, dtype) for kind, its in kinds)


def checked_dtype(dtype: Any) -> str:
    """Returns the name of the dtype of a tensor.

    Raises:
        TypeError: If glt does not store it.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype = {dtype!r}: expected a torch.dtype, such as torch.float32")
    return stored_name(dtype, f"dtype = {dtype}")
