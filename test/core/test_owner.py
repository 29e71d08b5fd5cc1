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
    grouped, position, begin = _core.group_by_owner(_core.Book(book, num_parts), ids)
    order = np.argsort(book[ids], kind="stable")
    assert position.dtype == np.uint32 and np.array_equal(position, order)
    assert np.array_equal(grouped, ids[order])
    assert np.array_equal(begin, np.concatenate([[0], np.cumsum(np.bincount(book[ids], minlength=num_parts))]))


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7, 200, 2**16])
def test_ranges_group_as_the_array_of_their_owners(num_parts):
    rng = np.random.default_rng(num_parts)
    counts = rng.integers(0, 4, num_parts) * (rng.random(num_parts) < 0.6)  # many own nothing
    counts[rng.integers(num_parts)] += 1
    ranges = _core.Book.of_ranges(np.concatenate([[0], np.cumsum(counts)]))
    owner = np.repeat(np.arange(num_parts), counts).astype(np.uint32)
    array = _core.Book(owner, num_parts)
    assert (ranges.num_ids, ranges.num_parts) == (array.num_ids, array.num_parts) == (len(owner), num_parts)
    everything = np.arange(len(owner))
    np.testing.assert_array_equal(_core.find_owners(ranges, everything), owner)
    ids = rng.integers(0, len(owner), 500)
    for got, wanted in zip(_core.group_by_owner(ranges, ids), _core.group_by_owner(array, ids), strict=True):
        np.testing.assert_array_equal(got, wanted)
    for part in {0, num_parts - 1, *owner[ids[:5]].tolist()}:
        _core.require_owned(ranges, everything[owner == part], part)


def test_bad_ids_books_and_owners_are_named():
    owner = np.array([0, 1, 0, 2], np.uint8)
    for book in (_core.Book(owner, 3), _core.Book.of_ranges(np.array([0, 2, 3, 4]))):
        for call in (_core.group_by_owner, _core.find_owners):
            with pytest.raises(IndexError, match=r"ids\[1\] = 4 is outside \[0, 4\)"):
                call(book, np.array([0, 4, -1]))
            with pytest.raises(IndexError, match=r"ids\[0\] = -1"):
                call(book, np.array([-1]))
    with pytest.raises(IndexError, match="node 3 is owned by partition 2 of 2: the partition book is damaged"):
        _core.group_by_owner(_core.Book(owner, 2), np.array([0, 3]))
    with pytest.raises(TypeError, match="owner: expected a 1-d array of uint32, got int64"):
        _core.Book(owner.astype(np.int64), 3)
    with pytest.raises(ValueError, match="num_parts = 0: expected at least 1"):
        _core.Book(owner, 0)


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        ([0], "offset has 1 elements: expected one more than partitions, at least 2"),
        ([], "offset has 0 elements"),
        ([1, 2], r"offset\[0\] = 1: expected 0"),
        ([0, 3, 2], r"offset\[2\] = 2 is below offset\[1\] = 3"),
        ([0, -1], r"offset\[1\] = -1 is below"),
    ],
)
def test_offsets_that_are_no_ranges_are_named(offset, error):
    with pytest.raises(ValueError, match=error):
        _core.Book.of_ranges(np.array(offset, np.int64))


def test_require_owned_names_the_first_stranger():
    for book in (_core.Book(np.array([0, 0, 1, 2], np.uint16), 3), _core.Book.of_ranges(np.array([0, 2, 3, 4]))):
        _core.require_owned(book, np.array([0, 1, 0]), 0)
        _core.require_owned(book, np.array([], np.int64), 0)
        with pytest.raises(IndexError, match=r"ids\[1\] = 2 belongs to partition 1, not here \(partition 0\)"):
            _core.require_owned(book, np.array([0, 2, 3]), 0)
        with pytest.raises(IndexError, match=r"ids\[0\] = 9 is outside \[0, 4\)"):
            _core.require_owned(book, np.array([9]), 0)
        with pytest.raises(ValueError, match="part = 3: expected 0 to 2"):
            _core.require_owned(book, np.array([0]), 3)


def test_rows_of_a_range_are_read_without_a_map():
    book = _core.Book.of_ranges(np.array([0, 2, 2, 5]))
    indptr, indices = np.array([0, 1, 1, 3]), np.array([4, 0, 1])
    csr = _core.Csr(indptr, indices, num_nodes=5, book=book, part=2)
    hop = _core.OneHop(csr, np.array([4, 2, 3]), -1, False, 1, 0, with_edge=False)
    count, neighbor = np.empty(3, np.uint32), np.empty(3, np.int64)
    hop.copy_out(count, neighbor)
    assert count.tolist() == [2, 1, 0] and neighbor.tolist() == [0, 1, 4]
    with pytest.raises(IndexError, match=r"nodes\[1\] = 1 belongs to partition 0, not here \(partition 2\)"):
        _core.OneHop(csr, np.array([2, 1]), -1, False, 1, 0, with_edge=False)
    with pytest.raises(IndexError, match=r"nodes\[0\] = 5 is outside \[0, 5\)"):
        _core.OneHop(csr, np.array([5]), -1, False, 1, 0, with_edge=False)
    with pytest.raises(ValueError, match="partition 0 owns 2 nodes but indptr has 3 rows: expected one for each"):
        _core.Csr(indptr, indices, num_nodes=5, book=book)
    with pytest.raises(ValueError, match="part = 3: expected 0 to 2"):
        _core.Csr(indptr, indices, num_nodes=5, book=book, part=3)
    with pytest.raises(ValueError, match="book has 5 ids: expected 6"):
        _core.Csr(indptr, indices, num_nodes=6, book=book, part=2)
    with pytest.raises(ValueError, match="row_of: expected none beside a book of ranges"):
        _core.Csr(indptr, indices, row_of=np.zeros(5, np.uint32), num_nodes=5, book=book, part=2)


def test_rows_of_a_table_may_begin_at_any_id():
    table, out = np.arange(6).reshape(3, 2), np.empty((2, 2), np.int64)
    _core.gather_rows(table, np.array([9, 7]), out, first_id=7)
    assert out.tolist() == [[4, 5], [0, 1]]
    for bad in (6, 10, -1, 2**63 - 1, -(2**63)):
        with pytest.raises(IndexError, match=rf"ids\[0\] = {bad} is row .* of 3: no such row here"):
            _core.gather_rows(table, np.array([bad, 7]), out, first_id=7)
    with pytest.raises(ValueError, match="first_id = 7: expected none beside row_of"):
        _core.gather_rows(table, np.array([7, 7]), out, np.zeros(9, np.uint32), first_id=7)
