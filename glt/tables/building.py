"""From tables to the rows of a graph: keys are numbered, features fitted and applied, edges joined, and all written in
the order of ids, step by step."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from glt.data.keys import KeyMap
from glt.errors import TableError
from glt.tables.columns.rows import Fits, Fitted, columns_of, split_borders, where_of
from glt.tables.columns.sources import Source
from glt.tables.columns.values import Column
from glt.tables.descriptions.description import Description, EdgeTable, NodeTable, reversed_type
from glt.tables.engines.making import END_FIELDS, EdgeFits, Edges, Keys, Nodes
from glt.tables.engines.output import read_shards, shards_of
from glt.tables.engines.plan import DST, KEY, SRC, Plan, Query, Rows

_TYPES: Final = {"int": pa.int64(), "text": pa.string()}


@dataclass
class Counts:
    """What was read of a table, and what became of it."""

    num_read: int = 0
    num_kept: int = 0
    num_dropped: int = 0  # edges of which an end is missing
    num_merged: int = 0  # edges between the same nodes as another
    num_added: int = 0  # nodes that edges alone name
    num_replaced: int = 0  # nodes of the graph that is updated, of which a new row came


@dataclass(frozen=True)
class Old:
    """A graph that was built, which an update goes on from: its folder, and ``build.json`` with what was ``fitted``."""

    folder: Path
    built: Mapping[str, Any]

    def num_nodes(self, name: str) -> int:
        return int(self.built["node_types"][name]["num_kept"])

    def keys(self, name: str, types: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The keys of a node type, in the order of their ids."""
        return read_shards(shards_of(self.folder / "keys" / name), key_fields(types))

    def fitted(self, table: NodeTable | EdgeTable) -> Fitted:
        return Fitted.of(table, self.built["fitted"][where_of(table)])

    def without_known(self, source: Source) -> Source:
        """The files of a table that it has not read; raises TableError if one that it has read is not as it was."""
        known = {path: (size, changed) for path, size, changed in self.built["files"].get(source.where, ())}
        found = {each.whole_path for each in source.files}
        gone = {path: state for path, state in known.items() if path not in found}
        for each in source.files:
            state = each.num_bytes, each.changed_ns
            if known.get(each.whole_path, state) != state:
                raise TableError(
                    f"{source.where}: {each.name} was written since {self.folder} was built of it: an update adds "
                    "files and leaves those that were read alone; build without --update to read all again"
                )
            for path, before in gone.items() if each.whole_path not in known else ():
                is_named_so = os.path.basename(path) == os.path.basename(each.whole_path)
                is_as_old = before[1] == state[1] != 0  # web servers may give no time
                if before[0] == state[0] and (is_named_so or is_as_old):
                    raise TableError(
                        f"{source.where}: {each.name} has the size of {path}, and its name or time, which "
                        f"{self.folder} was built of and which is gone: its rows would come twice; move it back, or "
                        "build without --update"
                    )
        return replace(source, files=tuple(each for each in source.files if each.whole_path not in known))


@dataclass
class Tables:
    """A description with its files: found, looked into, and not read yet."""

    description: Description
    nodes: list[Source | None]
    edges: list[Source]
    key_types: list[tuple[str, ...]]  # of each node type, "int" or "text" by column
    times: dict[str, dict[str, str]] = field(default_factory=dict)  # what they are, by table and column

    @classmethod
    def of(cls, description: Description, old: Old | None = None) -> Tables:
        """Finds the files, and what types keys have; raises TableError if a file or a column is missing, or a split is
        in no order."""
        base = description.base
        nodes = [None if t.files is None else Source.of(where_of(t), t.files, base) for t in description.node_types]
        edges = [Source.of(where_of(t), t.files, base) for t in description.edge_types]
        found = cls(description, nodes, edges, [])
        if old is not None:
            found.nodes = [None if each is None else old.without_known(each) for each in nodes]
            found.edges = [old.without_known(each) for each in edges]
            found.key_types = [tuple(old.built["key_types"][table.name]) for table in description.node_types]
            if not any(each.files for each in found.sources):
                raise TableError(
                    f"there are no files that {old.folder} has not read: an update adds the rows of new files"
                )
        else:
            found.key_types = [found._types_of_key(at) for at in range(len(nodes))]
        described: list[NodeTable | EdgeTable] = [*description.node_types, *description.edge_types]
        for each in described:
            split_borders(each)
        for at, table in enumerate(description.node_types):
            source = found.nodes[at]
            if source is not None:
                keys = _key_columns(KEY, table.key, found.key_types[at])
                found.nodes[at] = replace(source, columns=(*keys, *_columns_of(table, old)))
        for at, (edge_source, edge_table) in enumerate(zip(found.edges, description.edge_types, strict=True)):
            src, dst = (found.key_types[end] for end in found.ends(edge_table))
            dropped = edge_table.missing == "drop"  # as is an edge one of whose ends is null
            ends = (
                *_key_columns(SRC, edge_table.src, src, dropped),
                *_key_columns(DST, edge_table.dst, dst, dropped),
            )
            found.edges[at] = replace(edge_source, columns=(*ends, *_columns_of(edge_table, old)))
        before, folder = ({}, "") if old is None else (old.built["times"], str(old.folder))
        found.times = {each.where: each.kinds_of_times(before.get(each.where, {}), folder) for each in found.sources}
        return found

    def ends(self, table: EdgeTable) -> tuple[int, int]:
        """The numbers of its node types."""
        names = [each.name for each in self.description.node_types]
        return names.index(table.type[0]), names.index(table.type[2])

    @property
    def sources(self) -> list[Source]:
        return [each for each in (*self.nodes, *self.edges) if each is not None]

    @property
    def files(self) -> dict[str, list[list[Any]]]:
        """The state of each file, by table."""
        return {each.where: [[f.whole_path, f.num_bytes, f.changed_ns] for f in each.files] for each in self.sources}

    def _types_of_key(self, at: int) -> tuple[str, ...]:
        """Integers, if all tables of the key have them; else texts."""
        table = self.description.node_types[at]
        uses = [(self.nodes[at], table.key)] if self.nodes[at] is not None else []
        for source, edges in zip(self.edges, self.description.edge_types, strict=True):
            uses += [
                (source, columns)
                for end, columns in zip(self.ends(edges), (edges.src, edges.dst), strict=True)
                if end == at
            ]
        if not uses:
            raise TableError(f"{where_of(table)} has no files, and no edges name its nodes: expected one or the other")
        if table.key_type is not None:
            return (table.key_type,) * len(uses[0][1])
        found = [[source.key_type(column) for column in columns] for source, columns in uses if source is not None]
        return tuple("int" if set(kinds) == {"int"} else "text" for kinds in zip(*found, strict=True))


def _columns_of(table: NodeTable | EdgeTable, old: Old | None) -> list[Column]:
    """As :func:`columns_of`; the classes of an update are those that have numbers."""
    found = columns_of(table)
    label = old.fitted(table).label if old is not None and table.label is not None else None
    if label is None or label.label.kind != "class":
        return found
    return [replace(each, known=tuple(label.classes)) if each.name == "label" else each for each in found]


def key_fields(types: Sequence[str]) -> list[pa.Field]:
    """The columns of the key of a node type, as they are written."""
    return [pa.field(f"{KEY}{i}", _TYPES[type_]) for i, type_ in enumerate(types)]


def _key_columns(prefix: str, columns: Sequence[str], types: Sequence[str], is_nullable: bool = False) -> list[Column]:
    return [Column(f"{prefix}{i}", each, types[i], is_nullable) for i, each in enumerate(columns)]


class Journal:
    """The steps of a build that are done, in its folder: a build that was ended goes on behind them."""

    def __init__(self, folder: Path, of: Mapping[str, Any], resume: bool) -> None:
        self._path = folder / "progress.json"
        self._lock = _locked(folder)
        self._kept: dict[str, Any] = {"of": json.loads(json.dumps(of)), "steps": {}}
        try:
            self._begin(folder, resume)
        except BaseException:
            self.close()
            raise

    def _begin(self, folder: Path, resume: bool) -> None:
        if resume and self._path.is_file():
            kept = json.loads(self._path.read_text())
            for what, now in self._kept["of"].items():
                if kept["of"].get(what) != now:
                    raise TableError(
                        f"{folder} was begun with other {what}: build without --resume (resume=False) to begin again"
                    )
            self._kept = kept
        else:
            is_ours = self._path.is_file() or (folder / "build.json").is_file()  # this of one that was to be renamed
            if any(folder.iterdir()) and not is_ours:
                raise FileExistsError(f"{folder} is there, and is no build that was ended: move it away")
            for each in folder.iterdir():
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        self._write()

    def step(self, name: str, folders: Sequence[Path], do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a step returned, done now or before; ``folders`` are what it writes."""
        steps: dict[str, dict[str, Any]] = self._kept["steps"]
        if name not in steps:
            for each in folders:
                shutil.rmtree(each, ignore_errors=True)
            steps[name] = json.loads(json.dumps(do()))
            self._write()
        return steps[name]

    def remove(self) -> None:
        self._path.unlink()

    def close(self) -> None:
        """Lets another build begin."""
        os.close(self._lock)

    def _write(self) -> None:
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(self._kept))
        os.replace(written, self._path)


def _locked(folder: Path) -> int:
    """A descriptor of the folder, which is made, with a lock that ends with it; raises FileExistsError if another build
    has it."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is there, and is no build that was ended: move it away")
    folder.mkdir(parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise FileExistsError(f"{folder} is written by another build: wait for it, or choose another OUT") from None
    return opened


@dataclass
class Build:
    """A build that is under way: what it reads, and where it writes."""

    tables: Tables
    plan: Plan
    out: Path
    journal: Journal
    old: Old | None = None
    counts: dict[str, Counts] = field(default_factory=dict)
    fitted: dict[str, Fitted] = field(default_factory=dict)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)
    num_nodes: list[int] = field(default_factory=list)

    @property
    def files(self) -> dict[str, list[list[Any]]]:
        """All that was read, by table, for this graph and for the one that is updated."""
        before = self.old.built["files"] if self.old is not None else {}
        return {where: [*before.get(where, ()), *files] for where, files in self.tables.files.items()}

    def run(self) -> None:
        """Reads, numbers, fits, joins and writes all there is."""
        description = self.tables.description
        for at, table in enumerate(description.node_types):
            folder = self.out / "keys" / table.name
            ids = self.out / "ids" / table.name
            done = self.journal.step(f"keys of {table.name}", [folder, ids], partial(self._number, at, table))
            self.counts[where_of(table)] = Counts(**done)
            self.num_nodes.append(done["num_kept"])
            self.plan.has_keys(at, folder, KeyMap(ids))
        self.plan.engine.spare(sum(path.stat().st_size for path in (self.out / "ids").rglob("*.npy")))
        for at, table in enumerate(description.node_types):
            if table.files is not None and columns_of(table):
                folder = self.out / "nodes" / table.name
                done = self.journal.step(f"nodes of {table.name}", [folder], partial(self._write_nodes, at, table))
                self.fitted[where_of(table)] = Fitted.of(table, done["fitted"])
                self.counts[where_of(table)].num_replaced = done["num_replaced"]
                self.profiles[where_of(table)] = done["profile"]
        for source, edges in zip(self.tables.edges, description.edge_types, strict=True):
            types = [edges.type, *([reversed_type(edges)] if edges.reverse is not None else [])]
            folders = [self.out / "edges" / "__".join(type_) for type_ in types]
            done = self.journal.step(
                f"edges of {'__'.join(edges.type)}",
                folders,
                partial(self._write_edges, source, edges, folders),
            )
            self.fitted[where_of(edges)] = Fitted.of(edges, done["fitted"])
            self.counts[where_of(edges)] = Counts(**done["counts"])
            self.profiles[where_of(edges)] = done["profile"]
        for each in self.tables.sources:
            each.require_unchanged()

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _number(self, at: int, table: NodeTable) -> dict[str, Any]:
        """Gives keys ids: those of its own table first, then those that edges add; behind those that have ids."""
        own = self.tables.nodes[at]
        given = [Rows(own, KEY)] if own is not None else []
        for edges, edge_table in zip(self.tables.edges, self.tables.description.edge_types, strict=True):
            for end, prefix in zip(self.tables.ends(edge_table), (SRC, DST), strict=True):
                if end == at and (own is None or edge_table.missing == "add"):
                    given.append(Rows(edges, prefix))
        fields = key_fields(self.tables.key_types[at])
        folder, before, num_old = self.out / "keys" / table.name, None, 0
        if self.old is not None:
            before, num_old = self.old.folder / "keys" / table.name, self.old.num_nodes(table.name)
            self.plan.has_keys(at, before, KeyMap(self.old.folder / "ids" / table.name))
        query = self.plan.keys(at, [int(each.source is not own) for each in given], self.old is not None)
        with self.plan.engine.reading({f"glt_given_{i}": each for i, each in enumerate(given)}):
            made = self.plan.engine.write(query, Keys(fields), folder, fields, before, with_ids=True)
        names = table.key or tuple(f"{KEY}{i}" if i else KEY for i in range(len(fields)))
        columns = dict(zip(names, self.tables.key_types[at], strict=True))
        KeyMap.write(
            self.out / "ids" / table.name, columns, lambda: (b.columns for b in read_shards(shards_of(folder), fields))
        )  # type: ignore[arg-type]
        num_read = given[0].num_rows if own is not None else 0
        if own is not None and (num_read > made.num_own if self.old is None else own.files):
            self._refuse_repeated(own, table)
        num_added = made.num_rows - made.num_own
        return asdict(Counts(num_read, num_old + made.num_rows, num_added=num_added))

    def _write_nodes(self, at: int, table: NodeTable) -> dict[str, Any]:
        source = self.tables.nodes[at]
        assert source is not None  # it has files
        columns, by_hash = _names(table), _is_by_hash(table)
        hashed = self.plan.key_names(at, KEY) if by_hash else []
        fitted = self._fit(table, Rows(source, with_keys=by_hash), lambda names: self.plan.all_rows(hashed, names))
        nodes = Nodes(table, fitted)
        if self.old is not None:
            nodes.old, nodes.num_old = self.old.folder / "nodes" / table.name, self.old.num_nodes(table.name)
        rows = Rows(source, None, columns, False, [self.plan.numbered("id", KEY, at)])
        with self.plan.engine.reading({"glt_given": rows}):
            query = self.plan.nodes(at, columns, by_hash)
            folder = self.out / "nodes" / table.name
            made = self.plan.engine.write(query, nodes, folder, fitted.schema, with_ids=True)
        return {
            "fitted": fitted.to_dict(),
            "num_replaced": made.num_replaced,
            "profile": made.profile.to_dict(),
        }

    def _refuse_repeated(self, source: Source, table: NodeTable) -> None:
        found = self.plan.repeated(source, len(table.key))
        if not found:
            return
        shown = ", ".join(f"{shown_key(row[:-1])} ({row[-1]} times)" for row in found)
        place = _first_place(source, KEY, found[0][:-1])
        raise TableError(
            f"{where_of(table)}: key {list(table.key)} comes more than once: {shown}{place}: "
            "expected a row for each node; drop the others, or make them a node type of their own"
        )

    # -- edges -----------------------------------------------------------------------------------------------------

    def _write_edges(self, source: Source, table: EdgeTable, folders: Sequence[Path]) -> dict[str, Any]:
        ends, columns, by_hash = self.tables.ends(table), _names(table), _is_by_hash(table)
        hashed = [*self.plan.key_names(ends[0], SRC), *self.plan.key_names(ends[1], DST)] if by_hash else []
        numbered = [self.plan.numbered("src", SRC, ends[0]), self.plan.numbered("dst", DST, ends[1])]
        if table.duplicates != "keep" and self.old is None and Fits(table).columns:
            fitted = self._fit_without_duplicates(table, Rows(source, None, columns, by_hash, numbered), hashed)
        elif table.missing == "drop":
            fitted = self._fit(
                table, Rows(source, None, (), by_hash, numbered), lambda names: self.plan.edges(hashed, names)
            )
        else:  # of each edge both ends are there
            fitted = self._fit(table, Rows(source, with_keys=by_hash), lambda names: self.plan.all_rows(hashed, names))
        fields = [*END_FIELDS, *fitted.schema]
        counts, profile = Counts(), {}
        for folder, is_reverse in zip(folders, (False, True), strict=False):
            rows = Rows(source, None, columns, by_hash, numbered)
            edges = Edges(table, fitted, fields, table.duplicates)
            new = folder if self.old is None else self.out / "new_edges"
            shutil.rmtree(new, ignore_errors=True)
            with self.plan.engine.reading({"glt_given": rows}):
                query = self.plan.edges(hashed, columns, is_reverse)
                made = self.plan.engine.write(query, edges, new, fields)
            num_dropped, num_joined = rows.num_rows - made.num_joined, made.num_joined
            if num_dropped and table.missing == "error":
                raise self._unknown_end(source, table, ends, num_dropped)
            if self.old is not None:
                before = self.old.folder / "edges" / folder.name
                query = self.plan.both(before, new, [each.name for each in fields])
                num_old = int(self.old.built["edge_types"]["__".join(table.type)]["num_kept"])
                num_joined += num_old
                made = self.plan.engine.write(query, Edges(table, None, fields, table.duplicates), folder, fields)
                shutil.rmtree(new)
            if not is_reverse:
                counts = Counts(rows.num_rows, made.num_rows, num_dropped, num_joined - made.num_rows)
                profile = made.profile.to_dict()
        return {"fitted": fitted.to_dict(), "counts": asdict(counts), "profile": profile}

    def _fit_without_duplicates(self, table: EdgeTable, rows: Rows, hashed: list[str]) -> Fitted:
        folder = self.out / "fitted_edges"
        with self.plan.engine.reading({"glt_given": rows}):
            query = self.plan.edges(hashed, rows.columns)
            made = self.plan.engine.write(query, EdgeFits(table, Fits(table)), folder, END_FIELDS)
        shutil.rmtree(folder)
        return made.fits.finish()

    def _unknown_end(self, source: Source, table: EdgeTable, ends: tuple[int, int], num_edges: int) -> TableError:
        for end, prefix, columns in ((ends[0], SRC, table.src), (ends[1], DST, table.dst)):
            if found := self.plan.unknown(source, prefix, end):
                shown = ", ".join(shown_key(row[:-1]) for row in found)
                place, name = _first_place(source, prefix, found[0][:-1]), self.tables.description.node_types[end].name
                return TableError(
                    f"{where_of(table)}: {num_edges} edges end in nodes that there are not: {list(columns)} is "
                    f"{shown}{place}: expected keys of {name!r}; missing = 'drop' leaves such edges out, 'add' makes "
                    "nodes"
                )
        return TableError(f"{where_of(table)}: its files changed while they were read: build again")

    # -- both ------------------------------------------------------------------------------------------------------

    def _fit(self, table: NodeTable | EdgeTable, rows: Rows, query: Callable[[list[str]], Query]) -> Fitted:
        """What is fitted on the training rows; of an update, what was fitted before."""
        if self.old is not None:
            return self.old.fitted(table)
        fits = Fits(table)
        if fits.columns:
            with self.plan.engine.reading({"glt_given": replace(rows, columns=fits.columns)}):
                fits = self.plan.engine.fold(query(fits.columns), fits)
        return fits.finish()


def _names(table: NodeTable | EdgeTable) -> list[str]:
    return [each.name for each in columns_of(table)]


def _is_by_hash(table: NodeTable | EdgeTable) -> bool:
    return table.split is not None and table.split.ratio is not None


def shown_key(key: Sequence[Any]) -> str:
    return repr(key[0]) if len(key) == 1 else repr(tuple(key))


def _first_place(source: Source, prefix: str, key: Sequence[Any]) -> str:
    """Where a key comes first, in words; the files are read for it."""
    found = source.find([f"{prefix}{i}" for i in range(len(key))], key)
    return "" if found is None else f", first in {found[0]}, row {found[1]}"
