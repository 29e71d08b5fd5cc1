"""Where the outputs of a layer are kept until the next one has read them: on the servers, or in a mapped file."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.lib.format import open_memmap, write_array_header_2_0
from torch import Tensor

from glt.data.schema import NodeType
from glt.distributed.dist_tensor import DistTensor
from glt.distributed.store.handles import Handles
from glt.distributed.world import World

# By world, the tensors that are outputs of layers: those may be replaced.
_made: weakref.WeakKeyDictionary[World, set[tuple[int, ...]]] = weakref.WeakKeyDictionary()


class LayerRows(Protocol):
    """Rows by node, that all trainers write and read."""

    def __getitem__(self, ids: Tensor) -> Tensor: ...

    def __setitem__(self, ids: Tensor, values: Tensor) -> None: ...

    def flush(self) -> None:
        """What was written is seen by all once they have met."""

    def delete(self) -> None:
        """Frees them, for everyone."""

    def result(self) -> DistTensor | Tensor:
        """What a user is given of them."""


class RowKeeper:
    """Makes rows, by name; trainers that say the same get the same.

    Args:
        world: The trainers and servers.
        name: Of the whole; that of each of its parts begins with it.
        spill_dir: A directory that all trainers see, for mapped files; None: the servers keep the rows.

    Raises:
        ValueError: If ``spill_dir`` is no directory.
    """

    def __init__(self, world: World, name: str, spill_dir: str | os.PathLike[str] | None) -> None:
        self.world, self.name = world, name
        if spill_dir is not None and not isinstance(spill_dir, str | os.PathLike):
            raise TypeError(f"spill_dir = {spill_dir!r}: expected the path of a directory that all trainers see")
        self.spill_dir = None if spill_dir is None else Path(spill_dir)
        if self.spill_dir is not None and not self.spill_dir.is_dir():
            raise ValueError(f"spill_dir = {os.fspath(self.spill_dir)!r} is no directory")

    def require_free(self, what: str) -> None:
        """Raises ValueError if a name is that of a tensor that this trainer holds and no keeper has made: rows of that
        name would replace it."""
        made = _made.get(self.world, set())
        for tensor in list(Handles.of(self.world).open) if self.spill_dir is None else ():
            if tensor.name == self.name + what and tensor.generations not in made:
                raise ValueError(
                    f"name = {self.name!r}: this trainer holds {tensor}, which rows of that name would replace: give "
                    "another name, or delete it first"
                )

    def make(self, what: str, shape: tuple[int, ...], dtype: torch.dtype, part: NodeType | None) -> LayerRows:
        """Makes them, or opens what another trainer has made.

        Args:
            what: Their name is that of the whole, and this.
            shape: Rows first.
            dtype: Of their elements.
            part: The node type that they are rows of, by its ids; None: by other ids, kept anywhere.
        """
        if self.spill_dir is not None:
            return MappedRows.make(self._path(what), shape, dtype)
        tensor = DistTensor(shape, dtype, self.name + what, part=part, world=self.world)
        _made.setdefault(self.world, set()).add(tensor.generations)
        return _TensorRows(tensor)

    def find(self, what: str) -> LayerRows:
        """What others have made, and all have met since.

        Raises:
            LookupError: If nobody has.
        """
        if self.spill_dir is not None:
            return MappedRows(self._path(what))
        return _TensorRows(DistTensor.find(self.name + what, world=self.world))

    def begin(self, parts: list[str], meet: Callable[[], None]) -> None:
        """Removes what an earlier run may have left of these, with all trainers.

        Args:
            parts: What they may be.
            meet: Waits for the other trainers.

        Raises:
            ValueError: If ``spill_dir`` is not one directory for all of them.
        """
        mark = None if self.spill_dir is None else self.spill_dir / f"{self.name}.begun"
        if self.world.rank == 0:
            for what in parts:
                self._forget(what)
            if mark is not None:
                mark.write_bytes(b"")
        meet()
        if mark is None:
            return
        if not mark.exists():
            raise ValueError(
                f"spill_dir = {os.fspath(mark.parent)!r}: trainer {self.world.rank} on {socket.gethostname()} does not "
                "see there what trainer 0 has written; expected one directory that all trainers see"
            )
        meet()
        if self.world.rank == 0:
            mark.unlink()

    def _forget(self, what: str) -> None:
        if self.spill_dir is not None:
            self._path(what).unlink(missing_ok=True)
            return
        with contextlib.suppress(LookupError):
            DistTensor.find(self.name + what, world=self.world).delete()

    def _path(self, what: str) -> Path:
        assert self.spill_dir is not None
        return self.spill_dir / f"{self.name}{what}.npy"


class _TensorRows:
    """Rows on the servers; what is written is on its way while the next rows are computed."""

    def __init__(self, tensor: DistTensor) -> None:
        self.tensor = tensor

    def __getitem__(self, ids: Tensor) -> Tensor:
        return self.tensor[ids]

    def __setitem__(self, ids: Tensor, values: Tensor) -> None:
        self.tensor.write_async(ids, values)

    def flush(self) -> None:
        self.tensor.flush()

    def delete(self) -> None:
        self.tensor.delete()

    def result(self) -> DistTensor:
        return self.tensor


class MappedRows:
    """Rows in a ``.npy`` file, mapped: they take memory for as long as there is some, and are on disk.

    Args:
        path: The file.

    Raises:
        LookupError: If it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.rows: np.memmap = open_memmap(path, mode="r+")
        except FileNotFoundError as error:
            raise LookupError(
                f"{path} is not there, where another trainer has made it: spill_dir must be one directory that all "
                "trainers see"
            ) from error

    @classmethod
    def make(cls, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> MappedRows:
        """Makes the file with all its space, whole or not at all; several processes may.

        Raises:
            TypeError: If numpy has no such dtype.
            ValueError: If another trainer has made it with other rows.
            OSError: If there is no room for it; says how much it takes.
        """
        try:
            kind = torch.empty(0, dtype=dtype).numpy().dtype
        except TypeError as error:
            raise TypeError(f"outputs are {dtype}, which .npy files do not have: leave spill_dir out") from error
        if not path.exists():
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            try:
                _write_empty(temporary, shape, kind)
                with contextlib.suppress(FileExistsError):  # another was faster
                    os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        made = cls(path)
        if made.rows.shape != shape or made.rows.dtype != kind:
            raise ValueError(
                f"{path} has {made.rows.dtype} {list(made.rows.shape)}, as another trainer has made it, and this one "
                f"{kind} {list(shape)} to write: do all have the same model?"
            )
        return made

    def __getitem__(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.rows[ids.numpy()]))

    def __setitem__(self, ids: Tensor, values: Tensor) -> None:
        self.rows[ids.numpy()] = values.numpy()

    def flush(self) -> None:
        self.rows.flush()

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    def result(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.rows))


def _write_empty(path: Path, shape: tuple[int, ...], kind: np.dtype) -> None:
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    with open(path, "xb") as file:
        write_array_header_2_0(file, {"descr": kind.str, "fortran_order": False, "shape": shape})
        begin = file.tell()
        file.flush()
        try:
            # All of it: a mapped file that finds no room later ends the process by a bus error.
            os.posix_fallocate(file.fileno(), 0, begin + size)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise OSError(error.errno, f"no room for {size} bytes of layer outputs", os.fspath(path)) from error
            raise
