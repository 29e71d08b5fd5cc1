"""The server that the first trainer of a host runs beside training, and how the others learn its port."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from glt import _deadlines as deadlines
from glt.distributed.context import DistContext, DistRole
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.job.environment import JobEnvironment
from glt.distributed.server.options import ServerOptions
from glt.distributed.server.server import DistServer
from glt.distributed.wire.connection import own_address
from glt.distributed.wire.store import TimedStore, connect
from glt.errors import RendezvousError

logger = logging.getLogger(__name__)

_TRIES = 5  # for a port that was free a moment ago
_FAILED = "failed "

_num_opened = 0


class HostServer:
    """A :class:`DistServer` in this process, for all trainers of the job.

    Args:
        env: Of this trainer, the first of its host.
        data: What it serves.
        master: Host and port of server 0.
        num_workers: Sampling processes to start with.
        timeout_s: Deadline of start-up and of requests between servers.
    """

    def __init__(
        self, env: JobEnvironment, data: DistDataset, master: tuple[str, int], num_workers: int, timeout_s: float
    ) -> None:
        rank = env.host_index
        bind = master if rank == 0 else (own_address(master), 0)
        options = ServerOptions(rpc_timeout=timeout_s, num_workers=max(1, num_workers))
        context = DistContext(
            DistRole.SERVER, env.num_servers, rank, "distributed-server", env.num_servers + env.num_trainers, rank
        )
        self.server = DistServer(data, context, env.num_trainers, master, bind, 16, options)

    def abort(self, why: str) -> None:
        """Ends it at once; the trainers are told why."""
        self.server.close(why)

    def finish(self, timeout_s: float | None) -> bool:
        """Waits until all trainers have left, or are gone, and ends; returns whether they had.

        Args:
            timeout_s: Ends it after so many seconds at the latest; 0: at once. Default: when they are gone.
        """
        now = time.monotonic()
        deadline = math.inf if timeout_s is None else now + timeout_s
        alone_since, say_at = now, now + deadlines.COMPLAINT_S
        try:
            while not self.server.wait_until_done(max(0.0, min(deadlines.POLL_S, deadline - now))):
                now = time.monotonic()
                sessions = [str(session) for session in self.server.clients.sessions()]
                if sessions:
                    alone_since = now
                if now >= deadline or now - alone_since > deadlines.GRACE_S:
                    return False
                if now >= say_at:
                    logger.info("%s waits until all trainers have left; there are %s", self.server.entry, sessions)
                    say_at = now + deadlines.COMPLAINT_S
            return True
        finally:
            self.server.close()


def free_port(host: str) -> int:
    """A port that is free at an address of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def serve_at_free_port(env: JobEnvironment, data: DistDataset, num_workers: int, timeout_s: float) -> HostServer:
    """Makes server 0, at a port that is found."""
    for tries_left in reversed(range(_TRIES)):
        master = env.master[0], free_port(env.master[0])
        try:
            return HostServer(env, data, master, num_workers, timeout_s)
        except RendezvousError as error:
            if not tries_left:
                raise
            logger.info("%s; trying another port", error)
    raise AssertionError("the last try returns or raises")


def open_store(env: JobEnvironment, timeout_s: float) -> TimedStore | None:
    """The key-value store of the job, for the port of server 0; None if there is none.

    Each call opens another part of it: the port of a job that has ended since does not count.
    """
    global _num_opened
    _num_opened += 1
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"glt/initialize/{attempt}/{_num_opened}"
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
        store.set("port", f"{_FAILED}{type(error).__name__}: {error}"[:2000])
        raise


def publish_port(store: TimedStore, port: int) -> None:
    """Writes the port of server 0."""
    store.set("port", str(port))


def wait_for_port(store: TimedStore, timeout_s: float) -> int:
    """The port of server 0, when it has been written.

    Args:
        store: Of the job.
        timeout_s: Deadline in seconds.

    Raises:
        glt.errors.RendezvousError: If there is none in time, or server 0 has failed; says why.
    """
    value = store.wait_for("port", timeout_s)
    if value is None:
        raise RendezvousError(
            f"the trainer of rank 0 has opened no server within {timeout_s:g} s: has it failed, or does it call "
            "glt.distributed.initialize() (and DistGraph, if that names the partitions) as the others do?"
        )
    text = value.decode(errors="replace")
    if text.startswith(_FAILED):
        raise RendezvousError(f"the server of the first host could not be made: {text.removeprefix(_FAILED)}")
    return int(text)
