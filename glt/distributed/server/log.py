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
    """Formats a record with who wrote it.

    As JSON it is one object on one line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, ``server`` (its
    rank), ``worker`` (place of a sampling process, null in the server itself), ``pid``, and ``traceback`` where there
    is one.

    Args:
        format: ``'text'`` or ``'json'``.
        server, worker: Who writes.
    """

    def __init__(self, format: str, server: int, worker: int | None) -> None:
        super().__init__()
        self.is_json, self.server, self.worker = format == "json", server, worker

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        time = time.replace("+00:00", "Z")
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        if self.is_json:
            line: dict[str, Any] = {
                "time": time,
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
                "server": self.server,
                "worker": self.worker,
                "pid": os.getpid(),
            }
            if trace:
                line["traceback"] = trace
            return json.dumps(line)
        who = f"server {self.server}" + ("" if self.worker is None else f", worker {self.worker}")
        text = f"{time} {record.levelname} {who}, pid {os.getpid()}: {record.name}: {record.getMessage()}"
        return f"{text}\n{trace}" if trace else text


def check_format(format: Any) -> str:
    """Raises ValueError unless ``format`` is one of ``FORMATS``."""
    if format not in FORMATS:
        raise ValueError(f"log_format = {format!r}: expected one of {FORMATS}")
    return str(format)


def write_logs(format: str, level: int, server: int, worker: int | None = None) -> None:
    """Has this process write its log to stderr, warnings and exceptions that nobody caught included.

    It is for processes that are a server, or one of its samplers, and nothing else: whatever was set up before is
    replaced.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormat(format, server, worker))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        logger.critical("nobody caught %s: %s", kind.__name__, error, exc_info=(kind, error, trace))

    def uncaught_in_thread(told: threading.ExceptHookArgs) -> None:
        name = told.thread.name if told.thread is not None else "?"
        error = told.exc_value or told.exc_type()
        logger.critical(
            "thread %s ended: %s: %s",
            name,
            told.exc_type.__name__,
            error,
            exc_info=(told.exc_type, error, told.exc_traceback),
        )

    sys.excepthook = uncaught
    threading.excepthook = uncaught_in_thread
