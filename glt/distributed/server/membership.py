"""Which servers there are and which clients are done, kept by server 0; and how a server reads each partition."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from glt import _deadlines as deadlines
from glt._checks import is_exhausted
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.server.sessions import ClientRegistry
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import Frame
from glt.distributed.wire.handshake import Hint, connect, introduce, refuse
from glt.distributed.wire.threads import call_on_loop, process_loop, wait_for
from glt.distributed.wire.transport import Peer
from glt.errors import GltError, PartitionError, RendezvousError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerEntry:
    """One server as all others and the clients know it; ``host_id`` tells hosts and containers apart."""

    rank: int
    address: str
    port: int
    host: str
    pid: int
    host_id: str
    partition_idx: int
    graph_dir: str
    run_id: str
    num_servers: int
    num_clients: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"server {self.rank} (partition {self.partition_idx}, host {self.host}, pid {self.pid})"

    def peer(self) -> Peer:
        return Peer(f"server-{self.rank}", self.rank, None, self.host, self.pid, self.partition_idx, "server")


class Membership:
    """The servers of a job. Each of the others joins server 0, which sends all of them the list whenever it changes;
    ``on_change`` is called with the servers by rank, on the loop as a rule, and must wait for nothing. They tell each
    other, too, which clients are done."""

    def __init__(
        self,
        me: ServerEntry,
        master: tuple[str, int],
        clients: ClientRegistry,
        on_change: Callable[[Mapping[int, ServerEntry]], None],
    ) -> None:
        self.me, self.master = me, master
        self._clients, self._on_change = clients, on_change
        self._changed = threading.Condition()  # the loop alone changes what it guards
        self._servers: dict[int, ServerEntry] = {me.rank: me}
        self._known: dict[int, ServerEntry] = {me.rank: me}  # those, and others as they were before they went
        self._members: dict[int, Connection] = {}  # on server 0: to the others, by rank
        self._upstream: Connection | None = None  # on the others: to server 0
        self._rejoining: asyncio.Task[None] | None = None
        self._server_0_left = self._is_closing = False

    def join(self, timeout_s: float) -> None:
        """Joins server 0 and follows it. Raises RendezvousError if it is not reached in time, or refuses."""
        if self.me.rank != 0:
            wait_for(self._join(timeout_s))
        self._on_change(self.there())

    def there(self) -> dict[int, ServerEntry]:
        """The servers that are there now, by rank."""
        with self._changed:
            return dict(self._servers)

    def wait(self, timeout_s: float) -> dict[int, ServerEntry]:
        """Waits until all servers are there, ``timeout_s`` seconds at most; returns those that are, by rank."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._servers) == self.me.num_servers or self._is_closing, timeout_s)
            return dict(self._servers)

    def wait_for_all(self, timeout_s: float) -> dict[int, ServerEntry]:
        """Waits until all servers have been there; returns them by rank, some of which may be gone by now. Raises
        RendezvousError if some do not come in time, and names them."""
        deadline, hint = time.monotonic() + timeout_s, Hint(timeout_s)
        with self._changed:
            while missing := sorted(set(range(self.me.num_servers)) - set(self._known)):
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._is_closing:
                    break
                hint.give(f"{self.me}: servers of rank {missing} of {self.me.num_servers} have not come yet")
                self._changed.wait(min(left_s, deadlines.POLL_S))
            found = dict(self._known)
        if missing:
            raise RendezvousError(
                f"{self.me}: servers of rank {missing} of {self.me.num_servers} are not there (waited "
                f"{timeout_s:g} s): start them, with master_addr and master_port of server 0 "
                f"({self.master[0]}:{self.master[1]})"
            )
        return found

    def send_done(self, places: list[tuple[str, int]]) -> None:
        """Tells the other servers which clients are done. A lost server is told of all when it joins again."""
        for connection in self._connections() if places else ():
            _send(connection, {"done": places})

    def _connections(self) -> list[Connection]:
        with self._changed:
            return [*self._members.values(), *([self._upstream] if self._upstream else [])]

    def close(self) -> None:
        with self._changed:
            was_closing, self._is_closing = self._is_closing, True
            self._changed.notify_all()
        if was_closing:
            return
        for connection in self._connections():
            _send(connection, {"is_leaving": True, "done": []})
            connection.part()
        call_on_loop(self._stop)

    def _stop(self) -> None:
        if self._rejoining is not None:
            self._rejoining.cancel()

    # -- on server 0 -----------------------------------------------------------------------------------------------

    def admit(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Takes in another server, and follows it until it is gone; refuses one that does not fit. On the loop."""
        entry = ServerEntry(**hello["entry"])
        connection.peer, connection.host = str(entry), entry.host
        try:
            self._require_fit(entry)
            self._require_free(entry)
        except RendezvousError as error:
            logger.warning("refused: %s", error)
            refuse(connection, str(error))
            return
        connection.send(introduce("server"))  # before the list is
        with self._changed:
            before = self._members.pop(entry.rank, None)
            self._members[entry.rank] = connection
            self._servers[entry.rank] = self._known[entry.rank] = entry
        if before is not None:
            before.close()
        logger.info("%s joined", entry)
        connection.start(
            partial(self._hear, connection, entry),
            partial(self._lose, connection, entry),
            max_data_bytes=0,
            silence_s=deadlines.STUCK_S,
        )
        self._publish()

    def _require_fit(self, entry: ServerEntry) -> None:
        me = self.me
        if me.rank != 0:
            raise RendezvousError(f"this is server {me.rank}: servers join server 0, at {self.master}")
        if not 0 < entry.rank < me.num_servers:
            raise RendezvousError(f"server_rank = {entry.rank}: expected 1 to {me.num_servers - 1}")
        for name in ("num_servers", "num_clients", "run_id"):
            mine, theirs = getattr(me, name), getattr(entry, name)
            if mine != theirs:
                what = "the partitioning run of dataset" if name == "run_id" else name
                raise RendezvousError(
                    f"{what} differs between servers: {mine!r} on server 0 (host {me.host}), {theirs!r} on server "
                    f"{entry.rank} (host {entry.host}, pid {entry.pid}); expected the same everywhere"
                )

    def _require_free(self, entry: ServerEntry) -> None:
        connection, other = self._members.get(entry.rank), self._servers.get(entry.rank)
        if connection is None or other is None:
            return
        if (entry.host_id, entry.pid) == (other.host_id, other.pid):
            return  # the same process; in containers the first one of each has the same pid
        if connection.silent_s() < deadlines.TAKEN_S:
            raise RendezvousError(
                f"server_rank = {entry.rank} is taken by {other}, which is alive: give each server a rank of its own"
            )

    def _hear(self, connection: Connection, entry: ServerEntry, frame: Frame) -> None:
        self.send_done(self._clients.add_done(_places(frame)))
        with self._changed:
            before = len(self._known)
            self._known = _entries(frame, "known") | self._known
            has_learned = len(self._known) > before
        if has_learned:
            self._publish()  # this server was restarted, and others remember more
        if frame.value.get("is_leaving"):
            self._remove(connection, entry, logging.INFO)
            connection.close()

    def _lose(self, connection: Connection, entry: ServerEntry, error: GltError) -> None:
        logger.info("%s: %s", entry, error)
        self._remove(connection, entry, logging.ERROR)

    def _remove(self, connection: Connection, entry: ServerEntry, level: int) -> None:
        with self._changed:
            if self._members.get(entry.rank) is not connection:
                return  # it was replaced, or has left
            del self._members[entry.rank]
            del self._servers[entry.rank]
        if not self._is_closing:
            logger.log(level, "%s is gone", entry)
            self._publish()

    def _publish(self) -> None:
        with self._changed:
            self._changed.notify_all()
            servers, members = dict(self._servers), list(self._members.values())
            listed = {"servers": _to_json(self._servers), "known": _to_json(self._known)}
        for member in members:
            _send(member, {**listed, "done": self._clients.done()})
        self._on_change(servers)

    # -- on the others ---------------------------------------------------------------------------------------------

    async def _join(self, timeout_s: float) -> None:
        hello = introduce("server", entry=self.me.to_json())
        connection, _ = await connect(self.master, "server 0", hello, timeout_s)
        with self._changed:
            if self._is_closing:
                connection.close()
                return
            self._upstream, self._server_0_left = connection, False
            known = _to_json(self._known)
        _send(connection, {"done": self._clients.done(), "known": known})
        connection.start(self._follow, self._lose_server_0, max_data_bytes=0, silence_s=deadlines.STUCK_S)

    def _follow(self, frame: Frame) -> None:
        """Takes note of what server 0 says."""
        self._clients.add_done(_places(frame))
        if "is_leaving" in frame.value:
            logger.info("%s: server 0 was shut down; waiting for another", self.me)
            self._server_0_left = True
            assert self._upstream is not None
            self._upstream.close()
        elif "servers" in frame.value:
            with self._changed:
                self._servers = _entries(frame, "servers") | {self.me.rank: self.me}
                self._known |= _entries(frame, "known") | self._servers
                self._changed.notify_all()
            self._on_change(self.there())

    def _lose_server_0(self, error: GltError) -> None:
        with self._changed:
            self._upstream = None
        if not self._is_closing:  # at the end of a job server 0 may be the first to end
            self._complain(error)
            self._rejoining = process_loop.get().create_task(self._rejoin())

    async def _rejoin(self) -> None:
        while not self._is_closing:
            await asyncio.sleep(deadlines.POLL_S)
            try:
                await self._join(deadlines.STUCK_S)
            except (LookupError, RuntimeError, TypeError, ValueError) as error:
                self._complain(error)
            else:
                logger.info("%s joined server 0 again", self.me)
                return

    def _complain(self, error: Exception) -> None:
        level = logging.INFO if self._server_0_left else logging.WARNING
        logger.log(level, "%s: %s; trying again", self.me, error)


def _send(connection: Connection, frame: dict[str, Any]) -> None:
    try:
        connection.send(frame)
    except GltError as error:
        logger.info("%s", error)  # its end is heard of, too


def _to_json(servers: Mapping[int, ServerEntry]) -> list[dict[str, Any]]:
    return [entry.to_json() for entry in servers.values()]


def _entries(frame: Frame, name: str) -> dict[int, ServerEntry]:
    return {each["rank"]: ServerEntry(**each) for each in frame.value.get(name, ())}


def _places(frame: Frame) -> list[tuple[str, int]]:
    return [(str(group), int(rank)) for group, rank in frame.value["done"]]


@dataclass(frozen=True)
class ReadPlan:
    """How the samplers of a server read each partition: themselves from ``other_dirs``, by partition; the others from
    ``peers``, which are empty if none is asked."""

    other_dirs: dict[int, str]
    peers: tuple[Peer, ...]


def plan_reads(data: DistDataset, me: ServerEntry, servers: Mapping[int, ServerEntry], read_local: bool) -> ReadPlan:
    """Reads a partition directly if a server of this host loaded it, or no server did and its files are here; else
    asks. Of several servers that loaded it one is asked, by other servers others, as evenly as can be. Raises
    RendezvousError for one that cannot be read in any way."""
    other_dirs: dict[int, str] = {}
    asked: list[Peer] = []
    missing: dict[int, str] = {}
    for part in range(data.num_partitions):
        if part == data.partition_idx:
            continue
        serving = [entry for _, entry in sorted(servers.items()) if entry.partition_idx == part]
        here = [entry for entry in serving if entry.host_id == me.host_id]
        try:
            if here and read_local:
                data.map_other(here[0].graph_dir, part)
                other_dirs[part] = here[0].graph_dir
                continue
            if not serving:
                data.map_other(me.graph_dir, part, is_loaded=False)
                other_dirs[part] = me.graph_dir
                continue
        except (PartitionError, OSError) as error:
            if is_exhausted(error):
                raise  # of this process, not of the files
            if not serving:
                missing[part] = str(error)
                continue
            logger.info("partition %d is read through %s: %s", part, serving[0], error)
        askers = sorted({*servers, me.rank} - {entry.rank for entry in serving})
        asked.append(serving[askers.index(me.rank) % len(serving)].peer())
    if missing:
        part, reason = next(iter(missing.items()))
        raise RendezvousError(
            f"{me}: partitions {sorted(missing)} of {data.num_partitions} are loaded by no server, and cannot be read "
            f"here: {reason}. Load each on a server, or copy its files to {me.graph_dir} on {me.host}"
        )
    if not asked:
        return ReadPlan(other_dirs, ())
    own = [replace(me.peer(), partition_idx=part) for part in (data.partition_idx, *other_dirs)]
    return ReadPlan(other_dirs, (*own, *asked))
