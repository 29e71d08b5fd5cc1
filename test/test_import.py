"""What importing glt costs and drags in."""

import importlib
import subprocess
import sys

import pytest

import glt

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
        assert loaded.count("glt") <= 93 and "torch_geometric" not in loaded, program


def test_names_that_pyg_users_type_stand_at_the_top():
    home, pyg = printed("import sys, glt; print(glt.Dataset.__module__, 'torch_geometric' in sys.modules)")
    assert (home, pyg) == ("glt.data.dataset", "False")
    for name in ("NeighborLoader", "LinkNeighborLoader", "SubGraphLoader"):
        assert getattr(glt, name) is getattr(glt.loader, name)


@pytest.mark.parametrize(
    "asked, told",
    [
        ("glt.DistNeighborLoader", "it is glt.distributed.DistNeighborLoader"),
        ("glt.RandomPartitioner", "it is glt.partition.RandomPartitioner"),
        ("glt.PeerLost", "it is glt.errors.PeerLost"),
        ("glt.distributed.NeighborLoader", "it is glt.NeighborLoader"),
        ("glt.NeighbourLoader", "did you mean glt.NeighborLoader?"),
        ("glt.DistNeighbourLoader", "did you mean glt.distributed.DistNeighborLoader?"),
        ("glt.distributed.init_servr", "did you mean glt.distributed.init_server?"),
        ("glt.partition.RandomPartioner", "did you mean glt.partition.RandomPartitioner?"),
    ],
)
def test_a_name_that_stands_elsewhere_is_told(asked, told):
    package, name = asked.rsplit(".", 1)
    with pytest.raises(AttributeError) as caught:
        getattr(importlib.import_module(package), name)
    assert str(caught.value) == f"module {package!r} has no attribute {name!r}: {told}"


@pytest.mark.parametrize("name", ["nonsense", "_private"])
def test_a_name_like_no_other_is_told_plainly(name):
    with pytest.raises(AttributeError, match=f"^module 'glt.loader' has no attribute '{name}'$"):
        getattr(glt.loader, name)


def test_asking_for_a_name_with_dots_is_no_import():
    assert not hasattr(glt, "loader.loaders.no_such_name")
