"""Each process has a place in the job: two that come as one rank, of two jobs or of two groups, find out."""

import time

import torch
from dist_world import options
from promptness import expect_prompt

import glt
from glt.testing.cluster import Cluster, free_port


def create_as(trainer, path, places, port=None):
    """Creates a loader as the trainer of ``(world_size, rank, group_name)``; returns its number of batches."""
    world_size, rank, group_name = places[trainer.rank]
    glt.distributed.init_worker_group(world_size, rank, group_name)
    data = glt.distributed.DistDataset().load(path, rank % 2)
    given = options(trainer, "collocated", **({} if port is None else {"master_port": port}))
    trainer.say(time.monotonic())
    with glt.distributed.DistNeighborLoader(
        data, [4, 3], torch.arange(40), batch_size=8, random_seed=1, worker_options=given
    ) as loader:
        if port is not None:
            trainer.say("created")
            trainer.hear()
        return sum(1 for _ in loader)


def expect_errors(cluster, *words):
    """All trainers raise RendezvousError with these words, soon after they have come."""
    outcomes = cluster.outcomes()
    start = max(cluster.hear(rank) for rank in range(cluster.world_size))
    for outcome in outcomes:
        assert outcome.error_type == "RendezvousError" and all(word in outcome.error for word in words), outcome
        expect_prompt(outcome.at_s - start, "a process to hear of another in its place")
    cluster.expect_nothing_left()
    return [outcome.error for outcome in outcomes]


def test_two_processes_of_one_rank_are_named_everywhere(world):
    places = [(3, 0, "job"), (3, 1, "job"), (3, 1, "job")]
    with Cluster(3, create_as, world(2).path, places) as cluster:
        pids = [str(process.pid) for process in cluster.processes]
        for error in expect_errors(cluster, "two processes came as rank 1"):
            assert all(f"pid {pid}" in error for pid in pids[1:]), error


def test_group_names_that_differ_are_named(world):
    with Cluster(2, create_as, world(2).path, [(2, 0, "red"), (2, 1, "blue")]) as cluster:
        expect_errors(cluster, "group_name differs", "'red' on rank 0", "'blue' on rank 1")


def test_a_second_job_on_the_port_of_a_first_does_not_join_it(world):
    places = [(2, 0, "job"), (2, 1, "job")]
    port = free_port()
    with Cluster(2, create_as, world(2).path, places, port) as first:
        for rank in range(2):
            first.hear(rank)
            assert first.hear(rank) == "created"
        with Cluster(2, create_as, world(2).path, places, port) as second:
            host, other = second.outcomes()
            assert host.error_type == "RendezvousError" and f"master_port = {port}" in host.error, host
            assert other.error_type == "RendezvousError" and "two processes came as rank 1" in other.error, other
            assert "master_port of its own" in other.error and f"pid {first.processes[1].pid}," in other.error, other
        for rank in range(2):
            first.say(rank)
        assert first.results() == [5, 5]  # undisturbed
