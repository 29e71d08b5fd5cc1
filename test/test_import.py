"""What importing glt costs and drags in."""

import importlib
import subprocess
import sys
import warnings

import pytest

from glt._faces import NEW_NAMES

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


def test_modules_are_found_by_their_old_names():
    for old, new in NEW_NAMES.items():
        sys.modules.pop(old, None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            module = importlib.import_module(old)
        assert f"{old} is {new} now: import that" in [str(each.message) for each in caught]
        for name, value in vars(importlib.import_module(new)).items():
            assert name.startswith("__") or getattr(module, name) is value


def test_public_names_are_found_in_their_old_modules():
    for old, names in {
        "glt.channel.base": "Channel Slot",
        "glt.channel.local": "LocalChannel",
        "glt.data.graph": "Graph",
        "glt.data.partition_book": "PartitionBook",
        "glt.distributed.dist_context": "DistContext DistRole",
        "glt.distributed.dist_dataset": "DistDataset",
        "glt.distributed.dist_link_neighbor_loader": "DistLinkNeighborLoader",
        "glt.distributed.dist_neighbor_loader": "DistNeighborLoader",
        "glt.distributed.dist_subgraph_loader": "DistSubGraphLoader",
        "glt.distributed.dist_tensor": "DistTensor",
        "glt.distributed.server_client": "init_client init_server request_server shutdown_client server_stats",
        "glt.loader.link_neighbor_loader": "LinkNeighborLoader",
        "glt.loader.neighbor_loader": "NeighborLoader",
        "glt.partition.distributed": "partition_distributed",
    }.items():
        sys.modules.pop(old, None)
        with pytest.warns(DeprecationWarning, match=f"{old} is"):
            module = importlib.import_module(old)
        assert [name for name in names.split() if not hasattr(module, name)] == []


def test_flags_are_read_without_torch():
    assert printed("import sys, glt.cli; print('torch' in sys.modules)") == ["False"]


def test_a_sampling_process_imports_only_what_it_runs():
    for program in ("glt.distributed.engine.worker", "glt.distributed.server.worker"):
        loaded = printed(f"import sys, {program}; print(*[name.partition('.')[0] for name in sys.modules])")
        assert loaded.count("glt") <= 90 and "torch_geometric" not in loaded, program
