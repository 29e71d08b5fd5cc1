"""Disjoint batches with all edges of each tree, however these are found, and the order in which trees stand."""

import numpy as np
import pytest
from typed_world import DENSE, HASHED, assert_same, csr_of, random_world, result

from glt import _core
from glt.data import Topology
from glt.testing import ReferenceEdges, ring_graph


def by_tree(node, tree, num_trees):
    order, ptr = np.full(len(node), -7), np.full(num_trees + 1, -7)
    _core.order_by_tree(node, tree, num_trees, order, ptr)
    return order, ptr


def reordered(row, col, order):
    out = np.full((3, len(row)), -7)
    _core.reorder_edges(row, col, order, *out)
    return out


@pytest.mark.parametrize("seed", range(40))
def test_nodes_are_sorted_by_tree_and_then_by_id(seed):
    rng = np.random.default_rng(seed)
    num_trees, n = int(rng.integers(1, 30)), int(rng.integers(0, 400))
    node = rng.integers(-3, rng.integers(1, 2**40 if seed % 2 else 9), n)
    tree = rng.integers(0, num_trees, n) // 2 * 2  # every other tree is empty
    order, ptr = by_tree(node, tree, num_trees)
    assert np.array_equal(order, np.lexsort([np.arange(n), node, tree]))
    assert np.array_equal(ptr, np.concatenate([[0], np.cumsum(np.bincount(tree, minlength=num_trees))]))


@pytest.mark.parametrize("seed", range(40))
def test_edges_are_sorted_by_row_and_then_by_column_and_equal_ones_stay_as_they_came(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    row, col = rng.integers(0, n, (2, int(rng.integers(0, 500))))
    order = rng.permutation(n)
    rank = np.empty(n, np.int64)
    rank[order] = np.arange(n)
    expected = np.lexsort([np.arange(len(row)), rank[col], rank[row]])
    new_row, new_col, edge_order = reordered(row, col, order)
    assert np.array_equal(edge_order, expected)
    assert np.array_equal(new_row, rank[row][expected]) and np.array_equal(new_col, rank[col][expected])


def test_nothing_is_in_order():
    none = np.empty(0, np.int64)
    assert [each.tolist() for each in by_tree(none, none, 0)] == [[], [0]]
    assert [each.tolist() for each in by_tree(none, none, 3)] == [[], [0, 0, 0, 0]]
    assert reordered(none, none, none).shape == (3, 0)
    assert reordered(none, none, np.array([1, 0])).shape == (3, 0)


def test_what_does_not_fit_is_named():
    two, none = np.arange(2), np.empty(0, np.int64)
    for tree, num_trees, words in (
        ([0, 3], 3, r"tree\[1\] = 3 is outside \[0, 3\)"),
        ([-1, 0], 3, r"tree\[0\] = -1 is outside \[0, 3\)"),
        ([0, 0], 0, r"tree\[0\] = 0 is outside \[0, 0\)"),
    ):
        with pytest.raises(IndexError, match=words):
            by_tree(two, np.array(tree), num_trees)
    for row, col, order, words in (
        ([0, 2], [0, 1], [0, 1], r"edge 1 is \(2, 1\): expected ends in \[0, 2\)"),
        ([0, 1], [-1, 1], [0, 1], r"edge 0 is \(0, -1\)"),
        ([0, 1], [0, 1], [0, 2], r"order\[1\] = 2 is outside \[0, 2\)"),
        ([0, 1], [0, 1], [-1, 0], r"order\[0\] = -1 is outside \[0, 2\)"),
        ([0, 1], [0, 1], [], r"edge 0 is \(0, 0\): expected ends in \[0, 0\)"),
    ):
        with pytest.raises(IndexError, match=words):
            reordered(np.array(row), np.array(col), np.array(order, np.int64))
    for call in (
        lambda: _core.order_by_tree(two, two, 2, np.empty(3, np.int64), np.empty(3, np.int64)),
        lambda: _core.order_by_tree(two, two[:1], 2, np.empty(2, np.int64), np.empty(3, np.int64)),
        lambda: _core.order_by_tree(two, two, 2, np.empty(2, np.int64), np.empty(2, np.int64)),
        lambda: _core.order_by_tree(none, none, -3, none, none),
        lambda: _core.reorder_edges(two, two[:1], two, *np.empty((3, 2), np.int64)),
        lambda: _core.reorder_edges(two, two, two, *np.empty((3, 1), np.int64)),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()
    for call in (
        lambda: _core.order_by_tree(two.astype(np.int32), two, 2, np.empty(2, np.int64), np.empty(3, np.int64)),
        lambda: _core.order_by_tree(two, two, 2, np.empty(2, np.int32), np.empty(3, np.int64)),
        lambda: _core.reorder_edges(two, two, two.astype(float), *np.empty((3, 2), np.int64)),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()


def brute_force(world, nodes, trees):
    """row, col, edge per edge type: of every node, the edges from nodes of its own tree; a neighbour is the first of
    equal nodes of a tree."""
    out = [[], [], []]
    for e in world.edges:
        first = {}
        for i, each in enumerate(zip(trees[e.found].tolist(), nodes[e.found].tolist(), strict=True)):
            first.setdefault(each, i)
        edges = [
            (first[tree, int(e.neighbor[at])], i, at)
            for i, (tree, node) in enumerate(zip(trees[e.expanded].tolist(), nodes[e.expanded].tolist(), strict=True))
            for at in np.flatnonzero(e.center == node).tolist()
            if (tree, int(e.neighbor[at])) in first
        ]
        for to, values in zip(out, np.array(edges, np.int64).reshape(-1, 3).T, strict=True):
            to.append(values)
    return out


def induce_from_parts(batch, world, with_edge, rng, num_parts=3):
    batch.begin_induce()
    for r, e in enumerate(world.edges):
        if world.csrs[r] is None:
            continue
        nodes, tree = batch.nodes(e.expanded), batch.trees(e.expanded)
        shuffled = rng.permutation(batch.num_nodes(e.found))
        members, member_tree = batch.nodes(e.found)[shuffled], batch.trees(e.found)[shuffled]
        owner, parts = rng.integers(0, num_parts, len(nodes)), []
        for part in rng.permutation(num_parts):
            where = rng.permutation(np.flatnonzero(owner == part))
            rows = _core.InducedRows(
                world.csrs[r], nodes[where], members, with_edge, int(rng.integers(1, 4)), tree[where], member_tree
            )
            count = np.zeros(len(where), np.uint32)
            neighbor, edge = np.zeros(rows.num_edges, np.int32), np.zeros(rows.num_edges, np.int64)
            rows.copy_out(count, neighbor, edge if with_edge else None)
            parts.append((where.astype(np.uint32), count, neighbor, edge if with_edge else None))
        batch.induce_from(r, parts)


@pytest.mark.parametrize("with_edge", [True, False])
@pytest.mark.parametrize("layout", ["CSC", "CSR"])
def test_a_tree_has_all_edges_among_its_own_nodes_and_no_others(layout, with_edge):
    num_edges = num_in_two = 0
    for seed in range(50):
        rng, world = np.random.default_rng(seed), random_world(seed, layout=layout)
        seeds = world.seeds(rng)
        for limit in (DENSE, HASHED):
            batch = world.batch(limit)
            for num_threads in (1, 3, None):
                batch.start(seeds, with_edge, disjoint=True)
                batch.sample(world.csrs, [[2, 1]] * len(world.edges), replace=False, batch_key=seed)
                types = range(len(world.num_nodes))
                nodes, trees = [batch.nodes(t) for t in types], [batch.trees(t) for t in types]
                counts = [batch.num_sampled_nodes(t) for t in types]
                if num_threads is None:
                    induce_from_parts(batch, world, with_edge, rng)
                else:
                    batch.induce(world.csrs, num_threads)
                row, col, edge = brute_force(world, nodes, trees)
                no_counts = [[]] * len(world.edges)
                expected = [nodes, trees, row, col, edge if with_edge else None, counts, no_counts]
                assert_same(result(batch, world, with_edge, disjoint=True), expected)
        num_edges += sum(map(len, edge))
        num_in_two += sum(len(each) - len(np.unique(each)) for each in edge)
    assert num_edges > 2000 and num_in_two > 500, "edges are in the trees of several seeds"


def test_hubs_and_threads():
    """Rows far longer than a block of look-ups, in many trees."""
    rng = np.random.default_rng(2)
    world = random_world(24, largest=300, edges=8_000)
    seeds = [
        (t, np.concatenate([np.zeros(6, np.int64), rng.integers(0, n, 30)])) for t, n in enumerate(world.num_nodes)
    ]
    batch, results = world.batch(), []
    for num_threads in (1, 3):
        batch.start(seeds, disjoint=True)
        batch.sample(world.csrs, [[3]] * len(world.edges), replace=False, batch_key=1)
        types = range(len(world.num_nodes))
        nodes, trees = [batch.nodes(t) for t in types], [batch.trees(t) for t in types]
        batch.induce(world.csrs, num_threads)
        results.append(result(batch, world, disjoint=True))
    assert max(np.bincount(e.center).max() for e in world.edges if len(e.center)) > 500
    for got in results:
        assert_same(got[2:5], brute_force(world, nodes, trees))


def test_two_trees_by_hand():
    """Node v has edges to v + 1 and v + 2; trees 0 and 2 have 3 and 4, tree 1 has 6 and finds 4 and 5."""
    csr = Topology(ring_graph(10, 2).edge_index, 10, layout="CSC").csr
    batch = _core.Batch([10], [(0, 0)])
    batch.start([(0, np.array([4, 6, 4]))], disjoint=True)
    batch.sample([csr], [[-1]], replace=False, batch_key=0)
    assert batch.nodes(0).tolist() == [4, 6, 4, 2, 3, 4, 5, 2, 3]
    assert batch.trees(0).tolist() == [0, 1, 2, 0, 0, 1, 1, 2, 2]
    batch.induce([csr])
    row, col, edge = np.zeros((3, batch.num_edges(0)), np.int64)
    batch.copy_edges(0, row, col, edge)
    found = sorted(zip(row.tolist(), col.tolist(), edge.tolist(), strict=True))
    assert found == [(3, 0, 5), (3, 4, 4), (4, 0, 6), (5, 1, 9), (5, 6, 8), (6, 1, 10), (7, 2, 5), (7, 8, 4), (8, 2, 6)]


def test_a_node_is_among_the_members_of_its_own_tree_only():
    edges = ReferenceEdges(0, 0, center=np.array([1, 1, 1, 2]), neighbor=np.array([0, 0, 1, 1]))
    csr = csr_of(edges, 3, 3)
    nodes, members = np.array([1, 1, 2, 1]), np.array([0, 1, 1])
    tree, member_tree = np.array([0, 1, 1, 7], np.uint32), np.array([0, 0, 1], np.uint32)
    for num_threads in (1, 3):
        rows = _core.InducedRows(csr, nodes, members, True, num_threads, tree, member_tree)
        count, neighbor, edge = np.zeros(4, np.uint32), *np.zeros((2, rows.num_edges), np.int64)
        rows.copy_out(count, neighbor, edge)
        assert count.tolist() == [3, 1, 1, 0]
        assert neighbor.tolist() == [0, 0, 1, 1, 1] and edge.tolist() == [0, 1, 2, 2, 3]
    for given, words in (
        ({"tree": tree}, "tree and member_tree: expected both or neither"),
        ({"member_tree": member_tree}, "tree and member_tree: expected both or neither"),
        ({"tree": tree[:3], "member_tree": member_tree}, "tree has 3 elements"),
        ({"tree": tree, "member_tree": tree}, "member_tree has 4 elements"),
    ):
        with pytest.raises(ValueError, match=words):
            _core.InducedRows(csr, nodes, members, **given)


def test_edges_to_nodes_of_another_tree_are_refused():
    """A part that answers without trees would add edges between trees: 4 -> 5, each in its own."""
    batch = _core.Batch([10], [(0, 0)])
    batch.start([(0, np.array([5, 4]))], disjoint=True)
    batch.begin_induce()
    u32 = np.arange(2, dtype=np.uint32)
    with pytest.raises(ValueError, match="edge type 0: neighbour 4 is not in the batch"):
        batch.induce_from(0, [(u32, np.array([1, 0], np.uint32), np.array([4]), np.array([8]))])
