"""Random walks: their law, whoever computes it, and that walks are distributed as they are said to be."""

import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from parted import in_parts
from torch_geometric.data import Data, HeteroData

import glt
from glt import _core
from glt.sampler import RandomWalkSampler
from glt.testing import random_graph


def graph(num_nodes=200, num_edges=1200, seed=3, **attrs):
    """Hubs, loops, parallel edges, and nodes without edges."""
    edge_index = random_graph(num_nodes, num_edges, seed=seed).edge_index
    return Data(edge_index=edge_index, num_nodes=num_nodes, **attrs)


def step_by_step(csrs, path, seeds, length, key, time=None, times=None, below=0):
    """Walks made of hops that draw with replacement, each walk in a tree of its own."""
    walks = np.full((len(seeds), length + 1), -1)
    walks[:, 0] = seeds
    alive, bound = np.arange(len(seeds)), None if time is None else time.copy()
    for step in range(length):
        edge_type = path[step % len(path)]
        nodes = walks[alive, step].astype(np.int64)
        of_seeds = {} if bound is None else {"seed_time": bound[alive]}
        tree = alive.astype(np.uint32)
        hop = _core.OneHop(csrs[edge_type], nodes, 1, True, key, step, edge_type, tree=tree, **of_seeds)
        count, neighbor = np.empty(len(nodes), np.uint32), np.empty(hop.num_edges, np.int64)
        edge = np.empty_like(neighbor)
        hop.copy_out(count, neighbor, edge)
        alive = alive[count > 0]
        walks[alive, step + 1] = neighbor
        if times is not None:
            bound[alive] = times[edge] - below
    return walks


@pytest.mark.parametrize("weight_attr", [None, "w"])
def test_walks_are_hops_of_one_draw_whatever_the_threads(weight_attr):
    data = graph(w=torch.rand(1200, generator=torch.Generator().manual_seed(0)) ** 3)
    seeds = torch.arange(200).repeat(5)
    expected = None
    for threads in (1, 2, 8):
        sampler = RandomWalkSampler(data, 12, weight_attr=weight_attr, num_threads=threads)
        walks = sampler.walk(seeds, batch_key=7)
        if expected is None:
            expected = step_by_step(sampler._csrs, [0], seeds.numpy(), 12, 7)
        assert np.array_equal(walks.numpy(), expected)
    assert (expected < 0).any() and (expected[:, -1] >= 0).any()
    edges = set(map(tuple, data.edge_index.T.tolist()))
    for walk in expected:
        assert all(pair in edges for pair in pairwise(walk) if pair[1] >= 0)


def test_walks_over_partitions_are_those_of_the_whole():
    data, seeds = graph(), torch.arange(200)
    sampler = RandomWalkSampler(data, 8)
    whole = sampler.walk(seeds, batch_key=3).numpy()
    second = RandomWalkSampler(data, 8, p=0.3, q=3.0).walk(seeds, batch_key=3).numpy()
    parts = in_parts(sampler.graph.topologies[0])
    for expected, options in ((whole, {}), (second, {"back": 1 / 0.3, "far": 1 / 3.0})):
        out = np.empty(200 * 9, np.int64)
        _core.walk([parts], seeds.numpy(), out, _core.WalkSpec(8, path=[0], batch_key=3, **options), num_threads=2)
        assert np.array_equal(out.reshape(200, 9), expected)


def test_metapaths_go_round_and_round():
    generator = torch.Generator().manual_seed(1)
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes, data["shop"].num_nodes = 30, 40, 5
    sizes = {"user": 30, "item": 40, "shop": 5}
    path = [("user", "buys", "item"), ("item", "in", "shop"), ("shop", "has", "item"), ("item", "of", "user")]
    for source, relation, target in path:
        ends = [torch.randint(sizes[each], (150,), generator=generator) for each in (source, target)]
        data[source, relation, target].edge_index = torch.stack(ends)
    sampler = RandomWalkSampler(data, 10, metapath=path)
    walks = sampler.walk(torch.arange(30), batch_key=1)
    types = sampler.graph.schema.edge_types
    at = [types.index(each) for each in path]
    assert np.array_equal(walks.numpy(), step_by_step(sampler._csrs, at, np.arange(30), 10, 1))
    for step in range(10):
        edges = set(map(tuple, data[path[step % 4]].edge_index.T.tolist()))
        assert all((u, v) in edges for u, v in walks[:, step : step + 2].tolist() if v >= 0)


@pytest.mark.parametrize("time_bound", ["<=", "<"])
def test_walks_go_back_in_time(time_bound):
    """Of no walk an edge is later than the one before it; edges between two nodes are told by their ids."""
    times = torch.randint(0, 60, (1200,), generator=torch.Generator().manual_seed(5))
    data = graph(time=times)
    sampler = RandomWalkSampler(data, 6, time_attr="time", time_bound=time_bound)
    seeds, below = torch.arange(200).repeat(3), int(time_bound == "<")
    seed_time = torch.randint(0, 80, (600,), generator=torch.Generator().manual_seed(6))
    walks = sampler.walk(seeds, seed_time=seed_time, batch_key=9).numpy()
    made = step_by_step(sampler._csrs, [0], seeds.numpy(), 6, 9, seed_time.numpy() - below, times.numpy(), below)
    assert np.array_equal(walks, made)
    latest = {}
    for (u, v), t in zip(data.edge_index.T.tolist(), times.tolist(), strict=True):
        latest.setdefault((u, v), []).append(t)
    num_steps = 0
    for walk, bound in zip(walks.tolist(), seed_time.tolist(), strict=True):
        for u, v in pairwise(walk):
            if v < 0:
                break
            fitting = [t for t in latest[u, v] if (t < bound if below else t <= bound)]
            assert fitting  # some edge between the two is early enough; the latest of these bounds what follows
            bound, num_steps = max(fitting), num_steps + 1
    assert num_steps > 500


def second_order(adjacency, weights, p, q):
    """P(next | previous, now), by definition; parallel edges count each."""
    found = {}
    for now, row in adjacency.items():
        for previous in (each for each, others in adjacency.items() if now in others):
            mass = Counter()
            for x, w in zip(row, weights[now], strict=True):
                mass[x] += w * (1 / p if x == previous else 1.0 if previous in adjacency[x] else 1 / q)
            total = sum(mass.values())
            found[previous, now] = {x: each / total for x, each in mass.items()}
    return found


@pytest.mark.parametrize("p, q", [(0.25, 4.0), (4.0, 0.25), (1.0, 0.5), (2.0, 1.0), (0.01, 0.01)])
@pytest.mark.parametrize("weighted", [False, True])
def test_node2vec_takes_steps_in_the_proportions_of_its_law(p, q, weighted):
    pairs = [
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 2),
        (1, 3),
        (1, 3),
        (2, 0),
        (2, 1),
        (2, 4),
        (3, 1),
        (3, 4),
        (4, 2),
        (4, 3),
        (4, 4),
    ]
    weight = [1.0 + (7 * i) % 5 for i in range(len(pairs))] if weighted else [1.0] * len(pairs)
    adjacency, weights = {v: [] for v in range(5)}, {v: [] for v in range(5)}
    for (u, v), w in zip(pairs, weight, strict=True):
        adjacency[u].append(v)
        weights[u].append(w)
    data = Data(edge_index=torch.tensor(pairs).T.contiguous(), num_nodes=5, w=torch.tensor(weight))
    sampler = RandomWalkSampler(data, 50, p=p, q=q, weight_attr="w" if weighted else None, num_threads=2)
    walks = sampler.walk(torch.arange(5).repeat(800), batch_key=11).numpy()
    seen = Counter(map(tuple, np.lib.stride_tricks.sliding_window_view(walks, 3, axis=1).reshape(-1, 3).tolist()))
    expected = second_order(adjacency, weights, p, q)
    for (previous, now), law in expected.items():
        total = sum(count for (a, b, _), count in seen.items() if (a, b) == (previous, now))
        for x in range(5):
            share, chance = seen[previous, now, x] / max(total, 1), law.get(x, 0.0)
            assert chance > 0 or share == 0
            assert total < 100 or abs(share - chance) < 5 * np.sqrt(chance * (1 - chance) / total) + 1e-9


def test_restarts_begin_at_the_seed_and_at_whole_traversals_alone():
    path = torch.arange(100)
    data = Data(edge_index=torch.stack([path[:-1], path[1:]]), num_nodes=100)  # 0 -> 1 -> 2 -> ...
    walks = RandomWalkSampler(data, 40, restart_prob=0.3).walk(torch.zeros(500, dtype=torch.int64), batch_key=2)
    again = (walks[:, 2:] == 1).float().mean()
    assert abs(float(again) - 0.3) < 0.02
    stays = walks[:, 1:] == walks[:, :-1] + 1
    assert bool((stays | (walks[:, 1:] == 1)).all())
    typed = HeteroData()
    typed["u"].num_nodes = typed["i"].num_nodes = 100
    typed["u", "a", "i"].edge_index = torch.stack([path, path])
    typed["i", "b", "u"].edge_index = torch.stack([path[:-1], path[1:]])
    two = [("u", "a", "i"), ("i", "b", "u")]
    walks = RandomWalkSampler(typed, 20, metapath=two, restart_prob=0.5).walk(torch.full((300,), 7), batch_key=2)
    assert bool((walks[:, 1::2] == walks[:, 2::2] - 1).all())
    assert abs(float((walks[:, 3::2] == 7).float().mean()) - 0.5) < 0.03


def test_the_nodes_that_are_visited_most():
    data, seeds = graph(), [5, 9, 9, 150]
    sampler = RandomWalkSampler(data, 4, restart_prob=0.2)
    found, visits = sampler.top_visited(seeds, 3, num_walks=20, batch_key=4)
    walks = sampler.walk(torch.tensor(seeds).repeat_interleave(20), batch_key=4).view(4, -1, 5)
    begin = 0
    for seed, own, number in zip(seeds, walks[:, :, 1:], found.nbr_num.tolist(), strict=True):
        counts = Counter(each for each in own.reshape(-1).tolist() if each not in (-1, seed))
        wanted = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:3]
        part = slice(begin, begin + number)
        assert list(zip(found.nbr[part].tolist(), visits[part].tolist(), strict=True)) == wanted
        begin += number
    assert begin == len(found.nbr)
    assert sampler.top_visited([], 3)[0].nbr.tolist() == []


def test_keys_copies_and_directions():
    data = graph()
    sampler = RandomWalkSampler(data, 5, random_seed=1)
    first, second = sampler.walk(torch.arange(200)), sampler.walk(torch.arange(200))
    assert not torch.equal(first, second)
    copied = pickle.loads(pickle.dumps(sampler))
    assert torch.equal(copied.walk(torch.arange(200)), first)
    assert repr(sampler) == "RandomWalkSampler(walk_length=5)"
    against = glt.data.Dataset.from_arrays(data.edge_index, 200, edge_dir="in")
    edges = set(map(tuple, data.edge_index.T.tolist()))
    walks = RandomWalkSampler(against, 3).walk(torch.arange(200)).tolist()
    assert all((v, u) in edges for walk in walks for u, v in pairwise(walk) if v >= 0)
    assert sampler.walk([]).shape == (0, 6)


def timed(**options):
    data = graph(time=torch.zeros(1200, dtype=torch.int64), w=torch.ones(1200))
    return RandomWalkSampler(data, 4, **options)


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: RandomWalkSampler(graph(), 0), "walk_length = 0"),
        (lambda: RandomWalkSampler(graph(), 256), "walk_length = 256: expected at most 255"),
        (lambda: RandomWalkSampler(graph(), 4, p=0), "p = 0: expected a number, 0.01 to 100"),
        (lambda: RandomWalkSampler(graph(), 4, q=float("nan")), "q = nan: expected a number"),
        (lambda: RandomWalkSampler(graph(), 4, restart_prob=1.5), "restart_prob = 1.5: expected a number, 0 to 1"),
        (lambda: RandomWalkSampler(graph(), 4, restart_prob=0.5, q=2), "p or q and restart_prob are set"),
        (lambda: timed(time_attr="time", p=2), "p or q and time_attr are set"),
        (lambda: timed(time_attr="time", weight_attr="w"), "weight_attr = 'w' and time_attr = 'time'"),
        (lambda: timed(time_bound="<"), "time_bound = '<' and 'time_attr' is not set"),
        (lambda: timed(time_attr="time").walk([1]), "seed_time is not given"),
        (
            lambda: timed(time_attr="time").walk([1], seed_time=[1, 2]),
            r"seed_time has shape \[2\]: expected one time per seed, \[1\]",
        ),
        (lambda: timed(time_attr="time", time_bound="<").walk([1], seed_time=[-(2**63)]), "no time is earlier"),
        (lambda: timed(time_attr="time").top_visited([1], 2), "time_attr is set: visits are counted"),
        (lambda: timed().walk([1], seed_time=[1]), "time_attr is not set"),
        (lambda: timed().walk([1, 200]), r"seeds\[1\] = 200 is outside"),
        (lambda: timed().top_visited([1], 0), "num_neighbors = 0"),
        (
            lambda: RandomWalkSampler(graph(), 4, metapath=[("a", "b", "c")]),
            r"names edge type \('a', 'b', 'c'\)",
        ),
        (lambda: RandomWalkSampler(graph(), 4, metapath="abc"), "metapath = 'abc': expected a list of edge types"),
        (lambda: RandomWalkSampler(graph(), 4, metapath=[1]), r"metapath\[0\] = 1: expected an edge type"),
        (lambda: RandomWalkSampler(graph(), 4, metapath=[None]), r"metapath\[0\] = None: expected an edge type"),
        (lambda: timed().walk(torch.ones(5, dtype=torch.bool)), "seeds is a mask of 5 elements: expected"),
        (lambda: timed().top_visited([True], 2), "seeds is a mask of 1 elements: expected"),
        (lambda: timed(time_attr="time").walk([1], seed_time=[True]), "seed_time has dtype torch.bool"),
        (lambda: timed(time_attr="time").walk([1], seed_time=[1.5]), "seed_time has dtype .*: expected integers, such"),
        (
            lambda: timed(time_attr="time").walk([1], seed_time=np.array([2**63], np.uint64)),
            "seed_time has dtype torch.uint64: expected integers, such",
        ),
    ],
)
def test_what_does_not_fit_is_named(make, expected):
    with pytest.raises((ValueError, TypeError, IndexError), match=expected):
        make()


def test_types_that_do_not_follow_each_other_are_named():
    data = HeteroData()
    data["u"].num_nodes = data["i"].num_nodes = 3
    data["u", "a", "i"].edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match=r"leads to nodes of another type"):
        RandomWalkSampler(data, 4)
    with pytest.raises(ValueError, match=r"begins at 'u' nodes, and \('u', 'a', 'i'\) before it ends at 'i'"):
        RandomWalkSampler(data, 4, metapath=[("u", "a", "i"), ("u", "a", "i")])
    once = RandomWalkSampler(data, 1, metapath=[("u", "a", "i")])
    assert once.walk([0, 2]).tolist() == [[0, 1], [2, -1]]
    with pytest.raises(ValueError, match="it ends at 'i' nodes: expected 'u', where it begins"):
        once.top_visited([0], 2)
    with pytest.raises(ValueError, match="p or q and a metapath of several edge types are set"):
        RandomWalkSampler(data, 1, metapath=[("u", "a", "i")], p=2.0)


def test_a_walk_ends_where_no_edge_is_earlier():
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3, time=torch.tensor([-(2**63), 5]))
    sampler = RandomWalkSampler(data, 4, time_attr="time", time_bound="<")
    assert sampler.walk([1], seed_time=[9]).tolist() == [[1, 0, 1, -1, -1]]
