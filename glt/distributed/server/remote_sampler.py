"""Sampling on servers: the loader of a client, and how it goes on when a server or one of its samplers dies.

What was not sent is made by another sampler: a batch is a function of its loader, its epoch and its index.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glt import _deadlines as deadlines
from glt.channel.channel import named_counts
from glt.channel.message import Message
from glt.distributed.engine.client_rows import MOST_BYTES
from glt.distributed.engine.producer import EpochStart
from glt.distributed.engine.sampling_job import SamplingJob
from glt.distributed.options import RemoteDistSamplingWorkerOptions
from glt.distributed.server.client import DistClient, ServerSession
from glt.distributed.server.remote import ClientStream, open_stream
from glt.distributed.server.remote_loader import GrantedLoader, RemoteLoader
from glt.distributed.wire.threads import process_loop, refuse_fork, wait_for
from glt.errors import ConnectionLost, GltError

logger = logging.getLogger(__name__)

_MOST_DEATHS = 3  # of what makes a batch, in a row: then it is the batch that kills


@dataclass
class _Share:
    """The batches of one stream: those of ``place``, ``place + num_streams``, ... They are made by sampler ``number``
    of server ``home``, as long as that lives. ``num_deaths``: of those that made them, since a message last came."""

    place: int
    home: int
    number: int
    num_deaths: int = 0


class RemoteSampler:
    """Samplers on servers, with the interface of :class:`glt.distributed.engine.worker.WorkerGroup`.

    Batch ``i`` comes from stream ``i % num_samplers`` of the epoch, by default of all: batches arrive in index order
    without being sorted. When a stream ends, its server opens it again, with another process; or, if the server is
    lost, another one does, and the share is made there from the first batch that has not come. Raises RuntimeError or
    MemoryError if a server takes no more loaders, PeerLost or RendezvousError if none is there.
    """

    def __init__(
        self,
        client: DistClient,
        server_ranks: Sequence[int],
        job: SamplingJob,
        options: RemoteDistSamplingWorkerOptions,
    ) -> None:
        self._pid, self._client, self._timeout_s = os.getpid(), client, options.rpc_timeout
        self._streams: list[ClientStream] = []
        self._loader = RemoteLoader(client, job, options)
        # A collection may come under any lock, also one of these connections: it ends them on the loop.
        self._finalizer = weakref.finalize(self, _end_later, self._pid, self._streams, self._loader)
        self._lock = threading.Lock()  # of what close() ends, which another thread may call meanwhile
        self._start: EpochStart | None = None
        self._past: list[dict[str, float]] = []  # counts of streams that others have taken the place of
        self._num_moved = 0
        self._cache_bytes = options.cache_bytes
        try:
            self._open_all(server_ranks)
        except BaseException:
            self.close()
            raise

    def _open_all(self, homes: Sequence[int]) -> None:
        """Opens the streams of all samplers, which share the batches."""
        granted, lost = self._loader.open_all(homes)
        for home, why in lost.items():
            granted[home] = self._loader.elsewhere(home, why)
        samplers = [(number, home) for home in homes for number in range(len(granted[home].workers))]
        samplers.sort(key=lambda each: each[0])  # the first of all servers work where not all do
        self._shares = [_Share(place, home, number) for place, (number, home) in enumerate(samplers)]
        found = wait_for(_all_of([self._opening(granted[share.home], share) for share in self._shares]))
        self._streams += [each for each in found if isinstance(each, ClientStream)]  # ended, should another fail
        for share, each in zip(self._shares, found, strict=True):
            if isinstance(each, BaseException):
                session = granted[share.home].session
                stream = None if session.lost is None else self._opened_elsewhere(session, share)
                if stream is None:
                    raise each
                self._streams.insert(share.place, stream)

    # -- batches ---------------------------------------------------------------------------------------------------

    @property
    def most_workers(self) -> int:
        return 1 + max(share.number for share in self._shares)

    def num_samplers(self, num_workers: int) -> int:
        """How many samplers so many workers of each server are."""
        return sum(share.number < num_workers for share in self._shares)

    def start_epoch(self, start: EpochStart) -> None:
        self._refuse_fork()
        self._return_home()
        with self._lock:
            self._start = start
            for stream in self._streams:
                stream.send_later({"start": start.to_json()})

    def drain(self) -> None:
        """Ends sampling for this loader. Waits for nothing: a collection may call it under any lock."""
        for stream in self._streams:
            stream.send_later({"drain": True})

    def receive(self, index: int, wait: bool = True) -> Message | None:
        """The next message of the sampler that makes batch ``index``; None if it is not there and not ``wait``. Raises
        WorkerDied if samplers die of that batch, PeerLost if its server is gone and no other makes it, RuntimeError in
        a fork or after shutdown."""
        self._refuse_fork()
        num_making = (self._start and self._start.num_samplers) or len(self._shares)
        share = self._shares[index % num_making]
        while True:
            stream = self._streams[share.place]
            try:
                message = stream.take(wait)
            except ConnectionLost:
                if not (wait or stream.is_closed):
                    return None  # it is gone on with when it is waited for
                self._go_on(share, index)
            else:
                if message is not None:
                    share.num_deaths = 0
                return message

    def _go_on(self, share: _Share, index: int) -> None:
        """Has batches of a share made from this one on, when their stream has ended. Raises why it has if that is done
        nowhere."""
        ended, asked, began_s = self._streams[share.place], self._start, time.monotonic()
        share.num_deaths += 1
        if ended.is_closed or share.num_deaths >= _MOST_DEATHS:
            raise ended.failure()
        found = None
        if ended.session.lost is None:
            # The server replaces its sampler, which takes seconds; a replica is there now. Others would ask that one.
            found = self._opened_elsewhere(ended.session, share, only_replicas=True) or self._opened_again(ended, share)
        if found is None and ended.session.lost is not None:
            found = self._opened_elsewhere(ended.session, share)
        if found is None:
            raise ended.failure()
        cause = ended.failure(0.0)
        ended.session.forget_death(ended.loader.id, ended.worker)
        assert asked is not None, "batches are awaited after they were asked for"
        self._put(share, found, asked, index)
        self._num_moved += 1
        text = "%s; batch %d and those after it of this share are made by %s, after %.1f s"
        logger.warning(text, cause, index, found, time.monotonic() - began_s)

    def _opened_again(self, ended: ClientStream, share: _Share) -> ClientStream | None:
        """The stream, of the process that takes the place of one that died; None if its server has none, or is gone."""
        try:
            return wait_for(self._opening(ended.loader, share))
        except (GltError, RuntimeError) as error:
            logger.info("%s: %s", ended, error)
            return None

    def _opened_elsewhere(self, lost: ServerSession, share: _Share, only_replicas: bool = False) -> ClientStream | None:
        """The stream, of a sampler of another server than ``lost``; None if none has one."""
        for session in self._loader.others(lost.entry.rank, only_replicas):
            if not self._finalizer.alive:
                raise _shut_down()
            try:
                return wait_for(self._opening(self._loader_at(session, share.home), share))
            except (GltError, RuntimeError, ValueError, MemoryError) as error:  # it is full, or has no such GPU
                logger.warning("%s cannot take over from %s: %s", session.entry, lost.entry, error)
        return None

    def _loader_at(self, session: ServerSession, home: int, timeout_s: float | None = None) -> GrantedLoader:
        """The loader of a server that samples in place of ``home``, or is it."""
        return self._loader.at(home, session, sum(share.home == home for share in self._shares), timeout_s)

    def _opening(
        self, loader: GrantedLoader, share: _Share, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, ClientStream]:
        worker = loader.workers[share.number % len(loader.workers)]
        wanted = {"first": share.place, "step": len(self._shares)}
        wanted["cache_bytes"] = min(self._cache_bytes // len(self._shares), MOST_BYTES)
        return open_stream(loader, worker, wanted, time.monotonic() + (timeout_s or self._timeout_s))

    def _put(self, share: _Share, found: ClientStream, asked: EpochStart | None = None, index: int = 0) -> None:
        """Puts a stream in the place of another. It makes what was ``asked`` for, from batch ``index`` on; or what is
        asked for by now."""
        with self._lock:
            if not self._finalizer.alive:
                found.close()
                raise _shut_down()
            before, self._streams[share.place] = self._streams[share.place], found
            self._past = [_sum([*self._past, _counts(before, is_over=True)])]
            if asked is not None:
                start = replace(asked, first=index) if self._start is asked else self._start
                assert start is not None
                found.send_later({"start": start.to_json()})
            used = [stream.loader for stream in self._streams]
        before.close()
        self._loader.keep(used)

    def _return_home(self) -> None:
        """Between epochs, servers that are back get the shares that others make in their place."""
        for share in self._shares:
            if self._streams[share.place].session.entry.rank == share.home or not self._client.is_there(share.home):
                continue
            try:
                session = self._client.session(share.home, deadlines.SEND_S)
                loader = self._loader_at(session, share.home, deadlines.SEND_S)
                self._put(share, wait_for(self._opening(loader, share, deadlines.SEND_S)))
            except (GltError, ValueError, MemoryError) as error:
                logger.info("server %d does not take its share back yet: %s", share.home, error)

    def _refuse_fork(self) -> None:
        refuse_fork(self._pid, "iterate where the loader was created, or call init_client here and create another")

    def stats(self) -> dict[str, float]:
        """As :meth:`glt.channel.Channel.stats`, of all streams: sent is what has arrived here, which may lie in shared
        memory (``num_in_ring``, of ``num_sent``) or have had no room there (``num_oversize``). ``num_cached_rows``
        counts rows that this process had kept, so that they were not sent; ``num_moved`` how often a stream was opened
        anew since a sampler or server was lost."""
        with self._lock:
            counts = _sum([*self._past, *map(_counts, self._streams)])
        received = {name: counts[name] for name in ("messages", "bytes", "copied", "waits", "wait_s")}
        sent = {"messages": counts["sent"], "bytes": counts["sent_bytes"], "oversize": counts["oversize"]}
        named = named_counts(sent | {"waits": 0, "wait_s": 0.0}, received)
        more = {"num_streams": len(self._streams), "num_in_ring": counts["in_ring"], "num_moved": self._num_moved}
        more["num_cached_rows"] = counts["known"]
        return named | more

    def close(self, all_finished: bool = False) -> None:
        with self._lock:
            is_first = self._finalizer.detach() is not None
        if is_first:
            _end(self._pid, self._streams, self._loader)


def _shut_down() -> RuntimeError:
    return RuntimeError("the loader was shut down while a batch was awaited")


def _counts(stream: ClientStream, is_over: bool = False) -> dict[str, float]:
    """What has come of a stream. What is lost with one that is over does not count as sent."""
    copied = 0 if stream.ring is None else stream.ring.stats()["num_copied"]
    taken = {"messages": stream.num_taken, "bytes": stream.taken_bytes, "copied": copied}
    # Arrivals are read last, so that no fewer have arrived than were taken.
    sent, nbytes = (stream.num_taken, stream.taken_bytes) if is_over else (stream.num_arrived, stream.arrived_bytes)
    oversize = 0 if stream.ring is None else stream.num_arrived - stream.num_in_ring
    known = 0 if stream.kept is None else stream.kept.num_known
    arrived = {"known": known, "sent": sent, "sent_bytes": nbytes, "in_ring": stream.num_in_ring, "oversize": oversize}
    return {**taken, "waits": stream.num_waits, "wait_s": stream.wait_s, **arrived}


def _sum(counts: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in counts) for name in counts[0]}


async def _all_of(opening: Sequence[Coroutine[Any, Any, ClientStream]]) -> list[ClientStream | BaseException]:
    return await asyncio.gather(*opening, return_exceptions=True)


def _end_later(pid: int, streams: list[ClientStream], loader: RemoteLoader) -> None:
    if os.getpid() == pid:
        process_loop.get().call_soon_threadsafe(_end, pid, streams, loader)


def _end(pid: int, streams: list[ClientStream], loader: RemoteLoader) -> None:
    if os.getpid() != pid:
        return  # a fork: the connections are its parent's to end
    for stream in streams:
        stream.close()
    loader.close()
