"""What endpoints of other processes tell: asked over HTTP, again and again, each by a thread of its own."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from glt import _deadlines as deadlines
from glt.distributed.wire.credentials import current_credentials

_MOST_ANSWER_BYTES = 16 << 20


@dataclass(frozen=True)
class Snapshot:
    """What an endpoint has told last. ``error``: why it has not answered since, in words."""

    at_s: float = 0.0  # of time.monotonic()
    stats: dict[str, Any] | None = None
    before_s: float = 0.0
    before: dict[str, Any] | None = None  # the stats before these, for rates
    error: str = ""


class Poller:
    """An endpoint, ``HOST:PORT`` or a URL, that is asked for ``/stats`` every ``period_s`` seconds from now on."""

    def __init__(self, address: str, period_s: float) -> None:
        self.address, self._period_s = address, period_s
        self._encrypted, self._host, self._port, self._path = parse_address(address)
        self._shows_token = False
        self.newest = Snapshot()
        self.answered, self._closed = threading.Event(), threading.Event()  # it may have failed to
        threading.Thread(target=self._go_on, name="glt-top", daemon=True).start()

    def _go_on(self) -> None:
        while not self._closed.is_set():
            began_s, old = time.monotonic(), self.newest
            try:
                stats = self._ask()
            except (OSError, http.client.HTTPException, ValueError) as error:
                text = str(error) or type(error).__name__
                self.newest = Snapshot(old.at_s, old.stats, old.before_s, old.before, text)
            else:
                self.newest = Snapshot(time.monotonic(), stats, old.at_s, old.stats)
            self.answered.set()
            self._closed.wait(max(0.0, began_s + self._period_s - time.monotonic()))

    def close(self) -> None:
        """Asks no more."""
        self._closed.set()

    def _ask(self) -> dict[str, Any]:
        status, body = self._get()
        if status == 401 and not self._shows_token:  # only those who ask for the token are shown it
            if current_credentials().token_file is None:
                raise ValueError("it asks for the read token of its job: set GLT_TOKEN_FILE")
            self._shows_token = True
            status, body = self._get()
        if status == 401:
            raise ValueError("GLT_TOKEN_FILE has the token of another job")
        if status != 200:
            raise ValueError(f"it answers with status {status}: expected the address of --metrics-port")
        stats = json.loads(body)
        if not _are_stats(stats):
            raise ValueError("what it answers are no stats of glt: expected the address of --metrics-port")
        return stats

    def _get(self) -> tuple[int, bytes]:
        token = current_credentials().token() if self._shows_token else None
        shown = {} if token is None else {"Authorization": f"Bearer {token.for_reading()}"}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=deadlines.SEND_S)
        # However slowly it comes: the connection is ended under the thread that reads.
        limit = threading.Timer(deadlines.HANDSHAKE_S, lambda: _end(connection.sock))
        limit.daemon = True
        limit.start()
        try:
            connection.connect()
            if self._encrypted:
                tls = current_credentials().tls
                if tls is None:
                    raise ValueError("https needs TLS: set GLT_TLS_CA")
                context, name = tls.context(of_server=False), tls.server_name or self._host
                connection.sock = context.wrap_socket(connection.sock, server_hostname=name)
            connection.request("GET", f"{self._path}/stats", headers=shown)
            reply = connection.getresponse()
            body = reply.read(_MOST_ANSWER_BYTES + 1)
            if len(body) > _MOST_ANSWER_BYTES:
                raise ValueError(f"it answers with more than {_MOST_ANSWER_BYTES >> 20} MiB")
            return reply.status, body
        finally:
            limit.cancel()
            connection.close()


def _are_stats(told: Any) -> bool:
    """Whether rows are where those of stats are, with numbers where they have some."""
    if not isinstance(told, dict) or not isinstance(told.get("loaders"), dict):
        return False
    for row in (told, told.get("totals", {}), *told["loaders"].values()):
        if not isinstance(row, dict):
            return False
        for name, value in row.items():
            counts = name.startswith("num_") or name.endswith(("_s", "_bytes", "_ratio", "_num_queued"))
            if counts and not isinstance(value, int | float):
                return False
    return True


def _end(sock: socket.socket | None) -> None:
    if sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended meanwhile


def parse_address(address: str) -> tuple[bool, str, int, str]:
    """Whether it is encrypted, host, port and path, of ``HOST:PORT`` or a URL. Without a scheme it is https where this
    process has a token and TLS, as servers with ``--metrics-auth`` have it.

    Raises:
        ValueError: If it is neither.
    """
    credentials = current_credentials()
    secured = credentials.tls is not None and credentials.token_file is not None
    given = address if "://" in address else f"http{'s' if secured else ''}://{address}"
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.scheme not in ("http", "https") or parts.username or parts.query:
        raise ValueError(f"{address!r}: expected HOST:PORT, or http(s)://HOST:PORT, as --metrics-port has it")
    path = parts.path.rstrip("/")
    return parts.scheme == "https", host, port, path.removesuffix("/metrics").removesuffix("/stats")
