"""Threads for native calls, which do not keep an ending interpreter waiting."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class NativePool:
    """A fixed number of daemon threads that run calls.

    ``concurrent.futures`` has such a pool, but the interpreter joins its threads before it runs exit handlers, and
    would wait for ever for one that waits for room in a channel that only an exit handler closes.

    Args:
        num_threads: How many; all are started at once.
        name: Prefix of their names.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._calls,), name=f"{name}-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Runs ``call(*args)`` on the next free thread."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*args))
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(run)
        return future

    def end(self) -> None:
        """Ends the threads after the calls that were submitted, and waits for none; any thread may say so."""
        for _ in self._threads:
            self._calls.put(None)

    def shutdown(self, timeout_s: float) -> None:
        """Ends the threads after the calls that were submitted; waits for each, ``timeout_s`` seconds at most."""
        self.end()
        for thread in self._threads:
            thread.join(timeout_s)


def _work(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # not kept, with its arguments, until the next one comes
