"""Rows that are stored smaller: what becomes of numbers, what is refused, and that they move like others."""

import pickle

import numpy as np
import pytest
import torch

from glt.data import Dataset, Feature
from glt.data.packing import STORE_DTYPES, Packing, PackingError, RowPacker
from glt.loader import NeighborLoader
from glt.testing import ring_graph

LARGEST = {"int8": 127, "int4": 7}


def stored(rows, store_dtype):
    """By the definition, in torch."""
    if store_dtype not in LARGEST:
        return rows.to(getattr(torch, store_dtype)).float()
    factor = rows.abs().amax(1, keepdim=True) / LARGEST[store_dtype]
    return torch.where(factor > 0, rows / factor, 0).round() * factor


@pytest.mark.parametrize("store_dtype", STORE_DTYPES)
@pytest.mark.parametrize("num_columns", [1, 2, 7, 8, 9, 16, 100, 129])
def test_rows_are_what_the_definition_says(store_dtype, num_columns):
    rows = torch.randn(60, num_columns, generator=torch.Generator().manual_seed(num_columns)) * torch.rand(60, 1) * 9
    rows[7] = 0
    feature = Feature(rows, store_dtype=store_dtype)
    expected, ids = stored(rows, store_dtype), torch.randint(0, 60, (200,))
    assert torch.equal(feature[ids], expected[ids]) and torch.equal(feature.dense(), expected)
    assert torch.equal(feature.gather(ids, num_threads=4), expected[ids])
    assert (feature.dtype, feature.shape, len(feature)) == (torch.float32, rows.shape, 60)
    assert feature.tensor.shape == (60, feature.packing.row_bytes) and feature.tensor.dtype == torch.uint8
    if store_dtype in LARGEST:
        assert bool(((expected - rows).abs() <= rows.abs().amax(1, keepdim=True) / LARGEST[store_dtype] * 0.501).all())


@pytest.mark.parametrize("store_dtype", ["float16", "bfloat16"])
def test_16_bits_round_as_torch_rounds(store_dtype):
    """Of all kinds of numbers: subnormal, infinite and missing ones too."""
    dtype = getattr(torch, store_dtype)
    bits = np.random.default_rng(0).integers(0, 2**32, 60_000, dtype=np.uint32)
    rows = torch.from_numpy(bits.view(np.float32).copy())
    near = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).float()  # and halfway between them
    rows = torch.cat([rows, near, near * (1 + 2**-11), near * (1 + 2**-12), near * (1 + 2**-8)])
    rows = torch.where(rows.isfinite() & rows.to(dtype).isinf(), 1, rows)[:, None]
    found, expected = Feature(rows, store_dtype=store_dtype).dense(), rows.to(dtype).float()
    assert torch.equal(found.isnan(), expected.isnan())
    known = ~expected.isnan()
    assert torch.equal(found[known].view(torch.int32), expected[known].view(torch.int32))


@pytest.mark.parametrize(
    ("store_dtype", "number", "why"),
    [
        ("float16", 65520.0, "numbers up to 65504"),
        ("bfloat16", 3.4e38, r"numbers up to 3.38953e\+38"),
        ("int8", float("nan"), "finite numbers only"),
        ("int4", float("-inf"), "finite numbers only"),
    ],
)
def test_numbers_that_cannot_be_stored_are_named(store_dtype, number, why):
    rows = torch.zeros(5, 3)
    rows[3, 1] = number
    with pytest.raises(ValueError, match=rf"tensor\[3\] has .* at position 1.* as {store_dtype}, which has {why}"):
        Feature(rows, store_dtype=store_dtype)


@pytest.mark.parametrize("store_dtype", STORE_DTYPES)
def test_numbers_that_float32_does_not_hold_are_named(store_dtype):
    rows = torch.zeros(5, 3, dtype=torch.float64)
    rows[3, 1] = -1e300
    with pytest.raises(ValueError, match=r"tensor\[3\] has -1e\+300 at position 1.*which has numbers up to"):
        Feature(rows, store_dtype=store_dtype)


@pytest.mark.parametrize("store_dtype", ["int8", "int4"])
def test_no_finite_number_becomes_infinite(store_dtype):
    largest = torch.finfo(torch.float32).max
    found = Feature(torch.tensor([[largest, 1.0], [-largest, largest / 3]]), store_dtype=store_dtype).dense()
    assert bool(found.isfinite().all()) and float(found[0, 0]) > 0.999 * largest


def test_rows_at_any_address_and_threads():
    feature = Feature(torch.randn(5000, 33), store_dtype="int8")
    memory = torch.empty(feature.tensor.numel() + 1, dtype=torch.uint8)[1:]
    memory.copy_(feature.tensor.view(-1))
    moved = Feature(memory.view(feature.tensor.shape), store_dtype=feature.packing)
    assert torch.equal(moved.dense(), feature.dense())
    rows, packers = torch.randn(5000, 33), [RowPacker(Packing("int4", (33,)), "x") for _ in range(2)]
    alone, shared = (each.pack(rows, num_threads=n) for n, each in zip((1, 4), packers, strict=True))
    assert torch.equal(alone, shared) and packers[0].sums == packers[1].sums


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="store_dtype = 'int2': expected one of"):
        Feature(torch.zeros(2, 2), store_dtype="int2")
    with pytest.raises(TypeError, match=r"store_dtype = 'int8' of rows of torch.int64: expected floats"):
        Feature(torch.zeros(2, 2, dtype=torch.int64), store_dtype="int8")
    with pytest.raises(ValueError, match=r"tensor is torch.uint8 \[2, 2\]: expected torch.uint8 \[2, 8\]"):
        Feature(torch.zeros(2, 2, dtype=torch.uint8), store_dtype=Packing("int8", (2,)))
    with pytest.raises(ValueError, match="store_dtype = 'int2': expected one of"):
        Packing("int2", (3,))
    with pytest.raises(ValueError, match="row_shape = -3: expected 0 to"):
        Packing("int8", (-3,))
    with pytest.raises(TypeError, match=r"row_shape = 1\.5: expected an integer"):
        Packing("int8", (1.5,))
    with pytest.raises(IndexError, match=r"ids\[1\] = 2"):
        Feature(torch.zeros(2, 2), store_dtype="int4").gather(torch.tensor([0, 2]))


def test_dtypes_of_numpy_go_by_their_name():
    for dtype in (np.dtype("float16"), np.float16):
        assert Packing.of(dtype, (3,)) == Packing("float16", (3,))
    rows = torch.randn(2, 3)
    assert torch.equal(Feature(rows, store_dtype=np.dtype("int8")).tensor, Feature(rows, store_dtype="int8").tensor)


def test_rows_of_the_dtype_are_used_in_place():
    rows = torch.randn(10, 3).to(torch.bfloat16)
    feature = Feature(rows, store_dtype=torch.bfloat16)
    assert feature.tensor.data_ptr() == rows.data_ptr()
    assert torch.equal(feature[torch.tensor([4, 1])], rows[[4, 1]].float())


def test_rows_of_any_shape_and_none():
    rows = torch.randn(6, 2, 3)
    feature = Feature(rows, store_dtype="int8")
    assert torch.equal(feature[torch.tensor([5])], stored(rows.view(6, 6), "int8")[5].view(1, 2, 3))
    for shape in ((0, 4), (3, 0)):
        empty = Feature(torch.zeros(shape), store_dtype="int4")
        assert empty.dense().shape == shape and not empty.tensor.any()


def test_errors_are_summed_up():
    rows = torch.randn(1000, 16)
    packer = RowPacker(Packing("int4", (16,)), "x")
    halves = [packer.pack(rows[:400]), packer.pack(rows[400:], 400)]
    feature = Feature(rows, store_dtype="int4")
    assert torch.equal(torch.cat(halves), feature.tensor)
    difference = (feature.dense() - rows).double()
    error = PackingError.of_sums(packer.sums)
    assert error.rms_ratio == pytest.approx(float(difference.norm() / rows.double().norm()), rel=2e-3)
    assert error.largest == pytest.approx(float(difference.abs().max()), rel=2e-3)
    assert PackingError.of_sums() == PackingError(0.0, 0.0)


def test_a_packed_feature_is_pickled_packed():
    feature = Feature(torch.randn(5, 3), store_dtype="int8")
    other = pickle.loads(pickle.dumps(feature))
    assert other.packing == feature.packing and torch.equal(other.dense(), feature.dense())


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_have_float32(num_workers):
    graph = ring_graph()
    dataset = Dataset()
    dataset.init_graph(graph.edge_index)
    dataset.init_node_features(graph.x, store_dtype="int8")
    loader = NeighborLoader(dataset, [2, 2], batch_size=10, random_seed=3, num_workers=num_workers)
    expected = stored(graph.x, "int8")
    for batch in loader:
        assert batch.x.dtype == torch.float32 and torch.equal(batch.x, expected[batch.n_id])


def test_stores_of_pyg_give_rows_as_they_are_looked_up():
    from glt.data.stores import DatasetFeatureStore

    graph = ring_graph()
    dataset = Dataset()
    dataset.init_graph(graph.edge_index)
    dataset.init_node_features(graph.x, store_dtype="int4")
    store, expected = DatasetFeatureStore(dataset), stored(graph.x, "int4")
    [attr] = store.get_all_tensor_attrs()
    assert store.get_tensor_size(attr) == tuple(graph.x.shape)
    for index in (None, slice(2, 5), 3, torch.tensor([7, 1])):
        attr.index = index
        assert torch.equal(store.get_tensor(attr), expected if index is None else expected[index])
