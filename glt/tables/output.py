"""What a build writes: Parquet files of a fixed number of rows, whose bytes depend on the rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet

ROWS_PER_FILE: Final = 1 << 22
_ROWS_PER_GROUP: Final = 1 << 17


class Shards:
    """``part-00000.parquet``, ``part-00001.parquet``, ... in a new folder: rows in the order in which they come."""

    def __init__(self, folder: Path, fields: Sequence[pa.Field]) -> None:
        folder.mkdir(parents=True)
        self._folder, self._schema = folder, pa.schema(fields)
        self._writer: Any = None
        self._held: list[pa.RecordBatch] = []
        self._num_held = self.num_rows = 0

    def add(self, columns: dict[str, pa.Array]) -> None:
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        self._held.append(batch)
        self._num_held += batch.num_rows
        while self._num_held >= _ROWS_PER_GROUP:
            self._write(_ROWS_PER_GROUP)

    def close(self) -> None:
        if self._num_held or self._writer is None:  # of no rows there is a file too
            self._write(self._num_held)
        self._end_file()

    def _write(self, num_rows: int) -> None:
        table = pa.Table.from_batches(self._held, self._schema)
        if self.num_rows % ROWS_PER_FILE == 0:
            self._end_file()
            path = self._folder / f"part-{self.num_rows // ROWS_PER_FILE:05d}.parquet"
            self._writer = pa.parquet.ParquetWriter(path, self._schema, compression="zstd", use_dictionary=False)
        # Copied: else what is held would be columns of many pieces, and pieces would be pages.
        self._writer.write_table(table.slice(0, num_rows).combine_chunks(), row_group_size=_ROWS_PER_GROUP)
        rest = table.slice(num_rows)
        self._held, self._num_held, self.num_rows = rest.to_batches(), rest.num_rows, self.num_rows + num_rows

    def _end_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def read_shards(folder: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a folder again, in order."""
    for path in sorted(folder.glob("part-*.parquet")):
        with pa.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(1 << 17, columns=list(columns))
