"""Node, link and subgraph loaders over a heterogeneous graph: batches from servers are those of the other modes."""

import pytest
import torch
from batch_law import assert_same
from dist_typed_world import RATES, reference, snapshot
from service_world import options, serve_or
from test_typed_batch_law import CASES, LINKS, NODE_TIMES, OPTIONS
from torch_geometric.data import HeteroData

import glt
from glt.testing.cluster import Cluster


def sample_cases(trainer, rank, given, cases):
    """Two epochs of each case."""
    results = []
    for case in cases:
        made = getattr(glt.distributed, case.kind)
        with made(None, worker_options=options(**given), **case.arguments(rank)) as loader:
            results.append([snapshot(batch) for _ in range(2) for batch in loader])
    return results


def compare(world, servers, clients, given, cases):
    with Cluster(servers + clients, serve_or, world.path, servers, clients, sample_cases, {}, given, cases) as cluster:
        by_rank = cluster.results()[servers:]
        cluster.expect_nothing_left()
    for rank, results in enumerate(by_rank):
        for case, batches in zip(cases, results, strict=True):
            assert_same(batches, list(reference(world, case, rank)), f"{case.name}, client {rank}")


def test_every_option_and_loader_along_in_edges(typed_world):
    compare(typed_world(2), 2, 2, {"worker_concurrency": 3}, CASES + OPTIONS + LINKS)


def test_along_out_edges_with_servers_that_take_turns(typed_world):
    given = {"server_rank": [1, 0], "num_workers": 2}
    compare(typed_world(2, "out"), 2, 1, given, [CASES[0], OPTIONS[3], OPTIONS[4], OPTIONS[6], LINKS[1]])


def test_times_of_nodes(typed_world):
    compare(typed_world(2, "in", "node"), 1, 1, {}, NODE_TIMES)


class Mine(HeteroData):
    """A class of the user's."""


def shape(batch):
    batch.was_transformed = type(batch).__name__
    return batch


def with_trainer_options(trainer, rank):
    """What is up to the trainer: the device, the class of the batches, and what is done to each."""
    case = CASES[0]
    with glt.distributed.DistNeighborLoader(
        None, worker_options=options(), to_device=torch.device("cpu"), custom_cls=Mine, transform=shape,
        filter_per_worker=True, **case.arguments(rank),
    ) as loader:  # fmt: skip
        batches = list(loader)
        stats = loader.stats()
    assert stats["num_batches"] == len(batches) == len(loader) and stats["num_nodes"] > 0
    kinds = [type(batch).__name__ for batch in batches] + [batch.was_transformed for batch in batches]
    found = [snapshot(batch) for batch in batches]
    return kinds, {str(each["item/n_id"].device) for each in found}, [_plain(each) for each in found]


def _plain(found):
    return {name: value for name, value in found.items() if not name.endswith("was_transformed")}


def test_what_is_up_to_the_trainer(typed_world):
    world = typed_world(1)
    with Cluster(2, serve_or, world.path, 1, 1, with_trainer_options, {}) as cluster:
        kinds, devices, batches = cluster.results()[-1]
    assert set(kinds) == {"Mine"} and devices == {"cpu"}
    assert_same(batches, list(reference(world, CASES[0], 0))[: len(batches)], "custom class")


LABEL = torch.arange(700) // 100  # 0 is that of negatives: all labels go up by one, also where no edge has a 0


def all_rates(trainer, rank):
    """Of each seed edge of this client: its id, ends and label."""
    found = []
    with glt.distributed.DistLinkNeighborLoader(
        None, [2], RATES, batch_size=100, edge_label=LABEL, neg_sampling="binary", shuffle=True,
        worker_options=options(),
    ) as loader:  # fmt: skip
        for batch in loader:
            store, num_seeds = batch[RATES], len(batch[RATES].input_id)
            ends = torch.stack([batch[t].n_id[store.edge_label_index[i]] for i, t in ((0, "user"), (1, "item"))])
            seeds, label = ends.t()[:num_seeds].tolist(), store.edge_label[:num_seeds].tolist()
            found += zip(store.input_id.tolist(), seeds, label, strict=True)
    return found


@pytest.mark.parametrize(("servers", "clients", "parts", "read_local"), [(2, 3, 2, False), (1, 2, 2, True)])
def test_clients_share_all_edges(typed_world, servers, clients, parts, read_local):
    world = typed_world(parts)
    given = {"read_local": read_local}
    with Cluster(servers + clients, serve_or, world.path, servers, clients, all_rates, given) as cluster:
        by_client = cluster.results()[servers:]
    for rank, found in enumerate(by_client):  # by id, cut into equal pieces
        mine = range(700 * rank // clients, 700 * (rank + 1) // clients)
        assert sorted(each[0] for each in found) == list(mine)
    found = sorted(each for found in by_client for each in found)
    assert torch.equal(torch.tensor([each[1] for each in found]).t(), world.edge_index[RATES])
    assert [each[2] for each in found] == (LABEL + 1).tolist()
