"""``glt copy`` to two addresses of this host, over a real ssh: hosts have a directory each in the one file system."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launch_world import wait_until

from glt.distributed import DistDataset
from glt.partition import RandomPartitioner, load_partition
from glt.partition.format.layout import part_of
from glt.partition.inspect import inspect_partitions

pytestmark = pytest.mark.integration

NUM_NODES = 400


def partition(root, num_parts, seed=0):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(NUM_NODES, (2, 3000), generator=generator)
    feat = torch.rand(NUM_NODES, 32, generator=generator)
    RandomPartitioner(str(root), num_parts, NUM_NODES, edges, node_feat=feat).partition()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    root = tmp_path_factory.mktemp("from") / "my 'parts'"
    partition(root, 2)
    (root / "ring.json").write_text("{}")
    return root


@pytest.fixture
def copy(sshd, command):
    """Runs the command in this process, and returns its exit status and all that it said."""

    def run(parts, workspace, *words, hosts="127.0.0.1"):
        given = ["--hosts", hosts, *sshd.flags, "--part-config", parts, "--workspace", workspace, *words]
        status, out, err = command("copy", *given)
        return status, out + err

    return run


def files(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_host_gets_its_partitions_and_loads_them(copy, parts, tmp_path):
    """The workspaces of hosts are one here: the second host is sent to another directory, as its own partition only."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "train it.py").write_text("print()")
    flags = ["--script-folder", scripts, "--max-at-once", 1]
    status, said = copy(parts / "ring.json", tmp_path / "a $b", *flags, hosts="127.0.0.1,127.0.0.2")
    assert status == 0, said
    there = tmp_path / "a $b" / parts.name
    assert files(there) == files(parts)  # both hosts, in one directory
    assert (tmp_path / "a $b" / "scripts" / "train it.py").read_text() == "print()"
    for path in list(there.glob("part1")):
        shutil.rmtree(path)  # as it is on a file system of the first host
    report = inspect_partitions(there, verify=True)
    assert report.parts == (0,) and not report.bad
    assert torch.equal(
        torch.as_tensor(load_partition(there, 0).nodes[0].owned[:]),
        torch.as_tensor(load_partition(parts, 0).nodes[0].owned[:]),
    )
    assert DistDataset().load(str(there), 0).num_partitions == 2


def test_which_files_a_host_gets(copy, parts, tmp_path):
    status, said = copy(parts, tmp_path, "--dry-run", hosts="127.0.0.1,127.0.0.2")
    assert status == 0
    listed = json.loads((parts / "manifest.json").read_text())["files"]
    for line, own in zip(said.splitlines(), (0, 1), strict=True):
        mine = [path for path in listed if part_of(path) in (None, own)]
        assert f"partitions {own}, {len(mine)} files" in line and len(mine) < len(listed)
    assert not list(tmp_path.iterdir())


def test_a_repeated_copy_sends_nothing_and_mends_what_is_damaged(copy, parts, tmp_path):
    assert copy(parts, tmp_path)[0] == 0
    there = tmp_path / parts.name
    before = {path: path.stat().st_ino for path in there.rglob("*.npy")}
    status, said = copy(parts, tmp_path)
    assert status == 0 and "0 B of" in said
    assert {path: path.stat().st_ino for path in there.rglob("*.npy")} == before  # rsync would rename a new file there
    victim = next(there.glob("part1/node_feat/*.npy"))
    stat = victim.stat()
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # of the same size and time
    next(there.glob("part0/node_feat/*.npy")).unlink()
    status, said = copy(parts, tmp_path)
    assert status == 0 and "1 files are damaged there, and sent again" in said, said
    assert files(there) == {path: data for path, data in files(parts).items() if path != "ring.json"}


def test_an_interrupted_copy_does_not_load_and_goes_on(copy, sshd, tmp_path):
    """The copy is killed while a file is on its way: that file has no name yet, and there is no manifest."""
    root = tmp_path / "parts"
    partition(root, 1)
    slow = tmp_path / "bin"
    slow.mkdir()
    rsync = shutil.which("rsync")
    (slow / "rsync").write_text(f'#!/bin/sh\nexec {rsync} --bwlimit=4 "$@"\n')  # KB/s
    (slow / "rsync").chmod(0o755)
    command = [sys.executable, *"-m glt copy --hosts 127.0.0.1".split(), *sshd.flags]
    command += ["--part-config", root, "--workspace", tmp_path / "to"]
    there = tmp_path / "to" / "parts"
    with subprocess.Popen(
        list(map(str, command)),
        env={**os.environ, "PATH": f"{slow}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: list(there.rglob("*.npy")) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(60) == 143 and "goes on from here" in said, said
    assert not (there / "manifest.json").exists()
    status, said = copy(root, tmp_path / "to")
    assert status == 0, said
    assert files(there) == files(root)


def test_another_run_is_not_overwritten_unasked(copy, parts, tmp_path):
    other = tmp_path / "other" / parts.name
    partition(other, 3, seed=1)
    workspace = tmp_path / "to"
    assert copy(other, workspace)[0] == 0
    status, said = copy(parts, workspace)
    assert status == 3 and "holds another run" in said and "nothing was sent" in said
    assert files(workspace / parts.name) == files(other)
    assert copy(parts, workspace, "--replace")[0] == 0
    assert set(files(workspace / parts.name)) == set(files(parts)) - {"ring.json"}


def test_what_a_host_lacks_is_named(copy, parts, tmp_path):
    status, said = copy(parts, tmp_path, hosts="127.0.0.1,127.0.0.3")
    assert status == 3 and "host 127.0.0.3: ssh does not reach it" in said
    assert "host 127.0.0.1" not in said and not list(tmp_path.rglob("*.npy"))
    status, said = copy(parts, Path("/proc/no"))
    assert status == 3 and "/proc/no" in said and "cannot be used" in said
    status, said = copy(tmp_path, tmp_path)
    assert status == 2 and "manifest.json is missing" in said
    status, said = copy(parts, tmp_path, "--rel-data-path", "../x")
    assert status == 2 and "inside --workspace" in said
