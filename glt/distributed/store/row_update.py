"""Steps of sparse optimizers where the rows are: what all trainers bring is merged once, then applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from glt import _core
from glt.distributed.store.meeting import Meetings
from glt.distributed.store.shard import Shard
from glt.distributed.store.tensor_store import Call, TensorStore


def row_update_calls(store: TensorStore, meetings: Meetings) -> dict[str, Call]:
    """What trainers of a sparse optimizer may ask of a server, by name.

    Both are meetings of all trainers, with the arguments of :meth:`Meetings.arrive`: ``glt.rows.exchange`` gives each
    what all of them bring, by rank, and ``glt.rows.step`` takes a step with it, see :func:`apply`.
    """

    def exchange(who: Any, tag: str, number: int, num: int, timeout_s: float, told: Any) -> Future[list[Any]]:
        return meetings.arrive(tag, number, who, num, told, finish=list, timeout_s=timeout_s)

    def step(who: Any, tag: str, number: int, num: int, timeout_s: float, parts: Any) -> Future[list[bool]]:
        return meetings.arrive(tag, number, who, num, parts, finish=lambda all_: apply(store, all_),
                               timeout_s=timeout_s)  # fmt: skip

    return {
        "glt.rows.exchange": lambda who, args, kwargs: exchange(who, *args),
        "glt.rows.step": lambda who, args, kwargs: step(who, *args),
    }


def require_equal(everyone: Sequence[Any], what: str = "") -> None:
    """Raises ValueError where trainers bring different values; names which, by path, and two trainers."""
    for rank, theirs in enumerate(everyone):
        found = _difference(everyone[0], theirs, what)
        if found is not None:
            path, first, other = found
            raise ValueError(
                f"{path} = {other!r} on trainer {rank}, {first!r} on trainer 0: expected the same on all trainers"
            )


def _difference(first: Any, other: Any, path: str) -> tuple[str, Any, Any] | None:
    if isinstance(first, Mapping) and isinstance(other, Mapping) and first.keys() == other.keys():
        pairs = [(f"{path}.{key}" if path else str(key), first[key], other[key]) for key in first]
    elif isinstance(first, list | tuple) and isinstance(other, list | tuple) and len(first) == len(other):
        pairs = [(f"{path}[{at}]", *both) for at, both in enumerate(zip(first, other, strict=True))]
    else:
        return None if first == other else (path, first, other)
    return next((found for at, a, b in pairs if (found := _difference(a, b, at)) is not None), None)


def apply(store: TensorStore, everyone: Sequence[Sequence[Mapping[str, Any]]]) -> list[bool]:
    """Takes a step with the gradients of all trainers, on the rows that are kept here.

    Args:
        store: With the weights and the state.
        everyone: By trainer, then by embedding: ``told``, the same for all trainers, and ``rows [n]`` (int64) of this
            server with ``grads [n, dim]`` (float32), or None. ``told`` has the ``kind`` of optimizer, the ``name`` of
            the embedding, its ``options``, the generations of ``weights`` and ``state``, and ``num_steps`` before this.

    Returns:
        For each embedding, whether any trainer had a gradient: then this was a step, even of no rows here.

    Raises:
        ValueError: If trainers were told different things.
        LookupError: If a tensor was deleted.
        IndexError: If a row is not of this server. Nothing has been changed then.
    """
    require_equal([[each["told"] for each in parts] for parts in everyone], "embeddings")
    updates = []
    for parts in zip(*everyone, strict=True):
        told = parts[0]["told"]
        brought = [(each["rows"], each["grads"]) for each in parts if each["rows"] is not None]
        shards = [store.stored(generation).shard for generation in (told["weights"], *told["state"])]
        updates.append((told, brought, shards, _merge(brought, shards[0])))
    for told, brought, shards, merge in updates:
        if brought:
            _KINDS[told["kind"]](merge, shards, told["options"], told["num_steps"] + 1, len(everyone))
    return [bool(brought) for _, brought, _, _ in updates]


def _merge(brought: Sequence[tuple[Tensor, Tensor]], weights: Shard) -> _core.RowMerge:
    num_rows, dim = weights.tensor.shape
    return _core.RowMerge([(rows.numpy(), grads.numpy()) for rows, grads in brought], num_rows, dim)


def _adagrad(
    merge: _core.RowMerge, shards: Sequence[Shard], options: Mapping[str, Any], step: int, num_trainers: int
) -> None:
    lr = options["lr"] / (1 + (step - 1) * options["lr_decay"])
    weights, total = (shard.own() for shard in shards)
    scale = _scale(options, num_trainers)
    merge.adagrad(weights, _dtype(shards[0]), total, scale, lr, options["eps"], torch.get_num_threads())


def _adam(
    merge: _core.RowMerge, shards: Sequence[Shard], options: Mapping[str, Any], step: int, num_trainers: int
) -> None:
    beta1, beta2 = options["betas"]
    step_size = options["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    weights, mean, square = (shard.own() for shard in shards)
    scale = _scale(options, num_trainers)
    merge.adam(weights, _dtype(shards[0]), mean, square, scale, step_size, 1 - beta1, 1 - beta2, options["eps"],
               torch.get_num_threads())  # fmt: skip


_KINDS: dict[str, Callable[[_core.RowMerge, Sequence[Shard], Mapping[str, Any], int, int], None]] = {
    "adagrad": _adagrad,
    "adam": _adam,
}


def _scale(options: Mapping[str, Any], num_trainers: int) -> float:
    scale = 1.0 / num_trainers if options["reduction"] == "mean" else 1.0
    return -scale if options["maximize"] else scale


def _dtype(shard: Shard) -> str:
    return str(shard.tensor.dtype).removeprefix("torch.")
