"""Arrays that a partitioner reads in the memory of tensors that it was given."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor


def require_in_place(name: str, array: np.ndarray) -> None:
    """Raises RuntimeError if torch has moved the memory of an array away. It does so, in place, with a tensor that is
    sent to another process, and by ``share_memory_()``, and frees where it was (see
    :class:`glt.data.arrays.NativeView`). What was copied from a tensor stays, and is fine.

    Args:
        name: The argument that the array came as, for messages.
        array: A NumPy view of a tensor, or any other array.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, Tensor) or array.size == 0:
        return
    memory = base.untyped_storage()
    if not memory.data_ptr() <= array.ctypes.data < memory.data_ptr() + memory.nbytes():
        raise RuntimeError(
            f"{name} has moved since the partitioner was made: it was sent to another process, or share_memory_() was "
            f"called, which frees the memory that it had. Make the partitioner after that, or of {name}.clone()"
        )
