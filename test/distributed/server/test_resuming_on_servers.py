"""A client that was stopped at any batch goes on in another process, on other servers: the same batches, to the bit."""

import json

from dist_world import CASES, SEED, assert_same, run_cluster, snapshot
from resume_world import expect_the_rest, go_on, run_whole, states_of, whole_of
from service import become_client, options, serve, serve_or

import glt
from glt.testing.cluster import Cluster

CASE = CASES[0]  # shuffled


def make(worker_options, random_seed):
    given = CASE.arguments(0) | {"random_seed": random_seed, "worker_options": worker_options}
    return glt.distributed.DistNeighborLoader(None, **given)


def die_or_follow(trainer, path):
    """A server, a client that is killed while it reads, and one that takes its place."""
    if trainer.rank == 0:
        serve(trainer, path, 1, 1)
        return glt.distributed.wait_and_shutdown_server(100.0)
    state = trainer.hear()
    become_client(trainer, 1, 1, client_rank=0)
    with make(options(), SEED if state is None else None) as loader:
        if state is not None:
            loader.load_state_dict(json.loads(state))
        found = []
        for batch in loader:
            found.append(snapshot(batch))
            if state is None:
                trainer.say((json.dumps(loader.state_dict()), found))
                trainer.hear()
    glt.distributed.shutdown_client()
    return found


def test_another_client_goes_on_for_one_that_was_killed(world):
    here = world(2)
    with Cluster(3, die_or_follow, here.path) as cluster:
        cluster.say(1, None)
        for _ in range(2):
            cluster.hear(1)
            cluster.say(1)
        state, delivered = cluster.hear(1)  # and it wants the fourth, which the server has begun
        cluster.kill(1)
        cluster.say(2, state)
        served, killed, follower = cluster.outcomes()
        assert killed.error_type == "Killed" and follower.error_type is None, follower
        assert served.value is True, "one client was expected, and one has left"
        cluster.expect_nothing_left()
    wanted = CASE.reference(here, 0)
    assert_same(delivered + follower.value, wanted[: len(wanted) // 2], "before and after the kill")


CHOSEN = {
    "DistNeighborLoader": ((2, 1), (3, 5), (4, 0)),
    "DistLinkNeighborLoader": ((1, 6),),
    "DistSubGraphLoader": ((4, 0),),
}


def whole_of_client(trainer, rank):
    return whole_of(rank, None, options())


def go_on_as_client(trainer, rank, given, states):
    return go_on(rank, None, options(**given), states)


def test_states_are_those_of_trainers_and_go_on_on_any_servers(world):
    path = world(2).path
    whole = run_cluster(2, run_whole, path)
    assert run_cluster(3, serve_or, world(1).path, 1, 2, whole_of_client, {})[1:] == whole
    states, given = states_of(whole, CHOSEN), {"server_rank": [1, 0], "num_workers": 2, "worker_concurrency": 2}
    expect_the_rest(whole, CHOSEN, run_cluster(4, serve_or, path, 2, 2, go_on_as_client, {}, given, states)[2:])
