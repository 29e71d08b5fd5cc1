"""Why trainers of a loader gave up: told through its store, and remembered for when the store is gone."""

from __future__ import annotations

import json
from collections.abc import Sequence

from glt.distributed.timed_store import KeyStore

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
