"""Functions of a server that go wrong are answered, whatever they raise, and hold up nobody else."""

import pytest
from service_world import become_client, serve

import glt
from glt.distributed.wire.connection import allow_descriptors
from glt.errors import RemoteError
from glt.testing.cluster import Cluster


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


def leave():
    raise SystemExit(3)


def fail():
    raise Unprintable


def add(a, b):
    return a + b


def ask(trainer, path):
    if trainer.rank == 0:
        for function in (leave, fail, add):
            glt.distributed.register_server_function(function, function.__name__)
        serve(trainer, path, 1, 1)
        glt.distributed.wait_and_shutdown_server(100.0)
        return None
    become_client(trainer, 1, 1)
    for name in ("leave", "fail"):
        with pytest.raises(RemoteError, match=r"SystemExit|Unprintable"):
            glt.distributed.request_server(0, name)
    replies = [glt.distributed.async_request_server(0, "add", i, i) for i in range(50)]  # more than run at a time
    results = [reply.wait() for reply in replies]
    glt.distributed.shutdown_client()
    return results


def test_whatever_a_function_raises_is_answered(world):
    with Cluster(2, ask, world(1).path) as cluster:
        assert cluster.results()[1] == [2 * i for i in range(50)]
        cluster.expect_nothing_left()


def test_descriptors_are_as_many_as_the_system_allows():
    assert allow_descriptors() == allow_descriptors() > 0
