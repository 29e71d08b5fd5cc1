"""A partitioned graph as an importer read it, and how it becomes a partition directory of glt."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glt.data.schema import Schema
from glt.errors import PartitionError
from glt.partition.format.files import require_free, scratch_array
from glt.partition.format.manifest import Manifest
from glt.partition.format.rows import Array, Rows, as_torch_dtype, chunks
from glt.partition.graph_input import arguments_by_type
from glt.partition.methods.partitioner import checked_strategy
from glt.partition.methods.partitioners import AssignedPartitioner

_CHUNK_BYTES = 64 << 20


class Assembly:
    """Tables with one row for each id of a kind (the nodes or edges of a type), put together from the pieces of
    partitions, each row exactly once. They are in nameless files in ``scratch``: memory does not grow with them.

    Messages speak of ``kind``, ``"node"`` or ``"edge"``, and of ``type_`` where there are types. Of edges ``num_nodes``
    are those of the source's and of the destination's type: among the pieces are then the ends, ``row`` and ``col``, of
    which ``edge_index [2, num_rows]`` is made.
    """

    def __init__(
        self, kind: str, type_: object, num_rows: int, scratch: Path, num_nodes: tuple[int, int] | None = None
    ) -> None:
        self.what = kind if type_ is None else f"{kind} of type {type_!r}"
        self.num_rows, self._scratch = num_rows, scratch
        self._seen = scratch_array(scratch, num_rows, np.dtype(bool))
        self._columns: dict[str, np.ndarray] = {}
        self._dtypes: dict[str, str] = {}
        self._names: set[str] | None = None  # of the tables, once a piece was given
        self._num_nodes: dict[str, int] = {}
        if num_nodes is not None:
            self._num_nodes = dict(zip(("row", "col"), num_nodes, strict=True))
            self.edge_index = scratch_array(scratch, 2 * num_rows, np.dtype(np.int64)).reshape(2, num_rows)
            self._columns = dict(zip(("row", "col"), self.edge_index, strict=True))

    def add(self, origin: Path, ids: object, pieces: Mapping[str, object], first: int = 0) -> None:
        """Gives the rows of ``ids [n] - first``: of each table by name, a tensor or array ``[n, ...]``."""
        wanted = integers(origin, "ids", ids)
        if self._names is not None and self._names != pieces.keys():
            raise PartitionError(
                f"{origin} holds {sorted(pieces)} of its {self.what}s: expected {sorted(self._names)} as in the pieces "
                "before it"
            )
        self._names = set(pieces)
        given = {
            name: (self._ends if name in self._num_nodes else self._rows)(origin, name, piece, wanted.size)
            for name, piece in pieces.items()
        }
        row_bytes = max((array[:1].nbytes for array in given.values()), default=8)
        step = max(1, _CHUNK_BYTES // max(row_bytes, 64))
        for begin in range(0, wanted.size, step):
            at = slice(begin, begin + step)
            chunk = wanted[at].astype(np.int64, copy=False) - first
            self._require_fresh(origin, chunk)
            for name, array in given.items():
                self._columns[name][chunk] = array[at]

    def tables(self, origin: Path) -> dict[str, Array]:
        """Returns the tables that pieces were given of, each ``[num_rows, ...]``, but for the ends."""
        missing = np.flatnonzero(~self._seen)
        if missing.size:
            raise PartitionError(
                f"{origin} has no {self.what} {missing[0]} ({missing.size} of {self.num_rows} are missing): "
                "expected each in one partition; copy the directory again, with all its partitions"
            )
        return {name: as_torch_dtype(self._columns[name], dtype) for name, dtype in self._dtypes.items()}

    def _rows(self, origin: Path, name: str, piece: object, num_rows: int) -> np.ndarray:
        try:
            rows = Rows.of(f"{name} of {origin}", piece, num_rows, self.what)
        except (TypeError, ValueError) as error:
            raise PartitionError(str(error)) from error
        if name not in self._columns:
            shape = (self.num_rows, *rows.row_shape)
            self._columns[name] = scratch_array(self._scratch, math.prod(shape), rows.array.dtype).reshape(shape)
            self._dtypes[name] = rows.torch_dtype
        column, dtype = self._columns[name], self._dtypes[name]
        if rows.torch_dtype != dtype or rows.row_shape != column.shape[1:]:
            raise PartitionError(
                f"{name} of {origin} holds rows of {rows.torch_dtype} {list(rows.row_shape)}: expected {dtype} "
                f"{list(column.shape[1:])} as in the pieces before it"
            )
        return rows.given

    def _ends(self, origin: Path, name: str, piece: object, num_rows: int) -> np.ndarray:
        ids = integers(origin, name, piece)
        if ids.size != num_rows:
            raise PartitionError(f"{origin} has {num_rows} edge ids and {ids.size} ends of edges: expected as many")
        beyond = first_beyond(ids, self._num_nodes[name])
        if beyond is not None:
            raise PartitionError(
                f"{origin} holds an {self.what} that ends in node {beyond}: expected ids in "
                f"[0, {self._num_nodes[name]}); it is damaged, or of another run"
            )
        return ids

    def _require_fresh(self, origin: Path, ids: np.ndarray) -> None:
        beyond = first_beyond(ids, self.num_rows)
        if beyond is not None:
            raise PartitionError(
                f"{origin} has {self.what} {beyond}: expected ids in [0, {self.num_rows}); it is damaged, or of "
                "another run"
            )
        ordered = np.sort(ids)
        again = np.concatenate([ids[self._seen[ids]], ordered[1:][ordered[1:] == ordered[:-1]]])
        if again.size:
            raise PartitionError(
                f"{origin} has {self.what} {again[0]} a second time: expected each in one partition, once; was the "
                "partitioner run twice into one directory? Partition again into an empty one"
            )
        self._seen[ids] = True


def assemblies(
    kind: str, schema: Schema, counts: Sequence[int], scratch: Path, num_nodes: Sequence[int] | None = None
) -> list[Assembly]:
    """Returns an :class:`Assembly` for each type of ``"node"`` or ``"edge"``, which has ``counts`` rows; of edges
    ``num_nodes``, by node type, says that their ends are among the tables."""
    types: Sequence[Any] = schema.node_types if kind == "node" else schema.edge_types
    ends = [None if num_nodes is None else (num_nodes[src], num_nodes[dst]) for src, dst in schema.ends("out")]
    return [
        Assembly(kind, type_ if schema.is_hetero else None, count, scratch, None if num_nodes is None else ends[at])
        for at, (type_, count) in enumerate(zip(types, counts, strict=True))
    ]


def integers(origin: Path, name: str, value: object) -> np.ndarray:
    """Returns ids ``[n]`` as an array without copying them; a PartitionError names ``origin`` where they are none."""
    array = value.numpy() if isinstance(value, torch.Tensor) else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim != 1:
        got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(value).__name__
        raise PartitionError(f"{origin} holds {got} as {name}: expected integers, one-dimensional")
    return array


def first_beyond(ids: np.ndarray, end: int) -> int | None:
    """Returns the first of the ids that is not in ``[0, end)``, if one is."""
    for _, chunk in chunks(ids):
        bad = chunk[(chunk < 0) | (chunk >= end)]
        if bad.size:
            return int(bad[0])
    return None


@dataclass
class Imported:
    """What an importer found; ``nodes`` and ``edges`` are, by type, arguments of :class:`AssignedPartitioner`,
    ``owners`` and ``edge_index`` among them; ``origin`` says where it comes from, for the manifest.
    """

    schema: Schema
    num_parts: int
    edge_assign_strategy: str
    origin: dict[str, Any]
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]

    def write(self, output_dir: str | os.PathLike[str], progress: bool | None, graph: Mapping[str, Any]) -> Manifest:
        """Writes the partition directory, the assignment kept; ``graph`` are arguments that the source lacks."""
        nodes = [{"num_nodes": len(each["owners"]), **each} for each in self.nodes]
        tables = arguments_by_type(self.schema, nodes, self.edges)
        if twice := sorted(tables.keys() & graph.keys()):
            raise ValueError(f"{twice[0]} is given, but the imported directory holds it too: leave it out")
        arguments = {**graph, **tables, "edge_assign_strategy": self.edge_assign_strategy}
        partitioner = AssignedPartitioner(output_dir, self.num_parts, origin=self.origin, **arguments)
        return partitioner.partition(progress=progress)


def fitting_strategy(source: Path, library: str, wanted: str | None, fitting: Sequence[str]) -> str:
    """Returns which end owns the edges: what is ``wanted``, or the first that fits; else raises ValueError."""
    if wanted is not None and (wanted := checked_strategy(wanted)) not in fitting:
        raise ValueError(
            f"edge_assign_strategy = {wanted!r}: the edges of {source} lie {fitting[0]}, as {library} put them"
        )
    return wanted or fitting[0]


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
