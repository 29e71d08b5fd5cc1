"""Batches of several types, and disjoint ones, equal the reference sampler's, bit for bit, on every way there is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_world import (
    DENSE,
    HASHED,
    TypedWorld,
    assert_same,
    csr_of,
    expected_of,
    native_exclusions,
    random_world,
    result,
    stepwise,
)

from glt import _core
from glt.testing import ReferenceEdges, reference_typed_batch


def fan_outs(rng, world, replace, hops=None):
    hops = int(rng.integers(0, 4)) if hops is None else hops
    return [rng.choice([1, 2, 3, 0, 34] + [-1] * (not replace), hops).tolist() for _ in world.edges]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["CSC", "CSR"]))
def test_batches_equal_the_reference(seed, replace, disjoint, with_edge, layout):
    rng, world = np.random.default_rng(seed), random_world(seed, layout=layout)
    seeds, num_neighbors = world.seeds(rng), fan_outs(rng, world, replace)
    reference = reference_typed_batch(
        len(world.num_nodes), world.edges, seeds, num_neighbors, key=seed, replace=replace, disjoint=disjoint
    )
    expected = expected_of(reference, with_edge, disjoint)
    for limit in (DENSE, HASHED, 12):
        batch = world.batch(limit)
        batch.start(seeds, with_edge, disjoint)
        batch.sample(world.csrs, num_neighbors, replace=replace, batch_key=seed)
        assert_same(result(batch, world, with_edge, disjoint), expected)
        batch.start(seeds, with_edge, disjoint)
        if num_neighbors[0]:
            options = {"with_edge": with_edge, "disjoint": disjoint}
            stepwise(batch, world, num_neighbors, rng, replace=replace, batch_key=seed, **options)
        assert_same(result(batch, world, with_edge, disjoint), expected)


def check_options(seed, world, seeds, num_neighbors, *, disjoint=False, **options):
    """Whole and stepwise, on both tables, with seed_time, last or exclusions."""
    rng, start = np.random.default_rng(seed), {"disjoint": disjoint}
    if "seed_time" in options:
        start["seed_time"] = options.pop("seed_time")
    key = {"replace": options.pop("replace"), "batch_key": seed}
    pairs = options.pop("exclusions", None)
    reference = reference_typed_batch(
        len(world.num_nodes), world.edges, seeds, num_neighbors, key=seed, replace=key["replace"], **start, **options,
        exclusions=pairs,
    )  # fmt: skip
    options |= key | {"exclusions": None if pairs is None else native_exclusions(pairs)}
    for name, none in (("time_window", -1), ("half_life", 0)):
        if name in options:
            options[name] = [none if each is None else each for each in options[name]]
    for limit in (DENSE, HASHED):
        batch = world.batch(limit)
        batch.start(seeds, **start)
        batch.sample(world.csrs, num_neighbors, **options)
        assert_same(result(batch, world, True, disjoint), expected_of(reference, True, disjoint))
        batch.start(seeds, **start)
        stepwise(batch, world, num_neighbors, rng, **start, **options)
        assert_same(result(batch, world, True, disjoint), expected_of(reference, True, disjoint))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans())
def test_temporal_batches_equal_the_reference(seed, replace, last, excluding):
    """Edge types with and without times; every tree has its seed's time in all its hops."""
    rng, world = np.random.default_rng(seed), random_world(seed, timed=True)
    seeds, num_neighbors = world.seeds(rng), fan_outs(rng, world, replace, hops=3)
    seed_time = rng.integers(-1, 22, sum(len(ids) for _, ids in seeds))
    options = {"exclusions": world.exclusions(rng)} if excluding else {}
    check_options(
        seed, world, seeds, num_neighbors, disjoint=True, seed_time=seed_time, replace=replace, last=last, **options
    )


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from(["uniform", "last", "decay"]), st.booleans())
def test_windows_and_draws_by_age_equal_the_reference(seed, replace, strategy, excluding):
    """A window and a half-life of its own for each edge type, or none."""
    rng, world = np.random.default_rng(seed), random_world(seed, timed=True)
    seeds, num_neighbors = world.seeds(rng), fan_outs(rng, world, replace, hops=3)
    options = {"exclusions": world.exclusions(rng)} if excluding else {}
    options["seed_time"] = rng.integers(-1, 22, sum(len(ids) for _, ids in seeds))
    options["time_window"] = [rng.choice([None, 0, 3, 8, 2**63 - 1]) for _ in world.edges]
    if strategy == "decay":
        options["half_life"] = [rng.choice([None, 1, 2, 7, 2**63 - 1]) for _ in world.edges]
    last = strategy == "last"
    check_options(seed, world, seeds, num_neighbors, disjoint=True, replace=replace, last=last, **options)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans())
def test_weighted_batches_without_some_edges_equal_the_reference(seed, replace, disjoint, excluding):
    rng, world = np.random.default_rng(seed), random_world(seed, weighted=True)
    seeds, num_neighbors = world.seeds(rng), fan_outs(rng, world, replace, hops=3)
    options = {"exclusions": world.exclusions(rng)} if excluding else {}
    check_options(seed, world, seeds, num_neighbors, disjoint=disjoint, replace=replace, **options)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["plain", "weighted", "timed", "age"]), st.booleans(), st.booleans())
def test_rows_of_the_lowest_numbers_equal_the_reference(seed, kind, disjoint, excluding):
    rng = np.random.default_rng(seed)
    timed = kind in ("timed", "age")
    world = random_world(seed, weighted=kind == "weighted", timed=timed)
    seeds, num_neighbors = world.seeds(rng), fan_outs(rng, world, replace=False, hops=3)
    options = {"exclusions": world.exclusions(rng)} if excluding else {}
    if timed:
        options["seed_time"] = rng.integers(-1, 22, sum(len(ids) for _, ids in seeds))
    if kind == "age":
        options["half_life"] = [rng.choice([None, 1, 5]) for _ in world.edges]
    options |= {"shared_key": seed + 1, "disjoint": disjoint or timed}
    check_options(seed, world, seeds, num_neighbors, replace=False, **options)


def threshold_world(rng, kind):
    """Rows of all lengths around every threshold of the core, with parallel edges to few neighbours; weights over many
    magnitudes, many of them equal, zero or tiny."""
    degrees = np.concatenate([[0, 1, 2, 8, 15, 16, 17, 18, 700], rng.integers(0, 40, 19)])
    center = np.repeat(np.arange(28), rng.permutation(degrees))
    num_edges, weight = len(center), None
    if kind in ("float32", "float64"):
        weight = np.where(rng.random(num_edges) < 0.3, 0, np.exp(rng.normal(0, 8, num_edges))).astype(kind)
        weight[rng.random(num_edges) < 0.2] = 1
        weight[center == rng.integers(0, 28)] = 0
    time = rng.integers(-5, 6, num_edges) if kind in ("timed", "last") else None
    if kind == "age":
        time = rng.integers(-100, 0, num_edges) ** 3  # over more than 32 half-lives, and within few
    edges = ReferenceEdges(0, 1, center, rng.integers(0, 28, num_edges), time=time, weight=weight)
    return TypedWorld([28, 28], [edges], [csr_of(edges, 28, 28)])


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("kind", ["plain", "timed", "last", "age", "float32", "float64"])
def test_rows_around_every_threshold(kind, replace):
    rng = np.random.default_rng(1)
    world = threshold_world(rng, kind)
    (edges,), nodes = world.edges, rng.permutation(np.repeat(np.arange(28), 2))
    # Some neighbours of a few nodes, every neighbour of two, and pairs that are no edges.
    some = (rng.random(len(edges.center)) < 0.1) | np.isin(edges.center, rng.integers(0, 28, 2))
    pairs = set(zip(edges.center[some].tolist(), edges.neighbor[some].tolist(), strict=True)) | {(3, 10**12)}
    for k in [0, 1, 2, 3, 7, 16, 31, 33, 60, 257, 400] + [-1] * (not replace):
        options = {"replace": replace, "last": kind == "last", "disjoint": bool(k % 2)}
        if kind in ("timed", "last"):
            options |= {"disjoint": True, "seed_time": rng.integers(-7, 8, len(nodes))}
        if kind == "age":
            options |= {"disjoint": True, "seed_time": rng.integers(-(10**6), 9, len(nodes)), "half_life": [20_000]}
        for excluded in (None, pairs):
            check_options(k + 9, world, [(0, nodes)], [[k]], exclusions=[excluded], **options)
        if not replace and kind != "last":
            check_options(k + 9, world, [(0, nodes)], [[k]], exclusions=[pairs], shared_key=k + 9, **options)


@pytest.mark.parametrize("by_age", [False, True])
def test_many_exclusions_of_one_weighted_row(by_age):
    """Beyond 256 excluded and taken edges sums are kept in a tree; the picks are the same function of draws."""
    rng = np.random.default_rng(4)
    kind = {"time": rng.integers(0, 1000, 1000)} if by_age else {"weight": rng.random(1000)}
    edges = ReferenceEdges(0, 1, np.zeros(1000, np.int64), rng.integers(0, 3, 1000), **kind)
    world = TypedWorld([1, 3], [edges], [csr_of(edges, 1, 3)])
    times = {"seed_time": np.array([999, 990]), "half_life": [90], "disjoint": True} if by_age else {}
    for k, replace in [(3, False), (3, True), (250, False), (300, False), (300, True), (660, False)]:
        for excluded in (None, {(0, 1)}):
            seeds = [(0, np.zeros(2, np.int64))]
            check_options(9, world, seeds, [[k]], replace=replace, exclusions=[excluded], **times)


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_threads_and_tables_do_not_change_a_batch(replace, disjoint):
    """Frontiers of many chunks, so that helpers take part; hash tables that grow meanwhile."""
    rng, world = np.random.default_rng(3), random_world(21, largest=6000, edges=24_000)
    seeds = [(t, rng.integers(0, n, 1500)) for t, n in enumerate(world.num_nodes)]
    num_neighbors = [[4, 3, 2]] * len(world.edges)
    reference = reference_typed_batch(
        len(world.num_nodes), world.edges, seeds, num_neighbors, key=5, replace=replace, disjoint=disjoint
    )
    assert max(len(n) for n in reference.node) > (4096 if disjoint else 600)
    for limit in (DENSE, HASHED):
        batch = world.batch(limit)
        for num_threads in (1, 2, 4):
            batch.start(seeds, True, disjoint)
            batch.sample(world.csrs, num_neighbors, replace=replace, batch_key=5, num_threads=num_threads)
            assert_same(result(batch, world, True, disjoint), expected_of(reference, True, disjoint))
    batch.start(seeds, True, disjoint)
    stepwise(batch, world, num_neighbors, rng, replace=replace, batch_key=5, disjoint=disjoint)
    assert_same(result(batch, world, True, disjoint), expected_of(reference, True, disjoint))


def test_one_batch_object_serves_batches_of_every_kind():
    """Disjoint ones hash, others may not: nothing of one is left in the next."""
    rng, world = np.random.default_rng(1), random_world(21)
    used = world.batch()
    for index in range(200):
        seeds, disjoint, with_edge = world.seeds(rng), bool(index % 3 == 0), bool(index % 2)
        num_neighbors = fan_outs(rng, world, False, hops=2)
        results = []
        for batch in (used, world.batch()):
            batch.start(seeds, with_edge, disjoint)
            batch.sample(world.csrs, num_neighbors, replace=False, batch_key=index)
            results.append(result(batch, world, with_edge, disjoint))
        assert_same(*results)


def test_a_disjoint_batch_is_its_seeds_batches_side_by_side():
    """Each tree draws for itself, and equal seeds differ: as many trees as seeds, however often a node is a seed."""
    world = random_world(5, largest=60, edges=400)
    seeds = [(0, np.array([0, 0, 1, 0]))]
    num_neighbors = [[3, 3]] * len(world.edges)
    batch = world.batch()
    batch.start(seeds, disjoint=True)
    batch.sample(world.csrs, num_neighbors, replace=False, batch_key=9)
    node, tree, row, col, *_ = result(batch, world, disjoint=True)
    assert tree[0][:4].tolist() == [0, 1, 2, 3]
    for kind in range(len(world.num_nodes)):
        pairs = np.stack([tree[kind], node[kind]])
        assert len(np.unique(pairs, axis=1).T) == len(node[kind])
        assert np.array_equal(batch.trees(kind), tree[kind])
    for r, e in enumerate(world.edges):
        assert np.array_equal(tree[e.found][row[r]], tree[e.expanded][col[r]]), "no edge between two trees"


def test_edge_types_draw_independently():
    """Two edge types with the same edges: a node that has both does not take the same ones of both."""
    center, neighbor = np.zeros(1000, np.int64), np.arange(1000)
    indptr = np.array([0, 1000])
    csr = _core.Csr(indptr, neighbor, num_neighbor_nodes=1000)
    batch = _core.Batch([1, 1000], [(0, 1), (0, 1)])
    batch.start([(0, np.array([0]))])
    batch.sample([csr, csr], [[10], [10]], replace=False, batch_key=1)
    first, second = batch.edges(0), batch.edges(1)
    assert len(np.intersect1d(first, second)) < 5
    edges = [ReferenceEdges(0, 1, center, neighbor)] * 2
    want = reference_typed_batch(2, edges, [(0, [0])], [[10], [10]], key=1)
    assert np.array_equal(first, want.edge[0]) and np.array_equal(second, want.edge[1])


def test_no_types_no_hops_no_seeds():
    batch = _core.Batch([], [])
    batch.start([])
    batch.sample([], [], replace=False, batch_key=0)
    batch = _core.Batch([3, 0], [(0, 1), (1, 0)])
    batch.start([(0, np.array([2])), (1, np.zeros(0, np.int64))])
    batch.sample([None, None], [[], []], replace=False, batch_key=0)
    assert batch.num_sampled_nodes(0) == [1] and batch.num_sampled_edges(0) == []
    batch.start([])
    batch.sample([None, None], [[1, 2], [3, -1]], replace=False, batch_key=0)
    assert batch.num_sampled_nodes(0) == [0, 0, 0] and batch.num_sampled_edges(1) == [0, 0]


def test_bad_arguments_name_themselves():
    csr = _core.Csr(np.array([0, 1, 2]), np.array([0, 2]), num_neighbor_nodes=3)
    batch = _core.Batch([2, 3], [(0, 1), (1, 0)])
    ids = np.array([0, 1])
    for call, error, message in [
        (lambda: _core.Batch([2, -3], []), ValueError, r"num_nodes\[1\] = -3"),
        (lambda: _core.Batch([2], [(0, 0), (0, 1)]), ValueError, r"ends\[1\] has node type 1: expected \[0, 1\)"),
        (lambda: batch.start([(0, ids), (2, ids)]), ValueError, r"seeds\[1\] has node type 2: expected \[0, 2\)"),
        (lambda: batch.start([(1, ids), (0, ids + 1)]), IndexError, r"seeds\[1\]\[1\] = 2 is outside \[0, 2\)"),
        (lambda: batch.start([(0, ids)], seed_time=ids), ValueError, "seed_time needs disjoint = True"),
        (lambda: batch.start([(0, ids)], True, True, ids[:1]), ValueError, "seed_time has 1 elements: expected 2"),
        (lambda: batch.nodes(2), IndexError, r"node_type = 2: expected \[0, 2\)"),
        (lambda: batch.edges(-1), IndexError, r"edge_type = -1: expected \[0, 2\)"),
        (lambda: batch.trees(0), ValueError, "trees were asked for"),
        (lambda: batch.frontier_trees(0), ValueError, "trees were asked for"),
    ]:
        with pytest.raises(error, match=message):
            call()
    batch.start([(0, ids)])
    for csrs, num_neighbors, options, message in [
        ([csr], [[1], [1]], {}, "csrs has 1 elements: expected one per edge type, 2"),
        ([csr, None], [[1]], {}, "num_neighbors has 1 lists: expected one per edge type, 2"),
        ([csr, None], [[1], [1, 2]], {}, r"num_neighbors\[1\] has 2 hops, num_neighbors\[0\] has 1"),
        ([csr, None], [[1], [1]], {"exclusions": [None]}, "exclusions has 1 elements"),
        ([csr, csr], [[1], [1]], {}, "the graph of edge type 1 has 2 nodes with 3 possible neighbours"),
        ([csr, None], [[1], [-2]], {}, r"num_neighbors\[0\] = -2"),
    ]:
        with pytest.raises(ValueError, match=message):
            batch.sample(csrs, num_neighbors, **({"replace": False, "batch_key": 0} | options))
    part = (np.arange(2, dtype=np.uint32), np.zeros(2, np.uint32), ids[:0], ids[:0])
    batch.expand_from(0, [part])
    with pytest.raises(ValueError, match="edge type 0 was expanded before in this hop"):
        batch.expand_from(0, [part])
    with pytest.raises(ValueError, match="part 0 has 3 elements"):
        batch.expand_from(1, [part[:3]])
