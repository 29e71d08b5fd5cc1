"""A trainer that was stopped at any batch goes on in a new job, in whatever mode: the same batches, to the bit."""

import os
import signal

import pytest
import torch
from dist_world import join, options, run_cluster
from promptness import eventually
from resume_world import KINDS, SEED, expect_the_rest, go_on, make, plain, run_whole, states_of

import glt
from glt.errors import WorkerDied
from glt.testing.cluster import Cluster, take_census


@pytest.fixture(scope="module")
def whole(world):
    """What :func:`run_whole` finds, by rank."""
    with Cluster(2, run_whole, world(2).path) as cluster:
        return cluster.results()


def go_on_here(trainer, path, mode, given, states):
    return go_on(trainer.rank, join(trainer, path), options(trainer, mode, **given), states)


@pytest.mark.parametrize(
    ("mode", "given", "chosen"),
    [
        ("collocated", {}, dict.fromkeys(KINDS, ((0, 3), (5, 11), (4, 6)))),
        ("mp", {"num_workers": 1}, {"DistLinkNeighborLoader": ((1, 6), (4, 0))}),
        ("mp", {"num_workers": 2}, {"DistNeighborLoader": ((2, 1), (3, 5), (4, 0))}),
    ],
)
def test_the_rest_is_the_same_in_every_mode(world, whole, mode, given, chosen):
    """Trainers need not stand at the same batch."""
    expect_the_rest(whole, chosen, run_cluster(2, go_on_here, world(2).path, mode, given, states_of(whole, chosen)))


def lose_a_worker(trainer, path):
    """A worker is killed in the second epoch; another loader makes what is missing. Says how much that was."""
    data = join(trainer, path)

    def start(mode, random_seed, **given):
        flags = {"batch_size": 6, "collect_features": True, "random_seed": random_seed}
        where = options(trainer, mode, **given)
        return glt.distributed.DistNeighborLoader(data, [10, 10], torch.arange(600), worker_options=where, **flags)

    with start("collocated", SEED) as loader:
        epochs = [[plain(batch) for batch in loader] for _ in range(3)]
    delivered = []
    # What has been sampled ahead of a kill still arrives: that must be less than an epoch.
    with start("mp", SEED, num_workers=2, channel_size="1MB") as loader:
        for _ in loader:
            pass
        with pytest.raises(WorkerDied):
            for batch in loader:
                delivered.append(plain(batch))
                if len(delivered) == 3:
                    workers = [pid for pid, line in take_census().children.items() if "glt.distributed" in line]
                    os.kill(max(workers), signal.SIGKILL)
        state = loader.state_dict()
    assert loader.state_dict() == state, "also after it was shut down"
    assert (state["epoch"], state["next_batch"]) == (1, len(delivered))
    with start("mp", None) as loader:
        loader.load_state_dict(state)
        left = [plain(batch) for batch in loader]
        assert delivered + left == epochs[1]
        assert [plain(batch) for batch in loader] == epochs[2]
    return len(delivered), len(left)


def test_a_state_outlives_the_workers(world):
    ((delivered, left),) = run_cluster(1, lose_a_worker, world(1).path)
    assert delivered >= 3 and left > 0


def positions(trainer, path):
    """All that may happen to a position, in one process."""
    data, here = join(trainer, path), options(trainer, "collocated")
    loader, twin = (make(0, data, KINDS[0], here, SEED) for _ in range(2))
    epochs = [[plain(batch) for batch in twin] for _ in range(2)]
    for _ in loader:
        break
    state = loader.state_dict()
    assert (state["epoch"], state["next_batch"]) == (0, 1)
    assert [plain(batch) for batch in loader] == epochs[1], "the loader itself begins the next"
    running = iter(loader)
    next(running)
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="a state was loaded"):
        next(running)
    assert [plain(batch) for batch in loader] == epochs[0][1:] and len(loader) == len(epochs[0])
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert [plain(batch) for batch in loader] == epochs[1]

    def fail(batch):
        raise ArithmeticError("in the transform")

    loader.load_state_dict(state)
    loader.transform = fail
    with pytest.raises(ArithmeticError):
        next(iter(loader))
    assert loader.state_dict() == state, "what nobody was handed was not delivered"

    for kind, given, text in (
        (KINDS[0], {"batch_size": 20}, "batch_size is 16, but of this loader 20"),
        (KINDS[0], {"with_edge": False}, "with_edge is True, but of this loader False"),
        (KINDS[2], {}, "loader is 'DistNeighborLoader', but of this loader 'DistSubGraphLoader'"),
        (KINDS[1], {}, "loader is 'DistNeighborLoader', but of this loader 'DistLinkNeighborLoader'"),
    ):
        with make(0, data, kind, here, SEED, **given) as other, pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
    with make(1, data, KINDS[0], here, SEED) as other, pytest.raises(ValueError, match="num_seeds is 75"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="version = 7"):
        loader.load_state_dict(state | {"version": 7})
    loader.shutdown(), twin.shutdown()
    eventually(lambda: not take_census().children)


def test_positions_of_one_loader(world):
    assert run_cluster(1, positions, world(1).path) == [None]
