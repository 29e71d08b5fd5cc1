"""Rows of nodes that the client of a stream keeps, so that they are sent once and not with every batch.

The sampler decides: for each stream it knows which rows the client has in which slots, and the client does as it is
told. Of each type of nodes whose rows the client keeps, ``n0``, say, a message has the tables' rows of those nodes that
the client lacks, ``x/n0 [sent, ...]`` as partitions store them, and beside them::

    n0/slots i64 [known], n0/slots_at u32 [known]    where the client has the others' rows, and the batch has them
    n0/rows_at u32 [sent]                            where the batch has the rows that come
    n0/kept i64 [k], n0/kept_in u32 [k]              which of those to keep, and in which slots

Messages of a stream arrive in the order in which they took room in its channel, whatever the order in which they are
written. A row is known once the message with it has been written, which had its room before; and a slot is pinned from
the time at which a batch is told to read it until that batch is written, so that what overwrites it has its room later.
A client takes in all messages of its stream, those that its trainer no longer wants included. Ids of nodes and edges
come as int32 where they fit, and are int64 again when the message is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.channel.message import Message, MessageKind, MessageLayout
from glt.data.arrays import as_numpy, pooled_empty
from glt.data.feature import Feature
from glt.data.packing import Packing
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.row_lookup import SLOT_BYTES, empty_rows, num_slots_of
from glt.errors import MessageError

_PARTS = ("slots", "slots_at", "rows_at", "kept", "kept_in")
_ROW_BYTES = 256  # shorter rows count as so long: the sampler has 19 bytes for each, and they are cheap to send
MOST_BYTES = 1 << 30  # of a stream's rows: more are not kept, whatever the client has room for


class ClientRows:
    """Which rows of the nodes of one type the client has. It keeps the rows of all tables of a node, or none."""

    def __init__(self, node_type: int, tables: Mapping[str, Feature], num_slots: int) -> None:
        self.node_type, self.names = node_type, list(tables)
        self._packings = {name: asdict(each.packing) for name, each in tables.items() if each.packing is not None}
        self.slots = _core.SlotCache(num_slots)

    def split(self, ids: np.ndarray) -> RowsToSend:
        """Sorts the nodes of a batch, each there once, into those with a row at the client and those to send."""
        return RowsToSend(self, ids)

    def to_json(self) -> dict[str, Any]:
        """What the client is told before the first message."""
        told = {"type": self.node_type, "names": self.names, "num_slots": self.slots.num_slots}
        return told | {"packings": self._packings}


class RowsToSend:
    """Of one batch: the ``ids`` whose rows are sent, and what the message says of the others."""

    def __init__(self, client: ClientRows, ids: np.ndarray) -> None:
        at = np.arange(len(ids), dtype=np.uint32)
        self._pins, slots, slots_at, self.ids, rows_at = client.slots.look_up(ids, at)
        self._coming, kept, kept_in = client.slots.admit(self.ids)
        self._arrays = dict(zip(_PARTS, (slots, slots_at, rows_at, kept, kept_in), strict=True))
        self._prefix = f"n{client.node_type}/"
        self.num_known = len(slots)

    @property
    def specs(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        tensors = {name: torch.from_numpy(each) for name, each in self._arrays.items()}
        return {self._prefix + name: (each.dtype, tuple(each.shape)) for name, each in tensors.items()}

    def write(self, out: Mapping[str, Tensor]) -> None:
        for name, each in self._arrays.items():
            out[self._prefix + name].numpy()[:] = each

    def done(self) -> None:
        """The message is written: later ones may count on its rows, and overwrite what it reads."""
        self._coming.written()
        del self._pins


def client_rows(dataset: DistDataset, budget_bytes: int) -> list[ClientRows | None]:
    """What a client with room for so many bytes of rows may keep, by node type; None where there are no tables."""
    counts = [n if tables else 0 for n, tables in zip(dataset.num_nodes_of, dataset.own.node_tables, strict=True)]
    slots = num_slots_of(dataset.own.node_specs, counts, min(budget_bytes, MOST_BYTES), _ROW_BYTES)
    return [
        ClientRows(t, tables, num_slots) if num_slots else None
        for t, (tables, num_slots) in enumerate(zip(dataset.own.node_tables, slots, strict=True))
    ]


def remembered_bytes(cache_bytes: int) -> int:
    """What samplers take at most to remember which rows a client has, by its room for rows: a thirteenth."""
    return cache_bytes * SLOT_BYTES // _ROW_BYTES


class KeptRows:
    """The client's rows of one stream.

    Args:
        told: :meth:`ClientRows.to_json` of each type of which it keeps rows.
        most_bytes: Memory for them, which is taken as rows come.
    """

    def __init__(self, told: Sequence[Mapping[str, Any]], most_bytes: int) -> None:
        self._told, self._left_bytes = told, most_bytes
        self._tables: dict[str, Tensor] = {}
        self.num_known = 0

    def complete(self, message: Message) -> Message:
        """The message with the rows of all nodes, in one piece again. Called with each message of the stream in turn;
        raises MessageError if one asks for what is not here."""
        if message.kind is not MessageKind.BATCH:
            return message
        try:
            return self._complete(message)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise MessageError(f"a batch does not fit to the rows that were kept: {error}") from error

    def forget(self) -> None:
        """Gives the memory back: no message comes any more."""
        self._tables.clear()

    def _complete(self, message: Message) -> Message:
        sent = message.tensors
        parts = [{part: sent.pop(f"n{each['type']}/{part}").numpy() for part in _PARTS} for each in self._told]
        specs: dict[str, tuple[torch.dtype, Sequence[int]]] = {
            n: (_whole_dtype(n, t), t.shape) for n, t in sent.items()
        }
        names = [[f"{name}/n{each['type']}" for name in each["names"]] for each in self._told]
        packings = {
            f"{name}/n{each['type']}": _packing_of(packing)
            for each in self._told
            for name, packing in dict(each.get("packings", {})).items()
        }
        for those, part in zip(names, parts, strict=True):
            num_nodes = len(part["slots"]) + len(part["rows_at"])
            for name in those:
                packing = packings.get(name)
                dtype, shape = sent[name].dtype, tuple(sent[name].shape[1:])
                if packing is not None:
                    if (dtype, shape) != (torch.uint8, (packing.row_bytes,)):
                        raise ValueError(f"rows of {name} are {dtype} {list(shape)}: they are packed as {packing}")
                    dtype, shape = torch.float32, packing.row_shape
                specs[name] = (dtype, (num_nodes, *shape))
        layout = MessageLayout(specs)
        buffer = pooled_empty((layout.nbytes,), torch.uint8)
        whole = layout.tensors(buffer)
        for each, those, part in zip(self._told, names, parts, strict=True):
            self.num_known += len(part["slots"])
            for name in those:
                table = as_numpy(self._table(name, sent[name], int(each["num_slots"])))
                rows = as_numpy(sent.pop(name))
                known = table, part["slots"], part["slots_at"], None, 0
                packing = packings.get(name)
                sources: list[Any] = [known, (rows, None, part["rows_at"], None, 0)]
                _core.gather_from(sources, as_numpy(whole[name]), None if packing is None else packing.native)
                _core.gather_rows(rows, part["kept"], table, None, part["kept_in"])
        for name, tensor in sent.items():
            as_numpy(whole[name])[...] = as_numpy(tensor)  # not torch's copy, which may start threads of its own
        return Message(message.kind, message.loader, message.epoch, message.index, whole, buffer)

    def _table(self, name: str, rows: Tensor, num_slots: int) -> Tensor:
        if name not in self._tables:
            table = empty_rows((num_slots, *rows.shape[1:]), rows.dtype)
            self._left_bytes -= table.nbytes
            if self._left_bytes < 0:
                raise ValueError(f"{num_slots} rows of {name}: {-self._left_bytes} bytes more than cache_memory_budget")
            self._tables[name] = table
        return self._tables[name]


def _packing_of(told: Mapping[str, Any]) -> Packing:
    """Raises TypeError, LookupError or ValueError of what is none."""
    sizes = tuple(told["row_shape"])
    if any(type(size) is not int or size < 0 for size in sizes):
        raise ValueError(f"row_shape = {sizes}: expected sizes")
    return Packing.of(told["store_dtype"], sizes)


def _whole_dtype(name: str, tensor: Tensor) -> torch.dtype:
    is_narrow = tensor.dtype == torch.int32 and name.rpartition("/")[0] in ("n_id", "e_id", "edge_index")
    return torch.int64 if is_narrow else tensor.dtype
