"""A server: its port, its sampling processes, its clients and their loaders."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import glt
from glt import _deadlines as deadlines
from glt._stats import with_ratios
from glt.data.arrays import as_rows, load_npy, load_saved
from glt.data.keys import Keys
from glt.distributed.context import DistContext
from glt.distributed.endpoint.endpoint import StatsEndpoint
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.partitions import GraphQueries, graph_calls
from glt.distributed.engine.sampling_job import SeedTable
from glt.distributed.options import parse_budget
from glt.distributed.server.membership import Membership, ReadPlan, ServerEntry, plan_reads
from glt.distributed.server.options import ServerOptions
from glt.distributed.server.pool import PoolWorkerSpec, SamplerPool, ServedLoaders
from glt.distributed.server.sessions import Call, ClientRegistry, ClientSession, place_of
from glt.distributed.server.stats import total
from glt.distributed.tensors.barrier import Barriers
from glt.distributed.tensors.store import TensorStore, update_calls
from glt.distributed.wire import calls as functions
from glt.distributed.wire.addresses import allow_descriptors, host_id, printed
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.handshake import introduce, refuse
from glt.distributed.wire.listener import Listener
from glt.distributed.wire.threads import NativePool, call_on_loop, wait_for
from glt.errors import RendezvousError, WorkerDied

logger = logging.getLogger(__name__)

_MOST_WHY = 2000  # characters of what a failure is called

SPLITS = {
    "train": ("train_mask",),
    "valid": ("valid_mask", "val_mask"),
    "val": ("val_mask", "valid_mask"),
    "test": ("test_mask",),
}

# The calls of a client that has proven the read token only, in full: it samples, and reads the graph, tensors and
# numbers. All other calls, and functions that the user has registered, are for those who may write.
FOR_READERS = frozenset(
    {
        "glt.create_loader",
        "glt.close_loader",
        "glt.stream_at",
        "glt.leave",
        "glt.seeds_of_split",
        "glt.seeds_of_file",
        "glt.all_edges",
        "glt.find_keys",
        "glt.take_keys",
        "glt.servers",
        "glt.readable",
        "glt.stats",
        "glt.graph.degrees",
        "glt.graph.find_edges",
        "glt.graph.far_edges",
        "glt.graph.edge_ids",
        "glt.graph.has_edges",
        "glt.graph.sample",
        "glt.graph.book",
        "glt.tensor.open",
        "glt.tensor.read",
        "glt.tensor.release",
        "glt.tensor.written",
    }
)


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
        self._ready = asyncio.Event()  # of the loop
        self._plan: ReadPlan | None = None
        self._planned: Mapping[int, ServerEntry] = {}  # the servers that it was made for
        self._read_parts: dict[int, LocalPartition] = {dataset.partition_idx: dataset.own}  # whose seeds are read here
        self.metrics: StatsEndpoint | None = None
        self.clients = ClientRegistry(num_clients)
        self._barriers = Barriers()
        queries = GraphQueries(dataset)
        with ExitStack() as made:  # what is there is closed if the next cannot be made
            # Others may come while the samplers start: they are greeted, and welcomed when this server is ready.
            flag = "master_port" if rank == 0 else "port"
            self.listener = Listener(bind, f"server {rank}", master, self._welcome, flag)
            made.callback(self.listener.close)
            address, port = self.listener.address
            master = (master[0], port) if rank == 0 else master  # its port may have been found here
            process = rank, address, port, socket.gethostname(), os.getpid(), host_id(), dataset.partition_idx
            graph_dir, run_id = dataset.load_args["graph_dir"], dataset.manifest.run_id
            self.entry = ServerEntry(*process, graph_dir, run_id, num_servers, num_clients)
            self._about = {"manifest": dataset.manifest.to_json(), "graph_dir": graph_dir}
            # What may wait for a sampling process is done there, one after the other, and not on the loop.
            self._chores = NativePool(1, "glt-chores")
            made.callback(self._chores.end)
            on_change = partial(self._later, self._servers_changed)
            self.membership = Membership(self.entry, master, self.clients, on_change)
            self._tensors = TensorStore(rank, dataset, str(self.entry), queries.stored_rows)
            level = logging.getLogger().getEffectiveLevel()
            limits = options.max_concurrency, num_rpc_threads, options.rpc_timeout
            where = self.listener.listens_at, options.sampler_port
            cache_bytes = parse_budget(options.cache_memory_budget, "cache_memory_budget")
            spec = PoolWorkerSpec(rank, 0, dataset.to_json(), *limits, level, options.log_format, *where, cache_bytes)
            self.pool = SamplerPool(spec, options.worker_limit, self._worker_died)
            made.callback(self.pool.close)
            self.loaders = ServedLoaders(self.pool, str(self.entry), options.max_loaders, options.buffer_bytes())
            self._calls: dict[str, Call] = {
                "glt.create_loader": lambda session, args, _: self._create_loader(session, *args),
                "glt.close_loader": lambda session, args, _: self.loaders.close(
                    args[0], "the client closed it", session
                ),
                "glt.stream_at": lambda session, args, _: self.loaders.stream_at(session, *args),
                "glt.leave": lambda session, args, _: self._leave(session, *args),
                "glt.seeds_of_split": _plain(self._seeds_of_split),
                "glt.seeds_of_file": _plain(self._seeds_of_file),
                "glt.all_edges": _plain(lambda edge_type, part: self._read_part(part).all_edges(edge_type)),
                "glt.find_keys": _plain(self._find_keys),
                "glt.take_keys": _plain(self._take_keys),
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
        self.listener.open()
        try:
            if options.metrics_port is not None:  # first: probes hear that it is starting
                about = {"server": str(rank), "partition": str(self.entry.partition_idx), "host": self.entry.host}
                about |= {"pid": str(self.entry.pid), "version": glt.__version__}
                place = options.metrics_host, options.metrics_port, options.metrics_auth
                self.metrics = StatsEndpoint(str(self.entry), about, self.stats, self.not_ready, *place)
            self.pool.ensure(options.num_workers)
            self.membership.join(options.rpc_timeout)
            call_on_loop(self._ready.set)
        except BaseException:
            self.close()
            raise
        logger.info("%s is ready at %s", self.entry, printed(*self.listener.address))

    # -- connections -----------------------------------------------------------------------------------------------

    async def _welcome(self, connection: Connection, hello: dict[str, Any]) -> None:
        await self._ready.wait()
        kind = hello.get("kind")
        if self._closed:
            self._turn_away(connection, hello)
        elif kind == "server" and not connection.may_write:
            refuse(connection, f"{connection.peer} has the read token only: servers join with the write token")
        elif kind == "server":
            self.membership.admit(connection, hello)
        elif kind == "client":
            await self._serve_client(connection, hello)
        elif kind == "partition":
            self._redirect(connection)
        else:
            refuse(connection, f"kind = {kind!r}: expected client, partition or server")

    def _redirect(self, connection: Connection) -> None:
        """Tells another server's sampler which of those here answers it."""
        try:
            found = self.pool.partition_at()
        except WorkerDied as error:
            refuse(connection, str(error))
            return
        if found is None:
            refuse(connection, f"no sampler of {self.entry} is there yet", is_ending=True)
        else:
            connection.send(introduce("redirect", **found))
            connection.part()

    # -- clients ---------------------------------------------------------------------------------------------------

    async def _serve_client(self, connection: Connection, hello: dict[str, Any]) -> None:
        try:
            self._require_fit(hello)
            session = ClientSession(connection, hello, partial(self._find, connection.may_write), self._threads)
            if not await self.clients.admit(session):
                self._turn_away(connection, hello)
                return
        except RendezvousError as error:
            logger.warning("refused: %s", error)
            refuse(connection, str(error))
            return
        if not session.is_guest:
            self._barriers.add(session)
        connection.peer = str(session)
        logger.info("%s came", session)
        about = {"entry": self.entry.to_json(), "about": self._about, "most_bytes": session.most_bytes}
        session.send(introduce("client", session=session.id, **about))
        session.start(partial(self._end_session, session))
        session.send({"servers": [entry.to_json() for entry in self.membership.there().values()]})

    def _turn_away(self, connection: Connection, hello: dict[str, Any]) -> None:
        if not self._failure:
            refuse(connection, f"{self.entry} is shutting down", is_ending=True)
            return
        try:
            if hello.get("kind") == "client":
                self._require_fit(hello)
                if connection.may_write:
                    self.clients.add_refused(place_of(connection, hello))
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
        """On the loop."""
        if not (session.has_left or self._closed):  # it may be there after all, and asks itself what happened
            session.send({"closing": f"{self.entry} has ended its session with {session}: {why}"})
        session.connection.part()
        self._barriers.remove(session, why)
        self._later(self._forget, session, why)

    def _forget(self, session: ClientSession, why: str) -> None:
        # Before the client is removed: a server that is done ends, and Python aborts it if that happens while this
        # thread gives memory back.
        self._tensors.end_session(session)
        self.clients.remove(session)
        if session.has_left and not session.is_guest:
            self.membership.send_done([session.place])
        self.loaders.close_all(f"{session} is gone: {why}", session)
        (logger.info if session.has_left else logger.warning)("%s is gone: %s", session, why)

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        def run() -> None:
            try:
                call(*args)
            except Exception:  # what comes after it is done all the same
                logger.exception("%s", self.entry)

        self._chores.submit(run)

    # -- what clients ask ------------------------------------------------------------------------------------------

    def _find(self, may_write: bool, name: str) -> Call:
        if not may_write and name not in FOR_READERS:
            raise PermissionError(
                f"{name} is not for clients that have the read token, who sample and read: give this client the write "
                "token, as token_file or GLT_TOKEN_FILE"
            )
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
            mask = tables[masks[0]]
            if mask.dtype != torch.bool or len(mask.shape) != 1:
                raise ValueError(f"{masks[0]} is {mask.dtype} {list(mask.shape)}: a split needs one bool per node")
            found.append(np.asarray(part.nodes[node_type].owned, np.int64)[mask.tensor.numpy()])
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

    # -- keys ------------------------------------------------------------------------------------------------------

    def _find_keys(self, node_type: int, columns: list[list[Tensor]]) -> Tensor:
        given = tuple(tuple(t.numpy() for t in each) if len(each) > 1 else each[0].numpy() for each in columns)
        return torch.from_numpy(self._keys(node_type).find(given))

    def _take_keys(self, node_type: int, rows: Tensor) -> list[Any]:
        keys = self._keys(node_type)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(keys):
            raise IndexError(f"ids go from {int(rows.min())} to {int(rows.max())}: expected 0 to {len(keys) - 1}")
        found = keys.take(rows.numpy())
        return [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in found]

    def _keys(self, node_type: int) -> Keys:
        return self.dataset.ids[self.dataset.schema.node_types[node_type]]

    # -- partitions ------------------------------------------------------------------------------------------------

    def _readable(self) -> list[int]:
        return sorted([self.dataset.partition_idx, *self._read_plan().other_dirs])

    def _read_part(self, part: int) -> LocalPartition:
        with self._lock:
            if part in self._read_parts:
                self._read_parts[part].require_sound()
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
        listed = [entry.to_json() for entry in servers.values()]
        self.pool.send_servers(listed)
        call_on_loop(self._tell_clients, {"servers": listed})

    def _tell_clients(self, told: dict[str, Any]) -> None:
        """On the loop, where a client is admitted and greeted in one step: what it hears first is the greeting."""
        for session in self.clients.sessions():
            session.send(told)

    def _worker_died(self, worker: int, text: str) -> None:
        for loader in self.loaders.all().values():
            if worker in loader.workers:
                loader.session.send({"died": text, "worker": worker, "loader": loader.id})

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

    def not_ready(self) -> str:
        """Why it takes no clients now, in words; empty if it does."""
        num_ready = len(self.pool.pids())
        if self._closed:
            return "shutting down"
        if self._is_draining:
            return f"draining: no more clients and loaders are taken; {len(self.loaders.all())} loaders are open"
        if not self._ready.is_set():
            if num_ready < self.options.num_workers:
                return f"starting: {num_ready} of {self.options.num_workers} sampling processes are ready"
            return "starting: server 0 has not taken this server in yet"
        return "" if num_ready else "no sampling process is ready: those that died are being replaced"

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
        call_on_loop(self._ready.set)
        self.clients.close()
        self.loaders.open_no_more()
        if not why:
            self.listener.close()
        wait_for(asyncio.sleep(0))  # clients that were being taken in are there
        # First: a client that is told hangs up, and others at a barrier would hear that it is gone instead of why.
        self._barriers.close(text)
        sessions = self.clients.sessions()
        for session in sessions:
            session.send({"closing": text})
        wait_for(_drain(sessions))
        self.loaders.close_all(text)
        self.membership.close()
        wait_for(_end_all(sessions, text))
        if self.metrics is not None:
            self.metrics.close()
        self._chores.shutdown(1.0)
        self.pool.close()
        self._threads.shutdown(1.0)
        if why:
            self.clients.wait_until_all_came(deadlines.LATE_S)
            self.listener.close()
        logger.info("%s has ended", self.entry)


async def _drain(sessions: list[ClientSession]) -> None:
    """Waits until clients have taken what they were told, but not for long: some may take nothing."""
    waiting = [asyncio.ensure_future(session.connection.drained()) for session in sessions]
    if waiting:
        done, late = await asyncio.wait(waiting, timeout=deadlines.GOODBYE_S)
        for task in late:
            task.cancel()
        for task in done:
            task.exception()  # one that is gone needs to be told nothing


async def _end_all(sessions: list[ClientSession], why: str) -> None:
    for session in sessions:
        session.end(why)


def _plain(function: Callable[..., Any]) -> Call:
    return lambda session, args, kwargs: function(*args, **kwargs)
