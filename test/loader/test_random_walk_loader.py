"""Windows of walks and negatives: what they are of, that they do not depend on who makes them, and that PyG's losses
learn from them."""

import json
import pickle

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import MetaPath2Vec, Node2Vec

import glt
from glt.loader import RandomWalkLoader
from glt.sampler import RandomWalkSampler, SeedOrder
from glt.testing import random_graph

WRITES, CITES, CITED = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "written_by", "author")


def graph(num_nodes=120, num_edges=700, **attrs):
    return Data(edge_index=random_graph(num_nodes, num_edges, seed=3).edge_index, num_nodes=num_nodes, **attrs)


def papers():
    data, draw = HeteroData(), torch.Generator().manual_seed(5)
    sizes = {"author": 40, "paper": 60, "venue": 7}
    for name, size in sizes.items():
        data[name].num_nodes = size
    for each in (WRITES, CITES, CITED):
        data[each].edge_index = torch.stack([torch.randint(sizes[end], (150,), generator=draw) for end in each[::2]])
    return data


def windows_of(walks, size):
    return {tuple(walk[i : i + size]) for walk in walks for i in range(len(walk) - size + 1)}


@pytest.mark.parametrize("options", [{}, {"p": 0.25, "q": 4.0}, {"restart_prob": 0.3}, {"weight_attr": "w"}])
def test_windows_are_those_of_the_walks_that_a_sampler_makes(options):
    data = graph(w=torch.rand(700, generator=torch.Generator().manual_seed(1)))
    seeds = torch.arange(0, 120, 3)
    loader = RandomWalkLoader(
        data,
        7,
        4,
        input_nodes=seeds,
        walks_per_node=2,
        num_negative_samples=3,
        batch_size=16,
        shuffle=True,
        random_seed=9,
        **options,
    )
    sampler = RandomWalkSampler(data, 7, random_seed=0, **options)
    order = SeedOrder(40, 16, shuffle=True, random_seed=9)
    num_left_out = 0
    for index, (positive, negative) in zip(order.batches(0), loader, strict=True):
        starts = seeds[index.input_id].repeat_interleave(2)
        walks = sampler.walk(starts, batch_key=index.key)
        expected = [walk[i : i + 4] for walk in walks.tolist() for i in range(5) if walk[i + 3] >= 0]
        assert positive.tolist() == expected
        num_left_out += 5 * len(walks) - len(expected)
        assert negative.shape == (len(starts) * 3 * 5, 4) and negative.min() >= 0 and negative.max() < 120
        assert negative[::5, 0].tolist() == starts.repeat_interleave(3).tolist()
    assert num_left_out > 0 and len(loader) == 3


def test_negatives_are_uniform_and_their_own_in_each_batch():
    loader = RandomWalkLoader(graph(50, 400), 9, 2, num_negative_samples=20, batch_size=25, random_seed=2)
    first, second = (negative for _, negative in loader)
    drawn = torch.cat([first.view(-1, 9, 2)[:, :, 1], second.view(-1, 9, 2)[:, :, 1]]).reshape(-1)
    count = torch.bincount(drawn, minlength=50).double()
    expected = len(drawn) / 50
    assert ((count - expected) ** 2 / expected).sum() < 85  # chi-square of 49 degrees of freedom: 1 in 1,000
    assert not torch.equal(first[:, 1], second[:, 1])


def test_types_share_one_embedding():
    data = papers()
    path = [WRITES, CITES, CITED]
    loader = RandomWalkLoader(data, 6, 7, metapath=path, walks_per_node=3, batch_size=40, random_seed=4)
    assert loader.offsets == {"author": 0, "paper": 40} and loader.num_nodes == 100
    edges = {each: set(map(tuple, data[each].edge_index.T.tolist())) for each in path}
    (positive, negative), *rest = loader
    assert not rest and len(positive) > 20
    for window in positive.tolist():
        for step, each in enumerate(path * 2):
            a, b = (loader.offsets[end] for end in each[::2])
            assert (window[step] - a, window[step + 1] - b) in edges[each]
    types = ["author", "paper", "paper", "author", "paper", "paper", "author"]
    for at, each in enumerate(types):
        first = loader.offsets[each]
        column = negative[:, at]
        assert column.min() >= first and column.max() < first + data[each].num_nodes
        assert len(column.unique()) > data[each].num_nodes / 2


def equal(first, second):
    assert len(first) == len(second) > 0
    for ours, theirs in zip(first, second, strict=True):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_batches_do_not_depend_on_threads_and_workers_and_resume():
    options = {"batch_size": 13, "shuffle": True, "q": 2.0}
    whole = list(RandomWalkLoader(graph(), 6, 3, random_seed=1, **options))
    equal(whole, list(RandomWalkLoader(graph(), 6, 3, random_seed=1, num_threads=4, **options)))
    equal(whole, list(RandomWalkLoader(graph(), 6, 3, random_seed=1, num_workers=2, **options)))
    equal(whole, list(pickle.loads(pickle.dumps(RandomWalkLoader(graph(), 6, 3, random_seed=1, **options)))))
    begun = RandomWalkLoader(graph(), 6, 3, random_seed=1, **options)
    for _ in zip(range(4), begun, strict=False):
        state = json.loads(json.dumps(begun.state_dict()))
    other = RandomWalkLoader(graph(), 6, 3, random_seed=77, **options)
    other.load_state_dict(state)
    equal(whole[4:], list(other))
    second, other_second = list(begun), list(other)
    equal(second, other_second)
    assert not torch.equal(second[0][1], whole[0][1])
    for given, words in (
        ({"q": 3.0}, "q is 2.0, but of this loader 3.0"),
        ({"walks_per_node": 2}, "walks_per_node is 1, but of this loader 2"),
        ({"input_nodes": range(7)}, "num_seeds is 120"),
    ):
        with pytest.raises(ValueError, match=words):
            RandomWalkLoader(graph(), 6, 3, **options | given).load_state_dict(state)


def test_back_in_time():
    time = torch.arange(700) % 50
    data = graph(t=time)
    until = torch.arange(120) % 50
    loader = RandomWalkLoader(data, 5, 3, input_time=until, time_attr="t", batch_size=120, random_seed=3)
    ((positive, _),) = loader
    key = next(SeedOrder(120, 120, random_seed=3).batches(0)).key
    walks = RandomWalkSampler(data, 5, time_attr="t").walk(torch.arange(120), seed_time=until, batch_key=key)
    assert {tuple(each) for each in positive.tolist()} == {w for w in windows_of(walks.tolist(), 3) if w[-1] >= 0}
    assert len(positive) > 20


def communities(num_nodes=60, seed=0):
    """Two halves with many edges inside, few between."""
    draw = torch.Generator().manual_seed(seed)
    half = torch.arange(num_nodes) // (num_nodes // 2)
    chance = torch.where(half[:, None] == half[None], 0.3, 0.01)
    is_edge = torch.rand(num_nodes, num_nodes, generator=draw).triu(1) < chance
    index = (is_edge & torch.ones(num_nodes, num_nodes).triu(1).bool()).nonzero().T
    return torch.cat([index, index.flip(0)], 1), half


def separation(z, half):
    """How often the nearest other node is of the same half."""
    distance = torch.cdist(z, z).fill_diagonal_(float("inf"))
    return (half[distance.argmin(1)] == half).double().mean().item()


class Pairs(torch.nn.Module):
    """What PyG's loss of Node2Vec reads; PyG's own class needs pyg-lib."""

    EPS, loss = 1e-15, Node2Vec.loss

    def __init__(self, num_nodes, embedding_dim):
        super().__init__()
        self.embedding_dim, self.embedding = embedding_dim, torch.nn.Embedding(num_nodes, embedding_dim)


def trained(model, loader, num_epochs=25):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(num_epochs):
        for positive, negative in loader:
            optimizer.zero_grad()
            model.loss(positive, negative).backward()
            optimizer.step()
    return model.embedding.weight.detach()


def test_node2vec_learns():
    edge_index, half = communities()
    torch.manual_seed(0)
    model = Pairs(60, 16)
    assert separation(model.embedding.weight.detach(), half) < 0.75
    loader = RandomWalkLoader(
        Data(edge_index=edge_index, num_nodes=60), 10, 5, walks_per_node=5, batch_size=30, shuffle=True, random_seed=0
    )
    assert separation(trained(model, loader), half) > 0.95


def test_metapath2vec_learns_as_from_its_own_loader():
    edge_index, half = communities()
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 60
    there, back = ("a", "to", "b"), ("b", "back", "a")
    data[there].edge_index, data[back].edge_index = edge_index, edge_index.flip(0)
    scores = {}
    for name in ("ours", "pyg"):
        torch.manual_seed(1)
        model = MetaPath2Vec(
            data.edge_index_dict, 16, [there, back], 8, 5, walks_per_node=5, num_nodes_dict={"a": 60, "b": 60}
        )
        if name == "ours":
            loader = RandomWalkLoader(
                data, 8, 5, metapath=[there, back], walks_per_node=5, batch_size=30, shuffle=True, random_seed=0
            )
            assert loader.offsets == model.start and loader.num_nodes == model.dummy_idx
        else:
            loader = model.loader(batch_size=30, shuffle=True)
        scores[name] = separation(trained(model, loader)[:60], half)
    assert scores["ours"] > 0.8 and scores["ours"] > scores["pyg"] - 0.07, scores


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"context_size": 1}, ValueError, "context_size = 1: expected an integer of at least 2"),
        ({"context_size": 8}, ValueError, r"context_size = 8: expected at most .*walk_length \+ 1 = 7"),
        ({"walks_per_node": 0}, ValueError, "walks_per_node = 0"),
        ({"num_negative_samples": True}, ValueError, "num_negative_samples = True"),
        ({"input_nodes": [3, 120]}, IndexError, "120"),
        ({"input_nodes": ("paper", [3])}, ValueError, "input_nodes has type 'paper': ids without a type"),
        ({"input_time": torch.zeros(120, dtype=torch.int64)}, ValueError, "input_time and time_attr: expected both"),
        ({"time_attr": "t"}, ValueError, "input_time and time_attr: expected both"),
        ({"walks": 3}, TypeError, "RandomWalkLoader has no argument walks: did you mean walks_per_node"),
        ({"batch_size": 0}, ValueError, "batch_size = 0"),
        ({"sampler": "abc"}, TypeError, "sampler = 'abc': expected the order of seeds"),
        ({"p": 0}, ValueError, "p = 0"),
    ],
)
def test_what_does_not_fit_is_named(options, error, words):
    with pytest.raises(error, match=words):
        RandomWalkLoader(graph(t=torch.arange(700)), **{"walk_length": 6, "context_size": 3, **options})


@pytest.mark.parametrize("batch", [[-1, 0], [0, 120]])
def test_positions_of_seeds_that_are_not_there_are_refused(batch):
    with pytest.raises(IndexError, match="positions that sampler yields"):
        list(RandomWalkLoader(graph(), 6, 3, batch_sampler=[batch]))


def test_a_metapath_has_seeds_of_its_first_type():
    with pytest.raises(
        ValueError, match="input_nodes is of type 'paper': expected 'author', where the metapath begins"
    ):
        RandomWalkLoader(papers(), 2, 2, metapath=[WRITES, CITES], input_nodes="paper")
    loader = RandomWalkLoader(papers(), 2, 2, metapath=[WRITES, CITES], input_nodes=("author", [5, 5]), random_seed=0)
    assert len(loader) == 2
    masked = RandomWalkLoader(graph(), 2, 2, input_nodes=torch.arange(120) < 3)
    assert len(masked) == 3
    assert "walk_length=2" in repr(masked) and "in this process, 3 batches of 1 nodes" in repr(masked)
    assert glt.loader.RandomWalkLoader is RandomWalkLoader
