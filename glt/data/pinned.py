"""Host memory that GPUs read in place."""

from __future__ import annotations

import bisect
import ctypes
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.device import cuda_device

# Which pages of this process are registered with CUDA, and for how many.


CHUNK_BYTES = 64 << 30  # most bytes of one registration: drivers (r580) refuse 512 GiB at once


@dataclass
class _Chunk:
    begin: int
    end: int
    device: int  # whose context registered it
    num_users: int = 0
    readers: set[int] = field(default_factory=set)  # the devices that have used it


class PinnedPages:
    """Registers whole pages, each once, since CUDA refuses pages that are registered already and arrays may share
    pages. A page stays registered while it has a user. A child of ``fork`` inherits no registrations: there releasing
    does nothing.

    ``register(address, num_bytes, device)`` raises what fails; ``unregister(address, device)`` comes after
    ``synchronize(device)`` for other devices that have used it; no registration is of more than ``chunk_bytes``, whole
    pages.
    """

    def __init__(
        self,
        register: Callable[[int, int, int], None],
        unregister: Callable[[int, int], None],
        synchronize: Callable[[int], None],
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._register, self._unregister, self._synchronize = register, unregister, synchronize
        self._chunk_bytes = chunk_bytes
        self._chunks: list[_Chunk] = []  # by address, not overlapping
        self._lock = threading.Lock()
        self._holder: int | None = None  # the thread that has the lock
        self._late: list[list[_Chunk]] = []  # released meanwhile, by the collector in that same thread
        self._pid = os.getpid()
        self._owners: weakref.WeakSet[PinnedMemory] = weakref.WeakSet()

    def acquire(self, address: int, num_bytes: int, device: int) -> list[_Chunk]:
        """Registers the pages of ``[address, address + num_bytes)`` that are not yet; all or none. Returns what
        :meth:`release` needs."""
        page = mmap.PAGESIZE
        begin, end = address // page * page, -(-(address + num_bytes) // page) * page
        with self._held():
            used, fresh = self._cover(begin, end, device)
            with ExitStack() as undo:
                for chunk in fresh:
                    self._register(chunk.begin, chunk.end - chunk.begin, device)
                    undo.callback(self._unregister, chunk.begin, device)
                undo.pop_all()
            for chunk in fresh:
                bisect.insort(self._chunks, chunk, key=lambda c: c.begin)
            used += fresh
            for chunk in used:
                chunk.num_users += 1
                chunk.readers.add(device)
            return used

    def add_owner(self, owner: PinnedMemory) -> None:
        with self._held():
            self._owners.add(owner)

    def close_moved(self) -> None:
        """Unregisters what torch has put elsewhere, see :attr:`PinnedMemory.has_moved`."""
        with self._held():
            owners = list(self._owners)
        for owner in owners:
            if owner.has_moved:
                owner.close()

    def has_any(self, address: int, num_bytes: int) -> bool:
        with self._held():
            return any(chunk.begin < address + num_bytes and address < chunk.end for chunk in self._chunks)

    def _cover(self, begin: int, end: int, device: int) -> tuple[list[_Chunk], list[_Chunk]]:
        """The chunks that overlap ``[begin, end)``, and new ones for what lies between them."""
        used = [chunk for chunk in self._chunks if chunk.begin < end and begin < chunk.end]
        fresh = []
        for until, after in [*((chunk.begin, chunk.end) for chunk in used), (end, end)]:
            while begin < until:
                stop = min(until, begin + self._chunk_bytes)
                fresh.append(_Chunk(begin, stop, device))
                begin = stop
            begin = max(begin, after)
        return used, fresh

    def release(self, chunks: list[_Chunk]) -> None:
        """Gives back what :meth:`acquire` returned, and unregisters what has no user left; raises RuntimeError if CUDA
        refuses, all others having been given back."""
        if os.getpid() != self._pid:
            return
        if self._holder == threading.get_ident():  # the collector came upon an owner in the middle of a call
            self._late.append(chunks)
            return
        with self._held():
            failure = self._give_back(chunks)
        if failure is not None:
            raise failure

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                while self._late:
                    self._give_back(self._late.pop())
                self._holder = None

    def _give_back(self, chunks: list[_Chunk]) -> RuntimeError | None:
        failure = None
        for chunk in chunks:
            chunk.num_users -= 1
            if chunk.num_users:
                continue
            self._chunks.remove(chunk)
            try:
                for other in chunk.readers - {chunk.device}:
                    self._synchronize(other)
                self._unregister(chunk.begin, chunk.device)
            except RuntimeError as error:
                failure = failure or error
        return failure

    @property
    def num_bytes(self) -> int:
        return sum(chunk.end - chunk.begin for chunk in self._chunks)


# The file behind mapped memory, mapped once more in a way that can be pinned without a copy.
#
# Partitions and other mapped files come as private maps, so that writing to a tensor changes no file. To pin
# pages of a private map for a long time, even for reading alone, the kernel first gives the process copies of its own
# ("unsharing", Linux 6.2 and newer; before, drivers asked for writable pages, with the same effect): the host would
# hold every pinned file once for each process, and once more in the page cache. Pages of a shared read-only map are
# those of the page cache, which all processes pin.


def shared_map(address: int, num_bytes: int) -> np.ndarray | None:
    """Maps the file behind ``[address, address + num_bytes)`` shared and read-only: the same bytes at another address,
    uint8. None unless the memory is of one private map of a file that is still there under its name, and has not been
    written to."""
    begin, end, fields, is_written = _area_of(address)
    if len(fields) < 6 or address + num_bytes > end or is_written or fields[1][3] != "p":
        return None
    try:
        file = os.open(fields[5], os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # "(deleted)", or out of reach: the map that there is works as well, at the price of copies
    try:
        found = os.fstat(file)
        at = int(fields[2], 16) + address - begin
        if found.st_ino != int(fields[4]) or found.st_size < at + num_bytes:
            return None  # another file has taken the name
        first = at // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(file, at + num_bytes - first, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=first)
    finally:
        os.close(file)
    start = np.frombuffer(mapped, np.uint8).ctypes.data + at - first
    bytes_ = (ctypes.c_uint8 * num_bytes).from_address(start)
    bytes_._map = mapped  # type: ignore[attr-defined]  # which is unmapped with the last array that reads it
    return np.ctypeslib.as_array(bytes_)


def _area_of(address: int) -> tuple[int, int, list[str], bool]:
    """Begin and end of the map around an address, its fields in proc(5)'s maps, and whether it was written to; no
    fields where there is none."""
    begin = end = 0
    fields: list[str] = []
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first = line.split(None, 1)[0]
            if not first.endswith(":"):
                begin, end = (int(each, 16) for each in first.split("-"))
                fields = line.rstrip("\n").split(None, 5) if begin <= address < end else []
            elif fields and first == "Anonymous:":
                return begin, end, fields, int(line.split()[1]) > 0
    return begin, end, [], False


logger = logging.getLogger(__name__)


@cache
def _registry(read_only: bool) -> PinnedPages:
    # The flag admits read-only mappings of files, which are else refused.
    return PinnedPages(
        lambda address, num_bytes, device: _core.cuda_register_host(address, num_bytes, read_only, device),
        _core.cuda_unregister_host,
        torch.cuda.synchronize,
    )


# The registrations of this process: of what GPUs only read, tables and graphs, and of what they write to, channels.
process_pages, process_buffers = partial(_registry, True), partial(_registry, False)

# CUDA contexts do not survive fork: a child starts with nothing registered.
os.register_at_fork(after_in_child=_registry.cache_clear)


@cache
def _reads_host_memory(device: int) -> bool:
    return _core.cuda_reads_host_memory(device)


# Below this malloc may put a tensor beside others on the same pages (its threshold for pages of their own rises up to
# this). To register those would break copies of the others: CUDA refuses a copy of memory that is registered in part,
# and devices cannot write to what was registered for reading.
SMALL_BYTES = 32 << 20


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to a device, also where only some of its pages are registered here."""
    if device.type == "cuda":
        process_pages().close_moved()  # else the clone may lie where CUDA still has other memory
        if process_pages().has_any(tensor.data_ptr(), tensor.nbytes):
            tensor = tensor.clone()
    return tensor.to(device, copy=True)  # also where the host plays the GPU


class PinnedMemory:
    """The memory of a tensor, registered with CUDA until :meth:`close` (or until this is collected): GPUs read it in
    place, over the bus.

    The memory may be torch's own, shared memory or a mapped file; processes that share it pin the same pages, each for
    itself. Tensors below :data:`SMALL_BYTES` that GPUs only read are copied into pinned memory of torch's. What torch
    pinned already is left as it is; so is all that is only read by a GPU that reads memory of the host by its page
    tables (GH200). Pinned pages cannot be swapped out, and pinning takes about 0.1 s per GB. Fork
    workers before pinning private memory: the kernel copies such pages at a fork.

    Args:
        tensor: On the CPU; :attr:`tensor` is what GPUs are to read.
        device: The GPU whose context registers it; all GPUs of the process may then read it.
        name: What to call it in errors.
        pages: Where registrations are counted. Default: those of this process, with CUDA.
        writable: Whether GPUs write to it, too: it has its pages for itself.
        whole: The tensor that this one is a part of, all of which is registered: CUDA would refuse a copy of memory
            that is registered in part.

    Raises:
        RuntimeError, ValueError: If CUDA refuses, or there is no such GPU; says what to do.
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
        chunks: list[_Chunk] = []
        registry = pages or (process_buffers() if writable else process_pages())
        registry.close_moved()  # small ones, too, may lie where CUDA still has other memory
        # Of memory that was registered here CUDA says the same as of what torch pinned.
        is_known = registry.has_any(tensor.data_ptr(), self.nbytes)
        if self.nbytes == 0 or (pages is None and not is_known and tensor.is_pinned()):
            pass
        elif pages is None and not writable and _reads_host_memory(index):
            pass
        elif pages is None and not writable and self.nbytes < SMALL_BYTES:
            self.tensor = tensor.contiguous().pin_memory()
        else:
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

    def _registered(self, registry: PinnedPages, index: int, writable: bool, whole: Tensor) -> list[_Chunk]:
        address, nbytes = self.tensor.data_ptr(), self.nbytes
        mapped = None if writable or registry.has_any(address, nbytes) else shared_map(address, nbytes)
        if mapped is not None:
            try:
                chunks = registry.acquire(mapped.ctypes.data, nbytes, index)
            except RuntimeError as error:  # a GPU without read-only registrations: it gets copies
                logger.info("pinning a read-only map: %s; its private map is pinned instead", error)
            else:
                memory = torch.from_numpy(mapped).view(self.tensor.dtype)
                self.tensor = memory.as_strided(self.tensor.shape, self.tensor.stride())
                return chunks
        return registry.acquire(whole.data_ptr(), _extent(whole), index)

    @property
    def has_moved(self) -> bool:
        """Whether torch has moved the tensor: this is of no use then, and to be closed."""
        return self.tensor.data_ptr() != self._address

    def close(self) -> None:
        """Unregisters what has no other user, after the work under way on the GPU. May be called twice. Raises
        RuntimeError if CUDA refuses; only a warning in the log where torch has moved the memory."""
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
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0
