"""What threads do in native code while the interpreter ends."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.parametrize("work", ["copies", "hand_over", "nodes", "frontier", "count_rows", "told"])
def test_daemon_threads_do_not_abort_a_process_that_ends(work, attempt):
    """Python unwinds such a thread as soon as it asks for the GIL, and no destructor lets that through."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM, work], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")
