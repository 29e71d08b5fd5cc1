"""Layer-wise inference of several trainers one of which fails: the others hear of it at once, and all may go on."""

import os
import signal
import time

import pytest
import torch
from dist_world import NUM_NODES
from job_stage import Job, begin_job, finalize, job_of
from promptness import eventually
from service_actors import Stage

import glt
from glt import _deadlines as deadlines
from glt.distributed.graph.inference import infer_layerwise
from glt.distributed.world import require_world

PROMPT_S = 100.0  # as opposed to the half hour of a barrier; on a busy machine seconds are many

X = torch.arange(float(NUM_NODES)).view(-1, 1)


def double(x, edge_index):
    return 2 * x


class Signals:
    """Words from one trainer to another beside glt, by files."""

    def __init__(self, folder):
        self.folder = folder

    def send(self, word):
        (self.folder / word).touch()

    def wait(self, word):
        assert eventually((self.folder / word).exists)


def attempts(rank, folder, spills):
    """Calls that fail on trainer 1, one after the other, and then one that does not: what each raised, and when."""
    deadlines.BEAT_S = 0.0
    signals, calls = Signals(folder), 0

    def fails(at, error):
        def layer(x, edge_index):
            if rank == at:
                raise error
            return x

        return layer

    def waits(x, edge_index):
        nonlocal calls
        if rank == 1:
            raise RuntimeError("early")
        if rank == 2:  # far from the barrier at the end of the layer
            signals.wait("early")
            calls += 1
        return x

    found = []
    for name, layers, given in (
        ("argument", [double], {"x": X[rank % 2 :]}),
        ("layer", [double, fails(1, RuntimeError("out of memory, say"))], {}),
        ("interrupt", [double, fails(1, KeyboardInterrupt("Ctrl-C"))], {}),
        ("zero", [double, fails(0, OSError("no disk, say"))], {}),
        ("early", [double, waits], {"batch_size": 50}),
        ("other", [double] * (1 + rank // 2), {}),
    ):
        with pytest.raises(BaseException, match="") as raised:
            infer_layerwise(layers, **{"x": X, "spill_dir": folder if spills else None, **given})
        found.append((type(raised.value).__name__, str(raised.value), time.monotonic()))
        if rank == 1:
            signals.send(name)
    assert calls <= 1  # it hears between two batches, or before its first
    got = infer_layerwise([double, double], X, spill_dir=folder if spills else None)
    assert torch.equal(got[torch.arange(NUM_NODES)], 4 * X)
    glt.distributed.barrier(60.0)
    left = require_world().stats()[0]["tensors"].keys() | {each.name for each in folder.glob("*.npy*")}
    assert left == ({"inference.npy"} if spills else {"inference"}), left
    return found


@pytest.mark.parametrize("spills", [False, True])
def test_others_are_told_and_all_go_on(world, tmp_path, spills):
    failures = (
        (1, "ValueError", "x has shape [599, 1]: expected a row for each of 600 nodes"),
        (1, "RuntimeError", "out of memory, say"),
        (1, "KeyboardInterrupt", "Ctrl-C"),
        (0, "OSError", "no disk, say"),
        (1, "RuntimeError", "early"),
    )
    with job_of(world(1, "in", "xye").path, 1, 3) as job:
        found = job.run(attempts, tmp_path, spills, ranked=True)
        for at, (culprit, error, words) in enumerate(failures):
            kind, text, when = found[culprit][at]
            assert kind == error and words in text
            for other in {0, 1, 2} - {culprit}:
                kind, text, then = found[other][at]
                assert kind == "PeerLost" and f"trainer {culprit}, client {culprit} of" in text, text
                assert f"{error}: {words}" in text and "infer_layerwise" in text, text
                assert then - when < PROMPT_S
        for kind, text, _ in (each[-1] for each in found):
            assert kind == "ValueError" and '"layers": 1' in text and '"layers": 2' in text and "trainer 2" in text


def infer_and_die(rank):
    def layer(x, edge_index):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    with pytest.raises(Exception, match="") as raised:
        infer_layerwise([double, layer], X)
    return type(raised.value).__name__, str(raised.value), time.monotonic()


def test_a_killed_trainer_is_named(world):
    made = world(2, "in", "xye")
    with Stage(5) as stage:
        begin_job(stage, made.path, 2, 3)
        Job(stage, 2, 3).begin(infer_and_die, ranked=True)
        stage.processes[3].join(60.0)
        killed = time.monotonic()
        for trainer in (2, 4):
            kind, text, when = stage.result(trainer)
            assert kind == "PeerLost" and "trainer 1, client 1 of" in text, text
            assert when - killed < PROMPT_S
        for server in (0, 1):
            stage.kill(server)
        for trainer in (2, 4):
            stage.ask(trainer, "run_function", finalize, 0.0)
        stage.end(2, 4)
        stage.expect_nothing_left()


def test_barriers_that_are_called_off():
    from glt.distributed.tensors.barrier import Barriers
    from glt.errors import PeerLost

    class Who:
        def __init__(self, rank):
            self.rank, self.id, self.group = rank, f"session {rank}", "trainers"

        def __str__(self):
            return f"client {self.rank}"

    barriers, (a, b, c) = Barriers(), map(Who, range(3))
    try:
        for who in (a, b, c):
            barriers.add(who)
        arrived = barriers.arrive(a, "t", 0, 3)
        assert barriers.failure(b, "t", 0, 3) is None
        assert barriers.abort(b, "t", 0, "has failed") == 0
        with pytest.raises(PeerLost, match="trainer 1, client 1, has failed"):
            arrived.result(0)
        with pytest.raises(PeerLost, match="barrier 0 of 't' has failed before client 2 arrived: trainer 1"):
            barriers.arrive(c, "t", 0, 3)
        assert barriers.abort(c, "t", 0, "has failed too") == 0, "once"
        assert barriers.failure(a, "t", 0, 3) == "trainer 1, client 1, has failed"
        assert [barriers.arrive(who, "t", 1, 3).done() for who in (c, a, b)] == [False, False, True]
        # One that gave up waiting for meeting 1 does not know that it was held: it calls off the next.
        assert barriers.abort(a, "t", 1, "was interrupted") == 2
        assert "was interrupted" in str(barriers.failure(b, "t", 2, 3))
        barriers.remove(c, "it was killed")
        assert barriers.failure(b, "t", 3, 2) is None
        assert barriers.failure(b, "t", 3, 3) == "trainer 2, client 2, is gone: it was killed"
        with pytest.raises(PeerLost, match="is gone, or never came"):
            barriers.abort(c, "t", 4, "")
    finally:
        barriers.close("the test is over")
