"""Weights as the core keeps them: what is refused, by position, and what a graph with weights or times must be."""

import numpy as np
import pytest
from row_world import one_hop, star, weighted_star, weights_of

from glt import _core

INDPTR = np.array([0, 2, 2, 5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [-1.0, -0.5, np.nan, np.inf, -np.inf])
def test_the_first_bad_weight_is_named(dtype, bad):
    weight = np.array([1, 2, 0, bad, -7], dtype)
    with pytest.raises(ValueError, match=rf"weight\[3\] = {bad:g}: expected a finite weight of at least 0"):
        weights_of(INDPTR, weight)
    with pytest.raises(ValueError, match=r"edge_attr\[3\]"):
        sums, guide = np.zeros(5, np.uint64), np.zeros(_core.weight_guide_size(3, 5), np.uint32)
        _core.build_weights(INDPTR, weight, sums, guide, "edge_attr")


def test_weights_keep_their_proportions():
    """Integers and binary fractions exactly, if the row is not too long; the sum stays below 2^62."""
    weight = np.array([3, 0, 1.5, 1e6, 0.25])
    sums = weights_of([0, 5], weight)["weight_sum"]
    parts = np.diff(np.concatenate([[np.uint64(0)], sums]))
    assert (parts * np.uint64(4) == (weight * 4).astype(np.uint64) * (parts[4] * np.uint64(4))).all()
    for weight in ([1e308] * 9, [5e-324] * 9, [1e308, 5e-324], [0.0] * 3, []):
        sums = weights_of([0, len(weight)], np.array(weight, float))["weight_sum"]
        parts = np.diff(np.concatenate([[np.uint64(0)], sums]))
        assert ((parts > 0) == (np.array(weight) > 0)).all()
        assert sums.max(initial=0) < 2**62


def test_arrays_of_the_wrong_kind_are_refused():
    with pytest.raises(TypeError, match="weight: expected a 1-d array of float32 or float64, got int64"):
        weights_of(INDPTR, np.ones(5, np.int64))
    sums, guide = np.zeros(5, np.uint64), np.zeros(_core.weight_guide_size(3, 5), np.uint32)
    with pytest.raises(ValueError, match="weight_sum has 4 elements: expected 5"):
        _core.build_weights(INDPTR, np.ones(5), sums[:4], guide)
    with pytest.raises(ValueError, match="weight_guide has 2 elements: expected 3"):
        _core.build_weights(INDPTR, np.ones(5), sums, guide[:2])
    with pytest.raises(ValueError, match=r"indptr\[3\] = 5: expected the number of edges, 4"):
        _core.build_weights(INDPTR, np.ones(4), sums[:4], guide)
    with pytest.raises(ValueError, match="weight_sum and weight_guide belong together"):
        star(2, 0, 3, weight_sum=sums)
    with pytest.raises(ValueError, match="time has 4 elements: expected 5"):
        star(2, 0, 3, time=np.zeros(4, np.int64))


def test_damaged_weights_and_unsorted_times_are_refused():
    built = weights_of(INDPTR, np.array([1.0, 2, 3, 4, 5]))
    damaged = built["weight_sum"].copy()
    damaged[3] = 1
    with pytest.raises(ValueError, match=r"weight_sum\[3\] = 1 is below the sum before it"):
        star(2, 0, 3, weight_sum=damaged, weight_guide=built["weight_guide"])
    guide = built["weight_guide"].copy()
    guide[-1] = 2**31
    with pytest.raises(ValueError, match=r"weight_guide\[2\] = 2147483648: expected 0"):
        star(2, 0, 3, weight_sum=built["weight_sum"], weight_guide=guide)
    with pytest.raises(ValueError, match=r"time\[3\] = 4 is below time\[2\] = 7 of the same row \(row 2\)"):
        star(2, 0, 3, time=np.array([5, 5, 7, 4, 9]))


def test_options_that_exclude_each_other_are_refused():
    csr = star(2, 0, 3, time=np.zeros(5, np.int64), **weights_of(INDPTR, np.ones(5)))
    with pytest.raises(ValueError, match="edges with times and weights"):
        one_hop(csr, [0], 1, seed_time=np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="edges with times and weights"):
        one_hop(csr, [0], 1, last=True)
    with pytest.raises(ValueError, match="tree has 2 elements: expected 1"):
        one_hop(csr, [0], 1, tree=np.zeros(2, np.uint32))
    with pytest.raises(ValueError, match="seed_time has 2 elements: expected 1"):
        one_hop(csr, [0], 1, seed_time=np.zeros(2, np.int64))


def test_all_edges_of_a_weighted_row_come_in_order():
    csr = weighted_star([6], [0, 5.0, 1, 0, 9, 2])
    for k in (-1, 6, 100):
        assert one_hop(csr, [0], k)[0].tolist() == list(range(6))
