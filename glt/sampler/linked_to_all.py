"""Source nodes that have an edge to every destination: there is no negative for them that keeps the source."""

from __future__ import annotations

import numpy as np

from glt import _core
from glt.data.topology import Topology

_PAIRS = 1 << 20  # looked up together


def linked_to_all(topology: Topology, sources: np.ndarray, drawable: np.ndarray | None = None) -> np.ndarray:
    """Finds the sources that are linked to every destination.

    Such a source is among the neighbours of the destination that has the fewest, or has as many edges as there are
    destinations: that leaves few candidates, mostly none, and only they are looked at.

    Args:
        topology: All edges, with a row for every node.
        sources: Which sources are of interest ``[n]``, int64.
        drawable: The destinations that count ``[m]``, int64; None: all.

    Returns:
        Those sources, ascending; none where no destination counts.
    """
    num_destinations = topology.size[1]
    targets = np.arange(num_destinations) if drawable is None else drawable
    if len(targets) == 0 or topology.num_edges < len(targets):
        return np.empty(0, np.int64)
    degrees = topology.degrees.numpy()
    if topology.edge_dir == "in":
        fewest = int(targets[degrees[targets].argmin()])
        first, end = topology.indptr[fewest], topology.indptr[fewest + 1]
        candidates = topology.indices[first:end].numpy()
    else:
        candidates = np.flatnonzero(degrees >= len(targets))
    if len(candidates) == 0:
        return np.empty(0, np.int64)
    found = np.unique(sources[np.isin(sources, candidates)]).astype(np.int64)
    begin, num_looked_at = 0, 1
    while len(found) and begin < len(targets):
        some = targets[begin : begin + num_looked_at]
        source, target = np.repeat(found, len(some)), np.tile(some, len(found))
        center, neighbor = (target, source) if topology.edge_dir == "in" else (source, target)
        is_edge = np.empty(len(source), np.uint8)
        _core.has_edges(topology.csr_unweighted, center, neighbor, is_edge)
        found = found[is_edge.reshape(-1, len(some)).all(axis=1)]
        begin += len(some)
        num_looked_at = min(4 * num_looked_at, max(1, _PAIRS // max(1, len(found))))
    return found
