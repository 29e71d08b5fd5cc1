"""Batches from servers are those of every other mode, however many servers and clients there are."""

import pytest
from batch_law import CASES, SEED, assert_same, reference
from dist_world import seeds_of, snapshot
from service_world import options, serve_or

import glt
from glt.testing.cluster import Cluster


def sample_cases(trainer, rank, given, cases):
    """Two epochs of each case."""
    results = []
    for case in cases:
        with glt.distributed.DistNeighborLoader(
            None, list(case.num_neighbors), seeds_of(rank), batch_size=16, random_seed=SEED + rank,
            worker_options=options(**given), **case.loader,
        ) as loader:  # fmt: skip
            batches = [snapshot(batch) for _ in range(2) for batch in loader]
            assert len(batches) == 2 * len(loader)
            results.append(batches)
    return results


@pytest.mark.parametrize(
    ("servers", "clients", "parts", "given", "server_options"),
    [
        (1, 1, 1, {}, {}),
        (2, 2, 2, {"num_workers": 2}, {}),
        (1, 3, 2, {}, {}),
        (3, 1, 2, {"server_rank": [0, 1, 2], "prefetch_size": 1, "buffer_size": 1}, {}),
        (2, 1, 2, {"worker_concurrency": 1}, {"read_local": True}),
    ],
)
def test_batches_are_those_of_other_modes(world, servers, clients, parts, given, server_options):
    here = world(parts)
    with Cluster(
        servers + clients, serve_or, here.path, servers, clients, sample_cases, server_options, given, CASES
    ) as cluster:  # fmt: skip
        results = cluster.results()
        cluster.expect_nothing_left()
    for rank, by_case in enumerate(results[servers:]):
        for case, batches in zip(CASES, by_case, strict=True):
            assert_same(batches, reference(here, case, rank), f"{case.name}, client {rank}")
