"""The loaders that a server samples for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from glt._checks import check_count, format_size
from glt.channel.shm import SharedMemory
from glt.distributed.engine.seeds import SeedTable
from glt.distributed.server.clients import Session
from glt.distributed.server.membership import ReadPlan
from glt.distributed.server.pool import SamplerPool

logger = logging.getLogger(__name__)


@dataclass
class ServedLoader:
    """A loader of a client.

    Attributes:
        id: Unique among those of the server.
        session: Whose it is.
        told: What its samplers are told.
        seeds: Its input, in shared memory.
        workers: Places in the pool of those that sample for it.
    """

    id: str
    session: Session
    told: dict[str, Any]
    seeds: SharedMemory
    workers: list[int]
    began_s: float = field(default_factory=time.time)

    @property
    def promised_bytes(self) -> int:
        """Memory for batches that wait to be sent, over all samplers."""
        return self.told["buffer_bytes"] * len(self.workers)


class ServedLoaders:
    """Opens loaders, within limits, and closes them.

    Args:
        pool: Of the samplers.
        server: Whose they are, as errors name it.
        most: Loaders that may be open.
        most_bytes: Memory that they may be promised for batches that wait to be sent.
    """

    def __init__(self, pool: SamplerPool, server: str, most: int, most_bytes: int) -> None:
        self._pool, self._server, self._most, self._most_bytes = pool, server, most, most_bytes
        self._changed = threading.Condition()
        self._loaders: dict[str, ServedLoader] = {}
        self._opening: dict[str, int] = {}  # those that wait for their samplers, and memory promised to them
        self._count = 0
        self._is_ending = False

    def all(self) -> dict[str, ServedLoader]:
        """Those that are open, by id."""
        with self._changed:
            return dict(self._loaders)

    def open(
        self,
        session: Session,
        told: Mapping[str, Any],
        columns: Mapping[str, Tensor],
        extras: Mapping[str, Tensor],
        num_workers: int,
        plan: ReadPlan,
    ) -> ServedLoader:
        """Opens a loader: its samplers know nothing of it until its client connects to them.

        Args:
            session: Whose.
            told: What the client tells the samplers.
            columns, extras: Its seeds, of a :class:`SeedTable`.
            num_workers: Sampling processes that it asks for.
            plan: How they read partitions.

        Raises:
            RuntimeError: If there are too many, or the server is shutting down.
            MemoryError: If too much memory was promised to others.
            glt.errors.WorkerDied: If a sampling process does not come up.
        """
        _require_sense(told, columns)
        wanted = int(told["buffer_bytes"])
        with self._changed:
            self._require_room(wanted)
            self._count += 1
            id_ = f"{session.group}-{session.rank}-{self._count}"
            self._opening[id_] = wanted
        try:
            workers = self._pool.ensure(num_workers)
            seeds = SeedTable(columns, extras).share()
            more = {
                "id": id_,
                "client": str(session),
                "seeds_bytes": seeds.nbytes,
                "buffer_bytes": max(1, wanted // len(workers)),
                "other_dirs": {str(part): path for part, path in plan.other_dirs.items()},
                "peers": [peer.to_json() for peer in plan.peers],
            }
            loader = ServedLoader(id_, session, {**told, **more}, seeds, workers)
            with self._changed:
                self._loaders[id_] = loader
                self._pool.ledger.open_loader(id_)
        finally:
            with self._changed:
                del self._opening[id_]
        logger.info("loader %s: %d of %d workers asked for", id_, len(workers), num_workers)
        return loader

    def _require_room(self, wanted: int) -> None:
        if self._is_ending:
            raise RuntimeError(f"{self._server} is shutting down and takes no loaders")
        count = len(self._loaders) + len(self._opening)
        if count >= self._most:
            raise RuntimeError(
                f"{self._server} has {count} loaders open, and max_loaders = {self._most}: shut loaders down that are "
                "not needed, or start the server with a larger max_loaders"
            )
        taken = sum(each.promised_bytes for each in self._loaders.values()) + sum(self._opening.values())
        if taken + wanted > self._most_bytes:
            raise MemoryError(
                f"buffer_size = {format_size(wanted)}: {self._server} has {format_size(taken)} promised to other "
                f"loaders, of max_buffer_size = {format_size(self._most_bytes)}; ask for less, or start the server "
                "with more"
            )

    def hand_over(self, id_: str, session: str, worker: int, fd: int, places: Mapping[str, int]) -> str | None:
        """Gives a connection to the sampler in place ``worker``, with what it has to know.

        Args:
            id_: Of the loader.
            session: Of its client, known to nobody else.
            worker: One of its samplers.
            fd: Of the connection.
            places: ``first`` and ``step`` of the batches that it makes.

        Returns:
            What is wrong; None where nothing is.
        """
        with self._changed:
            loader = self._loaders.get(id_)
            if loader is None or loader.session.id != session or worker not in loader.workers:
                return f"loader {id_!r} is not known here: it was closed, or its client lost"
            if self._pool.is_full(worker):  # the next try of a client whose connection was given up
                return (
                    f"worker {worker} of {self._server} is out of file descriptors, two for each loader: shut loaders "
                    "down that are not needed, or raise the server's limit (ulimit -n)"
                )
            seeds_fd = os.dup(loader.seeds.fd)  # one of its own, taken while the loader is open for certain
        try:
            handed = self._pool.hand_over(worker, {"loader": {**loader.told, **places}}, [fd, seeds_fd])
        finally:
            os.close(seeds_fd)
        return None if handed else f"worker {worker} of {self._server} is being replaced"

    def close(self, id_: str, why: str, session: Session | None = None) -> None:
        """Closes a loader, of ``session`` if that is given; does nothing where there is none."""
        with self._changed:
            loader = self._loaders.get(id_)
            if loader is None or session not in (None, loader.session):
                return
            del self._loaders[id_]
            self._changed.notify_all()
        self._pool.ledger.close_loader(id_)
        self._pool.tell_all({"close": id_, "why": why})
        loader.seeds.close()
        logger.info("loader %s was closed: %s", id_, why)

    def close_all(self, why: str, session: Session | None = None) -> None:
        """Closes the loaders of a client, or all."""
        for loader in self.all().values():
            self.close(loader.id, why, session)

    def open_no_more(self) -> None:
        """From now on none is opened."""
        with self._changed:
            self._is_ending = True

    def wait_until_closed(self, timeout_s: float) -> list[ServedLoader]:
        """Waits until none is open; returns those that still are when ``timeout_s`` seconds are over."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._loaders and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(0.5, left))
            return list(self._loaders.values())


def _require_sense(told: Mapping[str, Any], columns: Mapping[str, Tensor]) -> None:
    """Refuses what no client of ours asks for: it would take memory that nobody was promised, or never be answered."""
    for name in ("prefetch_size", "concurrency", "buffer_bytes"):
        check_count(name, told[name], 1, 1 << 62)
    lengths = {name: len(column) for name, column in columns.items()}
    num_seeds = told["order"]["num_seeds"]
    if not lengths or set(lengths.values()) != {num_seeds}:
        raise ValueError(f"columns of {lengths} seeds for an order of {num_seeds!r}: expected as many in each")
