"""Rows of tables for the nodes and edges of a batch: who has them, and how they get into the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import as_numpy
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.local_partition import LocalPartition
from glt.distributed.requests import RowsRequest

Specs = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass
class RowLookup:
    """Ids of one type of nodes or edges and where their rows come from.

    Attributes:
        kind, type: Of what: ``'node'`` or ``'edge'``, and the position of the type.
        names: Of the tables.
        specs: Dtype and shape of each table's rows, by the name in the message.
        local: Partition here, ids, and where in the batch their rows go; None: all, in order.
        remote: The same of partitions elsewhere.
        replies: Their answers, and where in the batch the rows go.
    """

    kind: str
    type: int
    names: tuple[str, ...]
    specs: Specs
    local: list[tuple[LocalPartition, np.ndarray, np.ndarray | None]] = field(default_factory=list)
    remote: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)
    replies: list[tuple[np.ndarray, asyncio.Future[Tensor]]] = field(default_factory=list)

    @classmethod
    def of(
        cls, data: DistDataset, local: Mapping[int, LocalPartition], kind: str, type_: int, ids: np.ndarray,
        table: str | None = None,
    ) -> RowLookup:  # fmt: skip
        """Sorts ids by who has their rows, of one table or of all."""
        tables = data.own.tables(kind, type_)
        if table is not None:
            tables = {table: tables[table]}
        specs: Specs = {
            in_message(name, kind, type_): (table.dtype, (len(ids), *table.row_shape)) for name, table in tables.items()
        }
        self = cls(kind, type_, tuple(tables), specs)
        if not tables:
            return self
        if data.num_partitions == 1:
            self.local.append((data.own, ids, None))
            return self
        book = (data.node_books if kind == "node" else data.edge_books)[type_]
        assert book is not None, "tables of a partition come with a book"
        grouped, positions, bounds = book.group(ids)
        for part in range(data.num_partitions):
            group = slice(bounds[part], bounds[part + 1])
            if group.start == group.stop:
                continue
            if part in local:
                self.local.append((local[part], grouped[group], positions[group]))
            else:
                self.remote.append((part, grouped[group], positions[group]))
        return self

    @property
    def num_remote(self) -> int:
        return sum(len(ids) for _, ids, _ in self.remote)

    def requests(self) -> list[tuple[int, np.ndarray, RowsRequest]]:
        """What to ask of which partition, and where in the batch the rows go."""
        return [
            (part, positions, RowsRequest(self.kind, self.type, torch.from_numpy(ids), self.names))
            for part, ids, positions in self.remote
        ]

    def gather_local(self, out: Mapping[str, Tensor]) -> None:
        """Writes the rows that are here into the tensors of the message."""
        for partition, ids, positions in self.local:
            where = None if positions is None else torch.from_numpy(positions)
            tables = partition.tables(self.kind, self.type)
            for name in self.names:
                into = out[in_message(name, self.kind, self.type)]
                tables[name].gather(torch.from_numpy(ids), into, positions=where)

    def scatter(self, rows: Mapping[str, Tensor], positions: np.ndarray, out: Mapping[str, Tensor]) -> None:
        """Writes what a partition answered into the tensors of the message."""
        for name in self.names:
            into = as_numpy(out[in_message(name, self.kind, self.type)])
            _core.gather_rows(as_numpy(rows[name]), None, into, None, positions)


def in_message(name: str, kind: str, type_: int) -> str:
    """What an attribute of a type of nodes or edges is called in a message; see :mod:`glt.distributed.collate`."""
    return f"{name}/{kind[0]}{type_}"
