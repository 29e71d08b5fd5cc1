"""Stores of ``torch.distributed``: how processes that nothing else connects tell each other where they are."""

from __future__ import annotations

import math
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from glt import _deadlines as deadlines
from glt.distributed.wire.handshake import Hint
from glt.distributed.wire.listener import warn_or_refuse
from glt.distributed.wire.threads import NativePool
from glt.errors import RendezvousError

T = TypeVar("T")

_SILENT = "the process that hosts it is stopped, or the network is cut"


class TimedStore:
    """Passes calls on to a store, and raises ``torch.distributed.DistError`` when the store is lost or does not answer.

    The deadline that torch has is one for values to be set. Where the process that hosts a store is stopped, or its
    host cannot be reached any more, a call such as ``check`` never returns. So calls are made on another thread, which
    is left behind after ``answer_s``, by default half a minute, or sooner: a wait has one deadline, that of what it
    waits for.
    """

    def __init__(self, store: dist.Store, answer_s: float | None = None) -> None:
        self.store, self.answer_s = store, deadlines.ANSWER_S if answer_s is None else answer_s
        self._is_silent = ""  # and for how long, once it is
        # Started now: at exit, when stores are asked too, Python 3.12 starts no threads any more.
        self._pool = NativePool(1, "glt-ask-store")
        weakref.finalize(self, self._pool.end).atexit = False

    def check(self, keys: Sequence[str], most_s: float = math.inf) -> bool:
        """Whether all of these are set. Waits for ``most_s`` at most."""
        return self._ask(lambda: self.store.check(list(keys)), most_s)

    def get(self, key: str, most_s: float = math.inf) -> bytes:
        """The value of a key that is set. Waits for ``most_s`` at most."""
        return self._ask(lambda: self.store.get(key), most_s)

    def set(self, key: str, value: str) -> None:
        self._ask(lambda: self.store.set(key, value))

    def wait_for(self, key: str, timeout_s: float, missing: str) -> bytes | None:
        """Waits for a key to be set and returns its value; None if it is not set in time. Says every few seconds what
        is ``missing``."""
        deadline, hint = time.monotonic() + timeout_s, Hint(timeout_s)
        while (left_s := deadline - time.monotonic()) > 0:
            if self.check([key], left_s):
                return self.get(key, left_s)
            hint.give(missing)
            time.sleep(deadlines.FAST_POLL_S)
        return None

    def _ask(self, call: Callable[[], T], most_s: float = math.inf) -> T:
        if self._is_silent:
            raise dist.DistError(self._is_silent)
        most_s = min(most_s, self.answer_s)
        deadline, hint, answer = time.monotonic() + most_s, Hint(most_s), self._pool.submit(call)
        while not wait([answer], min(deadlines.POLL_S, max(0.0, deadline - time.monotonic()))).done:
            if time.monotonic() > deadline:
                self._is_silent = f"it gave no answer within {most_s:.3g} s: {_SILENT}"
                raise dist.DistError(self._is_silent)
            hint.give(f"the store of torch.distributed gives no answer: {_SILENT}")
        return answer.result()


def wait_for_all(store: TimedStore, keys: Sequence[str], timeout_s: float) -> list[bytes]:
    """Waits for processes to have set a key each, and returns the values."""
    deadline, hint = time.monotonic() + timeout_s, Hint(timeout_s)
    while missing := [key for key in keys if not store.check([key], max(0.1, deadline - time.monotonic()))]:
        if time.monotonic() > deadline:
            raise RendezvousError(f"{missing} did not come within {timeout_s:g} s")
        hint.give(f"{missing} did not come yet")
        time.sleep(deadlines.FAST_POLL_S)
    return [store.get(key) for key in keys]


def connect(addr: str, port: int, prefix: str, timeout_s: float) -> dist.Store:
    """Returns the store at ``addr:port``, restricted to keys under ``prefix``."""
    advice = (
        "the trainer of rank 0 opens it when it creates the loader; check that it runs (and is not stopped), and that "
        "master_addr and master_port reach it"
    )
    deadline, hint = time.monotonic() + timeout_s, Hint(timeout_s)
    while not _is_listening(addr, port):
        if time.monotonic() > deadline:
            raise RendezvousError(f"no store at {addr}:{port} within {timeout_s:g} s: {advice}")
        hint.give(f"no store at {addr}:{port} yet: {advice}")
        time.sleep(deadlines.FAST_POLL_S)
    handshake_s = min(timeout_s, deadlines.HANDSHAKE_S)
    # On a thread, since against a program that accepts and says nothing torch waits forever, whatever its timeout. On a
    # second one, since once in some hundred starts, on a busy machine, a store left a connection without an answer.
    threads, tries = NativePool(2, "glt-connect"), list[Future[dist.TCPStore]]()
    limit = timedelta(seconds=handshake_s)
    for wait_s in (handshake_s / 2, handshake_s / 2 + 1):
        tries.append(threads.submit(dist.TCPStore, addr, port, None, False, limit, False))
        if wait(tries, wait_s, FIRST_COMPLETED).done:
            break
    threads.end()
    try:
        store = next((each for each in tries if each.done()), tries[0]).result(0)
    except (FutureTimeout, RuntimeError) as error:
        why = str(error) or "it accepts connections and says nothing"
        raise RendezvousError(
            f"what listens at {addr}:{port} is no store, or did not answer within {handshake_s:g} s: {advice}, and not "
            f"another program that has this port ({why.splitlines()[0]})"
        ) from error
    store.set_timeout(timedelta(seconds=timeout_s))
    return dist.PrefixStore(prefix, store)


def _is_listening(addr: str, port: int) -> bool:
    try:
        with socket.create_connection((addr, port), timeout=deadlines.HANDSHAKE_S):
            return True
    except (socket.gaierror, UnicodeError) as error:
        raise RendezvousError(f"master_addr = {addr!r}: no such host ({error})") from error
    except OSError:
        return False  # not yet


_lock = threading.Lock()
_hosted: list[dist.TCPStore] = []  # loaders of this process share one


def host_store() -> int:
    """Opens a store in this process, once, and returns its port."""
    with _lock:
        if not _hosted:
            warn_or_refuse(
                "rpc",
                "transport = 'rpc' listens at all interfaces, and who reaches it runs code, as torch unpickles what "
                "comes. Use it on a network that you trust, or give transport = 'tcp' and a token",
            )
            _hosted.append(dist.TCPStore("0.0.0.0", 0, None, True, wait_for_workers=False))
        return int(_hosted[0].port)


def job_store(answer_s: float) -> TimedStore:
    """The store that ``torch.distributed`` connected the trainers with; others of this process may be using it."""
    if not dist.is_initialized():
        raise RendezvousError(
            "the trainers do not know each other yet: give worker_options a master_addr and master_port, or call "
            "torch.distributed.init_process_group before creating the loader, and a port will be found"
        )
    return TimedStore(dist.distributed_c10d._get_default_store(), answer_s)


@contextmanager
def naming_the_job_store(me: str) -> Iterator[None]:
    """Raises RendezvousError if the store of ``torch.distributed`` is lost; ``me``: this process, as errors name it."""
    try:
        yield
    except dist.DistError as error:
        raise RendezvousError(
            f"{me}: lost the store of torch.distributed, through which trainer 0 tells its port: that trainer, or "
            f"the process that hosts the store, has ended, or left its process group ({str(error).splitlines()[0]})"
        ) from error
