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


def printed(code):
    """The words that code prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()


def test_importing_glt_is_quick_and_leaves_torch_geometric_alone():
    seconds, has_pyg = printed(PROGRAM)
    assert has_pyg == "False"
    assert float(seconds) < 1.0, "beyond torch's own"


def test_flags_are_read_without_torch():
    assert printed("import sys, glt.cli; print('torch' in sys.modules)") == ["False"]


def test_a_sampling_process_imports_only_what_it_runs():
    for program in ("glt.distributed.engine.worker", "glt.distributed.server.worker"):
        loaded = printed(f"import sys, {program}; print(*[name.partition('.')[0] for name in sys.modules])")
        assert loaded.count("glt") <= 90 and "torch_geometric" not in loaded, program
