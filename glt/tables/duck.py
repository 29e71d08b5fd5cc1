"""The embedded engine: DuckDB, within a limit of memory; what does not fit goes to files beside the output."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from glt.tables.plan import Rows

_BATCH_ROWS = 122_880  # a row group of DuckDB


class DuckDB:
    """Runs a plan in this process; see :class:`glt.tables.plan.Engine`. ``scratch`` is a directory of its own."""

    def __init__(self, scratch: Path, memory_bytes: int, num_threads: int) -> None:
        scratch.mkdir(parents=True)
        self._scratch = scratch
        self._db = duckdb.connect(str(scratch / "tables.duckdb"))
        for setting in (
            f"memory_limit = '{memory_bytes >> 20}MiB'",
            f"temp_directory = '{scratch / 'spilled'}'",
            f"threads = {num_threads}",
            "preserve_insertion_order = true",  # the number of a row in a table of keys is its id
            "enable_progress_bar = false",
        ):
            self._db.execute(f"SET {setting}")

    def load(self, table: str, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._db.register("old", pa.RecordBatchReader.from_batches(schema, batches))
        self._db.execute(f"CREATE TABLE {table}_rows AS SELECT * FROM old")
        self._db.unregister("old")
        self._db.execute(f"CREATE VIEW {table} AS SELECT *, rowid AS id FROM {table}_rows")

    def number(self, table: str, query: str) -> None:
        self._db.execute(f"INSERT INTO {table}_rows {query}")

    def stream(self, query: str) -> Iterator[pa.RecordBatch]:
        yield from self._db.sql(query).to_arrow_reader(_BATCH_ROWS)

    @contextmanager
    def reading(self, given: Mapping[str, Rows]) -> Iterator[None]:
        for name, rows in given.items():
            self._db.register(name, pa.RecordBatchReader.from_batches(rows.schema, rows.batches()))
        try:
            yield
        except duckdb.Error:
            for rows in given.values():
                if rows.error is not None:
                    raise rows.error from None
            raise
        finally:
            for name in given:
                self._db.unregister(name)

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._scratch)
