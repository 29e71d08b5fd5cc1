"""Random heterogeneous graphs, and a batch of them in every form."""

from dataclasses import dataclass

import numpy as np

from glt import _core
from glt.testing import ReferenceEdges

HASHED, DENSE = 0, 1 << 28


@dataclass(frozen=True)
class TypedWorld:
    num_nodes: list[int]
    edges: list[ReferenceEdges]
    csrs: list[_core.Csr | None]

    @property
    def ends(self):
        return [(e.expanded, e.found) for e in self.edges]

    def batch(self, limit=DENSE):
        return _core.Batch(self.num_nodes, self.ends, limit)

    def seeds(self, rng, most=8):
        """Duplicates, types without seeds, and types that come twice; more of the hubs than of the rest."""
        kinds = rng.integers(0, len(self.num_nodes), rng.integers(0, len(self.num_nodes) + 3))
        return [(int(t), skewed(rng, self.num_nodes[t], rng.integers(0, most))) for t in kinds]


def skewed(rng, num_nodes, n):
    """Node ids, the low ones more often; a fifth of the nodes never."""
    return (max(1, num_nodes - num_nodes // 5) * rng.random(n) ** 3).astype(np.int64)


def random_world(seed, largest=25, edges=150, layout="CSC"):
    """2 to 4 node types; edge types between the same and different types, several between the same two, some empty;
    isolated nodes and hubs. The layout says which end is expanded."""
    rng = np.random.default_rng(seed)
    num_nodes = rng.integers(1, largest, rng.integers(2, 5)).tolist()
    ends = [tuple(rng.integers(0, len(num_nodes), 2).tolist()) for _ in range(rng.integers(1, 6))]
    ends += ends[: rng.integers(0, 2)]  # two edge types between the same node types
    edges_of, csrs = [], []
    for source_type, target_type in ends:
        n = int(rng.integers(0, edges)) if rng.random() < 0.85 else 0
        source, target = skewed(rng, num_nodes[source_type], n), skewed(rng, num_nodes[target_type], n)
        size = num_nodes[source_type], num_nodes[target_type]
        if layout == "CSR":
            edges_of.append(ReferenceEdges(source_type, target_type, source, target))
        else:
            edges_of.append(ReferenceEdges(target_type, source_type, target, source))
            size = size[::-1]
        csrs.append(None if n == 0 and rng.random() < 0.5 else csr_of(edges_of[-1], *size))
    return TypedWorld(num_nodes, edges_of, csrs)


def csr_of(edges, num_centers, num_neighbors):
    indptr = np.zeros(num_centers + 1, np.int64)
    indices, edge_ids = np.zeros((2, len(edges.center)), np.int64)
    _core.build_csr(edges.center, edges.neighbor, num_centers, num_neighbors, indptr, indices, edge_ids)
    return _core.Csr(indptr, indices, edge_ids, num_neighbor_nodes=num_neighbors)


def result(batch, world, with_edge=True, disjoint=False):
    """Everything that the batch says, as :class:`glt.testing.ReferenceTypedBatch` has it: one flat list."""
    node, tree, row, col, edge = [], [], [], [], []
    for t in range(len(world.num_nodes)):
        ids, trees = np.full((2, batch.num_nodes(t)), -7, np.int64)
        batch.copy_nodes(t, ids, trees if disjoint else None)
        node.append(ids)
        tree.append(trees)
    for r in range(len(world.edges)):
        local = np.full((3, batch.num_edges(r)), -7, np.int64)
        batch.copy_edges(r, local[0], local[1], local[2] if with_edge else None)
        for to, values in zip((row, col, edge), local, strict=True):
            to.append(values)
    counts = (
        [batch.num_sampled_nodes(t) for t in range(len(world.num_nodes))],
        [batch.num_sampled_edges(r) for r in range(len(world.edges))],
    )
    return [node, tree if disjoint else None, row, col, edge if with_edge else None, *counts]


def expected_of(reference, with_edge=True, disjoint=False):
    r = reference
    return [r.node, r.tree if disjoint else None, r.row, r.col, r.edge if with_edge else None, r.num_sampled_nodes,
            r.num_sampled_edges]  # fmt: skip


def assert_same(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert (one is None) == (other is None)
        for a, b in zip(one or [], other or [], strict=True):
            assert np.array_equal(a, b), (got, expected)


def stepwise(batch, world, num_neighbors, replace, key, with_edge, disjoint, rng, num_parts=3):
    """A started batch, finished as a distributed sampler does it: every hop of every type from parts."""
    for hop in range(len(num_neighbors[0])):
        asked = []
        for r, e in enumerate(world.edges):
            frontier, k = batch.frontier(e.expanded), num_neighbors[r][hop]
            if world.csrs[r] is None or len(frontier) == 0 or k == 0:
                continue
            trees = batch.frontier_trees(e.expanded) if disjoint else None
            owner, parts = rng.integers(0, num_parts, len(frontier)), []
            for part in rng.permutation(num_parts):
                where = rng.permutation(np.flatnonzero(owner == part))
                one = _core.OneHop(
                    world.csrs[r], frontier[where], k, replace, key, hop, r, with_edge,
                    tree=None if trees is None else trees[where],
                )  # fmt: skip
                count = np.zeros(len(where), np.uint32)
                neighbor = np.zeros(one.num_edges, (np.int32, np.int64)[hop % 2])
                edge = np.zeros(one.num_edges, np.int64) if with_edge else None
                one.copy_out(count, neighbor, edge)
                parts.append((where.astype(np.uint32), count, neighbor, edge))
            asked.append((r, parts))
        for r, parts in asked:
            batch.expand_from(r, parts)
        batch.end_hop()
