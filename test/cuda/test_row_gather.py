"""The gather kernel, run on the host thread by thread: bit for bit what the CPU gather gives, whatever the layout.

The host executor refuses loads and stores that the hardware would fault on. What only a GPU shows is in
test_gather_on_gpu.py.
"""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glt import _core
from glt.data.packing import Packing

NO_ROW = 2**32 - 1
NO_ERROR = 2**64 - 1


def address(array):
    return array.ctypes.data


def placed(rows, offset):
    """A copy of ``rows`` (uint8 [n, width]) that begins ``offset`` bytes after a multiple of 64."""
    memory = np.zeros(rows.nbytes + 128, np.uint8)
    begin = -address(memory) % 64 + offset
    copy = memory[begin : begin + rows.nbytes].reshape(rows.shape)
    copy[:] = rows
    return copy


def kernel_gather(table, ids, out, *, positions=None, count=None, num_threads=256):
    """Runs the kernel; returns (lowest bad position or NO_ERROR, layout)."""
    error, before = np.full(1, NO_ERROR, np.uint64), out.copy()
    options = {"positions": 0 if positions is None else address(positions)}
    options |= {"count": 0 if count is None else address(count)}
    call = _core.GatherCall(address(ids), ids.itemsize, len(ids), address(out), len(out), address(error), **options)
    layout = _core.host_gather(table, call, num_threads)
    found, bad = out.copy(), int(error[0])
    if "GLT_COMPILED_CORE" in os.environ:  # the kernel as nvcc compiled it gives the same: test/ptx
        out[:], error[0] = before, NO_ERROR
        _core.cuda_gather(table, call, 1, 0, 2)  # the device that glt has there
        assert out.tobytes() == found.tobytes() and error[0] == bad  # NaNs too
    return bad, layout


def table_of(parts, **options):
    width = parts[0].shape[1]
    return _core.TieredTable(width, [(address(p), len(p), width) for p in parts], **options)


def random_rows(num_rows, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (num_rows, width)).astype(np.uint8)


@settings(deadline=None, max_examples=150)
@given(
    width=st.one_of(st.integers(0, 70), st.sampled_from([100, 128, 400, 512, 520, 602, 1000, 1024, 1040, 4000])),
    offsets=st.tuples(*[st.sampled_from([0, 0, 0, 1, 2, 4, 8, 12, 16])] * 3),
    split=st.lists(st.integers(0, 40), min_size=0, max_size=4),
    wide=st.booleans(),
    mapped=st.booleans(),
    scattered=st.booleans(),
    num_ids=st.integers(0, 90),
    num_threads=st.sampled_from([32, 64, 256]),
    seed=st.integers(0, 2**32),
)
def test_equals_the_gather_of_the_host(width, offsets, split, wide, mapped, scattered, num_ids, num_threads, seed):
    rng = np.random.default_rng(seed)
    rows = random_rows(41, width, seed)
    parts = [placed(p, offsets[i % 2]) for i, p in enumerate(np.split(rows, sorted(split)))]
    row_of = rng.integers(0, len(rows), 60).astype(np.uint32) if mapped else None
    ids = rng.integers(0, 60 if mapped else len(rows), num_ids).astype(np.int64 if wide else np.int32)
    positions = rng.permutation(100)[:num_ids].astype(np.uint32) if scattered else None
    expected, out = np.full((100, width), 7, np.uint8), placed(np.full((100, width), 7, np.uint8), offsets[2])
    _core.gather_rows(rows, ids.astype(np.int64), expected, row_of, positions)
    table = table_of(parts, row_of=None if row_of is None else (address(row_of), len(row_of)))
    assert kernel_gather(table, ids, out, positions=positions, num_threads=num_threads)[0] == NO_ERROR
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("width", "offset", "layout"),
    [
        (400, 0, (16, 25, 32)),  # W0's rows
        (512, 0, (16, 32, 32)),
        (16, 0, (16, 1, 1)),
        (48, 0, (16, 3, 4)),
        (200, 0, (8, 25, 32)),
        (400, 4, (4, 100, 32)),
        (4, 0, (4, 1, 1)),
        (101, 0, (1, 101, 32)),
        (2408, 0, (8, 301, 32)),
    ],
)
def test_rows_move_in_the_widest_pieces_that_alignment_allows(width, offset, layout):
    rows, ids = placed(random_rows(50, width), offset), np.arange(49, -1, -1)
    out = placed(np.zeros((50, width), np.uint8), 0)
    assert kernel_gather(table_of([rows]), ids, out) == (NO_ERROR, layout)
    np.testing.assert_array_equal(out, rows[ids])


def test_rows_apart_from_each_other():
    memory = random_rows(20, 64)
    table = _core.TieredTable(48, [(address(memory), 20, 64)])
    out = np.zeros((20, 48), np.uint8)
    kernel_gather(table, np.arange(20), out)
    np.testing.assert_array_equal(out, memory[:, :48])


def test_the_count_may_be_known_to_the_device_alone():
    rows, out = random_rows(10, 8), np.zeros((10, 8), np.uint8)
    kernel_gather(table_of([rows]), np.arange(10), out, count=np.array([6], np.int32))
    np.testing.assert_array_equal(out[:6], rows[:6])
    assert not out[6:].any()
    out[:] = 0
    kernel_gather(table_of([rows]), np.arange(10), out, count=np.array([0], np.int32))
    assert not out.any()


@pytest.mark.parametrize("width", [4, 400, 1040])
@pytest.mark.parametrize("bad", [-1, 100, 2**31 - 1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_first_bad_id_is_reported_and_nothing_is_read_or_written_for_it(width, bad, dtype):
    rows, ids = random_rows(100, width), np.arange(100).astype(dtype)
    ids[[40, 70, 99]] = bad
    out = np.full((100, width), 7, np.uint8)
    assert kernel_gather(table_of([rows]), ids, out)[0] == 40
    expected = rows.copy()
    expected[[40, 70, 99]] = 0
    np.testing.assert_array_equal(out, expected)


def test_ids_without_a_row_and_positions_outside_are_reported():
    rows, row_of = random_rows(10, 16), np.array([3, NO_ROW, 10, 4], np.uint32)
    table = table_of([rows], row_of=(address(row_of), 4))
    out = np.full((6, 16), 7, np.uint8)
    for ids, expected in [([0, 3], NO_ERROR), ([0, 1], 1), ([2], 0), ([0, 0, 4], 2), ([-1], 0)]:
        assert kernel_gather(table, np.array(ids), out)[0] == expected
    positions = np.array([0, 6, 5], np.uint32)
    assert kernel_gather(table, np.array([0, 0, 3]), out, positions=positions)[0] == 1
    np.testing.assert_array_equal(out[[0, 5]], rows[[3, 4]])
    first = _core.TieredTable(16, [(address(rows), 10, 16)], first_id=100)
    assert kernel_gather(first, np.array([100, 109, 99]), out)[0] == 2
    np.testing.assert_array_equal(out[:2], rows[[0, 9]])
    both = _core.TieredTable(16, [(address(rows), 10, 16)], first_id=100, row_of=(address(row_of), 4))
    assert kernel_gather(both, np.array([103, 100, 104]), out)[0] == 2
    np.testing.assert_array_equal(out[:2], rows[[4, 3]])


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("num_columns", [1, 2, 3, 4, 100, 129])
def test_widening_gives_the_floats_that_torch_gives(name, num_columns):
    """Every 16-bit pattern, several times over: subnormals, infinities and NaNs too."""
    dtype = getattr(torch, name)
    num_rows = -(-(2**16) // num_columns)
    bits = np.resize(np.arange(2**16, dtype=np.uint16), (num_rows, num_columns))
    ids = np.random.default_rng(0).permutation(num_rows)
    out = np.zeros((num_rows, num_columns), np.float32)
    table = _core.TieredTable(
        num_columns * 2, [(address(bits), num_rows, num_columns * 2)], packing=(name, num_columns)
    )
    _, layout = kernel_gather(table, ids, out)
    assert layout[0] == np.gcd(4, num_columns)
    expected = torch.from_numpy(bits.view(np.int16)).view(dtype)[torch.from_numpy(ids)].float().numpy()
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(out), ~number)
    np.testing.assert_array_equal(out.view(np.uint32)[number], expected.view(np.uint32)[number])


@pytest.mark.parametrize(("kind", "largest"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("num_columns", [1, 2, 3, 5, 8, 100, 129])
def test_packed_rows_with_a_factor_each(kind, largest, num_columns):
    rng = np.random.default_rng(0)
    numbers = rng.integers(-largest, largest + 1, (300, num_columns)).astype(np.float32)
    numbers[:, 0] = largest  # so that the factor is what we multiply by
    factor, ids = rng.random(300, np.float32) + 0.5, rng.integers(0, 300, 500)
    factor = (factor * largest).astype(np.float32) / np.float32(largest)
    rows = np.zeros((300, Packing(kind, (num_columns,)).row_bytes), np.uint8)
    bad, *_ = _core.pack_rows((numbers * factor[:, None]).reshape(-1), rows, kind)
    assert bad == -1
    stored = rows[:, :4].copy().view(np.float32)
    out = np.zeros((500, num_columns), np.float32)
    segment = (address(rows), 300, rows.shape[1])
    _, layout = kernel_gather(_core.TieredTable(rows.shape[1], [segment], packing=(kind, num_columns)), ids, out)
    assert layout[0] == np.gcd(4, num_columns)
    np.testing.assert_array_equal(out, (numbers * stored)[ids])


def test_bad_tables_are_refused():
    for arguments, message in [
        ((-1, [(0, 1, 4)]), "row_bytes = -1: expected 0 to"),
        ((4, []), "0 tiers: expected 1 to 16"),
        ((4, [(0, 1, 2)]), "expected rows of 4 bytes"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.TieredTable(*arguments)
    for options, message in [
        ({"packing": ("float8", 1)}, "packing 'float8': expected"),
        ({"packing": ("float16", 1)}, "rows of 3 bytes: expected 2, those of 1 elements packed as float16"),
        ({"packing": ("int4", -1)}, "num_columns = -1: expected"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.TieredTable(3, [(8, 1, 3)], **options)
