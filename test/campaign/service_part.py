"""Hostile connections to each port of servers (that of the metrics, too), of their sampling processes, of trainers and
theirs, and to the store that the trainer of rank 0 opens for torch's rpc."""

import contextlib
import http.client
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from actors import Actors
from attacks import Limits, Siege
from dist_world import write_world
from score import Clock, Score, side_by_side
from stranger import Stranger, Target, frame
from wire_part import HANDSHAKE_S, NUM_LANES, PROTECTIONS, Keys

from glt.distributed.server.server import FOR_READERS
from glt.testing.cluster import take_census

_LIMITS = Limits(rss_bytes=768 << 20, fds=900, threads=80, left_fds=24)
_KINDS = {
    "server": ("client", "server", "partition"),
    "sampling process": ("stream", "partition"),
    "trainer": ("partition", "trainer"),
}
_NUM_SERVERS = 2


def run(score: Score, clock: Clock, most: int, is_toy: bool) -> None:
    with Keys() as keys, tempfile.TemporaryDirectory() as folder:
        world = write_world(Path(folder), _NUM_SERVERS)
        scenes = [(f"servers, {each}", Servers, each) for each in PROTECTIONS[3 if is_toy else 0 :: 3]]
        if not is_toy:
            scenes += [(f"trainers, {mode}, token", Trainers, mode) for mode in ("mp", "collocated")]
            scenes.append(("trainers, rpc, nothing", Store, "collocated"))
        scenes = [each for each in scenes if score.wants(each[0])]
        between = between_trainers(world) if scenes else []

        def besiege(name: str, kind: type, how: str, share: Clock) -> None:
            with score.trying(f"{name}: nothing is left"):
                kind(name, how, score, share, keys, world, between, most, is_toy).besiege()
            print(f"{name}: done, {score.num_failed} failed so far", flush=True)

        side_by_side(NUM_LANES, clock, [partial(besiege, *each) for each in scenes])


def between_trainers(world):
    """What trainers say to each other."""
    with Actors(2, "players.Player", 120) as actors:
        start_trainers(actors, world, "collocated")
        said = [each for actor in range(2) for each in actors.ask(actor, "recorded")]
        end_trainers(actors)
    return said


def start_trainers(actors, world, mode, **given):
    everyone = range(actors.world_size)
    actors.ask_all(everyone, "record")
    actors.ask_all(everyone, "go_as_trainer", str(world.path), mode, **given)
    actors.expect_progress(*everyone, more=10)


def end_trainers(actors):
    actors.ask_all(range(actors.world_size), "stop_going")
    actors.end()


def ports_of(pid: int):
    """Where a process listens: TCP ports of this host, and names of Unix sockets."""
    census = take_census(pid)
    inodes = {fd[8:-1] for fd in census.fds if fd.startswith("socket:[")}
    found = [("127.0.0.1", port) for port in census.ports]
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split()
        if inode in inodes and flags == "00010000" and path and path[0].startswith("@"):
            found.append("\0" + path[0][1:])
    return found


@dataclass
class Scene:
    """Processes that do their work while each port of one of them is attacked. ``how``: their protection or mode;
    ``between``: what trainers say to each other."""

    name: str
    how: str
    score: Score
    clock: Clock
    keys: Keys
    world: object
    between: list
    most: int
    is_toy: bool

    @property
    def protection(self) -> str:
        return self.how

    def begin(self, actors) -> None:
        """All actors have the credentials of this scene, and its deadlines."""
        folder = actors.enter(tempfile.TemporaryDirectory())
        given = self.keys.credentials(self.protection).to_json()
        actors.ask_all(range(actors.world_size), "begin", folder, given, HANDSHAKE_S=HANDSHAKE_S)

    def targets_of(self, pid, kind, said, more_pids=()):
        """Where one process listens; ``said`` is what was said there, and elsewhere."""
        credentials = self.keys.credentials(self.protection)
        conversations = tuple(tuple(each) for each in said if each and (each[0][2] or {}).get("kind") in _KINDS[kind])
        context = credentials.tls and credentials.tls.context(of_server=False)
        for address in ports_of(pid):
            is_local = isinstance(address, str)
            yield Target(
                name=f"{self.name}, {'Unix socket' if is_local else 'port'} of the {kind}", address=address,
                pids=(pid, *more_pids), handshake_s=HANDSHAKE_S, token=credentials.token(),
                tls=None if is_local else context,
                spoiled={} if is_local else self.keys.spoiled_contexts(self.protection),
                hellos=tuple(each[0][2] for each in conversations), conversations=conversations,
            )  # fmt: skip

    def attack(self, targets, goes_on) -> None:
        for number, target in enumerate(targets):
            Siege(target, self.score, goes_on, _LIMITS, self.most).run(self.clock.share(1 / (len(targets) - number)))

    def expect_progress(self, actors, *which) -> None:
        actors.expect_progress(*which, more=min(10, self.most))


# -- servers -------------------------------------------------------------------------------------------------------


class Servers(Scene):
    """Two servers with a sampling process each; a client that has said much, one on this host and one elsewhere."""

    def besiege(self):
        with Actors(5, "players.Player", self.clock.left_s + 400) as actors:
            self.begin(actors)
            samplers = self._start(actors)
            said = [*self.between, *actors.ask(1, "recorded"), *actors.ask(2, "recorded")]
            server, metrics = actors.processes[0].pid, tuple(actors.ask(0, "metrics_at"))
            targets = [
                *self.targets_of(server, "server", said, samplers[:1]),
                *self.targets_of(samplers[0], "sampling process", said, [server]),
            ]
            (published,) = [each for each in targets if each.address == metrics]
            targets.remove(published)
            assert len(targets) == 3, targets
            published = replace(
                published, name=f"{self.name}, port of the metrics", kind="http",
                tls=published.tls if published.token else None, hellos=(), conversations=(),
            )  # fmt: skip

            def goes_on():
                self.expect_progress(actors, 3, 4)
                expect_metrics(published)

            goes_on()
            self.attack([*targets[:: 3 if self.is_toy else 1], published], goes_on)
            if published.token is not None:
                read_only(self.score, targets[0], self.most)
            stolen(self.score, targets, self.most)
            goes_on()
            assert actors.ask(0, "samplers") == samplers[:1], "its sampling process was replaced"
            self._end(actors)

    def _start(self, actors):
        """Returns the pids of the sampling processes."""
        for actor in (1, 2):
            actors.ask(actor, "record")
        has_token = self.keys.credentials(self.protection).token_file is not None
        given = {"num_workers": 1, "max_buffer_size": "256MB", "max_loaders": 64}
        given |= {"metrics_port": 0, "metrics_auth": has_token}
        for rank in range(_NUM_SERVERS):
            actors.ask(rank, "register")
            actors.begin(rank, "serve", str(self.world.path), _NUM_SERVERS, None, rank, **given)
        samplers = [pid for rank in range(_NUM_SERVERS) for pid in actors.answer(rank, "serve")]
        for rank in range(3):
            actors.ask(2 + rank, "join", _NUM_SERVERS, 3, rank)
        actors.ask(2, "law", "decoy", 0, buffer_size="1MB")
        actors.ask(2, "take", "decoy", 2)
        actors.ask(2, "say_much", _NUM_SERVERS)
        actors.ask(4, "elsewhere")
        for client in (3, 4):
            actors.ask(client, "go_as_client", client - 2, buffer_size="8MB")
        return samplers

    def _end(self, actors):
        actors.ask_all((3, 4), "stop_going")
        actors.ask_all((2, 3, 4), "leave")
        actors.ask_all(range(_NUM_SERVERS), "wait_and_shutdown", 0.0)
        actors.end()
        actors.expect_no_traceback()


def expect_metrics(target):
    """They are given to those who show the read token."""
    host, port = target.address
    if target.tls is None:
        connection = http.client.HTTPConnection(host, port, timeout=30)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=30, context=target.tls)
    shown = {} if target.token is None else {"Authorization": f"Bearer {target.token.for_reading()}"}
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers=shown)
        answer = connection.getresponse()
        assert answer.status == 200 and b"glt_server_" in answer.read(), f"the metrics are not given: {answer.status}"


def read_only(score, target, most):
    """What a client with the write token has said, said with the read token."""
    name = f"{target.name}: read token for writing"
    for conversation in target.conversations:
        (_, _, hello, _), *calls = conversation
        if hello["kind"] == "server":
            stranger = Stranger(target)
            stranger.prove(target.token.for_reading())
            answer = stranger.introduce(hello)
            score.note(name, answer is not None and "refused" in answer, f"a server was answered {answer}")
            stranger.close()
        if hello["kind"] != "client":
            continue
        stranger = Stranger(target)
        stranger.prove(target.token.for_reading())
        answer = stranger.introduce({**hello, "num_clients": 64, "rank": hello["rank"] + 40})
        assert answer is not None and "refused" not in answer, answer
        before = len([each for each in stranger.frames() if each[0] != 3])
        for code, number, value, data in calls[:most]:
            if value["name"] in FOR_READERS:
                continue
            stranger.send(frame(value, data, code, number))
            got = stranger.wait_for(before)
            before += 1
            is_held = got is not None and "PermissionError" in str((got[1] or {}).get("error"))
            score.note(name, is_held, f"{value['name']} was answered {got}")
        stranger.close()


def stolen(score, targets, most):
    """Streams with another's loader and a guessed secret, or none; and a session in the place of one that lives."""
    for target in targets:
        for conversation in target.conversations[:most]:
            hello = conversation[0][2]
            if hello["kind"] == "stream" and "sampling process" in target.name:
                for secret in ("", "0" * 32, hello["secret"][:-1], hello["secret"] + "0", None, "\u00fc"):
                    name, said = f"{target.name}: another's stream, a guessed secret", {**hello, "secret": secret}
                    expect_refused(score, target, name, said)
            if hello["kind"] == "client" and "of the server" in target.name:
                for rank in (0, 1, 2):
                    name, said = f"{target.name}: another's place", {**hello, "rank": rank}
                    expect_refused(score, target, name, said, "is taken")


def expect_refused(score, target, name, hello, word=""):
    stranger = Stranger(target)
    stranger.prove(target.token)
    stranger.send(frame(hello))
    stranger.take(15.0)
    texts = [value.get("refused", "") for kind, value, _ in stranger.frames() if kind == 1]
    score.note(name, stranger.is_over and bool(texts) and word in texts[0], f"{hello} was answered {texts}")
    stranger.close()


# -- trainers ------------------------------------------------------------------------------------------------------


class Trainers(Scene):
    """Two trainers that ask each other, with a token."""

    protection = "token"

    def besiege(self):
        with Actors(2, "players.Player", self.clock.left_s + 400) as actors:
            self.begin(actors)
            start_trainers(actors, self.world, self.how)
            said = [*self.between, *actors.ask(1, "recorded")]
            targets = []
            for pid in (actors.processes[0].pid, *actors.ask(0, "samplers_of_trainer")):
                for target in self.targets_of(pid, "trainer", said):
                    is_group = target.address == ("127.0.0.1", actors.port)
                    targets.append(replace(target, name=f"{self.name}, port of the group") if is_group else target)
            assert len(targets) == 3, targets
            self.attack(targets, lambda: self.expect_progress(actors, 0, 1))
            end_trainers(actors)
            actors.expect_no_traceback()


class Store(Scene):
    """Two trainers over torch's rpc, which asks for nothing: they go on, whatever the store of rank 0 is told."""

    protection = "nothing"

    def besiege(self):
        with Actors(2, "players.Player", self.clock.left_s + 400) as actors:
            start_trainers(actors, self.world, self.how, transport="rpc")
            address, pids = ("127.0.0.1", actors.ask(0, "store_at")), (actors.processes[0].pid,)
            target = Target(f"{self.name}, rank 0's store", address, pids, HANDSHAKE_S, kind="store")
            self.attack([target], lambda: self.expect_progress(actors, 0, 1))
            end_trainers(actors)
