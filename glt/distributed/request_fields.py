"""The tensors of a request that a peer has sent, checked before anything is made of them."""

from __future__ import annotations

import torch
from torch import Tensor

from glt.channel.message import MessageKind, read_message
from glt.errors import MessageError


class RequestFields:
    """What a request must be made of; whatever it is instead is a :class:`glt.errors.MessageError`.

    Args:
        kind: What the request is called, in errors.
        request: Its bytes.

    Raises:
        MessageError: If the bytes are no request.
    """

    def __init__(self, kind: str, request: Tensor) -> None:
        message = read_message(request)
        if message.kind is not MessageKind.REQUEST:
            raise MessageError(f"{kind}: the message is of kind {message.kind.name}, expected REQUEST")
        self.kind, self.tensors = kind, message.tensors

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def vector(self, name: str, dtype: torch.dtype = torch.int64, length: int | None = None) -> Tensor:
        """Returns a tensor of one dimension.

        Args:
            name: Which.
            dtype: What it must be of.
            length: How long it must be; None: any.

        Raises:
            MessageError: If it is missing or something else.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise MessageError(f"{self.kind}: tensor {name!r} is missing; there are {sorted(self.tensors)}")
        if tensor.dtype != dtype or tensor.dim() != 1 or length not in (None, len(tensor)):
            expected = "n" if length is None else length
            raise MessageError(
                f"{self.kind}: tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, expected {dtype} [{expected}]"
            )
        return tensor

    def numbers(self, name: str, count: int) -> list[int]:
        """Returns a vector of so many int64 as integers."""
        numbers: list[int] = self.vector(name, length=count).tolist()
        return numbers

    def words(self, name: str, least: int) -> list[str]:
        """Returns lines of text, at least so many.

        Raises:
            MessageError: If they are missing, no text or too few.
        """
        try:
            words = bytes(self.vector(name, torch.uint8).numpy()).decode().split("\n")
        except UnicodeDecodeError as error:
            raise MessageError(f"{self.kind}: tensor {name!r} is no text: {error}") from error
        if len(words) < least:
            raise MessageError(f"{self.kind}: tensor {name!r} has {len(words)} words, expected {least} or more")
        return words

    def require(self, name: str, value: int, least: int, most: int) -> int:
        """Returns a number, or raises MessageError if it is out of range."""
        if not least <= value <= most:
            raise MessageError(f"{self.kind}: {name} = {value}, expected {least} to {most}")
        return value
