"""The input of a loader: what is known of each seed, as columns of one length."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from glt.channel.message import MessageKind, MessageLayout, read_message
from glt.channel.shm import SharedMemory

_EXTRA = "extra/"


class SeedTable:
    """Named tensors with one row per seed, such as ``node [n]`` and ``time [n]``.

    Args:
        columns: At least one; all of the same length, any dtype that a message carries.
        extras: Further tensors, of any length, that are not taken row by row.
    """

    def __init__(self, columns: Mapping[str, Tensor], extras: Mapping[str, Tensor] | None = None) -> None:
        self.columns, self.extras = dict(columns), dict(extras or {})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, input_id: Tensor) -> dict[str, Tensor]:
        """The rows of these seeds, ``[len(input_id), ...]`` each."""
        return {name: column[input_id] for name, column in self.columns.items()}

    def share(self) -> SharedMemory:
        """Copies the table into shared memory, for processes that inherit it and :meth:`read` it."""
        tensors = self.columns | {_EXTRA + name: tensor for name, tensor in self.extras.items()}
        layout = MessageLayout.like(tensors)
        memory = SharedMemory(layout.nbytes, "glt-seeds")
        layout.write(memory.tensor(), tensors, MessageKind.REQUEST)
        return memory

    @classmethod
    def read(cls, memory: SharedMemory) -> SeedTable:
        """The table that :meth:`share` wrote, in place."""
        tensors = read_message(memory.tensor()).tensors
        extras = {name.removeprefix(_EXTRA): tensors.pop(name) for name in list(tensors) if name.startswith(_EXTRA)}
        return cls(tensors, extras)
