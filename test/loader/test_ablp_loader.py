"""Batches of anchors, positives and hard negatives: against plain Python, whoever makes them, and in training."""

import itertools
import json
import pickle
from collections import Counter

import pytest
import torch
from equal_batches import plain
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import BaseSampler

from glt.data import Dataset
from glt.loader import ABLPLoader, NeighborLoader
from glt.sampler import NeighborSampler, SeedOrder
from glt.sampler.anchors import LabelLists
from glt.testing import random_graph

RATES, RATED = ("user", "rates", "item"), ("item", "rev_rates", "user")
LIKES = ("user", "likes", "item")  # to predict, without edges of its own


def draw(*shape, upto, seed):
    return torch.randint(upto, shape, generator=torch.Generator().manual_seed(seed))


def graph(seed=0, num_nodes=60, num_edges=400):
    edge_index = random_graph(num_nodes, num_edges, seed=seed).edge_index
    return Data(edge_index=edge_index, num_nodes=num_nodes, x=torch.arange(num_nodes * 2.0).view(-1, 2))


def shop(seed=0):
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 40, 25
    rates = torch.stack([draw(300, upto=40, seed=seed), draw(300, upto=25, seed=seed + 1)])
    data[RATES].edge_index, data[RATED].edge_index = rates, rates.flip(0)
    data[LIKES].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["item", "rev_likes", "user"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    return data


# Plain Python.


def labels_by_anchor(edges):
    found = {}
    for anchor, label in edges.T.tolist():
        found.setdefault(anchor, []).append(label)
    return found


def expected_seeds(anchors, same_type, *labels):
    """Seeds of a batch, those of labels apart where they are of another type; and where each label is."""
    seeds = list(anchors) if same_type else []
    for by_anchor in labels:
        for anchor in anchors:
            for label in by_anchor.get(anchor, []):
                if label not in seeds:
                    seeds.append(label)
    places = [[[seeds.index(label) for label in by_anchor.get(a, [])] for a in anchors] for by_anchor in labels]
    return seeds, places


def all_edges(edge_index, seeds, num_hops, hidden):
    """The edges that are found when every node takes all of its in-edges but those hidden, as pairs of ids."""
    into = {}
    for source, target in edge_index.T.tolist():
        if (source, target) not in hidden:
            into.setdefault(target, []).append(source)
    found, frontier, seen = Counter(), list(seeds), set(seeds)
    for _ in range(num_hops):
        following = []
        for target in frontier:
            for source in into.get(target, []):
                found[source, target] += 1
                if source not in seen:
                    seen.add(source)
                    following.append(source)
        frontier = following
    return found


def lists(y):
    assert list(y) == list(range(len(y)))
    return [each.tolist() for each in y.values()]


@pytest.mark.parametrize("exclude", [None, "self", "reverse"])
@pytest.mark.parametrize("seed", range(6))
def test_batches_are_those_of_plain_python(seed, exclude):
    """Positives are edges of the graph and others; anchors come twice, and so do positives; some have none."""
    data = graph(seed)
    anchors = draw(30, upto=45, seed=seed)
    positives = torch.cat([data.edge_index[:, ::3], draw(2, 20, upto=60, seed=seed + 1)], 1)
    positives = torch.cat([positives, positives[:, :9]], 1)
    negatives = draw(2, 50, upto=60, seed=seed + 2)
    given = {"positives": positives, "negatives": negatives, "exclude_edges": exclude, "batch_size": 8}
    loader = ABLPLoader(data, [-1, -1], anchors, shuffle=True, random_seed=seed, **given)
    right, wrong = labels_by_anchor(positives), labels_by_anchor(negatives)
    order = SeedOrder(30, 8, True, False, seed)
    num_hidden = num_without = 0
    for batch, index in zip(loader, order.batches(0), strict=True):
        asked = anchors[index.input_id].tolist()
        seeds, (of_right, of_wrong) = expected_seeds(asked, True, right, wrong)
        assert batch.batch_size == len(asked) and torch.equal(batch.input_id, index.input_id)
        assert batch.n_id[: len(seeds)].tolist() == seeds and batch.num_sampled_nodes[0] == len(seeds)
        assert lists(batch.y_positive) == of_right and lists(batch.y_negative) == of_wrong
        assert torch.equal(batch.x, data.x[batch.n_id])
        pairs = {(a, p) for a in asked for p in right.get(a, [])} if exclude else set()
        pairs |= {(p, a) for a, p in pairs} if exclude == "reverse" else set()
        found = Counter(map(tuple, batch.n_id[batch.edge_index].T.tolist()))
        assert found == all_edges(data.edge_index, seeds, 2, pairs)
        num_hidden += len(pairs & set(map(tuple, data.edge_index.T.tolist())))
        num_without += of_right.count([])
    assert (num_hidden > 20) == (exclude is not None) and num_without > 0


@pytest.mark.parametrize("options", [{}, {"sampler": "labor"}, {"replace": True}, {"subgraph_type": "bidirectional"}])
def test_no_hidden_edge_is_drawn(options):
    for seed in range(20):
        data = graph(seed, 30, 300)
        positives = data.edge_index[:, ::2]
        loader = ABLPLoader(data, [3, 2], positives=positives, batch_size=6, random_seed=seed, **options)
        right = labels_by_anchor(positives)
        for batch in loader:
            asked = batch.n_id[: batch.batch_size].tolist()
            pairs = {(a, p) for a in asked for p in right.get(a, [])}
            found = set(map(tuple, batch.n_id[batch.edge_index].T.tolist()))
            assert found and not found & (pairs | {(p, a) for a, p in pairs})


@pytest.mark.parametrize("supervised", [RATES, LIKES])
@pytest.mark.parametrize("seed", range(4))
def test_labels_of_another_type(seed, supervised):
    data = shop(seed)
    anchors = draw(20, upto=40, seed=seed + 5)
    positives = data[RATES].edge_index[:, ::2]
    negatives = torch.stack([draw(60, upto=40, seed=seed + 6), draw(60, upto=25, seed=seed + 7)])
    given = {"positives": positives, "negatives": negatives, "supervision_edge_type": supervised}
    loader = ABLPLoader(data, [-1], ("user", anchors), batch_size=4, random_seed=seed, **given)
    right, wrong = labels_by_anchor(positives), labels_by_anchor(negatives)
    for index, batch in enumerate(loader):
        asked = anchors[4 * index : 4 * index + 4].tolist()
        seeds, (of_right, of_wrong) = expected_seeds(asked, False, right, wrong)
        assert batch["user"].batch_size == 4 and batch["user"].n_id[:4].tolist() == asked
        assert batch["item"].n_id[: len(seeds)].tolist() == seeds
        assert lists(batch.y_positive) == of_right and lists(batch.y_negative) == of_wrong
        pairs = {(a, p) for a in asked for p in right.get(a, [])} if supervised == RATES else set()
        for edge_type, hidden, of in ((RATES, pairs, seeds), (RATED, {(p, a) for a, p in pairs}, asked)):
            source, _, target = edge_type
            row, col = batch[edge_type].edge_index
            found = Counter(zip(batch[source].n_id[row].tolist(), batch[target].n_id[col].tolist(), strict=True))
            assert found == all_edges(data[edge_type].edge_index, of, 1, hidden)


def test_trees_of_labels_belong_to_their_anchors():
    data = graph(1)
    positives = torch.cat([data.edge_index[:, ::4], torch.tensor([[0, 0, 1], [5, 5, 5]])], 1)
    given = {"positives": positives, "negatives": positives.flip(0), "disjoint": True}
    (batch,) = ABLPLoader(data, [-1, 2], torch.arange(10), batch_size=10, random_seed=3, **given)
    right, wrong = labels_by_anchor(positives), labels_by_anchor(positives.flip(0))
    begin = 10
    for y, known in ((batch.y_positive, right), (batch.y_negative, wrong)):
        for anchor, places in y.items():
            assert places.tolist() == list(range(begin, begin + len(known.get(anchor, []))))
            assert batch.n_id[places].tolist() == known.get(anchor, [])
            assert batch.batch[places].tolist() == [anchor] * len(places)
            begin += len(places)
    ends = batch.batch[batch.edge_index]
    assert torch.equal(ends[0], ends[1]) and batch.num_sampled_nodes[0] == begin


def test_labels_are_looked_at_as_of_their_anchors():
    data = graph(2)
    data.time = draw(400, upto=50, seed=0)
    times = torch.arange(10) * 5
    given = {"positives": data.edge_index[:, ::4], "time_attr": "time", "input_time": times}
    (batch,) = ABLPLoader(data, [-1, -1], torch.arange(10), batch_size=10, random_seed=3, **given)
    (of_list,) = ABLPLoader(
        data, [-1, -1], torch.arange(10), batch_size=10, random_seed=3, **given | {"input_time": times.tolist()}
    )
    assert torch.equal(of_list.n_id, batch.n_id) and torch.equal(of_list.seed_time, times)
    of_edges = times[batch.batch[batch.edge_index[1]]]
    assert (batch.time <= of_edges).all() and len(batch.time) > 20 and torch.equal(batch.seed_time, times)
    # Of nodes, anchors have times of their own.
    data.time = draw(60, upto=50, seed=1)
    given = {"positives": data.edge_index[:, ::4], "time_attr": "time"}
    (batch,) = ABLPLoader(data, [-1], torch.arange(60), batch_size=60, random_seed=3, **given)
    assert (batch.time[batch.edge_index[0]] <= data.time[batch.batch[batch.edge_index[1]]]).all()


def test_labels_as_edges():
    """As GiGL's trainers take them; the dict is made of them."""
    data = graph(3)
    given = {"positives": data.edge_index, "negatives": data.edge_index.flip(0), "batch_size": 7, "random_seed": 5}
    by_anchor = list(ABLPLoader(data, [2], **given))
    edges = list(ABLPLoader(data, [2], use_label_edge_index_output=True, **given))
    for one, other in zip(by_anchor, edges, strict=True):
        for name in ("y_positive", "y_negative"):
            wanted = [(anchor, label) for anchor, each in enumerate(lists(one[name])) for label in each]
            assert other[name].dtype == torch.int64 and list(map(tuple, other[name].T.tolist())) == wanted
    without = next(iter(ABLPLoader(data, [2], positives=torch.empty(2, 0), batch_size=3)))
    assert "y_negative" not in without and lists(without.y_positive) == [[], [], []]
    (nothing,) = ABLPLoader(data, [2], [3], positives=torch.empty(2, 0, dtype=torch.int64))
    assert lists(nothing.y_positive) == [[]]


def test_whoever_makes_a_batch_it_is_the_same():
    data = graph(4)
    given = {"positives": data.edge_index[:, ::2], "batch_size": 16, "shuffle": True, "random_seed": 9}
    given["use_label_edge_index_output"] = True
    wanted = [plain(batch) for batch in ABLPLoader(data, [3, 2], **given)]
    dataset = Dataset.from_pyg(data)
    pinned = Dataset.from_pyg(data).with_mode("ZERO_COPY")
    sampler = NeighborSampler(data, [3, 2], exclude_edges="reverse", random_seed=9, num_threads=3)
    for source, options in (
        (data, {"num_threads": 4}),
        (data, {"num_workers": 2}),
        (data, {"num_workers": 1, "filter_per_worker": False}),
        (dataset, {}),
        (pinned, {"device": "host"}),
        (data, {"neighbor_sampler": sampler, "random_seed": None}),
    ):
        made = [plain(batch.to("cpu")) for batch in ABLPLoader(source, [3, 2], **given | options)]
        assert made == wanted, options


def test_dicts_of_many_anchors_come_from_workers():
    """Each tensor by itself would take one of the 1024 files that a process may have open, as a rule."""
    data = graph(5, 1500, 4000)
    given = {"positives": data.edge_index, "batch_size": 1500, "random_seed": 9}
    (here,) = ABLPLoader(data, [1], **given)
    (there,) = ABLPLoader(data, [1], num_workers=1, **given)
    assert lists(there.y_positive) == lists(here.y_positive)
    assert sum(isinstance(each, torch.Tensor) for each in here.y_positive.__reduce__()[1]) == 1
    again = pickle.loads(pickle.dumps(here.y_positive))
    assert type(again) is LabelLists and lists(again) == lists(here.y_positive)
    assert pickle.loads(pickle.dumps(LabelLists())) == {}


def test_it_goes_on_where_another_stood():
    data = graph(6)

    def make(**given):
        given = {"positives": data.edge_index[:, ::2], "batch_size": 16, "shuffle": True, "random_seed": 9} | given
        return ABLPLoader(data, [3, 2], **given)

    loader = make()
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [plain(batch)["None/n_id"] for batch in batches]
    other = make(random_seed=99)
    other.load_state_dict(state)
    assert [plain(batch)["None/n_id"] for batch in other] == rest and len(rest) == 3
    assert "exclude_edges='reverse'" in repr(loader) and "4 batches of 16 nodes" in repr(loader)
    for given, words in (
        ({"positives": data.edge_index[:, 1::2]}, "seeds_crc32"),
        ({"negatives": data.edge_index}, "labels"),
        ({"exclude_edges": "self"}, "exclude_edges"),
    ):
        with pytest.raises(ValueError, match=words):
            make(**given).load_state_dict(state)


OTHERS = ("item", torch.tensor([1]))


class OfAnotherMake(BaseSampler):
    def sample_from_nodes(self, index, **kwargs):
        raise AssertionError("it is refused")

    sample_from_edges = sample_from_nodes


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"positives": None}, TypeError, "positives is a NoneType that is no tensor.*edges anchor -> label"),
        ({"positives": torch.zeros(3)}, ValueError, r"positives has shape \[3\]: expected \[2, B\]"),
        ({"negatives": torch.rand(2, 3)}, TypeError, "negatives has dtype torch.float32: expected integer ids"),
        ({"positives": [[0], [25]]}, IndexError, r"positives\[1, 0\] = 25.*'item'"),
        ({"negatives": [[-1], [2]]}, IndexError, r"negatives\[0, 0\] = -1.*'user'"),
        ({"supervision_edge_type": None}, ValueError, "supervision_edge_type = None: expected the type.*'rates'"),
        ({"supervision_edge_type": ("user", "to", "tag")}, ValueError, r"supervision_edge_type = \('user', 'to'"),
        ({"input_nodes": OTHERS}, ValueError, "input_nodes is of type 'item': expected 'user', where supervision_edge"),
        ({"input_nodes": None}, ValueError, "input_nodes is None"),
        ({"exclude_edges": "all"}, ValueError, "exclude_edges = 'all'"),
        ({"exclude_edges": RATES}, ValueError, "exclude_edges = .*expected 'self', 'reverse' or an edge type from"),
        ({"subgraph_type": "induced"}, ValueError, "exclude_edges = 'reverse' and subgraph_type = 'induced'"),
        (
            {"subgraph_type": "induced", "exclude_edges": None, "disjoint": True},
            ValueError,
            "subgraph_type = 'induced' and disjoint = True: each end of a link",
        ),
        ({"use_label_edge_index_output": 1}, TypeError, "use_label_edge_index_output = 1"),
        ({"neighbor_sampler": OfAnotherMake()}, TypeError, "neighbor_sampler has type OfAnotherMake: expected a glt"),
        ({"positive": None}, TypeError, "positive"),
    ],
)
def test_what_does_not_fit_is_named(given, error, words):
    data = shop()
    usual = {"input_nodes": "user", "positives": data[RATES].edge_index, "supervision_edge_type": RATES}
    with pytest.raises(error, match=words):
        ABLPLoader(data, [2], **usual | given)


def test_a_homogeneous_graph_has_no_edge_types():
    with pytest.raises(ValueError, match="the graph is homogeneous and has no types; leave it out"):
        ABLPLoader(graph(), [2], positives=[[0], [1]], supervision_edge_type=RATES)
    (induced,) = ABLPLoader(
        graph(), [2], [0], positives=[[0], [1]], subgraph_type="induced", exclude_edges=None, random_seed=0
    )
    assert lists(induced.y_positive) == [[1]]


# Training: random negatives come from a loader of their own.


def training_steps(data, positives, negatives, num_epochs):
    """A batch of anchors and one of random negatives for each step."""
    own = {"batch_size": 16, "shuffle": True}
    main = ABLPLoader(
        data, [4, 4], positives[0].unique(), positives=positives, negatives=negatives, random_seed=1, **own
    )
    others = NeighborLoader(data, [4, 4], random_seed=2, **own)
    endless = (random for epoch in itertools.count() for random in others)
    for _ in range(num_epochs):
        yield from zip(main, endless, strict=False)


def towns(num_towns=4, size=25):
    """A graph of towns with many edges within and few between, whose nodes have features that say nothing."""
    town = torch.arange(num_towns * size) // size
    chance = torch.where(town[:, None] == town[None], 0.3, 0.005)
    drawn = torch.rand(chance.shape, generator=torch.Generator().manual_seed(0)).triu(1) > 1 - chance
    edges = drawn.nonzero().T
    x = torch.randn(len(town), 16, generator=torch.Generator().manual_seed(1))
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), num_nodes=len(town)), town


def test_random_negatives_of_a_step_are_the_same_each_time():
    data, _ = towns()
    runs = [training_steps(data, data.edge_index, None, 2) for _ in range(2)]
    steps = 0
    for (main, random), (again, other) in zip(*runs, strict=True):
        assert torch.equal(main.n_id, again.n_id) and torch.equal(random.n_id, other.n_id)
        steps += 1
    assert steps == 14


class Towers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv(16, 32), SAGEConv(32, 16)

    def forward(self, batch):
        h = self.first(batch.x, batch.edge_index).relu()
        return torch.nn.functional.normalize(self.second(h, batch.edge_index), dim=-1)


def retrieval_loss(model, main, random):
    """Softmax over positives, hard negatives and random ones; candidates that are right for a query do not count."""
    z, others = model(main), model(random)[: random.batch_size]
    query = torch.cat([torch.full_like(each, anchor) for anchor, each in main.y_positive.items()])
    right, wrong = (torch.cat(list(y.values())) for y in (main.y_positive, main.y_negative))
    scores = z[query] @ torch.cat([z[right], z[wrong], others]).T / 0.2
    candidate = torch.cat([main.n_id[right], main.n_id[wrong], random.n_id[: random.batch_size]])
    same = candidate[: len(right), None] == candidate[None]
    same |= main.n_id[query][:, None] == candidate[None]
    same.fill_diagonal_(False)
    return torch.nn.functional.cross_entropy(scores.masked_fill(same, -1e9), torch.arange(len(query)))


def test_two_towers_learn_who_belongs_together():
    data, town = towns()
    positives = data.edge_index[:, town[data.edge_index[0]] == town[data.edge_index[1]]][:, ::3]
    far = torch.stack([torch.arange(100), (torch.arange(100) + 50) % 100])
    torch.manual_seed(0)
    model = Towers()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for main, random in training_steps(data, positives, far, 8):
        optimizer.zero_grad()
        loss = retrieval_loss(model, main, random)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        z = model(data)
    nearest = (z @ z.T).fill_diagonal_(-2).argmax(1)
    assert (town[nearest] == town).double().mean() > 0.9, losses
    assert sum(losses[-7:]) < 0.8 * sum(losses[:7])
