"""The file behind a private map, mapped once more: the same bytes in pages that all processes share."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from glt.data.pinned import shared_map


@pytest.fixture
def rows(tmp_path: Path) -> np.memmap:
    np.save(tmp_path / "rows.npy", np.arange(50_000))
    return np.load(tmp_path / "rows.npy", mmap_mode="c")


def flags_at(address: int) -> str | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, flags = line.split()[:2]
        begin, end = (int(each, 16) for each in area.split("-"))
        if begin <= address < end:
            return flags
    return None


@pytest.mark.parametrize(("begin", "end"), [(0, 50_000), (1, 2), (511, 30_000), (49_999, 50_000)])
def test_the_same_bytes_in_a_shared_map_that_goes_with_its_array(rows: np.memmap, begin: int, end: int) -> None:
    part = rows[begin:end]
    mapped = shared_map(part.ctypes.data, part.nbytes)
    assert mapped is not None and mapped.view(np.int64).tolist() == part.tolist()
    address = mapped.ctypes.data
    assert flags_at(address) == "r--s" and flags_at(part.ctypes.data) == "rw-p"
    view = mapped[8:].view(np.int64)
    del mapped
    gc.collect()
    assert view.tolist() == part[1:].tolist()  # views keep it
    del view
    gc.collect()
    assert flags_at(address) != "r--s"


def test_what_was_written_to_is_no_longer_the_file(rows: np.memmap) -> None:
    assert shared_map(rows.ctypes.data, rows.nbytes) is not None
    rows[40_000] = -1
    assert shared_map(rows.ctypes.data, rows.nbytes) is None


def test_a_file_that_has_lost_its_name_or_was_cut(rows: np.memmap, tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    path.rename(tmp_path / "old.npy")
    assert shared_map(rows.ctypes.data, rows.nbytes) is not None  # the kernel knows the new name
    np.save(tmp_path / "other.npy", np.arange(50_000) + 1)
    (tmp_path / "other.npy").rename(tmp_path / "old.npy")
    assert shared_map(rows.ctypes.data, rows.nbytes) is None  # "old.npy (deleted)"


def test_other_memory_has_no_file() -> None:
    own = np.arange(50_000)
    assert shared_map(own.ctypes.data, own.nbytes) is None
    with mmap.mmap(-1, 1 << 20) as anonymous:
        view = np.frombuffer(anonymous, np.uint8)
        assert shared_map(view.ctypes.data, view.nbytes) is None
        del view


def test_shared_maps_are_pinned_as_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(50_000))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r+")
    assert shared_map(rows.ctypes.data, rows.nbytes) is None


def test_a_range_that_reaches_beyond_its_file(rows: np.memmap) -> None:
    assert shared_map(rows.ctypes.data, rows.nbytes + (1 << 20)) is None
