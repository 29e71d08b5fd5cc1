"""glt launch over ssh, between hosts, and over cables that are cut."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch_world import PATHS, SLEEP, expect_gone, expect_none_marked, marked, said, words_of
from network import ADDRESSES, NOWHERE

import glt

pytestmark = pytest.mark.integration

HERE, THERE = ADDRESSES
HOSTS = ("127.0.0.1", "127.0.0.2")


def envs(**variables):
    return [word for name, value in variables.items() for word in ("--extra-envs", f"{name}={value}")]


def test_a_job_of_two_hosts(launch, sshd, script, tmp_path):
    """Everything arrives as it was given, also through the shell of the host; ranks and addresses are right."""
    (tmp_path / "hosts").write_text("127.0.0.1 31234 # the first\n\n127.0.0.2\n")
    arguments = ["a  b", "it's", 'say "$HOME" `id` \\', "two\nlines", "", "--", "*", "~"]
    flags = ["--ip-config", tmp_path / "hosts", *sshd.flags, *PATHS, "--workspace", script.parent]
    launched = launch(*flags, *envs(DO_X="$y 'z'\n"), script.name, *arguments)
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


def test_a_failure_on_another_host_is_named(launch, sshd, script):
    do = envs(DO_server_0=SLEEP, DO_server_1="print('my reason'); sys.exit(5)")
    launched = launch("--hosts", ",".join(HOSTS), *sshd.flags, *PATHS, "--num-trainers", 0, *do, script)
    assert launched.ended() == 5, launched.err
    pid = said(launched.out)["server-1@127.0.0.2"]["pid"]
    assert f"failed: server-1@127.0.0.2: pid {pid} exited with code 5" in launched.err
    assert "my reason" in launched.err and "also failed" not in launched.err


def test_a_launcher_that_is_killed_leaves_nothing_there(launch, sshd, script):
    do = envs(DO_server="signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP)
    flags = ["--hosts", ",".join(HOSTS), *sshd.flags, *PATHS, *"--num-trainers 0 --stop-timeout 1".split()]
    launched = launch(*flags, *do, script)
    pids = servers(launched)
    launched.process.kill()
    launched.process.wait()
    expect_gone(pids)
    launched.expect_nothing_left()


def test_a_lost_connection_is_named(launch, sshd, script):
    do = envs(DO_server="print('ready'); " + SLEEP)
    launched = launch("--hosts", ",".join(HOSTS), *sshd.flags, *PATHS, "--num-trainers", 0, *do, script)
    pids = servers(launched)
    keeper = parent(pids[1])
    os.kill(parent(keeper), signal.SIGKILL)  # the session of sshd
    assert launched.ended() == 255
    assert "host 127.0.0.2: failed (code 255): the connection to it ended" in launched.err, launched.err
    expect_gone(pids)


def test_hosts_that_cannot_be_used_are_named_and_nothing_starts(launch, sshd, script):
    """127.0.0.3 has no sshd; and the script is missing on both others."""
    launched = launch("--hosts", ",".join((*HOSTS, "127.0.0.3")), *sshd.flags, *PATHS, script.parent / "no.py")
    assert launched.ended() == 3 and launched.out == ""
    assert "host 127.0.0.3: ssh does not reach it" in launched.err and "refused" in launched.err
    for host in HOSTS:
        assert f"host {host}: there is no file {script.parent}/no.py" in launched.err
    launched = launch("--hosts", HOSTS[0], *sshd.flags, "--python", "/no/python", script)
    assert launched.ended() == 3 and "there is no /no/python there" in launched.err, launched.err
    stranger = "--ssh-option IdentityFile=/dev/null --ssh-user nobody".split()
    launched = launch("--hosts", HOSTS[0], *sshd.flags, *PATHS, *stranger, script)
    assert launched.ended() == 3 and "denied" in launched.err, launched.err


def test_hosts_with_different_versions_are_refused(launch, sshd, script, tmp_path):
    (tmp_path / "old" / "glt").mkdir(parents=True)
    (tmp_path / "old" / "glt" / "__init__.py").write_text("__version__ = '0.0.1'")
    launched = launch("--hosts", HOSTS[0], *sshd.flags, *envs(PYTHONPATH=str(tmp_path / "old")), script)
    assert launched.ended() == 3
    assert f"different versions of glt: {glt.__version__} on this host, 0.0.1 on 127.0.0.1" in launched.err


def servers(launched):
    """Waits until both servers run; returns their pids by rank."""
    found = {}
    for _ in HOSTS:
        line = launched.wait_for('"role": "server"')
        found |= {who: told["pid"] for who, told in said(line).items()}
    return [found[f"server-{at}@{host}"] for at, host in enumerate(HOSTS)]


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


EXAMPLE = Path(__file__).parents[2] / "examples" / "embeddings"
LONG = ("--epochs", 100_000)


@pytest.fixture(scope="module")
def workspace(cable, tmp_path_factory):
    """What ``glt copy`` sent to both hosts, which have one file system here: the example, and its partitions."""
    folder = tmp_path_factory.mktemp("hosts")
    prepare = [sys.executable, EXAMPLE / "prepare.py", "--output_dir", folder / "line", "--num_parts", "2"]
    subprocess.run(prepare, check=True, timeout=120)
    copy = [*"glt copy --hosts".split(), f"{HERE},{THERE}", *cable.server.flags]
    copy += ["--part-config", folder / "line/parts", "--workspace", folder / "job"]
    copy += [*"--rel-data-path line/parts --script-folder".split(), EXAMPLE]
    command = [*cable.before, sys.executable, "-m", *map(str, copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{HERE}: partitions 0 are whole" in done.stderr and f"{THERE}: partitions 1 are whole" in done.stderr
    (folder / "line" / "held_out.npy").rename(folder / "job" / "line" / "held_out.npy")
    return folder / "job"


class HostsJob:
    """The example that runs on both hosts."""

    def __init__(self, launch, cable, workspace, num_trainers, *words):
        flags = ["--hosts", f"{HERE},{THERE}", *cable.server.flags, *PATHS, "--workspace", workspace]
        flags += ["--num-trainers", num_trainers, *"--part-config line/parts --num-omp-threads 1".split()]
        flags += "--lost-timeout 5 --stop-timeout 3".split()
        self.launched = launch(*flags, *"embeddings/train.py --dir line".split(), *words, before=cable.before)
        self.mark = f"{workspace}/line/parts", "GLT_PART_CONFIG"

    def pid_of(self, trainer):
        """Of the process itself, not of those that it started."""
        (found,) = (
            pid
            for pid in marked(*self.mark)
            if f"RANK={trainer}" in words_of(pid, "environ") and "train.py" in "".join(words_of(pid)[2:3])
        )
        return found

    def ended(self):
        """Waits for the end of everything, on both hosts, within a minute; returns the exit status."""
        begin = time.monotonic()
        status = self.launched.ended()
        expect_none_marked(*self.mark)
        assert time.monotonic() - begin < 60
        return status


@pytest.fixture
def start(launch, cable, workspace):
    """Starts one with so many trainers on each host; it would run for days, and has begun to learn."""
    started = []

    def start(num_trainers):
        started.append(HostsJob(launch, cable, workspace, num_trainers, *LONG))
        started[-1].launched.wait_for(f"trainers: {2 * num_trainers}")
        return started[-1]

    yield start
    for pid in marked(*started[-1].mark) if started else ():
        os.kill(pid, signal.SIGKILL)


def test_an_example_learns(launch, cable, workspace):
    job = HostsJob(launch, cable, workspace, 1, "--epochs", 1)
    assert job.ended() == 0, job.launched.out + job.launched.err
    assert "trainers: 2" in job.launched.out and f"trainer-0@{HERE} | edges found: 0." in job.launched.out


def test_who_is_killed_is_named(start):
    """Of four trainers, one that waits for the others at every step."""
    job = start(2)
    pid = job.pid_of(3)
    os.kill(pid, signal.SIGKILL)
    assert job.ended() == 137, job.launched.err
    assert f"failed: trainer-3@{THERE}: pid {pid} was killed by SIGKILL" in job.launched.err, job.launched.err


def test_a_host_that_is_cut_off_is_named(start, cable):
    """The launcher stops the other host; on the one that is cut off, processes end by themselves."""
    job = start(1)
    with cable.cut():
        assert job.ended() == 255, job.launched.err
    assert f"host {THERE}: failed (code 255): the connection to it ended" in job.launched.err, job.launched.err


def test_ctrl_c(start):
    job = start(1)
    job.launched.process.send_signal(signal.SIGINT)
    assert job.ended() == 130
    assert "failed" not in job.launched.err, job.launched.err


def test_a_host_that_nobody_answers_for(launch, cable, script):
    begin = time.monotonic()
    flags = ["--hosts", f"{HERE},{NOWHERE}", *cable.server.flags, *PATHS, "--connect-timeout", 10]
    launched = launch(*flags, script, before=cable.before)
    assert launched.ended() == 3
    assert time.monotonic() - begin < 60
    assert f"host {NOWHERE}: ssh does not reach it" in launched.err and f"host {HERE}" not in launched.err
    assert launched.out == "" and "nothing was started" in launched.err
