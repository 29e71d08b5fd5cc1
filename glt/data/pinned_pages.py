"""Which pages of this process are registered with CUDA, and for how many."""

from __future__ import annotations

import bisect
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

CHUNK_BYTES = 64 << 30
"""Most bytes of one registration: drivers (r580) refuse 512 GiB at once."""


@dataclass
class _Chunk:
    begin: int
    end: int
    device: int  # whose context registered it
    num_users: int = 0
    readers: set[int] = field(default_factory=set)  # the devices that have used it


class Owner(Protocol):
    """Whoever holds registrations: :class:`glt.data.pinned_memory.PinnedMemory`."""

    @property
    def has_moved(self) -> bool: ...

    def close(self) -> None: ...


class PinnedPages:
    """Registers whole pages, each once: CUDA refuses pages that are registered already, and arrays may share pages.

    A page stays registered while anybody uses it. A child of ``fork`` inherits neither the CUDA context nor the
    registrations, so there releasing does nothing.

    Args:
        register: Called as ``register(address, num_bytes, device)``; raises what fails.
        unregister: Called as ``unregister(address, device)`` for what was registered at that address, after the work of
            that device.
        synchronize: Called with each other device that has used it, before: its work under way may still read there.
        chunk_bytes: Most bytes of one registration, whole pages.
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
        self._owners: weakref.WeakSet[Owner] = weakref.WeakSet()

    def acquire(self, address: int, num_bytes: int, device: int) -> list[_Chunk]:
        """Registers the pages of ``[address, address + num_bytes)`` that are not yet; all or none.

        Returns:
            What :meth:`release` needs.
        """
        page = mmap.PAGESIZE
        begin, end = address // page * page, -(-(address + num_bytes) // page) * page
        with self._held():
            used, fresh = self._cover(begin, end, device)
            done: list[_Chunk] = []
            try:
                for chunk in fresh:
                    self._register(chunk.begin, chunk.end - chunk.begin, device)
                    done.append(chunk)
            except BaseException:
                for chunk in done:
                    self._unregister(chunk.begin, chunk.device)
                raise
            for chunk in fresh:
                bisect.insort(self._chunks, chunk, key=lambda c: c.begin)
            used += fresh
            for chunk in used:
                chunk.num_users += 1
                chunk.readers.add(device)
            return used

    def add_owner(self, owner: Owner) -> None:
        """Has an owner among :meth:`owners` for as long as it lives."""
        with self._held():
            self._owners.add(owner)

    def owners(self) -> list[Owner]:
        """Returns those that may hold registrations."""
        with self._held():
            return list(self._owners)

    def has_any(self, address: int, num_bytes: int) -> bool:
        """Whether a page of ``[address, address + num_bytes)`` is registered here."""
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
        """Gives back what :meth:`acquire` returned; what nobody uses any more is unregistered.

        Raises:
            RuntimeError: If CUDA refuses; all others have been given back then too.
        """
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
        """Bytes that are registered."""
        return sum(chunk.end - chunk.begin for chunk in self._chunks)
