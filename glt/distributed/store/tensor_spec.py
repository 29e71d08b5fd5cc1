"""What a distributed tensor is: all that trainers and servers must agree on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch


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
