"""The embedded engine: DuckDB, within a limit of memory; what does not fit goes to files beside the output."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from glt._checks import format_size
from glt._progress import is_on_terminal, progress_bar
from glt.tables.columns.sources import Source
from glt.tables.engines.output import Shards, read_shards, shards_of
from glt.tables.engines.plan import AnyFold, AnyMake, Query, Rows

_BATCH_ROWS: Final = 122_880  # a row group of DuckDB
_LEAST_ROWS: Final = 2048  # its vector
_BATCH_BYTES: Final = 32 << 20


class DuckDB:
    """Runs a plan in this process; see ``plan.Engine``. ``scratch`` is a directory of its own."""

    def __init__(self, scratch: Path, memory_bytes: int, num_threads: int, progress: bool | None = None) -> None:
        scratch.mkdir(parents=True)
        self._scratch, self._is_shown = scratch, is_on_terminal() if progress is None else progress
        self._memory_bytes = memory_bytes
        self._limit = f"{format_size(memory_bytes)} and {num_threads} threads"
        self._db = duckdb.connect(":memory:")  # it has views alone, and a path with "?" would be taken for two
        for setting in (
            f"memory_limit = '{memory_bytes >> 20}MiB'",
            f"temp_directory = {_quoted(scratch / 'spilled')}",
            f"threads = {num_threads}",
            "preserve_insertion_order = false",  # what is in order is sorted
            "enable_progress_bar = false",
        ):
            self._db.execute(f"SET {setting}")

    @contextmanager
    def reading(self, given: Mapping[str, Rows]) -> Iterator[None]:
        for name, rows in given.items():
            batches = self._shown(rows.batches(), f"reading {rows.source.where}", rows.source)
            self._db.register(name, pa.RecordBatchReader.from_batches(rows.schema, batches))
        try:
            yield
        except Exception:
            for rows in given.values():
                if rows.error is not None:
                    raise rows.error from None
            raise
        finally:
            for name in given:
                with suppress(duckdb.ConnectionException):  # of a build that was interrupted it may be closed
                    self._db.unregister(name)

    def view(self, name: str, folder: Path) -> None:
        # What is a pattern to DuckDB is a name here, and a directory above, such as id=3, is no column.
        files = ", ".join(_quoted(re.sub(r"([*?\[])", r"[\1]", str(path))) for path in shards_of(folder))
        source = f"read_parquet([{files}], hive_partitioning = false)"
        self._db.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {source}")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._telling():
            return self._db.sql(query).fetchall()

    def fold(self, query: Query, fold: AnyFold) -> AnyFold:
        with self._stream(query.text) as batches:
            for batch in batches:
                fold.add(batch)
        return fold

    def write(
        self,
        query: Query,
        make: AnyMake,
        folder: Path,
        fields: Sequence[pa.Field],
        before: Path | None = None,
        with_ids: bool = False,
    ) -> AnyMake:
        shards = Shards(folder, fields, with_ids)
        for batch in read_shards(shards_of(before), fields) if before is not None else ():
            shards.add(dict(zip(batch.schema.names, batch.columns, strict=True)))
        with self._stream(query.ordered) as batches:
            for columns in make(self._shown(batches, f"writing {folder.parent.name}/{folder.name}")):
                shards.add(columns)
        shards.close()
        return make

    def spare(self, num_bytes: int) -> None:
        left = max(self._memory_bytes - num_bytes, self._memory_bytes // 4)
        self._db.execute(f"SET memory_limit = '{left >> 20}MiB'")

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._scratch)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Raises what a lack of memory or room is in Python. Of a stream the text alone says which error it was."""
        try:
            yield
        except RuntimeError as error:
            if str(error) == "Query interrupted":  # DuckDB has caught the signal
                raise KeyboardInterrupt from None
            raise
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            why = next(iter(str(error).splitlines()), "")
            if isinstance(error, duckdb.OutOfMemoryException) or why.startswith("Out of Memory Error"):
                raise MemoryError(
                    f"DuckDB has {self._limit}: expected more memory (--memory), or fewer threads (--threads): {why}"
                ) from error
            if isinstance(error, duckdb.IOException) or why.startswith("IO Error"):
                raise OSError(f"DuckDB in {self._scratch}: {why}") from error
            raise

    def _shown(
        self, batches: Iterable[pa.RecordBatch], what: str, source: Source | None = None
    ) -> Iterator[pa.RecordBatch]:
        if not self._is_shown:
            yield from batches
            return
        total = None if source is None else source.num_rows()
        with progress_bar(what, total, self._is_shown, " rows") as advance:
            for batch in batches:
                yield batch
                advance(batch.num_rows)

    @contextmanager
    def _stream(self, query: str) -> Iterator[pa.RecordBatchReader]:
        """The rows of a query; the connection is free again behind it, whatever was raised."""
        with self._telling():
            rows = self._db.sql(query)
            lengths = [dict(each.children).get("size", 1) if each.id == "array" else 1 for each in rows.types]
            width = sum(map(int, lengths))  # type: ignore[arg-type]
            reader = rows.to_arrow_reader(max(_LEAST_ROWS, min(_BATCH_ROWS, _BATCH_BYTES // (8 * width))))
            try:
                yield reader
            finally:
                reader.close()


def _quoted(path: Path | str) -> str:
    return "'" + str(path).replace("'", "''") + "'"
