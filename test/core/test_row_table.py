"""Tables of rows that are read and updated."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_world import one_hop, weights_of

from glt import _core


def rows_like(table, n, seed):
    return np.random.default_rng(seed).integers(0, 200, (n, *table.shape[1:])).astype(table.dtype)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 400), st.sampled_from([0, 1, 3, 4, 100, 1500]), st.integers(0, 700), st.integers(1, 4), st.data())
def test_reads_writes_and_adds_as_numpy(num_rows, width, n, num_threads, data):
    dtype = data.draw(st.sampled_from(["uint8", "int16", "int32", "int64", "float32", "float64", "float16"]))
    table = rows_like(np.empty((num_rows, width), dtype), num_rows, 0)
    expected = table.copy()
    native = _core.RowTable(table)
    seed = data.draw(st.integers(0, 99))
    ids = np.random.default_rng(seed).integers(0, num_rows, n)
    values, more = rows_like(table, n, seed + 1), rows_like(table, n, seed + 2)
    native.write(ids, 0, values, num_threads)
    native.add(ids, 0, more, dtype, num_threads)
    for row, value in zip(ids, values, strict=True):
        expected[row] = value
    with np.errstate(over="ignore"):  # enough of them in one row are more than a half holds: infinite, for both
        for row, value in zip(ids, more, strict=True):  # one after the other, as halves round
            expected[row] += value
    np.testing.assert_array_equal(table, expected)
    out = np.empty((n, width), dtype)
    native.read(ids, 0, out, num_threads)
    np.testing.assert_array_equal(out, expected[ids])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5000), st.sampled_from([1, 2, 7, 300]), st.data())
def test_ranges_as_numpy(num_rows, width, data):
    table = rows_like(np.empty((num_rows, width), "float32"), num_rows, 0)
    expected = table.copy()
    native = _core.RowTable(table)
    first = data.draw(st.integers(0, num_rows))
    n = data.draw(st.integers(0, num_rows - first))
    values = rows_like(table, n, 1)
    native.write(None, first, values, 3)
    native.add(None, first, values, "float32", 3)
    expected[first : first + n] = 2 * values
    np.testing.assert_array_equal(table, expected)
    out = np.empty((n, width), "float32")
    native.read(None, first, out, 3)
    np.testing.assert_array_equal(out, expected[first : first + n])


@pytest.mark.parametrize("table_at", [0, 1])
@pytest.mark.parametrize("out_at", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["int16", "float32", "int64"])
def test_rows_of_a_word_at_any_address(dtype, out_at, table_at):
    """Nothing says that they are aligned; sanitizers see whether they are taken to be."""

    def at(offset, values):
        room = np.empty(values.nbytes + 8, np.uint8)[offset : offset + values.nbytes].view(dtype).reshape(values.shape)
        room[:] = values
        return room

    table, ids = at(table_at, rows_like(np.empty((300, 1), dtype), 300, 0)), np.arange(299, -1, -3)
    values = at(out_at, rows_like(table, len(ids), 1))
    native, expected = _core.RowTable(table), table.copy()
    native.write(ids, 0, values)
    native.add(ids, 0, values, dtype)
    expected[ids] = 2 * values
    np.testing.assert_array_equal(table, expected)
    for numbers, first, wanted in ((ids, 0, expected[ids]), (None, 7, expected[7:107])):
        out = at(out_at, np.zeros((100, 1), dtype))
        native.read(numbers, first, out)
        np.testing.assert_array_equal(out, wanted)


def test_many_rows_and_many_duplicates_do_not_depend_on_threads():
    ids = np.random.default_rng(0).integers(0, 500, 60_000)
    values = np.random.default_rng(1).random((60_000, 24), np.float32)
    results = []
    for num_threads in (1, 4):
        table = np.zeros((500, 24), np.float32)
        native = _core.RowTable(table)
        native.add(ids, 0, values, "float32", num_threads)
        added = table.copy()
        native.write(ids, 0, values, num_threads)
        results.append((added, table))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    np.testing.assert_array_equal(results[0][1][ids[-1]], values[-1])


@pytest.mark.parametrize("width", [1, 2, 3, 64, 700])
def test_no_row_is_ever_torn(width):
    table = np.zeros((64, width), np.float32)
    native = _core.RowTable(table)
    torn, stop = [], threading.Event()

    def write(value):
        ids = np.random.default_rng(value).permutation(64).repeat(8)
        for _ in range(60):
            native.write(ids, 0, np.full((len(ids), width), value, np.float32))
            native.write(None, 0, np.full((64, width), value, np.float32))

    def read(seed):
        out = np.empty((256, width), np.float32)
        while not stop.is_set():
            native.read(np.random.default_rng(seed).integers(0, 64, 256), 0, out)
            torn.extend(out[(out != out[:, :1]).any(1)])

    writers = [threading.Thread(target=write, args=(value,)) for value in (1, 2, 3)]
    readers = [threading.Thread(target=read, args=(seed,)) for seed in (8, 9)]
    for thread in [*writers, *readers]:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert not torn and (table == table[:, :1]).all()


@pytest.mark.parametrize("width", [1, 5])
def test_additions_of_threads_are_all_there(width):
    table = np.zeros((7, width), np.int64)
    native = _core.RowTable(table)
    ids = np.arange(700) % 7
    ones = np.ones((700, width), np.int64)
    threads = [threading.Thread(target=lambda: [native.add(ids, 0, ones, "int64") for _ in range(50)]) for _ in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (table == 4 * 50 * 100).all()


def test_what_does_not_fit_changes_nothing():
    table = np.zeros((5, 2), np.float32)
    native = _core.RowTable(table)
    ones = np.ones((2, 2), np.float32)
    first, wide = np.array([0]), np.ones((1, 3), np.float32)
    for call, arguments, error, message in [
        (native.write, (np.array([0, 5]), 0, ones), IndexError, r"rows\[1\] = 5 is outside \[0, 5\)"),
        (native.add, (None, 4, ones, "float32"), IndexError, "rows 4 to 5 are outside"),
        (native.read, (np.array([-1, 0]), 0, ones), IndexError, r"rows\[0\] = -1"),
        (native.write, (first, 0, wide), ValueError, "values has rows of 12 bytes, the table of 8"),
        (native.write, (first, 0, ones), ValueError, "rows has 1 elements: expected 2"),
        (native.add, (np.array([0, 1]), 0, ones, "bool"), TypeError, "dtype bool cannot be added to"),
    ]:
        with pytest.raises(error, match=message):
            call(*arguments)
    assert (table == 0).all()


@pytest.mark.parametrize("normal", [False, True])
def test_random_values_are_those_of_their_rows(normal):
    whole = np.empty((3000, 7), np.float32)
    _core.random_rows(whole, None, 0, normal, -1.0, 2.0, 77, 3)
    ids = np.random.default_rng(0).permutation(3000)[:500]
    some = np.empty((500, 7), np.float32)
    _core.random_rows(some, ids, 0, normal, -1.0, 2.0, 77, 1)
    np.testing.assert_array_equal(some, whole[ids])
    rest = np.empty((1000, 7), np.float32)
    _core.random_rows(rest, None, 2000, normal, -1.0, 2.0, 77, 2)
    np.testing.assert_array_equal(rest, whole[2000:])
    # 21000 values: a mean five standard errors away has a chance below 1e-6, and the seed is fixed.
    mean, deviation = (-1.0, 2.0) if normal else (0.5, 3 / 12**0.5)
    assert abs(whole.mean() - mean) < 5 * deviation / 21000**0.5
    assert abs(whole.std() - deviation) < 0.05 * deviation
    if not normal:
        assert whole.min() >= -1 and whole.max() < 2
    assert len(np.unique(whole)) > 20900


def test_rows_do_not_depend_on_where_they_stand():
    """Cut points depend on the place of a row in the arrays; picks must not, or partitions would disagree."""
    rng = np.random.default_rng(5)
    degree, weight = 200, np.exp(rng.normal(0, 3, 200))
    rows = []
    for before in range(9):
        indptr = np.array([0, before, before + degree, before + degree + 5])
        csr = _core.Csr(
            indptr, np.zeros(indptr[-1], np.int32), row_of=np.array([9, 9, 9, 1], np.uint32), num_nodes=4,
            **weights_of(indptr, np.concatenate([np.ones(before), weight, np.zeros(5)])),
        )  # fmt: skip
        rows.append(np.concatenate([*one_hop(csr, [3], 40, key=8), *one_hop(csr, [3], 40, True, key=8)]) - before)
    assert all(np.array_equal(rows[0], row) for row in rows)


@settings(max_examples=60, deadline=None)
@given(
    num_ids=st.sampled_from([1, 63, 64, 65, 128, 1000]),
    density=st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    num_asked=st.integers(0, 300),
    seed=st.integers(0, 2**32),
)
def test_ids_are_split_by_whether_they_have_a_row(num_ids, density, num_asked, seed):
    rng = np.random.default_rng(seed)
    ids = np.flatnonzero(rng.random(num_ids) < density)
    asked = rng.integers(0, num_ids, num_asked)
    positions = rng.permutation(num_asked).astype(np.uint32)
    rows, at, rest, rest_at = _core.RowIndex(ids, num_ids).split(asked, positions)
    inside = np.isin(asked, ids)
    np.testing.assert_array_equal(ids[rows], asked[inside])
    np.testing.assert_array_equal(at, positions[inside])
    np.testing.assert_array_equal(rest, asked[~inside])
    np.testing.assert_array_equal(rest_at, positions[~inside])


@pytest.mark.parametrize("ids", [[3, 3], [4, 1], [-1, 2], [2, 10]])
def test_ids_that_do_not_ascend_in_range_are_refused(ids):
    with pytest.raises(ValueError, match=r"ids\[\d\] = -?\d+: expected ids that ascend.*\[0, 10\)"):
        _core.RowIndex(np.array(ids), 10)


@pytest.mark.parametrize("bad", [-1, 10, 2**40])
def test_an_id_outside_is_named(bad):
    index = _core.RowIndex(np.array([1, 5]), 10)
    with pytest.raises(IndexError, match=rf"ids\[1\] = {bad} is outside \[0, 10\)"):
        index.split(np.array([1, bad]), np.zeros(2, np.uint32))
