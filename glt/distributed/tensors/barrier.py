"""Barriers of trainers, held by a server: all get a result when the last has arrived, or an error if one cannot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from glt import _deadlines as deadlines
from glt._checks import check_count, real_number
from glt.distributed.wire.beats import add_tick, discard_tick
from glt.errors import PeerLost

logger = logging.getLogger(__name__)

_MOST_FAILURES = 16  # that are remembered of a tag, for trainers that arrive late


class Member(Protocol):
    """A trainer of a group: its session, or the process itself. Its text names it in errors. ``is_guest``: it may only
    read."""

    id: str
    group: str
    rank: int
    is_guest: bool


@dataclass
class _Barrier:
    number: int
    num: int
    timeout_s: float
    deadline: float
    arrivals: dict[int, tuple[Member, Any]] = field(default_factory=dict)  # by rank: who it is, and its value
    result: Future[Any] = field(default_factory=Future)

    def missing(self) -> list[int]:
        return sorted(set(range(self.num)) - set(self.arrivals))


@dataclass
class _Series:
    """The barriers of one tag, one after the other, numbered from 0."""

    next: int = 0
    open: _Barrier | None = None
    failures: dict[int, str] = field(default_factory=dict)  # by number, for trainers that arrive late


@dataclass
class _Group:
    members: dict[str, Member] = field(default_factory=dict)  # by id
    gone: dict[int, str] = field(default_factory=dict)  # by rank: who it was, and how it ended
    series: dict[str, _Series] = field(default_factory=dict)  # by tag


class Barriers:
    """The barriers of groups of trainers, any number at a time.

    A barrier has a tag, such as the name of an embedding, and a number: a trainer counts the barriers of each tag from
    0, and arrives at one when the one before is over. A barrier fails at its deadline, and at once when the session of
    a trainer that should come ends: for all who have arrived and, under its number, for those who arrive later.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._groups: dict[str, _Group] = {}
        self._is_watching = False
        self._closed: str | None = None

    def add(self, who: Member) -> None:
        with self._lock:
            group = self._groups.setdefault(who.group, _Group())
            group.members[who.id] = who
            group.gone.pop(who.rank, None)

    def remove(self, who: Member, why: str) -> None:
        """Removes a trainer whose session has ended: barriers that it should come to fail, and name it."""
        with self._lock:
            group = self._groups.get(who.group)
            if group is None or group.members.pop(who.id, None) is None:
                return
            if any(other.rank == who.rank for other in group.members.values()):
                return  # its successor was faster than the news of its end
            text = group.gone[who.rank] = f"trainer {who.rank}, {who}, is gone: {why}"
            for series in group.series.values():
                if series.open is not None and who.rank < series.open.num:
                    self._fail(series, series.open.number, text)
            if not group.members:
                del self._groups[who.group]

    def arrive(
        self,
        who: Member,
        tag: str,
        number: int,
        num: int,
        timeout_s: float = 120.0,
        value: Any = None,
        *,
        combine: Callable[[list[Any]], Any] | None = None,
    ) -> Future[Any]:
        """Arrives at the barrier ``number`` of ``tag``, of ``num`` trainers, with a value.

        ``combine`` is called once, by the last to arrive, with the values by rank; what it returns or raises is the
        result of all (default: None). ``timeout_s`` counts from the first arrival, and is the first's.

        Returns:
            The result, when all have arrived; PeerLost, which names who is missing, at the deadline or if one is gone.

        Raises:
            TypeError, ValueError: If an argument does not fit, also to what others gave: names both.
            glt.errors.PeerLost: If the barrier has failed already, or one that should come is gone.
        """
        _check(who, tag, number, num)
        timeout_s = checked_timeout(timeout_s)
        with self._lock:
            if self._closed is not None:
                raise PeerLost(self._closed)
            series = self._series(who, tag)
            barrier = self._open(who, series, tag, number, num, timeout_s)
            barrier.arrivals[who.rank] = who, value
            if barrier.missing():
                if not self._is_watching:
                    self._is_watching = True
                    add_tick(self._watch)
                return barrier.result
            series.open, series.next = None, number + 1
        try:
            values = [value for _, (_, value) in sorted(barrier.arrivals.items())]
            barrier.result.set_result(None if combine is None else combine(values))
        except Exception as error:
            barrier.result.set_exception(error)
        return barrier.result

    def _series(self, who: Member, tag: str) -> _Series:
        group = self._groups.get(who.group)
        if group is None or who.id not in group.members:
            raise PeerLost(f"{who} is gone, or never came: it takes part in no barrier")
        return group.series.setdefault(tag, _Series())

    def _open(self, who: Member, series: _Series, tag: str, number: int, num: int, timeout_s: float) -> _Barrier:
        what = f"barrier {number} of {tag!r}"
        if number in series.failures:
            raise PeerLost(f"{what} has failed before {who} arrived: {series.failures[number]}")
        if number < series.next:
            raise ValueError(f"{what} is over, and {who} arrives at it: the next is {series.next}")
        if number > series.next:
            raise ValueError(
                f"{who} arrives at {what}, and barrier {series.next} is not over: take part in one after the other. If "
                "this server was restarted, what was stored on it is lost: start the trainers anew"
            )
        barrier = series.open
        if barrier is None:
            if gone := self._who_is_gone(who, num):
                self._fail(series, number, gone)
                raise PeerLost(f"{what} cannot be held: {gone}")
            barrier = series.open = _Barrier(number, num, timeout_s, time.monotonic() + timeout_s)
            barrier.result.set_running_or_notify_cancel()  # nobody cancels it for the others
        if barrier.num != num:
            other, _ = next(iter(barrier.arrivals.values()))
            raise ValueError(f"{what}: num = {num} as {who} has it, {barrier.num} as {other} has it; expected the same")
        if who.rank in barrier.arrivals:
            before, _ = barrier.arrivals[who.rank]
            raise ValueError(f"{what}: {who} arrives, and trainer {who.rank} has arrived already, as {before}")
        return barrier

    def _who_is_gone(self, who: Member, num: int) -> str:
        gone = sorted(self._groups[who.group].gone.items())
        return "; ".join(text for rank, text in gone if rank < num and rank != who.rank)

    def _fail(self, series: _Series, number: int, why: str) -> None:
        failed = series.open
        series.open, series.next = None, number + 1
        series.failures[number] = why
        if len(series.failures) > _MOST_FAILURES:
            del series.failures[min(series.failures)]
        if failed is not None:
            logger.warning("barrier %d of %d trainers failed: %s", failed.number, failed.num, why)
            failed.result.set_exception(PeerLost(why))  # sessions answer on other threads: this one goes on at once

    def abort(self, who: Member, tag: str, number: int, why: str) -> int:
        """Fails a barrier, or the next if it is over, for all trainers, because ``who`` ``why``; returns the number of
        the one that failed. Raises PeerLost if ``who`` is gone itself."""
        _check(who, tag, number, who.rank + 1)
        with self._lock:
            series = self._series(who, tag)
            if number not in series.failures:
                number = max(number, series.next)
                self._fail(series, number, f"trainer {who.rank}, {who}, {why}")
            return number

    def failure(self, who: Member, tag: str, number: int, num: int) -> str | None:
        """Why a barrier has failed, also since one that should come is gone; else None."""
        _check(who, tag, number, num)
        with self._lock:
            series = self._series(who, tag)
            if self._closed is not None:
                return series.failures.get(number, self._closed)
            if number >= series.next and (gone := self._who_is_gone(who, num)):
                self._fail(series, number, gone)
            return series.failures.get(number)

    def _watch(self) -> None:
        with self._lock:
            for tag, series, barrier in self._all_open():
                if barrier.deadline <= time.monotonic():
                    text = (
                        f"trainers of rank {barrier.missing()} of {barrier.num} have not arrived at barrier "
                        f"{barrier.number} of {tag!r} within {barrier.timeout_s:g} s of the first: do all trainers "
                        "make the same calls in the same order?"
                    )
                    self._fail(series, barrier.number, text)

    def _all_open(self) -> Iterator[tuple[str, _Series, _Barrier]]:
        for group in self._groups.values():
            for tag, series in group.series.items():
                if series.open is not None:
                    yield tag, series, series.open

    def close(self, why: str) -> None:
        with self._lock:
            if self._closed is None:
                self._closed = why
            for _, series, barrier in self._all_open():
                self._fail(series, barrier.number, why)
        if self._is_watching:
            discard_tick(self._watch)

    def calls(self) -> dict[str, Callable[[Member, tuple[Any, ...], dict[str, Any]], Any]]:
        return {
            "glt.barrier": lambda who, args, kwargs: self.arrive(
                who, *args, combine=partial(require_equal, what=args[0])
            ),
            "glt.barrier.abort": lambda who, args, kwargs: self.abort(who, *args),
            "glt.barrier.failure": lambda who, args, kwargs: self.failure(who, *args),
        }


def _check(who: Member, tag: Any, number: Any, num: Any) -> None:
    if not isinstance(tag, str):
        raise TypeError(f"tag = {tag!r}: expected text")
    check_count("number", number, 0, 2**63 - 1)
    check_count("num", num, 1, 2**31 - 1)
    if not 0 <= who.rank < num:
        raise ValueError(f"{who} has rank {who.rank}: a barrier of {num} trainers is of ranks 0 to {num - 1}")


def checked_timeout(timeout_s: Any) -> float:
    """The deadline of a barrier in seconds; raises TypeError or ValueError."""
    found = real_number("timeout_s", timeout_s, above=True)
    if found > deadlines.DAY_S:
        raise ValueError(f"timeout_s = {timeout_s!r}: expected seconds, above 0 and at most {deadlines.DAY_S:g}")
    return found


def require_equal(values: Sequence[Any], what: str = "") -> None:
    """Raises ValueError where trainers bring different values; names which, by path, and two trainers."""
    for rank, value in enumerate(values):
        found = _difference(values[0], value, what)
        if found is not None:
            path, first, other = found
            raise ValueError(
                f"{path} = {other!r} on trainer {rank}, {first!r} on trainer 0: expected the same on all trainers"
            )


def _difference(first: Any, other: Any, path: str) -> tuple[str, Any, Any] | None:
    if isinstance(first, Mapping) and isinstance(other, Mapping) and first.keys() == other.keys():
        pairs = [(f"{path}.{key}" if path else str(key), first[key], other[key]) for key in first]
    elif isinstance(first, list | tuple) and isinstance(other, list | tuple) and len(first) == len(other):
        pairs = [(f"{path}[{at}]", *both) for at, both in enumerate(zip(first, other, strict=True))]
    else:
        return None if first == other else (path, first, other)
    return next((found for at, a, b in pairs if (found := _difference(a, b, at)) is not None), None)
