"""Compressed rows: built like a stable sort by row, checked before anything reads them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glt import _core


def build(rows, cols, num_nodes, *, dtype=np.int64, ids_in=None, row_of=None, num_rows=None, id_dtype=np.int64):
    rows, cols = (np.ascontiguousarray(ends, dtype) for ends in (rows, cols))
    num_rows = num_nodes if num_rows is None else num_rows
    indptr, indices = np.full(num_rows + 1, -7, np.int64), np.full(len(rows), -7, np.int32)
    ids = np.full(len(rows), -7, id_dtype)
    largest = len(rows) if ids_in is None else int(np.max(ids_in, initial=0))
    _core.build_csr(
        rows, cols, num_nodes, num_nodes, indptr, indices, ids, edge_ids_in=ids_in, row_of=row_of,
        largest_edge_id=largest,
    )  # fmt: skip
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


@settings(max_examples=50, deadline=None)
@given(edge_lists(), st.randoms(use_true_random=False))
def test_given_edge_ids_follow_their_edges(graph, random):
    num_nodes, (rows, cols) = graph
    given_ids = np.array(random.sample(range(10**12, 10**12 + 1000), len(rows)), np.int64)
    _, _, ids = build(rows, cols, num_nodes, ids_in=given_ids)
    assert np.array_equal(ids, given_ids[np.argsort(rows, kind="stable")])


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


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
def test_graphs_without_edges(num_nodes):
    indptr, indices, _ = build([], [], num_nodes)
    assert indptr.tolist() == [0] * (num_nodes + 1)
    csr = _core.Csr(indptr, indices)
    assert csr.num_nodes == num_nodes


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


def test_damaged_columns_are_refused():
    with pytest.raises(IndexError, match=r"indices\[1\] = 2 is outside \[0, 2\)"):
        _core.Csr(np.array([0, 1, 2]), np.array([0, 2]))


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
