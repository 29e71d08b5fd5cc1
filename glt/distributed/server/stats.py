"""Numbers of a server's sampling processes: counters, gauges and rates, by process and by loader."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from glt import _deadlines as deadlines
from glt.distributed.engine.sampler import STATS

COUNTERS = (*STATS, "num_batches", "num_errors", "sent_bytes")
GAUGES = ("num_queued", "queued_bytes", "num_running", "num_unread")
RATES = {"batches_per_s": "num_batches", "bytes_per_s": "sent_bytes"}
_RATE_BEATS = 6  # one a second: rates are those of the last five seconds

Numbers = dict[str, float]


@dataclass
class _Stream:
    numbers: Mapping[str, float]
    past: deque[tuple[float, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=_RATE_BEATS))

    def rate(self, name: str) -> float:
        (began, first), (ended, last) = self.past[0], self.past[-1]
        return (last.get(name, 0.0) - first.get(name, 0.0)) / (ended - began) if ended > began else 0.0


class WorkerMetrics:
    """Counters, gauges and rates by sampling process and by loader. The numbers of an open stream replace each other;
    when it ends, or its process dies, its counters are added to those of both. A process that dies loses what it did
    since its last beat, a second ago at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._workers: dict[int, Numbers] = {}  # counters of streams that have ended
        self._loaders: dict[str, Numbers] = {}  # the same, of loaders that are open

    def open_loader(self, loader: str) -> None:
        with self._lock:
            self._loaders[loader] = dict.fromkeys(COUNTERS, 0.0)

    def close_loader(self, loader: str) -> None:
        with self._lock:
            self._loaders.pop(loader, None)

    def beat(self, worker: int, streams: Mapping[str, Mapping[str, float]]) -> None:
        """Takes the numbers of streams that are open, by ``loader/number``."""
        now = time.monotonic()
        with self._lock:
            self._workers.setdefault(worker, dict.fromkeys(COUNTERS, 0.0))
            for key, numbers in streams.items():
                stream = self._streams.get((worker, key))
                if stream is None:  # a beat ago it had done nothing
                    stream = self._streams[worker, key] = _Stream(numbers)
                    stream.past.append((now - deadlines.BEAT_S, {}))
                stream.numbers = numbers
                stream.past.append((now, numbers))

    def end_stream(self, worker: int, key: str, numbers: Mapping[str, float]) -> None:
        with self._lock:
            self._streams.pop((worker, key), None)
            self._add(worker, key, numbers)

    def lose_worker(self, worker: int) -> None:
        with self._lock:
            for place, key in [each for each in self._streams if each[0] == worker]:
                self._add(place, key, self._streams.pop((place, key)).numbers)

    def _add(self, worker: int, key: str, numbers: Mapping[str, float]) -> None:
        self._workers.setdefault(worker, dict.fromkeys(COUNTERS, 0.0))
        for account in _accounts(self._workers, self._loaders, worker, key):
            _add(account, numbers, COUNTERS)

    def read(self) -> tuple[dict[int, Numbers], dict[str, Numbers]]:
        """Counters, gauges and rates, by sampling process and by loader that is open."""
        none_now = dict.fromkeys((*GAUGES, *RATES), 0.0)
        with self._lock:
            workers = {worker: {**account, **none_now} for worker, account in sorted(self._workers.items())}
            loaders = {loader: {**account, **none_now} for loader, account in self._loaders.items()}
            for (worker, key), stream in self._streams.items():
                for account in _accounts(workers, loaders, worker, key):
                    _add(account, stream.numbers, (*COUNTERS, *GAUGES))
                    _add(account, {rate: stream.rate(name) for rate, name in RATES.items()}, RATES)
        return workers, loaders


def total(accounts: Iterable[Mapping[str, float]]) -> Numbers:
    names = (*COUNTERS, *GAUGES, *RATES)
    summed: Numbers = dict.fromkeys(names, 0.0)
    for account in accounts:
        _add(summed, account, names)
    return summed


def _accounts(workers: dict[int, Numbers], loaders: dict[str, Numbers], worker: int, key: str) -> list[Numbers]:
    """Those that a stream counts for: its process's, and its loader's while that is open."""
    loader = loaders.get(key.rpartition("/")[0])
    return [workers[worker]] if loader is None else [workers[worker], loader]


def _add(to: Numbers, more: Mapping[str, float], names: Iterable[str]) -> None:
    for name in names:
        to[name] += more.get(name, 0.0)
