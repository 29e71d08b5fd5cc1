"""What columns carry that are neither keys nor ends: times, labels, splits and features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from glt.tables.descriptions.description import SPLITS
from glt.tables.guesses.ends import has_id, is_integers, is_texts, words_of
from glt.tables.guesses.looked import Looked

_LABELS: Final = ("label", "target", "y", "class", "fraud", "isfraud", "churn", "churned", "outcome")
_SPLIT_NAMES: Final = ("split", "part", "fold", "set", "subset")
_TIME_WORDS: Final = ("time", "timestamp", "date", "at", "ts", "datetime", "when")
_UNITS: Final = (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
_SPAN: Final = (315_532_800, 4_102_444_800)  # 1980 and 2100 in seconds: what integers that are times lie between
_MAX_CATEGORIES: Final = 200  # texts of more values, and that repeat less than ten times, are no category


def rest_of(table: Looked, used: Sequence[str | None], is_edge: bool, with_time: bool = True) -> dict[str, Any]:
    """Time, label, split and features: all columns that are not used yet."""
    left = [column for column in table.columns if column not in used]
    found: dict[str, Any] = {}
    times = {column: unit for column in left if (unit := _time_unit(table, column)) is not None}
    if times and with_time and (is_edge or table.ends):  # rows are events
        column = next(iter(times))
        found["time"] = column if times[column] == "" else {"column": column, "unit": times[column]}
        left.remove(column)
    for column in left:
        is_named_so = words_of(column)[-1:] and words_of(column)[-1] in _SPLIT_NAMES
        if "split" not in found and is_named_so and is_texts(table.values(column).type):
            parts = set(pc.unique(pc.drop_null(table.values(column))).to_pylist())
            if parts and parts <= set(SPLITS):
                found["split"] = {"column": column}
    for column in left:
        if "label" not in found and "".join(words_of(column)) in _LABELS:
            is_number = pa.types.is_floating(table.values(column).type)
            found["label"] = {"column": column, "kind": "number"} if is_number else column
    left = [column for column in left if column not in _columns_in(found)]
    if "label" in found and "split" not in found:
        found["split"] = {"ratio": [0.8, 0.1, 0.1]}
    features = {}
    for column in left:
        if column in times:
            feature: dict[str, Any] | str = {"kind": "timestamp"} | ({"unit": times[column]} if times[column] else {})
        else:
            feature = _feature(table, column)
        if isinstance(feature, str):
            table.remarks.append(f"{column!r} is left out: {feature}.")
            continue
        if table.values(column).null_count:
            feature["missing"] = "indicator"
        features[column] = feature
    return found | ({"features": features} if features else {})


def _columns_in(found: Mapping[str, Any]) -> Iterator[str]:
    for each in found.values():
        yield each if isinstance(each, str) else each.get("column", "")


def _time_unit(table: Looked, column: str) -> str | None:
    """``""`` of a column of timestamps, a unit of integers that are times, or None."""
    values = table.values(column)
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        return ""
    if not is_integers(values.type) or not set(words_of(column)) & set(_TIME_WORDS):
        return None
    bounds = pc.min_max(values).as_py()
    for unit, per_second in _UNITS:
        if (
            bounds["min"] is not None
            and _SPAN[0] <= bounds["min"] // per_second <= bounds["max"] // per_second <= _SPAN[1]
        ):
            return unit
    return None


def _feature(table: Looked, column: str) -> dict[str, Any] | str:
    """A feature, or why a column is none."""
    present = pc.drop_null(table.values(column))
    type_ = present.type
    if not len(present):
        return "it is null in all rows that were looked at"
    if pa.types.is_boolean(type_):
        return {"kind": "boolean"}
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        lengths = pc.unique(pc.list_value_length(present)).to_pylist()
        is_numbers = pa.types.is_integer(type_.value_type) or pa.types.is_floating(type_.value_type)
        if not is_numbers or len(lengths) != 1 or not lengths[0]:
            return "it has lists of several lengths, or of no numbers"
        return {"kind": "vector", "length": lengths[0]}
    if not (pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)):
        return _text_feature(present) if is_texts(type_) else f"it has type {type_}"
    num_distinct = pc.count_distinct(present).as_py()
    if num_distinct == 1:
        return f"it is {present[0].as_py()} in all rows that were looked at"
    if has_id(column) and is_integers(type_):
        return {"kind": "category"} if num_distinct <= _MAX_CATEGORIES else "it looks like a key of no table here"
    numbers = present.cast(pa.float64(), safe=False)
    bounds, median = pc.min_max(numbers).as_py(), pc.approximate_median(numbers).as_py()
    return {"scale": "log" if bounds["min"] >= 0 and bounds["max"] > 50 * max(median, 1e-9) else "standardize"}


def _text_feature(present: pa.ChunkedArray) -> dict[str, Any] | str:
    plain = present.cast(pa.string())
    num_distinct = pc.count_distinct(plain).as_py()
    if num_distinct == 1:
        return f"it is {plain[0].as_py()!r} in all rows that were looked at"
    if num_distinct <= _MAX_CATEGORIES and (12 > num_distinct < len(plain) or 10 * num_distinct <= len(plain)):
        return {"kind": "category", "max": max(8, min(num_distinct, 32))}
    return (
        f"it has {num_distinct} texts in {len(plain)} rows; a function of yours makes numbers of them: "
        '{ kind = "text", length = N, function = "module:function" }'
    )
