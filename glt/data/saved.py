"""Files of ``torch.save``, read without unpickling anything but tensors and plain containers (law 7)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import torch


def load_saved(path: Path, name: str, expected: str, mmap: bool = False) -> Any:
    """Returns the object in a file of ``torch.save``.

    Args:
        path: The file.
        name: What to call it in errors.
        expected: What it is to hold, for errors.
        mmap: Whether its tensors are to be mapped, not read.

    Raises:
        OSError: If it cannot be opened or read.
        ValueError: If it is damaged, or holds something that is not read; names it and says what to do.
    """
    try:
        return torch.load(path, mmap=mmap, weights_only=True)
    except Exception as error:  # whatever damaged bytes make the unpickler stumble over: it promises no exception
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise  # EINVAL: torch seeks where damaged bytes send it
        raise damaged(name, expected, error) from error


def damaged(name: str, expected: str, error: Exception) -> ValueError:
    """Returns the error that says so; what torch has to say of it comes last, in one line."""
    reason = next(iter(str(error).strip().splitlines()), "")
    return ValueError(
        f"{name} is damaged, or not what torch.save made of that: expected {expected}; copy the file again, or save it "
        f"again ({type(error).__name__}: {reason})"
    )
