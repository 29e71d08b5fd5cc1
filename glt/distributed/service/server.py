"""A server: listens, keeps its pool of samplers, and looks after its clients."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from glt.available_memory import available_memory
from glt.channel.shared_memory import SharedMemory
from glt.channel.size import format_size
from glt.distributed.agreement import host_id
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.native_pool import NativePool
from glt.distributed.seed_table import SeedTable
from glt.distributed.service import functions
from glt.distributed.service.connection import MAX_JSON_BYTES, Connection, pulse
from glt.distributed.service.handshake import HANDSHAKE_S, introduce, require_same_version
from glt.distributed.service.membership import Membership, ReadPlan, ServerEntry, plan_reads
from glt.distributed.service.metrics import MetricsEndpoint
from glt.distributed.service.pool import SamplerPool
from glt.distributed.service.seed_source import SeedSource
from glt.distributed.service.session import Call, Session
from glt.errors import GltError, RendezvousError

logger = logging.getLogger(__name__)

_MAX_HANDSHAKES = 256
_MAX_HELLO_BYTES = 1 << 20  # of those who have not said yet who they are
_MAX_SESSION_BYTES = 16 << 30
_GRACE_S = 60.0  # a client that was lost may come back within it
_FOLLOWED_S = 3.0  # a client that is silent for so long while another asks for its place loses it


@dataclass(frozen=True)
class ServerOptions:
    """How a server works; see :func:`glt.distributed.init_server`."""

    num_rpc_threads: int
    rpc_timeout: float
    num_workers: int
    max_workers: int
    max_concurrency: int
    max_loaders: int
    max_buffer_bytes: int
    read_local: bool
    seed_dir: str | None
    log_format: str
    metrics: tuple[str, int] | None  # host and port


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


class DistServer:
    """A server of a partition. :func:`glt.distributed.init_server` makes the one of this process.

    Args:
        dataset: The partition, loaded.
        rank, num_servers: Which server of how many.
        num_clients: Clients that are served until the server is done; None: any number, until it is told to end.
        master: Host and port of server 0.
        bind: Host and port to listen at; port 0: one is found.
        group_name: Of the servers.
        options: The rest.

    Attributes:
        address: Host and port under which others reach it.
        listens_at: The address that it listens at, of one interface or of all.
        metrics: Where its numbers are published, if they are.
    """

    def __init__(
        self,
        dataset: DistDataset,
        rank: int,
        num_servers: int,
        num_clients: int | None,
        master: tuple[str, int],
        bind: tuple[str, int],
        group_name: str,
        options: ServerOptions,
    ) -> None:
        self.dataset, self.rank, self.options, self.group_name = dataset, rank, options, group_name
        self.num_servers, self.num_clients = num_servers, num_clients
        self.began_s = time.time()
        self.is_draining = False
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._sessions: dict[str, Session] = {}
        self._loaders: dict[str, ServedLoader] = {}
        self._num_loaders = 0
        self._left: dict[tuple[str, int], float | None] = {}  # clients that are done, or when they were lost
        self._opening: dict[str, int] = {}  # loaders that wait for their samplers, and memory promised to them
        self._plan: ReadPlan | None = None
        self._planned: Mapping[int, ServerEntry] = {}  # the servers that it was made for
        self._handshakes = threading.Semaphore(_MAX_HANDSHAKES)
        self.seeds = SeedSource(dataset, options.seed_dir)
        self._listener = _listen(bind, rank)
        self.listens_at: str = self._listener.getsockname()[0]
        self.address: tuple[str, int] = (_reachable(bind[0], master), self._listener.getsockname()[1])
        self.entry = ServerEntry(
            rank, *self.address, socket.gethostname(), os.getpid(), host_id(), dataset.partition_idx,
            dataset.load_args["graph_dir"], dataset.manifest.run_id, num_servers, num_clients,
        )  # fmt: skip
        self.pool = SamplerPool(
            {
                "server_rank": rank, "load_args": dataset.load_args, "num_places": options.max_concurrency,
                "num_rpc_threads": options.num_rpc_threads, "timeout_s": options.rpc_timeout,
                "log_level": logging.getLogger().getEffectiveLevel(), "log_format": options.log_format,
            },
            options.max_workers, options.rpc_timeout, self._worker_died,
        )  # fmt: skip
        self._calls = NativePool(options.num_rpc_threads, "glt-request")
        self._membership: Membership | None = None
        self.metrics: MetricsEndpoint | None = None
        self._ready = threading.Event()
        try:
            # Others may come while the samplers start: they are admitted when there is a membership.
            threading.Thread(target=self._accept, name="glt-accept", daemon=True).start()
            self.pool.ensure(options.num_workers)
            if options.metrics is not None:
                self.metrics = MetricsEndpoint(self.stats, self.entry, *options.metrics)
            self._membership = Membership(self.entry, master, self._servers_changed, options.rpc_timeout)
            self._ready.set()
        except BaseException:
            self.close()
            raise
        logger.info("%s is ready at %s:%d", self.entry, *self.address)

    # -- connections -----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    logger.error("cannot accept connections: %s", error)
                    time.sleep(0.1)  # out of descriptors, for example: others may be given back
                continue
            if not self._handshakes.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(
                target=self._shake_hands, args=(sock, f"{address[0]}:{address[1]}"), name="glt-handshake", daemon=True
            ).start()

    def _shake_hands(self, sock: socket.socket, who: str) -> None:
        connection = Connection(sock, who)
        connection.max_json_bytes = _MAX_HELLO_BYTES
        try:
            hello = connection.receive_json(HANDSHAKE_S)
            connection.peer = f"{hello.get('kind')} at {who}"
            require_same_version(hello, connection.peer)
            if not self._ready.wait(self.options.rpc_timeout):
                raise RendezvousError(f"{self.entry} is not ready")
        except RendezvousError as error:
            logger.warning("refused: %s", error)
            _refuse(connection, str(error))
            return
        except GltError as error:
            logger.info("no handshake with %s: %s", who, error)
            connection.close()
            return
        finally:
            self._handshakes.release()
        try:
            self._welcome(connection, hello)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("%s sent nonsense: %s: %s", connection.peer, type(error).__name__, error)
            _refuse(connection, f"this is no handshake: {type(error).__name__}: {error}")

    def _welcome(self, connection: Connection, hello: dict[str, Any]) -> None:
        kind = hello.get("kind")
        if self._closed or self._membership is None:
            _refuse(connection, f"{self.entry} is shutting down", is_ending=True)
        elif kind == "server":
            self._membership.admit(connection, hello)
        elif kind == "client":
            self._serve_client(connection, hello)
        elif kind == "stream":
            self._hand_over_stream(connection, hello)
        elif kind == "partition":
            self._hand_over_partition(connection)
        else:
            _refuse(connection, f"kind = {kind!r}: expected client, stream, partition or server")

    def _hand_over_partition(self, connection: Connection) -> None:
        fd = connection.detach()
        with fd:
            if not self.pool.hand_over(None, {"serve": connection.peer}, [fd.fileno()]):
                logger.warning("no sampler is there for %s", connection.peer)

    def _hand_over_stream(self, connection: Connection, hello: dict[str, Any]) -> None:
        id_, worker, places = (
            str(hello["loader"]),
            hello["worker"],
            {name: int(hello[name]) for name in ("first", "step")},
        )
        with self._lock:
            loader = self._loaders.get(id_)
            is_known = loader is not None and loader.session.id == hello["session"] and worker in loader.workers
            # One of its own, taken while the loader is open for certain.
            seeds_fd = os.dup(loader.seeds.fd) if loader is not None and is_known else -1
        if loader is None or not is_known:
            _refuse(connection, f"loader {id_!r} is not known here: it was closed, or its client lost")
            return
        try:
            with connection.detach() as sock:
                handed = self.pool.hand_over(worker, {"loader": {**loader.told, **places}}, [sock.fileno(), seeds_fd])
        finally:
            os.close(seeds_fd)
        if not handed:
            logger.warning("worker %s is not there for %s", worker, loader.session)

    # -- clients ---------------------------------------------------------------------------------------------------

    def _serve_client(self, connection: Connection, hello: dict[str, Any]) -> None:
        try:
            self._require_fit(hello)
            session = Session(connection, hello, self._find, self._calls)
            with self._changed:
                self._end_predecessors(session)
                ending = self.is_draining or self._closed
                if not ending:
                    self._sessions[session.id] = session
                    self._left.pop((session.group, session.rank), None)
                    self._changed.notify_all()
        except RendezvousError as error:
            logger.warning("refused: %s", error)
            _refuse(connection, str(error))
            return
        if ending:
            _refuse(connection, f"{self.entry} is shutting down", is_ending=True)
            return
        connection.peer = str(session)
        connection.max_bytes, connection.max_json_bytes = _MAX_SESSION_BYTES, MAX_JSON_BYTES
        logger.info("%s came", session)
        why = "its handshake failed"
        try:
            connection.send(introduce("client", session=session.id, entry=self.entry.to_json(), about=self._about()))
            pulse.add(connection)
            why = session.run()
        except GltError as error:
            why = str(error)
        finally:
            self._end_session(session, why)

    def _end_predecessors(self, session: Session) -> None:
        """Makes sure that no living client has the place of this one; ``_changed`` is held.

        One that was killed may have been followed at once, while the kernel still took its memory from it: a client is
        taken for living when it gave a sign of life after its follower had come.
        """
        came = time.monotonic()
        while not self._closed:
            same = [
                each for each in self._sessions.values() if (each.group, each.rank) == (session.group, session.rank)
            ]
            for other in same:
                if other.connection.heard_s > came:
                    raise RendezvousError(f"client_rank = {session.rank} of {session.group!r} is taken by {other}")
            if not same:
                return
            if time.monotonic() - came > _FOLLOWED_S:
                for other in same:
                    other.connection.close()
                return
            self._changed.wait(0.1)

    def _require_fit(self, hello: dict[str, Any]) -> None:
        for name in ("num_servers", "num_clients"):
            mine, theirs = getattr(self, name), hello[name]
            if mine is not None and theirs != mine:
                raise RendezvousError(
                    f"{name} = {theirs!r} on the client, {mine!r} on {self.entry}: give both the same"
                )

    def _about(self) -> dict[str, Any]:
        return {
            "manifest": self.dataset.manifest.to_json(),
            "graph_dir": self.dataset.load_args["graph_dir"],
            "labelled": [labels is not None for labels in self.dataset.whole_node_labels],
        }

    def _end_session(self, session: Session, why: str) -> None:
        if not session.has_left:  # it may be there after all, and asks itself what happened
            told = {"closing": f"{self.entry} has ended its session with {session}: {why}", "has_data": False}
            session.say(told, timeout_s=0.0)
        session.connection.close()
        with self._changed:
            self._sessions.pop(session.id, None)
            mine = [each for each in self._loaders.values() if each.session is session]
            place = session.group, session.rank
            # Its successor may have come and left before this one was missed.
            if session.has_left or self._left.get(place, 0.0) is not None:
                self._left[place] = None if session.has_left else time.monotonic()
            self._changed.notify_all()
        for loader in mine:
            self._close_loader(loader.id, f"{session} is gone: {why}")
        (logger.info if session.has_left else logger.warning)("%s is gone: %s", session, why)

    def _find(self, name: str) -> Call:
        own: dict[str, Call] = {
            "glt.create_loader": lambda session, args, kwargs: self._create_loader(session, *args, **kwargs),
            "glt.close_loader": lambda session, args, kwargs: self._close_own(session, *args),
            "glt.leave": lambda session, args, kwargs: self._leave(session),
            "glt.seeds_of_split": lambda session, args, kwargs: self.seeds.of_split(*args),
            "glt.seeds_of_file": lambda session, args, kwargs: self.seeds.of_file(*args),
            "glt.all_edges": lambda session, args, kwargs: self.seeds.all_edges(*args),
            "glt.servers": lambda session, args, kwargs: self._servers(*args),
            "glt.readable": lambda session, args, kwargs: self._readable(),
            "glt.stats": lambda session, args, kwargs: self.stats(),
        }
        if name in own:
            return own[name]
        function = functions.registered(name)
        return lambda session, args, kwargs: function(*args, **kwargs)

    def _servers(self, timeout_s: float) -> list[dict[str, Any]]:
        """Those that are there, all of them unless that takes longer than ``timeout_s`` seconds."""
        assert self._membership is not None
        found = self._membership.wait(min(float(timeout_s), self.options.rpc_timeout))
        return [entry.to_json() for _, entry in sorted(found.items())]

    def _leave(self, session: Session) -> None:
        session.has_left = True

    # -- loaders ---------------------------------------------------------------------------------------------------

    def _readable(self) -> list[int]:
        """Partitions whose seeds are read here."""
        plan = self._read_plan()
        parts = [self.dataset.partition_idx, *plan.other_dirs]
        self.seeds.map(plan.other_dirs)
        return sorted(parts)

    def _read_plan(self) -> ReadPlan:
        """Made when all servers are there; it outlives those that are lost, since not all loaders need them."""
        assert self._membership is not None
        with self._lock:
            if self._plan is not None:
                return self._plan
        servers = self._membership.wait_for_all(self.options.rpc_timeout)
        plan = plan_reads(self.dataset, self.entry, servers, self.options.read_local)
        with self._lock:
            self._plan, self._planned = plan, servers
        return plan

    def _create_loader(
        self, session: Session, told: dict[str, Any], columns: dict[str, Tensor], extras: dict[str, Tensor],
        num_workers: int,
    ) -> dict[str, Any]:  # fmt: skip
        plan = self._read_plan()
        wanted = int(told["buffer_bytes"])
        with self._lock:
            if self.is_draining or self._closed:
                raise RuntimeError(f"{self.entry} is shutting down and takes no loaders")
            count = len(self._loaders) + len(self._opening)
            if count >= self.options.max_loaders:
                raise RuntimeError(
                    f"{self.entry} has {count} loaders open, and max_loaders = "
                    f"{self.options.max_loaders}: shut loaders down that are not needed, or start the server "
                    "with a larger max_loaders"
                )
            taken = sum(each.told["buffer_bytes"] * len(each.workers) for each in self._loaders.values())
            taken += sum(self._opening.values())
            if taken + wanted > self.options.max_buffer_bytes:
                raise MemoryError(
                    f"buffer_size = {format_size(wanted)}: {self.entry} has {format_size(taken)} promised to other "
                    f"loaders, of max_buffer_size = {format_size(self.options.max_buffer_bytes)}; ask for less, or "
                    "start the server with more"
                )
            self._num_loaders += 1
            id_ = f"{session.group}-{session.rank}-{self._num_loaders}"
            self._opening[id_] = wanted
        try:
            return self._open_loader(id_, session, told, columns, extras, num_workers, plan)
        finally:
            with self._lock:
                del self._opening[id_]

    def _open_loader(
        self, id_: str, session: Session, told: dict[str, Any], columns: dict[str, Tensor], extras: dict[str, Tensor],
        num_workers: int, plan: ReadPlan,
    ) -> dict[str, Any]:  # fmt: skip
        workers = self.pool.ensure(num_workers)
        seeds = SeedTable(columns, extras).share()
        loader = ServedLoader(
            id_, session,
            {
                **told, "id": id_, "client": str(session), "seeds_bytes": seeds.nbytes,
                "buffer_bytes": max(1, int(told["buffer_bytes"]) // len(workers)),
                "other_dirs": {str(part): path for part, path in plan.other_dirs.items()},
                "peers": [peer.to_json() for peer in plan.peers],
            },
            seeds, workers,
        )  # fmt: skip
        with self._lock:
            gone = session.id not in self._sessions
            if not gone:
                self._loaders[id_] = loader
                self.pool.ledger.open_loader(id_)
        if gone:
            seeds.close()
            raise RuntimeError(f"{session} is gone")
        logger.info("loader %s: %d seeds, %d of %d workers asked for", id_, len(next(iter(columns.values()))),
                    len(workers), num_workers)  # fmt: skip
        return {"id": id_, "workers": workers}

    def _close_own(self, session: Session, id_: str) -> None:
        with self._lock:
            loader = self._loaders.get(id_)
        if loader is not None and loader.session is session:
            self._close_loader(id_, "the client closed it")

    def _close_loader(self, id_: str, why: str) -> None:
        with self._changed:
            loader = self._loaders.pop(id_, None)
            self._changed.notify_all()
        if loader is not None:
            self.pool.ledger.close_loader(id_)
            self.pool.tell_all({"close": id_, "why": why})
            loader.seeds.close()
            logger.info("loader %s was closed: %s", id_, why)

    def _worker_died(self, worker: int, text: str) -> None:
        with self._lock:
            hit = [each for each in self._loaders.values() if worker in each.workers]

        def tell() -> None:
            for loader in hit:
                loader.session.say({"died": text, "worker": worker, "loader": loader.id, "has_data": False})

        # Not on this thread, which looks after the other samplers: a client may be slow to listen.
        threading.Thread(target=tell, name="glt-tell", daemon=True).start()

    def _servers_changed(self, servers: Mapping[int, ServerEntry]) -> None:
        with self._lock:
            if any(not entry.reads_as(self._planned.get(rank, entry)) for rank, entry in servers.items()):
                self._plan = None  # one came back with another partition, or on another host
        known = {
            str(rank): [entry.address, entry.port, entry.host, entry.pid, entry.partition_idx]
            for rank, entry in servers.items()
        }
        self.pool.tell_all({"servers": known}, standing=True)

    # -- the end ---------------------------------------------------------------------------------------------------

    def wait_until_done(self, timeout_s: float | None = None) -> bool:
        """Waits until all clients have left, or were lost and did not come back within a minute; never, without a
        number of clients.

        Returns:
            False if ``timeout_s`` seconds were not enough.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._is_done():
                if deadline is not None and time.monotonic() > deadline:
                    return False
                self._changed.wait(0.5)
            self.is_draining = True  # whoever comes now finds the server's successor, if there is one
        return True

    def _is_done(self) -> bool:
        if self._closed:
            return True
        if self.num_clients is None or self._sessions or len(self._left) < self.num_clients:
            return False
        now = time.monotonic()
        return all(lost_s is None or now - lost_s > _GRACE_S for lost_s in self._left.values())

    def drain(self, timeout_s: float) -> list[str]:
        """Takes no more clients and loaders, and waits for those that are there; returns what was still open when
        ``timeout_s`` seconds were over, in words."""
        self.is_draining = True
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._loaders and time.monotonic() < deadline:
                self._changed.wait(0.2)
            return [f"loader {each.id} of {each.session}" for each in self._loaders.values()]

    def stats(self) -> dict[str, Any]:
        """What the server does: by loader, by sampling process, and in all. See ``glt.distributed.server_stats``."""
        from glt.distributed.service.server_stats import collect

        return collect(self)

    def close(self) -> None:
        """Ends the server, its samplers and its connections. May be called again."""
        with self._changed:
            already, self._closed = self._closed, True
            sessions, loaders = list(self._sessions.values()), list(self._loaders)
            self._changed.notify_all()
        if already:
            return
        self._ready.set()  # whoever waits for it is told that this is the end
        for session in sessions:
            session.say({"closing": f"{self.entry} was shut down", "has_data": False}, timeout_s=1.0)
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
        except OSError as error:
            logger.debug("%s", error)
        self._listener.close()
        for id_ in loaders:
            self._close_loader(id_, f"{self.entry} was shut down")
        if self._membership is not None:
            self._membership.close()
        for session in sessions:
            session.connection.close()
        if self.metrics is not None:
            self.metrics.close()
        self.pool.close()
        self._calls.shutdown(1.0)
        logger.info("%s has ended", self.entry)


def _refuse(connection: Connection, text: str, is_ending: bool = False) -> None:
    try:
        connection.send({"refused": text, "is_ending": is_ending}, timeout_s=5.0)
    except GltError as error:
        logger.info("%s", error)
    connection.close()


def _listen(bind: tuple[str, int], rank: int) -> socket.socket:
    host, port = bind
    try:
        # As _reachable has it: localhost, for example, has addresses of two families.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024, reuse_port=False)
    except OSError as error:
        named = "master_port" if rank == 0 else "port"
        raise RendezvousError(
            f"server {rank} cannot listen at {host!r}, {named} = {port}, on {socket.gethostname()}: {error}. Perhaps "
            "another program has the port; or the name is no address of this host: then give host='0.0.0.0', which "
            "listens on all its interfaces"
        ) from error
    return listener


def _reachable(host: str, master: tuple[str, int]) -> str:
    """The address under which others reach this server: where it listens; if that is everywhere, this host's address on
    the way to server 0."""
    if host not in ("", "0.0.0.0", "::"):
        return host if ":" in host else socket.gethostbyname(host)
    return own_address(master)


def own_address(master: tuple[str, int]) -> str:
    """The address of this host on the way to another, which need not be there: nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(master[0]), master[1]))
            return str(probe.getsockname()[0])
    except socket.gaierror as error:
        raise RendezvousError(f"master_addr = {master[0]!r}: no such host ({error})") from error
    except OSError as error:
        raise RendezvousError(f"there is no way to master_addr = {master[0]!r}: {error}") from error


def default_buffer_limit() -> int:
    """Half of the memory that is there now."""
    return available_memory()[0] // 2
