"""Random numbers and negative draws."""

import ctypes

import numpy as np
import pytest
from scipy import stats

from glt import _core
from glt.testing import philox, reference_key

# Known-answer vectors of philox4x32-10 from Random123's kat_vectors (Salmon et al., SC 2011): counter, key, output.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 0xFFFFFFFFFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def native_philox(native_rng, counter, key):
    out = (ctypes.c_uint32 * 4)()
    native_rng.philox((ctypes.c_uint32 * 4)(*counter), ctypes.c_uint64(key), out)
    return tuple(out)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_philox_gives_its_known_answers(native_rng, counter, key, expected):
    assert native_philox(native_rng, counter, key) == expected
    assert philox(counter, key) == expected


def test_reference_philox_equals_the_native_one(native_rng):
    rng = np.random.default_rng(0)
    for _ in range(200):
        counter = rng.integers(0, 2**32, 4).tolist()
        key = int(rng.integers(0, 2**63)) * 2 + 1
        assert philox(counter, key) == native_philox(native_rng, counter, key)


def test_batch_keys_differ_in_every_coordinate():
    coordinates = [(s, e, b) for s in (0, 1, 2**63 - 1) for e in (0, 1, 2**32 - 1) for b in (0, 1, 2, 2**32, 2**63)]
    keys = [_core.batch_key(*c) for c in coordinates]
    assert len(set(keys)) == len(keys)
    assert keys == [reference_key(*c) for c in coordinates]


def test_rank_seeds_differ_and_are_valid_random_seeds():
    seeds = [_core.rank_seed(7, rank) for rank in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= s < 2**63 for s in seeds)


@pytest.mark.parametrize("n", [1, 2, 3, 1000])
def test_shuffle_is_a_permutation_and_a_function_of_its_key(n):
    def shuffled(seed, epoch):
        items = np.arange(n)
        _core.shuffle(items, seed, epoch)
        return items.tolist()

    assert sorted(shuffled(1, 2)) == list(range(n))
    assert shuffled(1, 2) == shuffled(1, 2)
    if n > 3:
        assert len({tuple(shuffled(s, e)) for s in (1, 2) for e in (0, 1)}) == 4


def test_shuffle_makes_every_permutation_equally_likely():
    """Chi-square over the 24 orders of four items; fails by chance once in 10^6 (never, the seeds being fixed)."""
    counts = {}
    for epoch in range(12_000):
        items = np.arange(4)
        _core.shuffle(items, 3, epoch)
        counts[tuple(items)] = counts.get(tuple(items), 0) + 1
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


@pytest.mark.parametrize("items", [np.arange(4, dtype=np.int32), np.arange(8)[::2], np.zeros((2, 2), np.int64)])
def test_shuffle_refuses_arrays_it_cannot_write(items):
    with pytest.raises((TypeError, ValueError), match="items"):
        _core.shuffle(items, 0, 0)


ALARM = 1e-6
NEGATIVE = 6  # Purpose::kNegative


def draws(slots, attempt=0, num_nodes=100, side=0, key=77, weight_sum=None):
    slots = np.asarray(slots, np.int64)
    out = np.full(len(slots), -7, np.int64)
    _core.negative_draws(key, side, slots, np.full(len(slots), attempt), num_nodes, weight_sum, out)
    return out


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("attempt", [0, 1, 2, 65_535, 3 + 5 * _core.negative_redraw, 2**32 - 1])
def test_candidates_are_the_reference_draws(side, attempt):
    """Candidate = draw number `attempt` of the slot, under the batch's key of that side."""
    word = philox((0, 0, side, 0xFFFF0000 | NEGATIVE), 2**63 + 5)
    key = word[1] << 32 | word[0]
    slots, weight = [0, 1, 5, 2**33], np.cumsum([3, 0, 4, 0, 1]).astype(np.uint64)
    words = [philox((s & 0xFFFFFFFF, s >> 32, attempt // 2, 0), key) for s in slots]
    bits = [w[attempt % 2 * 2 + 1] << 32 | w[attempt % 2 * 2] for w in words]
    assert draws(slots, attempt, 10**12, side, 2**63 + 5).tolist() == [b * 10**12 >> 64 for b in bits]
    expected = [int(np.searchsorted(weight, b * 8 >> 64, side="right")) for b in bits]
    assert draws(slots, attempt, 5, side, 2**63 + 5, weight).tolist() == expected


def test_candidates_are_uniform_and_independent_of_side_and_attempt():
    n, num_nodes = 40_000, 50
    samples = [draws(range(n), 0, num_nodes), draws(range(n), 1, num_nodes), draws(range(n), 0, num_nodes, side=1)]
    for sample in samples:
        assert stats.chisquare(np.bincount(sample, minlength=num_nodes)).pvalue > ALARM
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        joint = np.bincount(samples[a] * num_nodes + samples[b], minlength=num_nodes**2)
        assert stats.chisquare(joint).pvalue > ALARM


def test_candidates_follow_node_weights():
    weight = np.array([1.0, 0, 7, 0.5, 0])
    sums, guide = np.zeros(5, np.uint64), np.zeros(_core.weight_guide_size(1, 5), np.uint32)
    _core.build_weights(np.array([0, 5]), weight, sums, guide)
    counts = np.bincount(draws(range(50_000), 3, 5, weight_sum=sums), minlength=5)
    assert counts[1] == counts[4] == 0
    positive = weight > 0
    assert stats.chisquare(counts[positive], weight[positive] / weight.sum() * 50_000).pvalue > ALARM


def test_draws_that_cannot_be_are_refused():
    for options, message in [
        ({"num_nodes": 0}, "num_nodes = 0: negatives need a node to draw"),
        ({"num_nodes": 2, "weight_sum": np.zeros(2, np.uint64)}, "all 2 weights are zero"),
        ({"num_nodes": 2, "weight_sum": np.zeros(3, np.uint64)}, "weight_sum has 3 elements: expected 2"),
        ({"side": 2}, "side = 2"),
        ({"attempt": -1}, r"attempts\[0\] = -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            draws([0], **options)
    assert len(draws([], num_nodes=0)) == 0


def ask(csr, centers, neighbors):
    out = np.full(len(centers), 9, np.uint8)
    _core.has_edges(csr, np.asarray(centers, np.int64), np.asarray(neighbors, np.int64), out)
    return out


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_has_edges_knows_every_pair(dtype):
    rng = np.random.default_rng(8)
    degrees = np.array([0, 1, 127, 128, 129, 400, 3, 0])
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, 300, indptr[-1])
    csr = _core.Csr(indptr, indices.astype(dtype), num_neighbor_nodes=300)
    centers, neighbors = (a.ravel() for a in np.meshgrid(np.arange(8), np.arange(-1, 302)))
    known = set(zip(np.repeat(np.arange(8), degrees).tolist(), indices.tolist(), strict=True))
    expected = [pair in known for pair in zip(centers.tolist(), neighbors.tolist(), strict=True)]
    assert ask(csr, centers, neighbors).tolist() == expected
    assert len(ask(csr, [], [])) == 0


def test_has_edges_asks_the_owner():
    csr = _core.Csr(np.array([0, 1]), np.array([0]), row_of=np.array([2**32 - 1, 0], np.uint32), num_nodes=2)
    assert ask(csr, [1], [0]).tolist() == [1]
    with pytest.raises(IndexError, match=r"centers\[1\] = 0 has no row in this partition"):
        ask(csr, [1, 0], [0, 0])
    with pytest.raises(IndexError, match=r"centers\[0\] = 2 is outside \[0, 2\)"):
        ask(csr, [2], [0])
