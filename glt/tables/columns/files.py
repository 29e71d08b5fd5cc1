"""Where tables are: local files, directories and patterns, and URLs of object stores and web servers."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs

from glt._checks import format_size, is_of_machine, naming_the_limit
from glt._urls import is_url, open_file_system, public_url, without_query
from glt.errors import TableError

PARQUET: Final = (".parquet", ".pq")
BLOCK_BYTES: Final = 4 << 20  # of CSV, read at a time
# Of a URL in a text the user with a password, and the parameters.
_SECRETS: Final = re.compile(r"""(://)(?:[^\s/?@'"]*:[^\s/?@'"]*@)?([^\s?'"]+)(?:\?[^\s'"]+)?""")
CSV: Final = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")


@dataclass(frozen=True)
class File:
    """A file, and what changes when it is written."""

    path: str
    num_bytes: int
    changed_ns: int

    @property
    def name(self) -> str:
        """What messages call it: a URL without what signs it."""
        return public_url(self.path)

    @property
    def whole_path(self) -> str:
        """What it is known by from build to build."""
        return public_url(self.path) if is_url(self.path) else os.path.realpath(self.path)


def find_files(given: str, base: str) -> Iterator[File]:
    if is_url(given):
        yield from _paths_at_url(given)
        return
    path = Path(base, given)
    if path.is_dir():
        for inside in sorted(p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith(PARQUET + CSV)):
            if not any(part.startswith((".", "_")) for part in inside.relative_to(path).parts):
                yield state_of(str(inside))
    elif path.is_file():
        yield state_of(str(path))
    else:
        pattern = os.path.join(glob.escape(base), given)  # of an absolute one nothing comes before it
        for each in sorted(glob.glob(pattern, recursive=True)):
            if Path(each).is_file() and not os.path.basename(each).startswith((".", "_")):
                yield state_of(each)


def _paths_at_url(given: str) -> Iterator[File]:
    plain, query = without_query(given)
    before, is_pattern, _ = plain.partition("*")
    head = before.rsplit("/", 1)[0] if is_pattern else plain.rstrip("/")
    opened, folder = open_file_system(head + query)
    info = opened.get_file_info(folder)
    if info.type == pa.fs.FileType.File:
        yield state_of(given)
        return
    pattern = _pattern(plain[len(head) :]) if is_pattern else None
    for each in opened.get_file_info(pa.fs.FileSelector(folder, recursive=True, allow_not_found=True)):
        inside = each.path.removeprefix(folder)  # how a store calls a folder is not what its URL says, host and all
        is_table = each.type == pa.fs.FileType.File and each.base_name.lower().endswith(PARQUET + CSV)
        parts = inside.split("/") if pattern is None else [each.base_name]
        is_hidden = any(part.startswith((".", "_")) for part in parts)
        if is_table and (pattern is None or pattern.fullmatch(inside)) and not is_hidden:
            yield File(f"{head}{quote(inside)}{query}", each.size, each.mtime_ns or 0)


def _pattern(text: str) -> re.Pattern[str]:
    """As of local paths: ``*`` stays within a directory, ``**/`` is any of them."""
    parts = re.split(r"(\*\*/|\*)", unquote(text))
    return re.compile("".join({"**/": "(?:.*/)?", "*": "[^/]*"}.get(part) or re.escape(part) for part in parts))


def state_of(path: str) -> File:
    if not is_url(path):
        found = os.stat(path)
        return File(path, found.st_size, found.st_mtime_ns)
    opened, inside = open_file_system(path)
    info = opened.get_file_info(inside)
    return File(path, info.size or 0, info.mtime_ns or 0)


def has_kind(path: str, kinds: tuple[str, ...]) -> bool:
    """Whether its name ends so."""
    return without_query(path)[0].lower().endswith(kinds)


def is_parquet(path: str) -> bool:
    return has_kind(path, PARQUET)


class readable:
    """Turns what a damaged file raises into a TableError that names it."""

    def __init__(self, where: str, path: str) -> None:
        self._where, self._path, self._limit = where, public_url(path), naming_the_limit(path)

    def __enter__(self) -> None:
        self._limit.__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._limit.__exit__(kind, error, traceback)
        if isinstance(error, pa.ArrowException | OSError) and not is_of_machine(error):
            why = _SECRETS.sub(r"\1\2", " ".join(str(error).split()))
            if "straddl" in why:  # pyarrow's, of its blocks
                why = f"it has a value longer than {format_size(BLOCK_BYTES)} of CSV: write the table as Parquet"
            raise TableError(f"{self._where}: {self._path} cannot be read: {why}") from error
