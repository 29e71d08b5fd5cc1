"""Rows sampled by weight, by time, without excluded edges, in trees: equal to the reference, bit for bit."""

import numpy as np
import pytest
from row_world import assert_same_rows, exclusions, one_hop, reference_hop, weights_of

from glt import _core
from glt.testing.reference import integer_weights

FAN_OUTS = [0, 1, 2, 3, 7, 16, 31, 33, 60, 257, 400, -1]
LARGE_KEY = 2**63 + 12345


class World:
    """Rows of all lengths around every threshold of the core, with parallel edges to few neighbours."""

    def __init__(self, seed, max_degree=40):
        rng = self.rng = np.random.default_rng(seed)
        degrees = np.concatenate([[0, 1, 2, 8, 15, 16, 17, 18], rng.integers(0, max_degree, 20)])
        degrees[rng.integers(0, len(degrees))] = 700
        rng.shuffle(degrees)
        self.num_nodes = len(degrees)
        self.indptr = np.concatenate([[0], np.cumsum(degrees)])
        self.num_edges = int(self.indptr[-1])
        self.indices = rng.integers(0, self.num_nodes, self.num_edges)
        self.nodes = rng.permutation(np.repeat(np.arange(self.num_nodes), 2))

    def csr(self, **arrays):
        return _core.Csr(self.indptr, self.indices, **arrays)

    def pairs(self):
        """Excluded pairs: none of most nodes, some of a few, every neighbour of two."""
        row = np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))
        some = self.rng.random(self.num_edges) < 0.1
        pairs = set(zip(row[some].tolist(), self.indices[some].tolist(), strict=True))
        for node in self.rng.integers(0, self.num_nodes, 2).tolist():
            pairs |= {(node, int(n)) for n in self.indices[self.indptr[node] : self.indptr[node + 1]]}
        return pairs | {(3, 10**12), (10**12, 3)}

    def weight(self):
        """Weights over many magnitudes, many of them equal, zero or tiny."""
        weight = np.exp(self.rng.normal(0, 8, self.num_edges))
        weight[self.rng.random(self.num_edges) < 0.3] = 0
        weight[self.rng.random(self.num_edges) < 0.2] = 1
        zero = self.rng.integers(0, self.num_nodes)
        weight[self.indptr[zero] : self.indptr[zero + 1]] = 0
        return weight

    def time(self):
        time = self.rng.integers(-5, 6, self.num_edges)
        return np.concatenate([np.sort(time[a:b]) for a, b in zip(self.indptr, self.indptr[1:], strict=False)])

    def check(self, csr, k, replace, *, excluded=(), weight=None, time=None, last=False, seed_time=None):
        options = {"edge_type": 3, "seed_time": seed_time, "last": last}
        options["tree"] = self.rng.integers(0, 2**32, len(self.nodes)).astype(np.uint32)
        got = one_hop(
            csr, self.nodes, k, replace, LARGE_KEY, 2, num_threads=2,
            exclusions=exclusions(excluded) if excluded else None, **options,
        )  # fmt: skip
        expected = reference_hop(
            self.indptr, self.nodes, k, replace, LARGE_KEY, 2, indices=self.indices, excluded=excluded, weight=weight,
            time=time, **options,
        )  # fmt: skip
        assert_same_rows(got, expected)


def fan_outs(replace):
    return [k for k in FAN_OUTS if not (replace and k < 0)]


@pytest.mark.parametrize("replace", [False, True])
def test_trees_edge_types_and_exclusions(replace):
    world = World(1)
    pairs = world.pairs()
    for k in fan_outs(replace):
        world.check(world.csr(), k, replace)
        world.check(world.csr(), k, replace, excluded=pairs)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_times(replace, last):
    world = World(2)
    time, pairs = world.time(), world.pairs()
    csr = world.csr(time=time)
    for k in fan_outs(replace):
        seed_time = world.rng.integers(-7, 8, len(world.nodes))
        world.check(csr, k, replace, time=time, seed_time=seed_time, last=last)
        world.check(csr, k, replace, time=time, seed_time=seed_time, last=last, excluded=pairs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("replace", [False, True])
def test_weights(replace, dtype):
    world = World(3)
    weight, pairs = world.weight().astype(dtype), world.pairs()
    rows = list(zip(world.indptr, world.indptr[1:], strict=False))
    integers = [i for a, b in rows for i in integer_weights(weight[a:b].tolist())]
    built = weights_of(world.indptr, weight)
    sums = [s for a, b in rows for s in np.cumsum(integers[a:b], dtype=np.uint64)]
    assert np.array_equal(built["weight_sum"], sums)
    csr = world.csr(**built)
    for k in fan_outs(replace):
        world.check(csr, k, replace, weight=integers)
        world.check(csr, k, replace, weight=integers, excluded=pairs)


def test_many_exclusions_of_one_weighted_row():
    """Beyond 256 excluded and taken edges sums are kept in a tree; the picks are the same function of draws."""
    rng = np.random.default_rng(4)
    indptr, indices = np.array([0, 1000]), rng.integers(0, 3, 1000)
    csr = _core.Csr(indptr, indices, num_neighbor_nodes=3, **weights_of(indptr, weight := rng.random(1000)))
    integers = integer_weights(weight.tolist())
    for excluded in [set(), {(0, 1)}]:
        for k, replace in [(3, False), (3, True), (250, False), (300, False), (300, True), (660, False)]:
            got = one_hop(csr, [0, 0], k, replace, 9, exclusions=exclusions(excluded))
            expected = reference_hop(indptr, [0, 0], k, replace, 9, indices=indices, excluded=excluded, weight=integers)
            assert_same_rows(got, expected)


def test_rows_do_not_depend_on_where_they_stand():
    """Cut points depend on the place of a row in the arrays; picks must not, or partitions would disagree."""
    rng = np.random.default_rng(5)
    degree, weight = 200, np.exp(rng.normal(0, 3, 200))
    rows = []
    for before in range(9):
        indptr = np.array([0, before, before + degree, before + degree + 5])
        csr = _core.Csr(
            indptr, np.zeros(indptr[-1], np.int32), row_of=np.array([9, 9, 9, 1], np.uint32), num_nodes=4,
            **weights_of(indptr, np.concatenate([np.ones(before), weight, np.zeros(5)])),
        )  # fmt: skip
        rows.append(np.concatenate([*one_hop(csr, [3], 40, key=8), *one_hop(csr, [3], 40, True, key=8)]) - before)
    assert all(np.array_equal(rows[0], row) for row in rows)
