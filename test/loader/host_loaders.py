"""Loaders whose sampler runs the kernels on the host, and their threads."""

import gc
import queue
import threading
import time

import pytest
import torch

from glt.data import Dataset
from glt.loader import NeighborLoader
from glt.testing import random_graph

HOMO = random_graph(80, 700, seed=3).to_data()
HOMO.time = torch.arange(80) % 20
HOMO.edge_weight = torch.rand(700, generator=torch.Generator().manual_seed(2))


def loader(device="host", seeds=None, **options):
    data = Dataset.from_pyg(HOMO).with_mode("ZERO_COPY")
    seeds = torch.arange(40) if seeds is None else seeds
    return NeighborLoader(data, [2, 2], seeds, batch_size=4, random_seed=1, device=device, **options)


def outcomes(batches, num):
    """The first seed of each of so many batches, or the exception in its place."""
    seen = []
    for _ in range(num):
        try:
            seen.append(next(batches).input_id[0].item())
        except (Exception, SystemExit) as error:
            seen.append(error)
    return seen


def types(seen):
    return [type(each) if isinstance(each, BaseException) else each for each in seen]


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "glt-ahead"]


@pytest.fixture(autouse=True)
def threads_of_earlier_tests_have_ended():
    """What a failed assertion or a mock keeps of a loader, the cyclic collector frees: before the test that counts."""
    gc.collect()
    deadline = time.monotonic() + 10
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)


class FedOrder:
    """Batches that come when the trainer asks for them."""

    def __init__(self):
        self.asked = queue.Queue()

    def __iter__(self):
        while (batch := self.asked.get(timeout=60)) is not None:
            yield batch


def fed_loader(order, **options):
    dataset = Dataset.from_pyg(HOMO).with_mode("ZERO_COPY")
    return NeighborLoader(dataset, [2], torch.arange(40), batch_sampler=order, random_seed=1, device="host", **options)
