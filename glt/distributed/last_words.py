"""What ended a trainer before it came to the others, told through the store of ``torch.distributed``.

A loader has a store of its own, where trainers tell each other what goes wrong from the moment they create it. One that
fails before, loading a partition that there is not for example, knows of no loader. But if ``init_process_group`` has
connected the trainers, it leaves word in that store as its process ends, and those who wait for it in a loader look
there. Nobody listens unless it waits, and nothing is told unless a process ends by an exception; so a job in which
nothing fails does not come here, or for a question or two while its trainers wait for each other.

Not under torchrun, which ends the other trainers itself, and starts them anew with the same store.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, util

import torch.distributed as dist

from glt.distributed.ending import Ending
from glt.distributed.timed_store import TimedStore
from glt.errors import PeerLost

LOOK_S = 1.0  # between two looks
_ANSWER_S = 3.0
_READ_S = 6.0  # for the others to read it, if the store may end with this process
_POLL_S = 0.05
_MOST_CHARACTERS = 2000

logger = logging.getLogger(__name__)


class LastWords:
    """What this process may tell at its end, and through what.

    Attributes:
        pid: Of the process: a fork tells nothing of its parent.
        store: The store of a process group that there was when something failed, which the program may take down
            before its end; None: the one that there is at the end.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.store: _JobStore | None = None
        self._ending = Ending()
        util.Finalize(None, self._leave, exitpriority=3)  # before loaders and jobs say goodbye, which may take long

    def _leave(self) -> None:
        why = self._ending.why()
        store = self.store or _JobStore.find()
        if not why or store is None:
            return
        # On a thread, for as long as this may take: another one may be waiting on the same connection.
        thread = threading.Thread(target=store.tell, args=(why,), name="glt-last-words", daemon=True)
        thread.start()
        thread.join(_ANSWER_S + _READ_S)


class _JobStore:
    """The part of ``torch.distributed``'s store that is for last words.

    Attributes:
        world_size, rank: Of the process group.
    """

    def __init__(self, store: dist.Store) -> None:
        self.world_size, self.rank = dist.get_world_size(), dist.get_rank()
        self._store = TimedStore(dist.PrefixStore("glt/last-words", store), _ANSWER_S)

    @staticmethod
    def find() -> _JobStore | None:
        """That of this process; None if it has none, or not one that is of this process and this attempt only."""
        if not dist.is_initialized() or dist.is_torchelastic_launched():
            return None
        if id(dist.distributed_c10d._get_default_group()) == _inherited:
            return None  # a fork would talk on its parent's connection
        store = inner = dist.distributed_c10d._get_default_store()
        while isinstance(inner, dist.PrefixStore):
            inner = inner.underlying_store
        return _JobStore(store) if isinstance(inner, dist.TCPStore) else None

    def tell(self, why: str) -> None:
        """Leaves word. Trainer 0, whose process usually hosts the store, waits for others to read it.

        Of a child of multiprocessing only those who wait already: its parent may be about to end them all.
        """
        who = f"trainer {self.rank} (host {socket.gethostname()}, pid {os.getpid()})"
        text = f"{who} has ended before it came to the others: {why}"[:_MOST_CHARACTERS]
        try:
            self._store.set(f"ended/{self.rank}", text)
            deadline = time.monotonic() + _READ_S
            while self.rank == 0 and time.monotonic() < deadline and self._is_waited_for():
                time.sleep(_POLL_S)
        except RuntimeError as error:
            logger.info("could not tell the other trainers: %s", error)

    def _is_waited_for(self) -> bool:
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        if parent_process() is not None:
            others = [rank for rank in others if self._store.check([f"waits/{rank}"])]
        return not all(self._store.check([f"read/{self.rank}/{rank}"]) for rank in others)

    def hear(self, ranks: Iterable[int]) -> str | None:
        """What one of these trainers has left; None if nothing."""
        self._store.set(f"waits/{self.rank}", "1")
        for rank in ranks:
            if self._store.check([f"ended/{rank}"]):
                text = self._store.get(f"ended/{rank}").decode(errors="replace")
                self._store.set(f"read/{rank}/{self.rank}", "1")
                return text
        return None


class LastWordsListener:
    """Looks for the last words of trainers that are waited for. It never waits itself.

    Args:
        me: This process, as errors name it.
        world_size, rank: The place of this trainer. Nothing is heard unless its process group gives it the same.
    """

    def __init__(self, me: str, world_size: int, rank: int) -> None:
        self._me = me
        found = _JobStore.find()
        self._store = found if found is not None and (found.world_size, found.rank) == (world_size, rank) else None
        self._asks: threading.Thread | None = None
        self._heard: str | None = None
        self._asked_s = -math.inf

    def look(self, ranks: Iterable[int]) -> None:
        """To be called again and again while these trainers are waited for.

        Raises:
            glt.errors.PeerLost: If one of them has left word; with it.
        """
        if self._heard is not None:
            raise PeerLost(f"{self._me}: {self._heard}")
        store, now = self._store, time.monotonic()
        if store is None or now < self._asked_s + LOOK_S or (self._asks is not None and self._asks.is_alive()):
            return
        self._asked_s = now
        wanted = list(ranks)
        # On a thread: whoever hosts the store may be stopped, and others of this process may be waiting for a value.
        self._asks = threading.Thread(target=self._ask, args=(store, wanted), name="glt-last-words", daemon=True)
        self._asks.start()

    def _ask(self, store: _JobStore, ranks: list[int]) -> None:
        try:
            self._heard = store.hear(ranks)
        except RuntimeError as error:  # who hosted it may have taken down its group, and be on its way
            logger.info("%s hears nothing more through torch.distributed: %s", self._me, error)
            self._store = None


_lock = threading.Lock()
_mine: LastWords | None = None
_inherited: int | None = None  # of a fork: the process group of its parent


def leave_last_words() -> LastWords:
    """From now on, if an exception ends this process, those who wait for it are told. May be called again."""
    global _mine
    with _lock:
        if _mine is None or _mine.pid != os.getpid():
            _mine = LastWords()
        return _mine


@contextmanager
def keeping_touch() -> Iterator[None]:
    """Wraps what a trainer does before it comes to the others, as a decorator, too.

    If that fails, the way to them is kept: a program may take down its process group before it ends.
    """
    words = leave_last_words()
    try:
        yield
    except Exception:
        words.store = _JobStore.find()
        raise
    words.store = None


def _note_fork() -> None:
    global _inherited, _lock
    _lock = threading.Lock()
    _inherited = id(dist.distributed_c10d._get_default_group()) if dist.is_initialized() else None


os.register_at_fork(after_in_child=_note_fork)
