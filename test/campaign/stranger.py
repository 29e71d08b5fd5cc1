"""Connections that a stranger makes: bytes of his choice, or frames behind a handshake like a client's.

It is written from what the docstrings of glt.distributed.wire say of the bytes, not with its code.
"""

import contextlib
import json
import secrets
import select
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field

HEADER = struct.Struct("<4sBB2xIQQ")
GREETING = struct.Struct("<HB32s")
FRAME, GREET, BEAT = 1, 2, 3
PROTOCOL = 2
CONNECT_S = 5.0


def frame(value=None, data=b"", what=0, number=0, kind=FRAME, magic=b"GLT2", json_bytes=None, data_bytes=None):
    """A frame; ``json_bytes`` and ``data_bytes`` are what it claims, if that is not what it has."""
    body = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
    lengths = len(body) if json_bytes is None else json_bytes, number, len(data) if data_bytes is None else data_bytes
    return HEADER.pack(magic, kind, what, *lengths) + body + data


def greeting(flag=0, protocol=PROTOCOL):
    return frame(kind=GREET, data=GREETING.pack(protocol, flag, secrets.token_bytes(32)))


@dataclass(frozen=True)
class Target:
    """A port that is attacked.

    Attributes:
        name: In the table.
        address: Host and port, or the name of a Unix socket.
        pids: The processes behind it.
        token: The token that it asks for, a ``glt.distributed.wire.credentials.Token``; None: none.
        tls: How a client of it speaks TLS, an ``ssl.SSLContext``; None: not. ``spoiled``: how those do who must not be
            let in, by what is wrong with it.
        hellos: What those who are welcome say of themselves.
        conversations: Frames that clients sent to ports of this kind, each ``(what, number, value, data)``.
        handshake_s: How long it waits for strangers.
        kind: What it speaks: ``glt``; ``http``, of the metrics; or ``store``, of torch.distributed, which ends nothing.
    """

    name: str
    address: object
    pids: tuple[int, ...]
    handshake_s: float
    token: object = None
    tls: ssl.SSLContext | None = None
    spoiled: dict[str, ssl.SSLContext] = field(default_factory=dict)
    hellos: tuple[dict, ...] = ()
    conversations: tuple[tuple, ...] = ()
    kind: str = "glt"

    @property
    def recorded(self) -> tuple[bytes, ...]:
        """The conversations as bytes, from the first greeting on, with an old proof where one is asked for."""
        begin = greeting() if self.token is None else greeting(2) + frame(kind=GREET, data=b"\x17" * 32)
        return tuple(
            begin + b"".join(frame(value, data, what, number) for what, number, value, data in each)
            for each in self.conversations
        )


class Stranger:
    """One connection. What is sent after the other end has closed it is lost without a word."""

    def __init__(self, target: Target, is_encrypted: bool | None = None) -> None:
        self.target, self.got, self.is_over = target, bytearray(), False
        if isinstance(target.address, str):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(CONNECT_S)
            _connect_locally(self.socket, target.address)
        else:
            self.socket = socket.create_connection(target.address, CONNECT_S)
        try:
            if is_encrypted is None:
                is_encrypted = target.tls is not None
            if is_encrypted and target.tls is not None:
                self.socket = target.tls.wrap_socket(self.socket, server_hostname=target.address[0])
        except BaseException:
            self.socket.close()
            raise

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            self.is_over = True

    def take(self, seconds: float) -> bool:
        """Reads what has come and comes within so many seconds; whether the other end has closed it."""
        until = time.monotonic() + seconds
        self.socket.settimeout(0.0)
        while not self.is_over and (left := until - time.monotonic()) >= 0:
            try:
                more = self.socket.recv(1 << 16)
                self.got += more
                self.is_over = not more
            except (BlockingIOError, ssl.SSLWantReadError):
                ready = select.poll()  # not select(), which takes no descriptor above 1023
                ready.register(self.socket, select.POLLIN)
                ready.poll(1000 * left)
            except OSError:
                self.is_over = True
        with contextlib.suppress(OSError):
            self.socket.settimeout(CONNECT_S)
        return self.is_over

    def frames(self):
        """What has come, as ``(kind, value, data)``; the first that is not whole ends it."""
        found, at = [], 0
        while len(self.got) - at >= HEADER.size:
            magic, kind, _, num_json, _, num_data = HEADER.unpack_from(self.got, at)
            assert magic == b"GLT2", f"answered {bytes(self.got[:80])!r}, which is no frame"
            end = at + HEADER.size + num_json + num_data
            if end > len(self.got):
                break
            body = bytes(self.got[at + HEADER.size : end])
            found.append((kind, json.loads(body[:num_json]) if num_json else None, body[num_json:]))
            at = end
        return found

    def wait_for(self, number: int, seconds: float = CONNECT_S):
        """The frame of that number, beats apart, or None if none comes."""
        until = time.monotonic() + seconds
        while True:
            found = [each for each in self.frames() if each[0] != BEAT]
            if len(found) > number:
                return found[number]
            if self.is_over or time.monotonic() > until:
                return None
            self.take(0.02)

    def prove(self, token=None, flag=None, protocol=PROTOCOL) -> bool:
        """Greets, and proves that it has a token; false if it was not believed, or nothing has to be proven."""
        flag = (0 if token is None else 2 if token.may_write else 1) if flag is None else flag
        mine = GREETING.pack(protocol, flag, secrets.token_bytes(32))
        self.send(frame(kind=GREET, data=mine))
        answer = self.wait_for(0)
        if answer is None or answer[0] != GREET:
            return False
        _, asks, _ = GREETING.unpack(answer[2])
        if not asks:
            return True
        if token is None:
            return False
        self.send(frame(kind=GREET, data=token.prove(b"client", mine + answer[2])))
        proof = self.wait_for(1)
        return proof is not None and proof[0] == GREET

    def introduce(self, hello):
        """Says a hello, after :meth:`prove`; returns the answer, or None."""
        before = len([each for each in self.frames() if each[0] != BEAT])
        self.send(frame(hello))
        answer = self.wait_for(before)
        return None if answer is None else answer[1]

    def close(self, is_rude: bool = False) -> None:
        if is_rude:
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def _connect_locally(sock: socket.socket, address: str) -> None:
    """The kernel keeps nobody waiting whom the queue of a Unix socket has no room for."""
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            return sock.connect(address)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def refusal_or_greetings(stranger: Stranger) -> bool:
    """Whether nothing was answered but greetings, a refusal in words, and what TLS says by itself; of HTTP: no page."""
    if stranger.target.kind == "http":
        return b" 200 " not in stranger.got.partition(b"\r\n")[0]
    try:
        return all(
            kind == BEAT or kind == GREET or (kind == FRAME and set(value or {}) <= {"refused", "is_ending"})
            for kind, value, _ in stranger.frames()
        )
    except AssertionError:
        return bytes(stranger.got[:2]) in (b"\x15\x03", b"\x16\x03")


def noise(random, most: int) -> bytes:
    return random.randbytes(random.randrange(most))


def flipped(random, data: bytes, most: int = 4) -> bytes:
    """With some bits the other way round."""
    found = bytearray(data)
    for _ in range(random.randint(1, most) if data else 0):
        at = random.randrange(len(found) * 8)
        found[at // 8] ^= 1 << at % 8
    return bytes(found)


_NASTY = (
    None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 10**300, 1.5, -0.0, 1e308, float("nan"), float("inf"), "", "0", "\0",
    "x" * 5000, "\ud800", "../../etc/passwd", "a\nERROR forged line of a log", [], {}, [[]], [None],
    {"": {}}, [0] * 3000,
)  # fmt: skip


def spoiled(random, value):
    """A value of JSON with one of its parts missing, doubled or another."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        found, key = dict(value), random.choice(list(value))
        if random.random() < 0.25:
            del found[key]
        elif random.random() < 0.1:
            found[str(random.choice(_NASTY))] = found[key]
        else:
            found[key] = spoiled(random, found[key])
        return found
    if isinstance(value, list) and value and random.random() < 0.7:
        found, at = list(value), random.randrange(len(value))
        if random.random() < 0.2:
            del found[at]
        elif random.random() < 0.2:
            found.insert(at, found[at])
        else:
            found[at] = spoiled(random, found[at])
        return found
    if isinstance(value, (int, float)) and random.random() < 0.3:
        return value + random.choice([-1, 1, 2**16, 2**32, -(2**40)])
    return random.choice(_NASTY)
