"""A world whose servers are other processes, or other threads: reached through the service."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor

from glt.distributed.engine.dataset import DistDataset
from glt.distributed.loader.deployment import host_id
from glt.distributed.options import RemoteDistSamplingWorkerOptions
from glt.distributed.server.client import DistClient, RemoteDataset, Reply
from glt.distributed.tensors.meeting import BARRIER_S, check_timeout
from glt.errors import PeerLost

_ANSWER_S = 30.0  # for the answer to be on its way after the deadline of what it is about


class ServedWorld:
    """Trainers that are clients of the same servers; see :class:`glt.distributed.world.World`.

    Args:
        client: This trainer, connected to all servers.
    """

    def __init__(self, client: DistClient) -> None:
        self.client = client
        self._dataset = client.dataset()
        self.rank, self.num_trainers = client.context.rank, client.num_clients
        self.num_servers = client.num_servers
        self.data: DistDataset | RemoteDataset | None = self._dataset
        self._lock = threading.Lock()
        self._num_met: Counter[str] = Counter()  # meetings that it came to, by tag
        self._num_over: Counter[str] = Counter()  # those of them that are known to be over
        entries = client.entries()
        serving: dict[int, int] = {}
        for rank, entry in sorted(entries.items(), reverse=True):
            serving[entry.partition_idx] = rank
        self._owners = [serving.get(part, part % self.num_servers) for part in range(self._dataset.num_partitions)]
        self._near = [rank for rank, entry in entries.items() if entry.host_id == host_id()]

    def owner_of(self, partition: int) -> int:
        """The first server that has loaded a partition; where none has, one that maps its files."""
        return self._owners[partition]

    def call(self, server: int, name: str, *args: Any, **kwargs: Any) -> Reply:
        """Asks a server for something; the reply raises what the server raised, or says who is lost."""
        return self._on_line(server, lambda line: line.call(name, *args, **kwargs))

    def call_into(self, out: Tensor, server: int, name: str, *args: Any) -> Reply:
        """See :class:`World`: it is received there, and copied nowhere."""
        return self._on_line(server, lambda line: line.call_into(out, name, *args))

    def call_within(self, timeout_s: float, server: int, name: str, *args: Any) -> Reply:
        """The same where the answer waits for other trainers, for up to ``timeout_s`` seconds."""
        return self._on_line(server, lambda line: line.call_within(timeout_s + _ANSWER_S, name, *args))

    def _on_line(self, server: int, ask: Callable[[Any], Reply]) -> Reply:
        try:
            return ask(self.client.line(server))
        except PeerLost as lost:
            reply = Reply()
            reply.set_running_or_notify_cancel()
            reply.set_exception(lost)
            return reply

    def barrier(self, timeout_s: float | None = None) -> None:
        """Waits until all trainers have come here.

        Args:
            timeout_s: Deadline in seconds, from the first one. Default: half an hour.

        Raises:
            TypeError, ValueError: If ``timeout_s`` is no deadline.
            glt.errors.PeerLost: If a trainer does not come before the deadline, or is gone, or server 0 is; names it.
        """
        self.meet("barrier", timeout_s)

    def meet(self, tag: str, timeout_s: float | None = None, told: str = "") -> None:
        """See :class:`glt.distributed.world.World`; arguments and errors as of :meth:`barrier`."""
        timeout_s = BARRIER_S if timeout_s is None else timeout_s
        check_timeout(timeout_s)
        with self._lock:
            number, self._num_met[tag] = self._num_met[tag], self._num_met[tag] + 1
        try:
            self.call_within(timeout_s, 0, "glt.meet", tag, number, self.num_trainers, timeout_s, told).result()
        except Exception:
            self._num_over[tag] = number + 1
            raise
        self._num_over[tag] = number + 1  # which is not known of one that Ctrl-C has ended the wait for

    def call_off(self, tag: str, why: str) -> None:
        """See :class:`glt.distributed.world.World`."""
        failed = self.call(0, "glt.call_off", tag, self._num_over[tag], why).result()
        self._num_met[tag] = self._num_over[tag] = failed + 1

    def trouble(self, tag: str) -> str | None:
        """See :class:`glt.distributed.world.World`."""
        number = self._num_over[tag]
        text = self.call(0, "glt.trouble", tag, number, self.num_trainers).result()
        if text is not None:
            self._num_met[tag] = self._num_over[tag] = number + 1
        return text

    def worker_options(self, num_workers: int) -> RemoteDistSamplingWorkerOptions:
        """Loaders sample on a server of this host, if there is one."""
        server = self._near[self.rank % len(self._near)] if self._near else None
        return RemoteDistSamplingWorkerOptions(server_rank=server, num_workers=max(1, num_workers))

    def stats(self) -> list[dict[str, Any]]:
        """See :func:`glt.distributed.server_stats`, of each server."""
        return [reply.result() for reply in [self.call(rank, "glt.stats") for rank in range(self.num_servers)]]

    def close(self) -> None:
        """Leaves the servers. May be called again."""
        self.client.close()

    def __str__(self) -> str:
        return f"a job of {self.num_trainers} trainers and {self.num_servers} servers, as trainer {self.rank}"
