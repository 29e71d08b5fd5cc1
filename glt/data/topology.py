"""Which node has an edge to which: compressed rows over out-edges (CSR) or in-edges (CSC)."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import as_numpy, from_array

_INT32_MAX = 2**31 - 1
_LAYOUTS = ("CSR", "CSC")


class Topology:
    """Edges in compressed rows; the edges of a row keep the order in which they were given.

    Built by counting sort: besides the result it needs no memory. Neighbour ids are stored as int32 when they fit.

    Args:
        edge_index: Source and destination ids, shape ``[2, E]``, int32 or int64, or a pair of such rows.
        num_nodes: Number of nodes. Default: one more than the largest id, isolated tail nodes being unknown.
        edge_ids: Ids of the edges, shape ``[E]``, int32 or int64, at least 0. Default: positions in ``edge_index``.
        layout: ``'CSR'`` expands a node along its out-edges, ``'CSC'`` along its in-edges (PyG's direction).

    Attributes:
        indptr: Row offsets ``[num_rows + 1]``, int64.
        indices: Neighbour ids ``[E]``, int32 or int64.
        edge_ids: Edge ids ``[E]``, int32 or int64; None where an id is the position in ``indices``.
        row_of: Row of each node ``[num_nodes]``, uint32, where rows exist for some nodes only (a partition); else None.
        owner, part: Partition of each node, and which one these rows are of; None and 0 where rows are of all nodes.

    Raises:
        IndexError: If an id is outside ``[0, num_nodes)``; names the first.
        TypeError, ValueError: If shapes, dtypes or the layout do not fit.
    """

    def __init__(
        self, edge_index: Any, num_nodes: int | None = None, *, edge_ids: Tensor | None = None, layout: str = "CSR"
    ) -> None:
        if layout not in _LAYOUTS:
            raise ValueError(f"layout = {layout!r}: expected 'CSR' (out-edges) or 'CSC' (in-edges)")
        row, col = _endpoints(edge_index)
        if num_nodes is None:
            num_nodes = int(max(row.max(), col.max())) + 1 if len(row) else 0
        if num_nodes < 0:
            raise ValueError(f"num_nodes = {num_nodes}: expected at least 0")
        if layout == "CSC":
            row, col = col, row
        num_edges = len(row)
        largest_id = num_edges - 1
        ids_in = None
        if edge_ids is not None:
            ids_in = as_numpy(torch.as_tensor(edge_ids).contiguous())
            if ids_in.dtype not in (np.int32, np.int64):
                raise TypeError(f"edge_ids has dtype {ids_in.dtype}: expected int32 or int64")
            if ids_in.shape != (num_edges,):
                raise ValueError(f"edge_ids has shape {list(ids_in.shape)}: expected one id per edge, [{num_edges}]")
            largest_id = int(ids_in.max(initial=0))
            if ids_in.min(initial=0) < 0:
                raise ValueError(f"edge_ids has a negative id, {ids_in.min()}: expected ids of at least 0")
        # NumPy asks for 2 MiB pages for large arrays, which torch does not: random reads miss the TLB less often.
        indptr = np.empty(num_nodes + 1, np.int64)
        indices = np.empty(num_edges, np.int32 if num_nodes <= _INT32_MAX else np.int64)
        ids = np.empty(num_edges, np.int32 if largest_id <= _INT32_MAX else np.int64)
        _core.build_csr(
            row, col, num_nodes, num_nodes, indptr, indices, ids, edge_ids_in=ids_in, largest_edge_id=largest_id,
            row_name=f"edge_index[{int(layout == 'CSC')}]", col_name=f"edge_index[{int(layout == 'CSR')}]",
        )  # fmt: skip
        self._set(torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(ids), layout, num_nodes, None)
        self._trusted = True

    @classmethod
    def from_rows(
        cls,
        indptr: Tensor,
        indices: Tensor,
        edge_ids: Tensor | None = None,
        *,
        layout: str = "CSR",
        num_nodes: int | None = None,
        row_of: Tensor | None = None,
        owner: Tensor | None = None,
        part: int = 0,
        trusted: bool = False,
    ) -> Topology:
        """Wraps rows that exist already, without copying them.

        Args:
            indptr: Row offsets ``[num_rows + 1]``, int64.
            indices: Neighbour ids ``[E]``, int32 or int64.
            edge_ids: Edge ids ``[E]``; None: positions.
            layout: As in the constructor.
            num_nodes: Number of nodes of the whole graph. Default: number of rows.
            row_of: Row of each node ``[num_nodes]``, uint32, where only some nodes have rows.
            owner: Partition of each node ``[num_nodes]``, uint8, uint16 or uint32, where ``row_of`` counts within the
                owner's rows: sampling then refuses nodes that are not of ``part``.
            part: The partition that these rows are of.
            trusted: True skips the check that every neighbour id is in range (checksummed files).

        Raises:
            IndexError: If a neighbour id is out of range; names the first.
            TypeError, ValueError: If dtypes or shapes do not fit, ``indptr`` falls, or the layout is unknown.
        """
        if layout not in _LAYOUTS:
            raise ValueError(f"layout = {layout!r}: expected 'CSR' (out-edges) or 'CSC' (in-edges)")
        self = cls.__new__(cls)
        self._set(indptr, indices, edge_ids, layout, len(indptr) - 1 if num_nodes is None else num_nodes, row_of)
        self.owner, self.part = owner, part
        self._trusted = trusted
        _ = self.csr  # validates
        return self

    def _set(
        self, indptr: Tensor, indices: Tensor, ids: Tensor | None, layout: str, num_nodes: int, row_of: Tensor | None
    ) -> None:
        self.owner: Tensor | None
        self.indptr, self.indices, self.edge_ids = indptr, indices, ids
        self.layout, self.num_nodes, self.row_of = layout, num_nodes, row_of
        self.owner, self.part = None, 0

    @cached_property
    def csr(self) -> _core.Csr:
        """The validated view that the native core samples from."""
        ids = None if self.edge_ids is None else self.edge_ids.numpy()
        row_of = None if self.row_of is None else self.row_of.numpy()
        owner = None if self.owner is None else self.owner.numpy()
        return _core.Csr(
            self.indptr.numpy(), self.indices.numpy(), ids, row_of, self.num_nodes, self.num_nodes, not self._trusted,
            owner, self.part,
        )  # fmt: skip

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    @property
    def edge_dir(self) -> str:
        """``'out'`` for CSR, ``'in'`` for CSC."""
        return "out" if self.layout == "CSR" else "in"

    @property
    def degrees(self) -> Tensor:
        """Edges per row ``[num_rows]``, int64."""
        return self.indptr[1:] - self.indptr[:-1]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "csr"}

    def __repr__(self) -> str:
        return f"Topology(num_nodes={self.num_nodes}, num_edges={self.num_edges}, layout={self.layout!r})"


def _ids(ends: Any) -> np.ndarray:
    if not isinstance(ends, Tensor | np.ndarray) and len(ends) == 0:
        return np.empty(0, np.int64)  # an empty list has no dtype of its own; torch would call it float
    return as_numpy(from_array(ends) if isinstance(ends, np.ndarray) else torch.as_tensor(ends).cpu().contiguous())


def _endpoints(edge_index: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(edge_index, Tensor | np.ndarray) and (edge_index.ndim != 2 or edge_index.shape[0] != 2):
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}: expected [2, num_edges]")
    if len(edge_index) != 2:
        raise ValueError(f"edge_index has {len(edge_index)} rows: expected sources and destinations")
    row, col = (_ids(ends) for ends in edge_index)
    if len(row) != len(col):
        raise ValueError(f"edge_index has {len(row)} sources and {len(col)} destinations: expected as many")
    if row.dtype != col.dtype or row.dtype not in (np.int32, np.int64):
        raise TypeError(f"edge_index has dtypes {row.dtype} and {col.dtype}: expected int32 or int64 for both")
    return row, col
