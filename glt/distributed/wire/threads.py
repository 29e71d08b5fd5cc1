"""The asyncio loop of this process, and threads for native calls; tasks on the loop, a bounded number at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from multiprocessing import util
from typing import Any, TypeVar

from glt import _deadlines as deadlines
from glt._reprs import says

T = TypeVar("T")


def refuse_fork(pid: int, remedy: str, what: str = "client") -> None:
    """Raises RuntimeError in a fork of the process ``pid``, which has its threads and what they work on."""
    if os.getpid() != pid:
        raise RuntimeError(f"this process (pid {os.getpid()}) is a fork of the {what} (pid {pid}): {remedy}")


class NativePool:
    """A fixed number of daemon threads that run calls; all are started at once.

    ``concurrent.futures`` has such a pool, but the interpreter joins its threads before it runs exit handlers, and
    would wait forever for one that waits for room in a channel that only an exit handler closes.
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
        self._calls.put(partial(_settle, future, call, args))
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


def _settle(future: Future[T], call: Callable[..., T], args: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call(*args))
    except BaseException as error:
        future.set_exception(error)
        # The traceback has this frame: in a circle they would keep what the call was given until Python's collection.
        del future


def _work(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # not kept, with its arguments, until the next one comes


# -- the loop of this process --------------------------------------------------------------------------------------


class _ProcessLoop:
    """One asyncio loop on a daemon thread, made when it is first asked for. All connections of this process are read
    on it, and the tasks of its samplers run on it: a reply needs no change of threads to reach the task that waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:
            return self._loop
        with self._lock:
            if self._loop is None:
                made = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(made,), name="glt-loop", daemon=True)
                self._thread.start()
                # Last of all exit handlers: those of loaders and servers still speak to other processes.
                util.Finalize(None, self._stop, args=(made,), exitpriority=-1000)
                self._loop = made
            return self._loop

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the loop's."""
        return threading.current_thread() is self._thread

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is self._loop and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(deadlines.GOODBYE_S)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


process_loop = _ProcessLoop()
_of_parents: list[asyncio.AbstractEventLoop | None] = []


def _forget() -> None:
    """A fork has no loop: the thread is its parent's. It is kept: its tasks would complain, were they collected."""
    _of_parents.append(process_loop._loop)
    process_loop.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget)


def call_on_loop(call: Callable[..., Any], *args: Any) -> None:
    """Runs ``call(*args)`` on the loop: at once on its thread, soon from others."""
    if process_loop.is_here:
        call(*args)
    else:
        process_loop.get().call_soon_threadsafe(call, *args)


def refuse_loop() -> None:
    """Raises RuntimeError on the thread of the loop, which cannot wait for itself: callbacks of replies run there."""
    if process_loop.is_here:
        raise RuntimeError(
            "this waits for another process on the thread on which glt hears all of them, where callbacks of replies "
            "run: it would wait for ever. Wait on a thread of your own, or add another callback"
        )


def wait_for(coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Runs a coroutine on the loop and waits for it, on any thread but the loop's.

    Raises:
        RuntimeError: On the loop's own.
        TimeoutError: If it takes longer than ``timeout_s``; it is cancelled.
    """
    try:
        refuse_loop()
    except RuntimeError:
        coroutine.close()
        raise
    future = asyncio.run_coroutine_threadsafe(coroutine, process_loop.get())
    try:
        return future.result(timeout_s)
    except concurrent.futures.TimeoutError:  # which Python 3.10 has a class of its own for
        if future.done():  # it is one of the coroutine's own errors
            raise
        future.cancel()
        raise TimeoutError(f"not within {timeout_s:g} s") from None
    except BaseException:  # also an interrupt of the thread that waits
        future.cancel()
        raise


class ConcurrentEventLoop:
    """Runs coroutines concurrently on the asyncio loop of this process: while one waits for a reply, others go on.

    Long native calls do not belong on the loop's thread, where they would hold up all tasks: :meth:`run_native` runs
    them on a pool of at most 8 threads (they release the GIL).

    Args:
        concurrency: Tasks in flight at most, at least 1; :meth:`submit` waits for a free place.
        name: Prefix of the names of the native threads.

    Raises:
        ValueError: If ``concurrency`` is below 1.

    Example:
        >>> async def sample():
        ...     return "a batch"
        ...
        >>> loop = glt.distributed.ConcurrentEventLoop(concurrency=2)
        >>> loop.submit(sample).result()
        'a batch'
        >>> loop.shutdown()
    """

    def __init__(self, concurrency: int, name: str = "glt-sampler") -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency = {concurrency}: expected at least 1")
        self.concurrency = concurrency
        self._places = threading.Semaphore(concurrency)
        self._loop = process_loop.get()
        self._pool = NativePool(min(concurrency, 8), f"{name}-native")
        self._tasks: set[concurrent.futures.Future[Any]] = set()
        self._lock = threading.Lock()
        self._closed, self._pid = False, os.getpid()

    def submit(
        self, make_task: Callable[[], Coroutine[Any, Any, T]], is_stopped: Callable[[], bool] = lambda: False
    ) -> concurrent.futures.Future[T] | None:
        """Starts ``make_task()`` on the loop once a place is free; returns its future.

        Args:
            make_task: Makes the coroutine; not called before there is a place for it.
            is_stopped: Asked while waiting; when true, or when the loop was shut down, nothing is started and None is
                returned.

        Raises:
            RuntimeError: In a fork of the process that made this.
        """
        self._refuse_fork()
        while not self._places.acquire(timeout=0.1):
            if is_stopped() or self._closed:
                return None
        if is_stopped() or self._closed:
            self._places.release()
            return None
        future = asyncio.run_coroutine_threadsafe(make_task(), self._loop)
        with self._lock:
            self._tasks.add(future)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._tasks.discard(future)
        self._places.release()

    def run_native(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Runs a blocking call on the pool, in the context of the caller; awaited from a task of this loop.

        Raises:
            asyncio.CancelledError: If the loop was shut down.
            RuntimeError: In a fork of the process that made this.
        """
        self._refuse_fork()
        if self._closed:
            raise asyncio.CancelledError("the loop was shut down")
        return asyncio.wrap_future(self._pool.submit(copy_context().run, call, *args), loop=self._loop)

    def _refuse_fork(self) -> None:
        refuse_fork(self._pid, "make a loop of its own there", "process whose threads it needs")

    def wait_all(self, timeout_s: float) -> bool:
        """Waits for the tasks in flight, ``timeout_s`` seconds at most; false if some were not done in time. Their
        exceptions stay with them."""
        with self._lock:
            tasks = set(self._tasks)
        return not concurrent.futures.wait(tasks, timeout_s).not_done

    def shutdown(self, timeout_s: float = deadlines.JOIN_S) -> None:
        """Cancels what is in flight and ends the native threads; waits ``timeout_s`` seconds for the tasks and as long
        for each of the threads. May be called again. The asyncio loop goes on: others of this process use it."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        self.wait_all(timeout_s)
        self._pool.shutdown(timeout_s)

    @says
    def __repr__(self) -> str:
        return f"concurrency={self.concurrency}"
