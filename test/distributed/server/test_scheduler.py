"""Who samples next on a server: turns between loaders, windows of streams, and the watch over samplers."""

import os
import random
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from promptness import eventually

from glt.data.device import Accelerator
from glt.distributed.engine.processes import ProcessPool
from glt.distributed.engine.sampling_job import SeedTable
from glt.distributed.server import stream as streams
from glt.distributed.server import worker as program
from glt.distributed.server.membership import ReadPlan
from glt.distributed.server.pool import PoolWorkerSpec, SamplerPool, ServedLoaders
from glt.distributed.server.scheduler import FairScheduler
from glt.distributed.server.worker import PoolWorker
from glt.distributed.wire.addresses import host_id


class Simulation:
    """Lanes on one thread: in each step all that are hungry wait, and the one that is next begins a batch."""

    def __init__(self, num_places, *most):
        self.turns = FairScheduler(num_places)
        self.hungry, self.running, self.lanes = {}, [], []
        for each in most:
            self.add(each)

    def add(self, most=4):
        lane = self.turns.add(most, lambda: self.hungry[lane])
        self.hungry[lane] = lane.is_waiting = True
        self.lanes.append(lane)

    def begin(self):
        """Gives one place to the lane that is next."""
        lane = self.turns.next_flow()
        if lane is not None:
            assert self.turns.acquire(lane, lambda: False)
            lane.is_waiting = True  # it comes back for the next batch at once
            self.running.append(lane)
        return lane

    def finish(self, lane):
        self.running.remove(lane)
        self.turns.release(lane)

    def run(self, num_batches):
        """Batches one after the other; returns how many of them each lane began."""
        before = [lane.num_begun for lane in self.lanes]
        for _ in range(num_batches):
            self.finish(self.begin())
        return [lane.num_begun - then for lane, then in zip(self.lanes, before, strict=True)]


@pytest.mark.parametrize("num_lanes", [1, 2, 3, 8, 40])
def test_hungry_lanes_begin_equally_many(num_lanes):
    rng = random.Random(3)
    sim = Simulation(4, *[4] * num_lanes)
    for _ in range(100 * num_lanes):
        while sim.begin() is not None:
            assert len(sim.running) <= 4
        sim.finish(rng.choice(sim.running))  # batches take as long as they like
    counts = [lane.num_begun for lane in sim.lanes]
    assert max(counts) - min(counts) <= 4, counts


def test_a_lane_that_was_away_or_comes_late_does_not_hold_up_the_others():
    """However long it was away, it gets a few batches more than its share, once."""
    sim = Simulation(1, 4, 4)
    away = sim.lanes[0]
    sim.hungry[away] = False
    assert sim.run(1000) == [0, 1000], "it holds no place"
    sim.hungry[away] = True
    assert 50 <= sim.run(100)[0] <= 54
    sim.add()
    mine, *others = reversed(sim.run(99))
    assert all(abs(mine - each) <= 2 for each in others)


def test_a_lane_has_at_most_so_many_in_flight():
    sim = Simulation(8, 1, 16)
    while sim.begin() is not None:
        pass
    assert [lane.num_running for lane in sim.lanes] == [1, 7]


def test_a_lane_that_is_removed_gives_back_its_places():
    sim = Simulation(1, 4, 4)
    lane, other = sim.lanes
    assert sim.begin() is lane
    sim.turns.remove(lane)
    assert sim.begin() is None
    sim.finish(lane)
    assert sim.begin() is other


def test_a_change_wakes_the_lane_that_is_next_and_no_other():
    """With 200 lanes that wait, waking all for each batch took all the CPU time that there was."""
    sim = Simulation(1, *[1] * 200)
    lanes = sim.lanes
    woken = []
    for lane in lanes:
        lane.wake = lambda lane=lane: woken.append(lane)
    assert sim.begin() is lanes[0]
    woken.clear()
    sim.finish(lanes[0])
    assert woken == [lanes[1]]
    assert sim.begin() is lanes[1]
    sim.hungry[lanes[2]] = False
    woken.clear()
    sim.finish(lanes[1])
    assert woken == [lanes[3]]
    woken.clear()
    sim.turns.look_again()
    assert woken == [lanes[3]]


def test_few_are_asked_whether_they_may_begin():
    turns, asked = FairScheduler(1), []
    lanes = [turns.add(1, lambda i=i: asked.append(i) or True) for i in range(200)]
    for lane in lanes:
        lane.is_waiting = True
    assert turns.next_flow() is lanes[0]
    assert asked == [0]


@pytest.mark.parametrize(("device", "is_pinned"), [(None, False), ("cpu", False), ("cuda:0", True)])
def test_batches_of_a_sampler_on_a_gpu_wait_in_pinned_memory_as_far_as_may_wait(monkeypatch, device, is_pinned):
    place = None if device is None else Accelerator(torch.device(device))  # the device cpu: the host plays the GPU
    monkeypatch.setattr(program, "accelerator_of", lambda *_: place)
    channels = []
    monkeypatch.setattr(streams, "LocalChannel", lambda *given: channels.append(given[1:]))
    for name in ("sampler_of", "SamplingJob", "Producer"):
        monkeypatch.setattr(program, name, Anything())
    worker = PoolWorker.__new__(PoolWorker)
    worker.spec, worker.scheduler = Anything(worker=0), FairScheduler(1)
    worker.loop, worker.dataset, worker._spare = Anything(), Anything(sampling_device=None), []
    request = {"id": "test", "other_dirs": {}, "peers": [], "order": {}, "samplers": [0]}
    request |= {"prefetch_size": 1, "buffer_bytes": 3000, "concurrency": 1}
    worker.stream(SimpleNamespace(request=request, table=Anything()), (0, 1), False, 0)
    assert channels == [(True, 3000) if is_pinned else ()]


class Anything(SimpleNamespace):
    """In the place of what a sampler is made of."""

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, name):
        return self


SPEC = PoolWorkerSpec(0, 0, {}, 1, 1, 60.0, 20, "text")


@contextmanager
def pool_of_stand_ins(died=lambda worker, text: None):
    pool = SamplerPool(SPEC, 1, died, module="stand_in_program")
    try:
        yield pool
    finally:
        pool.close()


def test_the_watch_goes_on_after_an_error_of_its_own(monkeypatch):
    looks = []
    look = ProcessPool.look

    def fail_once(pool, timeout_s):
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("can't start new thread")
        return look(pool, timeout_s)

    monkeypatch.setattr(ProcessPool, "look", fail_once)
    with pool_of_stand_ins():
        assert eventually(lambda: len(looks) > 1)


def test_a_sampler_that_dies_is_replaced_and_one_that_cannot_start_is_not():
    deaths = []
    with pool_of_stand_ins(lambda worker, text: deaths.append(text)) as pool:
        assert pool.ensure(3) == [0]
        pid = pool.pids()[0]
        os.kill(pid, 9)
        assert eventually(lambda: pool.pids().get(0, pid) != pid) and pool.num_restarts() == {0: 1}
        assert (
            f"worker 0 of server 0 (host {os.uname().nodename}, pid {pid}) died with exit code -9: it was" in deaths[0]
        )
        pool.send_all({"fail": "no more"})
        assert eventually(lambda: len(deaths) == 2 and not pool.pids())
        assert pool.num_restarts() == {0: 1}


def test_where_a_sampler_listens_is_told_to_the_clients_of_its_loaders():
    """A sampler that takes the place of another is told of the loaders again."""
    session, stranger = SimpleNamespace(id="s", group="g", rank=0), SimpleNamespace(id="t", group="g", rank=1)
    told = {"kind": "stream", "prefetch_size": 1, "concurrency": 1, "num_streams": 1, "order": {"num_seeds": 3}}
    told |= {"buffer_bytes": 1, "cache_bytes": 0, "gather_window": 1}
    with pool_of_stand_ins() as pool:
        loaders = ServedLoaders(pool, "server 0", 8, 1 << 30)
        assert pool.partition_at() is None
        loader = loaders.open(session, told, SeedTable({"ids": torch.arange(3)}), 1, ReadPlan({}, ()))
        assert loader.request["secret"] == loader.secret and len(loader.secret) == 64
        assert "worker 0 of server 0 is being replaced" in loaders.stream_at(session, loader.id, 0)["wait"]
        address = {"port": 1, "local": "\0name"}
        pool.send_all({"say": {"listens": address}})
        assert eventually(lambda: loaders.stream_at(session, loader.id, 0) == {**address, "host_id": host_id()})
        assert [pool.partition_at(), pool.partition_at()] == [address, address]
        for who, worker in ((stranger, 0), (session, 1)):
            with pytest.raises(RuntimeError, match="is not known here"):
                loaders.stream_at(who, loader.id, worker)
        sent = []
        send = pool.send
        pool.send = lambda worker, command, fds: sent.append((worker, command)) or send(worker, command, fds)
        os.kill(pool.pids()[0], 9)
        assert eventually(lambda: sent) and sent == [(0, {"loader": loader.request})]
        assert "wait" in loaders.stream_at(session, loader.id, 0)
        loaders.close_all("the end")
        with pytest.raises(RuntimeError, match="is not known here"):
            loaders.stream_at(session, loader.id, 0)
