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
from glt.channel.message import Message, read_message
from glt.distributed.engine.producer import EpochStart
from glt.distributed.engine.seeds import SamplingJob
from glt.distributed.options import RemoteDistSamplingWorkerOptions
from glt.distributed.server.client import DistClient, Reply, ServerLine, refuse_fork
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.listener import dial, introduce
from glt.errors import ChannelTimeout, GltError, PeerLost, RendezvousError, WorkerDied

logger = logging.getLogger(__name__)

_MAX_BATCH_BYTES = 64 << 30


class _Stream:
    """Batches from one sampler of one server, received on a thread as they come."""

    def __init__(self, connection: Connection, line: ServerLine, loader: str, worker: int) -> None:
        self.connection, self.line, self.loader, self.worker = connection, line, loader, worker
        self.arrived: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()  # None: the stream ended
        self.error: GltError | None = None
        self.is_closed = False  # here, by whoever shut the loader down
        self.num_arrived = self.arrived_bytes = 0
        self.num_taken = self.taken_bytes = 0
        self.num_waits, self.wait_s = 0, 0.0
        threading.Thread(target=self._receive, name="glt-stream", daemon=True).start()

    def __str__(self) -> str:
        return f"worker {self.worker} of {self.line.entry}"

    def _receive(self) -> None:
        try:
            while True:
                try:
                    message = self.connection.receive_data(deadlines.POLL_S)
                except ChannelTimeout:
                    self.connection.check_beats(self.line.entry.host)
                    continue
                self.num_arrived += 1
                self.arrived_bytes += message.numel()
                self.arrived.put(message)
        except GltError as error:
            self.error = error
            self.arrived.put(None)

    def take(self, wait: bool) -> Message | None:
        """Waits for the next message, for as long as the sampler gives signs of life; or returns None without."""
        if not wait and not self.arrived.qsize():
            return None
        start = None if self.arrived.qsize() else time.perf_counter()
        message = self.arrived.get()
        if message is None:
            self.arrived.put(None)
            raise self._ended()
        if start is not None:
            self.num_waits += 1
            self.wait_s += time.perf_counter() - start
        self.num_taken += 1
        self.taken_bytes += message.numel()
        self.tell({"taken": self.num_taken})
        return read_message(message)

    def tell(self, command: dict[str, Any], timeout_s: float = deadlines.STUCK_S) -> None:
        try:
            self.connection.send(command, timeout_s)
        except GltError as error:
            logger.debug("%s", error)  # whoever receives here hears of it

    def close(self) -> None:
        self.is_closed = True
        self.tell({"close": True})
        self.connection.close()

    def _ended(self) -> GltError | RuntimeError:
        """What to raise for a stream that ended: the server knows more than the connection."""
        deadline = time.monotonic() + deadlines.CAUSE_S
        while time.monotonic() < deadline:
            if self.is_closed:
                return RuntimeError("the loader was shut down while a batch was awaited")
            died = self.line.died.get((self.loader, self.worker))
            if died is not None:
                return WorkerDied(died)
            if self.line.lost is not None:
                return self.line.lost
            time.sleep(deadlines.FAST_POLL_S)
        return self.error if isinstance(self.error, PeerLost) else PeerLost(f"lost {self}: {self.error}")


class RemoteSampler:
    """Samplers on servers; the same interface as :class:`glt.distributed.engine.worker_group.WorkerGroup`.

    Batch ``i`` comes from stream ``i % num_streams``, so that batches arrive in index order without being sorted.

    Args:
        client: This process.
        server_ranks: Servers that sample.
        job: What to sample.
        options: How many sampling processes of each, and how they work.

    Raises:
        RuntimeError, MemoryError: If a server takes no more loaders.
        glt.errors.PeerLost, glt.errors.RendezvousError: If a server is gone.
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
        self._created: list[tuple[ServerLine, str]] = []
        self._finalizer = weakref.finalize(self, _end, self._pid, self._streams, self._created)
        num_workers, timeout_s = options.num_workers, options.rpc_timeout
        told = {
            **job.to_json(),
            "concurrency": options.worker_concurrency,
            "buffer_bytes": options.buffer_bytes,
            "prefetch_size": options.prefetch_size,
            "devices": options.devices,
        }
        try:
            lines = [client.line(rank) for rank in server_ranks]
            deadline = time.monotonic() + timeout_s
            replies = [
                line.call_within(timeout_s, "glt.create_loader", told, job.table.columns, job.table.extras, num_workers)
                for line in lines
            ]
            for line, reply in zip(lines, replies, strict=True):
                reply.too_late = partial(_give_back, line)
            granted = self._granted(lines, replies)
            for line, each in granted:
                if len(each["workers"]) < num_workers:
                    logger.warning(
                        "%s gives this loader %d samplers of the %d asked for: its max_workers is %d. The batches are "
                        "the same",
                        line.entry,
                        len(each["workers"]),
                        num_workers,
                        len(each["workers"]),
                    )
            places = [(line, each["id"], worker) for line, each in granted for worker in each["workers"]]
            for first, (line, id_, worker) in enumerate(places):
                self._streams.append(self._open(line, id_, worker, first, len(places), deadline))
        except BaseException:
            self.close()
            raise

    def _granted(self, lines: list[ServerLine], replies: list[Reply]) -> list[tuple[ServerLine, dict[str, Any]]]:
        """What each server gives; if one refuses, what the others gave is known nevertheless, to be given back."""
        granted, refused = [], None
        for line, reply in zip(lines, replies, strict=True):
            try:
                granted.append((line, reply.result()))
                self._created.append((line, granted[-1][1]["id"]))
            except Exception as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return granted

    @staticmethod
    def _open(line: ServerLine, loader: str, worker: int, first: int, step: int, deadline: float) -> _Stream:
        """Opens a stream; until the deadline, as long as the server lives: strangers may have taken its places."""
        hello = introduce("stream", session=line.session, loader=loader, worker=worker, first=first, step=step)
        who = f"worker {worker} of {line.entry}"
        address = line.entry.address, line.entry.port
        while True:
            left_s = max(0.1, deadline - time.monotonic())
            try:
                connection, _ = dial(address, who, hello, left_s, max_bytes=_MAX_BATCH_BYTES, retry=False)
                return _Stream(connection, line, loader, worker)
            except RendezvousError:
                raise
            except PeerLost as error:
                if (loader, worker) in line.died:
                    raise WorkerDied(line.died[loader, worker]) from error
                if line.lost is not None or time.monotonic() > deadline:
                    raise (line.lost or error) from error
                time.sleep(deadlines.RETRY_S)

    def start_epoch(self, start: EpochStart) -> None:
        """Asks for the batches of an epoch; those of earlier iterations are given up."""
        self._refuse_fork()
        for stream in self._streams:
            stream.tell({"start": start.to_json()})

    def drain(self) -> None:
        """Ends sampling for this loader. Waits for nothing: a collection may call it anywhere, under any lock."""
        for stream in self._streams:
            stream.tell({"drain": True}, timeout_s=0.0)

    def receive(self, index: int, wait: bool = True) -> Message | None:
        """Waits for the next message of the sampler that makes batch ``index``; or returns None without.

        Raises:
            glt.errors.WorkerDied: If that sampler died; names it and its exit code.
            glt.errors.PeerLost: If its server is gone, or the network.
            RuntimeError: In a fork of the client; and if the loader was shut down.
        """
        self._refuse_fork()
        return self._streams[index % len(self._streams)].take(wait)

    def _refuse_fork(self) -> None:
        refuse_fork(self._pid, "iterate where the loader was created, or call init_client here and create another")

    def stats(self) -> dict[str, float]:
        """As :meth:`glt.channel.Channel.stats`, of the streams together: sent is what has arrived here, so that what
        is queued waits for the trainer. How long samplers wait to send is known to the server."""
        total = {
            "num_sent": "num_arrived",
            "num_received": "num_taken",
            "sent_bytes": "arrived_bytes",
            "received_bytes": "taken_bytes",
            "num_consumer_waits": "num_waits",
            "consumer_wait_s": "wait_s",
        }
        taken_first = {name: sum(getattr(each, of) for each in self._streams) for name, of in reversed(total.items())}
        return {
            **taken_first,
            "num_queued": taken_first["num_sent"] - taken_first["num_received"],
            "num_copied": 0,
            "num_oversize": 0,
            "num_producer_waits": 0,
            "producer_wait_s": 0.0,
            "num_streams": len(self._streams),
        }

    def close(self, all_finished: bool = False) -> None:
        """Ends the loader on the servers. May be called again."""
        self._finalizer()


def _end(pid: int, streams: list[_Stream], created: list[tuple[ServerLine, str]]) -> None:
    if os.getpid() != pid:
        return  # a fork: the connections are its parent's to end
    for stream in streams:
        stream.close()
    for line, loader in created:
        _give_back(line, {"id": loader})


def _give_back(line: ServerLine, granted: dict[str, Any]) -> None:
    try:
        if line.lost is None:
            line.call("glt.close_loader", granted["id"])  # not waited for
    except GltError as error:
        logger.debug("%s", error)
