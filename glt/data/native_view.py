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
    """

    def __init__(self) -> None:
        self._made: tuple[tuple[int, ...], T] | None = None

    def of(self, tensors: Iterable[Tensor | None], make: Callable[[], T]) -> T:
        """Returns the object.

        Args:
            tensors: All whose memory it reads.
            make: Makes it of them.
        """
        places = tuple(0 if tensor is None else tensor.data_ptr() for tensor in tensors)
        made = self._made
        if made is None or made[0] != places:
            made = self._made = places, make()
        return made[1]
