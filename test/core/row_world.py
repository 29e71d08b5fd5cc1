"""One row at a time, from the native core."""

import numpy as np

from glt import _core


def star(*degrees, **arrays):
    """Node i has degrees[i] neighbours, all of them node 0; the position of an edge is its id."""
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return _core.Csr(indptr, np.zeros(indptr[-1], np.int64), **arrays)


def weights_of(indptr, weight):
    """weight_sum and weight_guide, as keywords of Csr."""
    weight = np.asarray(weight)
    sums = np.full(len(weight), 7, np.uint64)
    guide = np.full(_core.weight_guide_size(len(indptr) - 1, len(weight)), 7, np.uint32)
    _core.build_weights(np.asarray(indptr, np.int64), weight, sums, guide)
    return {"weight_sum": sums, "weight_guide": guide}


def weighted_star(degrees, weight):
    return star(*degrees, **weights_of(np.concatenate([[0], np.cumsum(degrees)]), weight))


def damaged_weights(rng, indptr):
    """weight_sum and weight_guide as no one wrote them: what files hold that nobody verified."""
    built = weights_of(indptr, rng.random(indptr[-1]) * (rng.random(indptr[-1]) < 0.7))
    sums, guide = built.values()
    far = np.array([0, 1, 2**32, 2**62, 2**63, 2**64 - 1], np.uint64)
    for array, values in ((sums, far), (guide, far.astype(np.uint32))):
        some = rng.random(len(array)) < rng.choice([0, 0.1, 1])
        array[some] = rng.choice(values, some.sum()) if rng.random() < 0.7 else rng.permutation(array)[some]
    return built


def one_hop(csr, nodes, k, replace=False, key=0, hop=0, **options):
    """The picks of each node, as a list of arrays of edge ids."""
    nodes = np.asarray(nodes, np.int64)
    one = _core.OneHop(csr, nodes, k, replace, key, hop, **options)
    count, neighbor, edge = np.zeros(len(nodes), np.uint32), *np.full((2, one.num_edges), -7, np.int64)
    one.copy_out(count, neighbor, edge)
    return np.split(edge, np.cumsum(count)[:-1]) if len(nodes) else []


def table(csr, nodes, k, replace=False, key=0, **options):
    """The same where every node takes k edges: [len(nodes), k], counted from the beginning of each row."""
    rows = np.stack(one_hop(csr, nodes, k, replace, key, **options))
    assert rows.shape == (len(nodes), k)
    return rows - (csr.num_edges // csr.num_nodes) * np.asarray(nodes)[:, None]


def exclusions(pairs):
    ends = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return _core.Exclusions(ends[:, 0].copy(), ends[:, 1].copy())
