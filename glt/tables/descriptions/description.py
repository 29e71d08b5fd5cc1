"""What tables a graph is made of: node types with keys and features, edge types with ends; in TOML, JSON or Python.

A description in TOML (Python 3.11; JSON has the same keys)::

    [node_types.account]
    files = "accounts/*.parquet"        # Parquet or CSV: a file, directory, pattern or URL, or a list of them
    key = "account_id"                  # a column, or a list of columns that together are the key
    label = "is_fraud"                  # or { column = "is_fraud", kind = "class" }; kind: class, number
    time = "opened_at"                  # or { column = "opened_at", unit = "ms" }
    split = { ratio = [0.8, 0.1, 0.1] } # by a hash of the key; or { column = "part" },
                                        # or { time = ["2024-01-01", "2024-07-01"] }

    [node_types.account.features]
    balance = "standardize"             # a kind or transform, of the column of this name
    country = { kind = "category", max = 20 }
    since = { column = "opened_at", kind = "timestamp", parts = ["age", "weekday"] }
    profile = { kind = "vector", length = 16 }

    [[edge_types]]
    type = ["account", "pays", "account"]
    files = "payments/*.csv"
    src = "from"                        # columns that hold keys of these node types
    dst = "to"
    time = "paid_at"
    weight = "amount"
    features = { amount = "log" }
    reverse = "paid_by"                 # edges the other way are a type of this name
    duplicates = "keep"                 # edges between the same nodes: keep, last (by time), sum (weights, numbers)
    missing = "error"                   # an end that no table of nodes has: error, drop (the edge), add (the node);
                                        # drop also drops edges one of whose ends is null

A node type without ``files`` has the keys that its edges name.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from glt._urls import is_url
from glt.errors import TableError

KINDS: Final = ("number", "boolean", "category", "timestamp", "vector", "text")
SCALES: Final = ("none", "standardize", "min_max", "log", "quantile")
PARTS: Final = ("age", "year", "month", "day", "weekday", "hour")
SPLITS: Final = ("train", "val", "test")
UNITS: Final = ("s", "ms", "us", "ns")
KEY_TYPES: Final = ("int", "text")
DUPLICATES: Final = ("keep", "last", "sum")
MISSING_ENDS: Final = ("error", "drop", "add")
MISSING_VALUES: Final = ("error", "indicator")
LABELS: Final = ("class", "number")


@dataclass(frozen=True)
class Files:
    """The files of a table, in any order. CSV files begin with the names of their columns, unless ``header`` is False:
    then these are ``f0``, ``f1``, ..."""

    paths: tuple[str, ...]
    header: bool = True
    delimiter: str | None = None


@dataclass(frozen=True)
class Feature:
    """One feature, of one column: a few numbers of a row of ``x``.

    Args:
        name: What it is called; the column's name unless ``column`` says another.
        kind: ``'number'``, ``'boolean'``, ``'category'``, ``'timestamp'``, ``'vector'`` (a list of numbers, such as an
            embedding) or ``'text'`` (through ``function``).
        scale: Of a number: ``'none'``, ``'standardize'`` (mean 0, deviation 1), ``'min_max'`` (0 to 1), ``'log'``
            (``log1p``, then standardized) or ``'quantile'`` (its rank among 100 quantiles, 0 to 1).
        missing: What a null is: ``'error'``, or ``'indicator'``: the mean or 0, and a further number that is 1.
        max, min_count: Of a category: at most so many have numbers of their own, and only those that so many training
            rows have; the rest, and what training rows do not have, share one.
        parts: Of a timestamp: ``'age'`` (days before the last of the training rows, standardized), ``'year'``, and as
            sine and cosine ``'month'``, ``'day'``, ``'weekday'``, ``'hour'``, in UTC.
        length: Of a vector: how many numbers.
        function: Of a text: ``'module:function'``, which gets a list of texts and returns an array ``[rows, length]``.
        unit: Of a timestamp in integers: seconds ``'s'``, ``'ms'``, ``'us'`` or ``'ns'``.
    """

    name: str
    column: str
    kind: str = "number"
    scale: str = "none"
    missing: str = "error"
    max: int = 32
    min_count: int = 1
    parts: tuple[str, ...] = ("age",)
    length: int | None = None
    function: str | None = None
    unit: str = "s"


@dataclass(frozen=True)
class Label:
    """A column of classes (texts, integers or booleans, numbered in their order) or of numbers; null: no label."""

    column: str
    kind: str = "class"


@dataclass(frozen=True)
class Time:
    """A column of timestamps, or of integers in this unit; seconds since 1970 in UTC for a loader."""

    column: str
    unit: str = "s"


@dataclass(frozen=True)
class Split:
    """Which rows are for training, validation and test: one of ``column`` (texts ``train``, ``val``, ``test``, or
    null), ``ratio`` (three fractions, by a hash of the key, so that rows stay where they are when others come) and
    ``time`` (two times: when validation and when test begins)."""

    column: str | None = None
    ratio: tuple[float, float, float] | None = None
    time: tuple[str, str] | None = None


@dataclass(frozen=True)
class NodeTable:
    """A node type: see this module."""

    name: str
    files: Files | None = None
    key: tuple[str, ...] = ()
    key_type: str | None = None
    features: tuple[Feature, ...] = ()
    label: Label | None = None
    time: Time | None = None
    split: Split | None = None


@dataclass(frozen=True)
class EdgeTable:
    """An edge type: see this module."""

    type: tuple[str, str, str]
    files: Files
    src: tuple[str, ...]
    dst: tuple[str, ...]
    features: tuple[Feature, ...] = ()
    label: Label | None = None
    time: Time | None = None
    split: Split | None = None
    weight: str | None = None
    reverse: str | None = None
    duplicates: str = "keep"
    missing: str = "error"


@dataclass(frozen=True)
class Description:
    """What tables a graph is made of: see the guide. ``base`` is the directory that relative paths begin at.

    Example:
        >>> pays = {"type": ["account", "pays", "account"], "files": "pays.csv", "src": "from", "dst": "to"}
        >>> described = glt.tables.Description.of({"node_types": {"account": {}}, "edge_types": [pays]})
        >>> described.edge_types[0].duplicates
        'keep'
    """

    node_types: tuple[NodeTable, ...]
    edge_types: tuple[EdgeTable, ...]
    base: str = field(default=".", compare=False)

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Description:
        """Reads a ``.toml`` or ``.json`` file; raises TableError (a ValueError), which names the key, what it is and
        what was expected."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist: expected a description of tables, .toml or .json")
        return cls.of(_load(path), path.parent, str(path))

    @classmethod
    def of(
        cls, given: Mapping[str, Any], base: str | os.PathLike[str] = ".", where: str = "description"
    ) -> Description:
        """The same of a dict; ``where`` is what messages call it."""
        root = _Keys(where, given, ("$schema", "node_types", "edge_types"))
        nodes = [_node_table(f"{where}: node_types.{t}", t, each) for t, each in root.tables("node_types").items()]
        edges = [_edge_table(f"{where}: edge_types[{i}]", each) for i, each in enumerate(root.list("edge_types"))]
        return cls(tuple(nodes), tuple(edges), os.fspath(base))

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`of` reads, without what is default."""
        nodes = {each.name: _plain(each, "name") for each in self.node_types}
        return {"node_types": nodes, "edge_types": [_plain(each) for each in self.edge_types]}

    def seen_from(self, base: str | os.PathLike[str]) -> Description:
        """The same with relative paths that begin at another directory."""

        def moved(table: Any) -> Any:
            if table.files is None:
                return table
            paths = tuple(
                each if is_url(each) or os.path.isabs(each) else os.path.relpath(Path(self.base, each), base)
                for each in table.files.paths
            )
            return dataclasses.replace(table, files=dataclasses.replace(table.files, paths=paths))

        return Description(tuple(map(moved, self.node_types)), tuple(map(moved, self.edge_types)), os.fspath(base))

    def node_type(self, name: str) -> NodeTable:
        return next(each for each in self.node_types if each.name == name)


# -- reading -------------------------------------------------------------------------------------------------------


def _load(path: Path) -> Any:
    is_json = path.suffix == ".json"
    try:
        toml: Any = None if is_json else importlib.import_module("tomllib")
    except ImportError as error:
        raise ImportError(f"{path}: TOML needs Python 3.11: write the description as JSON") from error
    try:
        text = path.read_bytes().decode()
        return json.loads(text, object_pairs_hook=_once) if is_json else toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path} is no {'JSON' if is_json else 'TOML'}: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of keys that come twice ``json`` keeps the last, and TOML none."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the key {name!r} comes {count} times in one object: expected it once")
    return dict(pairs)


class _Keys:
    """One object of a description, called ``where`` in messages, with some of the ``allowed`` keys."""

    def __init__(self, where: str, given: Any, allowed: Sequence[str]) -> None:
        if not isinstance(given, Mapping):
            raise TableError(f"{where} = {given!r}: expected an object with some of {', '.join(allowed)}")
        for key in given:
            if key not in allowed:
                raise TableError(f"{where}: {key} is unknown: expected some of {', '.join(allowed)}")
        self.where, self.given = where, given

    def refuse(self, key: str, expected: str) -> TableError:
        return TableError(f"{self.where}: {key} = {self.given.get(key)!r}: expected {expected}")

    def tables(self, key: str) -> Mapping[str, Any]:
        found = self.given.get(key, {})
        if not isinstance(found, Mapping) or not all(isinstance(name, str) and name for name in found):
            raise self.refuse(key, "an object by name")
        return found

    def list(self, key: str) -> Sequence[Any]:
        found = self.given.get(key, [])
        if not isinstance(found, Sequence) or isinstance(found, str):
            raise self.refuse(key, "a list of objects, each with a type")
        return found

    def text(self, key: str) -> str | None:
        found = self.given.get(key)
        if found is not None and (not isinstance(found, str) or not found):
            raise self.refuse(key, "a text")
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """A text, or a list of them."""
        found = self.given.get(key)
        several = [found] if isinstance(found, str) else found
        if not isinstance(several, Sequence) or not several or not all(isinstance(e, str) and e for e in several):
            raise self.refuse(
                key, "the name of a column, or a list of names" if key != "files" else "a path, or a list"
            )
        return tuple(several)

    def column(self) -> str:
        found = self.text("column")
        if found is None:
            raise self.refuse("column", "the name of a column")
        return found

    def one_of(self, key: str, allowed: Sequence[str], default: str) -> str:
        found = self.given.get(key, default)
        if found not in allowed:
            raise self.refuse(key, f"one of {', '.join(map(repr, allowed))}")
        return str(found)

    def count(self, key: str, default: Any, least: int = 1) -> Any:
        found = self.given.get(key, default)
        if found is not default and (type(found) is not int or not least <= found < 2**31):
            raise self.refuse(key, f"an integer of at least {least}, below 2^31")
        return found

    def nested(self, key: str, allowed: Sequence[str]) -> _Keys | None:
        """An object, or a text that is its ``column``."""
        found = self.given.get(key)
        if found is None:
            return None
        return _Keys(f"{self.where}: {key}", {"column": found} if isinstance(found, str) else found, allowed)


_LONGEST_NAME: Final = 255  # of a directory
_FILES: Final = ("files", "header", "delimiter")
_COMMON: Final = ("features", "label", "time", "split", *_FILES)


def _node_table(where: str, name: str, given: Any) -> NodeTable:
    keys = _Keys(where, given, ("key", "key_type", *_COMMON))
    files = _files(keys)
    if files is None and given:
        raise TableError(f"{where} has {', '.join(given)} and no files: expected files, or nothing at all")
    key_type = keys.one_of("key_type", KEY_TYPES, "") if "key_type" in given else None
    key = keys.texts("key") if files else ()
    if len(set(key)) < len(key):
        raise keys.refuse("key", "each column once")
    return NodeTable(name, files, key, key_type, **_common(keys))


def _edge_table(where: str, given: Any) -> EdgeTable:
    keys = _Keys(where, given, ("type", "src", "dst", "weight", "reverse", "duplicates", "missing", *_COMMON))
    type_ = keys.given.get("type")
    if (
        isinstance(type_, str)
        or not isinstance(type_, Sequence)
        or len(type_) != 3
        or not all(isinstance(part, str) and part for part in type_)
    ):
        raise keys.refuse("type", "[source type, relation, destination type]")
    files = _files(keys)
    if files is None:
        raise keys.refuse("files", "a path, or a list")
    source, relation, destination = type_
    return EdgeTable(
        (source, relation, destination),
        files,
        keys.texts("src"),
        keys.texts("dst"),
        weight=keys.text("weight"),
        reverse=keys.text("reverse"),
        duplicates=keys.one_of("duplicates", DUPLICATES, "keep"),
        missing=keys.one_of("missing", MISSING_ENDS, "error"),
        **_common(keys),
    )


def _files(keys: _Keys) -> Files | None:
    if "files" not in keys.given:
        return None
    header, delimiter = keys.given.get("header", True), keys.given.get("delimiter")
    if not isinstance(header, bool):
        raise keys.refuse("header", "true or false")
    if delimiter is not None and not (isinstance(delimiter, str) and re.fullmatch(r"[\t -!#-~]", delimiter)):
        raise keys.refuse("delimiter", "one character of ASCII that can be printed, or a tab, and no quotation mark")
    return Files(keys.texts("files"), header, delimiter)


def _common(keys: _Keys) -> dict[str, Any]:
    features = keys.tables("features")
    return {
        "features": tuple(_feature(f"{keys.where}: features.{name}", name, each) for name, each in features.items()),
        "label": _label(keys.nested("label", ("column", "kind"))),
        "time": _time(keys.nested("time", ("column", "unit"))),
        "split": _split(keys.nested("split", ("column", "ratio", "time"))),
    }


def _feature(where: str, name: str, given: Any) -> Feature:
    if isinstance(given, str):
        given = {"kind": given} if given in KINDS else {"scale": given}
        if given.get("scale", "none") not in SCALES:
            raise TableError(
                f"{where} = {given['scale']!r}: expected one of {', '.join(map(repr, KINDS + SCALES[1:]))}"
            )
    keys = _Keys(where, given, tuple(each.name for each in dataclasses.fields(Feature) if each.name != "name"))
    parts = keys.texts("parts") if "parts" in given else ("age",)
    if unknown := [part for part in parts if part not in PARTS]:
        raise keys.refuse("parts", f"some of {', '.join(map(repr, PARTS))}, not {unknown[0]!r}")
    if len(set(parts)) < len(parts):
        raise keys.refuse("parts", "each once")
    return Feature(
        name,
        keys.text("column") or name,
        keys.one_of("kind", KINDS, "number"),
        keys.one_of("scale", SCALES, "none"),
        keys.one_of("missing", MISSING_VALUES, "error"),
        keys.count("max", 32),
        keys.count("min_count", 1),
        parts,
        keys.count("length", None),
        keys.text("function"),
        keys.one_of("unit", UNITS, "s"),
    )


def _label(keys: _Keys | None) -> Label | None:
    return None if keys is None else Label(keys.column(), keys.one_of("kind", LABELS, "class"))


def _time(keys: _Keys | None) -> Time | None:
    return None if keys is None else Time(keys.column(), keys.one_of("unit", UNITS, "s"))


def _split(keys: _Keys | None) -> Split | None:
    if keys is None:
        return None
    if len(keys.given) != 1:
        raise TableError(f"{keys.where} = {dict(keys.given)!r}: expected one of column, ratio and time")
    if "column" in keys.given:
        return Split(column=keys.text("column"))
    if "time" in keys.given:
        times = keys.texts("time")
        if len(times) != 2:
            raise keys.refuse("time", "two times: when validation begins, and when test begins")
        return Split(time=(times[0], times[1]))
    ratio = keys.given["ratio"]
    is_list = isinstance(ratio, Sequence) and len(ratio) == 3
    if not is_list or not all(isinstance(e, int | float) and e >= 0 for e in ratio) or abs(sum(ratio) - 1) > 1e-9:
        raise keys.refuse("ratio", "three fractions of training, validation and test whose sum is 1")
    return Split(ratio=(float(ratio[0]), float(ratio[1]), float(ratio[2])))


_OF_KINDS: Final = {
    "scale": ("number",),
    "max": ("category",),
    "min_count": ("category",),
    "parts": ("timestamp",),
    "length": ("vector", "text"),
    "function": ("text",),
    "unit": ("timestamp",),
}

# -- what must hold of all together --------------------------------------------------------------------------------


def _check(description: Description) -> None:
    names = [each.name for each in description.node_types]
    types = [each.type for each in description.edge_types]
    if not types:
        raise TableError("edge_types is empty: expected the tables of edges")
    types += [reversed_type(each) for each in description.edge_types if each.reverse is not None]
    if twice := [each for each in types if types.count(each) > 1]:
        raise TableError(
            f"edge_types has {list(twice[0])} twice (a reverse counts): expected each type once; rename one"
        )
    _check_names(names, types)
    for each in description.edge_types:
        for end, columns in ((each.type[0], each.src), (each.type[2], each.dst)):
            if end not in names:
                raise TableError(f"edge type {list(each.type)} ends in {end!r}: expected one of node_types, {names}")
            key = description.node_type(end).key
            if key and len(key) != len(columns):
                raise TableError(
                    f"edge type {list(each.type)}: {list(columns)} for {end!r}, whose key is {list(key)}: expected as "
                    "many columns as its key has"
                )
        kinds = [feature.kind for feature in each.features]
        if each.duplicates == "sum" and (each.label or each.split or set(kinds) - {"number"}):
            raise TableError(
                f"edge type {list(each.type)}: duplicates = 'sum' adds weights and numbers up, and it has a label, a "
                f"split or features of kinds {kinds}: leave these out, or sum before"
            )
        if each.duplicates == "last" and each.time is None:
            raise TableError(f"edge type {list(each.type)}: duplicates = 'last' needs a time: say which column it is")
    tables: list[NodeTable | EdgeTable] = [*description.node_types, *description.edge_types]
    for table in tables:
        where = f"node type {table.name!r}" if isinstance(table, NodeTable) else f"edge type {list(table.type)}"
        if table.split is not None and table.split.time is not None and table.time is None:
            raise TableError(f"{where}: split by time needs a time: say which column it is")
        for feature in table.features:
            if feature.kind in ("vector", "text") and feature.length is None:
                raise TableError(
                    f"{where}: feature {feature.name!r} of kind {feature.kind!r} has no length: say how many numbers "
                    "it has"
                )
            for option, of_kinds in _OF_KINDS.items():
                given = getattr(feature, option)
                if feature.kind not in of_kinds and given != getattr(Feature, option):
                    raise TableError(
                        f"{where}: feature {feature.name!r} has {option} = {given!r}: expected kind "
                        f"{' or '.join(map(repr, of_kinds))}, not {feature.kind!r}; leave the {option} out"
                    )
            if feature.kind == "text" and feature.function is None:
                raise TableError(
                    f"{where}: feature {feature.name!r} is text without a function: expected function = "
                    "'module:function', which returns its embeddings; or a column of embeddings, of kind 'vector'"
                )


def _check_names(names: Sequence[str], types: Sequence[tuple[str, str, str]]) -> None:
    """Types name directories."""
    folders = [(name, f"node type {name!r}") for name in names]
    folders += [("__".join(each), f"edge type {list(each)}") for each in types]
    for folder, where in folders:
        num_bytes = len(folder.encode(errors="replace"))
        is_text = all(not 0xD800 <= ord(letter) < 0xE000 for letter in folder)  # half a character, as JSON may have
        if "/" in folder or "\0" in folder or folder in (".", "..") or num_bytes > _LONGEST_NAME or not is_text:
            raise TableError(
                f"{where} cannot name a directory: expected at most {_LONGEST_NAME} bytes of UTF-8, without '/'; "
                "rename it"
            )
    first: dict[str, str] = {}
    for folder, where in folders[len(names) :]:
        if first.setdefault(folder, where) != where:
            raise TableError(f"{where} and {first[folder]} would both be in the directory {folder!r}: rename one")


def reversed_type(table: EdgeTable) -> tuple[str, str, str]:
    """The type of the edges the other way."""
    return table.type[2], str(table.reverse), table.type[0]


def _plain(table: NodeTable | EdgeTable, *but: str) -> dict[str, Any]:
    """A table as a description has it, without what is default."""
    found: dict[str, Any] = {}
    for name, each in _fields(table, *but).items():
        if name == "files":
            paths = {"files": _one_or_several(each.paths)}
            found |= paths | _fields(each, "paths")
        elif name == "features":
            found["features"] = {feature.name: _plain_feature(feature) for feature in each}
        elif name in ("label", "time", "split"):
            fields = _fields(each)
            found[name] = fields["column"] if list(fields) == ["column"] else fields
        else:
            found[name] = _one_or_several(each) if name in ("key", "src", "dst") else each
    return found


def _one_or_several(names: Sequence[str]) -> Any:
    return names[0] if len(names) == 1 else list(names)


def _plain_feature(feature: Feature) -> Any:
    found = _fields(feature, "name", *(["column"] if feature.column == feature.name else []))
    if not found:
        return feature.kind
    return next(iter(found.values())) if list(found) in (["kind"], ["scale"]) else found


def _fields(value: Any, *but: str) -> dict[str, Any]:
    found = {}
    for each in dataclasses.fields(value):
        is_default = each.default is not dataclasses.MISSING and getattr(value, each.name) == each.default
        if each.name not in but and not is_default:
            item = getattr(value, each.name)
            found[each.name] = list(item) if isinstance(item, tuple) and each.name != "features" else item
    return found
