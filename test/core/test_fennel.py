"""A pass of Fennel, replayed: every choice was a best one among the partitions with room."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glt import _core


def random_graph(generator, num_nodes, num_edges, dtype=np.int32):
    """Neighbours both ways; hubs, parallel edges and loops, which do not count."""
    src, dst = (generator.random((2, num_edges)) ** 2 * num_nodes).astype(np.int64)
    rows, cols = np.concatenate([src, dst]), np.concatenate([dst, src])
    order = np.argsort(rows, kind="stable")
    return np.searchsorted(rows[order], np.arange(num_nodes + 1)), cols[order].astype(dtype)


def random_case(seed, num_nodes, num_parts, num_labels, num_edges=60, dtype=np.int32):
    """Random numbers, a graph, a label of each node, and an equal share of the nodes of each label."""
    generator = np.random.default_rng(seed)
    graph = random_graph(generator, num_nodes, num_edges, dtype)
    label = generator.integers(0, num_labels, num_nodes).astype(np.uint16)
    return generator, graph, label, -(-np.bincount(label, minlength=num_labels) // num_parts)


def random_owner(generator, num_nodes, num_parts):
    """Owned by some of the partitions."""
    return generator.integers(0, generator.integers(1, num_parts + 1), num_nodes).astype(np.uint8)


def counted(label, owner, num_labels, num_parts):
    """Nodes of each label in each partition."""
    counts = np.zeros((num_labels, num_parts), np.int64)
    np.add.at(counts, (label, owner), 1)
    return counts


NO_EDGES = [], np.empty(0, np.int64)  # balanced by nodes alone


def in_blocks(edges):
    """Counts of edges ``[num_nodes, 2]`` as two types of nodes have them: the first half both kinds, the others, which
    have none of the first, a kind of their own."""
    half = len(edges) // 2
    return [edges[:half].copy(), edges[half:, 1:].copy()]


def by_kind(edges):
    """Counts ``[num_nodes, 3]`` of the kinds of :func:`in_blocks`."""
    half = len(edges) // 2
    wide = np.zeros((len(edges), 3), np.int64)
    wide[:half, :2], wide[half:, 2] = edges[:half], edges[half:, 1]
    return wide


def counted_edges(edges, label, owner, num_labels, num_parts):
    """Edges of each kind and label in each partition, given ``edges [num_nodes, kinds]``."""
    counts = np.zeros((edges.shape[1], num_labels, num_parts), np.int64)
    for kind, of_kind in enumerate(edges.T):
        np.add.at(counts[kind], (label, owner), of_kind)
    return counts


def degree_class(degree):
    return (int(degree).bit_length() + 2) // 3


def replay(indptr, indices, num_parts, label, label_cap, edges, edge_cap, penalty, before, owner):
    """Asserts that ``owner`` is what a pass may give; returns the edges cut. ``before`` None: the first pass."""
    num_nodes = indptr.size - 1
    mean_nodes = np.bincount(label, minlength=label_cap.size) / num_parts
    nobody = np.zeros(num_nodes, np.int64)
    mean_edges = counted_edges(edges, label, nobody, label_cap.size, 1)[:, :, 0] / num_parts
    mean_degree = max(edges.sum(), 1) / num_nodes
    nodes_in = np.zeros((label_cap.size, num_parts))
    edges_in = np.zeros((edges.shape[1], label_cap.size, num_parts))
    now = np.full(num_nodes, -1) if before is None else before.astype(np.int64)
    order = sorted(range(num_nodes), key=lambda v: -degree_class(indptr[v + 1] - indptr[v]) if before is None else 0)
    for v in order:
        neighbors = indices[indptr[v] : indptr[v + 1]]
        known = now[neighbors[neighbors != v]]
        votes = np.bincount(known[known >= 0], minlength=num_parts)
        room = nodes_in[label[v]] < label_cap[label[v]]
        some = np.flatnonzero(edges[v])  # the kinds that it has edges of
        loads, means = edges_in[some, label[v]], mean_edges[some, label[v], None]
        both = room & (loads + edges[v, some, None] <= edge_cap[some, label[v], None]).all(0)
        assert room[owner[v]]
        if both.any():
            cost = np.sqrt(nodes_in[label[v]] / mean_nodes[label[v]])
            cost += (np.sqrt(loads / means) * edges[v, some, None] / mean_degree).sum(0)
            score = np.where(both, votes - penalty * cost, -np.inf)
            assert both[owner[v]] and score[owner[v]] >= score.max() - 1e-9
        else:
            fullness = (loads / means).sum(0)
            assert fullness[owner[v]] <= fullness[room].min() + 1e-9
        nodes_in[label[v], owner[v]] += 1
        edges_in[:, label[v], owner[v]] += edges[v]
        now[v] = owner[v]
    rows = np.repeat(np.arange(num_nodes), np.diff(indptr))
    return np.count_nonzero(now[rows] != now[indices]) // 2


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_nodes=st.integers(1, 30),
    num_edges=st.integers(0, 100),
    num_parts=st.sampled_from([1, 2, 3, 7, 40, 300]),
    num_labels=st.integers(1, 3),
    penalty=st.sampled_from([0.0, 0.3, 2.0]),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_every_choice_is_a_best_one(seed, num_nodes, num_edges, num_parts, num_labels, penalty, dtype):
    generator, (indptr, indices), label, cap = random_case(seed, num_nodes, num_parts, num_labels, num_edges, dtype)
    cap, edges = cap + generator.integers(0, 2), generator.integers(0, 5, (num_nodes, 2))
    kinds = by_kind(edges)
    edge_cap = counted_edges(kinds, label, 0 * label, num_labels, 1)[:, :, 0] // num_parts + generator.integers(0, 6)
    owner = np.zeros(num_nodes, np.uint8 if num_parts <= 256 else np.uint16)
    before = None
    for is_first in (True, False, False):
        num_cut = _core.fennel_pass(
            indptr,
            indices,
            num_parts,
            label,
            cap,
            in_blocks(edges),
            edge_cap.reshape(-1),
            penalty,
            is_first,
            seed,
            owner,
        )
        wanted = replay(
            indptr, indices, num_parts, label, cap, kinds, edge_cap, penalty, before, owner.astype(np.int64)
        )
        assert num_cut == wanted
        before = owner.copy()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_nodes=st.integers(1, 30),
    num_parts=st.sampled_from([1, 2, 3, 7]),
    num_labels=st.integers(1, 3),
)
def test_overfull_partitions_are_emptied_to_their_caps_and_the_others_left_alone(
    seed, num_nodes, num_parts, num_labels
):
    generator, graph, label, cap = random_case(seed, num_nodes, num_parts, num_labels)
    owner = random_owner(generator, num_nodes, num_parts)
    before, old = counted(label, owner, num_labels, num_parts), owner.copy()
    num_moved = _core.move_overfull(*graph, num_parts, label, cap, *NO_EDGES, num_nodes, 1.0, seed, owner)
    assert (counted(label, owner, num_labels, num_parts) <= cap[:, None]).all()
    assert num_moved == np.count_nonzero(owner != old) == (before - cap[:, None]).clip(0).sum()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_nodes=st.integers(1, 30),
    num_parts=st.sampled_from([1, 2, 3, 7, 40]),
    num_labels=st.sampled_from([1, 2, 5, 30]),
    room=st.integers(0, 2),
)
def test_no_partition_keeps_more_than_its_share_of_all_labels_together(seed, num_nodes, num_parts, num_labels, room):
    """The caps of rare labels add up to more than a share of the nodes."""
    generator, graph, label, cap = random_case(seed, num_nodes, num_parts, num_labels)
    cap, node_cap = cap + generator.integers(0, 2), -(-num_nodes // num_parts) + room
    owner = random_owner(generator, num_nodes, num_parts)
    _core.move_overfull(*graph, num_parts, label, cap, *NO_EDGES, node_cap, 1.0, seed, owner)
    after, again = counted(label, owner, num_labels, num_parts), owner.copy()
    assert (after <= cap[:, None]).all() and after.sum(0).max() <= node_cap
    assert _core.move_overfull(*graph, num_parts, label, cap, *NO_EDGES, node_cap, 1.0, seed, again) == 0
    assert (again == owner).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_nodes=st.integers(1, 30),
    num_parts=st.sampled_from([1, 2, 3, 7]),
    num_labels=st.sampled_from([1, 3]),
)
def test_partitions_with_too_many_edges_give_some_away_within_the_caps_of_nodes(seed, num_nodes, num_parts, num_labels):
    generator, graph, label, cap = random_case(seed, num_nodes, num_parts, num_labels)
    cap, node_cap = cap + 1, -(-num_nodes // num_parts) + 1
    edges = (generator.random((num_nodes, 2)) ** 4 * 20).astype(np.int64)
    kinds = by_kind(edges)
    all_edges = counted_edges(kinds, label, 0 * label, num_labels, 1)
    edge_cap = (all_edges * 1.1 / num_parts).astype(np.int64) + 1
    owner = generator.integers(0, num_parts, num_nodes).astype(np.uint8)
    _core.move_overfull(*graph, num_parts, label, cap, *NO_EDGES, node_cap, 1.0, seed, owner)
    before = counted_edges(kinds, label, owner, num_labels, num_parts)
    _core.move_overfull(
        *graph, num_parts, label, cap, in_blocks(edges), edge_cap.reshape(-1), node_cap, 1.0, seed, owner
    )
    of_label = counted(label, owner, num_labels, num_parts)
    after = counted_edges(kinds, label, owner, num_labels, num_parts)
    assert (of_label <= cap[:, None]).all() and of_label.sum(0).max() <= node_cap
    assert (after <= np.maximum(before, edge_cap)).all()
    for kind, of, part in np.argwhere(after > edge_cap):  # nothing of it fits anywhere
        for v in np.flatnonzero((owner == part) & (label == of) & (kinds[:, kind] > 0)):
            some = np.flatnonzero(kinds[v])
            has_room = (of_label[of] < cap[of]) & (of_label.sum(0) < node_cap)
            assert not (has_room & (after[some, of] + kinds[v, some, None] <= edge_cap[some, of]).all(0)).any()


def test_partitions_without_room_for_all_nodes_are_an_error():
    with pytest.raises(ValueError, match="node_cap = 1: 2 partitions have no room for 3 nodes"):
        ends, owner = (np.zeros(4, np.int64), np.empty(0, np.int32)), np.zeros(3, np.uint8)
        _core.move_overfull(*ends, 2, None, np.array([3]), *NO_EDGES, 1, 1.0, 0, owner)


def test_ties_depend_on_the_seed_and_nothing_else():
    indptr, indices = np.zeros(1001, np.int64), np.zeros(0, np.int32)

    def owners(seed):
        owner = np.zeros(1000, np.uint8)
        _core.fennel_pass(indptr, indices, 4, None, np.array([1000]), *NO_EDGES, 0.0, True, seed, owner)
        return owner

    assert (owners(1) == owners(1)).all() and (owners(1) != owners(2)).any()
    # Uniform: 1000 draws of 1/4, five standard deviations, P < 3e-6 for the four together; the seed is fixed.
    assert abs(np.bincount(owners(1), minlength=4) - 250).max() < 5 * np.sqrt(1000 * 3 / 16)


def test_parallel_edges_become_weights():
    indptr = np.array([0, 4, 4, 7])
    indices = np.array([2, 0, 2, 2, 1, 0, 1], np.int32)
    merged = np.empty(4, np.int64)
    _core.sort_rows(indptr, indices, merged)
    assert merged.tolist() == [0, 2, 2, 4] and indices.tolist() == [0, 2, 2, 2, 0, 1, 1]
    neighbor, weight = np.empty(4, np.int64), np.empty(4, np.int64)
    _core.merge_rows(indptr, indices, merged, neighbor, weight)
    assert (neighbor.tolist(), weight.tolist()) == ([0, 2, 0, 1], [1, 3, 1, 2])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"label": np.array([0, 2, 0], np.uint16)}, IndexError, r"label\[1\] = 2: expected less than 1"),
        ({"owner": np.array([0, 5, 0], np.uint8)}, IndexError, r"owner\[1\] = 5: expected less than 2"),
        ({"owner": np.zeros(3, np.uint16)}, TypeError, "owner: expected a 1-d array of uint8"),
        ({"owner": np.zeros(2, np.uint8)}, ValueError, "owner has 2 elements: expected 3"),
        ({"indices": np.array([9, 0], np.int32)}, IndexError, r"indices\[0\] = 9 is outside \[0, 3\)"),
        ({"indptr": np.array([0, 2, 1, 2])}, ValueError, r"indptr\[2\] = 1 is below indptr\[1\] = 2"),
        ({"label_cap": np.array([1])}, ValueError, r"label_cap\[0\] = 1: no partition has room for another node"),
        ({"edges": [np.array([[1], [-1], [0]])]}, ValueError, "edges: expected counts of at least 0"),
        ({"edges": [np.ones((2, 1), np.int64)]}, ValueError, "edges are of 2 nodes: expected 3"),
        ({"edges": [np.ones(3, np.int64)]}, TypeError, "edges: expected 2-d arrays of int64"),
        ({"edges": [np.ones((3, 2), np.int64)]}, ValueError, "edge_cap has 0 elements: expected 2"),
        ({"penalty": float("nan")}, ValueError, "penalty = nan: expected a finite number"),
        ({"num_parts": 0}, ValueError, "num_parts = 0: expected 1 to 65536"),
    ],
)
def test_bad_input_is_refused(change, error, message):
    arguments = {
        "indptr": np.array([0, 1, 2, 2]),
        "indices": np.array([1, 0], np.int32),
        "num_parts": 2,
        "label": None,
        "label_cap": np.array([2]),
        "edges": [],
        "edge_cap": np.empty(0, np.int64),
        "penalty": 1.0,
        "is_first": False,
        "rng_seed": 0,
        "owner": np.zeros(3, np.uint8),
    }
    with pytest.raises(error, match=message):
        _core.fennel_pass(**(arguments | change))
