"""Servers and clients of the tests: processes that do what a test tells them, one thing at a time."""

import itertools
import os
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dist_world import CASES, NUM_NODES, assert_same, snapshot
from lowered import set_constants
from promptness import eventually, freeze

import glt
from glt.distributed.server.membership import ServerEntry
from glt.testing.cluster import Cluster, take_census

ENTRY = ServerEntry(0, "127.0.0.1", 1, "here", 5, "h", 0, "g", "r", 3, None)

ANSWER = {"entry": ENTRY.to_json(), "session": "s", "about": {}, "most_bytes": 1 << 30}

"""What a server says to a client that it takes in."""


def serve(trainer, path, num_servers, num_clients, rank=None, **given):
    """Makes this process a server of partition ``rank % num_parts``, loaded as ``load`` says."""
    rank = trainer.rank if rank is None else rank
    num_parts = glt.partition.load_partition(path, 0, verify=False).manifest.num_parts
    data = glt.distributed.DistDataset().load(path, rank % num_parts, **given.pop("load", {}))
    place = {"master_addr": "localhost", "master_port": trainer.port}
    given = {**place, "read_local": False, "rpc_timeout": 120.0, "max_workers": 4, **given}
    glt.distributed.init_server(num_servers, num_clients, rank, data, **given)


def become_client(trainer, num_servers, num_clients, client_rank=None, **given):
    """Makes this process a client."""
    given = {"master_addr": "localhost", "master_port": trainer.port, "rpc_timeout": 120.0, **given}
    rank = trainer.rank - num_servers if client_rank is None else client_rank
    return glt.distributed.init_client(num_servers, num_clients, rank, **given)


def serve_or(trainer, path, num_servers, num_clients, client, server_options, *args):
    """What each process of a cluster does: a server serves until all clients have left, a client calls
    ``client(trainer, rank, *args)``."""
    if trainer.rank < num_servers:
        serve(trainer, path, num_servers, num_clients, **server_options)
        glt.distributed.wait_and_shutdown_server(100.0)
        return None
    context = become_client(trainer, num_servers, num_clients)
    result = client(trainer, context.rank, *args)
    glt.distributed.shutdown_client()
    return result


def options(**given):
    return glt.distributed.RemoteDistSamplingWorkerOptions(**{"buffer_size": "8MB", **given})


CASE = CASES[0]

"""What ``law`` samples; :meth:`Case.reference` gives its batches by rank."""


class Failed(Exception):
    """What an actor raised: the name of the exception's class, and its text."""

    def __init__(self, kind, text):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text

    def expect(self, kind, *words):
        assert self.kind == kind and all(str(word) in self.text for word in words), self


@dataclass
class Run:
    """A loader that a thread goes through, epoch after epoch."""

    loader: Any
    count: int = 0
    error: tuple[str, str, float] | None = None  # class, text, when
    stopped: bool = False
    thread: threading.Thread | None = None


class Actor:
    """What an actor can do. Methods are called by name."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.loaders = {}
        self.iterators = {}
        self.runs = {}

    # -- as either ---------------------------------------------------------------------------------------------------

    def lower(self, folder, **constants):
        """Gives constants of the service other values, here and, with a folder to write to, in sampling processes that
        are started from now on."""
        set_constants(constants)
        if folder is None:
            return
        here = Path(__file__).parent
        text = f"import sys\nsys.path.append({str(here)!r})\nimport lowered\nlowered.set_constants({constants!r})\n"
        (Path(folder) / "sitecustomize.py").write_text(text)
        sys.path.insert(0, folder)

    def census(self, pid="self"):
        """Descriptors, threads, children and resident bytes of a process."""
        found = take_census(pid)
        return len(found.fds), found.num_threads, len(found.children), found.rss_bytes

    def run_function(self, function, *args, **given):
        return function(*args, **given)

    # -- as a server -------------------------------------------------------------------------------------------------

    def serve(self, path, num_servers, num_clients, rank, **given):
        """Becomes a server; returns the pids of its samplers."""
        given = {"rpc_timeout": 60.0, "max_buffer_size": "1GB", **given}
        serve(self.trainer, path, num_servers, num_clients, rank, **given)
        return self.samplers()

    def samplers(self):
        """Pids of the sampling processes that are ready, by place."""
        return list(glt.distributed.server.api.get_server().pool.pids().values())

    def stats(self):
        return glt.distributed.server_stats()

    def wait_and_shutdown(self, timeout_s=None):
        return glt.distributed.wait_and_shutdown_server(timeout_s)

    # -- as a client -------------------------------------------------------------------------------------------------

    def join(self, num_servers, num_clients, rank, **given):
        become_client(self.trainer, num_servers, num_clients, rank, **{"rpc_timeout": 60.0, **given})

    def leave(self):
        glt.distributed.shutdown_client()

    def request(self, server_rank, func, *args):
        return glt.distributed.request_server(server_rank, func, *args)

    def law(self, name, rank, **given):
        """Makes a loader of the one-batch law's case."""
        arguments = CASE.arguments(rank) | {"worker_options": options(**given)}
        self.loaders[name] = glt.distributed.DistNeighborLoader(None, **arguments)

    def make(self, name, batch_size=8, **given):
        """Makes a loader of all nodes; returns the number of its batches."""
        flags = {
            "batch_size": batch_size,
            "collect_features": True,
            "random_seed": 1,
            "worker_options": options(**given),
        }
        self.loaders[name] = glt.distributed.DistNeighborLoader(None, [4, 3], torch.arange(NUM_NODES), **flags)
        return len(self.loaders[name])

    def loader_stats(self, name):
        return self.loaders[name].stats()

    def take(self, name, count=None):
        """The next batches of an epoch that goes on from call to call; all that are left, or ``count``."""
        if name not in self.iterators:
            self.iterators[name] = iter(self.loaders[name])
        taken = [snapshot(batch) for batch in itertools.islice(self.iterators[name], count)]
        if count is None:
            del self.iterators[name]
        return taken

    def again(self, name):
        """Leaves an epoch; :meth:`take` begins the next."""
        del self.iterators[name]

    def close(self, name):
        self.iterators.pop(name, None)
        self.loaders.pop(name).shutdown()

    def forget(self, name):
        """Drops a loader without a word."""
        self.iterators.pop(name, None)
        del self.loaders[name]

    def go(self, name):
        """Goes through a loader in the background, until it is told to stop."""
        run = self.runs[name] = Run(self.loaders[name])
        run.thread = threading.Thread(target=_run, args=(run,), daemon=True)
        run.thread.start()

    def count(self, name):
        """Batches that :meth:`go` has taken so far; raises what it raised."""
        run = self.runs[name]
        if run.error is not None:
            raise AssertionError(f"it ended with {run.error}")
        return run.count

    def stop(self, name):
        run = self.runs[name]
        run.stopped = True
        run.thread.join(60)
        return self.count(name)

    def ended(self, name, timeout_s=60.0):
        """Waits until :meth:`go` raises; returns class, text and when."""
        run = self.runs[name]
        run.thread.join(timeout_s)
        if run.error is None:
            raise AssertionError(f"it has not ended within {timeout_s:g} s; it has taken {run.count} batches")
        return run.error


def _run(run):
    try:
        while not run.stopped:
            for _ in run.loader:
                run.count += 1
                if run.stopped:
                    return
    except Exception as error:
        run.error = type(error).__name__, str(error), time.monotonic()


def act(trainer):
    """Does what it is told until it is told to end."""
    actor = Actor(trainer)
    while True:
        told = trainer.hear(300.0)
        if told is None:
            return
        name, args, given = told
        try:
            trainer.say((True, getattr(actor, name)(*args, **given)))
        except BaseException as error:
            trainer.say((False, (type(error).__name__, str(error))))


class Stage(Cluster):
    """A cluster of actors."""

    def __init__(self, num_actors, deadline_s=240.0):
        super().__init__(num_actors, act, deadline_s=deadline_s)

    def begin(self, actor, method, *args, **given):
        """Tells an actor to do something; :meth:`result` waits for it."""
        self.say(actor, (method, args, given))

    def result(self, actor, timeout_s=120.0):
        """What an actor returned; raises :class:`Failed` if it raised."""
        is_good, value = self.hear(actor, timeout_s)
        if not is_good:
            raise Failed(*value)
        return value

    def ask(self, actor, method, *args, **given):
        """Has an actor do something and waits for it."""
        self.begin(actor, method, *args, **given)
        return self.result(actor)

    def fails(self, actor, method, *args, **given):
        """Has an actor do something that raises; returns that."""
        self.begin(actor, method, *args, **given)
        return self.failure(actor)

    def failure(self, actor):
        """What an actor raised that was told to begin something."""
        try:
            self.result(actor)
        except Failed as failed:
            return failed
        raise AssertionError(f"actor {actor} raised nothing: expected an error")

    def reaches(self, actor, server_rank):
        """Whether a client gets an answer of a server that was lost."""
        try:
            self.ask(actor, "request", server_rank, "torch.cuda.is_available")
        except Failed as failed:
            failed.expect("PeerLost")
            return False
        return True

    def set_going(self, actor, name, **given):
        """Makes a loader that the actor goes through in the background; returns when the first batches have come."""
        self.ask(actor, "make", name, **given)
        self.ask(actor, "go", name)
        self.goes_on(actor, name, 3)

    def goes_on(self, actor, name, more=10):
        """A loader that ``go`` goes through makes progress from here on."""
        before = self.ask(actor, "count", name)
        assert eventually(lambda: self.ask(actor, "count", name) >= before + more)

    def expect_law(self, actor, name, world, rank, had=()):
        """What is left of an epoch of a loader that ``law`` has made, behind what it had, is what it must be."""
        got = [*had, *self.ask(actor, "take", name)]
        assert_same(got, CASE.reference(world, rank)[: len(got)], f"{name} of actor {actor}")
        assert len(got) > 4

    def freeze(self, actor):
        freeze(self.processes[actor].pid)

    def start_servers(self, path, num_servers, num_clients, **given):
        """The first actors become servers; returns the pids of their samplers."""
        for rank in range(num_servers):
            self.begin(rank, "serve", path, num_servers, num_clients, rank, **given)
        return [self.result(rank) for rank in range(num_servers)]

    def start_clients(self, num_servers, num_clients, **given):
        """The actors after them become clients."""
        for rank in range(num_clients):
            self.begin(num_servers + rank, "join", num_servers, num_clients, rank, **given)
        for rank in range(num_clients):
            self.result(num_servers + rank)

    def finish(self, clients, servers):
        """The clients leave, the servers end, and nothing is left of them."""
        for actor in clients:
            self.ask(actor, "leave")
        for actor in servers:
            assert self.ask(actor, "wait_and_shutdown", 100.0)
        self.end(*clients, *servers)
        outcomes = self.outcomes()
        assert not [outcomes[actor] for actor in (*clients, *servers) if outcomes[actor].error_type]
        self.expect_nothing_left()

    def end(self, *actors):
        """Lets actors go home."""
        for actor in actors:
            self.say(actor, None)


def scale(factor, values):
    return factor * values


def take_part(env, **given):
    for name in [name for name in os.environ if name.startswith(("GLT_", "TORCHELASTIC"))]:
        if name != "GLT_TEST_CLUSTER":
            del os.environ[name]
    os.environ.update(env)
    glt.distributed.register_server_function(scale, "scale")
    try:
        glt.distributed.initialize(**given)
    except SystemExit as ended:  # a server
        assert ended.code == 0
        return -1, 0
    return glt.distributed.get_rank(), glt.distributed.num_trainers()


def finalize(timeout_s=None):
    glt.distributed.finalize(timeout_s)
    glt.distributed.finalize()
    return time.monotonic()


def env_of(stage, role, num_servers, num_trainers, rank, path):
    shared = {"GLT_ROLE": role, "GLT_MASTER_ADDR": "127.0.0.1", "GLT_MASTER_PORT": str(stage.port)}
    shared |= {"GLT_NUM_SERVERS": str(num_servers), "GLT_NUM_TRAINERS": str(num_trainers), "GLT_PART_CONFIG": str(path)}
    shared["WORLD_SIZE"] = str(num_trainers)
    return shared | {"GLT_SERVER_RANK" if role == "server" else "RANK": str(rank)}


def begin_job(stage, path, num_servers, num_trainers):
    for rank in range(num_servers):
        env = env_of(stage, "server", num_servers, num_trainers, rank, path)
        stage.begin(rank, "run_function", take_part, env)
    for rank in range(num_trainers):
        env = env_of(stage, "trainer", num_servers, num_trainers, rank, path)
        stage.begin(num_servers + rank, "run_function", take_part, env)
    for rank in range(num_trainers):
        assert stage.result(num_servers + rank) == (rank, num_trainers)


class Job:
    """The trainers of a job; actors are its servers, then its trainers."""

    def __init__(self, stage, num_servers, num_trainers):
        self.stage, self.num_servers = stage, num_servers
        self.trainers = range(num_servers, num_servers + num_trainers)

    def begin(self, function, *args, ranked=False):
        """Begins a function on all trainers, with their ranks as the first argument if it is ``ranked``."""
        for rank, trainer in enumerate(self.trainers):
            self.stage.begin(trainer, "run_function", function, *((rank,) if ranked else ()), *args)

    def results(self):
        return [self.stage.result(trainer) for trainer in self.trainers]

    def run(self, function, *args, ranked=False):
        """What a function returns on each trainer, all at the same time."""
        self.begin(function, *args, ranked=ranked)
        return self.results()


@contextmanager
def job_of(path, num_servers, num_trainers):
    """A job over a partition directory; in the end all leave, and leave nothing behind."""
    with Stage(num_servers + num_trainers) as stage:
        begin_job(stage, path, num_servers, num_trainers)
        job = Job(stage, num_servers, num_trainers)
        yield job
        for trainer in job.trainers:
            stage.ask(trainer, "run_function", finalize)
        stage.end(*range(num_servers + num_trainers))
        stage.expect_nothing_left()
