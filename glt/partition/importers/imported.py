"""A partitioned graph as an importer read it, and how it becomes a partition directory of glt."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glt.data.schema import EdgeType, Schema
from glt.errors import PartitionError
from glt.partition.format.files import Array, Rows, as_torch_dtype, chunks, require_free, scratch_array
from glt.partition.format.manifest import Manifest
from glt.partition.graph_input import arguments_by_type
from glt.partition.methods.partitioners import AssignedPartitioner

# Puts tables together again from the pieces that partitions hold, in scratch files: memory does not grow with them.


_CHUNK_BYTES = 64 << 20


class Assembly:
    """Tables with one row for each id of a kind (the nodes or edges of a type), put together from the pieces of
    partitions.

    Each row is given exactly once. Tables are in nameless files in ``scratch``: memory does not grow with them.
    ``what`` is the kind, for messages: ``"node"`` or ``"edge of type (...)"``.
    """

    def __init__(self, what: str, num_rows: int, scratch: Path) -> None:
        self.what = what
        self.num_rows = num_rows
        self._scratch = scratch
        self._seen = scratch_array(scratch, num_rows, np.dtype(bool))
        self._columns: dict[str, np.ndarray] = {}
        self._dtypes: dict[str, str] = {}
        self._names: set[str] | None = None  # of the tables, once a piece was given

    def add(self, origin: Path, ids: object, pieces: Mapping[str, object], first: int = 0) -> None:
        """Gives the rows of ``ids [n] - first``: of each table by name, a tensor or array ``[n, ...]``.

        Raises:
            PartitionError: If an id is out of range or was given before, or tables disagree; names ``origin``.
        """
        wanted = integers(origin, "ids", ids)
        if self._names is not None and self._names != pieces.keys():
            raise PartitionError(
                f"{origin} holds {sorted(pieces)} of its {self.what}s: expected {sorted(self._names)} as in the pieces "
                "before it"
            )
        self._names = set(pieces)
        given = {name: self._rows(origin, name, piece, wanted.size) for name, piece in pieces.items()}
        row_bytes = max((rows.array[:1].nbytes for rows in given.values()), default=8)
        step = max(1, _CHUNK_BYTES // max(row_bytes, 64))
        for begin in range(0, wanted.size, step):
            at = slice(begin, begin + step)
            chunk = self._fresh(origin, wanted[at].astype(np.int64, copy=False) - first)
            for name, rows in given.items():
                self._columns[name][chunk] = rows.array[at]

    def tables(self, origin: Path) -> dict[str, Array]:
        """Returns the tables that pieces were given of, each ``[num_rows, ...]``.

        Raises:
            PartitionError: If an id was never given; names ``origin``.
        """
        missing = np.flatnonzero(~self._seen)
        if missing.size:
            raise PartitionError(
                f"{origin} has no {self.what} {missing[0]} ({missing.size} of {self.num_rows} are missing): "
                "expected each in one partition; copy the directory again, with all its partitions"
            )
        return {name: as_torch_dtype(column, self._dtypes.get(name, "int64")) for name, column in self._columns.items()}

    def _rows(self, origin: Path, name: str, piece: object, num_rows: int) -> Rows:
        try:
            rows = Rows.of(f"{name} of {origin}", piece, num_rows, self.what)
        except (TypeError, ValueError) as error:
            raise PartitionError(str(error)) from error
        if name not in self._columns:
            shape = (self.num_rows, *rows.row_shape)
            size = int(np.prod(shape, dtype=np.int64))
            self._columns[name] = scratch_array(self._scratch, size, rows.array.dtype).reshape(shape)
            self._dtypes[name] = rows.torch_dtype
        column, dtype = self._columns[name], self._dtypes[name]
        if rows.torch_dtype != dtype or rows.row_shape != column.shape[1:]:
            raise PartitionError(
                f"{name} of {origin} holds rows of {rows.torch_dtype} {list(rows.row_shape)}: expected {dtype} "
                f"{list(column.shape[1:])} as in the pieces before it"
            )
        return rows

    def _fresh(self, origin: Path, ids: np.ndarray) -> np.ndarray:
        bad = np.flatnonzero((ids < 0) | (ids >= self.num_rows))
        if bad.size:
            raise PartitionError(
                f"{origin} has {self.what} {ids[bad[0]]}: expected ids in [0, {self.num_rows}); it is damaged, or of "
                "another run"
            )
        again = ids[self._seen[ids]]
        ordered = np.sort(ids)
        again = np.concatenate([again, ordered[1:][ordered[1:] == ordered[:-1]]])
        if again.size:
            raise PartitionError(
                f"{origin} has {self.what} {again[0]} a second time: expected each in one partition, once; was the "
                "partitioner run twice into one directory? Partition again into an empty one"
            )
        self._seen[ids] = True
        return ids


class EdgeAssembly(Assembly):
    """The edges of one type: ``edge_index [2, num_edges]`` (the tables ``row`` and ``col``) and tables of their rows.

    ``edge_type`` is for messages, None where there is only one; ``num_nodes`` are those of the source's and of the
    destination's type.
    """

    def __init__(self, edge_type: EdgeType | None, num_edges: int, num_nodes: tuple[int, int], scratch: Path) -> None:
        super().__init__("edge" if edge_type is None else f"edge of type {edge_type}", num_edges, scratch)
        self.edge_index = scratch_array(scratch, 2 * num_edges, np.dtype(np.int64)).reshape(2, num_edges)
        self._num_nodes = dict(zip(("row", "col"), num_nodes, strict=True))
        self._columns |= {"row": self.edge_index[0], "col": self.edge_index[1]}

    def tables(self, origin: Path) -> dict[str, Array]:
        tables = super().tables(origin)
        del tables["row"], tables["col"]
        return tables

    def _rows(self, origin: Path, name: str, piece: object, num_rows: int) -> Rows:
        if name not in ("row", "col"):
            return super()._rows(origin, name, piece, num_rows)
        ids = integers(origin, name, piece)  # whatever their width: the columns are wide enough
        if ids.size != num_rows:
            raise PartitionError(f"{origin} has {num_rows} edge ids and {ids.size} ends of edges: expected as many")
        for _, chunk in chunks(ids):
            beyond = chunk[(chunk < 0) | (chunk >= self._num_nodes[name])]
            if beyond.size:
                raise PartitionError(
                    f"{origin} holds an {self.what} that ends in node {beyond[0]}: expected ids in "
                    f"[0, {self._num_nodes[name]}); it is damaged, or of another run"
                )
        return Rows(ids, "int64")


def integers(origin: Path, name: str, value: object) -> np.ndarray:
    """Returns ids ``[n]`` as an array without copying them; a PartitionError names ``origin`` where they are none."""
    array = value.numpy() if isinstance(value, torch.Tensor) else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim != 1:
        got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(value).__name__
        raise PartitionError(f"{origin} holds {got} as {name}: expected integers, one-dimensional")
    return array


@dataclass
class Imported:
    """What an importer found.

    Attributes:
        schema: The types.
        num_parts: Number of partitions.
        edge_assign_strategy: ``"by_src"`` or ``"by_dst"``.
        origin: Where it comes from, for the manifest.
        nodes, edges: By type, arguments of :class:`AssignedPartitioner`, ``owners`` and ``edge_index`` among them.
    """

    schema: Schema
    num_parts: int
    edge_assign_strategy: str
    origin: dict[str, Any]
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]

    def write(self, output_dir: str | os.PathLike[str], progress: bool, graph: Mapping[str, Any]) -> Manifest:
        """Writes the partition directory, the assignment kept; ``graph`` are arguments that the source lacks."""
        nodes = [{"num_nodes": len(each["owners"]), **each} for each in self.nodes]
        tables = arguments_by_type(self.schema, nodes, self.edges)
        twice = sorted(tables.keys() & graph.keys())
        if twice:
            raise ValueError(f"{twice[0]} is given, but the imported directory holds it too: leave it out")
        return AssignedPartitioner(
            output_dir,
            self.num_parts,
            origin=self.origin,
            edge_assign_strategy=self.edge_assign_strategy,
            **tables,
            **graph,
        ).partition(progress=progress)


@contextmanager
def scratch_for(output_dir: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a directory in the file system of ``output_dir`` for scratch files; ``output_dir`` must be free."""
    target = Path(os.path.realpath(output_dir))
    require_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.scratch-", dir=target.parent) as directory:
        yield Path(directory)


def require_directory(source: Path, what: str) -> None:
    if not source.is_dir():
        raise PartitionError(f"{source} is not a directory: expected what {what} wrote")


def require_owners(path: Path, book: object, num_parts: int) -> np.ndarray:
    """Returns a book, the partition of each node; a PartitionError names ``path`` where it is none."""
    owner = integers(path, "owners", book)
    for _, chunk in chunks(owner):
        bad = chunk[(chunk < 0) | (chunk >= num_parts)]
        if bad.size:
            raise PartitionError(f"{path} names partition {bad[0]}: expected 0 to {num_parts - 1}; it is damaged")
    return owner


def entry(path: Path, stored: object, *keys: str) -> Any:
    """Returns what dicts within dicts of a file hold under ``keys``; a PartitionError names ``path`` and the key."""
    for key in keys:
        if not isinstance(stored, Mapping) or key not in stored:
            raise PartitionError(f"{path} has no {key!r} where its library puts it: it is damaged, or another file")
        stored = stored[key]
    return stored


def require_owned(origin: Path, owner: np.ndarray, ids: np.ndarray, part: int, what: str) -> None:
    """Raises PartitionError where one of the nodes ``ids`` belongs to another partition."""
    for _, chunk in chunks(ids):
        beyond = chunk[(chunk < 0) | (chunk >= owner.size)]
        if beyond.size:
            raise PartitionError(f"{origin} holds {what} {beyond[0]}: expected ids in [0, {owner.size})")
        foreign = chunk[owner[chunk] != part]
        if foreign.size:
            raise PartitionError(
                f"{origin} holds {what} {foreign[0]} of partition {owner[foreign[0]]}: expected those of partition "
                f"{part}; the directory is of another run, or altered"
            )


def require_plain_names(schema: Schema) -> None:
    """Raises ValueError if a type's name would lead out of the directory that names files by types."""
    for name in (*schema.node_types, *(part for edge_type in schema.edge_types for part in edge_type)):
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"type {name!r} names no file")
