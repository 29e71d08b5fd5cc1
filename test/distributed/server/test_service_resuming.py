"""A client goes on where a trainer was stopped that sampled for itself."""

from resume_world import expect_the_rest, go_on, run_whole, states_of
from service_world import options, serve_or

from glt.testing.cluster import Cluster

CHOSEN = {
    "DistNeighborLoader": ((2, 1), (3, 5), (4, 0)),
    "DistLinkNeighborLoader": ((1, 6),),
    "DistSubGraphLoader": ((4, 0),),
}


def go_on_as_client(trainer, rank, states):
    return go_on(rank, None, options(num_workers=2), states)


def test_clients_go_on_where_trainers_were_stopped(world):
    path = world(2).path
    with Cluster(2, run_whole, path) as cluster:
        whole = cluster.results()
    states = states_of(whole, CHOSEN)
    with Cluster(4, serve_or, path, 2, 2, go_on_as_client, {}, states) as cluster:
        expect_the_rest(whole, CHOSEN, cluster.results()[2:])
        cluster.expect_nothing_left()
