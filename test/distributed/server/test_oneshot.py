"""One-shot sampling on servers: the same answers as of loaders, many at a time, whatever dies."""

import asyncio
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from dist_typed_world import CASES as TYPED_CASES
from dist_typed_world import NODE_TIMES, OPTIONS
from dist_world import CASES, NUM_NODES, assert_same, run_cluster
from dist_world import snapshot as flat
from promptness import eventually, expect_prompt, freeze
from service import Failed, Stage, options, serve_or

import glt
from glt import _deadlines as deadlines
from glt.distributed.server.answers import Question
from glt.distributed.server.api import require_client
from glt.distributed.server.remote import open_questions
from glt.distributed.server.scheduler import FairScheduler
from glt.distributed.wire.threads import wait_for
from glt.errors import ChannelTimeout, GltError, PeerLost, RemoteError, TooManyRequests


def client_of(neighbors=(4, 3), **given):
    where = options(**given.pop("where", {}))
    return glt.distributed.SamplingClient(neighbors, worker_options=where, **given)


# -- the law -------------------------------------------------------------------------------------------------------


def in_order(case):
    """A case whose first batch has the first seeds."""
    return replace(case, loader={n: v for n, v in case.loader.items() if n not in ("shuffle", "drop_last")})


def question_of(case, rank):
    """The options of a client, and the seeds of the first batch of a loader of the case."""
    given = case.arguments(rank)
    count, nodes, time = given.pop("batch_size"), given.pop("input_nodes"), given.pop("input_time", None)
    typed = isinstance(nodes, tuple)
    nodes = (nodes[0], nodes[1][:count]) if typed else nodes[:count]
    return given, nodes, None if time is None else time[:count]


def answers_of(trainer, rank, cases, where):
    """Of each case what is answered, at once and awaited, and the first batch of a loader of these seeds on servers."""
    found = []
    for case in cases:
        given, nodes, time = question_of(case, rank)
        with client_of(given.pop("num_neighbors"), where=where, **given) as client:
            batches = [client.sample(nodes, time), client.sample(nodes, time, timeout_s=60.0)]
            batches.append(asyncio.run(client.asample(nodes, time)))
        count = len(nodes[1] if isinstance(nodes, tuple) else nodes)
        given = question_of(case, rank)[0] | {"input_nodes": nodes, "input_time": time, "batch_size": count}
        with glt.distributed.DistNeighborLoader(None, worker_options=options(**where), **given) as loader:
            batches.append(next(iter(loader)))
        found.append([case.snapshot(batch) for batch in batches])
    return found


HOMOGENEOUS = [in_order(case) for case in CASES[:3]]
CHOSEN = ("features and edges", "replace", "disjoint", "weighted", "temporal", "last", "induced")
TYPED = [in_order(case) for case in TYPED_CASES + OPTIONS if case.name in CHOSEN]


@pytest.mark.parametrize(
    ("world_of", "cases", "read_local"),
    [
        ((2,), HOMOGENEOUS, True),
        ((2,), HOMOGENEOUS[:1], False),
        (("typed", 2), TYPED, False),
        (("typed", 2), TYPED[:1], True),
        (("typed", 2, "in", "node"), [in_order(NODE_TIMES[0])], False),
    ],
    ids=["homogeneous", "homogeneous, asking", "typed, asking", "typed", "times of nodes, asking"],
)
def test_an_answer_is_the_first_batch_of_a_loader(world, typed_world, world_of, cases, read_local):
    """Of one with these seeds and this random_seed, in this process and on servers, wherever it is asked."""
    here = typed_world(*world_of[1:]) if world_of[0] == "typed" else world(*world_of)
    where = {"num_workers": 2}
    args = here.path, 2, 1, answers_of, {"read_local": read_local}, cases, where
    (found,) = run_cluster(3, serve_or, *args)[2:]
    for case, batches in zip(cases, found, strict=True):
        first = case.reference(here, 0)[:1]
        for i, batch in enumerate(batches):
            assert_same([batch], first, f"{case.name}, answer {i}")


def told_ids(trainer, rank):
    mask = torch.zeros(NUM_NODES, dtype=torch.bool).index_fill_(0, torch.tensor([5, 9]), True)
    with client_of() as client:
        return [client.sample(*given).input_id.tolist() for given in ([[9, 5]], [mask], [[9, 5], None, [70, 71]])]


def test_input_ids_are_those_of_loaders(world):
    assert run_cluster(2, serve_or, world(1).path, 1, 1, told_ids, {})[1] == [[0, 1], [5, 9], [70, 71]]


# -- many at a time ------------------------------------------------------------------------------------------------


@contextmanager
def going(client, num_threads=8):
    """Threads that ask for single seeds, over and over; gives the answers, by seed, and what went wrong."""
    answers, errors, stopped = {}, [], threading.Event()

    def ask(first):
        i = first
        while not stopped.is_set():
            seed = i % NUM_NODES
            try:
                answers.setdefault(seed, []).append(flat(client.sample([seed])))
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
                return
            i += num_threads

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        yield answers, errors
    finally:
        stopped.set()
        for thread in threads:
            thread.join(60)


def expect_equal(answers, client):
    """Whatever happened, the same question has had the same answer."""
    for seed, batches in answers.items():
        assert_same(batches, [flat(client.sample([seed]))] * len(batches), f"seed {seed}")


def many(trainer, rank):
    with client_of(collect_features=True, where={"server_rank": [0, 1], "worker_concurrency": 2}) as client:
        alone = [flat(client.sample([seed, 7])) for seed in range(64)]
        with ThreadPoolExecutor(16) as pool:
            by_threads = list(pool.map(lambda seed: flat(client.sample([seed, 7])), range(64)))

        async def ask_all(seeds):
            asked = [client.asample([seed, 7]) for seed in seeds]
            return await asyncio.gather(*asked, return_exceptions=True)

        mixed = asyncio.run(ask_all([*range(64), NUM_NODES, -1]))
        wrong = [f"{type(each).__name__}: {each}" for each in mixed[64:]]
        # Past the checks of this process: the sampling process does not believe what it is sent.
        client_asker = client._asker
        for question in (Question(0, torch.tensor([10**6])), Question(3, torch.tensor([1]))):
            message = client_asker.ask(question, 30.0).result(30)
            with pytest.raises(RemoteError) as refused:
                client._batch(question, message)
            wrong.append(str(refused.value))
        return alone, by_threads, [flat(each) for each in mixed[:64]], wrong, client.stats()


def test_many_at_a_time_and_what_is_wrong_with_one_is_its_own(world):
    alone, by_threads, awaited, wrong, stats = run_cluster(3, serve_or, world(2).path, 2, 1, many, {})[2]
    assert_same(by_threads, alone, "threads")
    assert_same(awaited, alone, "asyncio")
    for text, expected in zip(
        wrong, ["IndexError: nodes[0] = 600", "IndexError: nodes[0] = -1", "1000000", "node_type = 3"], strict=True
    ):
        assert expected in text, text
    assert stats["num_batches"] == 3 * 64 and stats["num_requests"] == stats["num_answers"] == 3 * 64 + 2
    assert stats["num_seeds"] == 2 * 3 * 64 and stats["num_nodes"] > stats["num_seeds"]
    assert stats["num_connections"] == 2 and stats["num_in_flight"] == stats["num_waiting"] == 0


def keep_long_ones():
    given = {"collect_features": True, "with_edge": True, "where": {"buffer_size": "1MB"}}
    nodes = torch.arange(NUM_NODES)
    with client_of([-1, -1], **given) as client:
        kept = [client.sample(nodes) for _ in range(30)]
        found = [flat(batch) for batch in kept]
        assert_same(found, [flat(client.sample([*range(NUM_NODES)]))] * 30, "through shared memory")
        short = client.sample([1])
        stats = client.stats()
    return stats, [batch.x.sum().item() for batch in kept], short.batch_size


def test_long_answers_come_through_shared_memory_however_many_are_kept(world):
    with Stage(2) as stage:
        stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        stats, totals, _ = stage.ask(1, "run_function", keep_long_ones)
        assert stats["received_bytes"] > 31 * (128 << 10) and stats["received_bytes"] > 2 * (2 << 20), "all of the ring"
        assert 1 <= stats["num_in_ring"] <= 31 and stats["num_answers"] == 32
        assert totals == pytest.approx([world(1).x.sum().item()] * 30, rel=1e-4), "kept after the end"
        stage.finish((1,), (0,))


def overload(sampler):
    """The sampler is stopped: one request is in flight, one waits, and there is no room for a third."""
    outcome = []
    with client_of(max_waiting=1, timeout_s=60.0, where={"worker_concurrency": 1}) as client:
        first = flat(client.sample([1]))
        freeze(sampler)
        with ThreadPoolExecutor(2) as pool:
            two = [pool.submit(client.sample, [seed]) for seed in (1, 2)]
            assert eventually(lambda: client.stats()["num_waiting"] == 1 and client.stats()["num_in_flight"] == 1)
            start = time.monotonic()
            with pytest.raises(TooManyRequests) as refused:
                client.sample([3])
            outcome.append((str(refused.value), time.monotonic() - start))
            os.kill(sampler, signal.SIGCONT)
            assert_same([flat(two[0].result(60))], [first], "it waited")
            two[1].result(60)
        freeze(sampler)
        start = time.monotonic()
        with pytest.raises(ChannelTimeout) as late:
            client.sample([1], timeout_s=0.3)
        outcome.append((str(late.value), time.monotonic() - start))

        async def give_up():
            with pytest.raises(TimeoutError):  # in its place
                await client.asample([1], timeout_s=0.2)
            task = asyncio.ensure_future(client.asample([2]))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(give_up())
        assert client.stats()["num_in_flight"] == 1 and client.stats()["num_waiting"] == 0
        os.kill(sampler, signal.SIGCONT)
        assert_same([flat(client.sample([1]))], [first], "after those that were given up")
        assert client.stats()["num_in_flight"] == 0
        freeze(sampler)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.sample, [1])
            assert eventually(lambda: client.stats()["num_in_flight"] == 1)
            client.close()
            with pytest.raises(RuntimeError, match="was closed while this request was not answered"):
                asked.result(10)
        assert client.stats()["num_in_flight"] == 0, "an answer that comes now is none"
        os.kill(sampler, signal.SIGCONT)
    return outcome


def test_too_many_requests_and_deadlines(world):
    with Stage(2) as stage:
        ((sampler,),) = stage.start_servers(world(1).path, 1, 1, num_workers=1)
        stage.start_clients(1, 1)
        (full, full_s), (late, late_s) = stage.ask(1, "run_function", overload, sampler)
        assert "1 requests wait (max_waiting = 1) for one of 1 places" in full
        assert "no batch of these 1 seeds within 0.3 s: of this SamplingClient 1 requests are in flight" in late
        expect_prompt(full_s, "a request to be refused", 1.0)
        expect_prompt(late_s, "a request to be given up", 1.0)
        stage.finish((1,), (0,))


# -- turns ---------------------------------------------------------------------------------------------------------


def test_requests_and_loaders_take_turns():
    """One asks in threads, the other is woken; each gets every second place."""
    turns, woken = FairScheduler(1), []
    loader = turns.add(4, lambda: True)
    requests = turns.add(4, lambda: True, lambda: woken.append(1))
    assert turns.try_acquire(requests)
    assert not turns.try_acquire(requests) and not woken
    loader.is_waiting = True  # as of a thread in acquire()
    order = [requests]
    for _ in range(100):
        woken.clear()
        turns.release(order[-1])
        following = turns.next_flow()
        assert bool(woken) == (following is requests)
        assert turns.try_acquire(following)
        following.is_waiting = True  # it comes back for the next at once
        order.append(following)
    assert 49 <= order.count(loader) <= 51
    turns.remove(loader)
    woken.clear()
    turns.release(order[-1])
    assert woken, "nothing else waits"


def beside_a_loader(seconds):
    with client_of() as client:
        before, start = client.stats()["num_answers"], time.monotonic()
        with going(client, 4) as (_, errors):
            time.sleep(seconds)
        assert not errors, errors
        return (client.stats()["num_answers"] - before) / (time.monotonic() - start)


def test_a_loader_that_is_hungry_holds_up_no_request_and_the_reverse(world):
    with Stage(3) as stage:
        stage.start_servers(world(1).path, 1, 2, num_workers=1, max_concurrency=2)
        stage.start_clients(1, 2)
        stage.set_going(1, "hungry", worker_concurrency=4)
        before = stage.ask(1, "count", "hungry")
        assert stage.ask(2, "run_function", beside_a_loader, 2.0) > 5, "requests per second"
        assert stage.ask(1, "count", "hungry") > before + 10
        stage.ask(1, "stop", "hungry")
        stage.finish((1, 2), (0,))


# -- what dies -----------------------------------------------------------------------------------------------------


def lose_samplers(samplers, seconds):
    """Requests go on while sampling processes are killed one after the other."""
    with client_of(collect_features=True, where={"num_workers": 2, "worker_concurrency": 2}) as client:
        with going(client) as (answers, errors):
            for sampler in samplers:
                time.sleep(seconds)
                count = client.stats()["num_answers"]
                os.kill(sampler, signal.SIGKILL)
                assert eventually(lambda count=count: errors or client.stats()["num_answers"] > count + 100)
            assert eventually(lambda: errors or client.stats()["num_connections"] == 2), "it was replaced"
        assert not errors, errors
        expect_equal(answers, client)
        return client.stats()


def test_killed_samplers_lose_no_request(world):
    with Stage(2) as stage:
        (samplers,) = stage.start_servers(world(1).path, 1, 1, num_workers=2)
        stage.start_clients(1, 1)
        stats = stage.ask(1, "run_function", lose_samplers, samplers, 0.5)
        assert stats["num_asked_again"] >= 1
        stage.finish((1,), (0,))


def lose_the_only_sampler(sampler):
    with client_of() as client:
        first = flat(client.sample([1]))
        os.kill(sampler, signal.SIGKILL)
        assert_same([flat(client.sample([1], timeout_s=60.0))], [first], "of its successor")


def test_a_request_waits_for_the_successor_of_the_only_sampler(world):
    with Stage(2) as stage:
        ((sampler,),) = stage.start_servers(world(1).path, 1, 1, num_workers=1)
        stage.start_clients(1, 1)
        stage.ask(1, "run_function", lose_the_only_sampler, sampler)
        stage.finish((1,), (0,))


def while_frozen(sampler):
    """What a frozen process was asked is answered by the other, long before the process is given up."""
    with client_of(where={"num_workers": 2, "worker_concurrency": 2}) as client:
        alone = [flat(client.sample([seed])) for seed in range(8)]
        freeze(sampler)
        start = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda seed: flat(client.sample([seed])), range(8)))
        took_s = time.monotonic() - start
        assert_same(found, alone, "while one is frozen")
        frozen = client.stats()
        os.kill(sampler, signal.SIGCONT)
        assert eventually(lambda: client.stats()["num_in_flight"] == 0), "it answers late"
        with ThreadPoolExecutor(8) as pool:
            assert_same(list(pool.map(lambda seed: flat(client.sample([seed])), range(8))), alone, "later")
        assert client.stats()["num_connections"] == 2
    return frozen, took_s


def test_a_frozen_sampler_is_passed_over(world):
    with Stage(2) as stage:
        (samplers,) = stage.start_servers(world(1).path, 1, 1, num_workers=2)
        stage.start_clients(1, 1)
        stats, took_s = stage.ask(1, "run_function", while_frozen, samplers[0])
        assert 1 <= stats["num_asked_again"] == stats["num_in_flight"] <= 2
        expect_prompt(took_s, "requests to be asked of the other", deadlines.TAKEN_S + 3.0)
        stage.finish((1,), (0,))


def lose_the_server_that_was_chosen(server):
    with client_of(where={"server_rank": 1}) as client:
        first = flat(client.sample([1]))
        os.kill(server, signal.SIGKILL)
        start = time.monotonic()
        assert_same([flat(client.sample([1]))], [first], "of the other server")
        took_s = time.monotonic() - start
    for ranks, num_connections in ((1, 1), ([0, 1], 1)):
        with client_of(where={"server_rank": ranks}) as client:
            assert_same([flat(client.sample([1]))], [first], f"of servers {ranks}, made when one was gone")
            assert client.stats()["num_connections"] == num_connections
    return took_s


def test_another_server_answers_in_place_of_the_only_one_that_was_chosen(world):
    with Stage(3) as stage:
        stage.start_servers(world(1).path, 2, 1)
        stage.start_clients(2, 1)
        took_s = stage.ask(2, "run_function", lose_the_server_that_was_chosen, stage.processes[1].pid)
        expect_prompt(took_s, "another server to answer", 2.0)
        stage.finish((2,), (0,))


HELD = []


def begin_asking():
    HELD.append(client_of(where={"server_rank": [0, 1]}))
    HELD.append(going(HELD[0]))
    HELD.append(HELD[1].__enter__())
    return eventually(lambda: HELD[0].stats()["num_answers"] > 100)


def num_connections():
    return HELD[0].stats()["num_connections"], HELD[0].stats()["num_answers"]


def end_asking():
    client, threads, (answers, errors) = HELD
    threads.__exit__(None, None, None)
    HELD.clear()
    with client:
        expect_equal(answers, client) if not errors else None
    return errors


def test_a_killed_server_loses_no_request_and_takes_part_again_when_it_is_back(world):
    """Two servers with the same partition."""
    here = world(1)
    with Stage(4) as stage:
        stage.start_servers(here.path, 2, 1, read_local=False)
        stage.ask(3, "join", 2, 1, 0)
        assert stage.ask(3, "run_function", begin_asking)
        stage.kill(1)
        assert eventually(lambda: stage.ask(3, "run_function", num_connections)[0] == 1)
        before = stage.ask(3, "run_function", num_connections)[1]
        assert eventually(lambda: stage.ask(3, "run_function", num_connections)[1] > before + 100)
        stage.ask(2, "serve", here.path, 2, 1, 1, read_local=False)
        assert eventually(lambda: stage.ask(3, "run_function", num_connections)[0] == 2)
        assert stage.ask(3, "run_function", end_asking) == []
        stage.finish((3,), (0, 2))


def ask_in_vain(server):
    """Both while it dies and later."""
    with client_of(timeout_s=100.0) as client:
        client.sample([1])
        os.kill(server, signal.SIGKILL)
        assert eventually(lambda: client.stats()["num_connections"] == 0)
        told = []
        for _ in range(2):
            start = time.monotonic()
            with pytest.raises(PeerLost) as lost:
                client.sample([1])
            told.append((str(lost.value), time.monotonic() - start))
        return told


def test_requests_fail_when_nothing_is_left_to_ask(world, tmp_path):
    with Stage(2) as stage:
        stage.ask(1, "lower", None, RECONNECT_S=3.0)
        stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        server = stage.processes[0].pid
        (first, first_s), (second, second_s) = stage.ask(1, "run_function", ask_in_vain, server)
        for text in (first, second):
            assert "no sampling process has been reached for" in text and f"pid {server}" in text, text
        expect_prompt(first_s, "a request to fail")
        expect_prompt(second_s, "another to fail", 1.0)
        stage.ask(1, "leave")
        stage.end(1)


# -- the end, and what is refused ----------------------------------------------------------------------------------


def close_in_different_ways():
    def num_loaders():
        return glt.distributed.server_stats(0)["num_loaders"]

    client = client_of()
    repr_open = repr(client)
    client.sample([1])
    assert num_loaders() == 1
    client.close()
    client.close()
    assert eventually(lambda: num_loaders() == 0)
    with pytest.raises(RuntimeError, match="was closed: create a new one"):
        client.sample([1])
    forgotten = client_of()
    forgotten.sample([1])
    del forgotten
    gc.collect()
    assert eventually(lambda: num_loaders() == 0)
    left = client_of()
    glt.distributed.shutdown_client()
    assert eventually(lambda: left.stats()["num_connections"] == 0)
    with pytest.raises(PeerLost, match="no sampling process has been reached"):
        left.sample([1])
    left.close()
    return repr_open, repr(client)


def test_the_end_of_a_client(world):
    with Stage(2) as stage:
        stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        opened, closed = stage.ask(1, "run_function", close_in_different_ways)
        assert "closed" in closed and "closed" not in opened and "num_neighbors=[4, 3]" in opened
        assert stage.ask(0, "wait_and_shutdown", 60.0)
        stage.end(0, 1)
        stage.expect_nothing_left()


WRONG = [
    (lambda: client_of(max_waiting=-1), ValueError, "max_waiting = -1"),
    (lambda: client_of(timeout_s=0), ValueError, "timeout_s = 0"),
    (lambda: client_of(random_seed=-1), ValueError, "random_seed"),
    (lambda: client_of(time_attr="t"), ValueError, "has no times"),
    (lambda: client_of(neighbors=[-2]), ValueError, "num_neighbors"),
    (
        lambda: client_of(sampler="labor", batch_dependency=8),
        ValueError,
        "batch_dependency = 8: requests",
    ),
    (lambda: client_of(where={"server_rank": 7}), ValueError, "server_rank = 7"),
    (lambda: glt.distributed.SamplingClient([2], worker_options=3), TypeError, "worker_options has type int"),
]
WRONG_SEEDS = [
    (([],), ValueError, "nodes has 0 seeds: expected 1 to 65536"),
    ((torch.zeros(70000, dtype=torch.int64),), ValueError, "nodes has 70000 seeds"),
    (([0.5],), TypeError, "nodes has dtype"),
    ((None,), TypeError, "nodes = None"),
    ((("user", [1]),), ValueError, "nodes has type 'user'"),
    (([1], [3]), ValueError, "no time_attr"),
    (([1], None, [1, 2]), ValueError, "input_id has 2"),
]


def refusals():
    for make, kind, text in WRONG:
        with pytest.raises(kind) as refused:
            make()
        assert text in str(refused.value), refused.value
    with client_of() as client:
        for given, kind, text in WRONG_SEEDS:
            with pytest.raises(kind) as refused:
                client.sample(*given)
            assert text in str(refused.value), refused.value
        with pytest.raises(ValueError, match="timeout_s = -1"):
            client.sample([1], timeout_s=-1)

        async def on_gltss_own_loop():
            with pytest.raises(RuntimeError, match="await asample"):
                client.sample([1])
            return (await client.asample([1])).batch_size

        assert wait_for(on_gltss_own_loop()) == 1
        pid = os.fork()
        if pid == 0:
            try:
                client.sample([1])
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        client.sample([1])


def speak_nonsense():
    """Connections that break the rules end, and no other does."""
    with client_of(where={"worker_concurrency": 2}) as client:
        loader, session = client._asker._loader, require_client().session(0)
        granted, place = loader._take(1, session, loader._ask(session)), {"first": 0, "step": 1}

        async def reach():
            return await open_questions(granted, granted.workers[0], place, time.monotonic() + 10)

        async def end_of(speak):
            (connection, _), ended = await reach(), asyncio.get_running_loop().create_future()
            connection.start(lambda frame: None, ended.set_result, max_data_bytes=1 << 20)
            speak(connection)
            return await asyncio.wait_for(ended, 20)

        good = Question(0, torch.arange(600)).encode()
        for speak in (
            lambda c: c.send({"within_s": 5}),
            lambda c: c.send({"when": 5}, [good], number=1),
            lambda c: c.send({"within_s": "soon"}, [good], number=1),
            lambda c: c.send({"within_s": 5}, [torch.zeros(4 << 20, dtype=torch.uint8)], number=1),
            lambda c: [c.send({"within_s": 5}, [good], number=i) for i in range(40)],
        ):
            assert isinstance(wait_for(end_of(speak), 60), GltError)
        with pytest.raises(GltError, match="not known here"):
            wait_for(open_questions(replace(granted, secret="0" * 64), granted.workers[0], place, time.monotonic() + 1))
        assert client.sample([1]).batch_size == 1 and client.stats()["num_asked_again"] == 0
        assert require_client().session(0).lost is None


def test_what_is_refused(world):
    with Stage(2) as stage:
        stage.start_servers(world(1).path, 1, 1)
        with pytest.raises(Failed, match="no distributed context"):
            stage.ask(1, "run_function", client_of)
        stage.start_clients(1, 1)
        stage.ask(1, "run_function", refusals)
        stage.ask(1, "run_function", speak_nonsense)
        stage.finish((1,), (0,))


@pytest.mark.usefixtures("alone")
def test_a_trainer_is_told_what_samples_in_process():
    with pytest.raises(RuntimeError, match=r"asks servers, and this process is .*glt\.loader\.NeighborLoader"):
        glt.distributed.SamplingClient([2])
