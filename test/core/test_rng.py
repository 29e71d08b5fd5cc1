"""The generator: its published vectors, unbiased bounded draws, keys that never meet."""

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
    counts: dict[tuple[int, ...], int] = {}
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
