"""GraphStorm's configuration of graph construction (``gconstruct``, JSON) as a description.

Source of the keys: GraphStorm's documentation, "Single Machine Graph Construction", gconstruct-v0.1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from glt.errors import TableError
from glt.tables.columns.sources import Source
from glt.tables.descriptions.description import Description, Files

_SAME: Final[dict[str, dict[str, Any]]] = {
    "no-op": {},
    "max_min_norm": {"scale": "min_max"},
    "to_categorical": {"kind": "category", "max": 1000},
}
_LIKE: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "standard": ({"scale": "standardize"}, "it divides by the sum; 'standardize' makes mean 0 and deviation 1"),
    "rank_gauss": ({"scale": "quantile"}, "it makes a normal distribution of ranks; 'quantile' ranks from 0 to 1"),
}
_SPLIT: Final = [0.8, 0.1, 0.1]  # what GraphStorm does without split_pct
_NODE_KEYS: Final = ("node_type", "node_id_col", "files", "format", "features", "labels")
_EDGE_KEYS: Final = ("relation", "source_id_col", "dest_id_col", "files", "format", "features", "labels")
_FEATURE_KEYS: Final = ("feature_col", "feature_name", "out_dtype", "transform")
_LABEL_KEYS: Final = ("label_col", "task_type", "split_pct", "label_stats_type")


def is_graphstorm(path: str | os.PathLike[str]) -> bool:
    """Whether a file is such a configuration, and not a description of ours."""
    if Path(path).suffix != ".json" or not Path(path).is_file():
        return False
    try:
        found = json.loads(Path(path).read_bytes())
    except ValueError:
        return False
    return isinstance(found, Mapping) and "edges" in found and "edge_types" not in found


def read_graphstorm(path: str | os.PathLike[str]) -> tuple[Description, dict[str, list[str]]]:
    """The description, and what is not taken over, by the name of a node type or the relation of an edge type.

    Raises:
        glt.errors.TableError: If the configuration lacks what every graph needs.
    """
    where, given = str(path), json.loads(Path(path).read_bytes())
    reader = _Reader(os.fspath(Path(path).parent), where)
    for key in set(given) - {"version", "nodes", "edges"}:
        reader.lose("", f"{key} = {given[key]!r}")
    nodes: dict[str, Any] = {}
    for each in _dicts(given.get("nodes", []), f"{where}: nodes"):
        name = _needed(each, "node_type", f"{where}: nodes")
        reader.refuse_others(name, each, _NODE_KEYS)
        if "node_id_col" not in each:
            reader.lose(name, f"files = {each.get('files')!r} without node_id_col: rows have no key to go by")
        elif nodes.get(name):
            reader.lose(name, f"files = {each.get('files')!r}: a node type has one table; join them")
        elif (files := reader.files(name, each)) is not None:
            nodes[name] = {**files, "key": each["node_id_col"], **reader.rest(name, each)}
        nodes.setdefault(name, {})
    edges = []
    for each in _dicts(given.get("edges", []), f"{where}: edges"):
        relation = _needed(each, "relation", f"{where}: edges")
        name = str(relation[1]) if isinstance(relation, Sequence) and len(relation) == 3 else repr(relation)
        reader.refuse_others(name, each, _EDGE_KEYS)
        ends = {ours: _needed(each, theirs, f"{where}: edges {relation}") for ours, theirs in _ENDS.items()}
        if (files := reader.files(name, each)) is not None:
            edges.append({"type": relation, **files, **ends, "missing": "drop", **reader.rest(name, each)})
    described = Description.of({"node_types": nodes, "edge_types": edges}, reader.base, where)
    return described, reader.lost


_ENDS: Final = {"src": "source_id_col", "dst": "dest_id_col"}


def _dicts(given: Any, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise TableError(f"{where} = {given!r}: expected a list of objects")
    return given


def _needed(given: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in given:
        raise TableError(f"{where}: {dict(given)!r} has no {key}: expected one")
    return given[key]


class _Reader:
    """Reads entries, and remembers what of them is lost."""

    def __init__(self, base: str, where: str) -> None:
        self.base, self.where = base, where
        self.lost: dict[str, list[str]] = {}

    def lose(self, name: str, what: str) -> None:
        self.lost.setdefault(name, []).append(f"Not taken over: {what}.")

    def refuse_others(self, name: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in given:
            if key not in known:
                self.lose(name, f"{key} = {given[key]!r}")

    def files(self, name: str, entry: Mapping[str, Any]) -> dict[str, Any] | None:
        where = f"{self.where}: {name}"
        format_, files = _needed(entry, "format", where), _needed(entry, "files", where)
        (format_,) = _dicts([format_], f"{where}: format")
        if not isinstance(files, str) and not (isinstance(files, list) and all(isinstance(f, str) for f in files)):
            raise TableError(f"{where}: files = {files!r}: expected a path, or a list of paths")
        if str(format_.get("name")).lower() not in ("csv", "parquet"):
            self.lose(name, f"files = {files!r} of format {format_.get('name')!r}: expected csv or parquet")
            return None
        delimiter = format_.get("separator", ",")
        return {"files": files} | ({"delimiter": delimiter} if delimiter not in (",", None) else {})

    def rest(self, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Features, a label and a split."""
        where = f"{self.where}: {name}"
        features: dict[str, Any] = {}
        given = _dicts(entry.get("features", []), f"{where}: features")
        first_rows = self._first_rows(entry, where) if given else None
        for each in given:
            self.refuse_others(name, each, _FEATURE_KEYS)
            columns = _needed(each, "feature_col", f"{where}: features")
            columns = [columns] if isinstance(columns, str) else columns
            prefix = each.get("feature_name") or columns[0]
            (transform,) = _dicts([each.get("transform") or {"name": "no-op"}], f"{where}: transform")
            for column in columns:
                called = prefix if len(columns) == 1 else f"{prefix}_{column}"
                feature = self._feature(name, first_rows, called, column, transform)
                if feature is not None and called in features:
                    self.lose(name, f"a second feature of the name {called!r}: give it a feature_name of its own")
                elif feature is not None:
                    features[called] = {"column": column, **feature}
        found = {"features": features} if features else {}
        return found | self._label(name, _dicts(entry.get("labels", []), f"{where}: labels"))

    def _first_rows(self, entry: Mapping[str, Any], where: str) -> pa.RecordBatch | None:
        files, delimiter = entry["files"], entry["format"].get("separator")
        paths = (files,) if isinstance(files, str) else tuple(files)
        source = Source.of(where, Files(paths, delimiter=delimiter), self.base)
        return next(source.sample(source.files[0]), None)

    def _feature(
        self, name: str, first_rows: pa.RecordBatch | None, called: str, column: str, transform: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        kind = transform.get("name")
        options = {key: value for key, value in transform.items() if key != "name"}
        found: dict[str, Any]
        if kind in _LIKE:
            found, difference = _LIKE[kind]
            self.lose(name, f"feature {called!r}: transform {kind!r}: {difference}")
        elif kind in _SAME:
            found = _SAME[kind]
        else:
            function = " (a function of yours can: kind = 'text')" if kind in ("bert_hf", "tokenize_hf") else ""
            self.lose(name, f"feature {called!r}: transform {kind!r}{function}")
            return None
        length = _length(first_rows, column) if kind == "no-op" else None
        if length is not None and options.get("separator", ";") == ";":
            found = {"kind": "vector", "length": length}
            options.pop("separator", None)
        for key, value in options.items():
            self.lose(name, f"feature {called!r}: {key} = {value!r} of transform {kind!r}")
        return found

    def _label(self, name: str, labels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in labels:
            self.refuse_others(name, each, _LABEL_KEYS)
            kind = {"classification": "class", "regression": "number"}.get(each.get("task_type", ""))
            if kind is None and each.get("task_type") != "link_prediction":
                self.lose(name, f"a label of task_type = {each.get('task_type')!r}")
                continue
            if found:
                self.lose(name, f"a further label, {each.get('label_col')!r}: a table has one")
                continue
            if kind is not None:
                found["label"] = {"column": each.get("label_col"), "kind": kind}
            split = each.get("split_pct", _SPLIT)
            if "custom_split_filenames" not in each:
                is_three = isinstance(split, list) and len(split) == 3
                if not is_three or not all(isinstance(part, int | float) for part in split):
                    raise TableError(f"{name}: split_pct = {split!r}: expected fractions of training, validation, test")
                if abs(sum(split) - 1) > 1e-9:
                    self.lose(name, f"split_pct = {split!r}, whose sum is not 1: the rest is test here")
                    split = [split[0], split[1], round(1 - split[0] - split[1], 9)]
                found["split"] = {"ratio": split}
        return found


def _length(rows: pa.RecordBatch | None, column: str) -> int | None:
    """How many numbers a list in this column has, as its first row says; None if it is no list."""
    if rows is None or column not in rows.schema.names:
        return None
    values = pc.drop_null(rows.column(column).slice(0, 1000))
    if pa.types.is_string(values.type) and len(values) and ";" in values[0].as_py():
        return len(values[0].as_py().split(";"))
    return len(values[0]) if pa.types.is_nested(values.type) and len(values) else None
