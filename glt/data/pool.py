"""Memory for results that are made again and again, one batch after the other.

A batch of a few megabytes from ``torch.empty`` is fresh memory from the kernel every time: writing it costs a page
fault per 4 KiB, several times the work of the copy itself. :func:`empty` hands out memory that earlier batches used.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from glt import _core

SMALL_BYTES = 64 << 10
"""Below this the allocator behind ``torch.empty`` reuses memory by itself."""


process_pool = _core.BlockPool.of_process
"""Returns the one pool of this process. It keeps up to 1 GiB of free memory for reuse; what tensors use is not counted.
A forked child (a DataLoader worker, say) starts without any."""


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns a CPU tensor of undefined content whose memory is recycled when the last view of it is gone.

    Args:
        shape: Its sizes.
        dtype: Any dtype of torch.

    The tensor is contiguous and 64-byte aligned; its storage cannot be resized.
    """
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < SMALL_BYTES:
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(process_pool().acquire(nbytes)).view(dtype)
    return flat if len(shape) == 1 else flat.view(shape)  # a call where caches are cold takes 5 us
