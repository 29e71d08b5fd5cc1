"""An HTTP server that bounds what strangers cost: connections, bytes, seconds."""

from __future__ import annotations

import hmac
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from glt import _deadlines as deadlines
from glt.distributed.wire.credentials import current_credentials

logger = logging.getLogger(__name__)

_MOST_ASKING = 64  # connections at a time; then the oldest is ended
_MOST_REQUEST_BYTES = 64 << 10


@dataclass(frozen=True)
class Reply:
    """What is answered: status, content and its type, and headers beside those."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Path:
    """What answers ``GET``: given the header ``Accept``. ``is_open``: to all, also where others need a token."""

    answer: Callable[[str], Reply]
    is_open: bool = False


class HttpServer(ThreadingMixIn, TCPServer):
    """Answers ``paths`` from :meth:`serve_forever` until :meth:`shutdown`. ``asks_for_token``: those that are not open
    need the read token, and all go over https if the process has TLS."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, paths: Mapping[str, Path], asks_for_token: bool) -> None:
        self.paths, self.asks_for_token = paths, asks_for_token
        self.is_encrypted = asks_for_token and current_credentials().tls is not None
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread | None] = {}
        self._came_s: dict[socket.socket, float] = {}  # the same, of time.monotonic()
        self.address_family = socket.getaddrinfo(host or None, port, flags=socket.AI_PASSIVE)[0][0]
        super().__init__((host, port), _Answer)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= _MOST_ASKING else None
            self._open[request] = None
            self._came_s[request] = time.monotonic()
        if oldest is not None:
            _end(oldest)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = threading.current_thread()
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
                self._came_s.pop(request, None)

    def service_actions(self) -> None:
        """Several times a second: ends those that take long to ask, or to read the answer, however much comes."""
        until_s = time.monotonic() - deadlines.HANDSHAKE_S
        with self._lock:
            late = [each for each, came_s in self._came_s.items() if came_s < until_s]
        for each in late:
            _end(each)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if not self.is_encrypted:
            return super().finish_request(request, client_address)
        tls = current_credentials().tls
        if tls is None:
            raise ConnectionError("this process had TLS when it opened this port, and has none any more")
        request.settimeout(deadlines.HANDSHAKE_S)
        # Of a copy: the socket itself is what the others know.
        with tls.context(of_server=True).wrap_socket(request.dup(), server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def may_read(self, shown: str) -> bool:
        """Whether a header shows the read token, which is read anew."""
        token = current_credentials().token()
        return token is not None and hmac.compare_digest(shown.encode(), f"Bearer {token.for_reading()}".encode())

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):  # of a stranger, as a rule: no handshake, nothing said, gone
            logger.info("metrics were not sent to %s: %s", client_address, error)
        else:
            logger.warning("metrics were not sent to %s", client_address, exc_info=True)

    def hang_up(self) -> None:
        with self._lock:
            current = dict(self._open)
        for connection, thread in current.items():
            _end(connection)
            if thread is not None:
                thread.join(deadlines.JOIN_S)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        logger.debug("%s", error)  # it ended meanwhile


class _Request:
    """What is read of a request: no more than a stranger may send."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, _MOST_REQUEST_BYTES

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._file.readline(self._left if limit < 0 else min(limit, self._left))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class _Answer(BaseHTTPRequestHandler):
    timeout = deadlines.SEND_S
    server: HttpServer

    def setup(self) -> None:
        super().setup()
        self.rfile = _Request(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        found = self.server.paths.get(self.path.partition("?")[0])
        if self.server.asks_for_token and not (found is not None and found.is_open):
            if not self.server.may_read(self.headers.get("Authorization", "")):
                self._send(Reply(401, b"", headers={"WWW-Authenticate": "Bearer"}))
                return
        if found is None:
            self._send(Reply(404, f"expected one of {' '.join(self.server.paths)}\n".encode()))
        else:
            self._send(found.answer(self.headers.get("Accept", "")))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        fixed = {"Content-Type": reply.kind, "Content-Length": str(len(reply.body)), "Cache-Control": "no-store"}
        for name, value in {**fixed, "X-Content-Type-Options": "nosniff", **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("metrics: " + format, *args)
