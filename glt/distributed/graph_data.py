"""Named rows of nodes or edges of one type: those the graph was partitioned with, and those assigned since."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import torch

from glt.data.schema import EdgeType, NodeType
from glt.distributed.dist_tensor import DistTensor
from glt.distributed.store.stored_table import StoredTable
from glt.distributed.world import World
from glt.partition.manifest import EdgeTypeEntry, FeatureEntry, Manifest, NodeTypeEntry

# What DGL's examples call them, where partitions have no table of that name.
NODE_ALIASES = {"feat": "x", "features": "x", "label": "y", "labels": "y"}
EDGE_ALIASES = {"feat": "edge_attr", "features": "edge_attr"}

Layout = tuple[torch.dtype, tuple[int, ...]]


class GraphData(MutableMapping[str, DistTensor]):
    """The tensors of a type by name, such as ``g.ndata``.

    There are, first, the tables that the graph was partitioned with: of nodes ``x``, ``y``, ``time`` and the named
    ones; of edges ``edge_attr`` and the named ones. As in DGL's examples ``feat`` and ``features`` stand for ``x`` (of
    edges ``edge_attr``), ``label`` and ``labels`` for ``y``, unless a table has that name. They may be written: the
    servers then copy them, files stay as they are, and all trainers see what was written.

    A :class:`DistTensor` may be assigned to any name, one row for each node or edge. A name is this trainer's: others
    assign it for themselves. Deleting one forgets it, and deletes no rows.

    Args:
        world: Where the tensors are.
        kind: ``'node'`` or ``'edge'``.
        type_index: Position of the type.
    """

    def __init__(self, world: World, kind: str, type_index: int) -> None:
        assert world.data is not None
        manifest = world.data.manifest
        self._world, self._kind, self._at = world, kind, type_index
        entry: NodeTypeEntry | EdgeTypeEntry
        if kind == "node":
            entry = manifest.node_types[type_index]
            self.type: NodeType | EdgeType = entry.node_type
            self.num_rows, self._aliases = entry.num_nodes, NODE_ALIASES
        else:
            entry = manifest.edge_types[type_index]
            self.type, self.num_rows, self._aliases = entry.edge_type, entry.num_edges, EDGE_ALIASES
        self._stored = _layouts(entry)
        self._open: dict[str, DistTensor] = {}  # by name as stored, or as assigned
        self._hidden: set[str] = set()

    def __getitem__(self, name: str) -> DistTensor:
        """The tensor of a name.

        Raises:
            KeyError: If there is none; names those there are.
        """
        key = self._key(name)
        if key not in self._open:
            dtype, shape = self._stored[key]
            type_ = self.type if isinstance(self.type, str) else "__".join(self.type)
            self._open[key] = DistTensor(
                (self.num_rows, *shape), dtype, f"{self._kind}/{type_}/{key}", StoredTable(self._kind, self._at, key),
                self.type, world=self._world,
            )  # fmt: skip
        return self._open[key]

    def __setitem__(self, name: str, tensor: DistTensor) -> None:
        """Gives a tensor a name.

        Raises:
            TypeError: If it is no :class:`DistTensor`, or the name no text.
            ValueError: If it has not one row per node or edge.
        """
        if not isinstance(name, str):
            raise TypeError(f"name = {name!r}: expected text")
        if not isinstance(tensor, DistTensor):
            raise TypeError(
                f"{self._what()}[{name!r}] = {type(tensor).__name__}: expected a DistTensor; make one with "
                f"DistTensor(shape, dtype, part={self.type!r}) and write the rows into it"
            )
        if tensor.shape[0] != self.num_rows:
            raise ValueError(
                f"{self._what()}[{name!r}]: the tensor has {tensor.shape[0]} rows: expected {self.num_rows}, one per "
                f"{self._kind} of type {self.type!r}"
            )
        self._open[name] = tensor
        self._hidden.discard(name)

    def __delitem__(self, name: str) -> None:
        key = self._key(name)
        self._open.pop(key, None)
        if key in self._stored:
            self._hidden.add(key)

    def __iter__(self) -> Iterator[str]:
        names = [*self._stored, *(name for name in self._open if name not in self._stored)]
        return iter([name for name in names if name not in self._hidden])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: Any) -> bool:
        return self._found(name) is not None

    def _found(self, name: Any) -> str | None:
        for key in (name, self._aliases.get(name) if isinstance(name, str) else None):
            if key is not None and key not in self._hidden and (key in self._open or key in self._stored):
                return str(key)
        return None

    def _key(self, name: str) -> str:
        key = self._found(name)
        if key is None:
            raise KeyError(f"{self._what()} has no {name!r}: there are {sorted(self)}")
        return key

    def _what(self) -> str:
        return f"data of {self._kind}s of type {self.type!r}"

    def __repr__(self) -> str:
        return f"GraphData({self._kind}s of type {self.type!r}, {list(self)})"


class TableNames(NamedTuple):
    """Names of the tables that a graph was partitioned with, of nodes and of edges of any type."""

    of_nodes: tuple[str, ...]
    of_edges: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Manifest) -> TableNames:
        """Those of a directory."""
        nodes, edges = (
            tuple(dict.fromkeys(name for entry in entries for name in _layouts(entry)))
            for entries in (manifest.node_types, manifest.edge_types)
        )
        return cls(nodes, edges)


def _layouts(entry: NodeTypeEntry | EdgeTypeEntry) -> dict[str, Layout]:
    """Dtype and shape of the rows of each stored table."""
    found: dict[str, Layout] = {}
    named = {"x": entry.feat, "y": entry.label} if isinstance(entry, NodeTypeEntry) else {"edge_attr": entry.feat}
    for name, table in named.items():
        if table is not None:
            found[name] = _layout(table)
    if isinstance(entry, NodeTypeEntry) and entry.has_time:
        found["time"] = torch.int64, ()
    return found | {name: _layout(table) for name, table in entry.attrs.items()}


def _layout(table: FeatureEntry) -> Layout:
    return getattr(torch, table.dtype), tuple(table.shape)
