"""How a training script becomes part of a job, whatever started it, and how it leaves."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch.distributed as dist

from glt._checks import check_count, check_path
from glt.distributed.context import DistContext, DistRole, get_context, init_worker_group, resign
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.job.hosts import Host, read_hosts
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
from glt.distributed.server.options import ServerOptions
from glt.distributed.server.server import DistServer
from glt.distributed.tensors.tensor import Handles, flush_all
from glt.distributed.wire.connection import own_address
from glt.distributed.wire.exit import Ending
from glt.distributed.wire.rendezvous import KeyStore, TimedStore, connect, naming_the_job_store
from glt.distributed.world import World, current_world, enter, leave, require_world
from glt.errors import RendezvousError
from glt.partition.format import layout
from glt.partition.format.manifest import Manifest
from glt.partition.format.part_config import PartConfig, graph_names, read_part_config

# Which line of the file that names the hosts of a job is this host's.


DEFAULT_PORT = 30050  # DGL's

_SIOCGIFADDR = 0x8915


def find_this_host(hosts: Sequence[Host], path: str | os.PathLike[str]) -> int:
    """Which line is this host's.

    Raises:
        glt.errors.RendezvousError: If none is, or several are; names the addresses of this host.
    """
    mine = [at for at, host in enumerate(hosts) if _is_local(host.name)]
    if len(mine) == 1:
        return mine[0]
    names = [host.name for host in hosts]
    what = "none of them is an address of this host" if not mine else f"{[names[at] for at in mine]} are all this host"
    raise RendezvousError(
        f"ip_config = {os.fspath(path)!r} names {names}, and {what}, {socket.gethostname()}, whose interfaces have "
        f"{local_addresses()}: name each host once, by an address that it has"
    )


def local_addresses() -> list[str]:
    """IPv4 addresses of this host's interfaces, with the names of these."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            found.append(f"{socket.inet_ntoa(answer[20:24])} ({name})")
    return found


def _is_local(address: str) -> bool:
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise RendezvousError(f"ip_config names {address!r}: there is no such host ({error})") from error
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(where)  # only at an address of this host
            except OSError:
                continue
            return True
    return False


# Which part of a job this process is to play, as its environment says.


class JobRole(Enum):
    """What a process of a job does.

    ``SERVER`` and ``TRAINER`` are of a job with servers in processes of their own, as ``glt launch`` starts it;
    ``PEER`` is a trainer of a job without, as torchrun starts it: one on each host serves beside training.
    """

    SERVER = "server"
    TRAINER = "trainer"
    PEER = "peer"
    STANDALONE = "standalone"


@dataclass(frozen=True)
class JobPlace:
    """The place of this process.

    Attributes:
        role: What it does.
        rank: Of a trainer among trainers, of a server among servers.
        num_trainers: Trainers of the job.
        num_servers: Servers of the job; of peers, their hosts.
        master: Host and port of server 0; the port is None where it is to be found.
        host_index: Of a peer, which host it is on.
        is_first_on_host: Of a peer, whether it serves.
        partition: What a server is to load; None: as it finds.
    """

    role: JobRole
    rank: int
    num_trainers: int
    num_servers: int
    master: tuple[str, int | None] = ("localhost", None)
    host_index: int = 0
    is_first_on_host: bool = True
    partition: int | None = None


def read_place(env: Mapping[str, str] = os.environ) -> JobPlace:
    """Reads the environment, which ``glt launch`` or torchrun has set.

    Raises:
        ValueError: If a variable is missing or makes no sense; names it.
    """
    role = env.get("GLT_ROLE")
    if role is None:
        return _place_without_servers(env)
    if role not in ("server", "trainer"):
        raise ValueError(f"GLT_ROLE = {role!r}: expected 'server', 'trainer', or that it is not set")
    why = f"which GLT_ROLE = {role!r} calls for; glt launch sets it"
    num_servers, num_trainers = (_number(env, name, 1, why) for name in ("GLT_NUM_SERVERS", "GLT_NUM_TRAINERS"))
    address = env.get("GLT_MASTER_ADDR")
    if not address:
        raise ValueError(f"GLT_MASTER_ADDR is not set, {why}: expected the host of server 0")
    master = address, _number(env, "GLT_MASTER_PORT", 1, why, 65535)
    if role == "server":
        rank = _number(env, "GLT_SERVER_RANK", 0, why, num_servers - 1)
        partition = _number(env, "GLT_PARTITION", 0, why) if env.get("GLT_PARTITION") else None
        return JobPlace(JobRole.SERVER, rank, num_trainers, num_servers, master, partition=partition)
    rank = _number(env, "RANK", 0, f"{why}, by way of torchrun", num_trainers - 1)
    if env.get("WORLD_SIZE", str(num_trainers)) != str(num_trainers):
        raise ValueError(
            f"WORLD_SIZE = {env['WORLD_SIZE']} and GLT_NUM_TRAINERS = {num_trainers}: expected the same number of "
            "trainers"
        )
    return JobPlace(JobRole.TRAINER, rank, num_trainers, num_servers, master)


def _place_without_servers(env: Mapping[str, str]) -> JobPlace:
    if not env.get("WORLD_SIZE"):
        return JobPlace(JobRole.STANDALONE, 0, 1, 1)
    why = "which WORLD_SIZE calls for; torchrun sets it"
    num_trainers = _number(env, "WORLD_SIZE", 1, why)
    if num_trainers == 1:
        return JobPlace(JobRole.STANDALONE, 0, 1, 1)
    rank = _number(env, "RANK", 0, why, num_trainers - 1)
    local_rank = _number(env, "LOCAL_RANK", 0, why, num_trainers - 1)
    on_host = _number(env, "LOCAL_WORLD_SIZE", 1, why, num_trainers) if env.get("LOCAL_WORLD_SIZE") else num_trainers
    if num_trainers % on_host:
        raise ValueError(
            f"WORLD_SIZE = {num_trainers}, LOCAL_WORLD_SIZE = {on_host}: expected the same number of trainers on each "
            "host"
        )
    host = _number(env, "GROUP_RANK", 0, why, num_trainers // on_host - 1) if env.get("GROUP_RANK") else rank // on_host
    address = env.get("MASTER_ADDR")
    if not address:
        raise ValueError(f"MASTER_ADDR is not set, {why}: expected the host of rank 0")
    return JobPlace(
        JobRole.PEER, rank, num_trainers, num_trainers // on_host, (address, None), host, local_rank == 0
    )  # fmt: skip


def _number(env: Mapping[str, str], name: str, least: int, why: str, most: int = 1 << 20) -> int:
    text = env.get(name)
    if text is None:
        raise ValueError(f"{name} is not set, {why}")
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"{name} = {text!r}: expected a number from {least} to {most}")
    return int(text)


# The server that the first trainer of a host runs beside training, where no process of its own serves.


logger = logging.getLogger(__name__)

_TRIES = 5  # for a port that was free a moment ago
_POLL_S = 0.5
_SAY_S = 10.0  # between two words about who is waited for
_SERVER_ALONE_S = 60.0  # a trainer that was lost may come back within it
_FAILED = "failed "

_num_opened = 0


class HostServer:
    """A :class:`DistServer` in this process, for all trainers of the job.

    Args:
        place: This trainer, the first of its host.
        data: What it serves.
        master: Host and port of server 0.
        num_workers: Sampling processes to start with.
        timeout_s: Deadline of start-up and of requests between servers.
    """

    def __init__(
        self, place: JobPlace, data: DistDataset, master: tuple[str, int], num_workers: int, timeout_s: float
    ) -> None:
        rank = place.host_index
        bind = master if rank == 0 else (own_address(master), 0)
        options = ServerOptions(rpc_timeout=timeout_s, num_workers=max(1, num_workers))
        context = DistContext(
            DistRole.SERVER, place.num_servers, rank, "distributed-server", place.num_servers + place.num_trainers, rank
        )
        self.server = DistServer(data, context, place.num_trainers, master, bind, 16, options)

    def abort(self, why: str) -> None:
        """Ends it at once, and tells the trainers why."""
        self.server.close(why)

    def finish(self, timeout_s: float | None) -> bool:
        """Waits until all trainers have left, or are gone, and ends; returns whether they had.

        Args:
            timeout_s: Ends it after so many seconds at the latest; 0: at once. Default: when they are gone.
        """
        now = time.monotonic()
        deadline = math.inf if timeout_s is None else now + timeout_s
        alone_since, say_at = now, now + _SAY_S
        try:
            while not self.server.wait_until_done(max(0.0, min(_POLL_S, deadline - now))):
                now = time.monotonic()
                there = [str(session) for session in self.server.clients.sessions()]
                if there:
                    alone_since = now
                if now >= deadline or now - alone_since > _SERVER_ALONE_S:
                    return False
                if now >= say_at:
                    logger.info("%s waits until all trainers have left; there are %s", self.server.entry, there)
                    say_at = now + _SAY_S
            return True
        finally:
            self.server.close()


def free_port(host: str) -> int:
    """A port that is free at an address of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def serve_at_free_port(place: JobPlace, data: DistDataset, num_workers: int, timeout_s: float) -> HostServer:
    """Makes server 0, at a port that is found."""
    for tries_left in reversed(range(_TRIES)):
        master = place.master[0], free_port(place.master[0])
        try:
            return HostServer(place, data, master, num_workers, timeout_s)
        except RendezvousError as error:
            if not tries_left:
                raise
            logger.info("%s; trying another port", error)
    raise AssertionError("the last try returns or raises")


def open_store(place: JobPlace, timeout_s: float) -> TimedStore | None:
    """A store of the job, where trainers tell each other where server 0 is; None if there is none.

    Each time another part of it: what was told of a job that has ended since does not count.
    """
    global _num_opened
    _num_opened += 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"glt/initialize/{attempt}/{_num_opened}"
    if dist.is_initialized():
        return TimedStore(dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store()), timeout_s)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None  # who opened one now would be in the way of init_process_group
    return TimedStore(connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), prefix, timeout_s), timeout_s)


@contextmanager
def telling_failures(store: KeyStore) -> Iterator[None]:
    """If server 0 cannot be made, those who wait to hear where it is are told why."""
    try:
        yield
    except Exception as error:
        store.set("port", f"{_FAILED}{type(error).__name__}: {error}"[:2000])
        raise


def tell_port(store: KeyStore, port: int) -> None:
    """Server 0 tells where it listens."""
    store.set("port", str(port))


def hear_port(store: TimedStore, timeout_s: float, look: Callable[[], None] = lambda: None) -> int:
    """Waits until server 0 has told.

    Args:
        store: Where it tells.
        timeout_s: Deadline in seconds.
        look: Called again and again until then; raises if it never will.

    Raises:
        glt.errors.RendezvousError: If it does not in time, or has failed; says why.
    """
    told = store.wait_for("port", timeout_s, look)
    if told is None:
        raise RendezvousError(
            f"the trainer of rank 0 has opened no server within {timeout_s:g} s: has it failed, or does it call "
            "glt.distributed.initialize() (and DistGraph, if that names the partitions) as the others do?"
        )
    text = told.decode(errors="replace")
    if text.startswith(_FAILED):
        raise RendezvousError(f"the server of the first host could not be made: {text.removeprefix(_FAILED)}")
    return int(text)


_ALONE_S = 600.0  # after which a server whose trainers do not come gives up

_lock = threading.RLock()
_job: _Job | None = None
_leaves_at_exit: int | None = None  # the process that has said so


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
        ("ip_config", ip_config, "a file of hosts"), ("part_config", part_config, "partitions, or their JSON file"),
    ):  # fmt: skip
        if path is not None:
            check_path(name, path, what)
    part_config = part_config or os.environ.get("GLT_PART_CONFIG") or None
    given = {
        "ip_config": None if ip_config is None else os.fspath(ip_config), "num_workers": num_workers,
        "part_config": None if part_config is None else os.path.abspath(part_config), "rpc_timeout": rpc_timeout,
    }  # fmt: skip
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
        place.num_servers, place.num_trainers, place.rank, _loaded(part_config, place.rank, place.partition), address,
        port, num_workers=max(1, job.num_workers), rpc_timeout=job.timeout_s,
    )  # fmt: skip
    server = get_server()
    assert server is not None
    alone_since = time.monotonic()
    try:
        while not server.wait_until_done(_POLL_S):
            if server.clients.sessions():
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > _ALONE_S:
                raise RendezvousError(
                    f"{server.entry}: no trainer has been there for {_ALONE_S:g} s, and not all of "
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
    init_client(
        place.num_servers, place.num_trainers, place.rank, master[0], master[1], rpc_timeout=job.timeout_s
    )  # fmt: skip
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
