"""The port of a process: takes connections, asks for proof and for names, and passes on those that make sense."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import struct
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from glt import _deadlines as deadlines
from glt._checks import is_exhausted, naming_the_limit
from glt.distributed.wire.addresses import is_loopback, printed, reachable_address
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.credentials import current_credentials
from glt.distributed.wire.frames import MAX_HELLO_BYTES
from glt.distributed.wire.handshake import (
    NotProven,
    ask_for_proof,
    begins_with_tls,
    refuse,
    require_same_version,
    shake_hands,
)
from glt.distributed.wire.threads import call_on_loop, process_loop
from glt.errors import ConnectionLost, GltError, RendezvousError

logger = logging.getLogger(__name__)

_MOST_HANDSHAKES = 256  # at the same time, of processes that have not proven or said who they are
_MOST_ACCEPTED = 32  # in one turn of the loop
_MOST_WARNINGS = 100  # about strangers, in COMPLAINT_S

_PEER = struct.Struct("iII")  # of SO_PEERCRED: process, user, group

Welcome = Callable[[Connection, dict[str, Any]], Awaitable[None]]


class Listener:
    """Listens from the start; takes connections once it is opened, those that came before too, which the kernel keeps
    until then. RendezvousError if it cannot listen.

    Args:
        bind: Host and port; port 0: one is found. Or the name of a Unix socket.
        name: Of this process, as errors name it; ``flag``: what its user calls the port.
        master: Host and port of server 0, to which this host's address is looked up.
        welcome: Given each connection with its first frame, on the loop; it starts the connection, or ends it. What it
            raises for a frame that lacks something, LookupError, TypeError or ValueError, is answered.

    Attributes:
        address: Host and port under which others reach it; ``listens_at`` is of one interface or of all.
    """

    def __init__(
        self, bind: tuple[str, int], name: str, master: tuple[str, int], welcome: Welcome, flag: str = "port"
    ) -> None:
        self._welcome = welcome
        require_proof_beyond(bind[0], name)
        self._socket = _listen(bind, name, flag)
        self.listens_at: str = self._socket.getsockname()[0]
        try:
            self.address: tuple[str, int] = (reachable_address(bind[0], master), self._socket.getsockname()[1])
        except BaseException:
            self._socket.close()
            raise
        self._take_care_of(self._socket)

    def _take_care_of(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._silent: dict[asyncio.Task[None], None] = {}  # have not said yet who they are, the oldest first
        self._closed = False
        self._complained_s = self._warned_s = -math.inf
        self._num_warned = 0
        _open.add(self)

    def open(self) -> None:
        """Begins to take connections. From any thread."""
        call_on_loop(self._take)

    def _take(self) -> None:
        if not self._closed:
            process_loop.get().add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        loop = process_loop.get()
        for _ in range(_MOST_ACCEPTED):
            try:
                with naming_the_limit():
                    sock, address = self._socket.accept()
                sock.setblocking(False)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if self._closed:
                    return
                if (now := time.monotonic()) > self._complained_s + deadlines.COMPLAINT_S:
                    logger.error("cannot accept connections: %s", error)
                    self._complained_s = now
                # Out of descriptors, for example: others may be given back.
                loop.remove_reader(self._socket.fileno())
                loop.call_later(deadlines.RETRY_S, self._take)
                return
            # Where all places are taken, the one that is silent for longest loses its own: those who mean it say at
            # once who they are.
            if len(self._silent) >= _MOST_HANDSHAKES:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                loop.call_soon(oldest.cancel)  # when it has begun: it closes its socket
            who = printed(*address[:2]) if isinstance(address, tuple) else "a process of this host"
            task = loop.create_task(self._shake_hands(sock, who))
            self._silent[task] = None
            task.add_done_callback(lambda done: self._silent.pop(done, None))

    async def _shake_hands(self, sock: socket.socket, who: str) -> None:
        connection: Connection | None = None
        try:
            credentials, until_s = current_credentials(), time.monotonic() + deadlines.HANDSHAKE_S
            is_local = sock.family == socket.AF_UNIX
            if not is_local and await begins_with_tls(sock, until_s) != (credentials.tls is not None):
                connection = Connection(sock, who)
                here, there = ("speaks TLS", "does not") if credentials.tls else ("does not speak TLS", "does")
                raise RendezvousError(f"this process {here}, and yours {there}: give both tls=, or neither")
            if credentials.tls is not None and not is_local:
                context = credentials.tls.context(of_server=True)
                sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                await shake_hands(sock, until_s)
            connection = Connection(sock, who)
            if credentials.token_file is not None:
                connection.max_json_bytes = 0  # nothing is parsed before the proof
            await ask_for_proof(connection, credentials, until_s)
            connection.max_json_bytes = MAX_HELLO_BYTES
            hello = await connection.receive(max(0.0, until_s - time.monotonic()))
            hello |= {name: _shown(hello[name]) for name in ("kind", "version", "host", "pid") if name in hello}
            connection.peer, connection.host = f"{hello.get('kind')} at {who}", str(hello.get("host"))
            require_same_version(hello, connection.peer)
        except (NotProven, RendezvousError) as error:
            assert connection is not None
            self._warn("%s is refused: %s", connection.peer, error)
            refuse(connection, str(error))
            try:
                await connection.parted()  # it keeps its place so long: strangers have no more than all places
            finally:
                connection.close()
            return
        except (GltError, OSError, asyncio.TimeoutError, ValueError) as error:
            if isinstance(error, ValueError) and not isinstance(error, OSError):  # a file cannot be read
                self._warn("no handshake with %s: %s", who, error)
            else:
                logger.info("no handshake with %s: %s", who, error)
            (sock if connection is None else connection).close()
            return
        except BaseException:  # it lost its place
            (sock if connection is None else connection).close()
            raise
        task = asyncio.current_task()
        assert task is not None
        self._silent.pop(task, None)
        try:
            await self._welcome(connection, hello)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of infinity, for example
            self._warn("%s sent nonsense: %s: %s", connection.peer, type(error).__name__, _shown(str(error), 1000))
            refuse(connection, f"this is no handshake: {type(error).__name__}: {error}")
        except GltError as error:
            logger.info("%s: %s", connection.peer, error)
            connection.close()
        except Exception:  # no descriptors for it, for example: the other end may try again
            logger.exception("the connection of %s is given up", connection.peer)
            connection.close()

    def _warn(self, text: str, *args: Any) -> None:
        """Strangers cannot fill the log: of what they bring about, so many lines are warnings, and none the others."""
        now = time.monotonic()
        if now > self._warned_s + deadlines.COMPLAINT_S:
            self._warned_s, self._num_warned = now, 0
        self._num_warned += 1
        if self._num_warned == _MOST_WARNINGS:
            text += f" (the next ones of these {deadlines.COMPLAINT_S:g} s are not written)"
        logger.log(logging.WARNING if self._num_warned <= _MOST_WARNINGS else logging.DEBUG, text, *args)

    def close(self) -> None:
        """Ends it. From any thread; may be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # at once: others may listen there as soon as this returns
        except OSError as error:
            logger.debug("%s", error)
        call_on_loop(self._close)

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            process_loop.get().remove_reader(self._socket.fileno())
        self._socket.close()
        for task in list(self._silent):
            process_loop.get().call_soon(task.cancel)


class LocalListener(Listener):
    """Listens for processes of this host, at a Unix socket without a file, which nothing of another network namespace
    reaches. Where no token is asked for, processes of other users are refused."""

    def __init__(self, welcome: Welcome) -> None:
        self._welcome = self._only_of_this_user
        self._then = welcome
        with naming_the_limit():
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.name = f"\0glt-{os.getpid()}-{secrets.token_hex(16)}"
        self._socket.bind(self.name)
        self._socket.listen(1024)
        self._take_care_of(self._socket)

    async def _only_of_this_user(self, connection: Connection, hello: dict[str, Any]) -> None:
        try:
            told = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError as error:  # it has ended
            raise ConnectionLost(f"lost the connection to {connection.peer}: {error}") from error
        _, user, _ = _PEER.unpack(told)
        if user != os.geteuid() and current_credentials().token_file is None:
            refuse(connection, f"it belongs to user {user}, and this process to user {os.geteuid()}")
        else:
            await self._then(connection, hello)


def _shown(value: Any, most: int = 64) -> Any:
    """What another process says of itself, as it may stand in a log: a number, or a few characters of one line."""
    if isinstance(value, int):
        return value
    return "".join(each if each.isprintable() else "?" for each in str(value)[:most])


_open: weakref.WeakSet[Listener] = weakref.WeakSet()


def _forget() -> None:
    """A fork would keep the ports open after its parent has ended. It shuts nothing down: that would end them there."""
    for listener in list(_open):
        listener._socket.close()
    _open.clear()


os.register_at_fork(after_in_child=_forget)

_warned: set[str] = set()


def require_proof_beyond(host: str, name: str) -> None:
    """Says that a process is about to listen beyond its host without asking for a token; refuses, if that is told."""
    credentials = current_credentials()
    if is_loopback(host):
        return
    if credentials.tls is not None:
        credentials.tls.context(of_server=True)  # raises if it has no certificate
    if credentials.token_file is not None:
        return
    warn_or_refuse(
        host,
        f"{name} listens at {host or 'all interfaces'} and asks for no token: who reaches it can read the "
        "graph and run registered functions. Give all processes of the job the same token file (`glt token FILE`; "
        "GLT_TOKEN_FILE, --token-file, token_file=), or let it listen on a network that you trust",
    )


def warn_or_refuse(what: str, text: str) -> None:
    """Says that something listens to strangers, once for each ``what``. RendezvousError with ``require_auth``."""
    if current_credentials().require_auth:
        raise RendezvousError(f"{text}. It was told to refuse that (require_auth)")
    if what not in _warned:
        _warned.add(what)
        logger.warning("%s", text)


def _listen(bind: tuple[str, int], name: str, flag: str) -> socket.socket:
    host, port = bind
    try:
        # As reachable_address has it: localhost, for example, has addresses of two families.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with naming_the_limit():
            return socket.create_server((host, port), family=family, backlog=1024, reuse_port=False)
    except OSError as error:
        if is_exhausted(error):
            raise
        raise RendezvousError(
            f"{name} cannot listen at {host!r}, {flag} = {port}, on {socket.gethostname()}: {error}. Perhaps another "
            "program has the port; or the name is no address of this host: then give host='0.0.0.0', which listens on "
            "all its interfaces"
        ) from error
