"""How long a run may take, and where it keeps what the next one need not make again."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Limits:
    """Of one run of ``python -m benchmarks.gpu``.

    Args:
        budget_s: Seconds from now on. Default: any.
        folder: Where the partitioned graph of the training parts stays. Default: in a temporary folder, which goes.
    """

    def __init__(self, budget_s: float | None = None, folder: Path | None = None) -> None:
        self._end = None if budget_s is None else time.monotonic() + budget_s
        self._folder = folder

    def has_room_for(self, seconds: float) -> bool:
        """Whether that long fits before the end."""
        return self._end is None or time.monotonic() + seconds < self._end

    @contextmanager
    def folder(self) -> Iterator[Path]:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            yield self._folder
            return
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
