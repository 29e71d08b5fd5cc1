"""Parquet and CSV files of one table, read through pyarrow in record batches."""

from __future__ import annotations

import glob
import importlib
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from glt.partition.inputs.table_metadata import count_lines, parquet_largest, parquet_rows

_PARQUET: Final = (".parquet", ".pq")
_CSV: Final = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
_BATCH_ROWS: Final = 1 << 16
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class TableFiles:
    """The files of a table, one after the other: row numbers go on from file to file.

    Attributes:
        paths: The files, Parquet or CSV.
        header: Whether CSV files begin with the names of their columns; else these are ``f0``, ``f1``, ...
        delimiter: Between the values of a row of CSV. Default: a tab in ``.tsv`` files, else a comma.
    """

    paths: tuple[Path, ...]
    header: bool = True
    delimiter: str | None = None

    @classmethod
    def of(
        cls, key: str, given: str | Sequence[str], base: Path, header: bool = True, delimiter: str | None = None
    ) -> TableFiles:
        """Finds files.

        Args:
            key: Who asks, for messages.
            given: A file, a directory, a pattern such as ``"part-*.parquet"``, or a list of these, whose order is kept.
                The files of a directory (with those in directories below) or pattern are in the order of their paths:
                ``part-10`` comes before ``part-2``. Names that begin with ``.`` or ``_`` do not count.
            base: What relative paths begin at.
            header, delimiter: See the attributes.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If a file is neither Parquet nor CSV, by its name.
        """
        found: list[Path] = []
        for each in [given] if isinstance(given, str) else given:
            path = base / each
            if path.is_dir():
                inside = sorted(p for p in path.rglob("*") if p.is_file() and not _is_hidden(p.relative_to(path)))
                found += [p for p in inside if is_table(p)]
            elif path.is_file():
                found.append(path)
            else:
                found += [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file()]
        if not found:
            raise FileNotFoundError(f"{key} = {given!r}: expected Parquet or CSV files, found none below {base}")
        for path in found:
            if not is_table(path):
                raise ValueError(
                    f"{key}: {path} is of no known kind: expected a name with {', '.join(_PARQUET + _CSV)}"
                )
        return cls(tuple(found), header, delimiter)

    def batches(
        self, columns: Sequence[str], types: Mapping[str, np.dtype]
    ) -> Generator[tuple[Path, int, Any], None, None]:
        """Yields record batches with the path of their file and the number of their first row in it.

        Args:
            columns: What to read; nothing: a first column, for its length.
            types: Of columns whose type text does not tell.

        Raises:
            ImportError: Without pyarrow.
            ValueError: If a file is damaged or lacks a column; names it.
        """
        arrow = require_arrow()
        for path in self.paths:
            first = 0
            try:
                for batch in self._read(path, columns, types):
                    yield path, first, batch
                    first += batch.num_rows
            except (arrow.ArrowException, OSError) as error:
                raise _unreadable(path, error) from error

    def column_names(self) -> tuple[str, ...]:
        """The columns of the first file."""
        arrow = require_arrow()
        try:
            if self.paths[0].name.endswith(_PARQUET):
                return tuple(importlib.import_module("pyarrow.parquet").read_schema(self.paths[0]).names)
            return self._csv_names(self.paths[0], self._csv_options(self.paths[0]))
        except (arrow.ArrowException, OSError) as error:
            raise _unreadable(self.paths[0], error) from error

    def num_rows(self) -> int:
        """Counts the rows of all files; of Parquet without reading them."""
        parquet = [path for path in self.paths if path.name.endswith(_PARQUET)]
        others = TableFiles(tuple(path for path in self.paths if path not in parquet), self.header, self.delimiter)
        num_rows = sum(batch.num_rows for _, _, batch in others.batches((), {}))
        return num_rows + TableFiles(tuple(parquet)).estimated_rows()

    def estimated_rows(self) -> int:
        """The same without reading any values: of CSV, lines are counted, and a value that has a line break in quotes
        counts for two rows.

        Raises:
            ImportError: Without pyarrow.
            ValueError: If a file is damaged; names it.
        """
        arrow = require_arrow()
        num_rows = 0
        for path in self.paths:
            try:
                if path.name.endswith(_PARQUET):
                    num_rows += parquet_rows(path)
                else:
                    num_rows += max(0, count_lines(path) - self.header)
            except (arrow.ArrowException, OSError, EOFError, zlib.error) as error:
                raise _unreadable(path, error) from error
        return num_rows

    def largest(self, column: str) -> int | None:
        """Returns the largest integer of a column, -1 without rows; None if that takes reading it.

        Raises:
            ImportError: Without pyarrow.
            ValueError: If a file is damaged; names it.
        """
        arrow = require_arrow()
        largest = -1
        for path in self.paths:
            if not path.name.endswith(_PARQUET):
                return None
            try:
                found = parquet_largest(path, column)
            except (arrow.ArrowException, OSError) as error:
                raise _unreadable(path, error) from error
            if found is None:
                return None
            largest = max(largest, found)
        return largest

    def _read(self, path: Path, columns: Sequence[str], types: Mapping[str, np.dtype]) -> Iterator[Any]:
        if path.name.endswith(_PARQUET):
            parquet = importlib.import_module("pyarrow.parquet")
            # Without pre_buffer, no more than a page of each column of the row group is held.
            with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
                names = file.schema_arrow.names
                _require_columns(path, columns, names)
                yield from file.iter_batches(_BATCH_ROWS, columns=list(columns) or names[:1], use_threads=False)
            return
        csv, arrow = importlib.import_module("pyarrow.csv"), require_arrow()
        options = self._csv_options(path)
        names = self._csv_names(path, options)
        _require_columns(path, columns, names)
        # Floats are read as doubles and rounded once, as everywhere.
        wanted = {name: arrow.from_numpy_dtype(_read_as(types[name])) for name in columns if name in types}
        options["convert_options"] = csv.ConvertOptions(include_columns=list(columns) or names[:1], column_types=wanted)
        with csv.open_csv(path, **options) as opened:
            yield from opened

    def _csv_options(self, path: Path) -> dict[str, Any]:
        csv = importlib.import_module("pyarrow.csv")
        delimiter = self.delimiter or ("\t" if ".tsv" in path.suffixes else ",")
        return {
            "read_options": csv.ReadOptions(
                block_size=_BLOCK_BYTES, use_threads=False, autogenerate_column_names=not self.header
            ),
            "parse_options": csv.ParseOptions(delimiter=delimiter),
        }

    @staticmethod
    def _csv_names(path: Path, options: dict[str, Any]) -> tuple[str, ...]:
        with importlib.import_module("pyarrow.csv").open_csv(path, **options) as opened:
            return tuple(opened.schema.names)


def is_table(path: Path) -> bool:
    """Tells by its name whether a file is Parquet or CSV."""
    return path.name.endswith(_PARQUET + _CSV)


def require_arrow() -> Any:
    """Returns pyarrow; raises ImportError saying how to install it."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError(f"Parquet and CSV need the package pyarrow ({error}): pip install 'glt[parquet]'") from error


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} cannot be read: {' '.join(str(error).split())}")


def _read_as(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64 if dtype.kind == "f" else np.int64 if dtype.kind in "iu" else dtype)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _require_columns(path: Path, wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise ValueError(f"{path} has no column {name!r}: it has {', '.join(map(repr, names))}")
        if list(names).count(name) > 1:
            raise ValueError(f"{path} has several columns {name!r}: expected one of a name; rename them")
