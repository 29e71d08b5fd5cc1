"""What a job says, on this terminal: whole lines, each with who said it."""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_NUM_LAST, _MAX_LAST = 200, 1000  # lines of a process that are remembered, and characters of each


class Console:
    """Prints lines to stdout and stderr, and remembers the last ones of each process.

    Colours are for terminals, and not where ``NO_COLOR`` is set.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._last: dict[str, deque[str]] = {}
        self._colour: dict[str, int] = {}

    def line(self, who: str, text: str, is_err: bool) -> None:
        """Prints ``who | text``.

        Raises:
            BrokenPipeError: If nobody reads it any more; once, then it is dropped.
        """
        self._last.setdefault(who, deque(maxlen=_NUM_LAST)).append(text[:_MAX_LAST])
        file = self._err if is_err else self._out
        try:
            print(f"{self._marked(who, file)} | {text}", file=file, flush=True)
        except BrokenPipeError:
            with open(
                os.devnull, "wb"
            ) as nowhere:  # what is in the buffer would fail again, at the end of this process
                os.dup2(nowhere.fileno(), file.fileno())
            raise

    def say(self, text: str) -> None:
        """Prints what the launcher itself has to say."""
        print(f"glt launch: {text}", file=self._err, flush=True)

    def last_lines(self, who: str) -> tuple[str, ...]:
        """The last lines of a process, oldest first."""
        return tuple(self._last.get(who, ()))

    def _marked(self, who: str, file: TextIO) -> str:
        if not file.isatty() or os.environ.get("NO_COLOR"):
            return who
        colour = self._colour.setdefault(who, _COLOURS[len(self._colour) % len(_COLOURS)])
        return f"\033[{colour}m{who}\033[0m"
