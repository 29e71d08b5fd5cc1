"""Steps of sparse optimizers on a server: what all trainers bring is merged once, then applied to the rows there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from glt import _core
from glt.distributed.tensors.barrier import Barriers, require_equal
from glt.distributed.tensors.shard import Shard
from glt.distributed.tensors.store import Call, TensorStore


def update_calls(store: TensorStore, barriers: Barriers) -> dict[str, Call]:
    """What trainers of a sparse optimizer may ask of a server, by name: barriers, with the arguments of
    :meth:`Barriers.arrive`. ``glt.rows.exchange`` gives each the values of all, by rank; ``glt.rows.step`` takes a step
    with them."""
    return {
        "glt.rows.exchange": lambda who, args, kwargs: barriers.arrive(who, *args, combine=list),
        "glt.rows.step": lambda who, args, kwargs: barriers.arrive(
            who, *args, combine=lambda values: take_step(store, values)
        ),
    }


def take_step(store: TensorStore, values: Sequence[Sequence[Mapping[str, Any]]]) -> list[bool]:
    """Takes a step with the gradients of all trainers, on the rows that are kept here.

    Args:
        store: With the weights and the state.
        values: By trainer, then by embedding: ``about``, the same for all trainers, and ``rows [n]`` (int64) of this
            server with ``grads [n, dim]`` (float32), or None. ``about`` has the ``kind`` of optimizer, the ``name`` of
            the embedding, its ``options``, the generations of ``weights`` and ``state``, and ``num_steps`` before this.

    Returns:
        For each embedding, whether any trainer had a gradient: then this was a step, even of no rows here.

    Raises:
        ValueError, LookupError, IndexError: If trainers bring different ``about``, a tensor was deleted, or a row is
            not of this server. Nothing has been changed then.
    """
    require_equal([[each["about"] for each in parts] for parts in values], "embeddings")
    steps = []
    for parts in zip(*values, strict=True):
        about = parts[0]["about"]
        grads = [(each["rows"].numpy(), each["grads"].numpy()) for each in parts if each["rows"] is not None]
        shards = [store.stored(generation).shard for generation in (about["weights"], *about["state"])]
        steps.append((about, shards, bool(grads), _core.RowMerge(grads, *shards[0].tensor.shape)))
    for about, shards, has_grads, merge in steps:
        if has_grads:
            options = about["options"]
            scale = 1.0 / len(values) if options["reduction"] == "mean" else 1.0
            update = _UPDATES[about["kind"]]
            update(merge, shards, options, about["num_steps"] + 1, -scale if options["maximize"] else scale)
    return [has_grads for _, _, has_grads, _ in steps]


def _adagrad(
    merge: _core.RowMerge, shards: Sequence[Shard], options: Mapping[str, Any], step: int, scale: float
) -> None:
    lr = options["lr"] / (1 + (step - 1) * options["lr_decay"])
    weights, total = (shard.own() for shard in shards)
    merge.adagrad(weights, shards[0].dtype, total, scale, lr, options["eps"], torch.get_num_threads())


def _adam(merge: _core.RowMerge, shards: Sequence[Shard], options: Mapping[str, Any], step: int, scale: float) -> None:
    beta1, beta2 = options["betas"]
    lr = options["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    weights, mean, square = (shard.own() for shard in shards)
    factors = scale, lr, 1 - beta1, 1 - beta2, options["eps"]
    merge.adam(weights, shards[0].dtype, mean, square, *factors, torch.get_num_threads())


_Update = Callable[[_core.RowMerge, Sequence[Shard], Mapping[str, Any], int, float], None]
_UPDATES: dict[str, _Update] = {"adagrad": _adagrad, "adam": _adam}
