"""From the rows of one table, as an engine returns them, to what a graph keeps: features, labels, times, splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt.errors import TableError
from glt.tables.columns.transforms import Fit, LabelCode, Transform
from glt.tables.columns.values import Column, seconds_of
from glt.tables.descriptions.description import SPLITS, EdgeTable, Feature, NodeTable, Split


def where_of(table: NodeTable | EdgeTable) -> str:
    """What messages call a table."""
    return f"node type {table.name!r}" if isinstance(table, NodeTable) else f"edge type {list(table.type)}"


def columns_of(table: NodeTable | EdgeTable) -> list[Column]:
    """The columns of a table that carry something, beside keys; those that edges are ordered by come first."""
    found = []
    if table.time is not None:
        found.append(Column("time", table.time.column, "time", unit=table.time.unit))
    if isinstance(table, EdgeTable) and table.weight is not None:
        found.append(Column("weight", table.weight, "unsigned"))
    if table.label is not None:
        kind = "category" if table.label.kind == "class" else "number"
        found.append(Column("label", table.label.column, kind, is_nullable=True))
    if table.split is not None and table.split.column is not None:
        found.append(Column("split", table.split.column, "split", is_nullable=True))
    for i, each in enumerate(table.features):
        kind = {"timestamp": "time", "text": "string"}.get(each.kind, "unsigned" if each.scale == "log" else each.kind)
        nullable = each.missing == "indicator"
        found.append(Column(f"feature{i}", each.column, kind, nullable, each.unit, each.length))
    return found


class Fits:
    """What is fitted on the rows of a table: see :class:`glt.tables.columns.transforms.Fit`."""

    def __init__(self, table: NodeTable | EdgeTable) -> None:
        self._table, self._where = table, where_of(table)
        self._fits = [Fit(each, self._where) for each in table.features]
        self._classes: set[str] = set()
        self.num_rows = 0

    @property
    def columns(self) -> list[str]:
        """What is looked at; empty if there is nothing to fit."""
        table = self._table
        found = [f"feature{i}" for i, each in enumerate(table.features) if _is_fitted(each)]
        if found and table.split is not None and table.split.ratio is None:
            found.insert(0, "split" if table.split.column is not None else "time")
        return found + (["label"] if self._has_classes else [])

    @property
    def _has_classes(self) -> bool:
        return self._table.label is not None and self._table.label.kind == "class"

    def add(self, batch: pa.RecordBatch) -> None:
        self.num_rows += batch.num_rows
        if self._has_classes:
            self._classes |= set(pc.unique(batch.column("label")).drop_null().to_pylist())
        fitted = [(f"feature{i}", fit) for i, fit in enumerate(self._fits) if _is_fitted(fit.feature)]
        is_training = None
        if fitted and self._table.split is not None:
            is_training = pa.array(split_codes(self._table, batch) == 0)
        for name, fit in fitted:
            column = batch.column(name)
            fit.add(column if is_training is None else column.filter(is_training))

    def merge(self, other: Fits) -> None:
        self._classes |= other._classes
        self.num_rows += other.num_rows
        for one, more in zip(self._fits, other._fits, strict=True):
            one.merge(more)

    def finish(self) -> Fitted:
        """Raises TableError if features are to be fitted on training rows, and no row is one."""
        for each in self._fits:
            if self.num_rows and not each.num_rows and _is_fitted(each.feature):
                raise TableError(
                    f"{self._where}: none of its {self.num_rows} rows is in training, on which feature "
                    f"{each.feature.name!r} is fitted: expected a split with training rows (split is "
                    f"{self._table.split}), or features that are not fitted, such as numbers with scale = 'none'"
                )
        label = self._table.label
        code = None if label is None else LabelCode.of(label, self._classes, self._where)
        return Fitted(self._table, tuple(each.finish() for each in self._fits), code)


def _is_fitted(feature: Feature) -> bool:
    is_plain = feature.kind == "number" and feature.scale == "none" and feature.missing == "error"
    return not is_plain and feature.kind not in ("boolean", "vector", "text")


@dataclass(frozen=True)
class Fitted:
    """Turns rows of a table into what is kept of them."""

    table: NodeTable | EdgeTable
    transforms: tuple[Transform, ...]
    label: LabelCode | None

    @property
    def feature_names(self) -> list[str]:
        return [name for each in self.transforms for name in each.names]

    @property
    def schema(self) -> list[pa.Field]:
        """The columns of :meth:`__call__`, in their order."""
        found = []
        if self.table.features:
            found.append(pa.field("x", pa.list_(pa.float32(), len(self.feature_names))))
        if self.label is not None:
            found.append(pa.field("label", pa.int64() if self.label.label.kind == "class" else pa.float32()))
        if self.table.time is not None:
            found.append(pa.field("time", pa.int64()))
        if isinstance(self.table, EdgeTable) and self.table.weight is not None:
            found.append(pa.field("weight", pa.float32()))
        if self.table.split is not None:
            found += [pa.field(f"{name}_mask", pa.bool_()) for name in SPLITS]
        return found

    def __call__(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        if self.table.features:
            x = np.concatenate([each(batch.column(f"feature{i}")) for i, each in enumerate(self.transforms)], 1)
            found["x"] = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1])
        if self.label is not None:
            found["label"] = pa.array(self.label(batch.column("label")))
        if self.table.time is not None:
            found["time"] = batch.column("time")
        if isinstance(self.table, EdgeTable) and self.table.weight is not None:
            found["weight"] = batch.column("weight").cast(pa.float32())
        if self.table.split is not None:
            codes = split_codes(self.table, batch)
            found |= {f"{name}_mask": pa.array(codes == code) for code, name in enumerate(SPLITS)}
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        classes = {} if self.label is None or not self.label.classes else {"classes": list(self.label.classes)}
        return {"features": [each.to_dict() for each in self.transforms]} | classes

    @classmethod
    def of(cls, table: NodeTable | EdgeTable, kept: Mapping[str, Any]) -> Fitted:
        """What :meth:`to_dict` returned, of an earlier build."""
        where = where_of(table)
        names = [each["name"] for each in kept["features"]]
        if names != [each.name for each in table.features]:
            raise TableError(
                f"{where}: features are {[each.name for each in table.features]}, those that were fitted {names}: "
                "expected the same, in the same order"
            )
        transforms = tuple(
            Transform.of(f, each, where) for f, each in zip(table.features, kept["features"], strict=True)
        )
        return cls(
            table, transforms, None if table.label is None else LabelCode(table.label, kept.get("classes", ()), where)
        )


def split_borders(table: NodeTable | EdgeTable) -> list[int]:
    """When validation and test begin, in seconds, of a split by time; raises TableError if not in this order."""
    if table.split is None or table.split.time is None:
        return []
    borders = [seconds_of(each, f"{where_of(table)}: split.time") for each in table.split.time]
    if borders[0] > borders[1]:
        raise TableError(
            f"{where_of(table)}: split.time = {list(table.split.time)}: expected the times at which validation and "
            "test begin, in this order"
        )
    return borders


def split_codes(table: NodeTable | EdgeTable, batch: pa.RecordBatch) -> np.ndarray:
    """Of each row 0, 1 or 2, for training, validation and test, or -1."""
    split = table.split or Split()
    if split.column is not None:
        column = batch.column("split")
        return np.asarray(pc.fill_null(pc.index_in(column, pa.array(SPLITS)), -1))
    if split.time is not None:
        time = batch.column("time")
        codes = np.searchsorted(np.array(split_borders(table)), np.asarray(pc.fill_null(time, 0)), "right")
        return np.where(np.asarray(pc.is_valid(time)), codes, -1)
    train, val, _ = split.ratio or (1.0, 0.0, 0.0)
    return np.searchsorted(np.array([train, train + val]), np.asarray(batch.column("hash")), "right")
