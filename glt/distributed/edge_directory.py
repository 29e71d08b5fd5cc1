"""The edges of a partition, found by their ids, and from the end that the partition does not expand."""

from __future__ import annotations

import threading
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.topology import Topology
from glt.distributed.local_partition import LocalPartition

_CHUNK = 1 << 24  # edges that are counted at a time: their ids are widened for it


class EdgeDirectory:
    """What can be asked about the edges of one type that a partition holds, besides rows.

    Each index is made when it is first needed, and kept: 4 to 8 bytes per edge for finding edges by id, 4 to 8 per node
    of the neighbours' type for their degrees, 8 to 16 per edge for their edges.

    Args:
        part: The partition.
        edge_type: Position of the edge type.
    """

    def __init__(self, part: LocalPartition, edge_type: int) -> None:
        self.part, self.edge_type = part, edge_type
        self.topology = part.graphs[edge_type].topology
        self._making = threading.RLock()  # cached_property would let several threads make the same

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Finds edges by id.

        Args:
            ids: ``[n]``, int64.

        Returns:
            Which of them are here ``[n]``, bool, and sources and destinations of those ``[2, m]``, int64.
        """
        with self._making:
            sorted_ids, order = self._by_id
        # In one dtype, else NumPy would widen all ids; and in order, since far jumps in long arrays cost most.
        wanted, back = np.unique(ids.numpy().clip(-1, np.iinfo(sorted_ids.dtype).max), return_inverse=True)
        wanted = wanted.astype(sorted_ids.dtype)
        at = np.searchsorted(sorted_ids, wanted)
        is_here = np.zeros(len(wanted), bool)
        inside = at < len(sorted_ids)
        is_here[inside] = sorted_ids[at[inside]] == wanted[inside]
        position = at[is_here] if order is None else order[at[is_here]].astype(np.int64)
        row = np.searchsorted(self.topology.indptr.numpy(), position, side="right") - 1
        center = torch.from_numpy(np.asarray(self._centers[row], np.int64))
        ends = self._ends(center, self.topology.indices[torch.from_numpy(position)].long())
        found = is_here[back]
        place = np.cumsum(is_here) - 1  # of each that is here among those
        return torch.from_numpy(found), ends[:, torch.from_numpy(place[back[found]])]

    def ids(self) -> Tensor:
        """Ids of the edges that are here, ascending ``[E]``, int64."""
        with self._making:
            return torch.from_numpy(self._by_id[0].astype(np.int64))

    def near_degrees(self, nodes: Tensor) -> Tensor:
        """Edges of nodes that this partition owns and expands, ``[n]`` int64.

        Raises:
            IndexError: If a node is outside the graph or owned by another partition; names the first.
        """
        book = self.topology.book
        assert book is not None
        _core.require_owned(book.native, nodes.numpy(), self.part.index)
        row = torch.from_numpy(book.rows(nodes.numpy()))
        return self.topology.indptr[row + 1] - self.topology.indptr[row]

    def far_degrees(self, nodes: Tensor) -> Tensor:
        """Of any nodes at the other end, the edges that are here, ``[n]`` int64.

        Raises:
            IndexError: If a node is outside the graph; names the first.
        """
        self._require_neighbors(nodes)
        with self._making:
            return self._far_counts[nodes].long()

    def far_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of any nodes at the other end, the edges that are here.

        Returns:
            Their number by node ``[n]``, int64, the nodes that this partition expands ``[E]``, int64, and the ids of
            the edges ``[E]``, int64, ascending for each node.

        Raises:
            IndexError: If a node is outside the graph; names the first.
        """
        with self._making:
            csr = self._far_side.csr
        hop = _core.OneHop(csr, nodes.numpy(), -1, False, 0, 0, self.edge_type, with_edge=True)
        return copied(hop, len(nodes))

    def _require_neighbors(self, nodes: Tensor) -> None:
        wrong = ((nodes < 0) | (nodes >= self.topology.num_neighbor_nodes)).nonzero()
        if len(wrong):
            at = int(wrong[0])
            raise IndexError(f"nodes[{at}] = {int(nodes[at])} is outside [0, {self.topology.num_neighbor_nodes})")

    def _ends(self, center: Tensor, neighbor: Tensor) -> Tensor:
        return torch.stack([neighbor, center] if self.topology.edge_dir == "in" else [center, neighbor])

    @cached_property
    def _centers(self) -> np.ndarray:
        """The nodes that the rows are of."""
        name = self.part.schema.edge_types[self.edge_type]
        end = name[2] if self.topology.edge_dir == "in" else name[0]
        return self.part.nodes[self.part.schema.node_index(end)].ids

    @property
    def _by_id(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Ids of the edges, ascending, and where each is; None where they are in that order already."""
        return (self._ids, None) if self._sorted is None else self._sorted

    @property
    def _ids(self) -> np.ndarray:
        assert self.topology.edge_ids is not None, "partitions have them"
        return self.topology.edge_ids.numpy()

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray] | None:
        ids = self._ids
        if len(ids) == 0 or bool((ids[1:] > ids[:-1]).all()):
            return None
        order = np.argsort(ids, kind="stable")
        narrow = np.uint32 if len(ids) <= np.iinfo(np.uint32).max else np.int64
        return ids[order], order.astype(narrow)

    @cached_property
    def _far_counts(self) -> Tensor:
        indices, num_nodes = self.topology.indices, self.topology.num_neighbor_nodes
        counts = torch.zeros(num_nodes, dtype=torch.int32 if len(indices) < 2**31 else torch.int64)
        chunk = max(_CHUNK, num_nodes)
        for first in range(0, len(indices), chunk):
            counts += torch.bincount(indices[first : first + chunk], minlength=num_nodes)
        return counts

    @cached_property
    def _far_side(self) -> Topology:
        ends, ids = self.part.all_edges(self.edge_type)
        size = self.topology.size
        return Topology(ends, size, edge_ids=ids, layout="CSR" if self.topology.layout == "CSC" else "CSC")


def copied(hop: _core.OneHop, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a hop found: edges by node ``[n]``, int64, and of each edge the other end and the id ``[E]``, int64."""
    count = np.empty(num_nodes, np.uint32)
    neighbor, edge = np.empty(hop.num_edges, np.int64), np.empty(hop.num_edges, np.int64)
    hop.copy_out(count, neighbor, edge)
    return torch.from_numpy(count.astype(np.int64)), torch.from_numpy(neighbor), torch.from_numpy(edge)
