"""Options of a server, one list for ``init_server`` and ``glt serve``, and the format of its log."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from glt._checks import available_memory, check_count, check_flag, check_one_of, check_text, parse_size
from glt.distributed.options import DEFAULT_RPC_TIMEOUT_S, check_transport

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


def check_format(format: Any) -> None:
    check_one_of("log_format", format, FORMATS)


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


_LISTENING, _LIMITS, _SEEING = "where it listens", "what it may use", "seeing and stopping it"
_PORTS, _1024 = (0, 65535), (1, 1024)

# Help of the flags that does not fit beside them.
_TIMEOUT = "deadline of start-up and of requests between servers"
_HOST = (
    "address of the interface to listen at, 0.0.0.0 for all (default: server 0: --master-addr; others: this host's "
    "address on the way there)"
)
_PORT = "port of a server other than 0 (default: one is found)"
_MAX_WORKERS = "as many at most, when loaders ask for them (default: one per CPU)"
_CONCURRENCY = "batches that each of them works on at a time"
_BUFFER = "memory for batches that wait to be sent, such as 8GB (default: half of what is free)"
_NO_READ_LOCAL = "ask servers of the same host for rows, rather than read their files"
_SEED_DIR = "clients may name files below it as seeds (default: they may not)"
_METRICS_PORT = (
    "publish numbers for Prometheus there, under /metrics; 0: a port is found (default: they are not published)"
)


def _flag(flag: str, group: str, help: str, **more: Any) -> dict[str, Any]:
    """What ``glt serve`` needs to know of a field; of ``more``, ``range`` is that of an integer, ``type`` what a text
    is read as."""
    return {"flag": flag, "group": group, "help": help, **more}


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server, for :func:`glt.distributed.init_server`; ``glt serve`` has a flag for each.

    Args:
        rpc_timeout: Deadline in seconds of start-up and of requests between servers, above 0 and below a day.
        host: Address of the interface to listen on; ``'0.0.0.0'`` for all. Default: for server 0, ``master_addr``; for
            others, this host's address on the way there, so that a job on localhost is not reached from outside.
        port: Port to listen on; 0: one is found. Server 0 listens on ``master_port``.
        num_workers: Sampling processes to start with, 1 to 1024.
        max_workers: Most sampling processes, when loaders ask for more. Default: the number of CPUs, or
            ``num_workers`` if that is more.
        max_concurrency: Batches that a sampling process works on at the same time, for all loaders together.
        max_loaders: Loaders that may be open.
        max_buffer_size: Memory that loaders may be promised for batches that wait to be sent, in all: bytes, or text
            such as ``'8GB'``. Default: half of what is free when the server starts.
        read_local: Read partitions of servers of the same host straight from their files.
        seed_dir: Clients may name files below this directory as seeds. Default: they may not.
        log_format: Of what sampling processes write to stderr, ``'text'`` or ``'json'``, which is an object per line.
            They have the level of this process's root logger.
        metrics_port: Port at which Prometheus finds the numbers of :func:`glt.distributed.server_stats`, under
            ``/metrics``; 0: one is found. Needs the extra ``prometheus``. Default: they are not published.
        metrics_host: Address of the interface for that. Every process that reaches it reads the numbers; they name
            hosts, and loaders by the groups of clients.

    Raises:
        TypeError, ValueError: If a value is wrong; names the option.
    """

    rpc_timeout: float = field(
        default=DEFAULT_RPC_TIMEOUT_S, metadata=_flag("--timeout", _LISTENING, _TIMEOUT, metavar="S", type="seconds")
    )
    host: str | None = field(default=None, metadata=_flag("--host", _LISTENING, _HOST, metavar="H"))
    port: int = field(default=0, metadata=_flag("--port", _LISTENING, _PORT, metavar="P", range=_PORTS))
    num_workers: int = field(
        default=1, metadata=_flag("--workers", _LIMITS, "sampling processes to start with", metavar="N", range=_1024)
    )
    max_workers: int | None = field(
        default=None, metadata=_flag("--max-workers", _LIMITS, _MAX_WORKERS, metavar="N", range=_1024)
    )
    max_concurrency: int = field(
        default=16, metadata=_flag("--max-concurrency", _LIMITS, _CONCURRENCY, metavar="N", range=_1024)
    )
    max_loaders: int = field(
        default=1024,
        metadata=_flag("--max-loaders", _LIMITS, "loaders that may be open", metavar="N", range=(1, 1 << 20)),
    )
    max_buffer_size: int | str | None = field(
        default=None, metadata=_flag("--max-buffer-size", _LIMITS, _BUFFER, metavar="SIZE", type="size")
    )
    read_local: bool = field(default=True, metadata=_flag("--no-read-local", _LIMITS, _NO_READ_LOCAL))
    seed_dir: str | os.PathLike[str] | None = field(
        default=None, metadata=_flag("--seed-dir", _LIMITS, _SEED_DIR, metavar="DIR", type="directory")
    )
    log_format: str = field(
        default="text",
        metadata=_flag("--log-format", _SEEING, "of the log, and of the line on stdout", choices=FORMATS),
    )
    metrics_port: int | None = field(
        default=None, metadata=_flag("--metrics-port", _SEEING, _METRICS_PORT, metavar="P", range=_PORTS)
    )
    metrics_host: str = field(
        default="127.0.0.1", metadata=_flag("--metrics-host", _SEEING, "address of the interface for that", metavar="H")
    )

    def __post_init__(self) -> None:
        check_transport(None, None, self.rpc_timeout)
        check_text("host", self.host)
        check_text("metrics_host", self.metrics_host)
        for option in fields(self):
            value = getattr(self, option.name)
            if "range" in option.metadata and not (value is None and option.default is None):
                check_count(option.name, value, *option.metadata["range"])
        check_flag("read_local", self.read_local)
        check_format(self.log_format)
        if self.num_workers > self.worker_limit:
            raise ValueError(f"num_workers = {self.num_workers}: expected at most max_workers = {self.worker_limit}")
        if self.max_buffer_size is not None:
            parse_size(self.max_buffer_size, "max_buffer_size")
        if self.seed_dir is not None:
            if not isinstance(self.seed_dir, str | os.PathLike):
                raise TypeError(f"seed_dir = {self.seed_dir!r}: expected a path")
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
