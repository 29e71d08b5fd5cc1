"""GraphSAINT's samplers: the laws of their draws, and norms that make losses and sums over neighbours unbiased."""

import json
import pickle
from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from equal_batches import same
from torch_geometric.data import Data, HeteroData

import glt
from glt import _core
from glt.loader import GraphSAINTEdgeSampler, GraphSAINTNodeSampler, GraphSAINTRandomWalkSampler
from glt.testing import random_graph

BEFOREHAND = 2**32 - 2  # the epoch of the subgraphs that are counted


def graph(num_nodes=60, num_edges=300, seed=3, **attrs):
    """Node and edge attributes are ids."""
    edge_index = random_graph(num_nodes, num_edges, seed=seed).edge_index
    ids = {"x": torch.arange(num_nodes).view(-1, 1), "edge_attr": torch.arange(num_edges)}
    return Data(edge_index=edge_index, num_nodes=num_nodes, **ids | attrs)


def small(**attrs):
    """7 nodes: a hub, a loop, parallel edges, a dead end and a node without edges."""
    pairs = [(0, 1), (0, 2), (0, 3), (0, 1), (1, 0), (2, 2), (2, 0), (3, 4), (4, 5), (1, 5)]
    edge_index = torch.tensor(pairs).T.contiguous()
    return Data(edge_index=edge_index, num_nodes=7, x=torch.arange(7).view(-1, 1), edge_attr=torch.arange(10), **attrs)


def node_sampler(data, size=20, **options):
    return GraphSAINTNodeSampler(data, size, **options)


def edge_sampler(data, size=20, **options):
    return GraphSAINTEdgeSampler(data, size, **options)


def walk_sampler(data, size=10, **options):
    return GraphSAINTRandomWalkSampler(data, size, 2, **options)


ALL = pytest.mark.parametrize("make", [node_sampler, edge_sampler, walk_sampler])


def equal(first, second):
    assert len(first) == len(second) > 0
    assert all(same(ours, theirs) for ours, theirs in zip(first, second, strict=True))


def sets_of(loader):
    return Counter(tuple(batch.x.view(-1).tolist()) for batch in loader)


def require_law(seen, law, critical):
    """That sets are seen in the proportions of a law, by chi-square; what is rare is counted together."""
    total = sum(seen.values())
    assert {*seen} <= {*law} and abs(sum(law.values()) - 1) < 1e-9
    rare = {each for each, chance in law.items() if total * chance < 5}
    cells = [(seen[each], total * chance) for each, chance in law.items() if each not in rare]
    if rare:
        cells.append((sum(seen[each] for each in rare), total * sum(law[each] for each in rare)))
    assert sum((n - expected) ** 2 / expected for n, expected in cells) < critical(len(cells) - 1), (seen, law)


def one_in_10_000(freedom):
    """The chi-square that is exceeded once in 10,000 times, by Wilson and Hilferty."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3


def sources(edge_dir):
    data = small()
    if edge_dir is None:
        return data
    return glt.data.Dataset.from_arrays(data.edge_index, 7, node_features=data.x, edge_dir=edge_dir)


@pytest.mark.parametrize("edge_dir", [None, "in", "out"])
def test_nodes_are_drawn_in_proportion_to_their_out_edges(edge_dir):
    out_degree = {0: 4, 1: 2, 2: 2, 3: 1, 4: 1}
    law = Counter()
    for first in out_degree:
        for second in out_degree:
            law[tuple(sorted({first, second}))] += out_degree[first] * out_degree[second] / 100
    loader = node_sampler(sources(edge_dir), 2, num_steps=500, random_seed=1)
    require_law(sets_of(loader), law, one_in_10_000)


@pytest.mark.parametrize("edge_dir", [None, "in", "out"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_edges_are_drawn_without_replacement_by_the_degrees_of_their_ends(size, edge_dir):
    ends = small().edge_index.T.tolist()
    degree = Counter(v for pair in ends for v in pair)
    weight = [1 / degree[u] + 1 / degree[v] for u, v in ends]
    law = Counter()
    for drawn in permutations(range(10), size):
        chance, left = 1.0, sum(weight)
        for each in drawn:
            chance, left = chance * weight[each] / left, left - weight[each]
        law[tuple(sorted({v for each in drawn for v in ends[each]}))] += chance
    loader = edge_sampler(sources(edge_dir), size, num_steps=500, random_seed=2)
    require_law(sets_of(loader), law, one_in_10_000)


def walks_from(rows, node, length):
    if length == 0 or not rows.get(node):
        return {(node,): 1.0}
    law = Counter()
    for following in rows[node]:
        for walk, chance in walks_from(rows, following, length - 1).items():
            law[(node, *walk)] += chance / len(rows[node])
    return law


@pytest.mark.parametrize("edge_dir", [None, "out", "in"])
def test_walks_begin_at_uniform_nodes_and_take_uniform_edges(edge_dir):
    """Along edges; in a dataset with in-edges, against them."""
    rows = {}
    for u, v in small().edge_index.T.tolist():
        if edge_dir == "in":
            u, v = v, u
        rows.setdefault(u, []).append(v)
    law = Counter()
    for root in range(7):
        for walk, chance in walks_from(rows, root, 3).items():
            law[tuple(sorted({*walk}))] += chance / 7
    loader = GraphSAINTRandomWalkSampler(sources(edge_dir), 1, 3, num_steps=500, random_seed=3)
    require_law(sets_of(loader), law, one_in_10_000)


def test_batches_are_of_as_many_draws_as_are_asked_for():
    data = Data(edge_index=torch.arange(2000).view(1000, 2).T.contiguous(), num_nodes=2000)  # pairs
    for batch in edge_sampler(data, 500, num_steps=5):
        assert batch.num_nodes == 1000 and batch.num_edges == 500, "distinct edges, of which none share a node"
    for batch in node_sampler(data, 500, num_steps=5):  # 393 distinct sources of 1,000 on average, give or take 10
        assert 340 < batch.num_nodes < 445 and batch.num_edges == 0
    ring = glt.testing.ring_graph(1_000_000, 1).to_data()
    (batch,) = GraphSAINTRandomWalkSampler(ring, 3, 255, random_seed=0)
    assert batch.num_nodes == 3 * 256 and batch.num_edges == 3 * 255


@ALL
def test_batches_are_the_nodes_by_id_and_all_edges_among_them(make):
    data, num_edges = graph(y=torch.arange(60), name="a", lone=torch.ones(7)), 0
    loader = make(data, 12, num_steps=6)
    assert len(loader) == 6
    for batch in loader:
        node, edge = batch.x.view(-1), batch.edge_attr
        assert torch.equal(node, node.unique()) and torch.equal(batch.y, node) and batch.num_nodes == len(node)
        assert torch.equal(node[batch.edge_index], data.edge_index[:, edge])
        among = torch.isin(data.edge_index, node).all(0).nonzero().view(-1)
        assert torch.equal(edge.sort()[0], among)
        assert batch.name == "a" and batch.lone.shape == (7,) and "node_norm" not in batch
        num_edges += len(edge)
    assert num_edges > 50


def recount(loader, data, coverage):
    """Norms by counting the nodes and edges of the same subgraphs in Python."""
    pairs, num_nodes = data.edge_index.T.tolist(), data.num_nodes
    of_node, of_edge, total, step = [0] * num_nodes, [0] * len(pairs), 0, 0
    while total < num_nodes * coverage:
        node = {*loader._nodes_of(_core.batch_key(0, BEFOREHAND, step)).tolist()}
        for v in node:
            of_node[v] += 1
        for e, (u, v) in enumerate(pairs):
            of_edge[e] += u in node and v in node
        total, step = total + len(node), step + 1
    node_norm = [step / (n or 0.1) / num_nodes for n in of_node]
    edge_norm = []
    for (_, v), n in zip(pairs, of_edge, strict=True):
        edge_norm.append(min(of_node[v] / n, 1e4) if n else (1e4 if of_node[v] else 0.1))
    return torch.tensor(node_norm), torch.tensor(edge_norm)


@ALL
@pytest.mark.parametrize("coverage", [1, 7])
def test_norms_are_the_counts_of_subgraphs_that_are_sampled_beforehand(make, coverage):
    data = graph()
    loader = make(data, 8, num_steps=3, sample_coverage=coverage, log=False, random_seed=4)
    node_norm, edge_norm = recount(loader, data, coverage)
    assert torch.allclose(loader.node_norm, node_norm, rtol=1e-5) and torch.allclose(loader.edge_norm, edge_norm)
    assert (edge_norm == 0.1).any() or coverage > 1
    for batch in loader:
        assert torch.equal(batch.node_norm, loader.node_norm[batch.x.view(-1)])
        assert torch.equal(batch.edge_norm, loader.edge_norm[batch.edge_attr])
    loader.set_epoch(0)
    for one, other in zip(make(data, 8, num_steps=3, random_seed=4), loader, strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.edge_index, other.edge_index)


def dense():
    """12 nodes, each with edges from at least two others; a value of each node."""
    draw = torch.Generator().manual_seed(5)
    source, target = (torch.rand(12, 12, generator=draw) < 0.35).nonzero().T
    ring = torch.arange(12)
    edge_index = torch.cat([torch.stack([source, target]), torch.stack([ring, (ring + 1) % 12])], 1)
    return Data(
        edge_index=edge_index, num_nodes=12, x=ring.view(-1, 1), value=torch.rand(12, generator=draw).double() + 0.5
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: GraphSAINTNodeSampler(dense(), 6, **options),
        lambda **options: GraphSAINTEdgeSampler(dense(), 4, **options),
        lambda **options: GraphSAINTRandomWalkSampler(dense(), 3, 2, **options),
    ],
    ids=["node", "edge", "walk"],
)
def test_sums_over_subgraphs_are_unbiased(make):
    """Losses: the mean over batches is the mean over the graph. Messages: the mean over those batches that have a node
    is the sum over all of its neighbours. Both within 5 standard errors of the batches and of the counts together (of
    at least as many subgraphs as the coverage), which 13 sums of 3 samplers all are but in 1 of 10,000 runs."""
    data, num_steps, coverage = dense(), 900, 400
    loader = make(num_steps=num_steps, sample_coverage=coverage, log=False, random_seed=6)
    losses, messages = [], [[] for _ in range(12)]
    for batch in loader:
        losses.append(float((batch.node_norm.double() * batch.value).sum()))
        source, target = batch.edge_index
        sums = torch.zeros(batch.num_nodes, dtype=torch.float64)
        sums.index_add_(0, target, batch.edge_norm.double() * batch.value[source])
        for node, each in zip(batch.x.view(-1).tolist(), sums.tolist(), strict=True):
            messages[node].append(each)
    whole = torch.zeros(12, dtype=torch.float64).index_add_(0, data.edge_index[1], data.value[data.edge_index[0]])
    for values, expected, share in (
        (losses, float(data.value.mean()), 1.0),
        *((own, float(sum_), len(own) / num_steps) for own, sum_ in zip(messages, whole, strict=True)),
    ):
        assert len(values) > 100
        error = np.std(values) * (1 / len(values) + 1 / (coverage * share)) ** 0.5
        assert error < 0.25 * expected
        assert abs(np.mean(values) - expected) < 5 * error


@ALL
def test_batches_do_not_depend_on_threads_and_workers_and_resume(make):
    data, options = graph(), {"num_steps": 7, "shuffle": True}
    whole = list(make(data, random_seed=1, **options))
    equal(whole, list(make(data, random_seed=1, num_threads=3, **options)))
    equal(whole, list(make(data, random_seed=1, num_workers=2, **options)))
    equal(whole, list(pickle.loads(pickle.dumps(make(data, random_seed=1, **options)))))
    begun = make(data, random_seed=1, **options)
    for _ in zip(range(3), begun, strict=False):
        state = json.loads(json.dumps(begun.state_dict()))
    other = make(data, random_seed=77, **options)
    other.load_state_dict(state)
    equal(whole[3:], list(other))
    second = list(begun)
    equal(second, list(other))
    assert second[0].x.tolist() != whole[0].x.tolist()
    for given, words in (
        ({"size": 9}, "num_samples is"),
        ({"num_steps": 8}, "num_seeds is 7|num_steps is 7"),
        ({"sample_coverage": 1}, "sample_coverage"),
    ):
        with pytest.raises(ValueError, match=words):
            make(data, **options | {"log": False} | given).load_state_dict(state)


@ALL
def test_norms_do_not_depend_on_threads_and_workers(make):
    options = {"num_steps": 4, "sample_coverage": 4, "log": False, "random_seed": 2}
    whole = list(make(graph(), **options))
    equal(whole, list(make(graph(), num_threads=3, **options)))
    equal(whole, list(make(graph(), num_workers=2, **options)))
    equal(whole, list(pickle.loads(pickle.dumps(make(graph(), **options)))))


@ALL
def test_a_loader_that_resumes_has_the_norms_of_the_run_before(make):
    """As in a script that starts again, and gives no random_seed."""
    options = {"num_steps": 6, "sample_coverage": 4, "log": False}
    begun = make(graph(), random_seed=1, **options)
    whole = list(make(graph(), random_seed=1, **options))
    for _ in zip(range(2), begun, strict=False):
        state = begun.state_dict()
    other = make(graph(), random_seed=77, **options)
    other.load_state_dict(state)
    equal(whole[2:], list(other))


@ALL
def test_two_iterations_at_once_are_two_epochs(make):
    loader = make(graph(), num_steps=3, random_seed=3)
    first, second = iter(loader), iter(loader)
    mixed = [next(each) for _ in range(3) for each in (first, second)]
    again = make(graph(), num_steps=3, random_seed=3)
    equal([*again, *again], mixed[::2] + mixed[1::2])


@ALL
def test_norms_are_kept_and_read_again(make, tmp_path, capsys):
    options = {"num_steps": 3, "sample_coverage": 3, "random_seed": 2, "save_dir": tmp_path / "norms"}
    made = make(graph(), **options)
    assert "normalization" in capsys.readouterr().err
    (path,) = (tmp_path / "norms").iterdir()
    equal(list(made), list(make(graph(), **options)))
    assert capsys.readouterr().err == ""
    kept = {"node_norm": torch.arange(60.0).numpy(), "edge_norm": torch.arange(300.0).numpy()}
    with np.load(path) as file:
        kept["graph_crc32"] = file["graph_crc32"]
    with path.open("wb") as file:
        np.savez(file, **kept)
    again = make(graph(), **options)
    assert torch.equal(again.node_norm, torch.arange(60.0)) and torch.equal(again.edge_norm, torch.arange(300.0))
    make(graph(), **options | {"sample_coverage": 4, "log": False})
    make(graph(), 13, **options)
    assert len([*(tmp_path / "norms").iterdir()]) == 3 and "normalization" in capsys.readouterr().err
    for data in (graph(61), graph(num_edges=299)):
        with pytest.raises(ValueError, match=rf"{path.name} is of another graph"):
            make(data, **options)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@ALL
def test_norms_of_a_dataset_with_edge_ids_of_its_own_are_read_again(make, edge_dir, tmp_path):
    data, ids = graph(), torch.arange(300).flip(0) * 7 + 100
    dataset = glt.data.Dataset.from_arrays(data.edge_index, 60, node_features=data.x, edge_ids=ids, edge_dir=edge_dir)
    options = {"num_steps": 3, "sample_coverage": 3, "random_seed": 2, "log": False}
    plain = {}
    for batch in make(dataset, save_dir=tmp_path, **options):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, 299 - (batch.e_id - 100) // 7])
        plain |= zip(batch.e_id.tolist(), batch.edge_norm.tolist(), strict=True)
    _, edge_norm = recount(make(dataset, **options), data, 3)
    assert all(abs(edge_norm[299 - (each - 100) // 7] - norm) < 1e-4 * norm for each, norm in plain.items())
    equal(list(make(dataset, **options)), list(make(dataset, save_dir=tmp_path, **options)))


def test_two_trainers_may_begin_at_once(tmp_path, monkeypatch):
    """The second counts and keeps its norms while the first writes."""
    savez, options = np.savez, {"sample_coverage": 1, "save_dir": str(tmp_path), "log": False, "random_seed": 1}

    def saved(*args, **kwargs):
        monkeypatch.setattr(np, "savez", savez)
        node_sampler(graph(), **options)
        savez(*args, **kwargs)

    monkeypatch.setattr(np, "savez", saved)
    node_sampler(graph(), **options)
    assert len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_kept_norms_that_are_damaged_are_named_with_their_file(content, tmp_path):
    options = {"sample_coverage": 1, "save_dir": str(tmp_path), "log": False}
    node_sampler(graph(), **options)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=path.name):
        node_sampler(graph(), **options)


def test_odd_graphs():
    none = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=5)
    for batch in walk_sampler(none, 3, num_steps=2, sample_coverage=3, log=False):
        assert batch.num_edges == 0 and 1 <= batch.num_nodes <= 3 and len(batch.node_norm) == batch.num_nodes
    one = Data(edge_index=torch.zeros(2, 2, dtype=torch.int64), num_nodes=1)
    for make in (node_sampler, edge_sampler, walk_sampler):
        (batch,) = make(one, 1, sample_coverage=5, log=False)
        assert batch.edge_index.tolist() == [[0, 0], [0, 0]]
        assert batch.node_norm.tolist() == [1.0] and batch.edge_norm.tolist() == [1.0, 1.0]
        int32 = graph()
        int32.edge_index = int32.edge_index.int()
        (batch,) = make(int32, 10, sample_coverage=2, log=False, random_seed=1)
        (other,) = make(graph(), 10, sample_coverage=2, log=False, random_seed=1)
        assert batch.edge_index.dtype == torch.int32
        assert torch.equal(batch.x, other.x) and torch.equal(batch.edge_norm, other.edge_norm)


def test_more_than_the_graph_has_is_the_graph():
    data = glt.testing.ring_graph(40, 2).to_data()
    for loader in (node_sampler(data, 10_000), walk_sampler(data, 10_000)):
        (batch,) = loader
        assert batch.num_nodes == 40 and batch.num_edges == 80


@pytest.mark.parametrize("make", [node_sampler, walk_sampler])
def test_graphs_without_anything_to_draw_are_refused_at_once(make):
    zero = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=0 if make is walk_sampler else 5)
    with pytest.raises(ValueError, match="edges" if make is node_sampler else "nodes") as told:
        list(make(zero))
    assert "negative" not in str(told.value)


def test_lists_with_an_element_per_node_follow_the_nodes():
    names = [f"node {i}" for i in range(60)]
    (batch,) = node_sampler(graph(name=names))
    assert batch.name == [names[int(each)] for each in batch.x]


@ALL
@pytest.mark.filterwarnings("ignore:Unable to accurately infer")
def test_batches_of_a_graph_without_features_know_their_number_of_nodes(make):
    data = Data(edge_index=graph().edge_index)
    for batch in make(data, 5, num_steps=5, sample_coverage=2, log=False):
        assert batch.num_nodes == len(batch.node_norm)


def test_the_graph_that_each_node_is_of_stays():
    (batch,) = node_sampler(graph(batch=torch.arange(60) // 30))
    assert torch.equal(batch.batch, batch.x.view(-1) // 30)


def hetero():
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 3
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [1, 2]])
    return data


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"size": 0}, ValueError, "batch_size = 0: expected 1 to 2147483647"),
        ({"size": 2**31}, ValueError, "batch_size = 2147483648: expected 1 to 2147483647"),
        ({"size": 2.5}, TypeError, "batch_size = 2.5: expected an integer"),
        ({"size": True}, TypeError, "batch_size = True: expected an integer"),
        ({"num_steps": 0}, ValueError, "num_steps = 0"),
        ({"num_steps": 2**63}, ValueError, "num_steps = 9223372036854775808: expected 1 to 2147483647"),
        ({"save_dir": "norms"}, ValueError, "save_dir is given and sample_coverage = 0"),
        ({"save_dir": 3}, TypeError, "save_dir = 3: expected the path"),
        ({"sample_coverage": -1}, ValueError, "sample_coverage = -1: expected an integer of at least 0"),
        ({"sample_coverage": 1.5}, ValueError, "sample_coverage = 1.5"),
        ({"num_threads": 0}, ValueError, "num_threads = 0"),
        ({"random_seed": -1}, ValueError, "random_seed = -1"),
        ({"transform": 3}, TypeError, "transform = 3"),
        ({"num_worker": 2}, TypeError, "has no argument num_worker: did you mean num_workers"),
        ({"data": hetero()}, ValueError, "data has several types: GraphSAINT's laws are for one"),
        ({"data": None}, TypeError, "data has type NoneType"),
        ({"data": graph(node_norm=torch.ones(60)), "sample_coverage": 1}, ValueError, "data has node_norm already"),
        ({"data": graph(edge_norm=torch.ones(300)), "sample_coverage": 1}, ValueError, "data has edge_norm already"),
    ],
)
@ALL
def test_what_does_not_fit_is_named(make, options, error, words):
    with pytest.raises(error, match=words):
        make(**{"data": graph(), "log": False, **options})


def test_integers_of_numpy_are_integers():
    sizes = [np.int64(each) for each in (4, 2, 3)]
    assert repr(GraphSAINTRandomWalkSampler(graph(), *sizes, random_seed=1)) == repr(
        GraphSAINTRandomWalkSampler(graph(), 4, 2, 3, random_seed=1)
    )


def test_edges_and_steps_of_walks_have_bounds():
    with pytest.raises(ValueError, match="batch_size = 151: expected at most half of the 300 edges"):
        edge_sampler(graph(), 151)
    assert len(edge_sampler(graph(), 150)) == 1
    for length, words in ((0, "walk_length = 0"), (256, "walk_length = 256: expected at most 255"), (1.5, "= 1.5")):
        with pytest.raises(ValueError, match=words):
            GraphSAINTRandomWalkSampler(graph(), 3, length)


def test_every_pair_of_edges_is_drawn_by_its_own_law_whatever_the_order():
    """A star, in which all edges weigh the same."""
    star = Data(edge_index=torch.stack([torch.arange(1, 7), torch.zeros(6, dtype=torch.int64)]), num_nodes=7)
    star.x = torch.arange(7).view(-1, 1)
    law = {(0, *pair): 1 / 15 for pair in combinations(range(1, 7), 2)}
    require_law(sets_of(edge_sampler(star, 2, num_steps=500, random_seed=9)), law, one_in_10_000)


def test_a_transform_and_the_orders_of_the_users_own():
    loader = node_sampler(graph(), num_steps=3, random_seed=1, transform=lambda batch: batch.num_nodes)
    assert list(loader) == [batch.num_nodes for batch in node_sampler(graph(), num_steps=3, random_seed=1)]
    assert "num_samples=20" in repr(loader) and "walk_length=2" in repr(walk_sampler(graph()))


@pytest.mark.parametrize("num_nodes", [1, 63, 64, 65, 128, 1000])
def test_each_edge_stands_for_its_source(num_nodes):
    """Sources of many edges and of none, at the ends of blocks of rows as between them."""
    rng = np.random.default_rng(num_nodes)
    source = rng.choice(rng.integers(0, num_nodes, 20), 300)
    data = Data(edge_index=torch.from_numpy(np.stack([source, rng.integers(0, num_nodes, 300)])), num_nodes=num_nodes)
    sampler = GraphSAINTNodeSampler(data, batch_size=10, random_seed=0)
    np.testing.assert_array_equal(sampler._rows_of(np.arange(300)), np.sort(source))
