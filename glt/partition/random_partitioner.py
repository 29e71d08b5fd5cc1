"""Random and even assignment of nodes."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Unpack  # which torch needs too

from glt import _core
from glt.data.schema import NodeType
from glt.partition.arguments import integer
from glt.partition.book import owner_dtype
from glt.partition.partitioner import GraphArguments, PartitionerBase, PerEdgeType, PerNodeType


class RandomPartitioner(PartitionerBase):
    """Gives every partition the same number of nodes, up to one, chosen at random.

    The assignment of a node type is a function of ``(its position among the node types, num_nodes, num_parts,
    random_seed)`` and of its labels in ``balance_ntypes`` alone, independent of other types: the same seed gives the
    same directory, byte for byte, whatever the chunk size. With ``balance_ntypes``, every partition gets the same
    number of nodes of each label too, up to one.

    Args:
        random_seed: Seed of the permutation, in ``[0, 2**64)``.

    The other arguments, the errors and the memory needed are those of :class:`PartitionerBase`.
    """

    balances: ClassVar[frozenset[str]] = frozenset({"balance_ntypes"})
    needs_graph: ClassVar[bool] = False

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int],
        edge_index: PerEdgeType,
        node_feat: PerNodeType | None = None,
        edge_feat: PerEdgeType | None = None,
        *,
        random_seed: int = 0,
        **graph: Unpack[GraphArguments],
    ) -> None:
        self.random_seed = integer("random_seed", random_seed, 0, 2**64 - 1, "the seed of the permutation")
        super().__init__(output_dir, num_parts, num_nodes, edge_index, node_feat, edge_feat, **graph)
        if self.balance.nodes is not None:
            self.assign_node_bytes = 29  # two permutations more, and the labels as they are and permuted

    def assign_nodes(self, node_type: int, num_nodes: int) -> np.ndarray:
        permutation = np.arange(num_nodes)
        _core.shuffle(permutation, self.random_seed, node_type)
        owner = np.empty(num_nodes, owner_dtype(self.num_parts))
        label = self.balance.nodes[node_type].of_node if self.balance.nodes is not None else None
        if label is not None:
            # One label after the other, dealt in turn: each is spread evenly, and so are all together.
            permutation = permutation[np.argsort(label[permutation], kind="stable")]
            for idx in range(self.num_parts):
                owner[permutation[idx :: self.num_parts]] = idx
            return owner
        for idx in range(self.num_parts):
            begin, end = idx * num_nodes // self.num_parts, (idx + 1) * num_nodes // self.num_parts
            owner[permutation[begin:end]] = idx
        return owner

    def strategy_arguments(self) -> dict[str, Any]:
        return {"random_seed": self.random_seed}
