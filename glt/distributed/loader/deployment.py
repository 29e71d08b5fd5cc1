"""Where the samplers of a loader are: beside the trainer, in processes of its own, or on servers."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from glt import _core
from glt.channel.local import DeviceChannel, LocalChannel
from glt.channel.message import Message
from glt.data.device import Accelerator, accelerator_of, missing_for_cuda
from glt.distributed.context import DistContext, DistRole
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.device_sampler import DeviceNeighborSampler, DevicePartitionSampler, sampler_of
from glt.distributed.engine.event_loop import ConcurrentEventLoop
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.seeds import SamplingJob
from glt.distributed.engine.worker_group import WorkerGroup
from glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    TrainerWorkerOptions,
)
from glt.distributed.server.api import require_client
from glt.distributed.server.client import RemoteDataset
from glt.distributed.server.remote import RemoteSampler
from glt.distributed.wire.connection import host_id
from glt.distributed.wire.liveness import Watch
from glt.distributed.wire.rendezvous import Rendezvous, require_equal
from glt.distributed.wire.rpc_transport import RpcTransport
from glt.distributed.wire.transport import Peer, Transport
from glt.errors import ChannelClosed, ChannelTimeout, PartitionError, RendezvousError
from glt.sampler.order import draw_random_seed

# What the trainers of a loader find out about each other before it starts.


logger = logging.getLogger(__name__)


class Agreement:
    """Makes sure that all trainers want the same, and finds out who must ask whom.

    Args:
        context: This trainer.
        data: Its partition.
        options: Where it samples.
        wanted: Options of the loader by name, as JSON; the same on all trainers.
        random_seed: As given to the loader.
        told: What the others are to know; JSON, may differ.

    Attributes:
        rendezvous: Where the trainers meet; None where this one is alone.
        random_seed: Of this trainer.
        told: What each trainer told, by rank.
        others, other_dirs: Partitions of other trainers, or of none, that are read here, by index, and where they are.
        meeting: The rendezvous if any trainer reads partitions through others; else None.

    Raises:
        ValueError: If a partition has no trainer, and cannot be read without one.
        glt.errors.RendezvousError: If the trainers do not find each other or were given different options.
        glt.errors.PeerLost: If one died or gave up.
    """

    def __init__(
        self,
        context: DistContext,
        data: DistDataset,
        options: TrainerWorkerOptions,
        wanted: dict[str, Any],
        random_seed: int | None,
        told: dict[str, Any],
    ) -> None:
        self.told = [told]
        self.context, self.data, self.options = context, data, options
        self.others: dict[int, LocalPartition] = {}
        self.other_dirs: dict[int, str] = {}
        self.rendezvous: Rendezvous | None = None
        self.meeting: Rendezvous | None = None
        if context.world_size == 1:
            missing = [part for part in range(data.num_partitions) if part != data.partition_idx]
            unread = self._read_unloaded(missing)
            if unread:
                raise ValueError(f"{context.worker_name}: {_unread(unread, data.num_partitions, [data.partition_idx])}")
            self.random_seed = int(_core.rank_seed(draw_random_seed(), 0)) if random_seed is None else int(random_seed)
            return
        self.rendezvous = Rendezvous(context, options.master_addr, options.master_port, options.rpc_timeout)
        try:
            self.random_seed = self._agree(self.rendezvous, wanted, random_seed, told)
        except BaseException as error:
            self.rendezvous.give_up(error)
            raise

    def _agree(
        self, rendezvous: Rendezvous, wanted: dict[str, Any], random_seed: int | None, told: dict[str, Any]
    ) -> int:
        context, data = self.context, self.data
        mine = {
            "group_name": context.group_name,
            "world_size": context.world_size,
            "mode": type(self.options).__name__,
            "num_workers": getattr(self.options, "num_workers", 0),
            "partitioning run": data.manifest.run_id,
            "whole_node_label_file": [labels is not None for labels in data.whole_node_labels],
            **wanted,
            "random_seed": "drawn once per job (None)" if random_seed is None else "given",
            "read_local": bool(self.options.read_local),
            "told": told,
            "partition_idx": data.partition_idx,
            "host_id": host_id(),
            "graph_dir": data.load_args["graph_dir"],
            "job_seed": draw_random_seed() if random_seed is None and context.rank == 0 else None,
        }
        everyone = rendezvous.exchange(mine)
        require_equal(everyone, context)
        self.told = [theirs["told"] for theirs in everyone]
        loaded = {theirs["partition_idx"] for theirs in everyone}
        missing = sorted(set(range(data.num_partitions)) - loaded)
        self._find_others(rendezvous, everyone, self._read_unloaded(missing))
        if random_seed is not None:
            return int(random_seed)
        return int(_core.rank_seed(everyone[0]["job_seed"], context.rank))

    def _read_unloaded(self, missing: list[int]) -> dict[int, str]:
        """Maps partitions that no trainer has loaded, where this one's directory holds them too; says, by index, why it
        cannot."""
        if not self.options.read_local:
            return dict.fromkeys(missing, "read_local=False")
        unread, graph_dir = {}, self.data.load_args["graph_dir"]
        for index in missing:
            try:
                self.others[index] = self.data.map_other(graph_dir, index)
                self.other_dirs[index] = graph_dir
            except (PartitionError, OSError) as error:
                unread[index] = str(error)
        return unread

    def _find_others(self, rendezvous: Rendezvous, everyone: list[dict[str, Any]], unread: dict[int, str]) -> None:
        """Maps what trainers of this host have mapped anyway, and finds out whether any trainer must ask another."""
        data, mine = self.data, everyone[self.context.rank]
        for theirs in everyone:
            index, graph_dir = theirs["partition_idx"], theirs["graph_dir"]
            if not self.options.read_local or theirs["host_id"] != mine["host_id"] or index == data.partition_idx:
                continue
            try:
                self.others[index] = data.map_other(graph_dir, index)
                self.other_dirs[index] = graph_dir
            except (PartitionError, OSError) as error:  # in another container of the same host, for example
                logger.info("%s: partition %d is read through its trainer: %s", self.context.worker_name, index, error)
        found = rendezvous.exchange({"num_read": 1 + len(self.others), "unread": list(unread.items())}, "reads")
        for rank, theirs in enumerate(found):
            if theirs["unread"]:
                loaded = [each["partition_idx"] for each in everyone]
                text = _unread(dict(theirs["unread"]), data.num_partitions, loaded)
                raise RendezvousError(f"{self.context.worker_name}: of trainer {rank}: {text}")
        if any(theirs["num_read"] < data.num_partitions for theirs in found):
            self.meeting = rendezvous


def _unread(unread: dict[int, str], num_partitions: int, loaded: list[int]) -> str:
    index, why = next(iter(unread.items()))
    return (
        f"partition_idx: no trainer loaded partitions {list(unread)} of {num_partitions} (loaded are, by rank, "
        f"{dict(enumerate(loaded))}), and they cannot be read here without one (partition {index}: {why}). Load each "
        "on at least one trainer, or have its files in everyone's graph_dir, with read_local=True"
    )


# Sampling inside the trainer's process, ahead of the trainer.


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
                handlers, store = dataset.own.handlers(), rendezvous.connect()
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
    """A producer on threads of this process, with the interface of :class:`WorkerGroup`.

    Args:
        job: What to sample.
        context: This trainer.
        dataset: Its partition.
        others: Further partitions that are read directly, by index.
        router: To the partitions that are not; None if there are none. It is released when this ends.
        concurrency: Batches in flight, and batches that wait for the trainer.
        accelerator: The GPU that samples, and that batches stay on; None: the CPU.
        pinned: Batches of the CPU lie where a GPU copies them from by itself.
    """

    def __init__(
        self,
        job: SamplingJob,
        context: DistContext,
        dataset: DistDataset,
        others: Mapping[int, LocalPartition],
        router: PartitionRouter | None,
        concurrency: int,
        accelerator: Accelerator | None = None,
        pinned: bool = False,
    ) -> None:
        loop = ConcurrentEventLoop(concurrency)
        try:
            sampler = sampler_of(job, accelerator, dataset, others, router, loop, staged=False)
            if isinstance(sampler, DeviceNeighborSampler | DevicePartitionSampler):
                self._channel: LocalChannel = DeviceChannel(concurrency, sampler.accelerator, sampler.stream)
            else:
                self._channel = LocalChannel(concurrency, pinned)
        except BaseException:
            loop.shutdown(_JOIN_S)
            raise
        role = "collocated sampler of trainer"
        self._producer = Producer(sampler, self._channel, job, (0, 1), role, context.rank)
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
        """Waits for the next message, for as long as there is a thread that makes it; or returns None without."""
        while True:
            try:
                return self._channel.receive(_POLL_S if wait else 0.0)
            except ChannelTimeout:
                if not wait:
                    return None
                if not self._producer.is_running:
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


def _end(pid: int, producer: Producer, router: PartitionRouter | None, leave: dict[str, bool]) -> None:
    if os.getpid() != pid:
        return  # a fork: the threads are not here, and the connections are its parent's to end
    producer.close(_JOIN_S)
    producer.sampler.loop.shutdown(_JOIN_S)
    if router is not None:
        _shared.release(**leave)


# What loaders are checked against: a partition that is loaded, or what servers tell of theirs.


LoaderData = DistDataset | RemoteDataset


class Backend(Protocol):
    """What makes the batches of a loader."""

    def start_epoch(self, start: EpochStart) -> None: ...

    def receive(self, index: int, wait: bool = True) -> Message | None: ...

    def drain(self) -> None: ...

    def stats(self) -> dict[str, float]: ...

    def close(self, all_finished: bool = False) -> None: ...


class Deployment(ABC):
    """One way of deploying a loader.

    Args:
        context: This process.
        data: The graph.
        options: Where and how to sample.
        wanted: Options of the loader by name, as JSON.
        random_seed: As given to the loader.
        told: What other trainers are to know of this one; JSON.

    Attributes:
        mode: What it is called.
        random_seed: Of this trainer.
        told: What each trainer told, by rank; this one's alone where trainers do not meet.
        rendezvous: Where the trainers meet; None where they do not.
        meeting: The same if any trainer reads partitions through others; else None.
    """

    mode: ClassVar[str]
    random_seed: int
    told: list[dict[str, Any]]
    rendezvous: Rendezvous | None = None
    meeting: Rendezvous | None = None

    def __init__(
        self, context: DistContext, data: Any, options: Any, wanted: dict[str, Any], random_seed: int | None,
        told: dict[str, Any],
    ) -> None:  # fmt: skip
        self.context, self.data, self.options = context, data, options

    @abstractmethod
    def start(self, job: SamplingJob, to_device: Accelerator | None) -> Backend:
        """Starts the samplers.

        Args:
            job: What to sample.
            to_device: The GPU that batches go to.
        """


class _AmongTrainers(Deployment):
    def __init__(
        self, context: DistContext, data: DistDataset, options: Any, wanted: dict[str, Any], random_seed: int | None,
        told: dict[str, Any],
    ) -> None:  # fmt: skip
        super().__init__(context, data, options, wanted, random_seed, told)
        self.agreement = agreed = Agreement(context, data, options, wanted, random_seed, told)
        self.random_seed, self.told = agreed.random_seed, agreed.told
        self.rendezvous, self.meeting = agreed.rendezvous, agreed.meeting
        self.num_rpc_threads = options.rpc_threads(data.num_partitions)


class Collocated(_AmongTrainers):
    """On threads of the trainer."""

    mode = "collocated"

    def start(self, job: SamplingJob, to_device: Accelerator | None) -> Backend:
        options, others, router = self.options, self.agreement.others, None
        device = self.data.sampling_device if options.device is None else options.device
        accelerator = accelerator_of(device, "device")
        pinned = to_device is not None and not to_device.is_host
        if self.meeting is not None:
            router = _shared.acquire(self.meeting, self.data, others, self.num_rpc_threads, options.rpc_timeout)
        try:
            return CollocatedSampler(
                job, self.context, self.data, others, router, options.worker_concurrency, accelerator, pinned
            )
        except BaseException:
            if router is not None:
                _shared.release(gracefully=False)
            raise


class InWorkers(_AmongTrainers):
    """In processes of the trainer."""

    mode = "worker mode"

    def start(self, job: SamplingJob, to_device: Accelerator | None) -> Backend:
        options, meeting = self.options, self.meeting
        spec = {
            "rank": self.context.rank,
            "num_trainers": self.context.world_size,
            "group_name": self.context.group_name,
            "dataset": self.data.to_json(),
            "other_dirs": self.agreement.other_dirs,
            "job": job.to_json(),
            "concurrency": options.worker_concurrency,
            "store": None if meeting is None else [meeting.addr, meeting.port, meeting.prefix],
            "num_rpc_threads": self.num_rpc_threads,
            "timeout_s": options.rpc_timeout,
        }
        devices = options.devices
        if devices is None:
            place = accelerator_of(self.data.sampling_device, "graph_mode = 'CUDA'")
            devices = ["cpu" if place is None else str(place)] * options.num_workers
        on_gpu = any(device != "cpu" for device in devices)
        if on_gpu:
            self.data.require_for_gpu()
        to_gpu = None if to_device is None or to_device.is_host else to_device.device
        pin_for: Any = (to_gpu or "cuda") if options.pin_memory or (to_gpu is not None and on_gpu) else None
        if missing_for_cuda() is not None:
            pin_for = None
        check_peers = (lambda: None) if meeting is None else meeting.check_peers
        return WorkerGroup(spec, devices, job.table, options.channel_bytes, pin_for, check_peers)


class OnServers(Deployment):
    """In processes of servers. Clients need not create the same loaders, and do not meet."""

    mode = "on servers"

    def __init__(
        self, context: DistContext, data: RemoteDataset, options: Any, wanted: dict[str, Any], random_seed: int | None,
        told: dict[str, Any],
    ) -> None:  # fmt: skip
        super().__init__(context, data, options, wanted, random_seed, told)
        self.told = [told]
        drawn = draw_random_seed() if random_seed is None else random_seed
        self.random_seed = int(_core.rank_seed(drawn, context.rank) if random_seed is None else drawn)

    def start(self, job: SamplingJob, to_device: Accelerator | None) -> Backend:
        options, client = self.options, require_client()
        ranks = options.ranks(self.context.rank, client.num_servers)
        return RemoteSampler(client, ranks, job, options)


DEPLOYMENTS: Mapping[type, type[Deployment]] = {
    MpDistSamplingWorkerOptions: InWorkers,
    CollocatedDistSamplingWorkerOptions: Collocated,
    RemoteDistSamplingWorkerOptions: OnServers,
}


def deployment_of(options: Any) -> type[Deployment]:
    """Returns how a loader with these options is deployed.

    Raises:
        TypeError: If they are no worker options.
    """
    for kind, deployment in DEPLOYMENTS.items():
        if isinstance(options, kind):
            return deployment
    names = [kind.__name__ for kind in DEPLOYMENTS]
    raise TypeError(f"worker_options has type {type(options).__name__}: expected one of {names}")


def default_options(context: DistContext) -> Any:
    """Where a process samples that was told nothing: a client on servers, a trainer in a worker process."""
    return RemoteDistSamplingWorkerOptions() if context.role is DistRole.CLIENT else MpDistSamplingWorkerOptions()


def graph_of(data: Any, options: Any, context: DistContext) -> LoaderData:
    """Returns the graph of a loader: ``data``, or what servers hold.

    Raises:
        TypeError, ValueError: If there is none, or two.
    """
    on_servers = deployment_of(options) is OnServers
    if on_servers != (context.role is DistRole.CLIENT):
        this = f"this process is {context.worker_name}, a {context.role.value}"
        raise ValueError(
            f"worker_options are RemoteDistSamplingWorkerOptions, but {this}: call init_client(...) in place of "
            "what made it that"
            if on_servers
            else f"worker_options are {type(options).__name__}, but {this}: give RemoteDistSamplingWorkerOptions"
        )
    if not on_servers:
        if not isinstance(data, DistDataset):
            raise TypeError(f"data has type {type(data).__name__}: expected a DistDataset")
        _ = data.load_args  # raises if it is empty
        return data
    if data is not None:
        raise ValueError(
            f"data has type {type(data).__name__}, but servers sample from the partitions that they have: leave it None"
        )
    return require_client().dataset()
