"""The sampling processes of a server, watched and replaced when they die, and the loaders that they sample for."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from glt import _deadlines as deadlines
from glt._checks import check_count, check_one_of, format_size
from glt.channel.shm import SharedMemory
from glt.distributed.engine.client_rows import remembered_bytes
from glt.distributed.engine.processes import ProcessPool, SamplingProcess
from glt.distributed.engine.sampling_job import SeedTable
from glt.distributed.server.membership import ReadPlan
from glt.distributed.server.sessions import ClientSession
from glt.distributed.server.stats import WorkerMetrics
from glt.distributed.wire.addresses import host_id
from glt.errors import PeerLost, WorkerDied

logger = logging.getLogger(__name__)

_MOST_FAILURES = 3  # in a row, before a place in the pool stays empty
_MOST_STREAMS = 1024  # of a loader: as many as it may ask for workers


@dataclass(frozen=True)
class PoolWorkerSpec:
    """What a sampling process is told when it starts, as JSON: its number (``worker``), :meth:`DistDataset.to_json`,
    the batches in flight over all loaders (``num_places``), limits of requests between servers, and memory for rows of
    theirs. It listens at ``host``, on port ``first_port + worker`` or one that is found."""

    server_rank: int
    worker: int
    dataset: dict[str, Any]
    num_places: int
    num_rpc_threads: int
    timeout_s: float
    log_level: int
    log_format: str
    host: str = "127.0.0.1"
    first_port: int | None = None
    cache_bytes: int = 0


@dataclass
class _Place:
    """What became of the processes in one place of a pool."""

    failure: str = ""  # why no process comes up
    num_failed: int = 0  # in a row
    num_restarts: int = 0
    address: dict[str, Any] | None = None  # of the process: ``port``, and ``local``, the name of a Unix socket


class SamplerPool:
    """Keeps sampling processes, at most ``most``, and replaces those that die. ``spec`` is what the first is told, and
    the others with their number; ``on_death`` is called with the place of one that died and what to say of it;
    ``module`` is their program. ``on_ready`` is called with the place of one that has come up."""

    def __init__(
        self,
        spec: PoolWorkerSpec,
        most: int,
        on_death: Callable[[int, str], None],
        module: str = "glt.distributed.server.worker",
    ) -> None:
        self.spec, self.most = spec, most
        self.metrics = WorkerMetrics()
        self.on_ready: Callable[[int], None] = lambda worker: None
        self._on_death = on_death
        self._changed = threading.Condition()  # its lock may be taken twice
        self._pool = ProcessPool(module, f"server {spec.server_rank}")
        self._places: defaultdict[int, _Place] = defaultdict(_Place)
        self._servers: dict[str, Any] | None = None  # the last command of send_servers
        self._next = 0
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="glt-pool", daemon=True)
        self._thread.start()

    # -- starting --------------------------------------------------------------------------------------------------

    def ensure(self, count: int) -> list[int]:
        """Waits until ``min(count, most)`` processes are ready; returns their places. Raises WorkerDied if one does not
        come up."""
        wanted, timeout_s = list(range(min(count, self.most))), self.spec.timeout_s
        deadline = time.monotonic() + timeout_s
        with self._changed:
            for worker in wanted:
                self._places[worker].failure, self._places[worker].num_failed = "", 0
                if worker not in self._pool.processes:
                    self._start(worker)
            while True:
                if failures := [self._places[worker].failure for worker in wanted if self._places[worker].failure]:
                    raise WorkerDied(failures[0])
                if self.pids().keys() >= set(wanted):
                    return wanted
                if self._closed:
                    raise WorkerDied("the server is shutting down")
                if time.monotonic() > deadline:
                    raise WorkerDied(f"sampling processes {wanted} were not ready after {timeout_s:g} s")
                self._changed.wait(deadlines.POLL_S)

    def _start(self, worker: int) -> None:
        process = self._pool.start(worker, asdict(replace(self.spec, worker=worker)))
        if self._servers is not None:
            process.send(self._servers)

    # -- commands --------------------------------------------------------------------------------------------------

    def send_all(self, command: dict[str, Any]) -> None:
        for process in list(self._pool.processes.values()):
            process.send(command)

    def send_servers(self, servers: list[dict[str, Any]]) -> None:
        """Tells all processes, also later ones, which servers are there."""
        with self._changed:
            self._servers = {"servers": servers}
        self.send_all({"servers": servers})

    def send(self, worker: int, command: dict[str, Any], fds: Sequence[int]) -> bool:
        """Gives a command and descriptors to the process in a place; false if there is none, or it takes nothing."""
        process = self._pool.processes.get(worker)
        return process is not None and process.send(command, fds)

    # -- where they listen -----------------------------------------------------------------------------------------

    def stream_at(self, worker: int) -> dict[str, Any] | None:
        """Where the process in a place listens: ``port``, and ``local``, the name of a Unix socket; None while it is
        being replaced. Raises WorkerDied if it is not replaced any more."""
        with self._changed:
            place = self._places[worker]
            if place.failure:
                raise WorkerDied(place.failure)
            return place.address if worker in self.pids() else None

    def partition_at(self) -> dict[str, Any] | None:
        """Where a process listens that answers requests of other servers, as :meth:`stream_at`: one after the other.
        None if none is there yet. Raises WorkerDied if none will be."""
        with self._changed:
            found = [each for worker in self.pids() if (each := self._places[worker].address) is not None]
            failures = [place.failure for place in self._places.values() if place.failure]
            if not found and len(failures) == len(self._places) > 0:
                raise WorkerDied(failures[0])
            self._next += 1
            return found[self._next % len(found)] if found else None

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._look()
            except Exception:  # the other processes are watched all the same
                logger.exception("while looking after the sampling processes")
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, deadlines.POLL_S)

    def _look(self) -> None:
        for process, report in self._pool.look(deadlines.POLL_S):
            if report is None:
                self._lose(process)
            else:
                self._hear(process, report)
        for process in list(self._pool.processes.values()):
            is_watched = process.is_ready and not process.is_gone and not process.why
            if is_watched and self._pool.silent_s(process) > deadlines.STUCK_S:
                process.kill(f"it gave no sign of life for {deadlines.STUCK_S:g} s, stopped or stuck, and was killed")
                logger.error("%s: %s", process.name, process.why)

    def _hear(self, process: SamplingProcess, report: dict[str, Any]) -> None:
        worker = process.number
        with self._changed:
            place = self._places[worker]
            if "beat" in report:
                self.metrics.beat(worker, report["beat"])
            elif "ended" in report:
                self.metrics.end_stream(worker, report["ended"], report["stats"])
            elif "listens" in report:
                place.address = report["listens"]
            elif "ready" in report:
                place.num_failed = 0
            elif "error" in report:
                trace = report["traceback"].rstrip()
                place.failure = f"{process.name} failed: {report['error']}: {report['text']}\n{trace}"
            self._changed.notify_all()
        if "ready" in report:
            self.on_ready(worker)

    def _lose(self, process: SamplingProcess) -> None:
        text, worker = process.death(), process.number
        if self._closed:
            return
        logger.error("%s", text)
        self.metrics.lose_worker(worker)
        self._on_death(worker, text)
        with self._changed:
            self._pool.remove(process)
            place = self._places[worker]
            place.address = None
            place.num_failed += 1
            if place.failure or place.num_failed >= _MOST_FAILURES:
                place.failure = place.failure or text
            elif not self._closed:
                place.num_restarts += 1
                try:
                    self._start(worker)
                except OSError as error:  # no memory for a process, for example
                    place.failure = f"{text}; none could be started in its place: {error}"
                    logger.error("%s", place.failure)
            self._changed.notify_all()

    def pids(self) -> dict[int, int]:
        with self._changed:
            return {w: each.pid for w, each in sorted(self._pool.processes.items()) if each.is_ready}

    def num_restarts(self) -> dict[int, int]:
        with self._changed:
            return {worker: place.num_restarts for worker, place in self._places.items() if place.num_restarts}

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(deadlines.JOIN_S)
        self._pool.close()


@dataclass
class ServedLoader:
    """A loader of a client: what its samplers are told, its seeds in shared memory, and its samplers. The client shows
    them the ``secret`` when it opens streams."""

    id: str
    secret: str
    session: ClientSession
    request: dict[str, Any]
    seeds: SharedMemory
    workers: list[int]
    began_s: float = field(default_factory=time.time)


class ServedLoaders:
    """Opens and closes loaders, ``most`` at a time, which may be promised ``most_bytes`` for batches that wait to be
    sent. ``server`` is its name in errors. Sampling processes, also those that take the place of others, are told of
    the loaders at once: clients then connect to them."""

    def __init__(self, pool: SamplerPool, server: str, most: int, most_bytes: int) -> None:
        self._pool, self._server, self._most, self._most_bytes = pool, server, most, most_bytes
        self._changed = threading.Condition()
        self._loaders: dict[str, ServedLoader] = {}
        self._promised: dict[str, int] = {}  # bytes, to those that wait for their samplers too
        self._count = 0
        self._is_ending = False
        self._host_id = host_id()
        pool.on_ready = self._tell_again

    def all(self) -> dict[str, ServedLoader]:
        with self._changed:
            return dict(self._loaders)

    def open(
        self, session: ClientSession, request: Mapping[str, Any], table: SeedTable, num_workers: int, plan: ReadPlan
    ) -> ServedLoader:
        """Opens a loader with up to ``num_workers`` samplers. Raises PeerLost if the server ends, RuntimeError if there
        are too many, MemoryError if too much memory is promised, WorkerDied if a sampling process does not come up."""
        _check_request(request, table)
        buffer_bytes, cache_bytes, num_streams = (
            request[name] for name in ("buffer_bytes", "cache_bytes", "num_streams")
        )
        wanted = buffer_bytes + remembered_bytes(cache_bytes)
        with self._changed:
            self._require_room(buffer_bytes, wanted)
            self._count += 1
            id_ = f"{session.group}-{session.rank}-{self._count}"
            self._promised[id_] = wanted
        try:
            workers = self._pool.ensure(num_workers)
            seeds = table.share()
        except BaseException:
            with self._changed:
                del self._promised[id_]
            raise
        secret = secrets.token_hex(32)
        more = {
            "id": id_,
            "secret": secret,
            "client": str(session),
            "seeds_bytes": seeds.nbytes,
            # Of a loader that takes over from another server's, a sampler may have several streams.
            "samplers": workers,
            "most_streams": -(-max(len(workers), num_streams) // len(workers)),
            "buffer_bytes": max(1, buffer_bytes // max(len(workers), num_streams)),
            "cache_bytes": cache_bytes // max(len(workers), num_streams),
            "other_dirs": {str(part): path for part, path in plan.other_dirs.items()},
            "peers": [peer.to_json() for peer in plan.peers],
        }
        loader = ServedLoader(id_, secret, session, {**request, **more}, seeds, workers)
        with self._changed:
            self._loaders[id_] = loader
            self._pool.metrics.open_loader(id_)
        for worker in workers:
            self._tell(loader, worker)
        logger.info("loader %s: %d of %d workers asked for", id_, len(workers), num_workers)
        return loader

    def _require_room(self, buffer_bytes: int, wanted: int) -> None:
        if self._is_ending:
            raise PeerLost(f"{self._server} is shutting down and takes no loaders")  # clients ask another
        if len(self._promised) >= self._most:
            raise RuntimeError(
                f"{self._server} has {len(self._promised)} loaders open, and max_loaders = {self._most}: shut loaders "
                "down that are not needed, or start the server with a larger max_loaders"
            )
        taken = sum(self._promised.values())
        if taken + wanted > self._most_bytes:
            raise MemoryError(
                f"buffer_size = {format_size(buffer_bytes)} ({format_size(wanted)} with what samplers remember of rows "
                f"that the client keeps): {self._server} has {format_size(taken)} promised to other loaders, of "
                f"max_buffer_size = {format_size(self._most_bytes)}; ask for less, or start the server with more"
            )

    def _tell(self, loader: ServedLoader, worker: int) -> None:
        with self._changed:
            if self._loaders.get(loader.id) is not loader:
                return  # closed meanwhile
            seeds_fd = os.dup(loader.seeds.fd)  # one of its own, taken while the loader is open for certain
        try:
            self._pool.send(worker, {"loader": loader.request}, [seeds_fd])
        finally:
            os.close(seeds_fd)
        if self.all().get(loader.id) is not loader:  # it may have heard of the close before
            self._pool.send(worker, {"close": loader.id, "why": "it was closed"}, [])

    def _tell_again(self, worker: int) -> None:
        """A process has come up, perhaps in the place of another that sampled for these loaders."""
        for loader in self.all().values():
            if worker in loader.workers:
                self._tell(loader, worker)

    def stream_at(self, session: ClientSession, id_: str, worker: int) -> dict[str, Any]:
        """Where a client opens the stream of one of its samplers: ``port``, at the address of the server, ``local``,
        the name of a Unix socket, and ``host_id``, where that is; or ``wait``, why it is to ask again. Raises
        RuntimeError if there is no such loader, WorkerDied if the process does not come up again."""
        loader = self.all().get(id_)
        if loader is None or loader.session is not session or worker not in loader.workers:
            raise RuntimeError(f"loader {id_!r} is not known here: it was closed, or its client lost")
        found = self._pool.stream_at(worker)
        if found is None:
            return {"wait": f"worker {worker} of {self._server} is being replaced"}
        return {**found, "host_id": self._host_id}

    def close(self, id_: str, why: str, session: ClientSession | None = None) -> None:
        """Closes a loader, of ``session`` if that is given; does nothing where there is none."""
        with self._changed:
            loader = self._loaders.get(id_)
            if loader is None or session not in (None, loader.session):
                return
            del self._loaders[id_], self._promised[id_]
            self._changed.notify_all()
        self._pool.metrics.close_loader(id_)
        self._pool.send_all({"close": id_, "why": why})
        loader.seeds.close()
        logger.info("loader %s was closed: %s", id_, why)

    def close_all(self, why: str, session: ClientSession | None = None) -> None:
        for loader in self.all().values():
            self.close(loader.id, why, session)

    def open_no_more(self) -> None:
        with self._changed:
            self._is_ending = True

    def wait_until_closed(self, timeout_s: float) -> list[ServedLoader]:
        """Waits until none is open; returns those that still are when ``timeout_s`` seconds are over. Questions have no
        end that could be waited for: their clients ask others when this server has ended."""

        def streams() -> list[ServedLoader]:
            return [each for each in self._loaders.values() if each.request["kind"] == "stream"]

        with self._changed:
            self._changed.wait_for(lambda: not streams(), timeout_s)
            return streams()


def _check_request(request: Mapping[str, Any], table: SeedTable) -> None:
    check_one_of("kind", request["kind"], ("stream", "questions"))
    for name in ("concurrency", "buffer_bytes"):
        check_count(name, request[name], 1, 1 << 62)
    check_count("prefetch_size", request["prefetch_size"], 0, 1 << 62)
    check_count("gather_window", request["gather_window"], 1, 1024)
    check_count("cache_bytes", request["cache_bytes"], 0, 1 << 62)
    check_count("num_streams", request["num_streams"], 1, _MOST_STREAMS)
    lengths = {name: len(column) for name, column in table.columns.items()}
    num_seeds = request["order"]["num_seeds"]
    if not lengths or set(lengths.values()) != {num_seeds}:
        raise ValueError(f"columns of {lengths} seeds for an order of {num_seeds!r}: expected as many in each")
