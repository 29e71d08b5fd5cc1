"""The tables that a graph was partitioned with, as tensors that can be written, and what was written, in batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glt._tracebacks import short_traceback
from glt.data.schema import EdgeType, NodeType
from glt.distributed.context import World, current_world
from glt.distributed.engine.row_lookup import in_message
from glt.distributed.tensors.spec import StoredTable, require_writable
from glt.distributed.tensors.tensor import DistTensor, Handles
from glt.partition.format.manifest import EdgeTypeEntry, Manifest, NodeTypeEntry

# DGL's names, where partitions have no table of that name.
NODE_ALIASES = {"feat": "x", "features": "x", "label": "y", "labels": "y"}
EDGE_ALIASES = {"feat": "edge_attr", "features": "edge_attr"}

Layout = tuple[torch.dtype, tuple[int, ...]]


class GraphData(MutableMapping[str, DistTensor]):
    """The tensors of a type by name, such as ``g.ndata``.

    There are, first, the tables that the graph was partitioned with: of nodes ``x``, ``y``, ``time`` and the named
    ones; of edges ``edge_attr`` and the named ones. As in DGL's examples ``feat`` and ``features`` stand for ``x`` (of
    edges ``edge_attr``), ``label`` and ``labels`` for ``y``, unless a table has that name. All but ``time``, which
    sampling goes by, may be written: the servers then copy them, files stay as they are, and all trainers see the new
    rows, in the batches of loaders, too. Deleting one, ``ndata["x"].delete()``, undoes that for all trainers.

    A :class:`DistTensor` may be assigned to any name, one row for each node or edge. Batches have its rows if the name
    is that of a table, or stands for one: ``g.ndata["feat"] = tensor`` is ``g.ndata["x"] = tensor``. The name is this
    trainer's: others assign it for themselves. Deleting it forgets it, and deletes no rows.

    ``kind`` is ``'node'`` or ``'edge'``, ``type_index`` the position of the type; ``stored`` has the dtype and the
    shape of rows of each table that the graph was partitioned with.
    """

    def __init__(self, world: World, kind: str, type_index: int) -> None:
        assert world.data is not None
        manifest = world.data.manifest
        self._world, self.kind, self.type_index = world, kind, type_index
        self.type: NodeType | EdgeType
        if kind == "node":
            node = manifest.node_types[type_index]
            self.type, self.num_rows, self._aliases = node.node_type, node.num_nodes, NODE_ALIASES
            self.stored = _layouts(node)
        else:
            edge = manifest.edge_types[type_index]
            self.type, self.num_rows, self._aliases = edge.edge_type, edge.num_edges, EDGE_ALIASES
            self.stored = _layouts(edge)
        self._open: dict[str, DistTensor] = {}  # by name as stored, or as assigned
        self._hidden: set[str] = set()

    @short_traceback
    def __getitem__(self, name: str) -> DistTensor:
        """The tensor of a name; KeyError names those there are."""
        return self._tensor(self._key(name))

    def _tensor(self, key: str) -> DistTensor:
        given = self._open.get(key)
        if given is None or (given.is_deleted and given.spec.table == key):
            dtype, shape = self.stored[key]
            table = StoredTable(self.kind, self.type_index, key)
            full, name = (self.num_rows, *shape), self._server_name(key)
            given = self._open[key] = DistTensor(full, dtype, name, table, self.type, world=self._world)
        return given

    def _server_name(self, key: str) -> str:
        type_ = self.type if isinstance(self.type, str) else "__".join(self.type)
        return f"{self.kind}/{type_}/{key}"

    def replaced(self, written: Collection[str]) -> dict[str, DistTensor]:
        """By name, tensors whose rows differ from the stored ones: tables that ``written`` names, and tensors assigned
        to a table's name."""
        found = {}
        for key in self.stored:
            given = self._open.get(key)
            if self._server_name(key) in written or (given is not None and given.spec.table != key):
                found[key] = self._tensor(key)
        return found

    @short_traceback
    def __setitem__(self, name: str, tensor: DistTensor) -> None:
        """Gives a tensor a name. Raises TypeError if it is no :class:`DistTensor` or the name no text, ValueError if it
        has not one row per node or edge, or the name is that of stored times."""
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
                f"{self.kind} of type {self.type!r}"
            )
        key = next((each for each in self._names(name) if each in self.stored), name)
        if key in self.stored:
            require_writable(key, f"{self._what()}[{name!r}]")
        self._open[key] = tensor
        self._hidden.discard(key)

    def __delitem__(self, name: str) -> None:
        key = self._key(name)
        self._open.pop(key, None)
        if key in self.stored:
            self._hidden.add(key)

    def __iter__(self) -> Iterator[str]:
        names = [*self.stored, *(name for name in self._open if name not in self.stored)]
        return iter([name for name in names if name not in self._hidden])

    def __len__(self) -> int:
        return sum(1 for _ in self)  # list() would ask for the length

    def __contains__(self, name: Any) -> bool:
        return self._found(name) is not None

    def _found(self, name: Any) -> str | None:
        return next(
            (key for key in self._names(name) if key not in self._hidden and (key in self._open or key in self.stored)),
            None,
        )

    def _names(self, name: Any) -> tuple[str, ...]:
        """What a name may be the name of: itself before the table that it stands for."""
        return (name, self._aliases.get(name, name)) if isinstance(name, str) else ()

    def _key(self, name: str) -> str:
        key = self._found(name)
        if key is None:
            raise KeyError(f"{self._what()} has no {name!r}: there are {sorted(self)}")
        return key

    def _what(self) -> str:
        return f"data of {self.kind}s of type {self.type!r}"

    def __repr__(self) -> str:
        return f"GraphData({self.kind}s of type {self.type!r}, {list(self)})"


class GraphDataByType(Mapping[Any, GraphData]):
    """The tensors of a heterogeneous graph: :class:`GraphData` by node type or edge type, such as ``g.ndata``."""

    def __init__(self, by_type: Mapping[Any, GraphData], kind: str) -> None:
        self._by_type, self._kind = by_type, kind

    @short_traceback
    def __getitem__(self, type_: Any) -> GraphData:
        if type_ not in self._by_type:
            raise KeyError(f"{type_!r} is no {self._kind} type of the graph: expected one of {list(self)}")
        return self._by_type[type_]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._by_type)

    def __len__(self) -> int:
        return len(self._by_type)

    @short_traceback
    def __setitem__(self, name: Any, value: Any) -> None:
        example = f"g.{self._kind[0]}data[{next(iter(self), None)!r}][{name!r}]"
        raise TypeError(f"the graph has types, and {name!r} is assigned to none: expected such as {example} = ...")

    def __repr__(self) -> str:
        return f"GraphDataByType({list(self.values())})"


def table_names(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Names of the tables that a graph was partitioned with, of nodes and of edges of any type."""
    nodes = dict.fromkeys(name for entry in manifest.node_types for name in _layouts(entry))
    edges = dict.fromkeys(name for entry in manifest.edge_types for name in _layouts(entry))
    return list(nodes), list(edges)


def _layouts(entry: NodeTypeEntry | EdgeTypeEntry) -> dict[str, Layout]:
    named = {"x": entry.feat, "y": entry.label} if isinstance(entry, NodeTypeEntry) else {"edge_attr": entry.feat}
    time = {"time": (torch.int64, ())} if isinstance(entry, NodeTypeEntry) and entry.has_time else {}
    first, more = (
        {name: (getattr(torch, each.dtype), tuple(each.shape)) for name, each in tables.items() if each is not None}
        for tables in (named, entry.attrs)
    )
    return first | time | more


class WrittenRows:
    """Makes batches have the rows of ``ndata`` and ``edata``. Samplers gather from files, caches and GPU memory, which
    stay as they are: where a table was written since, or a tensor assigned to its name, the trainer reads its rows anew
    from the servers when it takes a batch."""

    def __init__(self, world: World, data: Sequence[GraphData]) -> None:
        self._world, self._data = world, data
        self._written: set[str] = set()

    @classmethod
    def of(cls, manifest: Manifest) -> WrittenRows | None:
        """That of this process's world; None if it has no graph, or another than this manifest's."""
        world = current_world()
        if world is None or world.data is None or world.data.manifest.run_id != manifest.run_id:
            return None
        nodes = [GraphData(world, "node", at) for at in range(len(manifest.node_types))]
        return cls(world, [*nodes, *(GraphData(world, "edge", at) for at in range(len(manifest.edge_types)))])

    @property
    def needs_edge_ids(self) -> bool:
        return any(data.kind == "edge" and data.stored for data in self._data)

    def begin(self) -> None:
        replies = [self._world.call(server, "glt.tensor.written") for server in range(self._world.num_servers)]
        self._written = {name for reply in replies for name in reply.result()}

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Replaces rows in the tensors of a message, which has their ids."""
        written = self._written | Handles.of(self._world).written
        for data in self._data:
            for name, tensor in data.replaced(written).items():
                key = in_message(name, data.kind, data.type_index)
                if key in tensors:
                    ids = tensors[in_message("n_id" if data.kind == "node" else "e_id", data.kind, data.type_index)]
                    try:
                        rows = tensor[ids]
                    except LookupError:
                        if not tensor.is_deleted or tensor.spec.table != name:
                            raise
                        rows = data.replaced(written)[name][ids]  # another handle has deleted it: what there is instead
                    tensors[key] = rows.to(tensors[key].device)
