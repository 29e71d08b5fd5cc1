"""HGT sampling: an exact reference in plain Python, the law of its draws, and batches whoever makes them."""

import json
import pickle
from collections import Counter
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ImbalancedSampler
from torch_geometric.sampler import NodeSamplerInput

import glt
from glt import _core
from glt.loader import HGTLoader
from glt.sampler import HGTSampler, SeedOrder
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph
from glt.testing.reference import _derive_key, _draw, _fall_on, integer_weights, reference_picks

BUDGET, MOST = 10, 50  # the purpose of the key of draws; edges of a type that a node gives along


class Reference:
    """Algorithm 2 in integers, one edge at a time: budgets, and the nodes that are drawn, by node type."""

    def __init__(self, num_types, edges, seeds, num_samples, key):
        """``edges``: (expanded type, found type, centers, neighbours) of each edge type, rows in input order."""
        self.budget, self.drawn = [{} for _ in range(num_types)], [[] for _ in range(num_types)]
        taken = [set() for _ in range(num_types)]
        newest = [list(dict.fromkeys(each)) for each in seeds]
        for t in range(num_types):
            taken[t].update(newest[t])
        rows = [{} for _ in edges]
        for row, (_, _, center, neighbor) in zip(rows, edges, strict=True):
            for v, u in zip(center, neighbor, strict=True):
                row.setdefault(v, []).append(u)
        for i in range(len(num_samples[0])):
            for r, (expanded, found, _, _) in enumerate(edges):
                for v in newest[expanded]:
                    row = rows[r].get(v, [])
                    picks = reference_picks(partial(_draw, key, i, r, v), range(len(row)), MOST)
                    for at in picks:
                        if row[at] not in taken[found]:
                            self.budget[found][row[at]] = self.budget[found].get(row[at], 0) + 2**32 // len(picks)
            newest = [[] for _ in range(num_types)]
            for t in range(num_types):
                self._draw_of(t, num_samples[t][i], _derive_key(key, BUDGET, t, 0), i, newest[t])
                taken[t].update(newest[t])
                self.drawn[t] += newest[t]

    def _draw_of(self, t, k, key, iteration, newest):
        candidates = list(self.budget[t])
        if k >= len(candidates):
            newest += candidates
        elif k > 0:
            weight = integer_weights([float(each) ** 2 for each in self.budget[t].values()])
            rest = list(range(len(candidates)))
            for _ in range(k):
                at = _fall_on(rest, weight, partial(_draw, key, iteration, 0, 0), len(newest))
                rest.remove(at)
                newest.append(candidates[at])
        for each in newest:
            del self.budget[t][each]


def edges_of(sampler):
    """(expanded type, found type, centers, neighbours) of each edge type, in the order of rows."""
    out = []
    for (expanded, found), topology in zip(sampler.graph.ends, sampler.graph.topologies, strict=True):
        degree = np.diff(topology.indptr.numpy())
        out.append((expanded, found, np.repeat(np.arange(len(degree)), degree).tolist(), topology.indices.tolist()))
    return out


def by_type(sampler, value):
    types = sampler.graph.schema.node_types
    return [value[t] for t in types] if sampler.is_hetero else [value]


def graph(num_nodes=200, num_edges=1200, seed=3, **attrs):
    return Data(edge_index=random_graph(num_nodes, num_edges, seed=seed).edge_index, num_nodes=num_nodes, **attrs)


@pytest.mark.parametrize("seed", range(12))
def test_nodes_are_those_of_the_algorithm_in_integers(seed):
    data, rng = random_hetero_graph(seed), np.random.default_rng(seed)
    for num_samples in ([3, 2, 4], [0, 5], [1000], [2, 0, 0, 1], []):
        sampler = HGTSampler(data, num_samples, num_threads=1 + seed % 3)
        types = sampler.graph.schema.node_types
        seeds = [
            (t, torch.from_numpy(rng.integers(0, max(1, n), min(n, 6))))
            for t, n in enumerate(sampler.graph.num_nodes)
            if t != seed % 4
        ]
        of_type = [[] for _ in types]
        for t, ids in seeds:
            of_type[t] += ids.tolist()
        reference = Reference(len(types), edges_of(sampler), of_type, [num_samples] * len(types), seed)
        out = sampler.sample(seeds, batch_key=seed)
        expected = [[*own, *drawn] for own, drawn in zip(of_type, reference.drawn, strict=True)]
        assert [each.tolist() for each in by_type(sampler, out.node)] == expected


def test_each_type_has_its_own_numbers():
    data = random_hetero_graph(1)
    types = data.node_types
    num_samples = {name: [i + 1, 2 * i] for i, name in enumerate(types)}
    sampler = HGTSampler(data, num_samples)
    seeds = [[0, 1, 2], *[[] for _ in types[1:]]]
    out = sampler.sample([(0, torch.tensor(seeds[0]))], batch_key=5)
    reference = Reference(len(types), edges_of(sampler), seeds, list(num_samples.values()), 5)
    assert [out.node[name].tolist() for name in types] == [a + b for a, b in zip(seeds, reference.drawn, strict=True)]
    assert all(len(drawn) <= sum(num_samples[name]) for name, drawn in zip(types, reference.drawn, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_nodes_with_more_than_fifty_edges_give_to_fifty_of_them(seed):
    rng = np.random.default_rng(seed)
    center = np.concatenate([np.zeros(200), np.ones(51), np.full(50, 2), rng.integers(3, 400, 3000)]).astype(np.int64)
    neighbor = rng.integers(0, 400, len(center))
    data = Data(edge_index=torch.from_numpy(np.stack([neighbor, center])), num_nodes=400)
    sampler = HGTSampler(data, [40, 30])
    out = sampler.sample([(0, torch.tensor([0, 1, 2]))], batch_key=seed)
    assert out.node.tolist() == [0, 1, 2, *Reference(1, edges_of(sampler), [[0, 1, 2]], [[40, 30]], seed).drawn[0]]


def test_a_hub_gives_to_each_neighbour_alike_and_anew_in_each_batch():
    data = Data(edge_index=torch.stack([torch.arange(1, 201), torch.zeros(200, dtype=torch.int64)]), num_nodes=201)
    sampler, count, firsts = HGTSampler(data, [60], random_seed=0), Counter(), set()
    for key in range(800):
        drawn = sampler.sample([(0, torch.tensor([0]))], batch_key=key).node[1:].tolist()
        assert len(set(drawn)) == 50  # as many as are given something
        count.update(drawn)
        firsts.add(tuple(sorted(drawn)))
    assert len(firsts) == 800
    chance = 50 / 200
    spread = (800 * chance * (1 - chance)) ** 0.5
    assert all(abs(count[v] - 800 * chance) < 5 * spread for v in range(1, 201))  # 5 sigma of 200: 1 in 10,000


def world_of_budgets():
    """Seeds 0 and 1; 0 has in-edges from 2, 3, 3 and 4, seed 1 from 2 and 5: the budgets are 3/4, 2/4, 1/4 and 1/2."""
    pairs = [(2, 0), (3, 0), (3, 0), (4, 0), (2, 1), (5, 1), (6, 2)]
    return Data(edge_index=torch.tensor(pairs).T.contiguous(), num_nodes=7), {2: 9, 3: 4, 4: 1, 5: 4}


def drawn_after_seeds(sampler):
    """How often which nodes are drawn, in order, in 6,000 batches around 0 and 1."""
    seeds = [(0, torch.tensor([0, 1]))]
    return Counter(tuple(sampler.sample(seeds, batch_key=key).node[2:].tolist()) for key in range(6000))


def test_nodes_are_drawn_one_after_the_other_in_proportion_to_the_squares_of_budgets():
    data, weight = world_of_budgets()
    sampler = HGTSampler(data, [2], random_seed=0)
    seen = drawn_after_seeds(sampler)
    total, statistic = sum(weight.values()), 0.0
    for first, second in permutations(weight, 2):
        expected = 6000 * weight[first] / total * weight[second] / (total - weight[first])
        statistic += (seen.pop((first, second), 0) - expected) ** 2 / expected
    assert not seen
    assert statistic < 31.3  # chi-square of 11 degrees of freedom: 1 in 1,000


def test_what_is_left_over_keeps_its_budget_for_the_next_iteration():
    """2 is drawn or not in the first iteration; if so, 6 is a candidate of the second with the whole of 2's budget."""
    data, weight = world_of_budgets()
    sampler, total = HGTSampler(data, [1, 1], random_seed=0), 18
    seen = drawn_after_seeds(sampler)
    statistic = 0.0
    for first, own in weight.items():
        left = {v: w for v, w in weight.items() if v != first} | ({6: 16} if first == 2 else {})
        for second, w in left.items():
            expected = 6000 * own / total * w / sum(left.values())
            statistic += (seen.pop((first, second), 0) - expected) ** 2 / expected
    assert not seen
    assert statistic < 32.9  # chi-square of 12 degrees of freedom: 1 in 1,000


def test_seeds_that_come_twice_count_once_and_keep_their_rows():
    data, _ = world_of_budgets()
    sampler = HGTSampler(data, [2, 1])
    for key in range(50):
        once = sampler.sample([(0, torch.tensor([0, 1]))], batch_key=key)
        twice = sampler.sample([(0, torch.tensor([0, 1, 0, 0]))], batch_key=key)
        assert twice.node.tolist() == [0, 1, 0, 0, *once.node[2:].tolist()]


def brute_force(data, node):
    """(source, destination, edge id) in local ids, of edges among the nodes: a source is the first of equal nodes."""
    first = {}
    for i, v in enumerate(node.tolist()):
        first.setdefault(v, i)
    pairs = enumerate(data.edge_index.T.tolist())
    return sorted((first[u], i, e) for e, (u, v) in pairs if u in first for i, w in enumerate(node.tolist()) if w == v)


@pytest.mark.parametrize("seed", range(5))
def test_batches_have_all_edges_among_their_nodes(seed):
    data = graph(60, 400, seed=seed)
    for batch in HGTLoader(data, [4, 4], torch.tensor([3, 3, 7, 59, 0, 1, 12]), batch_size=3, random_seed=seed):
        got = zip(*batch.edge_index.tolist(), batch.e_id.tolist(), strict=True)
        assert sorted(got) == brute_force(data, batch.n_id)
        assert len(set(batch.n_id[batch.batch_size :].tolist())) == batch.num_nodes - batch.batch_size


def test_typed_batches_have_all_edges_among_their_nodes_and_their_rows():
    data = random_hetero_graph(2)
    num_edges = 0
    for batch in HGTLoader(data, [6, 6], "user", batch_size=8, shuffle=True, random_seed=1):
        user = batch["user"]
        assert user.batch_size == len(user.input_id) and torch.equal(user.n_id[: user.batch_size], user.input_id)
        for name in data.node_types:
            assert torch.equal(batch[name].x, data[name].x[batch[name].n_id])
            assert len(batch[name].n_id.unique()) == len(batch[name].n_id)
        for each in data.edge_types:
            source, target = batch[each[0]].n_id, batch[each[2]].n_id
            whole = data[each].edge_index
            is_in = torch.isin(whole[0], source) & torch.isin(whole[1], target)
            assert batch[each].e_id.sort()[0].tolist() == is_in.nonzero().view(-1).tolist()
            row, col = batch[each].edge_index
            assert torch.equal(torch.stack([source[row], target[col]]), whole[:, batch[each].e_id])
            assert torch.equal(batch[each].edge_attr, data[each].edge_attr[batch[each].e_id])
            num_edges += len(row)
    assert num_edges > 100


def test_a_graph_is_a_graph_with_one_type():
    data = graph()
    typed = HeteroData()
    typed["v"].num_nodes = 200
    typed["v", "to", "v"].edge_index = data.edge_index
    seeds = torch.arange(0, 200, 9)
    for key in range(5):
        one = HGTSampler(data, [9, 9, 3]).sample([(0, seeds)], batch_key=key)
        other = HGTSampler(typed, {"v": [9, 9, 3]}).sample([(0, seeds)], batch_key=key)
        assert torch.equal(one.node, other.node["v"]) and len(one.node) > len(seeds)
        for name in ("row", "col", "edge"):
            assert torch.equal(getattr(one, name), getattr(other, name)["v", "to", "v"])


def test_without_candidates_seeds_are_alone():
    lone = Data(edge_index=torch.tensor([[3], [3]]), num_nodes=5)
    out = HGTSampler(lone, [4, 4]).sample([(0, torch.tensor([1, 3]))], batch_key=0)
    assert out.node.tolist() == [1, 3] and out.row.tolist() == [1] and out.edge.tolist() == [0]
    empty = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=2)
    assert HGTSampler(empty, [4]).sample([(0, torch.tensor([1]))]).node.tolist() == [1]
    assert HGTSampler(empty, [4]).sample([(0, torch.tensor([], dtype=torch.int64))]).node.tolist() == []
    typed = HeteroData()
    typed["a"].num_nodes, typed["b"].num_nodes = 3, 0
    typed["b", "of", "a"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    out = HGTSampler(typed, [4]).sample([(0, torch.tensor([1]))])
    assert out.node["a"].tolist() == [1] and out.node["b"].tolist() == []


def test_more_than_there_are_is_the_whole_neighbourhood():
    ring = glt.testing.ring_graph(40, 2).to_data()
    out = HGTSampler(ring, [2**31 - 1] * 3).sample([(0, torch.tensor([10]))])
    assert out.node.tolist() == [10, 8, 9, 6, 7, 4, 5]


def equal(first, second):
    assert len(first) == len(second) > 0
    for ours, theirs in zip(first, second, strict=True):
        for one, other in zip(ours.stores, theirs.stores, strict=True):
            assert {*one.keys()} == {*other.keys()}
            for name, value in one.items():
                same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
                assert same, name


@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
def test_batches_do_not_depend_on_threads_and_workers_and_resume(kind):
    data, seeds = (graph(x=torch.randn(200, 3)), None) if kind == "homogeneous" else (random_hetero_graph(4), "user")
    options = {"batch_size": 7, "shuffle": True, "input_nodes": seeds}
    whole = list(HGTLoader(data, [5, 5], random_seed=1, **options))
    equal(whole, list(HGTLoader(data, [5, 5], random_seed=1, num_threads=3, **options)))
    equal(whole, list(HGTLoader(data, [5, 5], random_seed=1, num_workers=2, **options)))
    equal(whole, list(pickle.loads(pickle.dumps(HGTLoader(data, [5, 5], random_seed=1, **options)))))
    begun = HGTLoader(data, [5, 5], random_seed=1, **options)
    for _ in zip(range(3), begun, strict=False):
        state = json.loads(json.dumps(begun.state_dict()))
    other = HGTLoader(data, [5, 5], random_seed=77, **options)
    other.load_state_dict(state)
    equal(whole[3:], list(other))
    equal(list(begun), list(other))


def test_the_loader_samples_by_the_keys_of_its_batches():
    data = graph()
    seeds, sampler = torch.arange(5, 30), HGTSampler(data, [4, 2], random_seed=0)
    order = SeedOrder(25, 6, shuffle=True, random_seed=8)
    loader = HGTLoader(data, [4, 2], seeds, batch_size=6, shuffle=True, random_seed=8)
    for index, batch in zip(order.batches(0), loader, strict=True):
        out = sampler.sample([(0, seeds[index.input_id])], batch_key=index.key)
        assert torch.equal(batch.n_id, out.node) and torch.equal(batch.e_id, out.edge)


def test_a_state_of_other_numbers_is_refused():
    state = HGTLoader(graph(), [4, 4], batch_size=7).state_dict()
    for other in ([4, 5], [4], [4, 4, 4]):
        with pytest.raises(ValueError, match="num_samples"):
            HGTLoader(graph(), other, batch_size=7).load_state_dict(state)


def test_two_iterations_at_once_are_two_epochs():
    loader = HGTLoader(graph(), [4], batch_size=50, shuffle=True, random_seed=3)
    first, second = iter(loader), iter(loader)
    mixed = [next(each) for _ in range(4) for each in (first, second)]
    again = HGTLoader(graph(), [4], batch_size=50, shuffle=True, random_seed=3)
    equal([*again, *again], mixed[::2] + mixed[1::2])


def test_pygs_imbalanced_sampler_chooses_the_seeds():
    label = (torch.arange(200) % 20 == 0).long()  # 10 of 200
    data = graph(y=label)
    for num_workers in (0, 2):
        sampler = ImbalancedSampler(data, num_samples=1000)
        loader = HGTLoader(data, [4, 4], batch_size=100, sampler=sampler, num_workers=num_workers)
        drawn = torch.cat([batch.y[: batch.batch_size] for batch in loader])
        assert len(drawn) == 1000 and abs(int(drawn.sum()) - 500) < 80  # 5 sigma
    sampler = ImbalancedSampler(data, input_nodes=torch.arange(100), num_samples=300)
    for loader in (
        HGTLoader(data, [4, 4], torch.arange(100), batch_size=100, sampler=sampler),
        glt.NeighborLoader(data, [4, 4], torch.arange(100), batch_size=100, sampler=sampler),
    ):
        drawn = torch.cat([batch.input_id for batch in loader])
        assert len(drawn) == 300 and drawn.max() < 100 and abs(int(label[drawn].sum()) - 150) < 44  # 5 sigma


def test_pygs_loaders_take_the_sampler():
    data = graph(x=torch.arange(200.0))
    from torch_geometric.loader import NodeLoader

    loader = NodeLoader(data, HGTSampler(data, [3, 3], random_seed=2), torch.arange(9), batch_size=4)
    batches = list(loader)
    assert [batch.n_id[: batch.batch_size].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert all(torch.equal(batch.x, batch.n_id.float()) for batch in batches)
    index = NodeSamplerInput(None, torch.tensor([4, 5]))
    sampler = HGTSampler(data, [3, 3], random_seed=2)
    first, second = (sampler.sample_from_nodes(index).node for _ in range(2))
    assert not torch.equal(first, second), "each call draws anew"
    again = pickle.loads(pickle.dumps(HGTSampler(data, [3, 3], random_seed=2)))
    assert torch.equal(again.sample_from_nodes(index).node, first)


@pytest.mark.parametrize(
    ("num_samples", "error", "words"),
    [
        (5, TypeError, "num_samples = 5: expected a list with one count per iteration"),
        ("ab", TypeError, "num_samples = 'ab': expected a list"),
        ([-1], ValueError, r"num_samples\[0\] = -1: expected an integer, 0 to 2\^31 - 1"),
        ([3, 2.5], ValueError, r"num_samples\[1\] = 2.5"),
        ([True], ValueError, r"num_samples\[0\] = True"),
        ([2**31], ValueError, r"num_samples\[0\] = 2147483648"),
        ([1] * 256, ValueError, "num_samples has 256 iterations: expected at most 255"),
        ({"user": [2]}, ValueError, r"num_samples names node types \['user'\]: expected a list for each of"),
    ],
)
def test_what_does_not_fit_is_named(num_samples, error, words):
    with pytest.raises(error, match=words):
        HGTLoader(random_hetero_graph(), num_samples, "user")


def test_arguments_that_sampling_does_not_have_are_refused():
    data = graph(t=torch.arange(200), w=torch.rand(1200))
    for options, words in (
        ({"time_attr": "t", "input_time": torch.arange(200)}, "HGTLoader has no argument time_attr"),
        ({"disjoint": True}, "HGTLoader has no argument disjoint"),
        ({"replace": True}, "HGTLoader has no argument replace"),
        ({"weight_attr": "w"}, "HGTLoader has no argument weight_attr"),
        ({"num_neighbors": [2]}, "HGTLoader has no argument num_neighbors"),
        ({"sampler": "labor"}, "HGTLoader has no argument sampler"),
        ({"input_time": torch.arange(200)}, "HGTLoader has no argument input_time"),
        ({"time_window": 3}, "HGTLoader has no argument time_window"),
        ({"device": "host"}, "HGTLoader has no argument device"),
        ({"gather_window": 2}, "HGTLoader has no argument gather_window"),
        ({"neighbor_sampler": None}, "HGTLoader has no argument neighbor_sampler"),
        ({"subgraph_type": "directional"}, "HGTLoader has no argument subgraph_type"),
        ({"nonsense": 2}, "HGTLoader has no argument nonsense"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            HGTLoader(data, [4], **options)
    assert len(HGTLoader(data, [4], sampler=range(3))) == 3
    typed = random_hetero_graph()
    first, *others = typed.node_types
    with pytest.raises(ValueError, match="expected as many iterations of each node type, but there are 1 of"):
        HGTSampler(typed, {first: [1], **{name: [1, 1] for name in others}})
    with pytest.raises(IndexError, match=r"input_nodes\[1\] = 200"):
        HGTLoader(data, [4], [3, 200])


def test_probabilities_that_are_not_known_are_not_told():
    data, _ = world_of_budgets()
    with pytest.raises(NotImplementedError, match="sample_prob of an HGTSampler"):
        HGTSampler(data, [10]).sample_prob(torch.tensor([0, 1]))


def test_a_loader_tells_what_it_draws():
    assert "num_samples=[4, 3]" in repr(HGTLoader(graph(), [4, 3], random_seed=0))
    assert "num_samples=[4, 3]" in repr(HGTSampler(graph(), [4, 3], random_seed=0))


def test_the_core_refuses_what_cannot_be():
    one = [np.array([0])]
    for arguments, words in (
        (([9], [(0, 0)], one, [], 0), "num_samples has 0 lists: expected one per node type, 1"),
        (([9], [(0, 0)], one, [[-1]], 0), r"num_samples\[0\] has -1: expected 0 or more"),
        (([9], [(0, 1)], one, [[1]], 0), "ends has node types 0 and 1: expected below 1"),
        (([9, 9], [(0, 0)], one * 2, [[1], [1, 1]], 0), r"num_samples\[1\] has 2 iterations, num_samples\[0\] has 1"),
    ):
        with pytest.raises(ValueError, match=words):
            _core.HgtNodes(*arguments)
    nodes = _core.HgtNodes([9], [(0, 0)], [np.array([4, 4, 2])], [[1]], 0)
    assert nodes.newest(0).tolist() == [4, 2]
    count, none = np.array([1, 1], np.uint32), np.empty(0, np.int64)
    for arguments, words in (
        ((1, count, none), "edge type 1: expected below 1"),
        ((0, count[:1], np.array([3])), "count has 1 elements: expected one per node, 2"),
        ((0, count, none), "neighbor has 0 elements: expected the sum of count, 2"),
    ):
        with pytest.raises(ValueError, match=words):
            nodes.take(*arguments)
    for wrong in (9, -1, 2**40):
        with pytest.raises(
            IndexError, match=rf"neighbour id {wrong} is outside \[0, 9\): the graph's columns are damaged"
        ):
            nodes.take(0, count, np.array([2, wrong]))
    nodes.take(0, count, np.array([2, 7]))
    nodes.draw()
    assert nodes.is_done and nodes.drawn(0).tolist() == [7]
    with pytest.raises(ValueError, match="all iterations are done"):
        nodes.draw()


def test_the_core_looks_up_no_type_that_is_not_there():
    """In a process of its own: this may end it."""
    import subprocess
    import sys

    code = (
        "import numpy as np; from glt import _core; n = _core.HgtNodes([9], [(0, 0)], [np.array([0])], [[1]], 0)\n"
        "for call in (n.newest, n.drawn):\n"
        "    try: call(10**6)\n"
        "    except (IndexError, ValueError): print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["refused"] * 2, done
