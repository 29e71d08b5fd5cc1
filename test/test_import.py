"""What importing glt costs and drags in."""

import subprocess
import sys

PROGRAM = """
import time, torch
begin = time.process_time()  # other programs may have the processor meanwhile
import glt, glt.data, glt.sampler, glt.testing
import sys
print(time.process_time() - begin, "torch_geometric" in sys.modules)
"""


def test_importing_glt_is_quick_and_leaves_torch_geometric_alone():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    seconds, has_pyg = done.stdout.split()
    assert has_pyg == "False"
    assert float(seconds) < 1.0, "beyond torch's own"
