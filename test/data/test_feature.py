"""Feature: rows by id, whatever their type."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch

from glt.data import Feature

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64, torch.complex64, torch.complex128, torch.uint16,
          torch.float8_e4m3fn]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row_shape", [(), (1,), (5,), (2, 3)], ids=str)
def test_every_dtype_and_row_shape(dtype, row_shape):
    table = torch.randint(0, 2, (30, *row_shape)).to(torch.float32).to(dtype)
    ids = torch.tensor([3, 29, 0, 3])
    rows = Feature(table)[ids]
    assert rows.dtype == dtype and rows.shape == (4, *row_shape)
    assert torch.equal(rows.to(torch.complex128), torch.stack([table[i] for i in ids.tolist()]).to(torch.complex128))


@pytest.mark.parametrize("ids", [torch.tensor([1, 0], dtype=torch.int32), [1, 0], np.array([1, 0], np.uint8)], ids=str)
def test_ids_of_any_integer_type(ids):
    assert Feature(torch.tensor([5.0, 6.0]))[ids].tolist() == [6.0, 5.0]


def test_rows_of_a_view_are_those_of_the_view():
    table = torch.arange(40.0).view(10, 4)
    assert Feature(table[:, ::2])[torch.tensor([1])].tolist() == [[4.0, 6.0]]
    assert Feature(table[5:])[torch.tensor([0])].tolist() == [[20.0, 21.0, 22.0, 23.0]]


def test_out_positions_and_row_of():
    row_of = torch.tensor([1, 2**32 - 1, 0], dtype=torch.uint32)
    feature = Feature(torch.tensor([[10.0], [11.0]]), row_of)
    out = torch.zeros(4, 1)
    got = feature.gather(torch.tensor([2, 0]), out, positions=torch.tensor([3, 1], dtype=torch.uint32))
    assert got is out and out.view(-1).tolist() == [0.0, 11.0, 0.0, 10.0]
    with pytest.raises(IndexError, match=r"ids\[0\] = 1 is row 4294967295 of 2: no such row here"):
        feature[torch.tensor([1])]


def test_bad_arguments_are_named():
    feature = Feature(torch.zeros(5, 2))
    for call, error, message in [
        (lambda: Feature([1, 2]), TypeError, "tensor has type list"),
        (lambda: Feature(torch.tensor(1.0)), ValueError, r"tensor has shape \(\)"),
        (lambda: feature[torch.tensor([5])], IndexError, r"ids\[0\] = 5 is row 5 of 5"),
        (lambda: feature[torch.tensor([-1])], IndexError, r"ids\[0\] = -1"),
        (lambda: feature[torch.tensor([1.0])], TypeError, "ids has dtype torch.float32: expected integer ids"),
        (lambda: feature[torch.tensor([[1]])], ValueError, r"ids has shape \[1, 1\]: expected one dimension"),
        (lambda: feature.gather(torch.tensor([1]), torch.zeros(1, 2).half()), TypeError, "out has dtype torch.float16"),
        (lambda: feature.gather(torch.tensor([1]), torch.zeros(1, 3)), ValueError, "out has rows of 12 bytes"),
        (lambda: feature.gather(torch.tensor([1]), torch.zeros(0, 2)), ValueError, "out has 0 rows: expected"),
        (
            lambda: feature.gather(torch.tensor([1]), positions=torch.tensor([0], dtype=torch.uint32)),
            ValueError,
            "positions needs out",
        ),
    ]:
        with pytest.raises(error, match=message):
            call()


def test_a_feature_survives_copies_and_saving():
    """Plain pickle cannot: torch has no pickle for uint32 outside torch.save and torch.multiprocessing."""
    feature, saved = Feature(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0], dtype=torch.uint32)), io.BytesIO()
    torch.save(feature, saved)
    saved.seek(0)
    for other in (copy.deepcopy(feature), torch.load(saved, weights_only=False)):
        assert other[torch.tensor([0])].tolist() == [[2.0]]


def test_rows_of_a_mapped_file(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20.0).reshape(10, 2))
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    assert Feature(mapped)[torch.tensor([9])].tolist() == [[18.0, 19.0]]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_integers_survive_pickling(dtype):
    rows = torch.tensor([2**15, 7]).to(dtype)
    row_of = torch.tensor([1, 0], dtype=torch.uint32)
    copy = pickle.loads(pickle.dumps(Feature(rows, row_of)))
    assert copy.dtype == dtype and copy.row_of.dtype == torch.uint32
    assert copy[torch.tensor([0, 1])].tolist() == [7, 2**15]
