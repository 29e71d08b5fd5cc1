"""Rows of the graph's tables that were written since it was partitioned, in the batches of loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from glt.distributed.engine.partitions import in_message
from glt.distributed.graph.graph import GraphData
from glt.distributed.loader.deployment import LoaderData
from glt.distributed.tensors.tensor import Handles
from glt.distributed.world import World, current_world

if TYPE_CHECKING:
    from glt.distributed.graph.graph import DistGraph


class WrittenRows:
    """Makes batches have the rows that ``ndata`` and ``edata`` have.

    Samplers gather rows from the files of the partitions, caches and GPU memory, which nobody writes to. Where a table
    was written since, or another tensor assigned to its name, its rows are read anew when the trainer takes the batch,
    from the servers that keep them.

    Args:
        world: Whose servers keep the tables.
        nodes, edges: What there is of each type.
    """

    def __init__(self, world: World, nodes: list[GraphData], edges: list[GraphData]) -> None:
        self._world = world
        self._types = [("node", at, data) for at, data in enumerate(nodes)]
        self._types += [("edge", at, data) for at, data in enumerate(edges)]
        self._written: set[str] = set()

    @classmethod
    def of(cls, data: LoaderData, graph: DistGraph | None = None) -> WrittenRows | None:
        """Those of a graph, or of the graph of this process's world; None if that is not what loaders read.

        Args:
            data: What the loader reads.
            graph: Whose names count, if something was assigned to one.
        """
        if graph is not None:
            return cls(graph.world, *graph.data_by_type())
        world = current_world()
        if world is None or world.data is None or world.data.manifest.run_id != data.manifest.run_id:
            return None
        schema = world.data.schema
        nodes = [GraphData(world, "node", at) for at in range(len(schema.node_types))]
        return cls(world, nodes, [GraphData(world, "edge", at) for at in range(len(schema.edge_types))])

    @property
    def needs_edge_ids(self) -> bool:
        """Whether there are tables of edges, whose rows are read by ``e_id``."""
        return any(kind == "edge" and data.has_stored for kind, _, data in self._types)

    def begin(self) -> None:
        """Asks the servers which tables were written: what was acknowledged before an epoch is in all its batches."""
        replies = [self._world.call(server, "glt.tensor.written") for server in range(self._world.num_servers)]
        self._written = {name for reply in replies for name in reply.result()}

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Replaces rows in the tensors of a message, by name, ids of whose rows are there, too.

        Raises:
            LookupError: If a table that was written is deleted meanwhile; says by which trainer.
            glt.errors.PeerLost: If an owner of rows is lost.
        """
        written = self._written | Handles.of(self._world).written
        for kind, at, data in self._types:
            for name, tensor in data.replaced(written).items():
                key = in_message(name, kind, at)
                if key in tensors:
                    ids = tensors[f"n_id/n{at}" if kind == "node" else f"e_id/e{at}"]
                    tensors[key] = tensor[ids].to(tensors[key].device)
