"""A graph's rows where kernels can read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from glt import _core


@dataclass(frozen=True)
class PlacedRows:
    """Rows of one edge type in memory that kernels read: the native view, and the tensors that it points into."""

    rows: _core.DeviceRows
    tensors: Sequence[Tensor | None] = field(repr=False)

    @classmethod
    def of(
        cls,
        indptr: Tensor,
        indices: Tensor,
        edge_ids: Tensor | None = None,
        *,
        num_neighbor_nodes: int,
        weights: tuple[Tensor, Tensor] | None = None,
        time: Tensor | None = None,
    ) -> PlacedRows:
        """Wraps arrays of a graph that was validated on the host.

        Args:
            indptr: Row offsets ``[num_nodes + 1]``, int64; a row for every node.
            indices: Neighbour ids ``[E]``, int32 or int64.
            edge_ids: Edge ids ``[E]``, int32 or int64; None: positions.
            num_neighbor_nodes: Neighbour ids are below.
            weights: ``(weight_sum [E] uint64, weight_guide uint32)`` as :class:`glt.data.edge_weights.EdgeWeights` has
                them.
            time: Times ``[E]``, int64, never falling within a row.

        Raises:
            TypeError: If a dtype or layout does not fit; names the array.
        """
        weight_sum, weight_guide = (None, None) if weights is None else weights
        narrow_or_wide = (torch.int32, torch.int64)
        arrays = {
            "indptr": (indptr, (torch.int64,)),
            "indices": (indices, narrow_or_wide),
            "edge_ids": (edge_ids, narrow_or_wide),
            "weight_sum": (weight_sum, (torch.uint64,)),
            "weight_guide": (weight_guide, (torch.uint32,)),
            "time": (time, (torch.int64,)),
        }
        for name, (array, dtypes) in arrays.items():
            if array is not None and (array.dtype not in dtypes or array.dim() != 1 or not array.is_contiguous()):
                raise TypeError(
                    f"{name} is {array.dtype} of shape {list(array.shape)}: expected a contiguous array of one "
                    f"dimension, {' or '.join(str(d) for d in dtypes)}"
                )
        rows = _core.DeviceRows(
            **{name: 0 if array is None else array.data_ptr() for name, (array, _) in arrays.items()},
            wide_indices=indices.dtype == torch.int64,
            wide_edge_ids=edge_ids is not None and edge_ids.dtype == torch.int64,
            num_nodes=len(indptr) - 1, num_neighbor_nodes=num_neighbor_nodes, num_edges=len(indices),
        )  # fmt: skip
        return cls(rows, [array for array, _ in arrays.values()])
