"""Rows that layer-wise inference reads and writes: features of nodes, values of edges, outputs of layers."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap, write_array_header_2_0
from torch import Tensor

from glt._checks import check_path
from glt.data.arrays import require_data
from glt.data.schema import EdgeType, NodeType, Schema
from glt.distributed.context import World
from glt.distributed.graph.layers import EDGE_VALUES
from glt.distributed.tensors.embedding import DistEmbedding
from glt.distributed.tensors.graph_data import GraphData
from glt.distributed.tensors.tensor import DistTensor, Handles


def checked_features(given: Any, schema: Schema, num_nodes: dict[NodeType, int]) -> dict[NodeType, Tensor | DistTensor]:
    """Features by node type, of the types that have nodes (``num_nodes``): ``given`` is a tensor, a :class:`DistTensor`
    or a :class:`DistEmbedding` with a row for each node, or a dict of such. TypeError or ValueError names what is
    none."""
    if schema.is_hetero and not isinstance(given, dict):
        raise TypeError(f"x is a {type(given).__name__}: expected a dict by node type, the graph being heterogeneous")
    found: dict[NodeType, Tensor | DistTensor] = {}
    for node_type, each in (given if schema.is_hetero else {schema.node_types[0]: given}).items():
        what = f"x[{node_type!r}]" if schema.is_hetero else "x"
        if node_type not in schema.node_types:
            raise ValueError(f"x has {node_type!r}: expected node types, {list(schema.node_types)}")
        rows = each.weight if isinstance(each, DistEmbedding) else each
        if not isinstance(rows, Tensor | DistTensor):
            raise TypeError(f"{what} is a {type(rows).__name__}: expected a tensor, a DistTensor or a DistEmbedding")
        _require_rows(rows, what, num_nodes.get(node_type, 0), "nodes")
        if node_type in num_nodes:
            found[node_type] = rows
    return found


def _require_rows(rows: Tensor | DistTensor, name: str, num_rows: int, of: str) -> None:
    require_data(rows, name)
    if isinstance(rows, Tensor) and rows.layout != torch.strided:
        raise TypeError(f"{name} is a {rows.layout} tensor: expected a dense one")
    if rows.ndim == 0 or len(rows) != num_rows:
        raise ValueError(f"{name} has shape {list(rows.shape)}: expected a row for each of {num_rows} {of}")


class EdgeValues:
    """Weights and features of edges, by the name of the convolutions' parameter and by edge type.

    ``given`` has, by name of :data:`EDGE_VALUES`, the name of a table that is stored with the graph; or a tensor, or a
    :class:`DistTensor`, with a row for each edge by its id; of a heterogeneous graph a dict of such by edge type, or
    the name of a table that some types have; or None. ``names`` are those that there are values for.

    Raises:
        TypeError, ValueError: If values do not fit; names them.
        KeyError: If no such table is stored, or there is no such edge type.
    """

    def __init__(self, world: World, given: dict[str, Any]) -> None:
        assert world.data is not None
        self._schema = world.data.schema
        tables = {t: GraphData(world, "edge", at) for at, t in enumerate(self._schema.edge_types)}
        self._of = {name: self._by_type(name, each, tables) for name, each in given.items() if each is not None}
        self.names = frozenset(self._of)

    def _by_type(self, name: str, given: Any, tables: dict[EdgeType, GraphData]) -> dict[EdgeType, Tensor | DistTensor]:
        if not self._schema.is_hetero:
            given = {self._schema.edge_types[0]: given}
        elif isinstance(given, str):
            given = {edge_type: given for edge_type, table in tables.items() if given in table}
            if not given:
                known = {edge_type: list(table) for edge_type, table in tables.items() if len(table)}
                raise KeyError(f"{name}: no edge type has a stored table of that name; there are {known}")
        if not isinstance(given, dict):
            raise TypeError(
                f"{name} is a {type(given).__name__}: expected a dict by edge type, or the name of a stored table, the "
                "graph being heterogeneous"
            )
        if unknown := [edge_type for edge_type in given if edge_type not in tables]:
            raise KeyError(f"{name} has {unknown[0]!r}: expected edge types, {list(tables)}")
        found: dict[EdgeType, Tensor | DistTensor] = {}
        for edge_type, each in given.items():
            what = f"{name}[{edge_type!r}]" if self._schema.is_hetero else name
            table = tables[edge_type]
            rows = table[each] if isinstance(each, str) else each
            if not isinstance(rows, Tensor | DistTensor):
                raise TypeError(
                    f"{what} is a {type(rows).__name__}: expected a tensor, a DistTensor, or the name of a stored table"
                )
            _require_rows(rows, what, table.num_rows, "edges")
            if name == "edge_weight" and (rows.ndim > 2 or (rows.ndim == 2 and rows.shape[1] != 1)):
                raise ValueError(
                    f"{what} has shape {list(rows.shape)}: expected a number for each edge, [{table.num_rows}]"
                )
            found[edge_type] = rows
        return found

    def summary(self) -> dict[str, list[str]]:
        """Edge types by name, in an order that is the same on all trainers."""
        return {name: sorted(map(str, by_type)) for name, by_type in sorted(self._of.items())}

    def of(self, names: Collection[str], edges: dict[EdgeType, Any]) -> dict[str, dict[EdgeType, Tensor]]:
        """Values ``[E, ...]`` of the edges of a batch, by name and by edge type of the batch; names without values are
        left out. ``edges`` are PyG's stores of all types in the order of the schema, of which they may be the
        reverses."""
        given = {name: self._of[name] for name in EDGE_VALUES if name in names and name in self._of}
        types = dict(zip(self._schema.edge_types, edges, strict=True))
        return {
            name: {types[t]: rows[edges[types[t]].e_id] for t, rows in by_type.items()}
            for name, by_type in given.items()
        }


# By world, the generations of tensors that are outputs of layers: only those may be replaced.
_outputs: weakref.WeakKeyDictionary[World, set[tuple[int, ...]]] = weakref.WeakKeyDictionary()


class OutputStore:
    """Makes the rows of layers' outputs; trainers that ask for the same name get the same rows. With ``spill_dir``, a
    directory that all trainers see, they are in mapped files, else with the servers. TypeError or ValueError if it is
    no directory."""

    def __init__(self, world: World, name: str, spill_dir: str | os.PathLike[str] | None) -> None:
        self.world, self.name = world, name
        self.spill_dir: Path | None = None
        if spill_dir is not None:
            check_path("spill_dir", spill_dir, "a directory that all trainers see")
            self.spill_dir = Path(spill_dir)
            if not self.spill_dir.is_dir():
                raise ValueError(f"spill_dir = {os.fspath(spill_dir)!r} is no directory")

    def require_free(self, suffix: str) -> None:
        """ValueError if this trainer holds a tensor of that name that is no output and would be replaced."""
        outputs = _outputs.get(self.world, set())
        for tensor in list(Handles.of(self.world).open) if self.spill_dir is None else ():
            if tensor.name == self.name + suffix and tensor.generations not in outputs:
                raise ValueError(
                    f"name = {self.name!r}: this trainer holds {tensor}, which rows of that name would replace: give "
                    "another name, or delete it first"
                )

    def create(self, suffix: str, shape: tuple[int, ...], dtype: torch.dtype, part: NodeType | None) -> LayerRows:
        """Makes rows, or opens those that another trainer has made. ``part`` is the node type whose ids number them;
        None: any server keeps them."""
        if self.spill_dir is not None:
            return MappedRows.create(self._path(suffix), shape, dtype)
        tensor = DistTensor(shape, dtype, self.name + suffix, part=part, world=self.world)
        _outputs.setdefault(self.world, set()).add(tensor.generations)
        return tensor

    def find(self, suffix: str) -> LayerRows:
        """Opens rows that another trainer had made before a barrier; LookupError if there are none."""
        if self.spill_dir is not None:
            return MappedRows(self._path(suffix))
        return DistTensor.find(self.name + suffix, world=self.world)

    def clear(self, suffixes: list[str], barrier: Callable[[], None]) -> None:
        """Removes outputs that an earlier run has left. All trainers call it, with their barrier. ValueError if
        ``spill_dir`` is not one directory for all of them."""
        mark = None if self.spill_dir is None else self.spill_dir / f"{self.name}.begun"
        if self.world.rank == 0:
            for suffix in suffixes:
                if self.spill_dir is not None:
                    self._path(suffix).unlink(missing_ok=True)
                    continue
                with contextlib.suppress(LookupError):
                    DistTensor.find(self.name + suffix, world=self.world).delete()
            if mark is not None:
                mark.write_bytes(b"")
        barrier()
        if mark is None:
            return
        if not mark.exists():
            raise ValueError(
                f"spill_dir = {os.fspath(mark.parent)!r}: trainer {self.world.rank} on {socket.gethostname()} does not "
                "see there what trainer 0 has written; expected one directory that all trainers see"
            )
        barrier()
        if self.world.rank == 0:
            mark.unlink()

    def _path(self, suffix: str) -> Path:
        assert self.spill_dir is not None
        return self.spill_dir / f"{self.name}{suffix}.npy"


class MappedRows:
    """Rows in a mapped ``.npy`` file, with the methods of a :class:`DistTensor`; LookupError if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.rows: np.memmap = open_memmap(path, mode="r+")
        except FileNotFoundError as error:
            raise LookupError(
                f"{path} is not there, where another trainer has made it: spill_dir must be one directory that all "
                "trainers see"
            ) from error

    @classmethod
    def create(cls, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> MappedRows:
        """Makes the file with all its space, whole or not at all; several processes may. TypeError if numpy has no such
        dtype, ValueError if another trainer has made it with other rows, OSError if there is no room."""
        try:
            kind = torch.empty(0, dtype=dtype).numpy().dtype
        except TypeError as error:
            raise TypeError(f"outputs are {dtype}, which .npy files do not have: leave spill_dir out") from error
        if not path.exists():
            temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            try:
                _write_empty(temporary, shape, kind)
                with contextlib.suppress(FileExistsError):  # another was faster
                    os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        found = cls(path)
        if found.rows.shape != shape or found.rows.dtype != kind:
            raise ValueError(
                f"{path} has {found.rows.dtype} {list(found.rows.shape)}, as another trainer has made it, and this one "
                f"{kind} {list(shape)} to write: do all have the same model?"
            )
        return found

    def __getitem__(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.rows[ids.numpy()]))

    def write_async(self, ids: Tensor, values: Tensor) -> None:
        self.rows[ids.numpy()] = values.numpy()

    def flush(self) -> None:
        self.rows.flush()

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    def tensor(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.rows))


LayerRows = DistTensor | MappedRows
"""Outputs of a layer by node, that all trainers write and, after a flush and a barrier, read."""


def _write_empty(path: Path, shape: tuple[int, ...], kind: np.dtype) -> None:
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    with open(path, "xb") as file:
        write_array_header_2_0(file, {"descr": kind.str, "fortran_order": False, "shape": shape})
        begin = file.tell()
        file.flush()
        try:
            # All of it: a mapped file that finds no room later ends the process by a bus error.
            os.posix_fallocate(file.fileno(), 0, begin + size)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise OSError(error.errno, f"no room for {size} bytes of layer outputs", os.fspath(path)) from error
            raise
