"""Programs that this process started and can end all at once, whichever thread waits for them."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Stopped(Exception):
    """No more programs are to be started."""


class Children:
    """Child processes, with pipes for stdin, stdout and stderr."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_stopped = False

    @contextmanager
    def start(self, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Starts a program; it is killed if it still runs at the end of the ``with`` block.

        Raises:
            Stopped: After :meth:`stop`.
            OSError: If there is no such program.
        """
        with self._lock:
            if self._is_stopped:
                raise Stopped("stopped")
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self._running.add(process)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            with self._lock:
                self._running.discard(process)
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # there was something in it that nobody took

    def stop(self) -> None:
        """Ends all that run, and lets none begin."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                process.terminate()
