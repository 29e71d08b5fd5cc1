"""Signals that come while ``glt serve`` is imported, which takes seconds; it needs nothing but the standard library."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import pairwise
from types import FrameType
from typing import Final

_HANDLED: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def early_stop(flags: Sequence[str]) -> Iterator[None]:
    """SIGTERM and SIGINT end this process with status 0, as a server that is not ready does, and say so on stderr.

    Args:
        flags: Of the command; with ``--log-format json`` it is said as an object.
    """
    is_json = "--log-format=json" in flags or any(pair == ("--log-format", "json") for pair in pairwise(flags))

    def stop(number: int, frame: FrameType | None) -> None:
        text = f"stopped by {signal.Signals(number).name} before it was ready"
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({
            "time": time, "level": "info", "logger": __name__, "message": text, "server": None, "worker": None,
            "pid": os.getpid(),
        }) if is_json else f"{time} INFO pid {os.getpid()}: {__name__}: {text}"  # fmt: skip
        os.write(2, f"{line}\n".encode())
        os._exit(0)  # an exception might be caught by what is being imported

    before = {each: signal.signal(each, stop) for each in _HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
