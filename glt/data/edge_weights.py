"""Weights of edges, in the form that draws proportional to weight read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import as_numpy, require_data


class EdgeWeights(NamedTuple):
    """Integer weights of the edges of every row, as sums.

    Attributes:
        weight_sum: Prefix sums, inclusive and within each row, ``[E]`` uint64.
        weight_guide: Cut points into them (Chen & Asau, "On generating random variates from an empirical
            distribution", AIIE Transactions 6, 1974), uint32, ``_core.weight_guide_size(num_rows, E)`` of them.
    """

    weight_sum: Tensor
    weight_guide: Tensor

    @classmethod
    def build(cls, indptr: Tensor, weight: np.ndarray) -> EdgeWeights:
        """Sums up weights.

        Args:
            indptr: Row offsets ``[num_rows + 1]``, int64.
            weight: Weight of each edge, in row order, ``[E]`` float32 or float64.

        Raises:
            ValueError: If a weight is negative, infinite or no number; names the first.
        """
        weight_sum = np.empty(len(weight), np.uint64)
        weight_guide = np.empty(_core.weight_guide_size(len(indptr) - 1, len(weight)), np.uint32)
        _core.build_weights(indptr.numpy(), weight, weight_sum, weight_guide)
        return cls(torch.from_numpy(weight_sum), torch.from_numpy(weight_guide))

    def with_empty_rows(self, num_rows: int) -> EdgeWeights:
        """Returns the same for a graph with that many more rows at its end, which have no edges."""
        guide = np.concatenate([self.weight_guide.numpy(), np.zeros(num_rows, np.uint32)])
        return EdgeWeights(self.weight_sum, torch.from_numpy(guide))


def as_weights(value: Any, num_edges: int) -> np.ndarray:
    """Returns one weight per edge as float32 or float64; integers and half precision become either without loss.

    Raises:
        TypeError, ValueError: If they are no real numbers, not ``[num_edges]`` many, or integers of more than 53 bits;
            also if one is negative or not finite: names the first.
    """
    require_data(value, "edge_weight")
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    if tensor.dim() == 2 and tensor.size(1) == 1:
        tensor = tensor.view(-1)
    if tuple(tensor.shape) != (num_edges,):
        raise ValueError(f"edge_weight has shape {list(tensor.shape)}: expected one weight per edge, [{num_edges}]")
    if tensor.is_complex():
        raise TypeError(f"edge_weight has dtype {tensor.dtype}: expected real numbers")
    if tensor.dtype not in (torch.float32, torch.float64):
        wide = not tensor.is_floating_point() and tensor.dtype.itemsize > 2
        given, tensor = tensor, tensor.to(torch.float64 if wide else torch.float32)
        if wide and num_edges and not torch.equal(tensor.to(given.dtype), given):
            raise ValueError("edge_weight holds integers above 2^53: expected weights that a double holds exactly")
    weight = as_numpy(tensor.cpu().contiguous())
    # Here rather than when the rows are built: the position to name is the user's.
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(bad):
        raise ValueError(
            f"edge_weight[{bad[0]}] = {weight[bad[0]]}: expected finite weights of at least 0; a weight of 0 keeps an "
            "edge out while others remain"
        )
    return weight
