"""Personalised PageRank: equal to the integer rounds that define it, and near the exact scores."""

import numpy as np
import pytest
import torch
from parted import in_parts
from torch_geometric.data import Data, HeteroData

from glt import _core
from glt.sampler import PageRankSampler
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph

CERTAIN = 1 << 60


def rounds(edges, num_types, seed, alpha, epsilon):
    """Scores of all nodes ``(type, id)``; ``edges``: by edge type, node types (from, to), and neighbours by node."""
    stop, least = round(alpha * 2**32), round(epsilon * CERTAIN)
    score, residual = {}, {seed: CERTAIN}
    while True:
        of = {u: [((to, v)) for (a, to), rows in edges if a == u[0] for v in rows.get(u[1], ())] for u in residual}
        pushed = {u: chance for u, chance in residual.items() if chance > least * max(1, len(of[u]))}
        if not pushed:
            return score
        for u in pushed:
            del residual[u]
        for u, chance in pushed.items():
            share = (chance - (chance * stop >> 32)) // len(of[u]) if of[u] else 0
            score[u] = score.get(u, 0) + chance - share * len(of[u])
            for v in of[u] if share else ():
                residual[v] = residual.get(v, 0) + share


def rows_of(edge_index):
    rows = {}
    for u, v in edge_index.T.tolist():
        rows.setdefault(u, []).append(v)
    return rows


def top(score, seed, wanted, k):
    found = [(value, node) for (type_, node), value in score.items() if type_ == wanted and (type_, node) != seed]
    return sorted(found, key=lambda each: (-each[0], each[1]))[:k]


def graph(num_nodes=120, num_edges=500):
    """Hubs, loops, parallel edges, and nodes without edges."""
    return Data(edge_index=random_graph(num_nodes, num_edges, seed=3).edge_index, num_nodes=num_nodes)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize(
    ("alpha", "epsilon", "k"), [(0.15, 1e-4, 10), (0.5, 1e-3, 200), (1.0, 0.1, 3), (0.01, 1e-2, 5)]
)
def test_scores_are_those_of_integer_rounds(alpha, epsilon, k, num_threads):
    data = graph()
    sampler = PageRankSampler(data, k, alpha=alpha, epsilon=epsilon, num_threads=num_threads)
    seeds = torch.arange(120).repeat(2)
    found, score = sampler.sample(seeds)
    first = np.concatenate([[0], found.nbr_num.numpy().cumsum()])
    edges = [((0, 0), rows_of(data.edge_index))]
    for i, seed in enumerate(range(120)):
        expected = top(rounds(edges, 1, (0, seed), alpha, epsilon), (0, seed), 0, k)
        mine = slice(first[i], first[i + 1])
        assert found.nbr[mine].tolist() == [node for _, node in expected]
        assert score[mine].tolist() == [value / CERTAIN for value, _ in expected]
    half = len(score) // 2
    assert torch.equal(score[:half], score[half:]) and (alpha == 1) == (len(score) == 0)


def test_scores_are_near_the_exact_ones_from_below():
    data, alpha, epsilon = graph(), 0.2, 1e-5
    step = torch.zeros(120, 120, dtype=torch.float64)
    step.index_put_(tuple(data.edge_index), torch.ones(500, dtype=torch.float64), accumulate=True)
    degree = step.sum(1)
    step[degree == 0] = torch.eye(120, dtype=torch.float64)[degree == 0]  # where a walk ends, it stays
    step /= step.sum(1, keepdim=True)
    exact = alpha * torch.linalg.inv(torch.eye(120, dtype=torch.float64) - (1 - alpha) * step)
    found, score = PageRankSampler(data, 120, alpha=alpha, epsilon=epsilon).sample(torch.arange(120))
    near = torch.zeros(120, 120, dtype=torch.float64)
    near[torch.arange(120).repeat_interleave(found.nbr_num), found.nbr] = score
    missing = exact - near
    missing.fill_diagonal_(0)
    assert missing.min() > -1e-12 and missing.sum(1).max() < epsilon * (500 + 120)
    assert near.sum() > 50


def test_seeds_of_several_native_calls_are_those_of_one():
    sampler = PageRankSampler(graph(), 4, epsilon=1e-2)
    once, score = sampler.sample(torch.arange(120))
    many, scores = sampler.sample(torch.arange(120).repeat(20))
    assert torch.equal(many.nbr, once.nbr.repeat(20)) and torch.equal(scores, score.repeat(20))
    assert torch.equal(many.nbr_num, once.nbr_num.repeat(20))


def test_all_edge_types_are_walked():
    data = random_hetero_graph(seed=4)
    types = list(data.node_types)
    edges = [((types.index(a), types.index(b)), rows_of(data[a, r, b].edge_index)) for a, r, b in data.edge_types]
    seeds = torch.arange(20)
    for wanted in ("item", "user"):
        sampler = PageRankSampler(data, 6, epsilon=1e-3, node_type="user", neighbor_type=wanted)
        found, score = sampler.sample(seeds)
        first = np.concatenate([[0], found.nbr_num.numpy().cumsum()])
        for i in range(20):
            seed = types.index("user"), i
            expected = top(rounds(edges, len(types), seed, 0.15, 1e-3), seed, types.index(wanted), 6)
            assert found.nbr[first[i] : first[i + 1]].tolist() == [node for _, node in expected]
            assert score[first[i] : first[i + 1]].tolist() == [value / CERTAIN for value, _ in expected]
        assert len(score) > 60
    assert "node_type='user', neighbor_type='user'" in repr(sampler)


def test_partitions_have_the_scores_of_the_whole():
    data = graph()
    topology = PageRankSampler(data, 9).graph.topologies[0]
    seeds = np.arange(120)
    made = []
    for csrs in (topology.csr_unweighted, in_parts(topology)):
        count, neighbor, score = np.empty(120, np.uint32), np.full(120 * 9, -1), np.zeros(120 * 9)
        given = seeds, count, neighbor, score
        _core.page_ranks([csrs], [(0, 0)], 1, 0, 0, *given, num_neighbors=9, stop=0.15, residual_per_edge=1e-4)
        made.append((count, neighbor, score))
    assert all(np.array_equal(a, b) for a, b in zip(*made, strict=True)) and made[0][0].max() == 9


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_neighbors": 0}, ValueError, "num_neighbors = 0"),
        ({"alpha": 0}, ValueError, "alpha = 0: expected a number, at least 0.0001"),
        ({"alpha": 1.5}, ValueError, "alpha = 1.5: expected at most 1"),
        ({"epsilon": 0}, ValueError, "epsilon = 0: expected a number, at least 1e-09"),
        ({"epsilon": "x"}, TypeError, "epsilon = 'x'"),
        ({"node_type": "a"}, KeyError, "a"),
    ],
)
def test_what_does_not_fit_is_named(options, error, words):
    with pytest.raises(error, match=words):
        PageRankSampler(graph(), **{"num_neighbors": 3, **options})


def test_seeds_outside_and_none():
    with pytest.raises(ValueError, match="seeds is a mask of 5 elements: expected 120"):
        PageRankSampler(graph(), 3).sample(torch.ones(5, dtype=torch.bool))
    with pytest.raises(IndexError, match=r"seeds\[1\] = 120"):
        PageRankSampler(graph(), 3).sample([5, 120])
    found, score = PageRankSampler(graph(), 3).sample(torch.empty(0, dtype=torch.int64))
    assert len(score) == len(found.nbr) == len(found.nbr_num) == 0
    typed = HeteroData(
        {"a": {"num_nodes": 2}, "b": {"num_nodes": 2}, ("a", "to", "b"): {"edge_index": torch.eye(2).long()}}
    )
    for node_type in ("a", "b"):
        with pytest.raises(IndexError, match=r"seeds\[0\] = 2"):
            PageRankSampler(typed, 3, node_type=node_type).sample([2])
    typed["z"].num_nodes = 5  # of no edge type
    for neighbor_type in "abz":
        found, score = PageRankSampler(typed, 10**12, node_type="z", neighbor_type=neighbor_type).sample([4, 0])
        assert found.nbr_num.tolist() == [0, 0] and len(score) == 0
    del typed["z"]
    with pytest.raises(ValueError, match=r"node_type is not given: expected that of the seeds, one of \['a', 'b'\]"):
        PageRankSampler(typed, 3)


def stepped(seeds, rows, ask):
    """Ranks of a graph of one type, whose rows are a list; ``ask`` is told what is asked, and answers it."""
    count, neighbor, score = np.empty(len(seeds), np.uint32), np.full(len(seeds) * 9, -1), np.zeros(len(seeds) * 9)
    ranks = _core.PageRanks(
        *([(0, 0)], 1, 0, 0, seeds, count, neighbor, score), num_neighbors=9, stop=0.15, residual_per_edge=1e-4
    )
    while not ranks.is_done:
        ask(ranks)
        ranks.go_on()
    return count, neighbor, score


def test_steps_find_what_one_call_finds_and_ask_for_each_row_once():
    """More seeds than are pushed side by side; a node's answer in one of two parts."""
    data = graph()
    rows = [rows_of(data.edge_index).get(v, []) for v in range(120)]
    seeds = np.arange(240) % 120
    asked = {True: [], False: []}

    def ask(ranks):
        nodes = ranks.asked(0)
        asked[ranks.wants_rows] += nodes.tolist()
        for part in (1, 0):
            at = np.flatnonzero(nodes % 2 == part).astype(np.uint32)
            count = np.array([len(rows[v]) for v in nodes[at]], np.uint32)
            ends = [each for v in nodes[at] for each in rows[v]] if ranks.wants_rows else []
            ranks.take(0, at, count, np.array(ends, np.int32 if part else np.int64))

    made = stepped(seeds, rows, ask)
    whole = np.empty(240, np.uint32), np.full(240 * 9, -1), np.zeros(240 * 9)
    csr = PageRankSampler(data, 9).graph.topologies[0].csr_unweighted
    _core.page_ranks([csr], [(0, 0)], 1, 0, 0, seeds, *whole, num_neighbors=9, stop=0.15, residual_per_edge=1e-4)
    assert all(np.array_equal(a, b) for a, b in zip(made, whole, strict=True))
    for nodes in asked.values():
        assert len(nodes) == len(set(nodes)) > 60
    assert {*asked[True]} <= {*asked[False]} and 0 not in [len(rows[v]) for v in asked[True]]


def test_hubs_that_are_not_pushed_are_asked_for_their_degrees_alone():
    """A star: the hub of 100,000 edges holds no more than what is left at it."""
    rows = [[1] if v == 0 else [0] * 100_000 if v == 1 else [] for v in range(2)]
    told = []

    def ask(ranks):
        nodes = ranks.asked(0).tolist()
        told.append((ranks.wants_rows, nodes))
        ends = [each for v in nodes for each in rows[v]] if ranks.wants_rows else []
        ranks.take(0, np.arange(len(nodes), dtype=np.uint32), np.uint32([len(rows[v]) for v in nodes]), np.int64(ends))

    count, _, _ = stepped(np.array([0]), rows, ask)
    assert told == [(False, [0]), (True, [0]), (False, [1])] and count.tolist() == [0]


NOTHING = np.empty(0, np.int64)


@pytest.mark.parametrize(
    ("position", "count", "neighbor", "words"),
    [
        ([0, 1], [1], NOTHING, "count has 1 elements: expected 2"),
        ([2], [1], NOTHING, r"position\[0\] = 2: expected one of 2 nodes"),
        ([1, 1], [1, 1], NOTHING, r"position\[1\] = 1: expected more than the one before, 1"),
        ([0, 1], [1, 1], np.array([0, 1]), "neighbor has 2 elements: expected 0"),
        ([0], [1], NOTHING, "go_on: 1 nodes are answered along edge type 0: expected 2"),
    ],
)
def test_answers_that_were_not_asked_for_are_refused(position, count, neighbor, words):
    def ask(ranks):
        ranks.take(0, np.uint32(position), np.uint32(count), neighbor)

    with pytest.raises(ValueError, match=words):
        stepped(np.array([5, 9]), [], ask)


def test_rows_must_have_as_many_edges_as_was_told():
    def ask(ranks):
        count, edges = (2, [0, 1]) if ranks.wants_rows else (3, [])
        ranks.take(0, np.uint32([0]), np.uint32([count]), np.int64(edges))

    with pytest.raises(ValueError, match="node 5 has 2 edges: expected as many as told before, 3"):
        stepped(np.array([5]), [], ask)
    out = np.empty(1, np.uint32), np.empty(9, np.int64), np.empty(9)
    given = {"num_neighbors": 9, "stop": 0.15, "residual_per_edge": 1e-4}
    ranks = _core.PageRanks([(0, 0)], 1, 0, 0, np.array([5]), *out, **given)
    with pytest.raises(ValueError, match="edge_type = 1: expected below 1"):
        ranks.take(1, np.uint32([0]), np.uint32([1]), NOTHING)
    with pytest.raises(IndexError):
        ranks.asked(1)
    with pytest.raises(ValueError, match="ends has node types 0 and 1"):
        _core.PageRanks([(0, 1)], 1, 0, 0, np.array([5]), *out, **given)
    none = _core.PageRanks([(0, 0)], 1, 0, 0, NOTHING, out[0][:0], NOTHING, out[2][:0], **given)
    assert none.is_done
    with pytest.raises(ValueError, match="go_on: all seeds are done"):
        none.go_on()
