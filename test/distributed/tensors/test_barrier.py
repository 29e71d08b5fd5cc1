"""Trainers arrive at barriers: all or none, in order, and none waits for one that cannot come."""

import asyncio
from dataclasses import dataclass

import pytest

from glt.distributed.tensors.barrier import Barriers
from glt.distributed.wire.beats import beats
from glt.distributed.wire.threads import wait_for
from glt.errors import GltError, PeerLost


@dataclass(frozen=True)
class Who:
    rank: int
    group: str = "trainers"
    session: int = 0
    is_guest = False

    @property
    def id(self):
        return f"{self.group}/{self.rank}/{self.session}"

    def __str__(self):
        return f"client {self.rank} of {self.group!r} (pid {1000 + self.rank})"


A, B, C = Who(0), Who(1), Who(2)


@pytest.fixture
def barriers():
    made = Barriers()
    for who in (A, B, C):
        made.add(who)
    yield made
    made.close("the test is over")
    wait_for(asyncio.sleep(0))
    assert made._watch not in beats._ticks, "nothing is watched any more"


def arrive(barriers, number, *members, tag="t", **more):
    """Arrivals at a barrier of three."""
    return [barriers.arrive(who, tag, number, 3, **more) for who in members]


def require_held(barriers, number, *members):
    assert all(each.done() and each.exception() is None for each in arrive(barriers, number, *members))


def test_contributions_are_merged_once_in_the_order_of_the_ranks(barriers):
    calls = []
    for number in range(3):
        arrived = []
        for who in (C, A, B):
            assert not any(each.done() for each in arrived)
            arrived += arrive(barriers, number, who, value=who.rank, combine=lambda found: calls.append(found) or "all")
        assert [each.result(0) for each in arrived] == ["all"] * 3
    assert calls == [[0, 1, 2]] * 3

    def combine(found):
        raise ValueError("no sum")

    for each in arrive(barriers, 3, A, B, C, combine=combine):
        with pytest.raises(ValueError, match="no sum"):
            each.result(0)
    require_held(barriers, 4, A, B, C)


def test_the_deadline_names_who_is_missing(barriers):
    (long,) = arrive(barriers, 0, B, tag="long", timeout_s=1000.0)
    (waiting,) = arrive(barriers, 0, B, timeout_s=0.2)
    with pytest.raises(PeerLost, match=r"rank \[0, 2\] of 3 have not arrived at barrier 0 of 't' within 0.2 s"):
        waiting.result(30)
    with pytest.raises(PeerLost, match=r"has failed before client 0 .* arrived: trainers of rank \[0, 2\]"):
        arrive(barriers, 0, A)
    require_held(barriers, 1, A, B, C)
    assert not long.done()
    arrive(barriers, 0, A, C, tag="long")
    assert long.result(0) is None


@pytest.mark.parametrize("lost", [B, C], ids=["arrived", "missing"])
def test_a_lost_trainer_ends_the_barrier_at_once(barriers, lost):
    waiting = arrive(barriers, 0, A, B, timeout_s=1000.0)
    barriers.remove(lost, "its connection ended")
    for each in waiting:
        with pytest.raises(PeerLost, match=rf"trainer {lost.rank}, client {lost.rank} .*is gone: its connection ended"):
            each.result(0)
    with pytest.raises(PeerLost, match="cannot be held"):
        arrive(barriers, 1, A)
    with pytest.raises(PeerLost, match="is gone"):
        arrive(barriers, 1, lost)


def test_a_barrier_of_others_goes_on(barriers):
    waiting = barriers.arrive(A, "t", 0, 2, timeout_s=1000.0)
    other = Who(1, "evaluation")
    barriers.add(other)
    for who in (C, other):
        barriers.remove(who, "it left")
    assert not waiting.done()
    barriers.arrive(B, "t", 0, 2)
    assert waiting.done()


def test_who_comes_back_takes_part_again(barriers):
    barriers.remove(C, "the network was cut")
    with pytest.raises(PeerLost):
        arrive(barriers, 0, A)
    again = Who(2, session=1)
    barriers.add(again)
    barriers.remove(C, "old news")
    with pytest.raises(PeerLost, match="has failed before client 1"):
        arrive(barriers, 0, B)
    require_held(barriers, 1, A, B, again)
    for who in (A, B, again):
        barriers.remove(who, "it left")
    job = [Who(rank, session=2) for rank in range(3)]
    for who in job:
        barriers.add(who)
    require_held(barriers, 0, *job)


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


def test_closing_fails_what_is_open(barriers):
    waiting = barriers.arrive(A, "t", 0, 2)
    barriers.close("server 0 was shut down")
    with pytest.raises(PeerLost, match="server 0 was shut down"):
        waiting.result(0)
    with pytest.raises(GltError, match="server 0 was shut down"):
        barriers.arrive(A, "t", 1, 2)
