"""Messages whose tensors are on a device, and their copies to one; the host plays the GPU."""

import threading

import pytest
import torch
from gpus import needs_gpu

from glt.channel import LocalChannel, ShmChannel
from glt.channel.channel import DeviceChannel
from glt.channel.message import MessageKind, MessageLayout, device_view, encode_message, error_message, read_message
from glt.data.device import Accelerator
from glt.distributed.loader.base import DeviceCopies, take_over
from glt.errors import RemoteError

HOST = Accelerator(torch.device("cpu"))
TENSORS = {
    "n_id/n0": torch.arange(70),
    "x/n0": torch.randn(70, 3).bfloat16(),
    "none/n0": torch.empty(0, 4),
    "one": torch.tensor(3.0),
    "mask": torch.arange(9) % 2 == 0,
    "stats": torch.arange(9, dtype=torch.float64),
}


class Gate:
    """A copy that is done when the test says so."""

    def __init__(self):
        self.happened = threading.Event()

    def query(self):
        return self.happened.is_set()

    def synchronize(self):
        assert self.happened.wait(10)

    def wait(self):
        pass


def assert_same(got, wanted=TENSORS):
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name].cpu(), tensor), name


def test_tensors_and_errors_pass_between_threads():
    layout = MessageLayout.like(TENSORS)
    channel = DeviceChannel(2, HOST, None)
    with channel.reserve(layout.nbytes) as slot:
        out = slot.tensors(layout, MessageKind.BATCH, 1, 2, 3)
        for name, tensor in TENSORS.items():
            out[name].copy_(tensor)
        slot.ready = HOST.record()
    error = error_message(ValueError("wrong"), role="tester", rank=0, loader=1, epoch=2, index=4)
    with channel.reserve(len(error)) as slot:
        slot.tensors(layout, MessageKind.BATCH, 1, 2, 4)  # it failed half-way
        slot.buffer[: len(error)] = error
    message = channel.receive(0)
    assert (message.kind, message.loader, message.epoch, message.index) == (MessageKind.BATCH, 1, 2, 3)
    assert message.ready.query()
    take_over(message)
    assert_same(message.tensors)
    with pytest.raises(RemoteError, match="wrong"):
        channel.receive(0).raise_if_error()
    assert channel.stats()["num_received"] == 2


def test_views_of_a_devices_bytes_are_those_of_the_cpu():
    layout = MessageLayout.like(TENSORS)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    layout.write(buffer, TENSORS, MessageKind.BATCH)
    for name, tensor in read_message(buffer).tensors.items():
        start = tensor.data_ptr() - buffer.data_ptr()
        assert torch.equal(device_view(buffer, start, tensor.dtype, tensor.shape), TENSORS[name])


def test_a_tensor_without_elements_may_lie_behind_the_last_byte():
    view = device_view(torch.zeros(70, dtype=torch.uint8), 128, torch.int64, (2, 0))
    assert view.shape == (2, 0) and view.dtype == torch.int64


def test_a_slot_is_kept_until_its_copy_is_done(monkeypatch):
    gates = []
    monkeypatch.setattr(Accelerator, "record", lambda self: gates.append(Gate()) or gates[-1])
    channel, copies = ShmChannel("64KB"), DeviceCopies(HOST)
    kept = []
    for _ in range(3):
        channel.send(TENSORS)
        message = channel.receive(10)
        kept.append(copies.start(message))
        del message
    held = channel._consumer.held_bytes
    assert held > 0
    gates[0].happened.set()
    copies.sweep()
    assert channel._consumer.held_bytes < held
    for gate in gates:
        gate.happened.set()
    copies.close()
    assert channel._consumer.held_bytes == 0
    channel.close()
    for message in kept:  # of memory of their own
        assert_same(message.tensors)


def test_errors_and_what_is_there_already_are_not_copied():
    copies = DeviceCopies(HOST)
    message = copies.start(read_message(encode_message(TENSORS, MessageKind.BATCH, 5, 6, 7)))
    assert copies.start(message) is message
    assert (message.loader, message.epoch, message.index) == (5, 6, 7)
    nothing = read_message(encode_message({}, MessageKind.END))
    assert copies.start(nothing) is nothing


@needs_gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_copies_to_a_gpu_follow_their_event(pinned):
    """Not yet run. The ring is filled again as soon as a copy is done, while the trainer is behind."""
    accelerator = Accelerator(torch.device("cuda", 0))
    channel, copies = ShmChannel("1MB"), DeviceCopies(accelerator)
    if pinned:
        channel.pin()
    for i in range(50):
        wanted = {"x": torch.full((30_000,), float(i)), "stats": torch.ones(9)}
        channel.send(wanted)
        message = copies.start(channel.receive(10))
        torch.cuda._sleep(200_000)
        take_over(message)
        assert message.tensors["x"].is_cuda and not message.tensors["stats"].is_cuda
        assert torch.equal(message.tensors["x"].cpu(), wanted["x"])
    copies.close()
    assert channel._consumer.held_bytes <= 2 * 30_000 * 4
    channel.close()


@needs_gpu
def test_a_local_channel_for_a_gpu_is_pinned():
    channel = LocalChannel(2, pinned=True)
    channel.send(TENSORS)
    assert all(tensor.is_pinned() for tensor in channel.receive(1).tensors.values() if tensor.numel())
