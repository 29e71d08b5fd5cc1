"""What is later than a seed is never in its batch; windows, bounds and draws by age are what they say."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

from glt.loader import LinkNeighborLoader, NeighborLoader
from glt.sampler import NeighborSampler

STRATEGIES = ({}, {"temporal_strategy": "last"}, {"temporal_strategy": "decay", "half_life": 5})


def times_of(batch, level):
    """The time of each sampled edge (of its neighbour, where nodes have times), and the tree it is in."""
    row, col = batch.edge_index
    return batch.edge_time if level == "edge_time" else batch.time[row], batch.batch[col]


def draw_graph(random, level):
    num_nodes, num_edges = int(random.integers(2, 15)), int(random.integers(1, 60))
    data = Data(edge_index=torch.from_numpy(random.integers(0, num_nodes, (2, num_edges))), num_nodes=num_nodes)
    data[level] = torch.from_numpy(random.integers(0, 40, num_edges if level == "edge_time" else num_nodes))
    return data


def check_no_leak(seed):
    """A random graph, with random options: nodes or links, negatives too."""
    random = np.random.default_rng(seed)
    level = str(random.choice(["time", "edge_time"]))
    data, count = draw_graph(random, level), int(random.integers(1, 6))
    seed_time = torch.from_numpy(random.integers(-2, 45, count))
    options = {"num_neighbors": [3, -1], "batch_size": count, "time_attr": level, "random_seed": seed}
    options |= STRATEGIES[random.integers(3)] | {"replace": bool(random.integers(2))}
    options |= {"time_bound": str(random.choice(["<=", "<"]))}
    window = [None, 1, 10][random.integers(3)]
    is_link = bool(random.integers(2))
    if is_link:
        ends = torch.from_numpy(random.integers(0, data.num_nodes, (2, count)))
        loader = LinkNeighborLoader(
            data, edge_label_index=ends, edge_label_time=seed_time, time_window=window, **options
        )
    else:
        seeds = torch.from_numpy(random.integers(0, data.num_nodes, count))
        loader = NeighborLoader(data, input_nodes=seeds, input_time=seed_time, time_window=window, **options)
    for batch in loader:
        time, tree = times_of(batch, level)
        latest = seed_time - int(options["time_bound"] == "<")
        assert (time <= latest[tree]).all(), (seed, options)
        if window is not None:
            assert (time >= seed_time[tree] - window).all(), (seed, options)


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_later_than_its_seed_in_ten_thousand_graphs(part):
    for seed in range(2500 * part, 2500 * (part + 1)):
        check_no_leak(seed)


def star(times):
    """Edges with these times from nodes 1, 2, ... to node 0."""
    neighbors = torch.arange(1, len(times) + 1)
    data = Data(edge_index=torch.stack([neighbors, torch.zeros_like(neighbors)]), num_nodes=len(times) + 1)
    data.edge_time = torch.tensor(times)
    return data


def neighbors_of(data, time, k=-1, batch_key=0, node=0, **options):
    sampler = NeighborSampler(data, [k], time_attr="edge_time", **options)
    given = NodeSamplerInput(None, torch.tensor([node]), torch.tensor([time]))
    return sampler.sample_from_nodes(given, batch_key=batch_key)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"time_bound": "<"}, [0, 1, 2]),
        ({"time_window": 10}, [1, 2, 3]),
        ({"time_window": 0}, [3]),
        ({"time_window": 10, "time_bound": "<"}, [1, 2]),
        ({"time_window": 1, "time_bound": "<"}, []),
        ({"time_window": 2**63 - 1}, [0, 1, 2, 3]),
        ({"time_window": {("node", "to", "node"): 10}}, [1, 2, 3]),
    ],
)
def test_both_ends_of_a_window(options, expected):
    """Edges at 5, 10, 15, 20 and 21, seen at 20: the window's begin is in, its end is in unless the bound is '<'."""
    assert neighbors_of(star([5, 10, 15, 20, 21]), 20, **options).edge.tolist() == expected


def test_draws_by_age_halve_with_each_half_life():
    """10 edges each of age 0, 1 and 2 half-lives: 4 : 2 : 1, in 14,000 draws, within five deviations."""
    data = star([0] * 10 + [100] * 10 + [200] * 10)
    counts = np.zeros(3)
    for key in range(14_000):
        (edge,) = neighbors_of(data, 200, 1, key, temporal_strategy="decay", half_life=100).edge.tolist()
        counts[edge // 10] += 1
    expected = 14_000 * np.array([1, 2, 4]) / 7
    deviations = np.sqrt(expected * (1 - expected / 14_000))
    assert (np.abs(counts - expected) < 5 * deviations).all(), counts


def test_ages_are_those_before_the_latest_that_may_be_sampled():
    """Two edges, one 31 half-lives older: the older one is drawn once in 2^31."""
    data = star([0, 3100])
    drawn = {
        neighbors_of(data, 3100, 1, key, temporal_strategy="decay", half_life=100).edge.item() for key in range(99)
    }
    assert drawn == {1}
    alone = neighbors_of(data, 3100, 1, time_bound="<", temporal_strategy="decay", half_life=100)
    assert alone.edge.tolist() == [0]


def test_one_hop_is_tgms_recency_neighbours():
    """TGM (RecencyNeighborHook): the k latest events strictly before the query, later ones of one time last. A second
    hop looks back from the event that led to it there: here, another call with the times of the edges."""
    random = np.random.default_rng(3)
    data = Data(edge_index=torch.from_numpy(random.integers(0, 20, (2, 400))), num_nodes=20)
    data.edge_time = torch.from_numpy(np.sort(random.integers(0, 90, 400)))
    options = {"temporal_strategy": "last", "time_bound": "<"}
    for _ in range(200):
        node, time, k = int(random.integers(20)), int(random.integers(100)), int(random.integers(1, 8))
        before = [e for e in range(400) if data.edge_index[1, e] == node and data.edge_time[e] < time]
        assert neighbors_of(data, time, k, node=node, **options).edge.tolist() == before[-k:]


def hetero():
    data = HeteroData(user={"num_nodes": 4}, item={"num_nodes": 4})
    for name in ("buys", "likes"):
        data["user", name, "item"].edge_index = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]])
    data["user", "buys", "item"].edge_time = torch.tensor([1, 5, 9, 13])
    return data


def test_a_window_for_each_edge_type():
    buys = ("user", "buys", "item")
    sampler = NeighborSampler(hetero(), [-1], time_attr="edge_time", time_window={buys: 4})
    given = NodeSamplerInput(None, torch.tensor([0]), torch.tensor([9]), "item")
    out = sampler.sample_from_nodes(given)
    assert out.edge[buys].tolist() == [1, 2] and out.edge["user", "likes", "item"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"time_window": 5, "time_attr": None}, ValueError, "'time_window' is set and 'time_attr' is not set"),
        ({"time_bound": "<", "time_attr": None}, ValueError, "time_bound = '<' and 'time_attr' is not set"),
        ({"half_life": 5}, ValueError, "temporal_strategy = 'uniform' and 'half_life' is set"),
        ({"temporal_strategy": "decay"}, ValueError, "temporal_strategy = 'decay' and 'half_life' is not set"),
        ({"temporal_strategy": "decay", "half_life": 0}, ValueError, "half_life = 0: expected 1 to"),
        ({"temporal_strategy": "decay", "half_life": 0.5}, TypeError, "half_life = 0.5: expected an integer"),
        ({"time_window": -1}, ValueError, "time_window = -1: expected 0 to"),
        ({"time_window": 0, "time_bound": "<"}, ValueError, "time_window = 0: expected 1 to"),
        ({"time_window": True}, TypeError, "time_window = True: expected an integer"),
        ({"time_window": 2**63}, ValueError, "time_window = 9223372036854775808: expected 0 to"),
        ({"time_window": torch.tensor(2.0)}, TypeError, "time_window = tensor\\(2.\\): expected an integer"),
        ({"time_window": {"n": 1}}, TypeError, "time_window names 'n': expected an edge type"),
        ({"temporal_strategy": "decay", "half_life": {"n": 1}}, TypeError, "half_life names 'n'"),
        ({"time_bound": "=="}, ValueError, "time_bound = '==': expected one of"),
        ({"time_window": {("user", "sells", "item"): 1}}, ValueError, "names edge type \\('user', 'sells', 'item'\\)"),
        ({"time_window": {("user", "likes", "item"): 1}}, ValueError, "which has no times: leave it out"),
    ],
)
def test_what_does_not_fit_is_named(options, error, message):
    options = {"time_attr": "edge_time", **options}
    with pytest.raises(error, match=message):
        NeighborLoader(hetero(), [2], ("item", torch.tensor([0])), input_time=torch.tensor([3]), **options)


def test_a_window_is_an_integer_of_any_kind():
    for window in (np.int64(3), torch.tensor(3)):
        assert NeighborSampler(hetero(), [2], time_attr="edge_time", time_window=window).config.time_window == (3, 3)
    with pytest.raises(ValueError, match=r"time_window names .*'b'\): the graph has no types: expected an integer"):
        NeighborSampler(star([1]), [2], time_attr="edge_time", time_window={("a", "b"): 1})


def test_a_seed_before_which_there_is_no_time_is_named():
    with pytest.raises(ValueError, match="a seed's time is -2\\^63 and time_bound = '<'"):
        neighbors_of(star([1]), -(2**63), time_bound="<")


def test_a_sampler_and_its_loader_agree_on_times():
    data = star([1, 2])
    sampler = NeighborSampler(data, [2], time_attr="edge_time", time_window=3)
    options = {"input_nodes": torch.tensor([0]), "input_time": torch.tensor([2]), "time_attr": "edge_time"}
    next(iter(NeighborLoader(data, [2], neighbor_sampler=sampler, time_window=3, **options)))
    with pytest.raises(ValueError, match=r"time_window = \(4,\), but neighbor_sampler was made with \(3,\)"):
        NeighborLoader(data, [2], neighbor_sampler=sampler, time_window=4, **options)
