"""``num_workers`` and ``prefetch_size`` ``"auto"``: batches stay the same while samplers and batches ahead change."""

import logging
import os
import time

import pytest
import torch
from dist_world import CASES, SEED, assert_same, expect_law, run_cluster, snapshot
from server.test_service_batch_law import expect_law as expect_law_of_servers
from service import options, serve_or

import glt
from glt.distributed import MpDistSamplingWorkerOptions, RemoteDistSamplingWorkerOptions
from glt.loader import tuning


@pytest.fixture
def hasty(monkeypatch):
    """Another number of workers is tried every few batches, up to four, as if it were better each time."""
    monkeypatch.setattr(tuning.WorkerTuner, "num_skipped", 1)
    monkeypatch.setattr(tuning.WorkerTuner, "num_measured", 1)
    monkeypatch.setattr(tuning, "MOST_WORKERS", 4)
    monkeypatch.setattr(tuning, "_LITTLE", -1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    real = tuning.WorkerTuner.take
    monkeypatch.setattr(tuning.WorkerTuner, "take", lambda self, *_: real(self, 1.0 / (1 + self.num_workers), 1.0))


@pytest.mark.parametrize("trainers", [1, 2])
def test_batches_of_workers_are_those_of_every_other_mode(world, hasty, trainers):
    expect_law(world(2), "mp", {"num_workers": "auto", "read_local": trainers == 1}, CASES[:2], trainers)


@pytest.mark.parametrize("servers", [1, 2])
def test_batches_of_servers_are_those_of_every_other_mode(world, hasty, servers):
    given = {"num_workers": "auto", "server_rank": list(range(servers)), "gather_window": 3, "prefetch_size": "auto"}
    expect_law_of_servers(world(2), servers, 1, given, CASES[:2])


def test_it_says_what_it_chose_and_goes_on_in_the_middle(world, alone, hasty, caplog):
    case, here = CASES[0], world(2)
    data = glt.distributed.DistDataset().load(here.path, 0)
    where = MpDistSamplingWorkerOptions(num_workers="auto", master_port=None)
    wanted = case.reference(here, 0)
    with glt.distributed.DistNeighborLoader(data, worker_options=where, **case.arguments(0)) as loader:
        batches, numbers = iter(loader), []
        with caplog.at_level(logging.INFO, logger="glt.loader.tuning"):
            for _ in range(6):
                assert_same([snapshot(next(batches))], [wanted[len(numbers)]], "before")
                numbers.append(loader.stats()["num_workers"])
            assert numbers == [1, 1, 2, 2, 2, 4]
            state = loader.state_dict()
            rest = list(map(snapshot, batches)) + list(map(snapshot, loader))
        assert "num_workers = 'auto': 4; a batch took 500 ms with 1, 333 ms with 2, 200 ms with 4" in caplog.text
    assert_same(rest, wanted[6:], "after")
    with glt.distributed.DistNeighborLoader(data, worker_options=where, **case.arguments(0)) as loader:
        loader.load_state_dict(state)
        assert_same([snapshot(batch) for batch in loader], wanted[6 : len(wanted) // 2], "resumed")


def test_one_core_is_one_worker(world, alone, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1))
    data = glt.distributed.DistDataset().load(world(2).path, 0)
    where = MpDistSamplingWorkerOptions(num_workers="auto")
    given = {"input_nodes": torch.arange(600), "batch_size": 5, "random_seed": SEED, "worker_options": where}
    with glt.distributed.DistNeighborLoader(data, [2], **given) as loader:
        assert sum(1 for _ in loader) == 120
        assert loader.stats()["num_workers"] == 1


def batches_that_wait(trainer, rank, sizes):
    """How many batches are there after each of some pauses, between which many are taken."""
    found = []
    for size in sizes:
        given = {"input_nodes": torch.arange(600), "batch_size": 2, "random_seed": SEED, "num_neighbors": [2]}
        with glt.distributed.DistNeighborLoader(None, **given, worker_options=options(prefetch_size=size)) as loader:
            batches, queued = iter(loader), []
            for _ in range(7):
                time.sleep(0.5)
                queued.append(loader.stats()["channel_num_queued"])
                for _ in range(40):
                    next(batches)
        found.append(queued)
    return found


def test_as_many_batches_are_sent_ahead_as_a_trainer_needs_that_takes_many_at_once(world):
    fixed, auto = run_cluster(2, serve_or, world(1).path, 1, 1, batches_that_wait, {}, [4, "auto"])[1]
    assert max(fixed) == 4, fixed
    assert auto[0] <= 4 and 8 <= max(auto) <= 64, auto


@pytest.mark.parametrize("kind", [MpDistSamplingWorkerOptions, RemoteDistSamplingWorkerOptions])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num_workers": "many"}, "num_workers = 'many': expected a number of processes, or 'auto'"),
        ({"num_workers": "auto", "worker_devices": "cpu"}, "num_workers = 'auto' and worker_devices = 'cpu'"),
    ],
)
def test_what_does_not_go_with_it(kind, given, text):
    with pytest.raises(ValueError, match=text):
        kind(**given)


def test_another_word_is_no_number_of_batches():
    with pytest.raises(ValueError, match="prefetch_size = 'many': expected a number of batches, or 'auto'"):
        RemoteDistSamplingWorkerOptions(prefetch_size="many")
