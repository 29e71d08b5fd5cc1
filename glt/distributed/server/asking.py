"""One-shot sampling on servers: the client's end, which shares its questions among sampling processes."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from glt import _deadlines as deadlines
from glt.channel.message import Message, read_message
from glt.channel.shm import ShmChannel
from glt.distributed.engine.sampling_job import SamplingJob
from glt.distributed.options import RemoteDistSamplingWorkerOptions
from glt.distributed.server.answers import Question
from glt.distributed.server.client import DistClient
from glt.distributed.server.remote import MAX_BATCH_BYTES, open_questions
from glt.distributed.server.remote_loader import GrantedLoader, RemoteLoader
from glt.distributed.server.stream import IN_FRAME, IN_RING
from glt.distributed.wire.beats import add_tick, discard_tick
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import Frame
from glt.distributed.wire.threads import NativePool, call_on_loop, process_loop, refuse_fork, wait_for
from glt.errors import GltError, PeerLost, TooManyRequests, WorkerDied

logger = logging.getLogger(__name__)

_MOST_TRIES = 3  # of a question whose sampling process is lost each time, perhaps because of it


@dataclass(eq=False, slots=True)
class _Asked:
    """A question that waits for its answer, which ``reply`` gets, or what went wrong."""

    question: Tensor
    until_s: float
    reply: Future[Message] = field(default_factory=Future)
    num_tries: int = 0

    def resolve(self, result: Message | Exception) -> None:
        """Does nothing if it is not waited for any more."""
        if self.reply.cancelled() or not self.reply.set_running_or_notify_cancel():
            return
        if isinstance(result, Exception):
            self.reply.set_exception(result)
        else:
            self.reply.set_result(result)


@dataclass(eq=False)
class _Line:
    """The connection to one sampling process, ``place`` among those of the server ``home`` that work for this client,
    or of one in its place; None while it is made anew. ``lost`` says why it ended last. One that ``is_leaving``, since
    its server is back, is asked nothing more. Nor is one that ``is_silent``: others are asked what it was, and
    ``in_flight`` has None for that."""

    home: int
    place: int
    lost: GltError | None = None
    loader: GrantedLoader | None = None
    connection: Connection | None = None
    ring: ShmChannel | None = None
    in_flight: dict[int, _Asked | None] = field(default_factory=dict)
    num_asked: int = 0
    is_leaving: bool = False
    is_silent: bool = False
    task: asyncio.Task[None] | None = None

    def wanted(self) -> list[_Asked]:
        """What is in flight and still waited for."""
        return [each for each in self.in_flight.values() if each is not None and not each.reply.done()]


class Asker:
    """Asks the sampling processes of servers, each over a connection that is opened once. A question goes to the one
    that has fewest of ours in flight, ``options.worker_concurrency`` at most; others wait here, ``most_waiting`` at
    most. One whose sampling process is lost is asked again, elsewhere if there is another.

    Raises what :class:`glt.distributed.server.remote_sampler.RemoteSampler` raises.
    """

    def __init__(
        self,
        client: DistClient,
        server_ranks: Sequence[int],
        job: SamplingJob,
        options: RemoteDistSamplingWorkerOptions,
        most_waiting: int,
    ) -> None:
        self._client, self._loader = client, RemoteLoader(client, job, options, "questions")
        self._most_waiting, self._most_in_flight = most_waiting, options.worker_concurrency
        self._pid = os.getpid()
        self._lock = threading.Lock()  # never held for long: the loop takes it, too
        self._lines: list[_Line] = []
        self._waiting: deque[_Asked] = deque()
        self._last_number = 0
        self._closed = False
        self._down_since: float | None = None  # since when there is no connection at all
        self._totals = dict.fromkeys(
            ("num_requests", "num_answers", "num_asked_again", "num_in_ring", "received_bytes"), 0
        )
        self._chores = NativePool(1, "glt-asking")  # reaches servers that were restarted, which may take seconds
        try:
            granted, lost = self._loader.open_all(server_ranks)
            for home in server_ranks:
                num_places = len(granted[home].workers) if home in granted else self._loader.num_workers
                self._lines += [_Line(home, place, lost=lost.get(home)) for place in range(num_places)]
            wait_for(self._open_all(time.monotonic() + options.rpc_timeout))
            add_tick(self._look)
        except BaseException:
            self.close()
            raise

    async def _open_all(self, deadline: float) -> None:
        there = [line for line in self._lines if line.lost is None]
        opening = await asyncio.gather(*(self._open(line, deadline) for line in there), return_exceptions=True)
        for line, error in zip(there, opening, strict=True):
            if isinstance(error, PeerLost):
                line.lost = error
            elif isinstance(error, BaseException):
                raise error
        if all(line.connection is None for line in self._lines):
            await self._open(self._lines[0], deadline)
        for line in self._lines:
            if line.connection is None:
                line.task = process_loop.get().create_task(self._open_again(line))

    # -- asking: on any thread -------------------------------------------------------------------------------------

    def ask(self, question: Question, timeout_s: float) -> Future[Message]:
        """Returns what gets the answer. Who gives it up cancels it.

        Raises:
            glt.errors.TooManyRequests: If ``most_waiting`` requests wait already.
            RuntimeError: If it was closed, or in a fork.
            glt.errors.PeerLost, glt.errors.WorkerDied: If all sampling processes have been lost for a while.
        """
        refuse_fork(self._pid, "create another SamplingClient here, after init_client")
        message = question.encode()
        with self._lock:
            if self._closed:
                raise RuntimeError("the SamplingClient was closed: create a new one")
            if (why := self._hopeless()) is not None:
                raise why
            asked = _Asked(message, time.monotonic() + timeout_s)
            line = None if self._waiting else self._free_line()
            if line is None:
                self._wait(asked)
            self._totals["num_requests"] += 1
            sending = None if line is None else self._take(line, asked)
        if sending is not None:
            self._send(*sending, asked)
        return asked.reply

    def _wait(self, asked: _Asked) -> None:
        if len(self._waiting) >= self._most_waiting:  # some may have been given up
            self._waiting = deque(each for each in self._waiting if not each.reply.done())
        if len(self._waiting) >= self._most_waiting:
            num_places = len(self._lines) * self._most_in_flight
            raise TooManyRequests(
                f"{len(self._waiting)} requests wait (max_waiting = {self._most_waiting}) for one of {num_places} "
                "places in flight: ask for less at a time, or use more sampling processes (num_workers), a larger "
                "worker_concurrency, or more servers"
            )
        self._waiting.append(asked)

    def _free_line(self) -> _Line | None:
        free = [
            line
            for line in self._lines
            if line.connection is not None
            and not (line.is_leaving or line.is_silent)
            and len(line.in_flight) < self._most_in_flight
        ]
        return min(free, key=lambda line: (len(line.in_flight), line.num_asked), default=None)

    def _take(self, line: _Line, asked: _Asked) -> tuple[Connection, int]:
        """Takes note that a question goes to a free line; returns how, and its number there."""
        assert line.connection is not None
        self._last_number += 1
        line.in_flight[self._last_number] = asked
        line.num_asked += 1
        asked.num_tries += 1
        return line.connection, self._last_number

    @staticmethod
    def _send(connection: Connection, number: int, asked: _Asked) -> None:
        """Not under the lock: what the kernel takes at once is copied meanwhile."""
        within_s = asked.until_s - time.monotonic()
        try:
            connection.send({"within_s": round(within_s, 6)}, [asked.question], number=number)
        except GltError as error:
            logger.debug("%s", error)  # it is asked again when the end of the connection is heard of

    # -- answers: on the loop --------------------------------------------------------------------------------------

    def _answered(self, line: _Line, frame: Frame) -> None:
        if frame.what == IN_RING and line.ring is not None:
            answer = line.ring.receive(0.0)  # it was complete before it was announced
        elif frame.what == IN_FRAME and frame.data is not None:
            answer = read_message(frame.data)
        else:
            raise ValueError(f"what = {frame.what} without a message: expected one in the frame or in the ring")
        with self._lock:
            asked = line.in_flight.pop(frame.number)  # nonsense, if it was not asked
            self._totals["num_answers"] += 1
            self._totals["num_in_ring"] += frame.what == IN_RING
            self._totals["received_bytes"] += 0 if answer.buffer is None else answer.buffer.numel()
        self._ask_next()
        if asked is not None:
            asked.resolve(answer)

    def _ask_next(self) -> None:
        """Sends what waits and is still wanted, as long as there are places."""
        while True:
            with self._lock:
                while self._waiting and self._waiting[0].reply.done():
                    self._waiting.popleft()
                line = self._free_line() if self._waiting else None
                if line is None:
                    return
                asked = self._waiting.popleft()
                sending = self._take(line, asked)
            self._send(*sending, asked)

    # -- connections: on the loop ----------------------------------------------------------------------------------

    async def _open(self, line: _Line, deadline: float) -> None:
        granted = await asyncio.wrap_future(self._chores.submit(self._grant, line))
        place = {"first": line.place, "step": self._num_places(line)}
        connection, ring = await open_questions(granted, _worker_of(line, granted), place, deadline)
        with self._lock:
            is_late = self._closed
            if not is_late:
                line.connection, line.ring, line.is_leaving, line.is_silent = connection, ring, False, False
                self._down_since = None
        if is_late:
            connection.close()
            return
        connection.start(
            partial(self._answered, line),
            partial(self._lose, line, granted, connection),
            max_data_bytes=MAX_BATCH_BYTES,
            silence_s=deadlines.STUCK_S,
        )
        self._ask_next()

    def _grant(self, line: _Line) -> GrantedLoader:
        """What the server of a line has opened for this client; while that is gone and no other line is there, what
        another has in its place. One after the other: lines share what a server grants."""
        try:
            session = self._client.session(line.home, deadlines.RECONNECT_S)
            line.loader = self._loader.at(line.home, session, self._num_places(line))
        except PeerLost as why:
            if any(each.connection is not None for each in self._lines):
                raise
            line.loader = self._loader.elsewhere(line.home, why, self._num_places(line))
        self._loader.keep([each.loader for each in self._lines if each.loader is not None])
        return line.loader

    def _num_places(self, line: _Line) -> int:
        return sum(each.home == line.home for each in self._lines)

    def _lose(self, line: _Line, granted: GrantedLoader, connection: Connection, error: GltError) -> None:
        worker = _worker_of(line, granted)
        error = granted.session.failure_of(granted.id, worker, 0.0) or error
        if not isinstance(error, PeerLost | WorkerDied):
            error = PeerLost(f"lost worker {worker} of {granted.session.entry}: {error}")
        failed: list[_Asked] = []
        if line.ring is not None:
            line.ring.close()  # batches that came through it keep the memory
        with self._lock:
            line.connection, line.lost = None, error
            lost = line.wanted()
            line.in_flight.clear()
            if self._closed:
                return  # which fails what waits
            for each in reversed(lost):
                (self._waiting if each.num_tries < _MOST_TRIES else failed).insert(0, each)
            self._totals["num_asked_again"] += len(lost) - len(failed)
            if all(each.connection is None for each in self._lines):
                self._down_since = time.monotonic()
            line.task = process_loop.get().create_task(self._open_again(line))
        logger.info("%s; %d requests are asked again", error, len(lost) - len(failed))
        for each in failed:
            text = f"{error}; this request was asked {_MOST_TRIES} times, and each time the sampling process was lost"
            each.resolve(type(error)(text))
        self._ask_next()

    async def _open_again(self, line: _Line) -> None:
        pause_s = deadlines.RETRY_S
        while not (self._closed or self._client.is_closed):
            try:
                await self._open(line, time.monotonic() + deadlines.RECONNECT_S)
                return
            except (GltError, RuntimeError, MemoryError) as error:  # a server that ends, or has no room, refuses
                line.lost = error if isinstance(error, GltError) else PeerLost(f"{line.lost}; and then: {error}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, deadlines.BEAT_S)

    def _hopeless(self) -> GltError | None:
        """Why nothing can be asked, if that is so. The lock is held."""
        down_s = 0.0 if self._down_since is None else time.monotonic() - self._down_since
        if self._down_since is None or not (down_s > deadlines.RECONNECT_S or self._client.is_closed):
            return None
        lost = next((line.lost for line in self._lines if line.lost is not None), None)
        kind, text = (PeerLost, "no sampling process is there") if lost is None else (type(lost), str(lost))
        return kind(f"{text} (no sampling process has been reached for {down_s:.0f} s; it is tried again)")

    def _look(self) -> None:
        """Every second: has lines go home whose servers are back, passes over those that are silent, and fails what
        waits in vain."""
        for line in self._lines:
            is_away = line.loader is not None and line.loader.session.entry.rank != line.home
            if line.connection is not None and is_away and self._client.is_there(line.home):
                line.is_leaving = True
                if not line.in_flight:
                    line.connection.close()
        with self._lock:
            self._pass_over_silent()
        self._ask_next()
        with self._lock:
            why = self._hopeless()
            if why is None:
                return
            waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            each.resolve(why)

    def _pass_over_silent(self) -> None:
        """A process that is frozen is given up after ``STUCK_S``, the deadline of most requests: another answers them.
        Where all are silent, this process may have been."""
        heard = [line for line in self._lines if line.connection is not None and not _is_silent(line.connection)]
        for line in self._lines if heard else ():
            line.is_silent = line.connection is not None and line not in heard
            if line.is_silent and (wanted := line.wanted()):
                logger.info("%s is silent: %d requests are asked again", line.connection, len(wanted))
                line.in_flight = dict.fromkeys(line.in_flight)
                self._waiting.extendleft(reversed(wanted))
                self._totals["num_asked_again"] += len(wanted)

    # -- the end ---------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        with self._lock:
            return {
                **self._totals,
                "num_in_flight": sum(len(line.in_flight) for line in self._lines),
                "num_waiting": sum(not each.reply.done() for each in self._waiting),
                "num_connections": sum(line.connection is not None for line in self._lines),
            }

    def close(self) -> None:
        """Fails what is not answered, gives the loaders back. Waits for nothing; may be called again, from any thread
        that holds no lock of glt."""
        if os.getpid() != self._pid:  # a fork: the connections are its parent's to end, and so is the lock, perhaps
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            left = [*self._waiting, *(each for line in self._lines for each in line.wanted())]
            self._waiting.clear()
            for line in self._lines:
                line.in_flight.clear()  # an answer that comes this moment answers nothing
        for each in left:
            each.resolve(RuntimeError("the SamplingClient was closed while this request was not answered"))
        call_on_loop(self._end)
        self._loader.close()
        self._chores.end()

    def _end(self) -> None:
        discard_tick(self._look)
        for line in self._lines:
            if line.task is not None:
                line.task.cancel()
            if line.connection is not None:
                line.connection.close()
            if line.ring is not None:
                line.ring.close()


def _worker_of(line: _Line, granted: GrantedLoader) -> int:
    return granted.workers[line.place % len(granted.workers)]


def _is_silent(connection: Connection) -> bool:
    return connection.silent_s() > deadlines.TAKEN_S
