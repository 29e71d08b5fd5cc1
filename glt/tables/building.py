"""From tables to the rows of a graph: keys are numbered, features fitted and applied, edges joined, and all written in
the order of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from tqdm import tqdm

from glt.errors import TableError
from glt.tables.description import Description, EdgeTable, NodeTable, reversed_type
from glt.tables.output import Shards
from glt.tables.plan import DST, KEY, SRC, Plan, Rows
from glt.tables.rows import Fits, Fitted, columns_of, deduplicated, where_of
from glt.tables.sources import Column, Source

_TYPES: Final = {"int": pa.int64(), "text": pa.string()}
_END_FIELDS: Final = (pa.field("src", pa.int64()), pa.field("dst", pa.int64()))


@dataclass
class Counts:
    """What was read of a table, and what became of it."""

    num_read: int = 0
    num_kept: int = 0
    num_dropped: int = 0  # edges of which an end is missing
    num_merged: int = 0  # edges between the same nodes as another
    num_added: int = 0  # nodes that edges alone name


@dataclass
class Tables:
    """A description with its files: found, looked into, and not read yet."""

    description: Description
    nodes: list[Source | None]
    edges: list[Source]
    key_types: list[tuple[str, ...]]  # of each node type, "int" or "text" by column

    @classmethod
    def of(cls, description: Description) -> Tables:
        """Finds the files, and what types keys have; raises TableError if a file or a column is missing."""
        base = description.base
        nodes = [None if t.files is None else Source.of(where_of(t), t.files, base) for t in description.node_types]
        edges = [Source.of(where_of(t), t.files, base) for t in description.edge_types]
        found = cls(description, nodes, edges, [])
        found.key_types = [found._types_of_key(at) for at in range(len(nodes))]
        for at, table in enumerate(description.node_types):
            source = nodes[at]
            if source is not None:
                keys = _key_columns(KEY, table.key, found.key_types[at])
                nodes[at] = replace(source, columns=(*keys, *columns_of(table)))
        for at, (edge_source, edge_table) in enumerate(zip(edges, description.edge_types, strict=True)):
            src, dst = (found.key_types[end] for end in found.ends(edge_table))
            ends = (*_key_columns(SRC, edge_table.src, src), *_key_columns(DST, edge_table.dst, dst))
            edges[at] = replace(edge_source, columns=(*ends, *columns_of(edge_table)))
        return found

    def ends(self, table: EdgeTable) -> tuple[int, int]:
        """The numbers of its node types."""
        names = [each.name for each in self.description.node_types]
        return names.index(table.type[0]), names.index(table.type[2])

    @property
    def sources(self) -> list[Source]:
        return [each for each in (*self.nodes, *self.edges) if each is not None]

    def _types_of_key(self, at: int) -> tuple[str, ...]:
        """Integers, if all tables of the key have them; else texts."""
        table = self.description.node_types[at]
        uses = [(self.nodes[at], table.key)] if self.nodes[at] is not None else []
        for source, edges in zip(self.edges, self.description.edge_types, strict=True):
            uses += [
                (source, columns)
                for end, columns in zip(self.ends(edges), (edges.src, edges.dst), strict=True)
                if end == at
            ]
        if not uses:
            raise TableError(f"{where_of(table)} has no files, and no edges name its nodes: expected one or the other")
        if table.key_type is not None:
            return (table.key_type,) * len(uses[0][1])
        found = [[source.key_type(column) for column in columns] for source, columns in uses if source is not None]
        return tuple("int" if set(kinds) == {"int"} else "text" for kinds in zip(*found, strict=True))


def _key_columns(prefix: str, columns: Sequence[str], types: Sequence[str]) -> list[Column]:
    return [Column(f"{prefix}{i}", each, types[i]) for i, each in enumerate(columns)]


@dataclass
class Build:
    """A build that is under way: what it reads, and where it writes."""

    tables: Tables
    plan: Plan
    out: Path
    is_shown: bool = False
    counts: dict[str, Counts] = field(default_factory=dict)
    fitted: dict[str, Fitted] = field(default_factory=dict)
    num_nodes: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Reads, numbers, fits, joins and writes all there is."""
        description = self.tables.description
        for at, table in enumerate(description.node_types):
            self._number(at, table)
        for at, table in enumerate(description.node_types):
            self._write_nodes(at, table)
        for source, edges in zip(self.tables.edges, description.edge_types, strict=True):
            self._write_edges(source, edges)
        for each in self.tables.sources:
            each.require_unchanged()

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _number(self, at: int, table: NodeTable) -> None:
        """Gives its keys ids: those of its own table first, then those that edges add."""
        counts = self.counts[where_of(table)] = Counts()
        self.plan.begin(at, pa.schema(self._key_fields(at)))
        source = self.tables.nodes[at]
        if source is not None:
            counts.num_read = self.plan.number_keys(at, source, KEY)
            if self.plan.num_keys(at) < counts.num_read:
                self._refuse_repeated(source, table)
        own = self.plan.num_keys(at)
        for edges, edge_table in zip(self.tables.edges, self.tables.description.edge_types, strict=True):
            for end, prefix in zip(self.tables.ends(edge_table), (SRC, DST), strict=True):
                if end == at and (source is None or edge_table.missing == "add"):
                    self.plan.number_keys(at, edges, prefix)
        self.num_nodes.append(self.plan.num_keys(at))
        counts.num_kept, counts.num_added = self.num_nodes[at], self.num_nodes[at] - own

    def _write_nodes(self, at: int, table: NodeTable) -> None:
        shards = Shards(self.out / "keys" / table.name, self._key_fields(at))
        for batch in self.plan.keys(at):
            shards.add(dict(zip(batch.schema.names, batch.columns, strict=True)))
        shards.close()
        source = self.tables.nodes[at]
        if source is None or not columns_of(table):
            return
        rows = _rows(source, KEY, table)
        fitted = self._fit(table, lambda: self.plan.nodes(at, replace(rows), ordered=False))
        shards = Shards(self.out / "nodes" / table.name, fitted.schema)
        for batch in self._shown(self.plan.nodes(at, rows, ordered=True), table.name):
            if self.counts[where_of(table)].num_added:
                _require_values(table, batch)
            shards.add(fitted(batch))
        shards.close()

    def _key_fields(self, at: int) -> list[pa.Field]:
        return [pa.field(f"{KEY}{i}", _TYPES[type_]) for i, type_ in enumerate(self.tables.key_types[at])]

    def _refuse_repeated(self, source: Source, table: NodeTable) -> None:
        found = self.plan.repeated(source, len(table.key))
        shown = ", ".join(f"{_shown_key(row[:-1])} ({row[-1]} times)" for row in found)
        place = _first_place(source, KEY, found[0][:-1])
        raise TableError(
            f"{where_of(table)}: key {list(table.key)} comes more than once: {shown}{place}: "
            "expected a row for each node; drop the others, or make them a node type of their own"
        )

    # -- edges -----------------------------------------------------------------------------------------------------

    def _write_edges(self, source: Source, table: EdgeTable) -> None:
        ends = self.tables.ends(table)
        fitted = self._fit(table, lambda: self.plan.edges(ends, _rows(source, None, table), ordered=False))
        self.counts[where_of(table)] = self._write_edge_type(table, table.type, ends, source, fitted)
        if table.reverse is not None:
            turned = replace(source, columns=tuple(map(_turned, source.columns)))
            self._write_edge_type(table, reversed_type(table), ends[::-1], turned, fitted)

    def _write_edge_type(
        self, table: EdgeTable, type_: tuple[str, str, str], ends: tuple[int, int], source: Source, fitted: Fitted
    ) -> Counts:
        """Writes the edges of a type in their order."""
        rows, num_joined = _rows(source, None, table), 0

        def joined() -> Iterator[pa.RecordBatch]:
            nonlocal num_joined
            for batch in self.plan.edges(ends, rows, ordered=True):
                num_joined += batch.num_rows
                yield batch

        name = "__".join(type_)
        shards = Shards(self.out / "edges" / name, [*_END_FIELDS, *fitted.schema])
        found = joined() if table.duplicates == "keep" else deduplicated(joined(), table.duplicates)
        for batch in self._shown(found, name):
            shards.add({"src": batch.column("src"), "dst": batch.column("dst"), **fitted(batch)})
        shards.close()
        dropped = rows.num_rows - num_joined
        if dropped and table.missing == "error":
            raise self._unknown_end(source, table, ends, dropped)
        return Counts(rows.num_rows, shards.num_rows, dropped, num_joined - shards.num_rows)

    def _unknown_end(self, source: Source, table: EdgeTable, ends: tuple[int, int], num_edges: int) -> TableError:
        for end, prefix, columns in ((ends[0], SRC, table.src), (ends[1], DST, table.dst)):
            if found := self.plan.unknown(source, prefix, end):
                shown = ", ".join(_shown_key(row[:-1]) for row in found)
                place, name = _first_place(source, prefix, found[0][:-1]), self.tables.description.node_types[end].name
                return TableError(
                    f"{where_of(table)}: {num_edges} edges end in nodes that there are not: {list(columns)} is "
                    f"{shown}{place}: expected keys of {name!r}; missing = 'drop' leaves such edges out, 'add' makes "
                    "nodes"
                )
        return TableError(f"{where_of(table)}: its files changed while they were read: build again")

    # -- both ------------------------------------------------------------------------------------------------------

    def _fit(self, table: NodeTable | EdgeTable, read: Callable[[], Iterator[pa.RecordBatch]]) -> Fitted:
        """What is fitted on the training rows."""
        fits = Fits(table)
        if fits.needs_rows:
            for batch in self._shown(read(), f"{where_of(table)}: fitting"):
                fits.add(batch)
        fitted = self.fitted[where_of(table)] = fits.finish()
        return fitted

    def _shown(self, batches: Iterator[pa.RecordBatch], what: str) -> Iterator[pa.RecordBatch]:
        with tqdm(desc=what, unit=" rows", unit_scale=True, disable=not self.is_shown, mininterval=0.5) as bar:
            for batch in batches:
                yield batch
                bar.update(batch.num_rows)


def _rows(source: Source, prefix: str | None, table: NodeTable | EdgeTable) -> Rows:
    by_hash = table.split is not None and table.split.ratio is not None
    return Rows(source, prefix, [each.name for each in columns_of(table)], by_hash)


def _turned(column: Column) -> Column:
    """Of the other end."""
    prefix = {SRC: DST, DST: SRC}.get(column.name[:3]) if column.name[3:].isdigit() else None
    return column if prefix is None else replace(column, name=prefix + column.name[3:])


def _shown_key(key: Sequence[Any]) -> str:
    return repr(key[0]) if len(key) == 1 else repr(tuple(key))


def _first_place(source: Source, prefix: str, key: Sequence[Any]) -> str:
    """Where a key comes first, in words; the files are read for it."""
    found = source.find(prefix, key)
    return "" if found is None else f", first in {found[0]}, row {found[1]}"


def _require_values(table: NodeTable, batch: pa.RecordBatch) -> None:
    """Nodes that edges alone name have no row: raises TableError unless all columns may be without a value."""
    for column in columns_of(table):
        if not column.is_nullable and batch.column(column.name).null_count:
            raise TableError(
                f"{where_of(table)}: nodes that edges added have no {column.column!r}: expected missing = 'indicator' "
                "of its features, and no time; or missing = 'drop' of the edges"
            )
