"""NeighborLoader over several types, times, weights, trees and stores: PyG's contract and the one-batch law."""

import numpy as np
import pytest
import torch
from equal_batches import same
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NumNeighbors
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from glt.data import Dataset
from glt.data.stores import DatasetFeatureStore, DatasetGraphStore
from glt.loader import NeighborLoader
from glt.testing import check_batch, random_graph, reference_key
from glt.testing.batches import check_typed_batch, random_hetero_graph, reference_output

DATA = random_hetero_graph(seed=2)
HOMO = random_graph(120, 900, seed=5).to_data()
HOMO.time = torch.from_numpy(np.random.default_rng(0).integers(0, 20, 120))
HOMO.edge_time = torch.from_numpy(np.random.default_rng(1).integers(0, 20, 900))
HOMO.edge_weight = torch.rand(900, generator=torch.Generator().manual_seed(0))

OPTIONS = [
    {},
    {"replace": True},
    {"disjoint": True},
    {"subgraph_type": "bidirectional"},
    {"subgraph_type": "induced"},
    {"weight_attr": "edge_weight"},
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"time_attr": "edge_time", "input_time": torch.arange(40)},
    {"disjoint": True, "subgraph_type": "bidirectional"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("data", [DATA, HOMO], ids=["heterogeneous", "homogeneous"])
def test_every_batch_keeps_the_contract(data, options):
    nodes = torch.arange(40)
    hetero = data is DATA
    loader = NeighborLoader(data, [3, 2], ("user", nodes) if hetero else nodes, batch_size=15, random_seed=3, **options)
    assert len(loader) == 3
    times = {"time_attr": options["time_attr"]} if "time_attr" in options else {}
    for i, batch in enumerate(loader):
        assert type(batch) is type(data)
        ids = nodes[i * 15 : i * 15 + 15]
        seeds = batch["user"] if hetero else batch
        assert torch.equal(seeds.n_id[: len(ids)], ids) and torch.equal(seeds.input_id, ids)
        assert seeds.batch_size == len(ids)
        if hetero:
            assert "batch_size" not in batch["item"]
            assert getattr(batch, "input_type", "user") == "user"  # torch_geometric 2.6 does not say
        if "input_time" in options:
            assert torch.equal(seeds.seed_time, ids)
            times["seed_time"] = ids
        else:
            assert "seed_time" not in seeds
        disjoint = "time_attr" in options or options.get("disjoint", False)
        assert ("batch" in seeds) == disjoint
        if disjoint:
            assert torch.equal(seeds.batch[: len(ids)], torch.arange(len(ids)))
        bidirectional = options.get("subgraph_type") == "bidirectional"
        check_typed_batch(batch, data, 2, bidirectional=bidirectional, **times)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_workers_threads_and_filtering_do_not_change_the_batches(options):
    arguments = {"num_neighbors": [3, 2], "input_nodes": ("user", torch.arange(40)), "batch_size": 20,
                 "shuffle": True, "random_seed": 9, **options}  # fmt: skip
    expected = list(NeighborLoader(DATA, **arguments))
    for extra in ({"num_workers": 2}, {"num_threads": 3, "filter_per_worker": False}):
        got = list(NeighborLoader(DATA, **arguments, **extra))
        assert len(got) == len(expected) == 2
        assert all(same(a, b) for a, b in zip(got, expected, strict=True)), extra


def test_batches_equal_the_reference_epoch_after_epoch():
    fan_out = NumNeighbors({("user", "buys", "item"): [2, -1], ("item", "of", "shop"): [0, 1]}, default=[3, 2])
    loader = NeighborLoader(DATA, fan_out, "item", batch_size=20, random_seed=17, weight_attr="edge_weight")
    for epoch in range(2):
        for index, batch in enumerate(loader):
            seeds = range(index * 20, min(45, index * 20 + 20))
            expected = reference_output(DATA, [(1, seeds)], loader.node_sampler, reference_key(17, epoch, index))
            for node_type, ids in zip(DATA.node_types, expected.node, strict=True):
                assert np.array_equal(batch[node_type].n_id, ids)
            for edge_type, *parts in zip(DATA.edge_types, expected.row, expected.col, expected.edge, strict=True):
                assert np.array_equal(batch[edge_type].edge_index, np.stack(parts[:2]))
                assert np.array_equal(batch[edge_type].e_id, parts[2])


def test_types_without_a_sample_are_there_and_empty():
    (batch,) = NeighborLoader(DATA, [2, 2], ("shop", torch.tensor([7])), batch_size=1)
    assert batch["user"].x.shape == (0, 3) and batch["user"].num_sampled_nodes == [0, 0, 0]
    assert batch["shop", "sells", "item"].edge_index.shape == (2, 0)
    assert batch["shop", "sells", "item"].edge_attr.shape == (0, 2)
    assert batch["shop", "sells", "item"].num_sampled_edges == [0, 0]
    assert batch.num_sampled_nodes_dict["shop"] == [1, 0, 0]


def test_duplicate_seeds_in_trees_of_their_own():
    seeds = torch.tensor([7, 7, 3])
    (batch,) = NeighborLoader(DATA, [3, 3], ("user", seeds), batch_size=3, disjoint=True, random_seed=0)
    check_typed_batch(batch, DATA, 2)
    assert batch["user"].n_id[:3].tolist() == [7, 7, 3] and batch["user"].batch[:3].tolist() == [0, 1, 2]


def test_pygs_old_name_for_induced_batches():
    options = {"batch_size": 20, "random_seed": 0}
    (batch,) = NeighborLoader(HOMO, [3, 3], torch.arange(20), subgraph_type="induced", **options)
    (old,) = NeighborLoader(HOMO, [3, 3], torch.arange(20), directed=False, **options)
    assert same(old, batch) and "num_sampled_edges" not in batch and "num_sampled_nodes" not in batch


def test_bidirectional_batches_have_every_reverse():
    (batch,) = NeighborLoader(HOMO, [3, 3], torch.arange(20), batch_size=20, subgraph_type="bidirectional")
    pairs = {tuple(pair) for pair in batch.edge_index.t().tolist()}
    assert pairs == {(b, a) for a, b in pairs} and "num_sampled_nodes" not in batch
    (typed,) = NeighborLoader(DATA, [3, 3], ("user", torch.arange(20)), batch_size=20, subgraph_type="bidirectional")
    buys, reverse = (typed[t].edge_index.t().tolist() for t in (("user", "buys", "item"), ("item", "rev_buys", "user")))
    assert {tuple(p) for p in buys} == {(b, a) for a, b in reverse} and "e_id" not in typed["user", "buys", "item"]


def test_the_last_edges_by_time_are_taken():
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4, 5], [0, 0, 0, 0, 0]]), num_nodes=6)
    data.edge_time = torch.tensor([5, 1, 4, 9, 3])
    options = {"input_nodes": torch.tensor([0]), "time_attr": "edge_time", "temporal_strategy": "last"}
    (batch,) = NeighborLoader(data, [2], input_time=torch.tensor([5]), **options)
    assert batch.n_id.tolist() == [0, 3, 1], "those at times 4 and 5, in the order of time"
    (batch,) = NeighborLoader(data, [9], input_time=torch.tensor([3]), **options)
    assert batch.edge_time.tolist() == [1, 3] and batch.seed_time.tolist() == [3]


def test_weights_decide_and_zero_comes_last():
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]), num_nodes=5)
    data.w = torch.tensor([0.0, 5.0, 0.0, 1.0])
    for seed in range(20):
        (batch,) = NeighborLoader(data, [2], torch.tensor([0]), weight_attr="w", random_seed=seed)
        assert sorted(batch.e_id.tolist()) == [1, 3]
    (batch,) = NeighborLoader(data, [3], torch.tensor([0]), weight_attr="w")
    assert {1, 3} < set(batch.e_id.tolist())


def stores(data):
    features, graphs = MyFeatureStore(), MyGraphStore()
    for node_type in data.node_types:
        for name in data[node_type].node_attrs():
            features.put_tensor(data[node_type][name], group_name=node_type, attr_name=name, index=None)
    for edge_type in data.edge_types:
        size = (data[edge_type[0]].num_nodes, data[edge_type[2]].num_nodes)
        graphs.put_edge_index(tuple(data[edge_type].edge_index), edge_type=edge_type, layout="coo", size=size)
        features.put_tensor(data[edge_type].edge_attr, group_name=edge_type, attr_name="edge_attr", index=None)
    return features, graphs


@pytest.mark.parametrize("options", [{}, {"time_attr": "time"}, {"disjoint": True}, {"with_edge": False}], ids=str)
def test_stores_give_what_their_data_gives_edge_features_too(options):
    arguments = {"num_neighbors": [3, 2], "input_nodes": ("user", torch.arange(9)), "batch_size": 9, "random_seed": 1}
    ((batch,), (expected,)) = (NeighborLoader(s, **arguments, **options) for s in (stores(DATA), DATA))
    for node_type in DATA.node_types:
        assert torch.equal(batch[node_type].n_id, expected[node_type].n_id)
        assert torch.equal(batch[node_type].x, expected[node_type].x)
        assert batch[node_type].num_nodes == len(batch[node_type].n_id)
    for edge_type in DATA.edge_types:
        assert torch.equal(batch[edge_type].edge_index, expected[edge_type].edge_index)
        assert torch.equal(batch[edge_type].edge_attr, expected[edge_type].edge_attr)
        assert ("e_id" in batch[edge_type]) == ("e_id" in expected[edge_type]) == options.get("with_edge", True)


def test_stores_make_batches_of_a_class_of_the_callers():
    class Batch(HeteroData):
        pass

    loader = NeighborLoader(stores(DATA), [2], "shop", batch_size=8, custom_cls=Batch)
    assert type(next(iter(loader))) is Batch
    with pytest.raises(NotImplementedError, match=r"weight_attr = 'edge_weight' and a \(FeatureStore"):
        NeighborLoader(stores(DATA), [2], "shop", weight_attr="edge_weight")


@pytest.mark.parametrize("options", [each for each in OPTIONS if "subgraph_type" not in each], ids=str)
def test_a_dataset_gives_what_its_data_gives(options):
    attrs = {name: options[name] for name in ("time_attr", "weight_attr") if name in options}
    options = options | ({"input_time": torch.arange(9)} if "input_time" in options else {})
    dataset = Dataset.from_pyg(DATA, **attrs)
    arguments = {"num_neighbors": [3, 2], "input_nodes": ("user", torch.arange(9)), "batch_size": 9, "random_seed": 1}
    ((batch,), (expected,)) = (NeighborLoader(s, **arguments, **options) for s in (dataset, DATA))
    check_typed_batch(batch, DATA, 2)
    for key, store in zip(expected.metadata()[0] + expected.metadata()[1], expected.stores, strict=False):
        if store._key is not None:
            assert set(store.keys()) <= set(batch[store._key].keys()), key
    assert all(torch.equal(batch[t].e_id, expected[t].e_id) for t in DATA.edge_types)


def test_a_homogeneous_graph_with_times_of_nodes():
    loader = NeighborLoader(HOMO, [4, 4], torch.arange(50), batch_size=50, time_attr="time", random_seed=0)
    (batch,) = loader
    check_typed_batch(batch, HOMO, 2, time_attr="time")
    later = NeighborLoader(
        HOMO, [4, 4], torch.arange(50), torch.full((50,), 99), batch_size=50, time_attr="time", random_seed=0
    )
    (everything,) = later
    assert len(everything.e_id) > len(batch.e_id) and everything.seed_time.tolist() == [99] * 50


def test_memory_mapped_features_are_read_by_row(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((120, 8), dtype=np.float32))
    data = HOMO.clone()
    data.x = np.load(tmp_path / "x.npy", mmap_mode="r")
    (batch,) = NeighborLoader(data, [3, 3], torch.arange(20), batch_size=20)
    assert isinstance(batch.x, torch.Tensor) and np.array_equal(batch.x, data.x[batch.n_id])
    check_batch(batch, HOMO.edge_index, [3, 3], seeds=range(20), num_nodes=120, y=HOMO.y)


def test_int32_edges_give_int32_batches():
    data = HOMO.clone()
    data.edge_index = data.edge_index.to(torch.int32)
    options = {"batch_size": 20, "disjoint": True, "random_seed": 0}
    ((batch,), (wide,)) = (NeighborLoader(d, [3, 3], torch.arange(20), **options) for d in (data, HOMO))
    assert {batch[name].dtype for name in ("n_id", "edge_index", "batch")} == {torch.int32}
    assert batch.e_id.dtype == torch.int64
    assert torch.equal(batch.x, wide.x) and torch.equal(batch.e_id, wide.e_id)


def test_seeds_that_the_batch_cannot_have_are_named():
    with pytest.raises(IndexError, match=r"input_nodes\[1\] = 60 is outside \[0, 60\)"):
        NeighborLoader(DATA, [2], ("user", torch.tensor([1, 60])))
    with pytest.raises(ValueError, match="input_nodes is a mask of 45 elements: expected one per node, 60"):
        NeighborLoader(DATA, [2], ("user", torch.ones(45, dtype=torch.bool)))
    with pytest.raises(ValueError, match="input_nodes is without a node type"):
        NeighborLoader(DATA, [2], torch.arange(3))


def test_all_nodes_of_a_type_of_stores():
    data = HeteroData()
    data["a"].x = torch.arange(6)
    data["b"].x = torch.arange(4)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [1, 2]])
    dataset = Dataset.from_pyg(data)
    stores = DatasetFeatureStore(dataset), DatasetGraphStore(dataset)
    for source in (data, dataset, stores):
        (batch,) = NeighborLoader(source, [2], ("b", None), batch_size=9)
        assert batch["b"].input_id.tolist() == [0, 1, 2, 3]
