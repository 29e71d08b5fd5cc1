"""The relational part of a build, written once: keys to dense ids, rows in the order of their ids, edges with the ids
of their ends. An :class:`Engine` runs it; the SQL is DuckDB's, and other engines translate it.

Ids are positions in the order of the keys (texts: of their UTF-8 bytes), so that they depend on the keys alone. Nodes
are in the order of their ids, edges in that of destination, source and all that they carry: only equal edges may change
places, which makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from glt.tables.sources import Source

KEY, SRC, DST, HASH = "key", "src", "dst", "hash"


@dataclass
class Rows:
    """Columns of a source, as a query reads them: those of a key or end, called ``key0``, ``key1``, ..., and others.

    ``with_hash`` asks for a number from 0 to 1 that depends on the key alone, ``hash``. ``num_rows`` and ``error`` are
    what came of reading them here."""

    source: Source
    prefix: str | None  # of the columns that become key0, ...; None: all columns keep their names
    columns: Sequence[str] = ()
    with_hash: bool = False
    num_rows: int = 0
    error: Exception | None = None

    @property
    def own_names(self) -> list[str]:
        every = [each.name for each in self.source.columns]
        ends = [name for name in every if name[:3] in (KEY, SRC, DST) and name[3:].isdigit()]
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


class Engine(Protocol):
    """What joins and sorts."""

    def reading(self, given: Mapping[str, Rows]) -> AbstractContextManager[None]:
        """Within it queries may read these tables, each once; raises what reading one raised."""

    def load(self, table: str, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        """Makes a table of keys that have ids: ``id`` is the number of the row."""

    def number(self, table: str, query: str) -> None:
        """Adds the rows of a query, in their order, with the ids that follow."""

    def stream(self, query: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query, in its order."""

    def close(self) -> None:
        """Removes what it wrote."""


class Plan:
    """What a build asks an engine; ``node`` is the number of a node type, ``widths`` how many columns keys have."""

    def __init__(self, engine: Engine, widths: Sequence[int]) -> None:
        self._engine, self._widths = engine, widths

    def begin(self, node: int, schema: pa.Schema, old: Iterable[pa.RecordBatch] = ()) -> None:
        """A node type begins with the keys of ``old``, in the order of their ids."""
        self._engine.load(f"keys_{node}", iter(old), schema)

    def number_keys(self, node: int, source: Source, prefix: str) -> int:
        """Gives the keys of a table, in columns of this prefix, that have none yet ids in their order; returns how many
        rows the table has."""
        width = self._widths[node]
        rows, listed = Rows(source, prefix), ", ".join(_columns(KEY, width))
        with self._engine.reading({"given": rows}):
            self._engine.number(
                f"keys_{node}",
                f"SELECT {listed} FROM (SELECT DISTINCT {listed} FROM given) AS g "
                f"ANTI JOIN keys_{node} AS n ON {_same('g', KEY, 'n', width)} ORDER BY {listed}",
            )
        return rows.num_rows

    def num_keys(self, node: int) -> int:
        (batch,) = self._engine.stream(f"SELECT count(*) AS number FROM keys_{node}")
        return int(batch.column(0)[0].as_py())

    def keys(self, node: int) -> Iterator[pa.RecordBatch]:
        """``key0``, ``key1``, ... in the order of ids."""
        return self._engine.stream(
            f"SELECT {', '.join(_columns(KEY, self._widths[node]))} FROM keys_{node} ORDER BY id"
        )

    def nodes(self, node: int, rows: Rows, ordered: bool) -> Iterator[pa.RecordBatch]:
        """Rows with ``id``; if ``ordered``, a row for each key, in the order of ids."""
        width = self._widths[node]
        hashed = [f"{_hash(['n'], [KEY], [width])} AS {HASH}"] if rows.with_hash else []
        chosen = ", ".join(["n.id AS id", *hashed, *_of("g", rows.columns)])
        join = f"keys_{node} AS n {'LEFT ' if ordered else ''}JOIN given AS g ON {_same('g', KEY, 'n', width)}"
        yield from self._read(rows, f"SELECT {chosen} FROM {join}" + (" ORDER BY n.id" if ordered else ""))

    def edges(self, ends: tuple[int, int], rows: Rows, ordered: bool) -> Iterator[pa.RecordBatch]:
        """Edges both of whose ends have ids, ``src`` and ``dst``; in their order, if ``ordered``."""
        widths = [self._widths[end] for end in ends]
        hashed = [f"{_hash(['g', 'g'], [SRC, DST], widths)} AS {HASH}"] if rows.with_hash else []
        chosen = ", ".join(["s.id AS src", "d.id AS dst", *hashed, *_of("g", rows.columns)])
        query = (
            f"SELECT {chosen} FROM given AS g "
            f"JOIN keys_{ends[0]} AS s ON {_same('g', SRC, 's', widths[0])} "
            f"JOIN keys_{ends[1]} AS d ON {_same('g', DST, 'd', widths[1])}"
        )
        order = ", ".join(["dst", "src", *_of("g", rows.columns)])
        yield from self._read(rows, query + (f" ORDER BY {order}" if ordered else ""))

    def repeated(self, source: Source, num_columns: int) -> list[tuple[Any, ...]]:
        """The first keys that come more than once, with how often they do."""
        key = ", ".join(_columns(KEY, num_columns))
        query = f"SELECT {key}, count(*) AS number FROM given GROUP BY {key} HAVING count(*) > 1 ORDER BY {key} LIMIT 3"
        return _tuples(self._read(Rows(source, KEY), query))

    def unknown(self, source: Source, prefix: str, node: int) -> list[tuple[Any, ...]]:
        """The first keys of an end that no node has, with how often they come."""
        width = self._widths[node]
        key = ", ".join(f"g.{name} AS {name}" for name in _columns(KEY, width))
        query = (
            f"SELECT {', '.join(_columns(KEY, width))}, count(*) AS number FROM (SELECT {key} FROM given AS g "
            f"ANTI JOIN keys_{node} AS n ON {_same('g', KEY, 'n', width)}) AS u "
            f"GROUP BY ALL ORDER BY ALL LIMIT 3"
        )
        return _tuples(self._read(Rows(source, prefix), query))

    def _read(self, rows: Rows, query: str) -> Iterator[pa.RecordBatch]:
        with self._engine.reading({"given": rows}):
            yield from self._engine.stream(query)


def _columns(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def _of(table: str, columns: Sequence[str]) -> list[str]:
    return [f"{table}.{name}" for name in columns]


def _same(table: str, prefix: str, keys: str, width: int) -> str:
    return " AND ".join(f"{table}.{prefix}{i} = {keys}.{KEY}{i}" for i in range(width))


def _hash(tables: Sequence[str], prefixes: Sequence[str], widths: Sequence[int]) -> str:
    """A number from 0 to 1 of a key: the first 32 bits of the MD5 of its columns as texts, joined by U+001F."""
    columns = [
        f"CAST({table}.{prefix}{i} AS VARCHAR)"
        for table, prefix, width in zip(tables, prefixes, widths, strict=True)
        for i in range(width)
    ]
    text = " || chr(31) || ".join(columns)
    return f"CAST('0x' || left(md5({text}), 8) AS BIGINT) / 4294967296.0"


def _tuples(batches: Iterator[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
