"""Partition directories that many tests share, written once per run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pyg_contract
import pytest
from dist_typed_world import TypedWorld, write_typed_world
from dist_world import World, write_world
from network import hosts

__all__ = ["hosts"]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., World]:
    """Returns the directory of a random graph in so many partitions; the same arguments give the same directory."""
    made: dict[tuple, World] = {}

    def make(num_parts: int, edge_dir: str = "in", tables: str = "xye") -> World:
        key = (num_parts, edge_dir, tables)
        if key not in made:
            made[key] = write_world(tmp_path_factory.mktemp("world"), num_parts, edge_dir, tables)
        return made[key]

    return make


@pytest.fixture(scope="session")
def typed_world(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TypedWorld]:
    """Returns the directory of a heterogeneous graph in so many partitions; made once per set of arguments."""
    made: dict[tuple, TypedWorld] = {}

    def make(num_parts: int, edge_dir: str = "in", time_level: str = "edge") -> TypedWorld:
        key = (num_parts, edge_dir, time_level)
        if key not in made:
            made[key] = write_typed_world(tmp_path_factory.mktemp("typed"), num_parts, edge_dir, time_level)
        return made[key]

    return make


@pytest.fixture
def private_world(tmp_path: Path) -> World:
    """A directory of two partitions that a test may damage."""
    return write_world(tmp_path, 2, "in", "xy")


@pytest.fixture(autouse=True)
def _no_core_files() -> None:
    """Killed processes write no core dumps."""
    import resource

    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@pytest.fixture(scope="session")
def contract_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graphs of ``pyg_contract``, in two partitions each, by name."""
    made = tmp_path_factory.mktemp("contract")
    for name, make in pyg_contract.GRAPHS.items():
        pyg_contract.write(make(), made / name)
    return made
