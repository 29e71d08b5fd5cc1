"""Spark as an engine: a plan runs on the cluster of a session that the user has. Its workers read the tables by the
reader that the embedded engine uses, so that values are the same, and write the files of the graph.

Rows of a query are sorted by Spark, in pieces; each worker writes its pieces as they are to be, and when it is known
how many rows each has, workers make files of a fixed number of rows of them.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet

try:
    from pyspark import StorageLevel, TaskContext
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
except ImportError as error:
    raise ImportError(
        f"engine 'spark' needs pyspark, of the version of the cluster: pip install pyspark ({error})"
    ) from error

from glt.errors import TableError
from glt.tables.columns.sources import Source
from glt.tables.engines.output import ROWS_PER_FILE, Shards, num_rows_of, read_shards, shards_of
from glt.tables.engines.plan import AnyFold, AnyMake, Query, Rows

_PIECE_ROWS: Final = 1 << 20  # of a query, about
_LEAST_PIECES: Final = 4
_TASK_BYTES: Final = 64 << 20  # of files, read by one task
_TYPES: Final = {pa.int64(): "bigint", pa.float64(): "double", pa.bool_(): "boolean", pa.string(): "string"}


class Spark:
    """Runs a plan by a session; see ``plan.Engine``. ``scratch`` is a directory of its own, which the
    workers share."""

    def __init__(self, session: SparkSession, scratch: Path) -> None:
        scratch.mkdir(parents=True)
        self._session, self._scratch = session, scratch.absolute()
        self._read: dict[Source, tuple[DataFrame, int]] = {}
        self._sizes: dict[str, int] = {}  # rows of each table that queries may name

    @classmethod
    def of(cls, engine: Any, scratch: Path) -> Spark:
        if engine == "spark":
            return cls(SparkSession.builder.getOrCreate(), scratch)
        if not hasattr(engine, "createDataFrame"):
            raise ValueError(f"engine = {engine!r}: expected 'duckdb', 'spark' or a SparkSession")
        return cls(engine, scratch)

    @contextmanager
    def reading(self, given: Mapping[str, Rows]) -> Iterator[None]:
        for name, rows in given.items():
            with _telling():
                frame, rows.num_rows = self._frame(rows.source)
            frame.createOrReplaceTempView(f"{name}_read")
            chosen = [f"g.{own} AS {given}" for own, given in zip(rows.own_names, rows.names, strict=True)]
            joins = [f"{name}_read AS g"]
            for i, each in enumerate(rows.numbered):
                chosen.append(f"n{i}.id AS {each.name}")
                same = [f"g.{key} = n{i}.key{j}" for j, key in enumerate(rows.key_names(each.prefix))]
                joins.append(f"LEFT JOIN glt_keys_{each.node} AS n{i} ON {' AND '.join(same)}")
            found = self._session.sql(f"SELECT {', '.join(chosen)} FROM {' '.join(joins)}")
            found.createOrReplaceTempView(name)
            self._sizes[name] = rows.num_rows
        try:
            yield
        finally:
            for name in given:
                self._session.catalog.dropTempView(name)
                self._session.catalog.dropTempView(f"{name}_read")
                del self._sizes[name]

    def view(self, name: str, folder: Path) -> None:
        paths = shards_of(folder)
        frame = self._session.read.parquet(*(str(each.absolute()) for each in paths))
        # By the bytes of these files, which are compressed, Spark would copy millions of keys to each worker's memory.
        frame.hint("merge").createOrReplaceTempView(name)
        self._sizes[name] = sum(map(num_rows_of, paths))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with _telling():
            return [tuple(row) for row in self._session.sql(query).collect()]

    def fold(self, query: Query, fold: AnyFold) -> AnyFold:
        found = self._session.sql(query.text)
        for kept in self._run(found, _Folding(fold)):
            fold.merge(kept)
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
        pieces = self._scratch / "pieces"
        shutil.rmtree(pieces, ignore_errors=True)
        pieces.mkdir()
        count = max(_LEAST_PIECES, sum(n for name, n in self._sizes.items() if name in query.text) // _PIECE_ROWS)
        frame = self._session.sql(query.text)
        whole = [frame[name].asc_nulls_last() for name in query.order[: query.num_whole]]
        order = [frame[name].asc_nulls_last() for name in query.order]
        ordered = frame.repartitionByRange(count, *whole).sortWithinPartitions(*order)
        paths = shards_of(before) if before is not None else []
        for path, counted in sorted(self._run(ordered, _Pieces(make, pieces, tuple(fields))), key=lambda each: each[0]):
            paths.append(Path(path))
            make.merge(counted)
        self._join(paths, folder.absolute(), fields, with_ids)
        shutil.rmtree(pieces)
        return make

    def spare(self, num_bytes: int) -> None:
        """Keys are joined by the workers."""

    def close(self) -> None:
        with contextlib.suppress(PySparkException):  # a session that was stopped has forgotten all
            for frame, _ in self._read.values():
                frame.unpersist()
            for name in self._sizes:
                self._session.catalog.dropTempView(name)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _frame(self, source: Source) -> tuple[DataFrame, int]:
        """The rows of a source, read once and kept on the workers' disks."""
        if source not in self._read:
            pieces = source.pieces()
            tasks = max(1, min(len(pieces), max(_LEAST_PIECES, source.num_bytes // _TASK_BYTES)))
            numbers = self._session.range(0, len(pieces), 1, tasks)
            types = ", ".join(f"{each.name} {_type_of(each.type)}" for each in source.schema)
            frame = numbers.mapInArrow(_Reading(source, pieces), types).persist(StorageLevel.DISK_ONLY)
            self._read[source] = frame, frame.count()
        return self._read[source]

    def _run(self, frame: DataFrame, work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> list[Any]:
        """What the workers returned, each of its part of the rows."""
        with _telling():
            return [pickle.loads(row[0]) for row in frame.mapInArrow(work, "kept binary").collect()]

    def _join(self, paths: Sequence[Path], folder: Path, fields: Sequence[pa.Field], with_ids: bool) -> None:
        sizes = [num_rows_of(each) for each in paths]
        count = max(1, -(-sum(sizes) // ROWS_PER_FILE))
        numbers = self._session.range(0, count, 1, count)
        self._run(numbers, _Joining(paths, sizes, folder, tuple(fields), with_ids))


def _type_of(type_: pa.DataType) -> str:
    return "array<float>" if pa.types.is_fixed_size_list(type_) else _TYPES[type_]


@contextmanager
def _telling() -> Iterator[None]:
    """Raises what a worker raised of a table, without what Spark puts around it."""
    try:
        yield
    except PySparkException as error:
        if found := re.search(r"glt\.errors\.TableError: (.*)", str(error)):
            raise TableError(found.group(1).strip()) from None
        raise


# -- what workers do -----------------------------------------------------------------------------------------------


class _Reading:
    """Reads the pieces of a source whose numbers come."""

    def __init__(self, source: Source, pieces: Sequence[Any]) -> None:
        self._source, self._pieces = source, pieces

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in self._source.read(self._pieces[number]):
                    yield pa.RecordBatch.from_arrays([_as_list(each) for each in rows.columns], rows.schema.names)


def _as_list(column: pa.Array) -> pa.Array:
    """Spark has no lists of a fixed size."""
    return column.cast(pa.list_(pa.float32())) if pa.types.is_fixed_size_list(column.type) else column


class _Folding:
    """Adds its rows up, and returns the sum."""

    def __init__(self, fold: Any) -> None:
        self._fold = fold

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fold = copy.deepcopy(self._fold)
        for batch in batches:
            fold.add(batch)
        yield _kept(fold)


class _Pieces:
    """Writes what is made of its rows; returns the file, and ``make`` with what it counted."""

    def __init__(self, make: Any, folder: Path, fields: Sequence[pa.Field]) -> None:
        self._make, self._folder, self._fields = make, folder, fields

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        make = copy.deepcopy(self._make)
        number = TaskContext.get().partitionId()  # type: ignore[union-attr]  # this is in a task
        path = self._folder / f"piece-{number:06d}-{_attempt()}.parquet"
        schema = pa.schema(self._fields)
        with pa.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            for columns in make(batches):
                writer.write_batch(pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema))
        yield _kept((str(path), make))


class _Joining:
    """Writes the file of a graph whose number comes, of those pieces that have rows of it."""

    def __init__(
        self, paths: Sequence[Path], sizes: Sequence[int], folder: Path, fields: Sequence[pa.Field], with_ids: bool
    ) -> None:
        self._paths, self._ends = paths, list(accumulate(sizes))
        self._folder, self._fields, self._with_ids = folder, fields, with_ids

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                self._write(number)
                yield _kept(number)

    def _write(self, number: int) -> None:
        first, last = number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE
        own = self._folder / f".task-{_attempt()}"
        shards, begin = Shards(own, self._fields, self._with_ids, first), 0
        for path, end in zip(self._paths, self._ends, strict=True):
            if begin < last and end > first:
                for rows in read_shards([path], self._fields, max(first - begin, 0), last - begin):
                    shards.add(dict(zip(rows.schema.names, rows.columns, strict=True)))
            begin = end
        shards.close()
        for each in shards_of(own):
            each.replace(self._folder / each.name)
        own.rmdir()


def _attempt() -> int:
    """Of the task, which may run twice at a time."""
    return int(TaskContext.get().taskAttemptId())  # type: ignore[union-attr]  # this is in a task


def _kept(value: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(value)], pa.binary())], ["kept"])
