"""What the native core made of tensors, for as long as their memory stays where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class NativeView(Generic[T]):
    """A native object over the memory of tensors, made on first use, and again once that has moved.

    torch moves the memory of a tensor in place, and frees where it was, when the tensor is sent to another process
    (``mp.spawn``, ``mp.Queue``, a ``DataLoader`` that spawns) or by ``share_memory_()``; of any other tensor that
    shares its memory, too, such as the one that a user gave us. Whatever holds an address longer than a call asks here
    for it. A call under way while another thread does that is beyond this, as it is in torch.

    Args:
        tensors: All whose memory it reads.
        make: Makes it of them; had better not hold who holds this, which would outlive its last use then.
    """

    def __init__(self, tensors: Iterable[Tensor | None], make: Callable[[], T]) -> None:
        self._tensors, self._make = [tensor for tensor in tensors if tensor is not None], make
        self._made: tuple[list[int], T] | None = None

    def get(self) -> T:
        """Returns the object."""
        places = [tensor.data_ptr() for tensor in self._tensors]
        made = self._made
        if made is None or made[0] != places:
            made = self._made = places, self._make()
        return made[1]
