"""Arguments of servers, clients and their loaders: what does not fit is named, and nothing is left of it."""

import threading

import pytest
import torch

import glt
from glt.distributed import RemoteDistSamplingWorkerOptions, ServerOptions, init_client, init_server
from glt.distributed.server import server
from glt.testing.cluster import free_port


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"server_rank": 1.5}, TypeError, "server_rank = 1.5"),
        ({"server_rank": torch.tensor(0)}, TypeError, "server_rank = tensor"),
        ({"server_rank": {0: 1}}, TypeError, "server_rank = {0: 1}"),
        ({"server_rank": "0"}, TypeError, "server_rank = '0'"),
        ({"server_rank": ["0"]}, TypeError, "server_rank = '0'"),
        ({"worker_devices": 1.5}, TypeError, "worker_devices = 1.5"),
        ({"worker_devices": [None]}, TypeError, r"worker_devices\[0\] = None"),
        ({"worker_devices": "cuda:9x"}, ValueError, r"worker_devices\[0\] = 'cuda:9x' is no device"),
        ({"master_addr": 5}, TypeError, "master_addr = 5"),
    ],
)
def test_options(given, kind, words):
    with pytest.raises(kind, match=words):
        RemoteDistSamplingWorkerOptions(**given)


@pytest.mark.parametrize(
    ("given", "kind"),
    [({"num_rpc_threads": None}, TypeError), ({"master_addr": 5}, TypeError), ({"host": 5}, TypeError),
     ({"seed_dir": 5}, TypeError), ({"num_workers": None}, TypeError), ({"metrics_host": 5}, TypeError)],
)  # fmt: skip
def test_a_server(world, given, kind):
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    ((name, value),) = given.items()
    with pytest.raises(kind, match=f"{name} = {value}"):
        init_server(1, 1, 0, data, **{"master_addr": "localhost", "master_port": 1, **given})
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


def test_a_client():
    with pytest.raises(TypeError, match="master_addr = 5"):
        init_client(1, 1, 0, 5, 1)
    assert glt.distributed.get_context() is None


def test_a_server_that_cannot_be_made_leaves_nothing(world, monkeypatch):
    """Its last part cannot be made: the port is free afterwards, and threads are gone."""

    def fail(*args):
        raise RuntimeError("no more threads")

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
