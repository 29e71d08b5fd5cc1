"""Sampling inside the trainer's process, ahead of the trainer."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace

from glt.channel.local import DeviceChannel, LocalChannel
from glt.channel.message import Message, error_message
from glt.data.device import Accelerator
from glt.distributed.batch_start import Seeds
from glt.distributed.context import DistContext
from glt.distributed.device_samplers import sampler_on
from glt.distributed.dist_dataset import DistDataset, LocalPartition
from glt.distributed.dist_neighbor_sampler import DistNeighborSampler
from glt.distributed.epoch_start import EpochStart
from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.liveness import Watch
from glt.distributed.partition_service import PartitionService
from glt.distributed.producer import Producer
from glt.distributed.rendezvous import Rendezvous
from glt.distributed.router import PartitionRouter
from glt.distributed.rpc_transport import RpcTransport
from glt.distributed.seed_table import SeedTable
from glt.distributed.transport import Peer, Transport
from glt.errors import ChannelClosed, ChannelTimeout
from glt.sampler.config import SamplingConfig
from glt.sampler.order import SeedOrder

_POLL_S = 0.5
_JOIN_S = 5.0

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
        self, rendezvous: Rendezvous, dataset: DistDataset, read_here: Iterable[int], num_threads: int, timeout_s: float
    ) -> PartitionRouter:
        context = rendezvous.context
        with _lock:
            if self.transport is None:
                me = Peer(
                    context.worker_name, context.rank, None, socket.gethostname(), os.getpid(), dataset.partition_idx
                )
                rendezvous.store.set(f"peer/{me.rank}", json.dumps(me.to_json()))
                found = Watch(rendezvous.store, context.worker_name).wait_for(
                    {f"peer/{rank}": rank for rank in range(context.world_size)}, "open their samplers", timeout_s
                )
                peers = [Peer(**json.loads(each)) for each in found]
                handlers, store = PartitionService(dataset).handlers(), rendezvous.connect()
                self.transport = rendezvous.during(
                    lambda: RpcTransport(me, handlers, me.rank, context.world_size, store, num_threads, timeout_s)
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
    """A producer on threads of this process; the same interface as :class:`glt.distributed.worker_group.WorkerGroup`.

    Args:
        context: This trainer.
        dataset: Its partition.
        config, order, seeds, table, collect_features: What to sample.
        concurrency: Batches in flight, and batches that wait for the trainer.
        rendezvous: Where the trainers are whose partitions are not read directly; None if there are none.
        num_rpc_threads, timeout_s: As in the options.
        others: Further partitions that are read directly, by index.
        accelerator: The GPU that samples, and that batches stay on; None: the CPU.
        pinned: Batches of the CPU lie where a GPU copies them from by itself.
    """

    def __init__(
        self,
        context: DistContext,
        dataset: DistDataset,
        config: SamplingConfig,
        order: SeedOrder,
        seeds: Seeds,
        table: SeedTable,
        collect_features: bool,
        concurrency: int,
        rendezvous: Rendezvous | None,
        num_rpc_threads: int,
        timeout_s: float,
        others: Mapping[int, LocalPartition],
        *,
        accelerator: Accelerator | None = None,
        pinned: bool = False,
    ) -> None:
        self._router: PartitionRouter | None = None
        self._loop: ConcurrentEventLoop | None = None
        if rendezvous is not None and dataset.num_partitions > 1:
            self._router = _shared.acquire(rendezvous, dataset, others, num_rpc_threads, timeout_s)
        try:
            self._loop = ConcurrentEventLoop(concurrency)
            sampler: DistNeighborSampler
            if accelerator is None:
                self._channel = LocalChannel(concurrency, pinned)
                sampler = DistNeighborSampler(dataset, config, self._router, self._loop, collect_features, others)
            else:
                stream = accelerator.new_stream()
                self._channel = DeviceChannel(concurrency, accelerator, stream)
                sampler = sampler_on(
                    accelerator, dataset, others, config=config, router=self._router, loop=self._loop,
                    collect_features=collect_features, stream=stream, staged=False,
                )  # fmt: skip
            self._start(context, sampler, order, seeds, table, self._loop)
        except BaseException:
            if self._loop is not None:
                self._loop.shutdown(_JOIN_S)
            if self._router is not None:
                _shared.release(gracefully=False)
            raise

    def _start(
        self,
        context: DistContext,
        sampler: DistNeighborSampler,
        order: SeedOrder,
        seeds: Seeds,
        table: SeedTable,
        loop: ConcurrentEventLoop,
    ) -> None:
        self._producer = Producer(
            sampler, self._channel, seeds, table, order, first=0, step=1, role="collocated sampler of trainer",
            rank=context.rank,
        )  # fmt: skip
        self._rank = context.rank
        self._epochs: queue.SimpleQueue[EpochStart | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_run,
            args=(self._producer, self._channel, self._epochs, self._rank),
            name="glt-producer",
            daemon=True,
        )
        self._thread.start()
        self._leave = {"gracefully": False}
        self._finalizer = weakref.finalize(
            self, _end, os.getpid(), self._producer, self._channel, self._epochs, self._thread, loop,
            self._router, self._leave,
        )  # fmt: skip

    def start_epoch(self, start: EpochStart) -> None:
        """Asks for the batches of an epoch; those of earlier iterations are given up."""
        self._producer.want(start.iteration)
        self._epochs.put(start)

    def drain(self) -> None:
        """Ends sampling for this trainer. Requests of other trainers are still answered."""
        self._producer.want(-1)

    def receive(self, index: int, wait: bool = True) -> Message | None:
        """Waits for the next message, for as long as there is a thread that makes it; or returns None without."""
        while True:
            try:
                return self._channel.receive(_POLL_S if wait else 0.0)
            except ChannelTimeout:
                if not wait:
                    return None
                if not self._thread.is_alive():
                    raise RuntimeError("the sampling thread ended; its output above says why") from None
            except ChannelClosed:
                raise RuntimeError("the loader was shut down while a batch was awaited") from None

    def stats(self) -> dict[str, float]:
        """Counters of the channel."""
        return dict(self._channel.stats())

    def close(self, all_finished: bool = False) -> None:
        """Ends the threads; with ``all_finished``, takes leave of the other trainers. May be called again."""
        self._leave["gracefully"] = all_finished
        self._finalizer()


def _run(producer: Producer, channel: LocalChannel, epochs: queue.SimpleQueue[EpochStart | None], rank: int) -> None:
    while (start := epochs.get()) is not None:
        try:
            producer.run(start)
        except Exception as error:  # not of a batch, those are reported in their place
            message = error_message(
                error, role="collocated sampler of trainer", rank=rank, loader=start.iteration, epoch=start.epoch
            )
            with channel.reserve(len(message)) as slot:
                slot.buffer.copy_(message)


def _end(
    pid: int,
    producer: Producer,
    channel: LocalChannel,
    epochs: queue.SimpleQueue[EpochStart | None],
    thread: threading.Thread,
    loop: ConcurrentEventLoop,
    router: PartitionRouter | None,
    leave: dict[str, bool],
) -> None:
    if os.getpid() != pid:
        return  # a fork: the threads are not here, and the connections are its parent's to end
    producer.want(-1)
    channel.close()
    epochs.put(None)
    thread.join(_JOIN_S)
    loop.shutdown(_JOIN_S)
    if router is not None:
        _shared.release(**leave)
