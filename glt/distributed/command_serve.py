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
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from glt.distributed.dist_dataset import DistDataset
from glt.distributed.serve_options import add_arguments, label_files
from glt.distributed.server_client import get_server, init_server, wait_and_shutdown_server
from glt.distributed.service.address import printed
from glt.distributed.service.log_format import write_logs
from glt.distributed.service.server import DistServer
from glt.errors import GltError
from glt.partition.format.manifest import Manifest

__all__ = ["add_arguments", "run"]

_DONE, _FAILED, _CANNOT_START, _CANCELLED = 0, 1, 3, 4  # 2 is argparse's
_POLL_S = 0.2
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
        arguments.servers, arguments.clients, arguments.rank, data, arguments.master_addr, arguments.master_port,
        arguments.threads, rpc_timeout=arguments.timeout, host=arguments.host, port=arguments.port,
        num_workers=arguments.workers, max_workers=arguments.max_workers, max_concurrency=arguments.max_concurrency,
        max_loaders=arguments.max_loaders, max_buffer_size=arguments.max_buffer_size, read_local=arguments.read_local,
        seed_dir=arguments.seed_dir, log_format=arguments.log_format, metrics_port=arguments.metrics_port,
        metrics_host=arguments.metrics_host,
    )  # fmt: skip
    server = get_server()
    assert server is not None
    return server


def _serve(server: DistServer, signals: StopSignals, drain_s: float) -> int:
    """Waits for the end of the job, or for a signal and then for the loaders that are open; returns the status."""
    while not signals.num_received:
        if server.wait_until_done(_POLL_S):
            logger.info("all clients have left: done")
            return _DONE
    num_open = len(server.drain(0.0))
    logger.info(
        "%s: no more clients and loaders are taken; %d loaders are open, and have %g s", signals.name, num_open, drain_s
    )
    deadline = time.monotonic() + drain_s
    while (cancelled := server.drain(_POLL_S)) and signals.num_received < 2 and time.monotonic() < deadline:
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
            "event": "ready", "server": entry.rank, "num_servers": entry.num_servers, "address": server.address[0],
            "port": server.address[1], "listens_at": server.listens_at, "partition": entry.partition_idx,
            "num_partitions": server.dataset.num_partitions, "graph_dir": entry.graph_dir, "pid": entry.pid,
            "metrics": metrics,
        }  # fmt: skip
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
