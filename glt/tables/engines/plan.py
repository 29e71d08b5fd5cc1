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
from functools import reduce
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glt.data.keys import KeyMap
from glt.tables.columns.sources import Source

KEY, SRC, DST, HASH, HAS_ROW, RANK = "key", "src", "dst", "hash", "has_row", "rank"


@dataclass(frozen=True)
class Numbered:
    """The ids of the nodes that key columns name, as a column; null where there is no such node."""

    name: str  # of the column
    prefix: str  # of the key columns
    node: int
    keys: KeyMap


@dataclass
class Rows:
    """Columns of a source, as a query reads them: those of keys, if ``with_keys``, ids, and others. Key columns that
    begin with ``prefix`` are called ``key0``, ``key1``, ..., others are left out then. ``num_rows`` and ``error`` are
    what came of reading them."""

    source: Source
    prefix: str | None = None
    columns: Sequence[str] = ()
    with_keys: bool = True
    numbered: Sequence[Numbered] = ()
    num_rows: int = 0
    error: BaseException | None = None

    @property
    def own_names(self) -> list[str]:
        """The columns of the source that are passed on."""
        return [*(self.key_names(self.prefix) if self.with_keys else ()), *self.columns]

    def key_names(self, prefix: str | None) -> list[str]:
        ends = [c.name for c in self.source.columns if c.name[:3] in (KEY, SRC, DST) and c.name[3:].isdigit()]
        return [name for name in ends if prefix is None or name.startswith(prefix)]

    @property
    def names(self) -> list[str]:
        return [KEY + name[3:] if self.prefix and name not in self.columns else name for name in self.own_names]

    @property
    def schema(self) -> pa.Schema:
        schema = self.source.schema
        types = [schema.field(name).type for name in self.own_names]
        fields = [pa.field(name, type_) for name, type_ in zip(self.names, types, strict=True)]
        return pa.schema([*fields, *(pa.field(each.name, pa.int64()) for each in self.numbered)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema, own = self.schema, self.own_names
        read = [*own, *(name for each in self.numbered for name in self.key_names(each.prefix))]
        try:
            for batch in self.source.batches(read):
                self.num_rows += batch.num_rows
                ids = [self._ids(batch, each) for each in self.numbered]
                yield pa.RecordBatch.from_arrays([*(batch.column(name) for name in own), *ids], schema=schema)
        except (Exception, KeyboardInterrupt) as error:
            self.error = error
            raise

    def _ids(self, batch: pa.RecordBatch, each: Numbered) -> pa.Array:
        columns = [batch.column(name) for name in self.key_names(each.prefix)]
        if not any(column.null_count for column in columns):
            ids = each.keys.find(tuple(columns))
            return pa.array(ids, mask=ids < 0)
        whole = reduce(pc.and_, (pc.is_valid(column) for column in columns))
        ids = np.full(len(whole), -1, np.int64)
        ids[np.asarray(whole)] = each.keys.find(tuple(column.filter(whole) for column in columns))
        return pa.array(ids, mask=ids < 0)


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
        """Makes a table of a folder that :class:`~glt.tables.engines.output.Shards` wrote."""

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
        """Writes what ``make`` makes of the rows, in their order, as ``Shards``, after the rows
        of ``before``; returns ``make`` with all that it counted."""

    def spare(self, num_bytes: int) -> None:
        """So much of the memory is used for maps of keys from here on."""

    def close(self) -> None:
        """Removes what it wrote."""


class Plan:
    """What a build asks an engine; ``node`` is the number of a node type, ``widths`` how many columns keys have.
    ``hashed`` are the columns of a key that decides on a split, if one does."""

    def __init__(self, engine: Engine, widths: Sequence[int]) -> None:
        self.engine, self._widths = engine, widths
        self._keys: dict[int, KeyMap] = {}

    def keys(self, node: int, ranks: Sequence[int], is_update: bool) -> Query:
        """Keys of the tables ``glt_given_0``, ``glt_given_1``, ... with the least of their ``ranks``, in the order of
        rank and key; of an update, without those that have ids already."""
        width = self._widths[node]
        listed = ", ".join(_columns(KEY, width))
        whole = " AND ".join(f"{name} IS NOT NULL" for name in _columns(KEY, width))
        every = " UNION ALL ".join(
            f"SELECT {listed}, CAST({rank} AS INT) AS {RANK} FROM glt_given_{i} WHERE {whole}"
            for i, rank in enumerate(ranks)
        )
        found = f"SELECT {listed}, min({RANK}) AS {RANK} FROM ({every}) AS every_key GROUP BY {listed}"
        if is_update:
            same = _same("g", KEY, "n", width)
            found = f"SELECT g.* FROM ({found}) AS g WHERE NOT EXISTS (SELECT 1 FROM glt_keys_{node} AS n WHERE {same})"
        return Query(found, [RANK, *_columns(KEY, width)], 1 + width)

    def has_keys(self, node: int, folder: Path, keys: KeyMap) -> None:
        """The keys of a node type are in this folder, with their ids, and in ``keys``."""
        self.engine.view(f"glt_keys_{node}", folder)
        self._keys[node] = keys

    def numbered(self, name: str, prefix: str, node: int) -> Numbered:
        return Numbered(name, prefix, node, self._keys[node])

    def nodes(self, node: int, columns: Sequence[str], by_hash: bool) -> Query:
        """A row for each key, with ``id``, in the order of ids, and ``has_row``: whether ``glt_given`` has one."""
        hashed = [f"{_hash('n', self.key_names(node, KEY))} AS {HASH}"] if by_hash else []
        chosen = ", ".join(["n.id AS id", *hashed, f"g.id IS NOT NULL AS {HAS_ROW}", *_of("g", columns)])
        return Query(f"SELECT {chosen} FROM glt_keys_{node} AS n LEFT JOIN glt_given AS g ON n.id = g.id", ["id"])

    def edges(self, hashed: Sequence[str], columns: Sequence[str], is_reverse: bool = False) -> Query:
        """Edges of ``glt_given`` both of whose ends, ``src`` and ``dst``, have ids, in their order."""
        src, dst = ("dst", "src") if is_reverse else ("src", "dst")
        with_hash = [f"{_hash('g', hashed)} AS {HASH}"] if hashed else []
        chosen = [f"g.{src} AS src", f"g.{dst} AS dst", *with_hash, *_of("g", columns)]
        query = f"SELECT {', '.join(chosen)} FROM glt_given AS g WHERE g.src IS NOT NULL AND g.dst IS NOT NULL"
        return Query(query, _edge_order(columns), 2)

    def all_rows(self, hashed: Sequence[str], columns: Sequence[str]) -> Query:
        """All rows of ``glt_given``, in any order."""
        with_hash = [f"{_hash('g', hashed)} AS {HASH}"] if hashed else []
        return Query(f"SELECT {', '.join([*with_hash, *_of('g', columns)])} FROM glt_given AS g")

    def key_names(self, node: int, prefix: str) -> list[str]:
        return _columns(prefix, self._widths[node])

    def both(self, first: Path, second: Path, columns: Sequence[str]) -> Query:
        """The edges of two folders, in their order."""
        self.engine.view("glt_first_run", first)
        self.engine.view("glt_second_run", second)
        listed = ", ".join(columns)
        text = f"SELECT {listed} FROM glt_first_run UNION ALL SELECT {listed} FROM glt_second_run"
        return Query(text, _edge_order(columns), 2)

    def repeated(self, source: Source, width: int) -> list[tuple[Any, ...]]:
        """The first keys that come more than once, with how often they do."""
        with self.engine.reading({"glt_given": Rows(source, KEY)}):
            return self.engine.rows(f"{_counted(width)} HAVING count(*) > 1 {_first_keys(width)}")

    def unknown(self, source: Source, prefix: str, node: int) -> list[tuple[Any, ...]]:
        """The first keys of an end that no node has, with how often they come."""
        width = self._widths[node]
        with self.engine.reading({"glt_given": Rows(source, prefix, numbered=[self.numbered("id", prefix, node)])}):
            return self.engine.rows(f"{_counted(width, 'WHERE id IS NULL')} {_first_keys(width)}")


def _counted(width: int, where: str = "") -> str:
    """How often each key comes."""
    key = ", ".join(_columns(KEY, width))
    return f"SELECT {key}, count(*) AS number FROM glt_given {where} GROUP BY {key}"


def _first_keys(width: int) -> str:
    """Engines differ in where nulls come if they are not told."""
    return f"ORDER BY {', '.join(f'{name} ASC NULLS LAST' for name in _columns(KEY, width))} LIMIT 3"


def _edge_order(columns: Sequence[str]) -> list[str]:
    """What an engine sorts edges by: keys of few bytes. Few are equal in these; ``making.Edges`` sorts
    them by all else."""
    return ["dst", "src", *(["time"] if "time" in columns else [])]


def _columns(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def _of(table: str, columns: Sequence[str]) -> list[str]:
    return [f"{table}.{name}" for name in columns]


def _same(table: str, prefix: str, keys: str, width: int) -> str:
    return " AND ".join(f"{table}.{prefix}{i} = {keys}.{KEY}{i}" for i in range(width))


def _hash(table: str, columns: Sequence[str]) -> str:
    """A number from 0 to 1 of a key: the first 32 bits of the MD5 of its columns as texts, joined by U+001F."""
    digest = f"md5(concat_ws(chr(31), {', '.join(f'CAST({table}.{name} AS STRING)' for name in columns)}))"
    digits = " + ".join(
        f"instr('123456789abcdef', substr({digest}, {i + 1}, 1)) * CAST({16 ** (7 - i)} AS BIGINT)" for i in range(8)
    )
    return f"CAST({digits} AS DOUBLE) / CAST(4294967296 AS DOUBLE)"
