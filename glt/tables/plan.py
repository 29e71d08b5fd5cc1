"""The relational part of a build, written once: keys to dense ids, rows in the order of their ids, edges with the ids
of their ends. An :class:`Engine` runs it. The SQL is what DuckDB and Spark have in common.

Ids are positions in the order of the keys (texts: of their UTF-8 bytes), so that they depend on the keys alone. Nodes
are in the order of their ids, edges in that of destination, source and all that they carry: only equal edges may change
places, which makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from glt.tables.sources import Source

KEY, SRC, DST, HASH, HAS_ROW, RANK = "key", "src", "dst", "hash", "has_row", "rank"


@dataclass
class Rows:
    """Columns of a source, as a query reads them: those of a key or end, called ``key0``, ``key1``, ..., and others.
    ``num_rows`` and ``error`` are what came of reading them."""

    source: Source
    prefix: str | None  # of the columns that become key0, ...; None: all columns keep their names
    columns: Sequence[str] = ()
    with_keys: bool = True
    num_rows: int = 0
    error: Exception | None = None

    @property
    def own_names(self) -> list[str]:
        every = [each.name for each in self.source.columns]
        ends = [name for name in every if self.with_keys and name[:3] in (KEY, SRC, DST) and name[3:].isdigit()]
        return [name for name in ends if self.prefix is None or name.startswith(self.prefix)] + list(self.columns)

    @property
    def names(self) -> list[str]:
        return [KEY + name[3:] if self.prefix and name not in self.columns else name for name in self.own_names]

    @property
    def schema(self) -> pa.Schema:
        types = [self.source.schema.field(name).type for name in self.own_names]
        return pa.schema([pa.field(name, type_) for name, type_ in zip(self.names, types, strict=True)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema, own = self.schema, self.own_names
        try:
            for batch in self.source.batches(own):
                self.num_rows += batch.num_rows
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in own], schema=schema)
        except Exception as error:
            self.error = error
            raise


class Fold(Protocol):
    """Adds rows up, in any order. It pickles."""

    def add(self, batch: pa.RecordBatch) -> None: ...

    def merge(self, other: Any) -> None:
        """Takes in what another one has added up."""


class Make(Protocol):
    """Turns rows of a query, in their order, into those that are written. It pickles."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, pa.Array]]: ...

    def merge(self, other: Any) -> None:
        """Takes in what another one has counted."""


AnyFold = TypeVar("AnyFold", bound=Fold)
AnyMake = TypeVar("AnyMake", bound=Make)


@dataclass(frozen=True)
class Query:
    """A query with the columns that it is ordered by; rows that are equal in the first ``num_whole`` of these are never
    divided between two calls of a :class:`Make`."""

    text: str
    order: Sequence[str] = ()
    num_whole: int = 1

    @property
    def ordered(self) -> str:
        order = ", ".join(f"{name} ASC NULLS LAST" for name in self.order)
        return f"SELECT * FROM ({self.text}) AS q ORDER BY {order}"


class Engine(Protocol):
    """What joins and sorts."""

    def reading(self, given: Mapping[str, Rows]) -> AbstractContextManager[None]:
        """Within it one query may read these tables, each once; raises what reading one raised."""

    def view(self, name: str, folder: Path) -> None:
        """Makes a table of a folder that :class:`glt.tables.output.Shards` wrote."""

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """A few rows."""

    def fold(self, query: Query, fold: AnyFold) -> AnyFold:
        """Adds all rows up."""

    def write(
        self,
        query: Query,
        make: AnyMake,
        folder: Path,
        fields: Sequence[pa.Field],
        before: Path | None = None,
        with_ids: bool = False,
    ) -> AnyMake:
        """Writes what ``make`` makes of the rows, in their order, as :class:`glt.tables.output.Shards`, after the rows
        of ``before``; returns ``make`` with all that it counted."""

    def close(self) -> None:
        """Removes what it wrote."""


class Plan:
    """What a build asks an engine; ``node`` is the number of a node type, ``widths`` how many columns keys have."""

    def __init__(self, engine: Engine, widths: Sequence[int]) -> None:
        self.engine, self._widths = engine, widths

    def keys(self, node: int, ranks: Sequence[int], is_update: bool) -> Query:
        """Keys of the tables ``given_0``, ``given_1``, ... with the least of their ``ranks``, in the order of rank and
        key; of an update, without those that have ids already."""
        width = self._widths[node]
        listed = ", ".join(_columns(KEY, width))
        every = " UNION ALL ".join(
            f"SELECT {listed}, CAST({rank} AS INT) AS {RANK} FROM given_{i}" for i, rank in enumerate(ranks)
        )
        found = f"SELECT {listed}, min({RANK}) AS {RANK} FROM ({every}) AS every_key GROUP BY {listed}"
        if is_update:
            same = _same("g", KEY, "n", width)
            found = f"SELECT g.* FROM ({found}) AS g WHERE NOT EXISTS (SELECT 1 FROM keys_{node} AS n WHERE {same})"
        return Query(found, [RANK, *_columns(KEY, width)], 1 + width)

    def has_keys(self, node: int, folder: Path) -> None:
        """The keys of a node type are in this folder, with their ids."""
        self.engine.view(f"keys_{node}", folder)

    def nodes(self, node: int, columns: Sequence[str], by_hash: bool, with_all: bool) -> Query:
        """Rows of ``given`` with ``id``, in the order of ids; ``with_all`` a row for each key, and ``has_row``."""
        width = self._widths[node]
        hashed = [f"{_hash(['n'], [KEY], [width])} AS {HASH}"] if by_hash else []
        has_row = [f"g.{KEY}0 IS NOT NULL AS {HAS_ROW}"]
        chosen = ", ".join(["n.id AS id", *hashed, *has_row, *_of("g", columns)])
        join = f"keys_{node} AS n {'LEFT ' if with_all else ''}JOIN given AS g ON {_same('g', KEY, 'n', width)}"
        return Query(f"SELECT {chosen} FROM {join}", ["id"])

    def edges(self, ends: tuple[int, int], columns: Sequence[str], by_hash: bool, is_reverse: bool = False) -> Query:
        """Edges of ``given`` both of whose ends have ids, ``src`` and ``dst``, in their order."""
        widths = [self._widths[end] for end in ends]
        src, dst = ("d", "s") if is_reverse else ("s", "d")
        chosen = [f"{src}.id AS src", f"{dst}.id AS dst", *self._hashed(widths, by_hash), *_of("g", columns)]
        query = (
            f"SELECT {', '.join(chosen)} FROM given AS g "
            f"JOIN keys_{ends[0]} AS s ON {_same('g', SRC, 's', widths[0])} "
            f"JOIN keys_{ends[1]} AS d ON {_same('g', DST, 'd', widths[1])}"
        )
        return Query(query, _edge_order(columns), 2)

    def all_edges(self, ends: tuple[int, int], columns: Sequence[str], by_hash: bool) -> Query:
        """Edges of ``given`` without ids, in any order, where none is left out."""
        chosen = [*self._hashed([self._widths[end] for end in ends], by_hash), *_of("g", columns)]
        return Query(f"SELECT {', '.join(chosen)} FROM given AS g")

    def _hashed(self, widths: Sequence[int], by_hash: bool) -> list[str]:
        return [f"{_hash(['g', 'g'], [SRC, DST], widths)} AS {HASH}"] if by_hash else []

    def both(self, first: Path, second: Path, columns: Sequence[str]) -> Query:
        """The edges of two folders, in their order."""
        self.engine.view("first_run", first)
        self.engine.view("second_run", second)
        listed = ", ".join(columns)
        text = f"SELECT {listed} FROM first_run UNION ALL SELECT {listed} FROM second_run"
        return Query(text, _edge_order(columns), 2)

    def repeated(self, source: Source, width: int) -> list[tuple[Any, ...]]:
        """The first keys that come more than once, with how often they do."""
        key = ", ".join(_columns(KEY, width))
        query = f"SELECT {key}, count(*) AS number FROM given GROUP BY {key} HAVING count(*) > 1 ORDER BY {key} LIMIT 3"
        with self.engine.reading({"given": Rows(source, KEY)}):
            return self.engine.rows(query)

    def unknown(self, source: Source, prefix: str, node: int) -> list[tuple[Any, ...]]:
        """The first keys of an end that no node has, with how often they come."""
        width = self._widths[node]
        key = ", ".join(_columns(KEY, width))
        query = (
            f"SELECT {key}, count(*) AS number FROM given AS g "
            f"WHERE NOT EXISTS (SELECT 1 FROM keys_{node} AS n WHERE {_same('g', KEY, 'n', width)}) "
            f"GROUP BY {key} ORDER BY {key} LIMIT 3"
        )
        with self.engine.reading({"given": Rows(source, prefix)}):
            return self.engine.rows(query)


def _edge_order(columns: Sequence[str]) -> list[str]:
    """What an engine sorts edges by: keys of few bytes. Few are equal in these; :class:`glt.tables.making.Edges` sorts
    them by all else."""
    return ["dst", "src", *(["time"] if "time" in columns else [])]


def _columns(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def _of(table: str, columns: Sequence[str]) -> list[str]:
    return [f"{table}.{name}" for name in columns]


def _same(table: str, prefix: str, keys: str, width: int) -> str:
    return " AND ".join(f"{table}.{prefix}{i} = {keys}.{KEY}{i}" for i in range(width))


def _hash(tables: Sequence[str], prefixes: Sequence[str], widths: Sequence[int]) -> str:
    """A number from 0 to 1 of a key: the first 32 bits of the MD5 of its columns as texts, joined by U+001F."""
    columns = [
        f"CAST({table}.{prefix}{i} AS STRING)"
        for table, prefix, width in zip(tables, prefixes, widths, strict=True)
        for i in range(width)
    ]
    digest = f"md5(concat_ws(chr(31), {', '.join(columns)}))"
    digits = " + ".join(
        f"instr('123456789abcdef', substr({digest}, {i + 1}, 1)) * CAST({16 ** (7 - i)} AS BIGINT)" for i in range(8)
    )
    return f"CAST({digits} AS DOUBLE) / CAST(4294967296 AS DOUBLE)"
