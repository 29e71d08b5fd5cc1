"""Host memory that GPUs read in place."""

from __future__ import annotations

import logging
import os
import weakref
from functools import cache
from typing import Any

import torch
from torch import Tensor

from glt import _core
from glt.data.cuda_device import cuda_device
from glt.data.pinned_pages import PinnedPages
from glt.data.shared_map import shared_map

logger = logging.getLogger(__name__)


@cache
def process_pages() -> PinnedPages:
    """Returns the registrations of this process."""
    return PinnedPages(
        # GPUs only read tables and graphs; without the flag a read-only mapping of a file would be refused.
        lambda address, num_bytes, device: _core.cuda_register_host(address, num_bytes, True, device),
        _core.cuda_unregister_host,
        torch.cuda.synchronize,
    )


@cache
def process_buffers() -> PinnedPages:
    """Returns those registrations of this process that GPUs also write to: channels."""
    return PinnedPages(
        lambda address, num_bytes, device: _core.cuda_register_host(address, num_bytes, False, device),
        _core.cuda_unregister_host,
        torch.cuda.synchronize,
    )


SMALL_BYTES = 32 << 20
"""Below this malloc may put a tensor beside others on the same pages (its threshold for pages of their own rises up to
this). To register those pages would break copies of the others: CUDA refuses a copy from or to memory of which only a
part is registered, and devices cannot write to what was registered for reading."""


# CUDA contexts do not survive fork: a child starts with nothing registered.
os.register_at_fork(after_in_child=process_pages.cache_clear)
os.register_at_fork(after_in_child=process_buffers.cache_clear)


def brought(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to a device, also where some of its pages are registered here and others are not."""
    if device.type == "cuda":
        close_moved(process_pages())  # else the clone may lie where CUDA still has other memory
        if process_pages().has_any(tensor.data_ptr(), tensor.nbytes):
            tensor = tensor.clone()
    return tensor.to(device, copy=True)  # also where the host plays the GPU


def close_moved(registry: PinnedPages) -> None:
    """Unregisters what torch has put elsewhere, see :attr:`PinnedMemory.has_moved`."""
    for owner in registry.owners():
        if owner.has_moved:
            owner.close()


class PinnedMemory:
    """The memory of a tensor, registered with CUDA from now until :meth:`close` (or until this is collected, or the
    process ends): GPUs then read it at its address, over the bus, and nothing of it is copied or moves.

    Tensors below :data:`SMALL_BYTES` that GPUs only read are copied into pinned memory of torch's instead, since they
    may share their pages with others: what GPUs read is :attr:`tensor`.

    The memory may be a mapped file, shared memory (a memfd, ``tensor.share_memory_()``) or torch's own; processes of
    a host that map the same file or shared memory pin the same pages, each for itself; of a file that is mapped
    privately and that nobody has written to, as partitions are, a second map is pinned, read-only and shared, for the
    first would be copied (:mod:`glt.data.shared_map`). What torch pinned already
    (``tensor.pin_memory()``) is left as it is. Pinned pages cannot be swapped out or reclaimed, and pinning takes about
    0.1 s per GB. Fork workers before pinning private memory: the kernel copies such pages at a fork.

    torch may move the memory of a tensor (see :mod:`glt.data.native_view`), and other memory come to be where it was,
    which CUDA would take for the old. :attr:`has_moved` tells, and whatever else is pinned then closes this one first.

    Not yet run on a GPU: without one, the tests cover the counting of pages and what happens on failure.

    Args:
        tensor: On the CPU; it is kept alive.
        device: The GPU whose context registers it; all GPUs of the process may then read it.
        name: What to call it in errors.
        pages: Where registrations are counted. Default: those of this process, with CUDA.
        writable: Whether GPUs write to it, too: it has its pages for itself.
        whole: The tensor that this one is a part of, if it is: registered where it is, all of it is registered, else
            a copy of all of it, such as the user's own ``x.cuda()``, would be refused (see :data:`SMALL_BYTES`). Not
            if a second map of a file is.

    Attributes:
        tensor: What GPUs are to read: the tensor, the copy of a small one, or the second map of a file.

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
        whole: Tensor | None = None,
    ) -> None:
        index = 0 if pages else cuda_device(device, "device").index
        self.tensor = tensor
        self.nbytes = _extent(tensor)
        chunks: list[Any] = []
        registry = pages or (process_buffers() if writable else process_pages())
        close_moved(registry)  # small ones, too, may lie where CUDA still has other memory
        if pages is None and self._is_torchs(tensor, registry):
            pass
        elif pages is None and not writable and 0 < self.nbytes < SMALL_BYTES:
            self.tensor = tensor.contiguous().pin_memory()
        elif self.nbytes:
            whole = tensor if whole is None else whole
            try:
                chunks = self._registered(registry, index, writable, whole)
            except RuntimeError as error:
                raise RuntimeError(
                    f"pinning {_extent(whole)} bytes of {name}: {error}. Pinned memory counts as used memory of "
                    "the container; pages of a mapped file may be refused by the kernel: then copy them into shared "
                    f"memory first ({name}.clone().share_memory_())"
                ) from error
        self._address = self.tensor.data_ptr()
        self._release = weakref.finalize(self, registry.release, chunks)
        if chunks:
            registry.add_owner(self)

    def _registered(self, registry: PinnedPages, index: int, writable: bool, whole: Tensor) -> list[Any]:
        """Registers the memory; of a file that is mapped privately, the file's own pages in place of copies of them."""
        address, nbytes = self.tensor.data_ptr(), self.nbytes
        mapped = None if writable or registry.has_any(address, nbytes) else shared_map(address, nbytes)
        if mapped is not None:
            try:
                chunks = registry.acquire(mapped.ctypes.data, nbytes, index)
            except RuntimeError as error:  # a GPU that cannot be told that it only reads: it gets copies
                logger.info("pinning a read-only map: %s; its private map is pinned instead", error)
            else:
                memory = torch.from_numpy(mapped).view(self.tensor.dtype)
                self.tensor = memory.as_strided(self.tensor.shape, self.tensor.stride())
                return chunks
        return registry.acquire(whole.data_ptr(), _extent(whole), index)

    def _is_torchs(self, tensor: Tensor, registry: PinnedPages) -> bool:
        """Whether torch pinned it. Memory that was registered here tells CUDA the same, but somebody else's claim to it
        ends when it likes, and may cover a part of it only."""
        return bool(self.nbytes) and not registry.has_any(tensor.data_ptr(), self.nbytes) and tensor.is_pinned()

    @property
    def has_moved(self) -> bool:
        """Whether torch has put the tensor elsewhere: what GPUs would read is gone, and this is to be closed."""
        return self.tensor.data_ptr() != self._address

    def close(self) -> None:
        """Unregisters what nobody else uses, after the work under way on the GPU. May be called twice.

        Raises:
            RuntimeError: If CUDA refuses; but that is a warning in the log where torch has put the memory elsewhere:
                nothing of ours is at the old address any more, and whoever reads the new one need not fail for it.
        """
        had_moved = self.has_moved
        try:
            self._release()
        except RuntimeError as error:
            if not had_moved:
                raise
            logger.warning(
                "%d pinned bytes that torch has put elsewhere: CUDA does not let go of them: %s", self.nbytes, error
            )

    def __enter__(self) -> PinnedMemory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PinnedMemory({self.nbytes} bytes{'' if self._release.alive else ', closed'})"


def _extent(tensor: Tensor) -> int:
    """Bytes from the first to the last, whatever the strides."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0
