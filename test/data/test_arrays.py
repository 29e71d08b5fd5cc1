"""Arrays in files, and the pool of memory."""

import errno
import gc
import os
import resource
import subprocess
import sys
import threading
import tokenize

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glt
from glt import _core
from glt.data import arrays as npy_array
from glt.data import arrays as pool
from glt.data.arrays import load_npy, load_saved, map_npy
from glt.data.tasks import NpzFile

SAVED = np.arange(20)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("npy") / "ids.npy"


def test_what_was_saved_is_read_or_mapped(path):
    np.save(path, SAVED)
    assert load_npy(path).tolist() == map_npy(path, mode="r").tolist() == SAVED.tolist()
    mapped = map_npy(path)
    mapped[0] = 7
    assert load_npy(path)[0] == 0, "copy-on-write"
    with pytest.raises(FileNotFoundError):
        load_npy(path.parent / "other.npy")


def test_several_arrays_are_not_one(path):
    several = path.with_suffix(".npz")
    np.savez(several, a=SAVED)
    with pytest.raises(ValueError, match=r"seeds = 7 is an \.npz file of several arrays"):
        load_npy(several, "seeds = 7")


@pytest.mark.parametrize("error", [tokenize.TokenError("EOF", (2, 0)), SystemError("odd"), EOFError(), SyntaxError()])
@pytest.mark.parametrize("read", [load_npy, map_npy])
def test_all_that_numpy_raises_says_which_file(path, monkeypatch, error, read):
    def raises(*_, **__):
        raise error

    monkeypatch.setattr(npy_array.np, "load", raises)
    with pytest.raises(ValueError, match=r"labels is not a readable \.npy file"):
        read(path, "labels")


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, 127),
    put=st.binary(max_size=8),
    size=st.integers(0, 400),
    read=st.sampled_from([load_npy, map_npy]),
)
@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")  # written by Python 2, or so it looks
def test_damaged_files_are_arrays_or_refused_by_name(path, at, put, size, read):
    np.save(path, SAVED)
    data = path.read_bytes()
    path.write_bytes((data[:at] + put + data[at + len(put) :])[:size])
    try:
        read(path)
    except ValueError as refused:
        assert str(refused).startswith(f"{path} is not a readable .npy file: ")


def minor_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex64]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (300, 0, 5), (1000, 129), (40, 50, 60)])
def test_it_is_an_empty_tensor_like_any_other(dtype, shape):
    tensor = pool.pooled_empty(shape, dtype)
    assert tensor.dtype == dtype and tensor.shape == shape and tensor.is_contiguous()
    assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0
    tensor.fill_(1)
    assert bool((tensor == 1).all())


@pytest.mark.parametrize("nbytes", [200_000, 12_000_000])
def test_a_steady_state_has_no_page_faults(nbytes):
    def step(i):
        tensor = pool.pooled_empty((nbytes - i % 7 * 4096,), torch.uint8)  # batches differ a little
        tensor.fill_(i % 256)
        return tensor[100:200]

    kept = [step(i) for i in range(6)]

    def faults_of_a_round():
        before = minor_faults()
        for i in range(42):
            kept[i % len(kept)] = step(i)  # a view keeps the whole block alive
        return minor_faults() - before

    # The first round warms up; the best of the others, and a few strays, as the kernel may reclaim or scan pages at any
    # time. Fresh memory would fault once per page.
    rounds = [faults_of_a_round() for _ in range(5)]
    assert min(rounds[1:]) <= 42 * nbytes // 4096 // 50, rounds
    assert all(int(view[0]) == int(view[-1]) for view in kept)


def test_memory_of_a_living_view_is_not_handed_out_again():
    blocks = _core.BlockPool(1 << 30)
    kept = [blocks.acquire(100_000)[i:] for i in range(20)]
    for i, array in enumerate(kept):
        array[:] = i
    assert all((array == i).all() for i, array in enumerate(kept))
    assert blocks.stats()["reused"] == 0


def test_similar_sizes_share_and_waste_is_bounded():
    blocks = _core.BlockPool(1 << 30)
    for nbytes in (1_000_000, 990_000, 1_010_000, 1_040_000):
        blocks.acquire(nbytes)
    assert blocks.stats()["reused"] == 3
    blocks.acquire(700_000)  # a 1 MB block would waste too much
    assert blocks.stats()["reused"] == 3
    for nbytes in (70_000, 1_234_567, 9_000_000, 33_333_333):
        array = blocks.acquire(nbytes)
        assert array.size == nbytes and blocks.stats()["used_bytes"] <= max(nbytes * 1.25, nbytes + 4096)
        del array


def test_memory_that_was_used_last_is_handed_out_first():
    blocks = _core.BlockPool(1 << 30)
    kept = [blocks.acquire(100_000) for _ in range(5)]
    addresses = [array.ctypes.data for array in kept]
    for i in (0, 3, 1, 4, 2):
        kept[i] = None
    again = [blocks.acquire(100_000) for _ in range(5)]
    assert [addresses.index(array.ctypes.data) for array in again] == [2, 4, 1, 3, 0]


def test_free_memory_stays_below_the_limit():
    blocks = _core.BlockPool(3 << 20)
    arrays = [blocks.acquire(1 << 20) for _ in range(10)]
    assert blocks.stats()["used_bytes"] == 10 << 20
    arrays.clear()
    assert blocks.stats()["free_bytes"] == 3 << 20 and blocks.stats()["used_bytes"] == 0
    del arrays
    blocks.acquire(100 << 20)  # more than the limit by itself: goes straight back
    assert blocks.stats()["free_bytes"] == 3 << 20


WORDS = {
    "EMFILE": r"this process may have \d+; raise the limit before it starts, with ulimit -n",
    "ENFILE": "raise that limit, with sysctl fs.file-max",
    "ENOMEM": r"(GB|MB|KB) is the memory .*ulimit -v .*sysctl vm.max_map_count",
    "EIO": "the disk failed.*see dmesg",
    "EACCES": r"the user of this process, \d+, may not open it",
    "ENOSPC": "free some room",
}


def failing(name):
    def fail(path, **options):
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    return fail


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("read", [load_npy, map_npy, NpzFile])
def test_errors_of_the_machine_are_no_damage_of_the_file(tmp_path, monkeypatch, name, read):
    monkeypatch.setattr(np, "load", failing(name))
    with pytest.raises(OSError, match=WORDS[name]) as caught:
        read(tmp_path / "x.npy")
    assert caught.value.errno == getattr(errno, name)
    assert caught.value.filename == str(tmp_path / "x.npy")


def test_the_limit_of_descriptors_is_named(tmp_path):
    """With a descriptor after the other, and no more of them."""
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    torch.save(torch.arange(3), tmp_path / "x.pt")
    shared_memory = glt.channel.SharedMemory  # imported here, since a module is a file too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        found = []
        for read in (
            lambda: load_npy(tmp_path / "x.npz"),
            lambda: load_saved(tmp_path / "x.pt", "x", "a tensor"),
            lambda: NpzFile(tmp_path / "x.npz"),
            lambda: shared_memory(64),
        ):
            with pytest.raises(OSError, match="Too many open files: ") as caught:
                read()
            found.append(str(caught.value))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(f"this process may have {lowest_free}; raise the limit" in each for each in found), found


def test_free_memory_is_given_up_before_there_is_none():
    """200 MB of free blocks, none of which is large enough, and a limit that leaves no room beside them."""
    code = (
        "import resource\n"
        "from glt import _core\n"
        "blocks = _core.BlockPool(1 << 30)\n"
        "kept = [blocks.acquire(10_000_000) for _ in range(20)]\n"
        "kept.clear()\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000, resource.RLIM_INFINITY))\n"
        "large = blocks.acquire(150_000_000)\n"
        "large[::4096] = 1\n"
        "print(blocks.stats()['free_bytes'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_blocks_outlive_their_pool():
    blocks = _core.BlockPool(1 << 20)
    array = blocks.acquire(500_000)
    del blocks
    gc.collect()
    array[:] = 5
    assert array.sum() == 2_500_000


def test_threads_may_take_and_drop_at_will():
    blocks = _core.BlockPool(1 << 24)
    bad = []

    def work(number):
        for i in range(300):
            array = blocks.acquire(70_000 + i * 100)
            array[:] = number
            if not (array == number).all():
                bad.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad and blocks.stats()["used_bytes"] == 0


def test_tensors_alive_at_exit_do_no_harm():
    code = (
        "import torch, threading\n"
        "from glt.data import arrays as pool\n"
        "from glt.channel import ShmChannel\n"
        "kept = [pool.pooled_empty((100_000,), torch.float32) for _ in range(3)]\n"
        "channel = ShmChannel('1MB')\n"
        "channel.send({'x': torch.ones(5), 'y': torch.ones(900_000)}); batch = channel.receive(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stderr == ""


def test_more_than_the_machine_has_is_a_memory_error():
    with pytest.raises(MemoryError):
        pool.process_pool().acquire(1 << 60)
    assert pool.process_pool().stats()["used_bytes"] < 1 << 59
