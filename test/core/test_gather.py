"""Rows are gathered, and fetched before they are needed."""

import platform
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from covering import covering

from glt import _core


def table_of(num_rows, width, dtype=np.uint8, seed=0):
    values = np.random.default_rng(seed).integers(0, 2 if dtype is np.bool_ else 100, (num_rows, width))
    return values.astype(dtype)


STREAMED_BYTES = 17 << 20  # from 16 MiB on, some processors write past their caches
WIDTHS = [1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 31, 32, 48, 63, 64, 65, 100, 127, 128, 512, 1000, 1024, 4000]


@covering(row_bytes=WIDTHS, num_threads=[1, 4], out_bytes=[1 << 20, STREAMED_BYTES])
def test_every_width_and_nothing_beside_it(row_bytes, num_threads, out_bytes):
    """Guard rows around the output stay."""
    n = out_bytes // row_bytes if row_bytes > 48 else 40_000
    table, ids = table_of(3000, row_bytes), np.random.default_rng(2).integers(0, 3000, n)
    room = np.full((n + 2, row_bytes), 255, np.uint8)
    _core.gather_rows(table, ids, room[1:-1], num_threads=num_threads)
    assert np.array_equal(room[1:-1], table[ids])
    assert (room[[0, -1]] == 255).all()


@covering(offset=[0, 1, 8, 15, 32, 63], width=[2, 4, 8, 16, 100, 512, 515], out_bytes=[1 << 20, STREAMED_BYTES])
def test_output_and_table_at_any_address(offset, width, out_bytes):
    n = out_bytes // width
    memory = np.full(n * width + 192, 255, np.uint8)
    begin = -memory.ctypes.data % 64 + 64 + offset
    out = memory[begin : begin + n * width].reshape(n, width)
    odd_table = np.zeros(3000 * width + 1, np.uint8)[1:].reshape(3000, width)
    odd_table[:] = table_of(3000, width)
    ids = np.random.default_rng(3).integers(0, 3000, n)
    _core.gather_rows(odd_table, ids, out, num_threads=2)
    assert np.array_equal(out, odd_table[ids])
    assert (memory[:begin] == 255).all() and (memory[begin + n * width :] == 255).all()


@covering(
    size=[(4, 3000), (8, 3000), (48, 3000), (512, 3000), (512, 17_000), (500, 17_000)],
    offset=[0, 8],
    num_threads=[1, 3],
)
def test_positions_scatter_and_row_of_translates(size, offset, num_threads):
    row_bytes, n = size
    rng = np.random.default_rng(4)
    table = table_of(1000, row_bytes)
    row_of = rng.permutation(1000).astype(np.uint32)
    ids, positions = rng.integers(0, 1000, n), rng.permutation(2 * n)[:n].astype(np.uint32)
    memory = np.full(2 * n * row_bytes + 128, 255, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    out = memory[begin : begin + 2 * n * row_bytes].reshape(2 * n, row_bytes)
    expected = out.copy()
    expected[positions] = table[row_of[ids]]
    _core.gather_rows(table, ids, out, row_of, positions, num_threads)
    assert np.array_equal(out, expected)
    _core.gather_rows(table, None, out, positions=positions[:1000], num_threads=num_threads)
    expected[positions[:1000]] = table
    assert np.array_equal(out, expected)


@covering(bad=[-1, 100, 2**63 - 1], num_threads=[1, 4])
def test_ids_without_a_row_are_named_and_nothing_is_written_beside_the_output(bad, num_threads):
    table, ids = table_of(100, 512), np.zeros(5000, np.int64)
    ids[4999] = bad
    with pytest.raises(IndexError, match=rf"ids\[4999\] = {bad} is row {bad} of 100"):
        _core.gather_rows(table, ids, np.zeros((5000, 512), np.uint8), num_threads=num_threads)
    row_of = np.zeros(100, np.uint32)
    with pytest.raises(IndexError, match=rf"ids\[4999\] = {bad} is outside \[0, 100\)"):
        _core.gather_rows(table, ids, np.zeros((5000, 512), np.uint8), row_of, num_threads=num_threads)


def test_outputs_that_do_not_fit_are_refused():
    table, ids = table_of(10, 4), np.array([0, 1, 2])
    frozen = np.zeros((3, 4), np.uint8)
    frozen.flags.writeable = False
    for out, message in [
        (np.zeros((2, 4), np.uint8), "out has 2 rows: expected at least 3"),
        (np.zeros((3, 5), np.uint8), "out has rows of 5 bytes: expected 4, as the table's rows"),
        (np.zeros((3, 8), np.uint8)[:, ::2], "out: expected a contiguous array"),
        (frozen, "out: expected a writeable array"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.gather_rows(table, ids, out)
    with pytest.raises(ValueError, match="table: expected a contiguous"):
        _core.gather_rows(table[:, ::2], ids, np.zeros((3, 2), np.uint8))
    with pytest.raises(ValueError, match="positions has 2 elements: expected 3"):
        _core.gather_rows(table, ids, np.zeros((3, 4), np.uint8), positions=np.zeros(2, np.uint32))
    with pytest.raises(ValueError, match="num_threads = 0"):
        _core.gather_rows(table, ids, np.zeros((3, 4), np.uint8), num_threads=0)
    with pytest.raises(TypeError, match="ids: expected a 1-d array of int64, got int32"):
        _core.gather_rows(table, ids.astype(np.int32), np.zeros((3, 4), np.uint8))


@pytest.mark.parametrize("row_bytes", [0, 4])
def test_no_rows_at_all_and_rows_without_bytes(row_bytes):
    table = np.zeros((10, row_bytes), np.uint8)
    _core.gather_rows(table, np.zeros(0, np.int64), np.zeros((0, row_bytes), np.uint8))
    _core.gather_rows(table[:0], np.zeros(0, np.int64), np.zeros((0, row_bytes), np.uint8))
    with pytest.raises(IndexError, match=r"ids\[0\] = 10"):
        _core.gather_rows(table, np.array([10]), np.zeros((1, row_bytes), np.uint8))


CORE = Path(__file__).resolve().parents[2] / "csrc" / "core"
INSTRUCTION = {"x86_64": r"^\s+prefetch", "aarch64": r"^\s+prfm"}


def functions_of(source, cxx):
    """Assembly by mangled name, as setup.py has it compiled."""
    options = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", f"-I{CORE.parent}", "-S", "-o", "-"]
    done = subprocess.run([*cxx, *options, str(CORE / source)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^(_Z\w+):.*$", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.skipif(platform.machine() not in INSTRUCTION, reason="knows the instructions of x86-64 and AArch64 only")
@pytest.mark.parametrize(
    ("source", "name", "least"),
    [
        ("relabel.cc", "find_or_add", 6),  # before and in the loop, of three kinds of tables
        ("hotness.cc", "add_doubt", 12),  # of three arrays, with 32 and 64 bits, one thread and several
        ("sample.cc", "sample_rows", 3),  # columns, and edge ids where there are some
    ],
    ids=["relabelling", "hotness", "sampling"],
)
def test_memory_is_asked_ahead(source, name, least, cxx):
    asked = {
        function: len(re.findall(INSTRUCTION[platform.machine()], body, re.MULTILINE))
        for function, body in functions_of(source, cxx).items()
        if name in function
    }
    assert sum(asked.values()) >= least, f"instructions that ask ahead in {source}: {asked}"


@pytest.mark.parametrize("row_bytes", [1, 2, 4, 8, 3, 64, 100, 512])
def test_several_sources_fill_one_output(row_bytes):
    rng = np.random.default_rng(row_bytes)
    tables = [table_of(500, row_bytes, seed=seed) for seed in range(3)]
    row_of = rng.permutation(500).astype(np.uint32)
    for n in (0, 1, 7, 5000):
        owner, ids = rng.integers(0, 3, n), rng.integers(0, 500, n)
        at = [np.flatnonzero(owner == part).astype(np.uint32) for part in range(3)]
        answer = np.ascontiguousarray(tables[2][ids[at[2]]])
        sources = [
            (tables[0], ids[at[0]], at[0], row_of, 0),
            (tables[1], ids[at[1]] + 1000, at[1], None, 1000),
            (answer, None, at[2], None, 0),
        ]
        wanted = np.choose(owner[:, None], [tables[0][row_of[ids]], tables[1][ids], tables[2][ids]])
        room = np.full((n + 2, row_bytes), 255, np.uint8)
        _core.gather_from(sources, room[1:-1])
        assert np.array_equal(room[1:-1], wanted) and (room[[0, -1]] == 255).all()
        _core.gather_from(sources[::-1], room[1:-1])
        assert np.array_equal(room[1:-1], wanted)


def test_sources_that_do_not_fit_are_refused_before_anything_is_written():
    table, out, ids = table_of(10, 16), np.full((3, 16), 255, np.uint8), np.arange(3)
    at, two = np.arange(3, dtype=np.uint32), np.arange(2)
    for error, text, sources in (
        (ValueError, "2 rows of 1 sources for 3", [(table, two, at[:2], None, 0)]),
        (ValueError, "row 2 has none", [(table, ids, np.array([0, 1, 1], np.uint32), None, 0)]),
        (ValueError, "5 rows of 2 sources", [(table, ids, None, None, 0), (table, two, at[:2], None, 0)]),
        (IndexError, r"positions\[2\] = 3 is outside \[0, 3\)", [(table, ids, at + 1, None, 0)]),
        (IndexError, r"ids\[1\] = 10 is row 10 of 10", [(table, ids + 9, at, None, 0)]),
        (IndexError, r"ids\[0\] = -1 is outside \[0, 5\)", [(table, ids - 1, at, np.zeros(5, np.uint32), 0)]),
        (ValueError, "table has rows of 8 bytes: expected 16, as the others", [(table_of(10, 8), ids, at, None, 0)]),
        (ValueError, "a source of 2 elements", [(table, ids)]),
        (ValueError, "positions", [(table, ids, at[:2], None, 0)]),
    ):
        with pytest.raises(error, match=text):
            _core.gather_from(sources, out)
        assert (out == 255).all()
