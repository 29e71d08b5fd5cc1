"""Edges by row: built, owned, in parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_world import DENSE, HASHED, assert_same, csr_of, native_exclusions, random_world, result

from glt import _core


def build(rows, cols, num_nodes, *, dtype=np.int64, row_of=None, num_rows=None, id_dtype=np.int64):
    rows, cols = (np.ascontiguousarray(ends, dtype) for ends in (rows, cols))
    num_rows = num_nodes if num_rows is None else num_rows
    indptr, indices = np.full(num_rows + 1, -7, np.int64), np.full(len(rows), -7, np.int32)
    ids = np.full(len(rows), -7, id_dtype)
    options = {"row_of": row_of, "largest_edge_id": len(rows)}
    _core.build_csr(rows, cols, num_nodes, num_nodes, indptr, indices, ids, **options)
    return indptr, indices, ids


@st.composite
def edge_lists(draw):
    num_nodes = draw(st.integers(1, 12))
    edges = draw(st.lists(st.tuples(*[st.integers(0, num_nodes - 1)] * 2), max_size=60))
    return num_nodes, np.array(edges, np.int64).reshape(-1, 2).T


@settings(max_examples=150, deadline=None)
@given(edge_lists(), st.sampled_from([np.int32, np.int64]), st.sampled_from([np.int32, np.int64]))
def test_rows_are_a_stable_sort_of_the_edges(graph, dtype, id_dtype):
    num_nodes, (rows, cols) = graph
    indptr, indices, ids = build(rows, cols, num_nodes, dtype=dtype, id_dtype=id_dtype)
    order = np.argsort(rows, kind="stable")
    assert np.array_equal(ids, order)
    assert np.array_equal(indices, cols[order])
    assert np.array_equal(indptr, np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_nodes))]))
    csr = _core.Csr(indptr, indices, ids)
    assert (csr.num_rows, csr.num_nodes, csr.num_edges) == (num_nodes, num_nodes, len(rows))


def test_a_partition_has_rows_for_its_nodes_only():
    owned = np.array([1, 4, 5])
    row_of = np.full(6, 2**32 - 1, np.uint32)
    row_of[owned] = np.arange(3)
    indptr, indices, ids = build([5, 1, 5, 1], [0, 2, 3, 4], 6, row_of=row_of, num_rows=3)
    assert indptr.tolist() == [0, 2, 2, 4]
    assert indices.tolist() == [2, 4, 0, 3]
    assert ids.tolist() == [1, 3, 0, 2]
    with pytest.raises(IndexError, match=r"rows\[1\] = 0 has row 4294967295, but there are 3"):
        build([5, 0], [0, 0], 6, row_of=row_of, num_rows=3)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("where", [0, 4095, 4096, 9999])
def test_the_first_bad_id_is_named(dtype, bad, where):
    good, ends = np.zeros(10_000, np.int64), np.zeros(10_000, np.int64)
    ends[where] = bad
    ends[where + 1 :] = -1  # later ones are not the first
    with pytest.raises(IndexError, match=rf"rows\[{where}\] = {bad} is outside \[0, 5\)"):
        build(ends, good, 5, dtype=dtype)
    with pytest.raises(IndexError, match=rf"cols\[{where}\] = {bad} is outside \[0, 5\)"):
        build(good, ends, 5, dtype=dtype)


def test_negative_int32_ids_are_found_whatever_the_number_of_nodes():
    """A graph of over 2^32 nodes may still have an int32 column: -1 must not pass for 4294967295."""
    indptr = np.array([0, 1])
    row_of = np.zeros(1, np.uint32)
    with pytest.raises(IndexError, match=r"indices\[0\] = -1"):
        _core.Csr(indptr, np.array([-1], np.int32), None, row_of, 1, 2**33)
    with pytest.raises(IndexError, match=r"cols\[0\] = -1"):
        _core.build_csr(
            np.array([0], np.int32), np.array([-1], np.int32), 1, 2**33, np.zeros(2, np.int64), np.zeros(1, np.int64)
        )


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([], [], "indptr is empty"),
        ([1, 1], [], r"indptr\[0\] = 1: expected 0"),
        ([0, 2, 1], [0], r"indptr\[2\] = 1 is below indptr\[1\] = 2"),
        ([0, 1], [0, 0], r"indptr\[1\] = 1: expected the number of edges, 2"),
        ([0, 3], [0], r"indptr\[1\] = 3: expected the number of edges, 1"),
        ([0, -1, 0], [], r"indptr\[1\] = -1 is below"),
    ],
)
def test_damaged_rows_are_refused(indptr, indices, message):
    with pytest.raises(ValueError, match=message):
        _core.Csr(np.array(indptr, np.int64), np.array(indices, np.int64))


def test_arrays_of_the_wrong_kind_are_named():
    indptr, indices = np.array([0, 1, 2]), np.array([0, 1])
    for bad, name in [
        ((indptr.astype(np.int32), indices), "indptr: expected a 1-d array of int64, got int32"),
        ((indptr, indices.astype(np.float64)), "indices: expected a 1-d array of int32 or int64, got float64"),
        ((indptr, indices.reshape(1, 2)), "indices: .*2 dimensions"),
        ((indptr, indices, indices.astype(np.uint8)), "edge_ids: expected .*uint8"),
    ]:
        with pytest.raises(TypeError, match=name):
            _core.Csr(*bad)
    for bad, name in [
        ((indptr, np.zeros(4, np.int64)[::2]), "indices: expected a contiguous array"),
        (
            (indptr, np.frombuffer(bytes(17), np.int64, 2, 1)),
            "indices: expected an array whose elements are aligned, of 8",
        ),
        ((indptr, indices, np.arange(3)), "edge_ids has 3 elements: expected 2"),
        ((indptr, indices, None, np.zeros(3, np.uint32), 2), "row_of has 3 elements: expected 2"),
        ((indptr, indices, None, None, 3), "num_nodes = 3 but indptr has 2 rows"),
    ]:
        with pytest.raises(ValueError, match=name):
            _core.Csr(*bad)


def test_outputs_that_cannot_hold_the_result_are_refused():
    rows = np.zeros(3, np.int64)
    good = (np.zeros(2, np.int64), np.zeros(3, np.int64))
    _core.build_csr(rows, rows, 1, 1, *good)
    frozen = np.zeros(3, np.int64)
    frozen.flags.writeable = False
    for indptr, indices, message in [
        (np.zeros(3, np.int64), good[1], "indptr has 2 rows: expected num_nodes = 1"),
        (np.zeros(0, np.int64), good[1], "indptr is empty"),
        (good[0], np.zeros(2, np.int64), "indices has 2 elements: expected 3"),
        (good[0], frozen, "indices: expected a writeable array"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.build_csr(rows, rows, 1, 1, indptr, indices)
    with pytest.raises(ValueError, match="indices is int32, but holds ids up to 4294967295"):
        _core.build_csr(rows, rows, 1, 2**32, good[0], np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="edge_ids is int32"):
        _core.build_csr(
            rows, rows, 1, 1, *good, np.zeros(3, np.int32), edge_ids_in=np.full(3, 2**40), largest_edge_id=2**40
        )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("num_parts", [1, 2, 7, 200])
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_groups_are_a_stable_sort_by_owner(dtype, num_parts, n):
    rng = np.random.default_rng(n + num_parts)
    book, ids = rng.integers(0, num_parts, 300).astype(dtype), rng.integers(0, 300, n)
    grouped, position, begin = _core.group_by_owner(_core.Book(book, num_parts), ids)
    order = np.argsort(book[ids], kind="stable")
    assert position.dtype == np.uint32 and np.array_equal(position, order)
    assert np.array_equal(grouped, ids[order])
    assert np.array_equal(begin, np.concatenate([[0], np.cumsum(np.bincount(book[ids], minlength=num_parts))]))


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7, 200, 2**16])
def test_ranges_group_as_the_array_of_their_owners(num_parts):
    rng = np.random.default_rng(num_parts)
    counts = rng.integers(0, 4, num_parts) * (rng.random(num_parts) < 0.6)  # many own nothing
    counts[rng.integers(num_parts)] += 1
    ranges = _core.Book.of_ranges(np.concatenate([[0], np.cumsum(counts)]))
    owner = np.repeat(np.arange(num_parts), counts).astype(np.uint32)
    array = _core.Book(owner, num_parts)
    assert (ranges.num_ids, ranges.num_parts) == (array.num_ids, array.num_parts) == (len(owner), num_parts)
    everything = np.arange(len(owner))
    np.testing.assert_array_equal(_core.find_owners(ranges, everything), owner)
    ids = rng.integers(0, len(owner), 500)
    for got, wanted in zip(_core.group_by_owner(ranges, ids), _core.group_by_owner(array, ids), strict=True):
        np.testing.assert_array_equal(got, wanted)
    for part in {0, num_parts - 1, *owner[ids[:5]].tolist()}:
        _core.require_owned(ranges, everything[owner == part], part)


@pytest.mark.parametrize(
    "book", [_core.Book(np.array([0, 0, 1, 2], np.uint16), 3), _core.Book.of_ranges(np.array([0, 2, 3, 4]))]
)
def test_the_first_id_that_a_book_lacks_or_that_is_anothers_is_named(book):
    def require_owned(book, ids):
        _core.require_owned(book, ids, 0)

    for ids in ([0, 1, 0], []):
        require_owned(book, np.array(ids, np.int64))
    for call, ids, message in [
        (_core.group_by_owner, [0, 4, -1], r"ids\[1\] = 4 is outside \[0, 4\)"),
        (_core.find_owners, [-1], r"ids\[0\] = -1 is outside"),
        (require_owned, [9], r"ids\[0\] = 9 is outside \[0, 4\)"),
        (require_owned, [0, 2, 3], r"ids\[1\] = 2 belongs to partition 1, not here \(partition 0\)"),
    ]:
        with pytest.raises(IndexError, match=message):
            call(book, np.array(ids))
    with pytest.raises(ValueError, match="part = 3: expected 0 to 2"):
        _core.require_owned(book, np.array([0]), 3)


def test_books_that_are_none_are_refused():
    owner = np.array([0, 1, 0, 2], np.uint8)
    with pytest.raises(IndexError, match="node 3 is owned by partition 2 of 2: the partition book is damaged"):
        _core.group_by_owner(_core.Book(owner, 2), np.array([0, 3]))
    with pytest.raises(TypeError, match="owner: expected a 1-d array of uint32, got int64"):
        _core.Book(owner.astype(np.int64), 3)
    with pytest.raises(ValueError, match="num_parts = 0: expected at least 1"):
        _core.Book(owner, 0)
    for offset, message in [
        ([0], "offset has 1 elements: expected one more than partitions, at least 2"),
        ([], "offset has 0 elements"),
        ([1, 2], r"offset\[0\] = 1: expected 0"),
        ([0, 3, 2], r"offset\[2\] = 2 is below offset\[1\] = 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.Book.of_ranges(np.array(offset, np.int64))


def test_rows_of_a_range_are_read_without_a_map():
    book = _core.Book.of_ranges(np.array([0, 2, 2, 5]))
    indptr, indices = np.array([0, 1, 1, 3]), np.array([4, 0, 1])
    csr = _core.Csr(indptr, indices, num_nodes=5, book=book, part=2)
    hop = _core.OneHop(csr, np.array([4, 2, 3]), -1, False, 1, 0, with_edge=False)
    count, neighbor = np.empty(3, np.uint32), np.empty(3, np.int64)
    hop.copy_out(count, neighbor)
    assert count.tolist() == [2, 1, 0] and neighbor.tolist() == [0, 1, 4]
    for nodes, message in [
        ([2, 1], r"nodes\[1\] = 1 belongs to partition 0, not here \(partition 2\)"),
        ([5], r"nodes\[0\] = 5 is outside \[0, 5\)"),
    ]:
        with pytest.raises(IndexError, match=message):
            _core.OneHop(csr, np.array(nodes), -1, False, 1, 0, with_edge=False)
    for options, message in [
        ({}, "partition 0 owns 2 nodes but indptr has 3 rows: expected one for each"),
        ({"part": 3}, "part = 3: expected 0 to 2"),
        ({"num_nodes": 6, "part": 2}, "book has 5 ids: expected 6"),
        ({"row_of": np.zeros(5, np.uint32), "part": 2}, "row_of: expected none beside a book of ranges"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.Csr(indptr, indices, **({"num_nodes": 5, "book": book} | options))


def test_rows_of_a_table_may_begin_at_any_id():
    table, out = np.arange(6).reshape(3, 2), np.empty((2, 2), np.int64)
    _core.gather_rows(table, np.array([9, 7]), out, first_id=7)
    assert out.tolist() == [[4, 5], [0, 1]]
    for bad in (6, 10, -1, 2**63 - 1, -(2**63)):
        with pytest.raises(IndexError, match=rf"ids\[0\] = {bad} is row .* of 3: no such row here"):
            _core.gather_rows(table, np.array([bad, 7]), out, first_id=7)
    with pytest.raises(ValueError, match="first_id = 7: expected none beside row_of"):
        _core.gather_rows(table, np.array([7, 7]), out, np.zeros(9, np.uint32), first_id=7)


def parts_of(edges, num_centers, num_neighbors, num_parts, rng, ranges):
    """The partitions of one edge type, each with the rows of the nodes that it owns; some own nothing."""
    if ranges:
        offset = np.concatenate([[0], np.sort(rng.integers(0, num_centers + 1, num_parts - 1)), [num_centers]])
        owner, book = np.repeat(np.arange(num_parts), np.diff(offset)), _core.Book.of_ranges(offset)
        row_of = np.arange(num_centers) - offset[owner]
    else:
        owner = rng.integers(0, num_parts, num_centers)
        book, row_of = _core.Book(owner.astype(np.uint8), num_parts), np.zeros(num_centers, np.int64)
        for p in range(num_parts):
            row_of[owner == p] = np.arange((owner == p).sum())
    parts = []
    for p in range(num_parts):
        mine, num_rows = np.flatnonzero(owner[edges.center] == p), int((owner == p).sum())
        maps = {} if ranges else {"row_of": row_of.astype(np.uint32)}
        rows = row_of[edges.center[mine]]
        parts.append(
            csr_of(edges, num_rows, num_neighbors, mine, rows, num_nodes=num_centers, book=book, part=p, **maps)
        )
    return parts


def parted(world, num_parts, rng, ranges):
    return [
        csr and parts_of(e, world.num_nodes[e.expanded], world.num_nodes[e.found], num_parts, rng, ranges)
        for e, csr in zip(world.edges, world.csrs, strict=True)
    ]


@pytest.mark.parametrize("ranges", [False, True])
@pytest.mark.parametrize("kind", ["plain", "timed", "weighted"])
@pytest.mark.parametrize("large", [False, True])
def test_batches_are_those_of_the_whole_graph(kind, ranges, large):
    size = {"largest": 400, "edges": 4000} if large else {}
    for seed in range(12 if large else 60):
        rng = np.random.default_rng(seed)
        timed, weighted = kind == "timed", kind == "weighted"
        world = random_world(seed, timed=timed, weighted=weighted, **size)
        graphs = parted(world, int(rng.choice([1, 2, 3, 5, 40])), rng, ranges)
        seeds = world.seeds(rng, most=120 if large else 8)
        with_edge, disjoint = bool(rng.integers(2)), timed or bool(rng.integers(2))
        num_trees = sum(len(nodes) for _, nodes in seeds)
        time = rng.integers(0, 20, num_trees) if timed else None
        replace = bool(rng.integers(2))
        hops = [[int(k) for k in rng.choice([0, 1, 2, 5, *([] if replace else [-1])], 2)] for _ in world.edges]
        options = {
            "replace": replace, "batch_key": seed, "last": timed and bool(rng.integers(2)),
            "exclusions": native_exclusions(world.exclusions(rng)) if rng.integers(2) else None,
        }  # fmt: skip
        for limit in (DENSE, HASHED):
            batch, got = world.batch(limit), []
            for csrs, num_threads in ((world.csrs, 1), (graphs, 1), (graphs, 3)):
                batch.start(seeds, with_edge, disjoint, time)
                batch.sample(csrs, hops, num_threads=num_threads, **options)
                got.append(result(batch, world, with_edge, disjoint))
            assert_same(got[1], got[0])
            assert_same(got[2], got[0])


@pytest.mark.parametrize("ranges", [False, True])
def test_induced_edges_are_those_of_the_whole_graph(ranges):
    for seed in range(40):
        rng, world = np.random.default_rng(seed), random_world(seed)
        graphs, seeds = parted(world, 3, rng, ranges), world.seeds(rng)
        batch, got = world.batch(), []
        for csrs, num_threads in ((world.csrs, 1), (graphs, 1), (graphs, 2)):
            batch.start(seeds)
            batch.sample(csrs, [[2, 1]] * len(world.edges), replace=False, batch_key=seed)
            batch.induce(csrs, num_threads)
            got.append(result(batch, world)[2:5])
        assert_same(got[1], got[0])
        assert_same(got[2], got[0])


def part_of(part, owner=(0, 1, 0, 1), num_neighbors=4, edge_ids=(0, 1), **columns):
    """One of two partitions of a graph of four nodes."""
    arrays = [np.array([0, 1, 2]), np.array([0, 1]), None if edge_ids is None else np.array(edge_ids)]
    sizes = {"num_nodes": 4, "num_neighbor_nodes": num_neighbors, "row_of": np.array([0, 0, 1, 1], np.uint32)}
    return _core.Csr(*arrays, **sizes, book=_core.Book(np.array(owner, np.uint8), 2), part=part, **columns)


OTHERWISE = "csr 1 of a graph has weights or times otherwise"


@pytest.mark.parametrize(
    ("csrs", "seed", "kind", "error"),
    [
        ([part_of(1), part_of(0)], 2, ValueError, r"csr 0 of 2 of a graph is that of partition 1 of 2"),
        ([part_of(0), part_of(1), part_of(0)], 2, ValueError, r"csr 0 of 3 of a graph is that of partition 0 of 2"),
        ([part_of(0), None], 2, ValueError, r"None is no partition of a graph"),
        ([part_of(0), part_of(1, num_neighbors=5)], 2, ValueError, r"csr 1 .* has 4 nodes with 5 possible neighbours"),
        ([], 2, ValueError, r"a graph of no partitions"),
        ([_core.Csr(np.array([0, 0]), np.zeros(0, np.int64))] * 2, 2, ValueError, r"partition 0 of 1: expected all"),
        ([part_of(0)], 1, IndexError, r"frontier\[0\] = 1 belongs to partition 1"),
        # Node 2 is the first partition's by its copy of the book, and the second's by the other.
        (
            [part_of(0), part_of(1, (0, 1, 1, 0))],
            3,
            IndexError,
            r"= 3 belongs to partition 0, not here",
        ),
        ([part_of(0), part_of(1, edge_ids=None)], 3, ValueError, "csr 1 .* no edge ids, but 0 as the first one: .* 2"),
        ([part_of(0), part_of(1, time=np.array([0, 1]))], 3, ValueError, OTHERWISE),
        ([part_of(0, (0, 7, 0, 1)), part_of(1, (0, 7, 0, 1))], 1, IndexError, "node 1 is owned by partition 7 of 2"),
    ],
    ids=["order", "too many", "none", "sizes", "empty", "whole", "alone", "books", "ids", "times", "damaged owner"],
)
def test_what_are_not_the_partitions_of_a_graph_is_refused(csrs, seed, kind, error):
    batch = _core.Batch([4], [(0, 0)])
    batch.start([(0, np.array([seed, 2]))])
    with pytest.raises(kind, match=error):
        batch.sample([csrs], [[2]], replace=False, batch_key=0)


@pytest.mark.parametrize("induced", [False, True])
def test_ids_that_count_up_are_computed(induced):
    """As of partitions whose edges were numbered one after the other, in the order of their rows."""
    first = [0, 2]
    stored = [part_of(p, edge_ids=(first[p], first[p] + 1)) for p in range(2)]
    counted = [part_of(p, edge_ids=None, first_edge_id=first[p]) for p in range(2)]
    batch, got = _core.Batch([4], [(0, 0)]), []
    for csrs in (stored, counted, [stored[0], counted[1]]):
        batch.start([(0, np.array([3, 0, 1]))])
        batch.sample([csrs], [[2]], replace=False, batch_key=0)
        if induced:
            batch.induce([csrs])
        got.append(batch.edges(0).tolist())
    assert got[0] == got[1] == got[2] == [3, 0, 2]
