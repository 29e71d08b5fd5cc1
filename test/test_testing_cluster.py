"""What a cluster says was left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glt.testing.cluster import Cluster, Trainer


def do_nothing(trainer: Trainer) -> None:
    pass


@pytest.mark.parametrize(("name", "is_ours"), [("glt-test", True), ("cuda.shm.test", False)])
def test_files_in_shared_memory_are_left_behind_unless_they_are_cudas(name: str, is_ours: bool) -> None:
    with Cluster(1, do_nothing) as cluster:
        cluster.results()
        left = Path("/dev/shm") / f"{name}.{os.getpid()}"
        left.touch()
        try:
            assert (str(left) in cluster.leftovers()) == is_ours
        finally:
            left.unlink()
