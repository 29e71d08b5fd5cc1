"""Signs of life of the trainers of a loader, kept in its store, and waits that look for them."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import util
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch.distributed as dist

from glt.distributed.wire.threads import NativePool
from glt.errors import PeerLost, RendezvousError

if TYPE_CHECKING:
    from glt.distributed.wire.rendezvous import KeyStore, Rendezvous

# Why trainers of a loader gave up: told through its store, and remembered for when the store is gone.


_MOST_CHARACTERS = 2000


class Failures:
    """What the other trainers of a loader have reported of themselves.

    The store is in the process of trainer 0, which may end because of its own failure, while another trainer is busy
    for minutes with a batch and will only then meet the consequences: so the reports are looked for at every beat
    (:meth:`listen`), and what was read is acknowledged, which trainer 0 waits for before it ends.

    Args:
        store: The loader's.
        rank: This trainer.
        others: The other ones.
    """

    def __init__(self, store: KeyStore, rank: int, others: Sequence[int]) -> None:
        self._store, self._rank, self._others = store, rank, tuple(others)
        self._heard: dict[int, str] = {}

    def report(self, error: BaseException) -> None:
        """Tells the others why this trainer cannot go on. A second report replaces the first.

        Raises:
            RuntimeError: If the store is gone.
        """
        self._store.set(f"failed/{self._rank}", f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS])
        self._store.set("failed", "1")  # one key to look at for all of them

    def listen(self, store: KeyStore) -> None:
        """Takes note of new reports.

        Args:
            store: The connection to use, of the thread that calls.

        Raises:
            RuntimeError: If the store is gone.
        """
        if not store.check(["failed"]):
            return
        for rank in self._others:
            if rank not in self._heard and store.check([f"failed/{rank}"]):
                self._heard[rank] = f"{trainer_name(store, rank)} has reported {reason_of(store, rank)}"
                store.set(f"heard/{rank}/{self._rank}", "1")

    def told(self) -> list[str]:
        """What is known now, a sentence per trainer that failed."""
        try:
            self.listen(self._store)
        except RuntimeError:
            gone = "the store of the loader, in the process of trainer 0, is gone too"
            return list(self._heard.values()) or [gone]
        return list(self._heard.values())

    def unread_by(self, ranks: Sequence[int]) -> list[int]:
        """Which of the trainers, being still at work, have not read the report of this one.

        One that has failed too may be about to read it: to find out why.
        """
        ends = ("done/{}", f"heard/{self._rank}/{{}}")
        return [rank for rank in ranks if not any(self._store.check([end.format(rank)]) for end in ends)]


def reason_of(store: KeyStore, rank: int) -> str:
    """The report of a trainer that has failed."""
    return str(store.get(f"failed/{rank}").decode())


def trainer_name(store: KeyStore, rank: int) -> str:
    """The trainer, as errors name it."""
    key = f"trainer/{rank}"
    if not store.check([key]):
        return f"trainer {rank}"
    who = json.loads(store.get(key))
    return f"trainer {rank} (host {who['host']}, pid {who['pid']})"


# A port that tells whether a process lives, whatever its threads are doing.


_BACKLOG = 1024  # connections since the last beat; the kernel may allow fewer
_CONNECT_S = 1.0


class Lifeline:
    """A listening socket of this process.

    The kernel completes connections to it without any thread of the process, and refuses them once the process is dead:
    so it answers for a trainer whose heartbeat cannot run, because another thread holds the GIL or the host is
    overloaded. Nothing is read from it or written to it.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0), backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        _open.add(self)

    def hang_up(self) -> None:
        """Ends the connections that were made so far, so that there is room for others."""
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return

    def close(self) -> None:
        """Ends it. May be called again."""
        self._socket.close()


def answers(address: str, port: int) -> bool | None:
    """Whether the process whose lifeline is at ``address:port`` lives; None if its host cannot be reached."""
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return None


_open: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _cut() -> None:
    """A fork would keep the port open after its parent died."""
    for line in list(_open):
        line.close()


os.register_at_fork(after_in_child=_cut)


POLL_S = 0.05
BEAT_S = 1.0
DOUBT_S = 2.5  # a trainer that beat before and is silent for so long is asked through its lifeline whether it lives
SILENT_S = 6.0  # if its lifeline cannot be reached, it is dead after so long
STUCK_S = 60.0  # and after so long even if it lives: it is stopped, or its interpreter is stuck
HINT_S = 5.0  # of a wait for trainers that have not come yet, before it is said whom it waits for
_ASK_S = 0.5  # between two questions

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Hint:
    """Says once what a long wait is waiting for: whoever fails before it comes to the others is not missed by them
    until their deadline, which is minutes.

    Args:
        timeout_s: The deadline.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._due_s = time.monotonic() + HINT_S

    def give(self, missing: str) -> None:
        """Says so, if it is time: what is missing now."""
        if time.monotonic() > self._due_s:
            self._due_s = math.inf
            logger.warning("%s; waiting for up to %g s", missing, self._timeout_s)


@contextmanager
def naming_the_host(me: str) -> Iterator[None]:
    """Raises PeerLost, of trainer 0, if the store of the loader is lost; ``me`` is this process, as errors name it."""
    try:
        yield
    except dist.DistError as error:
        raise PeerLost(
            f"{me}: lost the store of the loader, which is in the process of trainer 0: that trainer died, was stopped "
            f"or gave up; its output says why ({str(error).splitlines()[0]})"
        ) from error


class Heartbeat:
    """Tells the others, every second, that this trainer is still there.

    Args:
        store: A connection of its own: one that another thread waits on would let no beat through.
        rank: This trainer.
        address: Of this host, as the others reach it.
        listen: Called after each beat, with ``store``; raises RuntimeError if that is gone.
    """

    def __init__(
        self, store: KeyStore, rank: int, address: str, listen: Callable[[KeyStore], None] = lambda store: None
    ) -> None:
        self._stop = threading.Event()
        self._listen = listen
        self._line = Lifeline()
        store.set(f"line/{rank}", json.dumps([address, self._line.port]))
        self._thread = threading.Thread(target=self._run, args=(store, rank), name="glt-heartbeat", daemon=True)
        self._thread.start()

    def _run(self, store: KeyStore, rank: int) -> None:
        count = 0
        try:
            while not self._stop.wait(BEAT_S if count else 0):
                count += 1
                store.set(f"beat/{rank}", str(count))
                self._line.hang_up()
                self._listen(store)
        except RuntimeError:
            return  # the store is gone, and with it everyone who would listen

    def close(self) -> None:
        """Ends the beats. May be called again."""
        self._stop.set()
        self._thread.join(timeout=2 * BEAT_S)
        self._line.close()


@dataclass
class _Seen:
    """What a watch knows of a trainer."""

    beat: bytes
    beat_s: float  # when the last new beat was seen, of time.monotonic()
    line: tuple[str, int]
    can_answer: bool  # whether its lifeline could be reached when it was first seen
    asked_s: float = 0.0


class Watch:
    """Looks after the trainers of a loader.

    Args:
        store: The loader's.
        me: This process, as errors name it.
        look: Called again and again with those who have not come yet; raises if one never will.
    """

    def __init__(self, store: KeyStore, me: str, look: Callable[[Sequence[int]], None] = lambda ranks: None) -> None:
        self._store, self._me, self._look = store, me, look
        self._seen: dict[int, _Seen] = {}

    def is_alive(self, rank: int) -> bool:
        """Whether the trainer lives, as far as signs of life tell; one that has given none yet is waited for."""
        key = f"beat/{rank}"
        if not self._store.check([key]):
            return True
        beat, now = self._store.get(key), time.monotonic()
        seen = self._seen.get(rank)
        if seen is None:
            address, port = json.loads(self._store.get(f"line/{rank}"))
            self._seen[rank] = _Seen(beat, now, (address, port), can_answer=answers(address, port) is True)
            return True
        if beat != seen.beat:
            seen.beat, seen.beat_s = beat, now
        silent_s = now - seen.beat_s
        if silent_s < DOUBT_S or now - seen.asked_s < _ASK_S:
            return True
        seen.asked_s = now
        answer = answers(*seen.line) if seen.can_answer else None
        if answer is None:
            return silent_s < SILENT_S
        return answer and silent_s < STUCK_S

    def wait_for(self, keys: Mapping[str, int], what: str, timeout_s: float) -> list[bytes]:
        """Waits until trainers have set keys, and returns the values.

        Args:
            keys: The keys, and the rank of the trainer that sets each.
            what: What a trainer that does not, fails to do; for the error.
            timeout_s: Deadline in seconds.

        Raises:
            glt.errors.PeerLost: If one of those trainers gave up or died; names it.
            glt.errors.RendezvousError: If the deadline passes, or two processes came as one rank; names them.
        """
        deadline = time.monotonic() + timeout_s
        missing = list(keys)
        hint = Hint(timeout_s)
        with naming_the_host(self._me):
            while missing := [key for key in missing if not self._store.check([key])]:
                for key in missing:
                    try:
                        self._check(keys[key])
                    except PeerLost:
                        if not self._store.check([key]):  # else it gave up after it did what is waited for
                            raise
                if self._store.check(["clash"]):
                    raise RendezvousError(f"{self._me}: {self._store.get('clash').decode()}")
                ranks = sorted({keys[key] for key in missing})
                self._look(ranks)
                hint.give(f"{self._me}: trainers of rank {ranks} did not {what} yet")
                if time.monotonic() > deadline:
                    raise RendezvousError(
                        f"{self._me}: trainers of rank {ranks} did not {what} within {timeout_s:g} s; do all ranks "
                        "create the same loaders in the same order?"
                    )
                time.sleep(POLL_S)
            return [self._store.get(key) for key in keys]

    def check(self, ranks: Iterable[int]) -> None:
        """Raises PeerLost if one of these trainers gave up or died while the loader starts; names it."""
        with naming_the_host(self._me):
            for rank in ranks:
                self._check(rank)

    def during(self, call: Callable[[], T], ranks: Iterable[int]) -> T:
        """Runs a call that waits for these trainers, on a thread of its own, and leaves it behind if one of them dies.

        Raises:
            glt.errors.PeerLost: Then; names it.
        """
        pool = NativePool(1, "glt-start")
        future = pool.submit(call)
        ranks = list(ranks)
        try:
            while not wait([future], 4 * POLL_S).done:
                self.check(ranks)
            return future.result()
        finally:
            pool.shutdown(0)

    def _check(self, rank: int) -> None:
        if self._store.check([f"failed/{rank}"]):
            reason = reason_of(self._store, rank)
            who = trainer_name(self._store, rank)
            raise PeerLost(f"{self._me}: {who} could not start its part of the loader: {reason}")
        if not self.is_alive(rank):
            silent_s = time.monotonic() - self._seen[rank].beat_s
            who = trainer_name(self._store, rank)
            raise PeerLost(
                f"{self._me}: {who} died while the loader started, or is stuck: it has given no sign of "
                f"life for {silent_s:.0f} s; its output, or dmesg on its host, says why"
            )


# Samplers that outlive their loader for as long as other trainers need the partition that they serve.


_GRACE_S = 5.0


class Backend(Protocol):
    """What makes the batches of a loader."""

    def drain(self) -> None: ...

    def close(self, all_finished: bool = False) -> None: ...


_lingering: set[threading.Thread] = set()
_waited_for_by = 0  # the process whose end waits for them


def end(backend: Backend, rendezvous: Rendezvous | None) -> None:
    """Ends the sampling of a loader, and its samplers once no living trainer needs them.

    Returns after a few seconds at most. A trainer that is needed for longer goes on serving in the background, so that
    trainers may end their loaders at different times and in different orders; its process then ends when the others
    have finished or died.

    Args:
        backend: The samplers.
        rendezvous: Where the trainers are who may ask them; None if nobody does.
    """
    backend.drain()
    if rendezvous is None:
        backend.close()
        return
    thread = _start(backend, rendezvous)
    thread.join(_GRACE_S)
    if thread.is_alive():
        logger.info(
            "%s goes on serving its partition to trainers that have not finished", rendezvous.context.worker_name
        )


def abandon(backend: Backend, rendezvous: Rendezvous | None, pid: int) -> None:
    """What becomes of a loader that was not shut down: it was collected, or the interpreter ends.

    Args:
        backend, rendezvous: As for :func:`end`.
        pid: The process that made the loader. A fork of it has nothing to end.
    """
    if os.getpid() != pid:
        return
    backend.drain()
    if threading.main_thread().is_alive():
        # Waits for nothing: a collection may happen anywhere, under any lock, on a thread of the sampler itself.
        _start(backend, rendezvous)
    else:
        # The interpreter ends, perhaps because of an exception that others wait to hear of.
        _finish(backend, rendezvous, _GRACE_S)


def _start(backend: Backend, rendezvous: Rendezvous | None) -> threading.Thread:
    global _waited_for_by
    if _waited_for_by != os.getpid():
        # Of multiprocessing, not of atexit, which its children never come to unless they are spawned: trainers may be
        # forked. Registered here, since such a child forgets what its parent has registered.
        util.Finalize(None, _wait, exitpriority=1)
        _waited_for_by = os.getpid()
    thread = threading.Thread(target=_finish, args=(backend, rendezvous, None), name="glt-linger", daemon=True)
    # Until it is dead, not until it has finished: it may be the last to let go of the samplers, and a daemon that frees
    # a tensor while the interpreter ends takes the process with it ("terminate called without an active exception").
    _lingering.difference_update([earlier for earlier in list(_lingering) if earlier.ident and not earlier.is_alive()])
    _lingering.add(thread)
    thread.start()
    return thread


def _finish(backend: Backend, rendezvous: Rendezvous | None, timeout_s: float | None) -> None:
    if rendezvous is None:
        backend.close()
        return
    missing: list[int] = []
    try:
        missing = rendezvous.finish(timeout_s)
        if missing:
            logger.warning("trainers of rank %s were not waited for: they or this one died or gave up", missing)
    finally:
        backend.close(all_finished=not missing)


def _wait() -> None:
    """Bounded by the lives of the trainers that are waited for: each wait ends when they finish or fall silent."""
    for thread in list(_lingering):
        thread.join()
