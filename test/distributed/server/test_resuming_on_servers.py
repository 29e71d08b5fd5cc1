"""A client that was stopped at any batch goes on in another process, on other servers: the same batches, to the bit."""

import itertools
import json

from dist_world import CASES, SEED, assert_same, join, run_cluster, snapshot
from dist_world import options as trainer_options
from resume_world import expect_the_rest, run_whole
from resume_world import go_on as resume
from resume_world import states_of as chosen_states
from service import become_client, options, serve, serve_or

import glt
from glt.testing.cluster import Cluster

CASE = CASES[0]  # shuffled


def make(data, worker_options, random_seed):
    given = CASE.arguments(0) | {"random_seed": random_seed, "worker_options": worker_options}
    return glt.distributed.DistNeighborLoader(data, **given)


def states_of(loader):
    """The state before each batch of an epoch and after the last, as they would be in files."""
    with loader:
        return [json.dumps(loader.state_dict()), *(json.dumps(loader.state_dict()) for _ in loader)]


def states_on_servers(trainer, rank):
    return states_of(make(None, options(), SEED))


def states_in_worker_mode(trainer, path):
    return states_of(make(join(trainer, path), trainer_options(trainer, "mp"), SEED))


def go_on(trainer, rank, given, states):
    """What is left of the epoch of each state, and two batches of the next one."""
    found = []
    with make(None, options(**given), None) as loader:  # with a random seed of its own
        for state in map(json.loads, states):
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            rest = [snapshot(batch) for batch in loader]
            found.append(rest + [snapshot(batch) for batch in itertools.islice(loader, 2)])
    return found


def test_states_are_the_same_in_every_mode_and_go_on_on_any_servers(world):
    here = world(2)
    states = run_cluster(2, serve_or, world(1).path, 1, 1, states_on_servers, {})[1]
    assert run_cluster(1, states_in_worker_mode, world(1).path) == [states]
    given = {"server_rank": [1, 0], "num_workers": 2, "worker_concurrency": 2}
    left = run_cluster(3, serve_or, here.path, 2, 1, go_on, {}, given, states)[2]
    wanted = CASE.reference(here, 0)
    per_epoch = len(wanted) // 2
    assert len(states) == per_epoch + 1
    for first, found in enumerate(left[:-1]):
        assert_same(found, wanted[first : per_epoch + 2], f"resumed at batch {first}")
    assert_same(left[-1][:per_epoch], wanted[per_epoch:], "resumed at the end of the epoch")


def die_or_follow(trainer, path):
    """A server, a client that is killed while it reads, and one that takes its place."""
    if trainer.rank == 0:
        serve(trainer, path, 1, 1)
        return glt.distributed.wait_and_shutdown_server(100.0)
    state = trainer.hear()
    become_client(trainer, 1, 1, client_rank=0)
    with make(None, options(), SEED if state is None else None) as loader:
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


def go_on_as_client(trainer, rank, states):
    return resume(rank, None, options(num_workers=2), states)


def test_clients_go_on_where_trainers_were_stopped(world):
    path = world(2).path
    whole = run_cluster(2, run_whole, path)
    states = chosen_states(whole, CHOSEN)
    expect_the_rest(whole, CHOSEN, run_cluster(4, serve_or, path, 2, 2, go_on_as_client, {}, states)[2:])
