"""Bars of what takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from glt import _deadlines as deadlines


def is_on_terminal() -> bool:
    """Whether stderr is a terminal. Of a process that was started without stderr, Python has none."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress_bar(
    what: str, total: int | None, shown: bool | None = None, unit: str = "B"
) -> Iterator[Callable[[int], object]]:
    """Yields what to call with units that are done, and draws a tqdm bar on stderr once two seconds have passed, and
    every second from then on.

    ``shown``: whether there is a bar; None: if stderr is a terminal. ``total``: units in all, if that is known.
    """
    if not (is_on_terminal() if shown is None else shown):
        yield lambda _: None
        return
    from tqdm import tqdm  # which starts a thread

    ended = threading.Event()
    with closing(tqdm(desc=what, total=total, unit=unit, unit_scale=True, delay=deadlines.SHOWN_S)) as bar:

        def tick() -> None:  # steps may be long, such as a call of METIS
            wait_s = deadlines.SHOWN_S
            while not ended.wait(wait_s):
                bar.refresh()
                bar.last_print_t = time.time()  # else close() takes it that there is no bar to end
                wait_s = 1.0

        thread = threading.Thread(target=tick, name="glt-progress", daemon=True)
        thread.start()
        try:
            yield bar.update
        finally:
            ended.set()
            thread.join()
