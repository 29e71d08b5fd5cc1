"""Servers that sample on GPUs: batches are those of the CPU, and a GPU that is not there is refused by name."""

import pytest
import torch
from batch_law import assert_same
from dist_typed_world import reference, snapshot
from gpus import GPU
from service_world import options, serve_or
from test_typed_batch_law import CASES, LINKS, OPTIONS

import glt
from glt.testing.cluster import Cluster

SAMPLED = [CASES[0], OPTIONS[2], LINKS[1]]


def sample(trainer, rank, device):
    results = []
    for i, case in enumerate(SAMPLED):
        made = getattr(glt.distributed, case.kind)
        where = options(num_workers=2, worker_devices=[device, "cpu"] if i == 0 else device)
        with made(None, worker_options=where, to_device=device, **case.arguments(rank)) as loader:
            results.append([snapshot(batch.to("cpu")) for _ in range(2) for batch in loader])
    return results, refused(device)


def refused(device):
    """What a loader on a GPU that the server does not have is told."""
    try:
        glt.distributed.DistNeighborLoader(
            None, [2], ("user", torch.arange(4)), worker_options=options(worker_devices="cuda:77")
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize("read_local", [True, False])
@pytest.mark.parametrize("device", ["host", GPU])
def test_batches_of_servers_on_gpus(typed_world, device, read_local):
    world = typed_world(2)
    server = {
        "load": {"graph_mode": "ZERO_COPY", "device": device, "split_ratio": 0.5}, "read_local": read_local
    }  # fmt: skip
    with Cluster(3, serve_or, world.path, 2, 1, sample, server, device) as cluster:
        results, told = cluster.results()[2]
        cluster.expect_nothing_left()
    for case, batches in zip(SAMPLED, results, strict=True):
        assert_same(batches, list(reference(world, case, 0)), case.name)
    assert "worker_devices[0] = 'cuda:77'" in told, told
