"""Arguments that one trainer refuses, while the others wait for it to join their loader."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import os
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from multiprocessing import parent_process, util
from typing import Any, ParamSpec

import torch.distributed as dist

from glt.distributed.context import DistRole, get_context
from glt.distributed.options import MpDistSamplingWorkerOptions, TrainerWorkerOptions
from glt.distributed.wire.rendezvous import Rendezvous
from glt.distributed.wire.threads import NativePool
from glt.errors import PeerLost

# What ends this process, if that is an exception.


class Ending:
    """Tells, at exit, why this process ends.

    Errors that were there before it was made do not count: a fork has what its parent had, such as the error of a
    notebook's last cell.
    """

    def __init__(self) -> None:
        # Not the errors themselves, which hold the frames that they went through.
        self._before = {(id(error), text_of(error)) for error in _errors()}

    def failure(self) -> BaseException | None:
        """The exception that ends this process: of a program, or in flight in a child of multiprocessing."""
        failure = next((each for each in _errors() if (id(each), text_of(each)) not in self._before), None)
        if isinstance(failure, SystemExit):  # as mp.spawn of torch ends a child that has failed
            return (failure.__context__ or failure) if failure.code else None
        return failure

    def why(self) -> str:
        """That in words; "" if there is none."""
        failure = self.failure()
        return "" if failure is None else text_of(failure)


def text_of(error: BaseException) -> str:
    """The last line of a traceback, or lines."""
    return "".join(traceback.format_exception_only(error)).strip()


def _errors() -> list[BaseException]:
    """What ended the interpreter, or a cell of it, and what is in flight."""
    return [each for each in (getattr(sys, "last_value", None), sys.exc_info()[1]) if each is not None]


# What ended a trainer before it came to the others, told through the store of ``torch.distributed``.
#
# A loader has a store of its own, where trainers tell each other what goes wrong from the moment they create it. One
# that fails before, loading a partition that there is not for example, knows of no loader. But if
# ``init_process_group`` has connected the trainers, it leaves word in that store as its process ends, and those who
# wait for it in a loader look there. Nobody listens unless it waits, and nothing is told unless a process ends by an
# exception; so a job in which nothing fails does not come here, or for a question or two while its trainers wait for
# each other.
#
# Not under torchrun, which ends the other trainers itself, and starts them anew with the same store.


_LOOK_S = 1.0  # between two looks
_ANSWER_S = 3.0
_READ_S = 6.0  # for the others to read it, if the store may end with this process
_STIR_S = 2.5  # and for one that has waited at some time to show that it waits now
_POLL_S = 0.05
_MOST_CHARACTERS = 2000
_MOST_CAUSES = 100

logger = logging.getLogger(__name__)


class _JobStore:
    """The part of ``torch.distributed``'s store that is for last words. Its methods may wait.

    Attributes:
        world_size, rank: Of the process group.
    """

    def __init__(self, store: dist.Store) -> None:
        self.world_size, self.rank = dist.get_world_size(), dist.get_rank()
        self._store = dist.PrefixStore("glt/last-words", store)

    @staticmethod
    def find() -> _JobStore | None:
        """That of this process; None if it has none, or not one that is of this process and this attempt only.

        Not to be kept: in a process that hosts it, whoever ends the process group means to end the store.
        """
        if not dist.is_initialized() or dist.is_torchelastic_launched():
            return None
        if id(dist.distributed_c10d._get_default_group()) == _inherited:
            return None  # a fork would talk on its parent's connection
        store = inner = dist.distributed_c10d._get_default_store()
        while isinstance(inner, dist.PrefixStore):
            inner = inner.underlying_store
        return _JobStore(store) if isinstance(inner, dist.TCPStore) else None

    def tell(self, why: str, is_early: bool) -> None:
        """Leaves word. Trainer 0, whose process usually hosts the store, waits for those who wait for it to read it.

        Args:
            why: What ended this process.
            is_early: Whether that was before any loader: the others may be about to wait, and are waited for too, but
                not by a child of multiprocessing, whose parent may be about to end them all.
        """
        who = f"trainer {self.rank} (host {socket.gethostname()}, pid {os.getpid()})"
        try:
            self._store.set(f"ended/{self.rank}", f"{who} has ended: {why}"[:_MOST_CHARACTERS])
            if self.rank == 0:
                self._wait_for_readers(is_early and parent_process() is None)
        except RuntimeError as error:
            logger.info("could not tell the other trainers: %s", error)

    def _wait_for_readers(self, all_of_them: bool) -> None:
        began = time.monotonic()
        others = [rank for rank in range(self.world_size) if rank != self.rank] if all_of_them else []
        while others and time.monotonic() < began + _READ_S:
            others = [rank for rank in others if not self._store.check([f"read/{self.rank}/{rank}"])]
            time.sleep(_POLL_S)
        looks = {} if all_of_them else self._looks()  # of those who have ever waited; who waits now looks again
        while looks and time.monotonic() < began + _READ_S:
            now = self._looks()
            is_over = time.monotonic() > began + _STIR_S
            unread = [rank for rank in now if not self._store.check([f"read/{self.rank}/{rank}"])]
            if not [rank for rank in unread if not is_over or now[rank] != looks.get(rank)]:
                return
            time.sleep(_POLL_S)

    def _looks(self) -> dict[int, int]:
        """How often each of the others has looked so far."""
        others = (rank for rank in range(self.world_size) if rank != self.rank)
        return {rank: self._store.add(f"looks/{rank}", 0) for rank in others if self._store.check([f"looks/{rank}"])}

    def hear(self, ranks: Sequence[int]) -> tuple[int, str] | None:
        """Which of these trainers has left word, and what; None if nobody has."""
        self._store.add(f"looks/{self.rank}", 1)
        for rank in ranks:
            if self._store.check([f"ended/{rank}"]):
                text: str = self._store.get(f"ended/{rank}").decode(errors="replace")
                self._store.set(f"read/{rank}/{self.rank}", "1")
                return rank, text
        return None


class LastWords:
    """What this process may tell at its end.

    Attributes:
        pid: Of the process: a fork tells nothing of its parent.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._ending = Ending()
        self._pool: NativePool | None = None
        util.Finalize(None, self._leave, exitpriority=3)  # before loaders and jobs say goodbye, which may take long

    def prepare(self) -> None:
        """Starts the thread that tells, if there is anyone to tell: at exit Python 3.12 starts none any more."""
        if self._pool is None and _JobStore.find() is not None:
            self._pool = NativePool(1, "glt-last-words")

    def _leave(self) -> None:
        failure = self._ending.failure()
        if failure is None:
            return
        kept = _store_of(failure)
        store = kept or _JobStore.find()
        if store is None:
            return
        try:
            # On a thread, and for so long at most: another one may be waiting for a value on the same connection.
            pool = self._pool or NativePool(1, "glt-last-words")
            pool.submit(store.tell, text_of(failure), kept is not None).result(_ANSWER_S + _READ_S)
        except (RuntimeError, FutureTimeout) as error:
            logger.info("could not tell the other trainers: %s", error)


class LastWordsListener:
    """Looks for the last words of trainers that are waited for. It never waits itself.

    Args:
        me: This process, as errors name it.
        world_size, rank: The place of this trainer. Nothing is heard unless its process group gives it the same.

    Attributes:
        ended: The trainer that has left word, if one has.
    """

    def __init__(self, me: str, world_size: int, rank: int) -> None:
        self._me, self._place = me, (world_size, rank)
        self._pool: NativePool | None = None
        self._asked: Future[tuple[int, str] | None] | None = None
        self.ended: int | None = None
        self._asked_s = -math.inf

    def look(self, ranks: Sequence[int]) -> None:
        """To be called again and again while these trainers are waited for.

        Raises:
            glt.errors.PeerLost: If one of them has left word; with it.
        """
        if self._asked is not None:
            if not self._asked.done():
                return  # whoever hosts the store may be stopped, or another thread waits for a value
            asked, self._asked = self._asked, None
            try:
                heard = asked.result()
            except RuntimeError as error:  # who hosted it may have taken down its group, and be on its way
                logger.info("%s hears nothing through torch.distributed: %s", self._me, error)
                heard = None
            if heard is not None:
                self.ended, text = heard
                raise PeerLost(f"{self._me}: {text}")
        if time.monotonic() < self._asked_s + _LOOK_S:
            return
        self._asked_s = time.monotonic()
        store = _JobStore.find()
        if store is None or (store.world_size, store.rank) != self._place:
            return
        if self._pool is None:
            self._pool = NativePool(1, "glt-last-words")
            weakref.finalize(self, self._pool.end).atexit = False
        self._asked = self._pool.submit(store.hear, list(ranks))


_lock = threading.Lock()
_mine: LastWords | None = None
_inherited: int | None = None  # of a fork: the process group of its parent


def leave_last_words() -> LastWords:
    """From now on, if an exception ends this process, those who wait for it are told. May be called again."""
    global _mine
    with _lock:
        if _mine is None or _mine.pid != os.getpid():
            _mine = LastWords()
        _mine.prepare()
        return _mine


@contextmanager
def keeping_touch() -> Iterator[None]:
    """Wraps what a trainer does before it comes to the others, as a decorator, too.

    If that fails, the error keeps the way to them, which the program may take down before it ends. Nobody else keeps
    it: a program that goes on may make another process group, where torch would find the old store again.
    """
    leave_last_words()
    try:
        yield
    except Exception as error:
        error._glt_job_store = _JobStore.find()  # type: ignore[attr-defined]
        raise


def _store_of(failure: BaseException) -> _JobStore | None:
    """What the error has kept, or the one that led to it."""
    error: BaseException | None = failure
    for _ in range(_MOST_CAUSES):
        if error is None:
            break
        if (store := getattr(error, "_glt_job_store", None)) is not None:
            return store  # type: ignore[no-any-return]
        error = error.__cause__ or error.__context__
    return None


def _note_fork() -> None:
    global _inherited, _lock
    _lock = threading.Lock()
    _inherited = id(dist.distributed_c10d._get_default_group()) if dist.is_initialized() else None


os.register_at_fork(after_in_child=_note_fork)


JOIN_S = 5.0  # for the store to be there: a mistake is told here at once, or nearly so

P = ParamSpec("P")


@contextmanager
def telling_the_others(options: Any) -> Iterator[None]:
    """Wraps the checks of a loader's arguments: what they raise is told to the other trainers, and raised.

    Without a word the others would wait for this trainer until their deadline (``rpc_timeout``) and then not know why.
    So it takes its place in the loader, as far as that is possible within a few seconds, and gives up there: they raise
    :class:`glt.errors.PeerLost` with the reason. If the store cannot be reached, as when trainer 0 has not come as far,
    nobody is told.

    Args:
        options: The worker options that the loader was given, perhaps wrong ones; None: its default.
    """
    try:
        yield
    except Exception as error:
        context = get_context()
        options = MpDistSamplingWorkerOptions() if options is None else options
        if context is None or context.role is not DistRole.WORKER:
            raise
        if context.world_size > 1 and isinstance(options, TrainerWorkerOptions):
            try:
                patience_s = min(JOIN_S, options.rpc_timeout)
                Rendezvous(context, options.master_addr, options.master_port, patience_s).give_up(error)
            except RuntimeError as unreachable:
                logger.warning("%s: could not tell the others: %s", context.worker_name, unreachable)
        raise


def telling_of_misspellings(init: Callable[P, None]) -> Callable[P, None]:
    """Decorates the ``__init__`` of a loader: arguments that it does not have, or lacks, are told to the others too.

    Python refuses those before the first line of the function, where :func:`telling_the_others` could be.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def bound(*args: P.args, **kwargs: P.kwargs) -> None:
        with telling_the_others(kwargs.get("worker_options")):
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{type(args[0]).__name__}() {error}") from None
        init(*args, **kwargs)

    return bound
