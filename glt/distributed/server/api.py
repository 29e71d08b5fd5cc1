"""Servers and clients: how a process becomes one, what it may ask, and how it ends."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from glt._checks import check_count, check_text, warn_no_effect
from glt._stats import Stats
from glt._tracebacks import short_traceback
from glt.data.keys import KeyMaps
from glt.distributed.context import DistContext, DistRole, become, check_place, current_world, resign
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.options import DEFAULT_RPC_TIMEOUT_S, check_transport
from glt.distributed.server.client import DistClient, Reply
from glt.distributed.server.options import ServerOptions
from glt.distributed.server.server import DistServer
from glt.distributed.wire import calls as functions
from glt.distributed.wire.addresses import own_address
from glt.distributed.wire.credentials import (
    Credentials,
    TlsOptions,
    current_credentials,
    set_credentials,
    use_credentials,
)

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_server: DistServer | None = None
_client: DistClient | None = None
_credentials_before: Credentials | None = None  # what this process used before it became a server or a client


@short_traceback
def init_server(
    num_servers: int,
    num_clients: int | None,
    server_rank: int,
    dataset: DistDataset,
    master_addr: str | None = None,
    master_port: int | str | None = None,
    num_rpc_threads: int = 16,
    server_group_name: str = "distributed-server",
    *,
    options: ServerOptions | None = None,
    **flags: Any,
) -> DistContext:
    """Makes this process a server of a partition: returns when it takes clients, and then works in the background.

    Servers and clients may start in any order. With a token (``token_file``) only those who have it are answered, with
    ``tls`` connections are encrypted. Without a token each process that reaches the port can read the graph, sample,
    write tensors and run registered functions: let such servers listen on networks that you trust only. Nothing that is
    received is executed.

    Args:
        num_servers: Servers of the job. Each partition is loaded by one of them, or its files are on the host of each.
        num_clients: Clients of the job; the server is done when they have left. None: any number, and it is done when
            it is told to end. Clients that show the read token only are not counted, and not waited for.
        server_rank: This server, in ``[0, num_servers)``.
        dataset: Its partition, loaded. Several servers may load the same one.
        master_addr, master_port: Host and port of server 0, which listens there; the same for all servers and clients.
            Default: ``MASTER_ADDR`` and ``MASTER_PORT`` of the environment.
        num_rpc_threads: Requests of clients, and for each sampling process requests of other servers, that are answered
            at the same time, 1 to 1024.
        server_group_name: Name of the servers' group.
        options: How the server works; see :class:`glt.distributed.ServerOptions`.
        **flags: Fields of :class:`glt.distributed.ServerOptions`, in place of ``options``.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.
        RuntimeError: If this process is a server already, or something else, or uses another token.
        glt.errors.RendezvousError: If a port cannot be opened, or server 0 is not reached or refuses this one.
        glt.errors.WorkerDied: If a sampling process does not come up.

    Example:
        >>> dataset = glt.distributed.DistDataset().load("parts", 0)
        >>> context = glt.distributed.init_server(
        ...     1, None, 0, dataset, "localhost", glt.testing.cluster.free_port()
        ... )  # one server, for any number of clients
        >>> glt.distributed.server_stats()["num_clients"]
        0
        >>> glt.distributed.wait_and_shutdown_server(timeout_s=0)
        False
    """
    global _server
    options = _server_options(options, flags)
    check_place(num_servers, server_rank, server_group_name, ("num_servers", "server_rank", "server_group_name"))
    if num_clients is not None:
        num_clients = check_count("num_clients", num_clients, 1, 1 << 20)
    if not isinstance(dataset, DistDataset):
        raise TypeError(f"dataset has type {type(dataset).__name__}: expected a DistDataset")
    _ = dataset.load_args  # raises if it is empty
    master = _master(master_addr, master_port)
    num_rpc_threads = check_count("num_rpc_threads", num_rpc_threads, 1, 1024)
    if server_rank == 0 and options.port not in (0, master[1]):
        raise ValueError(f"port = {options.port}: server 0 listens on master_port = {master[1]}; leave port out")
    others = num_clients or 0
    context = DistContext(
        DistRole.SERVER, num_servers, server_rank, server_group_name, num_servers + others, server_rank
    )
    with _lock:
        if _server is not None:
            raise RuntimeError("this process is a server already: call wait_and_shutdown_server() first")
        with _taking_place(context, options.token_file, options.tls, options.require_auth, listens=True):
            if options.metrics_auth and current_credentials().token_file is None:
                raise ValueError("metrics_auth = True, and there is no token: expected token_file, or GLT_TOKEN_FILE")
            host = options.host
            if host is None:
                host = master[0] if server_rank == 0 else own_address(master)
            bind = (host, master[1] if server_rank == 0 else options.port)
            _server = DistServer(dataset, context, num_clients, master, bind, num_rpc_threads, options)
    return context


@contextmanager
def _taking_place(
    context: DistContext, token_file: Any, tls: TlsOptions | None, require_auth: bool | None, *, listens: bool
) -> Iterator[None]:
    """This process takes its place and its credentials; both are given back if what follows fails."""
    global _credentials_before
    become(context)
    try:
        before = use_credentials(token_file, tls, require_auth, listens=listens)
        try:
            yield
        except BaseException:
            set_credentials(before)
            raise
    except BaseException:
        resign()
        raise
    _credentials_before = before


def _leave_place() -> None:
    set_credentials(_credentials_before)
    resign()


def _server_options(options: Any, flags: dict[str, Any]) -> ServerOptions:
    names = [field.name for field in fields(ServerOptions)]
    for name in flags:
        if name not in names:
            raise TypeError(f"init_server() has no argument {name!r}: expected one of {names}")
    if options is None:
        return ServerOptions(**flags)
    if not isinstance(options, ServerOptions):
        raise TypeError(f"options has type {type(options).__name__}: expected a ServerOptions")
    if flags:
        raise TypeError(f"options and {', '.join(flags)} are given: put {', '.join(flags)} into the ServerOptions")
    return options


def get_server() -> DistServer | None:
    """Returns the server of this process, or None.

    Example:
        >>> glt.distributed.get_server() is None
        True
    """
    return _server


@short_traceback
def wait_and_shutdown_server(timeout_s: float | None = None) -> bool:
    """Waits until all clients have left, then ends the server and its sampling processes. May be called again.

    A lost client counts as gone if it does not come back within a minute. A server for any number of clients waits
    until it is interrupted. ``timeout_s`` bounds the wait; returns whether all clients had left.

    Example:
        >>> dataset = glt.distributed.DistDataset().load("parts", 0)
        >>> context = glt.distributed.init_server(
        ...     1, None, 0, dataset, "localhost", glt.testing.cluster.free_port()
        ... )  # one server, for any number of clients
        >>> glt.distributed.wait_and_shutdown_server(timeout_s=0)
        False
    """
    global _server
    with _lock:
        server = _server
    if server is None:
        return True
    try:
        return server.wait_until_done(timeout_s)
    finally:
        server.close()
        with _lock:
            _server = None
            _leave_place()


@short_traceback
def init_client(
    num_servers: int,
    num_clients: int,
    client_rank: int,
    master_addr: str | None = None,
    master_port: int | str | None = None,
    num_rpc_threads: int | None = None,
    client_group_name: str = "distributed-client",
    *,
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_S,
    token_file: str | os.PathLike[str] | None = None,
    tls: TlsOptions | None = None,
) -> DistContext:
    """Makes this process a client: returns when it has reached all servers.

    Args:
        num_servers, num_clients: Of the job; as the servers were told.
        client_rank: This client, in ``[0, num_clients)``.
        master_addr, master_port: Host and port of server 0. Default: ``MASTER_ADDR`` and ``MASTER_PORT``.
        num_rpc_threads: Without effect, as a warning says; GLT has it. A client answers no requests.
        client_group_name: Name of the clients' group. Clients of another group may use the same servers, with ranks of
            their own.
        rpc_timeout: Deadline in seconds of start-up and of each call, above 0 and below a day.
        token_file: File with the token of the servers, or with its read token; see ``glt token``. A server that lacks
            it is not spoken to. Default: ``GLT_TOKEN_FILE`` of the environment, else none.
        tls: Encryption; see :class:`glt.distributed.TlsOptions`. Default: ``GLT_TLS_CERT`` and its like, else none.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.
        RuntimeError: If this process is a client already, or something else, or uses another token.
        glt.errors.RendezvousError: If servers are not reached in time, or one refuses this client: it runs another
            version, has another token, was told other numbers, or has a client of this rank.

    Example:
        >>> context = glt.distributed.init_client(num_servers=1, num_clients=1, client_rank=0)  # at MASTER_ADDR
        >>> options = glt.distributed.RemoteDistSamplingWorkerOptions()
        >>> with glt.distributed.DistNeighborLoader(None, [2], torch.arange(20), 10, worker_options=options) as loader:
        ...     len(loader)
        ...
        2
        >>> glt.distributed.shutdown_client()
    """
    global _client
    check_place(num_clients, client_rank, client_group_name, ("num_clients", "client_rank", "client_group_name"))
    num_servers = check_count("num_servers", num_servers, 1, 1 << 20)
    check_transport(None, num_rpc_threads, rpc_timeout)
    warn_no_effect(
        "num_rpc_threads", num_rpc_threads, "a client answers no requests; servers are told theirs in init_server"
    )
    master = _master(master_addr, master_port)
    in_job = num_servers + num_clients, num_servers + client_rank
    context = DistContext(DistRole.CLIENT, num_clients, client_rank, client_group_name, *in_job)
    with _lock:
        if _client is not None and _client.pid != os.getpid():
            _client = None  # its parent's: a fork may become a client of its own
            resign()
        if _client is not None:
            raise RuntimeError("this process is a client already: call shutdown_client() first")
        with _taking_place(context, token_file, tls, None, listens=False):
            _client = DistClient(context, num_servers, num_clients, master, rpc_timeout)
    return context


def require_client() -> DistClient:
    """Returns the client of this process; raises RuntimeError if it is none."""
    if _client is None:
        raise RuntimeError("this process is no client: call glt.distributed.init_client(...) first")
    return _client


@short_traceback
def shutdown_client(why: str = "") -> None:
    """Tells the servers that this client is done, and leaves them; ends loaders. May be called again. If it has failed,
    other clients that wait for it are told ``why``.

    Example:
        >>> context = glt.distributed.init_client(num_servers=1, num_clients=1, client_rank=0)  # at MASTER_ADDR
        >>> glt.distributed.shutdown_client()
    """
    global _client
    with _lock:
        client, _client = _client, None
        if client is not None:
            client.close(why)
            _leave_place()


@short_traceback
def async_request_server(server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Reply:
    """Asks a server to run a function that is registered there; returns at once. In a job of :func:`initialize`, too; a
    standalone process is server 0 itself.

    Args:
        server_rank: Which server.
        func: The function, or the name that it is registered under: functions are found on the server, not sent, see
            :func:`register_server_function`. ``torch.cuda.device_count``, ``torch.cuda.is_available`` and
            :func:`server_stats` are always there.
        args, kwargs: Its arguments: numbers, text, tensors, and tuples, lists and dicts of these.

    Returns:
        The reply: its ``result()`` or ``wait()`` give the result, or raise what the function raised or PeerLost.

    Raises:
        TypeError: If an argument cannot be sent, or ``func`` is no function.
        ValueError: If there is no such server.
        RuntimeError: Without ``init_client`` or ``initialize``.

    Example:
        >>> context = glt.distributed.init_client(num_servers=1, num_clients=1, client_rank=0)  # at MASTER_ADDR
        >>> reply = glt.distributed.async_request_server(0, glt.distributed.server_stats)
        >>> reply.result()["is_draining"]
        False
        >>> glt.distributed.shutdown_client()
    """
    name = "glt.stats" if func is server_stats else functions.name_of(func)
    world = current_world()
    if _client is None and world is not None:
        return world.call(server_rank, name, *args, **kwargs)  # a standalone process is its own server
    return require_client().session(server_rank).call(name, *args, **kwargs)


@short_traceback
def request_server(server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
    """As :func:`async_request_server`, but waits for the result, ``rpc_timeout`` of the client at most.

    Raises:
        LookupError: If no such function is registered on the server; names those that are.
        glt.errors.PeerLost: If the server is gone, or gives no answer in time.
        glt.errors.RemoteError: If the function raises; carries its traceback. Python's own errors of arguments
            (``TypeError``, ``ValueError``, ``IndexError``, ``KeyError``, ``MemoryError``) are raised as such.
        PermissionError: If this client has the read token only, or the function raises it.

    Example:
        >>> context = glt.distributed.init_client(num_servers=1, num_clients=1, client_rank=0)  # at MASTER_ADDR
        >>> glt.distributed.request_server(0, glt.distributed.server_stats)["is_draining"]
        False
        >>> glt.distributed.shutdown_client()
    """
    return async_request_server(server_rank, func, *args, **kwargs).result()


@short_traceback
def server_stats(server_rank: int | None = None) -> Stats:
    """What a server does, in numbers since its start, as plain values; what they print as says what limits it.

    ``server`` names it; ``uptime_s``; ``num_clients``, ``num_loaders`` and ``num_workers`` there are now;
    ``num_restarts`` of sampling processes that died; ``is_draining``; open ``loaders`` by id; ``workers`` by place,
    with the ``pid`` that has it now (None: none); ``totals`` of all workers, closed loaders included. ``tensors``, by
    name, are those that it keeps rows of: ``shape`` and ``dtype`` of the whole, ``num_rows`` and ``num_bytes`` here,
    ``num_holders`` (handles of trainers), and counters ``num_reads, num_writes, read_bytes, written_bytes``, of which
    additions are writes.

    Each loader, worker and the totals have counters, which never fall: ``num_batches`` and ``sent_bytes`` handed to
    connections, ``num_errors`` sent in place of a batch; ``sampling_s, gathering_s`` of native work, ``remote_s``
    waiting for other servers, ``blocked_s`` waiting for room at the client; ``num_nodes, num_edges, num_remote_nodes,
    num_cached_nodes, num_window_nodes, remote_bytes, cached_bytes, window_bytes, disk_s, disk_bytes, num_disk_rows,
    num_hot_rows`` as in the loader's own stats. Then what is so now: ``num_queued, queued_bytes`` waiting to be sent,
    ``num_running`` being made, ``num_unread`` sent and not yet taken by the trainer; ``batches_per_s, bytes_per_s`` of
    the last five seconds; ``remote_node_ratio, cache_hit_ratio, hot_row_ratio`` of all. A sampler that is killed loses
    what it did in the last second.

    ``server_rank`` is the server that a client asks; None: that of this process. RuntimeError if there is none.

    Example:
        >>> context = glt.distributed.init_client(num_servers=1, num_clients=1, client_rank=0)  # at MASTER_ADDR
        >>> glt.distributed.server_stats(0)["totals"]["num_errors"]
        0.0
        >>> glt.distributed.shutdown_client()
    """
    if server_rank is not None:
        return Stats(require_client().request(server_rank, "glt.stats"))
    if _server is None:
        raise RuntimeError("this process is no server: give server_rank, as a client")
    return Stats(_server.stats())


@short_traceback
def node_keys() -> KeyMaps:
    """The users' keys of the nodes of the graph of this job, by node type (``"node"``, where there are none), which a
    client asks servers for: as :attr:`DistDataset.ids`. Empty, where the graph was partitioned without. RuntimeError
    without ``init_client`` or ``initialize``.

    Example:
        >>> glt.distributed.initialize(part_config="parts")
        >>> glt.distributed.node_keys()
        KeyMaps({})
        >>> glt.distributed.finalize()
    """
    world = current_world()
    if _client is None and world is not None and world.data is not None:
        return world.data.ids
    return require_client().dataset().ids


def _master(addr: str | None, port: int | str | None) -> tuple[str, int]:
    check_text("master_addr", addr)
    addr = addr or os.environ.get("MASTER_ADDR")
    port = port if port is not None else os.environ.get("MASTER_PORT")
    if not addr or port is None:
        missing = "master_addr" if not addr else "master_port"
        raise ValueError(
            f"{missing} is not given, and {missing.upper()} is not set: expected the {'host' if not addr else 'port'} "
            "of server 0"
        )
    checked = check_transport(port, None, 1.0)
    assert checked is not None
    return addr, checked
