"""How the samplers of trainers reach each other: which transport they use, and where they listen."""

import pytest
import torch
from dist_world import CASES, expect_error, expect_law, join, options

import glt
from glt.distributed.loader import deployment
from glt.testing.cluster import Cluster


@pytest.mark.parametrize("transport", ["tcp", "rpc"])
@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_both_bring_the_same_batches(world, mode, transport):
    workers = {"num_workers": 2} if mode == "mp" else {}
    expect_law(world(2), mode, {"transport": transport, **workers}, CASES[:2])


def open_with(trainer, path, mode, transports):
    where = options(trainer, mode, transport=transports[trainer.rank])
    glt.distributed.DistNeighborLoader(join(trainer, path), [2], torch.arange(20), worker_options=where)


def test_trainers_that_differ_are_told(world):
    with Cluster(2, open_with, world(2).path, "collocated", ["tcp", "rpc"]) as cluster:
        for outcome in cluster.outcomes():
            expect_error(outcome, "RendezvousError", "transport differs between trainers", "'tcp'", "'rpc'")


def told(address, network):
    return {"address": address, "network_id": network}


def test_trainers_of_one_host_listen_for_that_host_alone():
    assert deployment._reached_at(0, [told("10.1.2.3", "a"), told("10.1.2.3", "a")]) == "127.0.0.1"
    assert deployment._reached_at(1, [told("fd00::1", "a"), told("fd00::1", "a")]) == "::1"


def test_trainers_of_several_hosts_listen_at_the_interface_that_leads_there(monkeypatch):
    """Where the name of rank 0 means loopback on its own host, that is found on the way to another host."""
    asked = []
    monkeypatch.setattr(deployment, "own_address", lambda master: asked.append(master) or "10.0.0.1")
    others = [told("127.0.1.1", "a"), told("10.0.0.2", "b"), told("127.0.1.1", "a")]
    assert [deployment._reached_at(rank, others) for rank in range(3)] == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert [master[0] for master in asked] == ["10.0.0.2", "10.0.0.2"]
