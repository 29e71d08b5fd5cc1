"""A client of servers: its session with each of them, and what it knows of their graph."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _deadlines as deadlines
from glt._checks import format_size
from glt._reprs import says
from glt.channel.message import rebuild_error
from glt.data.keys import KeyMaps, Keys, as_column
from glt.data.schema import PartitionBook
from glt.distributed.context import DistContext
from glt.distributed.server.membership import ServerEntry
from glt.distributed.wire.beats import add_tick, discard_tick
from glt.distributed.wire.calls import Landing, PendingCalls, decode_value, encode_value
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import Frame
from glt.distributed.wire.handshake import Hint, dial, introduce
from glt.distributed.wire.threads import call_on_loop, process_loop, refuse_fork, refuse_loop, wait_for
from glt.errors import GltError, PeerLost, RendezvousError, WorkerDied
from glt.partition.format.manifest import EdgeTypeEntry, Manifest, NodeTypeEntry

logger = logging.getLogger(__name__)

_MAX_REPLY_BYTES = 64 << 30

T = TypeVar("T")


# -- what a client knows of the graph: everything but the graph ----------------------------------------------------


class RemoteBooks(Sequence[PartitionBook | None]):
    """Partition books of all types of nodes or edges (``kind``): from the manifest where they are ranges, else fetched
    when first looked at, 5 to 8 bytes per id."""

    def __init__(
        self, client: DistClient, kind: str, entries: Sequence[NodeTypeEntry | EdgeTypeEntry], num_parts: int
    ) -> None:
        self._client, self._kind, self._entries, self._num_parts = client, kind, entries, num_parts
        self._lock = threading.Lock()
        self._books: dict[int, PartitionBook | None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: int) -> PartitionBook | None:  # type: ignore[override]
        if not 0 <= at < len(self._entries):
            raise IndexError(f"{self._kind} type {at}: there are {len(self._entries)}")
        with self._lock:
            if at not in self._books:
                self._books[at] = self._fetch(at)
            return self._books[at]

    def _fetch(self, at: int) -> PartitionBook | None:
        entry = self._entries[at]
        if entry.offsets is not None:
            return PartitionBook.of_ranges(entry.offsets)
        if isinstance(entry, EdgeTypeEntry) and not entry.has_rows:
            return None
        book = self._client.request_any("glt.graph.book", self._kind, at)
        return PartitionBook.of_arrays(book["owner"].clone(), book["row_of"].clone(), self._num_parts)


class RemoteKeys(Keys):
    """The keys of nodes of a type, which servers look up."""

    def __init__(self, client: DistClient, node_type: int, entry: NodeTypeEntry) -> None:
        assert entry.keys is not None
        self._client, self._node_type, self._num_keys = client, node_type, entry.num_nodes
        self.name, self.columns = entry.node_type, entry.keys

    def __len__(self) -> int:
        return self._num_keys

    def find(self, columns: tuple[Any, ...]) -> np.ndarray:
        wanted = [as_column(each, kind, name) for each, (name, kind) in zip(columns, self.columns.items(), strict=True)]
        found = self._client.request_any("glt.find_keys", self._node_type, [_tensors(each) for each in wanted])
        return found.numpy()  # type: ignore[no-any-return]

    def take(self, rows: np.ndarray) -> tuple[Any, ...]:
        found = self._client.request_any("glt.take_keys", self._node_type, torch.from_numpy(rows))
        return tuple(each.numpy() if isinstance(each, Tensor) else each for each in found)

    @says
    def __repr__(self) -> str:
        return f"{self.name!r}, {len(self):,} keys"


def _tensors(column: Any) -> Any:
    return [torch.from_numpy(np.array(each)) for each in (column if isinstance(column, tuple) else [column])]


class RemoteDataset:
    """Stands for a :class:`~glt.distributed.DistDataset` in checks and batches, with the same attributes. ``about`` is
    what a server says of its dataset."""

    def __init__(self, client: DistClient, about: dict[str, Any]) -> None:
        self._client = client
        self.manifest = Manifest.from_json(about["manifest"])
        self.schema = self.manifest.schema
        self.num_partitions = self.manifest.num_parts
        self.partition_idx: int | None = None
        self.num_nodes_of = tuple(entry.num_nodes for entry in self.manifest.node_types)
        self.num_edges_of = tuple(entry.num_edges for entry in self.manifest.edge_types)
        self.edge_dir = self.manifest.edge_dir
        self.ends = self.schema.ends(self.edge_dir)
        self.node_books = RemoteBooks(client, "node", self.manifest.node_types, self.num_partitions)
        self.edge_books = RemoteBooks(client, "edge", self.manifest.edge_types, self.num_partitions)
        self.ids = KeyMaps(
            {
                entry.node_type: RemoteKeys(client, at, entry)
                for at, entry in enumerate(self.manifest.node_types)
                if entry.keys
            }
        )
        self.load_args = {"graph_dir": about["graph_dir"]}
        self.num_servers, self.client_rank = client.num_servers, client.context.rank

    def seeds_of_split(self, split: str, node_type: int) -> Tensor:
        """This client's share of a split ``[n]``, int64: its nodes by ascending id, cut into one piece per client."""
        found = self._ask_readers(
            lambda rank, parts: [self._client.request(rank, "glt.seeds_of_split", split, node_type, parts)]
        )
        return self._share(torch.cat(found).sort().values)

    def seeds_of_file(self, path: str, server_rank: int) -> Tensor:
        return self._client.request(server_rank, "glt.seeds_of_file", path)

    def all_edges(self, edge_type: int) -> tuple[Tensor, Tensor]:
        """This client's share of all edges of a type, by ascending id: ends ``[2, B]`` and ids ``[B]``, int64."""
        found = self._ask_readers(
            lambda rank, parts: [self._client.request(rank, "glt.all_edges", edge_type, part) for part in parts]
        )
        ids, order = torch.cat([each[1] for each in found]).sort()
        return torch.cat([each[0] for each in found], 1)[:, self._share(order)], self._share(ids)

    def _share(self, whole: Tensor) -> Tensor:
        context = self._client.context
        first, last = (len(whole) * rank // context.world_size for rank in (context.rank, context.rank + 1))
        return whole[first:last].clone()

    def _ask_readers(self, ask: Callable[[int, list[int]], list[T]]) -> list[T]:
        """What ``ask`` gets from servers that read the partitions, each partition from one that is there."""
        found: list[T] = []
        missing = set(range(self.num_partitions))
        lost: PeerLost | None = None
        for rank in self._client.ranks():
            try:
                mine = sorted(missing & set(self._client.request(rank, "glt.readable")))
                if mine:
                    found += ask(rank, mine)
            except PeerLost as error:
                lost = lost or error
                continue
            missing -= set(mine)
            if not missing:
                return found
        raise lost or PeerLost(f"no server reads partitions {sorted(missing)}")

    @says
    def __repr__(self) -> str:
        return f"{self.num_partitions} partitions on {self._client.num_servers} servers"


# -- calls ---------------------------------------------------------------------------------------------------------


class Reply(Future[Any]):
    """What a server will answer. ``too_late`` is called with a result after the deadline, to undo what was done; the
    result goes into ``landing`` if that is given."""

    too_late: Callable[[Any], None] | None = None

    def __init__(self, landing: Landing | None = None) -> None:
        super().__init__()
        self.landing = landing
        self._pid = os.getpid()

    def result(self, timeout: float | None = None) -> Any:
        """The answer.

        Raises:
            RuntimeError: In a fork of the client, or in a callback of a reply, where it would be waited for in vain.
            glt.errors.PeerLost: If the server is gone, or gives no answer in time.
        """
        if not self.done():
            refuse_fork(self._pid, "what was asked before is answered there")
            refuse_loop()
        return super().result(timeout)

    def wait(self) -> Any:
        """As ``result()``, under the name that it has in ``torch.futures``."""
        return self.result()


class ServerSession:
    """The session with one server, made of what :func:`dial` returned. ``timeout_s`` is the deadline of a call in
    seconds. Answers come on the loop. So does the list of the servers that are there, whenever it changes:
    ``on_servers`` is called with it."""

    def __init__(
        self,
        connection: Connection,
        answer: dict[str, Any],
        timeout_s: float,
        on_servers: Callable[[dict[int, ServerEntry]], None] = lambda servers: None,
    ) -> None:
        self.connection, self.timeout_s, self._on_servers = connection, timeout_s, on_servers
        self.entry = ServerEntry(**answer["entry"])
        self.id: str = answer["session"]
        self.about: dict[str, Any] = answer["about"]
        self._most_bytes: int = answer["most_bytes"]
        connection.peer, connection.host = str(self.entry), self.entry.host
        connection.stall_s = timeout_s  # while many calls of this client wait there, nothing is read
        connection.find_landing = self._find_landing
        self._calls: PendingCalls[Reply] = PendingCalls()
        self._expired: dict[int, Reply] = {}  # not waited for any more; what is done for them is to be undone
        self._dead_workers: dict[tuple[str, int], str] = {}  # what the server said of them, by loader and worker
        self._ended = threading.Condition()  # a worker died, or the session ended
        self._closed = False
        call_on_loop(self._start)

    def _start(self) -> None:
        add_tick(self._expire)
        self.connection.start(self._take, self._fail, max_data_bytes=_MAX_REPLY_BYTES, silence_s=deadlines.STUCK_S)

    @property
    def lost(self) -> PeerLost | None:
        return self._calls.lost

    def failure_of(self, loader: str, worker: int, timeout_s: float) -> GltError | None:
        """Why a sampling process makes no batches for a loader: it died, or this session has ended. None if neither
        has happened ``timeout_s`` seconds later."""
        place = loader, worker
        with self._ended:
            self._ended.wait_for(lambda: place in self._dead_workers or self.lost is not None, timeout_s)
        return WorkerDied(self._dead_workers[place]) if place in self._dead_workers else self.lost

    def forget_death(self, loader: str, worker: int) -> None:
        """Another process is there in the place of one that died."""
        with self._ended:
            self._dead_workers.pop((loader, worker), None)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Reply:
        """Asks for something; the reply raises what the server raised, or PeerLost."""
        return self._ask(Reply(), self.timeout_s, name, args, kwargs)

    def call_within(self, timeout_s: float, name: str, *args: Any) -> Reply:
        return self._ask(Reply(), timeout_s, name, args, {})

    def call_into(self, out: Tensor, name: str, *args: Any) -> Reply:
        """As :meth:`call`, of a tensor that is received in ``out``, contiguous and on the CPU."""
        return self._ask(Reply(Landing(out)), self.timeout_s, name, args, {})

    def _ask(self, reply: Reply, timeout_s: float, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
        tree, data = encode_value((args, kwargs), f"the arguments of {name}")
        num_bytes = sum(map(len, data or ()))
        if num_bytes > self._most_bytes:
            raise ValueError(
                f"the arguments of {name} have {format_size(num_bytes)}: {self.entry} takes at most "
                f"{format_size(self._most_bytes)} of this client in one call; ask for less at a time"
            )
        number = self._calls.add(name, reply, timeout_s)
        try:
            self.connection.send({"name": name, "arguments": tree}, data or (), number=number)
            # Tensors are sent from where they are, and their owner may change them when this returns.
            if data and self.connection.unsent_bytes and not process_loop.is_here:
                wait_for(self.connection.drained())
        except GltError as error:
            self._fail(error)
        except ValueError:  # it is too long, and nothing of it was sent
            self._calls.pop(number)
            raise
        return reply

    # -- on the loop -----------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        expired = self._calls.expire(self.entry)
        self._expired |= {number: call.reply for number, call in expired.items() if call.reply.too_late}

    def _find_landing(self, number: int, length: int) -> Landing | None:
        call = self._calls.get(number)
        landing = None if call is None else call.reply.landing
        return landing if landing is not None and landing.nbytes == length else None

    def _take(self, frame: Frame) -> None:
        value = frame.value
        if "died" in value:
            with self._ended:
                # The first counts: those that then do not come up in its place do not know why.
                self._dead_workers.setdefault((value["loader"], value["worker"]), value["died"])
                self._ended.notify_all()
            return
        if "servers" in value:
            self._on_servers(_entries(value["servers"]))
            return
        if "closing" in value:
            self._fail(PeerLost(value["closing"]))
            return
        call = self._calls.pop(frame.number)
        if call is None:
            expired = self._expired.pop(frame.number, None)
            if expired is not None and expired.too_late is not None and "error" not in value:
                expired.too_late(decode_value(value["result"], frame.data))
            return
        reply = call.reply
        try:
            if "error" in value:
                reply.set_exception(_error_of(value, self.entry))
            elif reply.landing is not None:  # refuses what is no such tensor
                reply.set_result(reply.landing.value(value["result"]))
            else:
                reply.set_result(decode_value(value["result"], frame.data))
        except GltError as error:
            reply.set_exception(error)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _fail(self, error: GltError) -> None:
        discard_tick(self._expire)
        self._calls.fail(error, self.entry, self.entry.host, for_good=True)
        self.connection.close()
        with self._ended:
            self._ended.notify_all()

    def close(self, why: str = "") -> None:
        """Says goodbye, and why if something has failed, and ends it. May be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.lost is None:
                self.call("glt.leave", why).result(deadlines.JOIN_S)
        except (GltError, FutureTimeout) as error:
            logger.info("while leaving %s: %s", self.entry, error)
        self._fail(PeerLost(f"this client has left {self.entry}"))


# Of arguments, and of what a client may not do.
_PLAIN = (ValueError, TypeError, IndexError, KeyError, LookupError, MemoryError, PermissionError)
_PLAIN_ERRORS: dict[str, type[Exception]] = {f"builtins.{each.__name__}": each for each in _PLAIN}


def _error_of(frame: dict[str, Any], entry: ServerEntry) -> Exception:
    """What a server raised. Python's own errors are raised as what they are, as a local call would."""
    kind, text, trace = frame["error"], frame["text"], frame["traceback"]
    error = rebuild_error(kind, text, trace, role="server", rank=entry.rank, pid=entry.pid, host=entry.host)
    if kind not in _PLAIN_ERRORS:
        return error
    plain = _PLAIN_ERRORS[kind](text)
    plain.__cause__ = error
    return plain


class DistClient:
    """A client of the servers of a job; ``master`` is the address of server 0, ``timeout_s`` the deadline of start-up
    and of each call. Raises RendezvousError if servers are not reached in time, or refuse.
    :func:`glt.distributed.init_client` makes the one of this process."""

    def __init__(
        self, context: DistContext, num_servers: int, num_clients: int, master: tuple[str, int], timeout_s: float
    ) -> None:
        self.context, self.num_servers, self.num_clients = context, num_servers, num_clients
        self.master, self.timeout_s = master, timeout_s
        self.pid = os.getpid()
        self._dialling = threading.RLock()  # one at a time: a server takes one session of a client
        self._sessions: dict[int, ServerSession] = {}  # complete when this is made
        self._servers: dict[int, ServerEntry] = {}  # those that are there, as any of them said last
        self._back: set[int] = set()  # those that went, and came back as they were: frozen, or cut off
        self._closed = False
        self._hello = introduce(
            "client", rank=context.rank, group=context.group_name, num_servers=num_servers, num_clients=num_clients
        )
        try:
            first = self._sessions[0] = self._dial(master, "server 0", timeout_s)
            found = self._servers = self._meet(first, timeout_s / 2)
            for entry in found.values():
                if entry.rank != 0:
                    self._sessions[entry.rank] = self._dial((entry.address, entry.port), str(entry), timeout_s)
        except BaseException:
            self.close()
            raise

    def _meet(self, first: ServerSession, timeout_s: float) -> dict[int, ServerEntry]:
        """All servers, by rank, when the last has joined server 0."""
        deadline, hint = time.monotonic() + timeout_s, Hint(timeout_s)
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            found = _entries(first.call("glt.servers", min(left_s, deadlines.POLL_S)).result())
            missing = sorted(set(range(self.num_servers)) - set(found))
            if not missing:
                return found
            said = f"servers of rank {missing} of {self.num_servers} have not joined {first.entry}"
            if not left_s:
                raise RendezvousError(
                    f"{said} (waited {timeout_s:g} s): do they run, and were they given its master_addr and "
                    "master_port?"
                )
            hint.give(f"{said} yet")

    def _dial(self, address: tuple[str, int], peer: str, timeout_s: float, retry: bool = True) -> ServerSession:
        connection, answer = dial(address, peer, self._hello, timeout_s, retry=retry)
        return ServerSession(connection, answer, self.timeout_s, self._hear_of)

    def _hear_of(self, servers: dict[int, ServerEntry]) -> None:
        came = servers.keys() - self._servers.keys()
        self._back |= {rank for rank in came if rank in self._sessions and not self.is_living(rank)}
        self._servers = servers

    def session(self, rank: int, timeout_s: float = deadlines.STUCK_S) -> ServerSession:
        """The session with a server, anew if that was lost and is there again. Raises ValueError if there is no such
        server, RuntimeError in a fork, and PeerLost if it is not reached within ``timeout_s`` seconds."""
        refuse_fork(self.pid, "it must call init_client itself, with a client_rank or a group of its own")
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.num_servers:
            raise ValueError(f"server_rank = {rank!r}: expected 0 to {self.num_servers - 1}")
        session = self._sessions[rank]
        if session.lost is None:
            return session
        with self._dialling:
            session = self._sessions[rank]
            lost = session.lost
            if lost is None:
                return session  # another thread was faster
            if self._closed:
                raise lost
            try:
                address, peer = self.master, "server 0"
                if rank != 0:
                    servers = self._ask_for_servers(timeout_s)
                    if rank not in servers:
                        raise lost
                    address, peer = (servers[rank].address, servers[rank].port), str(servers[rank])
                session = self._dial(address, peer, timeout_s, retry=False)
                if session.entry.rank != rank:
                    session.connection.close()  # without leaving
                    raise PeerLost(f"{session.entry} has taken its address")
            except (PeerLost, RendezvousError) as error:
                raise PeerLost(f"{lost}; and it is not back: {error}" if error is not lost else str(lost)) from error
            self._sessions[rank] = session
            self._back.discard(rank)
        return session

    def _ask_for_servers(self, timeout_s: float) -> dict[int, ServerEntry]:
        """The servers that are there. Those that are tell whenever that changes; where none is, server 0 is asked, or
        the last that was heard counts."""
        if not any(self.is_living(rank) for rank in self._sessions):
            try:
                found = self.session(0, timeout_s).call_within(timeout_s, "glt.servers", 0.0).result()
                self._servers = _entries(found)
            except PeerLost as error:
                logger.debug("%s", error)
        return self._servers

    def is_living(self, rank: int) -> bool:
        """Whether the session with a server has not ended."""
        return self._sessions[rank].lost is None

    def is_there(self, rank: int) -> bool:
        """Whether a server lives, or is back, or another in its place; as far as is known here."""
        entry = self._servers.get(rank)
        is_back = entry is not None and (rank in self._back or entry != self._sessions[rank].entry)
        return self.is_living(rank) or is_back

    def ranks(self) -> list[int]:
        """All servers, those first that live, as far as is known here."""
        return sorted(self._sessions, key=lambda rank: (not self.is_living(rank), rank))

    def request(self, rank: int, name: str, *args: Any) -> Any:
        return self.session(rank).call(name, *args).result()

    def request_any(self, name: str, *args: Any) -> Any:
        """Asks for what all servers tell alike. Raises PeerLost if none is there."""
        lost: PeerLost | None = None
        for rank in self.ranks():
            try:
                return self.request(rank, name, *args)
            except PeerLost as error:
                lost = lost or error
        assert lost is not None, "there is a server"
        raise lost

    def dataset(self) -> RemoteDataset:
        return RemoteDataset(self, self._sessions[self.ranks()[0]].about)  # all tell the same

    def entries(self) -> dict[int, ServerEntry]:
        return {rank: session.entry for rank, session in sorted(self._sessions.items())}

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self, why: str = "") -> None:
        """Leaves all servers, saying why if something has failed. May be called again."""
        if os.getpid() != self.pid:
            return  # a fork: the sessions are its parent's to end
        self._closed = True
        for session in list(self._sessions.values()):
            session.close(why)


def _entries(servers: list[dict[str, Any]]) -> dict[int, ServerEntry]:
    return {each["rank"]: ServerEntry(**each) for each in servers}
