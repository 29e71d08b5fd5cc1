"""Memory that a GPU reads is given back after its work, also by who forgets to close; a list plays the GPU."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from glt.data import Topology
from glt.data.dataset import DeviceTopology
from glt.data.device import wait_when_dropped
from glt.data.feature import TieredRows

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


class Waits:
    """Of each wait for the GPU, whether the memory was still there."""

    def __init__(self) -> None:
        self.found: list[bool] = []
        self.memory: Callable[[], object] = lambda: None

    def __call__(self, device: torch.device) -> None:
        assert device == GPU
        self.found.append(self.memory() is not None)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    found = Waits()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", found)
    yield found


class Memory:
    """Known to be there until this is deleted: the collector clears weak references before."""

    def __init__(self) -> None:
        self.gone: list[bool] = []

    def __del__(self) -> None:
        self.gone.append(True)


class Owner:
    def __init__(self) -> None:
        self.memory = Memory()


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_the_gpu_is_waited_for_before_the_memory_goes(waits: Waits, in_a_cycle: bool) -> None:
    owner = Owner()
    gone = owner.memory.gone
    waits.memory = lambda: None if gone else "there"
    wait_when_dropped(owner, GPU)
    if in_a_cycle:
        owner.itself = owner  # type: ignore[attr-defined]
    del owner
    gc.collect()
    assert waits.found == [True] and gone


def test_the_host_and_a_process_without_cuda_wait_for_nothing(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait_when_dropped(Owner(), CPU) is None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    owner = Owner()
    wait_when_dropped(owner, GPU)
    del owner
    assert waits.found == []


def test_what_the_gpu_reports_then_is_a_warning(
    waits: Waits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failed(device: torch.device) -> None:
        raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr(torch.cuda, "synchronize", failed)
    owner = Owner()
    wait_when_dropped(owner, GPU)
    del owner
    assert "memory is given back on cuda:0, which reports: cudaErrorIllegalAddress" in caplog.text


@pytest.mark.parametrize("is_closed", [False, True])
def test_rows_in_tiers(waits: Waits, is_closed: bool) -> None:
    rows = TieredRows(torch.rand(8, 2), CPU, num_hot=8)  # all in the GPU's memory: nothing is pinned
    rows.device = GPU
    rows._bind()
    waits.memory = weakref.ref(rows._hot[0])
    waits.found.clear()
    if is_closed:
        rows.close()
    del rows
    assert waits.found == [True] and waits.memory() is None


def test_rows_that_are_bound_again_after_they_were_closed(waits: Waits) -> None:
    rows = TieredRows(torch.rand(8, 2), CPU, num_hot=8)
    rows.device = GPU
    rows.close()
    rows._bind()
    waits.found.clear()
    del rows
    assert len(waits.found) == 1


@pytest.mark.parametrize("is_closed", [False, True])
def test_edges(waits: Waits, monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    monkeypatch.setattr("glt.data.dataset.copy_to_device", lambda tensor, device: tensor.clone())
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


def test_a_process_that_ends_waits_for_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
