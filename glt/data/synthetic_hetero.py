"""A synthetic citation network of papers, authors and venues, for demos and tests without a network.

Every paper, author and venue has a class. A link of a paper stays in its class with probability ``homophily`` and else
ends anywhere, as in the planted-partition model of :mod:`glt.data.synthetic`. Papers cite older papers only, so that
sampling by time has something to respect.
"""

from __future__ import annotations

import numpy as np
import torch

from glt.data.hetero_task import HeteroNodeTask, with_reverses


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
        num_papers: Papers; the ones to classify. They are numbered in no order of time.
        num_authors, num_venues: Authors have features; venues have none.
        num_classes: Number of classes.
        num_features: Features per paper, and half as many per author.
        citations: Expected citations per paper before duplicates are dropped; the oldest have fewer.
        authors_per_paper: Expected authors of a paper beyond the first.
        homophily: Probability, in [0, 1], that a link stays in its class by design.
        feature_signal: Expected length of a class's centre in feature space, where the noise has variance 1 per axis.
        random_seed: Same arguments and seed, same graph.

    Returns:
        A task with the relations ``cites``, ``written_by`` and ``published_in``, their ``rev_`` relations, and
        ``node_time`` of papers: distinct, rising with age; half of the papers to learn from, a quarter each to choose
        by and to report.

    Raises:
        ValueError: If an argument is out of range.
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
    shuffled = torch.from_numpy(rng.permutation(num_papers))
    train_idx, val_idx, test_idx = shuffled.tensor_split([num_papers // 2, num_papers * 3 // 4])
    author_class = np.arange(num_authors) % num_classes
    return HeteroNodeTask(
        name="synthetic_hetero",
        num_nodes={"paper": num_papers, "author": num_authors, "venue": num_venues},
        edge_index=with_reverses({name: torch.from_numpy(edges) for name, edges in edge_index.items()}),
        x={
            "paper": _features(rng, paper_class, num_classes, num_features, feature_signal),
            "author": _features(rng, author_class, num_classes, num_features // 2, feature_signal),
        },
        target="paper",
        y=torch.from_numpy(paper_class),
        train_idx=train_idx,
        val_idx=val_idx,
        test_idx=test_idx,
        num_classes=num_classes,
        node_time={"paper": torch.from_numpy(age_rank.astype(np.int64))},
    )


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
    # The oldest of a class have nobody to cite there: their pick would be themselves.
    kept = num_older > 0
    source, pick, stays = source[kept], pick[kept], stays[kept]
    target = np.where(stays, by_class[np.where(stays, begin[source] + pick, 0)], pick)
    return _distinct(by_age[source], by_age[target], len(classes))


def _distinct(source: np.ndarray, target: np.ndarray, num_targets: int) -> np.ndarray:
    """``[2, E]`` int64, sorted by source and target, no duplicates."""
    key = np.unique(source * num_targets + target)
    return np.stack([key // num_targets, key % num_targets])


def _features(
    rng: np.random.Generator, classes: np.ndarray, num_classes: int, num_features: int, signal: float
) -> torch.Tensor:
    centre = rng.standard_normal((num_classes, num_features), np.float32) * np.float32(signal / np.sqrt(num_features))
    return torch.from_numpy(rng.standard_normal((len(classes), num_features), np.float32) + centre[classes])
