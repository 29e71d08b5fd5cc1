"""What a build writes: Parquet files of a fixed number of rows, whose bytes depend on the rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet

ROWS_PER_FILE: Final = 1 << 22
_ROWS_PER_GROUP: Final = 1 << 17  # of narrow rows
_GROUP_BYTES: Final = 64 << 20  # about, of wide ones


class Shards:
    """``part-00000.parquet``, ``part-00001.parquet``, ... in a folder: rows in the order in which they come. A writer
    of some of the files says how many rows are ``before`` them, a multiple of :data:`ROWS_PER_FILE`.

    ``with_ids`` puts the number of a row first, as ``id``."""

    def __init__(self, folder: Path, fields: Sequence[pa.Field], with_ids: bool = False, before: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._given, self._with_ids = folder, pa.schema(fields), with_ids
        self._schema = pa.schema([*([pa.field("id", pa.int64())] if with_ids else []), *fields])
        self._group_rows = _rows_per_group(self._given)
        self._writer: Any = None
        self._held: list[pa.RecordBatch] = []
        self._num_held, self.num_rows = 0, before

    def add(self, columns: dict[str, pa.Array]) -> None:
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._given.names], schema=self._given)
        self._held.append(batch)
        self._num_held += batch.num_rows
        while self._num_held >= self._group_rows:
            self._write(self._group_rows)

    def close(self) -> None:
        if self._num_held or self._writer is None:  # of no rows there is a file too
            self._write(self._num_held)
        self._end_file()

    def _write(self, num_rows: int) -> None:
        table = pa.Table.from_batches(self._held, self._given)
        if self.num_rows % ROWS_PER_FILE == 0:
            self._end_file()
            path = self._folder / f"part-{self.num_rows // ROWS_PER_FILE:05d}.parquet"
            self._writer = pa.parquet.ParquetWriter(path, self._schema, compression="zstd", use_dictionary=False)
        # Copied: else what is held would be columns of many pieces, and pieces would be pages.
        group = table.slice(0, num_rows).combine_chunks()
        if self._with_ids:
            group = group.add_column(0, "id", pa.array(np.arange(self.num_rows, self.num_rows + num_rows)))
        self._writer.write_table(group, row_group_size=self._group_rows)
        rest = table.slice(num_rows)
        self._held, self._num_held, self.num_rows = rest.to_batches(), rest.num_rows, self.num_rows + num_rows

    def _end_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _rows_per_group(schema: pa.Schema) -> int:
    """A power of 2 that the schema alone decides, so that rows alone decide the bytes of a file."""
    widths = [field.type.list_size * 4 if pa.types.is_fixed_size_list(field.type) else 8 for field in schema]
    return min(_ROWS_PER_GROUP, max(1 << 10, 1 << (_GROUP_BYTES // sum(widths)).bit_length() - 1))


def shards_of(folder: Path) -> list[Path]:
    """The files of a folder, in the order of their rows."""
    return sorted(folder.glob("part-*.parquet"))


def num_rows_of(path: Path) -> int:
    return int(pa.parquet.read_metadata(path).num_rows)


def read_shards(
    paths: Sequence[Path], fields: Sequence[pa.Field], first: int = 0, last: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows ``first`` to ``last`` of files that :class:`Shards` wrote, or an engine, as columns of these types."""
    schema, at = pa.schema(fields), 0
    for path in paths:
        with pa.parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                low, high = max(first - at, 0), size if last is None else min(last - at, size)
                at += size
                if low >= high:
                    continue
                passed = 0
                for batch in file.iter_batches(_ROWS_PER_GROUP, row_groups=[group], columns=schema.names):
                    begin, end = max(low - passed, 0), min(high - passed, batch.num_rows)
                    if begin < end:
                        yield as_written(batch.slice(begin, end - begin), schema)
                    passed += batch.num_rows


def as_written(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, which an engine may have given types that are nearly the same."""
    return pa.RecordBatch.from_arrays([_cast(batch.column(f.name), f.type) for f in schema], schema=schema)


def _cast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if column.type == type_:
        return column
    if pa.types.is_fixed_size_list(type_) and column.null_count == 0:
        return pa.FixedSizeListArray.from_arrays(column.flatten().cast(type_.value_type), type_.list_size)
    return column.cast(type_)
