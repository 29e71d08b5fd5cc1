"""Batches from servers are those of every other mode, however many servers and clients there are."""

from dataclasses import replace

import pytest
import torch
from dist_typed_world import CASES as TYPED_CASES
from dist_typed_world import LINKS, NODE_TIMES, OPTIONS, RATES, snapshot
from dist_world import CASES, assert_same, expect_batches, run_cluster, sample, write_world
from gpus import GPU
from service import options, serve_or
from torch_geometric.data import HeteroData

import glt
from glt.data import Feature
from glt.distributed.server import remote


def sample_as_client(trainer, rank, given, cases):
    if given.pop("is_elsewhere", False):  # this client takes itself for one on another host
        remote.host_id = lambda: "elsewhere"
    return sample(None, rank, cases, lambda: options(**given))


def expect_law(world, servers, clients, given, cases, server_options=None):
    args = world.path, servers, clients, sample_as_client, server_options or {}, given, cases
    expect_batches(run_cluster(servers + clients, serve_or, *args)[servers:], world, cases)


@pytest.mark.parametrize(
    ("servers", "clients", "parts", "given", "server_options"),
    [
        (1, 1, 1, {}, {}),
        (2, 2, 2, {"num_workers": 2}, {}),
        (1, 3, 2, {}, {}),
        (3, 1, 2, {"server_rank": [0, 1, 2], "prefetch_size": 1, "buffer_size": 1}, {}),
        (2, 1, 2, {"worker_concurrency": 1}, {"read_local": True}),
        (2, 1, 2, {}, {"load": {"feature_memory": 1500}}),
    ],
)
def test_batches_are_those_of_other_modes(world, servers, clients, parts, given, server_options):
    expect_law(world(parts), servers, clients, given, CASES, server_options)


ELSEWHERE = {"is_elsewhere": True, "worker_concurrency": 2, "cache_memory_budget": "100KB"}
TURNS = {"server_rank": [1, 0], "num_workers": 2}


@pytest.mark.parametrize(
    ("servers", "clients", "world_of", "given", "cases"),
    [
        (2, 2, (2,), {"worker_concurrency": 3}, TYPED_CASES + OPTIONS + LINKS),
        (2, 1, (2,), ELSEWHERE, TYPED_CASES + OPTIONS + LINKS),
        (2, 1, (2, "out"), TURNS, [TYPED_CASES[0], OPTIONS[3], OPTIONS[4], OPTIONS[6], LINKS[1]]),
        (1, 1, (2, "in", "node"), {}, NODE_TIMES),
    ],
    ids=[
        "every option and loader",
        "a client that keeps rows",
        "out-edges and servers that take turns",
        "times of nodes",
    ],
)
def test_typed_batches_are_those_of_other_modes(typed_world, servers, clients, world_of, given, cases):
    expect_law(typed_world(*world_of), servers, clients, given, cases)


@pytest.mark.parametrize(
    "given", [{}, ELSEWHERE, ELSEWHERE | {"cache_memory_budget": 0}], ids=["here", "far", "no room"]
)
def test_packed_rows_are_what_was_stored(tmp_path, given):
    random = torch.randn(600, 5, generator=torch.Generator().manual_seed(7))
    made = write_world(tmp_path, 2, store_dtype={"x": "int8", "edge_attr": "bfloat16"}, node_feat=random)
    x, edge_attr = Feature(random, store_dtype="int8"), Feature(made.edge_attr, store_dtype="bfloat16")
    world = replace(made, x=x.dense(), edge_attr=edge_attr.dense())
    expect_law(world, 2, 1, dict(given), CASES[:1])


SAMPLED = [TYPED_CASES[0], OPTIONS[2], LINKS[1]]


def sample_on_device(trainer, rank, device):
    results = []
    for i, case in enumerate(SAMPLED):
        devices = [device, "cpu"] if i == 0 else device
        where = {"num_workers": 2, "worker_devices": devices}
        results += sample(None, rank, [case], lambda where=where: options(**where), to_device=device)
    with pytest.raises(Exception, match="") as refused:
        where = options(worker_devices="cuda:77")
        glt.distributed.DistNeighborLoader(None, [2], ("user", torch.arange(4)), worker_options=where)
    return results, str(refused.value)


@pytest.mark.parametrize("read_local", [True, False])
@pytest.mark.parametrize("device", ["host", GPU])
def test_batches_of_servers_on_gpus_and_a_gpu_that_is_not_there(typed_world, device, read_local):
    load = {"graph_mode": "ZERO_COPY", "device": device, "split_ratio": 0.5}
    server_options = {"load": load, "read_local": read_local}
    *_, (results, told) = run_cluster(3, serve_or, typed_world(2).path, 2, 1, sample_on_device, server_options, device)
    expect_batches([results], typed_world(2), SAMPLED)
    assert "worker_devices[0] = 'cuda:77'" in told, told


class Mine(HeteroData):
    """A class of the user's."""


def shape(batch):
    batch.was_transformed = type(batch).__name__
    return batch


def with_trainer_options(trainer, rank):
    """What is up to the trainer: the device, the class of the batches, and what is done to each."""
    mine = {"to_device": torch.device("cpu"), "custom_cls": Mine, "transform": shape, "filter_per_worker": True}
    arguments = TYPED_CASES[0].arguments(rank)
    with glt.distributed.DistNeighborLoader(None, worker_options=options(), **mine, **arguments) as loader:
        batches = list(loader)
        stats = loader.stats()
    assert stats["num_batches"] == len(batches) == len(loader) and stats["num_nodes"] > 0
    kinds = [type(batch).__name__ for batch in batches] + [batch.was_transformed for batch in batches]
    found = [snapshot(batch) for batch in batches]
    plain = [{name: value for name, value in each.items() if not name.endswith("transformed")} for each in found]
    return kinds, {str(each["item/n_id"].device) for each in found}, plain


def test_what_is_up_to_the_trainer(typed_world):
    *_, (kinds, devices, batches) = run_cluster(2, serve_or, typed_world(1).path, 1, 1, with_trainer_options, {})
    assert set(kinds) == {"Mine"} and devices == {"cpu"}
    assert_same(batches, TYPED_CASES[0].reference(typed_world(1), 0)[: len(batches)], "custom class")


LABEL = torch.arange(700) // 100  # 0 is that of negatives: all labels go up by one, also where no edge has a 0


def all_rates(trainer, rank):
    """Of each seed edge of this client: its id, ends and label."""
    found, given = [], {"edge_label": LABEL, "neg_sampling": "binary", "shuffle": True, "worker_options": options()}
    with glt.distributed.DistLinkNeighborLoader(None, [2], RATES, batch_size=100, **given) as loader:
        for batch in loader:
            store, num_seeds = batch[RATES], len(batch[RATES].input_id)
            ends = torch.stack([batch[t].n_id[store.edge_label_index[i]] for i, t in ((0, "user"), (1, "item"))])
            seeds, label = ends.t()[:num_seeds].tolist(), store.edge_label[:num_seeds].tolist()
            found += zip(store.input_id.tolist(), seeds, label, strict=True)
    return found


@pytest.mark.parametrize(("servers", "clients", "parts", "read_local"), [(2, 3, 2, False), (1, 2, 2, True)])
def test_clients_share_all_edges(typed_world, servers, clients, parts, read_local):
    world, given = typed_world(parts), {"read_local": read_local}
    by_client = run_cluster(servers + clients, serve_or, world.path, servers, clients, all_rates, given)[servers:]
    for rank, found in enumerate(by_client):  # by id, cut into equal pieces
        assert sorted(each[0] for each in found) == list(range(700 * rank // clients, 700 * (rank + 1) // clients))
    found = sorted(each for found in by_client for each in found)
    assert torch.equal(torch.tensor([each[1] for each in found]).t(), world.edge_index[RATES])
    assert [each[2] for each in found] == (LABEL + 1).tolist()
