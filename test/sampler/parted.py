"""A graph of this process in parts, as partitions hold it."""

import numpy as np

from glt import _core


def in_parts(topology, num_parts=3):
    """The rows of a topology, each in one of so many parts at random."""
    indptr, indices = topology.indptr.numpy(), topology.indices.numpy()
    num_nodes = len(indptr) - 1
    owner = np.random.default_rng(0).integers(0, num_parts, num_nodes).astype(np.uint8)
    book, parts = _core.Book(owner, num_parts), []
    for part in range(num_parts):
        own = np.flatnonzero(owner == part)
        row_of = np.full(num_nodes, 2**32 - 1, np.uint32)
        row_of[own] = np.arange(len(own), dtype=np.uint32)
        positions = np.concatenate([np.arange(indptr[v], indptr[v + 1]) for v in own])
        starts = np.concatenate([[0], np.cumsum(np.diff(indptr)[own])])
        rows = (starts.astype(np.int64), indices[positions].copy(), positions.astype(np.int64))
        sizes = {"num_nodes": num_nodes, "num_neighbor_nodes": num_nodes}
        parts.append(_core.Csr(*rows, row_of=row_of, book=book, part=part, **sizes))
    return parts
