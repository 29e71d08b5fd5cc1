"""``glt launch`` over a real ssh: two addresses of this host stand for two hosts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launch_world import PATHS, SLEEP, Launched, said
from sshd_world import Sshd, need_sshd

import glt

pytestmark = pytest.mark.integration

Launch = Callable[..., Launched]
HOSTS = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    need_sshd()
    server = Sshd(tmp_path_factory.mktemp("ssh") / "d", HOSTS)
    server.need_login(HOSTS[0])
    yield server
    server.close()


def envs(**variables: str) -> list[str]:
    return [word for name, value in variables.items() for word in ("--extra-envs", f"{name}={value}")]


def test_a_job_of_two_hosts(launch: Launch, sshd: Sshd, script: Path, tmp_path: Path) -> None:
    """Everything arrives as it was given, also through the shell of the host; ranks and addresses are right."""
    (tmp_path / "hosts").write_text("127.0.0.1 31234 # the first\n\n127.0.0.2\n")
    arguments = ["a  b", "it's", 'say "$HOME" `id` \\', "two\nlines", "", "--", "*", "~"]
    launched = launch(
        "--ip-config",
        tmp_path / "hosts",
        *sshd.flags,
        *PATHS,
        "--workspace",
        script.parent,
        *envs(DO_X="$y 'z'\n"),
        script.name,
        *arguments,
    )
    assert launched.ended() == 0, launched.err
    found = said(launched.out)
    assert sorted(found) == [f"{role}-{at}@{host}" for role in ("server", "trainer") for at, host in enumerate(HOSTS)]
    for who, told in found.items():
        assert told["argv"] == arguments and told["cwd"] == str(script.parent), who
        env = told["env"]
        assert env["GLT_MASTER_ADDR"] == "127.0.0.1" and env["GLT_MASTER_PORT"] == "31234"
        assert env["GLT_NUM_SERVERS"] == env["GLT_NUM_TRAINERS"] == "2"
        if told["role"] == "trainer":
            assert env["MASTER_ADDR"] == "127.0.0.1" and env["WORLD_SIZE"] == "2"


def test_a_failure_on_another_host_is_named(launch: Launch, sshd: Sshd, script: Path) -> None:
    do = envs(DO_server_0=SLEEP, DO_server_1="print('my reason'); sys.exit(5)")
    launched = launch("--hosts", ",".join(HOSTS), *sshd.flags, *PATHS, "--num-trainers", 0, *do, script)
    assert launched.ended() == 5, launched.err
    pid = said(launched.out)["server-1@127.0.0.2"]["pid"]
    assert f"failed: server-1@127.0.0.2: pid {pid} exited with code 5" in launched.err
    assert "my reason" in launched.err and "also failed" not in launched.err


def test_a_launcher_that_is_killed_leaves_nothing_there(launch: Launch, sshd: Sshd, script: Path) -> None:
    launched = launch(
        "--hosts",
        ",".join(HOSTS),
        *sshd.flags,
        *PATHS,
        *"--num-trainers 0 --stop-timeout 1".split(),
        *envs(DO_server="signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP),
        script,
    )
    pids = servers(launched)
    launched.process.kill()
    launched.process.wait()
    expect_gone(pids)
    launched.expect_nothing_left()


def test_a_lost_connection_is_named(launch: Launch, sshd: Sshd, script: Path) -> None:
    launched = launch(
        "--hosts",
        ",".join(HOSTS),
        *sshd.flags,
        *PATHS,
        "--num-trainers",
        0,
        *envs(DO_server="print('ready'); " + SLEEP),
        script,
    )
    pids = servers(launched)
    keeper = parent(pids[1])
    os.kill(parent(keeper), signal.SIGKILL)  # the session of sshd
    assert launched.ended() == 255
    assert "host 127.0.0.2: failed (code 255): the connection to it ended" in launched.err, launched.err
    expect_gone(pids)


def test_hosts_that_cannot_be_used_are_named_and_nothing_starts(launch: Launch, sshd: Sshd, script: Path) -> None:
    """127.0.0.3 has no sshd; and the script is missing on both others."""
    launched = launch("--hosts", ",".join((*HOSTS, "127.0.0.3")), *sshd.flags, *PATHS, script.parent / "no.py")
    assert launched.ended() == 3 and launched.out == ""
    assert "host 127.0.0.3: ssh does not reach it" in launched.err and "refused" in launched.err
    for host in HOSTS:
        assert f"host {host}: there is no file {script.parent}/no.py" in launched.err
    launched = launch("--hosts", HOSTS[0], *sshd.flags, "--python", "/no/python", script)
    assert launched.ended() == 3 and "there is no /no/python there" in launched.err, launched.err
    launched = launch(
        "--hosts",
        HOSTS[0],
        *sshd.flags,
        *PATHS,
        *"--ssh-option IdentityFile=/dev/null --ssh-user nobody".split(),
        script,
    )
    assert launched.ended() == 3 and "denied" in launched.err, launched.err


def test_hosts_with_different_versions_are_refused(launch: Launch, sshd: Sshd, script: Path, tmp_path: Path) -> None:
    (tmp_path / "old" / "glt").mkdir(parents=True)
    (tmp_path / "old" / "glt" / "__init__.py").write_text("__version__ = '0.0.1'")
    launched = launch("--hosts", HOSTS[0], *sshd.flags, *envs(PYTHONPATH=str(tmp_path / "old")), script)
    assert launched.ended() == 3
    assert f"different versions of glt: {glt.__version__} on this host, 0.0.1 on 127.0.0.1" in launched.err


def servers(launched: Launched) -> list[int]:
    """Waits until both servers run; returns their pids by rank."""
    found: dict[str, int] = {}
    for _ in HOSTS:
        line = launched.wait_for('"role": "server"')
        found |= {who: told["pid"] for who, told in said(line).items()}
    return [found[f"server-{at}@{host}"] for at, host in enumerate(HOSTS)]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def expect_gone(pids: list[int], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
