"""Edges that may not be taken: those later than the seed, and those that are excluded."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_world import exclusions, one_hop, star, table
from scipy import stats

from glt import _core

ALARM = 1e-6
MIN, MAX = -(2**63), 2**63 - 1


def at(seed_time, *times, k=-1, **options):
    csr = star(3, len(times), time=np.array([7, 8, 9, *times]))
    return (one_hop(csr, [1], k, seed_time=np.array([seed_time]), **options)[0] - 3).tolist()


def test_only_edges_up_to_the_seed_time_are_taken():
    assert at(4, 5, 6, 7) == []
    assert at(4) == []
    assert at(5, 5, 5, 5) == [0, 1, 2]
    assert at(5, 4, 5, 5, 6) == [0, 1, 2]
    assert at(MAX, MIN, 0, MAX) == [0, 1, 2]
    assert at(MIN, MIN, MIN, 0) == [0, 1]
    for length in range(20):
        for bound in range(-1, length + 1):
            assert at(bound, *range(length)) == list(range(min(length, bound + 1)))


def test_last_takes_the_latest():
    assert at(5, 1, 2, 3, 4, 5, 6, k=2, last=True) == [3, 4]
    assert at(5, 5, 5, 5, k=2, last=True) == [1, 2]
    assert at(5, 1, 2, k=9, last=True) == [0, 1]
    assert at(5, 1, 2, k=0, last=True) == []
    assert at(5, 1, 2, 3, k=-1, last=True) == [0, 1, 2]
    assert at(0, 1, 2, 3, k=2, last=True) == []
    drawn = at(5, *[0] * 90, *range(6), 6, k=5, last=True, replace=True)
    assert len(drawn) == 5
    assert set(drawn) <= set(range(91, 96))


def test_edges_without_times_are_always_there():
    csr = star(4)
    assert len(one_hop(csr, [0], -1, seed_time=np.array([MIN]))[0]) == 4
    plain = one_hop(csr, [0], 2, key=3)[0]
    assert np.array_equal(one_hop(csr, [0], 2, key=3, seed_time=np.array([0]), last=True)[0], plain)


def test_without_seed_times_a_graph_with_times_is_sampled_as_any_other():
    timed, plain = star(30, time=np.arange(30)), star(30)
    assert np.array_equal(one_hop(timed, [0], 4, key=3)[0], one_hop(plain, [0], 4, key=3)[0])
    assert one_hop(timed, [0], 4, key=3, last=True)[0].tolist() == [26, 27, 28, 29]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3)), max_size=80))
def test_rows_are_sorted_by_time_and_keep_their_order(edges):
    rows, time = np.array(edges, np.int64).reshape(-1, 2).T
    time = time[np.argsort(rows, kind="stable")].copy()
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=6))])
    order = np.full(len(time), -7, np.int64)
    _core.sort_rows_by_time(indptr, time, order)
    assert np.array_equal(order, np.lexsort((time, np.sort(rows))))


def test_sort_rows_by_time_checks_its_arrays():
    with pytest.raises(ValueError, match="order has 2 elements: expected 3"):
        _core.sort_rows_by_time(np.array([0, 3]), np.zeros(3, np.int64), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=r"indptr\[1\] = 3: expected the number of edges, 4"):
        _core.sort_rows_by_time(np.array([0, 3]), np.zeros(4, np.int64), np.zeros(4, np.int64))


def test_all_parallel_edges_of_a_pair_are_excluded_and_only_those():
    indptr, indices = np.array([0, 6, 8, 8]), np.array([1, 2, 1, 0, 1, 2, 1, 0])
    csr = _core.Csr(indptr, indices)
    rows = one_hop(csr, [0, 1, 2], -1, exclusions=exclusions({(0, 1), (2, 0), (1, 2)}))
    assert [r.tolist() for r in rows] == [[1, 3, 5], [6, 7], []]
    rows = one_hop(csr, [0, 1, 0], 2, exclusions=exclusions({(0, 0), (0, 1), (0, 2), (1, 0)}))
    assert [r.tolist() for r in rows] == [[], [6], []]
    rows = one_hop(csr, [0, 1], 2, True, exclusions=exclusions({(0, 0), (0, 1), (0, 2), (1, 0)}))
    assert [r.tolist() for r in rows] == [[], [6, 6]]
    assert len(one_hop(csr, [0], -1, exclusions=exclusions(set()))[0]) == 6


def test_exclusions_check_their_arrays():
    with pytest.raises(ValueError, match="neighbor has 1 elements: expected 2"):
        _core.Exclusions(np.zeros(2, np.int64), np.zeros(1, np.int64))
    with pytest.raises(TypeError, match="center: expected a 1-d array of int64, got int32"):
        _core.Exclusions(np.zeros(1, np.int32), np.zeros(1, np.int64))


def test_every_subset_of_what_is_left_is_equally_likely():
    degree, k, gone = 8, 3, [0, 4, 5]
    n = 3000
    indptr = np.arange(n + 1) * degree
    csr = _core.Csr(indptr, np.tile(np.arange(degree), n))
    excluded = _core.Exclusions(np.repeat(np.arange(n), 3), np.tile(gone, n))
    rows = table(csr, range(n), k, key=21, exclusions=excluded)
    subsets = {s: i for i, s in enumerate(itertools.combinations([1, 2, 3, 6, 7], k))}
    counts = np.bincount([subsets[tuple(r)] for r in np.sort(rows, axis=1).tolist()], minlength=len(subsets))
    assert stats.chisquare(counts).pvalue > ALARM


def test_thousands_of_excluded_edges_of_a_hub():
    """Half of the neighbours of a hub, too many to compare one by one."""
    degree = 20_000
    csr = _core.Csr(np.array([0, degree]), np.arange(degree), num_neighbor_nodes=degree)
    odd = np.arange(1, degree, 2)
    excluded = _core.Exclusions(np.zeros(len(odd), np.int64), odd)
    edges = np.concatenate(
        [one_hop(csr, [0], 100, key=_core.batch_key(5, 0, b), exclusions=excluded)[0] for b in range(300)]
    )
    assert (edges % 2 == 0).all()
    assert stats.chisquare(np.bincount(edges // 400, minlength=50)).pvalue > ALARM


def test_trees_draw_independently_and_as_their_number_says():
    degree, n, k = 20, 5000, 3
    csr = star(*[degree] * n)
    first, again, other = (
        table(csr, range(n), k, key=1, tree=np.full(n, tree, np.uint32)) for tree in (0, 0, 2**32 - 1)
    )
    assert np.array_equal(first, again)
    plain = table(csr, range(n), k, key=1)
    for a, b in itertools.combinations([first, other, plain], 2):
        assert stats.binomtest(int((a[:, 0] == b[:, 0]).sum()), n, 1 / degree).pvalue > ALARM
