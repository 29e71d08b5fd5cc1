"""What the written rows of a table are like, counted exactly in any order: for the report, and to tell how two builds
differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from glt.tables.descriptions.description import SPLITS

_NUM_BINS: Final = (
    1 << 10
)  # of float32: sign, exponent and one bit more, so that borders are a factor 1.5 or 1.33 apart
_SPLITS: Final = (*SPLITS, "none")


class Profile:
    """Counts of rows: of each number of ``x`` how often it falls into each bin, with the least and the largest; of each
    class how many rows each split has; the first and the last time."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.bins: np.ndarray | None = None  # [width, _NUM_BINS]
        self.least: np.ndarray | None = None  # [width]
        self.largest: np.ndarray | None = None
        self.labels: dict[str, np.ndarray] = {}  # by class, or "value" of numbers, or "": rows of each of _SPLITS
        self.times: tuple[int, int] | None = None
        self.num_without_time = 0

    def add(self, columns: Mapping[str, pa.Array]) -> None:
        num_rows = len(next(iter(columns.values())))
        self.num_rows += num_rows
        if not num_rows:
            return
        if "x" in columns:
            self._add_features(np.asarray(columns["x"].flatten()).reshape(num_rows, -1))
        if "label" in columns:
            split = np.full(num_rows, len(SPLITS))
            for code, name in enumerate(SPLITS):
                if f"{name}_mask" in columns:
                    split[np.asarray(columns[f"{name}_mask"])] = code
            self._add_labels(np.asarray(columns["label"]), split)
        if "time" in columns:
            times = np.asarray(columns["time"].drop_null())
            self.num_without_time += num_rows - len(times)
            if len(times):
                self._add_times(int(times.min()), int(times.max()))

    def merge(self, other: Profile) -> None:
        self.num_rows += other.num_rows
        self.num_without_time += other.num_without_time
        if other.bins is not None:
            self._merge_features(other.bins, other.least, other.largest)
        for name, counts in other.labels.items():
            self.labels[name] = self.labels.get(name, 0) + counts
        if other.times is not None:
            self._add_times(*other.times)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: bins without the empty ones."""
        found: dict[str, Any] = {"num_rows": self.num_rows}
        if self.bins is not None and self.least is not None and self.largest is not None:
            found["x"] = [
                {
                    "least": float(low),
                    "largest": float(high),
                    "bins": {str(i): int(row[i]) for i in np.flatnonzero(row)},
                }
                for row, low, high in zip(self.bins, self.least, self.largest, strict=True)
            ]
        if self.labels:
            found["labels"] = {
                name: dict(zip(_SPLITS, map(int, counts), strict=True)) for name, counts in sorted(self.labels.items())
            }
        if self.times is not None:
            found |= {"times": list(self.times), "num_without_time": self.num_without_time}
        return found

    def _add_features(self, x: np.ndarray) -> None:
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32) >> 22
        bins = np.stack([np.bincount(column, minlength=_NUM_BINS) for column in bits.T])
        self._merge_features(bins, x.min(0), x.max(0))

    def _merge_features(self, bins: np.ndarray, least: Any, largest: Any) -> None:
        if self.bins is None:
            self.bins, self.least, self.largest = bins, least, largest
        else:
            self.bins += bins
            self.least = np.minimum(self.least, least)  # type: ignore[arg-type]  # there is one, as there are bins
            self.largest = np.maximum(self.largest, largest)  # type: ignore[arg-type]

    def _add_labels(self, labels: np.ndarray, split: np.ndarray) -> None:
        if labels.dtype.kind == "f":
            codes, names = np.isnan(labels).astype(np.int64), ["value", ""]
        else:
            codes = np.where(labels < 0, 0, labels + 1)
            names = ["", *map(str, range(int(codes.max())))]
        counts = np.bincount(codes * len(_SPLITS) + split, minlength=len(names) * len(_SPLITS))
        for name, row in zip(names, counts.reshape(len(names), -1), strict=True):
            if row.any():
                self.labels[name] = self.labels.get(name, 0) + row

    def _add_times(self, first: int, last: int) -> None:
        own = self.times or (first, last)
        self.times = min(own[0], first), max(own[1], last)
