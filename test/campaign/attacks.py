"""What strangers and spiteful clients do to a port, and what must hold meanwhile."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from score import Clock, Score, Watch, held_by
from stranger import (
    CONNECT_S,
    FRAME,
    GREET,
    Stranger,
    Target,
    flipped,
    frame,
    greeting,
    noise,
    refusal_or_greetings,
    spoiled,
)

from glt.distributed.wire.credentials import Token

VERBOSE = bool(os.environ.get("CAMPAIGN_VERBOSE"))
_AT_A_TIME = 200
_PATIENCE_S = 15.0  # beyond the deadline of the handshake, on a busy machine
_MANY = 1 << 40


@dataclass(frozen=True)
class Limits:
    """What the attacked processes may hold beyond what they held before.

    Strangers have 256 places; each may hold what a handshake may be, 64 KiB, and what OpenSSL takes for it. ``fds``:
    while they attack; afterwards all are given back but a few.
    """

    rss_bytes: int = 256 << 20
    fds: int = 700
    threads: int = 8
    left_fds: int = 8


@dataclass
class Siege:
    """Attacks on one target, while ``goes_on`` shows that its real clients are served, and rightly."""

    target: Target
    score: Score
    goes_on: Callable[[], None]
    limits: Limits = Limits()
    most: int = 1 << 30  # connections of one attack

    def run(self, clock: Clock) -> None:
        attacks = [each for each in ATTACKS if self.target.kind in each.kinds and each.is_for(self.target)]
        self.score.random(self.target.name).shuffle(attacks)  # another is left out each time, where time is short
        for number, attack in enumerate(attacks):
            if clock.is_over:
                left = [each.name for each in attacks[number:]]
                print(f"{self.target.name}: no time for {len(left)} of {len(attacks)}: {'; '.join(left)}", flush=True)
                return
            self._one(attack, clock.share(1 / (len(attacks) - number)))

    def _one(self, attack: "Attack", clock: Clock) -> None:
        name, random = f"{self.target.name}: {attack.name}", self.score.random(self.target.name, attack.name)
        before = {pid: held_by(pid) for pid in self.target.pids}
        watch, began = Watch(self.target.pids), time.monotonic()
        try:
            attack.run(self, name, random, clock)
        except Exception as error:  # of the stranger: the port is not there, for example
            self.score.note(name, False, f"{type(error).__name__}: {error}")
        watch.end()
        if VERBOSE:
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        with self.score.trying(f"{self.target.name}: its clients go on"):
            self.goes_on()
        with self.score.trying(f"{self.target.name}: memory, descriptors and threads"):
            for pid, most in watch.most.items():
                for what, least, bound in (
                    ("rss_bytes", before[pid].rss_bytes, self.limits.rss_bytes),
                    ("num_fds", before[pid].num_fds, self.limits.fds),
                    ("num_threads", before[pid].num_threads, self.limits.threads),
                ):
                    more = getattr(most, what) - least
                    assert more <= bound, f"{attack.name}: {what} of {pid} rose by {more} from {least}"
                self._expect_given_back(attack.name, pid, before[pid].num_fds)

    def _expect_given_back(self, attack: str, pid: int, before: int) -> None:
        until = time.monotonic() + self.target.handshake_s + _PATIENCE_S
        while (now := held_by(pid).num_fds) > before + self.limits.left_fds:
            assert time.monotonic() < until, f"{attack}: {now} descriptors of {pid}, and there were {before}"
            time.sleep(0.1)

    def some(self, clock: Clock, of: Iterable) -> Iterator:
        """As many as there may be, and is time for."""
        for number, each in enumerate(of):
            if clock.is_over or number >= self.most:
                return
            yield each

    # -- strangers -------------------------------------------------------------------------------------------------

    def volley(self, name: str, sent: Iterable[bytes], clock: Clock, may_be_welcome: bool = False, **how) -> None:
        """Opens a connection for each and sends it. Each must end within the time of a handshake, having been answered
        nothing but a refusal; unless it may say what a client says, and is perhaps one."""
        may_be_welcome = may_be_welcome or self.target.kind == "store"
        waiting: list[Stranger] = []
        for data in self.some(clock, sent):
            with contextlib.suppress(OSError):  # the handshake of TLS was ended: that is an end, too
                stranger = Stranger(self.target, **how)
                stranger.send(data)
                waiting.append(stranger)
            if len(waiting) == _AT_A_TIME:
                self.expect_ends(name, waiting, may_be_welcome)
        self.expect_ends(name, waiting, may_be_welcome)

    def expect_ends(self, name: str, strangers: list[Stranger], may_be_welcome: bool = False) -> None:
        until = time.monotonic() + self.target.handshake_s + _PATIENCE_S
        for stranger in strangers:
            is_over = stranger.take(0.0 if may_be_welcome else max(0.0, until - time.monotonic()))
            is_told_nothing = may_be_welcome or refusal_or_greetings(stranger)
            why = f"answered {bytes(stranger.got[:200])!r}" if not is_told_nothing else "not ended"
            self.score.note(name, is_told_nothing and (is_over or may_be_welcome), why)
            stranger.close()
        strangers.clear()

    @property
    def takes_anyone(self) -> bool:
        """Whether what a client said before makes a client."""
        return self.target.token is None

    # -- those who have the token ----------------------------------------------------------------------------------

    def guest(self, hello=None) -> Stranger | None:
        """One that is proven, and introduced if a hello is given."""
        stranger = Stranger(self.target)
        stranger.prove(self.target.token)
        if hello is not None:
            stranger.introduce(hello)
        return stranger


@dataclass(frozen=True)
class Attack:
    name: str
    run: Callable[[Siege, str, object, Clock], None]
    is_for: Callable[[Target], bool]
    kinds: tuple[str, ...]


ATTACKS: list[Attack] = []


def attack(name: str, is_for: Callable[[Target], bool] = lambda target: True, kinds: tuple[str, ...] = ("glt",)):
    def add(run):
        ATTACKS.append(Attack(name, run, is_for, kinds))
        return run

    return add


def _has_token(target: Target) -> bool:
    return target.token is not None


_ALL = "glt", "http", "store"


def _speaks_tls(target: Target) -> bool:
    return target.tls is not None


def _is_recorded(target: Target) -> bool:
    return bool(target.conversations)


# -- bytes that are no handshake -----------------------------------------------------------------------------------


@attack("garbage", kinds=_ALL)
def _garbage(siege, name, random, clock):
    def bytes_of():
        for _ in range(2000):
            yield noise(random, 1 << random.randrange(1, 17))
            yield b"GLT2" + noise(random, 200)
            yield frame(kind=random.randrange(256), data=noise(random, 300), what=random.randrange(256))

    siege.volley(name, bytes_of(), clock)


@attack("http and others", kinds=_ALL)
def _others(siege, name, random, clock):
    words = [
        b"GET /x HTTP/1.1\r\nHost: server\r\n\r\n", b"POST /x HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-OpenSSH_9.7\r\n", b"EHLO x\r\n", b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), b"\x15\x03\x03\x00\x02\x02\x28", b"\x16", b"G",
        b"*1\r\n$4\r\nPING\r\n", b"\x80\x02}q\x00.", b"GLTF" + bytes(24), b"\n" * 60000,
    ]  # fmt: skip
    siege.volley(name, words, clock)
    if siege.target.tls is not None:
        siege.volley(name, words, clock, is_encrypted=False)


@attack("greetings of every length", kinds=_ALL)
def _greetings(siege, name, random, clock):
    siege.volley(name, (frame(kind=GREET, data=noise(random, 1).ljust(n, b"x")) for n in range(300)), clock)


@attack("huge lengths", kinds=_ALL)
def _lengths(siege, name, random, clock):
    def bytes_of():
        for kind in (0, FRAME, GREET, 3, 255):
            for json_bytes in (0, 1, (64 << 10) + 1, 64 << 20, 2**32 - 1):
                for data_bytes in (0, 129, 1 << 30, _MANY, 2**64 - 1):
                    if json_bytes or data_bytes:
                        yield frame(kind=kind, json_bytes=json_bytes, data_bytes=data_bytes) + noise(random, 100)

    siege.volley(name, bytes_of(), clock)
    siege.volley(name, (greeting() + each for each in bytes_of()), clock)


def _big_values(most: int) -> Iterator[bytes]:
    yield b"[" * most
    yield b'{"a":' * (most // 5)
    yield b"{" + b",".join(b'"%d":{}' % n for n in range(most // 12)) + b"}"
    yield b'{"a":[' + b"{}," * (most // 3 - 4) + b"{}]}"
    yield b'{"a":' + b"9" * (most - 6) + b"}"
    yield b'{"kind":"' + b"\\ud800" * (most // 6 - 3) + b'"}'
    yield b'{"version":"9","kind":"' + b"k\\n" * (most // 3 - 20) + b'"}'
    yield b'"' + b"x" * (most - 2) + b'"'
    yield b"\xff\xfe" + b"\0" * (most - 2)


@attack("deep and huge JSON before a proof", kinds=_ALL)
def _json(siege, name, random, clock):
    siege.volley(name, (frame(each) for each in _big_values(64 << 10)), clock)
    siege.volley(name, (greeting() + frame(each) for each in _big_values(64 << 10)), clock)


@attack("half frames, and leaves", _is_recorded)
def _half_and_away(siege, name, random, clock):
    for number in siege.some(clock, range(_most_prefix(siege.target))):
        for data in siege.target.recorded:
            stranger = Stranger(siege.target)
            stranger.send(data[:number])
            stranger.close(is_rude=random.random() < 0.5)
            siege.score.note(name, True)


@attack("half frames, and stays", _is_recorded)
def _half(siege, name, random, clock):
    numbers = list(range(_most_prefix(siege.target)))
    random.shuffle(numbers)
    halves = (data[:number] for number in numbers for data in siege.target.recorded)
    siege.volley(name, halves, clock, may_be_welcome=siege.takes_anyone)


def _most_prefix(target: Target) -> int:
    return min(2000, max(map(len, target.recorded), default=0))


@attack("replays of a whole conversation", _is_recorded)
def _replays(siege, name, random, clock):
    siege.volley(name, (data for _ in range(200) for data in siege.target.recorded), clock, siege.takes_anyone)


@attack("recorded bytes with flipped bits", _is_recorded)
def _flips(siege, name, random, clock):
    flips = (flipped(random, data) for _ in range(2000) for data in siege.target.recorded)
    siege.volley(name, flips, clock, may_be_welcome=siege.takes_anyone)


@attack("silent connections", kinds=("glt", "http"))
def _silent(siege, name, random, clock):
    """Ten times as many as there are places. Those of strangers end, the oldest first."""
    strangers = []
    for _ in range(min(2560, siege.most)):
        with contextlib.suppress(OSError):
            strangers.append(Stranger(siege.target, is_encrypted=False))
    siege.goes_on()
    until = time.monotonic() + siege.target.handshake_s + _PATIENCE_S
    for stranger in strangers:
        siege.score.note(name, stranger.take(max(0.0, until - time.monotonic())), "not ended")
        stranger.close()


@attack("slow connections", kinds=("glt", "http"))
def _slow(siege, name, random, clock):
    """A byte a second, of what clients say: a handshake has its time, however much comes."""
    said = siege.target.recorded[0] if siege.target.recorded else greeting()
    strangers = []
    for _ in range(min(200, siege.most)):
        with contextlib.suppress(OSError):
            strangers.append(Stranger(siege.target, is_encrypted=False))
    if siege.target.kind == "http":
        said = b"GET /metrics HTTP/1.1\r\nx: "
    if siege.target.tls is not None:
        said = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    began = time.monotonic()
    for number in range(int(siege.target.handshake_s) + 3):
        for stranger in strangers:
            stranger.send(said[number : number + 1])
        time.sleep(max(0.0, began + number + 1 - time.monotonic()))
    for stranger in strangers:
        siege.score.note(name, stranger.take(_PATIENCE_S) and refusal_or_greetings(stranger), "not ended")
        stranger.close()


@attack("those who come and go", kinds=_ALL)
def _brief(siege, name, random, clock):
    for number in siege.some(clock, range(1000)):
        with contextlib.suppress(OSError):
            Stranger(siege.target, is_encrypted=False).close(is_rude=number % 2 == 1)
        siege.score.note(name, True)


# -- versions, tokens and certificates -----------------------------------------------------------------------------


@attack("other protocols and versions")
def _versions(siege, name, random, clock):
    for protocol in (0, 1, 3, 255, 65535):
        stranger = Stranger(siege.target)
        stranger.prove(siege.target.token, protocol=protocol)
        stranger.take(_PATIENCE_S)
        words = [value for kind, value, _ in stranger.frames() if kind == FRAME]
        is_told = words and "install the same glt" in str(words[0].get("refused"))
        siege.score.note(name, bool(is_told) and stranger.is_over, f"protocol {protocol}: {words}")
        stranger.close()
    for version in ("0.0.1", "99.0.0", "", None, 5, [], "x" * 3000, "1.\n2"):
        for hello in siege.target.hellos[:1] or ({"kind": "client", "host": "h", "pid": 1},):
            stranger = siege.guest()
            answer = stranger.introduce({**hello, "version": version})
            siege.score.note(name, answer is not None and "refused" in answer, f"version {version!r}: {answer}")
            stranger.close()


@attack("no token, another token, a token that was changed", _has_token)
def _tokens(siege, name, random, clock):
    token = siege.target.token
    wrong = [Token.new(), Token.new().for_reading(), Token(flipped(random, token.key, 1), True), Token(b"", True)]
    wrong += [Token(token.key, False), Token(token.for_reading().key, True), Token(b"\0" * 32, True)]
    right = {1: token.for_reading().key, 2: token.key}
    shows = [(each, flag) for each in [None, *wrong] for flag in (None, 0, 1, 2, 3, 255)]
    shows = [(each, flag) for each, flag in shows if each is None or right.get(flag) != each.key]
    random.shuffle(shows)
    for shown, flag in siege.some(clock, shows * 5):
        stranger = Stranger(siege.target)
        is_believed = stranger.prove(shown, flag=flag)
        for hello in siege.target.hellos[:1]:
            stranger.send(frame(hello))
        is_over = stranger.take(_PATIENCE_S)
        held = not is_believed and is_over and refusal_or_greetings(stranger)
        siege.score.note(name, held, f"{shown} with flag {flag}: believed {is_believed}, {stranger.frames()}")
        stranger.close()


@attack("proofs that were overheard", _has_token)
def _overheard(siege, name, random, clock):
    """The server's own words sent back, and the proof of another connection: none proves anything here."""
    for _ in siege.some(clock, range(50)):
        first = Stranger(siege.target)
        first.prove(siege.target.token)
        said = [data for kind, _, data in first.frames() if kind == GREET]
        second = Stranger(siege.target)
        second.send(frame(kind=GREET, data=said[0]))
        second.wait_for(0)
        second.send(frame(kind=GREET, data=random.choice(said)))
        siege.score.note(name, second.take(_PATIENCE_S) and refusal_or_greetings(second), "believed")
        first.close()
        second.close()


@attack("metrics without the token, or with another", _has_token, kinds=("http",))
def _metrics(siege, name, random, clock):
    token = siege.target.token
    shown = [
        "",
        "Bearer",
        f"Bearer {Token.new()}",
        f"Bearer {Token.new().for_reading()}",
        f"Basic {token.for_reading()}",
    ]
    shown += [f"Bearer {str(token.for_reading())[:-1]}", f"Bearer {token.for_reading()}0", "Bearer \u00fc"]
    ways = "GET /metrics HTTP/1.1", "GET /metrics HTTP/1.0", "GET //metrics HTTP/1.1\r\nHost: x", "GET /stats HTTP/1.1"
    asked = [f"{how}\r\nAuthorization: {each}\r\n\r\n" for each in shown for how in ways]
    asked += ["GET /metrics\r\n", "POST /metrics HTTP/1.1\r\n\r\n", "HEAD /metrics HTTP/1.1\r\n\r\n"]
    siege.volley(name, (each.encode() for each in asked), clock)


@attack("plain to TLS, other versions of TLS, and no certificate or another's", _speaks_tls)
def _tls(siege, name, random, clock):
    siege.volley(name, [greeting(2), frame({"kind": "client"}), greeting(2) * 20], clock, is_encrypted=False)
    for what, context in siege.target.spoiled.items():
        with socket.create_connection(siege.target.address, CONNECT_S) as sock:
            try:
                with context.wrap_socket(sock, server_hostname=siege.target.address[0]) as wrapped:
                    wrapped.sendall(greeting())
                    got = wrapped.recv(1000)
            except OSError:
                got = b""
            siege.score.note(name, not got, f"{what}: answered {got!r}")


# -- those who have the token and mean ill -------------------------------------------------------------------------


def _expect_bounded_end(siege, name, stranger):
    """Whatever a client says, its own connection is all that it may lose; it is let go here."""
    stranger.take(0.0)
    try:
        stranger.frames()
    except AssertionError as error:
        siege.score.note(name, False, str(error))
    else:
        siege.score.note(name, True)
    stranger.close()


@attack("hellos that were spoiled", lambda target: bool(target.hellos))
def _hellos(siege, name, random, clock):
    for number in siege.some(clock, range(3000)):
        stranger = siege.guest()
        hello = random.choice(siege.target.hellos)
        for _ in range(random.randint(1, 3)):
            hello = spoiled(random, hello)
        stranger.send(frame(hello))
        if number % 10 == 0:
            stranger.take(0.02)
        _expect_bounded_end(siege, name, stranger)


@attack("frames of a session that were spoiled", _is_recorded)
def _spoiled_frames(siege, name, random, clock):
    for _ in siege.some(clock, range(3000)):
        what, stranger = random.choice(siege.target.conversations), siege.guest()
        for index, (code, number, value, data) in enumerate(what):
            if index and random.random() < 0.5:
                kind = random.randrange(6)
                value = spoiled(random, value) if kind < 3 else value
                data = (
                    flipped(random, data)
                    if kind == 3
                    else data[: random.randrange(len(data) + 1)]
                    if kind == 4
                    else data
                )
                code = random.randrange(256) if kind == 5 else code
                number = random.choice([0, 1, number + 1, 2**64 - 1]) if random.random() < 0.2 else number
            stranger.send(frame(value, data, code, number))
            if index == 0:
                stranger.take(0.01)
        _expect_bounded_end(siege, name, stranger)


@attack("frames of a session with flipped bits, at each byte half", _is_recorded)
def _flipped_frames(siege, name, random, clock):
    for _ in siege.some(clock, range(3000)):
        (hello, *more), stranger = random.choice(siege.target.conversations), siege.guest()
        code, number, value, data = hello
        stranger.send(frame(value, data, code, number))
        stranger.take(0.01)
        said = b"".join(frame(value, data, code, number) for code, number, value, data in more)
        said = flipped(random, said) if random.random() < 0.6 else said
        stranger.send(said[: random.randrange(len(said) + 1)])
        _expect_bounded_end(siege, name, stranger)


@attack("huge frames of a session", _is_recorded)
def _huge_frames(siege, name, random, clock):
    """What is claimed and not sent takes no memory; what is sent is let go with its connection."""
    kept = []
    for claim in ({"data_bytes": 1 << 30}, {"data_bytes": 1 << 34}, {"data_bytes": _MANY}, {"json_bytes": 64 << 20}):
        for _ in range(min(20, siege.most)):
            code, number, value, data = siege.target.conversations[0][0]
            stranger = siege.guest()
            stranger.send(frame(value, data, code, number))
            stranger.take(0.05)
            stranger.send(frame({"name": "f"}, what=1, number=1, **claim) + noise(random, 1000))
            kept.append(stranger)
    siege.goes_on()
    for stranger in kept:
        _expect_bounded_end(siege, name, stranger)
    for text in siege.some(clock, _big_values(1 << 20)):
        code, number, value, data = siege.target.conversations[0][0]
        stranger = siege.guest()
        stranger.send(frame(value, data, code, number))
        stranger.take(0.05)
        stranger.send(frame(text, what=1, number=1))
        stranger.take(0.2)
        _expect_bounded_end(siege, name, stranger)
