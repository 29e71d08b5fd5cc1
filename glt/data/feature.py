"""Rows of values, one per node or edge, looked up by id."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glt import _core
from glt.data import pool
from glt.data.arrays import Packed, as_ids, as_numpy
from glt.data.partition_book import PartitionBook


class Feature:
    """A table of rows in host memory, mapped files included.

    Args:
        tensor: The rows, shape ``[num_rows, ...]``, any dtype. Used in place if contiguous, else copied once.
        row_of: Row of each id ``[num_ids]``, uint32, where only some ids have rows. Default: the id.
        owned: A book and the partition whose rows these are, in place of ``row_of``: looking up what that does not own
            is then refused.

    Raises:
        TypeError, ValueError: If ``tensor`` is not a CPU tensor of at least one dimension.
    """

    def __init__(
        self, tensor: Tensor, row_of: Tensor | None = None, owned: tuple[PartitionBook, int] | None = None
    ) -> None:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"tensor has type {type(tensor).__name__}: expected a torch.Tensor")
        if tensor.dim() == 0 or tensor.device.type != "cpu":
            raise ValueError(f"tensor has shape {tuple(tensor.shape)} on {tensor.device}: expected rows in CPU memory")
        self.tensor = tensor.detach().contiguous()
        self.row_of = row_of if owned is None else owned[0].row_of
        self.owned = owned
        self._table = as_numpy(self.tensor)
        self._row_of = None if self.row_of is None else self.row_of.numpy()
        self._first_id = 0 if owned is None else owned[0].first_id(owned[1])

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def row_shape(self) -> torch.Size:
        """Shape of one row."""
        return self.tensor.shape[1:]

    @property
    def has_row_per_id(self) -> bool:
        """Whether the row of an id is the id: not so of a partition, which has rows of some ids only."""
        return self.row_of is None and self.owned is None

    def __len__(self) -> int:
        return len(self.tensor)

    def gather(
        self,
        ids: Tensor,
        out: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        num_threads: int = 1,
    ) -> Tensor:
        """Looks up rows: ``out[i] = row of ids[i]``, or ``out[positions[i]]`` where positions are given.

        Args:
            ids: Ids ``[n]``, any integer dtype; a bool mask stands for the positions of its true elements.
            out: Where to write, ``[at least n, ...]``, same dtype, contiguous. Default: recycled memory, which a
                batch of the same size used before, so that no fresh page is touched in steady state.
            positions: Row of ``out`` for each id ``[n]``, uint32. Default: 0, 1, 2, ...
            num_threads: Threads to copy with; the result does not depend on it.

        Returns:
            ``out``, or the new tensor ``[n, ...]``.

        Raises:
            IndexError: If an id has no row here or is another partition's, or a position is outside ``out``; names the
                first.
            TypeError, ValueError: If the dtype, shape or layout of an argument does not fit.
        """
        ids = as_ids(ids, "ids")
        if self.owned is not None:
            _core.require_owned(self.owned[0].native, ids.numpy(), self.owned[1])
        if out is None:
            if positions is not None:
                raise ValueError("positions needs out: the rows in between must come from somewhere")
            out = pool.empty((len(ids), *self.row_shape), self.dtype)
        elif out.dtype != self.dtype:
            raise TypeError(f"out has dtype {out.dtype}: expected {self.dtype}, the table's")
        where = None if positions is None else positions.numpy()
        _core.gather_rows(self._table, ids.numpy(), as_numpy(out), self._row_of, where, num_threads, self._first_id)
        return out

    def __getitem__(self, ids: Tensor) -> Tensor:
        return self.gather(ids)

    def __getstate__(self) -> dict[str, Any]:
        row_of = None if self.owned else Packed.of(self.row_of)
        return {"tensor": Packed.of(self.tensor), "row_of": row_of, "owned": self.owned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Packed.open(state["tensor"]), Packed.open(state["row_of"]), state["owned"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"Feature(shape={tuple(self.shape)}, dtype={self.dtype})"
