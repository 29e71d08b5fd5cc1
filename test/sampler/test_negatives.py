"""Negative edges."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from glt.data import Topology
from glt.loader import LinkNeighborLoader
from glt.sampler import NeighborSampler
from glt.sampler import negatives as module
from glt.sampler.negatives import (
    MAX_ATTEMPTS,
    Drawn,
    Endpoint,
    NegativeRounds,
    earliest_node,
    linked_to_all,
    negative_rounds,
    run_rounds,
)
from glt.testing import random_graph, reference_key

KEY = 77


class Pairs:
    """The edges as a set of pairs, and the times: what a check knows, in plain Python."""

    def __init__(self, edge_index, src_time=None, dst_time=None):
        self.edges = set(map(tuple, np.asarray(edge_index).T.tolist()))
        self.src_time, self.dst_time = src_time, dst_time
        self.num_rounds = self.num_asked = 0

    def __call__(self, asked):
        self.num_rounds += 1
        if isinstance(asked, Drawn):
            self.num_asked += len(asked.node)
            return {"src": self.src_time, "dst": self.dst_time}[asked.side][asked.node] <= asked.until
        self.num_asked += len(asked.src)
        return np.array([pair not in self.edges for pair in zip(asked.src.tolist(), asked.dst.tolist(), strict=True)])


def binary(check, num_src, num_dst, num, key=KEY, src_weight=None, dst_weight=None):
    config = NegativeSampling("binary", 1, src_weight, dst_weight)
    ends = Endpoint.of("src", num_src, config), Endpoint.of("dst", num_dst, config)
    return run_rounds(NegativeRounds(key, *ends, num), check)


def triplets(check, source, num_dst, key=KEY, dst_weight=None):
    config = NegativeSampling("triplet", 1, None, dst_weight)
    ends = Endpoint("src", 0), Endpoint.of("dst", num_dst, config)
    return run_rounds(NegativeRounds(key, *ends, len(source), np.asarray(source)), check)


def require_uniform(found, expected):
    """Chi-square of how often each pair came, against expected shares; pairs of share zero must not come at all."""
    assert found[expected == 0].sum() == 0
    kept = expected > 0
    share = expected[kept] / expected[kept].sum()
    if len(share) > 1:
        assert stats.chisquare(found[kept], share * found.sum()).pvalue > 1e-3


def counted(rounds, shape):
    table = np.zeros(shape, np.int64)
    np.add.at(table, (rounds.src, rounds.dst), 1)
    return table


# Nodes 0 to 4 to 0 to 6: parallel edges, a self-loop, node 3 connected to all but 6, node 4 to nothing.
EDGES = np.array([[0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 3], [1, 1, 2, 1, 0, 0, 1, 2, 3, 4, 5]])
WEIGHTS = {None: np.ones(7), "weighted": np.array([0.5, 3, 0, 1.5, 2, 1, 4])}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_pairs_are_drawn_from_all_non_edges(weights):
    open_pairs = np.ones((5, 7))
    open_pairs[tuple(EDGES)] = 0
    weight = WEIGHTS[weights]
    given = None if weights is None else torch.from_numpy(weight)
    rounds = binary(Pairs(EDGES), 5, 7, 40_000, src_weight=None if given is None else given[:5], dst_weight=given)
    require_uniform(counted(rounds, (5, 7)), open_pairs * weight[:5, None] * weight)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_triplets_draw_from_the_non_neighbours_of_their_source(weights):
    weight = WEIGHTS[weights]
    given = None if weights is None else torch.from_numpy(weight)
    source = np.repeat(np.arange(5), 4000)
    rounds = triplets(Pairs(EDGES), source, 7, dst_weight=given)
    assert np.array_equal(rounds.src, source)
    found = counted(rounds, (5, 7))
    for node in range(5):
        open_nodes = np.ones(7)
        open_nodes[EDGES[1, EDGES[0] == node]] = 0
        require_uniform(found[node], open_nodes * weight)


def test_a_self_loop_is_a_pair_like_any_other():
    rounds = binary(Pairs([[0, 1], [1, 0]]), 2, 2, 200)
    assert set(zip(rounds.src.tolist(), rounds.dst.tolist(), strict=True)) == {(0, 0), (1, 1)}


def test_answers_do_not_depend_on_the_size_of_rounds_or_on_other_slots(monkeypatch):
    graph = random_graph(20, 600, seed=1)
    check = Pairs(graph.edge_index)
    expected = binary(check, 20, 20, 500)
    monkeypatch.setattr(module, "_ROOM", 300)
    monkeypatch.setattr(module, "_WINDOW", 4)
    small = Pairs(graph.edge_index)
    again = binary(small, 20, 20, 500)
    assert small.num_rounds > check.num_rounds
    assert np.array_equal(expected.src, again.src) and np.array_equal(expected.dst, again.dst)
    part = binary(check, 20, 20, 100)
    assert np.array_equal(expected.dst[:100], part.dst)
    assert not np.array_equal(expected.dst, binary(check, 20, 20, 500, key=KEY + 1).dst)


def test_a_sampler_takes_the_negatives_of_its_key():
    graph = random_graph(40, 700, seed=2)
    sampler = NeighborSampler(graph.to_data(), [1])
    index = EdgeSamplerInput(None, *graph.edge_index[:, :50])
    key = reference_key(3, 1, 4)
    out = sampler.sample_from_edges(index, NegativeSampling("binary", 2), batch_key=key)
    expected = binary(Pairs(graph.edge_index), 40, 40, 100, key)
    negatives = out.node[out.metadata[1][:, 50:]]
    assert np.array_equal(negatives, [expected.src, expected.dst])


def test_ids_beyond_32_bits_are_drawn():
    node = Endpoint("dst", 2**40).draw(KEY, np.arange(1000), np.zeros(1000, np.int64))
    assert stats.kstest(node / 2**40, "uniform").pvalue > 1e-3


def test_a_sparse_graph_takes_one_round_and_no_negatives_take_none():
    check = Pairs([[0], [1]])
    binary(check, 10_000, 10_000, 1000)
    assert (check.num_rounds, check.num_asked) == (1, 1000)
    assert binary(check, 5, 5, 0).done and check.num_rounds == 1


def test_the_first_non_edge_among_the_attempts_is_taken():
    ends = Endpoint("src", 50), Endpoint("dst", 50)
    draws = np.empty((2, 40, 30), np.int64)  # side, attempt, slot
    for attempt in range(40):
        for side, end in enumerate(ends):
            draws[side, attempt] = end.draw(KEY, np.arange(30), np.full(30, attempt))
    check = Pairs([[], []])
    check.edges = {(s, d) for s in range(50) for d in range(50) if (s + d) % 5}
    found = run_rounds(NegativeRounds(KEY, *ends, 30), check)
    for slot in range(30):
        first = next(a for a in range(40) if (draws[0, a, slot] + draws[1, a, slot]) % 5 == 0)
        assert (found.src[slot], found.dst[slot]) == (draws[0, first, slot], draws[1, first, slot])


@pytest.mark.parametrize("num_slots", [1, 5000])
def test_a_node_connected_to_all_is_named(num_slots):
    check = Pairs([[3] * 6, range(6)])
    source = np.full(num_slots, 3)
    source[1:-1:2] = 2
    with pytest.raises(ValueError, match=f"source node 3 has .* no destination.*{MAX_ATTEMPTS} draws"):
        triplets(check, source, 6)
    assert check.num_asked < 2**20 + 2 * num_slots


def test_a_graph_without_non_edges_says_so():
    check = Pairs(np.stack(np.divmod(np.arange(12), 4)))
    with pytest.raises(ValueError, match=r"no pair of nodes is no edge"):
        binary(check, 3, 4, 5000)
    assert check.num_asked < 2**20
    with pytest.raises(ValueError, match="there is no dst node to draw"):
        binary(check, 3, 0, 1)


def test_weights_must_fit():
    def endpoint(weight):
        return Endpoint.of("dst", 3, NegativeSampling("binary", 1, None, torch.tensor(weight)))

    with pytest.raises(ValueError, match=r"dst_weight of neg_sampling has shape \(2,\): expected one per node, 3"):
        endpoint([1.0, 2.0])
    with pytest.raises(ValueError, match=r"dst_weight\[1\] of neg_sampling = -1.0: expected a finite number"):
        endpoint([1.0, -1.0, 2.0])
    with pytest.raises(ValueError, match=r"dst_weight\[2\] of neg_sampling = nan"):
        endpoint([1.0, 1.0, float("nan")])
    with pytest.raises(ValueError, match="no weight above 0"):
        endpoint([0, 0, 0])


def timed(time, seed_time, edges=((), ()), source=None, num_dst=None):
    """Negatives among nodes with times, for one slot per seed time."""
    time = np.asarray(time)
    end = earliest_node(torch.from_numpy(time))
    ends = Endpoint("src", len(time), None, end), Endpoint("dst", len(time), None, end)
    rounds = NegativeRounds(KEY, *ends, len(seed_time), source, np.asarray(seed_time))
    return run_rounds(rounds, Pairs(np.array(edges, np.int64), time, time))


def test_no_negative_is_later_than_its_seed():
    time = np.random.default_rng(0).permutation(20)
    seed_time = np.repeat([3, 8, 19], 5000)
    rounds = timed(time, seed_time, [[0, 4, 4], [1, 2, 4]])
    assert (time[rounds.src] <= seed_time).all() and (time[rounds.dst] <= seed_time).all()
    for late in (3, 8, 19):
        expected = np.outer(time <= late, time <= late).astype(float)
        expected[[0, 4, 4], [1, 2, 4]] = 0
        mine = seed_time == late
        found = np.zeros((20, 20))
        np.add.at(found, (rounds.src[mine], rounds.dst[mine]), 1)
        require_uniform(found, expected)


def test_a_seed_older_than_every_node_gets_the_earliest_node_unless_that_is_an_edge():
    time = [5, 3, 9]
    assert timed(time, [1, 2]).src.tolist() == [1, 1]
    source = np.array([0, 0, 2])
    assert timed(time, [1, 9, 0], source=source).dst[[0, 2]].tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"source node 0 has .* or is later than the seed"):
        timed(time, [1], [[0], [1]], source=np.array([0]))


def test_few_nodes_that_exist_by_then_are_found_alike_and_soon():
    """Of 10,000 nodes 31: pairs of them that are drawn together would be one in 100,000."""
    time, num, loops = np.arange(10_000), 20_000, [range(0, 31, 2), range(0, 31, 2)]
    check = Pairs(np.array(loops), time, time)
    end = earliest_node(torch.from_numpy(time))
    ends = Endpoint("src", 10_000, None, end), Endpoint("dst", 10_000, None, end)
    rounds = run_rounds(NegativeRounds(KEY, *ends, num, None, np.full(num, 30)), check)
    found, expected = np.zeros((31, 31)), np.ones((31, 31))
    expected[loops[0], loops[1]] = 0
    np.add.at(found, (rounds.src, rounds.dst), 1)
    require_uniform(found, expected)
    assert check.num_asked < 2 * num * 10_000 / 31 * 2, "as many draws as an end needs, at most doubled"


def test_when_the_draws_are_spent_the_earliest_node_is_taken_unless_that_is_an_edge(monkeypatch):
    monkeypatch.setattr(module, "MAX_ATTEMPTS", 4)
    time = np.arange(100_000)  # only node 0 is old enough, and four draws do not find it
    assert timed(time, [0, 0, 0]).dst.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="source node 7 has"):
        timed(time, [0], [[7], [0]], source=np.array([7]))


def test_slots_belong_to_positives_as_pyg_counts_them():
    row, time = np.array([4, 5, 6]), np.array([10, 20, 30])
    src, dst = Endpoint("src", 9, None, (0, 0)), Endpoint("dst", 9, None, (0, 0))
    rounds = negative_rounds(KEY, NegativeSampling("binary", 1.5), src, dst, row, time)
    assert rounds.asked().until.tolist() == [10, 20, 30, 10, 20]
    rounds = negative_rounds(KEY, NegativeSampling("triplet", 2), src, dst, row, time)
    assert (rounds.asked().side, rounds.asked().until.tolist()) == ("dst", [10, 10, 20, 20, 30, 30])
    rounds.accept(np.full(6, True))
    assert rounds.asked().src.tolist() == [4, 4, 5, 5, 6, 6]


TRIPLET = {"mode": "triplet", "amount": 2}


@pytest.mark.parametrize("layout", ["CSC", "CSR"])
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.full] * (n >= 10)) for n in range(40)])
def test_the_same_sources_as_a_dense_matrix_tells(layout, seed):
    rng = np.random.default_rng(seed)
    num_sources, num_targets = rng.integers(1, 40, 2)
    dense = rng.random((num_sources, num_targets)) < rng.choice([0.1, 0.6, 0.95])
    dense[rng.random(num_sources) < 0.3] = True
    edges = np.repeat(np.stack(dense.nonzero()), rng.integers(1, 3), axis=1)  # parallel edges count once
    topology = Topology(torch.from_numpy(edges), (int(num_sources), int(num_targets)), layout=layout)
    sources = rng.integers(0, num_sources, 30)
    drawable = None if seed % 2 else np.flatnonzero(rng.random(num_targets) < 0.5)
    counted = dense if drawable is None else dense[:, drawable]
    expected = [s for s in np.unique(sources) if counted.shape[1] and counted[s].all()]
    assert linked_to_all(topology, sources, drawable).tolist() == expected


def test_large_graphs_are_looked_at_in_portions():
    num_nodes = 1_500_000
    hub = torch.stack([torch.full((num_nodes,), 7), torch.arange(num_nodes)])
    almost = torch.stack([torch.full((num_nodes - 1,), 8), torch.arange(num_nodes - 1)])
    topology = Topology(torch.cat([hub, almost], dim=1), num_nodes, layout="CSC")
    assert linked_to_all(topology, np.array([7, 8, 9])).tolist() == [7]


def bipartite():
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 5, 4
    hub, other = torch.stack([torch.full((4,), 2), torch.arange(4)]), torch.tensor([[0, 1, 1], [3, 0, 3]])
    data["user", "buys", "item"].edge_index = torch.cat([hub, other], dim=1)
    return data


def test_a_source_without_negatives_is_refused_where_it_is_given():
    data, buys = bipartite(), ("user", "buys", "item")
    with pytest.raises(ValueError, match=r"'triplet' and edge_label_index\[0\] holds 1 source.* 2, of 4 seed edges"):
        LinkNeighborLoader(data, [2], buys, neg_sampling=TRIPLET)
    edges = data[buys].edge_index
    for kept in (edges[:, edges[0] != 2], edges):
        drawn = "binary" if kept is edges else TRIPLET  # pairs have their sources drawn too
        assert len(list(LinkNeighborLoader(data, [2], (buys, kept), neg_sampling=drawn))) == kept.shape[1]
    only_three = TRIPLET | {"dst_weight": torch.tensor([0.0, 0.0, 0.0, 1.0])}
    with pytest.raises(ValueError, match=r"holds 3 source nodes.*the first of them 0, of 1 seed edges"):
        LinkNeighborLoader(data, [2], buys, neg_sampling=only_three)


def test_a_graph_without_types_and_seed_edges_of_no_type():
    star = Data(edge_index=torch.stack([torch.zeros(6, dtype=torch.int64), torch.arange(6)]), num_nodes=6)
    with pytest.raises(ValueError, match="the first of them 0, of 6 seed edges"):
        LinkNeighborLoader(star, [2], neg_sampling="triplet")
    one = torch.tensor([[1], [0]])
    batch = next(iter(LinkNeighborLoader(star, [2], one, neg_sampling="triplet")))
    assert batch.dst_neg_index.shape == (1,)
    unknown = (("item", "likes", "user"), torch.zeros(2, 3, dtype=torch.int64))
    assert len(list(LinkNeighborLoader(bipartite(), [2], unknown, neg_sampling="triplet"))) == 3
