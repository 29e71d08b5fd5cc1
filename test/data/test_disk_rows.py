"""Features on disk: the rows of the file, whatever is asked for and kept in memory, and errors that say what failed."""

import errno
import multiprocessing
import os
import pickle
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import glt
from glt import _core
from glt.data import DiskFeature, Feature
from glt.data.arrays import map_npy
from glt.data.packing import STORE_DTYPES
from glt.data.schema import PartitionBook


def written(path, rows):
    np.save(path, rows)
    return path


@pytest.mark.parametrize("memory", [0, 3000, "1 GB"])
@pytest.mark.parametrize("row_bytes", [1, 3, 100, 4096, 5000, 70_000])
def test_rows_are_those_of_the_file(tmp_path, row_bytes, memory):
    random, num_rows = np.random.default_rng(row_bytes), 3000 if row_bytes <= 5000 else 300
    rows = random.integers(0, 256, (num_rows, row_bytes), np.uint8)
    hotness = torch.from_numpy(random.random(num_rows))
    feature = DiskFeature(written(tmp_path / "rows.npy", rows), memory, hotness=hotness)
    assert feature.num_hot == (
        0 if memory == 0 else min(num_rows, 3000 // (8 + row_bytes)) if memory == 3000 else num_rows
    )
    for ids in ([], [0], [num_rows - 1], [7, 7, 0, num_rows - 1, 7], random.integers(0, num_rows, 5000)):
        ids = np.asarray(ids, np.int64)
        assert np.array_equal(feature.gather(torch.from_numpy(ids)).numpy(), rows[ids])


def test_the_hottest_are_kept(tmp_path):
    path = written(tmp_path / "rows.npy", np.arange(40, dtype=np.float32).reshape(10, 4))
    hotness = torch.tensor([0, 9, 1, 8, 0, 7, 0, 0, 0, 0])
    feature = DiskFeature(path, 3 * 24, hotness=hotness)
    assert feature.num_hot == 3 and "3 rows in memory" in repr(feature)
    stats = dict.fromkeys(("disk_s", "disk_bytes", "num_disk_rows", "num_hot_rows"), 0)
    feature.sources(np.array([1, 3, 5, 1, 2]), None, stats)
    assert (stats["num_hot_rows"], stats["num_disk_rows"]) == (4, 1) and stats["disk_bytes"] >= 16


def test_rows_go_where_they_belong(tmp_path):
    path = written(tmp_path / "rows.npy", np.arange(10, dtype=np.float32).reshape(5, 2))
    for memory in (0, 32):
        out = torch.zeros(4, 2)
        at = torch.tensor([2, 0], dtype=torch.uint32)
        DiskFeature(path, memory).gather(torch.tensor([4, 1]), out, positions=at)
        assert out.tolist() == [[2, 3], [0, 0], [8, 9], [0, 0]]


@pytest.mark.parametrize("store_dtype", STORE_DTYPES)
def test_packed_rows_become_floats(tmp_path, store_dtype):
    packed = Feature(torch.randn(50, 7), store_dtype=store_dtype)
    path = written(tmp_path / "rows.npy", packed.tensor.view(torch.uint8).numpy())
    ids = torch.tensor([49, 0, 3, 3])
    feature = DiskFeature(path, 300, store_dtype=packed.packing)
    assert torch.equal(feature.gather(ids), packed.dense()[ids]) and feature.num_hot > 0


def test_dtypes_that_numpy_lacks(tmp_path):
    rows = torch.randn(9, 3).bfloat16()
    path = written(tmp_path / "rows.npy", rows.view(torch.int16).numpy())
    assert torch.equal(DiskFeature(path, dtype=torch.bfloat16)[torch.tensor([8, 1])], rows[[8, 1]])
    with pytest.raises(ValueError, match=r"dtype = torch\.float32: expected a torch\.dtype of 2 bytes"):
        DiskFeature(path, dtype=torch.float32)


def test_only_owned_ids_have_rows(tmp_path):
    path = written(tmp_path / "rows.npy", np.arange(4.0).reshape(4, 1))
    for memory in (0, 40):
        feature = DiskFeature(path, memory, owned=(PartitionBook.of_ranges((0, 6, 10)), 1))
        assert feature.gather(torch.tensor([9, 6])).tolist() == [[3], [0]]
        for wrong in (5, 10, -1):
            with pytest.raises(IndexError):
                feature.gather(torch.tensor([wrong]))


def test_a_file_that_was_cut_is_named(tmp_path):
    path = written(tmp_path / "rows.npy", np.ones((1000, 64), np.float32))
    feature = DiskFeature(path)
    os.truncate(path, 128 + 500 * 256 + 10)
    assert torch.equal(feature.gather(torch.arange(500)), torch.ones(500, 64))
    with pytest.raises(OSError, match=r"rows\.npy: row 500, bytes 128128 to 128383 are beyond its end"):
        feature.gather(torch.tensor([3, 500, 501]))
    assert torch.equal(feature.gather(torch.tensor([3])), torch.ones(1, 64)), "of no use after an error"


def test_a_disk_that_does_not_answer_in_time_is_named(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (5000, 4096), np.uint8)
    path, ids, out = written(tmp_path / "rows.npy", rows), np.arange(0, 5000, 3), np.empty((1667, 4096), np.uint8)
    hurried = _core.DiskRows(str(path), 128, 4096, 5000, 0.0)
    if hurried.why_buffered or is_in_memory(tmp_path):
        pytest.skip("this file system has answered when it was asked")
    with pytest.raises(OSError, match=r"rows\.npy: row \d+, bytes \d+ to \d+ did not come in time") as caught:
        for _ in range(50):
            hurried.read(ids, out)
    assert caught.value.errno == errno.ETIMEDOUT
    # What comes late goes nowhere else.
    _core.DiskRows(str(path), 128, 4096, 5000, 60.0).read(ids, out)
    assert np.array_equal(out, rows[ids])


def is_in_memory(path):
    found = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True, timeout=10)
    return found.stdout.strip() in ("tmpfs", "ramfs")


def test_a_file_that_is_missing_or_none_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"):
        _core.DiskRows(str(tmp_path / "gone"), 0, 4, 1, 60.0)
    (tmp_path / "text").write_text("rows")
    with pytest.raises(ValueError, match=r"text is not a readable \.npy file"):
        DiskFeature(tmp_path / "text")


REFUSED = """
import ctypes, struct, sys
import numpy as np, torch
from glt.data import DiskFeature

# The system call io_setup (206 on x86-64) fails with EPERM, as under a profile of a container.
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 206), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
filter_ = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filter_))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0, ctypes.get_errno()

rows, feature = np.load(sys.argv[1]), DiskFeature(sys.argv[1], 3000)
print(repr(feature))
ids = np.random.default_rng(1).integers(0, len(rows), 5000)
assert np.array_equal(feature.gather(torch.from_numpy(ids)).numpy(), rows[ids])
with open(sys.argv[1], "r+b") as file:
    file.truncate(200_000)
try:
    feature.gather(torch.tensor([2999]))
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the system call is that of x86-64")
def test_where_reads_cannot_be_queued_the_page_cache_is_read_through(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (3000, 100), np.uint8)
    path = written(tmp_path / "rows.npy", rows)
    done = subprocess.run([sys.executable, "-c", REFUSED, path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "on disk through the page cache" in done.stdout and "io_setup: Operation not permitted" in done.stderr
    assert "rows.npy: row 2999, bytes 300028 to 300127 are beyond its end" in done.stdout


def test_a_file_in_memory_is_read_too():
    rows = np.random.default_rng(0).integers(0, 256, (3000, 100), np.uint8)
    fd = os.memfd_create("rows")
    path = f"/proc/self/fd/{fd}"
    with open(path, "wb") as file:
        np.save(file, rows)
    ids = np.random.default_rng(1).integers(0, 3000, 5000)
    assert np.array_equal(DiskFeature(path).gather(torch.from_numpy(ids)).numpy(), rows[ids])
    os.close(fd)


def test_a_hotness_of_other_rows_is_refused(tmp_path):
    path = written(tmp_path / "rows.npy", np.ones((3, 1)))
    for hotness, kind in ((torch.ones(2), r"torch\.float32 \[2\]"), ([1, 2, 3], "list")):
        with pytest.raises(ValueError, match=rf"hotness is {kind}: expected numbers \[3\]"):
            DiskFeature(path, hotness=hotness)


def test_hotness_of_a_dtype_that_numpy_lacks_and_with_gradients(tmp_path):
    path = written(tmp_path / "rows.npy", np.arange(3.0))
    for hotness in (torch.tensor([0, 9, 1]).bfloat16(), torch.tensor([0.0, 9, 1], requires_grad=True)):
        feature = DiskFeature(path, 16, hotness=hotness)
        stats = dict.fromkeys(("disk_s", "disk_bytes", "num_disk_rows", "num_hot_rows"), 0)
        feature.sources(np.array([1]), None, stats)
        assert feature.num_hot == stats["num_hot_rows"] == 1


def test_files_and_dtypes_that_do_not_fit_are_refused_by_name(tmp_path):
    for rows in (np.ones((3, 2), ">f4"), np.zeros(3, "M8[s]"), np.array(["a"]), np.zeros(3, [("a", "i4")])):
        with pytest.raises(TypeError, match=r"rows\.npy' holds .*: expected numbers in the byte order"):
            DiskFeature(written(tmp_path / "rows.npy", rows))
    path = written(tmp_path / "rows.npy", np.ones((3, 2), np.float32))
    with pytest.raises(TypeError, match="store_dtype = 'int8': expected a Packing"):
        DiskFeature(path, store_dtype="int8")
    with pytest.raises(ValueError, match=r"dtype = 'float32': expected a torch\.dtype of 4 bytes"):
        DiskFeature(path, dtype="float32")


def test_no_gpu_reads_them(tmp_path):
    with pytest.raises(ValueError, match=r"rows of .*rows\.npy stay on disk"):
        DiskFeature(written(tmp_path / "rows.npy", np.ones((3, 1)))).placed("cpu")


def test_threads_and_forked_processes_read_at_once(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (20_000, 300), np.uint8)
    feature = DiskFeature(written(tmp_path / "rows.npy", rows), 500_000)

    def read(seed):
        ids = np.random.default_rng(seed).integers(0, len(rows), 5000)
        return np.array_equal(feature.gather(torch.from_numpy(ids)).numpy(), rows[ids])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(32)))
    assert all(DataLoader(range(8), batch_size=None, num_workers=2, collate_fn=read))


def test_processes_that_are_spawned_get_the_hot_rows(tmp_path):
    features = [DiskFeature(written(tmp_path / f"{i}.npy", i + np.arange(60).reshape(30, 2)), 240) for i in range(2)]
    ids, outs = torch.tensor([29, 0, 9]), [torch.zeros(3, 2, dtype=torch.int64).share_memory_() for _ in range(2)]
    process = multiprocessing.get_context("spawn").Process(target=gather_all, args=(features, ids, outs))
    process.start()
    process.join(100)
    assert process.exitcode == 0
    for feature, out in zip(features, outs, strict=True):
        assert feature.num_hot == 10 and torch.equal(out, feature[ids])


def gather_all(features, ids, outs):
    for feature, out in zip(features, outs, strict=True):
        assert feature.num_hot == 10
        feature.gather(ids, out)


def test_a_relative_path_is_of_the_directory_it_was_given_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    feature = DiskFeature(written("rows.npy", np.arange(6).reshape(3, 2)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert pickle.loads(pickle.dumps(feature)).gather(torch.tensor([2])).tolist() == [[4, 5]]


def test_pickled_by_path_and_closed_when_dropped(tmp_path):
    feature = DiskFeature(written(tmp_path / "rows.npy", np.arange(6).reshape(3, 2)), 30)
    feature.gather(torch.tensor([0]))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        again = pickle.loads(pickle.dumps(feature))
        assert again.gather(torch.tensor([2, 0])).tolist() == [[4, 5], [0, 1]] and again.num_hot == 1
        del again
    assert len(os.listdir("/proc/self/fd")) == before


def test_loaders_of_this_process_take_one(tmp_path):
    graph = glt.testing.ring_graph()
    path = written(tmp_path / "x.npy", graph.x.numpy())
    plain = glt.data.Graph(glt.data.Topology(graph.edge_index, layout="CSC"))
    for num_workers in (0, 2):
        batches = [
            list(
                glt.loader.NeighborLoader(
                    glt.Dataset(plain, x), [2, 2], batch_size=7, num_workers=num_workers, random_seed=1
                )
            )
            for x in (graph.x, DiskFeature(path, 100))
        ]
        for wanted, got in zip(*batches, strict=True):
            assert torch.equal(wanted.n_id, got.n_id) and torch.equal(wanted.x, got.x)


def test_a_file_larger_than_memory_is_mapped(tmp_path):
    num_rows = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 256
    path = tmp_path / "rows.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (num_rows, 32)})
        file.truncate(file.tell() + num_rows * 256)  # of holes
    mapped = map_npy(path)
    mapped[5] = 7
    assert mapped.shape == (num_rows, 32) and mapped.offset == 128 and mapped[5:7, 3].tolist() == [7, 0]
    assert np.load(path, mmap_mode="r")[5, 3] == 0, "what is written stays in memory"
    assert DiskFeature(path)[torch.tensor([num_rows - 1, 5])].sum() == 0
