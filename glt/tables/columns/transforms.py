"""Columns of features to rows of ``x``: what is fitted on training rows, kept as JSON, and applied to any rows.

A :class:`Fit` sees training rows in batches and any order; fits of parts of the rows merge to that of all. Sums are
exact (integers by exponent, as in Kulisch's accumulator), counts are counts, and quantiles are those of bins, so
that neither the order of rows nor the engine that reads them changes a bit of what is fitted.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt.errors import TableError
from glt.tables.descriptions.description import Feature, Label

_MOST_CATEGORIES: Final = 1 << 20
_NUM_QUANTILES: Final = 100
_MOST_BINS: Final = 1 << 16
_CYCLES: Final = {"month": 12, "day": 31, "weekday": 7, "hour": 24}


class ExactSum:
    """The sum of many float64, exact, whatever their order."""

    def __init__(self) -> None:
        self._by_exponent: dict[int, int] = {}

    def add(self, values: np.ndarray) -> None:
        if not len(values):
            return
        mantissas, exponents = np.frexp(values)
        exponents = exponents.astype(np.int16)  # these are sorted by their digits
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        order = np.argsort(exponents, kind="stable")
        exponents, whole = exponents[order], whole[order]
        starts = np.flatnonzero(np.diff(exponents, prepend=exponents[0] - 1))
        high, low = (np.add.reduceat(part, starts) for part in (whole >> 26, whole & ((1 << 26) - 1)))
        for exponent, more, less in zip(exponents[starts].tolist(), high.tolist(), low.tolist(), strict=True):
            self._by_exponent[exponent] = self._by_exponent.get(exponent, 0) + (more << 26) + less

    def merge(self, other: ExactSum) -> None:
        for exponent, total in other._by_exponent.items():
            self._by_exponent[exponent] = self._by_exponent.get(exponent, 0) + total

    @property
    def value(self) -> Fraction:
        return sum((Fraction(total) * Fraction(2) ** (e - 53) for e, total in self._by_exponent.items()), Fraction(0))


class Moments:
    """Count, mean, deviation, least and largest of many float64, exact before they are rounded."""

    def __init__(self) -> None:
        self.count, self._sum, self._squares = 0, ExactSum(), ExactSum()
        self.least, self.largest = math.inf, -math.inf

    def add(self, values: np.ndarray) -> None:
        if not len(values):
            return
        self.count += len(values)
        self.least, self.largest = min(self.least, float(values.min())), max(self.largest, float(values.max()))
        self._sum.add(values)
        # A square is two float64: what rounding takes away is found by splitting (Dekker 1971).
        square, high = values * values, values * 134217729.0
        high = high - (high - values)
        low = values - high
        self._squares.add(square)
        self._squares.add(((high * high - square) + 2.0 * high * low) + low * low)

    def merge(self, other: Moments) -> None:
        self.count += other.count
        self.least, self.largest = min(self.least, other.least), max(self.largest, other.largest)
        self._sum.merge(other._sum)
        self._squares.merge(other._squares)

    @property
    def mean(self) -> float:
        return float(self._sum.value / self.count) if self.count else 0.0

    @property
    def deviation(self) -> float:
        if not self.count:
            return 0.0
        variance = self._squares.value / self.count - (self._sum.value / self.count) ** 2
        return math.sqrt(max(0.0, float(variance)))


class Bins:
    """Counts of float64 by their leading bits, for quantiles. As many bits are kept as give at most 2^16 bins, so the
    bins depend on the values alone, not on their order."""

    def __init__(self) -> None:
        self._shift, self._bins, self._counts = 0, np.zeros(0, np.uint64), np.zeros(0, np.int64)

    def add(self, values: np.ndarray) -> None:
        bits = (values + 0.0).view(np.int64)  # not -0.0
        ordered = np.where(bits < 0, ~bits, bits | np.int64(-(2**63))).view(np.uint64)
        bins, counts = np.unique(ordered >> np.uint64(self._shift), return_counts=True)
        self._join(bins, counts)

    def merge(self, other: Bins) -> None:
        shift = max(self._shift, other._shift)
        bins = other._bins >> np.uint64(shift - other._shift)
        self._bins, self._shift = self._bins >> np.uint64(shift - self._shift), shift
        self._join(bins, other._counts)

    def _join(self, bins: np.ndarray, counts: np.ndarray) -> None:
        bins, counts = np.concatenate([self._bins, bins]), np.concatenate([self._counts, counts])
        order = np.argsort(bins, kind="stable")
        bins, counts = bins[order], counts[order]
        while True:
            begins = np.flatnonzero(np.diff(bins, prepend=bins[:1] + np.uint64(1)))
            bins, counts = bins[begins], np.add.reduceat(counts, begins) if len(begins) else counts
            if len(bins) <= _MOST_BINS:
                self._bins, self._counts = bins, counts
                return
            bins, self._shift = bins >> np.uint64(1), self._shift + 1

    def quantiles(self, count: int) -> list[float]:
        """``count + 1`` values, lower borders of bins, of which each has as many rows below it as the one before."""
        cumulative = np.cumsum(self._counts)
        if not len(cumulative):
            return [0.0] * (count + 1)
        wanted = np.ceil(np.linspace(0, 1, count + 1) * cumulative[-1]).clip(1)
        ordered = self._bins[np.searchsorted(cumulative, wanted)] << np.uint64(self._shift)
        bits = np.where(ordered >= np.uint64(2**63), ordered & np.uint64(2**63 - 1), ~ordered)
        return bits.view(np.float64).tolist()


class Fit:
    """What training rows tell of a feature; ``where`` names the table in messages."""

    def __init__(self, feature: Feature, where: str) -> None:
        self.feature, self._where = feature, where
        self.moments, self.num_rows, self.num_nulls = Moments(), 0, 0
        self.bins = Bins() if feature.scale == "quantile" else None
        self.counts: Counter[str] = Counter()

    def add(self, column: pa.Array) -> None:
        """``column`` is as ``sources`` reads it, of training rows."""
        self.num_rows, self.num_nulls = self.num_rows + len(column), self.num_nulls + column.null_count
        kind, present = self.feature.kind, column.drop_null()
        if kind in ("number", "timestamp"):
            values = _numbers(self.feature, present)
            self.moments.add(values)
            if self.bins is not None:
                self.bins.add(values)
        elif kind == "category":
            for each in pc.value_counts(present):
                self.counts[each["values"].as_py()] += each["counts"].as_py()
            if len(self.counts) > _MOST_CATEGORIES:
                raise TableError(
                    f"{self._where}: feature {self.feature.name!r} is a category with more than {_MOST_CATEGORIES} "
                    "values: expected fewer; a key of another table is an edge type, an embedding a 'vector'"
                )

    def merge(self, other: Fit) -> None:
        self.num_rows, self.num_nulls = self.num_rows + other.num_rows, self.num_nulls + other.num_nulls
        self.moments.merge(other.moments)
        self.counts.update(other.counts)
        if self.bins is not None and other.bins is not None:
            self.bins.merge(other.bins)

    def finish(self) -> Transform:
        """What is kept."""
        feature, moments = self.feature, self.moments
        fitted: dict[str, Any] = {}
        if feature.kind in ("number", "timestamp"):
            fitted = {"mean": moments.mean, "deviation": moments.deviation}
            fitted |= (
                {"least": moments.least, "largest": moments.largest}
                if moments.count
                else {"least": 0.0, "largest": 0.0}
            )
        if self.bins is not None:
            fitted["quantiles"] = self.bins.quantiles(_NUM_QUANTILES)
        if feature.kind == "category":
            frequent = [(-count, value) for value, count in self.counts.items() if count >= feature.min_count]
            fitted["categories"] = [value for _, value in sorted(frequent)[: feature.max]]
        return Transform(feature, fitted, self.num_rows, self.num_nulls, self._where)


def _numbers(feature: Feature, present: pa.Array) -> np.ndarray:
    """Values without nulls, before they are scaled."""
    values = np.asarray(present).astype(np.float64)
    if feature.scale != "log":
        return values
    return np.log1p(values).astype(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Transform:
    """A feature with what was fitted: turns columns into rows of ``x`` ``[rows, width]``, float32."""

    feature: Feature
    fitted: Mapping[str, Any]
    num_rows: int = 0  # of training, that it was fitted on
    num_nulls: int = 0
    where: str = field(default="", compare=False)

    @property
    def names(self) -> list[str]:
        """What each number of a row is."""
        feature, name = self.feature, self.feature.name
        if feature.kind == "category":
            names = [f"{name}={value}" for value in self.fitted["categories"]] + [f"{name} is other"]
        elif feature.kind == "timestamp":
            names = []
            for part in feature.parts:
                names += [f"{name}.{part}.sin", f"{name}.{part}.cos"] if part in _CYCLES else [f"{name}.{part}"]
        elif feature.kind in ("vector", "text"):
            names = [f"{name}[{i}]" for i in range(feature.length or 0)]
        else:
            names = [name]
        return names + ([f"{name} is missing"] if feature.missing == "indicator" else [])

    def __call__(self, column: pa.Array) -> np.ndarray:
        """The rows of a column, as ``sources`` reads it. Of a null the numbers are 0, or of an unscaled
        number the mean, and the last, if there is an indicator, 1."""
        rows = np.zeros((len(column), len(self.names)), np.float32)
        is_valid = np.asarray(pc.is_valid(column))
        present = column.drop_null()
        width = rows.shape[1] - (self.feature.missing == "indicator")
        rows[is_valid, :width] = self._present(present, width)
        if self.feature.missing == "indicator":
            rows[~is_valid, width] = 1.0
            if self.feature.kind == "number":
                at_mean = pa.array(
                    [float(np.expm1(self.fitted["mean"])) if self.feature.scale == "log" else self.fitted["mean"]]
                )
                rows[~is_valid, :width] = self._present(at_mean, width)
        return rows

    def _present(self, column: pa.Array, width: int) -> np.ndarray:
        kind = self.feature.kind
        if kind == "number":
            return self._finite(column, self._scaled(_numbers(self.feature, column)))[:, None]
        if kind == "boolean":
            return np.asarray(column.cast(pa.int8())).astype(np.float32)[:, None]
        if kind == "category":
            known = pa.array(self.fitted["categories"], pa.string())
            at = np.asarray(pc.fill_null(pc.index_in(column, known), len(known)))
            rows = np.zeros((len(column), width), np.float32)
            rows[np.arange(len(column)), at] = 1.0
            return rows
        if kind == "timestamp":
            return self._timestamp(np.asarray(column, np.int64), width)
        if kind == "vector":
            return np.asarray(column.flatten()).reshape(len(column), width)
        return self._embedded(column.to_pylist(), width)

    def _finite(self, column: pa.Array, scaled: np.ndarray) -> np.ndarray:
        if len(wrong := np.flatnonzero(~np.isfinite(scaled))):
            raise TableError(
                f"{self.where}: feature {self.feature.name!r}: {column[int(wrong[0])].as_py():g} is no float32 when it "
                f"is scaled as the training rows were ({dict(self.fitted)}): expected a value nearer to theirs, or "
                "scale = 'quantile'"
            )
        return scaled

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        scale, fitted = self.feature.scale, self.fitted
        if scale in ("standardize", "log"):
            return _standard(values, fitted["mean"], fitted["deviation"])
        if scale == "min_max":
            wide = fitted["largest"] - fitted["least"]
            return _as_float32((values - fitted["least"]) / (wide or 1.0))
        if scale == "quantile":
            quantiles = np.array(fitted["quantiles"])
            return (np.searchsorted(quantiles, values, "right").clip(1, _NUM_QUANTILES) - 1).astype(np.float32) / (
                _NUM_QUANTILES - 1
            )
        return values.astype(np.float32)

    def _timestamp(self, seconds: np.ndarray, width: int) -> np.ndarray:
        columns: list[np.ndarray] = []
        when = seconds.astype("datetime64[s]")
        year, month, day = (when.astype(f"datetime64[{unit}]") for unit in "YMD")
        found = {
            "year": year.astype(np.int64) + 1970,
            "month": (month - year.astype("datetime64[M]")).astype(np.int64),
            "day": (day - month.astype("datetime64[D]")).astype(np.int64),
            "weekday": (day.astype(np.int64) + 3) % 7,  # 1970 began on a Thursday
            "hour": (when - day.astype("datetime64[s]")).astype(np.int64) // 3600,
        }
        for part in self.feature.parts:
            if part == "age":
                columns.append(-_standard(seconds.astype(np.float64), self.fitted["mean"], self.fitted["deviation"]))
            elif part in _CYCLES:
                angle = 2 * np.pi * found[part] / _CYCLES[part]
                columns += [np.sin(angle), np.cos(angle)]
            else:
                columns.append(found[part])
        return np.stack(columns, 1).astype(np.float32) if columns else np.zeros((len(seconds), width), np.float32)

    def _embedded(self, texts: list[str], width: int) -> np.ndarray:
        function = text_function(self.feature, self.where)
        try:
            rows = np.asarray(function(texts), np.float32)
        except Exception as error:  # a user's function raises what it likes
            raise TableError(
                f"{self.where}: feature {self.feature.name!r}: {self.feature.function} failed for {len(texts)} texts, "
                f"the first of which is {texts[0]!r}: {type(error).__name__}: {error}"
            ) from error
        if rows.shape != (len(texts), width):
            raise TableError(
                f"{self.where}: feature {self.feature.name!r}: {self.feature.function} returned shape "
                f"{list(rows.shape)} for {len(texts)} texts: expected [{len(texts)}, {width}]"
            )
        if len(wrong := np.flatnonzero(~np.isfinite(rows).all(1))):
            raise TableError(
                f"{self.where}: feature {self.feature.name!r}: {self.feature.function} returned "
                f"{rows[wrong[0]].tolist()} for {texts[wrong[0]]!r}: expected finite numbers"
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; :meth:`of` reads it."""
        return {"name": self.feature.name, "names": self.names, "fitted": dict(self.fitted)} | {
            "num_rows": self.num_rows,
            "num_nulls": self.num_nulls,
        }

    @classmethod
    def of(cls, feature: Feature, kept: Mapping[str, Any], where: str = "") -> Transform:
        return cls(feature, kept["fitted"], kept["num_rows"], kept["num_nulls"], where)


def _standard(values: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    return _as_float32((values - mean) / (deviation or 1.0))


def _as_float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is infinite is refused
        return values.astype(np.float32)


def text_function(feature: Feature, where: str) -> Callable[[list[str]], Any]:
    """The user's function of a feature of texts."""
    module, _, name = str(feature.function).partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # of importing it, anything
        raise TableError(
            f"{where}: feature {feature.name!r}: function = {feature.function!r}: expected 'module:function' that can "
            f"be imported here, from a directory in PYTHONPATH ({type(error).__name__}: {error})"
        ) from error
    if not callable(found):
        raise TableError(f"{where}: feature {feature.name!r}: {feature.function} is {found!r}: expected a function")
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class LabelCode:
    """A label with its classes, in order; of a number there are none."""

    label: Label
    classes: Sequence[str] = ()
    where: str = field(default="", compare=False)

    @classmethod
    def of(cls, label: Label, values: Iterable[str], where: str) -> LabelCode:
        """Numbers are ordered as numbers, texts as texts."""
        found = sorted(values)
        try:
            numbers = {each: float(each) for each in found}
        except ValueError:
            return cls(label, found, where)
        is_finite = all(map(math.isfinite, numbers.values()))
        return cls(label, sorted(found, key=numbers.__getitem__) if is_finite else found, where)

    def __call__(self, column: pa.Array) -> np.ndarray:
        """Class numbers, int64, -1 without a label; or numbers, float32, NaN without one."""
        if self.label.kind == "number":
            return np.asarray(pc.fill_null(column, math.nan)).astype(np.float32)
        codes = pc.index_in(column, pa.array(self.classes, pa.string()))
        return np.asarray(pc.fill_null(codes, -1)).astype(np.int64)
