"""The command ``glt serve``: a server of a partition, without a script. Its log goes to stderr; one line on stdout says
that it is ready."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from glt import _deadlines as deadlines
from glt._checks import parse_size
from glt._urls import is_url
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.options import parse_budget
from glt.distributed.server.api import get_server, init_server, wait_and_shutdown_server
from glt.distributed.server.options import FORMATS, LEVELS, RANGES, ServerOptions, write_logs
from glt.distributed.server.server import DistServer
from glt.distributed.wire.addresses import is_loopback, printed
from glt.distributed.wire.credentials import TlsOptions, current_credentials
from glt.errors import GltError
from glt.partition.format.manifest import Manifest
from glt.partition.format.remote import local_directory

logger = logging.getLogger(__name__)

DEFAULT_MASTER_PORT: Final = 29540  # beside torch.distributed's 29500, below the ports that kernels give away
_DONE, _FAILED, _CANNOT_START, _CANCELLED = 0, 1, 3, 4  # 2 is argparse's

_DESCRIPTION: Final = """\
Runs a server that samples a partition for clients (glt.distributed.init_client), until all of --clients have left, or
until it is stopped. One line on stdout says that it is ready; its log goes to stderr.

SIGTERM or SIGINT (Ctrl-C) stops it: it takes no more clients and loaders, waits --drain-timeout seconds for loaders
that are open, ends, and says which it cancelled. A second signal stops it at once.

It listens at --master-addr, by default for this host only. With --token-file it answers those who have the token, with
--tls-cert and --tls-key connections are encrypted. Without a token, who reaches the port can read the graph and its
features, use the samplers, write tensors and call registered functions: then let it listen in networks that you trust,
and in no others. Nothing that is received is executed. docs/guides/security.md has more."""
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


# -- flags ---------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags: those of the job, and one for each field of :class:`ServerOptions`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    text = "what a partitioner wrote, or its URL (s3://...): what the partition needs is copied to $GLT_CACHE"
    _add(parser, "--partition", text, required=True, type=_partitions, metavar="DIR")
    text = "which partition (default: the rank, modulo their number)"
    _add(parser, "--partition-idx", text, type=_count(0), metavar="I")
    text = "labels of all nodes, or of those of a type, as .pt or .npy; may be repeated"
    parser.add_argument("--labels", action="append", default=[], metavar="[TYPE=]FILE", help=text)

    group = parser.add_argument_group("the job")
    _add(group, "--rank", "this server", 0, type=_count(0), metavar="R")
    _add(group, "--servers", "servers of the job", 1, type=_count(1), metavar="N")
    text = "clients of the job; it ends when they have left (default: any number, until it is stopped)"
    _add(group, "--clients", text, type=_count(1), metavar="C")

    group = parser.add_argument_group("where it listens")
    _add(group, "--master-addr", "host of server 0, the same for all servers and clients", "127.0.0.1", metavar="A")
    _add(group, "--master-port", "port of server 0", DEFAULT_MASTER_PORT, type=_count(1, 65535), metavar="P")
    text = "deadline of start-up and of requests between servers"
    _add_option(group, "rpc_timeout", text, "--timeout", type=_seconds, metavar="S")
    text = (
        "address of the interface to listen at, 0.0.0.0 for all (default: server 0: --master-addr; others: this host's "
        "address on the way there)"
    )
    _add_option(group, "host", text, metavar="H")
    _add_option(group, "port", "port of a server other than 0 (default: one is found)", metavar="P")
    text = "first of the ports of its sampling processes, which take one each (default: they are found)"
    _add_option(group, "sampler_port", text, metavar="P")

    group = parser.add_argument_group("who may speak to it (default of each: the environment's GLT_TOKEN_FILE ...)")
    text = "file with the job's token, see glt token; those who do not have it are refused"
    _add_option(group, "token_file", text, metavar="FILE")
    _add(group, "--tls-cert", "certificate chain of this server, PEM; connections are encrypted", metavar="FILE")
    _add(group, "--tls-key", "its private key", metavar="FILE")
    text = "certificates that others' must be signed by (default: those that the system trusts)"
    _add(group, "--tls-ca", text, metavar="FILE")
    text = "those who connect must show a certificate too"
    group.add_argument("--tls-mutual", action="store_true", default=None, help=text)
    text = "name that certificates of other servers must be for (default: the address that is connected to)"
    _add(group, "--tls-server-name", text, metavar="NAME")
    text = "refuse to listen beyond this host without a token"
    group.add_argument("--require-auth", action="store_true", default=None, help=text)

    group = parser.add_argument_group("what it may use")
    _add_option(group, "num_workers", "sampling processes to start with", "--workers", metavar="N")
    _add_option(group, "max_workers", "as many at most, when loaders ask for them (default: one per CPU)", metavar="N")
    _add_option(group, "max_concurrency", "batches that each of them works on at a time", metavar="N")
    _add_option(group, "max_loaders", "loaders that may be open", metavar="N")
    text = "memory for batches that wait to be sent, such as 8GB (default: half of what is free)"
    _add_option(group, "max_buffer_size", text, type=_size, metavar="SIZE")
    text = "features do not fit in memory: what they may take, such as 8GB; rows beyond are read from disk"
    _add(group, "--feature-memory", text, type=_room, metavar="SIZE")
    text = "memory of each sampling process for rows of other servers, 0: none"
    _add_option(group, "cache_memory_budget", text, type=_budget, metavar="SIZE")
    text = "ask servers of the same host for rows, rather than read their files"
    group.add_argument("--no-read-local", dest="read_local", action="store_false", help=text)
    text = "clients may name files below it as seeds (default: they may not)"
    _add_option(group, "seed_dir", text, type=_directory, metavar="DIR")
    _add(group, "--threads", "requests answered at a time", 16, type=_count(1, 1024), metavar="N")

    group = parser.add_argument_group("seeing and stopping it")
    _add_option(group, "log_format", "of the log, and of the line on stdout", choices=FORMATS)
    text = (
        "publish numbers there: a page for the browser, /metrics for Prometheus, /stats as JSON, /healthz and /readyz "
        "for probes; 0: a port is found (default: they are not published)"
    )
    _add_option(group, "metrics_port", text, metavar="P")
    _add_option(group, "metrics_host", "address of the interface for that", metavar="H")
    text = (
        "give numbers to those who show the read token only, as a bearer token; with --tls-cert over https; probes "
        "need no token"
    )
    group.add_argument("--metrics-auth", action="store_true", help=text)
    _add(group, "--log-level", "the least that is logged", "info", choices=LEVELS)
    text = "seconds that open loaders have when it is stopped"
    _add(group, "--drain-timeout", text, 20.0, type=_seconds, metavar="S")


def _add(group: argparse._ActionsContainer, flag: str, help: str, default: Any = None, **more: Any) -> None:
    if default is not None and "(default" not in help:
        help = f"{help} (default: {default:g})" if isinstance(default, float) else f"{help} (default: {default})"
    group.add_argument(flag, help=help, default=default, **more)


def _add_option(group: argparse._ActionsContainer, name: str, help: str, flag: str | None = None, **more: Any) -> None:
    """Adds the flag of a field of :class:`ServerOptions`, by default of the same name."""
    if name in RANGES:
        more["type"] = _count(*RANGES[name])
    _add(group, flag or f"--{name.replace('_', '-')}", help, getattr(ServerOptions, name), dest=name, **more)


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
            of = "all nodes" if name is None else repr(name)
            raise ValueError(f"--labels {each}: labels of {of} are given twice")
        by_type[name] = file
    if None in by_type and len(by_type) > 1:
        raise ValueError(f"--labels {by_type[None]}: expected TYPE=FILE for all, or one FILE")
    return by_type.get(None, by_type or None)


def _partitions(text: str) -> str:
    return text if is_url(text) else _directory(text)


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


def _size(text: str, parse: Callable[[str, str], int] = parse_size) -> int:
    try:
        return parse(text, "size")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _room(text: str) -> int:
    return _size(text, partial(parse_size, least=0))


def _budget(text: str) -> int:
    return _size(text, parse_budget)


# -- running -------------------------------------------------------------------------------------------------------


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
        for number, handler in self._before.items():
            signal.signal(number, handler)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    write_logs(arguments.log_format, getattr(logging, arguments.log_level.upper()), arguments.rank)
    signals = StopSignals()
    try:
        try:
            server = _start(arguments)
            signals.is_starting = False
        except _Stopped:
            logger.info("stopped by %s before it was ready", signals.name)
            return _DONE
        except (GltError, OSError, MemoryError) as error:  # first: some of GltError are ValueErrors too
            logger.error("cannot start: %s", _one_line(error))
            logger.debug("where that came from", exc_info=error)
            return _CANNOT_START
        except (ValueError, TypeError, LookupError, ImportError) as error:
            parser.error(_one_line(error))
        _log_trust(server)
        print(_ready(server, arguments.log_format), flush=True)
        return _serve(server, signals, arguments.drain_timeout)
    except Exception as error:
        logger.critical("the server failed: %s", _one_line(error), exc_info=True)
        return _FAILED
    finally:
        wait_and_shutdown_server(0.0)
        signals.restore()


def _start(arguments: argparse.Namespace) -> DistServer:
    num_parts = Manifest.read(local_directory(arguments.partition, None)).num_parts
    if not 0 <= arguments.rank < arguments.servers:
        raise ValueError(f"--rank {arguments.rank}: expected 0 to {arguments.servers - 1}, as --servers says")
    index = arguments.rank % num_parts if arguments.partition_idx is None else arguments.partition_idx
    if index >= num_parts:
        raise ValueError(f"--partition-idx {index}: {arguments.partition} has {num_parts} partitions, from 0")
    given = {option.name: getattr(arguments, option.name) for option in fields(ServerOptions) if option.name != "tls"}
    labels = label_files(arguments.labels)
    dataset = DistDataset().load(
        arguments.partition, index, feature_memory=arguments.feature_memory, whole_node_label_file=labels
    )
    init_server(
        arguments.servers,
        arguments.clients,
        arguments.rank,
        dataset,
        arguments.master_addr,
        arguments.master_port,
        arguments.threads,
        options=ServerOptions(**given, tls=_tls(arguments)),
    )
    server = get_server()
    assert server is not None
    return server


def _tls(arguments: argparse.Namespace) -> TlsOptions | None:
    """What the flags say, and the environment where they do not; None: the environment alone."""
    flags = {field.name: getattr(arguments, f"tls_{field.name}") for field in fields(TlsOptions)}
    given = {name: value for name, value in flags.items() if value is not None}
    told = current_credentials().tls
    return TlsOptions(**(asdict(told) if told else {}) | given) if given else None


def _serve(server: DistServer, signals: StopSignals, drain_s: float) -> int:
    while not signals.num_received:
        if server.wait_until_done(deadlines.POLL_S):
            logger.info("all clients have left: done")
            return _DONE
    text = "%s: no more clients and loaders are taken; %d loaders are open, and have %g s"
    logger.info(text, signals.name, len(server.drain(0.0)), drain_s)
    deadline = time.monotonic() + drain_s
    while (cancelled := server.drain(deadlines.POLL_S)) and signals.num_received < 2 and time.monotonic() < deadline:
        pass
    if not cancelled:
        logger.info("stopped; nothing was cancelled")
        return _DONE
    why = "it was told twice to stop" if signals.num_received > 1 else f"{drain_s:g} s are over"
    logger.warning("stopped, since %s; %d loaders were cancelled: %s", why, len(cancelled), "; ".join(cancelled))
    return _CANCELLED


def _ready(server: DistServer, log_format: str) -> str:
    entry, num_parts = server.entry, server.dataset.num_partitions
    page = None if server.metrics is None else server.metrics.url
    metrics = page and f"{page}metrics"
    if log_format == "json":
        event = {"event": "ready", "server": entry.rank, "num_servers": entry.num_servers, "address": entry.address}
        event |= {"port": entry.port, "listens_at": server.listener.listens_at, "partition": entry.partition_idx}
        event |= {"num_partitions": num_parts, "graph_dir": entry.graph_dir, "pid": entry.pid}
        event |= {"metrics": metrics, "page": page}
        return json.dumps(event)
    return (
        f"glt serve: server {entry.rank} of {entry.num_servers} is ready at {printed(entry.address, entry.port)}: "
        f"partition {entry.partition_idx} of {num_parts} of {entry.graph_dir}, pid {entry.pid}"
        + (f", page at {page}, metrics at {metrics}" if page else "")
    )


def _log_trust(server: DistServer) -> None:
    """Says who is answered. That other hosts reach it and no token is asked for, the listener has said."""
    at, credentials = printed(server.listener.listens_at, server.entry.port), current_credentials()
    reach = "for this host only" if is_loopback(server.listener.listens_at) else "which other hosts reach"
    who = "all who reach it are answered" if credentials.token_file is None else "those with the token are answered"
    how = "not encrypted" if credentials.tls is None else "mutual TLS" if credentials.tls.mutual else "TLS"
    logger.info("listening at %s, %s; %s; %s", at, reach, who, how)


def _one_line(error: BaseException) -> str:
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__
