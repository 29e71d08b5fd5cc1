"""A server: its port, its sampling processes, its clients and their loaders."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
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
from glt.distributed.engine.partitions import GraphQueries, graph_calls
from glt.distributed.engine.seeds import SeedTable
from glt.distributed.server.membership import Membership, ReadPlan, ServerEntry, plan_reads
from glt.distributed.server.options import ServerOptions
from glt.distributed.server.pool import PoolWorkerSpec, SamplerPool, ServedLoaders
from glt.distributed.server.sessions import Call, ClientRegistry, ClientSession
from glt.distributed.server.stats import MetricsEndpoint, total, with_ratios
from glt.distributed.tensors.barrier import Barriers
from glt.distributed.tensors.store import TensorStore, update_calls
from glt.distributed.wire import calls as functions
from glt.distributed.wire.credentials import current_credentials
from glt.distributed.wire.old_connection import MAX_JSON_BYTES, Connection, allow_descriptors, host_id, printed, pulse
from glt.distributed.wire.old_listener import Listener, introduce, refuse
from glt.distributed.wire.threads import NativePool
from glt.errors import GltError, RendezvousError

logger = logging.getLogger(__name__)

_MAX_SESSION_BYTES = 16 << 30
_MOST_WHY = 2000  # characters of what a failure is called

SPLITS = {
    "train": ("train_mask",),
    "valid": ("valid_mask", "val_mask"),
    "val": ("val_mask", "valid_mask"),
    "test": ("test_mask",),
}


class DistServer:
    """A server of a partition, for ``num_clients`` (None: any number). It listens at ``bind`` (port 0: one is found),
    joins server 0 at ``master``, and answers ``num_rpc_threads`` requests at a time. ``entry`` is what others know of
    it. :func:`glt.distributed.init_server` makes the one of this process."""

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
        self.dataset, self.options = dataset, options
        allow_descriptors()
        self._began_s = time.time()
        self._is_draining = self._closed = False
        self._failure = ""  # why it was shut down, if something has failed
        self._lock = threading.Lock()
        self._plan: ReadPlan | None = None
        self._planned: Mapping[int, ServerEntry] = {}  # the servers that it was made for
        self._read_parts: dict[int, LocalPartition] = {dataset.partition_idx: dataset.own}  # whose seeds are read here
        self.metrics: MetricsEndpoint | None = None
        self.clients = ClientRegistry(num_clients)
        self._barriers = Barriers()
        queries = GraphQueries(dataset)
        with ExitStack() as made:  # what is there is closed if the next cannot be made
            # Others may come while the samplers start: they wait until the listener is opened.
            self.listener = Listener(bind, rank, master, self._welcome)
            made.callback(self.listener.close)
            address, port = self.listener.address
            master = (master[0], port) if rank == 0 else master  # its port may have been found here
            process = rank, address, port, socket.gethostname(), os.getpid(), host_id(), dataset.partition_idx
            graph_dir, run_id = dataset.load_args["graph_dir"], dataset.manifest.run_id
            self.entry = ServerEntry(*process, graph_dir, run_id, num_servers, num_clients)
            self.membership = Membership(self.entry, master, self.clients, self._servers_changed)
            self._tensors = TensorStore(rank, dataset, str(self.entry), queries.stored_rows)
            level = logging.getLogger().getEffectiveLevel()
            limits = options.max_concurrency, num_rpc_threads, options.rpc_timeout
            where = self.listener.listens_at, options.sampler_port, current_credentials().to_json()
            spec = PoolWorkerSpec(rank, 0, dataset.to_json(), *limits, level, options.log_format, *where)
            self.pool = SamplerPool(spec, options.worker_limit, self._worker_died)
            made.callback(self.pool.close)
            self.loaders = ServedLoaders(self.pool, str(self.entry), options.max_loaders, options.buffer_bytes())
            self._calls: dict[str, Call] = {
                "glt.create_loader": lambda session, args, _: self._create_loader(session, *args),
                "glt.stream_at": lambda session, args, _: self.loaders.stream_at(session, *args),
                "glt.close_loader": lambda session, args, _: self.loaders.close(
                    args[0], "the client closed it", session
                ),
                "glt.leave": lambda session, args, _: self._leave(session, *args),
                "glt.seeds_of_split": _plain(self._seeds_of_split),
                "glt.seeds_of_file": _plain(self._seeds_of_file),
                "glt.all_edges": _plain(lambda edge_type, part: self._read_part(part).all_edges(edge_type)),
                "glt.servers": _plain(self._servers),
                "glt.readable": _plain(self._readable),
                "glt.stats": _plain(self.stats),
                **graph_calls(queries),
                **self._tensors.calls(),
                **update_calls(self._tensors, self._barriers),
                **self._barriers.calls(),
            }
            self._threads = NativePool(num_rpc_threads, "glt-request")
            made.pop_all()
        try:
            self.pool.ensure(options.num_workers)
            if options.metrics_port is not None:
                self.metrics = MetricsEndpoint(self.stats, self.entry, options.metrics_host, options.metrics_port)
            self.membership.join(options.rpc_timeout)
            self.listener.open()
        except BaseException:
            self.close()
            raise
        logger.info("%s is ready at %s", self.entry, printed(*self.listener.address))

    # -- connections -----------------------------------------------------------------------------------------------

    def _welcome(self, connection: Connection, hello: dict[str, Any]) -> None:
        kind = hello.get("kind")
        if self._closed:
            self._turn_away(connection, hello)
        elif kind in ("server", "client") and self.listener.has_no_threads:
            refuse(
                connection,
                f"the script of {self.entry} has ended, and Python 3.12 starts no threads then for those "
                "who come late: let it end with glt.distributed.finalize(), or use another version of Python",
            )
        elif kind == "server":
            self.membership.admit(connection, hello)
        elif kind == "client":
            self._serve_client(connection, hello)
        else:
            refuse(connection, f"kind = {kind!r}: expected client or server")

    # -- clients ---------------------------------------------------------------------------------------------------

    def _serve_client(self, connection: Connection, hello: dict[str, Any]) -> None:
        try:
            self._require_fit(hello)
            session = ClientSession(connection, hello, self._find, self._threads)
            if not self.clients.admit(session):
                self._turn_away(connection, hello)
                return
        except RendezvousError as error:
            logger.warning("refused: %s", error)
            refuse(connection, str(error))
            return
        self._barriers.add(session)
        connection.peer = str(session)
        connection.max_bytes, connection.max_json_bytes = _MAX_SESSION_BYTES, MAX_JSON_BYTES
        logger.info("%s came", session)
        about = {"manifest": self.dataset.manifest.to_json(), "graph_dir": self.dataset.load_args["graph_dir"]}
        why = "its handshake failed"
        try:
            connection.send(introduce("client", session=session.id, entry=self.entry.to_json(), about=about))
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
                self.clients.add_refused((hello["group"], hello["rank"]))
            refuse(connection, self._failure)  # no server takes its place
        except RendezvousError as error:  # of another job: it is not waited for
            refuse(connection, str(error))

    def _require_fit(self, hello: dict[str, Any]) -> None:
        for name in ("num_servers", "num_clients"):
            mine, theirs = getattr(self.entry, name), hello[name]
            if mine is not None and theirs != mine:
                raise RendezvousError(
                    f"{name} = {theirs!r} on the client, {mine!r} on {self.entry}: give both the same"
                )

    def _end_session(self, session: ClientSession, why: str) -> None:
        if not session.has_left:  # it may be there after all, and asks itself what happened
            frame = {"closing": f"{self.entry} has ended its session with {session}: {why}", "has_data": False}
            session.send(frame, timeout_s=0.0)
        session.connection.close()
        self._barriers.remove(session, why)
        # Before the client is removed: a server that is done ends, and Python aborts it if that happens while this
        # thread gives memory back.
        self._tensors.end_session(session)
        self.clients.remove(session)
        if session.has_left:
            self.membership.send_done([session.place])
        self.loaders.close_all(f"{session} is gone: {why}", session)
        (logger.info if session.has_left else logger.warning)("%s is gone: %s", session, why)

    # -- what clients ask ------------------------------------------------------------------------------------------

    def _find(self, name: str) -> Call:
        return self._calls[name] if name in self._calls else _plain(functions.registered(name))

    def _leave(self, session: ClientSession, why: str = "") -> None:
        session.left_why = str(why)[:_MOST_WHY]
        session.has_left = True

    def _create_loader(
        self,
        session: ClientSession,
        request: dict[str, Any],
        columns: dict[str, Tensor],
        extras: dict[str, Tensor],
        num_workers: int,
    ) -> dict[str, Any]:
        loader = self.loaders.open(session, request, SeedTable(columns, extras), num_workers, self._read_plan())
        if session not in self.clients:  # it ended meanwhile, perhaps before the loader was there to be closed
            self.loaders.close(loader.id, f"{session} is gone")
            raise RuntimeError(f"{session} is gone")
        return {"id": loader.id, "secret": loader.secret, "workers": loader.workers}

    def _servers(self, timeout_s: float) -> list[dict[str, Any]]:
        found = self.membership.wait(min(float(timeout_s), self.options.rpc_timeout))
        return [entry.to_json() for _, entry in sorted(found.items())]

    def _seeds_of_split(self, split: str, node_type: int, parts: list[int]) -> Tensor:
        """Ids of the nodes of a split that these partitions own, ascending in each, ``[n]`` int64."""
        name, found = self.dataset.schema.node_types[node_type], []
        for part in map(self._read_part, parts):
            tables = part.node_tables[node_type]
            masks = [mask for mask in SPLITS[split] if mask in tables]
            if not masks:
                raise ValueError(
                    f"input_nodes = {split!r}: the partitions have no {' or '.join(map(repr, SPLITS[split]))} of "
                    f"{name!r} nodes; partition with node_attrs={{'{SPLITS[split][0]}': ...}}, or give ids. Named "
                    f"tables are {sorted(self.dataset.manifest.node_types[node_type].attrs)}"
                )
            mask = tables[masks[0]].tensor
            if mask.dtype != torch.bool or mask.dim() != 1:
                raise ValueError(f"{masks[0]} is {mask.dtype} {list(mask.shape)}: a split needs one bool per node")
            found.append(np.asarray(part.nodes[node_type].owned, np.int64)[mask.numpy()])
        return torch.from_numpy(np.concatenate(found))

    def _seeds_of_file(self, path: str) -> Tensor:
        what = f"input_nodes = {path!r}"
        if self.options.seed_dir is None:
            raise ValueError(
                f"{what} names a file, and this server reads none: start it with seed_dir, the directory that clients "
                "may name files in"
            )
        folder = Path(self.options.seed_dir).resolve()
        full = (folder / path).resolve()
        if not full.is_relative_to(folder):
            raise ValueError(f"{what} is outside of the server's seed_dir, {folder}")
        if not full.is_file():
            raise ValueError(f"{what}: there is no such file in the server's seed_dir, {folder}")
        found: Any = (
            as_rows(load_npy(full, what), what) if full.suffix == ".npy" else load_saved(full, what, "a tensor")
        )
        if not isinstance(found, Tensor):
            raise ValueError(f"{what} holds a {type(found).__name__}: expected a tensor")
        return found

    # -- partitions ------------------------------------------------------------------------------------------------

    def _readable(self) -> list[int]:
        return sorted([self.dataset.partition_idx, *self._read_plan().other_dirs])

    def _read_part(self, part: int) -> LocalPartition:
        with self._lock:
            if part in self._read_parts:
                return self._read_parts[part]
        other_dirs = self._read_plan().other_dirs
        if part not in other_dirs:
            raise ValueError(f"partition {part} is not read here: these are, {self._readable()}")
        mapped = self.dataset.map_other(other_dirs[part], part)
        with self._lock:
            return self._read_parts.setdefault(part, mapped)

    def _read_plan(self) -> ReadPlan:
        """Made once when all servers are there; it outlives those that are lost."""
        with self._lock:
            if self._plan is not None:
                return self._plan
        servers = self.membership.wait_for_all(self.options.rpc_timeout)
        plan = plan_reads(self.dataset, self.entry, servers, self.options.read_local)
        with self._lock:
            self._plan, self._planned = plan, servers
        return plan

    def _servers_changed(self, servers: Mapping[int, ServerEntry]) -> None:
        def reads(entry: ServerEntry) -> tuple[Any, ...]:
            return entry.partition_idx, entry.graph_dir, entry.host_id

        with self._lock:
            if any(reads(entry) != reads(self._planned.get(rank, entry)) for rank, entry in servers.items()):
                self._plan = None  # one came back with another partition, or on another host
        self.pool.send_servers({str(rank): [entry.address, entry.port] for rank, entry in servers.items()})

    def _worker_died(self, worker: int, text: str) -> None:
        hit = [loader for loader in self.loaders.all().values() if worker in loader.workers]

        def notify() -> None:
            for loader in hit:
                loader.session.send({"died": text, "worker": worker, "loader": loader.id, "has_data": False})

        # Not on this thread, which looks after the other samplers: a client may be slow to listen.
        try:
            threading.Thread(target=notify, name="glt-notify", daemon=True).start()
        except RuntimeError as error:  # no thread is to be had; the clients hear it when their streams end
            logger.error("%d clients are not told that a sampling process died: %s", len(hit), error)

    # -- the end ---------------------------------------------------------------------------------------------------

    def wait_until_done(self, timeout_s: float | None = None) -> bool:
        return self.clients.wait_until_done(timeout_s)

    def drain(self, timeout_s: float) -> list[str]:
        """Takes no more clients and loaders, and waits; returns the loaders still open after ``timeout_s`` seconds, in
        words."""
        self._is_draining = True
        self.clients.close()
        self.loaders.open_no_more()
        return [f"loader {each.id} of {each.session}" for each in self.loaders.wait_until_closed(timeout_s)]

    def stats(self) -> dict[str, Any]:
        loaders, pids, num_restarts = self.loaders.all(), self.pool.pids(), self.pool.num_restarts()
        by_worker, by_loader = self.pool.metrics.read()
        none, now = total(()), time.time()
        return {
            "server": str(self.entry),
            "uptime_s": now - self._began_s,
            "num_clients": len(self.clients.sessions()),
            "num_loaders": len(loaders),
            "num_workers": len(pids),
            "num_restarts": sum(num_restarts.values()),
            "is_draining": self._is_draining,
            "tensors": self._tensors.stats(),
            "totals": with_ratios(total(by_worker.values())),
            "loaders": {
                id_: {
                    "client": str(loader.session),
                    "age_s": now - loader.began_s,
                    "num_workers": len(loader.workers),
                    **with_ratios(by_loader.get(id_, none)),
                }
                for id_, loader in loaders.items()
            },
            "workers": {
                str(worker): {
                    "pid": pids.get(worker),
                    "num_restarts": num_restarts.get(worker, 0),
                    **with_ratios(by_worker.get(worker, none)),
                }
                for worker in sorted(pids.keys() | by_worker.keys())
            },
        }

    def close(self, why: str = "") -> None:
        """Ends the server, its samplers and connections. May be called again. Clients are told ``why``, if something
        has failed; those still to come are waited for, but not for long."""
        text = f"{self.entry} was shut down{': ' if why else ''}{why[:_MOST_WHY]}"
        with self._lock:
            if self._closed:
                return
            self._failure, self._closed = text if why else "", True
        self.clients.close()
        self.loaders.open_no_more()
        if not why:
            self.listener.close()
        # First: a client that is told hangs up, and others at a barrier would hear that it is gone instead of why.
        self._barriers.close(text)
        sessions = self.clients.sessions()
        deadline = time.monotonic() + deadlines.GOODBYE_S  # for all: some may take nothing
        for session in sessions:
            left_s = max(0.0, deadline - time.monotonic())
            session.send({"closing": text, "has_data": False}, timeout_s=left_s)
        self.loaders.close_all(text)
        self.membership.close()
        for session in sessions:
            session.connection.close()
        if self.metrics is not None:
            self.metrics.close()
        self.pool.close()
        self._threads.shutdown(1.0)
        if why:
            self.clients.wait_until_all_came(deadlines.LATE_S)
            self.listener.close()
        logger.info("%s has ended", self.entry)


def _plain(function: Callable[..., Any]) -> Call:
    return lambda session, args, kwargs: function(*args, **kwargs)
