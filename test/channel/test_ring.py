"""The ring of shared memory, and the memory."""

import multiprocessing
import os
import pickle
import random
import threading

import numpy as np
import pytest
import torch

from glt import _core
from glt._checks import available_memory
from glt.channel import SharedMemory, share_tensor

OK, TIMEOUT, CLOSED = _core.RingStatus.OK, _core.RingStatus.TIMEOUT, _core.RingStatus.CLOSED


class Ring:
    """Both sides of a small ring in one process."""

    def __init__(self, arena_bytes=1 << 16, num_slots=16):
        self.region = SharedMemory(_core.ring_bytes(arena_bytes, num_slots)).mapping
        _core.format_ring(self.region, arena_bytes, num_slots)
        self.pool = _core.BlockPool(1 << 26)
        self.producer = _core.RingProducer(self.region, self.pool)
        self.consumer = _core.RingConsumer(self.region, self.pool)

    def stats(self):
        return _core.ring_stats(self.region)


def content(number, nbytes):
    return ((np.arange(nbytes, dtype=np.int64) * 7 + number * 13) % 251).astype(np.uint8)


def test_an_abandoned_or_forgotten_message_is_skipped():
    ring = Ring()
    abandoned, kept, forgotten, last = (ring.producer.reserve(50, 1)[1] for _ in range(4))
    abandoned.abandon()
    kept.array[:] = 1
    kept.commit()
    del forgotten
    last.array[:] = 2
    last.commit()
    assert [int(ring.consumer.receive(0)[1][0]) for _ in range(2)] == [1, 2]
    with pytest.raises(ValueError, match="before"):
        abandoned.commit()
    for _ in range(100):  # and its memory and slot are free again
        ring.producer.reserve(30000, 1)[1].abandon()
        assert ring.consumer.receive(0)[0] == TIMEOUT


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_that_sends_or_receives_is_told_so_and_changes_nothing():
    ring = Ring()
    slot, large = (ring.producer.reserve(nbytes, 1)[1] for nbytes in (50, 40_000))  # the second in pieces, by a thread
    calls = [slot.commit, large.commit, lambda: ring.producer.reserve(50, 1), lambda: ring.consumer.receive(1)]
    pid = os.getpid()
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            for call in calls:
                try:
                    call()
                except RuntimeError as error:
                    refused += "is a fork of the one that" in str(error) and f"(pid {pid})" in str(error)
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    assert ring.consumer.receive(0)[0] == TIMEOUT, "nothing was sent"
    for each, number in ((slot, 3), (large, 4)):
        each.array[:] = number
        each.commit()
    assert [int(ring.consumer.receive(10)[1][-1]) for _ in range(2)] == [3, 4]


@pytest.mark.parametrize("seed", range(6))
def test_random_sizes_with_release_in_any_order_against_a_model(seed):
    rng = random.Random(seed)
    ring = Ring(arena_bytes=1 << 15, num_slots=8)
    sent = []
    filling = []
    kept = []
    number = num_received = 0
    for _ in range(4000):
        action = rng.random()
        if action < 0.4:
            nbytes = rng.choice([rng.randint(1, 300), rng.randint(1, 12000), rng.randint(20000, 90000)])
            status, slot = ring.producer.reserve(nbytes, 0)
            if status == OK:
                assert slot.array.ctypes.data % 64 == 0
                slot.array[:] = content(number, nbytes)
                sent.append((number, nbytes))
                filling.append((number, nbytes, slot))
                number += 1
        elif action < 0.65 and filling:
            filling.pop(rng.randrange(len(filling)))[2].commit()
        elif action < 0.9:
            committed_next = num_received < len(sent) and all(n != num_received for n, _, _ in filling)
            status, array = ring.consumer.receive(5 if committed_next else 0)
            assert (status == OK) == committed_next
            if status == OK:
                expected_number, nbytes = sent[num_received]
                assert array.size == nbytes
                kept.append((expected_number, nbytes, array))
                num_received += 1
        elif kept:
            expected_number, nbytes, array = kept.pop(rng.randrange(len(kept)))
            assert (array == content(expected_number, nbytes)).all()
    for expected_number, nbytes, array in kept:
        assert (array == content(expected_number, nbytes)).all()
    stats = ring.stats()
    assert num_received > 200 and stats["sent"]["oversize"] > 0 and stats["received"]["messages"] == num_received


def test_the_arena_is_whole_again_after_everything_was_released():
    ring = Ring(arena_bytes=1 << 16)
    for size in (1, 64, 65, 5000, 1 << 15):
        arrays = []
        for _ in range(5):
            status, slot = ring.producer.reserve(min(size, 6000), 1)
            assert status == OK
            slot.commit()
            arrays.append(ring.consumer.receive(1)[1])
        random.Random(size).shuffle(arrays)
        arrays.clear()
    for _ in range(2):  # two halves fit only into an arena without holes
        assert ring.producer.reserve(1 << 15, 0)[1] is not None
    assert ring.stats()["sent"]["oversize"] == 0 and ring.consumer.held_bytes == 0


def test_small_kept_blocks_all_over_the_arena_stop_nothing():
    ring = Ring(arena_bytes=1 << 16, num_slots=64)
    slots = [ring.producer.reserve(1024, 1)[1] for _ in range(60)]
    for slot in slots:
        slot.commit()
    arrays = [ring.consumer.receive(1)[1] for _ in slots]
    kept = arrays[:32:3]  # holes of 2 KiB between them, and then all is free
    arrays.clear()
    for _ in range(20):
        slot = ring.producer.reserve(1 << 15, 1)[1]
        slot.array[:] = 9
        slot.commit()
        kept.append(ring.consumer.receive(5)[1])
    assert all((array == 9).all() for array in kept[11:])


def test_a_full_arena_times_out_and_goes_on_when_a_block_is_released():
    ring = Ring(arena_bytes=1 << 16)
    for _ in range(2):
        ring.producer.reserve(1 << 15, 0)[1].commit()
    assert ring.producer.reserve(1 << 15, 0.05)[0] == TIMEOUT
    array = ring.consumer.receive(0)[1]
    assert ring.producer.reserve(1 << 15, 0.05)[0] == TIMEOUT
    result = []
    waiting = threading.Thread(target=lambda: result.append(ring.producer.reserve(1 << 15, 20)[0]))
    waiting.start()
    del array
    waiting.join(10)
    assert result == [OK]


def test_many_producer_threads_and_many_releasing_threads():
    ring = Ring(arena_bytes=1 << 18, num_slots=32)
    num_threads, per_thread = 4, 300
    seen = []
    bad = []

    def produce(thread):
        rng = random.Random(thread)
        for i in range(per_thread):
            nbytes = rng.choice([16, rng.randint(16, 4000), rng.randint(16, 40000), 200_000 if i % 50 == 0 else 16])
            status, slot = ring.producer.reserve(nbytes, 20)
            if status != OK:
                bad.append(str(status))
                return
            slot.array[:] = (thread * 31 + i) % 256
            slot.array[:8] = np.array([thread, i], np.int32).view(np.uint8)
            slot.commit()

    threads = [threading.Thread(target=produce, args=(t,)) for t in range(num_threads)]
    for t in threads:
        t.start()
    releasers = []
    batch = []
    for _ in range(num_threads * per_thread):
        status, array = ring.consumer.receive(20)
        assert status == OK
        thread, i = array[:8].view(np.int32).tolist()
        seen.append((thread, i))
        assert (array[8:] == (thread * 31 + i) % 256).all()
        batch.append(array)
        if len(batch) == 20:
            releasers.append(threading.Thread(target=batch.clear))
            releasers[-1].start()
            batch = []
    for t in threads + releasers:
        t.join()
    assert not bad
    for thread in range(num_threads):
        assert [i for t, i in seen if t == thread] == list(range(per_thread))


def test_a_second_producer_or_consumer_is_refused():
    ring = Ring()
    with pytest.raises(ValueError, match="already sends"):
        _core.RingProducer(ring.region, ring.pool)
    with pytest.raises(ValueError, match="already receives"):
        _core.RingConsumer(ring.region, ring.pool)


def test_memory_that_holds_no_ring_is_refused():
    memory = SharedMemory(1 << 20)
    with pytest.raises(ValueError, match="no ring"):
        _core.RingProducer(memory.mapping, _core.BlockPool(0))
    with pytest.raises(ValueError, match="expected"):
        _core.format_ring(memory.mapping, 1 << 20, 8)
    _core.format_ring(memory.mapping, 1 << 16, 8)
    clean = memory.array()[:48].copy()
    for position in (8, 12, 16, 25, 33):  # version, slots, blocks, arena bytes, arena offset
        memory.array()[position] ^= 0x55
        with pytest.raises(ValueError):
            _core.RingConsumer(memory.mapping, _core.BlockPool(0))
        memory.array()[:48] = clean


SPAWN = multiprocessing.get_context("spawn")


def add_one(memory, shared, matrix):
    memory.tensor()[:3] += 1
    shared.tensor.add_(1)
    assert matrix.tensor.dtype == torch.bfloat16 and matrix.tensor.shape == (2, 3)


def test_a_child_sees_and_changes_the_same_bytes():
    memory = SharedMemory(10_000)
    shared = share_tensor(torch.arange(1000))
    child = SPAWN.Process(target=add_one, args=(memory, shared, share_tensor(torch.ones(2, 3).bfloat16())))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert memory.tensor()[:4].tolist() == [1, 1, 1, 0]
    assert torch.equal(shared.tensor, torch.arange(1000) + 1)


@pytest.mark.parametrize("tensor", [torch.tensor(3.5), torch.empty(0, 4), torch.arange(6).view(2, 3).t()])
def test_any_tensor_can_be_shared(tensor):
    shared = share_tensor(tensor)
    assert torch.equal(shared.tensor, tensor) and shared.tensor.dtype == tensor.dtype


def test_it_can_only_be_given_to_a_process_that_is_started():
    with pytest.raises(RuntimeError, match="through inheritance"):
        pickle.dumps(SharedMemory(100))


def test_tensors_outlive_the_memory_object_and_no_descriptor_stays_open():
    before = len(os.listdir("/proc/self/fd"))
    with SharedMemory(1 << 20) as memory:
        tensor = memory.tensor()
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before
    tensor.fill_(7)
    assert tensor.sum() == 7 << 20
    with pytest.raises(ValueError, match="closed"):
        memory.tensor()
    memory.close()


def test_nobody_can_shorten_it():
    memory = SharedMemory(10_000)
    with pytest.raises(PermissionError):
        os.ftruncate(memory._fd, 10)


def test_more_than_there_is_is_refused_by_name():
    with pytest.raises(MemoryError, match=r"\(1152921504606846976 bytes\) wanted, but only .* bytes\) is the memory"):
        SharedMemory(1 << 60)
    with pytest.raises(ValueError, match="more than 0"):
        SharedMemory(0)


def fake_system(root, listing, files):
    for name, text in {
        "proc/meminfo": "MemFree: 1 kB\nMemAvailable: 8000 kB\n",
        "proc/self/cgroup": listing,
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return available_memory(root / "proc", root / "cgroup")


def test_the_limit_of_a_container_counts(tmp_path):
    assert fake_system(tmp_path / "none", "", {})[0] == 8_192_000
    files = {"cgroup/a/b/memory.max": "max\n", "cgroup/a/b/memory.current": "5\n"}
    assert fake_system(tmp_path / "max", "0::/a/b\n", files)[0] == 8_192_000
    files |= {
        "cgroup/a/memory.max": "1000\n",
        "cgroup/a/memory.current": "600\n",
        "cgroup/a/memory.stat": "inactive_file 100\n",
    }
    room, limit = fake_system(tmp_path / "v2", "0::/a/b\n", files)
    assert room == 500 and limit.endswith("cgroup/a")
    v1 = {"cgroup/memory/memory.limit_in_bytes": "3000", "cgroup/memory/memory.usage_in_bytes": "1000"}
    assert fake_system(tmp_path / "v1", "5:cpu,memory:/docker/x\n", v1)[0] == 2000
