"""The program of a server's sampling process: ``python -m glt.distributed.server.worker SOCKET SPEC``.

It maps the partition once and samples for any number of loaders, in turn: each has a stream of batches to its client.
Its commands, beside those of :mod:`glt.distributed.engine.processes`::

    server -> worker   {"servers": {rank: [host, port]}}                              where servers are, now
                       {"serve": true} + connection of another server                answer its requests
                       {"loader": ...} + connection to a client, memory of seeds     sample for it
                       {"close": id}
    worker -> server   {"beat": {stream: stats}} every second, in parts if there are many, and
                       {"ended": stream, "stats": stats}
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from torch import Tensor

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import check_count
from glt.channel.channel import LocalChannel
from glt.channel.message import MessageKind, read_message
from glt.channel.shm import SharedMemory
from glt.data.device import accelerator_of, missing_for_cuda
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.device_sampler import sampler_of
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.processes import Owner, keep_freed_memory, run_program
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.sampler import STATS
from glt.distributed.engine.seeds import SamplingJob, SeedTable
from glt.distributed.server.options import write_logs
from glt.distributed.server.pool import PoolWorkerSpec
from glt.distributed.server.stats import COUNTERS
from glt.distributed.wire.old_connection import Connection, allow_descriptors, pulse
from glt.distributed.wire.old_listener import introduce, refuse
from glt.distributed.wire.tcp import PartitionServer, TcpTransport
from glt.distributed.wire.threads import ConcurrentEventLoop, call_on_loop
from glt.distributed.wire.transport import Peer
from glt.errors import ChannelClosed, ChannelTimeout, ConnectionLost, MessageError

logger = logging.getLogger("glt.distributed.server.worker")  # it runs as __main__, too

T = TypeVar("T")

_SLACK = 4.0  # batches
_ANY_NUMBER = 1 << 30
_BEAT_STREAMS = 64  # in one packet

# -- a fair scheduler ----------------------------------------------------------------------------------------------


class Flow:
    def __init__(self, most: int, may_begin: Callable[[], bool], lock: threading.Lock) -> None:
        self.most, self.may_begin = most, may_begin
        self.turn = threading.Condition(lock)
        self.num_running = self.num_begun = 0
        self.is_waiting = False
        self.finish_tag = 0.0  # virtual time at which its last batch ends


class FairScheduler:
    """Gives places for batches in flight, ``num_places`` in all, to flows in turn.

    A place goes to the waiting flow that was served least, counted in batches since it came or came back: start-time
    fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with batches of cost 1. A flow whose client takes nothing holds
    no place. After a change only the next flow is woken: waking all made a batch cost 57 ms of CPU with 200 loaders.
    """

    def __init__(self, num_places: int) -> None:
        self._free = num_places
        self._now = 0.0  # virtual time: the start tag of the batch that began last
        self._lock = threading.Lock()
        self._flows: list[Flow] = []

    def add(self, most: int, may_begin: Callable[[], bool]) -> Flow:
        """Adds a flow. ``may_begin`` is called under a lock and must not block."""
        flow = Flow(most, may_begin, self._lock)
        with self._lock:
            flow.finish_tag = self._now
            self._flows.append(flow)
        return flow

    def remove(self, flow: Flow) -> None:
        """Removes a flow; its batches in flight still give back their places."""
        with self._lock:
            if flow in self._flows:
                self._flows.remove(flow)
            flow.turn.notify_all()  # it may be stopped
            self._wake_next()

    def acquire(self, flow: Flow, is_stopped: Callable[[], bool]) -> bool:
        """Waits until ``flow`` may begin a batch; false if ``is_stopped``, asked now and then, said so before."""
        with self._lock:
            flow.is_waiting = True
            try:
                while not is_stopped():
                    if self._may(flow) and self.next_flow() is flow:
                        self._free -= 1
                        flow.num_running += 1
                        flow.num_begun += 1
                        start = self._start_tag(flow)
                        self._now, flow.finish_tag = max(self._now, start), start + 1
                        return True
                    flow.turn.wait(0.1)
                return False
            finally:
                flow.is_waiting = False
                self._wake_next()  # it may be another's turn now

    def release(self, flow: Flow) -> None:
        with self._lock:
            self._free += 1
            flow.num_running -= 1
            self._wake_next()

    def look_again(self) -> None:
        with self._lock:
            self._wake_next()

    def _wake_next(self) -> None:
        following = self.next_flow()
        if following is not None:
            following.turn.notify_all()

    def _may(self, flow: Flow) -> bool:
        return flow.is_waiting and flow.num_running < flow.most and flow.may_begin()

    def next_flow(self) -> Flow | None:
        """The flow that may begin a batch now; of several, the one with the earliest start tag."""
        if not self._free:
            return None
        found, earliest = None, math.inf
        for flow in self._flows:
            # In this order: whether it may begin is the dearest question, and asked of few.
            if flow.is_waiting and (start := self._start_tag(flow)) < earliest and self._may(flow):
                found, earliest = flow, start
        return found

    def _start_tag(self, flow: Flow) -> float:
        """When its next batch begins, in virtual time. A flow that could not begin saves up at most ``_SLACK`` batches,
        or it would hold up all others later."""
        return max(flow.finish_tag, self._now - _SLACK)


class ScheduledLoop(ConcurrentEventLoop):
    """Runs the batches of one loader on the loop that all loaders of the process share, when it is their turn."""

    def __init__(self, loop: ConcurrentEventLoop, scheduler: FairScheduler, flow: Flow) -> None:
        # Not of the base class: it would start threads, and the shared ones are enough.
        self._shared, self._scheduler, self._flow = loop, scheduler, flow
        self.concurrency = flow.most

    def submit(
        self, make_task: Callable[[], Coroutine[Any, Any, T]], is_stopped: Callable[[], bool] = lambda: False
    ) -> concurrent.futures.Future[T] | None:
        if not self._scheduler.acquire(self._flow, is_stopped):
            return None
        future = self._shared.submit(make_task, is_stopped)
        if future is None:
            self._scheduler.release(self._flow)
        else:
            future.add_done_callback(lambda _: self._scheduler.release(self._flow))
        return future

    def run_native(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return self._shared.run_native(call, *args)


# -- streams -------------------------------------------------------------------------------------------------------


class Stream:
    """Runs the producer of one loader, sends what it makes, and listens to the client.

    ``prefetch_size`` messages may be on their way to the client or wait for its trainer there; no batch is begun while
    ``buffer_bytes`` wait here to be sent; and at most ``concurrency`` batches are in flight. ``on_end`` is called once,
    on any thread. ``producer`` makes batches into ``channel`` and is set before :meth:`start`. With ``is_pinned`` (a
    sampler on a GPU) batches wait in pinned memory, ``buffer_bytes`` at most, since torch keeps pinned blocks for good.
    """

    def __init__(
        self,
        connection: Connection,
        request: dict[str, Any],
        scheduler: FairScheduler,
        on_end: Callable[[Stream], None],
        is_pinned: bool,
    ) -> None:
        self.connection, self.name = connection, request["id"]
        self.prefetch_size, self.buffer_bytes = request["prefetch_size"], request["buffer_bytes"]
        self.channel = LocalChannel(_ANY_NUMBER, is_pinned, self.buffer_bytes if is_pinned else None)
        self.producer: Producer | None = None
        self.why = ""
        self._scheduler, self._on_end = scheduler, on_end
        self._totals = dict.fromkeys(COUNTERS, 0.0)
        self._changed = threading.Condition()
        self._num_sent = self._num_taken = 0  # messages
        self._largest_bytes = 0  # of those sent
        self._ended = threading.Event()
        self._ending = threading.Lock()
        self.flow = scheduler.add(request["concurrency"], self._may_begin)

    def start(self) -> None:
        assert self.producer is not None
        self.producer.open()
        for run in (self._send, self._listen):
            threading.Thread(target=run, name=f"glt-stream-{run.__name__[1:]}", daemon=True).start()

    def _may_begin(self) -> bool:
        channel, coming = self.channel.stats(), self.flow.num_running * self._largest_bytes
        queued = channel["sent_bytes"] - channel["received_bytes"]
        return not self._ended.is_set() and queued + coming < self.buffer_bytes

    def _send(self) -> None:
        try:
            while not self._ended.is_set():
                if not self._has_room():
                    continue
                try:
                    message = self.channel.receive_bytes(deadlines.POLL_S)
                except ChannelTimeout:
                    continue
                self._scheduler.look_again()  # there is room for another batch
                self._count(message)  # first: a client that has it may end this stream before sending returns
                # A client that takes nothing beats all the same, and is waited for; if it falls silent, listening ends.
                self.connection.send_data(message, timeout_s=deadlines.DAY_S)
        except (ChannelClosed, ConnectionLost, ChannelTimeout) as error:
            self.close(str(error))
        except Exception as error:
            logger.exception("stream of %s", self.name)
            self.close(f"{type(error).__name__}: {error}")  # or its client would wait for ever

    def _has_room(self) -> bool:
        """Waits a little for the client; counts that as blocked if something waits to be sent."""
        is_blocked = self.channel.stats()["num_queued"] > 0
        start = time.perf_counter()
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self._num_sent - self._num_taken < self.prefetch_size, deadlines.POLL_S
            )
        if is_blocked:
            self._totals["blocked_s"] += time.perf_counter() - start
        return has_room

    def _count(self, message: Tensor) -> None:
        self._num_sent += 1
        self._largest_bytes = max(self._largest_bytes, message.numel())
        self._totals["sent_bytes"] += message.numel()
        read = read_message(message)
        if read.kind is MessageKind.ERROR:
            self._totals["num_errors"] += 1
        elif read.kind is MessageKind.BATCH:
            self._totals["num_batches"] += 1
            for name, value in zip(STATS, read.tensors["stats"].tolist(), strict=True):
                self._totals[name] += value

    def _listen(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self._obey(self.connection.receive_json(deadlines.POLL_S))
                except ChannelTimeout:
                    if self.connection.silent_s() > deadlines.LEASE_S:
                        self.close(f"{self.connection.peer} has given no sign of life for {deadlines.LEASE_S:g} s")
        except ConnectionLost as error:
            self.close(str(error))
        except (MessageError, KeyError, TypeError, ValueError) as error:
            self.close(f"{self.connection.peer} asked for nonsense: {type(error).__name__}: {error}")

    def _obey(self, command: dict[str, Any]) -> None:
        assert self.producer is not None
        if "taken" in command:
            with self._changed:
                self._num_taken = int(command["taken"])
                self._changed.notify_all()
        elif "start" in command:
            start = EpochStart.from_json(command["start"])
            for name, value in start.to_json().items():
                check_count(name, value, 0, 2**63 - 1 if name == "random_seed" else 2**31 - 1)
            self.producer.start_epoch(start)
        elif "drain" in command:
            self.producer.want(-1)
        elif "close" in command:
            self.close("the client closed the loader")
        else:
            raise ValueError(f"unknown command {sorted(command)}")

    def close(self, why: str) -> None:
        """Ends it, and gives up what is being made. From any thread; may be called again."""
        with self._ending:
            if self._ended.is_set():
                return
            self._ended.set()
            self.why = why
        if self.producer is not None:
            self.producer.close()
        self.channel.close()
        self.connection.close()
        self._scheduler.remove(self.flow)
        self._on_end(self)

    def stats(self) -> dict[str, float]:
        channel = self.channel.stats()
        return {
            **self._totals,
            "num_queued": channel["num_queued"],
            "queued_bytes": channel["sent_bytes"] - channel["received_bytes"],
            "num_running": self.flow.num_running,
            "num_unread": self._num_sent - self._num_taken,
        }


# -- the program ---------------------------------------------------------------------------------------------------


class PoolWorker:
    def __init__(self, owner: Owner, spec: PoolWorkerSpec) -> None:
        self.owner, self.spec = owner, spec
        self.dataset = DistDataset.from_json(spec.dataset)
        self.loop = ConcurrentEventLoop(spec.num_places)
        self.scheduler = FairScheduler(spec.num_places)
        handlers, timeout_s = self.dataset.own.handlers(), max(deadlines.STUCK_S, spec.timeout_s)
        most_ids = self.dataset.own.most_ids
        self.partitions = PartitionServer(handlers, spec.server_rank, spec.num_rpc_threads, timeout_s, most_ids)
        self._servers: dict[int, tuple[str, int]] = {}
        self.transport = TcpTransport(self._addresses, list(handlers), spec.timeout_s)
        self._lock = threading.Lock()
        self._others: dict[tuple[str, int], LocalPartition] = {}  # partitions mapped besides, by directory and index
        self._reporting = threading.Lock()  # a stream that has ended is in no later beat
        self._streams: dict[str, Stream] = {}
        self._num_streams = 0  # so far
        self._spare: list[_core.Batch] = []  # as many as batches were in flight at a time, over all loaders

    def _addresses(self, peer: Peer) -> list[tuple[str, int]]:
        return [self._servers[peer.rank]] if peer.rank in self._servers else []

    # -- commands --------------------------------------------------------------------------------------------------

    def obey(self, command: dict[str, Any], fds: list[int]) -> None:
        if "servers" in command:
            self._servers = {int(rank): (host, port) for rank, (host, port) in command["servers"].items()}
        elif "serve" in command:
            connection = Connection(socket.socket(fileno=fds[0]), command["serve"], 1 << 36)
            call_on_loop(self.partitions.serve, connection)
        elif "loader" in command:
            threading.Thread(target=self._open, args=(command["loader"], *fds), name="glt-open", daemon=True).start()
        elif "close" in command:
            with self._lock:
                streams = [each for each in self._streams.values() if each.name == command["close"]]
            for each in streams:
                each.close(command["why"])
        else:
            raise ValueError(f"unknown command {sorted(command)}")

    # -- loaders ---------------------------------------------------------------------------------------------------

    def _open(self, request: dict[str, Any], connection_fd: int, seeds_fd: int) -> None:
        connection = Connection(socket.socket(fileno=connection_fd), request["client"])
        memory = SharedMemory.from_fd(seeds_fd, request["seeds_bytes"])
        stream: Stream | None = None
        try:
            stream = self.stream(request, connection, memory)
            connection.send(introduce("stream", worker=self.spec.worker))
            with self._lock:
                self._num_streams += 1
                self._streams[f"{stream.name}/{self._num_streams}"] = stream
            stream.start()
            pulse.add(connection)
        except Exception as error:
            logger.warning("loader %s could not be opened: %s", request["id"], error)
            text = f"worker {self.spec.worker} cannot sample for it: {type(error).__name__}: {error}"
            refuse(connection, text)
            if stream is not None:
                stream.close(text)

    def stream(self, request: dict[str, Any], connection: Connection, memory: SharedMemory) -> Stream:
        worker, devices = self.spec.worker, request.get("devices") or [self.dataset.sampling_device]
        place = accelerator_of(devices[worker % len(devices)], f"worker_devices[{worker % len(devices)}]")
        is_pinned = place is not None and not place.is_host
        stream = Stream(connection, request, self.scheduler, self._ended, is_pinned)
        try:
            loop = ScheduledLoop(self.loop, self.scheduler, stream.flow)
            others = {int(part): self._map_other(path, int(part)) for part, path in request["other_dirs"].items()}
            peers = [Peer(**each) for each in request["peers"]]
            server, part = self.spec.server_rank, self.dataset.partition_idx
            me = Peer(f"server-{server}-w{worker}", server, worker, socket.gethostname(), os.getpid(), part, "server")
            router = PartitionRouter(self.transport, peers, me, self.dataset.num_partitions) if peers else None
            job = SamplingJob.from_json(request, SeedTable.read(memory))
            sampler = sampler_of(job, place, self.dataset, others, router, loop, spare=self._spare)
            share = request["first"], request["step"]
            role = f"worker {worker} of server"
            stream.producer = Producer(sampler, stream.channel, job, share, role, server)
        except BaseException:
            self.scheduler.remove(stream.flow)
            raise
        return stream

    def _map_other(self, path: str, part: int) -> LocalPartition:
        with self._lock:
            if (path, part) not in self._others:
                self._others[path, part] = self.dataset.map_other(path, part)
            return self._others[path, part]

    def _ended(self, stream: Stream) -> None:
        with self._reporting:
            with self._lock:
                ended = [key for key, each in self._streams.items() if each is stream]
                for key in ended:
                    del self._streams[key]
            for key in ended:
                self.owner.say({"ended": key, "stats": stream.stats()})
        logger.info("stream of %s ended: %s", stream.name, stream.why)

    def beat(self) -> None:
        with self._reporting:
            with self._lock:
                streams = list(self._streams.items())
            for first in range(0, max(1, len(streams)), _BEAT_STREAMS):
                some = streams[first : first + _BEAT_STREAMS]
                self.owner.say({"beat": {key: stream.stats() for key, stream in some}})


def may_use_gpu(spec: PoolWorkerSpec) -> bool:
    """Whether a loader may have this process sample on a GPU, whatever device the dataset was loaded for."""
    return spec.dataset["graph_mode"] != "CPU" and missing_for_cuda() is None


def start(owner: Owner, fields: dict[str, Any]) -> PoolWorker:
    spec = PoolWorkerSpec(**fields)
    allow_descriptors()
    if not may_use_gpu(spec):
        keep_freed_memory()
    write_logs(spec.log_format, spec.log_level, spec.server_rank, spec.worker)
    return PoolWorker(owner, spec)


if __name__ == "__main__":
    run_program(start)
