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
    csrs: list[_core.Csr | None]  # rows in input order, or by time where edges have times

    def exclusions(self, rng):
        """Per edge type None, or a set of pairs: some are edges, some are not."""
        pairs = []
        for e in self.edges:
            some = rng.integers(0, max(1, len(e.center)), min(len(e.center), 10))
            pairs.append(
                None if rng.random() < 0.3 else {(int(e.center[i]), int(e.neighbor[i])) for i in some} | {(0, 0)}
            )
        return pairs

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


def random_world(seed, largest=25, edges=150, layout="CSC", timed=False, weighted=False):
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
        time = rng.integers(0, 20, n) if timed and rng.random() < 0.7 else None
        weight = np.where(rng.random(n) < 0.2, 0.0, rng.random(n)) if weighted and rng.random() < 0.7 else None
        types, ends_of = (source_type, target_type), (source, target)
        if layout == "CSC":
            types, ends_of = types[::-1], ends_of[::-1]
        edges_of.append(ReferenceEdges(*types, *ends_of, time=time, weight=weight))
        size = num_nodes[types[0]], num_nodes[types[1]]
        csrs.append(None if n == 0 and rng.random() < 0.5 else csr_of(edges_of[-1], *size))
    return TypedWorld(num_nodes, edges_of, csrs)


def csr_of(edges, num_centers, num_neighbors, mine=None, rows=None, **part):
    """All edges, or those of a partition: which of them, the row of each, and what else its ``Csr`` is given."""
    mine = np.arange(len(edges.center)) if mine is None else mine
    rows = edges.center if rows is None else rows
    indptr = np.zeros(num_centers + 1, np.int64)
    indices, edge_ids = np.zeros((2, len(mine)), np.int64)
    _core.build_csr(rows, edges.neighbor[mine], num_centers, num_neighbors, indptr, indices, edge_ids, mine)
    if edges.time is not None:
        order = np.zeros(len(indices), np.int64)
        _core.sort_rows_by_time(indptr, edges.time[edge_ids], order)
        indices, edge_ids = indices[order], edge_ids[order]
        part["time"] = edges.time[edge_ids]
    if edges.weight is not None:
        sums = np.zeros(len(indices), np.uint64)
        guide = np.zeros(_core.weight_guide_size(num_centers, len(indices)), np.uint32)
        _core.build_weights(indptr, edges.weight[edge_ids], sums, guide)
        part |= {"weight_sum": sums, "weight_guide": guide}
    return _core.Csr(indptr, indices, edge_ids, num_neighbor_nodes=num_neighbors, **part)


def native_exclusions(pairs):
    """What a batch takes for the sets of pairs that the reference takes."""
    ends = [None if p is None else np.array(sorted(p), np.int64).reshape(-1, 2).T.copy() for p in pairs]
    return [None if e is None else _core.Exclusions(e[0], e[1]) for e in ends]


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


def stepwise(
    batch, world, num_neighbors, rng, *, replace, batch_key, with_edge=True, seed_time=None, disjoint=False,
    last=False, exclusions=None, time_window=(), half_life=(), shared_key=None, num_parts=3,
):  # fmt: skip
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
                tree = None if trees is None else trees[where]
                one = _core.OneHop(
                    world.csrs[r], frontier[where], k, replace, batch_key, hop, r, with_edge, tree=tree,
                    seed_time=None if seed_time is None else seed_time[tree], last=last,
                    exclusions=None if exclusions is None else exclusions[r],
                    number_key=None if shared_key is None else _core.number_key(shared_key, hop, e.found),
                    time_window=time_window[r] if time_window else -1, half_life=half_life[r] if half_life else 0,
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
