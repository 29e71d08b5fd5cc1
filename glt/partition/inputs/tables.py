"""Tables of nodes and of edges, read into arrays that are in scratch files."""

from __future__ import annotations

import glob
import gzip
import importlib
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np

from glt.data.arrays import map_npy
from glt.partition.format.files import chunks
from glt.partition.inputs.arrays import ScratchRows, blank, by_id, pair, pair_dtype

_BLOCK_BYTES: Final = 1 << 20
_LINE_FEED, _CARRIAGE_RETURN = 10, 13


def parquet_rows(path: Path) -> int:
    return importlib.import_module("pyarrow.parquet").read_metadata(path).num_rows


def parquet_largest(path: Path, column: str) -> int | None:
    """Returns the largest integer of a column, -1 where there is none; None if the file's footer does not say."""
    metadata = importlib.import_module("pyarrow.parquet").read_metadata(path)
    largest = -1
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        if group.num_rows == 0:
            continue
        columns = [group.column(i) for i in range(group.num_columns)]
        statistics = next((each.statistics for each in columns if each.path_in_schema == column), None)
        if statistics is None or not statistics.has_min_max or not isinstance(statistics.max, int):
            return None
        largest = max(largest, statistics.max)
    return largest


def count_lines(path: Path) -> int:
    """Counts the lines of a text file, compressed or not, that are not empty."""
    num_lines, in_line = 0, False
    opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    with cast(BinaryIO, opened) as file:
        while block := file.read(_BLOCK_BYTES):
            data = np.frombuffer(block, np.uint8)
            is_text = (data != _LINE_FEED) & (data != _CARRIAGE_RETURN)
            num_lines += int(np.count_nonzero(is_text[1:] & ~is_text[:-1])) + (bool(is_text[0]) and not in_line)
            in_line = bool(is_text[-1])
    return num_lines


_PARQUET: Final = (".parquet", ".pq")
_CSV: Final = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
_BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class TableFiles:
    """The Parquet or CSV files of a table, one after the other: row numbers go on from file to file.

    With ``header`` CSV files begin with the names of their columns, else these are ``f0``, ``f1``, ...; ``delimiter``
    is by default a tab in ``.tsv`` files, else a comma.
    """

    paths: tuple[Path, ...]
    header: bool = True
    delimiter: str | None = None

    @classmethod
    def of(
        cls, key: str, given: str | Sequence[str], base: Path, header: bool = True, delimiter: str | None = None
    ) -> TableFiles:
        """Finds files: ``given`` is a file, a directory, a pattern such as ``"part-*.parquet"``, or a list of these,
        whose order is kept; ``key`` says who asks, for messages.

        The files of a directory (with those below it) or pattern are in the order of their paths: ``part-10`` comes
        before ``part-2``. Names that begin with ``.`` or ``_`` do not count. Relative paths begin at ``base``.
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

        ``columns`` are what to read (nothing: a first column, for its length), ``types`` those of columns whose type
        text does not tell. ImportError without pyarrow; ValueError naming a file that is damaged or lacks a column.
        """
        for path in self.paths:
            first = 0
            with _readable(path):
                for batch in self._read(path, columns, types):
                    yield path, first, batch
                    first += batch.num_rows

    def column_names(self) -> tuple[str, ...]:
        """The columns of the first file."""
        path = self.paths[0]
        with _readable(path):
            if path.name.endswith(_PARQUET):
                return tuple(importlib.import_module("pyarrow.parquet").read_schema(path).names)
            return self._csv_names(path, self._csv_options(path))

    def num_rows(self) -> int:
        """Counts the rows of all files; of Parquet without reading them."""
        parquet = [path for path in self.paths if path.name.endswith(_PARQUET)]
        others = TableFiles(tuple(path for path in self.paths if path not in parquet), self.header, self.delimiter)
        num_rows = sum(batch.num_rows for _, _, batch in others.batches((), {}))
        return num_rows + TableFiles(tuple(parquet)).estimated_rows()

    def estimated_rows(self) -> int:
        """As :meth:`num_rows`, without reading any values: of CSV, lines are counted, and a value that has a line break
        in quotes counts for two rows.
        """
        num_rows = 0
        for path in self.paths:
            with _readable(path):
                is_parquet = path.name.endswith(_PARQUET)
                num_rows += parquet_rows(path) if is_parquet else max(0, count_lines(path) - self.header)
        return num_rows

    def largest(self, column: str) -> int | None:
        """Returns the largest integer of a column, -1 without rows; None if that takes reading it."""
        largest = -1
        for path in self.paths:
            if not path.name.endswith(_PARQUET):
                return None
            with _readable(path):
                found = parquet_largest(path, column)
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
    return path.name.endswith(_PARQUET + _CSV)


def require_arrow() -> Any:
    """Returns pyarrow; raises ImportError saying how to install it."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError(f"Parquet and CSV need the package pyarrow ({error}): pip install 'glt[parquet]'") from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what a damaged file raises into a ValueError that names it; raises ImportError without pyarrow."""
    arrow = require_arrow()
    try:
        yield
    except (arrow.ArrowException, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


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


@dataclass(frozen=True)
class Field:
    """An array of a graph, and what it is made of: ``columns`` of the table, one whose values (or lists of equal
    length) are the rows, or several ``side_by_side``; or the ``.npy`` file ``path``. ``key`` says who asks for it, for
    messages.

    ``dtype`` is what the values become, if that is possible without changing them; floats may be rounded.
    """

    key: str
    columns: tuple[str, ...] = ()
    side_by_side: bool = False
    dtype: np.dtype | None = None
    path: Path | None = None


def read_fields(files: TableFiles, fields: Mapping[str, Field], scratch: Path) -> dict[str, np.ndarray]:
    """Reads arrays ``[rows, ...]`` of a table in one pass; no more than a record batch of them is in memory, of CSV a
    few blocks of 1 MiB that pyarrow reads ahead. A ValueError names file, column and row of a value that does not fit.
    """
    out: dict[str, ScratchRows] = {}
    for path, first, batch in files.batches(*_columns(fields)):
        for name, field in fields.items():
            rows = _rows(field, path, first, batch)
            if name not in out:
                out[name] = ScratchRows(scratch, rows.dtype, rows.shape[1:])
            elif (rows.dtype, rows.shape[1:]) != (out[name].dtype, out[name].row_shape):
                raise ValueError(
                    f"{path}: {field.key} has rows of {rows.dtype} {list(rows.shape[1:])} from row {first} on, but of "
                    f"{out[name].dtype} {list(out[name].row_shape)} before: state one dtype, or make rows equally long"
                )
            out[name].append(rows)
    return {
        name: out[name].array() if name in out else np.empty(0, field.dtype or np.int64)
        for name, field in fields.items()
    }


def outline_fields(files: TableFiles, fields: Mapping[str, Field]) -> dict[str, np.ndarray]:
    """Returns zeros, which take no memory, of the shapes and dtypes that :func:`read_fields` would return if all rows
    are like the first ones; errors likewise.
    """
    with closing(files.batches(*_columns(fields))) as batches:
        path, _, batch = next(batches, (None, 0, None))
    if path is None:
        return {name: np.empty(0, field.dtype or np.int64) for name, field in fields.items()}
    num_rows = files.estimated_rows()
    first_rows = {name: _rows(field, path, 0, batch) for name, field in fields.items()}
    return {name: blank(rows.dtype, (num_rows, *rows.shape[1:])) for name, rows in first_rows.items()}


def _columns(fields: Mapping[str, Field]) -> tuple[tuple[str, ...], dict[str, np.dtype]]:
    """The columns of all fields, and the types that some are to have."""
    columns = tuple(dict.fromkeys(column for field in fields.values() for column in field.columns))
    return columns, {c: field.dtype for field in fields.values() for c in field.columns if field.dtype is not None}


def _rows(field: Field, path: Path, first: int, batch: Any) -> np.ndarray:
    several = [_values(batch.column(c), _Place(path, c, first), field.dtype) for c in field.columns]
    return _beside(several, field, path) if field.side_by_side else several[0]


@dataclass(frozen=True)
class _Place:
    path: Path
    column: str
    first: int

    def row(self, at: int) -> str:
        return f"{self.path}: column {self.column!r}, row {self.first + at} (from 0, the header apart)"

    def __str__(self) -> str:
        return f"{self.path}: column {self.column!r}"


def _values(column: Any, place: _Place, dtype: np.dtype | None) -> np.ndarray:
    arrow = require_arrow()
    kinds, kind = arrow.types, column.type
    if column.null_count:
        raise ValueError(f"{place.row(_first(column.is_null()))} has no value: fill it in, or drop the row")
    if kinds.is_fixed_size_list(kind) or kinds.is_list(kind) or kinds.is_large_list(kind):
        return _lists(column, place, dtype)
    if kinds.is_temporal(kind) and dtype is not None:  # ticks of the unit that the column has
        column = column.cast(arrow.int32() if kind.bit_width == 32 else arrow.int64())
    elif not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)):
        hint = "; state a dtype to have its ticks" if kinds.is_temporal(kind) else ", such as ids 0, 1, 2, ...; map it"
        raise ValueError(f"{place} holds {kind}: expected numbers{hint}")
    values = column.to_numpy(zero_copy_only=False)
    return values if dtype is None else _converted(values, dtype, place)


def _lists(column: Any, place: _Place, dtype: np.dtype | None) -> np.ndarray:
    arrow = require_arrow()
    if arrow.types.is_fixed_size_list(column.type):
        length = column.type.list_size
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        length = int(lengths[0]) if len(lengths) else 0
        if (lengths != length).any():
            at = int(np.flatnonzero(lengths != length)[0])
            raise ValueError(f"{place.row(at)} has {lengths[at]} elements: expected {length}, as before it")
    inner = _values(column.flatten(), _Elements(place.path, place.column, place.first, max(length, 1)), dtype)
    return inner.reshape(len(column), length, *inner.shape[1:])


@dataclass(frozen=True)
class _Elements(_Place):
    """A place among the elements of lists of ``length``."""

    length: int = 1

    def row(self, at: int) -> str:
        return f"{super().row(at // self.length)}, element {at % self.length},"


def _beside(several: list[np.ndarray], field: Field, path: Path) -> np.ndarray:
    dtypes = {values.dtype for values in several}
    if len(dtypes) > 1:
        raise ValueError(
            f"{path}: the columns of {field.key} are of {', '.join(sorted(map(str, dtypes)))}: state the dtype that "
            "their values are to have"
        )
    if any(values.ndim > 1 for values in several):
        raise ValueError(f"{path}: {field.key} has columns of lists beside others: name one column of lists alone")
    return np.stack(several, axis=1)


def _converted(values: np.ndarray, dtype: np.dtype, place: _Place) -> np.ndarray:
    """Values of another dtype; floats may be rounded, but nothing else may change."""
    with np.errstate(all="ignore"):
        converted = values.astype(dtype, copy=False)
    if dtype.kind in "fc" and values.dtype.kind == "f":
        wrong = np.isinf(converted) & ~np.isinf(values)
    else:
        wrong = converted.astype(values.dtype) != values
    if values.dtype.kind in "iu":
        wrong |= (converted < 0) != (values < 0)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"{place.row(at)} is {values[at]}, which {dtype} does not hold: state another dtype")
    return converted


def _first(mask: Any) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])


_Reader = Callable[[TableFiles, Mapping[str, Field]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class _Table:
    """The nodes or edges of one type: ``fields`` by the name of the argument that they become, such as ``node_feat``,
    ids as ``id``, ``src``, ``dst``; ``attrs`` are named tables; ``key`` is what messages call it.
    """

    key: str
    files: TableFiles | None
    fields: Mapping[str, Field]
    attrs: Mapping[str, Field]

    def _found(self, read: _Reader) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int | None]:
        """Returns arrays by field, named tables, and the number of rows of the table; None without one."""
        given = {(0, name): field for name, field in self.fields.items()}
        given |= {(1, name): field for name, field in self.attrs.items()}
        arrays = {at: map_npy(field.path) for at, field in given.items() if field.path is not None}
        of_table = {f"{level} {name}": field for (level, name), field in given.items() if field.path is None}
        num_rows = None
        if self.files is None and of_table:
            field = next(iter(of_table.values()))
            raise ValueError(
                f"{field.key} names the column {field.columns[0]!r}, but {self.key} has no files: add files"
            )
        if self.files is not None:
            of_files = read(self.files, of_table)
            num_rows = len(next(iter(of_files.values()))) if of_files else self.files.num_rows()
            for at, rows in of_files.items():
                level, _, name = at.partition(" ")
                arrays[int(level), name] = rows
        fields, attrs = ({name: arrays[at, name] for at, name in given if at == level} for level in (0, 1))
        return fields, attrs, num_rows


@dataclass(frozen=True)
class NodeTable(_Table):
    """The nodes of one type, and how many, if that is stated."""

    num_nodes: int | None = None

    def read(self, scratch: Path) -> dict[str, Any]:
        """Returns the arguments of a partitioner for this type."""
        tables, attrs, num_nodes = self._counted(partial(read_fields, scratch=scratch))
        ids = tables.pop("id", None)
        if ids is not None:
            key = self.fields["id"].key
            _require_ids(key, ids)
            if not _in_order(key, ids):
                tables, attrs = (
                    {name: by_id(scratch, rows, ids) for name, rows in each.items()} for each in (tables, attrs)
                )
        return {"num_nodes": num_nodes, **tables, "node_attrs": attrs or None}

    def outline(self) -> dict[str, Any]:
        """The same, but rows are counted only: tables are zeros of their shapes and dtypes, see
        :func:`outline_fields`."""
        tables, attrs, num_nodes = self._counted(outline_fields)
        tables.pop("id", None)
        return {"num_nodes": num_nodes, **tables, "node_attrs": attrs or None}

    def _counted(self, read: _Reader) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int | None]:
        tables, attrs, num_rows = self._found(read)
        if self.num_nodes is not None and num_rows not in (None, self.num_nodes):
            raise ValueError(f"{self.key}: num_nodes = {self.num_nodes}, but its table has {num_rows} rows")
        return tables, attrs, num_rows if self.num_nodes is None else self.num_nodes


@dataclass(frozen=True)
class EdgeTable(_Table):
    """The edges of one type: fields are ``src`` and ``dst``, or ``edge_index``."""

    def read(self, scratch: Path) -> dict[str, Any]:
        """As :meth:`NodeTable.read`."""
        tables, attrs, _ = self._found(partial(read_fields, scratch=scratch))
        if "edge_index" not in tables:
            tables["edge_index"] = pair(scratch, *self._ends(tables))
        return tables | {"edge_attrs": attrs or None}

    def outline(self, scratch: Path, with_ids: bool) -> dict[str, Any]:
        """As :meth:`NodeTable.outline`. With ``with_ids`` the largest id of either end is among the ids, which are else
        zeros: the statistics of Parquet tell it, others are read, into ``scratch``.
        """
        tables, attrs, _ = self._found(outline_fields)
        if "edge_index" not in tables:
            ends = self._ends(tables)
            edge_index = blank(pair_dtype(*ends), (2, len(ends[0])))
            if with_ids and edge_index.size:
                assert self.files is not None
                fields = {name: self.fields[name] for name in ("src", "dst")}
                largest = [self.files.largest(field.columns[0]) for field in fields.values()]
                if None in largest:
                    edge_index = pair(scratch, *self._ends(read_fields(self.files, fields, scratch)))
                else:
                    edge_index[:, 0] = largest
            tables["edge_index"] = edge_index
        return tables | {"edge_attrs": attrs or None}

    def _ends(self, tables: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Takes the ids of both ends out of what was read."""
        return [_require_ids(self.fields[name].key, tables.pop(name)) for name in ("src", "dst")]


def _require_ids(key: str, ids: np.ndarray) -> np.ndarray:
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise ValueError(f"{key} holds rows of {ids.dtype} {list(ids.shape[1:])}: expected integers, ids of nodes")
    if ids.dtype == np.uint64 and any(int(piece.max()) >= 2**63 for _, piece in chunks(ids)):
        raise ValueError(f"{key} holds ids of 2**63 and more: expected ids of nodes, 0, 1, 2, ...")
    return ids


def _in_order(key: str, ids: np.ndarray) -> bool:
    """Tells whether ids are in order; raises ValueError unless each of ``0 .. rows - 1`` is there once."""
    seen = np.zeros(len(ids), bool)
    in_order = True
    for begin, piece in chunks(ids):
        outside = np.flatnonzero((piece < 0) | (piece >= len(ids)))
        if outside.size:
            raise ValueError(
                f"{key}: row {begin + outside[0]} has id {piece[outside[0]]}: expected the ids 0 to {len(ids) - 1}, "
                f"one for each of {len(ids)} rows; map them"
            )
        in_order &= bool((piece == np.arange(begin, begin + len(piece))).all())
        again = seen[piece]
        again[np.setdiff1d(np.arange(len(piece)), np.unique(piece, return_index=True)[1])] = True
        if again.any():
            at = int(np.flatnonzero(again)[0])
            raise ValueError(f"{key}: row {begin + at} has id {piece[at]} again: expected each id once")
        seen[piece] = True
    return in_order
