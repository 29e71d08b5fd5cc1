"""Synthetic graphs."""

import pytest
import torch
import torch.nn.functional as F

from glt.data.synthetic import synthetic_graph, synthetic_hetero_graph


@pytest.mark.parametrize("make", [synthetic_graph, synthetic_hetero_graph])
def test_same_seed_same_graph_other_seed_other_graph(make):
    first, again, other = (make(500, random_seed=seed) for seed in (3, 3, 4))
    for name, value in vars(first).items():
        for a, b in zip(_tensors(value), _tensors(getattr(again, name)), strict=True):
            assert torch.equal(a, b), name
    assert not torch.equal(first.y, other.y)


def _tensors(value):
    return [each for each in (value.values() if isinstance(value, dict) else [value]) if isinstance(each, torch.Tensor)]


def test_edges_are_simple_symmetric_and_sorted():
    graph = synthetic_graph(2_000, num_classes=5)
    row, col = graph.edge_index
    key = row * graph.num_nodes + col
    assert (key.diff() > 0).all(), "sorted, no duplicates"
    assert (row != col).all()
    assert torch.equal((col * graph.num_nodes + row).sort().values, key)


def test_degrees_have_the_asked_mean_and_a_heavy_tail():
    graph = synthetic_graph(20_000, avg_degree=16)
    degree = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes)
    assert 0.9 * 16 < degree.float().mean() <= 1.02 * 16
    assert degree.max() > 30 * degree.float().mean()
    # Of a power law with exponent 2.5, a share of 8^-1.5 = 4.4% lies above 8 times the least expected degree (5.3).
    assert 0.02 < (degree > 8 * 16 / 3).float().mean() < 0.06


@pytest.mark.parametrize("homophily", [0.0, 0.5, 1.0])
def test_homophily_is_the_share_of_edges_within_a_class(homophily):
    graph = synthetic_graph(20_000, num_classes=8, homophily=homophily)
    row, col = graph.edge_index
    by_chance = (1 - homophily) / 8
    measured = (graph.y[row] == graph.y[col]).float().mean().item()
    assert measured == pytest.approx(homophily + by_chance, abs=0.03)


def test_classes_are_balanced_and_sets_disjoint():
    graph = synthetic_graph(1_000, num_classes=7)
    assert graph.num_classes == 7
    assert set(torch.bincount(graph.y).tolist()) <= {142, 143}
    ids = torch.cat([graph.train_idx, graph.val_idx, graph.test_idx])
    assert torch.equal(ids.sort().values, torch.arange(1_000))
    assert (len(graph.train_idx), len(graph.val_idx)) == (500, 250)


def test_neighbours_tell_more_than_features_alone():
    graph = synthetic_graph()
    row, col = graph.edge_index
    degree = torch.bincount(col, minlength=graph.num_nodes).clamp(min=1).unsqueeze(1)
    averaged = torch.zeros_like(graph.x).index_add_(0, col, graph.x[row]) / degree
    alone = linear_accuracy(graph, graph.x)
    together = linear_accuracy(graph, torch.cat([graph.x, averaged], 1))
    assert 0.5 < alone < 0.7
    assert together > alone + 0.2


def linear_accuracy(graph, x):
    """Test accuracy of multinomial logistic regression."""
    torch.manual_seed(0)
    model = torch.nn.Linear(x.size(1), graph.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x[graph.train_idx]), graph.y[graph.train_idx]).backward()
        optimizer.step()
    return (model(x[graph.test_idx]).argmax(1) == graph.y[graph.test_idx]).float().mean().item()


def test_to_pyg_keeps_everything():
    graph = synthetic_graph(200, num_classes=3, num_features=5)
    data = graph.to_pyg()
    assert data.validate()
    assert data.is_undirected() and not data.has_self_loops()
    assert (data.num_nodes, data.num_features) == (200, 5)
    assert torch.equal(data.train_mask.nonzero().view(-1), graph.train_idx.sort().values)


def test_a_graph_without_edges_is_a_graph():
    graph = synthetic_graph(10, num_classes=2, avg_degree=0)
    assert graph.num_edges == 0 and graph.edge_index.shape == (2, 0)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("num_nodes", 3),
        ("num_classes", 0),
        ("num_features", 0),
        ("avg_degree", -1),
        ("avg_degree", 20_000),
        ("homophily", 1.5),
        ("power_law_exponent", 2.0),
        ("feature_signal", -0.1),
    ],
)
def test_bad_arguments_are_named_with_their_value(argument, value):
    with pytest.raises(ValueError, match=rf"synthetic_graph: {argument} = {value}, expected"):
        synthetic_graph(**{argument: value})


CITES = ("paper", "cites", "paper")
WRITTEN_BY = ("paper", "written_by", "author")


def test_papers_cite_older_papers_and_all_have_authors_and_a_venue():
    task = synthetic_hetero_graph()
    citing, cited = task.edge_index[CITES]
    time = task.node_time["paper"]
    assert bool((time[cited] < time[citing]).all())
    assert 4.5 < len(citing) / 4_000 < 6.0
    assert set(task.edge_index[WRITTEN_BY][0].tolist()) == set(range(4_000))
    assert torch.equal(task.edge_index["paper", "published_in", "venue"][0], torch.arange(4_000))
    assert torch.equal(task.edge_index["author", "rev_written_by", "paper"], task.edge_index[WRITTEN_BY].flip(0))
    assert len(task.edge_index) == 6 and set(task.x) == {"paper", "author"}


@pytest.mark.parametrize("homophily", [0.0, 0.5, 1.0])
def test_homophily_is_the_share_of_links_within_a_class(homophily):
    task = synthetic_hetero_graph(homophily=homophily)
    by_chance = (1 - homophily) / 8
    for edge_type, classes in ((CITES, task.y), (WRITTEN_BY, torch.arange(2_000) % 8)):
        source, target = task.edge_index[edge_type]
        share = (task.y[source] == classes[target]).float().mean().item()
        assert share == pytest.approx(homophily + by_chance, abs=0.03), edge_type


def test_authors_tell_more_than_a_papers_own_features():
    task = synthetic_hetero_graph()

    def nearest_centre(x):
        train, y = task.train_idx, task.y
        centres = torch.stack([x[train][y[train] == c].mean(0) for c in range(task.num_classes)])
        found = torch.cdist(x[task.test_idx], centres).argmin(1)
        return (found == y[task.test_idx]).float().mean().item()

    paper, author = task.edge_index[WRITTEN_BY]
    linked = torch.zeros(4_000, 16).index_add_(0, paper, task.x["author"][author])
    linked /= torch.bincount(paper).unsqueeze(1)
    alone = nearest_centre(task.x["paper"])
    together = nearest_centre(torch.cat([task.x["paper"], 2 * linked], 1))
    assert 0.3 < alone < 0.7 and together > alone + 0.1


def test_arguments_out_of_range_are_named():
    for arguments, message in [
        ({"num_venues": 3}, "num_venues = 3, expected at least 8"),
        ({"homophily": 1.5}, "homophily = 1.5, expected 0 to 1"),
        ({"citations": -1}, "citations = -1, expected at least 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            synthetic_hetero_graph(**arguments)
