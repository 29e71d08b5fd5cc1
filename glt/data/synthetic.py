"""Synthetic graphs with hubs, communities and a task worth learning: for demos, tests and benchmarks without a network.

The graph is drawn from the degree-corrected stochastic block model (Karrer & Newman, "Stochastic blockmodels and
community structure in networks", Physical Review E 83, 016107, 2011) in its planted-partition form: every node has a
class and a power-law weight; an edge's first end is chosen by weight among all nodes, its second end by weight, among
the nodes of the same class with probability ``homophily`` and else among all.
"""

from __future__ import annotations

import numpy as np
import torch

from glt.data.task import NodeTask


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
        num_nodes: Number of nodes.
        num_classes: Number of classes, each with about as many nodes as the others.
        num_features: Features per node.
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
    """
    _check("num_classes", num_classes, num_classes >= 1, "at least 1")
    _check("num_nodes", num_nodes, num_nodes >= max(num_classes, 4), f"at least 4 and num_classes ({num_classes})")
    _check("num_features", num_features, num_features >= 1, "at least 1")
    _check("avg_degree", avg_degree, 0 <= avg_degree < num_nodes, f"in [0, num_nodes) = [0, {num_nodes})")
    _check("homophily", homophily, 0 <= homophily <= 1, "a probability in [0, 1]")
    _check("power_law_exponent", power_law_exponent, power_law_exponent > 2, "above 2, where the mean degree is finite")
    _check("feature_signal", feature_signal, feature_signal >= 0, "not negative")
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

    shuffled = torch.from_numpy(rng.permutation(num_nodes))
    train_idx, val_idx, test_idx = shuffled.tensor_split([num_nodes // 2, num_nodes * 3 // 4])
    return NodeTask(
        name="synthetic",
        num_nodes=num_nodes,
        edge_index=torch.from_numpy(edge_index),
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        train_idx=train_idx,
        val_idx=val_idx,
        test_idx=test_idx,
        num_classes=num_classes,
    )


def _check(name: str, value: float, is_valid: bool, expected: str) -> None:
    if not is_valid:
        raise ValueError(f"synthetic_graph: {name} = {value}, expected {expected}")


def _expected_degrees(rng: np.random.Generator, num_nodes: int, avg_degree: float, exponent: float) -> np.ndarray:
    """Pareto weights (inverse transform), scaled to the mean degree; the cap keeps one hub from owning the graph."""
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
    # One number per edge: a sort of plain integers is several times faster than a lexicographic one.
    key = np.concatenate([source * num_nodes + target, target * num_nodes + source])
    key.sort()
    key = key[np.concatenate([[True], key[1:] != key[:-1]])] if len(key) else key
    return np.stack([key // num_nodes, key % num_nodes])
