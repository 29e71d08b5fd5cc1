"""The program of a server's sampling process: ``python -m glt.distributed.server.worker SOCKET SPEC``.

It maps the partition once and samples for any number of loaders, in turn: each has a stream of batches to its client,
which connects to this process itself. Its commands, beside those of :mod:`glt.distributed.engine.processes`::

    server -> worker   {"servers": [entry, ...]}               those that are there, now
                       {"loader": ...} + memory of seeds       its client may open a stream
                       {"close": id, "why": text}
    worker -> server   {"listens": {"port": n, "local": name}} before it is ready
                       {"beat": {stream: stats}} every second, in parts if there are many, and
                       {"ended": stream, "stats": stats}
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import check_count
from glt.channel.shm import SharedMemory
from glt.data.device import Accelerator, accelerator_of, missing_for_cuda
from glt.distributed.engine.client_rows import ClientRows, client_rows
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.device_sampler import sampler_of
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.processes import Owner, keep_freed_memory, run_program
from glt.distributed.engine.producer import Producer
from glt.distributed.engine.row_lookup import RowCache, row_caches
from glt.distributed.engine.sampler import DistNeighborSampler
from glt.distributed.engine.sampling_job import SamplingJob, SeedTable
from glt.distributed.server.answers import Answers
from glt.distributed.server.membership import ServerEntry
from glt.distributed.server.options import write_logs
from glt.distributed.server.pool import PoolWorkerSpec
from glt.distributed.server.scheduler import FairScheduler, Flow, ScheduledLoop
from glt.distributed.server.stream import Stream
from glt.distributed.wire.addresses import allow_descriptors
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.handshake import introduce, refuse
from glt.distributed.wire.listener import Listener, LocalListener
from glt.distributed.wire.tcp import PartitionServer, TcpTransport
from glt.distributed.wire.threads import ConcurrentEventLoop, NativePool
from glt.distributed.wire.transport import Peer

logger = logging.getLogger("glt.distributed.server.worker")  # it runs as __main__, too

_BEAT_STREAMS = 64  # in one packet
_OPENING_THREADS = 2  # samplers are made on them, for which files may have to be mapped


@dataclass(frozen=True)
class _Granted:
    """A loader whose client may open a stream here, with the secret that it shows; ``wrong``: why it may not."""

    request: dict[str, Any]
    table: SeedTable | None
    wrong: str = ""


class PoolWorker:
    def __init__(self, owner: Owner, spec: PoolWorkerSpec) -> None:
        self.owner, self.spec = owner, spec
        self.dataset = DistDataset.from_json(spec.dataset)
        self.loop = ConcurrentEventLoop(spec.num_places)
        self.scheduler = FairScheduler(spec.num_places)
        handlers, timeout_s = self.dataset.own.handlers(), max(deadlines.STUCK_S, spec.timeout_s)
        most_ids = self.dataset.own.most_ids
        self.partitions = PartitionServer(handlers, spec.server_rank, spec.num_rpc_threads, timeout_s, most_ids)
        self._servers: dict[int, ServerEntry] = {}
        self.transport = TcpTransport(self._addresses, list(handlers), spec.timeout_s, others=self._others_like)
        self._lock, self._mapping = threading.Lock(), threading.Lock()  # the loop takes the first, and never waits long
        self._others: dict[tuple[str, int], LocalPartition] = {}  # partitions mapped besides, by directory and index
        self._granted: dict[str, _Granted] = {}  # by id; of loaders that are open
        self._streams: dict[str, Stream | Answers] = {}
        self._ended: list[tuple[str, Stream | Answers]] = []  # of which the owner is yet to hear
        self._num_streams = 0  # so far
        self._opening = NativePool(_OPENING_THREADS, "glt-open")
        self._caches: list[RowCache | None] | None = None  # of all loaders, made when other servers are asked
        self._spare: list[_core.Batch] = []  # as many as batches were in flight at a time, over all loaders
        name, port = f"worker {spec.worker} of server {spec.server_rank}", 0
        if spec.first_port is not None:
            port = spec.first_port + spec.worker
        # Others are told the server's address: that of this host, which the listener looks up, is not needed.
        self._listener = Listener((spec.host, port), name, ("127.0.0.1", 1), self._welcome, "sampler_port")
        self._local = LocalListener(self._welcome)
        for each in (self._listener, self._local):
            each.open()
        owner.say({"listens": {"port": self._listener.address[1], "local": self._local.name}})

    def _addresses(self, peer: Peer) -> list[tuple[str, int]]:
        entry = self._servers.get(peer.rank)
        is_there = entry is not None and entry.partition_idx == peer.partition_idx
        return [(entry.address, entry.port)] if entry is not None and is_there else []

    def _others_like(self, peer: Peer) -> list[Peer]:
        """Other servers that have loaded the partition of one."""
        same = [each for each in self._servers.values() if each.partition_idx == peer.partition_idx]
        first = self.spec.server_rank
        # Those who ask the same server do not all go to the same other one.
        same.sort(key=lambda each: (each.rank - first) % each.num_servers)
        return [each.peer() for each in same if each.rank not in (peer.rank, first)]

    # -- commands --------------------------------------------------------------------------------------------------

    def obey(self, command: dict[str, Any], fds: list[int]) -> None:
        if "servers" in command:
            self._servers = {each["rank"]: ServerEntry(**each) for each in command["servers"]}
        elif "loader" in command:
            self._grant(command["loader"], fds)
        elif "close" in command:
            with self._lock:
                self._granted.pop(command["close"], None)
                streams = [each for each in self._streams.values() if each.name == command["close"]]
            for each in streams:
                each.close(command["why"])
        else:
            raise ValueError(f"unknown command {sorted(command)}")

    def _grant(self, request: dict[str, Any], fds: list[int]) -> None:
        if fds:
            with SharedMemory.from_fd(fds[0], request["seeds_bytes"]) as memory:
                granted = _Granted(request, SeedTable.read(memory))
        else:
            remedy = "shut loaders down that are not needed, or raise the server's limit (ulimit -n)"
            granted = _Granted(request, None, f"it is out of file descriptors: {remedy}")
        with self._lock:
            self._granted[request["id"]] = granted

    # -- connections -----------------------------------------------------------------------------------------------

    async def _welcome(self, connection: Connection, hello: dict[str, Any]) -> None:
        kind = hello["kind"]
        if kind in ("stream", "questions"):
            await self._open(connection, hello)
        elif kind == "partition":
            self.partitions.serve(connection)
        else:
            refuse(connection, f"kind = {kind!r}: expected stream, questions or partition")

    async def _open(self, connection: Connection, hello: dict[str, Any]) -> None:
        id_, kind, share = str(hello["loader"]), hello["kind"], (hello["first"], hello["step"])
        check_count("step", share[1], 1, 1 << 31)
        check_count("first", share[0], 0, share[1] - 1)
        granted = await self._granted_to(id_, str(hello["secret"]))
        if granted is None:
            logger.warning("no stream for %s: loader %r is not known here", connection.peer, id_)
            refuse(connection, f"loader {id_!r} is not known here: it was closed, or its client lost")
            return
        connection.peer = granted.request["client"]
        stream: Stream | Answers | None = None
        try:
            if granted.wrong:
                raise OSError(granted.wrong)
            if kind != granted.request["kind"]:
                raise ValueError(f"kind = {kind!r}: the loader was opened for {granted.request['kind']!r}")
            is_here = connection.socket.family == socket.AF_UNIX
            if kind == "stream":
                cache_bytes = hello.get("cache_bytes", 0)
                check_count("cache_bytes", cache_bytes, 0, granted.request["cache_bytes"])
                opening: Future[Any] = self._opening.submit(self.stream, granted, share, is_here, cache_bytes)
            else:
                opening = self._opening.submit(self.answers, granted, share, is_here)
            stream = made = await asyncio.wrap_future(opening)
            for each in self._enter(made, granted.request["most_streams"]):
                each.close("the client opened it again")
            made.start(connection, introduce(kind, worker=self.spec.worker))
        except Exception as error:
            logger.warning("loader %s could not be opened: %s", id_, error)
            text = f"worker {self.spec.worker} cannot sample for it: {type(error).__name__}: {error}"
            refuse(connection, text)
            if stream is not None:
                stream.close(text)

    def _enter(self, made: Stream | Answers, most: int) -> list[Stream | Answers]:
        """Takes one into the books; returns those in whose place it is. Raises if its loader has no room for it."""
        with self._lock:
            if made.name not in self._granted:
                raise LookupError(f"loader {made.name!r} was closed meanwhile")
            others = [each for each in self._streams.values() if each.name == made.name]
            earlier = [each for each in others if each.share == made.share]
            if len(others) - len(earlier) >= most:
                raise RuntimeError(
                    f"{len(others)} streams of loader {made.name!r} are open here, and it was granted {most}"
                )
            self._num_streams += 1
            self._streams[f"{made.name}/{self._num_streams}"] = made
            return earlier

    async def _granted_to(self, id_: str, secret: str) -> _Granted | None:
        """What this process was told of a loader, or soon is: the client may be faster than its server. None if the
        secret is another one."""
        until_s = time.monotonic() + deadlines.SEND_S
        while (granted := self._granted.get(id_)) is None:
            if time.monotonic() > until_s:
                return None
            await asyncio.sleep(deadlines.FAST_POLL_S)
        return granted if hmac.compare_digest(granted.request["secret"], secret) else None

    # -- loaders ---------------------------------------------------------------------------------------------------

    def stream(self, granted: _Granted, share: tuple[int, int], is_here: bool, cache_bytes: int) -> Stream:
        """Makes the stream of a loader, ``share`` of it, to a client that is on this host, or has room for
        ``cache_bytes`` of rows."""
        place = self._place(granted)
        is_pinned = place is not None and not place.is_host
        stream = Stream(granted.request, share, self.scheduler, self._note_end, is_here, is_pinned)
        try:
            if cache_bytes and place is None and stream.ring is None and granted.request["collect_features"]:
                stream.clients = client_rows(self.dataset, cache_bytes)
            job, sampler = self._sampler(granted, place, stream.flow, stream.clients or None)
            stream.producer = Producer(sampler, stream.channel, job, share, self._role, self.spec.server_rank)
        except BaseException as error:
            stream.close(f"its sampler could not be made: {error}")
            raise
        return stream

    def answers(self, granted: _Granted, share: tuple[int, int], is_here: bool) -> Answers:
        """Makes what answers the questions of a client, ``share`` of them, which is on this host or is not."""
        me = self._role, self.spec.server_rank
        answers = Answers(granted.request, share, self.scheduler, self._note_end, *me, is_here)
        try:
            answers.job, answers.sampler = self._sampler(granted, self._place(granted), answers.flow)
        except BaseException as error:
            answers.close(f"its sampler could not be made: {error}")
            raise
        return answers

    @property
    def _role(self) -> str:
        return f"worker {self.spec.worker} of server"

    def _place(self, granted: _Granted) -> Accelerator | None:
        devices = granted.request.get("devices") or [self.dataset.sampling_device]
        at = self.spec.worker % len(devices)
        samplers = [devices[worker % len(devices)] for worker in granted.request["samplers"]]
        self.dataset.num_sharers = max(1, samplers.count(devices[at]))
        return accelerator_of(devices[at], f"worker_devices[{at}]")

    def _sampler(
        self,
        granted: _Granted,
        place: Accelerator | None,
        flow: Flow,
        clients: Sequence[ClientRows | None] | None = None,
    ) -> tuple[SamplingJob, DistNeighborSampler]:
        request, worker = granted.request, self.spec.worker
        assert granted.table is not None
        loop = ScheduledLoop(self.loop, self.scheduler, flow)
        others = {int(part): self._map_other(path, int(part)) for part, path in request["other_dirs"].items()}
        peers = [Peer(**each) for each in request["peers"]]
        server, part = self.spec.server_rank, self.dataset.partition_idx
        me = Peer(f"server-{server}-w{worker}", server, worker, socket.gethostname(), os.getpid(), part, "server")
        router = PartitionRouter(self.transport, peers, me, self.dataset.num_partitions) if peers else None
        job = SamplingJob.from_json(request, granted.table)
        caches = None if router is None else self._caches_of_all()
        more: dict[str, Any] = {"spare": self._spare, "caches": caches, "clients": clients}
        return job, sampler_of(job, place, self.dataset, others, router, loop, **more)

    def _caches_of_all(self) -> list[RowCache | None]:
        with self._mapping:
            if self._caches is None:
                own = {self.dataset.partition_idx: self.dataset.own}
                self._caches = row_caches(self.dataset, own, self.spec.cache_bytes)
            return self._caches

    def _map_other(self, path: str, part: int) -> LocalPartition:
        with self._mapping:
            if (path, part) not in self._others:
                self._others[path, part] = self.dataset.map_other(path, part)
            return self._others[path, part]

    def _note_end(self, stream: Stream | Answers) -> None:
        with self._lock:
            for key in [key for key, each in self._streams.items() if each is stream]:
                self._ended.append((key, self._streams.pop(key)))
        logger.info("stream of %s ended: %s", stream.name, stream.why)

    def beat(self) -> None:
        # First those that have ended: they are in no later beat.
        with self._lock:
            ended, self._ended = self._ended, []
            streams = list(self._streams.items())
        for key, stream in ended:
            self.owner.say({"ended": key, "stats": stream.stats()})
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
