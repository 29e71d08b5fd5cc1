"""How far a sampler works ahead of its client."""

import threading
from types import SimpleNamespace

import pytest
import torch

from glt.data.device import Accelerator
from glt.distributed.server import pool_worker
from glt.distributed.server import stream as stream_module
from glt.distributed.server.pool_worker import PoolWorker
from glt.distributed.server.stream import FairScheduler, SendWindow


def test_so_many_are_sent_ahead_and_no_more():
    window = SendWindow(3, 1000)
    for _ in range(3):
        assert window.wait_to_send(0.0)
        window.num_sent += 1
    assert not window.wait_to_send(0.01)
    window.taken(1)
    assert window.wait_to_send(0.0)
    window.num_sent += 1
    assert not window.wait_to_send(0.0)


def test_whoever_waits_goes_on_when_the_client_takes_one():
    window = SendWindow(1, 1000)
    window.num_sent = 1
    results = []
    thread = threading.Thread(target=lambda: results.append(window.wait_to_send(60.0)))
    thread.start()
    window.taken(1)
    thread.join(60)
    assert results == [True]


@pytest.mark.parametrize(("device", "is_pinned"), [(None, False), ("cpu", False), ("cuda:0", True)])
def test_batches_of_a_sampler_on_a_gpu_wait_in_pinned_memory_as_far_as_may_wait(monkeypatch, device, is_pinned):
    place = None if device is None else Accelerator(torch.device(device))  # the device cpu: the host plays the GPU
    monkeypatch.setattr(pool_worker, "accelerator_of", lambda *_: place)
    channels = []
    monkeypatch.setattr(stream_module, "LocalChannel", lambda *given: channels.append(given[1:]))
    makers = ("sampler_of", "SamplingJob", "SeedTable", "Producer")
    for name in makers:
        monkeypatch.setattr(pool_worker, name, Anything())
    worker = PoolWorker.__new__(PoolWorker)
    worker.spec, worker.scheduler = Anything(worker=0), FairScheduler(1)
    worker.loop, worker.dataset, worker._spare = Anything(), Anything(sampling_device=None), []
    request = {"id": "test", "other_dirs": {}, "peers": [], "order": {}}
    request |= {"prefetch_size": 1, "buffer_bytes": 3000, "concurrency": 1, "first": 0, "step": 1}
    worker.stream(request, Anything(), Anything())
    assert channels == [(is_pinned, 3000 if is_pinned else None)]


class Anything(SimpleNamespace):
    """In the place of what a sampler is made of."""

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, name):
        return self
