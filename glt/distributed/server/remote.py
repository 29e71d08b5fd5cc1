"""Sampling on servers: the client's end of its streams."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt.channel.channel import named_counts
from glt.channel.message import Message, read_message
from glt.channel.shm import ShmChannel
from glt.distributed.engine.producer import EpochStart
from glt.distributed.engine.seeds import SamplingJob
from glt.distributed.options import RemoteDistSamplingWorkerOptions
from glt.distributed.server.client import DistClient, Reply, ServerSession, refuse_fork
from glt.distributed.server.stream import IN_FRAME, IN_RING
from glt.distributed.wire.addresses import host_id
from glt.distributed.wire.connection import Connection, Frame
from glt.distributed.wire.handshake import Address, connect, introduce
from glt.distributed.wire.threads import process_loop, wait_for
from glt.errors import ChannelClosed, ChannelTimeout, GltError, PeerLost, RendezvousError

logger = logging.getLogger(__name__)

_MAX_BATCH_BYTES = 64 << 30


class _Stream:
    """The client's end of a stream, over a connection that :func:`open_stream` made; ``ring`` is the shared memory
    through which batches of a sampler on this host come. Made and closed on the loop."""

    def __init__(
        self, connection: Connection, session: ServerSession, loader: str, worker: int, ring: ShmChannel | None
    ) -> None:
        self.connection, self.session, self.loader, self.worker = connection, session, loader, worker
        self.ring = ring
        # Messages, or for one in the ring its bytes; None: the stream ended.
        self.arrived: queue.SimpleQueue[Tensor | int | None] = queue.SimpleQueue()
        self.error: GltError | None = None
        self.is_closed = False  # by this process, which shut the loader down
        self.num_arrived = self.arrived_bytes = self.num_in_ring = 0
        self.num_taken = self.taken_bytes = 0
        self.num_waits, self.wait_s = 0, 0.0
        connection.start(self._take_in, self._end, max_data_bytes=_MAX_BATCH_BYTES, silence_s=deadlines.STUCK_S)

    def __str__(self) -> str:
        return f"worker {self.worker} of {self.session.entry}"

    def _take_in(self, frame: Frame) -> None:
        message: Tensor | int
        if frame.what == IN_RING and self.ring is not None:
            message = nbytes = frame.number
            self.num_in_ring += 1
        elif frame.what == IN_FRAME and frame.data is not None:
            message, nbytes = frame.data, frame.data.numel()
        else:
            raise ValueError(f"what = {frame.what} without a message: expected one in the frame or in the ring")
        self.num_arrived += 1
        self.arrived_bytes += nbytes
        self.arrived.put(message)

    def _end(self, error: GltError) -> None:
        self.error = error
        self.arrived.put(None)

    def take(self, wait: bool) -> Message | None:
        """Waits for the next message while the sampler gives signs of life; without ``wait`` returns None at once."""
        is_there = self.arrived.qsize() > 0
        if not (wait or is_there):
            return None
        start = time.perf_counter()
        arrived = self.arrived.get()
        if arrived is None:
            self.arrived.put(None)
            raise self._failure()
        if not is_there:
            self.num_waits += 1
            self.wait_s += time.perf_counter() - start
        message = self._from_ring() if isinstance(arrived, int) else read_message(arrived)
        self.num_taken += 1
        self.taken_bytes += arrived if isinstance(arrived, int) else arrived.numel()
        self.send({"taken": self.num_taken})
        return message

    def _from_ring(self) -> Message:
        """The next message there. It was complete before it was announced, unless it comes in pieces."""
        assert self.ring is not None
        while True:
            try:
                return self.ring.receive(deadlines.POLL_S)
            except ChannelTimeout as error:
                if self.error is not None:
                    raise self._failure() from error
            except ChannelClosed as error:
                raise self._failure() from error

    def send(self, command: dict[str, Any]) -> None:
        try:
            self.connection.send(command)
        except GltError as error:
            logger.debug("%s", error)  # the end of the stream is heard of on the loop

    def send_later(self, command: dict[str, Any]) -> None:
        """As :meth:`send`, after what was sent in this way before. A collection may call it under any lock, also that
        of the connection."""
        process_loop.get().call_soon_threadsafe(self.send, command)

    def close(self) -> None:
        """From any thread; may be called again."""
        self.is_closed = True
        self.send({"close": True})
        self.connection.close()
        if self.ring is not None:
            self.ring.close()

    def _failure(self) -> Exception:
        """What to raise for a stream that ended: the server knows more than the connection."""
        deadline = time.monotonic() + deadlines.CAUSE_S
        while time.monotonic() < deadline and not self.is_closed:
            if failure := self.session.failure_of(self.loader, self.worker, deadlines.POLL_S):
                return failure
        if self.is_closed:
            return RuntimeError("the loader was shut down while a batch was awaited")
        return self.error if isinstance(self.error, PeerLost) else PeerLost(f"lost {self}: {self.error}")


# -- opening -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Granted:
    """A loader that a server has opened for this client, who shows its samplers the secret."""

    session: ServerSession
    id: str
    secret: str
    workers: list[int]


async def open_streams(granted: Sequence[_Granted], deadline: float) -> list[_Stream]:
    """Opens the streams of all samplers, which share the batches."""
    samplers = [(each, worker) for each in granted for worker in each.workers]
    opening = [
        asyncio.ensure_future(open_stream(each, worker, {"first": first, "step": len(samplers)}, deadline))
        for first, (each, worker) in enumerate(samplers)
    ]
    try:
        return list(await asyncio.gather(*opening))
    except BaseException:
        for each in opening:
            each.cancel()
        for done in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(done, _Stream):
                done.close()
        raise


async def open_stream(loader: _Granted, worker: int, share: dict[str, int], deadline: float) -> _Stream:
    """Opens the stream of one sampler, which makes the batches of ``share`` (``first`` and ``step``). Tries until the
    deadline while the server lives: the sampler may be replaced meanwhile."""
    session = loader.session
    while True:
        left_s = max(0.1, deadline - time.monotonic())
        try:
            asked = session.call_within(left_s, "glt.stream_at", loader.id, worker)
            where = await asyncio.wrap_future(asked)
            if "wait" not in where:
                return await _open_at(where, loader, worker, share, left_s)
            error = PeerLost(where["wait"])
        except PeerLost as lost:
            error = lost
        if session.lost is not None or time.monotonic() > deadline:
            raise session.failure_of(loader.id, worker, 0.0) or error
        await asyncio.sleep(deadlines.RETRY_S)


async def _open_at(
    where: dict[str, Any], loader: _Granted, worker: int, share: dict[str, int], left_s: float
) -> _Stream:
    entry = loader.session.entry
    hello, peer = introduce("stream", loader=loader.id, secret=loader.secret, **share), f"worker {worker} of {entry}"
    addresses: list[Address] = [(entry.address, where["port"])]
    if where["host_id"] == host_id():
        addresses.insert(0, where["local"])
    for i, address in enumerate(addresses):
        try:
            connection, answer = await connect(address, peer, hello, left_s, retry=False)
            break
        except (PeerLost, RendezvousError):  # of a container that shares the host's name, or of another user
            if i == len(addresses) - 1:
                raise
    try:
        ring = None
        if "ring" in answer:
            if not connection.fds:
                raise PeerLost(f"the memory of {peer} did not come: this process is out of descriptors (ulimit -n)")
            ring = ShmChannel.from_descriptor({**answer["ring"], "fd": connection.fds.pop()})
        return _Stream(connection, loader.session, loader.id, worker, ring)
    except BaseException:
        connection.close()
        raise


class RemoteSampler:
    """Samplers on servers, with the interface of :class:`glt.distributed.engine.worker.WorkerGroup`.

    Batch ``i`` comes from stream ``i % num_streams``: batches arrive in index order without being sorted. Raises
    RuntimeError or MemoryError if a server takes no more loaders, PeerLost or RendezvousError if one is gone.
    """

    def __init__(
        self,
        client: DistClient,
        server_ranks: Sequence[int],
        job: SamplingJob,
        options: RemoteDistSamplingWorkerOptions,
    ) -> None:
        self._pid = os.getpid()
        self._streams: list[_Stream] = []
        self._created: list[_Granted] = []
        # A collection may come under any lock, also one of these connections: it ends them on the loop.
        self._finalizer = weakref.finalize(self, _end_later, self._pid, self._streams, self._created)
        num_workers, timeout_s = options.num_workers, options.rpc_timeout
        request = {
            **job.to_json(),
            "concurrency": options.worker_concurrency,
            "buffer_bytes": options.buffer_bytes,
            "prefetch_size": options.prefetch_size,
            "devices": options.devices,
        }
        arguments = (request, job.table.columns, job.table.extras, num_workers)
        try:
            sessions = [client.session(rank) for rank in server_ranks]
            deadline = time.monotonic() + timeout_s
            replies = [each.call_within(timeout_s, "glt.create_loader", *arguments) for each in sessions]
            for session, reply in zip(sessions, replies, strict=True):
                reply.too_late = partial(_give_back, session)
            self._take_granted(sessions, replies)
            for each in self._created:
                if (count := len(each.workers)) < num_workers:
                    text = (
                        "%s gives this loader %d of the %d samplers asked for: max_workers is %d; batches are the same"
                    )
                    logger.warning(text, each.session.entry, count, num_workers, count)
            self._streams += wait_for(open_streams(self._created, deadline))
        except BaseException:
            self.close()
            raise

    def _take_granted(self, sessions: list[ServerSession], replies: list[Reply]) -> None:
        """If one server refuses, the loaders of the others are known all the same, to be given back."""
        refused = None
        for session, reply in zip(sessions, replies, strict=True):
            try:
                loader = reply.result()
                self._created.append(_Granted(session, loader["id"], loader["secret"], loader["workers"]))
            except Exception as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def start_epoch(self, start: EpochStart) -> None:
        self._refuse_fork()
        for stream in self._streams:
            stream.send_later({"start": start.to_json()})

    def drain(self) -> None:
        """Ends sampling for this loader. Waits for nothing: a collection may call it under any lock."""
        for stream in self._streams:
            stream.send_later({"drain": True})

    def receive(self, index: int, wait: bool = True) -> Message | None:
        """The next message of the sampler that makes batch ``index``; None if it is not there and not ``wait``. Raises
        WorkerDied if that sampler died, PeerLost if its server is gone, RuntimeError in a fork or after shutdown."""
        self._refuse_fork()
        return self._streams[index % len(self._streams)].take(wait)

    def _refuse_fork(self) -> None:
        refuse_fork(self._pid, "iterate where the loader was created, or call init_client here and create another")

    def stats(self) -> dict[str, float]:
        """As :meth:`glt.channel.Channel.stats`, of all streams: sent is what has arrived here, which may lie in shared
        memory (``num_in_ring``, of ``num_sent``) or have had no room there (``num_oversize``)."""

        def total(name: str) -> float:
            return sum(getattr(each, name) for each in self._streams)

        rings = [each for each in self._streams if each.ring is not None]
        copied = sum(each.ring.stats()["num_copied"] for each in rings if each.ring is not None)
        # Arrivals are read last, so that no fewer have arrived than were taken.
        received = {"messages": total("num_taken"), "bytes": total("taken_bytes"), "copied": copied}
        received |= {"waits": total("num_waits"), "wait_s": total("wait_s")}
        oversize = sum(each.num_arrived - each.num_in_ring for each in rings)
        sent = {"messages": total("num_arrived"), "bytes": total("arrived_bytes"), "oversize": oversize}
        counts = named_counts(sent | {"waits": 0, "wait_s": 0.0}, received)
        return counts | {"num_streams": len(self._streams), "num_in_ring": total("num_in_ring")}

    def close(self, all_finished: bool = False) -> None:
        if self._finalizer.detach() is not None:
            _end(self._pid, self._streams, self._created)


def _end_later(pid: int, streams: list[_Stream], created: list[_Granted]) -> None:
    if os.getpid() == pid:
        process_loop.get().call_soon_threadsafe(_end, pid, streams, created)


def _end(pid: int, streams: list[_Stream], created: list[_Granted]) -> None:
    if os.getpid() != pid:
        return  # a fork: the connections are its parent's to end
    for stream in streams:
        stream.close()
    for each in created:
        _give_back(each.session, {"id": each.id})


def _give_back(session: ServerSession, granted: dict[str, Any]) -> None:
    try:
        if session.lost is None:
            session.call("glt.close_loader", granted["id"])  # not waited for
    except GltError as error:
        logger.debug("%s", error)
