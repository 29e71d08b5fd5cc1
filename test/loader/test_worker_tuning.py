"""``num_workers="auto"``: the number of workers that makes epochs shortest, and the batches of any number."""

import logging
import os
import time

import pytest
import torch

from glt.data.synthetic import synthetic_graph
from glt.loader import NeighborLoader, RandomWalkLoader, tuning
from glt.testing import ring_graph


@pytest.fixture(scope="module")
def data():
    return synthetic_graph(2_000).to_pyg()


@pytest.fixture
def short(monkeypatch):
    """Trials of a few batches, of up to four workers."""
    monkeypatch.setattr(tuning, "_MEASURED", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))


def chosen(times, waited=1.0, most=8):
    """What is chosen if batches take so long by number of workers."""
    tuner = tuning.WorkerTuner(0, most)
    while not tuner.is_chosen:
        batch_s = times[tuner.num_workers]
        tuner.take(batch_s, waited * batch_s)
    return tuner.num_workers, list(tuner.batch_s)


@pytest.mark.parametrize(
    ("times", "most", "expected", "tried"),
    [
        ({0: 1.0, 1: 0.98, 2: 0.5, 4: 0.26, 8: 0.25}, 8, 4, [0, 1, 2, 4, 8]),  # the eighth gains less than a tenth
        ({0: 1.0, 1: 1.2, 2: 1.1}, 8, 0, [0, 1, 2]),  # workers disturb the trainer
        ({0: 1.0, 1: 0.95, 2: 0.93}, 8, 0, [0, 1, 2]),  # a gain of less than a tenth
        ({0: 1.0, 1: 0.6, 2: 0.59}, 8, 1, [0, 1, 2]),
        ({0: 1.0, 1: 0.5, 2: 0.25}, 2, 2, [0, 1, 2]),  # no more cores
        ({0: 1.0, 1: 0.5}, 1, 1, [0, 1]),
    ],
)
def test_the_fewest_that_are_as_good_as_the_best(times, most, expected, tried):
    assert chosen(times, most=most) == (expected, tried)


def test_nothing_is_tried_where_the_trainer_hardly_waits():
    assert chosen({0: 1.0}, waited=0.04) == (0, [0])


def epochs_of(num_batches, times):
    """How many workers there are at the end of each of ten epochs, if batches take so long and trainers only wait."""
    tuner, now_s, used = tuning.WorkerTuner(0, 8), 0.0, []
    for _ in range(10):
        tuner.begin()
        for _ in range(num_batches):
            if tuner.measure((now_s, now_s)):
                tuner.begin()
            now_s += times[tuner.num_workers]
        used.append(tuner.num_workers)
    return used


def test_a_number_that_epochs_are_too_short_to_try_is_given_up(caplog):
    with caplog.at_level(logging.INFO, logger="glt.loader.tuning"):
        assert epochs_of(20, {0: 1.0, 1: 2.0}) == [1, 1, 1] + [0] * 7
    assert "num_workers = 'auto': 0; a batch took 1e+03 ms with 0; epochs are too short to try 1" in caplog.text
    assert epochs_of(40, {0: 1.0, 1: 0.8, 2: 0.6, 4: 2.0}) == [2, 4, 4, 4] + [2] * 6
    assert epochs_of(13, {0: 1.0}) == [0] * 10


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_any_number_of_workers(data, short, shuffle):
    options = {"batch_size": 50, "shuffle": shuffle, "random_seed": 3}
    fixed = NeighborLoader(data, [3, 2], **options)
    auto = NeighborLoader(data, [3, 2], num_workers="auto", **options)
    tried = set()
    for _ in range(2):
        expected = [batch.n_id for batch in fixed]
        found = []
        for batch in auto:
            found.append(batch.n_id)
            tried.add(auto.num_workers)
        assert len(found) == len(expected) == 40
        assert all(map(torch.equal, found, expected))
    assert {0, 1, 2} <= tried and auto._tuner.is_chosen


def test_torchs_generator_is_where_workers_of_a_fixed_number_leave_it(data, short):
    states = []
    for num_workers in (0, "auto"):
        torch.manual_seed(5)
        for _ in NeighborLoader(data, [3], batch_size=50, num_workers=num_workers, random_seed=3):
            pass
        states.append(torch.rand(1).item())
    assert states[0] == states[1]


class Slow:
    """Makes batches slow where they are made, without a core."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, batch):
        time.sleep(self.seconds)
        return batch


def test_slow_batches_and_a_fast_trainer(data, short, caplog):
    options = {"batch_size": 25, "filter_per_worker": True, "random_seed": 3}
    loader = NeighborLoader(data, [3], transform=Slow(0.05), num_workers="auto", **options)
    with caplog.at_level(logging.INFO, logger="glt.loader.tuning"):
        for _ in loader:
            pass
    assert loader.num_workers >= 2
    assert "num_workers = 'auto': " in caplog.text and "ms with 0, " in caplog.text


def test_fast_batches_and_a_slow_trainer(data, short, monkeypatch):
    monkeypatch.setattr(tuning, "_LITTLE", 0.5)  # on a busy machine fast batches are slow at times
    loader = NeighborLoader(data, [3], batch_size=50, num_workers="auto", random_seed=3)
    for _ in loader:
        time.sleep(0.1)
        if loader._tuner.is_chosen:
            break
    assert loader.num_workers == 0


def test_resuming_in_the_middle(data, short):
    options = {"batch_size": 50, "shuffle": True, "random_seed": 3}
    expected = [batch.n_id for batch in NeighborLoader(data, [3], **options)]
    first = NeighborLoader(data, [3], num_workers="auto", **options)
    batches = iter(first)
    for _ in range(17):
        next(batches)
    second = NeighborLoader(data, [3], num_workers="auto", **options)
    second.load_state_dict(first.state_dict())
    assert all(map(torch.equal, (batch.n_id for batch in second), expected[17:]))


class Failing:
    """Fails at the batches of two seeds, wherever they are made."""

    def __call__(self, batch):
        if set(batch.input_id.tolist()) & {120, 700}:
            raise OSError("the disk is gone")
        return batch


def test_the_batch_behind_one_that_fails_comes_next(data, short):
    options = {"batch_size": 50, "transform": Failing(), "filter_per_worker": True, "random_seed": 3}
    found = []
    for num_workers in (0, "auto"):
        batches, seen = iter(NeighborLoader(data, [3], num_workers=num_workers, **options)), []
        while True:
            try:
                seen.append(next(batches).n_id.tolist())
            except OSError:
                seen.append("failed")
            except StopIteration:
                break
        found.append(seen)
    assert found[0] == found[1] and found[0].count("failed") == 2 and len(found[0]) == 40


def test_other_loaders_take_it(short):
    data = ring_graph().to_data()
    walks = [
        [pos.tolist() for pos, _ in RandomWalkLoader(data, 3, 2, batch_size=4, num_workers=each, random_seed=1)]
        for each in (0, "auto")
    ]
    assert walks[0] == walks[1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_workers": "many"}, "num_workers = 'many': expected a number of processes, or 'auto'"),
        ({"persistent_workers": True}, "persistent_workers = True and num_workers = 'auto'"),
        ({"prefetch_factor": 4}, "prefetch_factor = 4 and num_workers = 'auto'"),
        ({"in_order": False}, "in_order = False and num_workers = 'auto'"),
        ({"timeout": 30}, "timeout = 30 and num_workers = 'auto'"),
        ({"multiprocessing_context": "spawn"}, "multiprocessing_context = 'spawn' and num_workers = 'auto'"),
        ({"generator": torch.Generator()}, "a sampler, batch_sampler or generator"),
    ],
)
def test_what_does_not_go_with_it(data, options, text):
    with pytest.raises(ValueError, match=text):
        NeighborLoader(data, [3], **{"num_workers": "auto", **options})
