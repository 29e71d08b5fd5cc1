"""The law of draws: every edge and every subset equally likely, draws independent; by time, with exclusions.

Each test states its false-alarm rate. Keys are fixed, so a test that passes once passes always.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_world import exclusions, one_hop, star, table
from scipy import stats

from glt import _core

ALARM = 1e-6  # of each test below: the chance that a right sampler fails it, over the choice of keys


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("k", [10, 25, 100])
def test_a_hub_of_degree_40000_is_sampled_uniformly(k, replace):
    """pyg-lib takes the first 25,536 of these edges twice as often as the rest. Chi-square over single edges (without
    replacement counts vary less than a multinomial's, so the test errs to the safe side), and over the two ranges."""
    csr, degree = star(40_000), 40_000
    batches = 200_000 // k
    edges = np.concatenate([table(csr, [0], k, replace, _core.batch_key(k, 0, b)) for b in range(batches)]).ravel()
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
    rows = np.sort(table(star(*[degree] * n), range(n), k, key=12345), axis=1)
    counts = np.bincount([subsets[tuple(r)] for r in rows.tolist()], minlength=len(subsets))
    assert stats.chisquare(counts).pvalue > ALARM


@pytest.mark.parametrize(("degree", "k"), [(70, 33), (100, 40), (64, 60)])
def test_pairs_are_equally_likely_on_the_hashed_path(degree, k):
    """Above 32 picks a hash set finds duplicates. Inclusion counts of single edges and pairs against their binomial
    standard deviation; the bound on the largest deviation is Bonferroni's."""
    n = 4000
    rows = table(star(*[degree] * n), range(n), k, key=99)
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
    rows = table(star(*[degree] * n), range(n), k, True, 777)
    counts = np.bincount(rows @ degree ** np.arange(k), minlength=degree**k)
    assert len(counts) == 1 or stats.chisquare(counts).pvalue > ALARM


@pytest.mark.parametrize("replace", [False, True])
def test_hops_trees_batches_epochs_seeds_and_nodes_draw_independently(replace):
    degree, n, k = 20, 5000, 3
    csr = star(*[degree] * n)

    def sample(*coordinates, **options):
        return table(csr, range(n), k, replace, _core.batch_key(*coordinates), **options)

    base = sample(1, 0, 0)
    assert np.array_equal(base, sample(1, 0, 0)), "the same key, the same picks"
    others = {
        "hop": sample(1, 0, 0, hop=1),
        "tree": sample(1, 0, 0, tree=np.zeros(n, np.uint32)),
        "last tree": sample(1, 0, 0, tree=np.full(n, 2**32 - 1, np.uint32)),
        "batch": sample(1, 0, 1),
        "epoch": sample(1, 1, 0),
        "seed": sample(2, 0, 0),
        "node": np.roll(base, 1, axis=0),
        "far node": np.roll(base, n // 2, axis=0),
    }
    for (what, one), (another, other) in itertools.combinations([("base", base), *others.items()], 2):
        # Chance lets them share their first pick in one row of 20.
        num_alike = int((one[:, 0] == other[:, 0]).sum())
        assert stats.binomtest(num_alike, n, 1 / degree).pvalue > ALARM / 36, (what, another)
    for i, j in itertools.combinations(range(k), 2):
        joint = np.bincount(base[:, i] * degree + base[:, j], minlength=degree**2).reshape(degree, degree)
        if replace:
            assert stats.chisquare(joint.ravel()).pvalue > ALARM, f"draws {i} and {j}"


def test_picks_of_a_node_depend_on_its_degree_and_key_not_on_its_place():
    """Rows that begin elsewhere, in another order, in other company: the same picks. Partitions rely on it."""
    alone = one_hop(star(0, 0, 0, 30), [3], 5, key=42)
    among = one_hop(star(7, 30, 9, 30), [1, 3, 1], 5, key=42)
    assert np.array_equal(alone[0], among[1] - 46)
    assert np.array_equal(among[0], among[2])


@pytest.mark.parametrize("bound", [3, 1000, 40_000, 2**20 + 1])
def test_bounded_draws_are_unbiased(bound):
    """Sixteen bits modulo 40,000 would fail by a factor of two; multiply-high on 64 passes."""
    csr = _core.Csr(np.array([0, bound]), np.zeros(bound, np.int32))
    edges = table(csr, [0], 300_000, True, 2024).ravel()
    blocks = min(bound, 64)
    expected = np.diff((np.arange(blocks + 1) * bound + blocks - 1) // blocks) / bound * len(edges)
    assert stats.chisquare(np.bincount(edges * blocks // bound, minlength=blocks), expected).pvalue > ALARM


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
