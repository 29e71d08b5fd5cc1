"""RandomNodeLoader and ClusterLoader: every node once per epoch, with all edges among those that are together."""

import json
import pickle
import re

import numpy as np
import pytest
import torch
import torch_geometric
from equal_batches import same
from torch_geometric.data import Batch, Data, HeteroData

import glt
from glt.loader import ClusterData, ClusterLoader, RandomNodeLoader
from glt.sampler import SeedOrder
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph


def graph(num_nodes=90, num_edges=600, **attrs):
    """Node and edge attributes are ids."""
    edge_index = random_graph(num_nodes, num_edges, seed=3).edge_index
    ids = {"x": torch.arange(num_nodes).view(-1, 1), "edge_attr": torch.arange(num_edges)}
    return Data(edge_index=edge_index, num_nodes=num_nodes, **ids | attrs)


def check_edges(batch, data):
    """All edges among the nodes, each once, with their own rows."""
    node, edge = batch.x.view(-1), batch.edge_attr
    assert torch.equal(node[batch.edge_index], data.edge_index[:, edge])
    among = torch.isin(data.edge_index, node).all(0).nonzero().view(-1)
    assert torch.equal(edge.sort()[0], among)
    return len(edge)


def equal(first, second):
    assert len(first) == len(second) > 0
    assert all(same(ours, theirs) for ours, theirs in zip(first, second, strict=True))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_parts", [1, 4, 7, 90, 1000])
def test_each_node_is_in_one_part_of_an_epoch(num_parts, shuffle):
    data, num_edges = graph(), 0
    loader = RandomNodeLoader(data, num_parts, shuffle=shuffle, random_seed=5)
    for epoch in range(2):
        order = SeedOrder(90, -(-90 // num_parts), shuffle=shuffle, random_seed=5)
        batches = list(loader)
        for batch, index in zip(batches, order.batches(epoch), strict=True):
            assert batch.x.view(-1).tolist() == index.input_id.tolist()
            num_edges += check_edges(batch, data)
        assert torch.equal(torch.cat([batch.x for batch in batches]).sort(0)[0], data.x)
        assert len(batches) == len(loader) <= num_parts
    assert num_parts > 1 or num_edges == 1200


def test_parts_are_pygs():
    data = graph(y=torch.arange(90) % 3, name="a graph", lone=torch.ones(7))
    ours, theirs = RandomNodeLoader(data, 5), torch_geometric.loader.RandomNodeLoader(data, 5)
    for one, other in zip(ours, theirs, strict=True):
        assert {*one.keys()} == {*other.keys()} and one.name == "a graph" and one.num_nodes == other.num_nodes
        for name in ("x", "y", "lone"):
            assert torch.equal(one[name], other[name])
        assert sorted(zip(*one.edge_index.tolist(), one.edge_attr.tolist(), strict=True)) == sorted(
            zip(*other.edge_index.tolist(), other.edge_attr.tolist(), strict=True)
        )


def test_nodes_of_all_types_are_divided_together():
    data = random_hetero_graph(3)
    for name in data.node_types:
        data[name].id = torch.arange(data[name].num_nodes)
    loader, num_edges = RandomNodeLoader(data, 3, shuffle=True, random_seed=2), 0
    batches = list(loader)
    assert {sum(batch.num_nodes_dict.values()) for batch in batches[:-1]} == {-(-data.num_nodes // 3)}
    for name in data.node_types:
        assert torch.cat([batch[name].id for batch in batches]).sort()[0].tolist() == data[name].id.tolist()
    for batch in batches:
        for each in data.edge_types:
            source, target = batch[each[0]].id, batch[each[2]].id
            whole, edge = data[each].edge_index, batch[each].edge_attr[:, 0].long()
            is_in = torch.isin(whole[0], source) & torch.isin(whole[1], target)
            assert edge.sort()[0].tolist() == is_in.nonzero().view(-1).tolist()
            row, col = batch[each].edge_index
            assert torch.equal(torch.stack([source[row], target[col]]), whole[:, edge])
            num_edges += len(edge)
    assert num_edges > 20
    equal(batches, list(RandomNodeLoader(data, 3, shuffle=True, random_seed=2, num_workers=2)))


def cluster_of(num_nodes=90, num_parts=7):
    return torch.randint(num_parts, (num_nodes,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 20])
def test_clusters_come_together_with_the_edges_between_them(batch_size, sparse_format):
    data, cluster = graph(), cluster_of()
    clusters = ClusterData(data, cluster=cluster, sparse_format=sparse_format)
    loader = ClusterLoader(clusters, batch_size=batch_size, shuffle=True, random_seed=4)
    order = SeedOrder(7, batch_size, shuffle=True, random_seed=4)
    for epoch in range(2):
        batches = list(loader)
        assert torch.equal(torch.cat([batch.x for batch in batches]).sort(0)[0], data.x)
        for batch, index in zip(batches, order.batches(epoch), strict=True):
            expected = [(cluster == each).nonzero().view(-1) for each in index.input_id]
            assert torch.equal(batch.x.view(-1), torch.cat(expected))
            assert check_edges(batch, data) > 0 or batch.num_nodes < 20
            first, second = batch.edge_index if sparse_format == "csr" else batch.edge_index.flip(0)
            keys = first * batch.num_nodes + second
            assert torch.equal(keys, keys.sort()[0])


def sorted_edges(batch):
    return sorted(zip(*batch.x.view(-1)[batch.edge_index].tolist(), strict=True))


def test_batches_are_pygs_up_to_the_order_of_nodes_in_a_cluster():
    """PyG sorts nodes by cluster in no certain order of ids."""
    data, cluster = graph(y=torch.arange(90)), cluster_of()
    for sparse_format in ("csr", "csc"):
        clusters = ClusterData(data, cluster=cluster, sparse_format=sparse_format)
        ours = ClusterLoader(clusters, batch_size=2)
        for one, other in zip(ours, torch_geometric.loader.ClusterLoader(clusters, batch_size=2), strict=True):
            assert {*one.keys()} == {*other.keys()} and sorted_edges(one) == sorted_edges(other)
            assert torch.equal(one.x.sort(0)[0], other.x.sort(0)[0]) and torch.equal(one.y, one.x.view(-1))
            assert torch.equal(one.edge_attr.sort()[0], other.edge_attr.sort()[0])
        for number, batch in enumerate(ClusterLoader(clusters)):
            assert (
                sorted_edges(batch) == sorted_edges(clusters[number]) and batch.num_nodes == clusters[number].num_nodes
            )
    with_others = ClusterData(data, cluster=cluster, keep_inter_cluster_edges=True)
    assert sum(with_others[i].edge_index.size(1) for i in range(7)) == 600


def test_the_subgraph_of_a_cluster_is_the_batch_of_this_cluster():
    clusters = ClusterData(graph(), cluster=cluster_of())
    for number, batch in enumerate(ClusterLoader(clusters)):
        assert torch.equal(batch.x, clusters[number].x) and torch.equal(batch.edge_index, clusters[number].edge_index)


def test_metis_is_called_as_pymetis_has_it():
    ClusterData(glt.testing.ring_graph(40, 2).to_data(), 4, log=False)


@pytest.mark.parametrize("recursive", [False, True])
def test_metis_makes_as_many_clusters_of_about_the_same_size(recursive):
    ring = glt.testing.ring_graph(120, 3).to_data()
    clusters = ClusterData(ring, 4, recursive=recursive, log=False)
    assert len(clusters) == 4
    sizes = torch.bincount(clusters.cluster, minlength=4)
    assert sizes.min() >= 25 and sizes.max() <= 35
    source, target = clusters.cluster[ring.edge_index]
    assert (source == target).double().mean() > 0.85  # a cut through a ring of this degree: 6 of 360
    assert sum(batch.num_nodes for batch in ClusterLoader(clusters)) == 120
    again = ClusterData(ring, 4, recursive=recursive, log=False)
    assert torch.equal(again.cluster, clusters.cluster)


def test_clusters_are_kept_and_read_again(tmp_path, capsys):
    data = graph()
    made = ClusterData(data, 4, save_dir=str(tmp_path))
    assert "METIS" in capsys.readouterr().err
    assert [each.name for each in (tmp_path / "part_4").iterdir()] == ["metis.npz"]
    again = ClusterData(data, 4, save_dir=str(tmp_path))
    assert torch.equal(again.cluster, made.cluster) and capsys.readouterr().err == ""
    kept = torch.arange(90) % 4
    with np.load(tmp_path / "part_4" / "metis.npz") as file:
        graph_crc32 = file["graph_crc32"]
    np.savez(tmp_path / "part_4" / "metis.npz", cluster=kept.numpy(), graph_crc32=graph_crc32)
    assert torch.equal(ClusterData(data, 4, save_dir=tmp_path, log=False).cluster, kept), "read, not made anew"
    assert torch.equal(ClusterData(data, 4, log=False).cluster, made.cluster)
    named = ClusterData(data, 4, recursive=True, save_dir=tmp_path, filename="other.npz", log=False)
    assert (tmp_path / "part_4_recursive" / "other.npz").exists() and len(named) == 4


@pytest.mark.parametrize("content", [b"garbage", b"", "39 nodes", "cluster 7"])
def test_kept_clusters_that_do_not_fit_are_named_with_their_file(tmp_path, content):
    (tmp_path / "part_4").mkdir()
    path = tmp_path / "part_4" / "metis.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, cluster=np.zeros(39, np.int64) if content == "39 nodes" else np.full(90, 7))
    with pytest.raises(ValueError, match=r"metis\.npz"):
        ClusterData(graph(), 4, save_dir=str(tmp_path), log=False)


def test_clusters_that_are_given_may_leave_the_last_ones_empty():
    data = graph()
    clusters = ClusterData(data, 9, cluster=cluster_of())
    assert len(clusters) == 9
    assert [batch.num_nodes for batch in ClusterLoader(clusters)][7:] == [0, 0]
    with pytest.raises(IndexError, match=r"num_parts = 5"):
        ClusterData(data, 5, cluster=cluster_of())
    for wrong in (0, -1, 2.5, True, "7"):
        with pytest.raises(ValueError, match="num_parts"):
            ClusterData(data, wrong, cluster=cluster_of())


def test_clusters_are_the_owners_of_partitions(tmp_path):
    """Any integers will do, such as the uint8 of a partition book."""
    data = graph()
    expected = list(ClusterLoader(ClusterData(data, cluster=cluster_of())))
    for given in (cluster_of().to(torch.uint8), cluster_of().numpy().astype(np.uint8), cluster_of().int()):
        equal(expected, list(ClusterLoader(ClusterData(data, cluster=given))))
    equal(expected, list(ClusterLoader(ClusterData(data, cluster=cluster_of().tolist()))))


def test_two_trainers_may_begin_at_once(tmp_path, monkeypatch):
    """The second makes and keeps its clusters while the first writes."""
    save, others = np.savez, []

    def saved(*args, **kwargs):
        monkeypatch.setattr(np, "savez", save)
        others.append(ClusterData(graph(), 4, save_dir=str(tmp_path), log=False))
        save(*args, **kwargs)

    monkeypatch.setattr(np, "savez", saved)
    first = ClusterData(graph(), 4, save_dir=str(tmp_path), log=False)
    assert torch.equal(first.cluster, others[0].cluster)
    assert [each.name for each in (tmp_path / "part_4").iterdir()] == ["metis.npz"]


def test_flags_are_no_clusters():
    with pytest.raises(TypeError, match="cluster"):
        ClusterData(graph(), cluster=torch.ones(90, dtype=torch.bool))


LOADERS = {
    "random": lambda data, **options: RandomNodeLoader(data, 6, **options),
    "cluster": lambda data, **options: ClusterLoader(ClusterData(data, cluster=cluster_of()), batch_size=2, **options),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_do_not_depend_on_threads_and_workers_and_resume(kind):
    make, data = LOADERS[kind], graph()
    whole = list(make(data, shuffle=True, random_seed=1))
    equal(whole, list(make(data, shuffle=True, random_seed=1, num_threads=3)))
    equal(whole, list(make(data, shuffle=True, random_seed=1, num_workers=2)))
    equal(whole, list(pickle.loads(pickle.dumps(make(data, shuffle=True, random_seed=1)))))
    begun = make(data, shuffle=True, random_seed=1)
    for _ in zip(range(3), begun, strict=False):
        state = json.loads(json.dumps(begun.state_dict()))
    other = make(data, shuffle=True, random_seed=77)
    other.load_state_dict(state)
    equal(whole[2:], list(other)) if begun.state_dict()["next_batch"] == 2 else equal(whole[3:], list(other))
    second = list(begun)
    equal(second, list(other))
    assert second[0].x.tolist() != whole[0].x.tolist()
    first_of_two, second_of_two = iter(make(data, random_seed=1)), iter(make(data, random_seed=1))
    equal([next(first_of_two)], [next(second_of_two)])


@pytest.mark.parametrize("kind", LOADERS)
def test_two_iterations_at_once_are_two_epochs(kind):
    loader = LOADERS[kind](graph(), shuffle=True, random_seed=3)
    first, second = iter(loader), iter(loader)
    mixed = [next(each) for _ in range(len(loader)) for each in (first, second)]
    again = LOADERS[kind](graph(), shuffle=True, random_seed=3)
    equal([*again, *again], mixed[::2] + mixed[1::2])


def test_states_of_other_loaders_are_refused():
    data = graph()
    for other, words in (
        (lambda: RandomNodeLoader(data, 5), "loader is"),
        (lambda: ClusterLoader(ClusterData(data, cluster=cluster_of() // 2), batch_size=2), "is"),
        (lambda: ClusterLoader(ClusterData(data, cluster=(cluster_of() + 1) % 7), batch_size=2), "clusters_crc32"),
        (lambda: LOADERS["cluster"](graph(num_edges=599)), "num_edges"),
    ):
        with pytest.raises(ValueError, match=words):
            other().load_state_dict(LOADERS["cluster"](data).state_dict())
    with pytest.raises(ValueError, match=r"is .*, but of this loader"):
        RandomNodeLoader(data, 5).load_state_dict(RandomNodeLoader(data, 6).state_dict())


def test_a_state_of_another_order_of_edges_is_refused():
    data = graph()
    state = ClusterLoader(ClusterData(data, cluster=cluster_of())).state_dict()
    with pytest.raises(ValueError, match="sparse_format"):
        ClusterLoader(ClusterData(data, cluster=cluster_of(), sparse_format="csc")).load_state_dict(state)


def test_a_dataset_tells_ids():
    ring = glt.testing.ring_graph(40, 2)
    for edge_dir in ("in", "out"):
        batches = list(RandomNodeLoader(ring.to_dataset(edge_dir), 3, shuffle=True, random_seed=2))
        plain = list(RandomNodeLoader(ring.to_data(), 3, shuffle=True, random_seed=2))
        assert sum(batch.num_edges for batch in batches) > 10
        for batch, other in zip(batches, plain, strict=True):
            assert torch.equal(batch.n_id[batch.edge_index], ring.edge_index[:, batch.e_id])
            assert torch.equal(batch.x, ring.x[batch.n_id]) and torch.equal(batch.x, other.x)
            assert torch.equal(batch.edge_attr, ring.edge_attr[batch.e_id])
            assert torch.equal(batch.e_id.sort()[0], (other.edge_attr[:, 0]).long().sort()[0])


def test_odd_graphs():
    empty = torch.empty(2, 0, dtype=torch.int64)
    none = Data(edge_index=empty, num_nodes=5)
    assert [batch.num_nodes for batch in RandomNodeLoader(none, 2, shuffle=True)] == [3, 2]
    assert [batch.num_nodes for batch in ClusterLoader(ClusterData(none, cluster=[0, 2, 2, 0, 2]))] == [2, 0, 3]
    one = Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=1)
    assert [batch.edge_index.tolist() for batch in RandomNodeLoader(one, 9)] == [[[0], [0]]]
    assert [batch.num_nodes for batch in ClusterLoader(ClusterData(one, 3, log=False))] == [1, 0, 0]
    zero = Data(edge_index=empty, num_nodes=0)
    assert list(RandomNodeLoader(zero, 2)) == []
    assert list(ClusterLoader(ClusterData(zero, cluster=torch.empty(0, dtype=torch.int64)))) == []
    typed = HeteroData()
    typed["a"].num_nodes, typed["b"].num_nodes = 3, 0
    typed["a", "to", "b"].edge_index = empty
    assert [batch["a"].num_nodes for batch in RandomNodeLoader(typed, 2)] == [2, 1]
    small = Data(edge_index=random_graph(20, 60, seed=1).edge_index.int(), num_nodes=20, edge_attr=torch.arange(60))
    for batch in (*RandomNodeLoader(small, 3), *ClusterLoader(ClusterData(small, 3, log=False))):
        assert batch.edge_index.dtype == torch.int32 and len(batch.edge_attr) == batch.num_edges


def test_no_clusters_may_be_an_empty_list():
    zero = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=0)
    assert list(ClusterLoader(ClusterData(zero, cluster=[]))) == []


def test_what_is_neither_of_nodes_nor_of_edges_stays_whole():
    extra = {"name": "a", "words": ["b", "c"], "by": {"d": 1}, "scalar": torch.tensor(3.0), "lone": torch.ones(4, 2)}
    data = graph(num_nodes=60, num_edges=60, of_edge=None, own=torch.arange(60), edge_own=torch.arange(60), **extra)
    for batch in (*RandomNodeLoader(data, 3), *ClusterLoader(ClusterData(data, cluster=torch.arange(60) % 3))):
        assert all(batch[name] == value for name, value in extra.items() if not isinstance(value, torch.Tensor))
        assert batch.scalar == 3.0 and batch.lone.shape == (4, 2)
        assert torch.equal(batch.own, batch.x.view(-1)) and torch.equal(batch.edge_own, batch.edge_attr)


def test_the_graph_that_each_node_is_of_stays():
    """As PPI's graphs in Cluster-GCN's examples are one batch."""
    whole = Batch.from_data_list([graph(50, 300), graph(40, 300)])
    for batch in (*RandomNodeLoader(whole, 3), *ClusterLoader(ClusterData(whole, cluster=cluster_of()))):
        assert "batch" in batch and len(batch.batch) == batch.num_nodes


def test_lists_have_an_element_per_node_as_in_pyg():
    names = [f"node {i}" for i in range(90)]
    theirs = [batch.name for batch in torch_geometric.loader.RandomNodeLoader(graph(name=names), 4)]
    assert [batch.name for batch in RandomNodeLoader(graph(name=names), 4)] == theirs


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_parts": 0}, ValueError, "num_parts = 0: expected an integer of at least 1"),
        ({"num_parts": 2.5}, ValueError, "num_parts = 2.5"),
        ({"num_parts": True}, ValueError, "num_parts = True"),
        ({"num_parts": None}, ValueError, "num_parts = None"),
        ({"batch_size": 3}, ValueError, "batch_size = 3: num_parts says how large batches are; leave it out"),
        ({"transform": 3}, TypeError, "transform = 3: expected a function"),
        ({"random_seed": -1}, ValueError, "random_seed = -1"),
        ({"num_threads": 0}, ValueError, "num_threads = 0"),
        ({"num_worker": 2}, TypeError, "RandomNodeLoader has no argument num_worker: did you mean num_workers"),
        ({"data": None}, TypeError, "data has type NoneType"),
        ({"data": torch.zeros(2, 3)}, TypeError, "data has type Tensor"),
        ({"data": Data(edge_index=torch.tensor([[0], [9]]), num_nodes=3)}, IndexError, r"edge_index\[1\]\[0\] = 9"),
    ],
)
def test_what_does_not_fit_a_random_loader_is_named(options, error, words):
    with pytest.raises(error, match=words):
        RandomNodeLoader(**{"data": graph(), "num_parts": 3, **options})


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ValueError, "num_parts = None: expected an integer of at least 1"),
        ({"num_parts": 0}, ValueError, "num_parts = 0"),
        ({"num_parts": 2.5}, ValueError, "num_parts = 2.5"),
        ({"num_parts": 4, "recursive": "x"}, TypeError, "recursive = 'x': expected True or False"),
        ({"num_parts": 4, "sparse_format": "coo"}, ValueError, "sparse_format = 'coo': expected one of"),
        ({"num_parts": 4, "keep_inter_cluster_edges": 1}, TypeError, "keep_inter_cluster_edges = 1"),
        ({"cluster": torch.zeros(90)}, TypeError, "cluster has dtype torch.float32"),
        ({"cluster": [0] * 89}, ValueError, "cluster has 89 elements: expected one per node, 90"),
        ({"cluster": [[0]] * 90}, ValueError, r"cluster has shape \[90, 1\]"),
        ({"cluster": [-1] * 90}, IndexError, r"cluster\[0\] = -1"),
        ({"cluster": [0] * 90, "save_dir": "x"}, ValueError, "cluster and save_dir are given"),
        ({"cluster": [0] * 90, "recursive": True}, ValueError, "cluster and recursive are given"),
        ({"num_parts": 2, "filename": "x.npz"}, ValueError, "filename = 'x.npz' and no save_dir"),
        ({"cluster": [0] * 89 + [90]}, IndexError, r"cluster\[89\] = 90 .*: number clusters from 0, without gaps"),
        ({"cluster": [0] * 89 + [4], "num_parts": 4}, IndexError, r"cluster\[89\] = 4 .* \(num_parts = 4\)$"),
        ({"data": HeteroData(), "num_parts": 2}, TypeError, "data has type HeteroData: expected a PyG Data"),
        ({"data": None, "num_parts": 2}, TypeError, "data has type NoneType"),
    ],
)
def test_what_does_not_fit_clusters_is_named(options, error, words):
    with pytest.raises(error, match=words):
        ClusterData(**{"data": graph(), "log": False, **options})


def test_what_does_not_fit_a_cluster_loader_is_named():
    pygs = torch_geometric.loader.ClusterData.__new__(torch_geometric.loader.ClusterData)
    for given in (pygs, None, graph()):
        with pytest.raises(TypeError, match=r"expected a glt\.loader\.ClusterData, which copies no features"):
            ClusterLoader(given)
    with pytest.raises(TypeError, match="ClusterLoader has no argument num_worker: did you mean num_workers"):
        ClusterLoader(ClusterData(graph(), cluster=cluster_of()), num_worker=2)
    with pytest.raises(ValueError, match="batch_size = 0"):
        ClusterLoader(ClusterData(graph(), cluster=cluster_of()), batch_size=0)


def test_edges_to_nodes_that_are_not_there_are_named_before_metis():
    with pytest.raises(IndexError, match="edge_index"):
        ClusterData(Data(edge_index=torch.tensor([[0], [9]]), num_nodes=3), 2, log=False)


def test_a_transform_and_the_orders_of_the_users_own():
    data = graph()
    assert list(RandomNodeLoader(data, 5, transform=lambda batch: batch.num_nodes)) == [18] * 5
    clusters = ClusterData(data, cluster=cluster_of())
    chosen = list(ClusterLoader(clusters, batch_sampler=[[3, 1], [2]]))
    nodes = [[v for each in some for v in (cluster_of() == each).nonzero().view(-1).tolist()] for some in ([3, 1], [2])]
    assert [batch.x.view(-1).tolist() for batch in chosen] == nodes
    chosen = list(RandomNodeLoader(data, 30, sampler=[5, 3, 80, 5]))
    assert [batch.x.view(-1).tolist() for batch in chosen] == [[5, 3, 80], [5]]


@pytest.mark.parametrize("data", [graph(), random_hetero_graph()], ids=["homogeneous", "typed"])
def test_positions_of_nodes_that_are_not_there_are_refused(data):
    for wrong in (-1, data.num_nodes):
        with pytest.raises(IndexError, match=str(wrong)):
            list(RandomNodeLoader(data, 30, sampler=[5, wrong, 3]))


def test_orders_without_a_length_and_without_clusters():
    """PyG's sampler by size says how many batches there are when they have come."""
    clusters = ClusterData(graph(), cluster=cluster_of())
    loader = ClusterLoader(clusters, batch_sampler=torch_geometric.loader.DynamicBatchSampler(clusters, 40))
    assert sum(batch.num_nodes for batch in loader) == 90
    assert repr(loader).startswith("ClusterLoader(in this process, batches, num_parts=")
    empty, one = ClusterLoader(clusters, batch_sampler=[[], [1]])
    assert (empty.num_nodes, empty.num_edges) == (0, 0) and one.num_nodes == int((cluster_of() == 1).sum())


@pytest.mark.parametrize("keep_inter_cluster_edges", [False, True])
def test_a_cluster_is_asked_for_by_its_number(keep_inter_cluster_edges):
    clusters = ClusterData(graph(), cluster=cluster_of(), keep_inter_cluster_edges=keep_inter_cluster_edges)
    assert clusters[np.int64(1)].num_nodes == clusters[torch.tensor(1)].num_nodes == clusters[1].num_nodes
    for wrong in ("a", 1.5, slice(0, 2)):
        with pytest.raises(TypeError, match=re.escape(f"cluster_data[{wrong!r}]: expected an integer, 0 to")):
            clusters[wrong]
    for outside in (-1, len(clusters)):
        with pytest.raises(IndexError, match=re.escape(f"cluster_data[{outside}]: expected 0 to")):
            clusters[outside]


def test_integers_of_numpy_are_integers():
    loader = RandomNodeLoader(graph(), np.int64(5), num_threads=np.int32(2), random_seed=1)
    assert repr(loader) == repr(RandomNodeLoader(graph(), 5, random_seed=1))
    clusters = ClusterLoader(ClusterData(graph(), cluster=cluster_of()), batch_size=np.int64(2), random_seed=1)
    again = ClusterLoader(ClusterData(graph(), cluster=cluster_of()), batch_size=2, random_seed=1)
    assert json.dumps(clusters.state_dict()) == json.dumps(again.state_dict())
