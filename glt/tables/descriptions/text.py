"""A description as a text to edit: TOML with remarks, or JSON; and the JSON schema that editors check it by."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from glt.tables.descriptions.description import (
    DUPLICATES,
    KEY_TYPES,
    KINDS,
    LABELS,
    MISSING_ENDS,
    MISSING_VALUES,
    PARTS,
    SCALES,
    UNITS,
    Description,
)

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(description: Description, remarks: Mapping[str, Sequence[str]] | None = None) -> str:
    """The description in TOML; ``remarks`` are comments above a table, by the name of a node type or the relation of an
    edge type, and by ``""`` above all."""
    remarks, whole = remarks or {}, description.to_dict()
    lines = _comments(remarks.get("", ()))
    for name, table in whole["node_types"].items():
        header = f"node_types.{_key(name)}"
        lines += ["", *_comments(remarks.get(name, ())), f"[{header}]", *_table(table, header)]
    for table in whole["edge_types"]:
        lines += ["", *_comments(remarks.get(table["type"][1], ())), "[[edge_types]]", *_table(table, "edge_types")]
    return "\n".join(lines).lstrip("\n") + "\n"


def _comments(texts: Sequence[str]) -> list[str]:
    return [f"# {line}" for text in texts for line in text.splitlines()]


def _table(table: Mapping[str, Any], header: str) -> list[str]:
    lines = [f"{_key(name)} = {_value(each)}" for name, each in table.items() if name != "features"]
    if features := table.get("features"):
        lines += ["", f"[{header}.features]", *(f"{_key(name)} = {_value(each)}" for name, each in features.items())]
    return lines


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a description, for editors; :class:`Description` checks more."""
    text = {"type": "string", "minLength": 1}
    texts = {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}]}
    count = {"type": "integer", "minimum": 1}
    feature = {
        "column": text,
        "kind": {"enum": list(KINDS), "default": "number"},
        "scale": {"enum": list(SCALES), "default": "none", "description": "of a number"},
        "missing": {"enum": list(MISSING_VALUES), "default": "error", "description": "what a null is"},
        "max": count | {"default": 32, "description": "of a category: how many have numbers of their own"},
        "min_count": count | {"default": 1, "description": "of a category: in how many training rows"},
        "parts": {"anyOf": [{"enum": list(PARTS)}, {"type": "array", "items": {"enum": list(PARTS)}}]},
        "length": count | {"description": "of a vector or text: how many numbers"},
        "function": text | {"description": "of a text: module:function"},
        "unit": {"enum": list(UNITS), "default": "s", "description": "of a timestamp in integers"},
    }
    ratio = {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 3, "maxItems": 3}
    common = {
        "files": texts | {"description": "files, directories, patterns or URLs of Parquet or CSV"},
        "header": {"type": "boolean", "default": True, "description": "of CSV: whether it begins with names"},
        "delimiter": {"type": "string", "minLength": 1, "maxLength": 1},
        "features": {
            "type": "object",
            "additionalProperties": {"anyOf": [{"enum": [*KINDS, *SCALES[1:]]}, _object(feature)]},
        },
        "label": {"anyOf": [text, _object({"column": text, "kind": {"enum": list(LABELS)}}, ["column"])]},
        "time": {"anyOf": [text, _object({"column": text, "unit": {"enum": list(UNITS)}}, ["column"])]},
        "split": {
            "anyOf": [
                text,
                _object({"column": text}, ["column"]),
                _object({"ratio": ratio}, ["ratio"]),
                _object({"time": {"type": "array", "items": text, "minItems": 2, "maxItems": 2}}, ["time"]),
            ]
        },
    }
    node = {"key": texts, "key_type": {"enum": list(KEY_TYPES)}, **common}
    edge = {
        "type": {"type": "array", "items": text, "minItems": 3, "maxItems": 3},
        "src": texts,
        "dst": texts,
        "weight": text,
        "reverse": text | {"description": "the relation of the edges the other way"},
        "duplicates": {"enum": list(DUPLICATES), "default": "keep"},
        "missing": {"enum": list(MISSING_ENDS), "default": "error"},
        **common,
    }
    whole = {
        "$schema": text,
        "node_types": {"type": "object", "additionalProperties": _object(node)},
        "edge_types": {"type": "array", "items": _object(edge, ["type", "files", "src", "dst"]), "minItems": 1},
    }
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Tables of a graph, for glt build"}
    return about | _object(whole, ["node_types", "edge_types"])


def _object(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    found = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})
