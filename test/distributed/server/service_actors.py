"""Processes that do what a test tells them, one thing at a time: become a server or a client, sample, count, leave."""

import itertools
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from batch_law import CASES, SEED
from dist_world import NUM_NODES, seeds_of, snapshot
from lowered import set_constants
from promptness import eventually
from service_world import options

import glt
from glt.testing.cluster import Cluster, take_census

CASE = CASES[0]
"""What ``law`` samples; :func:`batch_law.reference` gives its batches by rank."""


class Failed(Exception):
    """What an actor raised.

    Attributes:
        kind: Name of the exception's class.
        text: What it says.
    """

    def __init__(self, kind, text):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


@dataclass
class Run:
    """A loader that a thread goes through, epoch after epoch."""

    loader: Any
    pause_s: float = 0.0
    most: int | None = None
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
        """Becomes a server of partition ``rank % num_parts``; returns the pids of its samplers."""
        num_parts = glt.partition.load_partition(path, 0, verify=False).manifest.num_parts
        data = glt.distributed.DistDataset().load(path, given.pop("part", rank % num_parts))
        given = {"read_local": False, "rpc_timeout": 60.0, "max_workers": 4, "max_buffer_size": "1GB", **given}
        port = given.pop("master_port", self.trainer.port)
        addr = given.pop("master_addr", "localhost")
        glt.distributed.init_server(num_servers, num_clients, rank, data, addr, port, **given)
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
        given = {"rpc_timeout": 60.0, **given}
        port = given.pop("master_port", self.trainer.port)
        addr = given.pop("master_addr", "localhost")
        glt.distributed.init_client(num_servers, num_clients, rank, addr, port, **given)

    def leave(self):
        glt.distributed.shutdown_client()

    def request(self, server_rank, func, *args):
        return glt.distributed.request_server(server_rank, func, *args)

    def law(self, name, rank, **given):
        """Makes a loader of the one-batch law's case."""
        self.loaders[name] = glt.distributed.DistNeighborLoader(
            None, list(CASE.num_neighbors), seeds_of(rank), batch_size=16, random_seed=SEED + rank,
            worker_options=options(**given), **CASE.loader,
        )  # fmt: skip

    def make(self, name, batch_size=8, **given):
        """Makes a loader of all nodes; returns the number of its batches."""
        self.loaders[name] = glt.distributed.DistNeighborLoader(
            None, [4, 3], torch.arange(NUM_NODES), batch_size=batch_size, collect_features=True, random_seed=1,
            worker_options=options(**given),
        )  # fmt: skip
        return len(self.loaders[name])

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

    def go(self, name, pause_s=0.0, most=None):
        """Goes through a loader in the background, for ever, until it is told to stop, or for ``most`` batches."""
        run = self.runs[name] = Run(self.loaders[name], pause_s, most)
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
        assert run.thread is not None
        run.thread.join(60)
        return self.count(name)

    def ended(self, name, timeout_s=60.0):
        """Waits until :meth:`go` raises; returns class, text and when."""
        run = self.runs[name]
        assert run.thread is not None
        run.thread.join(timeout_s)
        if run.error is None:
            raise AssertionError(f"it has not ended within {timeout_s:g} s; it has taken {run.count} batches")
        return run.error


def _run(run):
    try:
        while not run.stopped:
            for _ in run.loader:
                run.count += 1
                if run.stopped or run.count == run.most:
                    return
                if run.pause_s:
                    time.sleep(run.pause_s)
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
    """A cluster of actors.

    Args:
        num_actors: How many.
        deadline_s: Everything must have ended by then.
    """

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

    def freeze(self, actor):
        """Stops an actor with SIGSTOP; returns when it has stopped."""
        self.kill(actor, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.processes[actor].pid}/task")
        # "pid (name) state ..."; a signal takes effect when the kernel gets to it.
        assert eventually(
            lambda: all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())
        )

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

    def end(self, *actors):
        """Lets actors go home."""
        for actor in actors:
            self.say(actor, None)
