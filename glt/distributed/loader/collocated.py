"""Sampling inside the trainer's process, ahead of the trainer."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace

from glt import _deadlines as deadlines
from glt.channel.channel import DeviceChannel, LocalChannel
from glt.channel.message import Message
from glt.data.device import accelerator_of
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.device_sampler import DeviceNeighborSampler, DevicePartitionSampler, sampler_of
from glt.distributed.engine.event_loop import ConcurrentEventLoop
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.seeds import SamplingJob
from glt.distributed.options import CollocatedDistSamplingWorkerOptions
from glt.distributed.wire.group import Group
from glt.distributed.wire.rpc_transport import RpcTransport
from glt.distributed.wire.store import connect
from glt.distributed.wire.transport import Peer, Transport
from glt.errors import ChannelClosed, ChannelTimeout

_lock = threading.Lock()


class _SharedTransport:
    """The transport of this process. torch has one RPC agent per process, so the loaders of a trainer share it."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.peers: list[Peer] = []
        self.me: Peer | None = None
        self.run_id = ""
        self.num_users = 0
        self.options = (0, 0.0)  # threads and timeout that the transport was opened with

    def acquire(
        self, group: Group, dataset: DistDataset, read_here: Iterable[int], num_threads: int, timeout_s: float
    ) -> PartitionRouter:
        with _lock:
            if self.transport is None:
                me = Peer(group.me, group.rank, None, socket.gethostname(), os.getpid(), dataset.partition_idx)
                peers = [Peer(**each) for each in group.exchange("samplers", me.to_json())]
                store = connect(*group.open_store(), timeout_s)
                handlers = dataset.own.handlers()
                self.transport = group.run(
                    lambda: RpcTransport(me, handlers, me.rank, group.size, store, num_threads, timeout_s)
                )
                self.peers, self.me, self.run_id = peers, me, dataset.manifest.run_id
                self.options = (num_threads, timeout_s)
            assert self.me is not None
            if (num_threads, timeout_s) != self.options:
                raise ValueError(
                    f"num_rpc_threads = {num_threads}, rpc_timeout = {timeout_s:g}, but the collocated loaders of a "
                    f"process share one transport, and it was opened with {self.options[0]} and {self.options[1]:g}: "
                    "give them the same"
                )
            if (dataset.manifest.run_id, dataset.partition_idx) != (self.run_id, self.me.partition_idx):
                raise ValueError(
                    f"data is partition {dataset.partition_idx} of run {dataset.manifest.run_id}, but this process "
                    f"already serves partition {self.me.partition_idx} of run {self.run_id} to others: shut the other "
                    "loaders down first, or sample in worker mode"
                )
            own = [replace(self.me, partition_idx=part) for part in read_here]  # some may have no trainer
            router = PartitionRouter(self.transport, [*self.peers, *own], self.me, dataset.num_partitions)
            self.num_users += 1
            return router

    def release(self, gracefully: bool) -> None:
        with _lock:
            self.num_users -= 1
            if self.num_users == 0 and self.transport is not None:
                self.transport.close(gracefully)
                self.transport = None


_shared = _SharedTransport()


class CollocatedSampler:
    """A producer on threads of this process, with the interface of :class:`WorkerGroup`.

    Args:
        job: What to sample.
        rank: This trainer.
        dataset: Its partition.
        options: Where, and how far ahead.
        others: Further partitions that are read directly, by index.
        group: Where the trainers are whose partitions are not; None if there are none.
        pinned: Batches of the CPU lie where a GPU copies them from by itself.
    """

    def __init__(
        self,
        job: SamplingJob,
        rank: int,
        dataset: DistDataset,
        options: CollocatedDistSamplingWorkerOptions,
        others: Mapping[int, LocalPartition],
        group: Group | None,
        pinned: bool = False,
    ) -> None:
        self._group = group
        device = dataset.sampling_device if options.device is None else options.device
        accelerator = accelerator_of(device, "device")
        concurrency = options.worker_concurrency
        router: PartitionRouter | None = None
        loop: ConcurrentEventLoop | None = None
        if group is not None:
            num_threads = options.rpc_threads(dataset.num_partitions)
            router = _shared.acquire(group, dataset, others, num_threads, options.rpc_timeout)
        try:
            loop = ConcurrentEventLoop(concurrency)
            sampler = sampler_of(job, accelerator, dataset, others, router, loop, staged=False)
            if isinstance(sampler, DeviceNeighborSampler | DevicePartitionSampler):
                self._channel: LocalChannel = DeviceChannel(concurrency, sampler.accelerator, sampler.stream)
            else:
                self._channel = LocalChannel(concurrency, pinned)
        except BaseException:
            if loop is not None:
                loop.shutdown(deadlines.JOIN_S)
            if router is not None:
                _shared.release(gracefully=False)
            raise
        self._producer = Producer(sampler, self._channel, job, (0, 1), "collocated sampler of trainer", rank)
        self._producer.open()
        self._leave = {"gracefully": False}
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._producer, router, self._leave)

    def start_epoch(self, start: EpochStart) -> None:
        """Asks for the batches of an epoch; those of earlier iterations are given up."""
        self._producer.start_epoch(start)

    def drain(self) -> None:
        """Ends sampling for this trainer. Requests of other trainers are still answered."""
        self._producer.want(-1)

    def receive(self, index: int, wait: bool = True) -> Message | None:
        """Waits for the next message, or returns None without.

        Raises:
            RuntimeError: If the sampling thread ended, or the loader was shut down.
            glt.errors.PeerLost: If a trainer that is asked for rows is gone; names it.
        """
        while True:
            try:
                return self._channel.receive(deadlines.POLL_S if wait else 0.0)
            except ChannelTimeout:
                if not wait:
                    return None
                if not self._producer.is_running:
                    raise RuntimeError("the sampling thread ended; its output above says why") from None
                if self._group is not None:
                    self._group.check_peers()
            except ChannelClosed:
                raise RuntimeError("the loader was shut down while a batch was awaited") from None

    def stats(self) -> dict[str, float]:
        """Counters of the channel."""
        return dict(self._channel.stats())

    def close(self, all_finished: bool = False) -> None:
        """Ends the threads; with ``all_finished``, takes leave of the other trainers. May be called again."""
        self._leave["gracefully"] = all_finished
        self._finalizer()


def _end(pid: int, producer: Producer, router: PartitionRouter | None, leave: dict[str, bool]) -> None:
    if os.getpid() != pid:
        return  # a fork: the threads are not here, and the connections are its parent's to end
    producer.close(deadlines.JOIN_S)
    producer.sampler.loop.shutdown(deadlines.JOIN_S)
    if router is not None:
        _shared.release(**leave)
