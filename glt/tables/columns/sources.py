"""Files of tables, read as record batches whose columns have the types that a description gives them.

This is the one reader: whichever engine joins the tables gets these columns, so that all of them see the same values.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from glt._urls import open_file_system, public_url
from glt.errors import TableError
from glt.tables.columns.files import (
    BLOCK_BYTES,
    CSV,
    PARQUET,
    File,
    find_files,
    has_kind,
    is_parquet,
    readable,
    state_of,
)
from glt.tables.columns.values import Column, arrow_type, convert, few, kind_of_times
from glt.tables.descriptions.description import Files

_BATCH_ROWS: Final = 1 << 17
_LEAST_ROWS: Final = 1 << 10  # of a batch, however wide
_BATCH_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 64 << 20  # of Parquet, that another process may read by itself


@dataclass(frozen=True)
class Piece:
    """Part of a file: all of it, or row groups of Parquet, the first of which begins at ``first_row``."""

    file: File
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
            with readable(where, given):
                paths = list(find_files(given, base))
            if not paths:
                raise TableError(
                    f"{where}: files = {public_url(given)!r}: expected Parquet or CSV files, and there are none, seen "
                    f"from {Path(base).absolute()}"
                )
            for each in paths:
                found.setdefault(each.whole_path, each)  # one file under two names is one
        for each in found.values():
            if not has_kind(each.path, PARQUET + CSV):
                raise TableError(
                    f"{where}: {each.name} is of no known kind: expected a name with {', '.join(PARQUET + CSV)}"
                )
        return cls(where, tuple(found[path] for path in sorted(found)), files)

    @cached_property
    def _read_as(self) -> Files:
        """How files are read, without their names, of which there may be many."""
        return replace(self.format, paths=())

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.files)

    @property
    def schema(self) -> pa.Schema:
        """The columns as they leave :meth:`batches`."""
        return pa.schema([pa.field(each.name, arrow_type(each)) for each in self.columns])

    def batches(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of all files, with these columns of :attr:`columns` (default: all)."""
        for file in self.files:
            yield from self.read(Piece(file), names)

    def read(self, piece: Piece, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The same of a piece."""
        wanted = None if names is None else set(names)
        columns = [each for each in self.columns if wanted is None or each.name in wanted]
        schema = pa.schema([pa.field(each.name, arrow_type(each)) for each in columns])
        first = piece.first_row
        for batch in self._read(piece, columns):
            given = [batch.column(each.column) for each in columns]
            name, is_csv = piece.file.name, not is_parquet(piece.file.path)
            converted = [convert(v, c, self.where, name, first, is_csv) for v, c in zip(given, columns, strict=True)]
            yield pa.RecordBatch.from_arrays(converted, schema=schema)
            first += batch.num_rows

    def pieces(self) -> list[Piece]:
        """What may be read by itself: some row groups of a Parquet file, or a whole file of CSV."""
        found = []
        for file in self.files:
            if not is_parquet(file.path) or file.num_bytes < 2 * _PIECE_BYTES:
                found.append(Piece(file))
                continue
            with readable(self.where, file.name):
                opened, path = open_file_system(file.path)
                metadata = pa.parquet.read_metadata(path, filesystem=opened)
            groups, first, num_rows, num_bytes = [], 0, 0, 0
            for i in range(metadata.num_row_groups):
                groups.append(i)
                group = metadata.row_group(i)
                num_rows, num_bytes = num_rows + group.num_rows, num_bytes + group.total_byte_size
                if num_bytes >= _PIECE_BYTES or i == metadata.num_row_groups - 1:
                    found.append(Piece(file, tuple(groups), first))
                    groups, first, num_rows, num_bytes = [], first + num_rows, 0, 0
        return found

    def columns_of(self, file: File) -> pa.Schema:
        """The columns of a file; of CSV, as pyarrow guesses their types from its first block, but that integers such as
        007 are texts, and floats that are whole integers."""
        with readable(self.where, file.name):
            return _look(file, self._read_as)[0]

    def sample(self, file: File) -> Iterator[pa.RecordBatch]:
        """Rows of a file, its columns as they are; of CSV as far as its first block tells, which is all there is."""
        with readable(self.where, file.name):
            opened, path = open_file_system(file.path)
            if is_parquet(file.path):
                with pa.parquet.ParquetFile(path, filesystem=opened, pre_buffer=False) as parquet:
                    yield from parquet.iter_batches(_batch_rows(len(parquet.schema_arrow)))
            else:
                with _open_csv(file, self.format, None) as reader:
                    yield from islice(reader, 1)

    def key_type(self, column: str) -> str:
        """Whether the keys in a column are integers, as far as its files tell (of CSV: their first blocks)."""
        for file in self.files:
            schema = self.columns_of(file)
            self._require_columns(file.name, (column,), schema.names)
            type_ = schema.field(column).type
            type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
            if pa.types.is_null(type_):  # of no rows, or nulls alone: these are as the others
                continue
            if not pa.types.is_integer(type_) and not (is_parquet(file.path) and pa.types.is_floating(type_)):
                return "text"
        return "int"

    def kinds_of_times(self, before: Mapping[str, str], of_before: str) -> dict[str, str]:
        """What the times of each column are, those of ``before`` among them: numbers, or times with a zone or without.
        Raises TableError if some are one and some another: one of these would be read as what it is not."""
        found = dict(before)
        for column in (each.column for each in self.columns if each.kind == "time"):
            first = {before[column]: of_before} if column in before else {}  # a file of each kind
            for file in self.files:
                schema = self.columns_of(file)
                if column in schema.names and (kind := self._kind_of_times(file, schema.field(column))) is not None:
                    first.setdefault(kind, file.name)
            if len(first) > 1:
                (kind, path), (other_kind, other) = list(first.items())[:2]
                raise TableError(
                    f"{self.where}: column {column!r} has {kind} in {path}, and {other_kind} in {other}: expected the "
                    "same in all files"
                )
            found.update((column, kind) for kind in first)
        return found

    def _kind_of_times(self, file: File, column: pa.Field) -> str | None:
        if not (is_parquet(file.path) and _is_text(column.type)):  # of CSV types tell it
            return kind_of_times(column.type)
        rows = next(iter(self.sample(file)), None)
        return None if rows is None else kind_of_times(column.type, rows.column(column.name).cast(pa.string()))

    def find(self, names: Sequence[str], values: Sequence[Any]) -> tuple[str, int] | None:
        """File and row of the first row with these values in the columns of these names."""
        for file in self.files:
            first = 0
            for batch in replace(self, files=(file,)).batches(names):
                same = [pc.equal(batch.column(n), value) for n, value in zip(names, values, strict=True)]
                at = pc.index(reduce(pc.and_, same), True).as_py()
                if at >= 0:
                    return file.name, first + at
                first += batch.num_rows
        return None

    def _no_column(self, path: str, column: str, names: Sequence[str]) -> TableError:
        return TableError(f"{self.where}: {path} has no column {column!r}: it has {few(names)}")

    def num_rows(self) -> int | None:
        """Rows of all files, where their metadata says so; None of CSV."""
        if not all(is_parquet(each.path) for each in self.files):
            return None
        total = 0
        for each in self.files:
            with readable(self.where, each.name):
                total += _look(each, self._read_as)[1] or 0
        return total

    def bytes_per_row(self) -> float | None:
        """Of CSV, by the begin of its first file that is not empty; None without rows."""
        for each in self.files:
            with readable(self.where, each.name):
                opened, path = open_file_system(each.path)
                with opened.open_input_stream(path, compression=None) as stream:
                    raw = stream.read(BLOCK_BYTES)
            text = zlib.decompressobj(31).decompress(raw) if has_kind(path, (".gz",)) else raw
            num_rows = text.count(b"\n") - (self.format.header and len(raw) < BLOCK_BYTES)
            if num_rows > 0:
                return len(raw) / num_rows
        return None

    def require_unchanged(self) -> None:
        """Raises TableError if a file was written since it was found: what was read of it may be of two versions."""
        for each in self.files:
            if state_of(each.path) != each:
                raise TableError(
                    f"{self.where}: {each.name} was written while it was read: build again when it is whole"
                )

    def _read(self, piece: Piece, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        path, shown = piece.file.path, piece.file.name
        chosen = tuple(dict.fromkeys(each.column for each in columns))
        with readable(self.where, shown):
            if is_parquet(path):
                opened, inside = open_file_system(path)
                with pa.parquet.ParquetFile(inside, filesystem=opened, pre_buffer=False, buffer_size=1 << 20) as file:
                    self._require_columns(shown, chosen, file.schema_arrow.names)
                    num_rows = _batch_rows(sum(each.length or 1 for each in columns))
                    yield from file.iter_batches(num_rows, row_groups=piece.row_groups, columns=list(chosen))
            else:
                self._require_columns(shown, chosen, _look(piece.file, self._read_as)[0].names)
                with _open_csv(piece.file, self.format, chosen) as reader:
                    yield from reader

    def _require_columns(self, path: str, chosen: Sequence[str], names: Sequence[str]) -> None:
        for name, count in zip(chosen, map(Counter(names).get, chosen), strict=True):
            if count is None:
                raise self._no_column(path, name, names)
            if count > 1:
                raise TableError(f"{self.where}: {path} has several columns {name!r}: rename all but one")


def _batch_rows(num_columns: int) -> int:
    return max(_LEAST_ROWS, min(_BATCH_ROWS, _BATCH_BYTES // (8 * max(1, num_columns))))


@lru_cache(maxsize=1 << 15)
def _look(file: File, format: Files) -> tuple[pa.Schema, int | None]:
    """The columns of a file, and its rows if it is Parquet. Kept: files may be many, and far."""
    if is_parquet(file.path):
        opened, path = open_file_system(file.path)
        metadata = pa.parquet.read_metadata(path, filesystem=opened)
        schema, num_rows = metadata.schema.to_arrow_schema().remove_metadata(), metadata.num_rows
        return _INTERNED.setdefault(schema, schema), num_rows
    with _open_csv(file, format, None) as reader:
        schema = reader.schema
    count = Counter(schema.names)
    numbers = [each.name for each in schema if _is_number(each.type) and count[each.name] == 1]
    if numbers:
        with _open_csv(file, format, numbers) as reader:
            batch = next(iter(reader))
        for name in numbers:
            at, texts = schema.get_field_index(name), batch.column(name)
            if pc.any(pc.match_substring_regex(texts, r"^[+-]?0\d")).as_py():
                schema = schema.set(at, pa.field(name, pa.string()))
            elif pc.all(pc.match_substring_regex(texts, r"^-?\d+(\.0+)?$")).as_py():
                schema = schema.set(at, pa.field(name, pa.int64()))
    return _INTERNED.setdefault(schema, schema), None


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def forget_looks() -> None:
    """Files that are changed without another size or time are looked at again."""
    _look.cache_clear()
    _INTERNED.clear()


_INTERNED: dict[pa.Schema, pa.Schema] = {}  # ten thousand files have the same columns


def _open_csv(file: File, format: Files, chosen: Sequence[str] | None) -> Any:
    """``chosen`` are read as texts: types are those of the description."""
    opened, inside = open_file_system(file.path)
    delimiter = format.delimiter or ("\t" if has_kind(file.path, (".tsv", ".tsv.gz")) else ",")
    options: dict[str, Any] = {"strings_can_be_null": True, "null_values": [""]}
    if chosen is not None:
        # Their bytes are checked where a wrong one is told with its row.
        types = dict.fromkeys(chosen, pa.string())
        options |= {"include_columns": list(chosen), "column_types": types, "check_utf8": False}
    is_compressed = has_kind(file.path, (".gz",))
    # A block is memory that is taken at once: no more than there is to read.
    num_bytes = 0 if is_compressed else file.num_bytes
    block_bytes = min(BLOCK_BYTES, num_bytes + 1) if num_bytes else BLOCK_BYTES
    return pa.csv.open_csv(
        opened.open_input_stream(inside, compression="gzip" if is_compressed else None),
        pa.csv.ReadOptions(block_size=block_bytes, autogenerate_column_names=not format.header),
        pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pa.csv.ConvertOptions(**options),
    )
