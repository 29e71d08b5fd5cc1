"""Channels within a process: of the host, of devices, of pinned memory."""

import gc
import threading
import time
import weakref

import pytest
import torch
from fake_cuda import FakeCuda
from gpus import needs_gpu

from glt.channel import LocalChannel, ShmChannel, shm
from glt.channel.channel import DeviceChannel
from glt.channel.message import MessageKind, MessageLayout, device_view, encode_message, error_message, read_message
from glt.data.device import Accelerator, missing_for_cuda
from glt.data.pinned import PinnedMemory
from glt.distributed.loader.base import DeviceCopies, take_over
from glt.errors import ChannelClosed, ChannelTimeout, RemoteError


def test_messages_pass_between_threads_in_order():
    channel = LocalChannel(2)

    def produce():
        for index in range(200):
            channel.send({"x": torch.full((index * 50,), index)}, index=index, timeout_s=20)
        channel.send({}, MessageKind.END, timeout_s=20)
        channel.close()

    thread = threading.Thread(target=produce)
    thread.start()
    kept = [channel.receive(20) for _ in range(200)]
    assert channel.receive(20).kind is MessageKind.END
    thread.join()
    with pytest.raises(ChannelClosed):
        channel.receive(1)
    for index, message in enumerate(kept):
        assert message.index == index and torch.equal(message.tensors["x"], torch.full((index * 50,), index))
    assert channel.stats()["num_sent"] == channel.stats()["num_received"] == 201


def test_what_was_not_received_goes_with_its_channel(no_collection):
    channel = LocalChannel(4)
    channel.send({"x": torch.ones(3)})
    slot = channel.reserve(64, 0)
    gone = weakref.ref(channel)
    channel.close()
    slot.abandon()
    del channel
    assert gone() is None


@pytest.fixture
def no_collection():
    """Only what nothing refers to is freed."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=["local", "shm"])
def make(request):
    """Makes a channel with room for so many messages."""
    channels = []

    def made(capacity):
        channels.append(LocalChannel(capacity) if request.param == "local" else ShmChannel("64KB", capacity))
        return channels[-1]

    yield made
    for channel in channels:
        channel.close()


def test_order_of_reservation_not_of_commit(make):
    channel = make(4)
    first, dropped, second = (channel.reserve(64, 0) for _ in range(3))
    for index, slot in ((1, second), (0, first)):
        MessageLayout({}).write_header(slot.buffer, MessageKind.BATCH, index=index)
        slot.commit()
    dropped.abandon()
    dropped.abandon()
    assert [channel.receive(0).index for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="before"):
        first.commit()


def test_a_full_channel_times_out_and_abandoning_makes_room(make):
    channel = make(3)
    slots = [channel.reserve(64, 0) for _ in range(3)]
    with pytest.raises(ChannelTimeout, match=r"no room for a message.* after 0\.05 s: "):
        channel.reserve(64, 0.05)
    with pytest.raises(ChannelTimeout, match=r"no message after 0\.05 s: "):
        channel.receive(0.05)
    slots[0].abandon()
    with pytest.raises(OSError, match="bad file"), slots[1]:
        raise OSError("bad file")
    slots[2].abandon()
    with pytest.raises(ChannelTimeout):
        channel.receive(0)  # the consumer finds them gone
    for index in range(3):
        channel.send({}, index=index, timeout_s=0)
    assert [channel.receive(0).index for _ in range(3)] == [0, 1, 2]
    assert issubclass(ChannelTimeout, TimeoutError)


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_close_ends_a_wait(make, side):
    channel = make(1)
    if side == "producer":
        channel.reserve(64, 0).commit()
    ended = []

    def wait():
        with pytest.raises(ChannelClosed):
            channel.reserve(64, 60) if side == "producer" else channel.receive(60)
        ended.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    closed = time.monotonic()
    channel.close()
    channel.close()
    thread.join(30)
    assert ended[0] - closed < 20  # of the 60 that it would have waited
    with pytest.raises(ChannelClosed):
        channel.reserve(10, 1)


def test_wrong_arguments_are_named(make):
    with pytest.raises(ValueError, match="capacity = 0"):
        make(0)
    with pytest.raises(ValueError, match="at least 1"):
        make(1).reserve(0, 1)
    with pytest.raises(ValueError, match="timeout_s = -1"):
        make(1).receive(-1)
    with pytest.raises(ValueError, match="channel_bytes = '64 apples'"):
        ShmChannel("64 apples")
    with pytest.raises(ValueError, match="at least 16384"):
        ShmChannel(1000)


def test_pinned_memory_is_bounded_in_the_blocks_that_torch_takes(monkeypatch):
    """Powers of two; what does not fit is pageable, and passes all the same."""
    pinned = []
    empty = torch.empty

    def watched(nbytes, pin_memory=False, **options):
        if pin_memory:
            pinned.append(nbytes)
        return empty(nbytes, **options)

    monkeypatch.setattr(torch, "empty", watched)
    channel = LocalChannel(10, pinned=True, most_pinned_bytes=4096)
    first, second = channel.reserve(1025), channel.reserve(1025)  # 2048 each
    third = channel.reserve(64)
    assert pinned == [1025, 1025] and third.buffer.numel() == 64
    second.abandon()
    fourth = channel.reserve(2048)
    assert pinned == [1025, 1025, 2048]
    for slot in (first, third, fourth):
        slot.commit()
    assert [channel.take(0).buffer.numel() for _ in range(3)] == [1025, 64, 2048]
    channel.reserve(4096)
    assert pinned[3:] == [4096]
    channel.reserve(1)
    assert len(pinned) == 4


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


def test_a_message_that_is_ready_is_sent_as_it_is():
    channel = LocalChannel(1)
    channel.send_message(encode_message(TENSORS, MessageKind.BATCH, 5, 6, 7))
    message = channel.receive(0)
    assert (message.loader, message.epoch, message.index) == (5, 6, 7) and message.tensors.keys() == TENSORS.keys()


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
