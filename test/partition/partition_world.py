"""A small graph with everything awkward in it, and what a partition directory of it says."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glt.partition import Manifest, Partition, load_partition


@dataclass
class World:
    """Node 5 is isolated, node 0 is a hub, there are self-loops and duplicate edges; features are ids."""

    num_nodes: int
    edge_index: np.ndarray
    node_feat: np.ndarray
    edge_feat: np.ndarray
    node_label: np.ndarray

    def arguments(self) -> dict[str, Any]:
        return vars(self).copy()


def load_all(root: Path) -> list[Partition]:
    return [load_partition(root, idx) for idx in range(Manifest.read(root).num_parts)]


def bits(value: np.ndarray | torch.Tensor) -> np.ndarray:
    """The exact contents of a table, comparable also where NaN or bfloat16 are not; shape ``[rows, bytes]``."""
    tensor = torch.as_tensor(value)
    row_bytes = tensor.itemsize * math.prod(tensor.shape[1:])
    return tensor.contiguous().view(torch.uint8).reshape(len(tensor), row_bytes).numpy()


def assert_union_is_the_input(
    parts: list[Partition],
    edge_index: np.ndarray,
    num_nodes: int,
    node_feat: Any = None,
    edge_feat: Any = None,
    node_label: Any = None,
) -> None:
    """Puts the partitions together again, edge by edge and row by row, and compares with what was partitioned."""
    row_end = 0 if parts[0].manifest.edge_dir == "out" else 1
    num_edges = edge_index.shape[1]
    edges_seen = np.zeros(num_edges, np.int64)
    nodes_seen = np.zeros(num_nodes, np.int64)
    for part in parts:
        nodes_seen[part.node_ids] += 1
        np.testing.assert_array_equal(part.node_ids, np.flatnonzero(part.node_book == part.index))
        np.testing.assert_array_equal(part.node_row[part.node_ids], np.arange(part.node_ids.size))
        assert part.indptr[0] == 0 and part.indptr[-1] == part.indices.size == part.edge_ids.size
        for row, node in enumerate(part.node_ids):
            at = slice(part.indptr[row], part.indptr[row + 1])
            # In the order of the input: neighbours of a node are the same list in every partition (law 4).
            np.testing.assert_array_equal(part.edge_ids[at], np.flatnonzero(edge_index[row_end] == node))
            np.testing.assert_array_equal(part.indices[at], edge_index[1 - row_end][part.edge_ids[at]])
        edges_seen[part.edge_ids] += 1
        for got, wanted in ((part.node_feat, node_feat), (part.node_label, node_label)):
            assert (got is None) == (wanted is None)
            if got is not None:
                np.testing.assert_array_equal(bits(got), bits(wanted)[part.node_ids])
        assert (part.edge_feat is None) == (part.edge_book is None) == (part.edge_row is None) == (edge_feat is None)
        if part.edge_feat is not None:
            owned = np.flatnonzero(part.edge_book == part.index)
            np.testing.assert_array_equal(owned, np.sort(part.edge_ids))
            np.testing.assert_array_equal(part.edge_row[owned], np.arange(owned.size))
            np.testing.assert_array_equal(bits(part.edge_feat), bits(edge_feat)[owned])
    assert (nodes_seen == 1).all() and (edges_seen == 1).all()
