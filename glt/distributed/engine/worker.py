"""The sampling processes of one loader of a trainer: what the trainer does with them, and the program that each runs.

The program is ``python -m glt.distributed.engine.worker SOCKET SPEC``. Beside what
:mod:`glt.distributed.engine.processes` describes it inherits the memory of its channel and that of the seeds. Its
commands are ``{"epoch": 3, ...}``, with the fields of :class:`~glt.distributed.engine.producer.EpochStart`, and
``{"drain": true}``. Where it asks other trainers' samplers over tcp it first says ``{"sampler": ...}``, by which they
find it, and is told ``{"samplers": true}``, with memory that holds what all of them have said.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from glt import _deadlines as deadlines
from glt._checks import format_size
from glt.channel.message import Message, MessageKind, rebuild_error
from glt.channel.shm import SharedMemory, ShmChannel
from glt.data.device import accelerator_of
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.device_sampler import sampler_of
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.processes import Owner, ProcessPool, SamplingProcess, keep_freed_memory, run_program
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.row_lookup import row_caches
from glt.distributed.engine.sampling_job import SamplingJob, SeedTable
from glt.distributed.wire.store import TimedStore, connect, wait_for_all
from glt.distributed.wire.tcp import SamplerTransport
from glt.distributed.wire.threads import ConcurrentEventLoop
from glt.distributed.wire.transport import Peer, Transport
from glt.errors import ChannelClosed, ChannelTimeout, WorkerDied

_BATCHES_IN_CHANNEL = 5  # half of it for those that the trainer has: one in use and the next, with some to spare

logger = logging.getLogger(__name__)


class WorkerGroup:
    """Starts sampling processes and receives their batches.

    Each has a channel of its own, so that a killed one cannot wedge the others. Batch ``i`` is made by worker
    ``i % num_samplers`` of the epoch, by default of all, so that batches arrive in index order without being sorted.

    Args:
        spec: What the workers are told, apart from what is added here for each.
        devices: Where each samples, see :func:`glt.distributed.options.checked_devices`.
        table: The loader's input, put into shared memory once.
        channel_bytes: Shared memory for batches in flight, over all workers.
        pin_for: A GPU whose CUDA context registers that memory, so that copies from it to GPUs need no staging.
        check_peers: Called in waits, since other trainers are waited for then; raises if one is lost.
        introduce: Tells the other trainers how its samplers are found, and returns what all have told; None: they need
            not be told so.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        devices: Sequence[str],
        table: SeedTable,
        channel_bytes: int,
        pin_for: torch.device | str | None = None,
        check_peers: Callable[[], None] = lambda: None,
        introduce: Callable[[list[Any]], list[list[Any]]] | None = None,
    ) -> None:
        self.timeout_s: float = spec["timeout_s"]
        self._rank = int(spec["rank"])
        self._has_hinted = False
        self._check_peers = check_peers
        self.most_workers = self._num_making = len(devices)
        self._unmeasured: set[int] = set()  # workers whose first batch of the epoch is yet to come
        self._channels: list[ShmChannel] = []
        self._workers: list[SamplingProcess] = []
        self._said: dict[int, Any] = {}  # how their samplers are found, by number
        self._pool = ProcessPool("glt.distributed.engine.worker", f"trainer {self._rank}")
        self._seeds = table.share()
        try:
            for device in devices:
                where = {"device": device, "num_workers": len(devices), "num_sharers": devices.count(device)}
                self._start({**spec, **where}, channel_bytes // len(devices))
            deadline = time.monotonic() + self.timeout_s
            if introduce is not None:
                self._introduce(introduce, deadline)
            self._wait_until(deadline, lambda worker: worker.is_ready)
            if pin_for is not None:
                for channel in self._channels:
                    channel.pin(pin_for)
        except BaseException:
            self.close()
            raise

    def _start(self, spec: dict[str, Any], channel_bytes: int) -> None:
        channel = ShmChannel(channel_bytes)
        self._channels.append(channel)
        number, its_channel, seeds = len(self._workers), channel.descriptor(), self._seeds
        full = WorkerSpec(**spec, worker=number, seeds_fd=seeds.fd, seeds_bytes=seeds.nbytes, channel=its_channel)
        self._workers.append(self._pool.start(number, asdict(full), (seeds.fd, its_channel["fd"])))

    def _introduce(self, introduce: Callable[[list[Any]], list[list[Any]]], deadline: float) -> None:
        self._wait_until(deadline, lambda worker: worker.number in self._said)
        samplers = introduce([self._said[worker.number] for worker in self._workers])
        # Not in the command itself, which has a limit: there may be thousands.
        memory = os.memfd_create("glt-samplers")
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(json.dumps([each for of_trainer in samplers for each in of_trainer]).encode())
            for worker in self._workers:
                if not worker.send({"samplers": True}, [memory]):
                    raise WorkerDied(worker.death())
        finally:
            os.close(memory)

    def _wait_until(self, deadline: float, is_there: Callable[[SamplingProcess], bool]) -> None:
        while starting := [worker for worker in self._workers if not is_there(worker)]:
            # First: what went wrong here is not the fault of others who gave up because of it.
            self._check_alive(deadlines.POLL_S)
            self._check_peers()
            if time.monotonic() > deadline:
                raise WorkerDied(f"{starting[0].name} was not ready after {self.timeout_s:g} s")

    def num_samplers(self, num_workers: int) -> int:
        """How many samplers so many workers are."""
        return num_workers

    def start_epoch(self, start: EpochStart) -> None:
        """Asks for the batches of an epoch; those of earlier iterations are given up."""
        self._num_making = start.num_samplers or len(self._workers)
        self._unmeasured = set(range(self._num_making))
        for worker in self._workers:
            if not worker.send(start.to_json()):
                raise WorkerDied(worker.death())

    def drain(self) -> None:
        """Ends sampling for this trainer. Requests of other trainers are still answered, by those workers that live."""
        for worker in self._workers:
            if not worker.send({"drain": True}):
                logger.warning("while shutting down: %s", worker.death())

    def receive(self, index: int, wait: bool = True) -> Message | None:
        """Waits for the next message of the worker that makes batch ``index``, for as long as all workers live; or
        returns None without. Raises WorkerDied if one died."""
        number = index % self._num_making
        since = time.monotonic()
        while True:
            try:
                message = self._channels[number].receive(deadlines.POLL_S if wait else 0.0)
                if message.kind is MessageKind.ERROR:
                    # Losing a worker makes other trainers give up, which the workers that are left then report as a
                    # loss of theirs: the worker that died here is the cause to name.
                    self._check_alive()
                elif number in self._unmeasured and not self._has_hinted:
                    self._unmeasured.discard(number)
                    self._hint(number, message)
                return message
            except ChannelTimeout:
                if not wait:
                    return None
                self._check_alive()
                self._check_beats(since)
                self._check_peers()
            except ChannelClosed:
                raise WorkerDied(self._workers[number].death()) from None

    def _hint(self, number: int, message: Message) -> None:
        """Says so, once, if batches are too large for the channel: they pass, but are copied twice on the way."""
        nbytes = sum(tensor.nbytes for tensor in message.tensors.values())
        channel_bytes = self._channels[number].channel_bytes
        if nbytes > channel_bytes // 2:
            self._has_hinted = True
            wanted_mb = -(-_BATCHES_IN_CHANNEL * nbytes * len(self._workers) >> 20)
            sizes = f"a batch of {format_size(nbytes)} through a channel of {format_size(channel_bytes)}"
            logger.warning(
                f"{self._workers[number].name} sends {sizes} in pieces, at half the speed or less: give worker_options "
                f"channel_size='{wanted_mb}MB', or use smaller batches"
            )

    def stats(self) -> dict[str, float]:
        """Sums the counters of the channels."""
        total: dict[str, float] = {}
        for channel in self._channels:
            for name, value in channel.stats().items():
                total[name] = total.get(name, 0) + value
        return total

    def _check_alive(self, timeout_s: float = 0.0) -> None:
        """Hears what the workers have said; raises for one that reports an error or has ended."""
        for worker, said in self._pool.look(timeout_s):
            if said is None:
                raise WorkerDied(worker.death())
            if "error" in said:
                where: dict[str, Any] = {"rank": self._rank, "pid": worker.pid, "host": socket.gethostname()}
                role = f"worker {worker.number} of trainer"
                raise rebuild_error(said["error"], said["text"], said["traceback"], role=role, **where)
            if "sampler" in said:
                self._said[worker.number] = said["sampler"]
        for worker in self._workers:
            if worker.is_gone:
                raise WorkerDied(worker.death())

    def _check_beats(self, since: float) -> None:
        """Raises for a worker that lives but has been silent for ``timeout_s`` of the wait that began at ``since``."""
        for worker in self._workers:
            silent_s = time.monotonic() - max(worker.heard_s, since)
            if silent_s > self.timeout_s:
                raise WorkerDied(
                    f"{worker.name} lives, but has given no sign of it for {silent_s:.0f} s (rpc_timeout = "
                    f"{self.timeout_s:g}): is it stopped? See its state in ps, or its stack with py-spy"
                )

    def close(self, all_finished: bool = False) -> None:
        """Ends all workers, the same way whether or not all trainers have finished. May be called again."""
        for channel in self._channels:
            channel.close()
        self._pool.close()
        self._seeds.close()


@dataclass
class WorkerSpec:
    """All that a worker needs to know, as JSON; whose worker it is, which one, of how many each.

    Attributes:
        dataset: How to map the partition: :meth:`DistDataset.to_json`.
        other_dirs: Where to map further partitions that are read directly, by index (as text, as JSON has it).
        job: What to sample: :meth:`SamplingJob.to_json`.
        seeds_fd, seeds_bytes: Inherited memory with the :class:`SeedTable`.
        channel: Descriptor of the inherited channel.
        cache_bytes: For rows of partitions elsewhere, see :func:`row_caches`.
        transport: What carries requests between the samplers of trainers; None where nothing is asked of others.
        host: Of tcp, the address of this host at which the others reach it.
        store: Of rpc, ``[address, port, prefix]`` of the store that rank 0 has opened.
        device: Where to sample: ``'cpu'``, a GPU, or ``'host'``.
        num_sharers: How many workers sample there.
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
    transport: str | None
    host: str
    store: list[Any] | None
    num_rpc_threads: int
    timeout_s: float
    cache_bytes: int
    device: str
    num_sharers: int


class Worker:
    """A sampling process of a trainer."""

    def __init__(self, owner: Owner, told: dict[str, Any]) -> None:
        self.owner, self.spec = owner, WorkerSpec(**told)
        spec = self.spec
        if not spec.device.startswith("cuda"):
            keep_freed_memory()
        self.dataset = DistDataset.from_json(spec.dataset)
        self.dataset.num_sharers = spec.num_sharers
        name, host = f"{spec.group_name}-{spec.rank}-w{spec.worker}", socket.gethostname()
        self.me = Peer(name, spec.rank, spec.worker, host, os.getpid(), self.dataset.partition_idx)
        self.channel = ShmChannel.from_descriptor(spec.channel)
        table = SeedTable.read(SharedMemory.from_fd(spec.seeds_fd, spec.seeds_bytes))
        job = SamplingJob.from_json(spec.job, table)
        others = {int(i): self.dataset.map_other(path, int(i)) for i, path in spec.other_dirs.items()}
        place = accelerator_of(spec.device, f"worker_devices[{spec.worker}]")
        router = self._join_peers()
        if place is not None and not place.is_host:
            torch.cuda.set_device(place.device)
            self.channel.pin(place.device)  # batches are copied straight into it
        caches = row_caches(self.dataset, {self.dataset.partition_idx: self.dataset.own, **others}, spec.cache_bytes)
        loop = ConcurrentEventLoop(spec.concurrency)
        sampler = sampler_of(job, place, self.dataset, others, router, loop, caches=caches)
        role = f"worker {spec.worker} of trainer"
        self.producer = Producer(sampler, self.channel, job, (spec.worker, spec.num_workers), role, spec.rank)
        self.producer.open()

    def _join_peers(self) -> PartitionRouter | None:
        """Opens the transport to the workers of all trainers and starts to answer their requests."""
        spec = self.spec
        if spec.transport is None or self.dataset.num_partitions == 1:
            return None
        transport, peers = self._over_tcp() if spec.transport == "tcp" else self._over_rpc()
        peers += [replace(self.me, partition_idx=int(part)) for part in spec.other_dirs]  # some may have no trainer
        return PartitionRouter(transport, peers, self.me, self.dataset.num_partitions)

    def _over_tcp(self) -> tuple[Transport, list[Peer]]:
        spec, own = self.spec, self.dataset.own
        transport = SamplerTransport(
            self.me, own.handlers(), spec.host, spec.num_rpc_threads, spec.timeout_s, own.most_ids
        )
        self.owner.say({"sampler": transport.introduction()})
        _, (memory,) = self.owner.hear("samplers", deadlines.DAY_S)  # the owner, which waits for all, gives up first
        try:
            told = os.pread(memory, os.fstat(memory).st_size, 0)  # all processes share one position in it
        finally:
            os.close(memory)
        return transport, transport.meet(json.loads(told))

    def _over_rpc(self) -> tuple[Transport, list[Peer]]:
        from glt.distributed.wire.rpc import RpcTransport

        spec = self.spec
        assert spec.store is not None
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
        index, handlers = spec.rank * spec.num_workers + spec.worker, self.dataset.own.handlers()
        transport = RpcTransport(self.me, handlers, index, len(keys), store, spec.num_rpc_threads, spec.timeout_s)
        return transport, [Peer(**json.loads(each)) for each in found]

    def obey(self, command: dict[str, Any], fds: list[int]) -> None:
        if "drain" in command:
            self.producer.want(-1)
        else:
            self.producer.start_epoch(EpochStart.from_json(command))

    def beat(self) -> None:
        self.owner.beat()


if __name__ == "__main__":
    run_program(Worker)
