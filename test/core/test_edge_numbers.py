"""New ids of edges: what `argsort` of the owners says, however the edges are read."""

import numpy as np
import pytest

from glt import _core
from glt.partition.format.files import NpyWriter


def numbered(tmp_path, rows, owner, offset, dtype=np.int32, chunk_edges=64, num_threads=3):
    """What the two files hold: old id of each new one, new id of each old one."""
    files = [NpyWriter(tmp_path / name, np.dtype(dtype), (rows.size,)) for name in ("old.npy", "new.npy")]
    told: list[int] = []
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
