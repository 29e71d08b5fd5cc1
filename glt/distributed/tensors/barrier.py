"""Barriers of trainers, held by a server: all get a result when the last has arrived, or an error if one cannot."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from glt import _deadlines as deadlines
from glt._checks import check_count
from glt.errors import PeerLost

logger = logging.getLogger(__name__)

_MOST_FAILURES = 16  # that are remembered of a tag, for trainers that arrive late


class Member(Protocol):
    """A trainer of a group: its session, or the process itself. Its text names it in errors."""

    id: str
    group: str
    rank: int


class _Arrival(NamedTuple):
    who: Member
    value: Any
    future: Future[Any]


@dataclass
class _Barrier:
    number: int
    num: int
    timeout_s: float
    deadline: float
    arrivals: dict[int, _Arrival] = field(default_factory=dict)  # by rank

    def missing(self) -> list[int]:
        return sorted(set(range(self.num)) - set(self.arrivals))


@dataclass
class _Series:
    """The barriers of one tag, one after the other, numbered from 0."""

    next: int = 0
    open: _Barrier | None = None
    failures: dict[int, str] = field(default_factory=dict)  # of the last ones that failed, by number

    def fail(self, number: int, why: str) -> list[_Barrier]:
        """Fails a barrier; returns it if it was open, for :func:`_notify` outside of the lock."""
        failed = [] if self.open is None else [self.open]
        self.open, self.next = None, number + 1
        self.failures[number] = why
        if len(self.failures) > _MOST_FAILURES:
            del self.failures[min(self.failures)]
        return failed


@dataclass
class _Group:
    members: dict[str, Member] = field(default_factory=dict)  # by id
    gone: dict[int, str] = field(default_factory=dict)  # by rank: who it was, and how it ended
    series: dict[str, _Series] = field(default_factory=dict)  # by tag

    def who_is_gone(self, who: Member, num: int) -> str:
        return "; ".join(text for rank, text in sorted(self.gone.items()) if rank < num and rank != who.rank)


class Barriers:
    """The barriers of groups of trainers, any number at a time.

    A barrier has a tag, such as the name of an embedding, and a number: a trainer counts the barriers of each tag from
    0, and arrives at one when the one before is over. A barrier fails at its deadline, and at once when the session of
    a trainer that should come ends: for all who have arrived and, under its number, for those who arrive later.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._groups: dict[str, _Group] = {}
        self._watcher: threading.Thread | None = None
        self._wakes_at = math.inf
        self._closed: str | None = None

    def add(self, who: Member) -> None:
        with self._changed:
            group = self._groups.setdefault(who.group, _Group())
            group.members[who.id] = who
            group.gone.pop(who.rank, None)

    def remove(self, who: Member, why: str) -> None:
        """Removes a trainer whose session has ended: barriers that it should come to fail, and name it."""
        failed: list[_Barrier] = []
        with self._changed:
            group = self._groups.get(who.group)
            if group is None or group.members.pop(who.id, None) is None:
                return
            if any(other.rank == who.rank for other in group.members.values()):
                return  # its successor was faster than the news of its end
            text = group.gone[who.rank] = f"trainer {who.rank}, {who}, is gone: {why}"
            for series in group.series.values():
                if series.open is not None and who.rank < series.open.num:
                    failed += series.fail(series.open.number, text)
            if not group.members:
                del self._groups[who.group]
        _notify(failed, text)

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
        _check(who, tag, number, num, timeout_s)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            if self._closed is not None:
                raise PeerLost(self._closed)
            group = self._group(who)
            series = group.series.setdefault(tag, _Series())
            barrier = self._open(who, group, series, tag, number, num, timeout_s)
            barrier.arrivals[who.rank] = _Arrival(who, value, future)
            if barrier.missing():
                self._watch(barrier.deadline)
                return future
            series.open, series.next = None, number + 1
        arrivals = [barrier.arrivals[rank] for rank in range(num)]
        result, error = None, None
        try:
            result = None if combine is None else combine([each.value for each in arrivals])
        except Exception as raised:
            error = raised
        for each in arrivals:
            if error is None:
                each.future.set_result(result)
            else:
                each.future.set_exception(error)
        return future

    def _group(self, who: Member) -> _Group:
        group = self._groups.get(who.group)
        if group is None or who.id not in group.members:
            raise PeerLost(f"{who} is gone, or never came: it takes part in no barrier")
        return group

    def _open(
        self, who: Member, group: _Group, series: _Series, tag: str, number: int, num: int, timeout_s: float
    ) -> _Barrier:
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
            if gone := group.who_is_gone(who, num):
                series.fail(number, gone)
                raise PeerLost(f"{what} cannot be held: {gone}")
            barrier = series.open = _Barrier(number, num, timeout_s, time.monotonic() + timeout_s)
        if barrier.num != num:
            other = next(iter(barrier.arrivals.values())).who
            raise ValueError(f"{what}: num = {num} as {who} has it, {barrier.num} as {other} has it; expected the same")
        before = barrier.arrivals.get(who.rank)
        if before is not None:
            raise ValueError(f"{what}: {who} arrives, and trainer {who.rank} has arrived already, as {before.who}")
        return barrier

    def abort(self, who: Member, tag: str, number: int, why: str) -> int:
        """Fails a barrier, or the next if it is over, for all trainers, because ``who`` ``why``; returns the number of
        the one that failed. Raises PeerLost if ``who`` is gone itself."""
        _check(who, tag, number, who.rank + 1, deadlines.BARRIER_S)
        with self._changed:
            series = self._group(who).series.setdefault(tag, _Series())
            if number in series.failures:
                return number
            number = max(number, series.next)
            text = f"trainer {who.rank}, {who}, {why}"
            failed = series.fail(number, text)
        _notify(failed, text)
        return number

    def failure(self, who: Member, tag: str, number: int, num: int) -> str | None:
        """Why a barrier has failed, also since one that should come is gone; else None."""
        _check(who, tag, number, num, deadlines.BARRIER_S)
        failed: list[_Barrier] = []
        with self._changed:
            group = self._group(who)
            series = group.series.setdefault(tag, _Series())
            if number >= series.next and (gone := group.who_is_gone(who, num)):
                failed = series.fail(number, gone)
            text = series.failures.get(number)
        _notify(failed, text or "")
        return text

    def _watch(self, deadline: float) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._enforce_deadlines, name="glt-barriers", daemon=True)
            self._watcher.start()
        elif deadline < self._wakes_at:
            self._changed.notify_all()

    def _enforce_deadlines(self) -> None:
        while True:
            late: list[tuple[list[_Barrier], str]] = []
            with self._changed:
                if self._closed is not None:
                    return
                now, self._wakes_at = time.monotonic(), math.inf
                for tag, series in self._all_series():
                    barrier = series.open
                    if barrier is not None and barrier.deadline <= now:
                        text = (
                            f"trainers of rank {barrier.missing()} of {barrier.num} have not arrived at barrier "
                            f"{barrier.number} of {tag!r} within {barrier.timeout_s:g} s of the first: do all trainers "
                            "make the same calls in the same order?"
                        )
                        late.append((series.fail(barrier.number, text), text))
                    elif barrier is not None:
                        self._wakes_at = min(self._wakes_at, barrier.deadline)
                if not late:
                    self._changed.wait(None if math.isinf(self._wakes_at) else self._wakes_at - now)
            for failed, text in late:
                _notify(failed, text)

    def _all_series(self) -> list[tuple[str, _Series]]:
        return [each for group in self._groups.values() for each in group.series.items()]

    def close(self, why: str) -> None:
        failed: list[_Barrier] = []
        with self._changed:
            if self._closed is None:
                self._closed = why
            for _, series in self._all_series():
                failed += series.fail(series.next, why)
            self._changed.notify_all()
            watcher = self._watcher
        _notify(failed, why)
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(deadlines.JOIN_S)

    def calls(self) -> dict[str, Callable[[Member, tuple[Any, ...], dict[str, Any]], Any]]:
        return {
            "glt.barrier": lambda who, args, kwargs: self.arrive(
                who, *args, combine=partial(require_equal, what=args[0])
            ),
            "glt.barrier.abort": lambda who, args, kwargs: self.abort(who, *args),
            "glt.barrier.failure": lambda who, args, kwargs: self.failure(who, *args),
        }


def _notify(failed: list[_Barrier], why: str) -> None:
    for barrier in failed:
        logger.warning("barrier %d of %d trainers failed: %s", barrier.number, barrier.num, why)
        for arrival in barrier.arrivals.values():
            arrival.future.set_exception(PeerLost(why))


def _check(who: Member, tag: Any, number: Any, num: Any, timeout_s: Any) -> None:
    if not isinstance(tag, str):
        raise TypeError(f"tag = {tag!r}: expected text")
    check_count("number", number, 0, 2**63 - 1)
    check_count("num", num, 1, 2**31 - 1)
    if not 0 <= who.rank < num:
        raise ValueError(f"{who} has rank {who.rank}: a barrier of {num} trainers is of ranks 0 to {num - 1}")
    check_timeout(timeout_s)


def check_timeout(timeout_s: Any) -> None:
    """Raises TypeError or ValueError unless a barrier can have this deadline."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s = {timeout_s!r}: expected a number of seconds")
    if not 0 < timeout_s <= deadlines.DAY_S:
        raise ValueError(f"timeout_s = {timeout_s}: expected above 0 and at most {deadlines.DAY_S:g}")


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
