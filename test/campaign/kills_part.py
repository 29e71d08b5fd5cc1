"""Kills and freezes of each kind of process, at random times: who depended on it says so in time and by name, all
others get the same batches, and nothing is left behind."""

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

from actors import Actors
from dist_world import write_world
from promptness import WITHIN_S, eventually, expect_prompt
from score import Clock, Score

from glt.distributed.wire.credentials import Credentials

NUM_KILLS, NUM_FREEZES = 100, 30  # of each role in each mode, if there is time
STUCK_S, LEASE_S, RPC_S = 4.0, 6.0, 40.0
_SHORT_RPC_S = 15.0  # where it is what is waited for
_CREDENTIALS = Credentials().to_json()
_SPARES = 10
_LONG_S = 3600.0


def run(score: Score, clock: Clock, most: int, is_toy: bool) -> None:
    kills, freezes = (1, 0) if is_toy else (NUM_KILLS, NUM_FREEZES)
    with tempfile.TemporaryDirectory() as folder:
        world = write_world(Path(folder), 2)
        service = Service(world)
        tries = [
            ("worker mode: trainer", trainer_job(world, "mp", "trainer"), kills, freezes),
            ("worker mode: sampling process", trainer_job(world, "mp", "sampler"), kills, freezes),
            ("collocated mode: trainer", trainer_job(world, "collocated", "trainer"), kills, freezes),
            ("server mode: server", service.lose_server, kills, freezes),
            ("server mode: sampling process", service.lose_sampler, kills, freezes),
            ("server mode: client", service.lose_client, kills, freezes),
        ]
        left = [(f"{name} {what}", attempt, is_kill) for name, attempt, *counts in tries
                for what, is_kill, count in zip(("killed", "frozen"), (True, False), counts, strict=True)
                for _ in range(count)]  # fmt: skip
        random = score.random("kills")
        # In turn, so that each has had its share whenever the time is over; those of servers one after the other, since
        # their service goes on.
        by_name: dict[str, list] = {}
        for each in left:
            by_name.setdefault(each[0], []).append(each)
        try:
            while by_name and not clock.is_over:
                for name in list(by_name):
                    if clock.is_over:
                        break
                    _, attempt, is_kill = by_name[name].pop()
                    if not by_name[name]:
                        del by_name[name]
                    with score.trying(name):
                        attempt(random, is_kill)
        finally:
            with score.trying("server mode: nothing is left"):
                service.end()
    for name, rest in by_name.items():
        print(f"no time for {len(rest)} more of: {name}", flush=True)


def wait_failed(actors: Actors, actor: int, since_s: float, within_s: float, kinds, *words) -> None:
    """An actor's loader fails, with one of these exceptions that says these words, so soon."""
    until = time.monotonic() + 6 * within_s + 60
    while (failure := actors.ask(actor, "failure")) is None:
        assert time.monotonic() < until, f"actor {actor} has noticed nothing for {time.monotonic() - since_s:.0f} s"
        time.sleep(0.05)
    kind, text, at_s = failure
    assert kind in kinds and all(word in text for word in words), (
        f"actor {actor}: {kind}: {text}: expected {kinds} {words}"
    )
    expect_prompt(at_s - since_s, f"actor {actor} to notice", within_s)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    assert eventually(
        lambda: all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())
    )


# -- trainers ------------------------------------------------------------------------------------------------------


def trainer_job(world, mode, role):
    """Makes ``attempt(random, is_kill)``: a job of two trainers, of which one process is lost."""

    def attempt(random, is_kill):
        with tempfile.TemporaryDirectory() as folder, Actors(2, "players.Player", 200) as actors:
            for actor in range(2):
                actors.ask(actor, "begin", folder, _CREDENTIALS, STUCK_S=STUCK_S)
            rpc_s = _SHORT_RPC_S if role == "sampler" and not is_kill else RPC_S
            for actor in range(2):
                actors.ask(actor, "go_as_trainer", str(world.path), mode, rpc_timeout=rpc_s)
            is_early = role == "trainer" and is_kill and random.random() < 0.15
            if not is_early:
                for actor in range(2):
                    actors.expect_progress(actor, 1)
            time.sleep(random.uniform(0, 1.0))
            victim = random.randrange(2)
            (lose_trainer if role == "trainer" else lose_own_sampler)(actors, victim, random, is_kill, mode, is_early)

    return attempt


def lose_trainer(actors, victim, random, is_kill, mode, is_early):
    other, pid, since_s = 1 - victim, actors.processes[victim].pid, time.monotonic()
    if is_kill:
        actors.kill(victim)
        kinds, words, within_s = ("PeerLost",), (f"trainer {victim}",), WITHIN_S
        if is_early:  # it may not have come yet
            kinds, words, within_s = ("PeerLost", "RendezvousError"), (), RPC_S + WITHIN_S
        wait_failed(actors, other, since_s, within_s, kinds, *words)
    else:
        stop(pid)
        if random.random() < 0.3:  # for a moment only: nothing has happened
            time.sleep(random.uniform(0, STUCK_S / 4))
            os.kill(pid, signal.SIGCONT)
            for actor in range(2):
                actors.expect_progress(actor, 10)
            end(actors, range(2))
            return
        wait_failed(actors, other, since_s, STUCK_S + WITHIN_S, ("PeerLost",), f"trainer {victim}", f"pid {pid}")
        if random.random() < 0.5:
            os.kill(pid, signal.SIGCONT)
            wait_failed(actors, victim, since_s, 2 * STUCK_S + 2 * WITHIN_S, ("PeerLost",))
            end(actors, range(2))
            return
        actors.kill(victim)
    end(actors, [other])


def lose_own_sampler(actors, victim, random, is_kill, mode, is_early):
    other = 1 - victim
    (pid,) = actors.ask(victim, "samplers_of_trainer")
    since_s = time.monotonic()
    if is_kill:
        os.kill(pid, signal.SIGKILL)
        within_s = WITHIN_S
        words = f"pid {pid}", "exit code -9", f"trainer {victim}"
    else:
        stop(pid)
        if random.random() < 0.3:
            time.sleep(random.uniform(0, STUCK_S / 4))
            os.kill(pid, signal.SIGCONT)
            for actor in range(2):
                actors.expect_progress(actor, 10)
            end(actors, range(2))
            return
        within_s, words = _SHORT_RPC_S + WITHIN_S, (f"pid {pid}", f"trainer {victim}")
    wait_failed(actors, victim, since_s, within_s, ("WorkerDied",) if is_kill else ("WorkerDied", "PeerLost"), *words)
    wait_failed(actors, other, since_s, within_s, ("PeerLost",), f"pid {pid}")
    end(actors, range(2))


def end(actors, alive):
    """Those that live go home; nothing is left of any."""
    for actor in alive:
        actors.ask(actor, "stop_going")
        actors.say(actor, None)
    actors.outcomes()
    actors.expect_nothing_left(30.0)


# -- servers -------------------------------------------------------------------------------------------------------


class Service:
    """Two servers, which ask each other for rows, and a client of each. Who is lost is replaced by a spare process of
    the cluster; when there are no more spares, or something has failed, the next try has a service of its own."""

    def __init__(self, world) -> None:
        self._world = world
        self._made = contextlib.ExitStack()
        self._actors: Actors | None = None

    def end(self) -> None:
        """Clients leave and servers end; nothing is left."""
        actors, self._actors = self._actors, None
        if actors is None:
            return
        try:
            for client in self._clients:
                actors.ask(client, "stop_going")
                actors.ask(client, "leave")
            for server in self._servers:
                actors.ask(server, "wait_and_shutdown", 60.0)
            for actor in (*self._servers, *self._clients, *self._spares):
                actors.say(actor, None)
            actors.outcomes()
            actors.expect_nothing_left(30.0)
        finally:
            self._made.close()

    def _drop(self) -> None:
        self._actors = None
        self._made.close()

    @contextlib.contextmanager
    def _running(self):
        if self._actors is not None and len(self._spares) < 2:
            self.end()
        try:
            if self._actors is None:
                self._start()
            yield self._actors
        except BaseException:
            self._drop()
            raise

    def _start(self) -> None:
        folder = self._made.enter_context(tempfile.TemporaryDirectory())
        actors = self._made.enter_context(Actors(4 + _SPARES, "players.Player", _LONG_S))
        self._actors, self._spares = actors, list(range(4, 4 + _SPARES))
        for actor in range(4 + _SPARES):
            actors.ask(actor, "begin", folder, _CREDENTIALS, STUCK_S=STUCK_S, LEASE_S=LEASE_S)
        self._servers, self._clients = [0, 1], [2, 3]
        for rank in range(2):
            self._begin_serving(rank)
        for rank in range(2):
            self._wait_serving(rank)
        for rank in range(2):
            actors.ask(self._clients[rank], "join", 2, 2, rank)
            self._go(rank)

    def _begin_serving(self, rank):
        given = {"num_workers": 1, "read_local": False, "rpc_timeout": 60.0}
        self._actors.say(self._servers[rank], ("serve", (str(self._world.path), 2, 2, rank), given))

    def _wait_serving(self, rank):
        is_good, value = self._actors.hear(self._servers[rank])
        assert is_good, value

    def _go(self, rank):
        self._actors.ask(self._clients[rank], "go_as_client", rank, server_rank=rank, buffer_size="8MB")
        self._actors.expect_progress(self._clients[rank], 1)

    def _all_go_on(self):
        for client in self._clients:
            self._actors.expect_progress(client, 10)

    def lose_sampler(self, random, is_kill):
        """Its clients fail, and begin anew on the one that takes its place; others wait for that one."""
        with self._running() as actors:
            time.sleep(random.uniform(0, 0.5))
            rank = random.randrange(2)
            (pid,) = actors.ask(self._servers[rank], "samplers")
            since_s = time.monotonic()
            if is_kill:
                os.kill(pid, signal.SIGKILL)
                words = f"pid {pid}", "exit code -9", f"server {rank}"
                wait_failed(actors, self._clients[rank], since_s, WITHIN_S, ("WorkerDied",), *words)
            else:
                stop(pid)
                if random.random() < 0.3:
                    time.sleep(random.uniform(0, STUCK_S / 4))
                    os.kill(pid, signal.SIGCONT)
                    self._all_go_on()
                    return
                words = f"pid {pid}", f"server {rank}"
                kinds = "PeerLost", "WorkerDied"
                wait_failed(actors, self._clients[rank], since_s, STUCK_S + WITHIN_S, kinds, *words)
            actors.expect_progress(self._clients[1 - rank], 10)
            self._go(rank)
            assert actors.ask(self._servers[rank], "samplers") != [pid]

    def lose_server(self, random, is_kill):
        """Its client fails. Another takes its place, and the other server's client goes on meanwhile."""
        with self._running() as actors:
            time.sleep(random.uniform(0, 0.5))
            rank = random.randrange(2)
            actor, client = self._servers[rank], self._clients[rank]
            pid, since_s = actors.processes[actor].pid, time.monotonic()
            if not is_kill:
                stop(pid)
                if random.random() < 0.5:  # woken, it takes its client back, whose batches came all the while
                    time.sleep(random.uniform(0, 2 * STUCK_S))
                    os.kill(pid, signal.SIGCONT)
                    self._all_go_on()
                    assert eventually(lambda: self._reaches(client, rank))
                    return
                actors.expect_progress(client, 10)
                time.sleep(STUCK_S)
            actors.kill(actor)
            since_s = time.monotonic()
            words = f"server {rank}", f"pid {pid}"
            wait_failed(actors, client, since_s, WITHIN_S, ("PeerLost",), *words)
            self._servers[rank] = self._spares.pop()
            self._begin_serving(rank)
            self._wait_serving(rank)
            actors.expect_progress(self._clients[1 - rank], 10)
            self._go(rank)

    def _reaches(self, client, rank):
        try:
            return self._actors.ask(client, "request", rank, "torch.cuda.is_available") in (True, False)
        except AssertionError as error:
            assert "PeerLost" in str(error), error
            return False

    def lose_client(self, random, is_kill):
        """Its servers free its loaders; another comes in its place."""
        with self._running() as actors:
            time.sleep(random.uniform(0, 0.5))
            rank = random.randrange(2)
            actor, server = self._clients[rank], self._servers[rank]
            pid, since_s = actors.processes[actor].pid, time.monotonic()
            if is_kill:
                actors.kill(actor)
                within_s = WITHIN_S
            else:
                stop(pid)
                if random.random() < 0.3:
                    time.sleep(random.uniform(0, LEASE_S / 4))
                    os.kill(pid, signal.SIGCONT)
                    self._all_go_on()
                    return
                within_s = LEASE_S + WITHIN_S
            assert eventually(lambda: actors.ask(server, "stats")["num_loaders"] == 0), "its loaders are not freed"
            expect_prompt(time.monotonic() - since_s, "to free its loaders", within_s)
            if not is_kill:
                os.kill(pid, signal.SIGCONT)
                wait_failed(actors, actor, since_s, LEASE_S + 2 * WITHIN_S + 30, ("PeerLost",))
                actors.kill(actor)
            actors.expect_progress(self._clients[1 - rank], 10)
            self._clients[rank] = self._spares.pop()
            actors.ask(self._clients[rank], "join", 2, 2, rank)
            self._go(rank)
