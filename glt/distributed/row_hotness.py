"""Which rows of a partition are worth their room in device memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from glt.partition import Partition

_STEP = 1 << 24  # ids that are counted at a time


def row_hotness(part: Partition, node_type: int) -> Tensor:
    """Returns how hot each node is that a partition owns, ``[rows]``.

    That is what the partitioner was told of it (``hotness``, or ``probs`` of ``FrequencyPartitioner``): how often the
    trainers of this partition read the node. Where it was told nothing, how many edges of this partition lead to the
    node as a neighbour, which reads all columns of the partition once: a row that more rows name is found more often.
    """
    nodes = part.nodes[node_type]
    if nodes.hotness is not None:
        return torch.from_numpy(nodes.hotness)
    num_nodes = part.manifest.node_types[node_type].num_nodes
    found = np.zeros(num_nodes, np.int64)
    step = max(_STEP, num_nodes)
    for (_, neighbor), edges in zip(part.schema.ends(part.manifest.edge_dir), part.edges, strict=True):
        for begin in range(0, len(edges.indices) if neighbor == node_type else 0, step):
            found += np.bincount(edges.indices[begin : begin + step], minlength=num_nodes)[:num_nodes]
    return torch.from_numpy(found[nodes.ids])
