"""How the trainers of a job find each other, agree on options and know who is still there.

A TCP key-value store (``torch.distributed.TCPStore``) in the process of rank 0 carries a few small JSON values per
loader: who takes part, with which options, and who has finished. Nothing in it is executed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import util
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

from glt.distributed.context import DistContext
from glt.distributed.wire.liveness import POLL_S, Failures, Heartbeat, Hint, Watch, naming_the_host
from glt.distributed.wire.threads import NativePool
from glt.errors import GltError, PeerLost, RendezvousError

# A store of ``torch.distributed`` whose every call has a deadline.


ANSWER_S = 30.0  # a store answers at once, unless its host is overloaded
_POLL_S = 0.05

T = TypeVar("T")


class KeyStore(Protocol):
    """What glt needs of a store."""

    def check(self, keys: list[str], /) -> bool: ...

    def get(self, key: str, /) -> bytes: ...

    def set(self, key: str, value: str, /) -> None: ...


class TimedStore:
    """Passes calls on to a store, and gives up on it when one is not answered.

    The deadline that torch has is one for values to be set. Where the process that hosts a store is stopped, or its
    host cannot be reached any more, a call such as ``check`` never returns. So calls are made on another thread, which
    is left behind then.

    Args:
        store: What is asked.
        answer_s: How long an answer may take, in seconds; default: half a minute.
    """

    def __init__(self, store: dist.Store, answer_s: float | None = None) -> None:
        self.store, self.answer_s = store, ANSWER_S if answer_s is None else answer_s
        self._silent = False
        # Started now: at exit, when stores are asked too, Python 3.12 starts no threads any more.
        self._pool = NativePool(1, "glt-ask-store")
        weakref.finalize(self, self._pool.end).atexit = False

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these are set; errors as of :meth:`ask`."""
        return self.ask(lambda: self.store.check(list(keys)))

    def get(self, key: str) -> bytes:
        """The value of a key that is set; errors as of :meth:`ask`."""
        return self.ask(lambda: self.store.get(key))

    def set(self, key: str, value: str) -> None:
        """Errors as of :meth:`ask`."""
        self.ask(lambda: self.store.set(key, value))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Errors as of :meth:`ask`."""
        return self.ask(lambda: self.store.compare_set(key, expected, desired))

    def wait_for(self, key: str, timeout_s: float, look: Callable[[], None] = lambda: None) -> bytes | None:
        """Waits for a key to be set; errors as of :meth:`ask`.

        Args:
            key: Which one.
            timeout_s: Deadline in seconds.
            look: Called again and again until then; raises if it never will be.

        Returns:
            Its value; None if it is not set in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() <= deadline:
            try:
                is_set = self.check([key])
            except dist.DistError:
                raise
            except RuntimeError:
                return self._wait_for(key, timeout_s)  # a store of the user's own, which need not be able to check
            if is_set:
                return self.get(key)
            look()
            time.sleep(_POLL_S)
        return None

    def _wait_for(self, key: str, timeout_s: float) -> bytes | None:
        def wait() -> bytes | None:
            try:
                self.store.wait([key], timedelta(seconds=timeout_s))
            except RuntimeError:
                return None
            return self.store.get(key)

        return self.ask(wait, timeout_s + self.answer_s)

    def ask(self, call: Callable[[], T], answer_s: float | None = None) -> T:
        """Makes a call; ``answer_s`` is its own deadline, if it has one.

        Raises:
            torch.distributed.DistError: If the store is lost, or gives no answer in time, now or earlier.
        """
        if self._silent:
            raise self._gives_no_answer()
        try:
            return self._pool.submit(call).result(self.answer_s if answer_s is None else answer_s)
        except FutureTimeout:
            self._silent = True
            raise self._gives_no_answer() from None

    def _gives_no_answer(self) -> Exception:
        return dist.DistError(
            f"it gave no answer within {self.answer_s:g} s: the process that hosts it is stopped, or the network is cut"
        )


_READ_S = 6.0  # for the others to read why the trainer that hosts the store gave up: a beat, unless it is overloaded
_HANDSHAKE_S = 6.0  # a store answers at once, unless its host is overloaded

logger = logging.getLogger(__name__)


_lock = threading.Lock()
_hosted: dict[int, dist.TCPStore] = {}  # stores of this process by port: loaders of a job may share one
_num_created = 0  # loaders of this process so far: all trainers create them in the same order


class Rendezvous:
    """The store of one loader, the same on all its trainers.

    Args:
        context: This trainer.
        master_addr, master_port, timeout_s: As in the worker options.

    Raises:
        RendezvousError: If the store cannot be opened or reached, or another process is this trainer; says what to do.
    """

    def __init__(
        self, context: DistContext, master_addr: str | None, master_port: int | None, timeout_s: float
    ) -> None:
        self.context = context
        self.timeout_s = timeout_s
        self._has_given_up = False
        self.addr = master_addr or os.environ.get("MASTER_ADDR") or "localhost"
        global _num_created
        with _lock:
            self.prefix = f"glt/{_num_created}"
            _num_created += 1
        if context.rank == 0:
            self.port = _host(master_port)
            if master_port is None and context.world_size > 1:
                self._tell_port()
        else:
            self.port = self._published_port() if master_port is None else master_port
        first = connect(self.addr, self.port, self.prefix, timeout_s)
        self.store = TimedStore(first, min(ANSWER_S, max(timeout_s, _HANDSHAKE_S)))
        with naming_the_host(context.worker_name):
            self._take_place()
        self._watch = Watch(self.store, context.worker_name)
        self._failures = Failures(self.store, context.rank, self._others())
        address = _own_address(self.addr, self.port)
        with naming_the_host(context.worker_name):
            self._heartbeat = Heartbeat(self.connect(), context.rank, address, self._failures.listen)

    def _take_place(self) -> None:
        """Raises if another process has come as this trainer: what it tells would be taken for what this one does."""
        rank, me = self.context.rank, f"host {socket.gethostname()}, pid {os.getpid()}"
        first = self.store.compare_set(f"place/{rank}", "", me).decode()
        if first == me:
            return
        text = (
            f"two processes came as rank {rank} to the store at {self.addr}:{self.port}: first that of {first}, then "
            f"that of {me}; expected a rank of its own for each. If they are of different jobs, give each job a "
            "master_port of its own"
        )
        if not self.store.check([f"trainer/{each}" for each in range(self.context.world_size)]):
            self.store.set("clash", text)  # the others wait for a rank that will not come; a complete job goes on
        raise RendezvousError(f"{self.context.worker_name}: {text}")

    def connect(self) -> dist.Store:
        """Returns another connection to the store: on one that a thread waits on, others can do nothing meanwhile."""
        return connect(self.addr, self.port, self.prefix, self.timeout_s)

    def _others(self) -> list[int]:
        return [rank for rank in range(self.context.world_size) if rank != self.context.rank]

    def check_peers(self) -> None:
        """Raises PeerLost if another trainer gave up or died while this loader starts; names it."""
        self._watch.check(self._others())

    def during(self, call: Callable[[], T]) -> T:
        """Runs a call that waits for all trainers, for as long as they live; see :meth:`Watch.during`."""
        return self._watch.during(call, self._others())

    def tell(self, error: GltError) -> GltError:
        """Tells the others what this trainer lost, and returns the error with what they have told.

        The loss of one process makes its trainer end, which others then lose in turn: the first one may be the last
        that a trainer hears of.
        """
        try:
            self._failures.report(error)
        except RuntimeError as gone:
            logger.info("%s: could not tell the others: %s", self.context.worker_name, gone)
        told = self._failures.told()
        if not told or not isinstance(error, PeerLost):
            return error
        return PeerLost("; ".join([str(error), *told]))

    def _tell_port(self) -> None:
        with naming_the_job_store(self.context.worker_name):
            _job_store(self.timeout_s).set(self._port_key, str(self.port))

    def _published_port(self) -> int:
        name, store = self.context.worker_name, _job_store(self.timeout_s)
        hint = Hint(self.timeout_s)

        def look() -> None:
            hint.give(f"{name}: the trainer of rank 0 has opened no port for this loader yet")

        with naming_the_job_store(name):
            port = store.wait_for(self._port_key, self.timeout_s, look)
        if port is None:
            raise RendezvousError(
                f"{name}: the trainer of rank 0 opened no port within {self.timeout_s:g} s; did it create its loaders "
                "in the same order?"
            )
        return int(port)

    @property
    def _port_key(self) -> str:
        return f"{self.prefix}/port"

    def exchange(self, value: dict[str, Any], topic: str = "trainer") -> list[dict[str, Any]]:
        """Shares a small JSON value with all trainers and returns everyone's, by rank. Once per topic.

        Raises:
            RendezvousError: If a trainer does not show up in time, or two come as the same; names them.
            PeerLost: If one shows up and dies.
        """
        value = {**value, "host": socket.gethostname(), "pid": os.getpid()}
        self.store.set(f"{topic}/{self.context.rank}", json.dumps(value))
        ranks = range(self.context.world_size)
        found = self._watch.wait_for({f"{topic}/{rank}": rank for rank in ranks}, "join this loader", self.timeout_s)
        self.store.set(f"seen-{topic}/{self.context.rank}", "1")
        if self.context.rank == 0:
            # If the values turn out to contradict each other, this process may end now, and the store with it: not
            # before the others have read them too, and can say the same.
            try:
                self._watch.wait_for({f"seen-{topic}/{rank}": rank for rank in ranks}, "read them", self.timeout_s)
            except PeerLost as error:
                logger.warning("%s", error)
        return [json.loads(each) for each in found]

    def finish(self, timeout_s: float | None) -> list[int]:
        """Says that this trainer needs its peers no more, and waits until they all say so or are gone.

        Until then others may still ask this trainer's samplers. Returns the ranks that did not finish: those that gave
        no sign of life any more, which are not waited for, those that have reported a failure, and those that the
        deadline overtook; all others where the failure is this trainer's own, at once if it has given up.

        Args:
            timeout_s: Deadline in seconds; None: as long as those waited for give signs of life.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        waiting = self._others()
        if self._has_given_up:
            return waiting
        silent: list[int] = []
        try:
            self.store.set(f"done/{self.context.rank}", "1")
            while waiting and time.monotonic() < deadline:
                waiting = [rank for rank in waiting if not self.store.check([f"done/{rank}"])]
                silent += [rank for rank in waiting if not self._watch.is_alive(rank)]
                waiting = [rank for rank in waiting if rank not in silent]
                if waiting:
                    time.sleep(POLL_S)
            if not waiting and self.store.check(["failed"]):
                # Who failed takes no leave: nobody is to wait for that. All see the same, reports coming before "done".
                failed = [rank for rank in self._others() if self.store.check([f"failed/{rank}"])]
                silent = sorted({*silent, *(failed or self._others())})
        except RuntimeError:
            pass  # the store is gone: rank 0, which hosts it, finished or died, and nobody can be waited for
        finally:
            self._heartbeat.close()
        return silent + waiting

    def leave(self) -> None:
        """Says that this trainer needs nobody and that nobody needs it; waits for nothing."""
        try:
            self.store.set(f"done/{self.context.rank}", "1")
        except RuntimeError as gone:
            logger.info("%s: the store is gone: %s", self.context.worker_name, gone)
        self._heartbeat.close()

    def give_up(self, error: BaseException) -> None:
        """Says that this trainer failed, and waits for nobody. May be called again."""
        if not self._has_given_up and self.context.rank == 0:
            # This process may end now, and the store with it: not before the others know why.
            util.Finalize(None, self._wait_for_readers, exitpriority=1)
        self._has_given_up = True
        try:
            self._failures.report(error)
            self.store.set(f"done/{self.context.rank}", "1")
        except RuntimeError as gone:
            logger.warning("%s: could not tell the others: %s", self.context.worker_name, gone)
        self._heartbeat.close()

    def _wait_for_readers(self) -> None:
        deadline = time.monotonic() + _READ_S
        waiting = self._others()
        while waiting and time.monotonic() < deadline:
            waiting = [rank for rank in self._failures.unread_by(waiting) if self._watch.is_alive(rank)]
            time.sleep(POLL_S)


def connect(addr: str, port: int, prefix: str, timeout_s: float, look: Callable[[], None] = lambda: None) -> dist.Store:
    """Returns the store at ``addr:port``, restricted to keys under ``prefix``.

    Args:
        addr, port, prefix: Where it is, and what of it.
        timeout_s: Deadline in seconds for it to be there.
        look: Called again and again while it is not; raises if it will never be.

    Raises:
        RendezvousError: If nothing listens there within ``timeout_s``, or something that is no store.
    """
    advice = (
        "the trainer of rank 0 opens it when it creates the loader; check that it runs (and is not stopped), and that "
        "master_addr and master_port reach it"
    )
    deadline = time.monotonic() + timeout_s
    hint = Hint(timeout_s)
    while not _is_listening(addr, port):
        if time.monotonic() > deadline:
            raise RendezvousError(f"no store at {addr}:{port} within {timeout_s:g} s: {advice}")
        look()
        hint.give(f"no store at {addr}:{port} yet: {advice}")
        time.sleep(POLL_S)
    handshake_s = min(timeout_s, _HANDSHAKE_S)
    opened: queue.SimpleQueue[dist.Store | RuntimeError] = queue.SimpleQueue()

    def open_store() -> None:
        try:
            opened.put(dist.TCPStore(addr, port, None, False, timedelta(seconds=handshake_s), wait_for_workers=False))
        except RuntimeError as error:
            opened.put(error)

    # On a thread, since against a program that accepts and says nothing torch waits forever, whatever its timeout. On a
    # second one, since once in some hundred starts, on a busy machine, a store left a connection without an answer.
    store: dist.Store | RuntimeError = RuntimeError("it accepts connections and says nothing")
    for wait_s in (handshake_s / 2, handshake_s / 2 + 1):
        threading.Thread(target=open_store, name="glt-connect", daemon=True).start()
        try:
            store = opened.get(timeout=wait_s)
            break
        except queue.Empty:
            continue
    if isinstance(store, RuntimeError):
        raise RendezvousError(
            f"what listens at {addr}:{port} is no store, or did not answer within {handshake_s:g} s: {advice}, and not "
            f"another program that has this port ({str(store).splitlines()[0]})"
        ) from store
    store.set_timeout(timedelta(seconds=timeout_s))
    return dist.PrefixStore(prefix, store)


def _own_address(addr: str, port: int) -> str:
    """The address of this host on the way to ``addr``, which is reached."""
    try:
        with socket.create_connection((addr, port), timeout=_HANDSHAKE_S) as connection:
            return str(connection.getsockname()[0])
    except OSError as error:
        raise RendezvousError(f"lost the store at {addr}:{port}, in the process of trainer 0: {error}") from error


def _is_listening(addr: str, port: int) -> bool:
    try:
        with socket.create_connection((addr, port), timeout=_HANDSHAKE_S):
            return True
    except socket.gaierror as error:
        raise RendezvousError(f"master_addr = {addr!r}: no such host ({error})") from error
    except OSError:
        return False  # not yet


def _host(master_port: int | None) -> int:
    """Opens a store in this process and returns its port; reuses one that is open at ``master_port``."""
    with _lock:
        if master_port is not None and master_port in _hosted:
            return master_port
        if master_port is None and _hosted:
            return next(iter(_hosted))
        try:
            store = dist.TCPStore("0.0.0.0", master_port or 0, None, True, wait_for_workers=False)
        except RuntimeError as error:
            raise RendezvousError(
                f"master_port = {master_port}: cannot be opened on {socket.gethostname()}, probably another program "
                f"has it; choose another, or leave it out to have one found ({error})"
            ) from error
        _hosted[store.port] = store
        return int(store.port)


def _job_store(answer_s: float) -> TimedStore:
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
            f"whoever hosts the store, has ended, or left its process group ({str(error).splitlines()[0]})"
        ) from error


def require_equal(values: list[dict[str, Any]], context: DistContext) -> None:
    """Raises RendezvousError naming the first option in which two trainers differ."""
    mine = values[context.rank]
    for rank, theirs in enumerate(values):
        for name in mine:
            if name in ("host", "pid", "partition_idx", "job_seed", "host_id", "graph_dir", "told"):
                continue
            if theirs.get(name) != mine[name]:
                raise RendezvousError(
                    f"{context.worker_name}: {name} differs between trainers: {mine[name]!r} on rank {context.rank}, "
                    f"{theirs.get(name)!r} on rank {rank} (host {theirs['host']}, pid {theirs['pid']}); expected the "
                    "same everywhere. Do all ranks create the same loaders in the same order?"
                )
