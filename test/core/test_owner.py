"""Ids grouped by their owner."""

import numpy as np
import pytest

from glt import _core


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("num_parts", [1, 2, 7, 200])
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_groups_are_a_stable_sort_by_owner(dtype, num_parts, n):
    rng = np.random.default_rng(n + num_parts)
    book, ids = rng.integers(0, num_parts, 300).astype(dtype), rng.integers(0, 300, n)
    grouped, position, begin = _core.group_by_owner(book, num_parts, ids)
    order = np.argsort(book[ids], kind="stable")
    assert position.dtype == np.uint32 and np.array_equal(position, order)
    assert np.array_equal(grouped, ids[order])
    assert np.array_equal(begin, np.concatenate([[0], np.cumsum(np.bincount(book[ids], minlength=num_parts))]))


def test_bad_ids_books_and_owners_are_named():
    book = np.array([0, 1, 0, 2], np.uint8)
    with pytest.raises(IndexError, match=r"ids\[1\] = 4 is outside \[0, 4\)"):
        _core.group_by_owner(book, 3, np.array([0, 4, -1]))
    with pytest.raises(IndexError, match=r"ids\[0\] = -1"):
        _core.group_by_owner(book, 3, np.array([-1]))
    with pytest.raises(IndexError, match="node 3 is owned by partition 2 of 2: the partition book is damaged"):
        _core.group_by_owner(book, 2, np.array([0, 3]))
    with pytest.raises(TypeError, match="book: expected a 1-d array of uint32, got int64"):
        _core.group_by_owner(book.astype(np.int64), 3, np.array([0]))
    with pytest.raises(ValueError, match="num_parts = 0: expected at least 1"):
        _core.group_by_owner(book, 0, np.array([0]))


def test_require_owned_names_the_first_stranger():
    book = np.array([0, 1, 0, 2], np.uint16)
    _core.require_owned(book, np.array([0, 2, 0]), 0)
    _core.require_owned(book, np.array([], np.int64), 0)
    with pytest.raises(IndexError, match=r"ids\[1\] = 1 belongs to partition 1, not here \(partition 0\)"):
        _core.require_owned(book, np.array([0, 1, 3]), 0)
    with pytest.raises(IndexError, match=r"ids\[0\] = 9 is outside \[0, 4\)"):
        _core.require_owned(book, np.array([9]), 0)
