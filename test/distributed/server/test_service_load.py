"""Eight clients of one server, hungry all the time: equal shares, and nothing grows."""

import os
import time

import pytest
from promptness import eventually
from service_actors import Stage

FULL = os.environ.get("GLT_FULL") == "1"
NUM_CLIENTS = 8
# Half an hour of eight trainers that take ten batches a second and begin a new loader every five minutes, without the
# time between the batches: GLT_FULL=1.
NUM_LOADERS = 6 if FULL else 1  # that each client goes through, one after the other
BATCHES = 3000 if FULL else 400  # of each of them, at least
GROWTH = 64 << 20
LIMIT_S = 3600 if FULL else 300
FAIR = 0.9


@pytest.mark.timeout(LIMIT_S)
def test_eight_clients(world):
    """Two processes, four clients each in groups of their own, would do; here each is a process."""
    here = world(1)
    with Stage(1 + NUM_CLIENTS, deadline_s=LIMIT_S - 60.0) as stage:
        ((sampler,),) = stage.start_servers(here.path, 1, NUM_CLIENTS, max_concurrency=4)
        stage.start_clients(1, NUM_CLIENTS)
        clients = range(1, 1 + NUM_CLIENTS)

        def counts():
            for actor in clients:
                stage.begin(actor, "count", "hungry")
            return [stage.result(actor) for actor in clients]

        def holdings():
            for actor in clients:
                stage.begin(actor, "census")
            found = [stage.result(actor) for actor in clients]
            return [stage.ask(0, "census"), stage.ask(0, "census", sampler), *found]

        before = None
        for _ in range(NUM_LOADERS):
            for actor in clients:
                stage.ask(actor, "make", "hungry", batch_size=32)
            for actor in clients:
                stage.begin(actor, "go", "hungry")
            for actor in clients:
                stage.result(actor)
            assert eventually(lambda: min(counts()) > 30)  # warm, and all of them hungry
            if before is None:
                before = holdings()
            start, since = counts(), time.monotonic()
            while min(now - then for now, then in zip(counts(), start, strict=True)) < BATCHES:
                assert time.monotonic() - since < 600
                time.sleep(0.2)
            shares = [now - then for now, then in zip(counts(), start, strict=True)]
            assert min(shares) >= FAIR * max(shares), shares
            after = holdings()
            for actor in clients:
                stage.ask(actor, "stop", "hungry")
                stage.ask(actor, "close", "hungry")
            for now, then in zip(after, before, strict=True):
                assert now[0] <= then[0] + 3 and now[1] <= then[1] + 3 and now[2] == then[2], (before, after)
                assert now[3] <= then[3] + GROWTH, (before, after)
        assert stage.ask(0, "samplers") == [sampler]
        for actor in clients:
            stage.ask(actor, "leave")
        assert stage.ask(0, "wait_and_shutdown", 60.0)
        stage.end(0, *clients)
        stage.results()
        stage.expect_nothing_left()
