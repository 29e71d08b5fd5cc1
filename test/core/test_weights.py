"""Weights of edges, and draws that follow them."""

import itertools
import time
from collections import Counter

import numpy as np
import pytest
import torch
from row_world import damaged_weights, one_hop, star, table, weighted_star, weights_of
from scipy import stats

from glt import _core
from glt.sampler.device_batch import DeviceBatch, PlacedRows

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


def test_arrays_of_the_wrong_kind_and_damaged_ones_are_refused():
    with pytest.raises(TypeError, match="weight: expected a 1-d array of float32 or float64, got int64"):
        weights_of(INDPTR, np.ones(5, np.int64))
    built = weights_of(INDPTR, np.array([1.0, 2, 3, 4, 5]))
    sums, guide = built["weight_sum"], built["weight_guide"]
    for num_edges, arrays, message in [
        (5, (sums[:4], guide), "weight_sum has 4 elements: expected 5"),
        (5, (sums, guide[:2]), "weight_guide has 2 elements: expected 3"),
        (4, (sums[:4], guide), r"indptr\[3\] = 5: expected the number of edges, 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.build_weights(INDPTR, np.ones(num_edges), *(array.copy() for array in arrays))
    falling = np.where(np.arange(5) == 3, np.uint64(1), sums)
    far = np.where(np.arange(3) == 2, np.uint32(2**31), guide)
    for columns, message in [
        ({"weight_sum": sums}, "weight_sum and weight_guide belong together"),
        ({"time": np.zeros(4, np.int64)}, "time has 4 elements: expected 5"),
        (built | {"weight_sum": falling}, r"weight_sum\[3\] = 1 is below the sum before it"),
        (built | {"weight_guide": far}, r"weight_guide\[2\] = 2147483648: expected 0"),
        ({"time": np.array([5, 5, 7, 4, 9])}, r"time\[3\] = 4 is below time\[2\] = 7 of the same row \(row 2\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            star(2, 0, 3, **columns)


DEGREES = [17, 3, 300, 0, 900]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("k", [2, 16, 40, 290])
def test_damaged_weights_lead_out_of_no_row(k, replace):
    """Files may be used unverified: other edges of the row, or an error, but nothing else."""
    rng, indptr, refused = np.random.default_rng(k), np.concatenate([[0], np.cumsum(DEGREES)]), 0
    for key in range(150):
        csr = star(*DEGREES, **damaged_weights(rng, indptr), check_indices=False)
        try:
            rows = one_hop(csr, np.arange(len(DEGREES)), k, replace, key)
        except ValueError as error:
            assert "its weights (weight_sum) are damaged" in str(error)
            refused += 1
            continue
        for node, edges in enumerate(rows):
            assert len(edges) == (k if replace and DEGREES[node] else min(k, DEGREES[node]))
            assert ((edges >= indptr[node]) & (edges < indptr[node + 1])).all()
    assert refused < 100


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("k", [2, 16, 40, 290])
def test_nor_do_they_lead_kernels_out_of_it(k, replace):
    rng, indptr = np.random.default_rng(k), np.concatenate([[0], np.cumsum(DEGREES)])
    neighbors, excluded = torch.arange(indptr[-1]), _core.Exclusions(np.array([0, 2, 2]), np.array([5, 20, 300]))
    for key in range(100):
        weights = tuple(map(torch.from_numpy, damaged_weights(rng, indptr).values()))
        rows = PlacedRows.of(torch.from_numpy(indptr), neighbors, num_neighbor_nodes=len(neighbors), weights=weights)
        batch = DeviceBatch([len(DEGREES), len(neighbors)], [(0, 1)], torch.device("cpu"))
        options = {"exclusions": [excluded]} if key % 2 else {}
        batch.launch([rows], [(0, torch.arange(len(DEGREES)))], [[k]], batch_key=key, replace=replace, **options)
        batch.finish()
        row, col, _ = batch.edges(0, False)
        edge, center = batch.nodes(1, False)[0][row].numpy(), col.numpy()
        assert ((edge >= indptr[center]) & (edge < indptr[center + 1])).all()


def test_options_that_exclude_each_other_are_refused():
    csr = star(2, 0, 3, time=np.zeros(5, np.int64), **weights_of(INDPTR, np.ones(5)))
    for options, message in [
        ({"seed_time": np.zeros(1, np.int64)}, "edges with times and weights"),
        ({"last": True}, "edges with times and weights"),
        ({"tree": np.zeros(2, np.uint32)}, "tree has 2 elements: expected 1"),
        ({"seed_time": np.zeros(2, np.int64)}, "seed_time has 2 elements: expected 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            one_hop(csr, [0], 1, **options)


def test_all_edges_of_a_weighted_row_come_in_order():
    csr = weighted_star([6], [0, 5.0, 1, 0, 9, 2])
    for k in (-1, 6, 100):
        assert one_hop(csr, [0], k)[0].tolist() == list(range(6))


ALARM = 1e-6  # of each test below: the chance that a right sampler fails it, over the choice of keys


def chance_of(order, weight):
    """The chance that successive draws take exactly `order`: weightless edges, equally likely, only at the end."""
    chance, left = 1.0, list(range(len(weight)))
    for edge in order:
        total = sum(weight[e] for e in left)
        chance *= weight[edge] / total if total > 0 else 1 / len(left)
        left.remove(edge)
    return chance


def assert_law(outcomes, chances, n):
    """Chi-square of outcomes against their chances; outcomes too rare for it are counted together."""
    assert all(chances[o] > 0 for o in outcomes), "an impossible outcome"
    expected = np.array([chances[o] * n for o in chances])
    counts = np.array([outcomes[o] for o in chances])
    common = expected >= 10
    expected, counts = (np.append(a[common], a[~common].sum()) for a in (expected, counts))
    if expected[-1] < 1e-9:
        expected, counts = expected[:-1], counts[:-1]
    elif expected[-1] < 10:
        assert stats.poisson.sf(counts[-1] - 1, expected[-1]) > ALARM / 2
        expected[-2], counts[-2] = expected[-2:].sum(), counts[-2:].sum()
        expected, counts = expected[:-1], counts[:-1]
    assert len(counts) == 1 or stats.chisquare(counts, expected).pvalue > ALARM / 2


@pytest.mark.parametrize(
    "weight",
    [
        [1, 1, 1, 1, 1],
        [1, 2, 3, 4, 5],
        [1000, 1, 30, 0.1, 5],
        [0, 3, 0.01, 7, 0],
        [0, 5, 0, 1, 2],
        [0, 0, 2, 0, 9],
        [0, 0, 0, 1e-300, 0],
        [0, 0, 0, 0, 0],
    ],
)
def test_every_ordered_subset_has_its_exact_chance(weight):
    """Weightless edges fill up as a set, as uniform sampling takes them: their order means nothing."""
    n, degree, k = 40_000, 5, 3
    rows = table(weighted_star([degree] * n, np.tile(np.array(weight, float), n)), range(n), k, key=11)

    def settled(order):
        return *(e for e in order if weight[e] > 0), *sorted(e for e in order if weight[e] == 0)

    chances = {}
    for order in itertools.permutations(range(degree), k):
        chances[settled(order)] = chances.get(settled(order), 0) + chance_of(order, weight)
    assert_law(Counter(map(settled, rows.tolist())), chances, n)


@pytest.mark.parametrize("excluded", [0, 3])
def test_an_excluded_edge_leaves_the_law_of_the_others(excluded):
    n, degree, k, weight = 30_000, 5, 2, [4.0, 1.0, 0.0, 50.0, 2.0]
    indptr = np.arange(n + 1) * degree
    csr = _core.Csr(indptr, np.tile(np.arange(degree), n), **weights_of(indptr, np.tile(weight, n)))
    gone = _core.Exclusions(np.arange(n), np.full(n, excluded))
    rows = table(csr, range(n), k, key=12, exclusions=gone)
    rest = [e for e in range(degree) if e != excluded]
    chances = {
        tuple(rest[i] for i in o): chance_of(o, [weight[e] for e in rest]) for o in itertools.permutations(range(4), k)
    }
    assert_law(Counter(map(tuple, rows.tolist())), chances, n)


def test_a_row_of_5000_takes_each_edge_as_often_as_exponential_clocks_do():
    """Counts by group of edges agree (chi-square) with those of clocks, of rate weight, that ring first."""
    rng = np.random.default_rng(0)
    degree, k, n = 5000, 40, 1500
    weight = np.exp(rng.normal(0, 2, degree))
    csr = weighted_star([degree], weight)
    ours = np.concatenate([one_hop(csr, [0], k, key=_core.batch_key(1, 0, b))[0] for b in range(n)])
    clocks = rng.exponential(size=(n, degree)) / weight
    theirs = np.argpartition(clocks, k, axis=1)[:, :k].ravel()
    group = np.argsort(np.argsort(weight)) * 25 // degree
    counts = np.stack([np.bincount(group[edges], minlength=25) for edges in (ours, theirs)])
    counts = counts[:, counts.sum(axis=0) >= 20]
    assert stats.chi2_contingency(counts).pvalue > ALARM


@pytest.mark.parametrize("degree", [5, 60, 3000])
def test_with_replacement_is_proportional_to_weight(degree):
    weight = np.random.default_rng(degree).random(degree) ** 4
    weight[::3] = 0
    csr = weighted_star([degree], weight)
    edges = one_hop(csr, [0], 200_000, True, key=13)[0]
    expected = weight / weight.sum() * len(edges)
    assert not np.isin(edges, np.flatnonzero(weight == 0)).any()
    kept = expected > 5
    counts = np.bincount(edges, minlength=degree)
    rare = int(counts[~kept].sum())
    expected = np.append(expected[kept], expected[~kept].sum())
    assert stats.chisquare(np.append(counts[kept], rare)[expected > 0], expected[expected > 0]).pvalue > ALARM


def test_weightless_edges_come_last_and_are_equally_likely():
    n, degree, k = 4000, 40, 10
    weight = np.zeros(degree)
    weight[[3, 17, 33]] = [5, 1e-9, 1e9]
    rows = table(weighted_star([degree] * n, np.tile(weight, n)), range(n), k, key=14)
    assert (np.sort(rows[:, :3], axis=1) == [3, 17, 33]).all()
    others = np.bincount(rows[:, 3:].ravel(), minlength=degree)[weight == 0]
    assert others.sum() == n * 7
    # Without replacement counts vary less than a multinomial's: the test errs to the safe side.
    assert stats.chisquare(others).pvalue > ALARM
    none = table(weighted_star([degree] * n, np.zeros(degree * n)), range(n), k, True, key=15)
    assert stats.chisquare(np.bincount(none.ravel(), minlength=degree)).pvalue > ALARM


def test_heavy_skew_costs_no_more():
    """Rejecting duplicates would need about 2^k draws here. Weights fall geometrically, to the smallest integer."""
    n, degree = 300, 1000
    csr = weighted_star([degree] * n, np.tile(0.5 ** np.arange(degree), n))
    started = time.perf_counter()
    rows = table(csr, range(n), 200, key=16)
    assert time.perf_counter() - started < 2
    assert (np.diff(np.sort(rows, axis=1), axis=1) > 0).all(), "a pick was taken twice"
    assert (np.sort(rows, axis=1)[:, :30] == np.arange(30)).all(), "an edge of a billion times the weight was missed"


def test_equal_weights_of_any_size_are_uniform():
    for weight in (1e-310, 1.0, 1e308):
        csr = weighted_star([700], np.full(700, weight))
        edges = np.concatenate([one_hop(csr, [0], 50, key=_core.batch_key(3, 0, b))[0] for b in range(1500)])
        assert stats.chisquare(np.bincount(edges, minlength=700)).pvalue > ALARM
