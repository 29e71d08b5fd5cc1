"""Servers, clients and trainers that do what the campaign tells them; what clients say is recorded."""

import threading
import time
from collections import defaultdict
from pathlib import Path

import torch
from actors import Pace
from dist_world import CASES, NUM_EDGES, NUM_NODES, assert_same, join, options, snapshot
from service import Actor
from torch_geometric.data import Data

import glt
from glt.distributed.job.worlds import ServedWorld
from glt.distributed.server.api import require_client
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.credentials import Credentials, set_credentials
from glt.testing import random_graph
from glt.testing.cluster import take_census

CASE = CASES[0]
_PAUSE_S = 0.3  # after each batch that no test waits for


def double(values):
    return 2 * values


class Player(Actor):
    """An actor of the tests of servers, that may be a trainer, too, and goes through loaders for ever, comparing what
    comes with the batches of one process."""

    def __init__(self, trainer):
        super().__init__(trainer)
        self.run = Going()
        self._said = defaultdict(list)

    def begin(self, folder, credentials, **constants):
        """Uses these deadlines and credentials from now on, here and in sampling processes."""
        folder = Path(folder, str(self.trainer.rank))
        folder.mkdir()
        self.lower(str(folder), **constants)
        self.use(credentials)

    def use(self, credentials):
        set_credentials(Credentials.from_json(credentials))

    def counted(self, more=0):
        """Right batches so far, of which ``more`` are waited for; raises what went wrong."""
        self.run.pace.ask(more)
        if self.run.error is not None:
            raise AssertionError(f"{self.run.error[0]}: {self.run.error[1]}")
        return self.run.num_right

    def failure(self):
        """Class, text and time of what went wrong, or None."""
        return self.run.error

    # -- what goes on ----------------------------------------------------------------------------------------------

    def elsewhere(self):
        """This process is on another host, as far as it knows: its batches come over TCP."""
        import glt.distributed.server.remote as remote

        remote.host_id = lambda: "another host"

    def go_as_client(self, rank, **given):
        self._go(None, rank, lambda: glt.distributed.RemoteDistSamplingWorkerOptions(**given))

    def go_as_trainer(self, path, mode, **given):
        """Becomes one of the trainers, which are all actors of the cluster."""
        data = join(self.trainer, path)
        self._go(data, self.trainer.rank, lambda: options(self.trainer, mode, **given))

    def _go(self, data, rank, make_options):
        self.run = Going()
        threading.Thread(target=self.run.go, args=(data, rank, make_options), daemon=True).start()

    def stop_going(self):
        self.run.is_stopped = True
        self.run.pace.ask(1)
        self.run.has_ended.wait(60)

    # -- what is said ----------------------------------------------------------------------------------------------

    def record(self):
        """Keeps what is said from now on over connections that this process makes."""
        send, said = Connection.send, self._said

        def recording(connection, value=None, data=(), *, what=0, number=0, fds=()):
            if connection.is_ours:
                body = b"".join(each.numpy().tobytes() for each in data)
                said[id(connection)].append((what, number, value, body))
            return send(connection, value, data, what=what, number=number, fds=fds)

        Connection.send = recording

    def recorded(self):
        return list(self._said.values())

    def say_much(self, num_servers):
        """Calls what a client may call."""
        world = ServedWorld(require_client())
        table = glt.distributed.DistTensor((64, 8), torch.float32, name="campaign", world=world)
        table[torch.arange(20)] = torch.ones(20, 8)
        table[torch.arange(5)]
        for server in range(num_servers):
            glt.distributed.request_server(server, "double", 21)

    def register(self):
        glt.distributed.register_server_function(double, "double")

    def metrics_at(self):
        return list(glt.distributed.server.api.get_server().metrics.address)

    def store_at(self):
        """The port of the store that this process has opened."""
        (store,) = glt.distributed.wire.store._hosted
        return store.port

    def samplers_of_trainer(self):
        return sorted(pid for pid, line in take_census().children.items() if "glt.distributed" in line)

    def children(self):
        return sorted(take_census().children)


class Going:
    """A loader that is gone through for ever, until it fails or is told to stop."""

    def __init__(self):
        self.num_right, self.error, self.pace = 0, None, Pace(_PAUSE_S)
        self.is_stopped, self.has_ended = False, threading.Event()

    def go(self, data, rank, make_options):
        arguments = CASE.arguments(rank)
        try:
            wanted = one_process(arguments)
            with glt.distributed.DistNeighborLoader(data, **arguments, worker_options=make_options()) as loader:
                while not self.is_stopped:
                    for got, batch in zip(loader, wanted, strict=True):
                        assert_same([snapshot(got)], [snapshot(batch)], f"batch {self.num_right}")
                        self.num_right += 1
                        if self.is_stopped:
                            break
                        self.pace.wait()
        except Exception as error:
            self.error = type(error).__name__, str(error), time.monotonic()
        self.has_ended.set()


def one_process(arguments):
    """The loader of the same batches from the whole graph in this process."""
    graph = random_graph(NUM_NODES, NUM_EDGES, seed=3)
    data = Data(graph.x, graph.edge_index, graph.edge_attr, graph.y, num_nodes=NUM_NODES)
    told = {name: value for name, value in arguments.items() if name not in ("with_edge", "collect_features")}
    return glt.loader.NeighborLoader(data, **told)
