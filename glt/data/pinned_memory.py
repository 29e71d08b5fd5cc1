"""Host memory that GPUs read in place."""

from __future__ import annotations

import os
import weakref
from functools import cache
from typing import Any

import torch
from torch import Tensor

from glt import _core
from glt.data.cuda_device import cuda_device
from glt.data.pinned_pages import PinnedPages


@cache
def process_pages() -> PinnedPages:
    """Returns the registrations of this process."""
    return PinnedPages(
        # GPUs only read tables and graphs; without the flag a read-only mapping of a file would be refused.
        lambda address, num_bytes, device: _core.cuda_register_host(address, num_bytes, True, device),
        _core.cuda_unregister_host,
    )


@cache
def process_buffers() -> PinnedPages:
    """Returns those registrations of this process that GPUs also write to: channels."""
    return PinnedPages(
        lambda address, num_bytes, device: _core.cuda_register_host(address, num_bytes, False, device),
        _core.cuda_unregister_host,
    )


# CUDA contexts do not survive fork: a child starts with nothing registered.
os.register_at_fork(after_in_child=process_pages.cache_clear)
os.register_at_fork(after_in_child=process_buffers.cache_clear)


class PinnedMemory:
    """The memory of a tensor, registered with CUDA from now until :meth:`close` (or until this is collected, or the
    process ends): GPUs then read it at its address, over the bus, and nothing of it is copied or moves.

    The memory may be a mapped file, shared memory (a memfd, ``tensor.share_memory_()``) or torch's own; processes of
    a host that map the same file or shared memory pin the same pages, each for itself. What torch pinned already
    (``tensor.pin_memory()``) is left as it is. Pinned pages cannot be swapped out or reclaimed, and pinning takes about
    0.1 s per GB. Fork workers before pinning private memory: the kernel copies such pages at a fork.

    Not yet run on a GPU: without one, the tests cover the counting of pages and what happens on failure.

    Args:
        tensor: On the CPU; it is kept alive.
        device: The GPU whose context registers it; all GPUs of the process may then read it.
        name: What to call it in errors.
        pages: Where registrations are counted. Default: those of this process, with CUDA.
        writable: Whether GPUs write to it, too: it has its pages for itself.

    Raises:
        RuntimeError: If CUDA refuses; names its error and what to do.
        ValueError: If there is no such GPU; says what is missing.
    """

    def __init__(
        self,
        tensor: Tensor,
        device: torch.device | str | int,
        name: str = "tensor",
        pages: PinnedPages | None = None,
        *,
        writable: bool = False,
    ) -> None:
        index = 0 if pages else cuda_device(device, "device").index
        self._tensor = tensor
        # From the first byte to the last, whatever the strides.
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.nbytes = (last + 1) * tensor.element_size() if tensor.numel() else 0
        chunks: list[Any] = []
        registry = pages or (process_buffers() if writable else process_pages())
        if self.nbytes and not (pages is None and tensor.is_pinned()):
            try:
                chunks = registry.acquire(tensor.data_ptr(), self.nbytes, index)
            except RuntimeError as error:
                raise RuntimeError(
                    f"pinning {self.nbytes} bytes of {name}: {error}. Pinned memory counts as used memory of "
                    "the container; pages of a mapped file may be refused by the kernel: then copy them into shared "
                    f"memory first ({name}.clone().share_memory_())"
                ) from error
        self._release = weakref.finalize(self, registry.release, chunks)

    def close(self) -> None:
        """Unregisters what nobody else uses, after the work under way on the GPU. May be called twice.

        Raises:
            RuntimeError: If CUDA refuses.
        """
        self._release()

    def __enter__(self) -> PinnedMemory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PinnedMemory({self.nbytes} bytes{'' if self._release.alive else ', closed'})"
