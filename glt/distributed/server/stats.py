"""Numbers of a server's sampling processes, and the HTTP endpoint for Prometheus."""

from __future__ import annotations

import hmac
import logging
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

import glt
from glt import _deadlines as deadlines
from glt._checks import is_exhausted, naming_the_limit
from glt.distributed.engine.sampler import STATS
from glt.distributed.server.membership import ServerEntry
from glt.distributed.wire.addresses import is_loopback, printed
from glt.distributed.wire.credentials import current_credentials
from glt.distributed.wire.listener import warn_or_refuse
from glt.errors import RendezvousError

logger = logging.getLogger(__name__)

COUNTERS = (*STATS, "num_batches", "num_errors", "sent_bytes")
GAUGES = ("num_queued", "queued_bytes", "num_running", "num_unread")
RATES = {"batches_per_s": "num_batches", "bytes_per_s": "sent_bytes"}
_RATE_BEATS = 6  # one a second: rates are those of the last five seconds

Numbers = dict[str, float]

# -- collecting them -----------------------------------------------------------------------------------------------


@dataclass
class _Stream:
    numbers: Mapping[str, float]
    past: deque[tuple[float, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=_RATE_BEATS))

    def rate(self, name: str) -> float:
        (began, first), (ended, last) = self.past[0], self.past[-1]
        return (last.get(name, 0.0) - first.get(name, 0.0)) / (ended - began) if ended > began else 0.0


class WorkerMetrics:
    """Counters, gauges and rates by sampling process and by loader. The numbers of an open stream replace each other;
    when it ends, or its process dies, its counters are added to those of both. A process that dies loses what it did
    since its last beat, a second ago at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._workers: dict[int, Numbers] = {}  # counters of streams that have ended
        self._loaders: dict[str, Numbers] = {}  # the same, of loaders that are open

    def open_loader(self, loader: str) -> None:
        with self._lock:
            self._loaders[loader] = dict.fromkeys(COUNTERS, 0.0)

    def close_loader(self, loader: str) -> None:
        with self._lock:
            self._loaders.pop(loader, None)

    def beat(self, worker: int, streams: Mapping[str, Mapping[str, float]]) -> None:
        """Takes the numbers of streams that are open, by ``loader/number``."""
        now = time.monotonic()
        with self._lock:
            self._workers.setdefault(worker, dict.fromkeys(COUNTERS, 0.0))
            for key, numbers in streams.items():
                stream = self._streams.get((worker, key))
                if stream is None:  # a beat ago it had done nothing
                    stream = self._streams[worker, key] = _Stream(numbers)
                    stream.past.append((now - deadlines.BEAT_S, {}))
                stream.numbers = numbers
                stream.past.append((now, numbers))

    def end_stream(self, worker: int, key: str, numbers: Mapping[str, float]) -> None:
        with self._lock:
            self._streams.pop((worker, key), None)
            self._add(worker, key, numbers)

    def lose_worker(self, worker: int) -> None:
        with self._lock:
            for place, key in [each for each in self._streams if each[0] == worker]:
                self._add(place, key, self._streams.pop((place, key)).numbers)

    def _add(self, worker: int, key: str, numbers: Mapping[str, float]) -> None:
        self._workers.setdefault(worker, dict.fromkeys(COUNTERS, 0.0))
        for account in _accounts(self._workers, self._loaders, worker, key):
            _add(account, numbers, COUNTERS)

    def read(self) -> tuple[dict[int, Numbers], dict[str, Numbers]]:
        """Counters, gauges and rates, by sampling process and by loader that is open."""
        none_now = dict.fromkeys((*GAUGES, *RATES), 0.0)
        with self._lock:
            workers = {worker: {**account, **none_now} for worker, account in sorted(self._workers.items())}
            loaders = {loader: {**account, **none_now} for loader, account in self._loaders.items()}
            for (worker, key), stream in self._streams.items():
                for account in _accounts(workers, loaders, worker, key):
                    _add(account, stream.numbers, (*COUNTERS, *GAUGES))
                    _add(account, {rate: stream.rate(name) for rate, name in RATES.items()}, RATES)
        return workers, loaders


def total(accounts: Iterable[Mapping[str, float]]) -> Numbers:
    names = (*COUNTERS, *GAUGES, *RATES)
    summed: Numbers = dict.fromkeys(names, 0.0)
    for account in accounts:
        _add(summed, account, names)
    return summed


def with_ratios(each: Numbers) -> Numbers:
    nodes, remote, cached, shared = (each[f"num_{name}nodes"] for name in ("", "remote_", "cached_", "window_"))
    hits = cached / (cached + shared + remote) if cached else 0.0
    return {**each, "remote_node_ratio": remote / nodes if nodes else 0.0, "cache_hit_ratio": hits}


def _accounts(workers: dict[int, Numbers], loaders: dict[str, Numbers], worker: int, key: str) -> list[Numbers]:
    """Those that a stream counts for: its process's, and its loader's while that is open."""
    loader = loaders.get(key.rpartition("/")[0])
    return [workers[worker]] if loader is None else [workers[worker], loader]


def _add(to: Numbers, more: Mapping[str, float], names: Iterable[str]) -> None:
    for name in names:
        to[name] += more.get(name, 0.0)


# -- publishing them -----------------------------------------------------------------------------------------------

# Counter or gauge, name in the stats, name of the metric, what it is.
_Table = Sequence[tuple[str, str, str, str]]
_OF_ALL: _Table = (
    ("counter", "num_batches", "batches", "Batches sent"),
    ("counter", "num_errors", "errors", "Errors sent in place of a batch"),
    ("counter", "sent_bytes", "sent_bytes", "Bytes of messages sent"),
    ("counter", "num_nodes", "nodes", "Nodes sampled"),
    ("counter", "num_edges", "edges", "Edges sampled"),
    ("counter", "num_remote_nodes", "remote_nodes", "Nodes whose rows other servers had"),
    ("counter", "num_cached_nodes", "cached_nodes", "Nodes of other servers whose rows the cache had"),
    (
        "counter",
        "num_window_nodes",
        "window_nodes",
        "Nodes of other servers whose rows were asked for in the same window",
    ),
    ("counter", "remote_bytes", "remote_bytes", "Bytes that came from other servers"),
    ("counter", "cached_bytes", "cached_bytes", "Bytes of rows of other servers that the cache had"),
    ("counter", "window_bytes", "window_bytes", "Bytes of rows of other servers that came in the same window"),
    ("gauge", "num_queued", "queued_batches", "Batches that wait to be sent"),
    ("gauge", "queued_bytes", "queued_bytes", "Bytes of batches that wait to be sent"),
    ("gauge", "num_running", "running_batches", "Batches being made"),
    ("gauge", "num_unread", "unread_batches", "Batches sent and not yet taken by the trainer"),
    ("gauge", "batches_per_s", "batches_per_second", "Batches sent per second, over the last five"),
    ("gauge", "bytes_per_s", "bytes_per_second", "Bytes sent per second, over the last five"),
    ("gauge", "remote_node_ratio", "remote_node_ratio", "Share of nodes whose rows other servers had"),
    ("gauge", "cache_hit_ratio", "cache_hit_ratio", "Share of nodes of other servers whose rows the cache had"),
)
_OF_SERVER: _Table = (
    ("gauge", "uptime_s", "uptime_seconds", "Seconds since the server started"),
    ("gauge", "num_clients", "clients", "Clients that are there"),
    ("gauge", "num_loaders", "loaders", "Loaders that are open"),
    ("gauge", "num_workers", "workers", "Sampling processes that are ready"),
    ("gauge", "is_draining", "draining", "1 if the server takes no more clients and loaders"),
    ("counter", "num_restarts", "worker_restarts", "Sampling processes started in place of one that died"),
)
_OF_TENSOR: _Table = (
    ("gauge", "num_rows", "rows", "Rows kept here"),
    ("gauge", "num_bytes", "bytes", "Bytes of the rows kept here"),
    ("counter", "num_reads", "reads", "Requests to read rows"),
    ("counter", "num_writes", "writes", "Requests to write or add to rows"),
    ("counter", "read_bytes", "read_bytes", "Bytes of rows read"),
    ("counter", "written_bytes", "written_bytes", "Bytes of rows written or added"),
)
_STAGES = ("sampling", "gathering", "remote", "blocked")


def require_prometheus() -> None:
    """Raises ImportError, with the remedy, if there is no ``prometheus_client``."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"metrics_port needs the package prometheus_client ({error}): pip install prometheus_client"
        ) from error


class MetricsEndpoint:
    """Answers ``GET /metrics`` with what ``stats`` returns then, until it is closed. With port 0 one is found;
    ``address`` says which. ``asks_for_token``: only those who show the read token are answered, over https if the
    process has TLS. Raises RendezvousError if the port cannot be opened."""

    def __init__(
        self,
        stats: Callable[[], dict[str, Any]],
        entry: ServerEntry,
        host: str,
        port: int,
        asks_for_token: bool = False,
    ) -> None:
        from prometheus_client import CollectorRegistry

        self._stats, self._entry = stats, entry
        if not asks_for_token and not is_loopback(host):
            warn_or_refuse(
                "metrics",
                f"who reaches {host or 'all interfaces'} reads the metrics of {entry}: give a token and metrics_auth "
                "(--metrics-auth), or metrics_host = '127.0.0.1'",
            )
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)  # type: ignore[arg-type]
        try:
            with naming_the_limit():
                self._http = _Http(host, port, registry, asks_for_token)
        except OSError as error:
            if is_exhausted(error):
                raise
            raise RendezvousError(
                f"the metrics of {entry} cannot be published at metrics_host = {host!r}, metrics_port = {port}: "
                f"{error}. Perhaps another program has the port; or the name is no address of this host"
            ) from error
        self.address: tuple[str, int] = self._http.socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name="glt-metrics", daemon=True)
        self._thread.start()
        self.url = f"http{'s' if self._http.is_encrypted else ''}://{printed(*self.address)}/metrics"
        logger.info("metrics of %s are at %s", entry, self.url)
        if asks_for_token and not self._http.is_encrypted and not is_loopback(self.address[0]):
            logger.warning(
                "who asks for metrics at %s sends the read token, and the connection is not encrypted: give the server "
                "TLS (--tls-cert, --tls-key), or --metrics-host 127.0.0.1",
                self.url,
            )

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        stats, entry = self._stats(), self._entry
        about = {"server": str(entry.rank), "partition": str(entry.partition_idx), "host": entry.host}
        about |= {"pid": str(entry.pid), "version": glt.__version__}
        yield InfoMetricFamily("glt_server", "What this server is", value=about)
        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        for scope, table, rows in (
            ("server", (*_OF_SERVER, *_OF_ALL), {"": stats | stats["totals"]}),
            ("tensor", _OF_TENSOR, stats["tensors"]),
            ("loader", _OF_ALL, stats["loaders"]),
            ("worker", _OF_ALL, stats["workers"]),
        ):
            labels = [] if scope == "server" else [scope]
            values = {of: [of] if labels else [] for of in rows}
            for kind, name, metric, text in table:
                family = families[kind](f"glt_{scope}_{metric}", text, labels=labels)
                for of, row in rows.items():
                    family.add_metric(values[of], float(row[name]))
                yield family
            if table is not _OF_TENSOR:
                text = "Seconds of batches in each stage, summed over batches"
                stages = CounterMetricFamily(f"glt_{scope}_stage_seconds", text, labels=[*labels, "stage"])
                for of, row in rows.items():
                    for stage in _STAGES:
                        stages.add_metric([*values[of], stage], row[f"{stage}_s"])
                yield stages

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(deadlines.JOIN_S)
        self._http.hang_up()


_MOST_ASKING = 64  # connections at a time; then the oldest is ended
_MOST_REQUEST_BYTES = 64 << 10


class _Http(ThreadingMixIn, TCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, registry: Any, asks_for_token: bool) -> None:
        self.registry, self.asks_for_token = registry, asks_for_token
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
    server: _Http

    def setup(self) -> None:
        super().setup()
        self.rfile = _Request(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        from prometheus_client.exposition import choose_encoder

        if self.server.asks_for_token and not self.server.may_read(self.headers.get("Authorization", "")):
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "the numbers are at /metrics")
            return
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        body = encode(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("metrics: " + format, *args)
