"""Many clients of servers in few processes, for bench_load: each has its own sessions, loader and streams."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import graphs
from benchmarks._harness import require
from benchmarks.partitioned import features_of, labels_of
from glt.channel.message import Message
from glt.distributed.context import DistContext, DistRole
from glt.distributed.engine.producer import EpochStart
from glt.distributed.engine.sampling_job import SamplingJob, SeedTable
from glt.distributed.engine.seeds import NodeSeeds
from glt.distributed.loader.base import collate
from glt.distributed.server import remote
from glt.distributed.server.client import DistClient
from glt.distributed.server.remote_sampler import RemoteSampler
from glt.sampler.config import SamplingConfig
from glt.sampler.order import SeedOrder

TIMEOUT_S = 60.0
_MOST_SEEDS = 1 << 15  # of an epoch of a client
WAYS = ("shared memory", "sockets")  # to clients on the host of the servers; to those that are taken for others


@dataclass(frozen=True)
class World:
    """What clients need to know of the servers, and of what they ask them for."""

    num_servers: int
    port: int  # of server 0
    graph_name: str
    num_neighbors: tuple[int, ...]
    batch_size: int
    way: str = WAYS[0]
    options: Mapping[str, Any] = field(default_factory=dict)  # of the loaders

    def seeds(self, rank: int) -> torch.Tensor:
        """Nodes that have edges, others for each client."""
        nodes = graphs.load(self.graph_name).connected_nodes()
        return torch.from_numpy(np.random.default_rng(rank).permutation(nodes)[:_MOST_SEEDS])


class Client:
    """A client that takes batches of one server, the one of its rank, and does nothing with them."""

    def __init__(self, world: World, rank: int, num_clients: int, group: str) -> None:
        self.world, self.rank = world, rank
        everyone = world.num_servers + num_clients
        context = DistContext(DistRole.CLIENT, num_clients, rank, group, everyone, world.num_servers + rank)
        self.client = DistClient(context, world.num_servers, num_clients, ("127.0.0.1", world.port), TIMEOUT_S)
        self.seeds = world.seeds(rank)
        config = SamplingConfig.checked(list(world.num_neighbors), self.client.dataset().schema, with_edge=False)
        self.order = SeedOrder(len(self.seeds), world.batch_size)
        job = SamplingJob(config, NodeSeeds(0), SeedTable({"node": self.seeds}), self.order, True)
        options = glt.distributed.RemoteDistSamplingWorkerOptions(rpc_timeout=TIMEOUT_S, **world.options)
        self.loader = RemoteSampler(self.client, [rank % world.num_servers], job, options)
        self.index, self.epoch = 0, -1

    def begin(self) -> None:
        """Asks for the batches of another epoch."""
        self.epoch += 1
        self.index = 0
        self.loader.start_epoch(EpochStart(self.epoch + 1, self.epoch, 0, 0))

    def take(self) -> Message:
        if self.epoch < 0 or self.index == len(self.order):
            self.begin()
        message = self.loader.receive(self.index)
        assert message is not None, "it waits"
        message.raise_if_error()
        self.index += 1
        return message

    def check(self) -> None:
        """Takes a batch and checks it against the graph."""
        first = self.index * self.world.batch_size
        tensors = dict(self.take().tensors)
        tensors.pop("stats")
        data = self.client.dataset()
        batch = collate(tensors, data.schema, data.edge_dir, "directional", None)
        graph = graphs.load(self.world.graph_name)
        neighbor, expanded = (batch.n_id[ends].numpy() for ends in batch.edge_index)
        ends = zip(expanded, neighbor, strict=True)
        right = all(u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v, u in ends)
        seeds = self.seeds[first : first + len(batch.input_id)]
        right &= torch.equal(batch.n_id[: len(seeds)], seeds)
        right &= torch.equal(batch.x, features_of(batch.n_id)) and torch.equal(batch.y, labels_of(batch.n_id))
        require(right and len(seeds) > 0, f"a batch of client {self.rank} does not agree with the graph")

    def leave(self) -> None:
        self.loader.close()
        self.client.close()

    def vanish(self) -> None:
        """Hangs up without a word."""
        for stream in self.loader._streams:
            stream.connection.close()
        for rank in range(self.world.num_servers):
            self.client.session(rank).connection.close()
        self.leave()  # what is left of it here


@dataclass
class Taken:
    """What a client took in a window of time: how many batches came, and for how many seconds each was waited for."""

    rank: int
    waits: list[float] = field(default_factory=list)


def take_batches(client: Client, begin_s: float, end_s: float, nap_s: float) -> Taken:
    """Takes batches until ``end_s``, of ``time.monotonic()``; those count that come from ``begin_s`` on. Sleeps so long
    after each."""
    taken, asked = Taken(client.rank), time.monotonic()
    while asked < end_s:
        client.take()
        came = time.monotonic()
        if begin_s <= came < end_s:
            taken.waits.append(came - asked)
        if nap_s:
            time.sleep(nap_s)
        asked = time.monotonic()
    return taken


class Crowd:
    """The clients of one process; a method for each command."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients: list[Client] = []

    def join(self, ranks: Iterable[int], num_clients: int, group: str, options: Mapping[str, Any]) -> None:
        world = World(**{**vars(self.world), "options": options})
        for rank in ranks:
            self.clients.append(Client(world, rank, num_clients, group))
            self.clients[-1].check()

    def run(self, begin_s: float, end_s: float, naps: Mapping[int, float]) -> list[Taken]:
        """All take batches at the same time, each on a thread; ``naps``: seconds, by rank, of those that are slow."""
        found: list[Taken] = []
        failed: list[BaseException] = []

        def go(client: Client) -> None:
            try:
                found.append(take_batches(client, begin_s, end_s, naps.get(client.rank, 0.0)))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=go, args=(client,), daemon=True) for client in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(end_s - time.monotonic() + TIMEOUT_S)
        if failed:
            raise failed[0]
        require(len(found) == len(threads), "a client waits for a batch, and none comes")
        return found

    def read_nothing(self) -> None:
        """All ask for an epoch and take none of it."""
        for client in self.clients:
            client.begin()

    def num_waiting(self) -> int:
        """Batches that have arrived here and are not taken."""
        return sum(stream.num_arrived - stream.num_taken for each in self.clients for stream in each.loader._streams)

    def leave(self) -> None:
        for client in self.clients:
            client.leave()
        self.clients.clear()

    def come_and_go(self, ranks: Iterable[int], num_clients: int, group: str) -> None:
        """One client after the other takes a batch and goes: in turn with a goodbye, and without."""
        for number, rank in enumerate(ranks):
            client = Client(self.world, rank, num_clients, group)
            client.take()
            (client.vanish if number % 2 else client.leave)()


def crowd(world: World, commands: Connection) -> None:
    """The program of a process of clients: obeys (command, arguments) until told to stop."""
    become_crowd(world)
    obeying = Crowd(world)
    while (told := commands.recv()) is not None:
        name, args = told
        commands.send(getattr(obeying, name)(*args))
    obeying.leave()


def become_crowd(world: World) -> None:
    torch.set_num_threads(1)
    if world.way == "sockets":
        remote.host_id = lambda: "another host"


def come_and_be_killed(world: World, rank: int, num_clients: int, group: str) -> None:
    """The program of a client that is killed with a batch in its hands, and more on their way."""
    become_crowd(world)
    client = Client(world, rank, num_clients, group)
    kept = client.take()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError(f"alive, with {kept}")
