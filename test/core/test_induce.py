"""Induced batches: every edge among the sampled nodes, however it is found."""

import numpy as np
import pytest
from typed_world import DENSE, HASHED, assert_same, random_world, result

from glt import _core
from glt.data import Topology
from glt.testing import ring_graph


def brute_force(world, nodes):
    """row, col, edge per edge type: by center, then in graph order; a neighbour is the first of equal nodes."""
    out = [[], [], []]
    for e in world.edges:
        first = {}
        for i, node in enumerate(nodes[e.found].tolist()):
            first.setdefault(node, i)
        edges = [
            (first[int(e.neighbor[at])], i, at)
            for i, node in enumerate(nodes[e.expanded].tolist())
            for at in np.flatnonzero(e.center == node).tolist()
            if int(e.neighbor[at]) in first
        ]
        for to, values in zip(out, np.array(edges, np.int64).reshape(-1, 3).T, strict=True):
            to.append(values)
    return out


def induce_from_parts(batch, world, with_edge, rng, num_parts=3):
    batch.begin_induce()
    for r, e in enumerate(world.edges):
        if world.csrs[r] is None:
            continue
        nodes, members = batch.nodes(e.expanded), rng.permutation(batch.nodes(e.found))
        owner, parts = rng.integers(0, num_parts, len(nodes)), []
        for part in rng.permutation(num_parts):
            where = rng.permutation(np.flatnonzero(owner == part))
            rows = _core.InducedRows(world.csrs[r], nodes[where], members, with_edge, int(rng.integers(1, 3)))
            count = np.zeros(len(where), np.uint32)
            neighbor, edge = np.zeros(rows.num_edges, np.int32), np.zeros(rows.num_edges, np.int64)
            rows.copy_out(count, neighbor, edge if with_edge else None)
            parts.append((where.astype(np.uint32), count, neighbor, edge if with_edge else None))
        batch.induce_from(r, parts)


@pytest.mark.parametrize("with_edge", [True, False])
@pytest.mark.parametrize("layout", ["CSC", "CSR"])
def test_all_edges_among_the_nodes_and_no_others(layout, with_edge):
    for seed in range(60):
        rng, world = np.random.default_rng(seed), random_world(seed, layout=layout)
        seeds = world.seeds(rng)
        for limit in (DENSE, HASHED):
            batch = world.batch(limit)
            for whole in (True, False):
                batch.start(seeds, with_edge)
                batch.sample(world.csrs, [[2, 1]] * len(world.edges), replace=False, batch_key=seed)
                nodes = [batch.nodes(t) for t in range(len(world.num_nodes))]
                counts = [batch.num_sampled_nodes(t) for t in range(len(nodes))]
                if whole:
                    batch.induce(world.csrs)
                else:
                    induce_from_parts(batch, world, with_edge, rng)
                row, col, edge = brute_force(world, nodes)
                no_counts = [[]] * len(world.edges)
                expected = [nodes, None, row, col, edge if with_edge else None, counts, no_counts]
                assert_same(result(batch, world, with_edge), expected)


@pytest.mark.parametrize("limit", [DENSE, HASHED])
def test_hubs_and_threads(limit):
    """Rows far longer than a block of look-ups, most of whose neighbours are not in the batch."""
    rng = np.random.default_rng(2)
    world = random_world(24, largest=3000, edges=40_000)
    seeds = [(t, rng.integers(0, n, 300)) for t, n in enumerate(world.num_nodes)]
    batch, results = world.batch(limit), []
    for num_threads in (1, 2, 4):
        batch.start(seeds)
        batch.sample(world.csrs, [[3]] * len(world.edges), replace=False, batch_key=1)
        nodes = [batch.nodes(t) for t in range(len(world.num_nodes))]
        batch.induce(world.csrs, num_threads)
        results.append(result(batch, world))
    row, col, edge = brute_force(world, nodes)
    assert max(np.bincount(e.center).max() for e in world.edges if len(e.center)) > 2000
    for got in results:
        assert_same(got[2:5], [row, col, edge])


def test_looking_up_adds_nothing_and_the_next_batch_is_sound():
    world = random_world(3)
    batch, rng = world.batch(), np.random.default_rng(0)
    for index in range(60):
        seeds, outputs = world.seeds(rng), []
        for one in (batch, world.batch()):
            one.start(seeds)
            one.sample(world.csrs, [[2, 2]] * len(world.edges), replace=False, batch_key=index)
            outputs.append(result(one, world))
        assert_same(*outputs)
        batch.induce(world.csrs)


def test_a_ring_by_hand():
    """Node v has edges to v + 1 and v + 2; of 3, 4, 6 and 3 again, those among them are 3 -> 4 and 4 -> 6."""
    csr = Topology(ring_graph(10, 2).edge_index, 10, layout="CSC").csr
    batch = _core.Batch([10], [(0, 0)])
    batch.start([(0, np.array([3, 4, 6, 3]))])
    batch.induce([csr])
    row, col, edge = np.zeros((3, batch.num_edges(0)), np.int64)
    batch.copy_edges(0, row, col, edge)
    assert (row.tolist(), col.tolist(), edge.tolist()) == ([0, 1], [1, 2], [6, 9])
    batch.start([(0, np.array([4, 3, 4]))])
    batch.induce([csr])
    row, col, edge = np.zeros((3, batch.num_edges(0)), np.int64)
    batch.copy_edges(0, row, col, edge)
    assert (row.tolist(), col.tolist(), edge.tolist()) == ([1, 1], [0, 2], [6, 6]), "every row of a seed is a centre"


def test_what_cannot_be_is_refused():
    csr = Topology(ring_graph(10, 2).edge_index, 10, layout="CSC").csr
    batch, seeds = _core.Batch([10], [(0, 0)]), [(0, np.array([3, 4]))]
    batch.start(seeds)
    batch.sample([csr], [[1]], replace=False, batch_key=0)
    with pytest.raises(ValueError, match="call start before it"):
        batch.sample([csr], [[1]], replace=False, batch_key=0)
    with pytest.raises(ValueError, match="call begin_induce first"):
        batch.induce_from(0, [])
    batch.start(seeds)
    batch.begin_induce()
    for call in (batch.end_hop, lambda: batch.expand_from(0, [])):
        with pytest.raises(ValueError, match="the batch is induced and takes no further hop"):
            call()
    u32 = np.arange(2, dtype=np.uint32)
    for position, count, neighbor, message in [
        (u32[:1], u32[:1], [], "no part answers for row 1 of the batch"),
        (u32, u32, [7], "edge type 0: neighbour 7 is not in the batch"),
    ]:
        part = (position, count, *[np.array(neighbor, np.int64)] * 2)
        with pytest.raises(ValueError, match=message):
            batch.induce_from(0, [part])
    batch.induce_from(0, [(u32, u32, *[np.array([3])] * 2)])
    with pytest.raises(ValueError, match="edge type 0 was induced before"):
        batch.induce_from(0, [(u32, u32, *[np.array([3])] * 2)])
    for nodes, members, message in [
        ([1, 10], [0], r"nodes\[1\] = 10 is outside \[0, 10\)"),
        ([1], [0, -1], r"members\[1\] = -1 is outside \[0, 10\)"),
    ]:
        with pytest.raises(IndexError, match=message):
            _core.InducedRows(csr, np.array(nodes), np.array(members))


def test_damaged_neighbours_are_found_before_they_index_anything():
    indices = np.zeros(4, np.int64)
    csr = _core.Csr(np.array([0, 4]), indices, check_indices=False)
    indices[2] = 10**12
    batch = _core.Batch([1], [(0, 0)])
    batch.start([(0, np.array([0]))])
    with pytest.raises(IndexError, match="neighbour id 1000000000000 is outside"):
        batch.induce([csr])


@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("order", ["ascending", "shuffled", "one ascends"])
def test_few_members_in_long_rows(order, id_dtype):
    """Rows of thousands, with parallel edges, are looked through where they are shuffled; where they ascend, members
    are looked up."""
    rng = np.random.default_rng(5)
    num_nodes, degrees = 5000, np.array([4000, 3, 0, 2500])
    rows = [rng.integers(0, num_nodes, each) for each in degrees]
    ascends = {"ascending": range(4), "shuffled": (), "one ascends": (3,)}[order]
    rows = [np.sort(each) if node in ascends else each for node, each in enumerate(rows)]
    indptr = np.zeros(num_nodes + 1, np.int64)
    indptr[1:] = np.pad(degrees, (0, num_nodes - 4)).cumsum()
    edge_ids = rng.permutation(indptr[-1]).astype(id_dtype)
    csr = _core.Csr(indptr, np.concatenate(rows).astype(id_dtype), edge_ids)
    members = np.concatenate([[0, 3], rows[0][[0, 1, 2, -1]], rng.integers(4, num_nodes, 30), [num_nodes - 1, 3]])
    batch = _core.Batch([num_nodes], [(0, 0)])
    for disjoint in (False, True):
        batch.start([(0, members)], disjoint=disjoint)
        batch.induce([csr])
        row, col, edge = np.zeros((3, batch.num_edges(0)), np.int64)
        batch.copy_edges(0, row, col, edge)
        first = {int(node): i for i, node in reversed(list(enumerate(members.tolist())))}
        wanted = [
            ((i if disjoint else first[int(other)]), i, int(edge_ids[indptr[node] + at]))
            for i, node in enumerate(members.tolist())
            for at, other in enumerate(rows[node] if node < 4 else [])
            if (other == node if disjoint else int(other) in first)
        ]
        assert list(zip(row.tolist(), col.tolist(), edge.tolist(), strict=True)) == wanted and (
            disjoint or len(wanted) > 10
        )


def test_long_rows_that_leave_the_graph_are_damaged():
    for row in ([0] * 40 + [7], [-1] + [0] * 40):
        csr = _core.Csr(np.array([0, 41, 41, 41, 41, 41]), np.array(row), check_indices=False)
        batch = _core.Batch([5], [(0, 0)])
        batch.start([(0, np.array([0]))])
        with pytest.raises(IndexError, match="the graph's columns are damaged"):
            batch.induce([csr])
        with pytest.raises(IndexError, match="the graph's columns are damaged"):
            _core.InducedRows(csr, np.array([0]), np.array([1]))


@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
def test_rows_that_leave_the_graph_anywhere_are_damaged(id_dtype):
    """Neighbours are looked at eight at a time, and the last ones one by one."""
    for bad in (-1, 5, np.iinfo(id_dtype).max, np.iinfo(id_dtype).min):
        for at in range(20):
            row = np.arange(20, dtype=id_dtype)[::-1] % 5
            csr = _core.Csr(np.array([0, 20, 20, 20, 20, 20]), row, check_indices=False)
            batch = _core.Batch([5], [(0, 0)])
            batch.start([(0, np.array([0, 3]))])
            batch.induce([csr])
            assert batch.num_edges(0) == 8
            row[at] = bad
            batch.start([(0, np.array([0, 3]))])
            with pytest.raises(IndexError, match="the graph's columns are damaged"):
                batch.induce([csr])


def test_ids_that_differ_above_their_low_halves_are_told_apart():
    """All of them have one hash, so that they stand in one chain."""
    apart = 2**32
    row = np.concatenate([k * apart + np.arange(3) for k in range(40)])
    csr = _core.Csr(np.array([0, len(row)]), row, None, num_neighbor_nodes=41 * apart)
    for first in range(3):
        members = np.concatenate([row[first::7][::-1], row[first::7][:3], [40 * apart + 2]])  # the last is in no row
        rows = _core.InducedRows(csr, np.array([0]), members)
        count = np.zeros(1, np.uint32)
        neighbor, edge = np.zeros((2, rows.num_edges), np.int64)
        rows.copy_out(count, neighbor, edge)
        np.testing.assert_array_equal(edge, np.arange(first, len(row), 7))
        np.testing.assert_array_equal(neighbor, row[first::7])
