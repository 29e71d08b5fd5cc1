"""Which columns are keys of nodes and which are ends of edges: by names, unless values contradict, and by values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from glt.tables.guesses.looked import Looked

_ID_WORDS: Final = ("id", "ids", "key", "uuid", "guid", "number", "no", "nr", "code", "pk", "fk", "ref")
_PAIRS: Final = (
    ("from", "to"),
    ("src", "dst"),
    ("source", "target"),
    ("source", "destination"),
    ("sender", "receiver"),
    ("sender", "recipient"),
    ("payer", "payee"),
    ("buyer", "seller"),
    ("follower", "followee"),
    ("follower", "followed"),
    ("head", "tail"),
    ("origin", "destination"),
    ("citing", "cited"),
    ("u", "v"),
)


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\dA-Za-z_]+", name)]


def stem_of(name: str) -> str:
    """Its words in one, without ``id`` and the like: ``account`` of ``account_id``, ``accountId``, ``accountid``."""
    words = words_of(name)
    while words and words[-1] in _ID_WORDS:
        words.pop()
    joined = "".join(words)
    return joined[:-2] if joined.endswith("id") and len(joined) > 4 else joined


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 2 else word


def has_id(name: str) -> bool:
    words = words_of(name)
    return bool(words) and (words[-1] in _ID_WORDS or (words[-1].endswith("id") and len(words[-1]) > 3))


def is_integers(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_))


def is_texts(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _is_key_like(type_: pa.DataType) -> bool:
    return is_integers(type_) or is_texts(type_)


def key_of(table: Looked) -> str | None:
    """The column that has another value in each row and is called like a key."""
    best, best_score = None, 0
    for at, column in enumerate(table.columns):
        values = table.values(column)
        if not _is_key_like(values.type) or not len(values) or values.null_count:
            continue
        stem = _singular(stem_of(column))
        score = 3 if stem in ("", _singular(stem_of(table.name))) else 1 + (at == 0) if has_id(column) else 0
        score = score or int(at == 0 and is_texts(values.type) and not _pair_of(table))
        if score > best_score and pc.count_distinct(values).as_py() == len(values):
            best, best_score = column, score
    return best


def ends_of(table: Looked, tables: Sequence[Looked]) -> dict[str, str]:
    """The columns that hold keys of node types, with these; those of nodes that no table has too."""
    found: dict[str, str] = {}
    pair = _pair_of(table)
    for column in table.columns:
        if column != table.key and _could_be_end(table, column):
            end = _referenced(table, column, tables, is_paired=column in pair)
            if end is not None:
                found[column] = end
    if len(found) < 2 and pair and not set(pair) & set(found):
        return dict.fromkeys(pair, _common_name(*pair))
    if len(found) < 2 and table.key is None:  # a column with an id of what no table has
        for column in table.columns:
            if column not in found and has_id(column) and _is_key_like(table.values(column).type):
                name = stem_of(column) or column
                found[column] = name
                table.remarks.append(f"{column!r} is taken for keys of {name!r}, which no table has.")
    order = {column: at for at, column in enumerate(table.columns)}
    return dict(sorted(found.items(), key=lambda each: order[each[0]]))


def _could_be_end(table: Looked, column: str) -> bool:
    type_ = table.values(column).type
    if pa.types.is_floating(type_) and has_id(column):  # integers and nulls, where pandas wrote them
        values = pc.drop_null(table.values(column))
        return bool(pc.all(pc.equal(values, pc.floor(values))).as_py())
    return _is_key_like(type_)


def _referenced(table: Looked, column: str, tables: Sequence[Looked], is_paired: bool) -> str | None:
    """The table whose key a column holds: by its name, unless values contradict; by values, if they are texts or the
    column is one of a typical pair."""
    stem, values = _singular(stem_of(column)), table.values(column)
    best: tuple[float, int, str] | None = None
    for other in tables:
        if other.key is None or is_texts(other.values(other.key).type) != is_texts(values.type):
            continue
        names = {_singular(stem_of(other.name)), _singular(stem_of(other.key))} - {""}
        length = max((len(name) for name in names if len(name) > 2 and stem.endswith(name)), default=0)
        is_parent = other is table and words_of(column)[:1] == ["parent"]
        if other is table and not (length or is_parent):
            continue
        share = _share(values, other)
        by_values = share is not None and share > 0.95 and (is_paired or is_parent or is_texts(values.type))
        by_name = bool(length) and (share is None or share > 0.5)
        if by_name or by_values:
            best = max(filter(None, (best, (share or 0.5, length, other.name))))
    return None if best is None else best[2]


def _share(values: pa.ChunkedArray, other: Looked) -> float | None:
    """How many of the values are keys of a table; None if not all of these were read, or there are no values."""
    assert other.key is not None
    keys, distinct = other.values(other.key), pc.unique(pc.drop_null(values))
    if not other.is_whole or not len(distinct):
        return None
    wanted = distinct.cast(pa.string()) if is_texts(distinct.type) else distinct
    return float(pc.mean(pc.is_in(wanted, keys.cast(wanted.type)).cast(pa.int8())).as_py())


def _pair_of(table: Looked) -> tuple[str, ...]:
    """Two columns called like ends, such as ``from_account`` and ``to_account``."""
    by_word: dict[str, str] = {}
    for column in table.columns:
        words = [word for word in words_of(column) if word not in _ID_WORDS] or words_of(column)
        if _is_key_like(table.values(column).type) and words:
            by_word.setdefault(words[-1], column)
            by_word[words[0]] = column
    for one, other in _PAIRS:
        if one in by_word and other in by_word and by_word[one] != by_word[other]:
            return by_word[one], by_word[other]
    return ()


def _common_name(one: str, other: str) -> str:
    shared = [word for word in words_of(one) if word in words_of(other) and word not in _ID_WORDS]
    return shared[0] if shared else "node"
