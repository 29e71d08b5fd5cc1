"""Functions that clients may run on servers: registered there by name, never sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

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


def register_server_function(func: F, name: str | None = None) -> F:
    """Lets clients run ``func`` on this server through :func:`glt.distributed.request_server`.

    Call it on the server before clients ask; usable as a decorator. Arguments and results are numbers, text, tensors,
    and tuples, lists and dicts of these. Calls run on the server's request threads, several at a time.

    Args:
        func: The function. What it does is on offer to everyone who can reach the server's port.
        name: What clients call it. Default: its module and name, so that a client that imports it may give it itself.

    Returns:
        ``func``.

    Raises:
        TypeError: If it is not callable, or has no name of its own and none is given.
        ValueError: If the name is taken by another function.
    """
    if not callable(func):
        raise TypeError(f"func = {func!r}: expected a function")
    key = name_of(func if name is None else name)
    if _registered.get(key, func) is not func:
        raise ValueError(f"{key!r} is registered already, for {_registered[key]!r}: give it another name")
    _registered[key] = func
    return func


def registered(name: str) -> Callable[..., Any]:
    """Returns the function of that name.

    Raises:
        KeyError: If there is none; names those there are, and how to register one.
    """
    if name not in _registered:
        raise LookupError(
            f"{name!r} is no function that this server runs: registered are {sorted(_registered)}. On the server, "
            "before clients ask, call glt.distributed.register_server_function(function)"
        )
    return _registered[name]


for _function in (torch.cuda.device_count, torch.cuda.is_available):
    register_server_function(_function)
