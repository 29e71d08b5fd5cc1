"""Tables of a partition that do not fit in memory: which these are, and their hot rows, which processes share."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt.channel.shm import SharedMemory
from glt.data.disk import DiskFeature, HotRows, hottest
from glt.data.feature import Feature
from glt.partition import Partition
from glt.partition.format import layout

_ALIGNED = 64  # bytes, where arrays begin in shared memory

logger = logging.getLogger(__name__)

Where = tuple[str, int, str]  # a table: 'node' or 'edge', the position of the type, and the name in batches


class DiskTables:
    """Which tables of a partition stay on disk: those that do not fit into ``memory`` as wholes, the smallest being
    taken first. What is left of it is for hot rows of the nodes' tables, of each node type the same share.

    Args:
        part: The partition.
        memory: Bytes; None: no table stays on disk.
        told: Where another process of this host has the hot rows, see :attr:`told`; None: none has.
        is_own: Whether hot rows are read into memory here, where no other process has them.

    Attributes:
        paths: The files of those tables.
        told: What another process has to know to share the hot rows; None if there are none.
    """

    def __init__(self, part: Partition, memory: int | None, told: Mapping[str, Any] | None, is_own: bool) -> None:
        self.paths: dict[Where, Path] = {}
        self.told, self._is_own = told, is_own
        self._memory: SharedMemory | None = None
        self._left = 0 if memory is None else memory
        tables = [] if memory is None else sorted(_tables(part), key=lambda table: table[0])
        for nbytes, where, path in tables:
            if self.paths or nbytes > self._left:
                self.paths[where] = path
            else:
                self._left -= nbytes

    def of(self, kind: str, type_: int) -> dict[str, Path]:
        """The files of the tables of a type of nodes or edges that stay on disk."""
        return {where[2]: path for where, path in self.paths.items() if where[:2] == (kind, type_)}

    def keep_hot(self, tables: list[dict[str, Feature]], hotness: Callable[[int], Tensor]) -> None:
        """Has the tables of nodes keep their hot rows in memory. ``hotness`` returns how hot the nodes of a type
        are."""
        on_disk = [
            {name: table for name, table in of_type.items() if isinstance(table, DiskFeature)} for of_type in tables
        ]
        counts = self._counts(on_disk)
        if not any(counts):
            self.told = None
            return
        sizes = [
            [8 * count, *(count * table.row_bytes for table in of_type.values())] if count else []
            for count, of_type in zip(counts, on_disk, strict=True)
        ]
        begins = np.cumsum([0, *(_aligned(size) for of_type in sizes for size in of_type)]).tolist()
        is_filled = self._open(begins[-1])
        if self._memory is None:
            return
        room, begin = self._memory.tensor(), iter(begins)
        for t, (count, of_type) in enumerate(zip(counts, on_disk, strict=True)):
            if not count:
                continue
            at = next(begin)
            numbers = room[at : at + 8 * count].view(torch.int64).numpy()
            num_rows = len(next(iter(of_type.values())))
            if not is_filled:
                numbers[:] = hottest(hotness(t) if count < num_rows else None, num_rows, count)
            hot = HotRows(numbers, num_rows)
            for table in of_type.values():
                at = next(begin)
                rows = room[at : at + count * table.row_bytes].view(table.tensor.dtype)
                table.keep(hot, rows.view(count, *table.tensor.shape[1:]), is_filled)

    def _counts(self, on_disk: list[dict[str, DiskFeature]]) -> list[int]:
        """How many rows of each node type to keep."""
        num_rows = [len(next(iter(of_type.values()))) if of_type else 0 for of_type in on_disk]
        row_bytes = [8 + sum(table.row_bytes for table in of_type.values()) for of_type in on_disk]
        all_bytes = sum(n * size for n, size in zip(num_rows, row_bytes, strict=True))
        left = max(0, self._left - _ALIGNED * sum(1 + len(of_type) for of_type in on_disk))
        return [min(n, n * left // all_bytes) if n else 0 for n in num_rows]

    def _open(self, num_bytes: int) -> bool:
        """Opens the memory of the process that has told of it, or makes some; returns whether it is filled."""
        told, self.told = self.told, None
        if told is not None:
            try:
                self._memory, self.told = _opened(told, num_bytes), told
                return True
            except OSError as error:
                logger.info("hot rows of another process of this host cannot be shared: %s", error)
        if not self._is_own:
            return False
        name = f"glt-hot-{secrets.token_hex(8)}"
        try:
            self._memory = SharedMemory(num_bytes, name)
        except MemoryError as error:
            raise MemoryError(f"feature_memory is too large, hot rows do not fit: {error}") from None
        self.told = {"path": f"/proc/{os.getpid()}/fd/{self._memory.fd}", "name": name}
        return False


def _tables(part: Partition) -> list[tuple[int, Where, Path]]:
    """The features and named tables: their bytes, and their files."""
    schema = part.schema
    nodes = [("node", t, "x", type_, part.nodes[t]) for t, type_ in enumerate(schema.node_types)]
    edges = [("edge", t, "edge_attr", type_, part.edges[t]) for t, type_ in enumerate(schema.edge_types)]
    found = []
    type_: Any
    of_type: Any
    for kind, t, features, type_, of_type in (*nodes, *edges):
        paths = {features: layout.in_part(part.index, f"{kind}_feat", type_)}
        for name in of_type.attrs:
            paths[name] = layout.attr(part.index, f"{kind}_attr", type_, name)
        for name, table in {features: of_type.feat, **of_type.attrs}.items():
            if table is not None:
                found.append((table.nbytes, (kind, t, name), part.directory / paths[name]))
    return found


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNED) * _ALIGNED


def _opened(told: Mapping[str, Any], num_bytes: int) -> SharedMemory:
    """Memory that another process has; OSError if that has ended, or is not seen from here."""
    fd = os.open(told["path"], os.O_RDWR | os.O_CLOEXEC)
    try:
        # The process may have ended, and another have its number.
        name, size = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_size
        if not name.startswith(f"/memfd:{told['name']}") or size != num_bytes:
            raise OSError(f"{told['path']} is {name} of {size} bytes: expected {told['name']} of {num_bytes}")
        return SharedMemory.from_fd(fd, num_bytes)
    except BaseException:
        os.close(fd)
        raise
