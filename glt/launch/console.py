"""What a job says, on this terminal: whole lines, each with who said it."""

from __future__ import annotations

import io
import os
import sys
from collections import deque
from collections.abc import Sequence
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_NUM_LAST, _MAX_LAST = 200, 1000  # lines of a process that are remembered, and characters of each


class OutputLost(Exception):
    """What processes say can be printed no more; the text says why."""


class Console:
    """Prints lines to stdout and stderr, and remembers the last ones of each process.

    Colours are for terminals, and not where ``NO_COLOR`` is set. Characters that the terminal does not have are
    escaped. What is closed from the beginning is not printed to.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        for file in (self._out, self._err):
            if isinstance(file, io.TextIOWrapper):
                file.reconfigure(errors="backslashreplace")
        self._last: dict[str, deque[str]] = {}
        self._colour: dict[str, int] = {}

    def lines(self, who: str, texts: Sequence[str], is_err: bool) -> None:
        """Prints ``who | text`` for each text, all at once.

        Raises:
            OutputLost: If nobody reads it any more, or the disk is full; once, then what goes there is dropped.
        """
        self._last.setdefault(who, deque(maxlen=_NUM_LAST)).extend(text[:_MAX_LAST] for text in texts[-_NUM_LAST:])
        file = self._err if is_err else self._out
        mark = self._marked(who, file)
        if error := self._print(file, "\n".join(f"{mark} | {text}" for text in texts)):
            raise OutputLost("" if isinstance(error, BrokenPipeError) else f"output cannot be written: {error}")

    def say(self, text: str) -> None:
        """Prints what the launcher itself has to say; if that cannot be, there is nobody to tell."""
        self._print(self._err, f"glt launch: {text}")

    def _print(self, file: TextIO | None, text: str) -> OSError | None:
        if file is None:
            return None
        try:
            print(text, file=file, flush=True)
        except OSError as error:
            with open(
                os.devnull, "wb"
            ) as nowhere:  # what is in the buffer would fail again, at the end of this process
                os.dup2(nowhere.fileno(), file.fileno())
            return error
        return None

    def last_lines(self, who: str) -> tuple[str, ...]:
        """The last lines of a process, oldest first."""
        return tuple(self._last.get(who, ()))

    def _marked(self, who: str, file: TextIO | None) -> str:
        if file is None or not file.isatty() or os.environ.get("NO_COLOR"):
            return who
        colour = self._colour.setdefault(who, _COLOURS[len(self._colour) % len(_COLOURS)])
        return f"\033[{colour}m{who}\033[0m"
