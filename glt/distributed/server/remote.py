"""Sampling on servers: the client's end of its streams."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt.channel.channel import named_counts
from glt.channel.message import Message, read_message
from glt.distributed.engine.producer import EpochStart
from glt.distributed.engine.seeds import SamplingJob
from glt.distributed.options import RemoteDistSamplingWorkerOptions
from glt.distributed.server.client import DistClient, Reply, ServerSession, refuse_fork
from glt.distributed.wire.old_connection import Connection
from glt.distributed.wire.old_listener import dial, introduce
from glt.errors import ChannelTimeout, GltError, PeerLost

logger = logging.getLogger(__name__)

_MAX_BATCH_BYTES = 64 << 30


class _Stream:
    def __init__(self, connection: Connection, session: ServerSession, loader: str, worker: int) -> None:
        self.connection, self.session, self.loader, self.worker = connection, session, loader, worker
        self.arrived: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()  # None: the stream ended
        self.error: GltError | None = None
        self.is_closed = False  # by this process, which shut the loader down
        self.num_arrived = self.arrived_bytes = 0
        self.num_taken = self.taken_bytes = 0
        self.num_waits, self.wait_s = 0, 0.0
        threading.Thread(target=self._receive, name="glt-stream", daemon=True).start()

    def __str__(self) -> str:
        return f"worker {self.worker} of {self.session.entry}"

    def _receive(self) -> None:
        try:
            while True:
                try:
                    message = self.connection.receive_data(deadlines.POLL_S)
                except ChannelTimeout:
                    self.connection.check_beats(self.session.entry.host)
                    continue
                self.num_arrived += 1
                self.arrived_bytes += message.numel()
                self.arrived.put(message)
        except GltError as error:
            self.error = error
            self.arrived.put(None)

    def take(self, wait: bool) -> Message | None:
        """Waits for the next message while the sampler gives signs of life; without ``wait`` returns None at once."""
        is_there = self.arrived.qsize() > 0
        if not (wait or is_there):
            return None
        start = time.perf_counter()
        message = self.arrived.get()
        if message is None:
            self.arrived.put(None)
            raise self._failure()
        if not is_there:
            self.num_waits += 1
            self.wait_s += time.perf_counter() - start
        self.num_taken += 1
        self.taken_bytes += message.numel()
        self.send({"taken": self.num_taken})
        return read_message(message)

    def send(self, command: dict[str, Any], timeout_s: float | None = None) -> None:
        try:
            self.connection.send(command, deadlines.STUCK_S if timeout_s is None else timeout_s)
        except GltError as error:
            logger.debug("%s", error)  # the thread that receives hears of it

    def close(self) -> None:
        self.is_closed = True
        self.send({"close": True})
        self.connection.close()

    def _failure(self) -> Exception:
        """What to raise for a stream that ended: the server knows more than the connection."""
        deadline = time.monotonic() + deadlines.CAUSE_S
        while time.monotonic() < deadline and not self.is_closed:
            if failure := self.session.failure_of(self.loader, self.worker, deadlines.POLL_S):
                return failure
        if self.is_closed:
            return RuntimeError("the loader was shut down while a batch was awaited")
        return self.error if isinstance(self.error, PeerLost) else PeerLost(f"lost {self}: {self.error}")


def open_stream(session: ServerSession, loader: str, worker: int, share: dict[str, int], deadline: float) -> _Stream:
    """Opens the stream of one sampler, which makes the batches of ``share`` (``first`` and ``step``). Tries until the
    deadline while the server lives: other clients may have taken all places of the port."""
    hello = introduce("stream", session=session.id, loader=loader, worker=worker, **share)
    peer, address = f"worker {worker} of {session.entry}", (session.entry.address, session.entry.port)
    while True:
        left_s = max(0.1, deadline - time.monotonic())
        try:
            connection, _ = dial(address, peer, hello, left_s, max_bytes=_MAX_BATCH_BYTES, retry=False)
            return _Stream(connection, session, loader, worker)
        except PeerLost as error:
            failure = session.failure_of(loader, worker, deadlines.RETRY_S)
            if failure is not None or time.monotonic() > deadline:
                raise (failure or error) from error


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
        self._created: list[tuple[ServerSession, str, list[int]]] = []  # and the loader's id and workers there
        self._finalizer = weakref.finalize(self, _end, self._pid, self._streams, self._created)
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
            for session, _, workers in self._created:
                if (count := len(workers)) < num_workers:
                    text = (
                        "%s gives this loader %d of the %d samplers asked for: max_workers is %d; batches are the same"
                    )
                    logger.warning(text, session.entry, count, num_workers, count)
            samplers = [(session, loader, worker) for session, loader, workers in self._created for worker in workers]
            for first, (session, loader, worker) in enumerate(samplers):
                share = {"first": first, "step": len(samplers)}
                self._streams.append(open_stream(session, loader, worker, share, deadline))
        except BaseException:
            self.close()
            raise

    def _take_granted(self, sessions: list[ServerSession], replies: list[Reply]) -> None:
        """If one server refuses, the loaders of the others are known all the same, to be given back."""
        refused = None
        for session, reply in zip(sessions, replies, strict=True):
            try:
                loader = reply.result()
                self._created.append((session, loader["id"], loader["workers"]))
            except Exception as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def start_epoch(self, start: EpochStart) -> None:
        self._refuse_fork()
        for stream in self._streams:
            stream.send({"start": start.to_json()})

    def drain(self) -> None:
        """Ends sampling for this loader. Waits for nothing: a collection may call it under any lock."""
        for stream in self._streams:
            stream.send({"drain": True}, timeout_s=0.0)

    def receive(self, index: int, wait: bool = True) -> Message | None:
        """The next message of the sampler that makes batch ``index``; None if it is not there and not ``wait``. Raises
        WorkerDied if that sampler died, PeerLost if its server is gone, RuntimeError in a fork or after shutdown."""
        self._refuse_fork()
        return self._streams[index % len(self._streams)].take(wait)

    def _refuse_fork(self) -> None:
        refuse_fork(self._pid, "iterate where the loader was created, or call init_client here and create another")

    def stats(self) -> dict[str, float]:
        """As :meth:`glt.channel.Channel.stats`, of all streams: sent is what has arrived here."""

        def total(name: str) -> float:
            return sum(getattr(each, name) for each in self._streams)

        # Arrivals are read last, so that no fewer have arrived than were taken.
        received = {"messages": total("num_taken"), "bytes": total("taken_bytes"), "copied": 0}
        received |= {"waits": total("num_waits"), "wait_s": total("wait_s")}
        sent = {"messages": total("num_arrived"), "bytes": total("arrived_bytes"), "oversize": 0}
        return named_counts(sent | {"waits": 0, "wait_s": 0.0}, received) | {"num_streams": len(self._streams)}

    def close(self, all_finished: bool = False) -> None:
        self._finalizer()


def _end(pid: int, streams: list[_Stream], created: list[tuple[ServerSession, str, list[int]]]) -> None:
    if os.getpid() != pid:
        return  # a fork: the connections are its parent's to end
    for stream in streams:
        stream.close()
    for session, loader, _ in created:
        _give_back(session, {"id": loader})


def _give_back(session: ServerSession, granted: dict[str, Any]) -> None:
    try:
        if session.lost is None:
            session.call("glt.close_loader", granted["id"])  # not waited for
    except GltError as error:
        logger.debug("%s", error)
