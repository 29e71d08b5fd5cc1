"""Tables of nodes and of edges, read into arrays that are in scratch files."""

from __future__ import annotations

import glob
import importlib
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from glt._checks import is_of_machine, naming_the_limit
from glt.data.arrays import map_npy
from glt.partition.format.rows import chunks
from glt.partition.inputs.arrays import ScratchRows, blank, by_id, pair, pair_dtype

_BLOCK_BYTES: Final = 1 << 20


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
                for inside in sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(_PARQUET + _CSV)):
                    if not any(part.startswith((".", "_")) for part in inside.relative_to(path).parts):
                        found.append(inside)
            elif path.is_file():
                found.append(path)
            else:
                found += [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file()]
        if not found:
            raise FileNotFoundError(f"{key} = {given!r}: expected Parquet or CSV files, found none below {base}")
        for path in found:
            if not path.name.endswith(_PARQUET + _CSV):
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
        with _readable(self.paths[0]):
            return tuple(self._names(self.paths[0]))

    def num_rows(self) -> int:
        """Counts the rows of all files; of Parquet its metadata is read, of CSV one column."""
        num_rows = 0
        for path in self.paths:
            with _readable(path):
                if path.name.endswith(_PARQUET):
                    num_rows += _arrow("pyarrow.parquet").read_metadata(path).num_rows
                else:
                    num_rows += sum(batch.num_rows for batch in self._read(path, (), {}))
        return num_rows

    def largest(self, column: str) -> int | None:
        """Returns the largest integer of a column, -1 without rows; None if that takes reading it."""
        largest = -1
        for path in self.paths:
            if not path.name.endswith(_PARQUET):
                return None
            with _readable(path):
                metadata = _arrow("pyarrow.parquet").read_metadata(path)
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                if group.num_rows == 0:
                    continue
                columns = map(group.column, range(group.num_columns))
                statistics = next((each.statistics for each in columns if each.path_in_schema == column), None)
                if statistics is None or not statistics.has_min_max or not isinstance(statistics.max, int):
                    return None
                largest = max(largest, statistics.max)
        return largest

    def _names(self, path: Path) -> list[str]:
        if path.name.endswith(_PARQUET):
            return _arrow("pyarrow.parquet").read_schema(path).names
        with self._open_csv(path) as opened:
            return opened.schema.names

    def _read(self, path: Path, columns: Sequence[str], types: Mapping[str, np.dtype]) -> Iterator[Any]:
        names = self._names(path)
        for name in columns:
            if name not in names:
                raise ValueError(f"{path} has no column {name!r}: it has {', '.join(map(repr, names))}")
            if names.count(name) > 1:
                raise ValueError(f"{path} has several columns {name!r}: expected one of a name; rename them")
        chosen = list(columns) or names[:1]
        if path.name.endswith(_PARQUET):
            # Without pre_buffer, no more than a page of each column of the row group is held.
            with _arrow("pyarrow.parquet").ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
                yield from file.iter_batches(_BATCH_ROWS, columns=chosen, use_threads=False)
            return
        # Floats are read as doubles and rounded once, as everywhere.
        wanted = {name: _arrow().from_numpy_dtype(_read_as(types[name])) for name in columns if name in types}
        with self._open_csv(path, include_columns=chosen, column_types=wanted) as opened:
            yield from opened

    def _open_csv(self, path: Path, **conversion: Any) -> Any:
        csv = _arrow("pyarrow.csv")
        return csv.open_csv(
            path,
            csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False, autogenerate_column_names=not self.header),
            csv.ParseOptions(delimiter=self.delimiter or ("\t" if ".tsv" in path.suffixes else ",")),
            csv.ConvertOptions(**conversion),
        )


def _arrow(module: str = "pyarrow") -> Any:
    """Returns pyarrow or a module of it; raises ImportError saying how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"Parquet and CSV need the package pyarrow ({error}): pip install pyarrow") from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what a damaged file raises into a ValueError that names it; raises ImportError without pyarrow."""
    arrow = _arrow()
    try:
        with naming_the_limit(path):
            yield
    except (arrow.ArrowException, OSError, EOFError, zlib.error) as error:
        if is_of_machine(error):
            raise
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _read_as(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64 if dtype.kind == "f" else np.int64 if dtype.kind in "iu" else dtype)


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


def read_fields(files: TableFiles, fields: Mapping[Any, Field], scratch: Path) -> dict[Any, np.ndarray]:
    """Reads arrays ``[rows, ...]`` of a table in one pass; no more than a record batch of them is in memory, of CSV a
    few blocks of 1 MiB that pyarrow reads ahead. A ValueError names file, column and row of a value that does not fit.
    """
    out: dict[Any, ScratchRows] = {}
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


def _outline_fields(files: TableFiles, fields: Mapping[Any, Field]) -> dict[Any, np.ndarray]:
    """Returns zeros, which take no memory, of the shapes and dtypes that :func:`read_fields` would return if all rows
    are like the first ones; errors likewise.
    """
    with closing(files.batches(*_columns(fields))) as batches:
        path, _, batch = next(batches, (None, 0, None))
    if path is None:
        return {name: np.empty(0, field.dtype or np.int64) for name, field in fields.items()}
    num_rows = files.num_rows()
    first_rows = {name: _rows(field, path, 0, batch) for name, field in fields.items()}
    return {name: blank(rows.dtype, (num_rows, *rows.shape[1:])) for name, rows in first_rows.items()}


def _columns(fields: Mapping[Any, Field]) -> tuple[tuple[str, ...], dict[str, np.dtype]]:
    """The columns of all fields, and the types that some are to have."""
    columns = tuple(dict.fromkeys(column for field in fields.values() for column in field.columns))
    return columns, {c: field.dtype for field in fields.values() for c in field.columns if field.dtype is not None}


def _rows(field: Field, path: Path, first: int, batch: Any) -> np.ndarray:
    several = [_values(batch.column(c), _Place(path, c, first), field.dtype) for c in field.columns]
    return _beside(several, field, path) if field.side_by_side else several[0]


@dataclass(frozen=True)
class _Place:
    """A column from row ``first`` on; with ``length``, the elements of its lists of so many."""

    path: Path
    column: str
    first: int
    length: int = 0

    def row(self, at: int) -> str:
        row, element = divmod(at, self.length or 1)
        of_list = f", element {element}," if self.length else ""
        return f"{self}, row {self.first + row} (from 0, the header apart){of_list}"

    def __str__(self) -> str:
        return f"{self.path}: column {self.column!r}"


def _values(column: Any, place: _Place, dtype: np.dtype | None) -> np.ndarray:
    arrow = _arrow()
    kinds, kind = arrow.types, column.type
    if column.null_count:
        at = column.is_null().to_numpy(zero_copy_only=False).argmax()
        raise ValueError(f"{place.row(int(at))} has no value: fill it in, or drop the row")
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
    arrow = _arrow()
    if arrow.types.is_fixed_size_list(column.type):
        length = column.type.list_size
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        length = int(lengths[0]) if len(lengths) else 0
        if (lengths != length).any():
            at = int((lengths != length).argmax())
            raise ValueError(f"{place.row(at)} has {lengths[at]} elements: expected {length}, as before it")
    inner = _values(column.flatten(), replace(place, length=max(length, 1)), dtype)
    return inner.reshape(len(column), length, *inner.shape[1:])


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
        at = int(wrong.argmax())
        raise ValueError(f"{place.row(at)} is {values[at]}, which {dtype} does not hold: state another dtype")
    return converted


@dataclass(frozen=True)
class _Table:
    """The nodes or edges of one type: ``fields`` by the name of the argument that they become, such as ``node_feat``,
    ids as ``id``, ``src``, ``dst``, named tables as ``("attr", name)``; ``key`` is what messages call it.
    """

    key: str
    files: TableFiles | None
    fields: Mapping[Any, Field]

    def _arrays(self, scratch: Path, outline: bool) -> tuple[dict[Any, np.ndarray], int | None]:
        """Returns arrays by field, and the number of rows of the table, None without one; for an ``outline``, arrays
        are zeros of the right shapes and dtypes."""
        arrays = {name: map_npy(field.path) for name, field in self.fields.items() if field.path is not None}
        of_table = {name: field for name, field in self.fields.items() if field.path is None}
        if self.files is None:
            for field in of_table.values():
                raise ValueError(
                    f"{field.key} names the column {field.columns[0]!r}, but {self.key} has no files: add files"
                )
            return arrays, None
        found = _outline_fields(self.files, of_table) if outline else read_fields(self.files, of_table, scratch)
        num_rows = len(next(iter(found.values()))) if found else self.files.num_rows()
        return arrays | found, num_rows

    def _arguments(self, kind: str, arrays: Mapping[Any, np.ndarray]) -> dict[str, Any]:
        """Named tables go together into one argument."""
        attrs = {name[1]: array for name, array in arrays.items() if isinstance(name, tuple)}
        fields = {name: array for name, array in arrays.items() if isinstance(name, str)}
        return fields | {f"{kind}_attrs": attrs or None}


@dataclass(frozen=True)
class NodeTable(_Table):
    """The nodes of one type, and how many, if that is stated."""

    num_nodes: int | None = None

    def read(self, scratch: Path, outline: bool) -> dict[str, Any]:
        """Returns the arguments of a partitioner for this type; for an ``outline`` rows are counted only, and tables
        are zeros."""
        arrays, num_rows = self._arrays(scratch, outline)
        if self.num_nodes is not None and num_rows not in (None, self.num_nodes):
            raise ValueError(f"{self.key}: num_nodes = {self.num_nodes}, but its table has {num_rows} rows")
        ids = arrays.pop("id", None)
        if ids is not None and not outline:
            key = self.fields["id"].key
            _require_ids(key, ids)
            if not _in_order(key, ids):
                arrays = {name: by_id(scratch, rows, ids) for name, rows in arrays.items()}
        num_nodes = num_rows if self.num_nodes is None else self.num_nodes
        return {"num_nodes": num_nodes, **self._arguments("node", arrays)}


@dataclass(frozen=True)
class EdgeTable(_Table):
    """The edges of one type: fields are ``src`` and ``dst``, or ``edge_index``."""

    def read(self, scratch: Path, outline: bool, with_ids: bool = True) -> dict[str, Any]:
        """As :meth:`NodeTable.read`. ``with_ids`` the largest id of either end is among the ids of an outline, which
        are else zeros: the statistics of Parquet tell it, others are read, into ``scratch``.
        """
        arrays, _ = self._arrays(scratch, outline)
        if "edge_index" not in arrays:
            ends = self._ends(arrays)
            arrays["edge_index"] = self._outlined(ends, scratch, with_ids) if outline else pair(scratch, *ends)
        return self._arguments("edge", arrays)

    def _outlined(self, ends: list[np.ndarray], scratch: Path, with_ids: bool) -> np.ndarray:
        edge_index = blank(pair_dtype(*ends), (2, len(ends[0])))
        if not with_ids or edge_index.size == 0:
            return edge_index
        of_table = {name: self.fields[name] for name in ("src", "dst") if self.fields[name].path is None}
        if self.files is None or not of_table:  # of .npy files, whose ids are mapped
            edge_index[:, 0] = [end.max() for end in ends]
            return edge_index
        files, both = self.files, dict(zip(("src", "dst"), ends, strict=True))
        largest = {name: files.largest(field.columns[0]) for name, field in of_table.items()}
        if None in largest.values():
            return pair(scratch, *self._ends(both | read_fields(files, of_table, scratch)))
        edge_index[:, 0] = [largest[name] if name in largest else end.max() for name, end in both.items()]
        return edge_index

    def _ends(self, arrays: dict[Any, np.ndarray]) -> list[np.ndarray]:
        """Takes the ids of both ends out of what was read."""
        return [_require_ids(self.fields[name].key, arrays.pop(name)) for name in ("src", "dst")]


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
