"""Options of a server, one list for ``init_server`` and ``glt serve``, and the format of its log."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from glt._checks import available_memory, check_count, check_flag, check_one_of, check_path, check_text, parse_size
from glt._tracebacks import short_traceback
from glt.distributed.options import DEFAULT_CACHE_BYTES, DEFAULT_RPC_TIMEOUT_S, check_transport, parse_budget
from glt.distributed.wire.credentials import TlsOptions, check_credentials

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error", "critical")

logger = logging.getLogger(__name__)


class LineFormat(logging.Formatter):
    """Formats a record with the process that wrote it: server, worker (None: the server itself) and pid. ``'json'`` is
    one object on one line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, ``server``, ``worker``,
    ``pid``, and ``traceback`` where there is one."""

    def __init__(self, format: str, server: int, worker: int | None) -> None:
        super().__init__()
        self.is_json, self.server, self.worker = format == "json", server, worker

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "server": self.server,
            "worker": self.worker,
            "pid": os.getpid(),
        }
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        if self.is_json:
            return json.dumps({**line, "traceback": trace} if trace else line)
        process = f"server {self.server}" + ("" if self.worker is None else f", worker {self.worker}")
        text = f"{line['time']} {record.levelname} {process}, pid {line['pid']}: {record.name}: {line['message']}"
        return f"{text}\n{trace}" if trace else text


def write_logs(format: str, level: int, server: int, worker: int | None = None) -> None:
    """Has this process, a server or one of its samplers, log to stderr, warnings and uncaught exceptions included.
    Replaces earlier settings of logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormat(format, server, worker))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        logger.critical("uncaught %s: %s", kind.__name__, error, exc_info=(kind, error, trace))

    def uncaught_in_thread(end: threading.ExceptHookArgs) -> None:
        name = end.thread.name if end.thread is not None else "?"
        error = end.exc_value or end.exc_type()
        trace = (end.exc_type, error, end.exc_traceback)
        logger.critical("thread %s ended: %s: %s", name, end.exc_type.__name__, error, exc_info=trace)

    sys.excepthook = uncaught
    threading.excepthook = uncaught_in_thread


_PORTS, _UP_TO_1024 = (0, 65535), (1, 1024)
RANGES = {
    "port": _PORTS,
    "sampler_port": (1, 65535),
    "num_workers": _UP_TO_1024,
    "max_workers": _UP_TO_1024,
    "max_concurrency": _UP_TO_1024,
    "max_loaders": (1, 1 << 20),
    "metrics_port": _PORTS,
}


@short_traceback
@dataclass(frozen=True)
class ServerOptions:
    """Options of a server, for :func:`glt.distributed.init_server`; ``glt serve`` has a flag for each.

    Args:
        rpc_timeout: Deadline in seconds of start-up and of requests between servers, above 0 and below a day.
        host: Address of the interface to listen on; ``'0.0.0.0'`` for all. Default: for server 0, ``master_addr``; for
            others, this host's address on the way there, so that a job on localhost is not reached from outside.
        port: Port to listen on; 0: one is found. Server 0 listens on ``master_port``.
        sampler_port: Sampling processes listen too, since their batches go straight to the clients: process ``i`` on
            port ``sampler_port + i``, of the same interface. Default: ports are found.
        num_workers: Sampling processes to start with, 1 to 1024.
        max_workers: Most sampling processes, when loaders ask for more. Default: the number of CPUs, or
            ``num_workers`` if that is more.
        max_concurrency: Batches that a sampling process works on at the same time, for all loaders together.
        max_loaders: Loaders that may be open.
        max_buffer_size: Memory that loaders may be promised for batches that wait to be sent, and to remember what
            rows their clients keep, in all: bytes, or text such as ``'8GB'``. Default: half of what is free when the
            server starts.
        read_local: Read partitions of servers of the same host straight from their files.
        cache_memory_budget: Memory of each sampling process for rows of nodes that were asked for at other servers, as
            bytes or text such as ``'1GB'``; 0: none. All loaders share it. See
            :class:`glt.distributed.MpDistSamplingWorkerOptions`.
        seed_dir: Clients may name files below this directory as seeds. Default: they may not.
        log_format: Of what sampling processes write to stderr, ``'text'`` or ``'json'``, which is an object per line.
            They have the level of this process's root logger.
        metrics_port: Port at which the numbers of :func:`glt.distributed.server_stats` are found over HTTP; 0: one is
            found. ``/`` is a page for the browser, ``/stats`` has them as JSON, ``/metrics`` for Prometheus (needs the
            extra ``prometheus``), ``/healthz`` and ``/readyz`` answer probes. Default: they are not published.
        metrics_host: Address of the interface for that. Every process that reaches it reads the numbers; they name
            hosts, and loaders by the groups of clients.
        metrics_auth: Give numbers to those who show the read token only, as ``Authorization: Bearer TOKEN``; with
            ``tls``, over https. Probes and the page itself need none. Needs a token.
        token_file: File with the job's token, which all servers and clients need; see ``glt token``. Clients with the
            read token sample and read; only those with the write token write tensors and call registered functions.
            Default: ``GLT_TOKEN_FILE`` of the environment; without one, all who reach the port are answered.
        tls: Encryption of all connections; see :class:`glt.distributed.TlsOptions`. Default: ``GLT_TLS_CERT`` and its
            like, else none.
        require_auth: Refuse to listen beyond this host without a token. Default: ``GLT_REQUIRE_AUTH``, else a warning.

    Raises:
        TypeError, ValueError: If a value is wrong; names the option.

    Example:
        >>> glt.distributed.ServerOptions(num_workers=2, metrics_port=9100).num_workers
        2
    """

    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_S
    host: str | None = None
    port: int = 0
    sampler_port: int | None = None
    num_workers: int = 1
    max_workers: int | None = None
    max_concurrency: int = 16
    max_loaders: int = 1024
    max_buffer_size: int | str | None = None
    read_local: bool = True
    cache_memory_budget: int | str = DEFAULT_CACHE_BYTES
    seed_dir: str | os.PathLike[str] | None = None
    log_format: str = "text"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_auth: bool = False
    token_file: str | os.PathLike[str] | None = None
    tls: TlsOptions | None = None
    require_auth: bool | None = None

    def __post_init__(self) -> None:
        check_credentials(self.token_file, self.tls, self.require_auth)
        check_flag("metrics_auth", self.metrics_auth)
        if self.metrics_auth and self.metrics_port is None:
            raise ValueError("metrics_auth = True, and metrics_port = None: expected the port of the metrics as well")
        check_transport(None, None, self.rpc_timeout)
        check_text("host", self.host)
        check_text("metrics_host", self.metrics_host)
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None or getattr(ServerOptions, name) is not None:
                object.__setattr__(self, name, check_count(name, value, least, most))
        check_flag("read_local", self.read_local)
        check_one_of("log_format", self.log_format, FORMATS)
        if self.num_workers > self.worker_limit:
            raise ValueError(f"num_workers = {self.num_workers}: expected at most max_workers = {self.worker_limit}")
        if self.sampler_port is not None and self.sampler_port + self.worker_limit > 65536:
            raise ValueError(
                f"sampler_port = {self.sampler_port}: expected at most {65536 - self.worker_limit}, since each of up "
                f"to {self.worker_limit} sampling processes (max_workers) listens on a port of its own"
            )
        if self.max_buffer_size is not None:
            parse_size(self.max_buffer_size, "max_buffer_size")
        parse_budget(self.cache_memory_budget, "cache_memory_budget")
        if self.seed_dir is not None:
            check_path("seed_dir", self.seed_dir, "a directory")
            if not Path(self.seed_dir).is_dir():
                raise ValueError(f"seed_dir = {os.fspath(self.seed_dir)!r} is no directory")

    @property
    def worker_limit(self) -> int:
        return max(self.num_workers, os.cpu_count() or 1) if self.max_workers is None else self.max_workers

    def buffer_bytes(self) -> int:
        """``max_buffer_size`` in bytes, or its default, which is half of the memory that is free now."""
        if self.max_buffer_size is not None:
            return parse_size(self.max_buffer_size, "max_buffer_size")
        return available_memory()[0] // 2
