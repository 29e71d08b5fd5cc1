"""``glt launch`` between two network namespaces that stand for hosts: one that nobody answers for, and a cable cut."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launch_world import PATHS, SLEEP, Launched, said
from sshd_world import Sshd, need_sshd

Launch = Callable[..., Launched]
HERE, THERE, NOWHERE = "10.197.3.1", "10.197.3.2", "10.197.3.99"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture(scope="module")
def cable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Sshd]]]:
    """Two hosts with a cable between them, and an sshd on each, which share keys; the mark in the names of both."""
    need_sshd()
    mark = uuid.uuid4().hex[:8]
    names, servers = [f"glt-l{at}-{mark}" for at in range(2)], []
    try:
        for name in names:
            ip("netns", "add", name)
        ends = ("type", "veth", "peer", "name", f"l1{mark}", "netns", names[1])
        ip("link", "add", f"l0{mark}", "netns", names[0], *ends)
        for at, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{(HERE, THERE)[at]}/24", "dev", f"l{at}{mark}")
            for device in ("lo", f"l{at}{mark}"):
                ip("-n", name, "link", "set", device, "up")
        folder = tmp_path_factory.mktemp("ssh") / "d"
        servers.append(Sshd(folder, ("0.0.0.0",), ("ip", "netns", "exec", names[0])))
        servers.append(servers[0].another(("ip", "netns", "exec", names[1])))
    except (OSError, subprocess.SubprocessError) as error:
        remove(names, servers)
        told = getattr(error, "stderr", b"") or b""
        pytest.skip(f"no network namespaces with cables here: {error} {told.decode(errors='replace').strip()}")
    servers[0].need_login(HERE, ("ip", "netns", "exec", names[0]))
    yield mark, servers
    remove(names, servers)


def remove(names: list[str], servers: list[Sshd]) -> None:
    for server in servers:
        server.close()
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


def test_a_host_that_nobody_answers_for(launch: Launch, cable: tuple[str, list[Sshd]], script: Path) -> None:
    mark, (server, _) = cable
    begin = time.monotonic()
    launched = launch("--hosts", f"{HERE},{NOWHERE}", *server.flags, *PATHS, "--connect-timeout", 10, script,
                      before=("ip", "netns", "exec", f"glt-l0-{mark}"))  # fmt: skip
    assert launched.ended() == 3
    assert time.monotonic() - begin < 60
    assert f"host {NOWHERE}: ssh does not reach it" in launched.err and f"host {HERE}" not in launched.err
    assert launched.out == "" and "nothing was started" in launched.err


def test_a_cut_cable(launch: Launch, cable: tuple[str, list[Sshd]], script: Path) -> None:
    """The launcher names the host and stops the other; on the host that is cut off, processes end by themselves."""
    mark, (server, _) = cable
    launched = launch("--hosts", f"{HERE},{THERE}", *server.flags, *PATHS, "--lost-timeout", 8, "--stop-timeout", 2,
                      "--num-trainers", 0, "--extra-envs", f"DO_server={SLEEP}", script,
                      before=("ip", "netns", "exec", f"glt-l0-{mark}"))  # fmt: skip
    lines = "".join(launched.wait_for('"role": "server"') for _ in range(2))
    pids = [each["pid"] for each in said(lines).values()]
    assert sorted(said(lines)) == [f"server-0@{HERE}", f"server-1@{THERE}"]
    begin = time.monotonic()
    try:
        ip("-n", f"glt-l1-{mark}", "link", "set", f"l1{mark}", "down")
        assert launched.ended() == 255
        assert f"host {THERE}: failed (code 255): the connection to it ended" in launched.err, launched.err
        while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() - begin < 60, left
            time.sleep(0.05)
    finally:
        ip("-n", f"glt-l1-{mark}", "link", "set", f"l1{mark}", "up")
