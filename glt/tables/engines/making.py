"""What becomes of the rows that an engine returns, on their way to the files of a graph; see
:class:`~glt.tables.engines.plan.Make`. What is written is counted here, for the report too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt.errors import TableError
from glt.tables.columns.rows import Fits, Fitted, columns_of, where_of
from glt.tables.descriptions.description import EdgeTable, NodeTable
from glt.tables.engines.output import as_written, read_shards, shards_of
from glt.tables.engines.plan import HAS_ROW, HASH, RANK
from glt.tables.engines.profile import Profile

_PIECE_BYTES: Final = 32 << 20
_LARGEST: Final = float(np.finfo(np.float32).max)
END_FIELDS = (pa.field("src", pa.int64()), pa.field("dst", pa.int64()))


@dataclass
class Keys:
    """Keys in the order of their new ids."""

    fields: Sequence[pa.Field]
    num_rows: int = 0
    num_own: int = 0  # that the node type's own table has, not only edges

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, pa.Array]]:
        for batch in batches:
            self.num_rows += batch.num_rows
            self.num_own += int(np.count_nonzero(np.asarray(batch.column(RANK)) == 0))
            kept = as_written(batch, pa.schema(self.fields))
            yield dict(zip(kept.schema.names, kept.columns, strict=True))

    def merge(self, other: Keys) -> None:
        self.num_rows += other.num_rows
        self.num_own += other.num_own


@dataclass
class Nodes:
    """A row for each id. ``old`` has the rows of the first ``num_old`` ids, which are kept where no new row comes."""

    table: NodeTable
    fitted: Fitted
    old: Path | None = None
    num_old: int = 0
    num_replaced: int = 0
    profile: Profile = field(default_factory=Profile)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, pa.Array]]:
        for batch in batches:
            for piece in _pieces(batch, self.fitted):
                for part in self._parts(piece):
                    self.profile.add(part)
                    yield part

    def merge(self, other: Nodes) -> None:
        self.num_replaced += other.num_replaced
        self.profile.merge(other.profile)

    def _parts(self, batch: pa.RecordBatch) -> Iterator[dict[str, pa.Array]]:
        first = int(batch.column("id")[0].as_py()) if batch.num_rows else 0
        num_old = max(0, min(self.num_old - first, batch.num_rows))
        if num_old:
            yield self._replaced(batch.slice(0, num_old), first)
        if num_old < batch.num_rows:
            new = batch.slice(num_old)
            if not pc.all(new.column(HAS_ROW)).as_py():
                _require_values(self.table, new)
            yield self.fitted(new)

    def _replaced(self, batch: pa.RecordBatch, first: int) -> dict[str, pa.Array]:
        """The old rows, except for those that have come again."""
        schema = pa.schema(self.fitted.schema)
        paths = shards_of(self.old) if self.old is not None else []
        old = pa.Table.from_batches(read_shards(paths, self.fitted.schema, first, first + batch.num_rows), schema)
        has_row = np.asarray(batch.column(HAS_ROW))
        self.num_replaced += int(np.count_nonzero(has_row))
        if has_row.any():
            again = pa.table(self.fitted(batch.filter(pa.array(has_row))), schema=schema)
            at = np.where(has_row, len(old) + np.cumsum(has_row) - 1, np.arange(len(old)))
            old = pa.concat_tables([old, again]).take(pa.array(at))
        return {name: _whole(old.column(name)) for name in schema.names}


@dataclass
class Edges:
    """Edges in their order, one of those between the same nodes unless ``duplicates`` is ``'keep'``."""

    table: EdgeTable
    fitted: Fitted | None  # None: the rows of an earlier run come again
    fields: Sequence[pa.Field]
    duplicates: str = "keep"
    num_joined: int = 0
    num_rows: int = 0
    profile: Profile = field(default_factory=Profile)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, pa.Array]]:
        ordered = in_order(self._counted(batches))
        for batch in ordered if self.duplicates == "keep" else deduplicated(ordered, self.table, self.duplicates):
            self.num_rows += batch.num_rows
            for part in self._parts(batch):
                self.profile.add(part)
                yield part

    def merge(self, other: Edges) -> None:
        self.num_joined += other.num_joined
        self.num_rows += other.num_rows
        self.profile.merge(other.profile)

    def _parts(self, batch: pa.RecordBatch) -> Iterator[dict[str, pa.Array]]:
        if self.fitted is None:
            again = as_written(batch, pa.schema(self.fields))
            yield dict(zip(again.schema.names, again.columns, strict=True))
            return
        for piece in _pieces(batch, self.fitted):
            yield {"src": piece.column("src"), "dst": piece.column("dst"), **self.fitted(piece)}

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.num_joined += batch.num_rows
            yield batch


@dataclass
class EdgeFits:
    """Fits on one edge of those between the same nodes; what it writes is of no use."""

    table: EdgeTable
    fits: Fits

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, pa.Array]]:
        for batch in deduplicated(in_order(batches), self.table, self.table.duplicates):
            self.fits.add(batch)
            yield {"src": batch.column("src"), "dst": batch.column("dst")}

    def merge(self, other: EdgeFits) -> None:
        self.fits.merge(other.fits)


def _pieces(batch: pa.RecordBatch, fitted: Fitted) -> Iterator[pa.RecordBatch]:
    """Rows of which few columns may become many numbers."""
    num_rows = max(1, _PIECE_BYTES // (4 * max(1, len(fitted.feature_names))))
    for begin in range(0, max(1, batch.num_rows), num_rows):
        yield batch.slice(begin, num_rows)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _require_values(table: NodeTable, batch: pa.RecordBatch) -> None:
    """Nodes that edges alone name have no row: raises TableError unless all columns may be without a value."""
    for column in columns_of(table):
        if not column.is_nullable and batch.column(column.name).null_count:
            raise TableError(
                f"{where_of(table)}: nodes that edges added have no {column.column!r}: expected missing = 'indicator' "
                "of its features, and no time; or missing = 'drop' of the edges"
            )


def in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Edges that are sorted by destination, source and time, sorted by all else where these are equal."""
    for batch, begins in _grouped(batches, ("dst", "src", "time")):
        others = [name for name in batch.schema.names if name not in ("dst", "src", "time", HASH)]
        if len(begins) == batch.num_rows or not others:
            yield batch
            continue
        sizes = np.diff(begins, append=batch.num_rows)
        group = np.repeat(np.arange(len(begins)), sizes)
        tied = np.flatnonzero(sizes[group] > 1)
        keys = {"group": pa.array(group[tied])}
        for name in others:
            column = batch.column(name).take(pa.array(tied))
            keys |= _plain(column, name) if pa.types.is_nested(column.type) else {name: column}
        order = pc.sort_indices(pa.table(keys), [(name, "ascending") for name in keys])
        at = np.arange(batch.num_rows)
        at[tied] = tied[np.asarray(order)]
        yield batch.take(pa.array(at))


def _plain(column: pa.Array, name: str) -> dict[str, pa.Array]:
    """The numbers of each list, as columns; lists are of one length, or null."""
    is_valid = pc.is_valid(column)
    length = int(pc.max(pc.list_value_length(column)).as_py() or 0)
    return {name: is_valid} | {f"{name}.{i}": pc.list_element(column, i) for i in range(length)}


def deduplicated(batches: Iterable[pa.RecordBatch], table: EdgeTable, how: str) -> Iterator[pa.RecordBatch]:
    """Edges in their order, one of those between the same nodes: the ``last``, or the ``sum`` of weights and numbers
    with the last time."""
    for batch, begins in _grouped(batches, ("dst", "src")):
        one_each = _one_each(batch, begins, how)
        for name, column in zip(one_each.schema.names, one_each.columns, strict=True) if how == "sum" else ():
            if pa.types.is_floating(column.type):
                at = pc.index(pc.greater(pc.abs(column), _LARGEST), True).as_py()
                if at >= 0:
                    given = {each.name: each.column for each in columns_of(table)}.get(name, name)
                    raise TableError(
                        f"{where_of(table)}: column {given!r}: duplicates = 'sum' of the edges from id "
                        f"{one_each.column('src')[at]} to id {one_each.column('dst')[at]} is {column[at].as_py():g}: "
                        f"expected at most {_LARGEST:.3g} (float32); scale the column, or take duplicates = 'last'"
                    )
        yield one_each


def _grouped(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Batches that end where the values of these columns do, with the rows at which other values begin."""
    held: pa.RecordBatch | None = None
    for given in batches:
        batch = given if held is None else pa.concat_batches([held, given])
        if not batch.num_rows:
            continue
        is_other = np.zeros(batch.num_rows - 1, bool)
        for name in names:
            if name in batch.schema.names:
                values = np.asarray(pc.fill_null(batch.column(name), -(2**63)))
                is_other |= values[1:] != values[:-1]
        begins = np.concatenate([[0], np.flatnonzero(is_other) + 1])
        held = batch.slice(int(begins[-1]))  # the next batch may go on with the same values
        if len(begins) > 1:
            yield batch.slice(0, int(begins[-1])), begins[:-1]
    if held is not None:
        yield held, np.zeros(1, np.int64)


def _one_each(batch: pa.RecordBatch, begins: np.ndarray, how: str) -> pa.RecordBatch:
    last = batch.take(pa.array(np.append(begins[1:], batch.num_rows) - 1))
    if how == "last":
        return last
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == "weight" or name.startswith("feature"):  # nulls alone are null
            total = np.add.reduceat(np.asarray(pc.fill_null(column, 0.0)), begins)
            has_value = np.logical_or.reduceat(np.asarray(pc.is_valid(column)), begins)
            columns.append(pa.array(total, mask=~has_value))
        else:
            columns.append(last.column(name))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
