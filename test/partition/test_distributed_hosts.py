"""Ranks on separate hosts: network namespaces joined by a cable, with names and directories of their own."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import network
import pytest
from distributed_run import files_under
from host_run import arguments

from glt.partition import FrequencyPartitioner, load_partition

HERE = Path(__file__).parent


def named(host):
    """What precedes a command on a host whose name is its own too: ranks look for processes of their host only."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec ip netns exec {host} "$@"', "sh"]


class Ranks:
    """A rank of a partitioning run on each of two hosts, with directories of their own below ``root``."""

    def __init__(self, root, hosts):
        self.root, self.hosts, self.processes = root, hosts, []

    def start(self, timeout_s, second_stops_at=""):
        """Starts them; the second may wait at a stage for good, and says so."""
        common = {"MASTER_ADDR": network.ADDRESSES[0], "MASTER_PORT": "29500", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        for at, (name, stage) in enumerate(zip(self.hosts, ("", second_stops_at), strict=True)):
            env = os.environ | common | {"RANK": str(at), "GLOO_SOCKET_IFNAME": network.device_of(name)}
            script = [sys.executable, str(HERE / "host_run.py"), str(self.target(at)), str(timeout_s), stage]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            self.processes.append(subprocess.Popen(named(name) + script, env=env, **pipes))

    def target(self, at):
        return self.root / f"disk{at}" / "parts"

    def result(self, at):
        """Returns exit status, output and errors of a rank, when it has ended."""
        out, err = self.processes[at].communicate(timeout=60)
        return self.processes[at].returncode, out, err

    def close(self):
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def ranks(tmp_path, hosts):
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare of util-linux, for hosts with names of their own")
    done = subprocess.run([*named(hosts[0]), "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs to name hosts (root): {done.stderr.strip()}")
    made = Ranks(tmp_path, hosts)
    yield made
    made.close()


def test_each_host_has_its_part_of_what_one_machine_writes(tmp_path, ranks):
    ranks.start(60)
    wanted = FrequencyPartitioner(tmp_path / "one", **arguments()).partition()
    for at in range(2):
        status, out, err = ranks.result(at)
        assert status == 0, err
        assert out.split() == [wanted.run_id, ranks.hosts[at]]
    expected = files_under(tmp_path / "one")
    assert any("/cache/" in path for path in expected)
    for at in range(2):
        parts = {f"part{idx}" for idx in range(at, 3, 2)}
        mine = {path for path in expected if not path.startswith("part") or path.split("/")[0] in parts}
        found = files_under(ranks.target(at))
        assert found.keys() == mine
        assert [path for path in mine if found[path] != expected[path]] == []
        load_partition(ranks.target(at), at)


def test_a_rank_that_is_killed_on_another_host_is_missed_at_once(ranks):
    ranks.start(1800, "the caches of nodes")
    assert ranks.processes[1].stdout.readline() == "stopped\n"
    begin = time.monotonic()
    ranks.processes[1].kill()
    status, _, err = ranks.result(0)
    assert status == 1 and time.monotonic() - begin < 30  # the deadline is half an hour
    lost = "PeerLost: partitioning rank 0 of 2 lost other ranks at the caches of nodes of type 'node': the connection"
    assert lost in err
    assert "see their output for the cause, and run all of them again" in err
    assert not list(ranks.root.rglob("manifest.json")) and not list(ranks.target(0).parent.iterdir())


def test_a_cable_that_is_cut_is_missed_at_the_deadline(ranks):
    ranks.start(5, "the caches of nodes")
    ranks.processes[1].stdout.readline()
    network.switch(ranks.hosts, "down")
    status, _, err = ranks.result(0)
    assert status == 1
    # The stage is left open: on a machine that stands still for 5 s it is another one.
    assert "PeerLost: partitioning rank 0 of 2 " in err and "within timeout_s = 5 s" in err
    assert not list(ranks.root.rglob("manifest.json")) and not list(ranks.target(0).parent.iterdir())
