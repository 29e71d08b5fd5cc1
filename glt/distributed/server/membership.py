"""Which servers there are and which clients are done, kept by server 0; and who reads which partition."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from glt import _deadlines as deadlines
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.server.clients import Attendance
from glt.distributed.wire.connection import Connection, pulse
from glt.distributed.wire.listener import dial, introduce
from glt.distributed.wire.transport import Peer
from glt.errors import ChannelTimeout, GltError, PartitionError, RendezvousError
from glt.partition import load_partition

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerEntry:
    """One server, as all others and the clients know it.

    Attributes:
        rank: Which one.
        address, port: Where it listens.
        host, pid: Where it runs.
        host_id: Tells hosts apart, and containers with names of their own.
        partition_idx, graph_dir, run_id: What it loaded.
        num_servers, num_clients: What it was told; None: any number of clients.
    """

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

    def reads_as(self, other: ServerEntry) -> bool:
        """Whether what was decided for ``other`` holds for this one: whom to ask for which partition."""
        return (self.partition_idx, self.graph_dir, self.host_id) == (
            other.partition_idx,
            other.graph_dir,
            other.host_id,
        )

    def is_process_of(self, other: ServerEntry) -> bool:
        """Whether both are the same process: in containers the first one of each has the same pid."""
        return (self.host_id, self.pid) == (other.host_id, other.pid)

    def peer(self) -> Peer:
        return Peer(f"server-{self.rank}", self.rank, None, self.host, self.pid, self.partition_idx, "server")


class Membership:
    """The servers that are there. Server 0 is told of the others by themselves, and tells them all.

    Args:
        me: This server.
        master: Host and port of server 0.
        clients: Of this server; it learns which are done from what others were told.
        changed: Called with the servers by rank whenever the list has changed.
        timeout_s: Deadline for being accepted, in seconds.

    Raises:
        glt.errors.RendezvousError: If server 0 is not reached in time, or refuses; says why.
    """

    def __init__(
        self,
        me: ServerEntry,
        master: tuple[str, int],
        clients: Attendance,
        changed: Callable[[Mapping[int, ServerEntry]], None],
        timeout_s: float,
    ) -> None:
        self.me, self.master, self.timeout_s = me, master, timeout_s
        self._clients, self._told = clients, changed
        self._changed = threading.Condition()
        self._telling = threading.Lock()  # so that what is told last is what is so
        self._servers: dict[int, ServerEntry] = {me.rank: me}
        self._members: dict[int, Connection] = {}  # on server 0: the others
        self._line: Connection | None = None  # on the others: to server 0
        self._closed = False
        self._has_ended = False  # server 0, which has said so
        if me.rank != 0:
            self._line = self._join(timeout_s)
            self._told(dict(self._servers))
            threading.Thread(target=self._follow, name="glt-membership", daemon=True).start()
        else:
            self._publish()

    def wait(self, timeout_s: float) -> dict[int, ServerEntry]:
        """Waits until all servers are there, ``timeout_s`` seconds at most; returns those that are, by rank."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._servers) == self.me.num_servers or self._closed, timeout_s)
            return dict(self._servers)

    def wait_for_all(self, timeout_s: float) -> dict[int, ServerEntry]:
        """Waits until all servers are there.

        Raises:
            glt.errors.RendezvousError: If some are not there in time; names them.
        """
        found = self.wait(timeout_s)
        missing = sorted(set(range(self.me.num_servers)) - set(found))
        if missing:
            raise RendezvousError(
                f"{self.me}: servers of rank {missing} of {self.me.num_servers} are not there (waited "
                f"{timeout_s:g} s): start them, with master_addr and master_port of server 0 "
                f"({self.master[0]}:{self.master[1]})"
            )
        return found

    def tell_done(self, places: list[tuple[str, int]]) -> None:
        """Tells the other servers that these clients are done, by group and rank."""
        with self._changed:
            lines = [*self._members.values()] if self.me.rank == 0 else [self._line]
        for line in lines:
            self._tell_done(line, places)

    def _tell_done(self, line: Connection | None, places: list[tuple[str, int]]) -> None:
        if line is None or not places:
            return  # server 0 is lost: when it is back it is told of all
        try:
            line.send({"done": places}, timeout_s=deadlines.SEND_S)
        except GltError as error:
            logger.info("%s", error)  # whoever listens there takes note

    # -- on server 0 -----------------------------------------------------------------------------------------------

    def admit(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Takes in another server; refuses one that does not fit, in words."""
        entry = ServerEntry(**hello["entry"])
        connection.peer = str(entry)
        try:
            self._require_fit(entry)
            with self._changed:
                self._require_free(entry)
                connection.send(introduce("server"))  # before anything else is: a few bytes, which find room
                before = self._members.pop(entry.rank, None)
                self._members[entry.rank] = connection
                self._servers[entry.rank] = entry
        except RendezvousError as error:
            logger.warning("refused: %s", error)
            with contextlib.suppress(GltError):  # it went away
                connection.send({"refused": str(error)}, timeout_s=deadlines.SEND_S)
            connection.close()
            return
        except GltError as error:
            logger.info("%s", error)
            connection.close()
            return
        pulse.add(connection)
        if before is not None:
            before.close()
        logger.info("%s joined", entry)
        self._publish()
        self._watch(connection, entry)

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
        before, there = self._members.get(entry.rank), self._servers.get(entry.rank)
        if (
            before is not None
            and there is not None
            and before.silent_s() < deadlines.TAKEN_S
            and not entry.is_process_of(there)
        ):
            raise RendezvousError(
                f"server_rank = {entry.rank} is taken by {there}, which is alive: give each server a rank of its own"
            )

    def _watch(self, connection: Connection, entry: ServerEntry) -> None:
        leaves = False
        try:
            while not self._closed and connection.silent_s() < deadlines.STUCK_S:
                try:
                    told = connection.receive_json(deadlines.POLL_S)
                except ChannelTimeout:
                    continue
                if told.get("is_leaving"):
                    leaves = True
                    break
                self.tell_done(self._clients.learn(_places(told)))
        except (GltError, KeyError, TypeError, ValueError) as error:
            logger.info("%s: %s", entry, error)
        connection.close()
        with self._changed:
            if self._members.get(entry.rank) is not connection:
                return  # it was replaced
            del self._members[entry.rank]
            del self._servers[entry.rank]
        if not self._closed:
            logger.log(logging.INFO if leaves else logging.ERROR, "%s is gone", entry)
            self._publish()

    def _publish(self) -> None:
        with self._telling:
            with self._changed:
                self._changed.notify_all()
                servers, members = dict(self._servers), list(self._members.values())
            for member in members:
                try:
                    told = [entry.to_json() for entry in servers.values()]
                    member.send({"servers": told, "done": self._clients.done()}, timeout_s=deadlines.SEND_S)
                except GltError as error:
                    logger.info("%s", error)  # whoever watches it takes note
            self._told(servers)

    # -- on the others ---------------------------------------------------------------------------------------------

    def _join(self, timeout_s: float) -> Connection:
        hello = introduce("server", entry=self.me.to_json())
        connection, _ = dial(self.master, "server 0", hello, timeout_s)
        self._tell_done(connection, self._clients.done())
        return connection

    def _follow(self) -> None:
        """Takes note of what server 0 says; where that is restarted, joins it anew."""
        while not self._closed:
            line = self._line
            try:
                if line is None:
                    line = self._line = self._join(deadlines.STUCK_S)
                    logger.info("%s joined server 0 again", self.me)
                told = line.receive_json(deadlines.POLL_S)
                self._has_ended = "is_leaving" in told
                self._clients.learn(_places(told))
                if self._has_ended:
                    logger.info("%s: server 0 was shut down; waiting for another", self.me)
                    line.close()
                    self._line = None
                elif "servers" in told:
                    self._learn([ServerEntry(**each) for each in told["servers"]])
            except ChannelTimeout:
                if line is not None and line.silent_s() > deadlines.STUCK_S:
                    line.close()
                    self._line = None
            except (GltError, KeyError, TypeError, ValueError) as error:
                if not self._closed:  # at the end of a job server 0 may be the first to end: nothing is wrong then
                    level = logging.INFO if self._has_ended else logging.WARNING
                    logger.log(level, "%s: %s; trying again", self.me, error)
                if line is not None:
                    line.close()
                self._line = None
                time.sleep(deadlines.POLL_S)

    def _learn(self, entries: list[ServerEntry]) -> None:
        with self._changed:
            self._servers = {entry.rank: entry for entry in entries} | {self.me.rank: self.me}
            self._changed.notify_all()
            servers = dict(self._servers)
        self._told(servers)

    def close(self) -> None:
        """Leaves. May be called again."""
        with self._changed:
            lines = [*self._members.values(), *([self._line] if self._line else [])]
        for line in lines if not self._closed else ():  # before whoever watches them closes them
            with contextlib.suppress(GltError):  # it is gone, or takes nothing: it will see for itself
                line.send({"is_leaving": True, "done": []}, timeout_s=deadlines.GOODBYE_S)
        self._closed = True
        with self._changed:
            lines = [*self._members.values(), *([self._line] if self._line else [])]
            self._changed.notify_all()
        for line in lines:
            line.close()


def _places(told: dict[str, Any]) -> list[tuple[str, int]]:
    return [(str(group), int(rank)) for group, rank in told["done"]]


@dataclass(frozen=True)
class ReadPlan:
    """How the samplers of a server get at each partition.

    Attributes:
        other_dirs: Partitions that they read themselves, besides their own, by index, and where.
        peers: Who is asked for each partition, this server for those that are read here; none if all are.
    """

    other_dirs: dict[int, str]
    peers: tuple[Peer, ...]


def plan_reads(data: DistDataset, me: ServerEntry, servers: Mapping[int, ServerEntry], read_local: bool) -> ReadPlan:
    """Decides how to read each partition: directly if it is loaded by a server of the same host, or if no server loaded
    it and its files are here; else by asking.

    Raises:
        glt.errors.RendezvousError: If a partition can be had in no way; names it.
    """
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
                load_partition(me.graph_dir, part, verify=True)  # nobody else has verified it
                data.map_other(me.graph_dir, part)
                other_dirs[part] = me.graph_dir
                continue
        except (PartitionError, OSError) as error:
            if not serving:
                missing[part] = str(error)
                continue
            logger.info("partition %d is read through %s: %s", part, serving[0], error)
        asked.append(serving[me.rank % len(serving)].peer())
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
