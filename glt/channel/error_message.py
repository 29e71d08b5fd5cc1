"""An exception on its way to another process: as text, so that nothing is unpickled and nothing is lost."""

import os
import socket
import traceback

import torch
from torch import Tensor

from glt.channel.message import Message, MessageKind, encode_message
from glt.errors import GltError, MessageError, PeerLost, RemoteError

_MAX_TEXT_BYTES = 64 << 10
_TEXTS = ("type", "message", "traceback", "role", "host")
_NUMBERS = ("rank", "pid")


def error_message(
    error: BaseException, *, role: str, rank: int, loader: int = 0, epoch: int = 0, index: int = 0
) -> Tensor:
    """Returns the message that carries ``error`` to whoever waits for a batch or a reply.

    Args:
        error: Raised here; its traceback goes with it. A :class:`glt.errors.RemoteError` is passed on as what it was
            and where it was first raised.
        role: What this process is, for example ``"sampling worker"``.
        rank: Its rank within the role.
        loader, epoch, index: What was being made.
    """
    if isinstance(error, RemoteError):
        texts = (error.type_name, error.remote_message, error.remote_traceback, error.role, error.host)
        numbers = (error.rank, error.pid)
    else:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        trace = "".join(traceback.format_exception(error))
        texts = (kind, str(error), trace, role, socket.gethostname())
        numbers = (rank, os.getpid())
    tensors = {f"error.{name}": _to_bytes(text) for name, text in zip(_TEXTS, texts, strict=True)}
    tensors |= {f"error.{name}": torch.tensor(n) for name, n in zip(_NUMBERS, numbers, strict=True)}
    return encode_message(tensors, MessageKind.ERROR, loader, epoch, index)


def remote_error(message: Message) -> GltError:
    """Returns the exception that ``message``, of kind ERROR, carries."""
    try:
        texts = [bytes(message.tensors[f"error.{name}"].numpy()).decode(errors="replace") for name in _TEXTS]
        rank, pid = (int(message.tensors[f"error.{name}"]) for name in _NUMBERS)
    except KeyError as missing:
        raise MessageError(f"damaged error message: {missing} is missing") from None
    kind, text, trace, role, host = texts
    return rebuild_error(kind, text, trace, role=role, rank=rank, pid=pid, host=host)


def rebuild_error(
    type_name: str, message: str, traceback: str, *, role: str, rank: int, pid: int, host: str
) -> GltError:
    """Returns the exception to raise for one that another process raised.

    A lost peer stays a :class:`glt.errors.PeerLost`, since it says who is gone wherever it is raised; everything else
    is a :class:`glt.errors.RemoteError`.
    """
    error = RemoteError(type_name, message, traceback, role=role, rank=rank, pid=pid, host=host)
    if type_name != f"{PeerLost.__module__}.{PeerLost.__qualname__}":
        return error
    lost = PeerLost(message)
    lost.__cause__ = error
    return lost


def _to_bytes(text: str) -> Tensor:
    data = text.encode(errors="backslashreplace")
    if len(data) > _MAX_TEXT_BYTES:  # the ends say most: what was called, and what went wrong
        half = _MAX_TEXT_BYTES // 2
        data = data[:half] + b"\n... (shortened) ...\n" + data[-half:]
    return torch.tensor(list(data), dtype=torch.uint8)
