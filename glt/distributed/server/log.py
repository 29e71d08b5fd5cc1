"""Lines of a server's log, for people or for programs: the same for the server and its sampling processes."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error", "critical")

logger = logging.getLogger(__name__)


class LineFormat(logging.Formatter):
    """Formats a record with the process that wrote it: server, sampling process (None: the server itself) and pid.

    ``'json'`` is one object on one line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, ``server``,
    ``worker``, ``pid``, and ``traceback`` where there is one.
    """

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
    """Raises ValueError unless ``format`` is one of ``FORMATS``."""
    if format not in FORMATS:
        raise ValueError(f"log_format = {format!r}: expected one of {FORMATS}")


def write_logs(format: str, level: int, server: int, worker: int | None = None) -> None:
    """Has this process, a server or one of its samplers, write its log to stderr, warnings and uncaught exceptions
    included. Earlier settings of logging are replaced."""
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
