"""How a training script becomes part of a job, whatever started it, and how it leaves."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch.distributed as dist

from glt import _deadlines as deadlines
from glt._checks import check_count, check_path
from glt._tracebacks import short_traceback
from glt._urls import is_url
from glt.distributed.context import (
    World,
    current_world,
    enter,
    get_context,
    init_worker_group,
    leave,
    require_world,
    resign,
)
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.job.hosts import JobEnvironment, JobRole, read_environment, read_hosts
from glt.distributed.job.worlds import (
    MOST_WHY,
    HostServer,
    ServedWorld,
    StandaloneWorld,
    in_words,
    wait_for_trainers,
)
from glt.distributed.options import DEFAULT_RPC_TIMEOUT_S, check_transport
from glt.distributed.server.api import (
    get_server,
    init_client,
    init_server,
    require_client,
    shutdown_client,
    wait_and_shutdown_server,
)
from glt.distributed.slurm import adopt_environment
from glt.distributed.tensors.tensor import Handles, flush_all
from glt.distributed.wire.addresses import is_own_address
from glt.distributed.wire.credentials import (
    Credentials,
    LentToken,
    TlsOptions,
    check_credentials,
    current_credentials,
    lent_token_file,
    set_credentials,
    use_credentials,
)
from glt.distributed.wire.store import TimedStore, connect, naming_the_job_store
from glt.errors import RendezvousError
from glt.partition.format import layout
from glt.partition.format.manifest import Manifest
from glt.partition.format.part_config import PartConfig, graph_names, read_part_config
from glt.partition.format.remote import local_directory

_FAILED = "failed "

_lock = threading.RLock()
_job: _Job | None = None
_num_stores = 0


class Ending:
    """Why this process ends, as seen at exit. Errors from before it was made do not count: a fork has those of its
    parent, such as the error of a notebook's last cell."""

    def __init__(self) -> None:
        # Not the errors themselves, which hold the frames that they went through.
        self._before = {(id(error), in_words(error)) for error in _errors()}

    def why(self) -> str:
        """The exception that ends this process, in words: of a program, or in flight in a child of multiprocessing."""
        failure = next((each for each in _errors() if (id(each), in_words(each)) not in self._before), None)
        if isinstance(failure, SystemExit):  # as mp.spawn of torch ends a child that has failed
            failure = (failure.__context__ or failure) if failure.code else None
        return "" if failure is None else in_words(failure)


def _errors() -> list[BaseException]:
    return [each for each in (getattr(sys, "last_value", None), sys.exc_info()[1]) if each is not None]


@dataclass
class _Job:
    env: JobEnvironment
    given: dict[str, Any]
    part_config: str | os.PathLike[str] | None  # as given here, or to the first DistGraph
    credentials_before: Credentials | None
    token: LentToken | None = None  # where this process has made the job's
    server: HostServer | None = None
    at_exit: util.Finalize | None = None
    pid: int = field(default_factory=os.getpid)
    ending: Ending = field(default_factory=Ending)


@short_traceback
def initialize(
    ip_config: str | os.PathLike[str] | None = None,
    num_workers: int | None = None,
    *,
    part_config: str | os.PathLike[str] | None = None,
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_S,
    token_file: str | os.PathLike[str] | None = None,
    tls: TlsOptions | None = None,
    require_auth: bool | None = None,
) -> None:
    """Makes this process part of a job. Call it first, before or after ``torch.distributed.init_process_group``.

    The environment decides the role of the process:

    - ``GLT_ROLE=server`` (``glt launch`` sets it): it serves a partition until all trainers have left, and then exits;
      this function does not return. Register functions for :func:`request_server` before the call.
    - ``GLT_ROLE=trainer``: it is a trainer, a client of those servers.
    - torchrun's environment, or that of a SLURM step (``srun``), with more than one process: all are trainers, and the
      first of each host also serves, on threads of its own. Partition ``p`` is served by host ``p % num_hosts``.
      SLURM's variables become torchrun's in ``os.environ``, for ``init_process_group`` after this call.
    - Otherwise, as in a notebook: one process is trainer and server.

    In the last two the partitions are named here or by :class:`DistGraph`. Calling it again with the same arguments
    does nothing.

    Args:
        ip_config: A file with a host on each line, ``ADDRESS [PORT]``; ``#`` begins a comment. Default: as the
            environment says. Under torchrun, server 0 is at the first line's address, and port if it has one, and hosts
            have the numbers of their lines. A host of which none of the addresses is its own (NAT), or several are, has
            the number that torchrun gave it (``GROUP_RANK``): lines are then in the order of ``--node-rank``.
        num_workers: Sampling processes of each server to start with. Default: ``GLT_NUM_WORKERS``, or 0. A server has
            one at least; a standalone process with 0 samples by itself.
        part_config: The partitions: their directory, or a JSON file in it. Default: ``GLT_PART_CONFIG``.
        rpc_timeout: Deadline in seconds of start-up and of each call, above 0 and below a day.
        token_file: File with the job's token, which all its processes need; see ``glt token``. Default:
            ``GLT_TOKEN_FILE``, which ``glt launch`` sets. Where there is none and torchrun has started all processes on
            one host, rank 0 makes a token for the job.
        tls: Encryption; see :class:`glt.distributed.TlsOptions`. Default: ``GLT_TLS_CERT`` and its like, else none.
        require_auth: Refuse to listen beyond this host without a token. Default: ``GLT_REQUIRE_AUTH``, else a warning.

    Raises:
        TypeError, ValueError: If an argument or a variable of the environment makes no sense; names it.
        RuntimeError: If it was called with other arguments, or the process is something else in a job already, or uses
            another token.
        OSError: If a file cannot be read.
        glt.errors.PartitionError: If partitions are damaged or missing.
        glt.errors.RendezvousError: If the others are not reached in time.

    Example:
        >>> glt.distributed.initialize(part_config="parts")  # in a notebook; under torchrun, the same line
        >>> glt.distributed.get_rank(), glt.distributed.num_trainers()
        (0, 1)
        >>> glt.distributed.finalize()
    """
    global _job
    check_transport(None, None, rpc_timeout)
    check_credentials(token_file, tls, require_auth)
    if num_workers is None:
        text = os.environ.get("GLT_NUM_WORKERS") or "0"
        if not text.isdecimal():
            raise ValueError(f"GLT_NUM_WORKERS = {text!r}: expected a number of sampling processes")
        num_workers = int(text)
    num_workers = check_count("num_workers", num_workers, 0, 1024)
    if ip_config is not None:
        check_path("ip_config", ip_config, "a file of hosts")
        if not os.path.exists(ip_config):
            raise FileNotFoundError(
                f"ip_config = {os.fspath(ip_config)!r}: there is no such file; expected one with lines ADDRESS [PORT]"
            )
    if part_config is not None:
        check_path("part_config", part_config, "partitions, or their JSON file")
    part_config = part_config or os.environ.get("GLT_PART_CONFIG") or None
    given = {
        "ip_config": None if ip_config is None else os.fspath(ip_config),
        "num_workers": num_workers,
        "part_config": None if part_config is None else _absolute(part_config),
        "rpc_timeout": rpc_timeout,
        "token_file": None if token_file is None else os.path.abspath(token_file),
        "tls": tls,
        "require_auth": require_auth,
    }
    with _lock:
        if _job is not None and _job.pid != os.getpid():
            finalize()  # it is the parent's: a fork begins anew
        if _job is not None:
            if _job.given == given:
                return
            raise RuntimeError(
                f"glt.distributed.initialize was called with {_job.given}, and now with {given}: call "
                "glt.distributed.finalize() in between"
            )
        adopt_environment()
        env = on_hosts(read_environment(), ip_config)
        listens = env.role in (JobRole.SERVER, JobRole.PEER)
        _job = _Job(env, given, part_config, use_credentials(token_file, tls, require_auth, listens=listens))
        try:
            _begin(_job)
        except BaseException:
            _end(_job, 0.0)
            _job = None
            raise
        # Of multiprocessing, which runs in forked trainers, too, where atexit does not. Before loaders' samplers are
        # waited for.
        _job.at_exit = util.Finalize(None, _at_exit, exitpriority=2)


def on_hosts(env: JobEnvironment, ip_config: str | os.PathLike[str] | None) -> JobEnvironment:
    """Peers take from the file of hosts the master, and their host's position where one line alone is an address of
    this host. Where several are, or none is, as behind NAT, the environment says which host this is."""
    if ip_config is None:
        return env
    hosts = read_hosts(ip_config)
    if env.role is not JobRole.PEER:
        return env  # glt launch has said everything; a process alone runs anywhere
    if len(hosts) != env.num_servers:
        raise ValueError(
            f"ip_config = {os.fspath(ip_config)!r} names {len(hosts)} hosts, and torchrun has started trainers on "
            f"{env.num_servers}: expected the same"
        )
    mine = [at for at, host in enumerate(hosts) if is_own_address(host.name)]
    at = mine[0] if len(mine) == 1 else env.host_index
    return replace(env, host_index=at, master=(hosts[0].name, hosts[0].port))


def _begin(job: _Job) -> None:
    role = job.env.role
    if role is JobRole.SERVER:
        _serve(job)
    elif role is JobRole.TRAINER:
        _join(job, job.env.master)
    elif job.part_config is not None:
        _start(job, job.part_config)
    elif role is JobRole.STANDALONE:
        _enter_alone(StandaloneWorld())


def _serve(job: _Job) -> None:
    env = job.env
    if job.part_config is None:
        raise ValueError("GLT_ROLE = 'server', and neither part_config nor GLT_PART_CONFIG says which partitions")
    init_server(
        env.num_servers,
        env.num_trainers,
        env.rank,
        _loaded(job.part_config, env.rank, env.partition),
        *env.master,
        num_workers=max(1, job.given["num_workers"]),
        rpc_timeout=job.given["rpc_timeout"],
    )
    server = get_server()
    assert server is not None
    try:
        if not wait_for_trainers(server, deadlines.ALONE_S):
            raise RendezvousError(
                f"{server.entry}: no trainer has been there for {deadlines.ALONE_S:g} s, and not all of "
                f"{env.num_trainers} have come: were they started, with GLT_MASTER_ADDR and GLT_MASTER_PORT of "
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
    return DistDataset().load(
        part_config if is_url(part_config) else root, at % num_parts if partition is None else partition
    )


def _absolute(part_config: str | os.PathLike[str]) -> str:
    return os.fspath(part_config) if is_url(part_config) else os.path.abspath(part_config)


def partition_dir(part_config: str | os.PathLike[str]) -> PartConfig:
    """The directory of partitions, and the graph's name; see :func:`glt.partition.read_part_config`. Of a URL, one with
    its manifest. FileNotFoundError if there is nothing there."""
    if is_url(part_config):
        part_config = local_directory(part_config, None)
    if not os.path.exists(part_config):
        raise FileNotFoundError(f"part_config = {os.fspath(part_config)!r}: there is no such file or directory")
    return read_part_config(part_config)


def _start(job: _Job, part_config: str | os.PathLike[str]) -> None:
    if job.env.role is JobRole.STANDALONE:
        data, world = _loaded(part_config, 0), current_world()
        if isinstance(world, StandaloneWorld):
            world.open_graph(data)  # tensors that were made before stay
        else:
            _enter_alone(StandaloneWorld(data))
        return
    env, timeout_s = job.env, job.given["rpc_timeout"]
    address, port = env.master
    store = open_store(timeout_s) if port is None else None
    if store is None:
        port = port or env.peer_port  # there is no store to publish another one

    def serve() -> HostServer:
        data = _loaded(part_config, env.host_index)
        return HostServer(env, data, (address, port or 0), job.given["num_workers"], timeout_s)

    with naming_the_job_store(f"trainer {env.rank}"):
        if store is not None and env.is_first_on_host and env.host_index == 0:
            with publishing_failures(store):
                is_wanted = current_credentials().token_file is None and os.environ.get("GLT_TRANSPORT") != "rpc"
                if env.num_servers == 1 and is_wanted:
                    job.token = LentToken()
                    set_credentials(replace(current_credentials(), token_file=job.token.path))
                job.server = serve()
            port = job.server.entry.port
            store.set("port", f"{port} {'' if job.token is None else job.token.path}")
        elif store is not None:
            port, token_file = wait_for_port(store, timeout_s)
            if token_file and current_credentials().token_file is None:
                set_credentials(replace(current_credentials(), token_file=lent_token_file(token_file)))
    if env.is_first_on_host and job.server is None:
        job.server = serve()
    _join(job, (address, port))


def open_store(timeout_s: float) -> TimedStore | None:
    """The key-value store of the job, for the port of server 0; None if there is none. Each call opens another part:
    the port of a job that has ended does not count."""
    global _num_stores
    _num_stores += 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"glt/initialize/{attempt}/{_num_stores}"
    if dist.is_initialized():
        return TimedStore(dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store()), timeout_s)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None  # a store opened now would be in the way of init_process_group
    return TimedStore(connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), prefix, timeout_s), timeout_s)


@contextmanager
def publishing_failures(store: TimedStore) -> Iterator[None]:
    """If server 0 cannot be made, the trainers that wait for its port are told why."""
    try:
        yield
    except Exception as error:
        store.set("port", f"{_FAILED}{type(error).__name__}: {error}"[:MOST_WHY])
        raise


def wait_for_port(store: TimedStore, timeout_s: float) -> tuple[int, str]:
    """The port of server 0, and where the token is that rank 0 has made, or ''. RendezvousError if there is none in
    time, or server 0 has failed; says why."""
    value = store.wait_for("port", timeout_s, "the trainer of rank 0 has opened no server yet")
    if value is None:
        raise RendezvousError(
            f"the trainer of rank 0 has opened no server within {timeout_s:g} s: has it failed, or does it call "
            "glt.distributed.initialize() (and DistGraph, if that names the partitions) as the others do?"
        )
    text = value.decode(errors="replace")
    if text.startswith(_FAILED):
        raise RendezvousError(f"the server of the first host could not be made: {text.removeprefix(_FAILED)}")
    port, _, token_file = text.partition(" ")
    return int(port), token_file


def _join(job: _Job, master: tuple[str, int | None]) -> None:
    env = job.env
    init_client(env.num_servers, env.num_trainers, env.rank, *master, rpc_timeout=job.given["rpc_timeout"])
    enter(ServedWorld(require_client()))


def _enter_alone(world: StandaloneWorld) -> None:
    if get_context() is None:
        init_worker_group(1, 0, "standalone")  # for loaders
    enter(world)


def open_world(name: str, part_config: str | os.PathLike[str] | None) -> World:
    """The world of this process, with a graph; begins it where the partitions had not been named. RuntimeError without
    :func:`initialize`; ValueError if the partitions are still not named, or are others, or have another name."""
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
    """Raises ValueError unless a part_config on this host, if there is one, is of the graph of that name."""
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


@short_traceback
def finalize(timeout_s: float | None = None) -> None:
    """Leaves the job; ``initialize`` may then be called again. Done at exit, too; may be called again.

    A trainer that also serves waits until the others have left, for those that died a minute at most, and ``timeout_s``
    seconds at most if given.

    Example:
        >>> glt.distributed.initialize()
        >>> glt.distributed.finalize()
    """
    _finalize(timeout_s)


def _finalize(timeout_s: float | None, why: str = "") -> None:
    global _job
    with _lock:
        job, _job = _job, None
        if job is None:
            return
        if job.pid != os.getpid():
            leave()  # a fork leaves the parent's job to the parent
            return
        if job.at_exit is not None:
            job.at_exit.cancel()
        _end(job, timeout_s, why)


def _end(job: _Job, timeout_s: float | None, why: str = "") -> None:
    world = leave()
    if world is not None:
        Handles.of(world).end()
    if why and job.server is not None:
        job.server.close(f"trainer {job.env.rank}, which runs it, has failed: {why}")
    try:
        if isinstance(world, StandaloneWorld):
            world.close()
            resign()
        else:
            shutdown_client(why)  # also one that came so far and no further
    finally:
        try:
            if job.server is not None:
                job.server.finish(timeout_s)
        finally:
            if job.token is not None:
                job.token.close()
            set_credentials(job.credentials_before)


def _at_exit() -> None:
    # After an exception there is no wait: the others cannot go on without this process, and are told at once.
    why = "" if _job is None else _job.ending.why()
    _finalize(0.0 if why else None, why)


@short_traceback
def get_rank() -> int:
    """The number of this trainer, from 0. RuntimeError without :func:`initialize`.

    Example:
        >>> glt.distributed.initialize()
        >>> glt.distributed.get_rank()
        0
        >>> glt.distributed.finalize()
    """
    return _world_or_env().rank


@short_traceback
def num_trainers() -> int:
    """How many trainers the job has. RuntimeError without :func:`initialize`.

    Example:
        >>> glt.distributed.initialize()
        >>> glt.distributed.num_trainers()
        1
        >>> glt.distributed.finalize()
    """
    return _world_or_env().num_trainers


@short_traceback
def get_num_clients() -> int:
    """DGL's name of :func:`num_trainers`, by which its scripts divide gradients.

    Example:
        >>> glt.distributed.initialize()
        >>> glt.distributed.get_num_clients()
        1
        >>> glt.distributed.finalize()
    """
    return num_trainers()


def _world_or_env() -> JobEnvironment | World:
    world = current_world()
    if world is not None:
        return world
    if _job is None:
        raise RuntimeError("this process is in no job yet: call glt.distributed.initialize() first")
    return _job.env


@short_traceback
def barrier(timeout_s: float | None = None) -> None:
    """Waits until all trainers have come here; what they wrote to distributed tensors before is then seen by all.

    Args:
        timeout_s: Deadline in seconds, from the first one. Default: half an hour.

    Raises:
        glt.errors.PeerLost: If a trainer does not come in time, or is gone; names it.
        Exception: What went wrong with a write that was not waited for; see :meth:`DistTensor.flush`.

    Example:
        >>> glt.distributed.initialize()
        >>> glt.distributed.barrier(timeout_s=60)
        >>> glt.distributed.finalize()
    """
    world = require_world()
    flush_all(world)
    world.barrier(timeout_s)
