"""A trainer is dead when it is dead: not when its interpreter is busy, and not later."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from dist_world import World, join, options

import glt
from glt.distributed.loader.deployment import Collocated
from glt.distributed.wire import liveness
from glt.distributed.wire.liveness import Lifeline, Watch, answers
from glt.errors import PeerLost
from glt.testing.cluster import Cluster, Trainer


class Clock:
    """Stands for the module ``time``: silence passes at once."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(liveness, "time", clock)
    return clock


@pytest.fixture
def store() -> dist.Store:
    return dist.TCPStore("localhost", 0, None, True, timedelta(seconds=20), wait_for_workers=False)


def test_a_trainer_that_never_beat_is_waited_for(store: dist.Store, clock: Clock) -> None:
    watch = Watch(store, "me")
    clock.now_s += 1000
    assert watch.is_alive(3)


def test_a_silent_trainer_lives_as_long_as_its_lifeline_answers(store: dist.Store, clock: Clock) -> None:
    line, watch = Lifeline(), Watch(store, "me")
    store.set("line/1", json.dumps(["127.0.0.1", line.port]))
    store.set("beat/1", "1")
    assert watch.is_alive(1)
    clock.now_s += liveness.SILENT_S + 1
    assert watch.is_alive(1)
    clock.now_s += liveness.STUCK_S
    assert not watch.is_alive(1)  # it lives, but not as anyone could use it
    store.set("beat/1", "2")
    assert watch.is_alive(1)  # it was stopped, and goes on
    line.close()
    clock.now_s += liveness.DOUBT_S - 0.1
    assert watch.is_alive(1)
    clock.now_s += 0.2
    assert not watch.is_alive(1)
    store.set("trainer/1", json.dumps({"host": "h", "pid": 77}))
    clock.now_s += 1
    with pytest.raises(PeerLost, match=r"trainer 1 \(host h, pid 77\) died.* no sign of life for 4 s"):
        watch.check([1])


def test_a_silent_trainer_whose_lifeline_cannot_be_reached_is_dead_after_some_time(
    store: dist.Store, clock: Clock
) -> None:
    line, watch = Lifeline(), Watch(store, "me")
    line.close()
    store.set("line/1", json.dumps(["127.0.0.1", line.port]))
    store.set("beat/1", "1")
    assert watch.is_alive(1)
    clock.now_s += liveness.SILENT_S - 0.1
    assert watch.is_alive(1)
    clock.now_s += 1
    assert not watch.is_alive(1)


def test_a_lifeline_answers_more_often_than_it_has_room_and_not_for_a_fork() -> None:
    line = Lifeline()
    for _ in range(3):
        for _ in range(100):
            assert answers("127.0.0.1", line.port)
        line.hang_up()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        line.close()
        deadline = time.monotonic() + 30
        while answers("127.0.0.1", line.port) and time.monotonic() < deadline:  # until the child has run its fork hook
            time.sleep(0.01)
        assert answers("127.0.0.1", line.port) is False
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_lifeline_breaks_with_its_process() -> None:
    program = "import time; from glt.distributed.wire.liveness import Lifeline; print(Lifeline().port, flush=True)"
    program = program.replace("print(Lifeline()", "line = Lifeline(); print(line") + "; time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert answers("127.0.0.1", port)
        process.kill()
        process.wait(30)
        assert answers("127.0.0.1", port) is False


def hold_the_interpreter(trainer: Trainer, path: Path) -> int:
    """Rank 1 lets none of its threads run for longer than silence is tolerated, while rank 0 waits for it."""
    liveness.BEAT_S, liveness.DOUBT_S, liveness.SILENT_S = 0.1, 0.5, 1.0
    data = join(trainer, path)
    start = Collocated.start

    def late(deployed: Collocated, *args: Any) -> object:
        if trainer.rank == 1:
            time.sleep(0.5)  # the other one has seen a beat, and the lifeline
            ctypes.PyDLL(None).usleep(3_000_000)  # unlike time.sleep, with the GIL
        return start(deployed, *args)

    Collocated.start = late  # type: ignore
    with glt.distributed.DistNeighborLoader(
        data, [3], torch.arange(50), batch_size=10, worker_options=options(trainer, "collocated")
    ) as loader:
        return len(list(loader))


def test_a_trainer_that_holds_the_interpreter_is_not_taken_for_dead(world: Callable[..., World]) -> None:
    with Cluster(2, hold_the_interpreter, world(2).path) as cluster:
        assert cluster.results() == [5, 5]
        cluster.expect_nothing_left()
