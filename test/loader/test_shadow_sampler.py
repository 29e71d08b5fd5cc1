"""ShaDow's batches, and disjoint induced batches of NeighborLoader: a subgraph of each seed, with all of its edges."""

import json
import pickle

import pytest
import torch
from equal_batches import same
from torch_geometric.data import Batch, Data
from torch_geometric.loader import ImbalancedSampler

import glt
from glt.loader import ShaDowKHopSampler
from glt.sampler import SeedOrder
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph


def graph(num_nodes=60, num_edges=300, seed=3, **attrs):
    """Node and edge attributes are ids."""
    edge_index = random_graph(num_nodes, num_edges, seed=seed).edge_index
    ids = {"x": torch.arange(num_nodes).view(-1, 1), "edge_attr": torch.arange(num_edges), "y": torch.arange(num_nodes)}
    return Data(edge_index=edge_index, num_nodes=num_nodes, **ids | attrs)


def reach(data, seed, depth):
    """Nodes from which the seed is reached in so many steps."""
    found = {seed}
    for _ in range(depth):
        found |= {u for u, v in data.edge_index.T.tolist() if v in found}
    return sorted(found)


def check(batch, data, seeds):
    """Nodes by id and edges by source in each subgraph, all edges among its nodes, and rows of both; the nodes of each
    subgraph."""
    subgraphs, num_edges = [], 0
    assert batch.ptr[0] == 0 and batch.ptr[-1] == batch.num_nodes == len(batch.x) == len(batch.batch)
    assert isinstance(batch, Batch) and batch.num_graphs == len(seeds) == len(batch.ptr) - 1
    assert torch.equal(batch.batch, torch.arange(len(seeds)).repeat_interleave(batch.ptr.diff()))
    keys = batch.edge_index[0] * batch.num_nodes + batch.edge_index[1]
    assert torch.equal(keys, keys.sort()[0]), "by source, and then by destination"
    source_tree, target_tree = batch.batch[batch.edge_index]
    assert torch.equal(source_tree, target_tree)
    for tree, seed in enumerate(seeds):
        node = batch.x[batch.ptr[tree] : batch.ptr[tree + 1]].view(-1)
        assert torch.equal(node, node.unique()) and batch.x[batch.root_n_id[tree]] == seed
        assert batch.ptr[tree] <= batch.root_n_id[tree] < batch.ptr[tree + 1]
        own = source_tree == tree
        edge = batch.edge_attr[own]
        among = torch.isin(data.edge_index, node).all(0).nonzero().view(-1)
        assert torch.equal(edge.sort()[0], among)
        assert torch.equal(batch.x.view(-1)[batch.edge_index[:, own]], data.edge_index[:, edge])
        subgraphs.append(node.tolist())
        num_edges += len(edge)
    assert num_edges == batch.num_edges
    assert "y" not in batch or torch.equal(batch.y, data.y[torch.as_tensor(seeds)])
    return subgraphs


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_with_all_neighbours_a_subgraph_is_the_neighbourhood(depth, num_threads):
    data = graph(seed=depth)
    loader = ShaDowKHopSampler(data, depth, -1, batch_size=7, num_threads=num_threads)
    for number, batch in enumerate(loader):
        seeds = list(range(60))[7 * number : 7 * number + 7]
        assert check(batch, data, seeds) == [reach(data, seed, depth) for seed in seeds]


@pytest.mark.parametrize("replace", [False, True])
def test_with_some_neighbours_a_subgraph_is_in_the_neighbourhood(replace):
    data, sizes = graph(num_edges=900), []
    loader = ShaDowKHopSampler(data, 2, 3, replace=replace, batch_size=8, shuffle=True, random_seed=5)
    order = SeedOrder(60, 8, shuffle=True, random_seed=5)
    for batch, index in zip(loader, order.batches(0), strict=True):
        seeds = index.input_id.tolist()
        for nodes, seed in zip(check(batch, data, seeds), seeds, strict=True):
            assert {*nodes} <= {*reach(data, seed, 2)}
            assert len(nodes) <= 1 + 3 + 9
            sizes.append(len(nodes))
    assert max(sizes) > 7


def test_replacement_may_take_one_neighbour_twice():
    star = Data(edge_index=torch.stack([torch.arange(1, 5), torch.zeros(4, dtype=torch.int64)]), num_nodes=5)
    seeds = torch.zeros(2000, dtype=torch.int64)
    (without,) = ShaDowKHopSampler(star, 1, 2, seeds, batch_size=2000, random_seed=0)
    assert (without.ptr.diff() == 3).all()
    (batch,) = ShaDowKHopSampler(star, 1, 2, seeds, replace=True, batch_size=2000, random_seed=0)
    sizes = torch.bincount(batch.ptr.diff()).tolist()
    assert sizes[:2] == [0, 0] and len(sizes) == 4
    assert abs(sizes[2] - 500) < 97  # 1 in 4 takes the same twice: 5 sigma


def test_seeds_that_come_twice_have_subgraphs_of_their_own():
    data, seeds = graph(num_edges=900), [9, 3, 9, 9, 40]
    (batch,) = ShaDowKHopSampler(data, 2, 2, seeds, batch_size=5, random_seed=1)
    subgraphs = check(batch, data, seeds)
    assert len({*map(tuple, (subgraphs[0], subgraphs[2], subgraphs[3]))}) > 1


def test_seeds_are_ids_or_a_mask():
    data = graph()
    mask = torch.arange(60) % 7 == 3
    ids = mask.nonzero().view(-1)
    whole = list(ShaDowKHopSampler(data, 1, 2, mask, batch_size=4, random_seed=1))
    assert [root for batch in whole for root in batch.x[batch.root_n_id].view(-1).tolist()] == ids.tolist()
    for given in (ids, ids.tolist(), ids.numpy(), ids.int(), mask.numpy(), range(3, 60, 7)):
        equal(whole, list(ShaDowKHopSampler(data, 1, 2, given, batch_size=4, random_seed=1)))
    assert len(ShaDowKHopSampler(data, 1, 2)) == 60
    for none in ([], torch.zeros(60, dtype=torch.bool), torch.empty(0, dtype=torch.int64)):
        assert list(ShaDowKHopSampler(data, 1, 2, none)) == []


def test_a_loader_without_seeds_has_a_state():
    loader = ShaDowKHopSampler(graph(), 1, 2, [])
    loader.load_state_dict(loader.state_dict())


def equal(first, second):
    assert len(first) == len(second) > 0
    assert all(same(ours, theirs) for ours, theirs in zip(first, second, strict=True))


def test_batches_do_not_depend_on_threads_and_workers_and_resume():
    data, options = graph(num_edges=900), {"batch_size": 7, "shuffle": True}
    whole = list(ShaDowKHopSampler(data, 2, 3, random_seed=1, **options))
    equal(whole, list(ShaDowKHopSampler(data, 2, 3, random_seed=1, num_threads=3, **options)))
    equal(whole, list(ShaDowKHopSampler(data, 2, 3, random_seed=1, num_workers=2, **options)))
    equal(whole, list(pickle.loads(pickle.dumps(ShaDowKHopSampler(data, 2, 3, random_seed=1, **options)))))
    begun = ShaDowKHopSampler(data, 2, 3, random_seed=1, **options)
    for _ in zip(range(3), begun, strict=False):
        state = json.loads(json.dumps(begun.state_dict()))
    other = ShaDowKHopSampler(data, 2, 3, random_seed=77, **options)
    other.load_state_dict(state)
    equal(whole[3:], list(other))
    equal(list(begun), list(other))
    for given, words in (
        ({"depth": 1}, "depth is 2, but of this loader 1"),
        ({"num_neighbors": 2}, "num_neighbors is 3, but of this loader 2"),
        ({"replace": True}, "replace is"),
        ({"node_idx": [1, 2]}, "num_seeds is 60"),
        ({"node_idx": torch.arange(60).flip(0)}, "seeds_crc32"),
    ):
        with pytest.raises(ValueError, match=words):
            ShaDowKHopSampler(data, **{"depth": 2, "num_neighbors": 3, **options, **given}).load_state_dict(state)


def test_two_iterations_at_once_are_two_epochs():
    make = lambda: ShaDowKHopSampler(graph(), 2, 3, batch_size=20, shuffle=True, random_seed=3)  # noqa: E731
    loader = make()
    first, second = iter(loader), iter(loader)
    mixed = [next(each) for _ in range(3) for each in (first, second)]
    again = make()
    equal([*again, *again], mixed[::2] + mixed[1::2])


def test_a_dataset_tells_ids():
    ring = glt.testing.ring_graph(40, 2)
    for edge_dir in ("in", "out"):
        loader = ShaDowKHopSampler(ring.to_dataset(edge_dir), 1, -1, [7, 3], batch_size=2)
        (batch,) = loader
        around = [[5, 6, 7], [1, 2, 3]] if edge_dir == "in" else [[7, 8, 9], [3, 4, 5]]
        assert batch.n_id.tolist() == [*around[0], *around[1]]
        assert batch.root_n_id.tolist() == ([2, 5] if edge_dir == "in" else [0, 3])
        assert torch.equal(batch.n_id[batch.edge_index], ring.edge_index[:, batch.e_id])
        assert torch.equal(batch.x, ring.x[batch.n_id]) and torch.equal(batch.edge_attr, ring.edge_attr[batch.e_id])
        assert torch.equal(batch.y, ring.y[[7, 3]]) and batch.num_edges == 6


def test_odd_graphs():
    none = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=5)
    (batch,) = ShaDowKHopSampler(none, 3, -1, batch_size=9, shuffle=True)
    assert batch.ptr.tolist() == [0, 1, 2, 3, 4, 5] and batch.num_edges == 0
    one = Data(edge_index=torch.zeros(2, 3, dtype=torch.int64), num_nodes=1)
    (batch,) = ShaDowKHopSampler(one, 2, 2)
    assert batch.edge_index.tolist() == [[0, 0, 0], [0, 0, 0]] and batch.root_n_id.tolist() == [0]
    small = graph()
    small.edge_index = small.edge_index.int()
    (batch,) = ShaDowKHopSampler(small, 2, -1, batch_size=60)
    assert batch.edge_index.dtype == torch.int32 and batch.batch.dtype == torch.int64
    small.edge_index = small.edge_index.long()
    batch.edge_index = batch.edge_index.long()
    check(batch, small, list(range(60)))
    rows_alike = graph(60, 60, own=torch.arange(60), edge_own=torch.arange(60), name="a", lone=torch.ones(7))
    for batch in ShaDowKHopSampler(rows_alike, 2, 2, batch_size=4):
        assert torch.equal(batch.own, batch.x.view(-1)) and torch.equal(batch.edge_own, batch.edge_attr)
        assert batch.name == "a" and batch.lone.shape == (7,)


def test_what_is_not_of_nodes_is_not_cut_to_the_seeds():
    of_graph = graph(y=torch.arange(3))
    assert all(batch.y.tolist() == [0, 1, 2] for batch in ShaDowKHopSampler(of_graph, 1, -1))
    of_edges = graph(num_edges=300, y=torch.arange(300))
    for batch in ShaDowKHopSampler(of_edges, 1, 2):
        assert torch.equal(batch.y, batch.edge_attr)


@pytest.mark.parametrize("label", [torch.tensor(3.0), 3.0, "a"])
def test_the_label_of_a_graph_stays(label):
    assert all(batch.y == label for batch in ShaDowKHopSampler(graph(y=label), 1, 2, [3, 4]))


def test_the_subgraphs_of_a_batch_of_graphs_are_told_apart():
    whole = Batch.from_data_list([graph(40, 200), graph(20, 100)])
    for batch in ShaDowKHopSampler(whole, 1, 2, batch_size=4):
        assert len(batch.ptr) == 5 and batch.num_graphs == 4 and batch.ptr[-1] == batch.num_nodes


def test_lists_with_an_element_per_node_follow_the_nodes():
    names = [f"node {i}" for i in range(60)]
    for batch in ShaDowKHopSampler(graph(name=names), 1, 2, [3, 4]):
        assert batch.name == [names[int(each)] for each in batch.x]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"depth": -1}, ValueError, "depth = -1: expected an integer of at least 0"),
        ({"depth": 1.5}, ValueError, "depth = 1.5"),
        ({"depth": 300}, ValueError, "300 hops: expected at most 255"),
        ({"num_neighbors": -2}, ValueError, "num_neighbors.* = -2"),
        ({"num_neighbors": 2.5}, TypeError, "num_neighbors.* = 2.5"),
        ({"num_neighbors": 10**12}, ValueError, "num_neighbors.* = 1000000000000"),
        ({"replace": "yes"}, TypeError, "replace = 'yes': expected True or False"),
        ({"node_idx": [1, 60]}, IndexError, r"node_idx\[1\] = 60 is outside \[0, 60\)"),
        ({"node_idx": [-1]}, IndexError, r"node_idx\[0\] = -1"),
        ({"node_idx": [1.5]}, TypeError, "node_idx has dtype torch.float32"),
        ({"node_idx": torch.ones(59, dtype=torch.bool)}, ValueError, "node_idx is a mask of 59 elements: expected 60"),
        ({"node_idx": [[1]]}, ValueError, r"node_idx has shape \[1, 1\]"),
        ({"node_idx": ("node", [1])}, ValueError, "node_idx has type 'node': ids without a type"),
        ({"node_idx": {1}}, TypeError, "node_idx is a set"),
        ({"data": random_hetero_graph()}, ValueError, "data has several types: expected one; glt.NeighborLoader"),
        ({"data": None}, TypeError, "data has type NoneType"),
        ({"num_worker": 2}, TypeError, "ShaDowKHopSampler has no argument num_worker: did you mean num_workers"),
        ({"transform": 3}, TypeError, "transform = 3"),
        ({"batch_size": 0}, ValueError, "batch_size = 0"),
        ({"num_threads": 0}, ValueError, "num_threads = 0"),
    ],
)
def test_what_does_not_fit_is_named(options, error, words):
    with pytest.raises(error, match=words):
        ShaDowKHopSampler(**{"data": graph(), "depth": 2, "num_neighbors": 2, **options})


def test_neighbours_are_checked_without_hops():
    with pytest.raises((TypeError, ValueError), match="num_neighbors"):
        ShaDowKHopSampler(graph(), 0, "many")


def test_the_orders_of_the_users_own():
    data = graph(y=(torch.arange(60) < 6).long())
    chosen = list(ShaDowKHopSampler(data, 1, -1, batch_sampler=[[5, 3], [5]]))
    assert [batch.x[batch.root_n_id].view(-1).tolist() for batch in chosen] == [[5, 3], [5]]
    sampler = ImbalancedSampler(data, num_samples=1000)
    drawn = torch.cat([batch.y for batch in ShaDowKHopSampler(data, 1, 2, batch_size=100, sampler=sampler)])
    assert len(drawn) == 1000 and abs(int(drawn.sum()) - 500) < 80  # 5 sigma
    assert list(ShaDowKHopSampler(data, 1, 2, transform=lambda batch: batch.num_graphs, batch_size=25)) == [25, 25, 10]


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_trees_of_disjoint_induced_batches_have_all_of_their_edges(seed, num_threads):
    """Seeds first, and come twice."""
    data = graph(seed=seed, num_edges=500)
    seeds = torch.tensor([3, 3, 7, 59, 0, 1, 12, 3])
    options = {"batch_size": 4, "disjoint": True, "subgraph_type": "induced", "random_seed": seed}
    num_edges = 0
    for batch in glt.NeighborLoader(data, [3, 2], seeds, num_threads=num_threads, **options):
        assert batch.batch[:4].tolist() == [0, 1, 2, 3]
        source, target = batch.edge_index
        assert torch.equal(batch.batch[source], batch.batch[target])
        for tree in range(4):
            node, own = batch.n_id[batch.batch == tree], batch.batch[target] == tree
            assert len(node) == len(node.unique())
            among = torch.isin(data.edge_index, node).all(0).nonzero().view(-1)
            assert torch.equal(batch.e_id[own].sort()[0], among)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, batch.e_id) and torch.equal(batch.x.view(-1), batch.n_id)
        num_edges += batch.num_edges
    assert num_edges > 50


@pytest.mark.parametrize("seed", range(4))
def test_trees_of_typed_disjoint_induced_batches_have_all_of_their_edges(seed):
    data = random_hetero_graph(seed)
    options = {"batch_size": 5, "disjoint": True, "subgraph_type": "induced", "random_seed": seed, "shuffle": True}
    runs = [list(glt.NeighborLoader(data, [4, 3], "user", num_threads=threads, **options)) for threads in (1, 3)]
    equal(*runs)
    equal(runs[0], list(glt.NeighborLoader(data, [4, 3], "user", num_workers=2, **options)))
    num_edges = 0
    for batch in runs[0]:
        for each in data.edge_types:
            source, target = batch[each[0]], batch[each[2]]
            row, col = batch[each].edge_index
            assert torch.equal(source.batch[row], target.batch[col])
            whole = data[each].edge_index
            assert torch.equal(torch.stack([source.n_id[row], target.n_id[col]]), whole[:, batch[each].e_id])
            for tree in range(batch["user"].batch_size):
                sources, targets = source.n_id[source.batch == tree], target.n_id[target.batch == tree]
                among = torch.isin(whole[0], sources) & torch.isin(whole[1], targets)
                own = batch[each].e_id[target.batch[col] == tree]
                assert torch.equal(own.sort()[0], among.nonzero().view(-1))
                num_edges += len(own)
    assert num_edges > 100


def test_shadow_has_the_subgraphs_of_disjoint_induced_batches():
    data = graph(num_edges=900)
    options = {"batch_size": 6, "shuffle": True, "random_seed": 4}
    shadow = ShaDowKHopSampler(data, 2, 3, **options)
    other = glt.NeighborLoader(data, [3, 3], disjoint=True, subgraph_type="induced", **options)
    for one, two in zip(shadow, other, strict=True):
        for tree in range(one.num_graphs):
            assert one.x[one.batch == tree].view(-1).tolist() == two.n_id[two.batch == tree].sort()[0].tolist()
            in_one, in_two = one.batch[one.edge_index[1]] == tree, two.batch[two.edge_index[1]] == tree
            assert torch.equal(one.edge_attr[in_one].sort()[0], two.e_id[in_two].sort()[0])


def test_pygs_imbalanced_sampler_chooses_seeds_of_disjoint_induced_batches():
    data = graph(y=(torch.arange(60) < 6).long())
    for num_workers in (0, 2):
        sampler = ImbalancedSampler(data, num_samples=1000)
        options = {"disjoint": True, "subgraph_type": "induced", "batch_size": 100, "num_workers": num_workers}
        loader = glt.NeighborLoader(data, [2], sampler=sampler, **options)
        drawn = torch.cat([batch.y[: batch.batch_size] for batch in loader])
        assert len(drawn) == 1000 and abs(int(drawn.sum()) - 500) < 80  # 5 sigma
