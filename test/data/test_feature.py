"""Features: gathered, and in tiers."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glt.data import Feature
from glt.data.device import NUM_WORDS
from glt.data.feature import NO_ROW, TieredRows
from glt.data.packing import STORE_DTYPES
from glt.data.schema import PartitionBook

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint16, torch.uint32, torch.uint64])
def test_a_feature_survives_copies_pickling_and_saving(dtype):
    """By itself torch has no pickle for some unsigned integers."""
    feature = Feature(torch.tensor([2**15, 7]).to(dtype), torch.tensor([1, 0], dtype=torch.uint32))
    torch.save(feature, saved := io.BytesIO())
    saved.seek(0)
    for other in (copy.deepcopy(feature), pickle.loads(pickle.dumps(feature)), torch.load(saved, weights_only=False)):
        assert other.dtype == dtype and other.row_of.dtype == torch.uint32
        assert other[torch.tensor([0, 1])].tolist() == [7, 2**15]


CPU = torch.device("cpu")
TIER_DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64, torch.complex128, torch.uint16, torch.float8_e4m3fn]  # fmt: skip


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy() if tensor.numel() else tensor.float().numpy()


def gather(rows, feature, ids, **options):
    return rows.gather(ids, explain=feature._explain, **options)


@settings(deadline=None, max_examples=60)
@given(
    dtype=st.sampled_from(TIER_DTYPES),
    row_shape=st.sampled_from([(), (1,), (5,), (2, 3), (100,), (0,)]),
    num_hot=st.integers(0, 30),
    group_size=st.integers(1, 3),
    by_hotness=st.booleans(),
    mapped=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_hot_and_cold_rows_are_those_of_the_table(
    dtype, row_shape, num_hot, group_size, by_hotness, mapped, wide, seed
):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 2, (30, *row_shape), generator=generator).float().to(dtype)
    hotness = torch.rand(30, generator=generator) if by_hotness else None
    row_of = torch.from_numpy(np.random.default_rng(seed).integers(0, 30, 50).astype(np.uint32)) if mapped else None
    feature = Feature(table, row_of)
    group = [CPU] * group_size, []
    rows = TieredRows(feature.tensor, CPU, num_hot=num_hot, hotness=hotness, ids=(row_of, 0), group=group)
    assert rows.num_hot == num_hot
    ids = torch.randint(0, 50 if mapped else 30, (70,), generator=generator)
    out = gather(rows, feature, ids if wide else ids.int())
    assert out.dtype == dtype and out.shape == (70, *row_shape)
    np.testing.assert_array_equal(bits(out), bits(feature[ids]))


def test_the_hottest_rows_are_the_ones_kept():
    table = torch.arange(6.0).view(6, 1)
    rows = TieredRows(table, CPU, num_hot=2, hotness=torch.tensor([1, 5, 0, 5, 9, 2]))
    assert rows._hot[0].view(torch.float32).view(-1).tolist() == [4.0, 1.0]  # of equals the first
    rows._hot[0].zero_()  # so that it shows which are read there
    assert gather(rows, Feature(table), torch.arange(6)).view(-1).tolist() == [0.0, 0.0, 2.0, 3.0, 0.0, 5.0]


def test_the_gpus_of_a_group_hold_the_hot_rows_once():
    table, parts = torch.arange(20.0).view(10, 2), []
    feature = Feature(table)
    first, second = (TieredRows(table, CPU, num_hot=5, group=([CPU, CPU], parts)) for _ in range(2))
    assert first._hot is second._hot is parts and [len(part) for part in parts] == [2, 3]
    for rows in (first, second):
        assert torch.equal(gather(rows, feature, torch.arange(10)), table)


@pytest.mark.parametrize("ranges", [False, True])
def test_rows_of_a_partition_and_what_it_does_not_own(ranges):
    owner = torch.tensor([0, 0, 1, 1, 1, 0] if not ranges else [0, 0, 1, 1, 1, 1], dtype=torch.uint8)
    row_of = torch.tensor([0, 1, 0, 1, 2, 2], dtype=torch.uint32)
    book = PartitionBook.of_ranges([0, 2, 6]) if ranges else PartitionBook.of_arrays(owner, row_of, 2)
    own = (owner == 1).nonzero().view(-1)
    feature = Feature(torch.arange(float(len(own))) + 10, owned=(book, 1))
    rows = feature._place(CPU, (CPU,))
    np.testing.assert_array_equal(gather(rows, feature, own), feature[own])
    foreign = torch.tensor([2, 0])
    with pytest.raises(IndexError) as there:
        gather(rows, feature, foreign)
    with pytest.raises(IndexError) as here:
        feature.gather(foreign)
    assert str(there.value) == str(here.value)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("by_hotness", [False, True])
def test_errors_are_those_of_the_cpu(mapped, by_hotness):
    row_of = torch.tensor([0, NO_ROW, 4, 2], dtype=torch.uint32) if mapped else None
    feature = Feature(torch.zeros(5, 3), row_of)
    hotness = torch.arange(5) if by_hotness else None
    rows = TieredRows(feature.tensor, CPU, num_hot=2, hotness=hotness, ids=(row_of, 0))
    for ids in ([0, 5], [-1], [2, 2**40]) + (([3, 1],) if mapped else ()):
        ids = torch.tensor(ids)
        with pytest.raises(IndexError) as here:
            feature.gather(ids)
        with pytest.raises(IndexError) as there:
            gather(rows, feature, ids)
        assert str(there.value) == str(here.value)
    with pytest.raises(IndexError, match=r"positions\[1\] = 9 is outside \[0, 4\)"):
        positions = torch.tensor([0, 9], dtype=torch.uint32)
        gather(rows, feature, torch.tensor([0, 0]), out=torch.zeros(4, 3), positions=positions)
    assert gather(rows, feature, torch.tensor([0])).tolist() == [[0.0] * 3]  # goes on


def test_errors_that_nobody_waited_for_come_at_the_next_check():
    table = torch.arange(8.0)
    feature, rows = Feature(table), TieredRows(table, CPU)
    out = gather(rows, feature, torch.tensor([3, 8, 1]), wait=False)
    assert out.tolist() == [3.0, 0.0, 1.0]
    assert gather(rows, feature, torch.tensor([5]), wait=False).tolist() == [5.0]
    with pytest.raises(IndexError, match=r"ids\[1\] = 8 is row 8 of 8"):
        rows.check()
    rows.check()  # told once
    gather(rows, feature, torch.tensor([-7]), wait=False)
    with pytest.raises(IndexError, match=r"ids\[0\] = -7"):
        for _ in range(NUM_WORDS):
            gather(rows, feature, torch.tensor([5]), wait=False)
    gather(rows, feature, torch.tensor([-8]), wait=False)
    with pytest.raises(IndexError, match=r"ids\[0\] = -8"):
        gather(rows, feature, torch.tensor([5]))


def test_arguments_of_the_gpu_path_are_checked_as_those_of_the_cpu():
    """Everything of Feature's GPU path but the device itself."""
    feature = Feature(torch.arange(10.0).view(5, 2))
    rows = TieredRows(feature.tensor, CPU, num_hot=2)
    feature.placed = lambda device: rows

    def there(ids, out=None, positions=None):
        return feature.gather_on("host", ids, out, positions=positions)

    for ids in (torch.tensor([4, 1], dtype=torch.int16), torch.tensor([0, 4, 9, 1])[::2] // 2, torch.arange(5) > 2):
        assert torch.equal(there(ids), feature[ids])
    out, positions = torch.zeros(3, 2), torch.tensor([2], dtype=torch.uint32)
    assert there(torch.tensor([4]), out, positions) is out and out[2].tolist() == [8.0, 9.0]
    one = torch.tensor([1])
    for arguments, error, message in [
        ((torch.tensor([1.0]),), TypeError, "ids has dtype torch.float32: expected integer ids"),
        ((torch.tensor([[1]]),), ValueError, r"ids has shape \[1, 1\]: expected one dimension"),
        ((one, torch.zeros(1, 2).half()), TypeError, "out has dtype torch.float16: expected torch.float32"),
        ((one, torch.zeros(1, 3)), ValueError, r"out has shape \(1, 3\) on cpu: expected contiguous rows \[2\]"),
        ((one, torch.zeros(1, 4)[:, ::2]), ValueError, "expected contiguous rows"),
        ((one, torch.zeros(0, 2)), ValueError, "out has 0 rows: expected at least 1"),
        ((one, None, positions), ValueError, "positions needs out"),
        ((one, out, positions.int()), ValueError, r"positions is torch.int32 \[1\] on cpu: expected torch.uint32"),
        ((torch.tensor([5]),), IndexError, r"ids\[0\] = 5 is row 5 of 5"),
    ]:
        with pytest.raises(error, match=message):
            there(*arguments)


def test_threads_may_gather_at_once():
    table = torch.arange(400.0).view(100, 4)
    feature, rows, failures = Feature(table), TieredRows(table, CPU, num_hot=10), []

    def work(seed):
        for i in range(30):
            ids = torch.randint(0, 100, (20,), generator=torch.Generator().manual_seed(100 * seed + i))
            if not torch.equal(gather(rows, feature, ids, wait=i % 3 == 0), table[ids]):
                failures.append(ids)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows.check()
    assert not failures


@pytest.mark.parametrize("store_dtype", STORE_DTYPES)
@pytest.mark.parametrize("hotness", [None, torch.arange(40).flip(0)])
def test_packed_rows_are_alike_on_both_ways(store_dtype, hotness):
    feature = Feature(torch.randn(40, 7) * 50, store_dtype=store_dtype)
    rows = TieredRows(feature.tensor, CPU, num_hot=13, hotness=hotness, packing=feature.packing)
    ids, expected = torch.randint(0, 40, (90,)), feature.dense()
    here, there = feature.gather(ids), gather(rows, feature, ids)
    assert here.dtype == there.dtype == torch.float32
    assert torch.equal(here, expected[ids]) and torch.equal(there, expected[ids])
    out, positions = torch.zeros(200, 7), torch.randperm(200)[:90].to(torch.uint32)
    feature.gather(ids, out, positions=positions)
    assert torch.equal(out[positions.long()], expected[ids])


def test_trusted_ids_are_not_waited_for_and_still_told_of():
    table = torch.arange(40.0).view(10, 4)
    feature = Feature(table)
    out = feature.gather_on("host", torch.tensor([3, 9, 3]), trusted=True)
    assert torch.equal(out, table[[3, 9, 3]])
    feature.check()
    rows = feature.placed("host")
    out = feature.gather_on("host", torch.tensor([3, 10]), trusted=True)
    assert torch.equal(out[0], table[3]) and not out[1].any() and not rows._errors._pending
    with pytest.raises(IndexError, match=r"ids\[1\] of a gather with trusted = True has no row"):
        feature.check()
    feature.check()  # told once


@pytest.mark.parametrize("num_hot", [[0, 0, 0], [2, 0, 3], [4, 5, 3]])
def test_several_tables_are_one(num_hot):
    tables = [torch.randn(n, 5) for n in (4, 5, 3)]
    rows = TieredRows(tables, CPU, num_hot=num_hot)
    ids = torch.randint(0, 12, (50,))
    assert rows.num_hot == sum(num_hot)
    assert torch.equal(gather(rows, Feature(torch.cat(tables)), ids), torch.cat(tables)[ids])
    by_hotness = TieredRows(tables, CPU, num_hot=num_hot, hotness=[torch.rand(4), None, torch.rand(3)])
    assert by_hotness.num_hot == sum(num_hot)
    assert torch.equal(gather(by_hotness, Feature(torch.cat(tables)), ids), torch.cat(tables)[ids])
