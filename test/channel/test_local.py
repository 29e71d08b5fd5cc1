"""LocalChannel keeps the promises of the interface between threads."""

import threading
import time

import pytest
import torch

from glt.channel import LocalChannel, MessageKind, MessageLayout
from glt.errors import ChannelClosed, ChannelTimeout


def test_messages_pass_between_threads_in_order() -> None:
    channel = LocalChannel(2)

    def produce() -> None:
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


def test_order_of_reservation_not_of_commit() -> None:
    channel = LocalChannel(4)
    first, dropped, second = (channel.reserve(64, 0) for _ in range(3))
    for index, slot in ((1, second), (0, first)):
        MessageLayout({}).write_header(slot.buffer, MessageKind.BATCH, index=index)
        slot.commit()
    dropped.abandon()
    dropped.abandon()
    assert [channel.receive(0).index for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="committed before"):
        first.commit()


def test_a_full_channel_times_out_and_abandoning_makes_room() -> None:
    channel = LocalChannel(1)
    slot = channel.reserve(64, 0)
    with pytest.raises(ChannelTimeout, match="no room"):
        channel.reserve(64, 0.05)
    with pytest.raises(ChannelTimeout, match="no message"):
        channel.receive(0.05)
    slot.abandon()
    channel.send({}, timeout_s=0)
    assert channel.receive(0).index == 0


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_close_ends_a_wait(side: str) -> None:
    channel = LocalChannel(1)
    if side == "producer":
        channel.reserve(64, 0)
    ended: list[float] = []

    def wait() -> None:
        with pytest.raises(ChannelClosed):
            channel.reserve(64, 60) if side == "producer" else channel.receive(60)
        ended.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    closed = time.monotonic()
    channel.close()
    thread.join(30)
    assert ended[0] - closed < 20  # of the 60 that it would have waited


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="capacity = 0"):
        LocalChannel(0)
    with pytest.raises(ValueError, match="0 bytes"):
        LocalChannel(1).reserve(0)
    with pytest.raises(ValueError, match="timeout_s"):
        LocalChannel(1).receive(-1)


def test_pinned_memory_is_bounded_in_the_blocks_that_torch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Powers of two; what does not fit is pageable, and passes all the same."""
    pinned: list[int] = []
    empty = torch.empty

    def watched(nbytes: int, pin_memory: bool = False, **options: torch.dtype) -> torch.Tensor:
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
    assert [channel.receive_bytes(0).numel() for _ in range(3)] == [1025, 64, 2048]
    channel.reserve(4096)
    assert pinned[3:] == [4096]
    channel.reserve(1)
    assert len(pinned) == 4
