"""Which tables files are, and rows of them to look at."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from glt._urls import is_url, public_url, without_query
from glt.errors import TableError
from glt.tables.columns.files import BLOCK_BYTES, File, find_files, has_kind, is_parquet
from glt.tables.columns.sources import Source
from glt.tables.descriptions.description import Files

_ROWS: Final = 100_000  # looked at, of a table


@dataclass
class Looked:
    """A table that is looked at, and what its columns are taken for."""

    name: str
    source: Source
    rows: pa.Table  # some
    is_whole: bool  # whether these are all
    key: str | None = None
    ends: dict[str, str] = field(default_factory=dict)  # columns to node types
    remarks: list[str] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        return list(self.rows.column_names)

    def values(self, column: str) -> pa.ChunkedArray:
        return self.rows.column(column)


def found_tables(given: Sequence[str]) -> list[Looked]:
    if not given:
        raise TableError("no files: expected files, directories, patterns or URLs of tables")
    tables: dict[tuple[Any, ...], list[tuple[File, Files]]] = {}
    for each in given:
        given_files = list(find_files(each, "."))
        if not given_files:
            raise TableError(f"{public_url(each)}: expected Parquet or CSV files, and there are none")
        for file in given_files:
            format_, names = _format_of(file)
            if twice := [name for name in names if names.count(name) > 1]:
                raise TableError(f"{file.path} has several columns {twice[0]!r}: rename all but one")
            tables.setdefault((*_folder_and_stem(file), tuple(names)), []).append((file, format_))
    found: list[Looked] = []
    for (folder, stem, _), members in tables.items():
        name = _free(_named(folder, stem), [each.name for each in found])
        files = sorted({each.path for each, _ in members})
        source = Source.of(f"table {name!r}", replace(members[0][1], paths=tuple(files)), ".")
        rows, is_whole = _sampled(source)
        found.append(Looked(name, source, plain_columns(rows), is_whole))
    return found


def _free(name: str, taken: Sequence[str]) -> str:
    return next(each for each in (name, *(f"{name}_{i}" for i in range(2, len(taken) + 3))) if each not in taken)


def _folder_and_stem(file: File) -> tuple[str, str]:
    """Without numbers, and without ``day=2024-05-31`` and the like."""
    *parts, name = without_query(file.path)[0].split("/")
    while parts and "=" in parts[-1]:
        parts.pop()
    stem = name.split(".", 1)[0]
    return "/".join(parts), "part" if re.match(r"part[-_]\d", stem) else re.sub(r"[-_]?\d+", "", stem)


def _named(folder: str, stem: str) -> str:
    name = stem if stem and stem != "part" else folder.rsplit("/", 1)[-1]
    return re.sub(r"\W+", "_", name) or "table"


def _format_of(file: File) -> tuple[Files, list[str]]:
    """The separator and whether there is a header, and the columns."""
    plain = Files((file.path,))
    names = Source("table", (file,), plain).columns_of(file).names
    if is_parquet(file.path):
        return plain, names
    for delimiter in (";", "\t", "|"):
        if len(names) == 1 and delimiter in names[0]:
            plain = replace(plain, delimiter=delimiter)
            names = Source("table", (file,), plain).columns_of(file).names
    if all(re.fullmatch(r"[-+.\deE]+", name) for name in names):  # numbers are no names
        plain = replace(plain, header=False)
        names = Source("table", (file,), plain).columns_of(file).names
    return plain, names


def files_of(table: Looked) -> dict[str, Any]:
    """As a description has them: a directory or a pattern, if it finds these and no others."""
    paths, format_ = [each.path for each in table.source.files], table.source.format
    options: dict[str, Any] = {} if format_.header else {"header": False}
    options |= {"delimiter": format_.delimiter} if format_.delimiter else {}
    if len(paths) == 1:
        return {"files": paths[0], **options}
    if is_url(paths[0]):  # where a directory begins is not known
        return {"files": paths, **options}
    folder = os.path.commonpath(paths)
    plain = sorted(map(os.path.normpath, paths))
    prefix = re.split(r"\d", paths[0].rsplit("/", 1)[-1])[0]
    suffix = paths[0][paths[0].rfind(".") :]
    for pattern in (folder, os.path.join(folder, f"{prefix}*{suffix}")):
        if pattern and sorted(os.path.normpath(each.path) for each in find_files(pattern, ".")) == plain:
            return {"files": pattern, **options}
    return {"files": paths, **options}


def _sampled(source: Source) -> tuple[pa.Table, bool]:
    """Rows from the begin of the files, as many as are looked at; of CSV at most the first block of each."""
    found: list[pa.Table] = []
    num_rows, is_whole = 0, True
    for file in source.files:
        if num_rows >= _ROWS:
            return _joined(found), False
        batches = source.sample(file)
        first = next(batches, None)
        while first is not None and num_rows < _ROWS:
            found.append(pa.Table.from_batches([first]))
            num_rows += first.num_rows
            if not is_parquet(file.path):
                is_whole = is_whole and file.num_bytes < BLOCK_BYTES and not has_kind(file.path, (".gz",))
            first = next(batches, None)
        is_whole = is_whole and num_rows < _ROWS
    if not found:
        return source.columns_of(source.files[0]).empty_table(), True
    return _joined(found), is_whole


def plain_columns(rows: pa.Table) -> pa.Table:
    """Dictionaries are what they stand for, and NaN is null, as a build takes them."""
    for at, field_ in enumerate(rows.schema):
        column = rows.column(at)
        if pa.types.is_dictionary(field_.type):
            column = column.cast(field_.type.value_type)
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        rows = rows.set_column(at, field_.name, column)
    return rows


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # types of CSV are guessed by file
        return tables[0]
