"""Batches of the native core."""

import itertools
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glt import _core
from glt.data import Topology
from glt.testing import random_graph, reference_batch, reference_key, ring_graph

HASHED, DENSE = 0, 1 << 28


def batch_of(num_nodes, limit=DENSE):
    return _core.Batch([num_nodes], [(0, 0)], limit)


def run(batch, csr, seeds, num_neighbors, replace=False, key=0, with_edge=True, num_threads=1):
    batch.start([(0, np.asarray(seeds, np.int64))], with_edge)
    batch.sample([csr], [num_neighbors], replace=replace, batch_key=key, num_threads=num_threads)
    return result(batch, with_edge)


def result(batch, with_edge=True):
    node, row, col, edge = (np.full(n, -7, np.int64) for n in [batch.num_nodes(0), *[batch.num_edges(0)] * 3])
    batch.copy_nodes(0, node)
    batch.copy_edges(0, row, col, edge if with_edge else None)
    return node, row, col, edge if with_edge else None, batch.num_sampled_nodes(0), batch.num_sampled_edges(0)


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert np.array_equal(a, b), (got, expected)


def reference(graph, seeds, num_neighbors, replace=False, edge_dir="in", key=(0, 0, 0)):
    ref = reference_batch(graph.edge_index, graph.num_nodes, seeds, num_neighbors, replace, *key, edge_dir=edge_dir)
    return ref.node, ref.row, ref.col, ref.edge, ref.num_sampled_nodes, ref.num_sampled_edges


@settings(max_examples=120, deadline=None)
@given(
    st.tuples(st.integers(1, 60), st.integers(0, 400), st.integers(0, 99)),
    st.lists(st.integers(0, 10**6), max_size=12),
    st.lists(st.sampled_from([-1, 0, 1, 2, 5, 31, 32, 33, 40, 100]), min_size=1, max_size=4),
    st.booleans(),
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**40)),
    st.sampled_from(["CSC", "CSR"]),
)
def test_batches_equal_the_reference(shape, seeds, num_neighbors, replace, key, layout):
    graph = random_graph(*shape)
    seeds = [s % graph.num_nodes for s in seeds]
    if replace:
        num_neighbors = [abs(k) for k in num_neighbors]
    if np.prod([max(abs(k), 1) for k in num_neighbors]) > 2000:
        num_neighbors = num_neighbors[:2]
    expected = reference(graph, seeds, num_neighbors, replace, "in" if layout == "CSC" else "out", key)
    csr = Topology(graph.edge_index, graph.num_nodes, layout=layout).csr
    for limit in (DENSE, HASHED):
        batch = batch_of(graph.num_nodes, limit)
        assert_same(run(batch, csr, seeds, num_neighbors, replace, reference_key(*key)), expected)


def resident_bytes():
    """Of this process, without what the pool has, which is told and bounded elsewhere."""
    pool = _core.BlockPool.of_process().stats()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() - pool["free_bytes"] - pool["used_bytes"]


@pytest.mark.parametrize("disjoint", [False, True])
def test_the_room_of_a_hub_is_let_go_some_batches_later(disjoint):
    """What slots, scratch and the hash table of disjoint batches hold: 15 bytes and more for each edge of the hub."""
    num_edges = 6_000_000  # of arrays that malloc gives back to the kernel as soon as they are freed
    indptr = np.full(num_edges + 2, num_edges)
    indptr[0] = 0
    csr = _core.Csr(indptr, np.arange(1, num_edges + 1, dtype=np.int32))
    batch = batch_of(num_edges + 1)

    def sample(seed):
        batch.start([(0, np.array([seed]))], disjoint=disjoint)
        batch.sample([csr], [[-1]], replace=False, batch_key=0)
        return batch.num_edges(0)

    sample(1)
    before = resident_bytes()
    assert sample(0) == num_edges
    at_most = resident_bytes() - before
    for _ in range(16):
        sample(1)
    # A third, for other tests of this process leave the C library room that it may take or give back meanwhile.
    assert at_most > 12 * num_edges and resident_bytes() - before < at_most / 3


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("num_neighbors", [[15, 10], [50, 3], [64, 33], [0, 5], [5, 0, 5], [2, 2, 2, 2]], ids=str)
def test_threads_and_tables_do_not_change_a_batch(num_neighbors, replace):
    """Frontiers of many chunks, so that helpers take part."""
    graph = random_graph(6000, 48_000, seed=5)
    seeds = np.random.default_rng(1).integers(0, 6000, 2500)
    csr = Topology(graph.edge_index, graph.num_nodes, layout="CSC").csr
    key = (11, 3, 5)
    expected = reference(graph, seeds, num_neighbors, replace, key=key) if sum(num_neighbors) < 40 else None
    for limit, num_threads in itertools.product((DENSE, HASHED), (1, 2, 3, 8)):
        batch = batch_of(graph.num_nodes, limit)
        got = run(batch, csr, seeds, num_neighbors, replace, reference_key(*key), num_threads=num_threads)
        expected = expected or got
        assert_same(got, expected)


def test_all_neighbours_of_all_nodes():
    graph = random_graph(800, 6000, seed=2)
    csr = Topology(graph.edge_index, graph.num_nodes, layout="CSC").csr
    expected = reference(graph, range(800), [-1, -1])
    for num_threads in (1, 3):
        assert_same(run(batch_of(800), csr, range(800), [-1, -1], num_threads=num_threads), expected)
    assert expected[4:] == ([800, 0, 0], [6000, 0])


@pytest.mark.parametrize("limit", [DENSE, HASHED])
def test_duplicate_seeds_keep_their_rows_and_take_the_same_picks(limit):
    csr = Topology(ring_graph(10, 4).edge_index, 10, layout="CSC").csr
    node, row, col, edge, nodes, edges = run(batch_of(10, limit), csr, [7, 7, 3, 7], [2, 1], key=9)
    assert node[:4].tolist() == [7, 7, 3, 7]
    assert nodes[0] == 4 and edges[0] == 8
    picks = [edge[col == i].tolist() for i in (0, 1, 3)]
    assert picks[0] == picks[1] == picks[2]
    assert not np.isin(node[4:], [7, 3]).any()
    assert not np.isin(row, [1, 3]).any(), "a neighbour that is a seed means the seed's first row"


def test_a_fan_out_far_above_every_degree_costs_no_memory():
    """10^9 is how users say "all"; a table of picks of that size would be 16 GB."""
    csr = Topology(ring_graph(300, 3).edge_index, 300, layout="CSC").csr
    everything = run(batch_of(300), csr, range(300), [-1])
    assert_same(run(batch_of(300), csr, range(300), [10**9]), everything)
    assert_same(run(batch_of(300), csr, range(300), [2**31 - 1]), everything)


@pytest.mark.parametrize("num_threads", [1, 4])
@pytest.mark.parametrize("bad", [-1, 300, 2**40, -(2**63)])
def test_the_first_bad_seed_is_named_and_the_batch_object_survives(bad, num_threads):
    graph = ring_graph(300, 3)
    csr = Topology(graph.edge_index, 300, layout="CSC").csr
    batch, seeds = batch_of(300), np.arange(290)
    expected = run(batch, csr, seeds, [2, 2])
    broken = seeds.copy()
    broken[[257, 280]] = bad, -5
    with pytest.raises(IndexError, match=rf"seeds\[257\] = {bad} is outside \[0, 300\)"):
        run(batch, csr, broken, [2, 2], num_threads=num_threads)
    assert_same(run(batch, csr, seeds, [2, 2]), expected)


@pytest.mark.parametrize("num_threads", [1, 4])
def test_a_node_without_a_row_here_is_named(num_threads):
    row_of = np.arange(300, dtype=np.uint32)
    row_of[[270, 290]] = 2**32 - 1
    csr = _core.Csr(np.zeros(301, np.int64), np.zeros(0, np.int64), None, row_of, 300)
    with pytest.raises(IndexError, match=r"frontier\[270\] = 270 has no row in this partition"):
        run(batch_of(300), csr, range(300), [1], num_threads=num_threads)
    with pytest.raises(IndexError, match=r"nodes\[270\] = 270 has no row"):
        _core.OneHop(csr, np.arange(300), 1, False, 0, 0, num_threads=num_threads)


def test_bad_options_name_themselves():
    csr = Topology(ring_graph(10).edge_index, 10).csr
    for arguments, message in [
        (([1], [-2]), r"num_neighbors\[0\] = -2: expected -1 \(all\) or a count"),
        (([1], [1, 2**31]), r"num_neighbors\[1\] = 2147483648"),
        (([1], [1] * 257), "over 256 hops"),
        (([1], [2], False, 0, True, 0), "num_threads = 0: expected 1 to 1024"),
        (([1], [2], False, 0, True, 1025), "num_threads = 1025"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(batch_of(10), csr, *arguments)
    with pytest.raises(ValueError, match=r"the graph of edge type 0 has 10 nodes .* the batch was made for 9"):
        run(batch_of(9), csr, [1], [2])
    with pytest.raises(TypeError, match="seeds: expected a 1-d array of int64, got int32"):
        batch_of(10).start([(0, np.arange(3, dtype=np.int32))])


def test_neighbours_that_are_damaged_are_found_before_they_index_anything():
    indices = np.zeros(4, np.int64)
    csr = _core.Csr(np.array([0, 4]), indices, check_indices=False)
    indices[2] = 10**12
    with pytest.raises(IndexError, match="neighbour id 1000000000000 is outside"):
        run(batch_of(1), csr, [0], [-1])


def test_copies_refuse_arrays_of_another_size():
    batch = batch_of(10)
    run(batch, Topology(ring_graph(10).edge_index, 10).csr, np.arange(3), [2])
    with pytest.raises(ValueError, match=r"^node has"):
        batch.copy_nodes(0, np.zeros(batch.num_nodes(0) + 1, np.int64))
    for i, name in enumerate(["row", "col", "edge"]):
        arrays = [np.zeros(batch.num_edges(0) + (i == j), np.int64) for j in range(3)]
        with pytest.raises(ValueError, match=f"^{name} has"):
            batch.copy_edges(0, *arrays)
    batch.start([(0, np.arange(3))], with_edge=False)
    with pytest.raises(ValueError, match="edge was asked for, but the batch was started without edge ids"):
        batch.copy_edges(0, *np.zeros((3, 0), np.int64))


def test_parts_that_do_not_cover_the_frontier_once_are_refused():
    def part(positions, counts, neighbors):
        u32 = (np.array(a, np.uint32) for a in (positions, counts))
        return (*u32, np.array(neighbors, np.int64), np.array(neighbors, np.int64))

    for parts, message in [
        ([part([0, 1], [1, 0], [3])], "no part answers for row 2"),
        ([part([0, 1, 2], [0] * 3, []), part([1], [0], [])], "part 1 answers for row 1"),
        ([part([0, 1, 3], [0] * 3, [])], "part 0 answers for row 3 of the frontier, which has 3 rows"),
        ([part([0, 1, 2], [1, 1, 1], [1, 2])], "part 0 has 2 edges, its counts add up to 3"),
        ([part([0, 1, 2], [2**32 - 1, 1, 1], [1, 2])], "its counts add up to 4294967297"),
        ([part([0, 1, 2], [1], [1])], "count has 1 elements: expected 3"),
    ]:
        batch = batch_of(10)
        batch.start([(0, np.array([4, 5, 6]))])
        with pytest.raises(ValueError, match=message):
            batch.expand_from(0, parts)
    batch = batch_of(10)
    batch.start([(0, np.array([4]))])
    with pytest.raises(IndexError, match="neighbour id 10 is outside"):
        batch.expand_from(0, [part([0], [1], [10])])


ROOT = Path(__file__).resolve().parents[2]


def test_stamps_that_run_out_clear_the_table(tmp_path, cxx):
    program = tmp_path / "relabel_overflow"
    source = Path(__file__).with_name("relabel_overflow.cc")
    subprocess.run(
        [*cxx, "-std=c++20", "-O1", f"-I{ROOT / 'csrc'}", str(source), "-o", str(program)], check=True, timeout=120
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ids_far_above_the_dense_limit():
    """A few rows of a graph of 2^33 nodes, as a partition of it has: hashed, since a dense table would take 32 GB."""
    batch = _core.Batch([2**33], [(0, 0)])
    seeds = np.array([2**33 - 1, 5, 2**32, 5])
    batch.start([(0, seeds)])
    neighbors = np.array([2**33 - 2, 5, 2**32, 2**33 - 2])
    parts = (np.arange(4, dtype=np.uint32), np.ones(4, np.uint32), neighbors, np.arange(4))
    batch.expand_from(0, [parts])
    batch.end_hop()
    node, row, col, edge = (np.zeros(n, np.int64) for n in (5, 4, 4, 4))
    batch.copy_nodes(0, node)
    batch.copy_edges(0, row, col, edge)
    assert node.tolist() == [*seeds.tolist(), 2**33 - 2]
    assert row.tolist() == [4, 1, 2, 4]
    assert batch.frontier(0).tolist() == [2**33 - 2]
