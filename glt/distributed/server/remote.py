"""Sampling on servers: the client's end of its streams."""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from torch import Tensor

from glt import _deadlines as deadlines
from glt.channel.message import Message, read_message
from glt.channel.shm import ShmChannel
from glt.distributed.engine.client_rows import KeptRows
from glt.distributed.server.client import ServerSession
from glt.distributed.server.remote_loader import GrantedLoader
from glt.distributed.server.stream import IN_FRAME, IN_RING
from glt.distributed.wire.addresses import host_id
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import Frame
from glt.distributed.wire.handshake import Address, connect, introduce
from glt.distributed.wire.threads import process_loop
from glt.errors import ChannelClosed, ChannelTimeout, ConnectionLost, GltError, PeerLost, RendezvousError

logger = logging.getLogger(__name__)

MAX_BATCH_BYTES = 64 << 30

T = TypeVar("T")


class ClientStream:
    """The client's end of a stream, over a connection that :func:`open_stream` made; ``ring`` is the shared memory
    through which batches of a sampler on this host come, ``kept`` the rows that are kept of those of one elsewhere.
    Made and closed on the loop."""

    def __init__(
        self,
        connection: Connection,
        loader: GrantedLoader,
        worker: int,
        ring: ShmChannel | None,
        kept: KeptRows | None,
    ) -> None:
        self.connection, self.loader, self.worker, self.ring, self.kept = connection, loader, worker, ring, kept
        self.session = loader.session
        # Bytes that came, and the message: whole, to be read, or (None) in the ring. None: the stream ended.
        self.arrived: queue.SimpleQueue[tuple[int, Message | Tensor | None] | None] = queue.SimpleQueue()
        self._incomplete: deque[Tensor] = deque()  # messages whose rows are yet to be completed
        self._completing: asyncio.Task[None] | None = None
        self.error: GltError | None = None
        self.is_closed = False  # by this process, which shut the loader down
        self.num_arrived = self.arrived_bytes = self.num_in_ring = 0
        self.num_taken = self.taken_bytes = 0
        self.num_waits, self.wait_s = 0, 0.0
        connection.start(self._take_in, self._end, max_data_bytes=MAX_BATCH_BYTES, silence_s=deadlines.STUCK_S)

    def __str__(self) -> str:
        return f"worker {self.worker} of {self.session.entry}"

    def _take_in(self, frame: Frame) -> None:
        if frame.what == IN_RING and self.ring is not None:
            self.num_in_ring += 1
            nbytes = frame.number
            self.arrived.put((nbytes, None))
        elif frame.what == IN_FRAME and frame.data is not None:
            nbytes = frame.data.numel()
            if self.kept is None:
                self.arrived.put((nbytes, frame.data))
            else:
                self._incomplete.append(frame.data)
                if self._completing is None:
                    self._completing = asyncio.ensure_future(self._complete_all(self.kept))
        else:
            raise ValueError(f"what = {frame.what} without a message: expected one in the frame or in the ring")
        self.num_arrived += 1
        self.arrived_bytes += nbytes

    async def _complete_all(self, kept: KeptRows) -> None:
        """Completes what has come, one message after the other, on a thread: it takes milliseconds."""

        def complete(data: Tensor) -> None:
            self.arrived.put((data.numel(), kept.complete(read_message(data))))

        try:
            while self._incomplete:
                await asyncio.to_thread(complete, self._incomplete.popleft())
        except GltError as error:
            self.connection.close(error)
        except Exception as error:  # no memory for it, or the interpreter ends; who waits for a batch is told
            self.connection.close(ConnectionLost(f"{self}: {type(error).__name__}: {error}"))
        self._completing = None
        if self.error is not None:
            kept.forget()

    def _end(self, error: GltError) -> None:
        self.error = error
        self._incomplete.clear()
        if self.kept is not None and self._completing is None:
            self.kept.forget()
        self.arrived.put(None)

    def take(self, wait: bool) -> Message | None:
        """Waits for the next message while the sampler gives signs of life; without ``wait`` returns None at once.
        Raises ConnectionLost when it has ended: :meth:`failure` says why."""
        is_there = self.arrived.qsize() > 0
        if not (wait or is_there):
            return None
        start = time.perf_counter()
        arrived = self.arrived.get()
        if arrived is None:
            self.arrived.put(None)
            raise ConnectionLost(str(self.error))
        nbytes, came = arrived
        if not is_there:
            self.num_waits += 1
            self.wait_s += time.perf_counter() - start
        message = self._from_ring() if came is None else came if isinstance(came, Message) else read_message(came)
        self.num_taken += 1
        self.taken_bytes += nbytes
        self.send({"taken": self.num_taken} if is_there else {"taken": self.num_taken, "waited": True})
        return message

    def _from_ring(self) -> Message:
        """The next message there. It was complete before it was announced, unless it comes in pieces."""
        assert self.ring is not None
        while True:
            try:
                return self.ring.receive(deadlines.POLL_S)
            except ChannelTimeout as error:
                if self.error is not None:
                    raise ConnectionLost(str(self.error)) from error
            except ChannelClosed as error:
                raise ConnectionLost(str(error)) from error

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

    def failure(self, timeout_s: float = deadlines.CAUSE_S) -> Exception:
        """What to raise for a stream that ended: the server knows more than the connection, and has ``timeout_s``
        seconds to say it."""
        deadline = time.monotonic() + timeout_s
        while not self.is_closed:
            if failure := self.session.failure_of(self.loader.id, self.worker, min(timeout_s, deadlines.POLL_S)):
                return failure
            if time.monotonic() >= deadline:
                break
        if self.is_closed:
            return RuntimeError("the loader was shut down while a batch was awaited")
        return self.error if isinstance(self.error, PeerLost) else PeerLost(f"lost {self}: {self.error}")


# -- opening -------------------------------------------------------------------------------------------------------


async def open_stream(loader: GrantedLoader, worker: int, share: dict[str, int], deadline: float) -> ClientStream:
    """Opens the stream of one sampler, which makes the batches of a share."""
    return await _when_there(
        loader, worker, deadline, lambda where, left_s: _open_at(where, loader, worker, share, left_s)
    )


async def open_questions(
    loader: GrantedLoader, worker: int, place: dict[str, int], deadline: float
) -> tuple[Connection, ShmChannel | None]:
    """Opens the connection of a place of the loader, over which one sampler answers questions
    (:mod:`glt.distributed.server.answers`); and the memory through which some answers of one on this host come."""
    connection, answer = await _when_there(
        loader, worker, deadline, lambda where, left_s: _reach(where, loader, worker, left_s, kind="questions", **place)
    )
    return connection, _ring_of(connection, answer)


async def _when_there(
    loader: GrantedLoader,
    worker: int,
    deadline: float,
    open_at: Callable[[dict[str, Any], float], Coroutine[Any, Any, T]],
) -> T:
    """What ``open_at`` gives where the sampler is. Tries until the deadline while the server lives: the sampler may be
    replaced meanwhile."""
    session = loader.session
    while True:
        left_s = max(0.1, deadline - time.monotonic())
        try:
            asked = session.call_within(left_s, "glt.stream_at", loader.id, worker)
            where = await asyncio.wrap_future(asked)
            if "wait" not in where:
                return await _unless_lost(session, open_at(where, left_s))
            error = PeerLost(where["wait"])
        except PeerLost as lost:
            error = lost
        except RendezvousError as silent:  # a process that is stopped, which its server replaces
            if not isinstance(silent.__cause__, ChannelTimeout):
                raise
            error = PeerLost(str(silent))
        if session.lost is not None or time.monotonic() > deadline:
            raise session.failure_of(loader.id, worker, 0.0) or error
        await asyncio.sleep(deadlines.RETRY_S)


async def _unless_lost(session: ServerSession, opening: Coroutine[Any, Any, T]) -> T:
    """What ``opening`` gives. Raises PeerLost if the server is lost meanwhile: where a host is frozen, so is the
    sampler, which then would be waited for until the deadline."""
    task = asyncio.ensure_future(opening)
    try:
        while not (await asyncio.wait({task}, timeout=deadlines.POLL_S))[0]:
            if session.lost is not None:
                raise session.lost
        return task.result()
    finally:
        task.cancel()


async def _reach(
    where: dict[str, Any], loader: GrantedLoader, worker: int, left_s: float, *, kind: str, **more: Any
) -> tuple[Connection, dict[str, Any]]:
    entry = loader.session.entry
    hello, peer = introduce(kind, loader=loader.id, secret=loader.secret, **more), f"worker {worker} of {entry}"
    addresses: list[Address] = [(entry.address, where["port"])]
    if where["host_id"] == host_id():
        addresses.insert(0, where["local"])
    for i, address in enumerate(addresses):
        try:
            return await connect(address, peer, hello, left_s, retry=False)
        except (PeerLost, RendezvousError):  # of a container that shares the host's name, or of another user
            if i == len(addresses) - 1:
                raise
    raise AssertionError("there is an address")


async def _open_at(
    where: dict[str, Any], loader: GrantedLoader, worker: int, share: dict[str, int], left_s: float
) -> ClientStream:
    connection, answer = await _reach(where, loader, worker, left_s, kind="stream", **share)
    ring, told = _ring_of(connection, answer), answer.get("kept")
    return ClientStream(connection, loader, worker, ring, KeptRows(told, share["cache_bytes"]) if told else None)


def _ring_of(connection: Connection, answer: dict[str, Any]) -> ShmChannel | None:
    """The memory of a sampler on this host, if it has sent some."""
    try:
        if "ring" not in answer:
            return None
        if not connection.fds:
            raise PeerLost(
                f"the memory of {connection.peer} did not come: this process is out of descriptors (ulimit -n)"
            )
        return ShmChannel.from_descriptor({**answer["ring"], "fd": connection.fds.pop()})
    except BaseException:
        connection.close()
        raise
