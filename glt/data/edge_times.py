"""Edges in the order of their times, for sampling the past of a seed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import as_numpy, require_data


class TimedEdges(NamedTuple):
    """A second set of columns over the same row offsets: within a row, edges by time, and ties in their input order.

    The plain columns keep the input order, so that batches which ask for no time do not depend on times.

    Attributes:
        indices: Neighbour ids ``[E]``, int32 or int64.
        edge_ids: Edge ids ``[E]``, int32 or int64; None where an id is the position.
        time: Time of each edge ``[E]``, int64, non-decreasing within each row.
    """

    indices: Tensor
    edge_ids: Tensor | None
    time: Tensor

    @classmethod
    def build(cls, indptr: Tensor, indices: Tensor, edge_ids: Tensor | None, time: np.ndarray) -> TimedEdges:
        """Sorts the columns of a topology by time.

        Args:
            indptr, indices, edge_ids: Of the topology.
            time: Time of each edge, in row order, ``[E]`` int64.
        """
        order = np.empty(len(time), np.int64)
        _core.sort_rows_by_time(indptr.numpy(), time, order)
        if bool((order[1:] > order[:-1]).all()):  # sorted as it came, as logs of events are: share the columns
            return cls(indices, edge_ids, torch.from_numpy(time))
        ids = order if edge_ids is None else edge_ids.numpy()[order]
        return cls(*(torch.from_numpy(a) for a in (indices.numpy()[order], ids, time[order])))


def as_times(value: Any, name: str, size: int, each: str = "edge") -> np.ndarray:
    """Returns one time per edge (or node) as int64.

    Raises:
        TypeError: If they are no integers: a fractional time would be cut off silently.
        ValueError: If they are not ``[size]`` many.
    """
    require_data(value, name)
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    if tensor.dim() == 2 and tensor.size(1) == 1:
        tensor = tensor.view(-1)
    if tuple(tensor.shape) != (size,):
        raise ValueError(f"{name} has shape {list(tensor.shape)}: expected one time per {each}, [{size}]")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype in (torch.bool, torch.uint64):
        if not (size == 0 and not isinstance(value, Tensor)):
            raise TypeError(f"{name} has dtype {tensor.dtype}: expected integers, such as seconds; convert it to int64")
    return as_numpy(tensor.cpu().to(torch.int64).contiguous())
