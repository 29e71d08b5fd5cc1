"""A batch handed over is the one that would be copied out, and its memory is the receiver's."""

import gc
import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from forking import holds_in_a_fork
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_world import DENSE, HASHED, assert_same, random_world, result

from glt import _core
from glt.data import Topology
from glt.testing import random_graph


@pytest.fixture(scope="module")
def csr():
    graph = random_graph(20_000, 300_000, seed=4)
    return Topology(graph.edge_index, graph.num_nodes, layout="CSC").csr


def batch_of(csr):
    return _core.Batch([csr.num_nodes], [(0, 0)])


def sampled(batch, csr, num_seeds, index, num_threads=1, num_neighbors=(10, 5)):
    seeds = np.random.default_rng(index).integers(0, csr.num_nodes, num_seeds)
    batch.start([(0, seeds)])
    batch.sample([csr], [list(num_neighbors)], replace=False, batch_key=index, num_threads=num_threads)
    return batch


def copied(batch):
    arrays = [np.zeros(n, np.int64) for n in [batch.num_nodes(0), *[batch.num_edges(0)] * 3]]
    batch.copy_nodes(0, arrays[0])
    batch.copy_edges(0, *arrays[1:])
    return arrays


def handed(batch):
    ((node, tree),), ((ends, edge),) = batch.hand_over()
    assert tree is None
    return [node, ends[0], ends[1], edge]


def used_bytes():
    return _core.BlockPool.of_process().stats()["used_bytes"]


def flat(handed, world, with_edge, disjoint, counts):
    """What ``hand_over`` gave, as :func:`typed_world.result` has it."""
    nodes, edges = handed
    assert all((trees is not None) == disjoint for _, trees in nodes)
    assert all((ids is not None) == with_edge for _, ids in edges)
    row, col = ([ends[i] for ends, _ in edges] for i in (0, 1))
    tree = [trees for _, trees in nodes] if disjoint else None
    return [[ids for ids, _ in nodes], tree, row, col, [ids for _, ids in edges] if with_edge else None, *counts]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.sampled_from([25, 3000]), st.sampled_from([1, 3]))
def test_it_is_what_would_be_copied_out(seed, with_edge, disjoint, largest, num_threads):
    """Small types and large ones side by side, whichever memory they are in."""
    rng, world = np.random.default_rng(seed), random_world(seed, largest, edges=20 * largest)
    seeds = [(t, rng.integers(0, n, min(n, largest // 2))) for t, n in enumerate(world.num_nodes)]
    for limit in (DENSE, HASHED):
        batch = world.batch(limit)
        for index in range(3):
            batch.start(seeds, with_edge, disjoint)
            batch.sample(
                world.csrs, [[5, 3]] * len(world.edges), replace=False, batch_key=index, num_threads=num_threads
            )
            expected = result(batch, world, with_edge, disjoint)
            got = flat(batch.hand_over(), world, with_edge, disjoint, expected[5:])
            assert_same(got, expected)
            assert all(a.dtype == np.int64 and a.flags.c_contiguous and a.flags.writeable for a in got[0] + got[2])


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_seeds", [0, 30, 5000])
def test_induced_edges_are_handed_over_too(csr, num_seeds, num_threads):
    batch = sampled(batch_of(csr), csr, num_seeds, 1, num_threads, [2])
    batch.induce([csr], num_threads)
    assert_same([copied(batch)], [handed(batch)])


def test_arrays_stay_as_they_are_while_the_batch_goes_on_and_when_it_is_gone(csr):
    batch, other = batch_of(csr), batch_of(csr)
    kept = [handed(sampled(batch, csr, 300 + 40 * i, i)) for i in range(30)]
    del batch
    gc.collect()
    for i, arrays in enumerate(kept):
        assert_same([arrays], [copied(sampled(other, csr, 300 + 40 * i, i))])
        for array in arrays:
            array[:] = -i  # writing to one disturbs no other
    assert all((array == -i).all() for i, arrays in enumerate(kept) for array in arrays)


def test_memory_returns_when_the_last_view_is_gone(csr):
    gc.collect()
    before, batch = used_bytes(), batch_of(csr)
    kept = [handed(sampled(batch, csr, 2000, i)) for i in range(5)]
    nbytes = sum(array.nbytes for arrays in kept for array in arrays)
    assert nbytes <= used_bytes() - before <= 1.5 * nbytes, "a block is little larger than what is in it"
    views = [arrays[3][10:20] for arrays in kept]
    del kept
    assert 0 < used_bytes() - before <= 1.5 * nbytes
    del views
    assert used_bytes() == before, "a batch that was handed over keeps nothing"


def test_a_small_batch_does_not_keep_the_room_of_a_large_one(csr):
    gc.collect()
    batch, before = batch_of(csr), used_bytes()
    handed(sampled(batch, csr, 20_000, 0, 1, [15]))
    small = [handed(sampled(batch, csr, 1500, i)) for i in range(20)]
    nbytes = sum(array.nbytes for arrays in small for array in arrays)
    assert used_bytes() - before <= 2 * nbytes + 20 * 4 * 4096


@pytest.mark.parametrize("take", [handed, copied])
def test_room_that_is_not_needed_for_a_while_is_let_go(csr, take):
    """Of batches that are copied, and of those that are too small to be given away."""
    gc.collect()
    batch, before = batch_of(csr), used_bytes()
    take(sampled(batch, csr, 20_000, 0, 1, [15]))
    for i in range(60):
        take(sampled(batch, csr, 20, i))
    assert used_bytes() - before <= 10 * 4096


def test_memory_is_given_away_not_copied(csr):
    """A batch takes a block for its nodes, one for both ends of its edges and one for their ids, once it knows about
    how many there are; also some time after a batch that was far larger."""

    def acquired():
        return _core.BlockPool.of_process().stats()["acquired"]

    batch = batch_of(csr)
    for num_seeds in (1500, 20_000):
        handed(sampled(batch, csr, num_seeds, 0))
        for i in range(30):
            handed(sampled(batch, csr, 1500 + 10 * (i % 7), i))
        before = acquired()
        for i in range(30):
            handed(sampled(batch, csr, 1500 + 10 * (i % 7), i))
        assert acquired() - before == 3 * 30


def test_a_steady_state_has_no_page_faults(csr):
    batch, kept = batch_of(csr), []

    def faults_of_a_round():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for i in range(42):
            kept.append(handed(sampled(batch, csr, 1500 + 10 * (i % 7), i)))
            del kept[:-6]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    # As in test_pool.py: the best of some rounds, and a few strays. Fresh memory would fault once per page.
    rounds = [faults_of_a_round() for _ in range(5)]
    pages = 42 * sum(array.nbytes for array in kept[-1]) // 4096
    assert min(rounds[1:]) <= pages // 50, (rounds, pages)


@pytest.mark.parametrize("num_seeds", [3, 3000])
def test_after_that_it_takes_no_call_but_start(csr, num_seeds):
    batch = sampled(batch_of(csr), csr, num_seeds, 1)
    expected = copied(batch)
    batch.hand_over()
    for call in (
        batch.hand_over,
        batch.end_hop,
        batch.begin_induce,
        lambda: batch.induce([csr]),
        lambda: batch.sample([csr], [[1]], replace=False, batch_key=0),
        lambda: batch.expand_from(0, []),
        lambda: batch.induce_from(0, []),
        lambda: batch.frontier(0),
        lambda: batch.nodes(0),
        lambda: batch.edges(0),
        lambda: batch.num_nodes(0),
        lambda: batch.num_edges(0),
        lambda: batch.num_sampled_nodes(0),
        lambda: batch.num_sampled_edges(0),
        lambda: batch.copy_nodes(0, np.zeros(0, np.int64)),
        lambda: batch.copy_edges(0, *np.zeros((3, 0), np.int64)),
    ):
        with pytest.raises(ValueError, match="the batch has been handed over: call start first"):
            call()
    assert_same([copied(sampled(batch, csr, num_seeds, 1))], [expected])


def test_threads_hand_over_and_let_go_at_will(csr):
    expected = [copied(sampled(batch_of(csr), csr, 1500, i)) for i in range(8)]

    def work(number):
        batch = batch_of(csr)
        for i in range(40):
            arrays = handed(sampled(batch, csr, 1500, (i + number) % 8, 1 + number % 2))
            assert_same([arrays], [expected[(i + number) % 8]])
            for array in arrays:
                array[:] = -1

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, n) for n in range(4)]:
            done.result(timeout=120)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_finds_a_pool_that_is_whole_open_and_empty(csr):
    """Whatever other threads were doing to it: children of a process that keeps sampling sample, and let go of what
    they inherited."""
    expected = copied(sampled(batch_of(csr), csr, 1500, 5))
    stop = threading.Event()

    def keep_sampling():
        batch = batch_of(csr)
        while not stop.is_set():
            handed(sampled(batch, csr, 1500, 5))

    batch, inherited = batch_of(csr), handed(sampled(batch_of(csr), csr, 1500, 5))

    def pool_is_sound():
        empty = _core.BlockPool.of_process().stats()["free_bytes"] == 0
        same = [np.array_equal(a, b) for a, b in zip(inherited, expected, strict=True)]
        inherited.clear()
        again = [handed(sampled(batch, csr, 1500, 5)) for _ in range(3)]
        same += [np.array_equal(a, b) for arrays in again for a, b in zip(arrays, expected, strict=True)]
        return empty and all(same)

    with ThreadPoolExecutor(2) as pool:
        try:
            sampling = [pool.submit(keep_sampling) for _ in range(2)]
            for _ in range(20):
                assert holds_in_a_fork(pool_is_sound)
        finally:
            stop.set()
        for done in sampling:
            done.result(timeout=60)
