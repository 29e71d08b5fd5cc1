"""PyG's own tests, unmodified, on glt's loaders, on glt's sampler inside PyG's loaders, and on glt's distributed ones.

They are not part of this project: ``GLT_PYG_TESTS`` names where they are, a clone of PyG's repository (its committed
``test`` directory is taken) or a copy of that directory. Tests of the installed PyG's age fit best. For example::

    GLT_PYG_TESTS=~/pytorch_geometric pytest test/pyg

In worker mode every loader starts processes, and the whole takes minutes; ``-k "not worker"`` leaves that out.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from not_distributed import NO_LOADER, NOT_ASKED

HERE = Path(__file__).parent
SOURCE = os.environ.get("GLT_PYG_TESTS", "")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not SOURCE, reason="GLT_PYG_TESTS does not name a clone of PyG"),
]

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
SUBGRAPHS = [
    "loader/test_cluster.py",
    "loader/test_dynamic_batch_sampler.py",
    "loader/test_graph_saint.py",
    "loader/test_hgt_loader.py",
    "loader/test_random_node_loader.py",
    "loader/test_shadow.py",
]
SAMPLER = ["sampler/test_sampler_base.py", "sampler/test_sampler_neighbor_sampler.py"]

# Cases that do not run, and why. Every other case has to pass.
NOT_RUN = {
    "test_pyg_lib_and_torch_sparse_homo_equality": "compares pyg-lib with torch-sparse",
    "test_pyg_lib_and_torch_sparse_hetero_equality": "compares pyg-lib with torch-sparse",
    "test_neighbor_loader_with_tensor_frame": "where there is no torch_frame",
    "test_trim_sparse_tensor": "needs torch-sparse's SparseTensor",
    "test_homogeneous_neighbor_sampler_temporal_backwards": "ends with pytest.skip in PyG, when all it checks held",
    "test_bidirectional_neighbor_sampler_hetero": "marked as not implemented in PyG",
    "test_shadow_k_hop_sampler": "needs torch-sparse's SparseTensor",
    "test_hgt_loader": "needs torch-sparse's SparseTensor",
    "test_hgt_loader_on_cora": "fetches Cora",
    "test_cluster_gcn_correctness": "fetches Cora",
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


def name(case):
    return case.rpartition("::")[2].partition("[")[0]


def run(pygs_tests, files, report, timeout_s, **environment):
    """Runs PyG's tests in a process; returns what became of each case, its distributed batches, and the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "on_glt", "-p", "no:cacheprovider", "-c", os.devnull,
               f"--rootdir={pygs_tests}", f"--junitxml={report}", "-W", "ignore", "-k", SELECTED, *files]  # fmt: skip
    path = os.pathsep.join([str(HERE.parent.parent), str(HERE)])
    environment = {**os.environ, **environment, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=pygs_tests, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert report.exists(), done.stdout + done.stderr
    outcomes, batches = {}, {}
    for case in ElementTree.parse(report).iter("testcase"):
        identity = f"{case.get('classname')}::{case.get('name')}"
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        outcomes[identity] = "passed" if not bad else "xfailed" if "xfail" in bad[0].get("type", "") else bad[0].tag
        told = {each.get("name"): each.get("value") for each in case.iter("property")}
        batches[identity] = int(told.get("distributed_batches", 0))
    return outcomes, batches, done.stdout


def assert_passed(outcomes, output, at_least=96):
    failed = [case for case, outcome in outcomes.items() if outcome not in ("passed", "skipped", "xfailed")]
    assert not failed, output
    skipped = {name(case) for case, outcome in outcomes.items() if outcome == "skipped"}
    assert skipped <= set(NOT_RUN), f"skipped without a reason: {sorted(skipped - set(NOT_RUN))}"
    assert sum(outcome == "passed" for outcome in outcomes.values()) >= at_least, "so many there are"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["loader", "sampler"])
def test_pygs_tests_pass(pygs_tests, tmp_path, mode):
    files = FILES + (SAMPLER if mode == "sampler" else [])
    outcomes, _, output = run(pygs_tests, files, tmp_path / "report.xml", 280, GLT_PYG_MODE=mode)
    assert_passed(outcomes, output)


@pytest.mark.timeout(300)
def test_pygs_tests_of_subgraphs_pass(pygs_tests, tmp_path):
    """Those that make SparseTensors run where torch-sparse is installed; those on Cora need a network, and are left."""
    options = {"GLT_PYG_MODE": "loader", "GLT_PYG_SUBGRAPHS": "1"}
    outcomes, _, output = run(pygs_tests, SUBGRAPHS, tmp_path / "report.xml", 280, **options)
    of_cora = {case: outcome for case, outcome in outcomes.items() if name(case) == "test_hgt_loader_on_cora"}
    assert_passed({case: outcome for case, outcome in outcomes.items() if case not in of_cora}, output, at_least=7)


@pytest.mark.timeout(3700)
@pytest.mark.parametrize(
    ("mode", "num_parts", "read_local"),
    [("collocated", 1, True), ("collocated", 2, True), ("collocated", 2, False), ("worker", 1, True),
     ("worker", 2, False)],
)  # fmt: skip
def test_pygs_tests_pass_on_distributed_loaders(pygs_tests, tmp_path, mode, num_parts, read_local):
    options = {"GLT_PYG_PARTS": str(num_parts), "GLT_PYG_READ_LOCAL": str(int(read_local))}
    outcomes, batches, output = run(pygs_tests, FILES, tmp_path / "report.xml", 3600, GLT_PYG_MODE=mode, **options)
    assert_passed(outcomes, output)
    assert {name(case) for case, outcome in outcomes.items() if outcome == "xfailed"} == set(NOT_ASKED)
    passed = {name(case) for case, outcome in outcomes.items() if outcome == "passed"}
    distributed = {name(case) for case, num_batches in batches.items() if num_batches > 0}
    assert passed - distributed == set(NO_LOADER), "passed without a distributed batch"
