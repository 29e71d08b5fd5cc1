"""Meetings: what happens when all trainers have arrived, and what if one of them never does."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from glt import _deadlines as deadlines
from glt.errors import PeerLost

logger = logging.getLogger(__name__)

_MOST_FAILURES = 16  # that are remembered of a tag, for those who arrive late


class Participant(Protocol):
    """Who arrives: a session of a client, or whatever stands for it. Its text names it in errors."""

    @property
    def id(self) -> str: ...

    @property
    def group(self) -> str: ...

    @property
    def rank(self) -> int: ...


@dataclass
class _Arrival:
    who: Participant
    contribution: Any
    future: Future[Any]


@dataclass
class _Meeting:
    """One that some have arrived at, and others have not."""

    number: int
    num: int
    deadline: float
    timeout_s: float
    arrivals: dict[int, _Arrival] = field(default_factory=dict)

    def missing(self) -> list[int]:
        return sorted(set(range(self.num)) - set(self.arrivals))


@dataclass
class _Series:
    """The meetings of one tag: one after the other, numbered from 0."""

    next: int = 0
    open: _Meeting | None = None
    failures: dict[int, str] = field(default_factory=dict)  # of the last ones that failed, by number

    def fail(self, number: int, text: str) -> None:
        self.failures[number] = text
        if len(self.failures) > _MOST_FAILURES:
            del self.failures[min(self.failures)]


@dataclass
class _Group:
    """Clients that meet."""

    present: dict[str, Participant] = field(default_factory=dict)  # sessions by id
    gone: dict[int, str] = field(default_factory=dict)  # by rank: who it was, and how it ended
    series: dict[str, _Series] = field(default_factory=dict)


class Meetings:
    """Where the trainers of a group meet, any number of meetings at a time.

    A meeting has a tag, such as ``"barrier"`` or the name of an embedding, and a number: a trainer counts the meetings
    of each tag from 0, and arrives at one when the one before is over. Nobody is waited for who cannot come: a meeting
    fails at its deadline, and at once when a trainer's session ends, for all who have arrived and, under its number,
    for whoever arrives later.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._groups: dict[str, _Group] = {}
        self._watcher: threading.Thread | None = None
        self._wakes_at = math.inf
        self._closed: str | None = None

    # -- who is there ----------------------------------------------------------------------------------------------

    def came(self, who: Participant) -> None:
        """Takes note that a session has begun."""
        with self._changed:
            group = self._groups.setdefault(who.group, _Group())
            group.present[who.id] = who
            group.gone.pop(who.rank, None)

    def went(self, who: Participant, why: str) -> None:
        """Takes note that a session has ended: meetings of its group that are under way fail, and name it.

        What was counted is forgotten when the last session of a group ends: its successors begin anew.
        """
        failed: list[_Meeting] = []
        with self._changed:
            group = self._groups.get(who.group)
            if group is None or group.present.pop(who.id, None) is None:
                return
            if any(other.rank == who.rank for other in group.present.values()):
                return  # its successor was faster than the news of its end
            text = group.gone[who.rank] = f"trainer {who.rank}, {who}, is gone: {why}"
            for series in group.series.values():
                # One that it need not come to, a meeting of fewer, goes on.
                if series.open is not None and who.rank < series.open.num:
                    failed.append(self._fail(series, text))
            if not group.present:
                del self._groups[who.group]
        _tell(failed, text)

    # -- arriving --------------------------------------------------------------------------------------------------

    def arrive(
        self,
        tag: str,
        number: int,
        who: Participant,
        num: int,
        contribution: Any = None,
        *,
        finish: Callable[[list[Any]], Any] | None = None,
        timeout_s: float = 120.0,
    ) -> Future[Any]:
        """Takes part in a meeting.

        Args:
            tag: What it is about.
            number: Which one of that tag, counted from 0.
            who: The trainer that arrives, of which :meth:`came` has told; its rank is below ``num``.
            num: Trainers that are to arrive.
            contribution: What this one brings.
            finish: Called once, on the thread of the last one to arrive and before any trainer knows that the meeting
                is over, with the contributions in the order of the ranks; what it returns is everyone's result, and
                what it raises is raised by all. The same for all trainers. Default: there is no result.
            timeout_s: Deadline in seconds, from the first arrival; that of the first counts.

        Returns:
            The result, when all have arrived. It fails with :class:`glt.errors.PeerLost`, which names who is missing,
            at the deadline or when the session of one that should come ends.

        Raises:
            TypeError, ValueError: If an argument does not fit, also to what others gave: names both.
            glt.errors.PeerLost: If the meeting has failed already, or one who should come is gone.
        """
        _check(tag, number, who, num, timeout_s)
        arrival = _Arrival(who, contribution, Future())
        arrival.future.set_running_or_notify_cancel()
        with self._changed:
            if self._closed is not None:
                raise PeerLost(self._closed)
            group = self._groups.get(who.group)
            if group is None or who.id not in group.present:
                raise PeerLost(f"{who} is gone, or never came: it takes part in no meeting")
            series = group.series.setdefault(tag, _Series())
            meeting = self._meeting(tag, number, who, num, group, series, timeout_s)
            meeting.arrivals[who.rank] = arrival
            if meeting.missing():
                self._watch(meeting.deadline)
                return arrival.future
            series.open, series.next = None, number + 1  # nobody arrives at it, and no deadline concerns it
        present = [meeting.arrivals[rank] for rank in range(num)]
        result, error = None, None
        try:
            result = None if finish is None else finish([each.contribution for each in present])
        except Exception as raised:
            error = raised
        for each in present:
            if error is None:
                each.future.set_result(result)
            else:
                each.future.set_exception(error)
        return arrival.future

    def _meeting(
        self, tag: str, number: int, who: Participant, num: int, group: _Group, series: _Series, timeout_s: float
    ) -> _Meeting:
        """The one to arrive at; a new one for whoever comes first."""
        what = f"meeting {number} of {tag!r}"
        if number in series.failures:
            raise PeerLost(f"{what} has failed before {who} arrived: {series.failures[number]}")
        if number < series.next:
            raise ValueError(f"{what} is over, and {who} arrives at it: the next is {series.next}")
        if number > series.next:
            raise ValueError(
                f"{who} arrives at {what}, and meeting {series.next} is not over: take part in one after the other. If "
                "this server was restarted, what was stored on it is lost: start the trainers anew"
            )
        meeting = series.open
        if meeting is None:
            text = self._gone(group, who, num)
            if text is not None:
                series.next = number + 1
                series.fail(number, text)
                raise PeerLost(f"{what} cannot be held: {text}")
            meeting = series.open = _Meeting(number, num, time.monotonic() + timeout_s, timeout_s)
        if meeting.num != num:
            other = next(iter(meeting.arrivals.values())).who
            raise ValueError(f"{what}: num = {num} as {who} has it, {meeting.num} as {other} has it; expected the same")
        before = meeting.arrivals.get(who.rank)
        if before is not None:
            raise ValueError(f"{what}: {who} arrives, and trainer {who.rank} has arrived already, as {before.who}")
        return meeting

    # -- failing ---------------------------------------------------------------------------------------------------

    def call_off(self, tag: str, number: int, who: Participant, why: str) -> int:
        """Fails a meeting that a trainer will not come to: for those who have arrived, and for those who will.

        Args:
            tag, number, who: As of :meth:`arrive`; who may have arrived, and given up since.
            why: What the others are told, after who it was.

        Returns:
            The meeting that has failed: that of this number, or the next where it was over already.

        Raises:
            TypeError, ValueError: If an argument does not fit.
            glt.errors.PeerLost: If ``who`` is gone itself.
        """
        _check(tag, number, who, who.rank + 1, deadlines.BARRIER_S)
        with self._changed:
            group = self._groups.get(who.group)
            if group is None or who.id not in group.present:
                raise PeerLost(f"{who} is gone, or never came: it takes part in no meeting")
            series = group.series.setdefault(tag, _Series())
            if number in series.failures:
                return number
            number = max(number, series.next)
            text = f"trainer {who.rank}, {who}, {why}"
            failed = [] if series.open is None else [self._fail(series, text)]
            if not failed:
                series.next = number + 1
                series.fail(number, text)
        _tell(failed, text)
        return number

    def trouble(self, tag: str, number: int, who: Participant, num: int) -> str | None:
        """Why a meeting has failed, also because some who should come are gone; None where nothing stands against it.

        Args:
            tag, number, who, num: As of :meth:`arrive`.

        Raises:
            TypeError, ValueError: If an argument does not fit.
        """
        _check(tag, number, who, num, deadlines.BARRIER_S)
        with self._changed:
            group = self._groups.get(who.group)
            if group is None:
                return f"{who} is gone, or never came: it takes part in no meeting"
            series = group.series.setdefault(tag, _Series())
            if number >= series.next and (text := self._gone(group, who, num)) is not None:
                series.next = number + 1
                series.fail(number, text)
            return series.failures.get(number)

    def _gone(self, group: _Group, who: Participant, num: int) -> str | None:
        """Who of those that should come is gone."""
        gone = [text for rank, text in sorted(group.gone.items()) if rank < num and rank != who.rank]
        return "; ".join(gone) or None

    def _fail(self, series: _Series, text: str) -> _Meeting:
        """Ends the open meeting of a series; whoever has arrived is told outside of the lock, by :func:`_tell`."""
        meeting = series.open
        assert meeting is not None
        series.open, series.next = None, meeting.number + 1
        series.fail(meeting.number, text)
        return meeting

    def _watch(self, deadline: float) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._enforce_deadlines, name="glt-meetings", daemon=True)
            self._watcher.start()
        elif deadline < self._wakes_at:
            self._changed.notify_all()

    def _enforce_deadlines(self) -> None:
        while True:
            late: list[tuple[_Meeting, str]] = []
            with self._changed:
                if self._closed is not None:
                    return
                now = time.monotonic()
                held = [
                    (tag, series, series.open)
                    for group in self._groups.values()
                    for tag, series in group.series.items()
                    if series.open is not None
                ]
                for tag, series, meeting in held:
                    if meeting.deadline <= now:
                        text = (
                            f"trainers of rank {meeting.missing()} of {meeting.num} have not arrived at meeting "
                            f"{meeting.number} of {tag!r} within {meeting.timeout_s:g} s of the first: do all trainers "
                            "make the same calls in the same order?"
                        )
                        late.append((self._fail(series, text), text))
                if not late:
                    self._wakes_at = min((meeting.deadline for *_, meeting in held), default=math.inf)
                    wait_s = None if math.isinf(self._wakes_at) else self._wakes_at - now
                    self._changed.wait(wait_s)
            for meeting, text in late:
                _tell([meeting], text)

    def close(self, why: str) -> None:
        """Fails all meetings that are under way; none is held any more. May be called again."""
        failed: list[_Meeting] = []
        with self._changed:
            if self._closed is None:
                self._closed = why
            for group in self._groups.values():
                failed += [self._fail(series, why) for series in group.series.values() if series.open is not None]
            self._changed.notify_all()
            watcher = self._watcher
        _tell(failed, why)
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(deadlines.JOIN_S)


def _tell(failed: list[_Meeting], text: str) -> None:
    for meeting in failed:
        logger.warning("meeting %d of %d trainers failed: %s", meeting.number, meeting.num, text)
        for arrival in meeting.arrivals.values():
            arrival.future.set_exception(PeerLost(text))


def _check(tag: Any, number: Any, who: Participant, num: Any, timeout_s: Any) -> None:
    if not isinstance(tag, str):
        raise TypeError(f"tag = {tag!r}: expected text")
    for name, value, least in (("number", number, 0), ("num", num, 1)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} = {value!r}: expected an integer")
        if value < least:
            raise ValueError(f"{name} = {value}: expected at least {least}")
    if not 0 <= who.rank < num:
        raise ValueError(f"{who} has rank {who.rank}: a meeting of {num} trainers is of ranks 0 to {num - 1}")
    check_timeout(timeout_s)


def check_timeout(timeout_s: Any) -> None:
    """Raises TypeError or ValueError unless a meeting can have this deadline.

    Whoever numbers meetings asks before it counts one: what is refused was none.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s = {timeout_s!r}: expected a number of seconds")
    if not 0 < timeout_s <= deadlines.DAY_S:
        raise ValueError(f"timeout_s = {timeout_s}: expected above 0 and at most {deadlines.DAY_S:g}")


# What trainers may ask of the meetings that a server holds for them.


Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def meeting_calls(meetings: Meetings) -> dict[str, Call]:
    """Calls by name; each takes who asks, its arguments and its keyword arguments."""

    def meet(who: Participant, tag: str, number: int, num: int, timeout_s: float, told: str = "") -> Future[None]:
        same = partial(_require_same, tag)
        return meetings.arrive(tag, number, who, num, str(told), finish=same, timeout_s=timeout_s)

    return {
        "glt.meet": lambda who, args, kwargs: meet(who, *args),
        "glt.call_off": lambda who, args, kwargs: meetings.call_off(args[0], args[1], who, *args[2:]),
        "glt.trouble": lambda who, args, kwargs: meetings.trouble(args[0], args[1], who, *args[2:]),
    }


def _require_same(tag: str, told: list[str]) -> None:
    for rank, each in enumerate(told):
        if each != told[0]:
            raise ValueError(f"{tag}: trainer 0 says {told[0]}, and trainer {rank} says {each}: expected the same")
