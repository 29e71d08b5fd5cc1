"""Where and how a distributed loader samples."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glt.channel.size import parse_size

DEFAULT_RPC_TIMEOUT_S = 180.0
_MAX_RPC_THREADS = 16
_CHANNEL_BYTES_PER_WORKER = 256 << 20


def _check_count(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} = {value!r}: expected an integer")
    if not least <= value <= most:
        raise ValueError(f"{name} = {value}: expected {least} to {most}")


@dataclass
class _WorkerOptions:
    """What all modes share.

    Args:
        master_addr: Host name or address of the trainer of rank 0, as the others reach it. Default: ``MASTER_ADDR``
            of the environment, else localhost.
        master_port: A free port on that host; loaders of one job may share it. Default: one is found and made known
            through ``torch.distributed``, which must then be initialised before the loader is created.
        num_rpc_threads: Threads that answer other samplers' requests, 1 to 1024; those of one sampler are answered one
            after the other. Default: one per partition, 2 to 16.
        rpc_timeout: Deadline in seconds of start-up and of every call, above 0 and below a day. A request may wait for
            the call before it, and so for twice that.
        worker_concurrency: Batches that a sampler works on at the same time, 1 to 1024.
        read_local: Read the partitions of trainers on the same host straight from their mapped files, which the
            processes of a host share, instead of asking those trainers' samplers.

    Raises:
        TypeError, ValueError: If a value is out of range; names the option.
    """

    master_addr: str | None = None
    master_port: int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_S
    worker_concurrency: int = 4
    read_local: bool = True

    def __post_init__(self) -> None:
        if self.master_port is not None:
            if isinstance(self.master_port, str) and self.master_port.isdigit():
                self.master_port = int(self.master_port)
            _check_count("master_port", self.master_port, 1, 65535)
        if self.num_rpc_threads is not None:
            _check_count("num_rpc_threads", self.num_rpc_threads, 1, 1024)
        _check_count("worker_concurrency", self.worker_concurrency, 1, 1024)
        if isinstance(self.rpc_timeout, bool) or not isinstance(self.rpc_timeout, int | float):
            raise TypeError(f"rpc_timeout = {self.rpc_timeout!r}: expected seconds")
        if not 0 < self.rpc_timeout < 86400:
            raise ValueError(f"rpc_timeout = {self.rpc_timeout}: expected seconds, above 0 and below a day")

    def rpc_threads(self, num_partitions: int) -> int:
        return self.num_rpc_threads or min(_MAX_RPC_THREADS, max(2, num_partitions))


@dataclass
class CollocatedDistSamplingWorkerOptions(_WorkerOptions):
    """Samples inside the trainer's process: ahead of it, on threads in the background. Native calls release the GIL.

    Args:
        master_addr: Host name or address of the trainer of rank 0, as the others reach it. Default: ``MASTER_ADDR``
            of the environment, else localhost.
        master_port: A free port on that host; loaders of one job may share it. Default: one is found and made known
            through ``torch.distributed``, which must then be initialised before the loader is created.
        num_rpc_threads: Threads that answer other trainers' requests, 1 to 1024. Default: one per partition, 2 to 16.
        rpc_timeout: Deadline in seconds of every request and of start-up, above 0 and below a day.
        worker_concurrency: Batches sampled at the same time, and batches that wait for the trainer; 1 to 1024 each.

    Raises:
        TypeError, ValueError: If a value is out of range; names the option.
    """


@dataclass
class MpDistSamplingWorkerOptions(_WorkerOptions):
    """Samples in processes of their own, which hand batches over in shared memory.

    Args:
        num_workers: Sampling processes of this trainer, 1 to 1024; the same for all trainers.
        worker_devices: A device per process, or one for all. Only the CPU for now.
        channel_size: Shared memory for batches in flight, over all workers, as bytes or text such as ``'1GB'``.
            Default: 256 MiB per worker; units are powers of 1024. Memory is taken as it is used, but more than is free
            is refused when the loader is created. Larger batches still pass, more slowly.
        pin_memory: Register the shared memory with CUDA, for faster copies to the GPU. Without a GPU there is nothing
            to register it with, which is said in a warning.

    The others, and the errors, as in :class:`CollocatedDistSamplingWorkerOptions`.
    """

    num_workers: int = 1
    worker_devices: Sequence[torch.device | str | int] | torch.device | None = None
    channel_size: int | str | None = None
    pin_memory: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("num_workers", self.num_workers, 1, 1024)
        if self.worker_devices is not None:
            single = isinstance(self.worker_devices, torch.device | str | int)
            given: list[Any] = [self.worker_devices] * self.num_workers if single else list(self.worker_devices)  # type: ignore
            if len(given) != self.num_workers:
                raise ValueError(
                    f"worker_devices has {len(given)} devices: expected one per worker ({self.num_workers})"
                )
            for i, device in enumerate(given):
                if torch.device(device).type != "cpu":
                    raise ValueError(f"worker_devices[{i}] = {device!r}: this build samples on the CPU only; use 'cpu'")
        self.channel_bytes = (
            self.num_workers * _CHANNEL_BYTES_PER_WORKER
            if self.channel_size is None
            else parse_size(self.channel_size, "channel_size")
        )
        if self.pin_memory and not torch.cuda.is_available():
            warnings.warn("pin_memory = True: there is no GPU to pin memory for, so it stays pageable", stacklevel=3)
