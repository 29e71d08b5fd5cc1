"""ShmChannel between processes: order, oversize messages, kept batches, killed and closing sides, leaks."""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from glt.channel import MessageKind, MessageLayout, ShmChannel
from glt.errors import ChannelClosed, ChannelTimeout

SPAWN = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def process(target, *args):
    child = SPAWN.Process(target=target, args=args, daemon=True)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


def batch(index, num_nodes):
    n_id = torch.arange(num_nodes) + index
    return {"n_id": n_id, "x": n_id.to(torch.bfloat16)[:, None].expand(-1, 3), "num": torch.tensor(num_nodes)}


def check_batch(tensors, index, num_nodes):
    for name, expected in batch(index, num_nodes).items():
        assert torch.equal(tensors[name], expected), (index, name)


def size_of(index):
    return (index * 7919) % 5000


def produce(channel, num_messages, num_nodes=None):
    for index in range(num_messages):
        channel.send(batch(index, size_of(index) if num_nodes is None else num_nodes), epoch=1, index=index)
    channel.send({}, MessageKind.END)
    channel.close()


def test_two_processes_many_sizes_in_order():
    # Room for any message (70 KB at most) between two that the consumer holds: the last one, and the one it takes.
    channel = ShmChannel("512KB")
    with process(produce, channel, 400):
        for index in range(400):
            message = channel.receive(60)
            assert (message.kind, message.epoch, message.index) == (MessageKind.BATCH, 1, index)
            check_batch(message.tensors, index, size_of(index))
        assert channel.receive(10).kind is MessageKind.END
        with pytest.raises(ChannelClosed, match="closed by its producer"):
            channel.receive(10)
    stats = channel.stats()
    assert stats["num_sent"] == stats["num_received"] == 401 and stats["num_queued"] == 0
    assert stats["sent_bytes"] == stats["received_bytes"] > 0 and stats["num_oversize"] == 0
    channel.close()


def test_messages_larger_than_the_whole_channel_arrive():
    channel = ShmChannel("64KB")
    with process(produce, channel, 6, 100_000):  # 1.4 MB each
        for index in range(6):
            check_batch(channel.receive(60).tensors, index, 100_000)
        assert channel.receive(10).kind is MessageKind.END
    assert channel.stats()["num_oversize"] == 6


def test_oversize_and_small_messages_keep_their_order():
    with ShmChannel("64KB") as channel:
        sizes = [10, 200_000, 10, 10, 50_000, 30_000, 64_000, 7] * 3

        def fill():
            for start in range(0, len(sizes), 2):
                layouts = [MessageLayout({"a": (torch.uint8, [sizes[i]])}) for i in (start, start + 1)]
                slots = [channel.reserve(layout.nbytes, 20) for layout in layouts]
                for i in (1, 0):  # the later one first
                    layouts[i].write_header(slots[i].buffer, MessageKind.BATCH, index=start + i)
                    layouts[i].tensors(slots[i].buffer)["a"].fill_((start + i) % 256)
                    slots[i].commit()

        thread = threading.Thread(target=fill)
        thread.start()
        for i, size in enumerate(sizes):
            message = channel.receive(20)
            assert message.index == i and message.tensors["a"].numel() == size and (message.tensors["a"] == i).all()
        thread.join()


def test_a_consumer_that_keeps_every_batch_blocks_nobody():
    channel = ShmChannel("256KB")
    with process(produce, channel, 500, 1000):  # 14 KB each, 7 MB in all
        kept = [channel.receive(60) for _ in range(500)]
        assert channel.receive(10).kind is MessageKind.END
    for index, message in enumerate(kept):
        check_batch(message.tensors, index, 1000)
    assert channel.stats()["num_copied"] > 450


def test_tensors_outlive_the_channel_and_the_producer():
    channel = ShmChannel("1MB")
    with process(produce, channel, 20, 1000):
        kept = [channel.receive(60) for _ in range(20)]
    channel.close()
    del channel
    gc.collect()
    for index, message in enumerate(kept):
        check_batch(message.tensors, index, 1000)
        message.tensors["n_id"].add_(1)


def write_without_end(channel, progress):
    channel.send(batch(0, 100), index=0)
    while True:
        slots = [channel.reserve(5000, 60) for _ in range(3)]
        for slot in reversed(slots):
            slot.buffer.fill_(1)
        progress.value += 1
        slots[0].abandon()
        slots[1].abandon()
        MessageLayout({}).write_header(slots[2].buffer, MessageKind.BATCH)
        slots[2].commit()


def test_a_producer_killed_while_writing_ends_in_a_timeout_that_says_so():
    for _ in range(2):
        channel = ShmChannel("64KB")
        progress = SPAWN.Value("q", 0)
        with process(write_without_end, channel, progress) as child:
            check_batch(channel.receive(60).tensors, 0, 100)
            while progress.value < 30:
                channel.receive(60)
            os.kill(child.pid, signal.SIGKILL)
            child.join(10)
            start = time.monotonic()
            with pytest.raises(ChannelTimeout, match=f"producer pid {child.pid}"):
                while time.monotonic() - start < 20:  # what it had committed still arrives
                    channel.receive(0.1)
            channel.close()


def take_and_keep(channel, ready):
    kept = [channel.receive(60)]
    ready.set()
    while True:
        kept.append(channel.receive(60))


def drop_in_a_fork(*held):
    """A child gets copies of these objects, drops them and ends as a forked worker does."""
    child = os.fork()
    if child == 0:
        for each in held:
            each.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_fork_of_the_consumer_gives_nothing_back_and_closes_nothing():
    channel = ShmChannel("64KB")
    sender = ShmChannel.from_descriptor({**channel.descriptor(), "fd": os.dup(channel.descriptor()["fd"])})
    sender.send({"x": torch.full((3000,), 1.0)})
    held = [channel.receive(10).tensors, channel]
    del channel
    drop_in_a_fork(held)
    for number in range(2, 40):
        sender.send({"x": torch.full((1000 + number,), float(number))})
        assert (held[1].receive(10).tensors["x"] == number).all()
        assert (held[0]["x"] == 1).all()
    assert held[1].stats()["num_copied"] == 0


def test_a_fork_of_the_producer_abandons_nothing_and_closes_nothing():
    channel = ShmChannel("64KB")
    sender = ShmChannel.from_descriptor({**channel.descriptor(), "fd": os.dup(channel.descriptor()["fd"])})
    sender.send({"x": torch.ones(100_000)})  # oversize: on a thread that the child will not have
    layout = MessageLayout.like({"x": torch.ones(5)})
    held = [sender.reserve(layout.nbytes, 10), sender]
    del sender
    drop_in_a_fork(held)
    layout.write(held[0].buffer, {"x": torch.ones(5)}, MessageKind.BATCH)
    held[0].commit()
    assert len(channel.receive(10).tensors["x"]) == 100_000
    assert len(channel.receive(10).tensors["x"]) == 5


def test_a_killed_consumer_leaves_the_producer_with_a_timeout():
    channel = ShmChannel("64KB")
    ready = SPAWN.Event()
    with process(take_and_keep, channel, ready) as child:
        channel.send(batch(0, 1000))
        assert ready.wait(60)
        for index in range(50):
            channel.send(batch(index, 1000), timeout_s=60)
        os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        with pytest.raises(ChannelTimeout, match=f"consumer pid {child.pid}"):
            for _ in range(100):
                channel.send(batch(0, 1000), timeout_s=0.2)
        start = time.monotonic()
        channel.close()
        assert time.monotonic() - start < 4  # nothing is in pieces, which it would give 5 s


def wait_for_message(channel, woken):
    try:
        channel.receive(0)
    except ChannelTimeout:
        woken.value = 0
    try:
        channel.receive(60)
    except ChannelClosed:
        woken.value = time.monotonic()


def wait_for_room(channel, woken):
    woken.value = 0
    try:
        while True:
            channel.send(batch(0, 1000), timeout_s=60)
    except ChannelClosed:
        woken.value = time.monotonic()


@pytest.mark.parametrize("waiter", [wait_for_message, wait_for_room])
def test_close_wakes_the_other_side(waiter):
    channel = ShmChannel("64KB")
    woken = SPAWN.Value("d", -1.0)
    with process(waiter, channel, woken) as child:
        deadline = time.monotonic() + 60
        while woken.value < 0 or (waiter is wait_for_room and channel.stats()["num_sent"] < 4):
            assert time.monotonic() < deadline
            os.sched_yield()
        closed = time.monotonic()
        channel.close()
        child.join(60)
        assert child.exitcode == 0 and 0 <= woken.value - closed < 20  # of the 60 that it would have waited


def test_a_timeout_says_what_is_queued():
    with ShmChannel("64KB", capacity=3) as channel:
        for index in range(3):
            channel.send({}, index=index)
        with pytest.raises(ChannelTimeout, match=r"after 0\.1 s: 3 messages are queued in a channel of 64\.0 KB"):
            channel.send({}, timeout_s=0.1)


def test_ctrl_c_ends_a_wait():
    # A shell starts background jobs with SIGINT ignored, and Python then leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ShmChannel("64KB") as channel:
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                channel.receive(30)
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def resources():
    return (
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(Path("/proc/self/maps").read_text().split("\n")),
    )


def test_two_hundred_channels_leak_nothing():
    def cycle(oversize):
        channel = ShmChannel("1MB")
        channel.send({"x": torch.ones(300_000 if oversize else 50_000)})
        message = channel.receive(10)
        channel.close()
        assert message.tensors["x"].sum() > 0

    for index in range(20):
        cycle(index % 2 == 0)
    gc.collect()
    before, rss = resources(), psutil.Process().memory_info().rss
    for index in range(200):
        cycle(index % 10 == 0)
    gc.collect()
    after = resources()
    assert after[:2] == before[:2] and after[2] <= before[2] + 10
    assert psutil.Process().memory_info().rss - rss < 30 << 20


def test_no_file_appears_in_dev_shm():
    before = set(os.listdir("/dev/shm"))
    channel = ShmChannel("1MB")
    channel.send(batch(0, 100))
    assert set(os.listdir("/dev/shm")) <= before
    assert "/memfd:glt-channel" in Path("/proc/self/maps").read_text()
    channel.close()
