import pytest
import torch

from glt.data.synthetic import synthetic_hetero_graph

CITES = ("paper", "cites", "paper")
WRITTEN_BY = ("paper", "written_by", "author")


def test_same_seed_same_graph_other_seed_other_graph():
    first, again, other = (synthetic_hetero_graph(500, 200, random_seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.y, again.y) and not torch.equal(first.y, other.y)
    for edge_type in first.edge_index:
        assert torch.equal(first.edge_index[edge_type], again.edge_index[edge_type])
    assert all(torch.equal(first.x[t], again.x[t]) for t in ("paper", "author")) and "venue" not in first.x


def test_papers_cite_older_papers_and_all_have_authors_and_a_venue():
    task = synthetic_hetero_graph()
    citing, cited = task.edge_index[CITES]
    time = task.node_time["paper"]
    assert bool((time[cited] < time[citing]).all())
    assert 4.5 < len(citing) / 4_000 < 6.0
    assert set(task.edge_index[WRITTEN_BY][0].tolist()) == set(range(4_000))
    assert torch.equal(task.edge_index["paper", "published_in", "venue"][0], torch.arange(4_000))
    assert torch.equal(task.edge_index["author", "rev_written_by", "paper"], task.edge_index[WRITTEN_BY].flip(0))
    assert len(task.edge_index) == 6


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
