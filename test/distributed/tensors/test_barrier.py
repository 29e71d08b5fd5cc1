"""Trainers arrive at barriers: all or none, in order, and none waits for one that cannot come."""

import threading
import time
from dataclasses import dataclass

import pytest

from glt.distributed.tensors.barrier import Barriers
from glt.errors import GltError, PeerLost


@dataclass(frozen=True)
class Who:
    rank: int
    group: str = "trainers"
    session: int = 0

    @property
    def id(self):
        return f"{self.group}/{self.rank}/{self.session}"

    def __str__(self):
        return f"client {self.rank} of {self.group!r} (pid {1000 + self.rank})"


A, B, C = Who(0), Who(1), Who(2)


@pytest.fixture
def barriers():
    before = set(threading.enumerate())  # other tests' worlds may still be there
    made = Barriers()
    for who in (A, B, C):
        made.add(who)
    yield made
    made.close("the test is over")
    assert not [each for each in threading.enumerate() if each.name == "glt-barriers" and each not in before]


def test_contributions_are_merged_once_in_the_order_of_the_ranks(barriers):
    calls = []

    def combine(found):
        calls.append(found)
        return "".join(found)

    for number in range(3):
        arrived = [barriers.arrive(who, "t", number, 3, value=f"{who.rank}", combine=combine) for who in (C, A)]
        assert not any(each.done() for each in arrived)
        arrived.append(barriers.arrive(B, "t", number, 3, value="1", combine=combine))
        assert [each.result(0) for each in arrived] == ["012"] * 3
    assert calls == [["0", "1", "2"]] * 3


def test_two_barriers_at_once_do_not_mix(barriers):
    one = barriers.arrive(A, "one", 0, 2)
    other = barriers.arrive(B, "other", 0, 2)
    assert not one.done() and not other.done()
    barriers.arrive(A, "other", 0, 2)
    assert other.done() and not one.done()
    barriers.arrive(B, "one", 0, 2)
    assert one.result(0) is None


def test_the_deadline_names_who_is_missing(barriers):
    waiting = barriers.arrive(B, "barrier", 0, 3, timeout_s=0.2)
    long = barriers.arrive(B, "long", 0, 3, timeout_s=100.0)
    with pytest.raises(PeerLost, match=r"rank \[0, 2\] of 3 have not arrived at barrier 0 of 'barrier' within 0.2 s"):
        waiting.result(30)
    with pytest.raises(PeerLost, match=r"has failed before client 0 .* arrived: trainers of rank \[0, 2\]"):
        barriers.arrive(A, "barrier", 0, 3)
    assert not long.done()
    again = [barriers.arrive(who, "barrier", 1, 3, timeout_s=60.0) for who in (A, B, C)]
    assert all(each.done() for each in again), "the next one is held"


def test_an_earlier_deadline_of_a_later_barrier_is_kept(barriers):
    began = time.monotonic()
    barriers.arrive(A, "long", 0, 2, timeout_s=1000.0)
    with pytest.raises(PeerLost, match="'short'"):
        barriers.arrive(A, "short", 0, 2, timeout_s=0.1).result(60)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("lost", [B, C], ids=["arrived", "missing"])
def test_a_lost_trainer_ends_the_barrier_at_once(barriers, lost):
    waiting = [barriers.arrive(who, "t", 0, 3, timeout_s=1000.0) for who in (A, B)]
    barriers.remove(lost, "its connection ended")
    for each in waiting:
        with pytest.raises(PeerLost, match=rf"trainer {lost.rank}, client {lost.rank} .*is gone: its connection ended"):
            each.result(0)
    with pytest.raises(PeerLost, match="cannot be held"):
        barriers.arrive(A, "t", 1, 3)
    with pytest.raises(PeerLost, match="is gone"):
        barriers.arrive(lost, "t", 1, 3)


def test_a_barrier_of_others_goes_on(barriers):
    waiting = barriers.arrive(A, "t", 0, 2, timeout_s=1000.0)
    barriers.remove(C, "it left")
    assert not waiting.done()
    other = Who(1, "evaluation")
    barriers.add(other)
    barriers.remove(other, "it left")
    assert not waiting.done()
    barriers.arrive(B, "t", 0, 2)
    assert waiting.done()


def test_who_comes_back_takes_part_again(barriers):
    barriers.remove(C, "the network was cut")
    with pytest.raises(PeerLost):
        barriers.arrive(A, "t", 0, 3)
    again = Who(2, session=1)
    barriers.add(again)
    barriers.remove(C, "old news")
    with pytest.raises(PeerLost, match="has failed before client 1"):
        barriers.arrive(B, "t", 0, 3)
    waiting = [barriers.arrive(who, "t", 1, 3) for who in (A, B, again)]
    assert all(each.done() for each in waiting)


def test_a_new_job_begins_anew(barriers):
    waiting = [barriers.arrive(who, "t", 0, 3) for who in (A, B, C)]
    assert all(each.done() for each in waiting)
    for who in (A, B, C):
        barriers.remove(who, "it left")
    for rank in range(3):
        barriers.add(Who(rank, session=1))
    waiting = [barriers.arrive(Who(rank, session=1), "t", 0, 3) for rank in range(3)]
    assert all(each.done() for each in waiting)


def test_numbers_that_do_not_fit_are_refused(barriers):
    barriers.arrive(A, "t", 0, 2)
    with pytest.raises(ValueError, match=r"client 0 .* arrives, and trainer 0 has arrived already"):
        barriers.arrive(A, "t", 0, 2)
    with pytest.raises(ValueError, match=r"arrives at barrier 1 of 't', and barrier 0 is not over"):
        barriers.arrive(B, "t", 1, 2)
    with pytest.raises(ValueError, match=r"num = 3 as client 1 .* has it, 2 as client 0"):
        barriers.arrive(B, "t", 0, 3)
    barriers.arrive(B, "t", 0, 2)
    with pytest.raises(ValueError, match=r"barrier 0 of 't' is over.*the next is 1"):
        barriers.arrive(A, "t", 0, 2)
    with pytest.raises(ValueError, match="ranks 0 to 0"):
        barriers.arrive(B, "u", 0, 1)
    for wrong in (float("nan"), -1.0, float("inf")):
        with pytest.raises(ValueError, match="timeout_s"):
            barriers.arrive(A, "u", 0, 2, timeout_s=wrong)


def test_what_combine_raises_is_raised_by_all(barriers):
    def combine(found):
        raise ValueError("no sum")

    waiting = [barriers.arrive(who, "t", 0, 2, combine=combine) for who in (A, B)]
    for each in waiting:
        with pytest.raises(ValueError, match="no sum"):
            each.result(0)
    waiting = [barriers.arrive(who, "t", 1, 2) for who in (A, B)]
    assert all(each.done() for each in waiting)


def test_closing_fails_what_is_open(barriers):
    waiting = barriers.arrive(A, "t", 0, 2)
    barriers.close("server 0 was shut down")
    with pytest.raises(PeerLost, match="server 0 was shut down"):
        waiting.result(0)
    with pytest.raises(GltError, match="server 0 was shut down"):
        barriers.arrive(A, "t", 1, 2)
