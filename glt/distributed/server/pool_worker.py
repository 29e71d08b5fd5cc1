"""The program of a server's sampling process: ``python -m glt.distributed.server.pool_worker SOCKET SPEC``.

It maps the partition once and samples for any number of loaders, in turn. Its commands, beside those of
:mod:`glt.distributed.engine.processes`::

    server -> worker   {"servers": {rank: [host, port, host name, pid, partition]}}  who serves, now
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
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from glt import _core
from glt import _deadlines as deadlines
from glt.channel.shm import SharedMemory
from glt.data.device import accelerator_of, missing_for_cuda
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.device_sampler import sampler_of
from glt.distributed.engine.event_loop import ConcurrentEventLoop
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.processes import Owner, keep_freed_memory, run_program
from glt.distributed.engine.producer import Producer
from glt.distributed.engine.seeds import SamplingJob, SeedTable
from glt.distributed.server.log import write_logs
from glt.distributed.server.pool import PoolWorkerSpec
from glt.distributed.server.stream import Lane, Stream, Turns, Window
from glt.distributed.wire.connection import Connection, allow_descriptors, pulse
from glt.distributed.wire.listener import introduce
from glt.distributed.wire.transport import PartitionServer, Peer, TcpTransport
from glt.errors import GltError

# A loader's share of the event loop of a sampling process.


T = TypeVar("T")


class LoopShare(ConcurrentEventLoop):
    """Runs the batches of one loader on the loop that all loaders of the process share, when it is their turn.

    Args:
        loop: The shared loop, with as many places as ``turns``.
        turns: Who comes next.
        lane: That of the loader.
    """

    def __init__(self, loop: ConcurrentEventLoop, turns: Turns, lane: Lane) -> None:  # the shared threads are enough
        self._shared, self._turns, self._lane = loop, turns, lane
        self.concurrency = lane.most
        self._closed = False
        self._lock = threading.Lock()
        self._tasks: set[concurrent.futures.Future[Any]] = set()  # of this loader alone

    def submit(
        self, make_task: Callable[[], Coroutine[Any, Any, T]], is_stopped: Callable[[], bool] = lambda: False
    ) -> concurrent.futures.Future[T] | None:
        def is_over() -> bool:
            return self._closed or is_stopped()

        if not self._turns.acquire(self._lane, is_over):
            return None
        future = self._shared.submit(make_task, is_over)
        if future is None:
            self._turns.release(self._lane)
        else:
            with self._lock:
                self._tasks.add(future)
            future.add_done_callback(self._done)
        return future

    def _done(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._tasks.discard(future)
        self._turns.release(self._lane)

    def create_future(self) -> asyncio.Future[None]:
        return self._shared.create_future()

    def run_native(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return self._shared.run_native(call, *args)

    def shutdown(self, timeout_s: float = deadlines.JOIN_S) -> None:
        """Begins nothing more; the loop itself goes on for others."""
        self._closed = True
        self._turns.interrupt(self._lane)


_BEAT_STREAMS = 64  # told of in one packet

logger = logging.getLogger("glt.distributed.server.pool_worker")  # not __main__


class PoolWorker:
    """A sampling process of a server."""

    def __init__(self, owner: Owner, spec: PoolWorkerSpec) -> None:
        self.owner, self.spec = owner, spec
        self.dataset = DistDataset.from_json(spec.dataset)
        self.loop = ConcurrentEventLoop(spec.num_places)
        self.turns = Turns(spec.num_places)
        handlers = self.dataset.own.handlers()
        self.partitions = PartitionServer(
            handlers, spec.server_rank, spec.num_rpc_threads, max(deadlines.STUCK_S, spec.timeout_s)
        )
        self.transport = TcpTransport(self._address, list(handlers), spec.timeout_s)
        self._lock = threading.Lock()
        self._servers: dict[int, list[Any]] = {}
        self._others: dict[str, LocalPartition] = {}  # partitions mapped besides, by directory and index
        self._telling = threading.Lock()  # of a stream that has ended no more is told
        self._streams: dict[str, Stream] = {}
        self._num_streams = 0  # so far
        self._spare: list[_core.Batch] = []  # as many as batches were in flight at a time, over all loaders

    def _address(self, rank: int) -> tuple[str, int] | None:
        found = self._servers.get(rank)
        return None if found is None else (found[0], found[1])

    # -- commands --------------------------------------------------------------------------------------------------

    def obey(self, command: dict[str, Any], fds: list[int]) -> None:
        if "servers" in command:
            self._servers = {int(rank): server for rank, server in command["servers"].items()}
        elif "serve" in command:
            connection = Connection(socket.socket(fileno=fds[0]), command["serve"], 1 << 36)
            try:
                connection.send(introduce("partition"))
            except GltError as error:
                logger.info("%s", error)
                connection.close()
            else:
                self.partitions.serve(connection)
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

    def _open(self, told: dict[str, Any], connection_fd: int, seeds_fd: int) -> None:
        connection = Connection(socket.socket(fileno=connection_fd), told["client"])
        memory = SharedMemory.from_fd(seeds_fd, told["seeds_bytes"])
        stream = Stream(connection, told["id"], Window(told["prefetch_size"], told["buffer_bytes"]), self._ended)
        lane = self.turns.add(told["concurrency"], stream.may_begin)
        stream.num_running = lambda: lane.num_running
        stream.made_room = self.turns.look_again
        with self._lock:
            self._num_streams += 1
            key = f"{told['id']}/{self._num_streams}"
        try:
            producer = self._producer(told, memory, stream, LoopShare(self.loop, self.turns, lane))
            connection.send(introduce("stream", worker=self.spec.worker))
            stream.lane = lane
            with self._lock:
                self._streams[key] = stream
            stream.start(producer)
            pulse.add(connection)
        except Exception as error:
            self.turns.remove(lane)
            logger.warning("loader %s could not be opened: %s", told["id"], error)
            text = f"worker {self.spec.worker} cannot sample for it: {type(error).__name__}: {error}"
            try:
                connection.send({"refused": text})
            except GltError as gone:
                logger.info("%s", gone)
            stream.close(text)

    def _producer(self, told: dict[str, Any], memory: SharedMemory, stream: Stream, loop: LoopShare) -> Producer:
        others = {int(part): self._map_other(path, int(part)) for part, path in told["other_dirs"].items()}
        peers = [Peer(**each) for each in told["peers"]]
        router = PartitionRouter(self.transport, peers, self._me(), self.dataset.num_partitions) if peers else None
        worker = self.spec.worker
        devices = told.get("devices") or [self.dataset.sampling_device]
        place = accelerator_of(devices[worker % len(devices)], f"worker_devices[{worker % len(devices)}]")
        if place is not None and not place.is_host:
            stream.pin()
        job = SamplingJob.from_json(told, SeedTable.read(memory))
        sampler = sampler_of(job, place, self.dataset, others, router, loop, spare=self._spare)
        share = told["first"], told["step"]
        return Producer(sampler, stream.channel, job, share, f"worker {worker} of server", self.spec.server_rank)

    def _me(self) -> Peer:
        return Peer(
            f"server-{self.spec.server_rank}-w{self.spec.worker}",
            self.spec.server_rank,
            self.spec.worker,
            socket.gethostname(),
            os.getpid(),
            self.dataset.partition_idx,
            "server",
        )

    def _map_other(self, path: str, part: int) -> LocalPartition:
        key = f"{path}/{part}"
        with self._lock:
            if key not in self._others:
                self._others[key] = self.dataset.map_other(path, part)
            return self._others[key]

    def _ended(self, stream: Stream) -> None:
        if stream.lane is not None:
            self.turns.remove(stream.lane)
        with self._telling:
            with self._lock:
                ended = [key for key, each in self._streams.items() if each is stream]
                for key in ended:
                    del self._streams[key]
            for key in ended:
                self.owner.say({"ended": key, "stats": stream.stats()})
        logger.info("stream of %s ended: %s", stream.name, stream.why)

    # -- signs of life ---------------------------------------------------------------------------------------------

    def beat(self) -> None:
        with self._telling:
            with self._lock:
                streams = list(self._streams.items())
            for first in range(0, max(1, len(streams)), _BEAT_STREAMS):
                told = streams[first : first + _BEAT_STREAMS]
                self.owner.say({"beat": {key: stream.stats() for key, stream in told}})


def may_use_gpu(spec: PoolWorkerSpec) -> bool:
    """Whether a loader may have this process sample on a GPU. Which device the dataset was loaded for does not tell: a
    loader names its own."""
    return spec.dataset["graph_mode"] != "CPU" and missing_for_cuda() is None


def start(owner: Owner, spec: dict[str, Any]) -> PoolWorker:
    """Starts the process as ``spec`` says, the fields of :class:`PoolWorkerSpec`."""
    told = PoolWorkerSpec(**spec)
    allow_descriptors()
    if not may_use_gpu(told):
        keep_freed_memory()
    write_logs(told.log_format, told.log_level, told.server_rank, told.worker)
    return PoolWorker(owner, told)


if __name__ == "__main__":
    run_program(start)
