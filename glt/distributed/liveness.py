"""Signs of life of the trainers of a loader, kept in its store, and waits that look for them."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

from glt.distributed.failures import reason_of, trainer_name
from glt.distributed.lifeline import Lifeline, answers
from glt.distributed.native_pool import NativePool
from glt.distributed.timed_store import KeyStore
from glt.errors import PeerLost, RendezvousError

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
