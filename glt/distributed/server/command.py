"""The command ``glt serve``: a server of a partition, without a script.

Exit status: 0 if all clients had left, or it was stopped and nothing was cancelled by that; 1 after a failure of the
server itself; 2 for wrong flags; 3 if it cannot start: a port is taken, the directory is damaged, server 0 is not
reached; 4 if it was stopped and loaders were cancelled. What it does it says in its log, on stderr; on stdout comes one
line, when it is ready.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any, Final

from glt import _deadlines as deadlines
from glt._checks import parse_size
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.options import DEFAULT_RPC_TIMEOUT_S
from glt.distributed.server.api import get_server, init_server, wait_and_shutdown_server
from glt.distributed.server.log import FORMATS, LEVELS, write_logs
from glt.distributed.server.options import ServerOptions
from glt.distributed.server.server import DistServer
from glt.distributed.wire.connection import printed
from glt.errors import GltError
from glt.partition.format.manifest import Manifest

# The flags of ``glt serve``.


DEFAULT_MASTER_PORT: Final = 29540  # beside torch.distributed's 29500, below the ports that kernels give away

_DESCRIPTION: Final = """\
Runs a server that samples a partition for clients (glt.distributed.init_client), until all of --clients have left, or
until it is stopped. One line on stdout says that it is ready; its log goes to stderr.

SIGTERM or SIGINT (Ctrl-C) stops it: it takes no more clients and loaders, waits --drain-timeout seconds for loaders
that are open, ends, and says which it cancelled. A second signal stops it at once.

Connections are neither encrypted nor authenticated: whoever reaches the port can read the graph and its features, use
the samplers and call registered functions. Nothing that is received is executed. It listens at --master-addr, by
default for this host only; let it listen in networks that you trust, and in no others."""

_EPILOG: Final = """\
exit status:
  0  all clients have left, or it was stopped and nothing was cancelled by that
  1  the server itself failed; the log says how
  2  a flag is wrong
  3  it cannot start: a port is taken, the directory is damaged, server 0 is not reached
  4  it was stopped, and loaders were cancelled

examples:
  one server, for clients of this host:
    glt serve --partition parts
  two, on two hosts, for four clients:
    glt serve --partition parts --rank 0 --servers 2 --clients 4 --master-addr 10.0.0.1
    glt serve --partition parts --rank 1 --servers 2 --clients 4 --master-addr 10.0.0.1"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags, what the command is and how it ends."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add = parser.add_argument
    add("--partition", required=True, type=_directory, metavar="DIR", help="what a partitioner wrote")
    add("--partition-idx", type=_count(0), metavar="I", help="which partition (default: the rank, modulo their number)")
    add(
        "--labels",
        action="append",
        default=[],
        metavar="[TYPE=]FILE",
        help="labels of all nodes, or of those of a type, as .pt or .npy; may be repeated",
    )

    group = parser.add_argument_group("the job")
    group.add_argument("--rank", type=_count(0), default=0, metavar="R", help="this server (default: 0)")
    group.add_argument("--servers", type=_count(1), default=1, metavar="N", help="servers of the job (default: 1)")
    group.add_argument(
        "--clients",
        type=_count(1),
        metavar="C",
        help="clients of the job; it ends when they have left (default: any number, until it is stopped)",
    )

    group = parser.add_argument_group("where it listens")
    group.add_argument(
        "--master-addr",
        default="127.0.0.1",
        metavar="A",
        help="host of server 0, the same for all servers and clients (default: 127.0.0.1)",
    )
    group.add_argument(
        "--master-port",
        type=_count(1, 65535),
        default=DEFAULT_MASTER_PORT,
        metavar="P",
        help=f"port of server 0 (default: {DEFAULT_MASTER_PORT})",
    )
    group.add_argument(
        "--host",
        metavar="H",
        help="address of the interface to listen at, 0.0.0.0 for all (default: server 0: --master-addr; "
        "others: this host's address on the way there)",
    )
    group.add_argument(
        "--port",
        type=_count(0, 65535),
        default=0,
        metavar="P",
        help="port of a server other than 0 (default: one is found)",
    )
    group.add_argument(
        "--timeout",
        dest="rpc_timeout",
        type=_seconds,
        default=DEFAULT_RPC_TIMEOUT_S,
        metavar="S",
        help=f"deadline of start-up and of requests between servers (default: {DEFAULT_RPC_TIMEOUT_S:g})",
    )

    group = parser.add_argument_group("what it may use")
    group.add_argument(
        "--workers",
        dest="num_workers",
        type=_count(1, 1024),
        default=1,
        metavar="N",
        help="sampling processes to start with (default: 1)",
    )
    group.add_argument(
        "--max-workers",
        type=_count(1, 1024),
        metavar="N",
        help="as many at most, when loaders ask for them (default: one per CPU)",
    )
    group.add_argument(
        "--max-concurrency",
        type=_count(1, 1024),
        default=16,
        metavar="N",
        help="batches that each of them works on at a time (default: 16)",
    )
    group.add_argument(
        "--max-loaders",
        type=_count(1, 1 << 20),
        default=1024,
        metavar="N",
        help="loaders that may be open (default: 1024)",
    )
    group.add_argument(
        "--max-buffer-size",
        type=_size,
        metavar="SIZE",
        help="memory for batches that wait to be sent, such as 8GB (default: half of what is free)",
    )
    group.add_argument(
        "--threads", type=_count(1, 1024), default=16, metavar="N", help="requests answered at a time (default: 16)"
    )
    group.add_argument(
        "--seed-dir",
        type=_directory,
        metavar="DIR",
        help="clients may name files below it as seeds (default: they may not)",
    )
    group.add_argument(
        "--no-read-local",
        dest="read_local",
        action="store_false",
        help="ask servers of the same host for rows, rather than read their files",
    )

    group = parser.add_argument_group("seeing and stopping it")
    group.add_argument(
        "--log-format", choices=FORMATS, default="text", help="of the log, and of the line on stdout (default: text)"
    )
    group.add_argument("--log-level", choices=LEVELS, default="info", help="the least that is logged (default: info)")
    group.add_argument(
        "--metrics-port",
        type=_count(0, 65535),
        metavar="P",
        help="publish numbers for Prometheus there, under /metrics; 0: a port is found (default: they "
        "are not published)",
    )
    group.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="H",
        help="address of the interface for that (default: 127.0.0.1)",
    )
    group.add_argument(
        "--drain-timeout",
        type=_seconds,
        default=20.0,
        metavar="S",
        help="seconds that open loaders have when it is stopped (default: 20)",
    )


def label_files(given: Sequence[str]) -> Any:
    """Returns ``--labels`` as :meth:`glt.distributed.DistDataset.load` takes them.

    Raises:
        ValueError: If files with a type are mixed with one without, or a type is named twice.
    """
    by_type: dict[str | None, str] = {}
    for each in given:
        type_, equals, path = each.partition("=")
        name, file = (None, each) if not equals or os.path.exists(each) else (type_, path)
        if name in by_type:
            raise ValueError(
                f"--labels {each}: labels of {'all nodes' if name is None else repr(name)} are given twice"
            )
        by_type[name] = file
    if None in by_type and len(by_type) > 1:
        raise ValueError(f"--labels {by_type[None]}: expected TYPE=FILE for all, or one FILE")
    return by_type.get(None, by_type or None)


def _directory(text: str) -> str:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no directory")
    return text


def _count(least: int, most: int = 1 << 20) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer from {least} to {most}")
        return value

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < deadlines.DAY_S:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, from 0 to a day")
    return value


def _size(text: str) -> int:
    try:
        return parse_size(text, "size")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


__all__ = ["add_arguments", "run"]

_DONE, _FAILED, _CANNOT_START, _CANCELLED = 0, 1, 3, 4  # 2 is argparse's
_TRUST: Final = (
    "connections are neither encrypted nor authenticated: whoever reaches the port can read the graph and its "
    "features, use the samplers and call registered functions; nothing that is received is executed"
)

logger = logging.getLogger(__name__)


class _Stopped(BaseException):
    """A signal came before the server was ready."""


class StopSignals:
    """SIGTERM and SIGINT: the first asks the server to stop, the second to stop at once, a third ends the process.

    Before the server is ready the first one raises :class:`_Stopped`, and the second ends the process; its samplers
    follow it in any case. While this module is being imported, :mod:`glt.cli` does the like.
    """

    _HANDLED = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.is_starting = True
        self.num_received = 0
        self.name = ""
        self._before = {each: signal.signal(each, self._receive) for each in self._HANDLED}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.num_received += 1
        self.name = signal.Signals(number).name
        if self.is_starting or self.num_received > 1:
            for each in self._HANDLED:
                signal.signal(each, signal.SIG_DFL)
        if self.is_starting and self.num_received == 1:
            raise _Stopped

    def restore(self) -> None:
        """Gives the signals back to who had them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Serves until all clients have left or it is stopped, and returns the exit status."""
    write_logs(arguments.log_format, getattr(logging, arguments.log_level.upper()), arguments.rank)
    signals = StopSignals()
    try:
        try:
            server = _start(arguments)
            signals.is_starting = False
        except _Stopped:
            logger.info("stopped by %s before it was ready", signals.name)
            return _DONE
        except (ValueError, TypeError, LookupError, ImportError) as error:
            if isinstance(error, GltError):  # the directory's fault, not the flags'
                return _cannot_start(error)
            parser.error(_one_line(error))
        except (GltError, OSError, MemoryError) as error:
            return _cannot_start(error)
        logger.log(logging.INFO if _is_loopback(server) else logging.WARNING, "%s", _trust(server))
        print(_ready(server, arguments), flush=True)
        return _serve(server, signals, arguments.drain_timeout)
    except Exception as error:
        logger.critical("the server failed: %s", _one_line(error), exc_info=True)
        return _FAILED
    finally:
        wait_and_shutdown_server(0.0)
        signals.restore()


def _start(arguments: argparse.Namespace) -> DistServer:
    num_parts = Manifest.read(Path(arguments.partition)).num_parts
    index = arguments.rank % num_parts if arguments.partition_idx is None else arguments.partition_idx
    if index >= num_parts:
        raise ValueError(f"--partition-idx {index}: {arguments.partition} has {num_parts} partitions, from 0")
    data = DistDataset().load(arguments.partition, index, whole_node_label_file=label_files(arguments.labels))
    init_server(
        arguments.servers,
        arguments.clients,
        arguments.rank,
        data,
        arguments.master_addr,
        arguments.master_port,
        arguments.threads,
        options=ServerOptions(**{field.name: getattr(arguments, field.name) for field in fields(ServerOptions)}),
    )
    server = get_server()
    assert server is not None
    return server


def _serve(server: DistServer, signals: StopSignals, drain_s: float) -> int:
    """Waits for the end of the job, or for a signal and then for the loaders that are open; returns the status."""
    while not signals.num_received:
        if server.wait_until_done(deadlines.POLL_S):
            logger.info("all clients have left: done")
            return _DONE
    num_open = len(server.drain(0.0))
    logger.info(
        "%s: no more clients and loaders are taken; %d loaders are open, and have %g s", signals.name, num_open, drain_s
    )
    deadline = time.monotonic() + drain_s
    while (cancelled := server.drain(deadlines.POLL_S)) and signals.num_received < 2 and time.monotonic() < deadline:
        pass
    if not cancelled:
        logger.info("stopped; nothing was cancelled")
        return _DONE
    why = "it was told twice to stop" if signals.num_received > 1 else f"{drain_s:g} s are over"
    logger.warning("stopped, since %s; %d loaders were cancelled: %s", why, len(cancelled), "; ".join(cancelled))
    return _CANCELLED


def _ready(server: DistServer, arguments: argparse.Namespace) -> str:
    address, entry = printed(*server.address), server.entry
    metrics = None if server.metrics is None else f"http://{printed(*server.metrics.address)}/metrics"
    if arguments.log_format == "json":
        told: dict[str, Any] = {
            "event": "ready",
            "server": entry.rank,
            "num_servers": entry.num_servers,
            "address": server.address[0],
            "port": server.address[1],
            "listens_at": server.listens_at,
            "partition": entry.partition_idx,
            "num_partitions": server.dataset.num_partitions,
            "graph_dir": entry.graph_dir,
            "pid": entry.pid,
            "metrics": metrics,
        }
        return json.dumps(told)
    published = f", metrics at {metrics}" if metrics else ""
    return (
        f"glt serve: server {entry.rank} of {entry.num_servers} is ready at {address}: partition "
        f"{entry.partition_idx} of {server.dataset.num_partitions} of {entry.graph_dir}, pid {entry.pid}{published}"
    )


def _is_loopback(server: DistServer) -> bool:
    return ipaddress.ip_address(server.listens_at).is_loopback


def _trust(server: DistServer) -> str:
    at = printed(server.listens_at, server.address[1])
    if _is_loopback(server):
        return f"listening at {at}, for this host only; {_TRUST}"
    return f"listening at {at}, which other hosts reach; {_TRUST}. Keep the port inside a network that you trust"


def _cannot_start(error: BaseException) -> int:
    logger.error("cannot start: %s", _one_line(error))
    logger.debug("where that came from", exc_info=error)
    return _CANNOT_START


def _one_line(error: BaseException) -> str:
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__
