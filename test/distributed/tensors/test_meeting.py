"""Trainers meet: all or none, in order, and nobody waits for one who cannot come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from glt.distributed.tensors.meeting import Meetings
from glt.errors import GltError, PeerLost


@dataclass(frozen=True)
class Who:
    rank: int
    group: str = "trainers"
    session: int = 0

    @property
    def id(self) -> str:
        return f"{self.group}/{self.rank}/{self.session}"

    def __str__(self) -> str:
        return f"client {self.rank} of {self.group!r} (pid {1000 + self.rank})"


A, B, C = Who(0), Who(1), Who(2)


@pytest.fixture
def meetings() -> Iterator[Meetings]:
    before = set(threading.enumerate())  # other tests' worlds may still be there
    made = Meetings()
    for who in (A, B, C):
        made.came(who)
    yield made
    made.close("the test is over")
    assert not [each for each in threading.enumerate() if each.name == "glt-meetings" and each not in before]


def test_contributions_are_merged_once_in_the_order_of_the_ranks(meetings: Meetings) -> None:
    calls = []

    def finish(found: list[str]) -> str:
        calls.append(found)
        return "".join(found)

    for number in range(3):
        arrived = [meetings.arrive("t", number, who, 3, f"{who.rank}", finish=finish) for who in (C, A)]
        assert not any(each.done() for each in arrived)
        arrived.append(meetings.arrive("t", number, B, 3, "1", finish=finish))
        assert [each.result(0) for each in arrived] == ["012"] * 3
    assert calls == [["0", "1", "2"]] * 3


def test_two_meetings_at_once_do_not_mix(meetings: Meetings) -> None:
    one = meetings.arrive("one", 0, A, 2)
    other = meetings.arrive("other", 0, B, 2)
    assert not one.done() and not other.done()
    meetings.arrive("other", 0, A, 2)
    assert other.done() and not one.done()
    meetings.arrive("one", 0, B, 2)
    assert one.result(0) is None


def test_the_deadline_names_who_is_missing(meetings: Meetings) -> None:
    waiting = meetings.arrive("barrier", 0, B, 3, timeout_s=0.2)
    long = meetings.arrive("long", 0, B, 3, timeout_s=100.0)
    with pytest.raises(PeerLost, match=r"rank \[0, 2\] of 3 have not arrived at meeting 0 of 'barrier' within 0.2 s"):
        waiting.result(30)
    with pytest.raises(PeerLost, match=r"has failed before client 0 .* arrived: trainers of rank \[0, 2\]"):
        meetings.arrive("barrier", 0, A, 3)
    assert not long.done()
    again = [meetings.arrive("barrier", 1, who, 3, timeout_s=60.0) for who in (A, B, C)]
    assert all(each.done() for each in again), "the next one is held"


def test_an_earlier_deadline_of_a_later_meeting_is_kept(meetings: Meetings) -> None:
    began = time.monotonic()
    meetings.arrive("long", 0, A, 2, timeout_s=1000.0)
    with pytest.raises(PeerLost, match="'short'"):
        meetings.arrive("short", 0, A, 2, timeout_s=0.1).result(60)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("lost", [B, C], ids=["arrived", "missing"])
def test_a_lost_trainer_ends_the_meeting_at_once(meetings: Meetings, lost: Who) -> None:
    waiting = [meetings.arrive("t", 0, who, 3, timeout_s=1000.0) for who in (A, B)]
    meetings.went(lost, "its connection ended")
    for each in waiting:
        with pytest.raises(PeerLost, match=rf"trainer {lost.rank}, client {lost.rank} .*is gone: its connection ended"):
            each.result(0)
    with pytest.raises(PeerLost, match="cannot be held"):
        meetings.arrive("t", 1, A, 3)
    with pytest.raises(PeerLost, match="is gone"):
        meetings.arrive("t", 1, lost, 3)


def test_a_meeting_of_others_goes_on(meetings: Meetings) -> None:
    waiting = meetings.arrive("t", 0, A, 2, timeout_s=1000.0)
    meetings.went(C, "it left")
    assert not waiting.done()
    other = Who(1, "evaluation")
    meetings.came(other)
    meetings.went(other, "it left")
    assert not waiting.done()
    meetings.arrive("t", 0, B, 2)
    assert waiting.done()


def test_who_comes_back_takes_part_again(meetings: Meetings) -> None:
    meetings.went(C, "the network was cut")
    with pytest.raises(PeerLost):
        meetings.arrive("t", 0, A, 3)
    again = Who(2, session=1)
    meetings.came(again)
    meetings.went(C, "old news")
    with pytest.raises(PeerLost, match="has failed before client 1"):
        meetings.arrive("t", 0, B, 3)
    waiting = [meetings.arrive("t", 1, who, 3) for who in (A, B, again)]
    assert all(each.done() for each in waiting)


def test_a_new_job_begins_anew(meetings: Meetings) -> None:
    waiting = [meetings.arrive("t", 0, who, 3) for who in (A, B, C)]
    assert all(each.done() for each in waiting)
    for who in (A, B, C):
        meetings.went(who, "it left")
    for rank in range(3):
        meetings.came(Who(rank, session=1))
    waiting = [meetings.arrive("t", 0, Who(rank, session=1), 3) for rank in range(3)]
    assert all(each.done() for each in waiting)


def test_numbers_that_do_not_fit_are_refused(meetings: Meetings) -> None:
    meetings.arrive("t", 0, A, 2)
    with pytest.raises(ValueError, match=r"client 0 .* arrives, and trainer 0 has arrived already"):
        meetings.arrive("t", 0, A, 2)
    with pytest.raises(ValueError, match=r"arrives at meeting 1 of 't', and meeting 0 is not over"):
        meetings.arrive("t", 1, B, 2)
    with pytest.raises(ValueError, match=r"num = 3 as client 1 .* has it, 2 as client 0"):
        meetings.arrive("t", 0, B, 3)
    meetings.arrive("t", 0, B, 2)
    with pytest.raises(ValueError, match=r"meeting 0 of 't' is over.*the next is 1"):
        meetings.arrive("t", 0, A, 2)
    with pytest.raises(ValueError, match="ranks 0 to 0"):
        meetings.arrive("u", 0, B, 1)
    for wrong in (float("nan"), -1.0, float("inf")):
        with pytest.raises(ValueError, match="timeout_s"):
            meetings.arrive("u", 0, A, 2, timeout_s=wrong)


def test_what_finish_raises_is_raised_by_all(meetings: Meetings) -> None:
    def finish(found: list[None]) -> None:
        raise ValueError("no sum")

    waiting = [meetings.arrive("t", 0, who, 2, finish=finish) for who in (A, B)]
    for each in waiting:
        with pytest.raises(ValueError, match="no sum"):
            each.result(0)
    waiting = [meetings.arrive("t", 1, who, 2) for who in (A, B)]
    assert all(each.done() for each in waiting)


def test_closing_fails_what_is_open(meetings: Meetings) -> None:
    waiting = meetings.arrive("t", 0, A, 2)
    meetings.close("server 0 was shut down")
    with pytest.raises(PeerLost, match="server 0 was shut down"):
        waiting.result(0)
    with pytest.raises(GltError, match="server 0 was shut down"):
        meetings.arrive("t", 1, A, 2)
