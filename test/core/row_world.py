"""One row at a time, from the native core and from the reference."""

import numpy as np

from glt import _core
from glt.testing import philox
from glt.testing.reference import reference_picks

TREE = 5  # Purpose::kTree


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


def reference_hop(indptr, nodes, k, replace=False, key=0, hop=0, *, edge_type=0, tree=None, indices=None, excluded=(),
                  weight=None, time=None, seed_time=None, last=False):  # fmt: skip
    """The picks of each node by the reference; excluded is a set of pairs, weight and time are per edge."""
    found = []
    for i, node in enumerate(int(n) for n in nodes):
        begin, end = int(indptr[node]), int(indptr[node + 1])
        node_key = key
        if tree is not None:
            word = philox((int(tree[i]), 0, 0, 0xFFFF0000 | TREE), key)
            node_key = word[1] << 32 | word[0]

        def draw(number, bound, node=node, node_key=node_key):
            words = philox((node & 0xFFFFFFFF, node >> 32, number // 2, edge_type << 16 | hop << 8), node_key)
            return (words[number % 2 * 2 + 1] << 32 | words[number % 2 * 2]) * bound >> 64

        allowed = [e for e in range(begin, end) if not excluded or (node, int(indices[e])) not in excluded]
        if seed_time is not None:
            allowed = [e for e in allowed if time[e] <= int(seed_time[i])]
        weights = None if weight is None else [int(w) for w in weight[begin:end]]
        picks = reference_picks(draw, [e - begin for e in allowed], k, replace, weight=weights, last=last)
        found.append(np.array(picks, np.int64) + begin)
    return found


def assert_same_rows(got, expected):
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert np.array_equal(a, b), (i, a, b)


def exclusions(pairs):
    ends = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return _core.Exclusions(ends[:, 0].copy(), ends[:, 1].copy())
