"""Files of tables, read as record batches whose columns have the types that a description gives them.

A column is read as it is used: keys as int64 or texts, times as int64 seconds, numbers as float64, categories as texts.
What is no such thing is an error that names file, column, row and value. This is the one reader: whichever engine joins
the tables gets these columns, so that all of them see the same values.
"""

from __future__ import annotations

import glob
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
import pyarrow.parquet

from glt._checks import is_of_machine, naming_the_limit
from glt.errors import TableError
from glt.tables.description import Files

_PARQUET: Final = (".parquet", ".pq")
_CSV: Final = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
_BLOCK_BYTES: Final = 4 << 20  # of CSV, read at a time
_BATCH_ROWS: Final = 1 << 17
_PIECE_BYTES: Final = 64 << 20  # of Parquet, that another process may read by itself
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")


@dataclass(frozen=True)
class Column:
    """A column of a table as it is used: ``name`` is what it is called from here on, ``kind`` what it holds: ``int``
    and ``text`` (keys), ``number``, ``boolean``, ``category``, ``time``, ``vector``, or ``string``."""

    name: str
    column: str
    kind: str
    is_nullable: bool = False
    unit: str = "s"
    length: int | None = None


@dataclass(frozen=True)
class File:
    """A file, and what changes when it is written."""

    path: str
    num_bytes: int
    changed_ns: int

    @property
    def whole_path(self) -> str:
        return self.path if is_url(self.path) else os.path.abspath(self.path)


@dataclass(frozen=True)
class Piece:
    """Part of a file: all of it, or row groups of Parquet, the first of which begins at ``first_row``."""

    path: str
    row_groups: tuple[int, ...] | None = None
    first_row: int = 0


@dataclass(frozen=True)
class Source:
    """The files of a table, and the columns of them that are used; ``where`` names the table in messages."""

    where: str
    files: tuple[File, ...]
    format: Files
    columns: tuple[Column, ...] = ()

    @classmethod
    def of(cls, where: str, files: Files, base: str) -> Source:
        """Finds the files."""
        found: dict[str, File] = {}
        for given in files.paths:
            paths = list(_paths(given, base))
            if not paths:
                raise TableError(
                    f"{where}: files = {given!r}: expected Parquet or CSV files, and there are none, seen from "
                    f"{Path(base).absolute()}"
                )
            found |= {each.path: each for each in paths}
        for path in found:
            if not path.lower().endswith(_PARQUET + _CSV):
                raise TableError(
                    f"{where}: {path} is of no known kind: expected a name with {', '.join(_PARQUET + _CSV)}"
                )
        return cls(where, tuple(found[path] for path in sorted(found)), files)

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.files)

    @property
    def schema(self) -> pa.Schema:
        """The columns as they leave :meth:`batches`."""
        return pa.schema([pa.field(each.name, _arrow_type(each)) for each in self.columns])

    def batches(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of all files, with these columns of :attr:`columns` (default: all)."""
        for file in self.files:
            yield from self.read(Piece(file.path), names)

    def read(self, piece: Piece, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The same of a piece."""
        columns = [each for each in self.columns if names is None or each.name in names]
        schema = pa.schema([pa.field(each.name, _arrow_type(each)) for each in columns])
        first = piece.first_row
        for batch in self._read(piece, columns):
            converted = [_convert(batch.column(c.column), c, self.where, piece.path, first) for c in columns]
            yield pa.RecordBatch.from_arrays(converted, schema=schema)
            first += batch.num_rows

    def pieces(self) -> list[Piece]:
        """What may be read by itself: some row groups of a Parquet file, or a whole file of CSV."""
        found = []
        for file in self.files:
            if not _is_parquet(file.path) or file.num_bytes < 2 * _PIECE_BYTES:
                found.append(Piece(file.path))
                continue
            with _readable(self.where, file.path):
                opened, path = open_file_system(file.path)
                metadata = pa.parquet.read_metadata(path, filesystem=opened)
            groups, first, num_rows, num_bytes = [], 0, 0, 0
            for i in range(metadata.num_row_groups):
                groups.append(i)
                group = metadata.row_group(i)
                num_rows, num_bytes = num_rows + group.num_rows, num_bytes + group.total_byte_size
                if num_bytes >= _PIECE_BYTES or i == metadata.num_row_groups - 1:
                    found.append(Piece(file.path, tuple(groups), first))
                    groups, first, num_rows, num_bytes = [], first + num_rows, 0, 0
        return found

    def columns_of(self, file: File) -> pa.Schema:
        """The columns of a file; of CSV, as pyarrow guesses their types from its first block."""
        with _readable(self.where, file.path):
            opened, path = open_file_system(file.path)
            if _is_parquet(file.path):
                return pa.parquet.read_schema(path, filesystem=opened)
            with self._open_csv(file.path, None) as reader:
                return reader.schema

    def key_type(self, column: str) -> str:
        """Whether the keys in a column are integers, as far as its files tell (of CSV: their first blocks)."""
        for file in self.files:
            schema = self.columns_of(file)
            if column not in schema.names:
                raise self._no_column(file.path, column, schema.names)
            type_ = schema.field(column).type
            if not pa.types.is_integer(type_.value_type if pa.types.is_dictionary(type_) else type_):
                return "text"
            if not _is_parquet(file.path) and self._has_leading_zero(file.path, column):
                return "text"
        return "int"

    def find(self, prefix: str, key: Sequence[Any]) -> tuple[str, int] | None:
        """File and row of the first row with this key, in columns that begin with ``prefix``."""
        names = [each.name for each in self.columns if each.name[:3] == prefix and each.name[3:].isdigit()]
        for file in self.files:
            first = 0
            for batch in replace(self, files=(file,)).batches(names):
                same = [pc.equal(batch.column(n), value) for n, value in zip(names, key, strict=True)]
                at = pc.index(reduce(pc.and_, same), True).as_py()
                if at >= 0:
                    return file.path, first + at
                first += batch.num_rows
        return None

    def _no_column(self, path: str, column: str, names: Sequence[str]) -> TableError:
        return TableError(f"{self.where}: {path} has no column {column!r}: it has {', '.join(map(repr, names))}")

    def _has_leading_zero(self, path: str, column: str) -> bool:
        """Whether the first block of a CSV file has a key such as 007, which is a text."""
        with _readable(self.where, path), self._open_csv(path, [column]) as reader:
            batch = next(iter(reader), None)
        if batch is None:
            return False
        return pc.any(pc.match_substring_regex(batch.column(0), r"^[+-]?0\d")).as_py() is True

    def num_rows(self) -> int | None:
        """Rows of all files, where their metadata says so; None of CSV."""
        if not all(_is_parquet(each.path) for each in self.files):
            return None
        total = 0
        for each in self.files:
            with _readable(self.where, each.path):
                opened, path = open_file_system(each.path)
                total += pa.parquet.read_metadata(path, filesystem=opened).num_rows
        return total

    def bytes_per_row(self) -> float | None:
        """Of CSV, by the begin of its first file that is not empty; None without rows."""
        for each in self.files:
            with _readable(self.where, each.path):
                opened, path = open_file_system(each.path)
                with opened.open_input_stream(path, compression=None) as stream:
                    raw = stream.read(_BLOCK_BYTES)
            text = zlib.decompressobj(31).decompress(raw) if path.endswith(".gz") else raw
            num_rows = text.count(b"\n") - (self.format.header and len(raw) < _BLOCK_BYTES)
            if num_rows > 0:
                return len(raw) / num_rows
        return None

    def require_unchanged(self) -> None:
        """Raises TableError if a file was written since it was found: what was read of it may be of two versions."""
        for each in self.files:
            if _state(each.path) != each:
                raise TableError(
                    f"{self.where}: {each.path} was written while it was read: build again when it is whole"
                )

    def _read(self, piece: Piece, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        path = piece.path
        chosen = list(dict.fromkeys(each.column for each in columns))
        names = self.columns_of(File(path, 0, 0)).names
        for name in chosen:
            if name not in names:
                raise self._no_column(path, name, names)
            if names.count(name) > 1:
                raise TableError(f"{self.where}: {path} has several columns {name!r}: rename all but one")
        with _readable(self.where, path):
            if _is_parquet(path):
                opened, inside = open_file_system(path)
                with pa.parquet.ParquetFile(inside, filesystem=opened, pre_buffer=False, buffer_size=1 << 20) as file:
                    yield from file.iter_batches(_BATCH_ROWS, row_groups=piece.row_groups, columns=chosen)
            else:
                with self._open_csv(path, chosen) as reader:
                    yield from reader

    def _open_csv(self, path: str, chosen: Sequence[str] | None) -> Any:
        """``chosen`` are read as texts: types are those of the description."""
        opened, inside = open_file_system(path)
        delimiter = self.format.delimiter or ("\t" if ".tsv" in path.lower() else ",")
        options: dict[str, Any] = {"strings_can_be_null": True, "null_values": [""]}
        if chosen is not None:
            options |= {"include_columns": list(chosen), "column_types": dict.fromkeys(chosen, pa.string())}
            options |= {"quoted_strings_can_be_null": False}
        return pa.csv.open_csv(
            opened.open_input_stream(inside, compression="gzip" if inside.endswith(".gz") else None),
            pa.csv.ReadOptions(block_size=_BLOCK_BYTES, autogenerate_column_names=not self.format.header),
            pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            pa.csv.ConvertOptions(**options),
        )


# -- where files are -----------------------------------------------------------------------------------------------


def _paths(given: str, base: str) -> Iterator[File]:
    if is_url(given):
        yield from _paths_at_url(given)
        return
    path = Path(base, given)
    if path.is_dir():
        for inside in sorted(p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith(_PARQUET + _CSV)):
            if not any(part.startswith((".", "_")) for part in inside.relative_to(path).parts):
                yield _state(str(inside))
    elif path.is_file():
        yield _state(str(path))
    else:
        yield from (_state(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file())


def is_url(given: str) -> bool:
    return len(urlsplit(given).scheme) > 1


def _paths_at_url(given: str) -> Iterator[File]:
    head, is_pattern, _ = given.partition("*")
    opened, path = open_file_system(head.rsplit("/", 1)[0] if is_pattern else given)
    info = opened.get_file_info(path)
    if info.type == pa.fs.FileType.File:
        yield _state(given)
        return
    scheme = given.split("://", 1)[0]
    pattern = given.split("://", 1)[1] if is_pattern else None
    for each in opened.get_file_info(pa.fs.FileSelector(path, recursive=True, allow_not_found=True)):
        is_table = each.type == pa.fs.FileType.File and each.base_name.lower().endswith(_PARQUET + _CSV)
        if (
            is_table
            and (pattern is None or fnmatchcase(each.path, pattern))
            and not each.base_name.startswith((".", "_"))
        ):
            yield File(f"{scheme}://{each.path}", each.size, each.mtime_ns or 0)


def open_file_system(path: str) -> tuple[pa.fs.FileSystem, str]:
    """The file system of a path or URL, and its name there."""
    if not is_url(path):
        return pa.fs.LocalFileSystem(), os.path.abspath(path)
    scheme = urlsplit(path).scheme
    if scheme in ("http", "https"):
        import fsspec

        return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fsspec.filesystem(scheme))), path
    opened, inside = pa.fs.FileSystem.from_uri(path)
    return opened, inside


def _state(path: str) -> File:
    if not is_url(path):
        found = os.stat(path)
        return File(path, found.st_size, found.st_mtime_ns)
    opened, inside = open_file_system(path)
    info = opened.get_file_info(inside)
    return File(path, info.size or 0, info.mtime_ns or 0)


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(_PARQUET)


class _readable:
    """Turns what a damaged file raises into a TableError that names it."""

    def __init__(self, where: str, path: str) -> None:
        self._where, self._path, self._limit = where, path, naming_the_limit(path)

    def __enter__(self) -> None:
        self._limit.__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._limit.__exit__(kind, error, traceback)
        if isinstance(error, pa.ArrowException | OSError) and not is_of_machine(error):
            why = " ".join(str(error).split())
            raise TableError(f"{self._where}: {self._path} cannot be read: {why}") from error


# -- what values become --------------------------------------------------------------------------------------------


def _arrow_type(column: Column) -> pa.DataType:
    if column.kind == "vector":
        return pa.list_(pa.float32(), column.length or -1)
    plain = {"int": pa.int64(), "time": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
    return plain.get(column.kind, pa.string())


@dataclass(frozen=True)
class _Place:
    """Where values are, for messages."""

    column: Column
    where: str
    path: str
    first_row: int

    def refuse(self, values: pa.Array, is_wrong: pa.Array, expected: str) -> None:
        """Raises TableError if ``is_wrong`` anywhere; names the first."""
        wrong = np.flatnonzero(np.asarray(pc.fill_null(is_wrong, False)))
        if len(wrong):
            at = int(wrong[0])
            raise TableError(
                f"{self.where}: {self.path}, column {self.column.column!r}, row {self.first_row + at}: "
                f"{values[at].as_py()!r}: expected {expected}"
            )


def _convert(values: pa.Array, column: Column, where: str, path: str, first_row: int) -> pa.Array:
    place = _Place(column, where, path, first_row)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    converted = _CONVERT[column.kind](values, place)
    if not column.is_nullable and converted.null_count:
        place.refuse(values, pc.is_null(converted), _WITHOUT_NULLS[column.kind])
    return converted


_WITHOUT_NULLS: Final = dict.fromkeys(
    ("int", "text"), "a key in every row; drop the row, or give it one"
) | dict.fromkeys(
    ("number", "boolean", "category", "time", "vector", "string"),
    "a value in every row; of a feature, missing = 'indicator' takes nulls",
)


def _refuse_type(values: pa.Array, place: _Place, expected: str) -> TableError:
    return TableError(
        f"{place.where}: {place.path}, column {place.column.column!r} has type {values.type}: expected {expected}"
    )


def _as_int(values: pa.Array, place: _Place) -> pa.Array:
    if pa.types.is_integer(values.type):
        if pa.types.is_uint64(values.type):
            place.refuse(values, pc.greater(values, pa.scalar(2**63 - 1, pa.uint64())), "integers below 2**63")
        return values.cast(pa.int64())
    expected = "integers, as in the other tables of this key; key_type = 'text' of the node type takes any text"
    if not pa.types.is_string(values.type):
        raise _refuse_type(values, place, expected)
    is_plain = pc.match_substring_regex(values, r"^-?(0|[1-9]\d{0,18})$")
    place.refuse(values, pc.invert(is_plain), expected)
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        is_large = pc.greater(pc.binary_length(values), 18)
        place.refuse(values, is_large, "integers below 2**63")
        raise


def _as_text(values: pa.Array, place: _Place) -> pa.Array:
    if pa.types.is_string(values.type):
        return values
    if pa.types.is_integer(values.type):
        return values.cast(pa.string())
    raise _refuse_type(values, place, "integers or texts, as keys are; cast the column")


def _as_number(values: pa.Array, place: _Place) -> pa.Array:
    if pa.types.is_string(values.type):
        numbers = _parsed(values, pa.float64(), place, "a number")
    elif pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        numbers = values.cast(pa.float64(), safe=False)
    elif pa.types.is_boolean(values.type):
        numbers = values.cast(pa.int8()).cast(pa.float64())
    else:
        raise _refuse_type(values, place, "numbers")
    place.refuse(values, pc.is_inf(numbers), "a finite number")
    numbers = pc.add(numbers, 0.0)  # not -0.0, which engines do not order alike
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)


def _parsed(values: pa.Array, type_: pa.DataType, place: _Place, expected: str) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(values)
    try:
        return trimmed.cast(type_)
    except pa.ArrowInvalid:
        is_wrong = pa.array([not _parses(each, type_) for each in trimmed])
        place.refuse(values, is_wrong, expected)
        raise


def _parses(value: pa.Scalar, type_: pa.DataType) -> bool:
    try:
        value.cast(type_)
    except pa.ArrowInvalid:
        return False
    return True


def _as_boolean(values: pa.Array, place: _Place) -> pa.Array:
    if pa.types.is_boolean(values.type):
        return values
    if pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    if not pa.types.is_string(values.type):
        raise _refuse_type(values, place, "booleans")
    lower = pc.utf8_lower(values)
    is_true, is_false = (pc.is_in(lower, pa.array(words)) for words in (_TRUE, _FALSE))
    is_wrong = pc.and_(pc.is_valid(values), pc.invert(pc.or_(is_true, is_false)))
    place.refuse(values, is_wrong, f"one of {', '.join(_TRUE + _FALSE)}")
    return pc.if_else(pc.is_valid(values), is_true, pa.scalar(None, pa.bool_()))


def _as_category(values: pa.Array, place: _Place) -> pa.Array:
    if pa.types.is_floating(values.type):
        raise _refuse_type(values, place, "categories as texts, integers or booleans; of kind 'number' it is a number")
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _as_time(values: pa.Array, place: _Place) -> pa.Array:
    """Seconds since 1970 in UTC; what has no time zone is in UTC."""
    unit = _PER_SECOND[place.column.unit]
    if pa.types.is_string(values.type):
        values = _times_of(pc.utf8_trim_whitespace(values), place)
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s"))
    if pa.types.is_timestamp(values.type):
        unit, values = _PER_SECOND[values.type.unit], values.cast(pa.int64())
    if not pa.types.is_integer(values.type):
        raise _refuse_type(values, place, "timestamps, dates, or integers in the time's unit")
    seconds = values.cast(pa.int64())
    if unit == 1:
        return seconds
    down = np.floor_divide(np.asarray(pc.fill_null(seconds, 0)), unit)
    return pa.array(down, mask=np.asarray(pc.is_null(seconds)))


def _times_of(values: pa.Array, place: _Place) -> pa.Array:
    present = values.drop_null()
    if pc.all(pc.match_substring_regex(present, r"^-?\d+$")).as_py() is not False:
        return values.cast(pa.int64())
    has_zone = pc.match_substring_regex(values, r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$")
    expected = "a time such as 2024-05-31 or 2024-05-31T10:00:00"
    if not pc.any(has_zone).as_py():
        return _parsed(values, pa.timestamp("us"), place, expected)
    place.refuse(values, pc.invert(has_zone), "a time with a zone, as others of the column have")
    return _parsed(values, pa.timestamp("us", "UTC"), place, expected + "Z")


def _as_vector(values: pa.Array, place: _Place) -> pa.Array:
    length = place.column.length or 0
    if pa.types.is_string(values.type):  # 1;2;3 or [1, 2, 3]
        inner = pc.utf8_trim(values, " []")
        values = pc.split_pattern_regex(inner, r"[;,\s]+")
    if not (
        pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type) or pa.types.is_large_list(values.type)
    ):
        raise _refuse_type(values, place, "lists of numbers")
    place.refuse(values, pc.not_equal(pc.list_value_length(values), length), f"{length} numbers")
    flat = _as_number(pc.list_flatten(values), place)
    if flat.null_count:
        raise _refuse_type(values, place, "lists without nulls and NaN")
    valid = np.asarray(pc.is_valid(values))
    dense = np.zeros((len(values), length), np.float32)
    dense[valid] = np.asarray(flat).reshape(-1, length)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(dense.reshape(-1)), length, mask=pa.array(~valid))
    return rows


_CONVERT: Final = {
    "int": _as_int,
    "text": _as_text,
    "number": _as_number,
    "boolean": _as_boolean,
    "category": _as_category,
    "time": _as_time,
    "vector": _as_vector,
    "string": _as_text,
}


def seconds_of(text: str, where: str) -> int:
    """A time in a description as seconds since 1970 in UTC."""
    column = Column("time", where, "time")
    return int(_as_time(pa.array([text]), _Place(column, where, "the description", 0))[0].as_py())
