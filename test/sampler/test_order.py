"""The order of seeds, and where to resume."""

import pytest
import torch

from glt import _core
from glt.sampler import SeedOrder
from glt.sampler.order import crc32_of


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("num_seeds", "batch_size"), [(0, 3), (1, 3), (9, 3), (10, 3), (2, 5)])
def test_every_seed_is_in_one_batch(num_seeds, batch_size, shuffle, drop_last):
    order = SeedOrder(num_seeds, batch_size, shuffle, drop_last, random_seed=3)
    batches = list(order.batches(epoch=2))
    assert len(batches) == len(order) == (num_seeds // batch_size if drop_last else -(-num_seeds // batch_size))
    sizes = [len(b) for b in batches]
    assert all(s == batch_size for s in (sizes if drop_last else sizes[:-1]))
    seen = torch.cat([b.input_id for b in batches]).tolist() if batches else []
    assert len(set(seen)) == len(seen) and (drop_last or sorted(seen) == list(range(num_seeds)))
    assert [(b.epoch, b.index) for b in batches] == [(2, i) for i in range(len(batches))]
    if not shuffle:
        assert seen == list(range(len(seen)))


def test_strides_take_turns():
    order = SeedOrder(50, 4, shuffle=True, random_seed=1)
    whole = [(b.index, b.input_id.tolist()) for b in order.batches(7)]
    parts = [(b.index, b.input_id.tolist()) for w in range(3) for b in order.batches(7, first=w, step=3)]
    assert sorted(parts) == whole


def test_epochs_and_seeds_differ():
    orders = {tuple(SeedOrder(20, 5, True, random_seed=s).epoch(e).tolist()) for s in (0, 1) for e in (0, 1, 2)}
    assert len(orders) == 6
    batch = next(SeedOrder(20, 5, random_seed=9).batches(4))
    assert batch.key == _core.batch_key(9, 4, 0)


@pytest.mark.parametrize("bad", [-1, 2**63])
def test_random_seeds_out_of_range_are_named(bad):
    with pytest.raises(ValueError, match=f"random_seed = {bad}: expected 0 to"):
        SeedOrder(1, 1, random_seed=bad)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="batch_size = 0"):
        SeedOrder(1, 0)
    for bad in (1.5, "1", True):
        with pytest.raises(TypeError, match=r"random_seed = .*: expected an integer, or None"):
            SeedOrder(1, 1, random_seed=bad)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool, torch.uint16])
def test_equal_tensors_have_equal_checksums(dtype):
    tensor = torch.tensor([[1, 0], [3, 1], [5, 0]]).to(dtype)
    twin = torch.tensor([[1, 3, 5], [0, 1, 0]]).to(dtype).t()  # the same elements, not contiguous
    assert crc32_of({"b": tensor, "a": tensor[0]}) == crc32_of({"a": tensor[0].clone(), "b": twin, "absent": None})


def test_names_types_shapes_and_elements_count():
    tensor = torch.arange(6)
    given = [
        {"a": tensor}, {"b": tensor}, {"a": tensor.int()}, {"a": tensor.view(2, 3)}, {"a": tensor[:-1]},
        {"a": tensor.flip(0)}, {"a": tensor, "b": tensor[:0]}, {"a": tensor[:0], "b": tensor}, {},
    ]  # fmt: skip
    assert len({crc32_of(each) for each in given}) == len(given)
