"""A trainer that was stopped at any batch goes on in a new job, in whatever mode: the same batches, to the bit."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dist_world import World, join, options
from promptness import eventually

import glt
from glt.errors import WorkerDied
from glt.testing import random_graph
from glt.testing_cluster import Cluster, Trainer, take_census

SEED, KINDS = 31, ("DistNeighborLoader", "DistLinkNeighborLoader", "DistSubGraphLoader")
GRAPH = random_graph(600, 6000, seed=3)


def make(trainer: Trainer, data: Any, kind: str, mode: str, random_seed: int | None, **given: Any) -> Any:
    """Trainers have seeds of their own, and unequally many."""
    own = slice(trainer.rank, 150 + 40 * trainer.rank, 2)
    seeds: Any = torch.arange(600)[own]
    flags: dict[str, Any] = {"batch_size": 16, "shuffle": True, "collect_features": True, "with_edge": True}
    if kind == "DistLinkNeighborLoader":
        seeds = GRAPH.edge_index[:, own]
        flags |= {"neg_sampling": "binary", "edge_label": torch.arange(seeds.shape[1])}
    flags |= {name: given.pop(name) for name in list(given) if name in flags}
    return getattr(glt.distributed, kind)(
        data, [3, 2], seeds, random_seed=random_seed, worker_options=options(trainer, mode, **given), **flags
    )


def plain(batch: Any) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch}


def run_whole(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Three epochs of each kind, and the state before each batch of the first two, as it would be in a file."""
    data = join(trainer, path)
    found: dict[str, Any] = {}
    for kind in KINDS:
        with make(trainer, data, kind, "collocated", SEED + trainer.rank) as loader:
            states, epochs = [loader.state_dict()], []
            for _ in range(3):
                epochs.append([])
                for batch in loader:
                    epochs[-1].append(plain(batch))
                    states.append(loader.state_dict())
        found[kind] = {"epochs": epochs, "states": json.dumps(states)}
    return found


def go_on(
    trainer: Trainer, path: Path, mode: str, given: dict[str, Any], states: dict[str, list[str]]
) -> dict[str, list[Any]]:
    """What is left of each state's epoch, and the epoch after it; the loader has a random seed of its own before."""
    data = join(trainer, path)
    left: dict[str, list[Any]] = {}
    for kind in states:
        with make(trainer, data, kind, mode, None, **given) as loader:
            left[kind] = []
            for state in map(json.loads, states[kind][trainer.rank]):
                assert loader.random_seed != state["random_seed"] or left[kind]
                loader.load_state_dict(state)
                assert loader.state_dict() == state and loader.random_seed == SEED + trainer.rank
                rest = [plain(batch) for batch in loader]
                left[kind].append((rest, [plain(batch) for batch in itertools.islice(loader, 2)]))
    return left


@pytest.fixture(scope="module")
def whole(world: Callable[..., World]) -> list[dict[str, Any]]:
    """What :func:`run_whole` finds, by rank."""
    with Cluster(2, run_whole, world(2).path) as cluster:
        return cluster.results()


@pytest.mark.parametrize(
    ("mode", "given", "chosen"),
    [
        ("collocated", {}, dict.fromkeys(KINDS, ((0, 3), (5, 11), (4, 6)))),
        ("mp", {"num_workers": 1}, {"DistLinkNeighborLoader": ((1, 6), (4, 0)), "DistSubGraphLoader": ((3, 2),)}),
        ("mp", {"num_workers": 3}, {"DistNeighborLoader": ((2, 1), (3, 5), (4, 0))}),
    ],
)
def test_the_rest_is_the_same_in_every_mode(
    world: Callable[..., World], whole: list[dict[str, Any]], mode: str, given: dict[str, Any], chosen: Any
) -> None:
    """``chosen``: how many batches rank 0 and rank 1 have had: they need not stand at the same one."""
    all_states = [{kind: json.loads(found[kind]["states"]) for kind in KINDS} for found in whole]
    states = {
        kind: [[json.dumps(mine[kind][numbers[rank]]) for numbers in cases] for rank, mine in enumerate(all_states)]
        for kind, cases in chosen.items()
    }
    with Cluster(2, go_on, world(2).path, mode, given, states) as cluster:
        by_rank = cluster.results()
        cluster.expect_nothing_left()
    for rank, left in enumerate(by_rank):
        for kind in chosen:
            epochs = whole[rank][kind]["epochs"]
            for numbers, (rest, following) in zip(chosen[kind], left[kind], strict=True):
                epoch, first = divmod(numbers[rank], len(epochs[0]))
                assert rest == epochs[epoch][first:] and len(rest) > 0, (rank, kind, numbers)
                assert following == epochs[epoch + 1][:2], (rank, kind, numbers)


def lose_a_worker(trainer: Trainer, path: Path) -> tuple[int, int]:
    """A worker is killed in the second epoch; another loader makes what is missing. Says how much that was."""
    data = join(trainer, path)

    def start(mode: str, random_seed: int | None, **given: Any) -> Any:
        return glt.distributed.DistNeighborLoader(
            data, [10, 10], torch.arange(600), batch_size=6, collect_features=True, random_seed=random_seed,
            worker_options=options(trainer, mode, **given),
        )  # fmt: skip

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


def test_a_state_outlives_the_workers(world: Callable[..., World]) -> None:
    with Cluster(1, lose_a_worker, world(1).path) as cluster:
        ((delivered, left),) = cluster.results()
        assert delivered >= 3 and left > 0
        cluster.expect_nothing_left()


def positions(trainer: Trainer, path: Path) -> None:
    """All that may happen to a position, in one process."""
    data = join(trainer, path)
    loader, twin = (make(trainer, data, KINDS[0], "collocated", SEED) for _ in range(2))
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

    def fail(batch: Any) -> Any:
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
        with make(trainer, data, kind, "collocated", SEED, **given) as other, pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
    of_other_seeds = Trainer(1, 1, trainer.port, trainer._connection)
    with (
        make(of_other_seeds, data, KINDS[0], "collocated", SEED) as other,
        pytest.raises(ValueError, match="num_seeds"),
    ):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="version = 7"):
        loader.load_state_dict(state | {"version": 7})
    loader.shutdown(), twin.shutdown()
    eventually(lambda: not take_census().children)


def test_positions_of_one_loader(world: Callable[..., World]) -> None:
    with Cluster(1, positions, world(1).path) as cluster:
        assert cluster.results() == [None]
        cluster.expect_nothing_left()
