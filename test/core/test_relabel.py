"""Local ids: tables that grow, and tables whose stamps run out."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from glt import _core
from glt.data import Topology
from glt.testing import ring_graph

ROOT = Path(__file__).resolve().parents[2]


def test_stamps_that_run_out_clear_the_table(tmp_path, cxx):
    program = tmp_path / "relabel_overflow"
    source = Path(__file__).with_name("relabel_overflow.cc")
    subprocess.run(
        [*cxx, "-std=c++20", "-O1", f"-I{ROOT / 'csrc'}", str(source), "-o", str(program)], check=True, timeout=120
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("num_nodes", [2000, 20_000])
def test_a_hash_table_grows_in_the_middle_of_a_batch(num_nodes):
    """It starts with 4096 slots; ids far apart and ids next to each other find their slots again after it doubles."""
    csr = Topology(ring_graph(num_nodes, 3).edge_index, num_nodes).csr
    dense, hashed = _core.Batch([num_nodes], [(0, 0)]), _core.Batch([num_nodes], [(0, 0)], 0)
    for seeds in (np.arange(5), np.arange(0, num_nodes, 7), np.arange(num_nodes), np.arange(3)):
        outputs = []
        for batch in (dense, hashed):
            batch.start([(0, seeds)])
            batch.sample([csr], [[-1, 2, 2]], replace=False, batch_key=0)
            arrays = [np.zeros(n, np.int64) for n in [batch.num_nodes(0), *[batch.num_edges(0)] * 3]]
            batch.copy_nodes(0, arrays[0])
            batch.copy_edges(0, *arrays[1:])
            outputs.append(np.concatenate(arrays))
        assert np.array_equal(*outputs)


def test_ids_far_above_the_dense_limit():
    """A few rows of a graph of 2^33 nodes, as a partition of it has: hashed, since a dense table would take 32 GB."""
    batch = _core.Batch([2**33], [(0, 0)])
    seeds = np.array([2**33 - 1, 5, 2**32, 5])
    batch.start([(0, seeds)])
    neighbors = np.array([2**33 - 2, 5, 2**32, 2**33 - 2])
    parts = (np.arange(4, dtype=np.uint32), np.ones(4, np.uint32), neighbors, np.arange(4))
    batch.expand_from(0, [parts])
    batch.end_hop()
    node, row, col, edge = (np.zeros(n, np.int64) for n in (5, 4, 4, 4))
    batch.copy_nodes(0, node)
    batch.copy_edges(0, row, col, edge)
    assert node.tolist() == [*seeds.tolist(), 2**33 - 2]
    assert row.tolist() == [4, 1, 2, 4]
    assert batch.frontier(0).tolist() == [2**33 - 2]
