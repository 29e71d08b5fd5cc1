"""A partitioner may die at any moment: nothing that it leaves loads, and nothing of it is in the next one's way."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from partition_world import load_all

from glt.errors import PartitionError
from glt.partition import RandomPartitioner, load_partition
from glt.partition.format import files

EDGES = np.array([[0, 1], [1, 2]])


@pytest.fixture
def stopped_run(tmp_path):
    """Starts a partitioner that stops at a step, and returns it."""
    processes = []

    def start(stage: str) -> subprocess.Popen:
        script = Path(__file__).with_name("killed_run.py")
        command = [sys.executable, str(script), str(tmp_path / "parts"), stage]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        processes.append(process)
        assert process.stdout.readline() == b"stopped\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait(30)
        process.stdout.close()


@pytest.mark.parametrize("stage", ["before scatter_rows", "within sort_edges", "before the rename"])
def test_a_killed_run_leaves_nothing_that_loads_and_the_next_one_clears_it_away(tmp_path, stopped_run, stage, caplog):
    process = stopped_run(stage)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("parts.tmp-")
    files.remove_stale(tmp_path / "parts")
    assert left.exists(), "removed the directory of a run that is alive"
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    with pytest.raises(PartitionError, match="parts is not a directory"):
        load_partition(tmp_path / "parts", 0)
    if stage != "before the rename":  # else it is whole, under a name that nobody asks for
        with pytest.raises(PartitionError, match=r"manifest.json is missing: .* stopped half-way"):
            load_partition(left, 0)
    assert not [path for path in left.rglob("*") if path.is_file() and path.suffix not in (".npy", ".json")]
    RandomPartitioner(tmp_path / "parts", 2, 3, EDGES).partition()
    assert f"removing {left}" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]
    assert len(load_all(tmp_path / "parts")) == 2


def test_only_what_a_dead_run_of_this_host_and_target_left_is_removed(tmp_path):
    host = files._host()
    stale = tmp_path / f"parts.tmp-{host}-123-0123abcd"
    kept = [
        tmp_path / f"parts.tmp-{int(host, 16) ^ 1:08x}-123-0123abcd",  # another host's
        tmp_path / f"parts.tmp-{host}-123-0123abcd.keep",
        tmp_path / f"my-parts.tmp-{host}-123-0123abcd",
        tmp_path / "parts.tmp-of-mine",
    ]
    for path in (stale, *kept):
        path.mkdir()
        (path / "file").write_text("")
    files.remove_stale(tmp_path / "parts")
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_a_file_system_without_locks_still_partitions_and_removes_nothing(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(9, "Bad file descriptor")  # what NFS says of a lock on a directory

    monkeypatch.setattr(fcntl, "flock", unsupported)
    left = tmp_path / f"parts.tmp-{files._host()}-123-0123abcd"
    left.mkdir()
    RandomPartitioner(tmp_path / "parts", 2, 3, EDGES).partition()
    assert left.exists() and "cannot be locked" in caplog.text
    assert len(load_all(tmp_path / "parts")) == 2
