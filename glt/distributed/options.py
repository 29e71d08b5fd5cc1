"""Where and how a distributed loader samples."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

import torch

from glt import _deadlines as deadlines
from glt._checks import AUTO, check_count, check_flag, check_text, parse_size, warn_no_effect
from glt._tracebacks import short_traceback
from glt.data.device import HOST, accelerator_of, missing_for_cuda
from glt.distributed.wire.credentials import TlsOptions, check_credentials
from glt.distributed.wire.transport import TRANSPORTS

# Where sampling processes sample: the option ``worker_devices``.


CPU = "cpu"


def checked_devices(worker_devices: Any, num_workers: int) -> list[str] | None:
    """Returns a device per process of this host, as text; None where nothing was said. GPUs that cannot be used here
    are errors that say what is missing."""
    named = named_devices(worker_devices, num_workers)
    if named is None:
        return None
    places = [accelerator_of(device, f"worker_devices[{i}]") for i, device in enumerate(named)]
    return [CPU if place is None else str(place) for place in places]


def named_devices(worker_devices: Any, num_workers: int) -> list[str] | None:
    """As :func:`checked_devices`, of processes elsewhere: whether there are such GPUs is known there."""
    if worker_devices is None:
        return None
    single = isinstance(worker_devices, torch.device | str | int)
    if not single and not isinstance(worker_devices, Sequence):
        raise TypeError(f"worker_devices = {worker_devices!r}: expected a device, such as 'cpu', or a list of them")
    given: list[Any] = [worker_devices] if single else list(worker_devices)
    if not 1 <= len(given) <= num_workers:
        raise ValueError(
            f"worker_devices has {len(given)} devices: expected one per worker ({num_workers}), or fewer, for turns"
        )
    named = [_text(device, f"worker_devices[{i}]") for i, device in enumerate(given)]
    return [named[i % len(named)] for i in range(num_workers)]


def _text(device: Any, name: str) -> str:
    if isinstance(device, bool) or not isinstance(device, torch.device | str | int):
        raise TypeError(f"{name} = {device!r}: expected a device, such as 'cpu' or 'cuda:0'")
    if device == HOST:
        return HOST
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:  # no device is called that, or this build has none of the kind
        raise ValueError(f"{name} = {device!r} is no device: expected 'cpu', or a GPU such as 'cuda:0'") from error
    if found.type not in (CPU, "cuda"):
        raise ValueError(f"{name} = {device!r}: expected 'cpu', or a GPU such as 'cuda:0'")
    return str(found) if found.type == "cuda" else CPU


DEFAULT_RPC_TIMEOUT_S = deadlines.DEFAULT_RPC_S
DEFAULT_CACHE_BYTES = 64 << 20
_MAX_RPC_THREADS = 16
_CHANNEL_BYTES_PER_WORKER = 256 << 20


def check_num_workers(num_workers: Any, worker_devices: Any) -> Any:
    """A number, or ``'auto'``, for which there are no devices by worker."""
    if num_workers != AUTO:
        if isinstance(num_workers, str):
            raise ValueError(f"num_workers = {num_workers!r}: expected a number of processes, or 'auto'")
        return check_count("num_workers", num_workers, 1, 1024)
    if worker_devices is not None:
        raise ValueError(
            f"num_workers = 'auto' and worker_devices = {worker_devices!r}: it is measured on CPUs; give a number of "
            "workers, or leave worker_devices out"
        )
    return num_workers


def parse_budget(size: Any, name: str) -> int:
    """As :func:`parse_size`, but 0 stands for none."""
    return parse_size(size, name, least=0)


def check_transport(master_port: Any, num_rpc_threads: Any, rpc_timeout: Any) -> int | None:
    """Checks the options that all kinds of transport have; returns the port as a number."""
    if master_port is not None:
        if isinstance(master_port, str) and master_port.isdigit():
            master_port = int(master_port)
        master_port = check_count("master_port", master_port, 1, 65535)
    if num_rpc_threads is not None:
        check_count("num_rpc_threads", num_rpc_threads, 1, 1024)
    if isinstance(rpc_timeout, bool) or not isinstance(rpc_timeout, int | float):
        raise TypeError(f"rpc_timeout = {rpc_timeout!r}: expected seconds")
    if not 0 < rpc_timeout < 86400:
        raise ValueError(f"rpc_timeout = {rpc_timeout}: expected seconds, above 0 and below a day")
    return master_port


@dataclass
class _WorkerOptions:
    """What trainers' samplers share; see the classes below."""

    master_addr: str | None = None
    master_port: int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_S
    worker_concurrency: int = 4
    read_local: bool = True
    cache_memory_budget: int | str = field(default=DEFAULT_CACHE_BYTES, kw_only=True)
    gather_window: int = field(default=1, kw_only=True)
    transport: str | None = field(default=None, kw_only=True)
    token_file: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    tls: TlsOptions | None = field(default=None, kw_only=True)
    require_auth: bool | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_credentials(self.token_file, self.tls, self.require_auth)
        check_text("master_addr", self.master_addr)
        check_text("transport", self.transport)
        if self.transport is not None and self.transport not in TRANSPORTS:
            raise ValueError(f"transport = {self.transport!r}: expected one of {list(TRANSPORTS)}, or None")
        self.master_port = check_transport(self.master_port, self.num_rpc_threads, self.rpc_timeout)
        self.worker_concurrency = check_count("worker_concurrency", self.worker_concurrency, 1, 1024)
        check_flag("read_local", self.read_local)
        self.gather_window = check_count("gather_window", self.gather_window, 1, 1024)
        self.cache_bytes: int = parse_budget(self.cache_memory_budget, "cache_memory_budget")

    def rpc_threads(self, num_partitions: int) -> int:
        return int(self.num_rpc_threads or min(_MAX_RPC_THREADS, max(2, num_partitions)))


@short_traceback
@dataclass
class CollocatedDistSamplingWorkerOptions(_WorkerOptions):
    """Samples inside the trainer's process: ahead of it, on threads in the background. Native calls release the GIL.

    Args:
        master_addr: Host name or address of the trainer of rank 0, as the others reach it. Default: ``MASTER_ADDR``
            of the environment, else localhost.
        master_port: A free port on that host; loaders of one job may share it. Default: one is found and made known
            through ``torch.distributed``, which must then be initialised before the loader is created.
        num_rpc_threads: Threads that answer other trainers' requests, 1 to 1024. Default: one per partition, 2 to 16.
        rpc_timeout: Deadline in seconds of every request and of start-up, above 0 and below a day. With
            ``transport='rpc'`` a request may wait for the call before it, and so for twice that.
        worker_concurrency: Batches sampled at the same time, and batches that wait for the trainer; 1 to 1024 each.
        read_local: Read the partitions of trainers on the same host straight from their mapped files, which the
            processes of a host share, instead of asking those trainers' samplers.
        cache_memory_budget: Memory of each sampling process for rows of nodes that were asked for at partitions
            elsewhere, as bytes or text such as ``'1GB'``; 0: none. Those that batches ask for the most stay, and need
            not be asked for again; batches are the same. It is taken as rows come, and not at all where all partitions
            are read here, or for more rows than there are elsewhere. Beside it there is the cache that the partition
            was given, if it was, which is looked into first.
        gather_window: Consecutive batches of a sampler, 1 to 1024, that ask partitions elsewhere for each row of a node
            or edge once: the first that needs it asks, at once, and the others read its answer; batches are the same.
            Answers stay in memory until the last of these batches is made: the rows that are elsewhere of so many
            batches, and of those that are made at the same time. What a cache has is not asked for anyway, and nothing
            is where all partitions are read here.
        transport: What carries requests between trainers' samplers: ``'tcp'``, connections of glt's own, which ask for
            the job's token and use TLS where these are set; or ``'rpc'``, ``torch.distributed.rpc``, which does
            neither and unpickles what it receives, for networks on which all are trusted. The same for all trainers.
            Default: what ``GLT_TRANSPORT`` says, else ``'tcp'``.
        token_file: File with the job's token, which all trainers need; see ``glt token``. Default: ``GLT_TOKEN_FILE``
            of the environment; without one, all who reach the trainers' ports are answered.
        tls: Encryption between trainers; see :class:`glt.distributed.TlsOptions`. Default: ``GLT_TLS_CERT`` and its
            like, else none. A process has one token and one set of TLS options, for all that it does.
        require_auth: Refuse to listen beyond this host without a token. Default: ``GLT_REQUIRE_AUTH``, else a warning.
        device: The GPU that samples, on a stream beside training, and that batches are on: ``'cuda'``, ``'cuda:0'`` or
            a number. The partition must be loaded with ``graph_mode`` ``'CUDA'`` or ``'ZERO_COPY'``; what is not read
            here is asked for, and put together on the GPU.
            ``'host'`` runs the kernels on the host, for tests. Default: the GPU of a partition that was loaded with
            ``graph_mode='CUDA'``, else the CPU, which ``'cpu'`` asks for.

    Raises:
        TypeError, ValueError: If a value is out of range, or a GPU cannot be used here; names the option, and says what
            is missing.

    Example:
        >>> glt.distributed.CollocatedDistSamplingWorkerOptions(worker_concurrency=2).worker_concurrency
        2
    """

    device: torch.device | str | int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        accelerator_of(self.device, "device")


@short_traceback
@dataclass
class MpDistSamplingWorkerOptions(_WorkerOptions):
    """Samples in processes of their own, which hand batches over in shared memory.

    Args:
        num_workers: Sampling processes of this trainer, 1 to 1024; the same for all trainers. ``'auto'``: as many are
            started as there are cores for each trainer of the host, 8 at most, and the first batches tell how many of
            them make more; the others sample no batches, but answer other trainers. Excludes ``worker_devices``.
        worker_devices: Where they sample: a device, or a list of them that processes take in turn. GPUs need a
            partition that was loaded with ``graph_mode`` ``'CUDA'`` or ``'ZERO_COPY'``. Each process has its own copy
            of what is in device memory, and its batches come through pinned shared memory. ``'host'`` runs the kernels
            on the host, for tests. Default: the GPU of a partition that was loaded with ``graph_mode='CUDA'``, else the
            CPU.
        channel_size: Shared memory for batches in flight, over all workers, as bytes or text such as ``'1GB'``.
            Default: 256 MiB per worker; units are powers of 1024. Memory is taken as it is used, but more than is free
            is refused when the loader is created. Five batches per worker are enough. A batch of more than half of its
            worker's share passes in pieces, at half the speed or less, and unpinned; a warning then says what to give.
        pin_memory: Register the shared memory with CUDA: with a GPU as the loader's ``to_device``, each batch is then
            one copy that is not waited for. Where workers sample on GPUs for such a loader it is registered anyway, in
            both processes. Without a GPU there is nothing to register it with, which is said in a warning.

    The others, and the errors, as in :class:`CollocatedDistSamplingWorkerOptions`.

    Example:
        >>> glt.distributed.MpDistSamplingWorkerOptions(num_workers=2, channel_size="64MB").num_workers
        2
    """

    num_workers: int | Literal["auto"] = 1
    worker_devices: Sequence[torch.device | str | int] | torch.device | None = None
    channel_size: int | str | None = None
    pin_memory: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_workers = check_num_workers(self.num_workers, self.worker_devices)
        self.devices: list[str] | None = None
        if self.num_workers != AUTO:
            self.devices = checked_devices(self.worker_devices, self.num_workers)
            self.channel_bytes(self.num_workers)
        check_flag("pin_memory", self.pin_memory)
        missing = missing_for_cuda() if self.pin_memory else None
        if missing is not None:
            warnings.warn(f"pin_memory = True: memory stays pageable, for {missing}", stacklevel=3)

    def channel_bytes(self, num_workers: int) -> int:
        """Of so many workers together."""
        if self.channel_size is None:
            return num_workers * _CHANNEL_BYTES_PER_WORKER
        size = parse_size(self.channel_size, "channel_size")
        if size < num_workers:
            raise ValueError(
                f"channel_size = {self.channel_size!r}: expected megabytes for each of num_workers = {num_workers}"
            )
        return size


@short_traceback
@dataclass
class RemoteDistSamplingWorkerOptions:
    """Samples on servers, for a client (:func:`glt.distributed.init_client`).

    Args:
        server_rank: The server that samples, or several, which then take turns. Default: the client's rank modulo the
            number of servers.
        num_workers: Sampling processes of each of these servers that work for the loader, 1 to 1024. A server shares
            its processes among all loaders, and starts more of them when they are asked for, up to its ``max_workers``;
            that it gives fewer is said in a warning. ``'auto'``: of 8, or as many as it gives, the first batches tell
            how many make more. Excludes ``worker_devices``.
        worker_devices: Where they sample, on the machines of the servers: as in
            :class:`MpDistSamplingWorkerOptions`, of processes that a server has anyway. A server without that GPU
            refuses the loader.
        worker_concurrency: Batches that each sampler works on for this loader at the same time, 1 to 1024.
        master_addr, master_port: Without effect, as a warning says; GLT has them. Samplers of servers find each other
            through the servers, and open no ports of their own.
        buffer_size: Memory on each server for batches that wait to be sent, as bytes or text such as ``'1GB'``. None
            is begun while so much waits, or ``prefetch_size`` + ``worker_concurrency`` batches of a sampler, which is
            less as a rule. Memory is taken as it is used; by samplers on GPUs more, since they keep what they have
            pinned: up to twice as much for each power of two between the sizes of batches. Of a server on this host
            batches come through shared memory, of twice the size at most: half for those that the trainer has not
            taken yet, sent or not, and half for those that it keeps.
        prefetch_size: Batches that each sampler sends ahead of the trainer, 1 to 1024. ``'auto'``: 4, and twice as
            many, up to 64, each time the trainer has waited though batches were ready to be sent.
        num_rpc_threads: Without effect, as a warning says: servers are told theirs in ``init_server``.
        rpc_timeout: Deadline in seconds of creating the loader on its servers and opening its streams, above 0 and
            below a day. Other calls to servers have that of ``init_client``.
        cache_memory_budget: Memory of this process for rows of nodes that samplers on other hosts have sent, as bytes
            or text such as ``'1GB'``; 0: none. Those that batches have the most stay, and are not sent again; batches
            are the same. It is for all streams of a loader together, of which each takes 1 GiB at most, and taken as
            rows come. Each sampler takes a thirteenth of its share to remember what the client has. Samplers on GPUs
            send all rows.
        gather_window: As in :class:`CollocatedDistSamplingWorkerOptions`: of batches that a sampler of a server makes
            for this loader, and what it asks other servers for; it takes memory there.

    Raises:
        TypeError, ValueError: If a value is out of range; names the option.

    Example:
        >>> glt.distributed.RemoteDistSamplingWorkerOptions(server_rank=[0, 1], prefetch_size=8).prefetch_size
        8
    """

    server_rank: int | Sequence[int] | None = None
    num_workers: int | Literal["auto"] = 1
    worker_devices: Sequence[torch.device | str | int] | torch.device | None = None
    worker_concurrency: int = 4
    master_addr: str | None = None
    master_port: int | str | None = None
    buffer_size: int | str = _CHANNEL_BYTES_PER_WORKER
    prefetch_size: int | Literal["auto"] = 4
    num_rpc_threads: int | None = None
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_S
    cache_memory_budget: int | str = field(default=DEFAULT_CACHE_BYTES, kw_only=True)
    gather_window: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        self.cache_bytes: int = parse_budget(self.cache_memory_budget, "cache_memory_budget")
        if self.server_rank is not None:
            if isinstance(self.server_rank, str) or not isinstance(self.server_rank, Integral | Sequence):
                raise TypeError(f"server_rank = {self.server_rank!r}: expected a rank, or a list of ranks")
            given = list(self.server_rank) if isinstance(self.server_rank, Sequence) else [self.server_rank]
            ranks = [check_count("server_rank", rank, 0, 2**31 - 1) for rank in given]
            self.server_rank = ranks if isinstance(self.server_rank, Sequence) else ranks[0]
            if not ranks or len(set(ranks)) < len(ranks):
                raise ValueError(f"server_rank = {self.server_rank!r}: expected one rank or more, each once")
        self.num_workers = check_num_workers(self.num_workers, self.worker_devices)
        self.devices: list[str] | None = None
        if self.num_workers != AUTO:
            self.devices = named_devices(self.worker_devices, self.num_workers)
        self.worker_concurrency = check_count("worker_concurrency", self.worker_concurrency, 1, 1024)
        if self.prefetch_size != AUTO:
            if isinstance(self.prefetch_size, str):
                raise ValueError(f"prefetch_size = {self.prefetch_size!r}: expected a number of batches, or 'auto'")
            self.prefetch_size = check_count("prefetch_size", self.prefetch_size, 1, 1024)
        self.gather_window = check_count("gather_window", self.gather_window, 1, 1024)
        check_text("master_addr", self.master_addr)
        self.buffer_bytes: int = parse_size(self.buffer_size, "buffer_size")
        check_transport(self.master_port, self.num_rpc_threads, self.rpc_timeout)
        for name in ("master_addr", "master_port"):
            warn_no_effect(name, getattr(self, name), "samplers of servers find each other; init_client names server 0")
        warn_no_effect("num_rpc_threads", self.num_rpc_threads, "servers are told theirs in init_server")

    def ranks(self, client_rank: int, num_servers: int) -> list[int]:
        """The servers that sample for a client."""
        if self.server_rank is None:
            return [client_rank % num_servers]
        return [self.server_rank] if isinstance(self.server_rank, int) else list(self.server_rank)


def refuse_gpus(options: Any, loader: str) -> None:
    """Raises ValueError if options name a GPU to sample with, for a loader that the CPU samples."""
    name = "device" if isinstance(options, CollocatedDistSamplingWorkerOptions) else "worker_devices"
    given = getattr(options, name)
    if given is not None and {*(options.devices if name == "worker_devices" else [_text(given, name)])} != {CPU}:
        raise ValueError(f"worker_options has {name} = {given!r}, and {loader} samples on the CPU: leave it out")


TrainerWorkerOptions = MpDistSamplingWorkerOptions | CollocatedDistSamplingWorkerOptions
WorkerOptions = TrainerWorkerOptions | RemoteDistSamplingWorkerOptions
