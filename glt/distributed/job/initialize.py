"""How a training script becomes part of a job, whatever started it, and how it leaves."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field, replace
from multiprocessing import util
from pathlib import Path
from typing import Any

from glt import _deadlines as deadlines
from glt._checks import check_count, check_path
from glt.distributed.context import get_context, init_worker_group, resign
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.job.host_server import (
    HostServer,
    hear_port,
    open_store,
    serve_at_free_port,
    tell_port,
    telling_failures,
)
from glt.distributed.job.place import DEFAULT_PORT, JobPlace, JobRole, find_this_host, read_hosts, read_place
from glt.distributed.job.worlds import ServedWorld, StandaloneWorld
from glt.distributed.options import DEFAULT_RPC_TIMEOUT_S, check_transport
from glt.distributed.server.api import (
    get_server,
    init_client,
    init_server,
    require_client,
    shutdown_client,
    wait_and_shutdown_server,
)
from glt.distributed.tensors.tensor import Handles, flush_all
from glt.distributed.wire.store import naming_the_job_store
from glt.distributed.world import World, current_world, enter, leave, require_world
from glt.errors import RendezvousError
from glt.partition.format import layout
from glt.partition.format.manifest import Manifest
from glt.partition.format.part_config import PartConfig, graph_names, read_part_config

logger = logging.getLogger(__name__)


_lock = threading.RLock()
_job: _Job | None = None
_leaves_at_exit: int | None = None  # the process that has said so


class Ending:
    """Tells, at exit, why this process ends.

    Errors that were there before it was made do not count: a fork has what its parent had, such as the error of a
    notebook's last cell.
    """

    def __init__(self) -> None:
        # Not the errors themselves, which hold the frames that they went through.
        self._before = {(id(error), text_of(error)) for error in _errors()}

    def failure(self) -> BaseException | None:
        """The exception that ends this process: of a program, or in flight in a child of multiprocessing."""
        failure = next((each for each in _errors() if (id(each), text_of(each)) not in self._before), None)
        if isinstance(failure, SystemExit):  # as mp.spawn of torch ends a child that has failed
            return (failure.__context__ or failure) if failure.code else None
        return failure

    def why(self) -> str:
        """That in words; "" if there is none."""
        failure = self.failure()
        return "" if failure is None else text_of(failure)


def text_of(error: BaseException) -> str:
    """The last line of a traceback, or lines."""
    return "".join(traceback.format_exception_only(error)).strip()


def _errors() -> list[BaseException]:
    """What ended the interpreter, or a cell of it, and what is in flight."""
    return [each for each in (getattr(sys, "last_value", None), sys.exc_info()[1]) if each is not None]


@dataclass
class _Job:
    """What :func:`initialize` was told, and what came of it."""

    place: JobPlace
    given: dict[str, Any]
    num_workers: int
    timeout_s: float
    pid: int
    part_config: str | os.PathLike[str] | None  # as given here, or to the first DistGraph
    server: HostServer | None = None
    ending: Ending = field(default_factory=Ending)


def initialize(
    ip_config: str | os.PathLike[str] | None = None,
    num_workers: int | None = None,
    *,
    part_config: str | os.PathLike[str] | None = None,
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_S,
) -> None:
    """Makes this process part of a job. Call it first, before or after ``torch.distributed.init_process_group``.

    The same script runs in every role, which the environment decides:

    - ``GLT_ROLE=server`` (``glt launch`` sets it): the process serves a partition until all trainers have left, and
      then exits; this function does not return. Functions that trainers call by :func:`request_server` are to be
      registered above it.
    - ``GLT_ROLE=trainer``: the process is a trainer, a client of those servers.
    - torchrun's environment, with more than one process: all are trainers, and the first of each host also serves, on
      threads of its own. Partition ``p`` is served by host ``p % num_hosts``.
    - Otherwise, as in a notebook: one process that does it all.

    In the last two the partitions are named here or by :class:`DistGraph`, and until then there is no world. Calling it
    again with the same arguments does nothing.

    Args:
        ip_config: A file with a host on each line, ``ADDRESS [PORT]``, this one among them; ``#`` begins a comment. Not
            needed: the environment says who takes part. Under torchrun, server 0 is at the first line's address, and
            port if it has one.
        num_workers: Sampling processes of each server to start with. Default: ``GLT_NUM_WORKERS``, or 0. A server has
            one at least; a standalone process with 0 samples by itself.
        part_config: The partitions: their directory, or a JSON file in it. Default: ``GLT_PART_CONFIG``.
        rpc_timeout: Deadline in seconds of start-up and of each call, above 0 and below a day.

    Raises:
        TypeError, ValueError: If an argument or a variable of the environment makes no sense; names it.
        RuntimeError: If it was called with other arguments, or the process is something else in a job already.
        OSError: If a file cannot be read.
        glt.errors.PartitionError: If partitions are damaged or missing.
        glt.errors.RendezvousError: If this host is not in ``ip_config``, or the others are not reached in time.
    """
    global _job, _leaves_at_exit
    check_transport(None, None, rpc_timeout)
    if num_workers is None:
        text = os.environ.get("GLT_NUM_WORKERS") or "0"
        if not text.isdecimal():
            raise ValueError(f"GLT_NUM_WORKERS = {text!r}: expected a number of sampling processes")
        num_workers = int(text)
    check_count("num_workers", num_workers, 0, 1024)
    for name, path, what in (
        ("ip_config", ip_config, "a file of hosts"),
        ("part_config", part_config, "partitions, or their JSON file"),
    ):
        if path is not None:
            check_path(name, path, what)
    part_config = part_config or os.environ.get("GLT_PART_CONFIG") or None
    given = {
        "ip_config": None if ip_config is None else os.fspath(ip_config),
        "num_workers": num_workers,
        "part_config": None if part_config is None else os.path.abspath(part_config),
        "rpc_timeout": rpc_timeout,
    }
    with _lock:
        if _job is not None and _job.pid != os.getpid():
            _forget()  # its parent's: a fork takes its own place
        if _job is not None:
            if _job.given == given:
                return
            raise RuntimeError(
                f"glt.distributed.initialize was called with {_job.given}, and now with {given}: call "
                "glt.distributed.finalize() in between"
            )
        place = _placed(read_place(), ip_config)
        _job = _Job(place, given, num_workers, rpc_timeout, os.getpid(), part_config)
        try:
            _begin(_job, part_config)
        except BaseException:
            _end(_job, 0.0)
            _job = None
            raise
        if _leaves_at_exit != os.getpid():
            # Of multiprocessing, not of atexit, which forked children never come to: trainers may be those, too. Before
            # loaders' samplers are waited for.
            util.Finalize(None, _at_exit, exitpriority=2)
            _leaves_at_exit = os.getpid()


def _placed(place: JobPlace, ip_config: str | os.PathLike[str] | None) -> JobPlace:
    """Where the hosts are named, this one must be among them, and peers learn from it which one they are on."""
    if ip_config is None:
        return place
    hosts = read_hosts(Path(ip_config))
    if place.role is JobRole.STANDALONE:
        return place  # such a script runs anywhere
    at = find_this_host(hosts, ip_config)
    if place.role is not JobRole.PEER:
        return place
    if len(hosts) != place.num_servers:
        raise ValueError(
            f"ip_config = {os.fspath(ip_config)!r} names {len(hosts)} hosts, and torchrun has started trainers on "
            f"{place.num_servers}: expected the same"
        )
    return replace(place, host_index=at, master=(hosts[0].name, hosts[0].port))


def _begin(job: _Job, part_config: str | os.PathLike[str] | None) -> None:
    role = job.place.role
    if role is JobRole.SERVER:
        _serve(job, part_config)
    elif role is JobRole.TRAINER:
        _join(job, job.place.master)
    elif part_config is not None:
        _start(job, part_config)
    elif role is JobRole.STANDALONE:
        _enter_alone(StandaloneWorld())


def _serve(job: _Job, part_config: str | os.PathLike[str] | None) -> None:
    place = job.place
    if part_config is None:
        raise ValueError("GLT_ROLE = 'server', and neither part_config nor GLT_PART_CONFIG says which partitions")
    address, port = place.master
    init_server(
        place.num_servers,
        place.num_trainers,
        place.rank,
        _loaded(part_config, place.rank, place.partition),
        address,
        port,
        num_workers=max(1, job.num_workers),
        rpc_timeout=job.timeout_s,
    )
    server = get_server()
    assert server is not None
    alone_since = time.monotonic()
    try:
        while not server.wait_until_done(deadlines.POLL_S):
            if server.clients.sessions():
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > deadlines.ALONE_S:
                raise RendezvousError(
                    f"{server.entry}: no trainer has been there for {deadlines.ALONE_S:g} s, and not all of "
                    f"{place.num_trainers} have come: were they started, with GLT_MASTER_ADDR and GLT_MASTER_PORT of "
                    "server 0?"
                )
    finally:
        wait_and_shutdown_server(0.0)
    sys.exit(0)


def _loaded(part_config: str | os.PathLike[str], at: int, partition: int | None = None) -> DistDataset:
    root = partition_dir(part_config).directory
    num_parts = Manifest.read(root).num_parts
    if partition is not None and partition >= num_parts:
        raise ValueError(f"GLT_PARTITION = {partition}: {root} has {num_parts} partitions, from 0")
    return DistDataset().load(root, at % num_parts if partition is None else partition)


def partition_dir(part_config: str | os.PathLike[str]) -> PartConfig:
    """The directory of partitions, and the graph's name.

    Raises:
        FileNotFoundError: If there is nothing there.
        glt.errors.PartitionError: See :func:`glt.partition.read_part_config`.
    """
    if not os.path.exists(part_config):
        raise FileNotFoundError(f"part_config = {os.fspath(part_config)!r}: there is no such file or directory")
    return read_part_config(part_config)


def _start(job: _Job, part_config: str | os.PathLike[str]) -> None:
    """Begins what had to wait until the partitions were named."""
    if job.place.role is JobRole.STANDALONE:
        data, world = _loaded(part_config, 0), current_world()
        if isinstance(world, StandaloneWorld):
            world.open_graph(data)  # tensors that were made before stay
        else:
            _enter_alone(StandaloneWorld(data))
        return
    place, timeout_s = job.place, job.timeout_s
    address, port = place.master
    store = open_store(place, timeout_s) if port is None else None
    if port is None and store is None:
        port = DEFAULT_PORT  # nobody is there to tell the others of another one
    serves = place.is_first_on_host
    if serves and place.host_index == 0 and port is None:
        assert store is not None
        with telling_failures(store):
            job.server = serve_at_free_port(place, _loaded(part_config, 0), job.num_workers, timeout_s)
        port = job.server.server.address[1]
        with naming_the_job_store(f"trainer {place.rank}"):
            tell_port(store, port)
    elif port is None:
        assert store is not None
        with naming_the_job_store(f"trainer {place.rank}"):
            port = hear_port(store, timeout_s)
    if serves and job.server is None:
        data = _loaded(part_config, place.host_index)
        job.server = HostServer(place, data, (address, port), job.num_workers, timeout_s)
    _join(job, (address, port))


def _join(job: _Job, master: tuple[str, int | None]) -> None:
    place = job.place
    init_client(place.num_servers, place.num_trainers, place.rank, master[0], master[1], rpc_timeout=job.timeout_s)
    enter(ServedWorld(require_client()))


def _enter_alone(world: StandaloneWorld) -> None:
    if get_context() is None:
        init_worker_group(1, 0, "standalone")  # for loaders
    enter(world)


def open_world(name: str, part_config: str | os.PathLike[str] | None) -> World:
    """The world of this process, with a graph; begins it where the partitions had not been named.

    Raises:
        RuntimeError: Without :func:`initialize`.
        ValueError: If the partitions are still not named, or are others than those there are, or have another name.
    """
    with _lock:
        world = current_world()
        if _job is None:
            raise RuntimeError("call glt.distributed.initialize() first")
        _require_name(name, part_config or _job.part_config)
        if world is None or world.data is None:
            if part_config is None:
                raise ValueError(
                    "part_config: nothing says which partitions; give the directory or the JSON file here, or to "
                    "glt.distributed.initialize"
                )
            _start(_job, part_config)
            _job.part_config = part_config
            return require_world()
        if part_config is not None:
            _require_same(world, part_config)
        return world


def _require_name(name: str, part_config: str | os.PathLike[str] | None) -> None:
    """Part_configs say what the graph is called; where there are none, or none on this host, any name will do."""
    if part_config is None:
        return
    path = Path(part_config)
    if path.is_file():
        known = [read_part_config(path).graph_name]
    elif (path / layout.MANIFEST).is_file():
        known = graph_names(path, Manifest.read(path))
    else:
        return
    if known and name not in known:
        raise ValueError(f"name = {name!r}: {os.fspath(part_config)} is of the graph {' or '.join(map(repr, known))}")


def _require_same(world: World, part_config: str | os.PathLike[str]) -> None:
    assert world.data is not None
    try:
        theirs = Manifest.read(partition_dir(part_config).directory).run_id
    except FileNotFoundError:
        if isinstance(world, StandaloneWorld):
            raise
        return  # the servers have the files, and this host need not
    if theirs != world.data.manifest.run_id:
        raise ValueError(
            f"part_config = {os.fspath(part_config)!r} is of partitioning run {theirs}, and {world} has run "
            f"{world.data.manifest.run_id}: expected the same partitions"
        )


def finalize(timeout_s: float | None = None) -> None:
    """Leaves the job; ``initialize`` may then be called again. Done at exit, too; may be called again.

    A trainer that also serves waits until the others have left; those that died are not waited for longer than a
    minute.

    Args:
        timeout_s: Waits no longer than so many seconds. Default: as long as others are there.
    """
    _finalize(timeout_s, "")


def _finalize(timeout_s: float | None, why: str) -> None:
    global _job
    with _lock:
        job, _job = _job, None
        if job is None:
            return
        if job.pid != os.getpid():
            _forget()
            return
        _end(job, timeout_s, why)


def _end(job: _Job, timeout_s: float | None, why: str = "") -> None:
    world = leave()
    if world is not None:
        Handles.of(world).end()
    if why and job.server is not None:
        job.server.abort(f"trainer {job.place.rank}, which runs it, has failed: {why}")
    try:
        if isinstance(world, ServedWorld):
            shutdown_client(why)
        elif world is not None:
            world.close()
            resign()
        else:
            shutdown_client()  # it came so far and no further
    finally:
        server, job.server = job.server, None
        if server is not None:
            server.finish(timeout_s)


def _forget() -> None:
    """In a fork: what the parent has is the parent's."""
    global _job
    _job = None
    leave()


def _at_exit() -> None:
    # After an exception nobody is waited for: the others cannot go on without this process, and are told at once.
    why = "" if _job is None else _job.ending.why()
    if why:
        _finalize(0.0, why)
    else:
        finalize()


def get_rank() -> int:
    """The number of this trainer, from 0.

    Raises:
        RuntimeError: Without :func:`initialize`.
    """
    return _place().rank


def num_trainers() -> int:
    """How many trainers the job has.

    Raises:
        RuntimeError: Without :func:`initialize`.
    """
    return _place().num_trainers


def _place() -> JobPlace | World:
    world = current_world()
    if world is not None:
        return world
    if _job is None:
        raise RuntimeError("this process is in no job yet: call glt.distributed.initialize() first")
    return _job.place


def barrier(timeout_s: float | None = None) -> None:
    """Waits until all trainers have come here; what they wrote to distributed tensors before is then seen by all.

    Args:
        timeout_s: Deadline in seconds, from the first one. Default: half an hour.

    Raises:
        glt.errors.PeerLost: If a trainer does not come in time, or is gone; names it.
        Exception: What went wrong with a write that was not waited for; see :meth:`DistTensor.flush`.
    """
    world = require_world()
    flush_all(world)
    world.barrier(timeout_s)
