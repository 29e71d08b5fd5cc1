"""The HTTP endpoint of a process: ``/metrics``, ``/stats``, ``/healthz``, ``/readyz`` and the page, ``/``."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import glt
from glt import _deadlines as deadlines
from glt._checks import check_count, check_flag, check_text, is_exhausted, naming_the_limit
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.distributed.endpoint.http import HttpServer, Path, Reply
from glt.distributed.endpoint.metrics import Metrics, missing_prometheus
from glt.distributed.wire.addresses import is_loopback, printed
from glt.distributed.wire.credentials import current_credentials
from glt.distributed.wire.listener import warn_or_refuse
from glt.distributed.wire.threads import call_on_loop
from glt.errors import RendezvousError

logger = logging.getLogger(__name__)


class StatsEndpoint:
    """Answers over HTTP, until it is closed, what a process does: :func:`glt.distributed.publish_stats` and
    ``metrics_port`` of servers make one. It closes itself at the end of a ``with`` block.

    Attributes:
        address: Host and port at which it listens.
        url: Of the page; below it are ``metrics``, ``stats``, ``healthz`` and ``readyz``.

    Example:
        >>> with glt.distributed.publish_stats({}) as endpoint:
        ...     endpoint.address[0]
        ...
        '127.0.0.1'
    """

    def __init__(
        self,
        name: str,
        about: Mapping[str, str],
        stats: Callable[[], Mapping[str, Any]],
        not_ready: Callable[[], str],
        host: str,
        port: int,
        asks_for_token: bool = False,
        kind: str = "server",
    ) -> None:
        """``name`` is of the process, ``about`` for Prometheus; ``stats`` returns the numbers, ``not_ready`` why it
        takes no work (empty: it does). Port 0: one is found. ``asks_for_token``: numbers are for those who show the
        read token, over https if the process has TLS; the page, which has none, and probes are for all. Raises
        RendezvousError if the port cannot be opened."""
        self._not_ready = not_ready
        self._lock = threading.Lock()
        self._asked: threading.Event | None = None  # set by the loop
        if not asks_for_token and not is_loopback(host):
            remedy = "metrics_auth (--metrics-auth), or metrics_host" if kind == "server" else "auth=True, or host"
            warn_or_refuse(
                "metrics",
                f"who reaches {host or 'all interfaces'} reads the metrics of {name}: give a token and {remedy} = "
                "'127.0.0.1'",
            )
        if lacking := missing_prometheus():
            logger.warning("%s answers the page and probes, but %s", name, lacking)
            metrics = Path(lambda _: Reply(501, f"{lacking}\n".encode()))
        else:
            metrics = Path(Metrics(kind, about, stats).answer)
        paths = {
            "/": Path(lambda _: _page(), is_open=True),
            "/stats": Path(lambda _: Reply(200, json.dumps(stats()).encode(), "application/json")),
            "/metrics": metrics,
            "/healthz": Path(lambda _: self._health(), is_open=True),
            "/readyz": Path(lambda _: self._readiness(), is_open=True),
        }
        try:
            with naming_the_limit():
                self._http = HttpServer(host, port, paths, asks_for_token)
        except OSError as error:
            if is_exhausted(error):
                raise
            names = ("metrics_host", "metrics_port") if kind == "server" else ("host", "port")
            raise RendezvousError(
                f"the metrics of {name} cannot be published at {names[0]} = {host!r}, {names[1]} = {port}: "
                f"{error}. Perhaps another program has the port; or the name is no address of this host"
            ) from error
        self.address: tuple[str, int] = self._http.socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name="glt-metrics", daemon=True)
        self._thread.start()
        self.url: str = f"http{'s' if self._http.is_encrypted else ''}://{printed(*self.address)}/"
        logger.info("the page of %s is at %s, its metrics are at %smetrics", name, self.url, self.url)
        if asks_for_token and not self._http.is_encrypted and not is_loopback(self.address[0]):
            logger.warning(
                "who asks for metrics at %s sends the read token, and the connection is not encrypted: give this "
                "process TLS (--tls-cert, --tls-key), or listen at 127.0.0.1",
                self.url,
            )

    def _health(self) -> Reply:
        """Many who ask at once share one question to the loop."""
        with self._lock:
            if self._asked is None or self._asked.is_set():
                self._asked = threading.Event()
                call_on_loop(self._asked.set)
            asked = self._asked
        if asked.wait(deadlines.SEND_S):
            return Reply(200, b"ok\n")
        text = f"the loop on which this process hears others has not answered for {deadlines.SEND_S:g} s\n"
        return Reply(503, text.encode())

    def _readiness(self) -> Reply:
        why = self._not_ready()
        return Reply(503, f"{why}\n".encode()) if why else Reply(200, b"ready\n")

    def close(self) -> None:
        """Ends it, and closes the port. May be called again."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(deadlines.JOIN_S)
        self._http.hang_up()

    def __enter__(self) -> StatsEndpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @says
    def __repr__(self) -> str:
        return f"at {self.url}"


def _page() -> Reply:
    """The page. Its script and its style are named by their digests: nothing else runs, whatever a name holds."""
    text = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    allowed = {"default-src": "'none'", "connect-src": "'self'", "img-src": "data:"}
    allowed |= {"base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'"}
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (inline,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        allowed[rule] = f"'sha256-{digest}'"
    policy = "; ".join(f"{rule} {source}" for rule, source in allowed.items())
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
    return Reply(200, text.encode(), "text/html; charset=utf-8", headers)


@short_traceback
def publish_stats(
    loaders: Mapping[str, Any], port: int = 0, host: str = "127.0.0.1", *, auth: bool = False
) -> StatsEndpoint:
    """Publishes ``stats()`` of loaders of this process over HTTP, as ``glt serve --metrics-port`` does of a server: a
    page for the browser, ``/stats`` for ``glt top``, ``/metrics`` for Prometheus. For trainers that have no server.

    Args:
        loaders: Distributed loaders by name. Add to the dict, or remove from it, while it is published.
        port: Where to listen; 0: a port is found, which :attr:`StatsEndpoint.url` names.
        host: Address of the interface. Every process that reaches it reads the numbers.
        auth: Give numbers to those who show the read token only. Needs ``GLT_TOKEN_FILE``, or a token that this
            process was given as server or client.

    Returns:
        The endpoint; ``close()`` it, or use it in a ``with`` block. It ends with the process at the latest.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.
        glt.errors.RendezvousError: If the port cannot be opened.

    Example:
        >>> from urllib.request import urlopen
        >>> with glt.distributed.publish_stats({}) as endpoint, urlopen(endpoint.url + "readyz", timeout=10) as reply:
        ...     reply.read()
        ...
        b'ready\\n'
    """
    if not isinstance(loaders, Mapping):
        raise TypeError(f"loaders has type {type(loaders).__name__}: expected a dict of loaders by name")
    for name, loader in loaders.items():
        check_text("a name of loaders", name)
        if not callable(getattr(loader, "stats", None)):
            raise TypeError(f"loaders[{name!r}] has type {type(loader).__name__}, without stats(): expected a loader")
    port = check_count("port", port, 0, 65535)
    check_text("host", host)
    check_flag("auth", auth)
    if auth and current_credentials().token_file is None:
        raise ValueError("auth = True, and there is no token: expected GLT_TOKEN_FILE")
    name, began_s = f"trainer (host {socket.gethostname()}, pid {os.getpid()})", time.time()
    about = {"host": socket.gethostname(), "pid": str(os.getpid()), "version": glt.__version__}

    def stats() -> dict[str, Any]:
        told = {each: dict(loader.stats()) for each, loader in list(loaders.items())}
        return {"trainer": name, "uptime_s": time.time() - began_s, "num_loaders": len(told), "loaders": told}

    return StatsEndpoint(name, about, stats, lambda: "", host, port, auth, "trainer")
