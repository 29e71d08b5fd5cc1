"""Signs of life of the trainers of a loader, kept in its store, and waits that look for them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping

import torch.distributed as dist

from glt.errors import PeerLost, RendezvousError

POLL_S = 0.05
BEAT_S = 1.0
SILENT_S = 6.0  # a trainer that beat before and is silent for so long is dead


class Heartbeat:
    """Tells the others, every second, that this trainer is still there.

    Args:
        store: A connection of its own: one that another thread waits on would let no beat through.
        rank: This trainer.
    """

    def __init__(self, store: dist.Store, rank: int) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(store, rank), name="glt-heartbeat", daemon=True)
        self._thread.start()

    def _run(self, store: dist.Store, rank: int) -> None:
        count = 0
        try:
            while not self._stop.wait(BEAT_S if count else 0):
                count += 1
                store.set(f"beat/{rank}", str(count))
        except RuntimeError:
            return  # the store is gone, and with it everyone who would listen

    def close(self) -> None:
        """Ends the beats. May be called again."""
        self._stop.set()
        self._thread.join(timeout=2 * BEAT_S)


class Watch:
    """Looks after the trainers of a loader.

    Args:
        store: The loader's.
        me: This process, as errors name it.
    """

    def __init__(self, store: dist.Store, me: str) -> None:
        self._store, self._me = store, me
        self._seen: dict[int, tuple[bytes, float]] = {}

    def is_alive(self, rank: int) -> bool:
        """Whether the trainer gave a sign of life in the last seconds, as far as this watch has looked."""
        key = f"beat/{rank}"
        beat = self._store.get(key) if self._store.check([key]) else b""
        now = time.monotonic()
        if rank not in self._seen or self._seen[rank][0] != beat:
            self._seen[rank] = (beat, now)
        return beat == b"" or now - self._seen[rank][1] < SILENT_S

    def wait_for(self, keys: Mapping[str, int], what: str, timeout_s: float) -> list[bytes]:
        """Waits until trainers have set keys, and returns the values.

        Args:
            keys: The keys, and the rank of the trainer that sets each.
            what: What a trainer that does not, fails to do; for the error.
            timeout_s: Deadline in seconds.

        Raises:
            glt.errors.PeerLost: If one of those trainers gave up or died; names it.
            glt.errors.RendezvousError: If the deadline passes; names the missing ranks.
        """
        deadline = time.monotonic() + timeout_s
        missing = list(keys)
        try:
            while missing := [key for key in missing if not self._store.check([key])]:
                ranks = sorted({keys[key] for key in missing})
                for rank in ranks:
                    self._check(rank)
                if time.monotonic() > deadline:
                    raise RendezvousError(
                        f"{self._me}: trainers of rank {ranks} did not {what} within {timeout_s:g} s; do all ranks "
                        "create the same loaders in the same order?"
                    )
                time.sleep(POLL_S)
            return [self._store.get(key) for key in keys]
        except dist.DistError as error:
            raise PeerLost(
                f"{self._me}: lost the store of the loader, which is in the process of trainer 0: that trainer died or "
                f"gave up; its output says why ({str(error).splitlines()[0]})"
            ) from error

    def _check(self, rank: int) -> None:
        if self._store.check([f"failed/{rank}"]):
            reason = self._store.get(f"failed/{rank}").decode()
            raise PeerLost(f"{self._me}: {self._name(rank)} could not start its part of the loader: {reason}")
        if not self.is_alive(rank):
            raise PeerLost(
                f"{self._me}: {self._name(rank)} died while the loader started: it has given no sign of life for "
                f"{SILENT_S:g} s; its output, or dmesg on its host, says why"
            )

    def _name(self, rank: int) -> str:
        key = f"trainer/{rank}"
        if not self._store.check([key]):
            return f"trainer {rank}"
        who = json.loads(self._store.get(key))
        return f"trainer {rank} (host {who['host']}, pid {who['pid']})"
