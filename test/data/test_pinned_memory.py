"""Pinned memory, and copies under way from it."""

import gc
import mmap
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_cuda import PAGE, FakeCuda

from glt.data import Topology
from glt.data import pinned as pinned_memory
from glt.data.device import missing_for_cuda, wait_when_dropped
from glt.data.device_topology import DeviceTopology
from glt.data.feature import TieredRows
from glt.data.pinned import SMALL_BYTES, PinnedMemory, PinnedPages, shared_map

CPU = torch.device("cpu")


@pytest.fixture
def driver():
    return FakeCuda()


@pytest.fixture
def pages(driver):
    return driver.pages


def test_whole_pages_around_what_was_asked_for(driver, pages):
    held = pages.acquire(10 * PAGE + 100, PAGE, 0)
    assert driver.sizes == {10 * PAGE: (2 * PAGE, 0)} and pages.num_bytes == 2 * PAGE
    pages.release(held)
    assert not driver.sizes and pages.num_bytes == 0


def test_large_memory_is_registered_in_chunks():
    driver = FakeCuda(chunk_pages=4)
    pages = driver.pages
    held = pages.acquire(16 * PAGE, 10 * PAGE, 1)
    assert driver.sizes == {16 * PAGE: (4 * PAGE, 1), 20 * PAGE: (4 * PAGE, 1), 24 * PAGE: (2 * PAGE, 1)}
    pages.release(held)
    assert not driver.sizes


def test_overlaps_and_duplicates_are_counted(driver, pages):
    middle = pages.acquire(20 * PAGE, 4 * PAGE, 0)
    around = pages.acquire(18 * PAGE, 10 * PAGE, 1)  # before, over and after
    again = pages.acquire(20 * PAGE, 4 * PAGE, 0)
    assert sorted(driver.held) == [page * PAGE for page in range(18, 28)]
    pages.release(middle)
    pages.release(again)
    assert len(driver.held) == 10, "still used by what lies around"
    pages.release(around)
    assert not driver.held
    neighbours = [pages.acquire(5 * PAGE + 10, 20, 0), pages.acquire(5 * PAGE + 50, PAGE, 0)]  # share a page
    assert sorted(driver.held) == [5 * PAGE, 6 * PAGE]
    pages.release(neighbours[0])
    assert sorted(driver.held) == [5 * PAGE, 6 * PAGE]
    pages.release(neighbours[1])
    assert not driver.held


def test_other_devices_that_read_there_are_waited_for_before_pages_go(driver, pages):
    ours, theirs = pages.acquire(10 * PAGE, PAGE, 0), pages.acquire(10 * PAGE, PAGE, 1)
    pages.release(ours)
    assert driver.synchronized == [] and driver.held
    pages.release(theirs)
    assert driver.synchronized == [1] and not driver.held  # of its own device, unregister waits itself


def test_a_refusal_leaves_nothing_registered_but_what_was():
    driver = FakeCuda(chunk_pages=4, refuse_at=22 * PAGE)
    pages = driver.pages
    before = pages.acquire(17 * PAGE, PAGE, 0)
    with pytest.raises(RuntimeError, match="out of memory"):
        pages.acquire(16 * PAGE, 10 * PAGE, 0)
    assert sorted(driver.held) == [17 * PAGE]
    driver.refuse_at = None
    held = pages.acquire(16 * PAGE, 10 * PAGE, 0)
    assert len(driver.held) == 10
    pages.release(before)
    pages.release(held)
    assert not driver.held


def test_what_fails_to_unregister_does_not_keep_the_others():
    driver = FakeCuda()

    def unregister(address, device):
        if address == 16 * PAGE:
            raise RuntimeError("cudaHostUnregister: cudaErrorUnknown")
        driver.unregister(address, device)

    pages = PinnedPages(driver.register, unregister, driver.synchronized.append, PAGE)
    held = pages.acquire(16 * PAGE, 3 * PAGE, 0)
    with pytest.raises(RuntimeError, match="cudaErrorUnknown"):
        pages.release(held)
    assert sorted(driver.sizes) == [16 * PAGE] and pages.num_bytes == 0


def test_an_owner_that_is_collected_in_the_middle_of_a_call_is_given_back_after_it():
    driver, held = FakeCuda(), []

    def register(address, num_bytes, device):
        while held:
            pages.release(held.pop())  # as a finalizer does that the collector runs
        driver.register(address, num_bytes, device)

    pages = PinnedPages(register, driver.unregister, driver.synchronized.append)
    held.append(pages.acquire(10 * PAGE, PAGE, 0))
    around = pages.acquire(9 * PAGE, 3 * PAGE, 0)
    assert sorted(driver.held) == [9 * PAGE, 10 * PAGE, 11 * PAGE]
    pages.release(around)
    assert not driver.held


def test_memory_of_a_tensor_is_pinned_until_it_is_closed_or_collected(driver, pages):
    tensor = torch.zeros(3 * PAGE, dtype=torch.uint8)
    first, last = tensor.data_ptr() // PAGE * PAGE, (tensor.data_ptr() + 3 * PAGE - 1) // PAGE * PAGE
    with PinnedMemory(tensor, CPU, pages=pages) as memory:
        assert memory.nbytes == 3 * PAGE
        assert (min(driver.held), max(driver.held)) == (first, last)
    assert not driver.held
    memory.close()  # twice is once
    view = tensor.view(torch.int16).view(-1, 2)[:, ::2][10:20]
    memory = PinnedMemory(view, CPU, pages=pages)
    assert memory.nbytes == 9 * 4 + 2
    assert min(driver.held) == (tensor.data_ptr() + 40) // PAGE * PAGE
    del memory
    gc.collect()
    assert not driver.held
    assert PinnedMemory(torch.zeros(0, 5), CPU, pages=pages).nbytes == 0 and not driver.held


def test_of_a_part_of_a_tensor_the_whole_is_pinned_but_of_a_mapped_file(tmp_path, driver, pages):
    """CUDA refuses copies of memory of which a part is registered; a second map nobody copies."""
    table = torch.zeros(8 * PAGE, dtype=torch.uint8)
    with PinnedMemory(table[7 * PAGE :], CPU, pages=pages, whole=table) as memory:
        assert memory.nbytes == PAGE and memory.tensor.data_ptr() == table[7 * PAGE :].data_ptr()
        assert table.data_ptr() // PAGE * PAGE in driver.held and len(driver.held) in (8, 9)
    assert not driver.held
    np.save(tmp_path / "rows.npy", table.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c"))
    with PinnedMemory(mapped[7 * PAGE :], CPU, pages=pages, whole=mapped) as memory:
        assert memory.tensor.data_ptr() // PAGE * PAGE in driver.held and len(driver.held) in (1, 2)
    assert not driver.held


def test_of_a_file_that_is_mapped_privately_its_own_pages_are_pinned(tmp_path, driver, pages):
    rows = np.arange(4000, dtype=np.int64).reshape(1000, 4)
    np.save(tmp_path / "rows.npy", rows)
    tensor = torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c"))
    with PinnedMemory(tensor[100:, 1:3], CPU, pages=pages) as memory:
        assert memory.tensor.data_ptr() != tensor[100:, 1:3].data_ptr()
        assert torch.equal(memory.tensor, tensor[100:, 1:3])
        assert memory.tensor.data_ptr() // PAGE * PAGE in driver.held
        assert tensor.data_ptr() // PAGE * PAGE not in driver.held
    assert not driver.held
    tensor[500, 2] = -1  # in this process alone: GPUs are to read it too
    with PinnedMemory(tensor, CPU, pages=pages) as memory:
        assert memory.tensor is tensor and tensor.data_ptr() // PAGE * PAGE in driver.held
    assert not driver.held


def test_a_driver_that_refuses_read_only_maps_gets_the_private_one(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(4000))
    tensor = torch.from_numpy(np.load(tmp_path / "rows.npy", mmap_mode="c"))
    driver = FakeCuda()

    def register(address, num_bytes, device):
        if address != tensor.data_ptr() // PAGE * PAGE:
            raise RuntimeError("cudaErrorInvalidValue")
        driver.register(address, num_bytes, device)

    with PinnedMemory(
        tensor, CPU, pages=PinnedPages(register, driver.unregister, driver.synchronized.append)
    ) as memory:
        assert memory.tensor is tensor and driver.held
    assert not driver.held


def test_memory_that_looks_pinned_is_counted_unless_it_is_torchs(monkeypatch, driver, pages):
    """CUDA says of registered pages what it says of torch's; they would be lost with their first user."""
    monkeypatch.setattr(pinned_memory, "process_pages", lambda: pages)
    monkeypatch.setattr(pinned_memory, "cuda_device", lambda device, name: torch.device("cuda", 0))
    monkeypatch.setattr(pinned_memory, "_reads_host_memory", lambda device: False)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() // PAGE * PAGE in driver.held)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    tensor = torch.zeros(SMALL_BYTES + 10 * PAGE, dtype=torch.uint8)
    first, second = PinnedMemory(tensor[: SMALL_BYTES + 100], 0), PinnedMemory(tensor[200:], 0)
    assert first.tensor.data_ptr() == tensor.data_ptr()
    last = (tensor.data_ptr() + len(tensor) - 1) // PAGE * PAGE
    assert last in driver.held, "not only what both have"
    first.close()
    assert second.tensor.data_ptr() // PAGE * PAGE in driver.held
    second.close()
    assert not driver.held
    small = torch.arange(10)
    memory = PinnedMemory(small, 0)
    assert torch.equal(memory.tensor, small) and memory.tensor is not small and not driver.held
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    assert PinnedMemory(small, 0).tensor is small and PinnedMemory(tensor, 0).tensor is tensor and not driver.held


@pytest.mark.skipif(missing_for_cuda() is None, reason="needs a machine without a GPU")
def test_where_a_gpu_reads_memory_of_the_host_only_what_it_writes_to_is_pinned(monkeypatch, driver, pages):
    monkeypatch.setattr(pinned_memory, "cuda_device", lambda device, name: torch.device("cuda", 0))
    monkeypatch.setattr(pinned_memory, "process_pages", lambda: pages)
    monkeypatch.setattr(pinned_memory, "process_buffers", lambda: pages)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: False)
    monkeypatch.setattr(pinned_memory, "_reads_host_memory", lambda device: True)
    tensor = torch.zeros(SMALL_BYTES // 4)
    for given in (tensor, tensor[:100]):
        assert PinnedMemory(given, 0).tensor is given and not driver.registered
    written = PinnedMemory(tensor, 0, writable=True)
    assert driver.covers(tensor)
    written.close()
    monkeypatch.setattr(pinned_memory, "_reads_host_memory", lambda device: False)
    read = PinnedMemory(tensor, 0)
    assert driver.covers(tensor)
    read.close()


def test_without_a_gpu_it_says_what_is_missing():
    with pytest.raises(ValueError, match=r"device = 'cuda:0': (this build|torch|there is no NVIDIA driver)"):
        PinnedMemory(torch.zeros(4), "cuda:0")


def test_a_refusal_names_the_memory_and_what_to_do():
    tensor = torch.zeros(PAGE, dtype=torch.uint8)
    pages = FakeCuda(refuse_at=tensor.data_ptr() // PAGE * PAGE).pages
    with pytest.raises(RuntimeError, match=r"pinning 4096 bytes of rows: .*out of memory.*share_memory_"):
        PinnedMemory(tensor, CPU, "rows", pages=pages)


def test_a_forked_child_leaves_the_registrations_of_its_parent_alone(driver, pages):
    memory = PinnedMemory(torch.zeros(100), CPU, pages=pages)
    pages._lock.acquire()  # as if another thread were registering: the child must not wait for it
    child = os.fork()
    if child == 0:
        memory.close()
        os._exit(0 if driver.held else 1)
    pages._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert driver.held
    memory.close()
    assert not driver.held


GPU = torch.device("cuda", 0)


class Waits:
    """Of each wait for the GPU, whether the memory was still there."""

    def __init__(self):
        self.found = []
        self.memory = lambda: None

    def __call__(self, device):
        assert device == GPU
        self.found.append(self.memory() is not None)


@pytest.fixture
def waits(monkeypatch):
    found = Waits()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", found)
    yield found


class Memory:
    """Known to be there until this is deleted: the collector clears weak references before."""

    def __init__(self):
        self.gone = []

    def __del__(self):
        self.gone.append(True)


class Owner:
    def __init__(self):
        self.memory = Memory()


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_the_gpu_is_waited_for_before_the_memory_goes(waits, in_a_cycle):
    owner = Owner()
    gone = owner.memory.gone
    waits.memory = lambda: None if gone else "there"
    wait_when_dropped(owner, GPU)
    if in_a_cycle:
        owner.itself = owner
    del owner
    gc.collect()
    assert waits.found == [True] and gone


def test_the_host_and_a_process_without_cuda_wait_for_nothing(waits, monkeypatch):
    assert wait_when_dropped(Owner(), CPU) is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    owner = Owner()
    wait_when_dropped(owner, GPU)
    del owner
    assert waits.found == []


def test_what_the_gpu_reports_then_is_a_warning(waits, monkeypatch, caplog):
    def failed(device):
        raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr(torch.cuda, "synchronize", failed)
    owner = Owner()
    wait_when_dropped(owner, GPU)
    del owner
    assert "memory is given back on cuda:0, which reports: cudaErrorIllegalAddress" in caplog.text


@pytest.mark.parametrize("is_closed", [False, True])
def test_rows_in_tiers(waits, is_closed):
    rows = TieredRows(torch.rand(8, 2), CPU, num_hot=8)  # all in the GPU's memory: nothing is pinned
    rows.device = GPU
    for _ in range(2):
        rows.close()
        rows._bind()
    waits.memory = weakref.ref(rows._hot[0])
    waits.found.clear()
    if is_closed:
        rows.close()
    del rows
    assert waits.found == [True] and waits.memory() is None


@pytest.mark.parametrize("is_closed", [False, True])
def test_edges(waits, monkeypatch, is_closed):
    monkeypatch.setattr("glt.data.device_topology.free_memory", lambda device: 1 << 20)
    monkeypatch.setattr("glt.data.device_topology.copy_to_device", lambda tensor, device: tensor.clone())
    placed = DeviceTopology(Topology(torch.tensor([[0, 1], [1, 2]]), 3), GPU, "CUDA")
    waits.memory = weakref.ref(placed.indices)
    waits.found.clear()
    if is_closed:
        placed.close()
    del placed
    assert waits.found == [True] and waits.memory() is None


AT_EXIT = """
import torch
from glt.data.device import wait_when_dropped

torch.cuda.is_initialized = lambda: True
torch.cuda.synchronize = lambda device: print("waited")
owner = type("Owner", (), {})()
wait_when_dropped(owner, torch.device("cuda", 0))
"""


def test_a_process_that_ends_waits_for_nothing():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def rows(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(50_000))
    return np.load(tmp_path / "rows.npy", mmap_mode="c")


def flags_at(address):
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, flags = line.split()[:2]
        begin, end = (int(each, 16) for each in area.split("-"))
        if begin <= address < end:
            return flags
    return None


@pytest.mark.parametrize(("begin", "end"), [(0, 50_000), (1, 2), (511, 30_000), (49_999, 50_000)])
def test_the_same_bytes_in_a_shared_map_that_goes_with_its_array(rows, begin, end):
    part = rows[begin:end]
    mapped = shared_map(part.ctypes.data, part.nbytes)
    assert mapped is not None and mapped.view(np.int64).tolist() == part.tolist()
    address = mapped.ctypes.data
    assert flags_at(address) == "r--s" and flags_at(part.ctypes.data) == "rw-p"
    view = mapped[8:].view(np.int64)
    del mapped
    gc.collect()
    assert view.tolist() == part[1:].tolist()  # views keep it
    del view
    gc.collect()
    assert flags_at(address) != "r--s"


def test_a_file_that_has_lost_its_name_or_was_cut(rows, tmp_path):
    path = tmp_path / "rows.npy"
    path.rename(tmp_path / "old.npy")
    assert shared_map(rows.ctypes.data, rows.nbytes) is not None  # the kernel knows the new name
    np.save(tmp_path / "other.npy", np.arange(50_000) + 1)
    (tmp_path / "other.npy").rename(tmp_path / "old.npy")
    assert shared_map(rows.ctypes.data, rows.nbytes) is None  # "old.npy (deleted)"


def test_memory_that_is_no_private_map_of_a_file(rows, tmp_path):
    assert shared_map(rows.ctypes.data, rows.nbytes + (1 << 20)) is None, "it reaches beyond its file"
    shared, own = np.load(tmp_path / "rows.npy", mmap_mode="r+"), np.arange(50_000)
    assert shared_map(shared.ctypes.data, rows.nbytes) is shared_map(own.ctypes.data, own.nbytes) is None
    with mmap.mmap(-1, 1 << 20) as anonymous:
        view = np.frombuffer(anonymous, np.uint8)
        assert shared_map(view.ctypes.data, view.nbytes) is None
        del view
