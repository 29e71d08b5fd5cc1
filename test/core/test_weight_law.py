"""The statistics of weighted sampling: the law of successive draws. Keys are fixed, see test_sample_law."""

import itertools
import time
from collections import Counter

import numpy as np
import pytest
from row_world import one_hop, table, weighted_star, weights_of
from scipy import stats

from glt import _core

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
    """An independent algorithm of the same law: the edges whose clocks, of rate weight, ring first. Inclusion counts
    of groups of edges, sorted by weight, agree (two-sample chi-square)."""
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
