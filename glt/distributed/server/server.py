"""A server: its port, its pool of samplers, its clients and their loaders."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _deadlines as deadlines
from glt.data.arrays import as_rows, load_npy, load_saved
from glt.distributed.context import DistContext
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.queries import GraphQueries, graph_calls
from glt.distributed.server.clients import Attendance, Call, Session
from glt.distributed.server.loaders import ServedLoaders
from glt.distributed.server.membership import Membership, ReadPlan, ServerEntry, plan_reads
from glt.distributed.server.options import ServerOptions
from glt.distributed.server.pool import SamplerPool
from glt.distributed.server.stats import MetricsEndpoint, Numbers, total
from glt.distributed.tensors.barrier import Barriers
from glt.distributed.tensors.store import TensorStore
from glt.distributed.tensors.updates import update_calls
from glt.distributed.wire import calls as functions
from glt.distributed.wire.connection import MAX_JSON_BYTES, Connection, allow_descriptors, host_id, printed, pulse
from glt.distributed.wire.listener import Listener, introduce, refuse
from glt.distributed.wire.threads import NativePool
from glt.errors import GltError, RendezvousError

# Seeds that a server has and its clients name: splits, files, all edges.


SPLITS = {
    "train": ("train_mask",),
    "valid": ("valid_mask", "val_mask"),
    "val": ("val_mask", "valid_mask"),
    "test": ("test_mask",),
}


class SeedSource:
    """Looks up seeds in the partitions that this server reads, and in files below one directory.

    Args:
        dataset: The partition.
        seed_dir: Where files with seeds are; None: clients may name none.
    """

    def __init__(self, dataset: DistDataset, seed_dir: str | None) -> None:
        self.dataset = dataset
        self.seed_dir = None if seed_dir is None else Path(seed_dir).resolve()
        self._lock = threading.Lock()
        self._parts: dict[int, LocalPartition] = {dataset.partition_idx: dataset.own}

    def map(self, other_dirs: Mapping[int, str]) -> None:
        """Maps the other partitions that are read here."""
        with self._lock:
            for part, path in other_dirs.items():
                if part not in self._parts:
                    self._parts[part] = self.dataset.map_other(path, part)

    def _part(self, part: int) -> LocalPartition:
        with self._lock:
            if part not in self._parts:
                raise ValueError(f"partition {part} is not read here: these are, {sorted(self._parts)}")
            return self._parts[part]

    def of_split(self, split: str, node_type: int, parts: list[int]) -> Tensor:
        """Ids of the nodes of a split that these partitions own, ascending in each, ``[n]`` int64."""
        found = [self._owned_of_split(split, node_type, self._part(part)) for part in parts]
        return torch.from_numpy(np.concatenate(found))

    def _owned_of_split(self, split: str, node_type: int, part: LocalPartition) -> np.ndarray:
        name = self.dataset.schema.node_types[node_type]
        tables = part.node_tables[node_type]
        masks = [mask for mask in SPLITS[split] if mask in tables]
        if not masks:
            raise ValueError(
                f"input_nodes = {split!r}: the partitions have no {' or '.join(map(repr, SPLITS[split]))} of "
                f"{name!r} nodes; partition with node_attrs={{'{SPLITS[split][0]}': ...}}, or give ids. Named tables "
                f"are {sorted(self.dataset.manifest.node_types[node_type].attrs)}"
            )
        mask = tables[masks[0]].tensor
        if mask.dtype != torch.bool or mask.dim() != 1:
            raise ValueError(f"{masks[0]} is {mask.dtype} {list(mask.shape)}: a split needs one bool per node")
        return np.asarray(part.nodes[node_type].owned, np.int64)[mask.numpy()]

    def of_file(self, path: str) -> Tensor:
        """The tensor in a ``.pt`` or ``.npy`` file below ``seed_dir``; nothing in it is executed."""
        if self.seed_dir is None:
            raise ValueError(
                f"input_nodes = {path!r} names a file, and this server reads none: start it with seed_dir, the "
                "directory that clients may name files in"
            )
        full = (self.seed_dir / path).resolve()
        if not full.is_relative_to(self.seed_dir):
            raise ValueError(f"input_nodes = {path!r} is outside of the server's seed_dir, {self.seed_dir}")
        if not full.is_file():
            raise ValueError(f"input_nodes = {path!r}: there is no such file in the server's seed_dir, {self.seed_dir}")
        if full.suffix != ".npy":
            found: Any = load_saved(full, f"input_nodes = {path!r}", "a tensor")
        else:
            found = as_rows(load_npy(full, f"input_nodes = {path!r}"), f"input_nodes = {path!r}")
        if not isinstance(found, Tensor):
            raise ValueError(f"input_nodes = {path!r} holds a {type(found).__name__}: expected a tensor")
        return found

    def all_edges(self, edge_type: int, part: int) -> tuple[Tensor, Tensor]:
        """All edges of a type that a partition holds: see :meth:`LocalPartition.all_edges`."""
        return self._part(part).all_edges(edge_type)


logger = logging.getLogger(__name__)

_MAX_SESSION_BYTES = 16 << 30
_MOST_WHY = 2000  # characters of what a failure is called


class DistServer:
    """A server of a partition. :func:`glt.distributed.init_server` makes the one of this process.

    Args:
        dataset: The partition, loaded.
        context: Which server of how many.
        num_clients: Clients that are served until the server is done; None: any number, until it is told to end.
        master: Host and port of server 0.
        bind: Host and port to listen at; port 0: one is found.
        num_rpc_threads: Requests of clients that are answered at the same time.
        options: The rest; ``host`` and ``port`` are in ``bind``.

    Attributes:
        entry: What others know of it.
        listener, pool, seeds, loaders, clients: What it consists of.
        barriers: Where its clients wait for each other.
        graph: What it answers about the graph.
        tensors: Rows of distributed tensors.
        metrics: Where its numbers are published, if they are.
        is_draining: Whether it takes no more clients and loaders.
    """

    def __init__(
        self,
        dataset: DistDataset,
        context: DistContext,
        num_clients: int | None,
        master: tuple[str, int],
        bind: tuple[str, int],
        num_rpc_threads: int,
        options: ServerOptions,
    ) -> None:
        rank, num_servers = context.rank, context.world_size
        self.dataset, self.rank, self.options, self.group_name = dataset, rank, options, context.group_name
        self.num_servers, self.num_clients = num_servers, num_clients
        allow_descriptors()
        self.began_s = time.time()
        self.is_draining = False
        self._closed = False
        self._failure = ""  # why it was shut down, if something has failed
        self._lock = threading.Lock()
        self._plan: ReadPlan | None = None
        self._planned: Mapping[int, ServerEntry] = {}  # the servers that it was made for
        self._membership: Membership | None = None
        self.metrics: MetricsEndpoint | None = None
        self.clients = Attendance(num_clients)
        self.barriers = Barriers()
        self.graph = GraphQueries(dataset)
        self.seeds = SeedSource(dataset, None if options.seed_dir is None else os.fspath(options.seed_dir))
        with ExitStack() as made:  # what is there is closed if the next cannot be made
            # Others may come while the samplers start: they are welcomed when there is a membership.
            self.listener = Listener(bind, rank, master, self._welcome, options.rpc_timeout)
            made.callback(self.listener.close)
            self.entry = ServerEntry(
                rank,
                *self.listener.address,
                socket.gethostname(),
                os.getpid(),
                host_id(),
                dataset.partition_idx,
                dataset.load_args["graph_dir"],
                dataset.manifest.run_id,
                num_servers,
                num_clients,
            )
            self.tensors = TensorStore(rank, dataset, str(self.entry), self.graph.stored_rows)
            self.pool = SamplerPool(
                {
                    "server_rank": rank,
                    "dataset": dataset.to_json(),
                    "num_places": options.max_concurrency,
                    "num_rpc_threads": num_rpc_threads,
                    "timeout_s": options.rpc_timeout,
                    "log_level": logging.getLogger().getEffectiveLevel(),
                    "log_format": options.log_format,
                },
                options.worker_limit,
                options.rpc_timeout,
                self._worker_died,
            )
            made.callback(self.pool.close)
            self._calls_of_graph = graph_calls(self.graph)
            self._calls_of_tensors = self.tensors.calls() | update_calls(self.tensors, self.barriers)
            self._calls_of_barriers = self.barriers.calls()
            self.loaders = ServedLoaders(self.pool, str(self.entry), options.max_loaders, options.buffer_bytes())
            self._calls = NativePool(num_rpc_threads, "glt-request")
            made.pop_all()
        try:
            self.pool.ensure(options.num_workers)
            if options.metrics_port is not None:
                self.metrics = MetricsEndpoint(self.stats, self.entry, options.metrics_host, options.metrics_port)
            self._membership = Membership(self.entry, master, self.clients, self._servers_changed, options.rpc_timeout)
            self.listener.open()
        except BaseException:
            self.close()
            raise
        logger.info("%s is ready at %s", self.entry, printed(*self.address))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port under which others reach it."""
        return self.listener.address

    @property
    def listens_at(self) -> str:
        """The address that it listens at, of one interface or of all."""
        return self.listener.listens_at

    # -- connections -----------------------------------------------------------------------------------------------

    def _welcome(self, connection: Connection, hello: dict[str, Any]) -> None:
        kind = hello.get("kind")
        if self._closed or self._membership is None:
            self._turn_away(connection, hello)
        elif kind in ("server", "client") and self.listener.has_no_threads:
            refuse(
                connection,
                f"the script of {self.entry} has ended, and Python 3.12 starts no threads then for those "
                "who come late: let it end with glt.distributed.finalize(), or use another version of Python",
            )
        elif kind == "server":
            self._membership.admit(connection, hello)
        elif kind == "client":
            self._serve_client(connection, hello)
        elif kind == "stream":
            self._hand_over_stream(connection, hello)
        elif kind == "partition":
            with connection.detach() as sock:
                if not self.pool.hand_over(None, {"serve": connection.peer}, [sock.fileno()]):
                    logger.warning("no sampler is there for %s", connection.peer)
        else:
            refuse(connection, f"kind = {kind!r}: expected client, stream, partition or server")

    def _hand_over_stream(self, connection: Connection, hello: dict[str, Any]) -> None:
        places = {name: int(hello[name]) for name in ("first", "step")}
        wrong = self.loaders.hand_over(
            str(hello["loader"]), hello["session"], hello["worker"], connection.socket.fileno(), places
        )
        if wrong is None:
            connection.detach().close()
        else:
            logger.warning("no stream for %s: %s", connection.peer, wrong)
            refuse(connection, wrong)

    # -- clients ---------------------------------------------------------------------------------------------------

    def _serve_client(self, connection: Connection, hello: dict[str, Any]) -> None:
        try:
            self._require_fit(hello)
            session = Session(connection, hello, self._find, self._calls)
            if not self.clients.admit(session):
                self._turn_away(connection, hello)
                return
        except RendezvousError as error:
            logger.warning("refused: %s", error)
            refuse(connection, str(error))
            return
        self.barriers.add(session)
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

    def _turn_away(self, connection: Connection, hello: dict[str, Any]) -> None:
        if not self._failure:
            refuse(connection, f"{self.entry} is shutting down", is_ending=True)
            return
        try:
            if hello.get("kind") == "client":
                self._require_fit(hello)
                self.clients.turn_away(hello)
            refuse(connection, self._failure)  # nobody takes its place
        except RendezvousError as error:  # of another job: it is not waited for
            refuse(connection, str(error))

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
        self.barriers.remove(session, why)
        # Before the client is dismissed: a server that is done ends, and Python aborts it if that happens while this
        # thread gives memory back.
        self.tensors.end_session(session)
        self.clients.dismiss(session)
        if session.has_left and self._membership is not None:
            self._membership.tell_done([(session.group, session.rank)])
        self.loaders.close_all(f"{session} is gone: {why}", session)
        (logger.info if session.has_left else logger.warning)("%s is gone: %s", session, why)

    # -- what clients ask ------------------------------------------------------------------------------------------

    def _find(self, name: str) -> Call:
        own: dict[str, Call] = {
            "glt.create_loader": lambda session, args, kwargs: self._create_loader(session, *args, **kwargs),
            "glt.close_loader": lambda session, args, kwargs: self._close_loader(session, *args),
            "glt.leave": lambda session, args, kwargs: self._leave(session, *args),
            "glt.seeds_of_split": lambda session, args, kwargs: self.seeds.of_split(*args),
            "glt.seeds_of_file": lambda session, args, kwargs: self.seeds.of_file(*args),
            "glt.all_edges": lambda session, args, kwargs: self.seeds.all_edges(*args),
            "glt.servers": lambda session, args, kwargs: self._servers(*args),
            "glt.readable": lambda session, args, kwargs: self._readable(),
            "glt.stats": lambda session, args, kwargs: self.stats(),
        }
        for calls in (own, self._calls_of_graph, self._calls_of_tensors, self._calls_of_barriers):
            if name in calls:
                return calls[name]
        function = functions.registered(name)
        return lambda session, args, kwargs: function(*args, **kwargs)

    def _servers(self, timeout_s: float) -> list[dict[str, Any]]:
        """Those that are there, all of them unless that takes longer than ``timeout_s`` seconds."""
        assert self._membership is not None
        found = self._membership.wait(min(float(timeout_s), self.options.rpc_timeout))
        return [entry.to_json() for _, entry in sorted(found.items())]

    def _leave(self, session: Session, why: str = "") -> None:
        session.left_why = str(why)[:_MOST_WHY]
        session.has_left = True

    def _create_loader(
        self,
        session: Session,
        told: dict[str, Any],
        columns: dict[str, Tensor],
        extras: dict[str, Tensor],
        num_workers: int,
    ) -> dict[str, Any]:
        loader = self.loaders.open(session, told, columns, extras, num_workers, self._read_plan())
        if session not in self.clients:  # it ended meanwhile, perhaps before the loader was there to be closed
            self.loaders.close(loader.id, f"{session} is gone")
            raise RuntimeError(f"{session} is gone")
        return {"id": loader.id, "workers": loader.workers}

    def _close_loader(self, session: Session, id_: str) -> None:
        self.loaders.close(id_, "the client closed it", session)

    # -- partitions ------------------------------------------------------------------------------------------------

    def _readable(self) -> list[int]:
        """Partitions whose seeds are read here."""
        plan = self._read_plan()
        self.seeds.map(plan.other_dirs)
        return sorted([self.dataset.partition_idx, *plan.other_dirs])

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

    def _servers_changed(self, servers: Mapping[int, ServerEntry]) -> None:
        with self._lock:
            if any(not entry.reads_as(self._planned.get(rank, entry)) for rank, entry in servers.items()):
                self._plan = None  # one came back with another partition, or on another host
        known = {
            str(rank): [entry.address, entry.port, entry.host, entry.pid, entry.partition_idx]
            for rank, entry in servers.items()
        }
        self.pool.tell_all({"servers": known}, standing=True)

    def _worker_died(self, worker: int, text: str) -> None:
        hit = [loader for loader in self.loaders.all().values() if worker in loader.workers]

        def tell() -> None:
            for loader in hit:
                loader.session.say({"died": text, "worker": worker, "loader": loader.id, "has_data": False})

        # Not on this thread, which looks after the other samplers: a client may be slow to listen.
        try:
            threading.Thread(target=tell, name="glt-tell", daemon=True).start()
        except RuntimeError as error:  # no thread is to be had; the clients hear it when their streams end
            logger.error("%d clients are not told that a sampling process died: %s", len(hit), error)

    # -- the end ---------------------------------------------------------------------------------------------------

    def wait_until_done(self, timeout_s: float | None = None) -> bool:
        """See :meth:`Attendance.wait_until_done`."""
        return self.clients.wait_until_done(timeout_s)

    def drain(self, timeout_s: float) -> list[str]:
        """Takes no more clients and loaders, and waits for those that are there; returns what was still open when
        ``timeout_s`` seconds were over, in words."""
        self.is_draining = True
        self.clients.admit_no_more()
        self.loaders.open_no_more()
        return [f"loader {each.id} of {each.session}" for each in self.loaders.wait_until_closed(timeout_s)]

    def stats(self) -> dict[str, Any]:
        """What the server does: by loader, by sampling process, and in all. See ``glt.distributed.server_stats``."""

        return collect(self)

    def close(self, why: str = "") -> None:
        """Ends the server, its samplers and its connections. May be called again.

        Args:
            why: What clients are told of it, if something has failed; those that are still to come, too: this waits for
                them, but not for long.
        """
        text = f"{self.entry} was shut down{': ' if why else ''}{why[:_MOST_WHY]}"
        with self._lock:
            if self._closed:
                return
            self._failure, self._closed = text if why else "", True
        self.clients.admit_no_more()
        self.loaders.open_no_more()
        if not why:
            self.listener.close()
        # First: a client that hears of it hangs up, and others at a barrier would hear that it is gone instead of why.
        self.barriers.close(text)
        sessions = self.clients.sessions()
        deadline = time.monotonic() + deadlines.GOODBYE_S  # for all: some may take nothing
        for session in sessions:
            left_s = max(0.0, deadline - time.monotonic())
            session.say({"closing": text, "has_data": False}, timeout_s=left_s)
        self.loaders.close_all(text)
        if self._membership is not None:
            self._membership.close()
        for session in sessions:
            session.connection.close()
        if self.metrics is not None:
            self.metrics.close()
        self.pool.close()
        self._calls.shutdown(1.0)
        if why:
            self.clients.wait_for_latecomers(deadlines.LATE_S)
            self.listener.close()
        logger.info("%s has ended", self.entry)


# What a server does, in numbers.


def collect(server: DistServer) -> dict[str, Any]:
    """Returns counters since the start, as plain values.

    ``server`` names it; ``uptime_s``; ``num_clients``, ``num_loaders`` and ``num_workers`` there are now;
    ``num_restarts`` of sampling processes that died; ``is_draining``; ``loaders`` that are open, by id; ``workers`` by
    place, whichever process has it now (``pid``; None: none) or had it before; and ``totals`` of all workers, which
    count loaders that are closed too. ``tensors``, by name, are the distributed tensors that it keeps rows of:
    ``shape`` and ``dtype`` of the whole, ``num_rows`` and ``num_bytes`` here, ``num_holders`` (handles of
    trainers), and counters ``num_reads, num_writes, read_bytes, written_bytes``, of which additions are writes.

    Each of these has, first, counters, which never fall: ``num_batches`` and ``sent_bytes`` handed to connections,
    ``num_errors`` that were sent in place of a batch; ``sampling_s, gathering_s`` of native work, ``remote_s`` waiting
    for other servers, ``blocked_s`` that a batch was there and its client had no room for it; ``num_nodes, num_edges,
    num_remote_nodes, num_cached_nodes, remote_bytes`` as in the loader's own stats. Then what is so now: ``num_queued,
    queued_bytes`` waiting to be sent, ``num_running`` being made, ``num_unread`` sent and not yet taken by the trainer;
    ``batches_per_s, bytes_per_s`` of the last five seconds. And ``remote_node_ratio, cache_hit_ratio`` of all.

    A sampler tells its numbers once a second, and of a stream when it ends; what one did since is lost if it is killed.
    """
    loaders, num_clients = server.loaders.all(), len(server.clients.sessions())
    pids, num_restarts = server.pool.pids(), server.pool.num_restarts()
    by_worker, by_loader = server.pool.ledger.read()
    none = total(())
    return {
        "server": str(server.entry),
        "uptime_s": time.time() - server.began_s,
        "num_clients": num_clients,
        "num_loaders": len(loaders),
        "num_workers": len(pids),
        "num_restarts": sum(num_restarts.values()),
        "is_draining": server.is_draining,
        "tensors": server.tensors.stats(),
        "totals": _with_ratios(total(by_worker.values())),
        "loaders": {
            id_: {
                "client": str(loader.session),
                "age_s": time.time() - loader.began_s,
                "num_workers": len(loader.workers),
                **_with_ratios(by_loader.get(id_, none)),
            }
            for id_, loader in loaders.items()
        },
        "workers": {
            str(worker): {
                "pid": pids.get(worker),
                "num_restarts": num_restarts.get(worker, 0),
                **_with_ratios(by_worker.get(worker, none)),
            }
            for worker in sorted(pids.keys() | by_worker.keys())
        },
    }


def _with_ratios(each: Numbers) -> Numbers:
    nodes, remote, cached = (each[name] for name in ("num_nodes", "num_remote_nodes", "num_cached_nodes"))
    return {
        **each,
        "remote_node_ratio": remote / nodes if nodes else 0.0,
        "cache_hit_ratio": cached / (cached + remote) if cached else 0.0,
    }
