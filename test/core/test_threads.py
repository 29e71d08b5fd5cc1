"""Several Python threads, several native threads, and a fork in between."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from forking import holds_in_a_fork

from glt import _core
from glt.data import Topology
from glt.testing import random_graph


@pytest.fixture(scope="module")
def csr():
    graph = random_graph(5000, 60_000, seed=4)
    return Topology(graph.edge_index, graph.num_nodes, layout="CSC").csr


def batch_of(csr):
    return _core.Batch([csr.num_nodes], [(0, 0)])


def sample(batch, csr, index, num_threads):
    seeds = np.random.default_rng(index).integers(0, csr.num_nodes, 600)
    batch.start([(0, seeds)])
    batch.sample([csr], [[10, 5]], replace=False, batch_key=index, num_threads=num_threads)
    arrays = [np.zeros(n, np.int64) for n in [batch.num_nodes(0), *[batch.num_edges(0)] * 3]]
    batch.copy_nodes(0, arrays[0])
    batch.copy_edges(0, *arrays[1:])
    return np.concatenate(arrays)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_python_threads_with_batches_of_their_own_do_not_disturb_each_other(csr, num_threads):
    expected = [sample(batch_of(csr), csr, i, 1) for i in range(80)]
    mine = threading.local()

    def work(index):
        if not hasattr(mine, "batch"):
            mine.batch = batch_of(csr)
        return sample(mine.batch, csr, index, num_threads)

    with ThreadPoolExecutor(4) as threads:
        for got, want in zip(threads.map(work, range(80)), expected, strict=True):
            assert np.array_equal(got, want)


def test_errors_on_helper_threads_reach_the_caller_and_spare_the_others(csr):
    """One Python thread keeps failing on a damaged graph while another samples a sound one with the same helpers."""
    row_of = np.arange(csr.num_nodes, dtype=np.uint32)
    row_of[4321] = 2**32 - 1
    damaged = _core.Csr(np.zeros(csr.num_nodes + 1, np.int64), np.zeros(0, np.int64), None, row_of, csr.num_nodes)
    expected = sample(batch_of(csr), csr, 3, 1)

    def fail():
        batch = batch_of(csr)
        batch.start([(0, np.arange(csr.num_nodes))])
        with pytest.raises(IndexError, match=r"frontier\[4321\] = 4321 has no row"):
            batch.sample([damaged], [[2]], replace=False, batch_key=0, num_threads=3)

    with ThreadPoolExecutor(2) as threads:
        failures = [threads.submit(fail) for _ in range(50)]
        batch = batch_of(csr)
        for _ in range(50):
            assert np.array_equal(sample(batch, csr, 3, 3), expected)
        for failure in failures:
            failure.result(timeout=60)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_samples_with_threads_of_its_own(csr):
    """DataLoader workers are forks: the parent's helper threads do not exist there, its Batch objects do."""
    batch = batch_of(csr)
    expected = sample(batch, csr, 5, 2)  # the parent's helpers are running now
    assert holds_in_a_fork(lambda: all(np.array_equal(sample(b, csr, 5, 2), expected) for b in (batch, batch_of(csr))))
    assert np.array_equal(sample(batch, csr, 5, 2), expected)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_other_threads_sample_never_hangs_the_child(csr):
    """The child gets the parent's memory as it was that instant, whichever locks its threads held."""
    expected = sample(batch_of(csr), csr, 5, 2)
    stop = threading.Event()

    def keep_sampling():
        batch = batch_of(csr)
        while not stop.is_set():
            sample(batch, csr, 5, 2)

    batch = batch_of(csr)
    with ThreadPoolExecutor(2) as pool:
        try:
            sampling = [pool.submit(keep_sampling) for _ in range(2)]
            for _ in range(20):
                assert holds_in_a_fork(lambda: np.array_equal(sample(batch, csr, 5, 2), expected))
        finally:
            stop.set()
        for done in sampling:
            done.result(timeout=60)
