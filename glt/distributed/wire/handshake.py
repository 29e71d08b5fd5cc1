"""How two processes begin to talk: they prove that they belong to the same job, and say who they are.

::

    1  client -> server   greeting: protocol u16, which token it has u8 (0 none, 1 read, 2 write), 32 random bytes
    2  server -> client   greeting: protocol u16, whether a token is asked for u8, 32 random bytes
    3  client -> server   if one is asked for: HMAC-SHA256 of both greetings
    4  server -> client   the same, by which the server shows that it has the token too
    5  client -> server   JSON: who it is (``introduce``)
    6  server -> client   JSON: who it is; or {"refused": text, "is_ending": whether another may take its place}

What is sent before is refused unread. With TLS all of it is encrypted.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import os
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import glt
from glt import _deadlines as deadlines
from glt._checks import is_exhausted, naming_the_limit
from glt.distributed.wire.addresses import printed
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.credentials import Credentials, current_credentials
from glt.distributed.wire.frames import MAX_JSON_BYTES
from glt.distributed.wire.threads import process_loop, wait_for
from glt.errors import ChannelTimeout, ConnectionLost, GltError, MessageError, PeerLost, RendezvousError

PROTOCOL = 2
_GREETING = struct.Struct("<HB32s")
_NONE, _READ, _WRITE = range(3)
# Of OpenSSL, why a certificate is refused.
_OTHER_NAME, _UNKNOWN_AUTHORITY = (62, 64), (18, 19, 20, 21)

# Host and port, or the name of a Unix socket.
Address: TypeAlias = "tuple[str, int] | str"

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Hint:
    """Says every few seconds what a wait of ``timeout_s`` is waiting for: its deadline is minutes."""

    def __init__(self, timeout_s: float) -> None:
        now = time.monotonic()
        self._until_s, self._due_s = now + timeout_s, now + deadlines.HINT_S

    def give(self, missing: str) -> None:
        """Says so, if it is time: what is missing now."""
        now = time.monotonic()
        if now > self._due_s:
            self._due_s = now + deadlines.HINT_S
            logger.warning("%s; waiting for up to %.0f s more", missing, max(0.0, self._until_s - now))

    async def during(self, wait: Coroutine[Any, Any, T], missing: str) -> T:
        """Awaits something, and says meanwhile what is missing until it has happened. On the loop."""
        task = process_loop.get().create_task(wait)
        try:
            while not (await asyncio.wait([task], timeout=deadlines.POLL_S))[0]:
                self.give(missing)
            return task.result()
        finally:
            task.cancel()


# -- proofs --------------------------------------------------------------------------------------------------------


class NotYet(RendezvousError):
    """The other side refuses for now: another process is about to take the place of one that has ended."""


class NotProven(GltError):
    """The other side did not show what was asked of it."""


async def prove_to_server(connection: Connection, credentials: Credentials, until_s: float) -> None:
    """Steps 1 to 4 of the client. Raises NotProven if the server has another token, or none where this process has one;
    RendezvousError if it speaks another protocol."""
    token = credentials.token()
    mine = _greeting(_NONE if token is None else _WRITE if token.may_write else _READ)
    connection.greet(mine)
    theirs = await _greeting_of(connection, until_s)
    protocol, asks, _ = _GREETING.unpack(theirs)
    require_same_protocol(protocol, connection.peer)
    if asks and token is not None:
        connection.greet(token.prove(b"client", mine + theirs))
        proof = await connection.receive_greeting(_left(until_s))
        if not hmac.compare_digest(proof, token.prove(b"server", mine + theirs)):
            raise NotProven("it does not have the token of this process")
    elif token is not None:
        raise NotProven(
            f"it asks for no token, and this process has one ({credentials.token_file}): start it with the same "
            "token file, or this process without"
        )


async def ask_for_proof(connection: Connection, credentials: Credentials, until_s: float) -> None:
    """Steps 1 to 4 of the server; sets :attr:`Connection.may_write`. Raises NotProven if the client lacks the token."""
    token = credentials.token()
    theirs = await _greeting_of(connection, until_s)
    mine = _greeting(token is not None)
    connection.greet(mine)
    protocol, has, _ = _GREETING.unpack(theirs)
    require_same_protocol(protocol, connection.peer)
    if token is None:
        return
    if has not in (_READ, _WRITE):
        raise NotProven("a token is asked for here: give --token-file, token_file= or GLT_TOKEN_FILE, with the job's")
    if has == _WRITE and not token.may_write:
        raise NotProven("this process has the read token only, and cannot check the other: give it the write token")
    shown = token if has == _WRITE else token.for_reading()
    proof = await connection.receive_greeting(_left(until_s))
    if not hmac.compare_digest(proof, shown.prove(b"client", theirs + mine)):
        raise NotProven("the token is another one than here")
    connection.greet(shown.prove(b"server", theirs + mine))
    connection.may_write = shown.may_write


def _greeting(flag: int) -> bytes:
    return _GREETING.pack(PROTOCOL, flag, secrets.token_bytes(32))


async def _greeting_of(connection: Connection, until_s: float) -> bytes:
    found = await connection.receive_greeting(_left(until_s))
    if len(found) != _GREETING.size:
        raise MessageError(f"{connection.peer} sent a greeting of {len(found)} bytes: expected {_GREETING.size}")
    return found


def _left(until_s: float) -> float:
    return max(0.0, until_s - time.monotonic())


def require_same_protocol(theirs: int, who: str) -> None:
    """Raises RendezvousError unless the other side speaks as this one does."""
    if theirs != PROTOCOL:
        raise RendezvousError(
            f"{who} speaks protocol {theirs}, this process, glt {glt.__version__} on {socket.gethostname()}, protocol "
            f"{PROTOCOL}: install the same glt on all hosts"
        )


# -- who they are --------------------------------------------------------------------------------------------------


def introduce(kind: str, **more: Any) -> dict[str, Any]:
    """What a process says of itself, and ``more``."""
    return {"version": glt.__version__, "kind": kind, "host": socket.gethostname(), "pid": os.getpid(), **more}


def require_same_version(theirs: dict[str, Any], who: str) -> None:
    """Raises RendezvousError unless the other side runs a glt that this one understands; names both versions."""
    if _series(str(theirs.get("version"))) != _series(glt.__version__):
        raise RendezvousError(
            f"{who} runs glt {theirs.get('version')}, this process runs glt {glt.__version__} on "
            f"{socket.gethostname()}: install the same glt on all hosts"
        )


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def refuse(connection: Connection, text: str, is_ending: bool = False) -> None:
    """Ends a connection in words."""
    try:
        connection.send({"refused": text, "is_ending": is_ending})
    except GltError as error:
        logger.info("%s", error)
    connection.part()


# -- connecting ----------------------------------------------------------------------------------------------------


def dial(
    address: Address, peer: str, hello: dict[str, Any], timeout_s: float, **options: Any
) -> tuple[Connection, dict[str, Any]]:
    """As :func:`connect`, for any thread but the loop's. Its deadlines end the wait. Once the loop has stopped, at the
    end of the interpreter, TimeoutError does."""
    longest_s = timeout_s + (options.get("answer_s") or 0.0) + 3 * deadlines.HANDSHAKE_S + deadlines.ANSWER_S
    return wait_for(connect(address, peer, hello, timeout_s, **options), longest_s)


async def connect(
    address: Address,
    peer: str,
    hello: dict[str, Any],
    timeout_s: float,
    *,
    retry: bool = True,
    answer_s: float | None = None,
) -> tuple[Connection, dict[str, Any]]:
    """Connects to a server, proves what it asks for, introduces this process and returns the connection, which is to be
    started, with the server's answer.

    With ``retry`` it tries until the deadline where nothing listens yet. What listens may take ``answer_s`` to answer,
    by default until the deadline, for a server answers when it is ready.

    Raises:
        glt.errors.RendezvousError: If it refuses, or proves nothing; or if nothing listens there, or no server, before
            the deadline. NotYet if it refuses for now.
        glt.errors.PeerLost: If ``retry`` is false, and nothing listens there or the connection breaks meanwhile.
        OSError: If this process may open no more sockets.
    """
    where = f"@{address[1:]}" if isinstance(address, str) else printed(*address)  # as ss shows Unix sockets
    deadline, hint = time.monotonic() + timeout_s, Hint(timeout_s)
    most_s = 0.0  # for an answer
    silent = f"{peer} takes connections at {where}, and has not answered yet: it loads its data, or is stopped"
    while True:
        left = deadline - time.monotonic()
        is_reached = False
        connection: Connection | None = None
        try:
            sock = await asyncio.wait_for(_open(address), max(0.1, min(left, deadlines.HANDSHAKE_S)))
            is_reached = True
            # A server that is not ready listens already, and says nothing: not even what begins a handshake.
            most_s = answer_s or max(deadlines.HANDSHAKE_S, deadline - time.monotonic())
            until_s = time.monotonic() + most_s
            credentials = current_credentials()
            if credentials.tls is not None and not isinstance(address, str):
                sock = await hint.during(_encrypt(sock, credentials, address[0], until_s), silent)
            connection = Connection(sock, peer)
            connection.is_ours = True
            answer = await hint.during(_answer_to(connection, hello, credentials, until_s), silent)
            if "refused" not in answer:
                if "version" not in answer:
                    raise MessageError(f"{peer} answered {sorted(answer)}, which is no handshake")
                require_same_version(answer, peer)
                return connection, answer
            connection.close()
            if not (answer.get("is_ending") and retry and time.monotonic() < deadline):
                kind = NotYet if answer.get("is_ending") else RendezvousError
                raise kind(f"{peer} at {where} refused: {answer['refused']}")
            hint.give(f"{peer} at {where} refuses for now: {answer['refused']}")
        except (socket.gaierror, UnicodeError) as error:
            raise RendezvousError(f"{peer}: there is no host {address[0]!r} ({error}); check master_addr") from error
        except NotProven as error:
            _close(connection)
            raise RendezvousError(f"{peer} at {where}: {error}") from error
        except RendezvousError:
            _close(connection)
            raise
        except ConnectionLost as error:
            _close(connection)
            if isinstance(error.__cause__, ssl.SSLError):  # of TLS 1.3, a server says after it that it wants more
                raise RendezvousError(_no_tls(where, error.__cause__)) from error
            if not (retry and time.monotonic() < deadline):  # else it is starting, or being replaced
                lost = RendezvousError if retry else PeerLost
                raise lost(f"{error}; it ended during the handshake") from error
            hint.give(f"{error}; it ended during the handshake, and is tried again")
        except ChannelTimeout as error:
            _close(connection)
            raise RendezvousError(
                f"{peer} takes connections at {where} and gave no answer within {most_s:.3g} s: it is stopped, or "
                "still loads its data; or another program listens there: check master_addr and master_port"
            ) from error
        except MessageError as error:
            _close(connection)
            raise RendezvousError(
                f"what listens at {where} is no server of glt: {error}; check master_addr and master_port"
            ) from error
        except (OSError, asyncio.TimeoutError) as error:
            if is_exhausted(error):
                raise
            why = str(error) or "no answer"
            if is_reached:
                raise RendezvousError(_no_tls(where, error)) from error
            if not retry:
                raise PeerLost(f"{peer} cannot be reached at {where}: {why}") from error
            if left <= 0:
                raise RendezvousError(
                    f"{peer} was not reached at {where} within {timeout_s:g} s ({why}): does it run, and do "
                    f"master_addr and master_port name the host and port of {peer}?"
                ) from error
            hint.give(f"{peer} is not reached at {where} yet ({why})")
        except BaseException:  # cancelled
            _close(connection)
            raise
        await asyncio.sleep(deadlines.RETRY_S)


async def _answer_to(
    connection: Connection, hello: dict[str, Any], credentials: Credentials, until_s: float
) -> dict[str, Any]:
    await prove_to_server(connection, credentials, until_s)
    connection.send(hello)
    connection.max_json_bytes = MAX_JSON_BYTES
    return await connection.receive(_left(until_s))


def _no_tls(where: str, error: Exception) -> str:
    if getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":
        return f"what listens at {where} speaks no TLS, and this process does: give both tls=, or neither ({error})"
    code = getattr(error, "verify_code", None)
    remedy = "; give server_name=, the name that it is for" if code in _OTHER_NAME else ""
    remedy = remedy or ("; give ca=, the authority that signed it" if code in _UNKNOWN_AUTHORITY else "")
    return f"the handshake of TLS with what listens at {where} failed: {str(error) or 'no answer'}{remedy}"


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()


async def _open(address: Address) -> socket.socket:
    loop = process_loop.get()
    if isinstance(address, str):
        found: list[tuple[Any, Any]] = [(socket.AF_UNIX, address)]
    elif _is_ip(address[0]):
        found = [(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, address)]
    else:
        infos = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        found = [(family, where) for family, _, _, _, where in infos]
    for i, (family, where) in enumerate(found):
        with naming_the_limit():
            sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, where)
            return sock
        except OSError:
            sock.close()
            if i == len(found) - 1:
                raise
        except BaseException:
            sock.close()
            raise
    raise OSError(f"{address[0]} has no address")


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _encrypt(sock: socket.socket, credentials: Credentials, host: str, until_s: float) -> ssl.SSLSocket:
    assert credentials.tls is not None
    try:
        context = credentials.tls.context(of_server=False)
        name = credentials.tls.server_name or host
        wrapped = context.wrap_socket(sock, do_handshake_on_connect=False, server_hostname=name)
    except BaseException:
        sock.close()
        raise
    await shake_hands(wrapped, until_s)
    return wrapped


async def shake_hands(sock: ssl.SSLSocket, until_s: float) -> None:
    """The handshake of TLS, of either side. Raises OSError or TimeoutError; the socket is then closed."""
    loop = process_loop.get()
    try:
        while True:
            try:
                sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                add, remove = loop.add_reader, loop.remove_reader
            except ssl.SSLWantWriteError:
                add, remove = loop.add_writer, loop.remove_writer
            await _until_ready(sock, add, remove, until_s)
    except BaseException:
        sock.close()
        raise


async def begins_with_tls(sock: socket.socket, until_s: float) -> bool:
    """Whether the first byte that comes is one of a handshake of TLS; it is left there. Raises as :func:`shake_hands`,
    and closes nothing."""
    loop = process_loop.get()
    while True:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            await _until_ready(sock, loop.add_reader, loop.remove_reader, until_s)
        else:
            if not first:
                raise OSError("it was closed there")
            return first == b"\x16"


async def _until_ready(
    sock: socket.socket, add: Callable[..., None], remove: Callable[[int], bool], until_s: float
) -> None:
    ready = process_loop.get().create_future()
    add(sock.fileno(), _done, ready)
    try:
        await asyncio.wait_for(ready, _left(until_s))
    finally:
        remove(sock.fileno())


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
