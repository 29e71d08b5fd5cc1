"""Each id is claimed by the first request that asks for it, whose answer has its row for all that ask later."""

import threading

import numpy as np
import pytest

from glt import _core


def numbered(n):
    return np.arange(n, dtype=np.uint32)


def test_only_the_first_request_gets_an_id():
    claims = _core.RowClaims()
    ids, at, others = claims.claim(np.array([7, 3, 9]), np.array([4, 0, 2], np.uint32), 0)
    assert ids.tolist() == [7, 3, 9] and at.tolist() == [4, 0, 2] and others == []
    ids, at, others = claims.claim(np.array([3, 5, 9, 1]), numbered(4), 1)
    assert ids.tolist() == [5, 1] and at.tolist() == [1, 3]
    assert [(r, rows.tolist(), where.tolist()) for r, rows, where in others] == [(0, [1, 2], [0, 2])]
    ids, _, others = claims.claim(np.array([1, 7, 5]), numbered(3), 2)
    assert len(ids) == 0 and claims.num_ids == 5
    assert [(r, rows.tolist(), where.tolist()) for r, rows, where in others] == [(0, [0], [1]), (1, [1, 0], [0, 2])]


def test_an_id_that_comes_twice_is_new_once():
    ids, at, others = _core.RowClaims().claim(np.array([8, -1, 8, 8, -1]), numbered(5), 3)
    assert ids.tolist() == [8, -1] and at.tolist() == [0, 1]
    assert [(r, rows.tolist(), where.tolist()) for r, rows, where in others] == [(3, [0, 0, 1], [2, 3, 4])]


def test_no_ids():
    ids, at, others = _core.RowClaims().claim(np.array([], np.int64), numbered(0), 0)
    assert len(ids) == len(at) == 0 and others == []


@pytest.mark.parametrize("spread", [1, 1 << 20, 1 << 43])
def test_many_requests_cover_all_that_they_ask_for(spread):
    rng, claims, answers, seen = np.random.default_rng(spread), _core.RowClaims(), [], set()
    for request in range(40):
        wanted = rng.integers(0, 3000, 800) * spread
        ids, at, others = claims.claim(wanted, numbered(800), request)
        assert len(set(ids.tolist())) == len(ids) and seen.isdisjoint(ids.tolist())
        seen.update(ids.tolist())
        answers.append(ids)
        found = np.full(800, -1)
        found[at] = ids
        for whose, rows, where in others:
            assert np.all(found[where] == -1) and np.all(np.diff(where.astype(np.int64)) > 0)
            found[where] = answers[whose][rows]
        assert np.array_equal(found, wanted)
    assert claims.num_ids == len(seen)


def test_many_threads_claim_each_id_once():
    claims, got = _core.RowClaims(), []

    def work(request):
        wanted = np.random.default_rng(request).permutation(5000)[:3000]
        got.append((request, wanted, claims.claim(wanted, numbered(3000), request)))

    threads = [threading.Thread(target=work, args=(request,)) for request in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    answers = {request: ids for request, _, (ids, _, _) in got}
    claimed = np.concatenate(list(answers.values()))
    assert len(np.unique(claimed)) == len(claimed) == claims.num_ids
    for _, wanted, (ids, at, others) in got:
        assert np.array_equal(wanted[at], ids)
        assert all(np.array_equal(answers[whose][rows], wanted[where]) for whose, rows, where in others)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="positions has 2 elements: expected 3"):
        _core.RowClaims().claim(np.arange(3), numbered(2), 0)
    with pytest.raises(TypeError, match="ids"):
        _core.RowClaims().claim(np.arange(3, dtype=np.int32), numbered(3), 0)
    with pytest.raises(ValueError, match="request = 4294967295: expected less"):
        _core.RowClaims().claim(np.arange(3), numbered(3), 2**32 - 1)
