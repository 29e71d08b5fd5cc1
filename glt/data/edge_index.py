"""Sources and destinations of edges, in whatever holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import as_numpy, from_array, require_data


def endpoints(edge_index: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns sources and destinations ``[E]`` of whatever holds them, both int32 or both int64.

    Raises:
        TypeError, ValueError: If it holds something else.
    """
    if not isinstance(edge_index, Tensor | np.ndarray | Sequence) or isinstance(edge_index, str):
        raise TypeError(
            f"edge_index is a {type(edge_index).__name__}: expected sources and destinations, [2, num_edges], int32 or "
            "int64; of a graph without edges torch.empty(2, 0, dtype=torch.int64)"
        )
    if isinstance(edge_index, Tensor | np.ndarray) and (edge_index.ndim != 2 or edge_index.shape[0] != 2):
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}: expected [2, num_edges]")
    if len(edge_index) != 2:
        raise ValueError(f"edge_index has {len(edge_index)} rows: expected sources and destinations")
    for name, ends in zip(("sources", "destinations"), edge_index, strict=True):
        if not isinstance(ends, Tensor | np.ndarray | Sequence) or isinstance(ends, str):
            raise TypeError(f"edge_index: the {name} are a {type(ends).__name__}, expected ids [num_edges]")
    row, col = (_ids(ends) for ends in edge_index)
    if len(row) != len(col):
        raise ValueError(f"edge_index has {len(row)} sources and {len(col)} destinations: expected as many")
    if row.dtype != col.dtype or row.dtype not in (np.int32, np.int64):
        raise TypeError(f"edge_index has dtypes {row.dtype} and {col.dtype}: expected int32 or int64 for both")
    return row, col


def coo_of(edges: Any, layout: str) -> Any:
    """Returns edges in the layout of a sparse matrix as sources and destinations, in the order given.

    Args:
        edges: For ``'COO'`` ``[2, E]``; for ``'CSR'`` the pair (row offsets, destinations); for ``'CSC'`` the pair
            (sources, column offsets).
        layout: One of the three.

    Raises:
        ValueError: If the layout is another, or the offsets do not fit the ids.
    """
    if layout == "COO":
        return edges
    if layout not in ("CSR", "CSC"):
        raise ValueError(f"layout = {layout!r}: expected 'COO', 'CSR' or 'CSC'")
    first, second = (_ids(each) for each in edges)
    offsets, ids = (first, second) if layout == "CSR" else (second, first)
    counts = np.diff(offsets)
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(ids) or counts.min(initial=0) < 0:
        pair = "(row offsets, destinations)" if layout == "CSR" else "(sources, column offsets)"
        raise ValueError(
            f"edge_index has {len(offsets)} offsets which do not rise from 0 to {len(ids)}, the number of ids: "
            f"expected the pair {pair}, as layout = {layout!r} says"
        )
    rows = np.repeat(np.arange(len(counts), dtype=ids.dtype), counts)
    return (rows, ids) if layout == "CSR" else (ids, rows)


def _ids(ends: Any) -> np.ndarray:
    if not isinstance(ends, Tensor | np.ndarray) and len(ends) == 0:
        return np.empty(0, np.int64)  # an empty list has no dtype of its own; torch would call it float
    require_data(ends, "edge_index")
    return as_numpy(from_array(ends) if isinstance(ends, np.ndarray) else torch.as_tensor(ends).cpu().contiguous())
