"""What threads do in native code while the interpreter ends."""

import subprocess
import sys

import pytest

PROGRAM = """
import threading
import numpy as np
from glt import _core

csr = _core.Csr(np.arange(0, 50001, 10), np.arange(50000) % 5000)
seeds = np.arange(1000)

def sample(busy):
    batch = _core.Batch([5000], [(0, 0)])
    while True:
        batch.start([(0, seeds)])
        batch.sample([csr], [[5, 5]], replace=False, batch_key=0)
        batch.copy_nodes(0, np.empty(batch.num_nodes(0), np.int64))
        busy.set()

threads = [threading.Event() for _ in range(4)]
for busy in threads:
    threading.Thread(target=sample, args=(busy,), daemon=True).start()
for busy in threads:
    assert busy.wait(60)
print("ends")
"""


@pytest.mark.parametrize("attempt", range(3))
def test_daemon_threads_do_not_abort_a_process_that_ends(attempt):
    """Python unwinds such a thread as soon as it asks for the GIL, and no destructor lets that through."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")
