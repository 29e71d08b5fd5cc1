"""The program of a server's sampling process: ``python -m glt.distributed.server.pool_worker SOCKET SPEC``.

It maps the partition once and samples for any number of loaders, in turn. Its commands, beside those of
:mod:`glt.distributed.engine.processes`::

    server -> worker   {"servers": {rank: [host, port]}}                              where servers are, now
                       {"serve": true} + connection of another server                answer its requests
                       {"loader": ...} + connection to a client, memory of seeds     sample for it
                       {"close": id}
    worker -> server   {"beat": {stream: stats}} every second, in parts if there are many, and
                       {"ended": stream, "stats": stats}
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Any

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
from glt.distributed.server.options import write_logs
from glt.distributed.server.pool import PoolWorkerSpec
from glt.distributed.server.stream import FairScheduler, ScheduledLoop, SendWindow, Stream
from glt.distributed.wire.connection import Connection, allow_descriptors, pulse
from glt.distributed.wire.listener import introduce, refuse
from glt.distributed.wire.transport import PartitionServer, Peer, TcpTransport
from glt.errors import GltError

logger = logging.getLogger("glt.distributed.server.pool_worker")  # not __main__

_BEAT_STREAMS = 64  # in one packet


class PoolWorker:
    """A sampling process of a server."""

    def __init__(self, owner: Owner, spec: PoolWorkerSpec) -> None:
        self.owner, self.spec = owner, spec
        self.dataset = DistDataset.from_json(spec.dataset)
        self.loop = ConcurrentEventLoop(spec.num_places)
        self.scheduler = FairScheduler(spec.num_places)
        handlers, timeout_s = self.dataset.own.handlers(), max(deadlines.STUCK_S, spec.timeout_s)
        self.partitions = PartitionServer(handlers, spec.server_rank, spec.num_rpc_threads, timeout_s)
        self._servers: dict[int, tuple[str, int]] = {}
        self.transport = TcpTransport(lambda rank: self._servers.get(rank), list(handlers), spec.timeout_s)
        self._lock = threading.Lock()
        self._others: dict[tuple[str, int], LocalPartition] = {}  # partitions mapped besides, by directory and index
        self._reporting = threading.Lock()  # a stream that has ended is in no later beat
        self._streams: dict[str, Stream] = {}
        self._num_streams = 0  # so far
        self._spare: list[_core.Batch] = []  # as many as batches were in flight at a time, over all loaders

    # -- commands --------------------------------------------------------------------------------------------------

    def obey(self, command: dict[str, Any], fds: list[int]) -> None:
        if "servers" in command:
            self._servers = {int(rank): (host, port) for rank, (host, port) in command["servers"].items()}
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
        """The stream of a loader, with what makes its batches."""
        worker, devices = self.spec.worker, request.get("devices") or [self.dataset.sampling_device]
        place = accelerator_of(devices[worker % len(devices)], f"worker_devices[{worker % len(devices)}]")
        window = SendWindow(request["prefetch_size"], request["buffer_bytes"])
        is_pinned = place is not None and not place.is_host
        stream = Stream(
            connection, request["id"], window, self.scheduler, request["concurrency"], self._ended, is_pinned
        )
        try:
            loop = ScheduledLoop(self.loop, self.scheduler, stream.flow)
            others = {int(part): self._map_other(path, int(part)) for part, path in request["other_dirs"].items()}
            peers = [Peer(**each) for each in request["peers"]]
            router = PartitionRouter(self.transport, peers, self._me(), self.dataset.num_partitions) if peers else None
            job = SamplingJob.from_json(request, SeedTable.read(memory))
            sampler = sampler_of(job, place, self.dataset, others, router, loop, spare=self._spare)
            share = request["first"], request["step"]
            role = f"worker {worker} of server"
            stream.producer = Producer(sampler, stream.channel, job, share, role, self.spec.server_rank)
        except BaseException:
            self.scheduler.remove(stream.flow)
            raise
        return stream

    def _me(self) -> Peer:
        server, worker, part = self.spec.server_rank, self.spec.worker, self.dataset.partition_idx
        return Peer(f"server-{server}-w{worker}", server, worker, socket.gethostname(), os.getpid(), part, "server")

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
    """Whether a loader may have this process sample on a GPU. Which device the dataset was loaded for does not tell: a
    loader names its own."""
    return spec.dataset["graph_mode"] != "CPU" and missing_for_cuda() is None


def start(owner: Owner, fields: dict[str, Any]) -> PoolWorker:
    """Starts the process with the fields of a :class:`PoolWorkerSpec`."""
    spec = PoolWorkerSpec(**fields)
    allow_descriptors()
    if not may_use_gpu(spec):
        keep_freed_memory()
    write_logs(spec.log_format, spec.log_level, spec.server_rank, spec.worker)
    return PoolWorker(owner, spec)


if __name__ == "__main__":
    run_program(start)
