"""Metrics over what all trainers have evaluated, in shares of any size."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from glt._checks import integer, real_number
from glt._collective import Collective
from glt._tracebacks import short_traceback
from glt.errors import RendezvousError

# A gloo group for each group of another backend, whose collectives have no deadline that names who is late.
_gloo: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _gloo_group(group: Any) -> Any:
    """The group whose trainers gather; None where this process is the only one."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return None
    group = dist.group.WORLD if group is None else group
    if dist.get_backend(group) == "gloo":
        return group
    if group not in _gloo:
        ranks = dist.get_process_group_ranks(group)
        _gloo[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return _gloo[group]


Metric = Callable[[Tensor, Tensor], Any]


@short_traceback
def gather_metrics(
    means: Mapping[str, Any] | None = None,
    *,
    count: int | None = None,
    sums: Mapping[str, Any] | None = None,
    y_pred: Tensor | None = None,
    y_true: Tensor | None = None,
    metrics: Mapping[str, Metric] | None = None,
    group: Any = None,
    timeout_s: float = 300.0,
) -> dict[str, float]:
    """Brings the results of all trainers together, exactly, and returns the same on each::

        with torch.no_grad():
            for batch in loader:  # of node_split(g.ndata["val_mask"]); shares may differ, and be empty
                y_pred.append(model.module(batch)), y_true.append(batch.y[: batch.batch_size])
        result = gather_metrics(y_pred=torch.cat(y_pred), y_true=torch.cat(y_true))  # {"accuracy": ..., "count": ...}

    All trainers call together, after their last batch. Evaluate ``model.module``: DDP's own forward would wait for
    trainers that have fewer batches.

    Args:
        means: Means over what this trainer has seen, such as ``{"loss": 0.7}``; the result is the mean over all that
            was seen, weighted by ``count``. What has seen nothing may say NaN.
        count: Items seen here. Default: the length of ``y_true``.
        sums: Numbers that add up, such as counters.
        y_pred: What was predicted here ``[count, ...]``: classes, or a score for each ``[count, num_classes]``.
        y_true: What is right ``[count, ...]``.
        metrics: By name, functions of all predictions and all that is right, in the order of the trainers, which
            return a number: such as those of scikit-learn the other way round. They run on trainer 0 alone, which
            must hold all predictions in memory. Default: ``"accuracy"``, for which nothing but counts is sent.
        group: The process group. Default: that of ``torch.distributed``; without any, this process is the only one.
        timeout_s: How long to wait for the slowest trainer.

    Returns:
        Numbers by name, those of ``means``, ``sums`` and ``metrics``, and ``count`` where it is known. Means over
        nothing are NaN.

    Raises:
        TypeError, ValueError: If an argument is unusable; names it.
        glt.errors.RendezvousError: If another trainer gave unusable arguments, or others than this one; names it.
        glt.errors.PeerLost: If not all trainers have come after ``timeout_s``; names those missing.
        glt.errors.RemoteError: If a metric failed on trainer 0.

    Example:
        >>> glt.distributed.gather_metrics({"loss": 0.5}, count=10, sums={"hits": 7})
        {'loss': 0.5, 'hits': 7, 'count': 10}
    """
    timeout_s = real_number("timeout_s", timeout_s, above=True)
    error: Exception | None = None
    try:
        own = _share(means, count, sums, y_pred, y_true, metrics)
    except (TypeError, ValueError) as raised:
        error, own = raised, {"error": f"{type(raised).__name__}: {raised}"}  # raised when the others have it
    remedy = "or raise timeout_s where they are still at their batches"
    with Collective(_gloo_group(group), timeout_s, "trainer", remedy, "gather_metrics") as trainers:
        shares = trainers.gather(own)
        if error is not None:
            raise error
        _require_agreement(shares, trainers.rank)
        result = _combined(shares)
        if metrics is not None:
            assert y_pred is not None and y_true is not None
            tensors = [each.detach().cpu().contiguous() for each in (y_pred, y_true)]
            result |= _computed(trainers, shares, tensors, metrics)
    return result


def _share(
    means: Any, count: Any, sums: Any, y_pred: Any, y_true: Any, metrics: Mapping[str, Metric] | None
) -> dict[str, Any]:
    """Checks this trainer's arguments; returns its share, which all trainers are sent."""
    if (y_pred is None) != (y_true is None):
        missing = "y_pred" if y_pred is None else "y_true"
        raise ValueError(f"{missing} is None, but the other is given: expected y_pred and y_true, or neither")
    for name, value in (("y_pred", y_pred), ("y_true", y_true)):
        if value is not None and (not isinstance(value, Tensor) or value.dim() == 0):
            raise TypeError(f"{name} is {value!r}: expected a tensor with a row for each item")
    if y_true is not None and len(y_pred) != len(y_true):
        raise ValueError(f"y_pred has {len(y_pred)} rows: expected one for each of y_true, {len(y_true)}")
    if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
        raise TypeError(f"metrics = {metrics!r}: expected a dict from names to functions of y_pred and y_true")
    if metrics is not None and y_true is None:
        raise ValueError(f"metrics = {sorted(metrics)} need predictions: give y_pred and y_true")
    if count is None and y_true is not None:
        count = len(y_true)
    if count is not None:
        count = integer("count", count, 0, 2**63 - 1, "the number of items")
    if means and count is None:
        raise ValueError("means are given without count: expected the number of items that they are means of")
    share: dict[str, Any] = {
        "means": _numbers("means", means),
        "sums": _numbers("sums", sums),
        "count": count,
        "metrics": None if metrics is None else list(metrics),
    }
    names = [*share["means"], *share["sums"], *(metrics or ())]
    if y_true is not None and metrics is None:
        share["right"] = _num_right(y_pred, y_true)
        names.append("accuracy")
    elif y_true is not None:
        share["tensors"] = [(str(t.dtype).removeprefix("torch."), list(t.shape)) for t in (y_pred, y_true)]
    names += ["count"] * (count is not None)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]!r} is the name of two results: expected different names; rename one")
    return share


def _numbers(what: str, given: Any) -> dict[str, float | int]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{what} is a {type(given).__name__}: expected a dict from names to numbers")
    found: dict[str, float | int] = {}
    for name, value in (given or {}).items():
        # Of one element, torch's and NumPy's.
        number = value.item() if getattr(value, "shape", None) in ((), (1,)) else value
        if not isinstance(name, str) or isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"{what}[{name!r}] = {value!r}: expected a number by a name")
        found[name] = number
    return found


def _num_right(y_pred: Tensor, y_true: Tensor) -> tuple[int, int]:
    if y_pred.dim() == y_true.dim() + 1:
        # Of no items, there may be no classes to choose from either.
        y_pred = y_pred.argmax(-1) if y_pred.numel() else y_pred.new_empty(y_true.shape)
    if y_pred.shape != y_true.shape:
        raise ValueError(
            f"y_pred has shape {list(y_pred.shape)} and y_true {list(y_true.shape)}: expected the same, or one "
            "dimension more, of scores; give metrics for other kinds of predictions"
        )
    return int((y_pred == y_true.to(y_pred.device)).sum()), y_true.numel()


def _require_agreement(shares: Sequence[dict[str, Any]], rank: int) -> None:
    for at, each in enumerate(shares):
        if "error" in each:
            raise RendezvousError(f"trainer {at} has called gather_metrics in vain: {each['error']}")
    summaries = [_summary(each) for each in shares]
    for at, summary in enumerate(summaries):
        if summary != summaries[rank]:
            raise RendezvousError(
                f"trainer {at} gathers other metrics than trainer {rank}: {summary}, not {summaries[rank]}: expected "
                "all trainers to call gather_metrics with the same names"
            )


def _summary(share: dict[str, Any]) -> dict[str, Any]:
    """What must be the same of all trainers; functions run in the order of trainer 0."""
    given: dict[str, Any] = {name: sorted(share[name]) for name in ("means", "sums") if share[name]}
    given |= {} if share["metrics"] is None else {"metrics": share["metrics"]}
    given |= {"y_pred": "classes"} if "right" in share else {}
    return given | ({} if share["count"] is None else {"count": "given"})


def _combined(shares: Sequence[dict[str, Any]]) -> dict[str, float]:
    result: dict[str, float] = {}
    counts = [each["count"] or 0 for each in shares]
    for name in shares[0]["means"]:
        weighted = [each["means"][name] * count for each, count in zip(shares, counts, strict=True) if count]
        result[name] = math.fsum(weighted) / sum(counts) if sum(counts) else math.nan
    for name in shares[0]["sums"]:
        values = [each["sums"][name] for each in shares]
        result[name] = sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)
    if "right" in shares[0]:
        right, num = map(sum, zip(*(each["right"] for each in shares), strict=True))
        result["accuracy"] = right / num if num else math.nan
    if shares[0]["count"] is not None:
        result["count"] = sum(counts)
    return result


def _computed(
    trainers: Collective, shares: Sequence[dict[str, Any]], tensors: list[Tensor], metrics: Mapping[str, Metric]
) -> dict[str, float]:
    sent = [_bytes_of(tensor).numpy() for tensor in tensors]
    received = trainers.all_to_all([sent if to == 0 else [] for to in range(trainers.world_size)])
    answer: dict[str, float] = {}
    if trainers.rank == 0:
        pairs = [_tensors(data, each["tensors"]) for data, each in zip(received, shares, strict=True)]
        y_pred, y_true = map(_concatenated, ("y_pred", "y_true"), zip(*pairs, strict=True))
        answer = {name: float(metric(y_pred, y_true)) for name, metric in metrics.items()}
    found: dict[str, float] = trainers.gather(answer)[0]
    return found


def _tensors(data: np.ndarray, outlines: Sequence[tuple[str, list[int]]]) -> list[Tensor]:
    """The tensors of these dtypes and shapes, given their bytes one after the other."""
    tensors, at = [], 0
    for dtype, shape in outlines:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        tensors.append(tensor)
        _bytes_of(tensor).copy_(torch.from_numpy(data[at : at + tensor.nbytes]))
        at += tensor.nbytes
    return tensors


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _concatenated(name: str, pieces: Sequence[Tensor]) -> Tensor:
    """Trainers without items may not know what rows look like."""
    filled = [piece for piece in pieces if len(piece)] or list(pieces[:1])
    for piece in filled:
        if piece.dtype != filled[0].dtype or piece.shape[1:] != filled[0].shape[1:]:
            raise ValueError(
                f"{name} has rows {list(piece.shape[1:])} of {piece.dtype} on one trainer and "
                f"{list(filled[0].shape[1:])} of {filled[0].dtype} on another: expected the same"
            )
    return torch.cat(filled)
