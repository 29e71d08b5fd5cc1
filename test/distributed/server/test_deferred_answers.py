"""Answers that depend on what others do: they hold no thread, and end with whom they depend on."""

import time
from concurrent.futures import FIRST_EXCEPTION, Future, wait

import pytest
from service_actors import Stage
from service_world import become_client, serve

import glt
from glt.distributed.server import sessions as session
from glt.distributed.server.api import require_client
from glt.testing.cluster import Cluster

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
        for function in (park, complete):
            glt.distributed.register_server_function(function, function.__name__)
        serve(trainer, path, 1, 1, num_rpc_threads=2)
        glt.distributed.wait_and_shutdown_server(100.0)
        return None
    become_client(trainer, 1, 1)
    ask_async = glt.distributed.async_request_server
    waiting = [ask_async(0, "park", i) for i in range(1, 21)]  # more than there are threads, and than run of a client
    results = []
    for i in reversed(range(2, 21)):
        glt.distributed.request_server(0, "complete", i)
        results.append(waiting[i - 1].result(60))
    glt.distributed.request_server(0, "complete", -1)
    with pytest.raises(ValueError, match="-1 is negative"):
        waiting[0].result(60)
    many = [ask_async(0, "park", i) for i in range(100, 121)]
    (refused,) = wait(many, 60, FIRST_EXCEPTION).done
    with pytest.raises(ValueError, match=r"20 calls of client 0 .* wait for what others do"):
        refused.result(0)
    glt.distributed.shutdown_client()
    return results


def test_deferred_answers_hold_no_thread(world):
    with Cluster(2, ask, world(1).path) as cluster:
        assert cluster.results()[1] == list(reversed(range(2, 21)))
        cluster.expect_nothing_left()


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
            failed = stage.failure(actor)
            assert failed.kind == "PeerLost" and "trainer 2, client 2 of" in failed.text
        assert time.monotonic() - began < 90, "not at the deadline"
        # one of them leaves
        stage.begin(1, "run_function", barrier, 3, 2, 100.0)
        stage.ask(2, "leave")
        assert "it left" in stage.failure(1).text
        stage.ask(1, "leave")
        stage.end(0, 1, 2)
