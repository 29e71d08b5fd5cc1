"""Calls between processes: those that wait for their answers, and the plain values that they carry.

Values are JSON and one message. Nothing of it is executed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt._tracebacks import short_traceback
from glt.channel.message import MAX_DIMS, MessageKind, MessageLayout, bytes_of, read_message
from glt.errors import GltError, MessageError, PeerLost

R = TypeVar("R", bound="Future[Any]")


def no_answer(peer: object, name: str, timeout_s: float) -> PeerLost:
    """What becomes of a call that ``peer`` did not answer before its deadline."""
    return PeerLost(f"{peer} gave no answer to {name} within {timeout_s:g} s: it hangs, or the network does")


@dataclass(frozen=True)
class PendingCall(Generic[R]):
    """A call that waits for its answer until ``deadline``, of ``time.monotonic()``; ``reply`` gets that, or what went
    wrong."""

    name: str
    reply: R
    timeout_s: float
    deadline: float
    request: Any = None


class PendingCalls(Generic[R]):
    """The calls to one peer that wait for their answers, by number. Any thread may use it. ``lost`` says why no call
    can be answered any more, if that is so."""

    def __init__(self) -> None:
        self.lost: PeerLost | None = None
        self._lock = threading.Lock()
        self._calls: dict[int, PendingCall[R]] = {}
        self._last = 0

    def add(self, name: str, reply: R, timeout_s: float, request: Any = None) -> int:
        """Takes note of a call; returns its number. It cannot be cancelled: it is on its way, perhaps."""
        reply.set_running_or_notify_cancel()
        with self._lock:
            if self.lost is not None:
                raise self.lost
            self._last += 1
            self._calls[self._last] = PendingCall(name, reply, timeout_s, time.monotonic() + timeout_s, request)
            return self._last

    def get(self, number: int) -> PendingCall[R] | None:
        """A call that is not answered yet."""
        with self._lock:
            return self._calls.get(number)

    def pop(self, number: int) -> PendingCall[R] | None:
        """A call that is answered now; None if it no longer waits."""
        with self._lock:
            return self._calls.pop(number, None)

    def numbers(self) -> list[int]:
        """Those that wait, in the order in which they were asked."""
        with self._lock:
            return list(self._calls)

    def expire(self, peer: object) -> dict[int, PendingCall[R]]:
        """Fails the calls whose deadline is over, as unanswered by ``peer``; returns them."""
        now = time.monotonic()
        with self._lock:
            late = {number: call for number, call in self._calls.items() if call.deadline < now}
            for number in late:
                del self._calls[number]
        for call in late.values():
            call.reply.set_exception(no_answer(peer, call.name, call.timeout_s))
        return late

    def fail(self, error: GltError, peer: object, host: str, for_good: bool = False) -> PeerLost:
        """Fails all calls, since ``peer`` on ``host`` is lost."""
        lost = (
            error
            if isinstance(error, PeerLost)
            else PeerLost(
                f"lost {peer}: {error}. It was ended or killed, or its host or network is down: its log, or dmesg on "
                f"{host}, says why"
            )
        )
        with self._lock:
            if for_good:
                lost = self.lost = self.lost or lost
            calls, self._calls = self._calls, {}
        for call in calls.values():
            call.reply.set_exception(lost)
        return lost


# Functions that clients may run on servers: registered there by name, never sent.


F = TypeVar("F", bound=Callable[..., Any])


def name_of(func: Callable[..., Any] | str) -> str:
    """The name that a function is registered under: its module and qualified name."""
    if isinstance(func, str):
        return func
    module, name = getattr(func, "__module__", None), getattr(func, "__qualname__", None)
    if not callable(func) or not module or not name:
        raise TypeError(f"func = {func!r}: expected a function, or the name that one is registered under")
    return f"{module}.{name}"


_registered: dict[str, Callable[..., Any]] = {}


@short_traceback
def register_server_function(func: F, name: str | None = None) -> F:
    """Lets clients run ``func`` on this server through :func:`glt.distributed.request_server`.

    Call it on the server before clients ask; usable as a decorator. Arguments and results are numbers, text, tensors,
    and tuples, lists and dicts of these. Calls run on the server's request threads, several at a time.

    Args:
        func: The function. What it does is on offer to all who have the write token; without one, to all who
            reach the server's port.
        name: What clients call it. Default: its module and name, so that a client that imports it may give it itself.

    Returns:
        ``func``.

    Raises:
        TypeError: If it is not callable, or has no name of its own and none is given.
        ValueError: If the name is taken by another function.

    Example:
        >>> @glt.distributed.register_server_function
        ... def free_bytes(path):
        ...     return shutil.disk_usage(path).free
        ...
        >>> free_bytes(".") > 0  # on a client: request_server(0, free_bytes, ".")
        True
    """
    if not callable(func):
        raise TypeError(f"func = {func!r}: expected a function")
    key = name_of(func if name is None else name)
    if _registered.get(key, func) is not func:
        raise ValueError(f"{key!r} is registered already, for {_registered[key]!r}: give it another name")
    _registered[key] = func
    return func


def registered(name: str) -> Callable[..., Any]:
    """Returns the function of that name."""
    if name not in _registered:
        raise LookupError(
            f"{name!r} is no function that this server runs: registered are {sorted(_registered)}. On the server, "
            "before clients ask, call glt.distributed.register_server_function(function)"
        )
    return _registered[name]


for _function in (torch.cuda.device_count, torch.cuda.is_available):
    register_server_function(_function)


_MARK = "__glt__"
_MAX_DEPTH = 32
# By name, and not looked up in torch: a name that comes from elsewhere might load one of its modules.
_DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


def encode_value(value: Any, what: str) -> tuple[Any, list[Tensor] | None]:
    """Returns JSON for ``value``, and a message with its tensors, None if it has none: in parts, uint8, that share the
    memory of contiguous ones on the CPU.
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(value, tensors, what, 0)
    return tree, MessageLayout.like(tensors).parts(tensors, MessageKind.REQUEST) if tensors else None


def _encode(value: Any, tensors: dict[str, Tensor], what: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise TypeError(f"{what} is nested more than {_MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.dim() > MAX_DIMS or value.is_meta:
            raise TypeError(
                f"{what} holds a {value.layout} tensor {list(value.shape)}: expected a dense one, at most 4-d"
            )
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return {_MARK: "tensor", "name": name}
    if isinstance(value, torch.dtype):
        return {_MARK: "dtype", "name": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {_MARK: "device", "name": str(value)}
    if isinstance(value, tuple):
        return {_MARK: "tuple", "items": [_encode(each, tensors, what, depth + 1) for each in value]}
    if isinstance(value, list):
        return [_encode(each, tensors, what, depth + 1) for each in value]
    if isinstance(value, Mapping):
        pairs = [
            [_encode(key, tensors, what, depth + 1), _encode(each, tensors, what, depth + 1)]
            for key, each in value.items()
        ]
        return {_MARK: "dict", "items": pairs}
    raise TypeError(
        f"{what} holds a {type(value).__module__}.{type(value).__qualname__}: expected numbers, text, tensors, dtypes, "
        "devices, or tuples, lists and dicts of these"
    )


class Landing:
    """Where the data of a value that is one tensor are received, in place of memory that they would be copied from: in
    ``data``, the bytes of ``out``, and in ``front`` what comes before them."""

    def __init__(self, out: Tensor) -> None:
        self.out, self.data = out, bytes_of(out)
        self._expected = MessageLayout({"t0": (out.dtype, out.shape)}).preamble(MessageKind.REQUEST)
        self.front = torch.zeros(len(self._expected), dtype=torch.uint8)

    @property
    def nbytes(self) -> int:
        """Of the message."""
        return self.front.numel() + self.data.numel()

    def value(self, tree: Any) -> Tensor:
        """``out``, when the message has been received."""
        if tree != {_MARK: "tensor", "name": "t0"} or self.front.numpy().tobytes() != self._expected:
            raise MessageError(f"damaged value: expected one tensor, {self.out.dtype} {list(self.out.shape)}")
        return self.out


def decode_value(tree: Any, message: Tensor | None) -> Any:
    """Returns the value that :func:`encode_value` described; its tensors alias ``message``."""
    tensors = {} if message is None else read_message(message).tensors
    try:
        return _decode(tree, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise MessageError(f"damaged value: {type(error).__name__}: {error}") from error


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_decode(each, tensors) for each in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree[_MARK]
    if kind == "tensor":
        return tensors[tree["name"]]
    if kind == "dtype":
        return _DTYPES[tree["name"]]
    if kind == "device":
        return torch.device(tree["name"])
    if kind == "tuple":
        return tuple(_decode(each, tensors) for each in tree["items"])
    if kind == "dict":
        return {_decode(key, tensors): _decode(each, tensors) for key, each in tree["items"]}
    raise ValueError(f"kind {kind!r}")
