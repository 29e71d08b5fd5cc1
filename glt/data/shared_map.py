"""The file behind mapped memory, mapped once more in a way that can be pinned without a copy.

Partitions and other mapped files come as private maps, so that nobody who writes to a tensor changes a file. To pin
pages of a private map for a long time, even for reading alone, the kernel first gives the process copies of its own
("unsharing", Linux 6.2 and newer; before, drivers asked for writable pages, with the same effect): the host would hold
every pinned file once for each process, and once more in the page cache. Pages of a shared read-only map are those of
the page cache, which all processes pin.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class _Area:
    """A line of ``/proc/self/smaps`` and what follows it."""

    begin: int
    end: int
    is_private: bool
    offset: int
    inode: int
    path: str
    has_own_pages: bool  # somebody has written to it


def shared_map(address: int, num_bytes: int) -> np.ndarray | None:
    """Maps the file behind ``[address, address + num_bytes)`` shared and read-only.

    Returns:
        The same bytes at another address, uint8 ``[num_bytes]``, for as long as the array lives; not to be written to,
        whatever the array says. None where that cannot be: the memory is not of one private map of a file that is
        still there under its name, or it has been written to, so that the file holds something else.
    """
    area = _area_of(address)
    if area is None or address + num_bytes > area.end or area.has_own_pages or not area.is_private:
        return None
    try:
        file = os.open(area.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # "(deleted)", or out of reach: the map that there is works as well, at the price of copies
    try:
        found = os.fstat(file)
        at = area.offset + address - area.begin
        if found.st_ino != area.inode or found.st_size < at + num_bytes:
            return None  # another file has taken the name
        begin = at // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(file, at + num_bytes - begin, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=begin)
    finally:
        os.close(file)
    start = np.frombuffer(mapped, np.uint8).ctypes.data + at - begin
    bytes_ = (ctypes.c_uint8 * num_bytes).from_address(start)
    bytes_._map = mapped  # type: ignore[attr-defined]  # which is unmapped with the last array that reads it
    return np.ctypeslib.as_array(bytes_)


def _area_of(address: int) -> _Area | None:
    """The map that has an address."""
    found: list[str] | None = None
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first = line.split(None, 1)[0]
            if first.endswith(":"):
                if found is not None and first == "Anonymous:":
                    return _area(found, int(line.split()[1]) > 0)
            else:
                begin, end = (int(each, 16) for each in first.split("-"))
                found = line.rstrip("\n").split(None, 5) if begin <= address < end else None
    return None


def _area(fields: list[str], has_own_pages: bool) -> _Area:
    begin, end = (int(each, 16) for each in fields[0].split("-"))
    path = fields[5] if len(fields) == 6 else ""
    return _Area(begin, end, fields[1][3] == "p", int(fields[2], 16), int(fields[4]), path, has_own_pages)
