"""Functions of servers: found by name, answered whatever they raise, and their arguments checked."""

import os
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial

import pytest
import torch
from dist_world import run_cluster
from service import Stage, become_client, serve

import glt
from glt.distributed import RemoteDistSamplingWorkerOptions, ServerOptions, init_client, init_server
from glt.distributed.server import server
from glt.distributed.server import sessions as session
from glt.distributed.server.api import require_client
from glt.distributed.wire import calls as functions
from glt.distributed.wire.addresses import allow_descriptors
from glt.distributed.wire.calls import name_of, register_server_function, registered
from glt.distributed.wire.threads import NativePool
from glt.errors import RemoteError
from glt.testing.cluster import free_port


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


def leave():
    raise SystemExit(3)


def fail():
    raise Unprintable


def add(a, b):
    return a + b


_parked = {}


def park(number):
    _parked[number] = Future()
    return _parked[number]


def complete(number):
    while abs(number) not in _parked:  # another thread is about to
        time.sleep(0.001)
    if number < 0:
        _parked[-number].set_exception(ValueError(f"{number} is negative"))
    else:
        _parked[number].set_result(number)
    return len(_parked)


def ask(trainer, path):
    if trainer.rank == 0:
        session._MOST_DEFERRED = 20
        for function in (leave, fail, add, park, complete):
            glt.distributed.register_server_function(function, function.__name__)
        serve(trainer, path, 1, 1, num_rpc_threads=2)
        glt.distributed.wait_and_shutdown_server(100.0)
        return None
    become_client(trainer, 1, 1)
    request, ask_async = glt.distributed.request_server, glt.distributed.async_request_server
    for name in ("leave", "fail"):
        with pytest.raises(RemoteError, match=r"SystemExit|Unprintable"):
            request(0, name)
    replies = [ask_async(0, "add", i, i) for i in range(50)]  # more than run at a time
    sums = [reply.wait() for reply in replies]
    waiting = [ask_async(0, "park", i) for i in range(1, 21)]  # more than there are threads, and than run of a client
    parked = []
    for i in reversed(range(2, 21)):
        request(0, "complete", i)
        parked.append(waiting[i - 1].result(60))
    request(0, "complete", -1)
    with pytest.raises(ValueError, match="-1 is negative"):
        waiting[0].result(60)
    many = [ask_async(0, "park", i) for i in range(100, 121)]
    (refused,) = wait(many, 60, FIRST_EXCEPTION).done
    with pytest.raises(ValueError, match=r"20 calls of client 0 .* wait for what others do"):
        refused.result(0)
    glt.distributed.shutdown_client()
    return sums, parked


def test_whatever_a_function_raises_is_answered_and_deferred_answers_hold_no_thread(world):
    sums, parked = run_cluster(2, ask, world(1).path)[1]
    assert sums == [2 * i for i in range(50)] and parked == list(reversed(range(2, 21)))


def test_descriptors_are_as_many_as_the_system_allows():
    assert allow_descriptors() == allow_descriptors() > 0


def barrier(number, num, timeout_s):
    require_client().request(0, "glt.barrier", "barrier", number, num, timeout_s)
    return time.monotonic()


def test_barriers_of_clients(world):
    with Stage(4) as stage:
        stage.start_servers(world(1).path, 1, 3)
        stage.start_clients(1, 3)
        for actor in (1, 2):
            stage.begin(actor, "run_function", barrier, 0, 3, 60.0)
        came = stage.ask(3, "run_function", time.monotonic)
        stage.begin(3, "run_function", barrier, 0, 3, 60.0)
        assert all(stage.result(actor) >= came for actor in (1, 2, 3))
        # one of them never comes
        stage.begin(1, "run_function", barrier, 1, 3, 0.5)
        assert "rank [1, 2] of 3 have not arrived" in stage.failure(1).text
        assert "has failed before client 1" in stage.fails(2, "run_function", barrier, 1, 3, 60.0).text
        # one of them is killed while the others wait
        for actor in (1, 2):
            stage.begin(actor, "run_function", barrier, 2, 3, 100.0)
        began = time.monotonic()
        stage.kill(3)
        for actor in (1, 2):
            stage.failure(actor).expect("PeerLost", "trainer 2, client 2 of")
        assert time.monotonic() - began < 90, "not at the deadline"
        # one of them leaves
        stage.begin(1, "run_function", barrier, 3, 2, 100.0)
        stage.ask(2, "leave")
        assert "it left" in stage.failure(1).text
        stage.ask(1, "leave")
        stage.end(0, 1, 2)


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(functions, "_registered", dict(functions._registered))
    yield


def test_found_by_module_and_name():
    @register_server_function
    def mine(x):
        return x + 1

    assert registered(name_of(mine)) is mine and name_of(mine).endswith("mine") and __name__ in name_of(mine)
    assert register_server_function(mine) is mine  # again
    register_server_function(mine, "short")
    assert registered("short") is mine
    assert registered("torch.cuda.device_count")() == torch.cuda.device_count()


def test_names_are_taken_once():
    register_server_function(os.getpid, "pid")
    with pytest.raises(ValueError, match="'pid' is registered already"):
        register_server_function(os.getppid, "pid")


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "torch.load", "", "__import__", "glt"])
def test_others_are_refused(name):
    with pytest.raises(LookupError, match=r"register_server_function") as caught:
        registered(name)
    assert "torch.cuda.device_count" in str(caught.value)


@pytest.mark.parametrize("func", [None, 5, partial(os.getpid), "text"])
def test_what_is_no_function(func):
    with pytest.raises(TypeError, match="func = "):
        register_server_function(func)


RANKS = {1.5: "1.5", torch.tensor(0): "tensor", "0": "'0'", ("0",): "'0'"}
OPTIONS = [(TypeError, "server_rank", value, f"server_rank = {shown}") for value, shown in RANKS.items()] + [
    (TypeError, "server_rank", {0: 1}, "server_rank = {0: 1}"),
    (TypeError, "worker_devices", 1.5, "worker_devices = 1.5"),
    (TypeError, "worker_devices", [None], r"worker_devices\[0\] = None"),
    (ValueError, "worker_devices", "cuda:9x", r"worker_devices\[0\] = 'cuda:9x' is no device"),
    (TypeError, "master_addr", 5, "master_addr = 5"),
]
OF_SERVERS = {"num_rpc_threads": None, "master_addr": 5, "host": 5, "seed_dir": 5, "num_workers": None}


def test_arguments_of_a_wrong_type(world):
    for kind, name, value, words in OPTIONS:
        with pytest.raises(kind, match=words):
            RemoteDistSamplingWorkerOptions(**{name: value})
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    for name, value in (OF_SERVERS | {"metrics_host": 5}).items():
        with pytest.raises(TypeError, match=f"{name} = {value}"):
            init_server(1, 1, 0, data, **{"master_addr": "localhost", "master_port": 1, name: value})
    with pytest.raises(TypeError, match="master_addr = 5"):
        init_client(1, 1, 0, 5, 1)
    assert glt.distributed.get_context() is None


def test_options_of_a_server(world):
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    with pytest.raises(ValueError, match="num_workers = 3: expected at most max_workers = 2"):
        ServerOptions(num_workers=3, max_workers=2)
    for given, words in (
        ({"options": ServerOptions(), "max_loaders": 3}, "options and max_loaders are given"),
        ({"options": {}}, "options has type dict: expected a ServerOptions"),
        ({"max_loader": 3}, r"no argument 'max_loader': expected one of \['rpc_timeout'"),
    ):
        with pytest.raises(TypeError, match=words):
            init_server(1, 1, 0, data, "localhost", 1, **given)
    init_server(1, 1, 0, data, "localhost", free_port(), options=ServerOptions(max_loaders=3))
    try:
        running = glt.distributed.get_server()
        assert running is not None and running.options.max_loaders == 3
    finally:
        glt.distributed.wait_and_shutdown_server(0.0)


def test_a_server_that_cannot_be_made_leaves_nothing(world, monkeypatch):
    """Its last part cannot be made: the port is free afterwards, and threads are gone."""

    def fail(num_threads, name):
        if name == "glt-request":
            raise RuntimeError("no more threads")
        return NativePool(num_threads, name)

    data = glt.distributed.DistDataset().load(world(1).path, 0)
    before = set(threading.enumerate())
    monkeypatch.setattr(server, "NativePool", fail)
    port = free_port()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no more threads"):
            init_server(1, 1, 0, data, "localhost", port)
    for thread in set(threading.enumerate()) - before:
        thread.join(20.0)
        assert not thread.is_alive(), thread
