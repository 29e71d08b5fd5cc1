"""Files that are no arrays are refused by name, whatever NumPy makes of them."""

from __future__ import annotations

import tokenize
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glt.data import arrays as npy_array
from glt.data.arrays import load_npy, map_npy

SAVED = np.arange(20)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("npy") / "ids.npy"


def test_what_was_saved_is_read_or_mapped(path: Path) -> None:
    np.save(path, SAVED)
    assert load_npy(path).tolist() == map_npy(path, mode="r").tolist() == SAVED.tolist()
    mapped = map_npy(path)
    mapped[0] = 7
    assert load_npy(path)[0] == 0, "copy-on-write"
    with pytest.raises(FileNotFoundError):
        load_npy(path.parent / "other.npy")


def test_several_arrays_are_not_one(path: Path) -> None:
    several = path.with_suffix(".npz")
    np.savez(several, a=SAVED)
    with pytest.raises(ValueError, match=r"seeds = 7 is an \.npz file of several arrays"):
        load_npy(several, "seeds = 7")


@pytest.mark.parametrize("error", [tokenize.TokenError("EOF", (2, 0)), SystemError("odd"), EOFError(), SyntaxError()])
@pytest.mark.parametrize("read", [load_npy, map_npy])
def test_all_that_numpy_raises_says_which_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, read: Callable[[Path, str], np.ndarray]
) -> None:
    def raises(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(npy_array.np, "load", raises)
    with pytest.raises(ValueError, match=r"labels is not a readable \.npy file"):
        read(path, "labels")


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, 127),
    put=st.binary(max_size=8),
    size=st.integers(0, 400),
    read=st.sampled_from([load_npy, map_npy]),
)
@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")  # written by Python 2, or so it looks
def test_damaged_files_are_arrays_or_refused_by_name(
    path: Path, at: int, put: bytes, size: int, read: Callable[[Path], np.ndarray]
) -> None:
    np.save(path, SAVED)
    data = path.read_bytes()
    path.write_bytes((data[:at] + put + data[at + len(put) :])[:size])
    try:
        read(path)
    except ValueError as refused:
        assert str(refused).startswith(f"{path} is not a readable .npy file: ")
