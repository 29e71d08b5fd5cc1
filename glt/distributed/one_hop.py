"""Layers that look further than one hop, by a convolution behind another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch_geometric.nn import MessagePassing

from glt.data.schema import NodeType


def one_hop_output(
    call: Callable[[], Any], what: str, num_rows: Mapping[NodeType, int], seed_type: NodeType, num_seeds: int
) -> Any:
    """Returns what a layer makes of a batch whose edges all lead to its seeds.

    What convolutions in it make of the other nodes is wrong there, since their edges are missing, and no output of a
    seed may depend on it. Where several are called, that is tried: they are called once more, with NaN in its place.

    Args:
        call: The layer, with its arguments.
        what: Which layer.
        num_rows: Nodes of the batch, by type.
        seed_type: Type of the seeds.
        num_seeds: How many they are; they are the first nodes of their type.

    Raises:
        ValueError: If one of the convolutions reads what another has made of the neighbours.
    """
    num_calls = 0

    def count(made: Any) -> None:
        nonlocal num_calls
        num_calls += 1

    def spoil(made: Any) -> Any:
        if not isinstance(made, Tensor) or not made.is_floating_point() or len(made) not in num_rows.values():
            return None
        spoilt = made.clone()
        spoilt[num_seeds if len(made) == num_rows.get(seed_type) else 0 :] = math.nan
        return spoilt

    out = _watched(call, count)
    right = _of_seeds(out, seed_type, num_seeds)
    if num_calls > 1 and right is not None:
        again = _of_seeds(_watched(call, spoil), seed_type, num_seeds)
        if again is not None and bool((again.isnan() & ~right.isnan()).any()):
            raise ValueError(
                f"{what} has a convolution behind another, so that it looks further than one hop: computed around "
                "nodes its output would be another than on the whole graph. Give each convolution as a layer"
            )
    return out


def _of_seeds(out: Any, seed_type: NodeType, num_seeds: int) -> Tensor | None:
    rows = out.get(seed_type) if isinstance(out, dict) else out
    return rows[:num_seeds] if isinstance(rows, Tensor) else None


def _watched(call: Callable[[], Any], seen: Callable[[Any], Any]) -> Any:
    caller = get_ident()

    def look(module: nn.Module, args: Any, made: Any) -> Any:
        return seen(made) if isinstance(module, MessagePassing) and get_ident() == caller else None

    watching = register_module_forward_hook(look)
    try:
        return call()
    finally:
        watching.remove()
