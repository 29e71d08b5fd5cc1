"""The server's watch over its samplers."""

import os
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from promptness import eventually

from glt import _deadlines as deadlines
from glt.distributed.engine.processes import ProcessPool
from glt.distributed.engine.seeds import SeedTable
from glt.distributed.server.membership import ReadPlan
from glt.distributed.server.pool import PoolWorkerSpec, SamplerPool, ServedLoaders

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


def test_a_sampler_without_descriptors_is_given_no_connections(monkeypatch):
    """Its clients are told so, who would try again in vain for minutes."""
    monkeypatch.setattr(deadlines, "FULL_S", 3600.0)
    session = SimpleNamespace(id="s", group="g", rank=0)
    told = {"prefetch_size": 1, "concurrency": 1, "buffer_bytes": 1, "order": {"num_seeds": 3}}
    reading, writing = os.pipe()
    with pool_of_stand_ins() as pool:
        loaders = ServedLoaders(pool, "server 0", 8, 1 << 30)
        loader = loaders.open(session, told, SeedTable({"ids": torch.arange(3)}), 1, ReadPlan({}, ()))
        pool.send_all({"say": {"full": True}})
        assert eventually(lambda: pool.is_full(0))
        wrong = loaders.hand_over({"loader": loader.id, "session": "s", "worker": 0, "first": 0, "step": 1}, reading)
        assert wrong is not None and "worker 0 of server 0 is out of file descriptors" in wrong
        loaders.close_all("the end")
        pool.send_all({"say": {"ended": f"{loader.id}/1", "stats": {}}})
        assert eventually(lambda: not pool.is_full(0))
    os.close(reading)
    os.close(writing)
