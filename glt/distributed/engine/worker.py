"""The program of a trainer's sampling process: ``python -m glt.distributed.engine.worker SOCKET SPEC``.

It makes the batches of one loader. Beside what :mod:`glt.distributed.engine.processes` describes it inherits the memory
of its channel and the memory of the seeds. Its commands are ``{"epoch": 3, ...}``, with the fields of
:class:`~glt.distributed.engine.producer.EpochStart`, and ``{"drain": true}``.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, replace
from typing import Any

import torch

from glt.channel.shm import SharedMemory, ShmChannel
from glt.data.device import accelerator_of
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.device_sampler import sampler_of
from glt.distributed.engine.event_loop import ConcurrentEventLoop
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.processes import Owner, keep_freed_memory, run_program
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.seeds import SamplingJob, SeedTable
from glt.distributed.wire.rpc_transport import RpcTransport
from glt.distributed.wire.store import TimedStore, connect, wait_for_all
from glt.distributed.wire.transport import Peer


@dataclass
class WorkerSpec:
    """All that a worker needs to know, as JSON.

    Attributes:
        rank, num_trainers, worker, num_workers: Whose worker it is, which one, of how many each.
        group_name: Of the trainers; part of the name of RPC peers.
        dataset: How to map the partition: :meth:`DistDataset.to_json`.
        other_dirs: Where to map further partitions that are read directly, by index (as text, as JSON has it).
        job: What to sample: :meth:`SamplingJob.to_json`.
        concurrency: Batches in flight.
        seeds_fd, seeds_bytes: Inherited memory with the :class:`SeedTable`.
        channel: Descriptor of the inherited channel.
        store: ``[address, port, prefix]`` of the rendezvous; None where there are no peers.
        num_rpc_threads, timeout_s: As in the options.
        device: Where to sample: ``'cpu'``, a GPU, or ``'host'``.
    """

    rank: int
    num_trainers: int
    worker: int
    num_workers: int
    group_name: str
    dataset: dict[str, Any]
    other_dirs: dict[str, str]
    job: dict[str, Any]
    concurrency: int
    seeds_fd: int
    seeds_bytes: int
    channel: dict[str, int]
    store: list[Any] | None
    num_rpc_threads: int
    timeout_s: float
    device: str = "cpu"

    @property
    def keeps_freed_memory(self) -> bool:
        return not self.device.startswith("cuda")


class Worker:
    """A sampling process of a trainer."""

    def __init__(self, owner: Owner, spec: WorkerSpec) -> None:
        self.owner, self.spec = owner, spec
        self.dataset = DistDataset.from_json(spec.dataset)
        self.me = Peer(
            f"{spec.group_name}-{spec.rank}-w{spec.worker}",
            spec.rank,
            spec.worker,
            socket.gethostname(),
            os.getpid(),
            self.dataset.partition_idx,
        )
        self.channel = ShmChannel.from_descriptor(spec.channel)
        table = SeedTable.read(SharedMemory.from_fd(spec.seeds_fd, spec.seeds_bytes))
        job = SamplingJob.from_json(spec.job, table)
        others = {int(i): self.dataset.map_other(path, int(i)) for i, path in spec.other_dirs.items()}
        place = accelerator_of(spec.device, f"worker_devices[{spec.worker}]")
        router = self._join_peers()
        if place is not None and not place.is_host:
            torch.cuda.set_device(place.device)
            self.channel.pin(place.device)  # batches are copied straight into it
        sampler = sampler_of(job, place, self.dataset, others, router, ConcurrentEventLoop(spec.concurrency))
        role = f"worker {spec.worker} of trainer"
        self.producer = Producer(sampler, self.channel, job, (spec.worker, spec.num_workers), role, spec.rank)
        self.producer.open()

    def _join_peers(self) -> PartitionRouter | None:
        """Opens the transport to the workers of all trainers and starts to answer their requests."""
        spec = self.spec
        if spec.store is None or self.dataset.num_partitions == 1:
            return None
        address, port, prefix = spec.store
        store = connect(address, port, prefix, spec.timeout_s)
        store.set(f"peer/{self.me.name}", json.dumps(self.me.to_json()))
        keys = [
            f"peer/{spec.group_name}-{rank}-w{worker}"
            for rank in range(spec.num_trainers)
            for worker in range(spec.num_workers)
        ]
        # Before the transport is opened, which waits for all of them and cannot say who is missing.
        found = wait_for_all(TimedStore(store), keys, spec.timeout_s)
        index = spec.rank * spec.num_workers + spec.worker
        transport = RpcTransport(
            self.me,
            self.dataset.own.handlers(),
            index,
            spec.num_trainers * spec.num_workers,
            store,
            spec.num_rpc_threads,
            spec.timeout_s,
        )
        peers = [Peer(**json.loads(each)) for each in found]
        peers += [replace(self.me, partition_idx=int(part)) for part in spec.other_dirs]  # some may have no trainer
        return PartitionRouter(transport, peers, self.me, self.dataset.num_partitions)

    def obey(self, command: dict[str, Any], fds: list[int]) -> None:
        if "drain" in command:
            self.producer.want(-1)
        else:
            self.producer.start_epoch(EpochStart.from_json(command))

    def beat(self) -> None:
        self.owner.beat()


def start(owner: Owner, spec: dict[str, Any]) -> Worker:
    """Starts the process as ``spec`` says, the fields of :class:`WorkerSpec`."""
    told = WorkerSpec(**spec)
    if told.keeps_freed_memory:
        keep_freed_memory()
    return Worker(owner, told)


if __name__ == "__main__":
    run_program(start)
