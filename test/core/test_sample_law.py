"""The statistics of sampling: every edge, and every subset, equally likely; draws that do not know of each other.

Each test states its false-alarm rate. Keys are fixed, so a test that passes once passes always.
"""

import itertools

import numpy as np
import pytest
from scipy import stats

from glt import _core

ALARM = 1e-6  # of each test below: the chance that a right sampler fails it, over the choice of keys


def star(*degrees):
    """Node i has degrees[i] neighbours; the position of an edge is its id."""
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return _core.Csr(indptr, np.zeros(indptr[-1], np.int64))


def picks(csr, nodes, k, replace, key, hop=0):
    """Edge positions [len(nodes), k]."""
    nodes = np.asarray(nodes, np.int64)
    one = _core.OneHop(csr, nodes, k, replace, key, hop)
    count, neighbor, edge = np.zeros(len(nodes), np.uint32), *np.zeros((2, one.num_edges), np.int64)
    one.copy_out(count, neighbor, edge)
    assert (count == k).all()
    return edge.reshape(len(nodes), k)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("k", [10, 25, 100])
def test_a_hub_of_degree_40000_is_sampled_uniformly(k, replace):
    """pyg-lib takes the first 25,536 of these edges twice as often as the rest. Chi-square over single edges (without
    replacement counts vary less than a multinomial's, so the test errs to the safe side), and over the two ranges."""
    csr, degree = star(40_000), 40_000
    batches = 200_000 // k
    edges = np.concatenate([picks(csr, [0], k, replace, _core.batch_key(k, 0, b)) for b in range(batches)]).ravel()
    assert edges.min() >= 0 and edges.max() < degree
    assert stats.chisquare(np.bincount(edges, minlength=degree)).pvalue > ALARM
    blocks = np.bincount(edges // 2000, minlength=20)
    assert stats.chisquare(blocks).pvalue > ALARM
    in_front = int((edges < 25_536).sum())
    assert stats.binomtest(in_front, len(edges), 25_536 / degree).pvalue > ALARM


@pytest.mark.parametrize(("degree", "k"), [(3, 1), (5, 2), (6, 3), (7, 6), (8, 4), (40, 2)])
def test_every_subset_of_a_small_neighbourhood_is_equally_likely(degree, k):
    """Chi-square over all subsets: single edges, pairs and everything beyond."""
    subsets = {s: i for i, s in enumerate(itertools.combinations(range(degree), k))}
    n = 60 * len(subsets)
    rows = np.sort(picks(star(*[degree] * n), range(n), k, False, 12345), axis=1) - degree * np.arange(n)[:, None]
    counts = np.bincount([subsets[tuple(r)] for r in rows.tolist()], minlength=len(subsets))
    assert stats.chisquare(counts).pvalue > ALARM


@pytest.mark.parametrize(("degree", "k"), [(70, 33), (100, 40), (64, 60)])
def test_pairs_are_equally_likely_on_the_hashed_path(degree, k):
    """Above 32 picks a hash set finds duplicates. Inclusion counts of single edges and pairs against their binomial
    standard deviation; the bound on the largest deviation is Bonferroni's."""
    n = 4000
    rows = picks(star(*[degree] * n), range(n), k, False, 99) - degree * np.arange(n)[:, None]
    taken = np.zeros((n, degree))
    taken[np.arange(n)[:, None], rows] = 1
    assert (taken.sum(axis=1) == k).all(), "a pick was taken twice"
    together = taken.T @ taken
    for counts, p in [
        (np.diag(together), k / degree),
        (together[np.triu_indices(degree, 1)], k * (k - 1) / degree / (degree - 1)),
    ]:
        bound = stats.norm.isf(ALARM / 2 / len(counts) / 2)
        assert np.abs(counts - n * p).max() < bound * np.sqrt(n * p * (1 - p))


@pytest.mark.parametrize(("degree", "k"), [(1, 4), (2, 3), (5, 2), (3, 4)])
def test_every_sequence_is_equally_likely_with_replacement(degree, k):
    n = 60 * degree**k
    rows = picks(star(*[degree] * n), range(n), k, True, 777) - degree * np.arange(n)[:, None]
    counts = np.bincount(rows @ degree ** np.arange(k), minlength=degree**k)
    assert len(counts) == 1 or stats.chisquare(counts).pvalue > ALARM


def agreement(a, b, degree, k):
    """p-value of the number of rows in which two samples share their first pick, which chance makes 1 / degree."""
    return stats.binomtest(int((a[:, 0] == b[:, 0]).sum()), len(a), 1 / degree).pvalue


@pytest.mark.parametrize("replace", [False, True])
def test_hops_batches_epochs_seeds_and_nodes_draw_independently(replace):
    degree, n, k = 20, 5000, 3
    csr = star(*[degree] * n)

    def sample(key, hop=0):
        return picks(csr, range(n), k, replace, key, hop) - degree * np.arange(n)[:, None]

    base = sample(_core.batch_key(1, 0, 0))
    assert np.array_equal(base, sample(_core.batch_key(1, 0, 0))), "the same key, the same picks"
    others = {
        "hop": sample(_core.batch_key(1, 0, 0), hop=1),
        "batch": sample(_core.batch_key(1, 0, 1)),
        "epoch": sample(_core.batch_key(1, 1, 0)),
        "seed": sample(_core.batch_key(2, 0, 0)),
        "node": np.roll(base, 1, axis=0),
        "far node": np.roll(base, n // 2, axis=0),
    }
    for what, other in others.items():
        assert agreement(base, other, degree, k) > ALARM, what
    for i, j in itertools.combinations(range(k), 2):
        joint = np.bincount(base[:, i] * degree + base[:, j], minlength=degree**2).reshape(degree, degree)
        if replace:
            assert stats.chisquare(joint.ravel()).pvalue > ALARM, f"draws {i} and {j}"


def test_picks_of_a_node_depend_on_its_degree_and_key_not_on_its_place():
    """Rows that begin elsewhere, in another order, in other company: the same picks. Partitions rely on it."""
    alone = picks(star(0, 0, 0, 30), [3], 5, False, 42)
    among = picks(star(7, 30, 9, 30), [1, 3, 1], 5, False, 42)
    assert np.array_equal(alone[0], among[1] - 46)
    assert np.array_equal(among[0], among[2])


@pytest.mark.parametrize("bound", [3, 1000, 40_000, 2**20 + 1])
def test_bounded_draws_are_unbiased(bound):
    """Sixteen bits modulo 40,000 would fail by a factor of two; multiply-high on 64 passes."""
    csr = _core.Csr(np.array([0, bound]), np.zeros(bound, np.int32))
    edges = picks(csr, [0], 300_000, True, 2024).ravel()
    blocks = min(bound, 64)
    expected = np.diff((np.arange(blocks + 1) * bound + blocks - 1) // blocks) / bound * len(edges)
    assert stats.chisquare(np.bincount(edges * blocks // bound, minlength=blocks), expected).pvalue > ALARM
