"""PyG's own tests, unmodified, on glt's loaders and on glt's sampler inside PyG's loaders.

They are not part of this project: ``GLT_PYG_TESTS`` names where they are, a clone of PyG's repository (its committed
``test`` directory is taken) or a copy of that directory. Tests of the installed PyG's age fit best. For example::

    GLT_PYG_TESTS=~/pytorch_geometric pytest test/pyg
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = os.environ.get("GLT_PYG_TESTS", "")

pytestmark = pytest.mark.skipif(not SOURCE, reason="GLT_PYG_TESTS does not name a clone of PyG")

SELECTED = "not test_basic_gnn or inference or trim"  # of the models' tests, those of loaders
FILES = [
    "loader/test_neighbor_loader.py",
    "loader/test_imbalanced_sampler.py",
    "loader/test_zip_loader.py",
    "loader/test_cache.py",
    "loader/test_prefetch.py",
    "utils/test_trim_to_layer.py",
    "nn/models/test_basic_gnn.py",
    "loader/test_link_neighbor_loader.py",
]
SAMPLER = ["sampler/test_sampler_base.py", "sampler/test_sampler_neighbor_sampler.py"]

# Cases that do not run, and why. Every other case has to pass.
NOT_RUN = {
    "test_pyg_lib_and_torch_sparse_homo_equality": "compares pyg-lib with torch-sparse",
    "test_pyg_lib_and_torch_sparse_hetero_equality": "compares pyg-lib with torch-sparse",
    "test_neighbor_loader_with_tensor_frame": "needs torch_frame",
    "test_trim_sparse_tensor": "needs torch-sparse's SparseTensor",
    "test_homogeneous_neighbor_sampler_temporal_backwards": "ends with pytest.skip in PyG, when all it checks held",
    "test_bidirectional_neighbor_sampler_hetero": "marked as not implemented in PyG",
}


@pytest.fixture(scope="module")
def pygs_tests(tmp_path_factory):
    """A directory with PyG's tests."""
    source = Path(SOURCE).expanduser()
    if (source / "loader").is_dir():
        return source
    directory = tmp_path_factory.mktemp("pyg")
    archive = subprocess.run(["git", "-C", source, "archive", "HEAD", "test"], capture_output=True, check=True)
    subprocess.run(["tar", "x", "-C", directory], input=archive.stdout, check=True)
    return directory / "test"


def run(pygs_tests, mode, files, report):
    """Runs PyG's tests in a process of their own; returns the outcome of each case by name."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "on_glt", "-p", "no:cacheprovider", "-c", os.devnull,
               f"--rootdir={pygs_tests}", f"--junitxml={report}", "-W", "ignore", "-k", SELECTED, *files]  # fmt: skip
    path = os.pathsep.join([str(HERE.parent.parent), str(HERE)])
    environment = {**os.environ, "GLT_PYG_MODE": mode, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=pygs_tests, env=environment, capture_output=True, text=True, timeout=280)
    assert report.exists(), done.stdout + done.stderr
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = bad[0] if bad else "passed"
    return outcomes, done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["loader", "sampler"])
def test_pygs_tests_pass(pygs_tests, tmp_path, mode):
    files = FILES + (SAMPLER if mode == "sampler" else [])
    outcomes, output = run(pygs_tests, mode, files, tmp_path / "report.xml")

    def name(case):
        return case.rpartition("::")[2].partition("[")[0]

    failed = [case for case, outcome in outcomes.items() if outcome not in ("passed", "skipped")]
    assert not failed, output
    skipped = {name(case) for case, outcome in outcomes.items() if outcome == "skipped"}
    assert skipped <= set(NOT_RUN), f"skipped without a reason: {sorted(skipped - set(NOT_RUN))}"
    assert sum(outcome == "passed" for outcome in outcomes.values()) >= 96, "so many there are at least"
