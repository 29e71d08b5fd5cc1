"""A channel whose memory is pinned: registered once, and given back when it closes; a list plays CUDA."""

import pytest
import torch
from fake_cuda import FakeCuda
from gpus import needs_gpu

from glt.channel import ShmChannel, shm
from glt.data.device import missing_for_cuda
from glt.data.pinned import PinnedMemory


def test_the_memory_is_pinned_until_the_channel_closes(monkeypatch):
    cuda = FakeCuda()
    monkeypatch.setattr(
        shm, "PinnedMemory", lambda tensor, device, name, writable: PinnedMemory(tensor, device, name, cuda.pages)
    )
    for drop in (ShmChannel.close, lambda channel: None):
        channel = ShmChannel("64KB")
        channel.pin()
        assert sum(cuda.registered.values()) >= 64 << 10
        channel.send({"x": torch.ones(3)})
        received = channel.receive(10).tensors["x"]
        drop(channel)
        del channel
        assert not cuda.registered
        assert received.tolist() == [1.0] * 3


@pytest.mark.skipif(missing_for_cuda() is None, reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_what_is_missing():
    channel = ShmChannel("64KB")
    with pytest.raises(ValueError, match="device = 'cuda': "):
        channel.pin()
    channel.close()


@needs_gpu
def test_messages_of_a_pinned_channel_are_copied_to_a_gpu():
    """Not yet run."""
    channel = ShmChannel("1MB")
    channel.pin()
    channel.send({"x": torch.arange(1000)})
    received = channel.receive(10).tensors["x"]
    assert received.is_pinned() and received.to("cuda", non_blocking=True).cpu().tolist() == list(range(1000))
    channel.close()
