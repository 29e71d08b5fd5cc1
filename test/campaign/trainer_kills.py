"""A job of two trainers, of which one process is killed or frozen; each try has a job of its own."""

import os
import signal
import tempfile
import time

from actors import Actors, wake
from promptness import freeze

from glt.distributed.wire.credentials import Credentials

STUCK_S, RPC_S = 4.0, 90.0
_SHORT_RPC_S = 25.0  # where it is what is waited for


def lose_trainer(world, mode):
    """Returns a try, ``try_(random, is_kill)``."""

    def try_(random, is_kill):
        is_early = is_kill and random.random() < 0.15  # while the job begins
        with _Job(world, mode, RPC_S, 0 if is_early else 1) as actors:
            time.sleep(random.uniform(0, 1.0))
            victim = random.randrange(2)
            other, pid, since_s = 1 - victim, actors.processes[victim].pid, time.monotonic()
            if is_kill:
                actors.kill(victim)
                if is_early:  # it may not have come yet
                    actors.expect_failure(other, since_s, RPC_S, ("PeerLost", "RendezvousError"))
                else:
                    actors.expect_failure(other, since_s, 0.0, ("PeerLost",), f"trainer {victim}")
                _end(actors, victim)
                return
            freeze(pid)
            is_noticed = random.random() < 0.7
            if not is_noticed:
                time.sleep(random.uniform(0, STUCK_S / 2))
            elif mode == "collocated":
                words = f"trainer {victim}", f"pid {pid}"
                actors.expect_failure(other, since_s, STUCK_S, ("PeerLost",), *words)
                if random.random() < 0.5:
                    actors.kill(victim)
                    _end(actors, victim)
                    return
            else:  # its sampling processes answer all the while
                time.sleep(STUCK_S + random.uniform(0, STUCK_S))
                actors.expect_progress(other, more=10)
            wake(pid)
            if is_noticed and mode == "collocated":
                actors.expect_failure(victim, since_s, 3 * STUCK_S, ("PeerLost",))
            else:
                actors.expect_progress(0, 1, more=10)
            _end(actors)

    return try_


def lose_sampler(world):
    """The same, of a sampling process."""

    def try_(random, is_kill):
        with _Job(world, "mp", RPC_S if is_kill else _SHORT_RPC_S, 1) as actors:
            time.sleep(random.uniform(0, 1.0))
            victim = random.randrange(2)
            other, since_s = 1 - victim, time.monotonic()
            (pid,) = actors.ask(victim, "samplers_of_trainer")
            if is_kill:
                os.kill(pid, signal.SIGKILL)
                words = f"pid {pid}", "exit code -9", f"trainer {victim}"
                actors.expect_failure(victim, since_s, 0.0, ("WorkerDied",), *words)
                actors.expect_failure(other, since_s, 0.0, ("PeerLost",), f"pid {pid}")
                _end(actors)
                return
            freeze(pid)
            if random.random() < 0.3:
                time.sleep(random.uniform(0, STUCK_S / 2))
                wake(pid)
                actors.expect_progress(0, 1, more=10)
            else:
                words = f"pid {pid}", f"trainer {victim}"
                actors.expect_failure(victim, since_s, _SHORT_RPC_S, ("WorkerDied", "PeerLost"), *words)
                actors.expect_failure(other, since_s, _SHORT_RPC_S, ("PeerLost",), f"pid {pid}")
            _end(actors)

    return try_


class _Job(Actors):
    """Two trainers that ask each other; entered when each has had ``num_batches``."""

    def __init__(self, world, mode, rpc_s, num_batches):
        super().__init__(2, "players.Player", 200.0)
        self._about = world, mode, rpc_s, num_batches

    def __enter__(self):
        try:
            return self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _begin(self):
        world, mode, rpc_s, num_batches = self._about
        folder = self.enter(tempfile.TemporaryDirectory())
        self.ask_all(range(2), "begin", folder, Credentials().to_json(), STUCK_S=STUCK_S)
        self.ask_all(range(2), "go_as_trainer", str(world.path), mode, rpc_timeout=rpc_s)
        self.expect_progress(0, 1, more=num_batches)
        return self


def _end(actors, *killed):
    actors.ask_all(set(range(2)) - set(killed), "stop_going")
    actors.end(killed)
