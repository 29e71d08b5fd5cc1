"""Files of ``torch.save``, read without unpickling anything but tensors and plain containers (law 7)."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path
from typing import Any

import torch


def load_saved(path: Path, name: str, expected: str, mmap: bool = False) -> Any:
    """Returns the object in a file of ``torch.save``.

    The file is a zip file, whose checksums are compared first; torch does not. That is a pass over the file, mapped or
    not: 0.25 s per GiB that is in memory already, a third of what loading takes. Files of ``torch.save`` before
    version 1.6 have no checksums.

    Args:
        path: The file.
        name: What to call it in errors.
        expected: What it is to hold, for errors.
        mmap: Whether its tensors are to be mapped, not read.

    Raises:
        OSError: If it cannot be opened or read.
        ValueError: If a byte of it was altered, it is damaged otherwise, or holds something that is not read; names it
            and says what to do.
    """
    try:
        _require_checksums(path)
        return torch.load(path, mmap=mmap, weights_only=True)
    except Exception as error:  # whatever damaged bytes make the unpickler stumble over: it promises no exception
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise  # EINVAL: torch seeks where damaged bytes send it
        raise damaged(name, expected, error) from error


def _require_checksums(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as file:
        altered = file.testzip()
    if altered is not None:
        raise zipfile.BadZipFile(f"its record {altered} does not match its checksum")


def damaged(name: str, expected: str, error: Exception) -> ValueError:
    """Returns the error that says so; what torch has to say of it comes last, in one line."""
    reason = next(iter(str(error).strip().splitlines()), "")
    return ValueError(
        f"{name} is damaged, or not what torch.save made of that: expected {expected}; copy the file again, or save it "
        f"again ({type(error).__name__}: {reason})"
    )
