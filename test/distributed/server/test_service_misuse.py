"""What clients do that cannot work is answered at once: iterating in a fork, ending a loader that is being read."""

import os
import signal
import threading
import time

import torch
from dist_world import NUM_NODES
from promptness import expect_prompt
from service_world import options, serve_or

import glt
from glt.testing.cluster import Cluster


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def make(**given):
    return glt.distributed.DistNeighborLoader(
        None, [4, 3], torch.arange(NUM_NODES), batch_size=8, worker_options=options(**given)
    )


def in_a_fork(*calls):
    """What a child of this process gets from the calls, which is killed if it hangs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            out.write("\n".join(error_of(call) for call in calls))
        os._exit(0)
    os.close(writer)
    killer = threading.Timer(60.0, os.kill, (child, signal.SIGKILL))
    killer.start()
    with os.fdopen(reader) as told:
        lines = told.read().splitlines()
    os.waitpid(child, 0)
    killer.cancel()
    return lines


def fork(trainer, rank):
    def join_again():
        glt.distributed.init_client(1, 1, 0, "localhost", trainer.port, client_group_name="fork", rpc_timeout=60.0)
        with make() as loader:
            assert len(list(loader)) == len(loader)
        glt.distributed.shutdown_client()

    with make(prefetch_size=1) as loader:
        batches = iter(loader)
        next(batches)
        lines = in_a_fork(
            lambda: next(batches), lambda: list(loader), make, loader.shutdown,
            lambda: glt.distributed.request_server(0, "torch.cuda.is_available"), join_again,
        )  # fmt: skip
        assert len(list(batches)) == len(loader) - 1  # it took nothing from its parent
    return os.getpid(), lines


def test_a_fork_of_a_client(world):
    with Cluster(2, serve_or, world(1).path, 1, 1, fork, {}) as cluster:
        pid, lines = cluster.results()[1]
        for line in lines[:3] + lines[4:5]:
            assert line.startswith("RuntimeError") and f"is a fork of the client (pid {pid})" in line, lines
            assert "init_client" in line, lines
        assert [lines[3], lines[5]] == ["nothing was raised"] * 2, lines
        cluster.expect_nothing_left()


def shut_down_while_reading(trainer, rank):
    """The batch that is awaited never comes: its epoch was not begun."""
    loader = make()
    ended = [0.0]

    def end():
        ended[0] = time.monotonic()
        loader.shutdown()

    threading.Timer(0.3, end).start()
    told = error_of(lambda: loader._backend.receive(0))
    return told, time.monotonic() - ended[0]


def test_a_loader_that_is_shut_down_while_it_is_read(world):
    with Cluster(2, serve_or, world(1).path, 1, 1, shut_down_while_reading, {}) as cluster:
        told, took_s = cluster.results()[1]
        assert told == "RuntimeError: the loader was shut down while a batch was awaited"
        expect_prompt(took_s, "to hear that the loader was shut down", within_s=5)
