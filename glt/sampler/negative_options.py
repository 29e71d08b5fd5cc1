"""What users say of negatives, in PyG's words."""

from __future__ import annotations

import copy
import math
from typing import Any, Final

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from glt.sampler import conflicts

# What torch adds numbers of, and finds the least of.
_SUMMABLE: Final = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16, torch.float16,
    torch.float32, torch.float64,
)  # fmt: skip


def checked_negatives(given: Any, ratio: Any = None, batch_size: int = 1) -> NegativeSampling | None:
    """Returns what to draw, or None.

    Args:
        given: ``'binary'``, ``'triplet'``, a dict or PyG's ``NegativeSampling``; None: nothing.
        ratio: PyG's old name for an amount of binary negatives; 0: nothing.
        batch_size: Seed edges per batch.

    Raises:
        TypeError, ValueError: If that is something else; says what was expected.
    """
    if ratio is not None:
        conflicts.refuse(neg_sampling=given, neg_sampling_ratio=ratio)
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not ratio >= 0:
            raise ValueError(f"neg_sampling_ratio = {ratio!r}: expected a number of negatives per seed edge, 0 or more")
        given = {"mode": "binary", "amount": ratio} if ratio else None
    try:
        drawn = NegativeSampling.cast(given)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"neg_sampling = {given!r}: expected 'binary', 'triplet', a dict with mode, amount, src_weight and "
            f"dst_weight, or PyG's NegativeSampling ({error})"
        ) from error
    if drawn is None:
        return None
    require_amount(drawn.amount, batch_size)
    drawn = copy.copy(drawn)
    drawn.amount = float(drawn.amount)
    return drawn


def require_summable(label: Tensor, *also: torch.dtype) -> None:
    """Refuses labels of seed edges that cannot go up by one, as they may have to where 0 is the label of negatives.

    Args:
        label: ``edge_label``.
        also: Dtypes that the caller adds one to by itself, beside those that torch does.

    Raises:
        TypeError: If they are of another dtype.
    """
    known = (*_SUMMABLE, *also)
    if label.dtype not in known:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in known)
        raise TypeError(
            f"edge_label has dtype {label.dtype}: with neg_sampling expected one of {names}, since 0 is the label of "
            "negatives and labels that start at 0 go up by one; convert it, for example with .float()"
        )


def require_amount(amount: Any, batch_size: int) -> None:
    """Refuses an amount of negatives per positive that is no number above 0, or makes too many in a batch.

    Raises:
        TypeError, ValueError: Then.
    """
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"amount of neg_sampling = {amount!r}: expected a number of negatives per seed edge")
    if math.isnan(amount) or not 0 < amount * batch_size < 2**31:
        raise ValueError(
            f"amount of neg_sampling = {amount:g}: expected a number above 0, and below 2^31 negatives in a batch of "
            f"{batch_size}"
        )
