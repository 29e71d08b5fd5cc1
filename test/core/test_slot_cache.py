"""A cache knows where each row is, keeps what is wanted most, and moves nothing that is in use."""

import threading

import numpy as np
import pytest

from glt import _core

WAYS = 16


def numbered(n):
    return np.arange(n, dtype=np.uint32)


def put(cache, ids):
    """Admits ids; returns those that got a slot, and the slots."""
    pins, which, slots = cache.admit(ids)
    pins.written()
    return ids[which], slots


def found(cache, ids):
    """The ids that are there, and their slots."""
    _, slots, at, rest, rest_at = cache.look_up(ids, numbered(len(ids)))
    assert np.array_equal(np.sort(np.concatenate([at, rest_at])), numbered(len(ids)))
    assert np.array_equal(rest, ids[rest_at])
    return ids[at], slots


def test_slots_are_distinct_and_found_again():
    cache = _core.SlotCache(1000)
    assert cache.num_slots == 1008 and cache.num_used == 0
    ids = np.unique(np.random.default_rng(0).integers(0, 1 << 40, 500))
    there, slots = put(cache, ids)
    assert len(there) > 490 and len(np.unique(slots)) == len(slots) and slots.max() < cache.num_slots
    assert cache.num_used == len(there)
    again, found_at = found(cache, ids)
    assert np.array_equal(again, there) and np.array_equal(found_at, slots)
    assert len(found(cache, ids + 1)[0]) == np.isin(ids + 1, there).sum()
    assert len(put(cache, there)[0]) == 0  # they are there


def test_ids_that_are_admitted_twice_at_a_time_get_one_slot():
    cache = _core.SlotCache(WAYS)
    pins, which, slots = cache.admit(np.array([5, 7, 5, 7, 5]))
    assert which.tolist() == [0, 1] and len(set(slots.tolist())) == 2
    pins.written()


def test_a_row_that_is_not_written_yet_is_not_found_and_goes_if_it_never_is():
    cache, ids = _core.SlotCache(WAYS), np.array([3, 4])
    pins, which, _ = cache.admit(ids)
    assert len(which) == 2 and len(found(cache, ids)[0]) == 0 and cache.num_used == 2
    assert len(cache.admit(ids)[1]) == 0  # another is about to write them
    del pins
    assert len(found(cache, ids)[0]) == 0 and cache.num_used == 0


def test_what_is_read_stays():
    cache, ids = _core.SlotCache(WAYS), np.arange(WAYS)
    _, slots = put(cache, ids)
    pins = cache.look_up(ids, numbered(WAYS))[0]
    for new in range(100, 200):
        put(cache, np.full(4, new))
    there, same = found(cache, ids)
    assert len(there) == WAYS and np.array_equal(same, slots)
    del pins
    for new in range(200, 400):
        put(cache, np.full(40, new))
    assert len(found(cache, ids)[0]) < WAYS


def test_rows_that_are_asked_for_once_push_out_nothing():
    cache, ids = _core.SlotCache(64 * WAYS), np.arange(2000)
    kept, _ = put(cache, ids)
    for new in range(10_000, 60_000, 1000):
        assert len(put(cache, np.arange(new, new + 1000))[0]) < 50  # those whose 16 bits are alike
    assert len(found(cache, kept)[0]) > 0.8 * len(kept)


def test_the_hot_rows_of_a_skewed_stream_stay_and_old_ones_go():
    rng, cache = np.random.default_rng(1), _core.SlotCache(1024)

    def hit_ratio(hot_from, rounds):
        hits = asked = 0
        for _ in range(rounds):
            ids = np.unique(np.minimum(rng.pareto(0.8, 2000) * 100, 99_999).astype(np.int64) + hot_from)
            _, slots, _, rest, _ = cache.look_up(ids, numbered(len(ids)))
            hits, asked = hits + len(slots), asked + len(ids)
            put(cache, rest)
        return hits / asked

    hit_ratio(0, 50)
    settled = hit_ratio(0, 50)
    best = settled  # of a static choice: the first 1024 ids
    ids = [np.unique(np.minimum(rng.pareto(0.8, 2000) * 100, 99_999).astype(np.int64)) for _ in range(50)]
    best = np.mean([(each < 1024).mean() for each in ids])
    assert settled > 0.8 * best, (settled, best)
    hit_ratio(1_000_000, 100)
    moved = hit_ratio(1_000_000, 50)
    assert moved > 0.8 * best, (moved, best)


def test_many_threads_read_what_was_written():
    cache = _core.SlotCache(2048)
    table, wrong = np.full(cache.num_slots, -1), []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(200):
            ids = np.unique((rng.random(300) ** 3 * 20_000).astype(np.int64))
            pins, slots, at, rest, _ = cache.look_up(ids, numbered(len(ids)))
            if not np.array_equal(table[slots], ids[at]):
                wrong.append(ids)
            del pins
            coming, which, into = cache.admit(rest)
            table[into] = rest[which]
            if rng.random() < 0.9:
                coming.written()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and cache.num_used > 1500


def test_wrong_arguments():
    with pytest.raises(ValueError, match="num_slots = 0: expected 1 to 2"):
        _core.SlotCache(0)
    with pytest.raises(ValueError, match="positions"):
        _core.SlotCache(16).look_up(np.arange(3), numbered(2))
    with pytest.raises(TypeError, match="ids"):
        _core.SlotCache(16).admit(np.arange(3, dtype=np.float32))
