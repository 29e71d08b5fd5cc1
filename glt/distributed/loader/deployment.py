"""Where the samplers of a loader are: beside the trainer, in processes of its own, or on servers; and how they end."""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import util
from typing import Any, ClassVar, Protocol

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import AUTO, is_exhausted
from glt.channel.channel import DeviceChannel, LocalChannel
from glt.channel.message import Message
from glt.data.device import Accelerator, accelerator_of, missing_for_cuda
from glt.distributed.context import DistContext, DistRole, require_context
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.device_sampler import DeviceNeighborSampler, DevicePartitionSampler, sampler_of
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.row_lookup import row_caches
from glt.distributed.engine.sampling_job import SamplingJob
from glt.distributed.engine.worker import WorkerGroup
from glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from glt.distributed.server.api import require_client
from glt.distributed.server.client import RemoteDataset
from glt.distributed.server.remote_sampler import RemoteSampler
from glt.distributed.wire.addresses import host_id, is_loopback, network_id, own_address
from glt.distributed.wire.credentials import set_credentials, use_credentials
from glt.distributed.wire.group import Group, require_equal
from glt.distributed.wire.store import connect
from glt.distributed.wire.tcp import SamplerTransport
from glt.distributed.wire.threads import ConcurrentEventLoop
from glt.distributed.wire.transport import Peer, Transport, chosen_transport
from glt.errors import ChannelClosed, ChannelTimeout, PartitionError, RendezvousError
from glt.loader import tuning
from glt.sampler.graph import require_distinct_reverses
from glt.sampler.order import draw_random_seed

_shared_lock = threading.Lock()


@dataclass(frozen=True)
class Way:
    """How the samplers of trainers ask each other: by which ``transport``; ``host``: the address of this host at which
    the others reach it."""

    group: Group
    transport: str
    host: str


class _SharedTransport:
    """The transport of this process. torch has one RPC agent per process, so the loaders of a trainer share it."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.num_users = 0

    def acquire(
        self, way: Way, dataset: DistDataset, read_here: Iterable[int], num_threads: int, timeout_s: float
    ) -> PartitionRouter:
        run_id, part = dataset.manifest.run_id, dataset.partition_idx
        options = {"transport": way.transport, "num_rpc_threads": num_threads, "rpc_timeout": timeout_s}
        with _shared_lock:
            if self.transport is None:
                group = way.group
                self.me = Peer(group.me, group.rank, None, socket.gethostname(), os.getpid(), part)
                open_one = self._open_tcp if way.transport == "tcp" else self._open_rpc
                self.transport, self.peers = open_one(way, dataset.own, num_threads, timeout_s)
                self.run_id, self.options = run_id, options
            if options != self.options:
                raise ValueError(
                    f"{_said(options)}, but the collocated loaders of a process share one transport, and it was opened "
                    f"with {_said(self.options)}: give them the same"
                )
            if (run_id, part) != (self.run_id, self.me.partition_idx):
                raise ValueError(
                    f"data is partition {part} of run {run_id}, but this process already serves partition "
                    f"{self.me.partition_idx} of run {self.run_id} to others: shut the other loaders down first, or "
                    "sample in worker mode"
                )
            own = [replace(self.me, partition_idx=part) for part in read_here]  # some may have no trainer
            router = PartitionRouter(self.transport, [*self.peers, *own], self.me, dataset.num_partitions)
            self.num_users += 1
            return router

    def _open_tcp(
        self, way: Way, own: LocalPartition, num_threads: int, timeout_s: float
    ) -> tuple[Transport, list[Peer]]:
        transport = SamplerTransport(self.me, own.handlers(), way.host, num_threads, timeout_s, own.most_ids)
        try:
            return transport, transport.meet(way.group.exchange("samplers", transport.introduction()))
        except BaseException:
            transport.close()
            raise

    def _open_rpc(
        self, way: Way, own: LocalPartition, num_threads: int, timeout_s: float
    ) -> tuple[Transport, list[Peer]]:
        from glt.distributed.wire.rpc import RpcTransport

        group, me, handlers = way.group, self.me, own.handlers()
        peers = [Peer(**each) for each in group.exchange("samplers", me.to_json())]
        store = connect(*group.open_store(), timeout_s)
        opened = group.run(lambda: RpcTransport(me, handlers, me.rank, group.size, store, num_threads, timeout_s))
        return opened, peers

    def release(self, gracefully: bool) -> None:
        with _shared_lock:
            self.num_users -= 1
            if self.num_users == 0 and self.transport is not None:
                self.transport.close(gracefully)
                self.transport = None


def _said(options: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value!r}" for name, value in options.items()
    )


_shared = _SharedTransport()


class CollocatedSampler:
    """A producer on threads of this process, with the interface of :class:`WorkerGroup`."""

    def __init__(
        self,
        job: SamplingJob,
        rank: int,
        dataset: DistDataset,
        options: CollocatedDistSamplingWorkerOptions,
        others: Mapping[int, LocalPartition],
        way: Way | None,
        pinned: bool,
    ) -> None:
        self._group = None if way is None else way.group
        device = dataset.sampling_device if options.device is None else options.device
        accelerator = accelerator_of(device, "device")
        concurrency = options.worker_concurrency
        router: PartitionRouter | None = None
        self._leave = {"gracefully": False}
        with ExitStack() as made:  # what is there ends if the next cannot be made
            if way is not None:
                num_threads = options.rpc_threads(dataset.num_partitions)
                router = _shared.acquire(way, dataset, others, num_threads, options.rpc_timeout)
                made.callback(lambda leave: _shared.release(**leave), self._leave)
            loop = ConcurrentEventLoop(concurrency)
            made.callback(loop.shutdown, deadlines.JOIN_S)
            caches = row_caches(dataset, {dataset.partition_idx: dataset.own, **others}, options.cache_bytes)
            sampler = sampler_of(job, accelerator, dataset, others, router, loop, staged=False, caches=caches)
            if isinstance(sampler, DeviceNeighborSampler | DevicePartitionSampler):
                self._channel: LocalChannel = DeviceChannel(concurrency, sampler.accelerator, sampler.stream)
            else:
                self._channel = LocalChannel(concurrency, pinned)
            self._producer = Producer(sampler, self._channel, job, (0, 1), "collocated sampler of trainer", rank)
            self._producer.open()
            made.callback(self._producer.close, deadlines.JOIN_S)
            self._finalizer = weakref.finalize(self, _end_collocated, os.getpid(), made.pop_all())

    most_workers = 1

    def num_samplers(self, num_workers: int) -> int:
        return 1

    def start_epoch(self, start: EpochStart) -> None:
        """Asks for the batches of an epoch; those of earlier iterations are given up."""
        self._producer.start_epoch(start)

    def drain(self) -> None:
        """Ends sampling for this trainer. Requests of other trainers are still answered."""
        self._producer.want(-1)

    def receive(self, index: int, wait: bool = True) -> Message | None:
        """Waits for the next message, or returns None without."""
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


def _end_collocated(pid: int, made: ExitStack) -> None:
    if os.getpid() == pid:  # in a fork the threads are not here, and the connections are its parent's to end
        made.close()


logger = logging.getLogger(__name__)

# What loaders are checked against: a partition that is loaded, or what servers tell of theirs.
LoaderData = DistDataset | RemoteDataset


class Backend(Protocol):
    """What makes the batches of a loader. ``most_workers``, by which ``num_workers="auto"`` is bounded, are there."""

    @property
    def most_workers(self) -> int: ...

    def num_samplers(self, num_workers: int) -> int: ...

    def start_epoch(self, start: EpochStart) -> None: ...

    def receive(self, index: int, wait: bool = True) -> Message | None: ...

    def drain(self) -> None: ...

    def stats(self) -> dict[str, float]: ...

    def close(self, all_finished: bool = False) -> None: ...


class Deployment(ABC):
    """One way of deploying a loader; ``mode`` is what it is called.

    Attributes:
        random_seed: Of this trainer.
        announced: What each trainer announced, by rank; this one's alone where trainers do not meet.
        group: The trainers of the loader; None where they do not meet.
        serving: The same if any trainer reads partitions through others; else None.
    """

    mode: ClassVar[str]
    group: Group | None = None
    serving: Group | None = None

    def __init__(
        self,
        context: DistContext,
        data: Any,
        options: Any,
        wanted: dict[str, Any],
        random_seed: int | None,
        announced: dict[str, Any],
    ) -> None:
        self.context, self.data, self.options = context, data, options
        self.announced = [announced]
        job_seed = self._meet(wanted, random_seed)
        self.random_seed = int(_core.rank_seed(job_seed, context.rank) if random_seed is None else random_seed)

    def _meet(self, wanted: dict[str, Any], random_seed: int | None) -> Any:
        """Agrees with the other trainers; returns the seed that those of all are made of, if none is given."""
        return draw_random_seed() if random_seed is None else None

    @abstractmethod
    def start(self, job: SamplingJob, to_device: Accelerator | None) -> Backend:
        """Starts the samplers; ``to_device``: the GPU that batches go to."""


class _AmongTrainers(Deployment):
    """The trainers meet: they make sure that all want the same, and find out who must ask whom.

    Attributes:
        most_workers: Of a trainer with ``num_workers="auto"``.
        others, other_dirs: Partitions of other trainers, or of none, that are read here, by index, and where they are.
        way: How samplers ask each other; None where none must.
    """

    way: Way | None = None
    most_workers = 1

    def _meet(self, wanted: dict[str, Any], random_seed: int | None) -> Any:
        options = self.options
        self.others: dict[int, LocalPartition] = {}
        self.other_dirs: dict[int, str] = {}
        before = use_credentials(options.token_file, options.tls, options.require_auth, listens=True)
        try:
            return self._agree(wanted, random_seed)
        except BaseException:
            set_credentials(before)
            raise

    def _agree(self, wanted: dict[str, Any], random_seed: int | None) -> Any:
        context, data, options = self.context, self.data, self.options
        transport = chosen_transport(options.transport)
        self.group = group = Group(context, options.master_addr, options.master_port, options.rpc_timeout)
        same = {
            "group_name": context.group_name,
            "world_size": context.world_size,
            "mode": type(options).__name__,
            "num_workers": getattr(options, "num_workers", 0),
            "partitioning run": data.manifest.run_id,
            "whole_node_label_file": [labels is not None for labels in data.whole_node_labels],
            **wanted,
            "random_seed": "drawn once per job (None)" if random_seed is None else "given",
            "read_local": bool(options.read_local),
            "transport": transport,
        }
        mine = {
            "announced": self.announced[0],
            "partition_idx": data.partition_idx,
            "host_id": host_id(),
            "network_id": network_id(),
            "num_cores": len(os.sched_getaffinity(0)),
            "address": own_address((group.addr, 1)) if group.size > 1 else "",
            "graph_dir": data.load_args["graph_dir"],
            "hot_rows": data.own.on_disk.told,
            "job_seed": draw_random_seed() if random_seed is None and context.rank == 0 else None,
        }
        with group.during("it agreed with the others on the loader"):
            require_equal(group, "options", same, "Do all ranks create the same loaders in the same order?")
            everyone = group.exchange("partitions", mine)
            self.announced = [theirs["announced"] for theirs in everyone]
            self.most_workers = _most_workers(everyone)
            self._share_partitions(group, everyone)
            if self.serving is not None:
                self.way = Way(self.serving, transport, _reached_at(group.rank, everyone))
        return everyone[0]["job_seed"]

    def _share_partitions(self, group: Group, everyone: list[dict[str, Any]]) -> None:
        """Maps what trainers of this host have mapped anyway, and what none has loaded; finds out whether any trainer
        must ask another."""
        data, mine = self.data, everyone[group.rank]
        loaded = [theirs["partition_idx"] for theirs in everyone]
        unread: dict[int, str] = {}
        for index in sorted(set(range(data.num_partitions)) - set(loaded)):
            if (why := self._map(index, mine["graph_dir"], is_loaded=False)) is not None:
                unread[index] = why
        for theirs in everyone:
            index = theirs["partition_idx"]
            if theirs["host_id"] == mine["host_id"] and index != data.partition_idx:
                data.hot_rows[index] = theirs["hot_rows"]
                # It fails in another container of the same host.
                if (why := self._map(index, theirs["graph_dir"])) is not None:
                    logger.info("%s: partition %d is read through its trainer: %s", group.me, index, why)
        reads = {"num_read": 1 + len(self.others), "unread": list(unread.items())}
        found = group.exchange("partitions that they read", reads)
        for rank, theirs in enumerate(found):
            if theirs["unread"]:
                parts, (index, why) = [part for part, _ in theirs["unread"]], theirs["unread"][0]
                text = (
                    f"partition_idx: no trainer loaded partitions {parts} of {data.num_partitions} (loaded are, by "
                    f"rank, {dict(enumerate(loaded))}), and they cannot be read here without one (partition {index}: "
                    f"{why}). Load each on at least one trainer, or have its files in everyone's graph_dir, with "
                    "read_local=True"
                )
                if group.size == 1:
                    raise ValueError(f"{group.me}: {text}")
                raise RendezvousError(f"{group.me}: of trainer {rank}: {text}")
        if any(theirs["num_read"] < data.num_partitions for theirs in found):
            self.serving = group

    def _map(self, index: int, graph_dir: str, is_loaded: bool = True) -> str | None:
        """Maps a partition to read it here; says why it cannot."""
        if not self.options.read_local:
            return "read_local=False"
        try:
            self.others[index] = self.data.map_other(graph_dir, index, is_loaded)
        except (PartitionError, OSError) as error:
            if is_exhausted(error):
                raise  # of this process, not of the files
            return str(error)
        self.other_dirs[index] = graph_dir
        return None


def _most_workers(everyone: list[dict[str, Any]]) -> int:
    """Of a trainer, where all have as many: so that those of each host have cores."""
    hosts = Counter(theirs["host_id"] for theirs in everyone)
    return max(1, min(tuning.MOST_WORKERS, *(theirs["num_cores"] // hosts[theirs["host_id"]] for theirs in everyone)))


def _reached_at(rank: int, everyone: list[dict[str, Any]]) -> str:
    """The address at which the trainers of other hosts reach the one of ``rank``, this; loopback if there are none."""
    mine = everyone[rank]
    elsewhere = [theirs["address"] for theirs in everyone if theirs["network_id"] != mine["network_id"]]
    if not elsewhere:
        return "::1" if ":" in mine["address"] else "127.0.0.1"
    if is_loopback(mine["address"]):  # this is on the host of rank 0, whose name may mean loopback there
        return own_address((elsewhere[0], 1))
    return str(mine["address"])


class Collocated(_AmongTrainers):
    """On threads of the trainer."""

    mode = "collocated"

    def start(self, job: SamplingJob, to_device: Accelerator | None) -> Backend:
        pinned = to_device is not None and not to_device.is_host
        return CollocatedSampler(job, self.context.rank, self.data, self.options, self.others, self.way, pinned)


class InWorkers(_AmongTrainers):
    """In processes of the trainer."""

    mode = "worker mode"

    def start(self, job: SamplingJob, to_device: Accelerator | None) -> Backend:
        options, serving, way = self.options, self.serving, self.way
        is_tcp = way is not None and way.transport == "tcp"
        spec = {
            "rank": self.context.rank,
            "num_trainers": self.context.world_size,
            "group_name": self.context.group_name,
            "dataset": self.data.to_json(),
            "other_dirs": self.other_dirs,
            "job": job.to_json(),
            "concurrency": options.worker_concurrency,
            "transport": None if way is None else way.transport,
            "host": "" if way is None else way.host,
            "store": None if serving is None or is_tcp else serving.open_store(),
            "num_rpc_threads": options.rpc_threads(self.data.num_partitions),
            "timeout_s": options.rpc_timeout,
            "cache_bytes": options.cache_bytes,
        }
        devices = options.devices
        if devices is None:
            place = accelerator_of(self.data.sampling_device, "graph_mode = 'CUDA'")
            if options.num_workers == AUTO and place is not None:
                raise ValueError(
                    f"num_workers = 'auto' and a partition loaded with graph_mode = 'CUDA' ({place}): each worker "
                    "would have its own copy in GPU memory; give a number of workers"
                )
            num_workers = self.most_workers if options.num_workers == AUTO else options.num_workers
            devices = ["cpu" if place is None else str(place)] * num_workers
        on_gpu = any(device != "cpu" for device in devices)
        if on_gpu:
            self.data.require_for_gpu()
        to_gpu = None if to_device is None or to_device.is_host else to_device.device
        pin_for: Any = (to_gpu or "cuda") if options.pin_memory or (to_gpu is not None and on_gpu) else None
        if missing_for_cuda() is not None:
            pin_for = None
        check_peers = (lambda: None) if serving is None else serving.check_peers
        introduce = partial(serving.exchange, "samplers") if serving is not None and is_tcp else None
        channel_bytes = options.channel_bytes(len(devices))
        return WorkerGroup(spec, devices, job.table, channel_bytes, pin_for, check_peers, introduce)


class OnServers(Deployment):
    """In processes of servers. Clients need not create the same loaders, and do not meet."""

    mode = "on servers"

    def start(self, job: SamplingJob, to_device: Accelerator | None) -> Backend:
        options, client = self.options, require_client()
        ranks = options.ranks(self.context.rank, client.num_servers)
        return RemoteSampler(client, ranks, job, options)


_DEPLOYMENTS: Mapping[type, type[Deployment]] = {
    MpDistSamplingWorkerOptions: InWorkers,
    CollocatedDistSamplingWorkerOptions: Collocated,
    RemoteDistSamplingWorkerOptions: OnServers,
}


def deployment_of(options: Any) -> type[Deployment]:
    for kind, deployment in _DEPLOYMENTS.items():
        if isinstance(options, kind):
            return deployment
    names = [kind.__name__ for kind in _DEPLOYMENTS]
    raise TypeError(f"worker_options has type {type(options).__name__}: expected one of {names}")


def opened(data: Any, options: Any, edge_dir: str | None) -> tuple[LoaderData, Any]:
    """Returns the graph of a loader, ``data`` or what servers hold, and where it samples: a client on servers, a
    trainer in a worker process, unless it is told. Raises ValueError unless the graph was partitioned for ``edge_dir``,
    if that is given, and batches of it can be had."""
    context = require_context()
    is_client = context.role is DistRole.CLIENT
    if options is None:
        options = RemoteDistSamplingWorkerOptions() if is_client else MpDistSamplingWorkerOptions()
    on_servers = deployment_of(options) is OnServers
    this = f"this process is {context.worker_name}, a {context.role.value}"
    graph: LoaderData
    if on_servers:
        if not is_client:
            raise ValueError(
                f"worker_options are RemoteDistSamplingWorkerOptions, but {this}: call init_client(...) in place of "
                "what made it that"
            )
        if not isinstance(data, RemoteDataset | None):
            raise ValueError(
                f"data has type {type(data).__name__}, but servers sample from the partitions that they have: leave it "
                "None"
            )
        graph = require_client().dataset()
    elif is_client:
        raise ValueError(
            f"worker_options are {type(options).__name__}, but {this}: give RemoteDistSamplingWorkerOptions"
        )
    elif not isinstance(data, DistDataset):
        raise TypeError(f"data has type {type(data).__name__}: expected a DistDataset")
    else:
        _ = data.load_args  # raises if it is empty
        graph = data
    if edge_dir not in (None, graph.edge_dir):
        raise ValueError(
            f"edge_dir = {edge_dir!r}: the graph was partitioned for {graph.edge_dir!r}; partition it with "
            f"edge_assign_strategy={'by_src' if edge_dir == 'out' else 'by_dst'!r}, or leave edge_dir out"
        )
    require_distinct_reverses(graph.schema, graph.edge_dir)
    return graph, options


_draining: set[threading.Thread] = set()
_waited_for_by = 0  # the process whose end waits for them


def end(backend: Backend, group: Group | None) -> None:
    """Ends the sampling of a loader, and its samplers once no living trainer of ``group`` needs them.

    Returns after a few seconds at most. A trainer that is needed for longer goes on serving in the background, so that
    trainers may end their loaders at different times and in different orders; its process then ends when the others
    have finished or died.
    """
    backend.drain()
    if group is None:
        backend.close()
        return
    thread = _start(backend, group)
    thread.join(deadlines.DRAIN_S)
    if thread.is_alive():
        logger.info("%s goes on serving its partition to trainers that have not finished", group.me)


def abandon(backend: Backend, group: Group | None, pid: int) -> None:
    """What becomes of a loader that was not shut down: it was collected, or the interpreter ends."""
    if os.getpid() != pid:
        return
    backend.drain()
    if threading.main_thread().is_alive():
        # Waits for nothing: a collection may happen anywhere, under any lock, on a thread of the sampler itself.
        _start(backend, group)
    else:
        # The interpreter ends, perhaps because of an exception that others wait to hear of.
        _finish(backend, group, deadlines.DRAIN_S)


def _start(backend: Backend, group: Group | None) -> threading.Thread:
    global _waited_for_by
    if _waited_for_by != os.getpid():
        # Of multiprocessing, not of atexit, which its children never come to unless they are spawned: trainers may be
        # forked. Registered here, since such a child forgets what its parent has registered.
        util.Finalize(None, _wait, exitpriority=1)
        _waited_for_by = os.getpid()
    thread = threading.Thread(target=_finish, args=(backend, group, None), name="glt-drain", daemon=True)
    # Until it is dead, not until it has finished: it may be the last to let go of the samplers, and a daemon that frees
    # a tensor while the interpreter ends takes the process with it ("terminate called without an active exception").
    _draining.difference_update([earlier for earlier in list(_draining) if earlier.ident and not earlier.is_alive()])
    _draining.add(thread)
    thread.start()
    return thread


def _finish(backend: Backend, group: Group | None, timeout_s: float | None) -> None:
    if group is None:
        backend.close()
        return
    missing: list[int] = []
    try:
        missing = group.finish(timeout_s)
        if missing:
            logger.warning("trainers of rank %s were not waited for: they or this one died or gave up", missing)
    finally:
        backend.close(all_finished=not missing)


def _wait() -> None:
    """Bounded by the lives of the trainers that are waited for: each wait ends when they finish or fall silent."""
    for thread in list(_draining):
        thread.join()
