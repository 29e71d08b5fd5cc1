import numpy as np
import pytest
from network import hosts
from partition_world import World
from peer_world import unpack

from glt.partition import RandomPartitioner

__all__ = ["hosts"]


@pytest.fixture(scope="session")
def peers(tmp_path_factory):
    """Directories of other libraries; not to be changed."""
    return unpack(tmp_path_factory.mktemp("peers"))


@pytest.fixture
def world():
    src = [0, 0, 0, 0, 3, 3, 1, 2, 4, 0, 9, 9, 8, 7, 6]
    dst = [1, 2, 1, 0, 3, 3, 0, 4, 2, 9, 0, 8, 7, 6, 0]
    num_nodes, num_edges = 10, len(src)
    return World(
        num_nodes=num_nodes,
        edge_index=np.array([src, dst]),
        node_feat=np.arange(num_nodes * 3, dtype=np.float32).reshape(num_nodes, 3),
        edge_feat=np.arange(num_edges, dtype=np.float64) * 0.5,
        node_label=np.arange(num_nodes)[::-1].copy(),
    )


@pytest.fixture
def directory(world, tmp_path):
    """A whole partition directory of ``world`` with two partitions."""
    RandomPartitioner(tmp_path / "parts", 2, **world.arguments()).partition()
    return tmp_path / "parts"
