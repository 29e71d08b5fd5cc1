"""Synthetic graphs with hubs, communities and a task worth learning: for demos, tests and benchmarks without a network.

The graph is drawn from the degree-corrected stochastic block model (Karrer & Newman, "Stochastic blockmodels and
community structure in networks", Physical Review E 83, 016107, 2011) in its planted-partition form: every node has a
class and a power-law weight; an edge's first end is chosen by weight among all nodes, its second end by weight, among
the nodes of the same class with probability ``homophily`` and else among all.
"""

from __future__ import annotations

import numpy as np
import torch

from glt.data.tasks import HeteroNodeTask, NodeTask, with_reverses


def synthetic_graph(
    num_nodes: int = 20_000,
    num_classes: int = 16,
    num_features: int = 64,
    avg_degree: float = 16.0,
    homophily: float = 0.5,
    power_law_exponent: float = 2.5,
    feature_signal: float = 2.15,
    random_seed: int = 0,
) -> NodeTask:
    """Draws an undirected graph whose node classes show a little in each node's features and more in its neighbours.

    With the defaults a classifier that sees only ``x`` gets about 60% of the nodes right, and one that also sees the
    neighbours' features 85 to 90%. Time and memory grow with the number of edges (about 7 s for a million nodes and 16
    million edges).

    Args:
        num_classes: Number of classes, each with about as many nodes as the others.
        avg_degree: Expected neighbours per node before duplicate edges and self-loops are dropped (a few percent).
        homophily: Probability, in [0, 1], that an edge stays in its class by design; others fall at random.
        power_law_exponent: Exponent of the degree distribution, > 2: smaller means larger hubs. No node's expected
            degree exceeds a tenth of the nodes.
        feature_signal: Expected length of a class's centre in feature space, where the noise has variance 1 per axis.
        random_seed: Same arguments and seed, same graph.

    Returns:
        A task with each edge in both directions, sorted by source, no duplicates and no self-loops; half of the nodes
            to train, a quarter to validate and a quarter to test.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> glt.data.synthetic.synthetic_graph(num_nodes=200, num_classes=4)
        NodeTask('synthetic', 200 nodes, 2844 edges, x: float32 [200, 64], 4 classes, 100/50/50 to train/validate/test)
    """
    for name, value, is_valid, expected in (
        ("num_classes", num_classes, num_classes >= 1, "at least 1"),
        ("num_nodes", num_nodes, num_nodes >= max(num_classes, 4), f"at least 4 and num_classes ({num_classes})"),
        ("num_features", num_features, num_features >= 1, "at least 1"),
        ("avg_degree", avg_degree, 0 <= avg_degree < num_nodes, f"in [0, num_nodes) = [0, {num_nodes})"),
        ("homophily", homophily, 0 <= homophily <= 1, "a probability in [0, 1]"),
        ("power_law_exponent", power_law_exponent, power_law_exponent > 2, "above 2, where the mean degree is finite"),
        ("feature_signal", feature_signal, feature_signal >= 0, "not negative"),
    ):
        if not is_valid:
            raise ValueError(f"synthetic_graph: {name} = {value}, expected {expected}")
    rng = np.random.default_rng(random_seed)

    # Nodes are first numbered class by class, so that choosing within a class is choosing within a range; the ids that
    # leave this function are a random permutation of these numbers and say nothing about the class.
    class_ends = np.arange(1, num_classes + 1) * num_nodes // num_classes
    ranked_class = np.searchsorted(class_ends, np.arange(num_nodes), side="right")
    node_of_rank = rng.permutation(num_nodes)

    expected_degree = _expected_degrees(rng, num_nodes, avg_degree, power_law_exponent)
    source, target = _draw_edges(rng, expected_degree, class_ends, ranked_class, homophily)
    edge_index = _both_directions(node_of_rank[source], node_of_rank[target], num_nodes)

    y = np.empty(num_nodes, np.int64)
    y[node_of_rank] = ranked_class
    centre = rng.standard_normal((num_classes, num_features), np.float32) * feature_signal / np.sqrt(num_features)
    x = rng.standard_normal((num_nodes, num_features), np.float32)
    x += centre.astype(np.float32)[y]

    edges, rows, classes = (torch.from_numpy(array) for array in (edge_index, x, y))
    return NodeTask("synthetic", num_nodes, edges, rows, classes, *_sets(rng, num_nodes), num_classes)


def _sets(rng: np.random.Generator, num_nodes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Half of the nodes to learn from, a quarter each to choose by and to report."""
    shuffled, half, most = torch.from_numpy(rng.permutation(num_nodes)), num_nodes // 2, num_nodes * 3 // 4
    return shuffled[:half], shuffled[half:most], shuffled[most:]


def _expected_degrees(rng: np.random.Generator, num_nodes: int, avg_degree: float, exponent: float) -> np.ndarray:
    """Pareto weights scaled to the mean degree; the cap keeps one hub from owning the graph."""
    weight = (1 - rng.random(num_nodes)) ** (-1 / (exponent - 1))
    np.minimum(weight, weight.mean() * num_nodes / (10 * max(avg_degree, 1)), out=weight)
    return weight * (avg_degree / weight.mean())


def _draw_edges(
    rng: np.random.Generator,
    expected_degree: np.ndarray,
    class_ends: np.ndarray,
    ranked_class: np.ndarray,
    homophily: float,
) -> tuple[np.ndarray, np.ndarray]:
    """One (source, target) per undirected edge, as ranks."""
    # A node is the source of half of its edges and the target of the other half, in expectation.
    source = np.repeat(np.arange(len(expected_degree)), rng.poisson(expected_degree / 2))
    upto = np.concatenate([[0.0], np.cumsum(expected_degree)])
    class_start = upto[np.concatenate([[0], class_ends[:-1]])]
    class_mass = upto[class_ends] - class_start
    place = rng.random(len(source))
    stays = rng.random(len(source)) < homophily
    source_class = ranked_class[source]
    place = np.where(stays, class_start[source_class] + place * class_mass[source_class], place * upto[-1])
    # Rounding may put a place on the very end of a range.
    target = np.searchsorted(upto, place, side="right") - 1
    last = np.where(stays, class_ends[source_class], len(expected_degree)) - 1
    return source, np.minimum(target, last)


def _both_directions(source: np.ndarray, target: np.ndarray, num_nodes: int) -> np.ndarray:
    """``[2, E]`` int64, sorted by source and destination, no duplicates, no self-loops."""
    kept = source != target
    source, target = source[kept], target[kept]
    return _distinct(np.concatenate([source, target]), np.concatenate([target, source]), num_nodes)


# A synthetic citation network of papers, authors and venues, for demos and tests without a network.
#
# Every paper, author and venue has a class. A link of a paper stays in its class with probability ``homophily`` and
# else ends anywhere, as in the planted-partition model above. Papers cite older papers only, so
# that sampling by time has something to respect.


def synthetic_hetero_graph(
    num_papers: int = 4_000,
    num_authors: int = 2_000,
    num_venues: int = 40,
    num_classes: int = 8,
    num_features: int = 32,
    citations: float = 6.0,
    authors_per_paper: float = 3.0,
    homophily: float = 0.7,
    feature_signal: float = 1.5,
    random_seed: int = 0,
) -> HeteroNodeTask:
    """Draws papers whose classes show a little in each one's features and more in what it is linked to.

    Args:
        num_papers: The nodes to classify, numbered in no order of time.
        num_authors, num_venues: Authors have features; venues have none.
        num_features: Features per paper, and half as many per author.
        citations: Expected citations per paper before duplicates are dropped; the oldest have fewer.
        authors_per_paper: Expected authors of a paper beyond the first.
        num_classes, homophily, feature_signal, random_seed: As in :func:`synthetic_graph`.

    Returns:
        A task with the relations ``cites``, ``written_by`` and ``published_in``, their ``rev_`` relations, and
            ``node_time`` of papers: distinct, rising with age; half of the papers to learn from, a quarter each to
            choose by and to report.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> glt.data.synthetic.synthetic_hetero_graph(num_papers=200, num_authors=100, num_venues=8)
        HeteroNodeTask('synthetic_hetero', 308 nodes of 3 types, 3800 edges of 6 types, 8 classes of 'paper', 100/50/50
        to train/validate/test)
    """
    for name, value, low in (
        ("num_classes", num_classes, 1),
        ("num_papers", num_papers, num_classes),
        ("num_authors", num_authors, num_classes),
        ("num_venues", num_venues, num_classes),
        ("num_features", num_features, 2),
        ("citations", citations, 0),
        ("authors_per_paper", authors_per_paper, 0),
        ("feature_signal", feature_signal, 0),
    ):
        if value < low:
            raise ValueError(f"synthetic_hetero_graph: {name} = {value}, expected at least {low}")
    if not 0 <= homophily <= 1:
        raise ValueError(f"synthetic_hetero_graph: homophily = {homophily}, expected 0 to 1")
    rng = np.random.default_rng(random_seed)
    # Classes of authors and venues repeat in order, so that those of one class are c, c + C, c + 2C, ...
    paper_class = rng.integers(0, num_classes, num_papers)
    age_rank = rng.permutation(num_papers)  # 0 is the oldest

    def link(num_links: np.ndarray, num_ends: int) -> np.ndarray:
        """Links of papers to nodes whose classes repeat."""
        source = np.repeat(np.arange(num_papers), num_links)
        own = paper_class[source]
        of_class = (num_ends - own + num_classes - 1) // num_classes
        inside = own + num_classes * (rng.random(len(source)) * of_class).astype(np.int64)
        anywhere = rng.integers(0, num_ends, len(source))
        return _distinct(source, np.where(rng.random(len(source)) < homophily, inside, anywhere), num_ends)

    edge_index = {
        ("paper", "cites", "paper"): _citations(rng, paper_class, age_rank, citations, homophily),
        ("paper", "written_by", "author"): link(1 + rng.poisson(authors_per_paper, num_papers), num_authors),
        ("paper", "published_in", "venue"): link(np.ones(num_papers, np.int64), num_venues),
    }
    sets = _sets(rng, num_papers)
    author_class = np.arange(num_authors) % num_classes
    num_nodes = {"paper": num_papers, "author": num_authors, "venue": num_venues}
    edges = with_reverses({name: torch.from_numpy(ends) for name, ends in edge_index.items()})
    x = {
        "paper": _features(rng, paper_class, num_classes, num_features, feature_signal),
        "author": _features(rng, author_class, num_classes, num_features // 2, feature_signal),
    }
    y, times = torch.from_numpy(paper_class), {"paper": torch.from_numpy(age_rank.astype(np.int64))}
    return HeteroNodeTask("synthetic_hetero", num_nodes, edges, x, "paper", y, *sets, num_classes, times)


def _citations(
    rng: np.random.Generator, paper_class: np.ndarray, age_rank: np.ndarray, citations: float, homophily: float
) -> np.ndarray:
    by_age = np.argsort(age_rank)
    classes = paper_class[by_age]
    # Papers by class, in each class by age: the older ones of a paper's class are the slots before its own.
    by_class = np.argsort(classes, kind="stable")
    slot = np.empty(len(classes), np.int64)
    slot[by_class] = np.arange(len(classes))
    begin = np.searchsorted(classes[by_class], classes)
    source = np.repeat(np.arange(len(classes)), rng.poisson(citations, len(classes)))
    stays = rng.random(len(source)) < homophily
    num_older = np.where(stays, slot[source] - begin[source], source)
    pick = (rng.random(len(source)) * num_older).astype(np.int64)
    # The oldest of a class have none to cite there: their pick would be themselves.
    kept = num_older > 0
    source, pick, stays = source[kept], pick[kept], stays[kept]
    target = np.where(stays, by_class[np.where(stays, begin[source] + pick, 0)], pick)
    return _distinct(by_age[source], by_age[target], len(classes))


def _distinct(source: np.ndarray, target: np.ndarray, num_targets: int) -> np.ndarray:
    # One number per edge: a sort of plain integers is several times faster than a lexicographic one.
    key = np.unique(source * num_targets + target)
    return np.stack([key // num_targets, key % num_targets])


def _features(
    rng: np.random.Generator, classes: np.ndarray, num_classes: int, num_features: int, signal: float
) -> torch.Tensor:
    centre = rng.standard_normal((num_classes, num_features), np.float32) * np.float32(signal / np.sqrt(num_features))
    return torch.from_numpy(rng.standard_normal((len(classes), num_features), np.float32) + centre[classes])
