"""Anonymous memory shared with the processes that this one spawns.

It is a memfd: it has no name, so nothing can be left behind in ``/dev/shm`` (which may be full or tiny, as in most
containers: it is not used at all), and no other process can open it. The kernel frees it with its last user.
"""

import fcntl
import os
from multiprocessing import context, reduction
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.available_memory import available_memory
from glt.channel.size import format_size


class SharedMemory:
    """``nbytes`` of zeroed shared memory.

    It can be given to a process when that is spawned (``args=`` of ``multiprocessing.Process``, ``mp.spawn``), and only
    then. Tensors from :meth:`tensor` keep the memory alive, also after :meth:`close`.

    Args:
        nbytes: Size. Pages are taken when they are first written, but more than is available now is refused here:
            running out later would kill the process.
        name: Shown in ``/proc/<pid>/maps``.
    """

    def __init__(self, nbytes: int, name: str = "glt") -> None:
        if nbytes <= 0:
            raise ValueError(f"nbytes = {nbytes}: expected more than 0")
        room, limit = available_memory()
        if nbytes > room:
            raise MemoryError(
                f"shared memory of {format_size(nbytes)} ({nbytes} bytes) wanted, but only "
                f"{format_size(room)} ({room} bytes) is the {limit}: ask for less, "
                "for example by a smaller channel_size or fewer workers"
            )
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            # A file that another process could shorten would be a SIGBUS in waiting.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._attach(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def from_fd(cls, fd: int, nbytes: int) -> "SharedMemory":
        """Returns the memory behind a descriptor that this process inherited (``pass_fds`` of ``subprocess``), and
        takes the descriptor over."""
        self = cls.__new__(cls)
        os.set_inheritable(fd, False)
        self._attach(fd, nbytes)
        return self

    @property
    def fd(self) -> int:
        """The descriptor, to be inherited by a process that is started."""
        _ = self.mapping  # raises when it was closed
        return self._fd

    def _attach(self, fd: int, nbytes: int) -> None:
        self._mapping: _core.Mapping | None = _core.Mapping(fd, nbytes)
        self._fd = fd
        self.nbytes = nbytes

    @property
    def mapping(self) -> _core.Mapping:
        """The native mapping; ``ValueError`` after :meth:`close`."""
        if self._mapping is None:
            raise ValueError("shared memory: it was closed; tensors taken before remain valid")
        return self._mapping

    def array(self) -> np.ndarray:
        """Returns all of it as an array of uint8."""
        return self.mapping.array()

    def tensor(self) -> Tensor:
        """Returns all of it as a tensor of uint8, aligned to a page."""
        return torch.from_numpy(self.mapping.array())

    def close(self) -> None:
        """Closes the descriptor. The memory itself goes with the last tensor, in the last process."""
        if self._mapping is not None:
            self._mapping = None
            os.close(self._fd)

    def __enter__(self) -> "SharedMemory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_mapping", None) is not None:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        context.assert_spawning(self)  # an open file goes to a child only while it is started
        if self._mapping is None:
            raise ValueError("shared memory: it was closed, and cannot be given to a process any more")
        return {"fd": reduction.DupFd(self._fd), "nbytes": self.nbytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fd = state["fd"].detach()
        os.set_inheritable(fd, False)
        self._attach(fd, state["nbytes"])


class SharedTensor:
    """A tensor in shared memory, for processes that are spawned: they see the same bytes, nothing is copied.

    Args:
        tensor: Copied once into shared memory; any dtype and shape.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._dtype = tensor.dtype
        self._shape = tuple(tensor.shape)
        self._memory = SharedMemory(max(tensor.nbytes, 1), "glt-tensor")
        self.tensor.copy_(tensor)

    @property
    def tensor(self) -> Tensor:
        """The tensor, as a view of the shared memory: what one process writes, all see."""
        nbytes = self._dtype.itemsize * int(np.prod(self._shape, dtype=np.int64))
        return self._memory.tensor()[:nbytes].view(self._dtype).view(self._shape)


def share_tensor(tensor: Tensor) -> SharedTensor:
    """Copies ``tensor`` into shared memory, to be handed to spawned processes and read there in place."""
    return SharedTensor(tensor)
