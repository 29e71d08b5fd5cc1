"""An assignment of nodes that exists already."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Unpack

from glt.data.schema import NodeType
from glt.partition import arguments
from glt.partition.book import owner_dtype
from glt.partition.partitioner import GraphArguments, PartitionerBase, PerEdgeType, PerNodeType


class AssignedPartitioner(PartitionerBase):
    """Gives each node to the partition that ``owners`` says, for assignments made elsewhere.

    Args:
        owners: Partition of each node, ``[num_nodes]`` integers in ``[0, num_parts)``, tensor or array; of a
            heterogeneous graph, a dict of them by node type, of all types that have nodes.
        origin: What made the assignment, for the manifest: a dict that JSON can hold.

    The other arguments are those of :class:`PartitionerBase`, as are the errors: beside them a TypeError, KeyError or
    ValueError where ``owners`` does not fit.
    """

    needs_graph: ClassVar[bool] = False
    node_arguments: ClassVar[frozenset[str]] = frozenset({"owners"})

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int],
        edge_index: PerEdgeType,
        node_feat: PerNodeType | None = None,
        edge_feat: PerEdgeType | None = None,
        *,
        owners: PerNodeType,
        origin: Mapping[str, Any] | None = None,
        **graph: Unpack[GraphArguments],
    ) -> None:
        super().__init__(output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, **graph)
        self.origin = dict(origin or {})
        schema = self.graph.schema
        self._owners = [
            arguments.owners(
                f"owners[{nodes.node_type!r}]" if schema.is_hetero else "owners",
                np.empty(0, np.int64) if value is None and nodes.num_nodes == 0 else value,
                nodes.num_nodes,
                num_parts,
                owner_dtype(num_parts),
            )
            for nodes, value in zip(self.graph.nodes, schema.per_node_type("owners", owners), strict=True)
        ]

    def given_arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        yield from super().given_arrays()
        for owner in self._owners:
            yield "owners", owner

    def assign_nodes(self, node_type: int, num_nodes: int) -> np.ndarray:
        return self._owners[node_type]

    def strategy_arguments(self) -> dict[str, Any]:
        digest = hashlib.blake2b(digest_size=16)
        for owner in self._owners:
            digest.update(owner.data)
        return {"owners_digest": digest.hexdigest(), **self.origin}
