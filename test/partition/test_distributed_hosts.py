"""Ranks on separate hosts: network namespaces joined by a cable, with names and directories of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from distributed_run import files_under
from host_run import arguments

from glt.partition import FrequencyPartitioner, load_partition

HERE = Path(__file__).parent


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


def on(name: str) -> list[str]:
    """What precedes a command on a host, whose name is its own too: ranks look for processes of their host only."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec ip netns exec {name} "$@"', "sh"]


class Hosts:
    """Two hosts; each can be cut off, and runs one rank.

    Args:
        root: Directory of their files, one directory each.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = [f"glt{uuid.uuid4().hex[:6]}{at}" for at in range(2)]
        self.ranks: list[subprocess.Popen[str]] = []
        self._made: list[str] = []

    def join(self) -> None:
        """Makes the hosts and the cable."""
        for name in self.names:
            self._made.append(name)
            ip("netns", "add", name)
        first, second = self.names
        ip("link", "add", first, "netns", first, "type", "veth", "peer", "name", second, "netns", second)
        for at, name in enumerate(self.names):
            ip("-n", name, "addr", "add", f"10.231.7.{at + 1}/24", "dev", name)
            for device in ("lo", name):
                ip("-n", name, "link", "set", device, "up")

    def start(self, timeout_s: float, second_stops_at: str = "") -> None:
        """Starts a rank on each; the second may wait at a stage for good, and says so."""
        for at, (name, stage) in enumerate(zip(self.names, ("", second_stops_at), strict=True)):
            environment = os.environ | {
                "MASTER_ADDR": "10.231.7.1",
                "MASTER_PORT": "29500",
                "RANK": str(at),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "GLOO_SOCKET_IFNAME": name,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(sys.path),
            }
            script = [sys.executable, str(HERE / "host_run.py"), str(self.target(at)), str(timeout_s), stage]
            self.ranks.append(
                subprocess.Popen(
                    on(name) + script, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            )

    def target(self, at: int) -> Path:
        return self.root / f"disk{at}" / "parts"

    def result(self, at: int) -> tuple[int, str, str]:
        """Returns exit status, output and errors of a rank, when it has ended."""
        out, err = self.ranks[at].communicate(timeout=60)
        return self.ranks[at].returncode, out, err

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.communicate()
        for name in self._made:
            with suppress(subprocess.SubprocessError):  # the first error is the one to report
                ip("netns", "del", name)  # and the cable with it


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    missing = [tool for tool in ("ip", "unshare") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {missing[0]} of iproute2 and util-linux, for hosts of their own")
    made = Hosts(tmp_path)
    try:
        try:
            made.join()
            subprocess.run([*on(made.names[0]), "true"], check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"needs to make network namespaces (root): {error.cmd}: {error.stderr.strip()}")
        yield made
    finally:
        made.close()


def test_each_host_has_its_part_of_what_one_machine_writes(tmp_path: Path, hosts: Hosts) -> None:
    hosts.start(60)
    wanted = FrequencyPartitioner(tmp_path / "one", **arguments()).partition()
    for at in range(2):
        status, out, err = hosts.result(at)
        assert status == 0, err
        assert out.split() == [wanted.run_id, hosts.names[at]]
    expected = files_under(tmp_path / "one")
    assert any("/cache/" in path for path in expected)
    for at in range(2):
        parts = {f"part{idx}" for idx in range(at, 3, 2)}
        mine = {path for path in expected if not path.startswith("part") or path.split("/")[0] in parts}
        found = files_under(hosts.target(at))
        assert found.keys() == mine
        assert [path for path in mine if found[path] != expected[path]] == []
        load_partition(hosts.target(at), at)


def test_a_rank_that_is_killed_on_another_host_is_missed_at_once(hosts: Hosts) -> None:
    hosts.start(1800, "the caches of nodes")
    assert hosts.ranks[1].stdout is not None and hosts.ranks[1].stdout.readline() == "stopped\n"
    begin = time.monotonic()
    hosts.ranks[1].kill()
    status, _, err = hosts.result(0)
    assert status == 1 and time.monotonic() - begin < 30  # the deadline is half an hour
    assert (
        "PeerLost: partitioning rank 0 of 2 lost other ranks at the caches of nodes of type 'node': the connection"
        in err
    )
    assert "see their output for the cause, and run all of them again" in err
    assert not list(hosts.root.rglob("manifest.json")) and not list(hosts.target(0).parent.iterdir())


def test_a_cable_that_is_cut_is_missed_at_the_deadline(hosts: Hosts) -> None:
    hosts.start(5, "the caches of nodes")
    assert hosts.ranks[1].stdout is not None
    hosts.ranks[1].stdout.readline()
    ip("-n", hosts.names[0], "link", "set", hosts.names[0], "down")
    status, _, err = hosts.result(0)
    assert status == 1
    # The stage is left open: on a machine that stands still for 5 s it is another one.
    assert "PeerLost: partitioning rank 0 of 2 " in err and "within timeout_s = 5 s" in err
    assert not list(hosts.root.rglob("manifest.json")) and not list(hosts.target(0).parent.iterdir())
