"""The port of a server: takes connections, hears who they are, and passes on those that make sense."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import glt
from glt import _deadlines as deadlines
from glt.distributed.wire.old_connection import Connection, printed, pulse, reachable_address
from glt.errors import ChannelTimeout, ConnectionLost, GltError, MessageError, PeerLost, RendezvousError

# How two processes of the service begin to talk: who they are, which glt they run, and whether they get along.


PROTOCOL = 1

logger = logging.getLogger(__name__)


class Hint:
    """Says once what a long wait is waiting for: its deadline is minutes."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._due_s = time.monotonic() + deadlines.HINT_S

    def give(self, missing: str) -> None:
        """Says so, if it is time: what is missing now."""
        if time.monotonic() > self._due_s:
            self._due_s = math.inf
            logger.warning("%s; waiting for up to %g s", missing, self._timeout_s)


def introduce(kind: str, **more: Any) -> dict[str, Any]:
    """The first frame of a process that connects."""
    me = {"host": socket.gethostname(), "pid": os.getpid()}
    return {"protocol": PROTOCOL, "version": glt.__version__, "kind": kind, **me, **more}


def require_same_version(theirs: dict[str, Any], who: str) -> None:
    """Raises RendezvousError unless the other side runs a glt that this one understands; names both versions."""
    mine = PROTOCOL, _series(glt.__version__)
    if (theirs.get("protocol"), _series(str(theirs.get("version")))) != mine:
        raise RendezvousError(
            f"{who} runs glt {theirs.get('version')} (protocol {theirs.get('protocol')}), this process runs glt "
            f"{glt.__version__} (protocol {PROTOCOL}) on {socket.gethostname()}: install the same glt on all hosts"
        )


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def dial(
    address: tuple[str, int],
    peer: str,
    hello: dict[str, Any],
    timeout_s: float,
    *,
    max_bytes: int = 1 << 20,
    retry: bool = True,
    answer_s: float | None = None,
) -> tuple[Connection, dict[str, Any]]:
    """Connects to a server, introduces this process and returns the connection with the server's answer.

    With ``retry`` it tries until the deadline where nothing listens yet. An answer may take ``answer_s``, by default
    until the deadline, for a server answers when it is ready.

    Raises:
        glt.errors.RendezvousError: If it refuses; or if nothing listens there, or no server, before the deadline.
        glt.errors.PeerLost: If ``retry`` is false, and nothing listens there or the connection breaks meanwhile.
    """
    host, where = address[0], printed(*address)
    deadline, hint = time.monotonic() + timeout_s, Hint(timeout_s)
    while True:
        left = deadline - time.monotonic()
        try:
            sock = socket.create_connection(address, timeout=max(0.1, min(left, deadlines.HANDSHAKE_S)))
        except socket.gaierror as error:
            raise RendezvousError(f"{peer}: there is no host {host!r} ({error}); check master_addr") from error
        except OSError as error:
            if not retry:
                raise PeerLost(f"{peer} cannot be reached at {where}: {error}") from error
            if left <= 0:
                raise RendezvousError(
                    f"{peer} was not reached at {where} within {timeout_s:g} s ({error}): does it run, and do "
                    f"master_addr and master_port name the host and port of {peer}?"
                ) from error
            hint.give(f"{peer} is not reached at {where} yet ({error})")
            time.sleep(deadlines.RETRY_S)
            continue
        connection = Connection(sock, peer, max_bytes)
        try:
            connection.send(hello, deadlines.HANDSHAKE_S)
            wait_s = answer_s or max(deadlines.HANDSHAKE_S, deadline - time.monotonic())
            answer = connection.receive_json(wait_s)
            if "protocol" not in answer and "refused" not in answer:
                raise MessageError(f"{peer} answered {sorted(answer)}, which is no handshake")
            if "refused" not in answer:
                require_same_version(answer, peer)
                pulse.add(connection)
                return connection, answer
        except RendezvousError:
            connection.close()
            raise
        except ConnectionLost as error:
            connection.close()
            if retry and time.monotonic() < deadline:
                time.sleep(deadlines.RETRY_S)  # it is starting, or being replaced
                continue
            kind = RendezvousError if retry else PeerLost
            raise kind(f"{error}; it ended during the handshake") from error
        except (MessageError, ChannelTimeout) as error:
            connection.close()
            raise RendezvousError(
                f"what listens at {where} is no server of glt, or gave no answer: {error}; check master_addr and "
                "master_port"
            ) from error
        connection.close()
        if answer.get("is_ending") and retry and time.monotonic() < deadline:
            time.sleep(deadlines.RETRY_S)  # another may take its place
            continue
        raise RendezvousError(f"{peer} at {where} refused: {answer['refused']}")


_MAX_HANDSHAKES = 256
_MAX_HELLO_BYTES = 1 << 20  # of those who have not said yet who they are

Welcome = Callable[[Connection, dict[str, Any]], None]


class Listener:
    """Listens from the start; takes connections and passes them on once it is opened, those that came before too, which
    the kernel keeps until then. RendezvousError if it cannot listen.

    Args:
        bind: Host and port; port 0: one is found.
        rank: Of the server.
        master: Host and port of server 0.
        welcome: Given each connection with its first frame, on a thread of its own; what it raises for a frame that
            lacks something, KeyError, TypeError or ValueError, is answered.

    Attributes:
        address: Host and port under which others reach it; ``listens_at`` is of one interface or of all.
        has_no_threads: The script has ended, and Python 3.12 starts no threads then: connections are passed on one
            after the other, on the thread that takes them.
    """

    def __init__(self, bind: tuple[str, int], rank: int, master: tuple[str, int], welcome: Welcome) -> None:
        self._welcome = welcome
        self._socket = _listen(bind, rank)
        self.listens_at: str = self._socket.getsockname()[0]
        try:
            self.address: tuple[str, int] = (reachable_address(bind[0], master), self._socket.getsockname()[1])
        except BaseException:
            self._socket.close()
            raise
        self._lock = threading.Lock()
        self._silent: dict[Connection, None] = {}  # those that have not said yet who they are, the oldest first
        self._closed = self.has_no_threads = False
        _open.add(self)

    def open(self) -> None:
        """Begins to take connections."""
        threading.Thread(target=self._accept, name="glt-accept", daemon=True).start()

    def _accept(self) -> None:
        complained_s = -math.inf
        while not self._closed:
            try:
                sock, address = self._socket.accept()
                connection = Connection(sock, printed(*address[:2]))
            except OSError as error:
                if not self._closed:
                    if (now := time.monotonic()) > complained_s + deadlines.COMPLAINT_S:
                        logger.error("cannot accept connections: %s", error)
                        complained_s = now
                    time.sleep(deadlines.RETRY_S)  # out of descriptors, for example: others may be given back
                continue
            with self._lock:
                # Where all places are taken, the one that is silent for longest loses its own: those who mean it say at
                # once who they are.
                if len(self._silent) >= _MAX_HANDSHAKES:
                    oldest = next(iter(self._silent))
                    del self._silent[oldest]
                    oldest.close()
                self._silent[connection] = None
            try:
                threading.Thread(
                    target=self._shake_hands, args=(connection,), name="glt-handshake", daemon=True
                ).start()
            except RuntimeError as error:  # no thread is to be had: later ones may be
                if not threading.main_thread().is_alive():
                    self.has_no_threads = True
                    self._shake_hands(connection)
                    continue
                logger.error("%s is turned away: %s; raise the limit of processes (ulimit -u)", connection.peer, error)
                with self._lock:
                    self._silent.pop(connection, None)
                connection.close()

    def _shake_hands(self, connection: Connection) -> None:
        connection.max_json_bytes = _MAX_HELLO_BYTES
        who = connection.peer
        try:
            hello = connection.receive_json(deadlines.HANDSHAKE_S)
            connection.peer = f"{hello.get('kind')} at {who}"
            require_same_version(hello, connection.peer)
        except RendezvousError as error:
            logger.warning("refused: %s", error)
            refuse(connection, str(error))
            return
        except GltError as error:
            logger.info("no handshake with %s: %s", who, error)
            connection.close()
            return
        finally:
            with self._lock:
                self._silent.pop(connection, None)
        try:
            self._welcome(connection, hello)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("%s sent nonsense: %s: %s", connection.peer, type(error).__name__, error)
            refuse(connection, f"this is no handshake: {type(error).__name__}: {error}")
        except Exception:  # no descriptors for it, for example: the other end may try again
            logger.exception("the connection of %s is given up", connection.peer)
            connection.close()

    def close(self) -> None:
        """Ends it. May be called again."""
        self._closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
        except OSError as error:
            logger.debug("%s", error)
        self._socket.close()


_open: weakref.WeakSet[Listener] = weakref.WeakSet()


def _forget() -> None:
    """A fork would keep the ports open after its parent has ended. It shuts nothing down: that would end them there."""
    for listener in list(_open):
        listener._socket.close()
    _open.clear()


os.register_at_fork(after_in_child=_forget)


def refuse(connection: Connection, text: str, is_ending: bool = False) -> None:
    """Ends a connection in words."""
    try:
        connection.send({"refused": text, "is_ending": is_ending}, timeout_s=deadlines.SEND_S)
    except GltError as error:
        logger.info("%s", error)
    connection.close()


def _listen(bind: tuple[str, int], rank: int) -> socket.socket:
    host, port = bind
    try:
        # As reachable_address has it: localhost, for example, has addresses of two families.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024, reuse_port=False)
    except OSError as error:
        named = "master_port" if rank == 0 else "port"
        raise RendezvousError(
            f"server {rank} cannot listen at {host!r}, {named} = {port}, on {socket.gethostname()}: {error}. Perhaps "
            "another program has the port; or the name is no address of this host: then give host='0.0.0.0', which "
            "listens on all its interfaces"
        ) from error
