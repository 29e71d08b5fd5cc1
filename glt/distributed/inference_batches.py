"""Batches of layer-wise inference: the edges into some nodes, and what a layer reads of both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor
from torch_geometric.data import HeteroData

from glt.data.schema import EdgeType, NodeType, Schema
from glt.distributed.edge_values import EdgeValues

Rows = dict[NodeType, Any]  # what has a row for each node, by type: LayerRows, DistTensor or Tensor

_POLL_S = 1.0


class InferenceBatch(NamedTuple):
    """A batch with what it needs of all of its nodes and edges.

    Attributes:
        node_type: Of the seeds.
        seeds: Their ids; they are the first nodes of their type.
        edge_index: All edges into them, by the edge type that layers know them by.
        x: Rows of the nodes, by type.
        of_edges: Values of the edges by name and, again, by edge type.
        degrees: Rows of the nodes in the table of degrees, if there is one.
        earlier: Rows of the seeds in outputs of earlier layers.
    """

    node_type: NodeType
    seeds: Tensor
    edge_index: dict[EdgeType, Tensor]
    x: dict[NodeType, Tensor]
    of_edges: dict[str, dict[EdgeType, Tensor]]
    degrees: Tensor | None
    earlier: list[Tensor]


@dataclass(frozen=True)
class Wanted:
    """What a layer reads.

    Attributes:
        below: What the layer below has made; None: the features in the batches.
        names: Which values of edges.
        degrees: The table of degrees.
        earlier: Outputs of earlier layers, for the model's last step.
    """

    below: Rows | None = None
    names: Collection[str] = ()
    degrees: Any = None
    earlier: list[Rows] = field(default_factory=list)


class BatchesAhead:
    """The batches of an epoch, each fetched while the one before it is computed.

    Args:
        loader: Of full neighbourhoods of one hop.
        node_type: Of its seeds.
        schema: Of the graph.
        values: Of edges.
        wanted: What is fetched beside the batches.
        thread: Where that is done.
    """

    def __init__(
        self, loader: Any, node_type: NodeType, schema: Schema, values: EdgeValues, wanted: Wanted, thread: Executor
    ) -> None:
        self._batches, self._node_type, self._schema = iter(loader), node_type, schema
        self._values, self._wanted, self._thread = values, wanted, thread
        self._coming: Future[InferenceBatch | None] = thread.submit(self._fetch)

    def next(self, check: Callable[[], None]) -> InferenceBatch | None:
        """The next batch, None after the last one.

        Args:
            check: Called now and then while it is waited for; what it raises ends that.
        """
        while not wait([self._coming], _POLL_S).done:
            check()
        fetched = self._coming.result()
        if fetched is not None:
            self._coming = self._thread.submit(self._fetch)
        return fetched

    def settle(self) -> None:
        """Waits until nothing is being fetched; to be called before the loader is used for anything else."""
        wait([self._coming])

    def _fetch(self) -> InferenceBatch | None:
        batch = next(self._batches, None)
        if batch is None:
            return None
        wanted, node_type = self._wanted, self._node_type
        if isinstance(batch, HeteroData):
            ids = {t: batch[t].n_id for t in batch.node_types}
            stored = {t: batch[t].x for t in batch.node_types if "x" in batch[t]}
            names = [t for t in batch.edge_types if "edge_index" in batch[t]]  # as many as the schema has, in its order
            edges, num_seeds = {t: batch[t] for t in names}, batch[node_type].batch_size
        else:
            ids, stored = {node_type: batch.n_id}, {} if batch.get("x") is None else {node_type: batch.x}
            edges, num_seeds = {self._schema.edge_types[0]: batch}, batch.batch_size
        if wanted.below is None:
            x = _stored_x(stored)
        else:
            x = {t: wanted.below[t][nodes] for t, nodes in ids.items() if t in wanted.below}
        seeds = ids[node_type][:num_seeds]
        return InferenceBatch(
            node_type, seeds, {t: store.edge_index for t, store in edges.items()}, x, self._of_edges(edges),
            None if wanted.degrees is None else wanted.degrees[ids[node_type]],
            [each[node_type][seeds] for each in wanted.earlier],
        )  # fmt: skip

    def _of_edges(self, edges: dict[EdgeType, Any]) -> dict[str, dict[EdgeType, Tensor]]:
        if not self._wanted.names:
            return {}
        known = dict(zip(self._schema.edge_types, edges, strict=True))  # which are the reverse types of out-edges
        found = self._values.of(self._wanted.names, {t: edges[name].e_id for t, name in known.items()})
        return {name: {known[t]: rows for t, rows in by_type.items()} for name, by_type in found.items()}


def _stored_x(stored: dict[NodeType, Tensor]) -> dict[NodeType, Tensor]:
    if not stored:
        raise ValueError("x is None, and no features are stored with the graph: give x")
    return stored
