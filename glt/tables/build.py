"""From a description of tables to a graph with dense ids: keys are numbered, features fitted and applied, edges joined.

The result is a directory: ``graph.json``, a description that ``glt partition`` reads; ``nodes/TYPE`` and ``edges/TYPE``,
Parquet in the order of ids; ``ids/TYPE.keys``, raw keys to ids and back; ``transforms.json``, what was fitted;
``build.json``, what was read and counted. It is written beside its place and renamed when it is whole.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

import glt
from glt._checks import naming_the_limit, parse_size
from glt.errors import TableError
from glt.tables.description import Description, EdgeTable, NodeTable, reversed_type
from glt.tables.duck import DuckDB
from glt.tables.output import Shards
from glt.tables.plan import DST, KEY, SRC, Plan, Rows
from glt.tables.rows import Fits, Fitted, columns_of, deduplicated, where_of
from glt.tables.sources import Column, Source, key_type

logger = logging.getLogger(__name__)

_OWN_BYTES: Final = 384 << 20  # of this process, beside the engine's: batches, Parquet's buffers
_Table = TypeVar("_Table", NodeTable, EdgeTable)


@dataclass
class Counts:
    """What was read of a table, and what became of it."""

    num_read: int = 0
    num_kept: int = 0
    num_dropped: int = 0  # edges of which an end is missing
    num_merged: int = 0  # edges between the same nodes as another
    num_added: int = 0  # nodes that only edges name


@dataclass
class Build:
    """A build that is under way: what it reads, and where it writes."""

    description: Description
    out: Path
    plan: Plan
    nodes: list[Source | None]
    edges: list[Source]
    key_types: list[tuple[str, ...]]
    is_shown: bool
    counts: dict[str, Counts] = field(default_factory=dict)
    fitted: dict[str, Fitted] = field(default_factory=dict)
    num_nodes: list[int] = field(default_factory=list)

    def run(self) -> None:
        for at, table in enumerate(self.description.node_types):
            self._number(at, table)
        for at, table in enumerate(self.description.node_types):
            self._write_nodes(at, table)
        for source, table in zip(self.edges, self.description.edge_types, strict=True):
            self._write_edges(source, table)
        for source in (*self.nodes, *self.edges):
            if source is not None:
                source.require_unchanged()

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _number(self, at: int, table: NodeTable) -> None:
        """Gives its keys ids: those of its own table first, then those that edges add."""
        counts = self.counts[where_of(table)] = Counts()
        types = {"int": pa.int64(), "text": pa.string()}
        self.plan.begin(at, pa.schema([pa.field(f"{KEY}{i}", types[t]) for i, t in enumerate(self.key_types[at])]))
        source = self.nodes[at]
        if source is not None:
            counts.num_read = self.plan.number_keys(at, source, KEY)
            if self.plan.num_keys(at) < counts.num_read:
                self._refuse_repeated(source, table)
        own = self.plan.num_keys(at)
        for edges, edge_table in zip(self.edges, self.description.edge_types, strict=True):
            for end, prefix in ((edge_table.type[0], SRC), (edge_table.type[2], DST)):
                if end == table.name and (source is None or edge_table.missing == "add"):
                    self.plan.number_keys(at, edges, prefix)
        self.num_nodes.append(self.plan.num_keys(at))
        counts.num_kept, counts.num_added = self.num_nodes[at], self.num_nodes[at] - own

    def _write_nodes(self, at: int, table: NodeTable) -> None:
        self._write_keys(at, table)
        source = self.nodes[at]
        if source is None:
            return
        rows = self._rows(source, None, table)
        fitted = self._fit(table, lambda: self.plan.nodes(at, dataclasses.replace(rows), ordered=False))
        if not fitted.schema:
            return
        shards = Shards(self.out / "nodes" / table.name, fitted.schema)
        for batch in self._shown(self.plan.nodes(at, rows, ordered=True), f"{table.name}: rows", self.num_nodes[at]):
            if self.counts[where_of(table)].num_added:
                _require_values(table, batch)
            shards.add(fitted(batch))
        shards.close()

    def _write_keys(self, at: int, table: NodeTable) -> None:
        fields = [pa.field(f"{KEY}{i}", {"int": pa.int64(), "text": pa.string()}[t]) for i, t in enumerate(self.key_types[at])]
        shards = Shards(self.out / "keys" / table.name, fields)
        for batch in self.plan.keys(at):
            shards.add(dict(zip(batch.schema.names, batch.columns, strict=True)))
        shards.close()

    def _refuse_repeated(self, source: Source, table: NodeTable) -> None:
        found = self.plan.repeated(source, len(table.key))
        shown = ", ".join(f"{_shown_key(row[:-1])} ({row[-1]} times)" for row in found)
        raise TableError(
            f"{where_of(table)}: key {list(table.key)} comes more than once: {shown}{_first_places(source, KEY, found[0][:-1])}: "
            "expected a row for each node; drop the others, or make them a node type of their own"
        )

    # -- edges -----------------------------------------------------------------------------------------------------

    def _write_edges(self, source: Source, table: EdgeTable) -> None:
        names = [each.name for each in self.description.node_types]
        ends = names.index(table.type[0]), names.index(table.type[2])
        counts = self.counts[where_of(table)] = Counts()
        is_kept = table.duplicates == "keep"

        def edges(rows: Rows, ordered: bool) -> Iterator[pa.RecordBatch]:
            found = self.plan.edges(ends, rows, ordered or not is_kept)
            return found if is_kept else deduplicated(found, table.duplicates)

        fitted = self._fit(table, lambda: edges(self._rows(source, None, table), False))
        self._write_edge_type(table.type, edges, self._rows(source, None, table), table, fitted, counts)
        missing = counts.num_read - counts.num_kept
        if is_kept and missing or not is_kept and self._num_unknown(source, ends):
            self._refuse_unknown(source, table, ends, missing)
        # The way back is joined anew: it is in another order.
        if table.reverse is not None:
            swapped = dataclasses.replace(source, columns=tuple(_swapped(each) for each in source.columns))
            ...

    def _write_edge_type(self, type_, edges, rows, table, fitted, counts) -> None:
        folder = self.out / "edges" / "__".join(type_)
        shards = Shards(folder, [pa.field("src", pa.int64()), pa.field("dst", pa.int64()), *fitted.schema])
        for batch in self._shown(edges(rows, True), f"{'__'.join(type_)}: rows", None):
            shards.add({"src": batch.column("src"), "dst": batch.column("dst"), **fitted(batch)})
        shards.close()
        counts.num_read, counts.num_kept = rows.num_rows, shards.num_rows
