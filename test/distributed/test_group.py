"""Trainers meet, hear of each other's failures and deaths, and part; and the calls of stores end."""

import ctypes
import math
import os
import signal
import threading
import time

import pytest
import torch.distributed as dist
from dist_world import expect_error, hear_all, run_cluster, say_all
from promptness import eventually, expect_prompt

import glt
from glt import _deadlines
from glt.distributed.job.initialize import Ending
from glt.distributed.wire import group as module
from glt.distributed.wire import handshake
from glt.distributed.wire.credentials import Credentials, Token, use_credentials
from glt.distributed.wire.group import Group, require_equal
from glt.distributed.wire.store import TimedStore
from glt.errors import GltError, PeerLost, RendezvousError
from glt.testing.cluster import Cluster, take_census


def meet(trainer, timeout_s=60.0):
    context = glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "job")
    return Group(context, "localhost", trainer.port, timeout_s)


def met(trainer):
    """A group whose members have heard of each other."""
    group = meet(trainer)
    group.exchange("topic", 0)
    return group


def is_over():
    """Nothing is left of the groups of this process."""
    threads = [each.name for each in threading.enumerate() if each.name in ("glt-start",)]
    return not threads and not take_census().ports


def expect_lost(outcomes, victim, pid, start, *words):
    """All but one trainer raise PeerLost, soon, and name that one."""
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            expect_error(outcome, "PeerLost", f"trainer {victim} (host ", f"pid {pid})")
            assert all(word in outcome.error for word in words), outcome
            expect_prompt(outcome.at_s - start, f"trainer {rank} to hear of it")


def exchange(trainer):
    group = meet(trainer)
    found = [group.exchange(f"topic {number}", [trainer.rank, number]) for number in range(5)]
    found += [group.exchange("again", (trainer.rank, None)) for _ in range(20)]
    require_equal(group, "options", {"depth": [2, 2]}, "Look there.")
    names = [group.name_of(rank) for rank in range(trainer.world_size)]
    group.check_peers()
    assert group.finish() == [] and group.finish() == [0, 1, 2][: trainer.rank] + [0, 1, 2][trainer.rank + 1 :]
    assert eventually(is_over)
    return [found, names]


def test_values_reach_everybody_by_rank_and_nothing_stays():
    with Cluster(3, exchange) as cluster:
        for found, names in cluster.results():
            assert found[:5] == [[[rank, number] for rank in range(3)] for number in range(5)]
            assert found[5:] == [[[rank, None] for rank in range(3)]] * 20
            for rank, name in enumerate(names):
                assert name.startswith(f"trainer {rank} (host ") and f"pid {cluster.processes[rank].pid})" in name
        cluster.expect_nothing_left()


def alone(trainer):
    group = meet(trainer)
    found = group.exchange("topic", (1, 2))
    group.check_peers()
    return [found, group.finish(), [each.name for each in threading.enumerate()], take_census().ports]


def test_one_rank_needs_neither_thread_nor_port():
    assert run_cluster(1, alone) == [[[[1, 2]], [], ["MainThread"], []]]


def several(trainer):
    """Groups of a process share its port; members come to a group before rank 0 has made it."""
    if trainer.rank == 0:
        first = meet(trainer)
        trainer.say("made")
        trainer.hear()
        groups = [first, meet(trainer), meet(trainer)]
    else:
        groups = [meet(trainer) for _ in range(3)]
        trainer.say("made")
    found = [each.exchange("topic", number) for number, each in enumerate(groups)]
    for each in groups if trainer.rank else reversed(groups):
        each.leave()
        each.leave()
    assert eventually(is_over)
    return found


def test_groups_share_a_port_and_may_end_in_any_order():
    with Cluster(2, several) as cluster:
        assert hear_all(cluster) == ["made", "made"]
        cluster.say(0)
        assert cluster.results() == [[[0, 0], [1, 1], [2, 2]]] * 2


def one_after_another(trainer):
    """Rank 0 closes its port with each group while rank 1 is about to arrive for the next one."""
    for number in range(150):
        group = meet(trainer)
        assert group.exchange("topic", number) == [number, number]
        group.leave()
    return number


def test_groups_of_one_port_follow_each_other():
    assert run_cluster(2, one_after_another) == [149, 149]


def come(trainer, late, is_there):
    """One rank does not come, or comes and says nothing."""
    _deadlines.HINT_S = 0.1
    trainer.say("here")
    trainer.hear()
    if trainer.rank == late and not is_there:
        trainer.hear()
        return
    try:
        group = meet(trainer, 4.0)
        if trainer.rank == late:
            trainer.hear()
        else:
            group.exchange("options", trainer.rank)
    finally:
        trainer.say("gave up")


def begin(cluster):
    for rank in range(cluster.world_size):
        assert cluster.hear(rank) == "here"
    say_all(cluster)


@pytest.mark.parametrize(("late", "is_there"), [(2, False), (2, True), (0, True)])
def test_who_does_not_come_is_named_at_the_deadline(late, is_there):
    with Cluster(3, come, late, is_there) as cluster:
        begin(cluster)
        for rank in range(3):
            if rank != late:
                assert cluster.hear(rank) == "gave up"
        cluster.say(late)
        for rank, outcome in enumerate(cluster.outcomes()):
            if rank != late:
                text = f"trainers of rank [{late}] did not tell their options "
                expect_error(outcome, "RendezvousError", text + "within 4 s")
                assert cluster.output(rank).count(text + "yet; waiting for up to") >= 2


def wait_in(trainer, where, victim):
    """All wait for one rank, which waits for the test."""
    _deadlines.STUCK_S = 2.0
    group = met(trainer)
    trainer.say("met")
    try:
        if trainer.rank == victim:
            trainer.hear()
        elif where == "exchange":
            group.exchange("more", 0)
        else:
            while True:
                group.check_peers()
                time.sleep(0.05)
    finally:
        trainer.say("lost")


@pytest.mark.parametrize(
    ("number", "where", "words"),
    [
        (signal.SIGKILL, "exchange", ()),
        (signal.SIGKILL, "work", ()),
        (signal.SIGSTOP, "exchange", ("no sign of life for 2 s",)),
    ],
    ids=["killed", "killed at work", "stopped"],
)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_trainer_that_is_killed_or_stopped_is_named(number, where, words, victim):
    with Cluster(3, wait_in, where, victim) as cluster:
        assert hear_all(cluster) == ["met"] * 3
        start = time.monotonic()
        cluster.kill(victim, number)
        for rank in range(3):
            if rank != victim:
                assert cluster.hear(rank) == "lost"
        if number == signal.SIGSTOP:
            cluster.kill(victim)
        expect_lost(cluster.outcomes(), victim, cluster.processes[victim].pid, start, *words)


def go_on(trainer):
    _deadlines.STUCK_S = 2.0
    group = met(trainer)
    trainer.say("met")
    trainer.hear()
    return group.exchange("more", trainer.rank)


def test_trainers_that_were_stopped_together_go_on():
    """As by Ctrl-Z: the first to go on has heard nothing of the others for long."""
    with Cluster(2, go_on) as cluster:
        assert hear_all(cluster) == ["met"] * 2
        for rank in range(2):
            cluster.kill(rank, signal.SIGSTOP)
        time.sleep(3.0)
        for rank in range(2):
            cluster.kill(rank, signal.SIGCONT)
            time.sleep(0.5)
        say_all(cluster)
        assert cluster.results() == [[0, 1]] * 2


def hold_the_interpreter(trainer):
    """Rank 1 lets none of its threads run for longer than a cut network is tolerated."""
    _deadlines.CUT_S = 1.0
    group = met(trainer)
    if trainer.rank == 1:
        ctypes.PyDLL(None).usleep(4_000_000)  # unlike time.sleep, with the GIL
    return group.exchange("more", trainer.rank)


def test_a_trainer_that_holds_the_interpreter_is_not_taken_for_dead():
    assert run_cluster(2, hold_the_interpreter) == [[0, 1]] * 2


def fail(trainer, victim):
    group = met(trainer)
    if trainer.rank != victim:
        group.exchange("more", 0)
    try:
        with group.during("it went over the bridge"):
            raise ZeroDivisionError("its own mistake")
    finally:
        os._exit(3)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_failure_is_told_though_its_process_ends_at_once(victim):
    with Cluster(3, fail, victim) as cluster:
        words = "has reported ZeroDivisionError: its own mistake", "(while it went over the bridge)"
        expect_lost(cluster.outcomes(), victim, cluster.processes[victim].pid, time.monotonic(), *words)


def tell(trainer):
    """Rank 1 loses something, and the others lose rank 1: they hear what it was, and go on."""
    group = met(trainer)
    if trainer.rank == 1:
        time.sleep(0.2)  # the others wait for the report
        told = group.tell(GltError("a tile came off"))
    else:
        told = group.tell(PeerLost("lost worker 0 of trainer 1"))
    group.check_peers()
    return [str(told), str(group.finish())]


def test_a_loss_is_explained_by_the_trainer_that_is_to_blame():
    with Cluster(3, tell) as cluster:
        first, second, third = cluster.results()
        assert second == ["a tile came off", "[0, 2]"]
        for text, missing in (first, third):
            assert text.startswith("lost worker 0 of trainer 1; trainer ") and missing in ("[0, 1]", "[1, 2]")
            assert f"pid {cluster.processes[1].pid}) has reported GltError: a tile came off" in text


def part(trainer):
    """Rank 1 fails, rank 0 goes on for a while: rank 2 waits for rank 0 only."""
    group = met(trainer)
    if trainer.rank == 1:
        group.give_up(ZeroDivisionError())
    if trainer.rank == 0:
        trainer.hear()
    else:
        trainer.say("parts")
    return group.finish()


def test_the_end_waits_for_those_that_are_at_work_and_names_those_that_failed():
    with Cluster(3, part) as cluster:
        assert [cluster.hear(1), cluster.hear(2)] == ["parts", "parts"]
        cluster.processes[2].join(0.5)
        assert cluster.processes[2].is_alive()
        cluster.say(0)
        assert cluster.results() == [[1], [0, 2], [1]]
        cluster.expect_nothing_left()


def test_the_ends_of_a_thousand_ranks_are_told_together():
    heard = []
    hub = module.Hub(0, 1000, 60.0, heard.append)
    for rank in range(1, 500):
        hub.take(rank, {"done": True})
    assert heard == []
    hub.tick()
    hub.tick()
    assert heard == [{"done": list(range(1, 500))}]
    for rank in [*range(500, 1000), 0]:
        hub.take(rank, {"done": True})
    assert heard[1:] == [{"done": [*range(500, 1000), 0]}]  # nothing more is awaited: at once


def fork(trainer):
    """A fork ends nothing of its parent's, and waits for nobody."""
    group = met(trainer)
    child = os.fork()
    if child == 0:
        group.give_up(ZeroDivisionError())
        os._exit(0 if group.finish() else 1)
    assert os.waitpid(child, 0)[1] == 0
    return [group.exchange("more", trainer.rank), group.finish()]


def test_a_fork_of_a_member_ends_nothing():
    assert run_cluster(2, fork) == [[[0, 1], []]] * 2


class Stopped(dist.Store):
    """As of a stopped process: it never answers."""

    def __init__(self):
        super().__init__()
        self.asked = threading.Event()

    def check(self, keys):
        self.asked.wait(60.0)
        return True


def test_a_store_that_does_not_answer_is_given_up():
    stopped = Stopped()
    store = TimedStore(stopped, 0.2)
    began = time.monotonic()
    for _ in range(2):  # the second one does not wait at all
        with pytest.raises(dist.DistError, match=r"no answer within 0\.2 s"):
            store.check(["key"])
    assert time.monotonic() - began < 30
    stopped.asked.set()


def test_a_wait_for_a_store_that_does_not_answer_has_one_deadline(monkeypatch, caplog):
    monkeypatch.setattr(_deadlines, "HINT_S", 0.3)
    stopped, began = Stopped(), time.monotonic()
    with pytest.raises(dist.DistError, match=r"no answer within 1\.5 s"):
        TimedStore(stopped, 60.0).wait_for("key", 1.5, "nobody has come yet")
    assert time.monotonic() - began < 30
    assert caplog.text.count("the store of torch.distributed gives no answer") >= 2
    stopped.asked.set()


def test_waiting_for_a_key(monkeypatch, caplog):
    monkeypatch.setattr(_deadlines, "HINT_S", 0.05)
    inner = dist.HashStore()
    store = TimedStore(inner)
    assert store.wait_for("key", 0.5, "nobody has come yet") is None
    assert caplog.text.count("nobody has come yet; waiting for up to") >= 2
    store.set("key", "value")
    assert store.wait_for("key", 5.0, "nobody has come yet") == b"value"


def test_its_thread_ends_with_it():
    before = threading.active_count()
    store = TimedStore(dist.HashStore())
    assert threading.active_count() == before + 1
    del store
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_errors_that_were_there_before_end_nothing():
    try:
        raise ValueError("before")
    except ValueError:
        ending = Ending()
        assert ending.why() == ""
    try:
        raise ValueError("after")
    except ValueError:
        assert ending.why() == "ValueError: after"
    assert ending.why() == ""


@pytest.mark.parametrize(
    ("addr", "expected"),
    [("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("127.0.1.1", "127.0.1.1"), ("a.name", "0.0.0.0")],
)
def test_the_port_is_open_as_far_as_the_address_of_rank_0_goes(addr, expected, monkeypatch):
    monkeypatch.setattr(module, "own_address", lambda address: "127.0.0.1")  # as of a.name in /etc/hosts of rank 0
    assert module._interface(addr) == expected


def meet_strangers(trainer, folder):
    """Rank 0 of two, while others try to take a place; what they are told, and what rank 0 hears."""
    Token.read(f"{folder}/write").for_reading().write(f"{folder}/read")
    use_credentials(token_file=f"{folder}/write")
    group = Group(glt.distributed.init_worker_group(2, 0, "job"), "localhost", trainer.port, 3.0)
    told = []
    for file, rank in (("read", 1), ("read", 0), ("write", 5), ("write", -1), ("write", math.inf)):
        handshake.current_credentials = lambda file=file: Credentials(token_file=f"{folder}/{file}")
        hello = handshake.introduce("trainer", group=0, rank=rank, size=2)
        try:
            handshake.dial(("127.0.0.1", trainer.port), "trainer 0", hello, 20.0)
        except RendezvousError as error:
            told.append(str(error))
    try:
        group.exchange("topic", 0)
    except RendezvousError as error:
        return told, str(error)


def test_those_who_only_read_are_no_trainers(tmp_path):
    Token.new().write(tmp_path / "write")
    with Cluster(1, meet_strangers, str(tmp_path)) as cluster:
        ((told, heard),) = cluster.results()
    first, second, high, low, endless = told
    assert all("has the read token only: trainers meet with the write token" in each for each in (first, second))
    assert "rank = 5 is outside [0, 2)" in high and "rank = -1" in low and "rank = inf" in endless
    assert "trainers of rank [1] did not tell their topic within 3 s" in heard


def with_a_token(trainer, files):
    """Rank 2 has another token than the others, or none."""
    use_credentials(token_file=files[trainer.rank])
    return meet(trainer, 5.0).exchange("topic", trainer.rank)


@pytest.mark.parametrize("stranger", ["write", "other", None])
def test_trainers_prove_that_they_belong_to_the_job(tmp_path, stranger):
    for name in ("write", "other"):
        Token.new().write(tmp_path / name)
    files = [str(tmp_path / "write")] * 2 + [stranger and str(tmp_path / stranger)]
    with Cluster(3, with_a_token, files) as cluster:
        if stranger == "write":
            assert cluster.results() == [[0, 1, 2]] * 3
        else:
            outcomes = cluster.outcomes()
            words = "the token is another one" if stranger else "a token is asked for here"
            expect_error(outcomes[2], "RendezvousError", "job-2: ", "refused: ", words)
            for outcome in outcomes[:2]:
                expect_error(outcome, "RendezvousError", "trainers of rank [2] did not tell their topic within 5 s")
