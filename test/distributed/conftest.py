"""Partition directories that many tests share, written once per run."""

import contextlib
import functools

import pyg_contract
import pytest
from dist_typed_world import write_typed_world
from dist_world import write_world
from network import hosts

import glt
from glt.distributed.context import resign

__all__ = ["hosts"]


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Returns the directory of a random graph in so many partitions; made once per set of arguments."""
    write = functools.cache(lambda *key: write_world(tmp_path_factory.mktemp("world"), *key))
    return lambda num_parts, edge_dir="in", tables="xye": write(num_parts, edge_dir, tables)


@pytest.fixture(scope="session")
def typed_world(tmp_path_factory):
    """The same of a heterogeneous graph."""
    write = functools.cache(lambda *key: write_typed_world(tmp_path_factory.mktemp("typed"), *key))
    return lambda num_parts, edge_dir="in", time_level="edge": write(num_parts, edge_dir, time_level)


@pytest.fixture
def private_world(tmp_path):
    """A directory of two partitions that a test may damage."""
    return write_world(tmp_path, 2, "in", "xy")


@pytest.fixture(autouse=True)
def _no_core_files():
    """Killed processes write no core dumps."""
    import resource

    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@pytest.fixture
def alone():
    """This process is the only trainer."""
    resign()
    glt.distributed.init_worker_group(1, 0, "alone")
    yield
    resign()


@pytest.fixture(scope="session")
def contract_root(tmp_path_factory):
    """The graphs of ``pyg_contract``, in two partitions each, by name."""
    made = tmp_path_factory.mktemp("contract")
    for name, make in pyg_contract.GRAPHS.items():
        pyg_contract.write(make(), made / name)
    return made
