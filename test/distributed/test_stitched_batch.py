"""What a batch on a device makes of the rows of several partitions equals the CPU's, and nonsense is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glt import _core
from glt.data.device import require_accelerator
from glt.distributed.engine.device_sampler import StitchedBatch

ENDS = [(0, 0), (0, 1), (1, 0)]
NUM_NODES = [9, 5]


def on_host(num_nodes=NUM_NODES, ends=ENDS):
    return StitchedBatch(num_nodes, ends, require_accelerator("host", "device"), None)


def answers(rng, num_rows, num_found, device):
    """Rows of any neighbours from up to three partitions, as the CPU takes them, and as a device does."""
    owner = rng.integers(0, 3, num_rows)
    plain, placed = [], []
    for part in range(3):
        at = np.flatnonzero(owner == part).astype(np.uint32)
        if len(at) == 0:
            continue
        count = rng.integers(0, 4, len(at)).astype(np.uint32)
        neighbor, edge = rng.integers(0, num_found, count.sum()), rng.integers(0, 99, count.sum())
        plain.append((at, count, neighbor, edge))
        on_device = [torch.from_numpy(each.astype(np.int64)) for each in (count, neighbor, edge)]
        placed.append((at, *on_device) if device and part == 0 else plain[-1])
    return plain, placed


def contents(batch, with_edge, disjoint):
    found = []
    for t in range(2):
        node, tree = np.full((2, batch.num_nodes(t)), -7, np.int64)
        batch.copy_nodes(t, node, tree if disjoint else None)
        found += [node.tolist(), tree.tolist(), batch.num_sampled_nodes(t)]
    for r in range(3):
        row, col, edge = np.full((3, batch.num_edges(r)), -7, np.int64)
        batch.copy_edges(r, row, col, edge if with_edge else None)
        found += [row.tolist(), col.tolist(), edge.tolist()]
    return found


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans())
def test_hops_are_put_together_as_on_the_cpu(seed, with_edge, disjoint, induced):
    rng = np.random.default_rng(seed)
    ours, theirs = on_host(), _core.Batch(NUM_NODES, ENDS)
    seeds = [(int(t), rng.integers(0, NUM_NODES[t], rng.integers(0, 5))) for t in rng.integers(0, 2, 3)]
    for batch in (ours, theirs):
        batch.start(seeds, with_edge, disjoint, None)
    for _ in range(3):
        for r, (expanded, found) in enumerate(ENDS):
            frontier = theirs.frontier(expanded)
            assert frontier.tolist() == ours.frontier(expanded).tolist()
            if disjoint:
                assert theirs.frontier_trees(expanded).tolist() == ours.frontier_trees(expanded).tolist()
            if len(frontier) and rng.random() < 0.8:
                plain, placed = answers(rng, len(frontier), NUM_NODES[found], True)
                theirs.expand_from(r, plain)
                ours.expand_from(r, placed)
        for batch in (ours, theirs):
            batch.end_hop()
    assert [ours.num_sampled_edges(r) for r in range(3)] == [theirs.num_sampled_edges(r) for r in range(3)]
    assert contents(ours, with_edge, disjoint) == contents(theirs, with_edge, disjoint)
    if induced and not disjoint:
        for batch in (ours, theirs):
            batch.begin_induce()
        for r, (expanded, found) in enumerate(ENDS):
            members = theirs.nodes(found)
            if theirs.num_nodes(expanded) and len(members):
                plain, _ = answers(rng, theirs.num_nodes(expanded), len(members), False)
                plain = [(at, count, members[neighbor], edge) for at, count, neighbor, edge in plain]
                for batch in (ours, theirs):
                    batch.induce_from(r, plain)
        assert contents(ours, with_edge, False) == contents(theirs, with_edge, False)


def part(*position, neighbor=(), count=None):
    counts = np.ones(len(position), np.uint32) if count is None else np.array(count, np.uint32)
    return np.array(position, np.uint32), counts, np.array(neighbor, np.int64), None


def test_answers_that_do_not_fit_are_refused():
    batch = on_host()
    with pytest.raises(IndexError, match=r"seeds\[1\] = 9 is outside \[0, 9\)"):
        batch.start([(0, np.array([3, 9]))], False, False, None)
    batch.start([(0, np.array([3, 4]))], False, False, None)
    for parts, error, message in [
        ([part(0, neighbor=(1,))], ValueError, "1 rows were answered: expected each of the 2 asked for, once"),
        ([part(0, neighbor=(1,)), part(0, neighbor=(1,))], ValueError, "expected each of the 2 asked for, once"),
        ([part(0, 1, neighbor=(1,))], ValueError, "part 0 has 1 edges, its counts add up to 2"),
        ([part(0, 1, neighbor=(1, 9))], IndexError, r"neighbours of part 0\[1\] = 9 is outside \[0, 9\)"),
    ]:
        with pytest.raises(error, match=message):
            batch.expand_from(0, parts)
    batch.begin_induce()
    with pytest.raises(ValueError, match="edge type 0: a neighbour is not in the batch"):
        batch.induce_from(0, [part(0, 1, neighbor=(4, 5))])
    with pytest.raises(ValueError, match="a disjoint batch of 2 seeds, of 4611686018427387904 nodes"):
        on_host([2**62], [(0, 0)]).start([(0, np.array([3, 4]))], False, True, None)
