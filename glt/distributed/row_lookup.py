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
from glt.distributed.node_cache import NodeCache
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
        cache: Copies that the partition here has of others' rows.
        cached: Rows of them, and where in the batch they go.
        remote: Partition elsewhere, ids, where in the batch their rows go, and of which tables: of nodes in the cache
            only those that it lacks.
        replies: Their answers, and where in the batch the rows go.
    """

    kind: str
    type: int
    names: tuple[str, ...]
    specs: Specs
    local: list[tuple[LocalPartition, np.ndarray, np.ndarray | None]] = field(default_factory=list)
    cache: NodeCache | None = None
    cached: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    remote: list[tuple[int, np.ndarray, np.ndarray, tuple[str, ...]]] = field(default_factory=list)
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
        cache = data.own.node_caches[type_] if kind == "node" else None
        if cache is not None and not cache.tables.keys().isdisjoint(tables):
            self.cache = cache
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
                self._ask(part, grouped[group], positions[group])
        return self

    def _ask(self, part: int, ids: np.ndarray, positions: np.ndarray) -> None:
        """Leaves to a partition elsewhere what the cache does not have."""
        if self.cache is not None:
            rows, at, rest, rest_at = self.cache.index.split(ids, positions)
            if len(rows):
                self.cached.append((rows, at))
                lacking = tuple(name for name in self.names if name not in self.cache.tables)
                if lacking:
                    inside = np.isin(positions, at, assume_unique=True)
                    self.remote.append((part, ids[inside], positions[inside], lacking))
            ids, positions = rest, rest_at
        if len(ids):
            self.remote.append((part, ids, positions, self.names))

    @property
    def num_remote(self) -> int:
        """Ids that partitions elsewhere are asked for, those apart of which the cache has some tables."""
        return sum(len(ids) for _, ids, _, names in self.remote if names == self.names)

    @property
    def num_cached(self) -> int:
        """Ids of partitions elsewhere whose rows the cache has."""
        return sum(len(rows) for rows, _ in self.cached)

    def requests(self) -> list[tuple[int, np.ndarray, RowsRequest]]:
        """What to ask of which partition, and where in the batch the rows go."""
        return [
            (part, positions, RowsRequest(self.kind, self.type, torch.from_numpy(ids), names))
            for part, ids, positions, names in self.remote
        ]

    def gather_local(self, out: Mapping[str, Tensor]) -> None:
        """Writes the rows that are here, copies of others' among them, into the tensors of the message."""
        for partition, ids, positions in self.local:
            where = None if positions is None else torch.from_numpy(positions)
            tables = partition.tables(self.kind, self.type)
            for name in self.names:
                into = out[in_message(name, self.kind, self.type)]
                tables[name].gather(torch.from_numpy(ids), into, positions=where)
        if self.cache is not None:
            for rows, positions in self.cached:
                for name in self.names:
                    if name in self.cache.tables:
                        into = out[in_message(name, self.kind, self.type)]
                        at = torch.from_numpy(positions)
                        self.cache.tables[name].gather(torch.from_numpy(rows), into, positions=at)

    def scatter(self, rows: Mapping[str, Tensor], positions: np.ndarray, out: Mapping[str, Tensor]) -> None:
        """Writes what a partition answered into the tensors of the message."""
        for name, table in rows.items():
            into = as_numpy(out[in_message(name, self.kind, self.type)])
            _core.gather_rows(as_numpy(table), None, into, None, positions)


def in_message(name: str, kind: str, type_: int) -> str:
    """What an attribute of a type of nodes or edges is called in a message; see :mod:`glt.distributed.collate`."""
    return f"{name}/{kind[0]}{type_}"
