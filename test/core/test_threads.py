"""Threads of the native pool: their work, what it hands over, how it ends."""

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_world import DENSE, HASHED, assert_same, random_world, result

from glt import _core
from glt.data import Topology
from glt.testing import random_graph


def holds_in_a_fork(check):
    """Forks, and says whether ``check()`` is true there. A child that hangs dies of it, after 30 seconds."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(30)
            status = 0 if check() else 2
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def batch_of(csr):
    return _core.Batch([csr.num_nodes], [(0, 0)])


@pytest.fixture(scope="module")
def large():
    graph = random_graph(20_000, 300_000, seed=4)
    return Topology(graph.edge_index, graph.num_nodes, layout="CSC").csr


def sampled(batch, large, num_seeds, index, num_threads=1, num_neighbors=(10, 5)):
    seeds = np.random.default_rng(index).integers(0, large.num_nodes, num_seeds)
    batch.start([(0, seeds)])
    batch.sample([large], [list(num_neighbors)], replace=False, batch_key=index, num_threads=num_threads)
    return batch


def copied(batch):
    arrays = [np.zeros(n, np.int64) for n in [batch.num_nodes(0), *[batch.num_edges(0)] * 3]]
    batch.copy_nodes(0, arrays[0])
    batch.copy_edges(0, *arrays[1:])
    return arrays


def same(arrays, expected):
    return all(map(np.array_equal, arrays, expected))


def test_errors_on_helper_threads_reach_the_caller_and_spare_the_others(large):
    """One Python thread keeps failing on a damaged graph while another samples a sound one with the same helpers."""
    row_of = np.arange(large.num_nodes, dtype=np.uint32)
    row_of[4321] = 2**32 - 1
    damaged = _core.Csr(np.zeros(large.num_nodes + 1, np.int64), np.zeros(0, np.int64), None, row_of, large.num_nodes)
    expected = copied(sampled(batch_of(large), large, 600, 3))

    def fail():
        batch = batch_of(large)
        batch.start([(0, np.arange(large.num_nodes))])
        with pytest.raises(IndexError, match=r"frontier\[4321\] = 4321 has no row"):
            batch.sample([damaged], [[2]], replace=False, batch_key=0, num_threads=3)

    with ThreadPoolExecutor(2) as threads:
        failures = [threads.submit(fail) for _ in range(50)]
        batch = batch_of(large)
        for _ in range(50):
            assert same(copied(sampled(batch, large, 600, 3, 3)), expected)
        for failure in failures:
            failure.result(timeout=60)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_samples_with_threads_of_its_own(large):
    """DataLoader workers are forks: the parent's helper threads do not exist there, its Batch objects do."""
    batch = batch_of(large)
    expected = copied(sampled(batch, large, 600, 5, 2))  # the parent's helpers are running now

    def is_same_again():
        return all(same(copied(sampled(each, large, 600, 5, 2)), expected) for each in (batch, batch_of(large)))

    assert holds_in_a_fork(is_same_again) and is_same_again()


PROGRAM = """
import sys, threading
import numpy as np
from glt import _core

csr = _core.Csr(np.arange(0, 50001, 10), np.arange(50000) % 5000)
rows = np.arange(4_000_000) % 5000
position, owner = np.arange(5000, dtype=np.uint32), np.zeros(5000, np.uint8)

def sampled(num_seeds, num_neighbors):
    batch = _core.Batch([5000], [(0, 0)])
    while True:
        batch.start([(0, np.arange(num_seeds))])
        batch.sample([csr], [num_neighbors], replace=False, batch_key=0)
        yield batch

def copies():
    for batch in sampled(1000, [5, 5]):
        batch.copy_nodes(0, np.empty(batch.num_nodes(0), np.int64))
        yield

def hand_over():
    for batch in sampled(2500, [1]):
        batch.hand_over()
        yield

def nodes():
    for batch in sampled(2500, [1]):
        for _ in range(50):
            batch.nodes(0)
        yield

def frontier():
    for batch in sampled(2500, [1]):
        for _ in range(50):
            batch.frontier(0)
        yield

def count_rows(num_threads=1, progress=None):
    indptr = np.empty(5001, np.int64)
    while True:
        _core.count_rows(rows, rows, position, owner, owner, 1, indptr, num_threads=num_threads, progress=progress)
        yield

def told():
    yield from count_rows(2, lambda num_bytes: sum(range(10_000)))

def work(busy):
    for _ in globals()[sys.argv[1]]():
        busy.set()

threads = [threading.Event() for _ in range(4)]
for busy in threads:
    threading.Thread(target=work, args=(busy,), daemon=True).start()
for busy in threads:
    assert busy.wait(60)
print("ends")
"""


@pytest.mark.parametrize("attempt", [0, *(pytest.param(at, marks=pytest.mark.full) for at in (1, 2))])
@pytest.mark.parametrize("work", ["copies", "hand_over", "nodes", "frontier", "count_rows", "told"])
def test_daemon_threads_do_not_abort_a_process_that_ends(work, attempt):
    """Python unwinds such a thread as soon as it asks for the GIL, and no destructor lets that through."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM, work], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")


def handed(batch):
    ((node, tree),), ((ends, edge),) = batch.hand_over()
    assert tree is None
    return [node, ends[0], ends[1], edge]


def used_bytes():
    return _core.BlockPool.of_process().stats()["used_bytes"]


def flat(handed, world, with_edge, disjoint, counts, expanded_first):
    """What ``hand_over`` gave, as :func:`typed_world.result` has it."""
    nodes, edges = handed
    assert all((trees is not None) == disjoint for _, trees in nodes)
    assert all((ids is not None) == with_edge for _, ids in edges)
    row, col = ([ends[i] for ends, _ in edges] for i in ((1, 0) if expanded_first else (0, 1)))
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
            expanded_first = bool(rng.integers(2))
            handed = batch.hand_over(expanded_first=expanded_first)
            got = flat(handed, world, with_edge, disjoint, expected[5:], expanded_first)
            assert_same(got, expected)
            assert all(a.dtype == np.int64 and a.flags.c_contiguous and a.flags.writeable for a in got[0] + got[2])


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_seeds", [0, 30, 5000])
def test_induced_edges_are_handed_over_too(large, num_seeds, num_threads):
    batch = sampled(batch_of(large), large, num_seeds, 1, num_threads, [2])
    batch.induce([large], num_threads)
    assert_same([copied(batch)], [handed(batch)])


def test_arrays_stay_as_they_are_while_the_batch_goes_on_and_when_it_is_gone(large):
    batch, other = batch_of(large), batch_of(large)
    kept = [handed(sampled(batch, large, 300 + 40 * i, i)) for i in range(30)]
    del batch
    gc.collect()
    for i, arrays in enumerate(kept):
        assert_same([arrays], [copied(sampled(other, large, 300 + 40 * i, i))])
        for array in arrays:
            array[:] = -i  # writing to one disturbs no other
    assert all((array == -i).all() for i, arrays in enumerate(kept) for array in arrays)


def test_memory_returns_when_the_last_view_is_gone(large):
    gc.collect()
    before, batch = used_bytes(), batch_of(large)
    kept = [handed(sampled(batch, large, 2000, i)) for i in range(5)]
    nbytes = sum(array.nbytes for arrays in kept for array in arrays)
    assert nbytes <= used_bytes() - before <= 1.5 * nbytes, "a block is little larger than what is in it"
    views = [arrays[3][10:20] for arrays in kept]
    del kept
    assert 0 < used_bytes() - before <= 1.5 * nbytes
    del views
    assert used_bytes() == before, "a batch that was handed over keeps nothing"


def test_a_small_batch_does_not_keep_the_room_of_a_large_one(large):
    gc.collect()
    batch, before = batch_of(large), used_bytes()
    handed(sampled(batch, large, 20_000, 0, 1, [15]))
    small = [handed(sampled(batch, large, 1500, i)) for i in range(20)]
    nbytes = sum(array.nbytes for arrays in small for array in arrays)
    assert used_bytes() - before <= 2 * nbytes + 20 * 4 * 4096


@pytest.mark.parametrize("take", [handed, copied])
def test_room_that_is_not_needed_for_a_while_is_let_go(large, take):
    """Of batches that are copied, and of those that are too small to be given away."""
    gc.collect()
    batch, before = batch_of(large), used_bytes()
    take(sampled(batch, large, 20_000, 0, 1, [15]))
    for i in range(60):
        take(sampled(batch, large, 20, i))
    assert used_bytes() - before <= 10 * 4096


def test_memory_is_given_away_not_copied(large):
    """One block for nodes, one for both ends of edges and one for their ids, also after a batch that was far larger."""

    def acquired():
        return _core.BlockPool.of_process().stats()["acquired"]

    batch = batch_of(large)
    for num_seeds in (1500, 20_000):
        handed(sampled(batch, large, num_seeds, 0))
        for i in range(30):
            handed(sampled(batch, large, 1500 + 10 * (i % 7), i))
        before = acquired()
        for i in range(30):
            handed(sampled(batch, large, 1500 + 10 * (i % 7), i))
        assert acquired() - before == 3 * 30


def test_a_steady_state_has_no_page_faults(large):
    batch, kept = batch_of(large), []

    def faults_of_a_round():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for i in range(42):
            kept.append(handed(sampled(batch, large, 1500 + 10 * (i % 7), i)))
            del kept[:-6]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    # The best of some rounds, and a few strays. Fresh memory would fault once per page.
    rounds = [faults_of_a_round() for _ in range(5)]
    pages = 42 * sum(array.nbytes for array in kept[-1]) // 4096
    assert min(rounds[1:]) <= pages // 50, (rounds, pages)


@pytest.mark.parametrize("num_seeds", [3, 3000])
def test_after_that_it_takes_no_call_but_start(large, num_seeds):
    batch = sampled(batch_of(large), large, num_seeds, 1)
    expected = copied(batch)
    batch.hand_over()
    none = np.zeros((3, 0), np.int64)
    without = [batch.hand_over, batch.end_hop, batch.begin_induce]
    of_type = [batch.frontier, batch.nodes, batch.edges, batch.num_nodes, batch.num_edges, batch.num_sampled_nodes]
    calls = without + [partial(call, 0) for call in [*of_type, batch.num_sampled_edges]]
    calls += [partial(batch.expand_from, 0, []), partial(batch.induce_from, 0, []), partial(batch.induce, [large])]
    calls += [partial(batch.copy_nodes, 0, none[0]), partial(batch.copy_edges, 0, *none)]
    calls += [partial(batch.sample, [large], [[1]], replace=False, batch_key=0)]
    for call in calls:
        with pytest.raises(ValueError, match="the batch has been handed over: call start first"):
            call()
    assert_same([copied(sampled(batch, large, num_seeds, 1))], [expected])


def test_threads_hand_over_and_let_go_at_will(large):
    expected = [copied(sampled(batch_of(large), large, 1500, i)) for i in range(8)]

    def work(number):
        batch = batch_of(large)
        for i in range(40):
            arrays = handed(sampled(batch, large, 1500, (i + number) % 8, 1 + number % 3 * 2))
            assert_same([arrays], [expected[(i + number) % 8]])
            for array in arrays:
                array[:] = -1

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, n) for n in range(4)]:
            done.result(timeout=120)


def test_a_second_thread_is_told_that_the_batch_is_in_use(large):
    batch, part, none = batch_of(large), [], np.zeros((3, 0), np.int64)
    expected, is_over = copied(sampled(batch_of(large), large, 600, 3)), threading.Event()
    calls = [partial(sampled, batch, large, 5, 1), partial(batch.induce, [large]), batch.begin_induce, batch.end_hop]
    calls += [partial(batch.expand_from, 0, part), partial(batch.induce_from, 0, part), batch.hand_over]
    calls += [partial(batch.copy_nodes, 0, none[0]), partial(batch.copy_edges, 0, *none)]
    counts = [batch.num_nodes, batch.num_edges, batch.num_sampled_nodes, batch.num_sampled_edges]
    calls += [partial(call, 0) for call in [batch.frontier, batch.nodes, batch.edges, *counts]]

    def keep_sampling():
        while not is_over.is_set():
            with contextlib.suppress(RuntimeError, ValueError):  # the other thread is in a call, or was between two
                sampled(batch, large, 20_000, 0)

    def is_refused(call):
        try:
            call()
        except (ValueError, IndexError):  # not in this state of the batch
            return False
        except RuntimeError as error:
            return "the Batch is in use by another thread" in str(error)
        return False

    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(keep_sampling)
        try:
            for call in calls:
                began_s = time.monotonic()
                while not is_refused(call):
                    assert time.monotonic() - began_s < 60, call
        finally:
            is_over.set()
        sampling.result(timeout=60)
    assert same(copied(sampled(batch, large, 600, 3)), expected)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_finds_a_pool_that_is_whole_open_and_empty(large):
    """A child of a process that keeps sampling samples, and lets go of what it inherited."""
    expected = copied(sampled(batch_of(large), large, 1500, 5))
    stop = threading.Event()

    def keep_sampling():
        batch = batch_of(large)
        while not stop.is_set():
            handed(sampled(batch, large, 1500, 5, 2))

    batch, inherited = batch_of(large), handed(sampled(batch_of(large), large, 1500, 5))

    def pool_is_sound():
        empty = _core.BlockPool.of_process().stats()["free_bytes"] == 0
        is_kept = same(inherited, expected)
        inherited.clear()
        return empty and is_kept and all(same(handed(sampled(batch, large, 1500, 5, 2)), expected) for _ in range(3))

    with ThreadPoolExecutor(2) as pool:
        try:
            sampling = [pool.submit(keep_sampling) for _ in range(2)]
            for _ in range(20):
                assert holds_in_a_fork(pool_is_sound)
        finally:
            stop.set()
        for done in sampling:
            done.result(timeout=60)
