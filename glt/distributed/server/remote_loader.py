"""A loader as servers have it: opened on those that were asked for, or on others in place of those that are lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from glt import _deadlines as deadlines
from glt._checks import AUTO
from glt.distributed.engine.sampling_job import SamplingJob
from glt.distributed.options import RemoteDistSamplingWorkerOptions
from glt.distributed.server.client import DistClient, Reply, ServerSession
from glt.errors import GltError, PeerLost
from glt.loader import tuning

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class GrantedLoader:
    """A loader that a server has opened for this client, who shows its samplers the secret."""

    session: ServerSession
    id: str
    secret: str
    workers: list[int]


class RemoteLoader:
    """The loader of a job on servers: their samplers send its batches, or, of ``kind`` ``'questions'``, answer what
    they are asked. Each server that was asked for is a ``home`` of a part of it, which another may open in its place,
    with the ``num_streams`` that its samplers had there. Any thread may use it."""

    def __init__(
        self, client: DistClient, job: SamplingJob, options: RemoteDistSamplingWorkerOptions, kind: str = "stream"
    ) -> None:
        self._client, self._timeout_s = client, options.rpc_timeout
        self._is_auto = options.num_workers == AUTO
        self.num_workers: int = tuning.MOST_WORKERS if options.num_workers == AUTO else options.num_workers
        self._request = {
            **job.to_json(),
            "kind": kind,
            "concurrency": options.worker_concurrency,
            "buffer_bytes": options.buffer_bytes,
            "cache_bytes": options.cache_bytes if kind == "stream" else 0,
            "prefetch_size": 0 if options.prefetch_size == AUTO else options.prefetch_size,
            "devices": options.devices,
        }
        self._seeds = job.table.columns, job.table.extras
        self._lock = threading.Lock()
        self._granted: dict[tuple[int, int], GrantedLoader] = {}  # by home, and the server where it is
        self._is_closed = False

    def open_all(self, homes: Sequence[int]) -> tuple[dict[int, GrantedLoader], dict[int, PeerLost]]:
        """Opens it on all homes at the same time; returns what they granted, and why others are lost. Raises
        RuntimeError or MemoryError if one refuses; :meth:`close` then gives back what others granted."""
        replies: dict[int, tuple[ServerSession, Reply]] = {}
        granted: dict[int, GrantedLoader] = {}
        lost: dict[int, PeerLost] = {}
        refused: Exception | None = None
        for home in homes:
            try:
                session = self._client.session(home)
                replies[home] = session, self._ask(session)
            except PeerLost as error:
                lost[home] = error
        for home, (session, reply) in replies.items():
            try:
                granted[home] = self._take(home, session, reply)
            except PeerLost as error:
                lost[home] = error
            except Exception as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return granted, lost

    def at(
        self, home: int, session: ServerSession, num_streams: int = 1, timeout_s: float | None = None
    ) -> GrantedLoader:
        """What a server has opened for a home, which it is or in whose place it is; opened now if it was not, within
        ``timeout_s``, by default that of the options."""
        granted = self._granted.get((home, session.entry.rank))
        if granted is not None and granted.session is session:
            return granted
        return self._take(home, session, self._ask(session, num_streams, timeout_s))

    def elsewhere(self, home: int, why: PeerLost, num_streams: int = 1) -> GrantedLoader:
        """What another server has opened in place of a home that is lost; raises why it is if there is none."""
        for session in self.others(home):
            try:
                granted = self.at(home, session, num_streams)
            except (GltError, RuntimeError, ValueError, MemoryError) as error:  # it is full, or has no such GPU
                logger.info("%s", error)
            else:
                logger.warning("%s; %s samples in its place", why, session.entry)
                return granted
        raise why

    def others(self, rank: int, only_replicas: bool = False) -> Iterator[ServerSession]:
        """Servers that can make what a server made: those first that are known to live, of these replicas, and of
        these those with a session; clients begin with different ones. ``only_replicas``: no others, and only those
        that live."""
        client = self._client
        entries = client.entries()
        part, num_servers = entries[rank].partition_idx, client.num_servers

        def order(other: int) -> tuple[bool, bool, int]:
            distance = (other - client.context.rank) % num_servers
            return entries[other].partition_idx != part, not client.is_living(other), distance

        deadline = time.monotonic() + deadlines.SEND_S
        there = [other for other in entries if client.is_there(other)]
        gone = [other for other in entries if other not in there]
        if only_replicas:
            there = [other for other in there if other != rank and entries[other].partition_idx == part]
            gone = []
        for ranks in there, gone:
            for other in sorted(ranks, key=order):
                try:
                    yield client.session(other, max(0.1, deadline - time.monotonic()))
                except PeerLost as error:
                    logger.info("%s", error)

    def _ask(self, session: ServerSession, num_streams: int = 1, timeout_s: float | None = None) -> Reply:
        arguments = {**self._request, "num_streams": num_streams}, *self._seeds, self.num_workers
        reply = session.call_within(timeout_s or self._timeout_s, "glt.create_loader", *arguments)
        reply.too_late = partial(_give_back, session)
        return reply

    def _take(self, home: int, session: ServerSession, reply: Reply) -> GrantedLoader:
        answer = reply.result()
        granted = GrantedLoader(session, answer["id"], answer["secret"], answer["workers"])
        with self._lock:
            if not self._is_closed:
                self._granted[home, session.entry.rank] = granted
        if self._is_closed:
            _give_back(session, answer)
            raise RuntimeError("the loader was shut down while a server opened it")
        if (count := len(granted.workers)) < self.num_workers and not self._is_auto:
            text = "%s gives this loader %d of the %d samplers asked for: max_workers is %d; batches are the same"
            logger.warning(text, session.entry, count, self.num_workers, count)
        return granted

    def keep(self, used: Iterable[GrantedLoader]) -> None:
        """Gives back what is not used any more."""
        ids = {id(each) for each in used}
        with self._lock:
            unused = {place: each for place, each in self._granted.items() if id(each) not in ids}
            for place in unused:
                del self._granted[place]
        for each in unused.values():
            _give_back(each.session, {"id": each.id})

    def close(self) -> None:
        """Gives all back. Waits for nothing; may be called again."""
        self._is_closed = True
        self.keep(())


def _give_back(session: ServerSession, granted: dict[str, Any]) -> None:
    try:
        if session.lost is None:
            session.call("glt.close_loader", granted["id"])  # not waited for
    except GltError as error:
        logger.debug("%s", error)
