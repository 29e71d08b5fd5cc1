"""What the values of a column become: keys int64 or texts, times int64 seconds, numbers float64, categories texts.

What is no such thing is an error that names table, file, column, row and value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt.errors import TableError
from glt.tables.descriptions.description import SPLITS

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LARGEST: Final = float(np.finfo(np.float32).max)
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799  # of the years 1 and 9999
_FEW: Final = 12  # names in a message
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")


@dataclass(frozen=True)
class Column:
    """A column of a table as it is used: ``name`` is what it is called from here on, ``kind`` what it holds: ``int``
    and ``text`` (keys), ``number``, ``unsigned`` (at least 0),
    ``boolean``, ``category``, ``split``, ``time``, ``vector``, or ``string``."""

    name: str
    column: str
    kind: str
    is_nullable: bool = False
    unit: str = "s"
    length: int | None = None
    known: tuple[str, ...] | None = None  # of categories: all that there may be


def few(names: Sequence[str]) -> str:
    """The first of the names, and how many there are further."""
    shown = ", ".join(map(repr, names[:_FEW]))
    return shown if len(names) <= _FEW else f"{shown} and {len(names) - _FEW} more"


def arrow_type(column: Column) -> pa.DataType:
    if column.kind == "vector":
        return pa.list_(pa.float32(), column.length or -1)
    plain = {
        "int": pa.int64(),
        "time": pa.int64(),
        "number": pa.float64(),
        "unsigned": pa.float64(),
        "boolean": pa.bool_(),
    }
    return plain.get(column.kind, pa.string())


@dataclass(frozen=True)
class _Place:
    """Where values are, for messages."""

    column: Column
    where: str
    path: str
    first_row: int
    rows: np.ndarray | None = None  # of each value, if a row has several

    def refuse(self, values: pa.Array, is_wrong: pa.Array, expected: str) -> None:
        """Raises TableError if ``is_wrong`` anywhere; names the first."""
        wrong = np.flatnonzero(np.asarray(pc.fill_null(is_wrong, False)))
        if len(wrong):
            at = int(wrong[0])
            row = at if self.rows is None else int(self.rows[at])
            raise TableError(
                f"{self.where}: {self.path}, column {self.column.column!r}, row {self.first_row + row}: "
                f"{values[at].as_py()!r}: expected {expected}"
            )


def _from_csv(values: pa.Array, column: Column) -> pa.Array:
    """The texts of CSV as Parquet would have them: 7.0, as pandas writes 7 of a column that has nulls, is 7; its
    True is true."""
    if column.kind == "category" and pc.any(pc.is_in(values, pa.array(["True", "False"]))).as_py():
        values = pc.replace_substring_regex(pc.replace_substring_regex(values, "^True$", "true"), "^False$", "false")
    if column.kind not in ("int", "category") or not pc.any(pc.match_substring(values, ".")).as_py():
        return values
    return pc.replace_substring_regex(values, r"^(-?\d+)\.0+$", r"\1")


def convert(values: pa.Array, column: Column, where: str, path: str, first_row: int, is_csv: bool = False) -> pa.Array:
    place = _Place(column, where, path, first_row)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    if pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if pa.types.is_string(values.type):
        values = _readable_texts(values, place)
        if is_csv:
            values = _from_csv(values, column)
        if column.kind in _WITHOUT_TEXTS:
            values = pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)
    converted = _CONVERT[column.kind](values, place)
    if not column.is_nullable and converted.null_count:
        place.refuse(values, pc.is_null(converted), _WITHOUT_NULLS[column.kind])
    return converted


def _readable_texts(values: pa.Array, place: _Place) -> pa.Array:
    """The same; raises TableError if one is no UTF-8, which readers do not check."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        given = values.cast(pa.binary())
        place.refuse(given, pa.array([not _is_utf8(each) for each in given.to_pylist()]), "a text in UTF-8")
        raise
    return values


def _is_utf8(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


_RAW: Final = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
_WITHOUT_TEXTS: Final = ("number", "unsigned", "boolean", "time", "vector")
_WITHOUT_NULLS: Final = dict.fromkeys(
    ("int", "text"),
    "a key in every row; drop the row, or give it one; of edges, missing = 'drop' leaves such rows out",
) | dict.fromkeys(
    ("number", "unsigned", "boolean", "category", "split", "time", "vector", "string"),
    "a value in every row; of a feature, missing = 'indicator' takes nulls",
)


def _refuse_type(values: pa.Array, place: _Place, expected: str) -> TableError:
    return TableError(
        f"{place.where}: {place.path}, column {place.column.column!r} has type {values.type}: expected {expected}"
    )


def _as_int(values: pa.Array, place: _Place) -> pa.Array:
    if pa.types.is_integer(values.type):
        return _signed(values, place)
    expected = "integers, as in the other tables of this key"
    if pa.types.is_floating(values.type):
        return _whole_numbers(values, place, expected)
    expected += "; key_type = 'text' of the node type takes any text"
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


def _signed(values: pa.Array, place: _Place) -> pa.Array:
    if pa.types.is_uint64(values.type):
        is_large = pc.greater(values, pa.scalar(2**63 - 1, pa.uint64()))
        place.refuse(values, is_large, "integers below 2**63; key_type = 'text' of the node type takes larger ones")
    return values.cast(pa.int64())


def _whole_numbers(values: pa.Array, place: _Place, expected: str) -> pa.Array:
    """What pandas makes of integers and nulls, as integers and nulls."""
    values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values).cast(pa.float64())
    is_whole = pc.and_(pc.equal(values, pc.floor(values)), pc.less(pc.abs(values), float(2**53)))
    place.refuse(values, pc.invert(is_whole), expected)
    return values.cast(pa.int64())


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
    place.refuse(values, pc.greater(pc.abs(numbers), _LARGEST), f"a finite number, at most {_LARGEST:.3g} (float32)")
    numbers = pc.add(numbers, 0.0)  # not -0.0, which engines do not order alike
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)


def _as_unsigned(values: pa.Array, place: _Place) -> pa.Array:
    numbers = _as_number(values, place)
    place.refuse(values, pc.less(numbers, 0.0), "a number of at least 0, of a weight or for a logarithm")
    return numbers


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
        expected = "categories as texts, integers or booleans; of kind 'number' it is a number"
        values = _whole_numbers(values, place, expected)
    if pa.types.is_nested(values.type) or any(is_raw(values.type) for is_raw in _RAW):
        raise _refuse_type(values, place, "categories as texts, integers or booleans; cast the column")
    found = values if pa.types.is_string(values.type) else values.cast(pa.string())
    if (known := place.column.known) is not None:
        is_known = pc.or_(pc.is_null(found), pc.is_in(found, pa.array(known, pa.string())))
        classes = f"one of the classes of the graph that is updated, {few(known)}" if known else "no label, as before"
        place.refuse(found, pc.invert(is_known), f"{classes}; build without --update to number them again")
    return found


def _as_split(values: pa.Array, place: _Place) -> pa.Array:
    names = _as_category(values, place)
    is_known = pc.or_(pc.is_null(names), pc.is_in(names, pa.array(SPLITS)))
    place.refuse(values, pc.invert(is_known), f"one of {', '.join(map(repr, SPLITS))}, or null")
    return names


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
    given = _signed(values, place)
    down = np.floor_divide(np.asarray(pc.fill_null(given, 0)), unit)
    is_other = pa.array((down < _FIRST_S) | (down > _LAST_S))
    place.refuse(given, is_other, f"a time of the years 1 to 9999; as {place.column.unit!r} it is none, see 'unit'")
    return pa.array(down, mask=np.asarray(pc.is_null(given)))


_ZONE: Final = r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$"


def kind_of_times(type_: pa.DataType, texts: pa.Array | None = None) -> str | None:
    """What times of a type are, in words; of texts as the first ones say, which may be none."""
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return "times with a zone"
    if pa.types.is_temporal(type_):
        return "times without a zone"
    if pa.types.is_integer(type_):
        return "numbers"
    present = None if texts is None else pc.filter(texts, pc.not_equal(texts, "")).drop_null()
    if not present:
        return None
    if pc.all(pc.match_substring_regex(present, r"^-?\d+$")).as_py():
        return "numbers"
    has_zone = pc.any(pc.match_substring_regex(present, _ZONE)).as_py()
    return "times with a zone" if has_zone else "times without a zone"


def _times_of(values: pa.Array, place: _Place) -> pa.Array:
    kind = kind_of_times(values.type, values)
    if kind in ("numbers", None):
        return _parsed(values, pa.int64(), place, "a time, or an integer below 2**63 in the time's unit")
    expected = "a time such as 2024-05-31 or 2024-05-31T10:00:00"
    values = pc.replace_substring_regex(values, r"(:\d\d\.\d{6})\d+", r"\1")  # seconds are what is kept
    if kind == "times without a zone":
        return _parsed(values, pa.timestamp("us"), place, expected)
    has_zone = pc.match_substring_regex(values, _ZONE)
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
    given, place = pc.list_flatten(values), replace(place, rows=np.asarray(pc.list_parent_indices(values)))
    flat = _as_number(given, place)
    place.refuse(given, pc.is_null(flat), "lists without nulls and NaN")
    valid = np.asarray(pc.is_valid(values))
    dense = np.zeros((len(values), length), np.float32)
    dense[valid] = np.asarray(flat).reshape(-1, length)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(dense.reshape(-1)), length, mask=pa.array(~valid))
    return rows


_CONVERT: Final = {
    "int": _as_int,
    "text": _as_text,
    "number": _as_number,
    "unsigned": _as_unsigned,
    "boolean": _as_boolean,
    "category": _as_category,
    "split": _as_split,
    "time": _as_time,
    "vector": _as_vector,
    "string": _as_text,
}


def seconds_of(text: str, where: str) -> int:
    """A time in a description as seconds since 1970 in UTC."""
    column = Column("time", where, "time")
    return int(_as_time(pa.array([text]), _Place(column, where, "the description", 0))[0].as_py())
