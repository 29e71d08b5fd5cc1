"""The partition book: who owns each id, and at which row of the owner's arrays. With ``relabel=True``: the maps between
the ids that a graph was given with and those that the partitioner gave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt._reprs import repr_of_fields
from glt.data.arrays import as_numpy, require_data
from glt.partition.format.rows import CHUNK_IDS, Array, chunks


@dataclass(frozen=True, eq=False)
class IdMap:
    """The two ids of each node, or of each edge, of one type.

    Attributes:
        original: The original id of each new id, ``[num_ids]`` int32 or int64; DGL's ``orig_nids`` and ``orig_eids``.
        new: The new id of each original id, likewise.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> manifest = glt.partition.RandomPartitioner("relabelled", 2, 40, graph.edge_index, relabel=True).partition()
        >>> ids = glt.partition.load_id_map("relabelled")
        >>> ids.to_original(ids.to_new(torch.tensor([3, 30])))
        tensor([ 3, 30])
    """

    original: np.ndarray
    new: np.ndarray

    def to_original(self, ids: Any) -> Tensor:
        """Returns the original ids, int64, of new ids of any shape, such as ``n_id [n]`` or ``edge_label_index [2,
        n]``.

        Raises:
            TypeError: If they are no integers.
            IndexError: If there is no such id; names the first.
        """
        return _looked_up(self.original, ids)

    def to_new(self, ids: Any) -> Tensor:
        """The reverse of :meth:`to_original`, with the same errors."""
        return _looked_up(self.new, ids)

    __repr__ = repr_of_fields


def to_original_order(rows: Array | Sequence[Array], node_map: Array, out: Array | None = None) -> Array:
    """Puts rows that are in the order of the new ids, such as embeddings, into the order of the original ids.

    Rows are moved about a million at a time, so that mapped arrays may be larger than memory.

    Args:
        rows: Tensor or array ``[num_ids, ...]``; or one for each partition, in order, of what that partition owns.
        node_map: Original id of each new id ``[num_ids]``: ``DistDataset.node_map``, ``IdMap.original``, or what
            ``partition(return_mapping=True)`` returned. Of edges, ``edge_map``.
        out: Where to write, of the shape and dtype of all rows, for example a writable memory map. Default: a new
            tensor (in CPU memory) or array, like the rows.

    Returns:
        ``out``: its row ``node_map[i]`` is row ``i``.

    Raises:
        TypeError: If ``rows`` are no tensors or arrays, ``node_map`` has no integers, or dtypes differ.
        ValueError: If there is not one row for each id, or ``node_map`` has an id twice or none that it should have.

    Example:
        >>> predictions = torch.tensor([[0.1], [0.2], [0.3]])  # rows of new ids, which were 2, 0 and 1
        >>> glt.partition.to_original_order(predictions, torch.tensor([2, 0, 1]))
        tensor([[0.2000],
                [0.3000],
                [0.1000]])
    """
    sharded = isinstance(rows, list | tuple)
    shards: list[Any] = list(rows) if sharded else [rows]
    if not shards:
        raise ValueError("rows is empty: expected a tensor or array, or one for each partition")
    require_data(node_map, "node_map")
    for idx, shard in enumerate(shards):
        name = f"rows[{idx}]" if sharded else "rows"
        require_data(shard, name)
        if not isinstance(shard, Tensor | np.ndarray):
            raise TypeError(f"{name} is a {type(shard).__name__}: expected a tensor or an array")
        if shard.ndim == 0 or shard.dtype != shards[0].dtype or shard.shape[1:] != shards[0].shape[1:]:
            raise ValueError(
                f"{name} has dtype {shard.dtype} and shape {list(shard.shape)}: expected rows like those of rows[0], "
                f"{shards[0].dtype} {list(shards[0].shape)}"
            )
    ids = node_map.numpy() if isinstance(node_map, Tensor) else np.asarray(node_map)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise TypeError(f"node_map is {ids.dtype} {list(ids.shape)}: expected integers, the original id of each new id")
    num_rows = sum(len(shard) for shard in shards)
    if num_rows != len(ids):
        of = f"{len(shards)} shards with " if sharded else ""
        raise ValueError(f"rows has {of}{num_rows} rows: expected one per id of node_map, {len(ids)}")
    shape = (len(ids), *shards[0].shape[1:])
    if out is None:
        like = shards[0]
        out = torch.empty(shape, dtype=like.dtype) if isinstance(like, Tensor) else np.empty(shape, like.dtype)
    elif tuple(out.shape) != shape or out.dtype != shards[0].dtype:
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)}: expected {shards[0].dtype} {list(shape)}, one row per id"
        )
    into, seen, begin = _as_array(out), np.zeros(len(ids), bool), 0
    for shard in shards:
        for first in range(0, len(shard), CHUNK_IDS):
            piece = _as_array(shard[first : first + CHUNK_IDS])
            at = ids[begin : begin + len(piece)].astype(np.int64)
            bad = np.flatnonzero((at < 0) | (at >= len(ids)))
            if len(bad):
                raise ValueError(
                    f"node_map[{begin + bad[0]}] = {at[bad[0]]} is outside [0, {len(ids)}): expected each original id "
                    "once; was it made for another graph?"
                )
            into[at] = piece
            seen[at] = True
            begin += len(piece)
    if not seen.all():
        raise ValueError(
            f"node_map lacks the original id {int(seen.argmin())}, so it has another one twice: expected each once; "
            "was it made for another graph?"
        )
    return out


def checked_ids(ids: Any, num_ids: int) -> Tensor:
    """Returns ids of any shape as an int64 tensor; errors as of :meth:`IdMap.to_original`."""
    require_data(ids, "ids")
    given = ids if isinstance(ids, Tensor) else torch.as_tensor(np.asarray(ids))
    if given.numel() and (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool):
        raise TypeError(f"ids has dtype {given.dtype}: expected integers")
    checked = given.detach().to("cpu", torch.int64)
    bad = ((checked < 0) | (checked >= num_ids)).nonzero()
    if len(bad):
        at = tuple(bad[0].tolist())
        raise IndexError(f"ids[{', '.join(map(str, at))}] = {int(checked[at])} is outside [0, {num_ids})")
    return checked


def _looked_up(table: np.ndarray, ids: Any) -> Tensor:
    checked = checked_ids(ids, len(table))
    return torch.from_numpy(table[checked.reshape(-1).numpy()].astype(np.int64)).reshape(checked.shape)


def _as_array(rows: Array) -> np.ndarray:
    return as_numpy(rows.detach().cpu()) if isinstance(rows, Tensor) else rows


def owner_dtype(num_parts: int) -> np.dtype:
    """Returns the smallest unsigned dtype that holds the owners ``0 .. num_parts - 1``."""
    return np.min_scalar_type(num_parts - 1)


def id_dtype(num_ids: int) -> np.dtype:
    """Returns int32 when the ids ``0 .. num_ids - 1`` fit, else int64."""
    return np.dtype(np.int32 if num_ids - 1 <= np.iinfo(np.int32).max else np.int64)


def group_by_owner(owner: np.ndarray, num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups the positions of ``owner [n]`` by owner, keeping their order inside each group: returns ``order [n]`` and
    ``offset [num_parts + 1]``, int64; group ``p`` is ``order[offset[p]:offset[p + 1]]``.
    """
    order = np.argsort(owner, kind="stable")  # a radix sort for the narrow dtypes of a book
    return order, _offsets(owner, num_parts)


@dataclass(frozen=True, eq=False)
class Book:
    """Owners of all nodes of one type, ``[num_nodes]``, smallest unsigned dtype; and ``offset [num_parts + 1]`` int64,
    where the rows of each partition begin among those of all.
    """

    owner: np.ndarray
    offset: np.ndarray

    @classmethod
    def of(cls, owner: np.ndarray, num_parts: int) -> Book:
        return cls(owner, _offsets(owner, num_parts))

    @property
    def num_parts(self) -> int:
        return self.offset.size - 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of nodes of each partition."""
        return tuple(np.diff(self.offset).tolist())

    def position(self) -> np.ndarray:
        """Returns the row of each node (uint32), counted over all partitions, one after the other."""
        position = np.empty(self.owner.size, np.uint32)
        begins = self.offset[:-1].copy()
        for begin, owner in chunks(self.owner):
            order, offset = group_by_owner(owner, self.num_parts)
            shift = np.repeat(begins - offset[:-1], np.diff(offset))
            position[begin : begin + owner.size][order] = np.arange(owner.size) + shift
            begins += np.diff(offset)
        return position


def _offsets(owner: np.ndarray, num_parts: int) -> np.ndarray:
    offset = np.zeros(num_parts + 1, np.int64)
    for _, piece in chunks(owner):  # bincount makes int64 of what it is given
        offset[1:] += np.bincount(piece, minlength=num_parts)
    return np.cumsum(offset, out=offset)
