"""A service that goes on while its processes are killed and frozen; those that are lost are replaced."""

import contextlib
import os
import signal
import tempfile
import time

from actors import Actors, wake
from promptness import eventually, expect_prompt, freeze

from glt.distributed.wire.credentials import Credentials

STUCK_S, LEASE_S, RECONNECT_S = 4.0, 6.0, 10.0
_SPARES = 6
_LONG_S = 3600.0
_MORE_FDS, _MORE_THREADS = 12, 6  # that a server may hold at its end, beyond what it held before its first client


class Service:
    """Two servers, which ask each other for rows, and a client of each. What is lost is replaced by a spare process of
    the cluster; when there are no more spares, or something has failed, the next try has a service of its own."""

    def __init__(self, world) -> None:
        self._world = world
        self._made = contextlib.ExitStack()
        self._actors: Actors | None = None

    @contextlib.contextmanager
    def _running(self, random):
        if self.is_running and len(self._spares) < 2:
            self.end()
        try:
            if self._actors is None:
                self._start()
            time.sleep(random.uniform(0, 0.5))
            yield self._actors
        except BaseException as error:
            self._actors = None
            self._made.__exit__(type(error), error, None)
            raise

    def _start(self) -> None:
        count = 4 + _SPARES
        actors = self._made.enter_context(Actors(count, "players.Player", _LONG_S))
        folder = actors.enter(tempfile.TemporaryDirectory())
        self._servers, self._clients, self._spares, self._killed = [0, 1], [2, 3], list(range(4, count)), []
        lowered = {"STUCK_S": STUCK_S, "LEASE_S": LEASE_S, "RECONNECT_S": RECONNECT_S}
        actors.ask_all(range(count), "begin", folder, Credentials().to_json(), **lowered)
        self._actors = actors
        for rank in range(2):
            self._begin_serving(rank)
        for rank in range(2):
            actors.answer(self._servers[rank], "serve")
        self._held = {actor: actors.ask(actor, "census") for actor in self._servers}
        for rank in range(2):
            self._begin_asking(rank)

    @property
    def is_running(self) -> bool:
        return self._actors is not None

    def end(self) -> None:
        """Clients leave and servers end; nothing is left."""
        actors, self._actors = self._actors, None
        with self._made:
            actors.ask_all(self._clients, "stop_going")
            actors.ask_all(self._clients, "leave")
            for server in self._servers:
                if server in self._held:
                    assert eventually(lambda server=server: self._holds_no_more(actors, server)), (
                        f"server {server} holds {actors.ask(server, 'census')}, and had {self._held[server]}"
                    )
            assert all(actors.ask_all(self._servers, "wait_and_shutdown", 60.0))
            actors.end(self._killed)

    def _holds_no_more(self, actors, server):
        now, before = actors.ask(server, "census"), self._held[server]  # descriptors, threads, children, bytes
        return now[0] <= before[0] + _MORE_FDS and now[1] <= before[1] + _MORE_THREADS and now[2] == before[2]

    # -- what goes on ----------------------------------------------------------------------------------------------

    def _begin_serving(self, rank):
        given = {"num_workers": 1, "read_local": False, "rpc_timeout": 60.0}
        self._actors.begin(self._servers[rank], "serve", str(self._world.path), 2, 2, rank, **given)

    def _begin_asking(self, rank):
        self._actors.ask(self._clients[rank], "join", 2, 2, rank)
        self._go(rank)

    def _go(self, rank):
        self._actors.ask(self._clients[rank], "go_as_client", rank, server_rank=rank, buffer_size="8MB")
        self._actors.expect_progress(self._clients[rank], more=1)

    def _all_go_on(self):
        self._actors.expect_progress(*self._clients, more=10)

    def _reaches(self, client, rank):
        try:
            return self._actors.ask(client, "request", rank, "torch.cuda.is_available") in (True, False)
        except AssertionError as error:
            assert "PeerLost" in str(error), error
            return False

    def _kill(self, actor):
        self._actors.kill(actor)
        self._actors.processes[actor].join(60)  # whoever replaces it listens at its port
        self._killed.append(actor)

    # -- what is lost ----------------------------------------------------------------------------------------------

    def lose_sampler(self, random, is_kill):
        """Another takes its place, and all clients go on."""
        with self._running(random) as actors:
            rank = random.randrange(2)
            server = self._servers[rank]
            (pid,) = actors.ask(server, "samplers")
            if is_kill:
                os.kill(pid, signal.SIGKILL)
            else:
                freeze(pid)
                if random.random() < 0.3:
                    time.sleep(random.uniform(0, STUCK_S / 2))
                    wake(pid)
                    self._all_go_on()
                    assert actors.ask(server, "samplers") == [pid], "it was replaced too soon"
                    return
                since_s = time.monotonic()
                assert eventually(lambda: not os.path.exists(f"/proc/{pid}")), "its server has not noticed"
                expect_prompt(time.monotonic() - since_s, "the server to notice", STUCK_S + 10)
            self._all_go_on()
            assert eventually(lambda: actors.ask(server, "samplers") not in ([], [pid]))

    def lose_server(self, random, is_kill):
        """If another takes its place in time, all clients go on; else all fail, for no other has its partition."""
        with self._running(random) as actors:
            rank = random.randrange(2)
            actor = self._servers[rank]
            pid = actors.processes[actor].pid
            if not is_kill:
                freeze(pid)
                if random.random() < 0.3:
                    time.sleep(random.uniform(0, STUCK_S / 2))
                else:  # calls fail, and batches come
                    time.sleep(STUCK_S)
                    assert eventually(lambda: not self._reaches(self._clients[1 - rank], rank))
                    self._all_go_on()
                if random.random() < 0.7:  # woken, it takes its clients back
                    wake(pid)
                    self._all_go_on()
                    self._expect_reached(rank)
                    return
            since_s = time.monotonic()
            self._kill(actor)
            is_back = random.random() < 0.8
            if not is_back:
                self._expect_failures(rank, pid, since_s, RECONNECT_S)
            self._servers[rank] = self._spares.pop()
            self._begin_serving(rank)
            actors.answer(self._servers[rank], "serve")
            took_s = time.monotonic() - since_s
            self._expect_reached(rank)
            if is_back and took_s > RECONNECT_S - 2:  # on a busy machine it came too late, at least for some
                failed = [client for client in self._clients if actors.ask(client, "failure")]
                self._expect_failures(rank, pid, since_s, took_s, failed)
            else:
                failed = [] if is_back else self._clients
            for client in failed:
                self._go(self._clients.index(client))
            self._all_go_on()

    def _expect_failures(self, rank, pid, since_s, within_s, clients=None):
        for client in self._clients if clients is None else clients:
            words = f"server {rank}", f"pid {pid}"
            self._actors.expect_failure(client, since_s, within_s, ("PeerLost",), *words)

    def _expect_reached(self, rank):
        for client in self._clients:
            assert eventually(lambda client=client: self._reaches(client, rank)), f"{client} does not reach {rank}"

    def lose_client(self, random, is_kill):
        """Its servers free its loaders. Another comes in its place; or it is woken, and goes on."""
        with self._running(random) as actors:
            rank = random.randrange(2)
            actor = self._clients[rank]
            pid, since_s = actors.processes[actor].pid, time.monotonic()
            if is_kill:
                self._kill(actor)
            else:
                freeze(pid)
                if random.random() < 0.3:
                    time.sleep(random.uniform(0, LEASE_S / 2))
                    wake(pid)
                    self._all_go_on()
                    return
            assert eventually(lambda: not self._has_loaders(rank)), "its loaders are not freed"
            expect_prompt(time.monotonic() - since_s, "to free its loaders", (0.0 if is_kill else LEASE_S) + 10)
            actors.expect_progress(self._clients[1 - rank], more=10)
            if not is_kill and random.random() < 0.7:
                wake(pid)
                self._all_go_on()
                return
            if not is_kill:
                self._kill(actor)
            self._clients[rank] = self._spares.pop()
            self._begin_asking(rank)

    def _has_loaders(self, client_rank):
        stats = [self._actors.ask(server, "stats") for server in self._servers]
        return any(
            each["client"].startswith(f"client {client_rank}") for found in stats for each in found["loaders"].values()
        )
