"""Hostile connections to each port of servers, of their sampling processes, and of trainers and theirs."""

import tempfile
from dataclasses import replace
from pathlib import Path

from actors import Actors
from attacks import Limits, Siege
from dist_world import write_world
from score import Clock, Score
from stranger import Stranger, Target, frame
from wire_part import PROTECTIONS, TOY_S, Keys

from glt.distributed.server.server import FOR_READERS
from glt.testing.cluster import take_census

HANDSHAKE_S = 2.0
_LIMITS = Limits(rss_bytes=768 << 20, fds=900, threads=80, left_fds=24)
_KINDS = {
    "server": ("client", "server", "partition"),
    "sampler": ("stream", "partition"),
    "trainer": ("partition", "trainer"),
}
_NUM_SERVERS = 2


def run(score: Score, clock: Clock, most: int, is_toy: bool) -> None:
    handshake_s = TOY_S if is_toy else HANDSHAKE_S
    with Keys() as keys, tempfile.TemporaryDirectory() as folder:
        world = write_world(Path(folder), _NUM_SERVERS)
        between = between_trainers(world)
        scenes = [
            (f"servers, {each}", besiege_servers, each) for each in (PROTECTIONS[3:] if is_toy else PROTECTIONS[::3])
        ]
        scenes += [
            (f"trainers, {mode}, token", besiege_trainers, mode)
            for mode in (("mp",) if is_toy else ("mp", "collocated"))
        ]
        for number, (name, besiege, how) in enumerate(scenes):
            share = clock.share(1 / (len(scenes) - number))
            with score.trying(f"{name}: nothing is left"):
                besiege(score, share, name, how, keys, world, between, most, handshake_s)
            print(f"{name}: done, {score.num_failed} failed so far", flush=True)


def between_trainers(world):
    """What trainers say to each other."""
    with Actors(2, "players.Player", 120) as actors:
        start_trainers(actors, world, "collocated")
        said = [each for actor in range(2) for each in actors.ask(actor, "recorded")]
        end_trainers(actors)
    return said


def start_trainers(actors, world, mode):
    for actor in range(actors.world_size):
        actors.ask(actor, "record")
        actors.ask(actor, "go_as_trainer", str(world.path), mode)
    for actor in range(actors.world_size):
        actors.expect_progress(actor, 10)


def end_trainers(actors):
    for actor in range(actors.world_size):
        actors.ask(actor, "stop_going")
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


def targets_of(pid, kind, name, credentials, keys, protection, said, handshake_s, more_pids=()):
    conversations = tuple(tuple(each) for each in said if each and (each[0][2] or {}).get("kind") in _KINDS[kind])
    context = credentials.tls and credentials.tls.context(of_server=False)
    for address in ports_of(pid):
        is_local = isinstance(address, str)
        yield Target(
            name=f"{name}, {'Unix socket' if is_local else 'port'} of the {kind}", address=address,
            pids=(pid, *more_pids), handshake_s=handshake_s, token=credentials.token(),
            tls=None if is_local else context, spoiled={} if is_local else keys.spoiled_contexts(protection),
            hellos=tuple(each[0][2] for each in conversations), conversations=conversations,
        )  # fmt: skip


# -- servers -------------------------------------------------------------------------------------------------------


def besiege_servers(score, clock, name, protection, keys, world, between, most, handshake_s):
    """Two servers with a sampling process each; a client that has said much, one on this host and one elsewhere."""
    credentials = keys.credentials(protection)
    with tempfile.TemporaryDirectory() as folder, Actors(5, "players.Player", clock.left_s + 400) as actors:
        for actor in range(5):
            actors.ask(actor, "begin", folder, credentials.to_json(), HANDSHAKE_S=handshake_s)
        for actor in (1, 2):
            actors.ask(actor, "record")
        for rank in range(_NUM_SERVERS):
            actors.ask(rank, "register")
            given = {"num_workers": 1, "max_buffer_size": "256MB", "max_loaders": 64}
            actors.say(rank, ("serve", (str(world.path), _NUM_SERVERS, None, rank), given))
        samplers = []
        for rank in range(_NUM_SERVERS):
            is_good, pids = actors.hear(rank)
            assert is_good, pids
            samplers += pids
        for rank in range(3):
            actors.ask(2 + rank, "join", _NUM_SERVERS, 3, rank)
        actors.ask(2, "law", "decoy", 0, buffer_size="1MB")
        actors.ask(2, "take", "decoy", 2)
        actors.ask(2, "say_much", _NUM_SERVERS)
        said = [*between, *actors.ask(1, "recorded"), *actors.ask(2, "recorded")]
        actors.ask(4, "elsewhere")
        for client in (3, 4):
            actors.ask(client, "go_as_client", client - 2, buffer_size="8MB")

        def goes_on():
            for client in (3, 4):
                actors.expect_progress(client)

        goes_on()
        how = name, credentials, keys, protection, said, handshake_s
        server = actors.processes[0].pid
        targets = [
            *targets_of(server, "server", *how, samplers[:1]),
            *targets_of(samplers[0], "sampler", *how, [server]),
        ]
        assert len(targets) == 3, targets
        for number, target in enumerate(targets):
            share = clock.share(1 / (len(targets) - number))
            Siege(target, score, goes_on, _LIMITS, most).run(share)
        if credentials.token_file is not None:
            read_only(score, targets[0], most)
        stolen(score, targets, most)
        goes_on()
        assert actors.ask(0, "samplers") == samplers[:1], "its sampling process was replaced"
        for client in (3, 4):
            actors.ask(client, "stop_going")
        for client in (2, 3, 4):
            actors.ask(client, "leave")
        for server in range(_NUM_SERVERS):
            actors.ask(server, "wait_and_shutdown", 0.0)
        actors.end()
        for actor in range(5):
            assert "Traceback" not in actors.output(actor), actors.output(actor)[-3000:]


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
        answer = stranger.introduce({**hello, "rank": hello["rank"] + 40})
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
            if hello["kind"] == "stream" and "sampler" in target.name:
                for secret in ("", "0" * 32, hello["secret"][:-1], hello["secret"] + "0", None, "\u00fc"):
                    name, said = f"{target.name}: another's stream, a guessed secret", {**hello, "secret": secret}
                    expect_refused(score, target, name, said)
            if hello["kind"] == "client" and "server" in target.name.split(" of the ")[1]:
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


def besiege_trainers(score, clock, name, mode, keys, world, between, most, handshake_s):
    """Two trainers that ask each other, with a token."""
    credentials = keys.credentials("token")
    with tempfile.TemporaryDirectory() as folder, Actors(2, "players.Player", clock.left_s + 400) as actors:
        for actor in range(2):
            actors.ask(actor, "begin", folder, credentials.to_json(), HANDSHAKE_S=handshake_s)
        start_trainers(actors, world, mode)

        def goes_on():
            for trainer in range(2):
                actors.expect_progress(trainer)

        said = [*between, *actors.ask(1, "recorded")]
        how = name, credentials, keys, "token", said, handshake_s
        pids = [actors.processes[0].pid, *actors.ask(0, "children")]
        targets = [target for pid in pids for target in targets_of(pid, "trainer", *how)]
        assert targets, "trainers listen nowhere"
        for number, target in enumerate(targets):
            target = replace(target, name=f"{target.name} {number}")
            Siege(target, score, goes_on, _LIMITS, most).run(clock.share(1 / (len(targets) - number)))
        end_trainers(actors)
        for actor in range(2):
            assert "Traceback" not in actors.output(actor), actors.output(actor)[-3000:]
