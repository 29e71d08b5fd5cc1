"""Weights of ``GCNConv``, which go by the degrees of both ends: those of the whole graph, for the edges of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops


def in_degrees(edge_index: Tensor, num_seeds: int, edge_weight: Tensor | None = None) -> Tensor:
    """What weights need to know of the seeds of a batch with all edges into them.

    Args:
        edge_index: ``[2, E]``.
        num_seeds: The first nodes.
        edge_weight: ``[E]``, if layers are given weights.

    Returns:
        ``[num_seeds, 2]`` int32: the edges into each seed that come from elsewhere, and those from itself. With
        ``edge_weight`` ``[num_seeds, 5]`` float64: behind these the sums of their weights, and the weight of the last
        edge from itself, NaN if there is none.
    """
    source, target = edge_index
    loops = source == target
    counts = [torch.bincount(target[which], minlength=num_seeds)[:num_seeds] for which in (~loops, loops)]
    if edge_weight is None:
        return torch.stack(counts, 1).int()
    weight = edge_weight.double().view(-1)
    sums = [
        torch.zeros(num_seeds, dtype=torch.float64).index_add_(0, target[which], weight[which])
        for which in (~loops, loops)
    ]
    loop = torch.full((num_seeds,), torch.nan, dtype=torch.float64)
    loop[target[loops]] = weight[loops]
    return torch.stack([*(each.double() for each in counts), *sums, loop], 1)


@contextmanager
def normalized(
    convs: Iterable[pyg.GCNConv], edge_index: Tensor, degrees: Tensor, edge_weight: Tensor | None
) -> Iterator[None]:
    """Has convolutions weigh the edges of a batch as on the whole graph, where ``GCNConv`` would go by the degrees that
    are in the batch: it takes weights that it finds cached for its own.

    Args:
        convs: Of the layer.
        edge_index: Of the batch ``[2, E]``.
        degrees: Of all nodes of the batch, as :func:`in_degrees` counts them ``[N, 2]`` or ``[N, 5]``.
        edge_weight: What the layer is given of the batch ``[E]``, if it is.

    Raises:
        ValueError: From a convolution that is called with other edges or weights, whose degrees are not known.
    """

    def weigh(conv: pyg.GCNConv, args: Any, kwargs: Any) -> None:
        called = signature(conv.forward).bind(*args, **kwargs).arguments
        weight = called.get("edge_weight")
        if not _is_same(called["edge_index"], edge_index) or (weight is not None and not _is_same(weight, edge_weight)):
            raise ValueError(
                "GCNConv was called with other edges or weights than the layer was given: the degrees that it goes by "
                "are known for the edges of the graph only, without weights or with edge_weight of infer_layerwise"
            )
        dtype = called["x"].dtype if weight is None else weight.dtype
        conv._cached_edge_index = _weighted(edge_index, degrees, conv, dtype, weight)

    before = [(conv, conv._cached_edge_index) for conv in convs]
    try:
        with ExitStack() as hooks:
            for conv, _ in before:
                hooks.callback(conv.register_forward_pre_hook(weigh, with_kwargs=True).remove)
            yield
    finally:
        for conv, cached in before:
            conv._cached_edge_index = cached


def _is_same(called: Any, given: Tensor | None) -> bool:
    if called is given:
        return True
    if not isinstance(called, Tensor) or given is None or called.layout != torch.strided:
        return False
    return called.shape == given.shape and torch.equal(called, given.to(called.dtype))


def _weighted(
    edge_index: Tensor, degrees: Tensor, conv: pyg.GCNConv, dtype: torch.dtype, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    others, loops = degrees[:, :2].unbind(1) if weight is None else degrees[:, 2:4].unbind(1)
    # Without weights an edge of a node to itself weighs 1 even if the convolution is improved.
    loop, fill = torch.ones_like(others), 1.0
    if weight is not None:
        fill = 2.0 if conv.improved else 1.0
        loop = degrees[:, 4].nan_to_num(nan=fill)
    if conv.add_self_loops:  # where there are none
        edge_index, weight = add_remaining_self_loops(edge_index, weight, fill, len(degrees))
    scale = (others + (loop if conv.add_self_loops else loops)).to(dtype).pow(-0.5)
    scale = scale.masked_fill(scale == torch.inf, 0)
    source, target = edge_index
    product = scale[source] * scale[target]
    return edge_index, product if weight is None else scale[source] * weight * scale[target]
