"""Whole batches by weight: equal to the reference sampler's, bit for bit, edge types with weights and without."""

from dataclasses import replace as with_changes

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from row_world import weights_of
from typed_world import TypedWorld, assert_same, expected_of, random_world, result

from glt import _core
from glt.testing import reference_typed_batch


def weighted_world(seed):
    """A random world; three edge types in four have weights, some of them zero."""
    rng, plain = np.random.default_rng(seed), random_world(seed)
    edges, csrs = [], []
    for e in plain.edges:
        n = len(e.center)
        if rng.random() < 0.75:
            e = with_changes(e, weight=np.exp(rng.normal(0, 5, n)) * (rng.random(n) < 0.7))
        order = np.argsort(e.center, kind="stable")
        num_centers, num_neighbors = plain.num_nodes[e.expanded], plain.num_nodes[e.found]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(e.center, minlength=num_centers))])
        weights = {} if e.weight is None else weights_of(indptr, e.weight[order])
        edges.append(e)
        csrs.append(_core.Csr(indptr, e.neighbor[order], order, num_neighbor_nodes=num_neighbors, **weights))
    return rng, TypedWorld(plain.num_nodes, edges, csrs)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_batches_equal_the_reference(seed, replace, disjoint):
    rng, world = weighted_world(seed)
    seeds = world.seeds(rng)
    num_neighbors = [rng.choice([1, 2, 5, 34] + [-1] * (not replace), 3).tolist() for _ in world.edges]
    some = [np.flatnonzero(rng.random(len(e.center)) < 0.2) for e in world.edges]
    pairs = [(e.center[i], e.neighbor[i]) for e, i in zip(world.edges, some, strict=True)]
    expected = reference_typed_batch(
        len(world.num_nodes), world.edges, seeds, num_neighbors, key=seed, replace=replace, disjoint=disjoint,
        exclusions=[set(zip(c.tolist(), n.tolist(), strict=True)) for c, n in pairs],
    )  # fmt: skip
    for num_threads in (1, 3):
        batch = world.batch()
        batch.start(seeds, True, disjoint)
        batch.sample(
            world.csrs, num_neighbors, replace=replace, batch_key=seed, num_threads=num_threads,
            exclusions=[_core.Exclusions(c, n) for c, n in pairs],
        )  # fmt: skip
        assert_same(result(batch, world, disjoint=disjoint), expected_of(expected, disjoint=disjoint))
