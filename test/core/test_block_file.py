"""Files of blocks, and numbers of edges."""

import tempfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from glt import _core
from glt.partition.format.files import NpyWriter


def test_crc32_is_zlibs():
    data = np.random.default_rng(0).integers(0, 256, 70_000, dtype=np.uint8)
    for size in [*range(300), 4095, 4096, 70_000]:
        assert _core.crc32(data[:size]) == zlib.crc32(data[:size])
        assert _core.crc32(data[3:size], 12345) == zlib.crc32(data[3:size], 12345)
    with pytest.raises(ValueError, match="data: expected a contiguous array"):
        _core.crc32(data[::2])


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1000, 5000])
def test_pieces_in_any_order_give_the_checksums_of_the_whole(tmp_path, block_bytes):
    rng = np.random.default_rng(block_bytes)
    data = rng.integers(0, 256, 4321, dtype=np.uint8)
    cuts = [0, *np.sort(rng.choice(np.arange(1, data.size), 60, replace=False)), data.size]
    file = _core.BlockFile(str(tmp_path / "file"), data.size, block_bytes)
    pieces = [(cuts[i], data[cuts[i] : cuts[i + 1]]) for i in rng.permutation(len(cuts) - 1)]
    threads = [
        threading.Thread(target=lambda part: [file.write(*p) for p in part], args=[pieces[i::3]]) for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_bytes() == data.tobytes()
    blocks = [data[i : i + block_bytes] for i in range(0, data.size, block_bytes)]
    assert file.checksum() == [zlib.crc32(block) for block in blocks]


@pytest.mark.parametrize("directory", [None, "/dev/shm"])
def test_long_pieces_arrive_whichever_way_they_are_written(tmp_path, directory):
    """Some go past the page cache, where whole pages do and the rest does not; a file system in memory may refuse."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 40 << 20, dtype=np.uint8)
    sizes = [256 << 10, (256 << 10) + 1, (1 << 20) - 1, (3 << 20) + 4097, 5, 4096, 700_001] * 8
    ends = np.minimum(np.cumsum(sizes), data.size)
    pieces = [(begin, data[begin:end]) for begin, end in zip([0, *ends[:-1]], ends, strict=True) if begin < end]
    with tempfile.TemporaryDirectory(dir=directory or tmp_path) as folder:
        file = _core.BlockFile(f"{folder}/file", data.size, 4 << 20)
        order = rng.permutation(len(pieces))
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda i: file.write(*pieces[i]), order))
        assert np.array_equal(np.fromfile(f"{folder}/file", np.uint8), data)
        blocks = [data[i : i + (4 << 20)] for i in range(0, data.size, 4 << 20)]
        assert file.checksum() == [zlib.crc32(block) for block in blocks]


def test_what_is_missing_outside_or_there_already_is_refused(tmp_path):
    file = _core.BlockFile(str(tmp_path / "file"), 10, 4)
    file.write(0, np.zeros(9, np.uint8))
    with pytest.raises(ValueError, match="only 2 of 3 blocks were written whole"):
        file.checksum()
    with pytest.raises(ValueError, match="bytes 9 to 11 are outside its 10"):
        file.write(9, np.zeros(2, np.uint8))
    with pytest.raises(FileExistsError):
        _core.BlockFile(str(tmp_path / "file"), 10, 4)
    with pytest.raises(FileNotFoundError):
        _core.BlockFile(str(tmp_path / "none" / "file"), 10, 4)


def scatter(tmp_path, table, book, **options):
    counts = np.bincount(book if options.get("ids") is None else book[options["ids"]], minlength=book.max() + 1)
    row_bytes = table[:1].nbytes
    files = [(_core.BlockFile(str(tmp_path / f"{i}"), row_bytes * c + 5, 64), 5) for i, c in enumerate(counts)]
    for file, _ in files:
        file.write(0, np.zeros(5, np.uint8))
    filled = np.zeros(counts.size, np.int64)
    _core.scatter_rows(table, book, options.pop("ids", None), 0, files, filled, **options)
    np.testing.assert_array_equal(filled, counts)
    for file, _ in files:
        file.checksum()
    return [(tmp_path / f"{i}").read_bytes()[5:] for i in range(counts.size)]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("num_threads", [1, 4])
def test_rows_keep_their_order_in_the_file_of_their_owner(tmp_path, dtype, width, num_threads):
    rng = np.random.default_rng(0)
    table = rng.integers(0, 256, (1000, 2, width)).astype(dtype)[::-1]
    book = rng.integers(0, 3, 1000).astype(np.uint16)
    found = scatter(tmp_path, table, book, chunk_rows=13, num_threads=num_threads)
    assert found == [table[book == part].tobytes() for part in range(3)]


def test_rows_go_to_the_owner_of_their_id(tmp_path):
    rng = np.random.default_rng(0)
    table, ids = np.arange(1000), rng.integers(0, 50, 1000).astype(np.int32)
    book = np.concatenate([[0, 1, 2], rng.integers(0, 3, 47)]).astype(np.uint8)
    found = scatter(tmp_path, table, book, ids=ids, chunk_rows=100, num_threads=2)
    assert found == [table[book[ids] == part].tobytes() for part in range(3)]
    ids[700] = 50
    with pytest.raises(IndexError, match=r"id 50 of row 700 is outside \[0, 50\)"):
        file = (_core.BlockFile(str(tmp_path / "file"), 8000, 64), 0)
        _core.scatter_rows(table, book * 0, ids, 0, [file], np.zeros(1, np.int64), num_threads=2)


def numbered(tmp_path, rows, owner, offset, dtype=np.int32, chunk_edges=64, num_threads=3):
    """What the two files hold: old id of each new one, new id of each old one."""
    files = [NpyWriter(tmp_path / name, np.dtype(dtype), (rows.size,)) for name in ("old.npy", "new.npy")]
    told = []
    _core.number_edges(
        rows, owner, offset, *(file.rows for file in files), np.dtype(dtype).itemsize, chunk_edges,
        num_threads=num_threads, progress=told.append,
    )  # fmt: skip
    for file in files:
        file.close()
    assert sum(told) == 2 * rows.size * np.dtype(dtype).itemsize
    return [np.load(tmp_path / name) for name in ("old.npy", "new.npy")]


@pytest.mark.parametrize("num_threads", [1, 4])
@pytest.mark.parametrize("chunk_edges", [1, 97, 1 << 18])
@pytest.mark.parametrize(
    "num_parts, owners, ids", [(1, np.uint8, np.int32), (5, np.uint8, np.int64), (300, np.uint16, np.int32)]
)
def test_edges_are_numbered_by_owner_in_their_order(tmp_path, num_parts, owners, ids, chunk_edges, num_threads):
    rng = np.random.default_rng(num_parts)
    owner = rng.integers(0, num_parts, 50).astype(owners)
    for rows in (rng.integers(0, 50, 1000), np.sort(rng.integers(0, 50, 1000)).astype(np.int32)):
        folder = tmp_path / str(rows.dtype)
        folder.mkdir()
        order = np.argsort(owner[rows], kind="stable")
        offset = np.concatenate([[0], np.cumsum(np.bincount(owner[rows], minlength=num_parts))])
        old, new = numbered(folder, rows, owner, offset, ids, chunk_edges, num_threads)
        assert old.dtype == new.dtype == ids
        np.testing.assert_array_equal(old, order)
        np.testing.assert_array_equal(new, np.argsort(order))


def test_no_edges_have_no_numbers(tmp_path):
    old, new = numbered(tmp_path, np.empty(0, np.int64), np.zeros(3, np.uint8), np.zeros(3, np.int64))
    assert old.size == new.size == 0


def test_edges_that_were_changed_between_two_passes_are_refused(tmp_path):
    owner = np.array([0, 1, 1], np.uint8)
    for name, rows, error, message in [
        ("few", [0, 0, 1, 2], ValueError, "partition 1 has more edges than its 1 new ids: edge_index was changed"),
        ("high", [0, 0, 0, 3], IndexError, r"the row of edge 3 is 3, outside \[0, 3\)"),
        ("low", [-1, 0, 0, 2], IndexError, r"the row of edge 0 is -1, outside \[0, 3\)"),
    ]:
        (tmp_path / name).mkdir()
        with pytest.raises(error, match=message):
            numbered(tmp_path / name, np.array(rows), owner, np.array([0, 3, 4]), num_threads=1)
    with pytest.raises(ValueError, match="offset: expected the ranges of the partitions, from 0 to 2"):
        numbered(tmp_path, np.array([0, 1]), owner, np.array([0, 1, 3]))
