"""NeighborLoader and SubGraphLoader."""

import numpy as np
import pytest
import torch
import torch_geometric.loader
from equal_batches import same
from torch.utils.data import BatchSampler, SequentialSampler, SubsetRandomSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ImbalancedSampler
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import BaseSampler
from torch_geometric.utils import trim_to_layer

from glt.data import Dataset, Feature
from glt.data.stores import DatasetFeatureStore, DatasetGraphStore
from glt.loader import NeighborLoader, SubGraphLoader
from glt.sampler import NeighborSampler
from glt.testing import check_batch, random_graph, ring_graph

GRAPH = random_graph(300, 3000, seed=6)
DATA = GRAPH.to_data()
SOURCE = {"x": DATA.x, "y": DATA.y, "edge_attr": DATA.edge_attr}


def check(batch, num_neighbors, seeds=None, replace=False):
    assert type(batch) is Data
    check_batch(batch, GRAPH.edge_index, num_neighbors, seeds=seeds, replace=replace, num_nodes=300, **SOURCE)


def stop(loader):
    """Ends persistent workers: left to the garbage collector, which ends their queues first, each takes 5 s to go."""
    if loader.persistent_workers:
        loader._iterator._shutdown_workers()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("num_neighbors", [[3], [4, 0, 2], [-1, 2], [40, 5]], ids=str)
def test_every_batch_keeps_the_contract(num_neighbors, replace):
    seeds = torch.randperm(300)[:105]
    loader = NeighborLoader(DATA, num_neighbors, seeds, batch_size=20, replace=replace)
    assert len(loader) == 6 and str(loader) == "NeighborLoader()"
    sizes = []
    for i, batch in enumerate(loader):
        check(batch, num_neighbors, seeds[i * 20 : i * 20 + 20], replace)
        assert batch.input_id.tolist() == list(range(i * 20, min(105, i * 20 + 20)))
        sizes.append(batch.batch_size)
    assert sizes == [20] * 5 + [5]


@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_threads_and_filtering_do_not_change_the_batches(shuffle):
    options = {"batch_size": 32, "shuffle": shuffle, "random_seed": 5, "input_nodes": torch.arange(0, 300, 2)}
    expected = list(NeighborLoader(DATA, [5, 4], **options))
    for extra in (
        {"num_threads": 3},
        {"filter_per_worker": False},
        {"num_workers": 2},
        {"num_workers": 2, "num_threads": 2, "filter_per_worker": False},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4},
        *[{"num_workers": 1, "multiprocessing_context": "spawn"}] * shuffle,
    ):
        loader = NeighborLoader(DATA, [5, 4], **options, **extra)
        got = list(loader)
        stop(loader)
        assert len(got) == len(expected)
        assert all(same(a, b) for a, b in zip(got, expected, strict=True)), extra


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shuffling_visits_every_seed_once_in_another_order_each_epoch(num_workers):
    seeds = torch.arange(0, 300, 3)
    loader = NeighborLoader(
        DATA, [2], seeds, batch_size=16, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    epochs = []
    for _ in range(3):
        batches = list(loader)
        for batch in batches:
            check(batch, [2])
            assert torch.equal(batch.n_id[: batch.batch_size], seeds[batch.input_id])
        epochs.append(torch.cat([b.input_id for b in batches]).tolist())
    stop(loader)
    assert all(sorted(e) == list(range(100)) for e in epochs)
    assert len({tuple(e) for e in epochs}) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_set_epoch_repeats_an_epoch(num_workers):
    loader = NeighborLoader(DATA, [3], batch_size=64, shuffle=True, random_seed=1, num_workers=num_workers)
    epochs = [list(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert all(same(a, b) for a, b in zip(loader, epochs[1], strict=True))
    assert all(same(a, b) for a, b in zip(loader, epochs[2], strict=True)), "and counts on from there"
    assert not torch.equal(epochs[0][0].n_id, epochs[1][0].n_id)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"batch_sampler": [list(range(40)), [2, 3]]}])
def test_every_iterator_is_an_epoch_of_its_own(options):
    given = {"shuffle": True, "batch_size": 32} if "batch_sampler" not in options else {}
    loader = NeighborLoader(DATA, [4, 3], random_seed=5, **given, **options)
    epochs = [list(loader) for _ in range(2)]
    loader.set_epoch(0)
    together = list(zip(loader, loader, strict=True))
    for index, epoch in enumerate(epochs):
        assert all(same(a[index], b) for a, b in zip(together, epoch, strict=True))
    assert not torch.equal(together[0][0].n_id, together[0][1].n_id)
    loader.set_epoch(0)
    begun = iter(loader)
    loader.set_epoch(7)
    assert all(same(a, b) for a, b in zip(begun, epochs[0], strict=True)), "set before iter() decides"


def test_breaking_out_of_an_epoch_begins_the_next():
    loader = NeighborLoader(DATA, [3], batch_size=64, shuffle=True, random_seed=1)
    expected = [[b.n_id.tolist() for b in loader] for _ in range(3)]
    again = NeighborLoader(DATA, [3], batch_size=64, shuffle=True, random_seed=1)
    assert next(iter(again)).n_id.tolist() == expected[0][0]
    assert next(iter(again)).n_id.tolist() == expected[1][0]
    assert [b.n_id.tolist() for b in again] == expected[2]


def test_torch_manual_seed_fixes_the_default_seed():
    def epoch():
        torch.manual_seed(3)
        return list(NeighborLoader(DATA, [3, 3], batch_size=100, shuffle=True))

    assert all(same(a, b) for a, b in zip(epoch(), epoch(), strict=True))
    torch.manual_seed(4)
    assert NeighborLoader(DATA, [3]).random_seed != NeighborLoader(DATA, [3]).random_seed


@pytest.mark.parametrize("num_workers", [0, 2])
def test_duplicate_seeds_keep_their_rows(num_workers):
    """PyG shifts every local id behind a duplicate."""
    seeds = torch.tensor([7, 7, 3, 250, 7, 3])
    (batch,) = NeighborLoader(DATA, [3, 2], seeds, batch_size=6, num_workers=num_workers)
    check(batch, [3, 2], seeds)
    assert batch.y[:6].tolist() == seeds.tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pygs_imbalanced_sampler_gives_right_edges(num_workers):
    """With PyG's own sampler 3596 of 3815 edges of this combination were wrong: it draws seeds repeatedly."""
    sampler = ImbalancedSampler(torch.arange(300) // 150)
    loader = NeighborLoader(DATA, [4, 3], batch_size=50, sampler=sampler, num_workers=num_workers)
    batches = list(loader)
    assert len(batches) == 6
    assert any(len(b.n_id[:50].unique()) < 50 for b in batches)
    for batch in batches:
        check(batch, [4, 3], batch.input_id)


def test_a_sampler_or_batch_sampler_of_the_callers_is_kept():
    chosen = [5, 1, 5, 299]
    (batch,) = NeighborLoader(DATA, [2], batch_size=4, sampler=chosen)
    check(batch, [2], chosen)
    loader = NeighborLoader(DATA, [2], torch.arange(100, 200), batch_sampler=[[0, 3], [99], []])
    assert len(loader) == 3
    for batch, seeds in zip(loader, ([100, 103], [199], []), strict=True):
        check(batch, [2], seeds)
    strided = BatchSampler(SequentialSampler(range(10)), 4, drop_last=True)
    assert [b.batch_size for b in NeighborLoader(DATA, [2], batch_sampler=strided)] == [4, 4]
    subset = SubsetRandomSampler([2, 4, 6])
    assert sorted(next(iter(NeighborLoader(DATA, [2], batch_size=3, sampler=subset))).input_id.tolist()) == [2, 4, 6]


def test_a_generator_of_the_callers_decides_the_order():
    def order():
        generator = torch.Generator().manual_seed(8)
        loader = NeighborLoader(DATA, [2], batch_size=50, shuffle=True, generator=generator)
        return torch.cat([b.input_id for b in loader])

    assert torch.equal(order(), order())
    assert sorted(order().tolist()) == list(range(300))


def test_input_nodes_of_every_kind():
    mask = torch.zeros(300, dtype=torch.bool)
    mask[[3, 77, 200]] = True
    for nodes, seeds, input_id in [
        (mask, [3, 77, 200], [3, 77, 200]),  # PyG: of a mask, input_id is the node
        (torch.tensor([9, 8]), [9, 8], [0, 1]),
        (torch.tensor([9, 8], dtype=torch.int32), [9, 8], [0, 1]),
        ([9, 8], [9, 8], [0, 1]),
        (torch.empty(0, dtype=torch.int64), [], []),
    ]:
        loader = NeighborLoader(DATA, [2, 2], nodes, batch_size=10)
        batches = list(loader)
        assert len(batches) == len(loader) == (len(seeds) > 0)
        for batch in batches:
            check(batch, [2, 2], seeds)
            assert batch.input_id.tolist() == input_id
    (batch,) = NeighborLoader(DATA, [2], [9, 8], input_id=torch.tensor([70, 60]), batch_size=2)
    assert batch.input_id.tolist() == [70, 60]


@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_a_loader_can_be_called(filter_per_worker):
    loader = NeighborLoader(DATA, [2, 2], torch.arange(100, 200), filter_per_worker=filter_per_worker)
    check(loader([0, 5]), [2, 2], [100, 105])
    check(loader(torch.tensor([3])), [2, 2], [103])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_attribute_of_the_source_survives(num_workers):
    data = GRAPH.to_data()
    data.train_mask = data.y % 3 == 0
    data.half = data.x.to(torch.bfloat16)
    data.pair = torch.arange(600).view(300, 2).t().contiguous().t()  # not contiguous
    data.array = np.arange(300.0)
    data.edge_weight = torch.arange(3000, dtype=torch.float16)
    data.edge_flag = torch.arange(3000) % 2 == 0
    data.name, data.num_classes, data.scale = "ring", 7, torch.tensor([1.0, 2.0])
    (batch,) = NeighborLoader(data, [4, 4], torch.arange(50), batch_size=50, num_workers=num_workers)
    check(batch, [4, 4], range(50))
    for key in ("train_mask", "half", "pair"):
        assert torch.equal(batch[key], data[key][batch.n_id]) and batch[key].dtype == data[key].dtype
    for key in ("edge_weight", "edge_flag"):
        assert torch.equal(batch[key], data[key][batch.e_id])
    assert torch.as_tensor(batch.array).tolist() == batch.n_id.tolist()
    assert (batch.name, batch.num_classes, batch.scale.tolist()) == ("ring", 7, [1.0, 2.0])
    assert batch.num_nodes == len(batch.n_id)
    assert "batch" not in batch and "seed_time" not in batch and "e_id" not in DATA and "n_id" not in DATA
    assert batch.validate()


def test_as_many_nodes_as_edges():
    """The attributes then tell nodes from edges by their names, as in PyG."""
    ring = ring_graph(30, 1)
    data = ring.to_data()
    for source in (data, ring.to_dataset()):
        (batch,) = NeighborLoader(source, [1, 1], torch.tensor([4]), batch_size=1)
        check_batch(batch, ring.edge_index, [1, 1], seeds=[4], x=data.x, y=data.y, edge_attr=data.edge_attr)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_graphs_without_edges_and_batches_without_any(num_workers):
    data = Data(
        x=torch.arange(9.0).view(9, 1), edge_index=torch.empty(2, 0, dtype=torch.int64), edge_attr=torch.empty(0, 3)
    )
    for batch in NeighborLoader(data, [2, 2], batch_size=4, num_workers=num_workers):
        check_batch(batch, data.edge_index, [2, 2], num_nodes=9, x=data.x, edge_attr=data.edge_attr)
        assert batch.edge_index.shape == (2, 0) and batch.edge_attr.shape == (0, 3)


def test_transforms():
    def mark(batch):
        batch.marked = batch.num_nodes
        return batch

    def without_edge_ids(out):
        out.edge = None
        return out

    for num_workers, filter_per_worker in ((0, True), (0, False), (1, True), (1, False)):
        options = {"transform_sampler_output": without_edge_ids, "num_workers": num_workers}
        options |= {"filter_per_worker": filter_per_worker}
        (batch,) = NeighborLoader(DATA, [3], torch.arange(10), batch_size=10, transform=mark, **options)
        assert batch.marked == len(batch.n_id)
        assert "e_id" not in batch and "edge_attr" not in batch
        check(batch, [3], range(10))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["data", "dataset", "stores"])
def test_without_edge_ids(kind, num_workers):
    dataset = GRAPH.to_dataset()
    stores = DatasetFeatureStore(dataset), DatasetGraphStore(dataset)
    source = {"data": DATA, "dataset": dataset, "stores": stores}[kind]
    options = {"batch_size": 25, "num_workers": num_workers, "random_seed": 3}
    told = list(NeighborLoader(source, [4, 4], torch.arange(50), **options))
    untold = list(NeighborLoader(source, [4, 4], torch.arange(50), with_edge=False, **options))
    for batch, other in zip(told, untold, strict=True):
        assert "e_id" in batch and "e_id" not in other
        for name in ("n_id", "edge_index", "x", *["edge_attr"] * (kind != "stores")):  # which announce none of edges
            assert torch.equal(batch[name], other[name])


class OfAnotherMake(BaseSampler):
    def sample_from_nodes(self, *given):
        raise AssertionError("not to be called")

    sample_from_edges = sample_from_nodes


def test_edge_ids_are_not_sampled_where_nothing_needs_them():
    data = Data(x=DATA.x, edge_index=DATA.edge_index)
    assert NeighborLoader(data, [4], with_edge=False).node_sampler.config.with_edge is False
    assert NeighborLoader(DATA, [4], with_edge=False).node_sampler.config.with_edge is True, "there is edge_attr"
    assert NeighborLoader(data, [4]).node_sampler.config.with_edge is True, "as PyG"
    with pytest.raises(TypeError, match="with_edge = 1: expected True or False"):
        NeighborLoader(data, [4], with_edge=1)
    with pytest.raises(ValueError, match="with_edge = False: the neighbor_sampler given does not know that option"):
        NeighborLoader(data, [4], with_edge=False, neighbor_sampler=OfAnotherMake())


def test_a_sampler_without_edge_ids_is_refused_where_batches_need_them():
    plain = Data(x=DATA.x, edge_index=DATA.edge_index)
    sampler = NeighborSampler(plain, [4], with_edge=False)
    with pytest.raises(ValueError, match="but neighbor_sampler was made with with_edge = False: pass"):
        NeighborLoader(plain, [4], neighbor_sampler=sampler)
    assert "e_id" not in next(iter(NeighborLoader(plain, [4], with_edge=False, neighbor_sampler=sampler)))
    with pytest.raises(ValueError, match="with_edge = False, but the data has attributes of edges"):
        NeighborLoader(DATA, [4], with_edge=False, neighbor_sampler=NeighborSampler(DATA, [4], with_edge=False))


def test_pyg_models_take_the_batches():
    model = GraphSAGE(4, 8, num_layers=2, out_channels=3)
    loader = NeighborLoader(DATA, [5, 5], torch.arange(20), batch_size=20)
    (batch,) = loader
    whole = model(batch.x, batch.edge_index)[:20]
    options = {"num_sampled_edges_per_hop": batch.num_sampled_edges}
    trimmed = model(batch.x, batch.edge_index, num_sampled_nodes_per_hop=batch.num_sampled_nodes, **options)[:20]
    assert torch.allclose(whole, trimmed, atol=1e-4, rtol=1e-4)
    x, edge_index, _ = trim_to_layer(1, batch.num_sampled_nodes, batch.num_sampled_edges, batch.x, batch.edge_index)
    assert len(x) == sum(batch.num_sampled_nodes[:-1]) and edge_index.shape[1] == batch.num_sampled_edges[0]


def test_layer_wise_inference_equals_the_whole_graph():
    model = GraphSAGE(4, 8, num_layers=2, out_channels=3).eval()
    loader = NeighborLoader(DATA, [-1], batch_size=64)
    with torch.no_grad():
        expected = model(DATA.x, DATA.edge_index)
    assert torch.allclose(model.inference(loader), expected, rtol=1e-3, atol=1e-2)


def test_lightning_finds_its_attributes_and_builds_the_loader_anew():
    loader = NeighborLoader(DATA, [3], torch.arange(50), batch_size=8, drop_last=True, random_seed=4)
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (8, True, 0)
    assert isinstance(loader, torch_geometric.loader.NeighborLoader) and isinstance(loader, torch.utils.data.DataLoader)
    assert len(loader) == len(list(loader)) == 6
    assert len(loader.dataset) == 50 and loader.data is DATA and len(loader.node_sampler.num_neighbors) == 1
    with pytest.raises(ValueError):
        loader.batch_size = 9  # DataLoader's own rule
    options = {"sampler": torch.utils.data.DistributedSampler(loader.dataset, num_replicas=2, rank=1, shuffle=False)}
    options |= {"dataset": loader.dataset, "collate_fn": loader.collate_fn}
    anew = NeighborLoader(DATA, [3], torch.arange(50), batch_size=8, drop_last=True, random_seed=4, **options)
    assert [b.input_id.tolist() for b in anew] == [list(range(i + 1, i + 17, 2)) for i in (0, 16, 32)]


def test_features_that_need_a_gradient_get_it():
    """In PyG the rows of a batch are a differentiable function of data.x."""
    data = GRAPH.to_data()
    data.x.requires_grad_()
    (batch,) = NeighborLoader(data, [2], torch.arange(10), batch_size=10)
    batch.x.sum().backward()
    assert torch.equal(data.x.grad[:, 0], torch.bincount(batch.n_id, minlength=300).float())


def test_features_replaced_between_batches_are_the_new_ones():
    data = GRAPH.to_data()
    loader = NeighborLoader(data, [2], torch.arange(10), batch_size=10)
    for new in (data.x, data.x + 1, (data.x + 2).to(torch.float64)):
        loader.data.x = new
        (batch,) = loader
        assert torch.equal(batch.x, new[batch.n_id])


def test_features_behind_a_row_map_are_refused():
    """As partitions have them."""
    dataset = Dataset(GRAPH.to_dataset().graph, Feature(DATA.x, torch.arange(300).to(torch.uint32)))
    with pytest.raises(ValueError, match="x is a Feature with row_of, as partitions have: this loader needs one row"):
        NeighborLoader(dataset, [2], torch.arange(10), batch_size=10)


def induced(edge_index, source, target):
    """Ids of all edges whose ends are among these nodes, ascending."""
    return (torch.isin(edge_index[0], source) & torch.isin(edge_index[1], target)).nonzero().flatten()


@pytest.mark.parametrize("face", [DATA, Dataset.from_pyg(DATA)], ids=["data", "dataset"])
def test_subgraphs_hold_all_edges_among_their_nodes_and_say_where_the_seeds_are(face):
    seeds = torch.randperm(150)[:50]
    loader = SubGraphLoader(face, [3, 2], seeds, batch_size=4, random_seed=1)
    nodes = NeighborLoader(face, [3, 2], seeds, batch_size=4, random_seed=1)
    for batch, other in zip(loader, nodes, strict=True):
        assert torch.equal(batch.n_id, other.n_id)
        assert torch.equal(batch.n_id[batch.mapping], seeds[batch.input_id])
        assert torch.equal(batch.e_id.sort()[0], induced(GRAPH.edge_index, batch.n_id, batch.n_id))
        assert torch.equal(batch.n_id[batch.edge_index], GRAPH.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, GRAPH.edge_attr[batch.e_id])


def test_heterogeneous_subgraphs():
    data = HeteroData(a={"num_nodes": 50}, b={"num_nodes": 70})
    for source, target in (("a", "a"), ("a", "b"), ("b", "a")):
        sizes = data[source].num_nodes, data[target].num_nodes
        data[source, "to", target].edge_index = torch.stack([torch.randint(0, n, (300,)) for n in sizes])
    for batch in SubGraphLoader(data, [2, 2], ("b", torch.arange(20)), batch_size=6):
        assert torch.equal(batch["b"].n_id[batch["b"].mapping], batch["b"].input_id)
        assert "mapping" not in batch["a"]
        for source, relation, target in data.edge_types:
            store, edges = batch[source, relation, target], data[source, relation, target].edge_index
            assert torch.equal(store.e_id.sort()[0], induced(edges, batch[source].n_id, batch[target].n_id))


def test_transforms_see_the_mapping_and_copies_of_the_loader_have_it_once():
    def transform(data):
        data.doubled = data.mapping * 2
        return data

    loader = SubGraphLoader(DATA, [2], torch.arange(9), batch_size=3, transform=transform)
    again = SubGraphLoader(DATA, [2], torch.arange(9), batch_size=3, transform=loader.transform)
    for batch in (next(iter(loader)), next(iter(again))):
        assert batch.mapping.tolist() == [0, 1, 2] and batch.doubled.tolist() == [0, 2, 4]


def test_other_subgraphs_are_refused():
    with pytest.raises(ValueError, match="subgraph_type = 'directional': subgraphs are 'induced'"):
        SubGraphLoader(DATA, [2], subgraph_type="directional")
