"""What a model says of nodes, as Parquet under the users' own keys, from every rank."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from glt._checks import naming_the_limit
from glt._tracebacks import short_traceback
from glt._urls import is_url, open_file_system, public_url, without_query
from glt.data.keys import Keys

_ROWS: Final = 1 << 16  # written at a time
_NAME: Final = re.compile(r"part-\d{5}-of-(\d{5})\.parquet(\.new)?")  # .new: of a rank that was killed


@short_traceback
def write(
    values: Any,
    out: str | os.PathLike[str],
    *,
    ids: Any = None,
    keys: Keys | None = None,
    rank: int | None = None,
    num_ranks: int | None = None,
    overwrite: bool = False,
) -> str:
    """Writes predictions or embeddings of this rank's nodes as Parquet.

    Args:
        values: A tensor or array ``[n]`` or ``[n, width]``, which becomes the column ``value``; or a dict of them by
            column. Columns of ``width`` are lists of a fixed size.
        out: A directory, or a URL of one (``s3://``, ``gs://``, ``abfs://``). Each rank writes a file
            ``part-RANK-of-RANKS.parquet``, which is there when it is whole.
        ids: The nodes ``[n]`` that the rows are of; default: 0, 1, ....
        keys: The users' keys, such as ``dataset.ids["account"]``: key columns come first, under the names that they
            have in the users' tables. Default: a column ``id``.
        rank, num_ranks: Default: those of torch.distributed or of torchrun; 0 of 1 without.
        overwrite: Whether results that are there are replaced, once this rank's are whole. In a bucket, one that fails
            in the middle may leave this rank without a file.

    Returns:
        The path of the file.

    Raises:
        TypeError, ValueError: If columns are not of ``n`` rows, or of no kind that Parquet has.
        IndexError: If ``ids`` has one that there is not.
        FileExistsError: If there are results already.
        ImportError: Without pyarrow: ``pip install 'glt-graph[tables]'``.
        OSError: If there is no room.

    Example:
        >>> keys = glt.data.KeyMap.write("accounts", {"account": "text"}, lambda: iter([[["carl", "ann", "bob"]]]))
        >>> path = glt.tables.write({"score": torch.tensor([0.25, 0.5])}, "scores", ids=[2, 0], keys=keys)
        >>> import pyarrow.parquet
        >>> pyarrow.parquet.read_table("scores").to_pylist()
        [{'account': 'bob', 'score': 0.25}, {'account': 'carl', 'score': 0.5}]
    """
    if wrong := [name for name in values if not isinstance(name, str)] if isinstance(values, Mapping) else []:
        raise TypeError(f"values has a column {wrong[0]!r}: expected texts as names")
    columns = {
        name: as_numbers(each, name)
        for name, each in (values if isinstance(values, Mapping) else {"value": values}).items()
    }
    if not columns:
        raise ValueError("values is empty: expected at least one column")
    sizes = {name: len(each) for name, each in columns.items()}
    num_rows = next(iter(sizes.values()))
    if any(size != num_rows for size in sizes.values()):
        raise ValueError(f"values have different numbers of rows, {sizes}: expected as many in each")
    nodes = np.arange(num_rows) if ids is None else as_numbers(ids, "ids")
    if nodes.shape != (num_rows,) or nodes.dtype.kind not in "iu":
        raise ValueError(f"ids is {nodes.dtype} {list(nodes.shape)}: expected {num_rows} integers, one per row")
    with ResultFile(out, keys, *place(rank, num_ranks), overwrite) as file:
        for begin in range(0, max(num_rows, 1), _ROWS):
            rows = slice(begin, begin + _ROWS)
            file.add(nodes[rows], {name: each[rows] for name, each in columns.items()})
    return file.path


class ResultFile:
    """One rank's results, added row by row; a context in which the file comes to be."""

    def __init__(
        self, out: str | os.PathLike[str], keys: Keys | None, rank: int, num_ranks: int, overwrite: bool
    ) -> None:
        self._keys = keys
        folder = os.fspath(out)
        self._system, self._folder = open_file_system(folder)
        self._is_local = not is_url(folder)
        name = f"part-{rank:05d}-of-{num_ranks:05d}.parquet"
        self.path = f"{without_query(public_url(folder))[0].rstrip('/')}/{name}"
        self._inside = f"{self._folder.rstrip('/')}/{name}"
        others = self._others(name, num_ranks, overwrite)
        self._replaced = others if rank == 0 else []  # one rank removes them
        self._writer: Any = None
        self._sink: Any = None

    def __enter__(self) -> ResultFile:
        return self

    def add(self, ids: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        given = self._key_columns(ids)
        if twice := sorted(given.keys() & columns.keys()):
            raise ValueError(f"values has a column {twice[0]!r}, as the keys have: rename it")
        arrays = given | {name: _arrow(each) for name, each in columns.items()}
        table = pa.table(arrays)
        if self._writer is None:  # not before: what is there stays as long as nothing is known to be right
            if self._is_local:
                Path(self._folder).mkdir(parents=True, exist_ok=True)
            self._sink = self._system.open_output_stream(self._written)
            self._writer = pa.parquet.ParquetWriter(self._sink, table.schema, compression="zstd")
        with naming_the_limit(self._folder if self._is_local else None):
            self._writer.write_table(table)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self._writer.close()
            self._sink.close()
            if self._is_local:
                os.replace(self._written, self._inside)
            for each in self._replaced:
                self._system.delete_file(each)
        elif self._sink is not None:  # a stream to a bucket that is not closed is closed in the end, and comes to be
            with suppress(pa.ArrowException, OSError):  # of what is thrown away
                self._writer.close()
            self._sink.close()
            self._system.delete_file(self._written)

    @property
    def _written(self) -> str:
        return f"{self._inside}.new" if self._is_local else self._inside

    def _key_columns(self, ids: np.ndarray) -> dict[str, pa.Array]:
        if self._keys is None:
            return {"id": pa.array(ids.astype(np.int64))}
        found = self._keys.raw(ids)
        several = found if isinstance(found, tuple) else (found,)
        types = {"int": pa.int64(), "text": pa.string()}
        return {
            name: pa.array(column, types[kind])
            for (name, kind), column in zip(self._keys.columns.items(), several, strict=True)
        }

    def _others(self, name: str, num_ranks: int, overwrite: bool) -> list[str]:
        """The files of another number of ranks, which are replaced; raises FileExistsError if they may not be."""
        found = []
        for each in self._system.get_file_info(pa.fs.FileSelector(self._folder, allow_not_found=True)):
            match = _NAME.fullmatch(each.base_name)
            is_other = match is not None and int(match[1]) != num_ranks
            is_whole = match is not None and match[2] is None
            if (each.base_name == name or (is_other and is_whole)) and not overwrite:
                raise FileExistsError(
                    f"out = {self.path.rpartition('/')[0]!r} has {each.base_name} already: expected another directory, "
                    "or overwrite=True"
                )
            if is_other:
                found.append(each.path)
        return found


def place(rank: int | None, num_ranks: int | None) -> tuple[int, int]:
    """Which rank this is, of how many."""
    if (rank is None) != (num_ranks is None):
        raise ValueError(f"rank = {rank}, num_ranks = {num_ranks}: expected both, or none")
    if rank is None or num_ranks is None:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < num_ranks <= 99_999:
        raise ValueError(f"rank = {rank}, num_ranks = {num_ranks}: expected 0 <= rank < num_ranks < 100000")
    return rank, num_ranks


def as_numbers(given: Any, name: str) -> np.ndarray:
    """A tensor or array as one that Parquet has a column for; raises TypeError, naming it."""
    if hasattr(given, "detach"):
        if str(given.layout) != "torch.strided":
            raise TypeError(f"{name} is a tensor of layout {given.layout}: expected a dense one, as to_dense() gives")
        given = given.detach().cpu()
        given = given.float() if given.dtype.itemsize == 2 and given.dtype.is_floating_point else given  # bfloat16 too
    array = np.asarray(given)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == np.longdouble:
        raise TypeError(f"{name} is {array.dtype}: expected numbers of at most 64 bits")
    if array.ndim not in (1, 2) or array.dtype.kind not in "biufUO":
        raise TypeError(f"{name} is {array.dtype} of shape {list(array.shape)}: expected numbers [n] or [n, width]")
    if array.ndim == 2 and array.shape[1] == 0:
        raise ValueError(f"{name} has shape {list(array.shape)}: expected at least one number in each row")
    if array.dtype.kind == "O":
        kinds = {type(each).__name__ for each in array.flat if each is not None}
        if array.ndim == 2 or kinds - {"str"}:
            raise TypeError(
                f"{name} is an array of objects of shape {list(array.shape)}, of type {', '.join(sorted(kinds))}: "
                "expected numbers, or texts [n]"
            )
    return array


def _arrow(array: np.ndarray) -> pa.Array:
    if array.ndim == 1:
        return pa.array(array, pa.string() if array.dtype.kind in "OU" else None)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])
