"""A trainer that refuses its arguments tells those who wait for it, and does not wait itself."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dist_world import World, join, options
from promptness import expect_prompt

import glt
from glt.distributed import DistDataset, context
from glt.distributed.wire import exit as refusal
from glt.distributed.wire import rendezvous
from glt.testing.cluster import Cluster, Trainer, free_port

EDGES = torch.zeros(2, 4, dtype=torch.int64)
MISTAKES: list[tuple[str, Any, dict[str, Any], str]] = [
    ("DistNeighborLoader", torch.arange(20), {"batch_size": 0}, "ValueError: batch_size = 0"),
    ("DistLinkNeighborLoader", EDGES, {"neg_sampling": "some"}, "ValueError: neg_sampling = 'some'"),
    ("DistSubGraphLoader", torch.arange(20), {"subgraph_type": "directional"}, "ValueError: subgraph_type"),
    ("DistSubGraphLoader", torch.arange(20), {"replace": "no"}, "TypeError: replace = 'no'"),
    ("DistSubGraphLoader", torch.arange(20), {"batchsize": 5}, "TypeError: DistSubGraphLoader() got an unexpected"),
]


def make_mistakes(trainer: Trainer, path: Path) -> list[tuple[str, str, float]]:
    """Each mistake is made by each rank in turn; then all make none. What is raised, where, and how long that took."""
    refusal.JOIN_S = 100.0  # the other process may be late on a busy machine, and this is not about that
    data = join(trainer, path)
    found = []
    for kind, seeds, mistake, _ in MISTAKES:
        for culprit in range(trainer.world_size):
            given = mistake if trainer.rank == culprit else {}
            trainer.say("ready")
            trainer.hear()
            start = time.monotonic()
            try:
                getattr(glt.distributed, kind)(
                    data, [2], seeds, worker_options=options(trainer, "collocated"), **given
                )  # fmt: skip
            except (TypeError, ValueError, glt.errors.PeerLost) as error:
                found.append((type(error).__name__, str(error), time.monotonic() - start))
    with glt.distributed.DistNeighborLoader(
        data, [2], torch.arange(20), batch_size=10, worker_options=options(trainer, "collocated")
    ) as loader:
        assert len(list(loader)) == 2
    return found


def test_the_others_hear_at_once_of_a_mistake_of_one(world: Callable[..., World]) -> None:
    with Cluster(2, make_mistakes, world(2).path) as cluster:
        for _ in range(2 * len(MISTAKES)):
            for rank in range(2):
                assert cluster.hear(rank) == "ready"
            for rank in range(2):
                cluster.say(rank)
        by_rank = cluster.results()
        cluster.expect_nothing_left()
    for rank, found in enumerate(by_rank):
        cases = [(text, culprit) for *_, text in MISTAKES for culprit in range(2)]
        assert len(found) == len(cases)
        for (kind, error, seconds), (text, culprit) in zip(found, cases, strict=True):
            if rank == culprit:
                assert f"{kind}: {error}".startswith(text)
            else:
                assert kind == "PeerLost" and f"trainer {culprit} could not start" in error and text in error, error
            expect_prompt(seconds, f"trainer {rank} to hear of {text}")


@pytest.fixture
def first_of_two(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is the second trainer of a job whose first one is not there."""
    monkeypatch.setattr(context, "_context", None)
    monkeypatch.setattr(rendezvous, "_num_created", 0)
    monkeypatch.setattr(refusal, "JOIN_S", 0.1)
    glt.distributed.init_worker_group(2, 1, "alone")
    yield


def test_a_mistake_is_raised_even_if_nobody_can_be_told(world: Callable[..., World], first_of_two: None) -> None:
    data = DistDataset().load(world(2).path, 1)
    for given in ({"master_addr": "localhost", "master_port": free_port()}, {}):
        with pytest.raises(ValueError, match="batch_size = 0"):
            glt.distributed.DistNeighborLoader(
                data, [2], torch.arange(5), batch_size=0,
                worker_options=glt.distributed.CollocatedDistSamplingWorkerOptions(**given),
            )  # fmt: skip
    with pytest.raises(TypeError, match="worker_options has type dict"):
        glt.distributed.DistNeighborLoader(data, [2], torch.arange(5), worker_options={})  # type: ignore[arg-type]
    assert rendezvous._num_created == 2  # as many as the other one makes: the next loader is the same to both


def test_the_signature_stays_what_it_is() -> None:
    for kind in ("DistNeighborLoader", "DistLinkNeighborLoader", "DistSubGraphLoader"):
        parameters = inspect.signature(getattr(glt.distributed, kind)).parameters
        assert next(iter(parameters)) == "data" and "num_neighbors" in parameters
        with pytest.raises(TypeError, match=rf"{kind}\(\) missing a required argument: 'num_neighbors'"):
            getattr(glt.distributed, kind)(None)
