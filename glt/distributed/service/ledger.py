"""What the sampling processes of a server told of their streams, added up so that no counter ever falls."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from glt.distributed.dist_neighbor_sampler import STATS
from glt.distributed.service.connection import BEAT_S

COUNTERS = (*STATS, "num_batches", "num_errors", "sent_bytes")
GAUGES = ("num_queued", "queued_bytes", "num_running", "num_unread")
RATES = {"batches_per_s": "num_batches", "bytes_per_s": "sent_bytes"}
_WINDOW = 6  # beats, one a second: rates are those of the last five seconds

Numbers = dict[str, float]


@dataclass
class _Live:
    """A stream as it was told of last, and its rated counters at the last beats."""

    numbers: Mapping[str, float]
    past: deque[tuple[float, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def rate(self, name: str) -> float:
        (began, first), (ended, last) = self.past[0], self.past[-1]
        return (last.get(name, 0.0) - first.get(name, 0.0)) / (ended - began) if ended > began else 0.0


class Ledger:
    """Accounts of sampling processes and loaders.

    A stream is that of one loader from one sampling process. While it lives its numbers replace each other; when it
    ends, or its process dies, its counters stay in the accounts of both. What a process did since it last told, at most
    a second, dies with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[tuple[int, str], _Live] = {}
        self._workers: dict[int, Numbers] = {}  # counters of streams that have ended
        self._loaders: dict[str, Numbers] = {}  # the same, of loaders that are open

    def open_loader(self, loader: str) -> None:
        with self._lock:
            self._loaders[loader] = dict.fromkeys(COUNTERS, 0.0)

    def close_loader(self, loader: str) -> None:
        with self._lock:
            self._loaders.pop(loader, None)

    def beat(self, worker: int, streams: Mapping[str, Mapping[str, float]]) -> None:
        """Takes note of streams that live, by ``loader/place``."""
        now = time.monotonic()
        with self._lock:
            self._workers.setdefault(worker, dict.fromkeys(COUNTERS, 0.0))
            for key, numbers in streams.items():
                live = self._live.get((worker, key))
                if live is None:  # a beat ago it had done nothing
                    live = self._live[worker, key] = _Live(numbers)
                    live.past.append((now - BEAT_S, {}))
                live.numbers = numbers
                live.past.append((now, numbers))

    def end_stream(self, worker: int, key: str, numbers: Mapping[str, float]) -> None:
        """Takes note of the last numbers of a stream."""
        with self._lock:
            self._live.pop((worker, key), None)
            self._settle(worker, key, numbers)

    def lose_worker(self, worker: int) -> None:
        """A process died: its streams ended as they were told of last."""
        with self._lock:
            for place, key in [each for each in self._live if each[0] == worker]:
                self._settle(place, key, self._live.pop((place, key)).numbers)

    def _settle(self, worker: int, key: str, numbers: Mapping[str, float]) -> None:
        accounts = [self._workers.setdefault(worker, dict.fromkeys(COUNTERS, 0.0)), self._loaders.get(_loader(key))]
        for account in accounts:
            if account is not None:
                _add(account, numbers, COUNTERS)

    def read(self) -> tuple[dict[int, Numbers], dict[str, Numbers]]:
        """Accounts by sampling process and by loader that is open: counters, gauges and rates."""
        with self._lock:
            workers = {worker: _opened(account) for worker, account in sorted(self._workers.items())}
            loaders = {loader: _opened(account) for loader, account in self._loaders.items()}
            for (worker, key), live in self._live.items():
                for account in (workers[worker], loaders.get(_loader(key))):
                    if account is not None:
                        _add(account, live.numbers, (*COUNTERS, *GAUGES))
                        for rate, name in RATES.items():
                            account[rate] += live.rate(name)
        return workers, loaders


def total(accounts: Iterable[Mapping[str, float]]) -> Numbers:
    """The sum of accounts."""
    names = (*COUNTERS, *GAUGES, *RATES)
    summed: Numbers = dict.fromkeys(names, 0.0)
    for account in accounts:
        _add(summed, account, names)
    return summed


def _loader(key: str) -> str:
    return key.rpartition("/")[0]


def _opened(account: Mapping[str, float]) -> Numbers:
    return {**account, **dict.fromkeys((*GAUGES, *RATES), 0.0)}


def _add(to: Numbers, more: Mapping[str, float], names: Iterable[str]) -> None:
    for name in names:
        to[name] += more.get(name, 0.0)
