"""Shared memory without a name: seen by spawned processes, nowhere else; refused when there is not enough."""

import multiprocessing
import os
import pickle
from pathlib import Path

import pytest
import torch

from glt._checks import available_memory
from glt.channel import SharedMemory, SharedTensor, share_tensor

SPAWN = multiprocessing.get_context("spawn")


def add_one(memory: SharedMemory, shared: SharedTensor, matrix: SharedTensor) -> None:
    memory.tensor()[:3] += 1
    shared.tensor.add_(1)
    assert matrix.tensor.dtype == torch.bfloat16 and matrix.tensor.shape == (2, 3)


def test_a_child_sees_and_changes_the_same_bytes() -> None:
    memory = SharedMemory(10_000)
    shared = share_tensor(torch.arange(1000))
    child = SPAWN.Process(target=add_one, args=(memory, shared, share_tensor(torch.ones(2, 3).bfloat16())))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert memory.tensor()[:4].tolist() == [1, 1, 1, 0]
    assert torch.equal(shared.tensor, torch.arange(1000) + 1)


@pytest.mark.parametrize("tensor", [torch.tensor(3.5), torch.empty(0, 4), torch.arange(6).view(2, 3).t()])
def test_any_tensor_can_be_shared(tensor: torch.Tensor) -> None:
    shared = share_tensor(tensor)
    assert torch.equal(shared.tensor, tensor) and shared.tensor.dtype == tensor.dtype


def test_it_can_only_be_given_to_a_process_that_is_started() -> None:
    with pytest.raises(RuntimeError, match="through inheritance"):
        pickle.dumps(SharedMemory(100))


def test_tensors_outlive_the_memory_object_and_no_descriptor_stays_open() -> None:
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


def test_nobody_can_shorten_it() -> None:
    memory = SharedMemory(10_000)
    with pytest.raises(PermissionError):
        os.ftruncate(memory._fd, 10)


def test_more_than_there_is_is_refused_by_name() -> None:
    with pytest.raises(MemoryError, match=r"\(1152921504606846976 bytes\) wanted, but only .* bytes\) is the memory"):
        SharedMemory(1 << 60)
    with pytest.raises(ValueError, match="more than 0"):
        SharedMemory(0)


def fake_system(root: Path, listing: str, files: dict[str, str]) -> tuple[int, str]:
    for name, text in {
        "proc/meminfo": "MemFree: 1 kB\nMemAvailable: 8000 kB\n",
        "proc/self/cgroup": listing,
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return available_memory(root / "proc", root / "cgroup")


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
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
