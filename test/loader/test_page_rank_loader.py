"""Batches of page ranks: what they are of, that they do not depend on who makes them, and that they resume."""

import json
import pickle

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import glt
from glt.data import Dataset
from glt.loader import PageRankLoader
from glt.sampler import PageRankSampler, SeedOrder
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph


def graph(num_nodes=120, num_edges=500):
    draw = torch.Generator().manual_seed(2)
    return Data(
        edge_index=random_graph(num_nodes, num_edges, seed=3).edge_index,
        edge_attr=torch.rand(num_edges, 2, generator=draw),
        x=torch.rand(num_nodes, 5, generator=draw),
        y=torch.arange(num_nodes),
        train_mask=torch.arange(num_nodes) % 3 == 0,
        num_nodes=num_nodes,
        name="kept",
    )


def laid_out(found, score, seeds, same_type):
    """The batch, one node after the other: ids beside the seeds, and edges with weights."""
    local = {}
    if same_type:
        for at, seed in enumerate(seeds):
            local.setdefault(seed, at)
    offset, new, edges, at = len(seeds) if same_type else 0, [], [], 0
    for i, count in enumerate(found.nbr_num.tolist()):
        for node, weight in zip(found.nbr[at : at + count].tolist(), score[at : at + count].tolist(), strict=True):
            if node not in local:
                local[node] = offset + len(new)
                new.append(node)
            edges.append((local[node], i, torch.tensor(weight, dtype=torch.float32).item()))
        at += count
    return new, edges


def edges_of(store):
    return [
        (*ends, weight) for ends, weight in zip(store.edge_index.T.tolist(), store.edge_weight.tolist(), strict=True)
    ]


@pytest.mark.parametrize("as_dataset", [False, True])
def test_a_batch_has_seeds_then_found_nodes_and_scores(as_dataset):
    data = graph()
    given = Dataset.from_pyg(data, edge_dir="out") if as_dataset else data
    seeds = torch.cat([torch.arange(100), torch.arange(30), torch.tensor([7, 7])])
    loader = PageRankLoader(given, 6, seeds, alpha=0.3, epsilon=1e-3, batch_size=25, shuffle=True, random_seed=5)
    sampler = PageRankSampler(data, 6, alpha=0.3, epsilon=1e-3)
    order = SeedOrder(132, 25, shuffle=True, random_seed=5)
    num_reused = 0
    for index, batch in zip(order.batches(0), loader, strict=True):
        mine = seeds[index.input_id].tolist()
        new, edges = laid_out(*sampler.sample(mine), mine, True)
        assert batch.n_id.tolist() == mine + new and batch.num_nodes == len(mine) + len(new)
        assert edges_of(batch) == edges and batch.edge_weight.dtype == torch.float32
        assert torch.equal(batch.input_id, index.input_id) and batch.batch_size == len(mine)
        assert torch.equal(batch.x, data.x[batch.n_id]) and torch.equal(batch.y, batch.n_id)
        assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
        assert "edge_attr" not in batch and "e_id" not in batch and batch.is_directed()
        assert as_dataset or batch.name == "kept"
        num_reused += sum(at < len(mine) for at, _, _ in edges)
    assert num_reused > 20 and len(loader) == 6


@pytest.mark.parametrize("as_dataset", [False, True])
@pytest.mark.parametrize("neighbor_type", ["item", "user", None])
def test_types(neighbor_type, as_dataset):
    data = random_hetero_graph(seed=4)
    data["item"].x = torch.rand(data["item"].num_nodes, 3)
    given = Dataset.from_pyg(data, edge_dir="out") if as_dataset else data
    loader = PageRankLoader(
        given, 5, ("user", range(20)), epsilon=1e-3, neighbor_type=neighbor_type, batch_size=20, random_seed=0
    )
    (batch,) = loader
    wanted = neighbor_type or "user"
    sampler = PageRankSampler(data, 5, epsilon=1e-3, node_type="user", neighbor_type=wanted)
    new, edges = laid_out(*sampler.sample(range(20)), list(range(20)), wanted == "user")
    assert isinstance(batch, HeteroData) and {*batch.node_types} == {"user", wanted}
    assert batch.edge_types == [(wanted, "page_rank", "user")]
    assert edges_of(batch[wanted, "page_rank", "user"]) == edges and len(edges) > 50
    assert batch["user"].n_id.tolist() == list(range(20)) + (new if wanted == "user" else [])
    assert batch[wanted].n_id[-len(new) :].tolist() == new
    assert batch["user"].batch_size == 20 and batch["user"].input_id.tolist() == list(range(20))
    if wanted == "item":
        assert torch.equal(batch["item"].x, data["item"].x[batch["item"].n_id])


def test_masks_keys_and_all_nodes():
    data = graph()
    ((batch,),) = [list(PageRankLoader(data, 3, data.train_mask, batch_size=40))]
    assert torch.equal(batch.input_id, data.train_mask.nonzero()[:, 0]) and torch.equal(batch.n_id[:40], batch.input_id)
    (batch,) = PageRankLoader(data, 3, batch_size=120)
    assert batch.n_id.tolist() == list(range(120)) and batch.batch_size == 120
    typed = random_hetero_graph(seed=4)
    (batch,) = PageRankLoader(typed, 3, "item", batch_size=10**6)
    assert batch["item"].batch_size == typed["item"].num_nodes


def equal(first, second):
    assert len(first) == len(second) > 0
    for ours, theirs in zip(first, second, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.to_dict().items():
            assert torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name]


def test_batches_do_not_depend_on_threads_and_workers_and_resume():
    options = {"batch_size": 13, "shuffle": True}
    whole = list(PageRankLoader(graph(), 6, random_seed=1, **options))
    equal(whole, list(PageRankLoader(graph(), 6, random_seed=1, num_threads=3, **options)))
    equal(whole, list(PageRankLoader(graph(), 6, random_seed=1, num_workers=2, **options)))
    equal(whole, list(pickle.loads(pickle.dumps(PageRankLoader(graph(), 6, random_seed=1, **options)))))
    begun = PageRankLoader(graph(), 6, random_seed=1, **options)
    for _ in zip(range(4), begun, strict=False):
        state = json.loads(json.dumps(begun.state_dict()))
    other = PageRankLoader(graph(), 6, random_seed=77, **options)
    other.load_state_dict(state)
    equal(whole[4:], list(other))
    equal(list(begun), list(other))
    for given, words in (
        ({"num_neighbors": 7}, "num_neighbors is 6, but of this loader 7"),
        ({"alpha": 0.5}, r"alpha is 0\.15, but of this loader 0\.5"),
        ({"input_nodes": range(7)}, "num_seeds is 120"),
    ):
        with pytest.raises(ValueError, match=words):
            PageRankLoader(graph(), **{"num_neighbors": 6, **options, **given}).load_state_dict(state)


def test_a_transform_and_no_neighbours():
    data = Data(edge_index=torch.tensor([[0], [1]]), x=torch.rand(3, 2), num_nodes=3)
    sizes = list(PageRankLoader(data, 2, batch_size=3, transform=lambda batch: batch.num_edges))
    assert sizes == [1]
    (batch,) = PageRankLoader(data, 2, [2, 1], batch_size=2)
    assert batch.n_id.tolist() == [2, 1] and batch.edge_index.shape == (2, 0) and batch.edge_weight.shape == (0,)


def typed(**edges):
    data = HeteroData({"a": {"num_nodes": 3}, "b": {"num_nodes": 3}})
    for name, (source, target) in edges.items():
        data[source, name, target].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    return data


@pytest.mark.parametrize(
    ("data", "given", "error", "words"),
    [
        (graph(), {"num_neighbors": 0}, ValueError, "num_neighbors = 0"),
        (graph(), {"alpha": 2}, ValueError, r"alpha = 2\.0: expected at most 1"),
        (graph(), {"epsilon": 0}, ValueError, "epsilon = 0"),
        (graph(), {"input_nodes": [120]}, IndexError, r"input_nodes\[0\] = 120"),
        (graph(), {"input_nodes": ("a", [0])}, ValueError, "input_nodes has type 'a'"),
        (graph(), {"neighbor_type": "a"}, ValueError, "neighbor_type = 'a': the graph has no node types"),
        (graph(), {"batch_sizes": 3}, TypeError, "batch_sizes"),
        (graph(), {"transform": 3}, TypeError, "transform = 3"),
        (typed(to=("a", "b")), {"input_nodes": ("c", [0])}, ValueError, "input_nodes is of type 'c': expected one of"),
        (typed(to=("a", "b")), {}, TypeError, r"input_nodes = None: expected one of the node types \['a', 'b'\]"),
        (
            typed(to=("a", "b")),
            {"input_nodes": "a", "neighbor_type": "c"},
            ValueError,
            r"neighbor_type = 'c': expected one of \['a', 'b'\]",
        ),
        (
            typed(page_rank=("a", "b")),
            {"input_nodes": "b", "neighbor_type": "a"},
            ValueError,
            r"the graph has edges of type \('a', 'page_rank', 'b'\), .*: rename the graph's",
        ),
        (Dataset.from_pyg(graph()).graphs[0], {}, TypeError, "data is a glt Graph"),
    ],
)
def test_what_does_not_fit_is_named(data, given, error, words):
    with pytest.raises(error, match=words):
        PageRankLoader(data, **{"num_neighbors": 3, **given})


def test_it_says_what_it_is():
    told = repr(PageRankLoader(graph(), 3, batch_size=40, random_seed=7))
    expected = "PageRankLoader(in this process, 3 batches, num_neighbors=3, alpha=0.15, epsilon=0.0001, random_seed=7)"
    assert told == expected
    loader = PageRankLoader(random_hetero_graph(seed=4), 3, "user", neighbor_type="item")
    assert "node_type='user', neighbor_type='item'" in repr(loader)
    assert glt.loader.PageRankLoader is PageRankLoader
