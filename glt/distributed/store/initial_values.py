"""The first values of a distributed tensor: made by its owners, equal wherever a row is."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.distributed.service.functions import name_of, registered
from glt.distributed.store.placement import Placement
from glt.distributed.store.stored_table import StoredTable
from glt.distributed.store.tensor_spec import TensorSpec, is_kind_of

_PIECE_BYTES = 32 << 20
_RANDOM = ("uniform", "normal")


def encode_init(init_func: Any, dtype: torch.dtype, rng_seed: int) -> dict[str, Any]:
    """Returns plain values for what a user asked for.

    Args:
        init_func: None or ``'zeros'``; ``'ones'``; ``('constant', number)``; ``'uniform'`` in [0, 1) or ``('uniform',
            low, high)``; ``'normal'`` or ``('normal', mean, deviation)``; a function registered on the servers, or its
            name; a :class:`StoredTable`.
        dtype: Of the tensor.
        rng_seed: Of random values.

    Raises:
        TypeError, ValueError: If it is nothing of that kind, or random values are asked for of integers.
    """
    if isinstance(init_func, StoredTable):
        return init_func.to_json()
    if isinstance(rng_seed, bool) or not isinstance(rng_seed, int):
        raise TypeError(f"rng_seed = {rng_seed!r}: expected an integer")
    if init_func is None or (isinstance(init_func, str) and init_func in ("zeros", "ones")):
        return {"kind": "constant", "a": int(init_func == "ones")}
    kind, *given = init_func if isinstance(init_func, tuple | list) and init_func else (init_func,)
    if isinstance(kind, str) and kind in _RANDOM:
        return {"kind": kind, **_checked_range(init_func, kind, given or [0.0, 1.0], dtype), "rng_seed": rng_seed}
    if kind == "constant" and len(given) == 1 and isinstance(given[0], bool | int | float):
        if not is_kind_of(given[0], dtype):
            raise TypeError(f"init_func = {init_func!r}: expected a number that {dtype} holds")
        try:
            torch.full((), given[0], dtype=dtype)
        except (RuntimeError, OverflowError) as error:  # such as 300 as uint8
            raise ValueError(f"init_func = {init_func!r}: expected what {dtype} holds ({error})") from error
        return {"kind": "constant", "a": given[0]}
    if given or not (callable(kind) or isinstance(kind, str)):
        raise ValueError(
            f"init_func = {init_func!r}: expected 'zeros', 'ones', ('constant', number), ('uniform', low, high), "
            "('normal', mean, deviation), or a function given to glt.distributed.register_server_function"
        )
    return {"kind": "function", "name": name_of(kind)}


def _checked_range(init_func: Any, kind: str, given: list[Any], dtype: torch.dtype) -> dict[str, float]:
    if not dtype.is_floating_point:
        raise ValueError(f"init_func = {init_func!r}: expected a floating point dtype, not {dtype}")
    fits = len(given) == 2 and all(isinstance(x, int | float) and math.isfinite(x) for x in given)
    if not fits or (given[0] >= given[1] if kind == "uniform" else given[1] < 0):
        raise ValueError(
            f"init_func = {init_func!r}: expected ('uniform', low, high) with low < high, or ('normal', mean, "
            "deviation) with deviation >= 0"
        )
    return {"a": float(given[0]), "b": float(given[1])}


def needs_twice(init: dict[str, Any]) -> bool:
    """Whether as much memory is needed besides the tensor while it is filled in."""
    return init["kind"] == "function" and not _takes_rows(registered(init["name"]))


def fill(rows: Tensor, spec: TensorSpec, placement: Placement, server: int, num_threads: int) -> None:
    """Fills in the rows of a server.

    Random values are draws of Philox by row, column, name and seed: they do not depend on who owns which row, nor on
    the dtype but for its rounding. A function is called as ``func(shape, dtype)`` with the shape of all rows of this
    server, as DGL's are, or, if it takes a third argument, as ``func(shape, dtype, ids)`` with the numbers in the
    tensor of some of its rows ``[shape[0]]``, int64, which lets it give values that do not depend on the servers.

    Raises:
        TypeError, ValueError: If a function returns another dtype or shape.
    """
    init = spec.init
    if init["kind"] == "constant":
        rows.fill_(init["a"])  # written, so that the memory is there now and not when it is needed
    elif init["kind"] == "function":
        func = registered(init["name"])
        if _takes_rows(func):
            for at, ids in _pieces(placement, server, _piece_rows(spec)):
                piece = rows[at : at + _count(ids)]
                numbers = torch.from_numpy(np.arange(*ids) if isinstance(ids, tuple) else ids)
                piece.copy_(_checked(func(tuple(piece.shape), rows.dtype, numbers), piece, init["name"]))
        else:
            rows.copy_(_checked(func(tuple(rows.shape), rows.dtype), rows, init["name"]))
    else:
        _fill_random(rows, spec, placement, server, num_threads)


def _fill_random(rows: Tensor, spec: TensorSpec, placement: Placement, server: int, num_threads: int) -> None:
    init = spec.init
    text = f"{init['rng_seed']} {spec.name}"  # tensors of one shape and seed are not to be alike
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    made = torch.float64 if rows.dtype == torch.float64 else torch.float32
    width = math.prod(spec.row_shape)
    for at, ids in _pieces(placement, server, _piece_rows(spec)):
        piece = rows[at : at + _count(ids)].view(_count(ids), width)
        out = piece if rows.dtype == made else torch.empty(piece.shape, dtype=made)
        numbers, first = (None, ids[0]) if isinstance(ids, tuple) else (ids, 0)
        is_normal = init["kind"] == "normal"
        _core.random_rows(out.numpy(), numbers, first, is_normal, init["a"], init["b"], key, num_threads)
        if out is not piece:
            piece.copy_(out)


def _pieces(placement: Placement, server: int, most: int) -> Iterator[tuple[int, tuple[int, int] | np.ndarray]]:
    """Rows of a server, some at a time: the number of the first one there, and what they are numbered in the tensor:
    the first and one more than the last, or all of them."""
    if not placement.has_spans:
        ids = placement.ids_on(server)
        yield from ((at, ids[at : at + most]) for at in range(0, len(ids), most))
        return
    for span in placement.spans(0, placement.num_rows):
        if span.server == server:
            for at in range(0, span.num_rows, most):
                yield span.row + at, (span.first + at, span.first + min(at + most, span.num_rows))


def _count(ids: tuple[int, int] | np.ndarray) -> int:
    return ids[1] - ids[0] if isinstance(ids, tuple) else len(ids)


def _piece_rows(spec: TensorSpec) -> int:
    return max(1, _PIECE_BYTES // max(spec.row_bytes, 1))


def _takes_rows(func: Callable[..., Any]) -> bool:
    try:
        inspect.signature(func).bind("shape", "dtype", "ids")
    except (TypeError, ValueError):  # it takes two; or nobody can tell
        return False
    return True


def _checked(made: Any, like: Tensor, name: str) -> Tensor:
    if not isinstance(made, Tensor) or made.dtype != like.dtype or made.shape != like.shape:
        kind = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(f"init_func {name!r} returned {kind}: expected {like.dtype} {list(like.shape)}")
    return made
