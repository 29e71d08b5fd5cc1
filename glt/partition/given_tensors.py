"""The tensors that a partitioner was given: they have to stay where they are until it has partitioned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class GivenTensors:
    """Where the memory of tensors was when they were given.

    A partitioner reads that memory later, without a copy. torch moves it in place when a tensor is sent to another
    process, or by ``share_memory_()`` (see :class:`glt.data.native_view.NativeView`), and frees where it was.
    """

    def __init__(self) -> None:
        self._places: list[tuple[str, Tensor, int]] = []

    def add(self, name: str, value: Any) -> None:
        """Takes note of the tensors in an argument, in its dicts and lists, too."""
        if isinstance(value, Mapping):
            for key, each in value.items():
                self.add(f"{name}[{key!r}]", each)
        elif isinstance(value, list | tuple):
            for at, each in enumerate(value):
                self.add(f"{name}[{at}]", each)
        elif isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu":
            self._places.append((name, value, value.data_ptr()))

    def require_in_place(self) -> None:
        """Raises RuntimeError if one has moved; names the first."""
        for name, tensor, place in self._places:
            if tensor.data_ptr() != place:
                raise RuntimeError(
                    f"{name} has moved since the partitioner was made: it was sent to another process, or "
                    "share_memory_() was called, which frees the memory that it had. Make the partitioner after that, "
                    f"or of {name}.clone()"
                )
