"""Columns of tables as arrays: one pass over the files fills all arrays that are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glt.data.arrays import map_npy
from glt.partition.inputs.scratch import ScratchRows, blank
from glt.partition.inputs.table_files import TableFiles, require_arrow


@dataclass(frozen=True)
class Field:
    """An array of a graph, and what it is made of.

    Attributes:
        key: Who asks for it, for messages.
        columns: Of the table: one, whose values (or lists of equal length) are the rows, or several, side by side.
        side_by_side: Whether a row is a vector even of one column.
        dtype: What the values become, if that is possible without changing them; floats may be rounded. Default: as
            they are; columns side by side have one dtype.
        path: An ``.npy`` file, in place of columns.
    """

    key: str
    columns: tuple[str, ...] = ()
    side_by_side: bool = False
    dtype: np.dtype | None = None
    path: Path | None = None

    def map(self) -> np.ndarray:
        """Maps the ``.npy`` file."""
        assert self.path is not None
        return map_npy(self.path)


def read_fields(files: TableFiles, fields: Mapping[str, Field], scratch: Path) -> dict[str, np.ndarray]:
    """Reads arrays ``[rows, ...]`` of a table; no more than a record batch of them is in memory, of CSV a few blocks
    of 1 MiB that pyarrow reads ahead.

    Raises:
        ImportError: Without pyarrow.
        ValueError: If a value is missing, no number, or not of the dtype: names the file, the column and the row.
        OSError: If there is no room in ``scratch``.
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
    """Returns arrays of the shapes and dtypes that :func:`read_fields` would return if all rows are like the first
    ones: zeros, which take no memory. Rows are counted, see :meth:`TableFiles.estimated_rows`.

    Raises:
        ImportError: Without pyarrow.
        ValueError: If the first rows do not fit, or a file is damaged: names it.
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
