"""How a server works: the one list of what `init_server` and `glt serve` may be told beside the job itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glt._checks import available_memory, check_count, check_flag, check_text, parse_size
from glt.distributed.options import DEFAULT_RPC_TIMEOUT_S, check_transport
from glt.distributed.server.log import check_format


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

    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_S
    host: str | None = None
    port: int = 0
    num_workers: int = 1
    max_workers: int | None = None
    max_concurrency: int = 16
    max_loaders: int = 1024
    max_buffer_size: int | str | None = None
    read_local: bool = True
    seed_dir: str | os.PathLike[str] | None = None
    log_format: str = "text"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        check_transport(None, None, self.rpc_timeout)
        check_text("host", self.host)
        check_text("metrics_host", self.metrics_host)
        check_count("num_workers", self.num_workers, 1, 1024)
        check_count("max_workers", self.worker_limit, 1, 1024)
        check_count("max_concurrency", self.max_concurrency, 1, 1024)
        check_count("max_loaders", self.max_loaders, 1, 1 << 20)
        check_count("port", self.port, 0, 65535)
        check_flag("read_local", self.read_local)
        check_format(self.log_format)
        if self.metrics_port is not None:
            check_count("metrics_port", self.metrics_port, 0, 65535)
        if self.num_workers > self.worker_limit:
            raise ValueError(f"num_workers = {self.num_workers}: expected at most max_workers = {self.worker_limit}")
        if self.max_buffer_size is not None:
            parse_size(self.max_buffer_size, "max_buffer_size")
        if self.seed_dir is not None:
            _check_directory("seed_dir", self.seed_dir)

    @property
    def worker_limit(self) -> int:
        """``max_workers``, or its default."""
        return max(self.num_workers, os.cpu_count() or 1) if self.max_workers is None else self.max_workers

    def buffer_bytes(self) -> int:
        """``max_buffer_size`` in bytes, or its default, which is half of the memory that is free now."""
        if self.max_buffer_size is not None:
            return parse_size(self.max_buffer_size, "max_buffer_size")
        return available_memory()[0] // 2


def _check_directory(name: str, value: Any) -> None:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} = {value!r}: expected a path")
    if not Path(value).is_dir():
        raise ValueError(f"{name} = {os.fspath(value)!r} is no directory")
