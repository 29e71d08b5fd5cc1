"""The rows of a window of batches: each distinct one is fetched once, and each batch gets its own."""

import numpy as np
import pytest
import torch
from gpus import needs_gpu
from hypothesis import given, settings
from hypothesis import strategies as st

from glt.data import Feature
from glt.data.device import HOST
from glt.data.schema import PartitionBook
from glt.loader.window_gather import WindowGather


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 50), max_size=5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.uint16]),
    row_shape=st.sampled_from([(), (3,), (0,)]),
    mapped=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_each_batch_gets_its_rows(sizes, dtype, row_shape, mapped, wide, seed):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 100, (40, *row_shape), generator=generator).float().to(dtype)
    row_of = torch.from_numpy(np.random.default_rng(seed).integers(0, 40, 60).astype(np.uint32)) if mapped else None
    feature = Feature(table, row_of)
    window = WindowGather(feature, HOST)
    for _ in range(2):  # the table of slots is used again
        batches = [torch.randint(0, 60 if mapped else 40, (size,), generator=generator) for size in sizes]
        got = list(window.gather(batches if wide else [batch.int() for batch in batches]))
        assert len(got) == len(batches)
        for rows, ids in zip(got, batches, strict=True):
            assert rows.dtype == dtype and torch.equal(rows.float(), feature[ids].float())


def test_each_distinct_row_is_fetched_once(monkeypatch):
    feature, fetched = Feature(torch.arange(10.0)), []
    window = WindowGather(feature, HOST)
    gather = feature.gather_on
    monkeypatch.setattr(feature, "gather_on", lambda place, ids: fetched.append(ids) or gather(place, ids))
    rows = window.gather([torch.tensor([3, 1, 3]), torch.tensor([1, 9]), torch.tensor([9, 3, 0])])
    assert [sorted(ids.tolist()) for ids in fetched] == [[0, 1, 3, 9]]
    assert [each.tolist() for each in rows] == [[3.0, 1.0, 3.0], [1.0, 9.0], [9.0, 3.0, 0.0]]


def test_bad_ids_are_named_by_their_place_in_the_batch():
    plain = Feature(torch.zeros(10, 2))
    holes = Feature(torch.zeros(2, 2), torch.tensor([0, 2**32 - 1, 1], dtype=torch.uint32))
    part = Feature(torch.zeros(4, 2), owned=(PartitionBook.of_ranges([0, 3, 7]), 1))
    for feature, bad, message in [
        (plain, 10, r"ids\[1\] = 10 is row 10 of 10"),
        (plain, -1, r"ids\[1\] = -1"),
        (holes, 1, r"ids\[1\] = 1 is row 4294967295 of 2"),
        (part, 2, r"ids\[1\] = 2"),
    ]:
        good = 3 if feature is part else 0
        with pytest.raises(IndexError, match=message):
            WindowGather(feature, HOST).gather([torch.tensor([good]), torch.tensor([good, bad])])
    with pytest.raises(TypeError, match=r"batches\[1\] has dtype torch.float32"):
        WindowGather(plain, HOST).gather([torch.tensor([0]), torch.tensor([0.0])])
    with pytest.raises(ValueError, match=r"batches\[0\] is on meta|batches\[0\] is a tensor"):
        WindowGather(plain, HOST).gather([torch.zeros(1, dtype=torch.int64, device="meta")])


@needs_gpu
def test_on_a_gpu():
    feature = Feature(torch.randn(5000, 25), split_ratio=0.2, device=0)
    batches = [torch.randint(0, 5000, (2000,)) for _ in range(4)]
    window = WindowGather(feature, "cuda:0")
    for rows, ids in zip(window.gather([batch.cuda() for batch in batches]), batches, strict=True):
        assert rows.is_cuda and torch.equal(rows.cpu(), feature[ids])
