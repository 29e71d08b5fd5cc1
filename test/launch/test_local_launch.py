"""``glt launch`` on this host, with scripts that need nothing of glt: what processes are given, and how a job ends."""

import hashlib
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from launch_world import SLEEP, marked, said

from glt.distributed.wire.credentials import Token
from glt.partition import RandomPartitioner


def test_processes_are_given_the_contract(launch, script, tmp_path):
    parts = tmp_path / "parts"
    for part in range(2):
        (parts / f"part{part}").mkdir(parents=True)
    (parts / "manifest.json").write_text('{"num_parts": 2, "run_id": "x"}')
    arguments = ["a b", "it's", 'say "$HOME"', "`id`", "two\nlines", "", "--", "--nnodes=9", "-x", "*"]
    flags = [*"--num_servers 2 --num_trainers 2 --num_workers 3 --part_config".split(), parts]
    flags += ["--extra_envs", "A=b c", "--extra_envs", "GLT_MINE=$x"]
    launched = launch(*flags, script, *arguments, env={"GLT_TEST_KEPT": "1"})
    assert launched.ended() == 0, launched.err
    found = said(launched.out)
    assert sorted(found) == [f"{role}-{rank}@localhost" for role in ("server", "trainer") for rank in (0, 1)]
    ports = {each["env"]["GLT_MASTER_PORT"] for each in found.values()}
    assert len(ports) == 1
    for who, told in found.items():
        role, rank = who.partition("@")[0].split("-")
        assert told["argv"] == arguments and told["cwd"] == os.getcwd()
        env = told["env"]
        assert env["GLT_MINE"] == "$x" and env["GLT_TEST_KEPT"] == "1"
        assert env["GLT_ROLE"] == role and (told["role"], told["rank"]) == (role, rank)
        assert env["GLT_NUM_SERVERS"] == env["GLT_NUM_TRAINERS"] == "2" and env["GLT_NUM_WORKERS"] == "3"
        assert env["GLT_PART_CONFIG"] == str(parts) and env["GLT_MASTER_ADDR"] == "127.0.0.1"
        if role == "server":
            assert env["GLT_SERVER_RANK"] == rank == env["GLT_PARTITION"]
        else:
            assert env["WORLD_SIZE"] == "2" and env["MASTER_PORT"] not in ports and "GLT_SERVER_RANK" not in env


def test_output_keeps_its_stream_and_comes_at_once(launch, script):
    do = "print('tick', end='', flush=True); print('er\\rror', file=sys.stderr); print('\\N{GREEK SMALL LETTER PI}')"
    launched = launch("--num-servers", 1, script, env={"DO_server": do + "; " + SLEEP, "PYTHONIOENCODING": "utf-8"})
    assert launched.wait_for("tick") == "server-0@localhost | tickπ\n"  # it sleeps and has flushed nothing else
    launched.process.send_signal(signal.SIGINT)
    assert launched.ended() == 128 + signal.SIGINT
    assert "server-0@localhost | ror\n" in launched.err and "\033" not in launched.err + launched.out


def test_no_line_is_lost_or_torn(launch, script):
    flood = "sys.stdout.write(''.join(f'{i}\\n' for i in range(10_000)))"
    launched = launch("--num-servers", 2, "--num-trainers", 0, script, env={"DO_server": flood})
    assert launched.ended() == 0
    for rank in range(2):
        lines = [line for line in launched.out.splitlines() if line.startswith(f"server-{rank}@localhost | ")]
        assert [line.partition(" | ")[2] for line in lines[1:]] == [str(number) for number in range(10_000)]


@pytest.mark.parametrize(
    ("do", "who", "how", "status"),
    [
        ({"DO_trainer_1": "sys.exit('my reason')"}, "trainer-1", "exited with code 1", 1),
        ({"DO_trainer_1": "os.kill(os.getpid(), signal.SIGKILL)"}, "trainer-1", "was killed by SIGKILL", 137),
        ({"DO_server_1": "print('my reason'); sys.exit(9)"}, "server-1", "exited with code 9", 9),
    ],
)
def test_a_failure_is_named(launch, script, do, who, how, status):
    launched = launch(
        "--num-servers", 2, "--num-trainers", 2, script, env={"DO_server": SLEEP, "DO_trainer": SLEEP} | do
    )
    assert launched.ended() == status, launched.err
    pid = said(launched.out)[f"{who}@localhost"]["pid"]
    assert f"glt launch: failed: {who}@localhost: pid {pid} {how}" in launched.err
    assert "my reason" in launched.err.partition("its last lines:")[2] or "KILL" in how
    assert "also failed" not in launched.err  # those that were stopped did not fail


def test_servers_that_outlive_the_trainers_are_named(launch, script):
    launched = launch("--drain-timeout", 0.5, script, env={"DO_server": SLEEP})
    assert launched.ended() == 1
    assert "server-0@localhost still ran 0.5 s after the last trainer had ended" in launched.err


@pytest.mark.parametrize("role", ["server", "trainer"])
def test_a_child_that_is_left_behind_and_writes_for_ever_does_not_keep_the_job(launch, script, role):
    """It holds the output of the process that started it, whose last words are waited for."""
    child = "import time\nwhile True: print('still here', flush=True); time.sleep(0.2)"
    leave = f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True); print('left it')"
    launched = launch(script, env={f"DO_{role}": leave})
    begin = time.monotonic()
    assert launched.ended() == 0, launched.err
    assert time.monotonic() - begin < 120
    assert "left it" in launched.out and "still here" in launched.out


def test_a_signal_stops_everything_even_what_refuses(launch, script, tmp_path):
    """A trainer that ignores SIGTERM and its child in another session are killed in bounded time; no file is left."""
    stay = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); "
        "time.sleep(600)'], start_new_session=True); print('ready'); " + SLEEP
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    launched = launch(
        "--stop-timeout", 1, script, env={"DO_server": SLEEP, "DO_trainer": stay, "TMPDIR": str(temporary)}
    )
    launched.wait_for("ready")
    begin = time.monotonic()
    launched.process.send_signal(signal.SIGTERM)
    assert launched.ended() == 128 + signal.SIGTERM
    assert time.monotonic() - begin < 40
    assert "failed" not in launched.err, launched.err
    assert not list(temporary.iterdir())


def test_a_second_ctrl_c_kills_at_once(launch, script):
    stay = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); " + SLEEP
    launched = launch("--stop-timeout", 600, "--num-trainers", 0, script, env={"DO_server": stay})
    launched.wait_for("ready")
    launched.process.send_signal(signal.SIGINT)
    launched.wait_for_error("SIGINT: stopping")
    launched.process.send_signal(signal.SIGINT)
    assert launched.ended() == 130 and "SIGINT again: killing what is left" in launched.err


def test_a_reader_that_goes_away_ends_the_job(launch, script):
    launched = launch("--num-trainers", 0, script, env={"DO_server": "while True: print('more'); time.sleep(0.01)"})
    launched.wait_for("more")
    launched.process.stdout.close()
    launched.process.wait(60)
    assert launched.process.returncode == 141
    launched.expect_nothing_left()


def test_a_full_disk_ends_the_job(launch, script):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    launched = launch(
        "--num-trainers", 0, script, env={"DO_server": SLEEP}, before=("sh", "-c", 'exec "$@" >/dev/full', "sh")
    )
    assert launched.ended() == 141 and "output cannot be written" in launched.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_what_is_closed_is_not_needed(launch, script, tmp_path, closed):
    do = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    launched = launch(
        "--num-trainers", 0, script, env={"DO_server": do}, before=("sh", "-c", f'exec "$@" {closed}', "sh")
    )
    assert launched.ended() == 0 and (tmp_path / "ran").exists() and "Traceback" not in launched.err


def test_bytes_that_are_no_text_and_characters_that_the_terminal_lacks(launch, script):
    do = "sys.stdout.buffer.write(b'\\0\\xff \\xcf\\x80\\n')"
    launched = launch("--num-trainers", 0, script, env={"DO_server": do, "PYTHONIOENCODING": "ascii"})
    assert launched.ended() == 0, launched.err
    assert "server-0@localhost | \0\\ufffd \\u03c0\n" in launched.out


def test_a_launcher_that_is_killed_leaves_nothing(launch, script):
    launched = launch("--stop-timeout", 2, script, env={"DO_server": SLEEP, "DO_trainer": "print('ready'); " + SLEEP})
    launched.wait_for("ready")
    assert len(marked(launched.mark)) >= 5  # launcher, keeper, server, torchrun, trainer
    launched.process.kill()
    launched.process.wait()
    launched.expect_nothing_left()


def test_a_keeper_that_is_killed_is_named_and_leaves_nothing(launch, script):
    launched = launch("--num-trainers", 0, script, env={"DO_server": "print('ready', os.getppid()); " + SLEEP})
    keeper = int(launched.wait_for("ready").split()[-1])
    os.kill(keeper, signal.SIGKILL)
    assert launched.ended() == 255
    assert f"(pid {keeper}) ended" in launched.err


def test_a_job_may_be_limited_in_time(launch, script):
    launched = launch("--timeout", 1, "--num-trainers", 0, script, env={"DO_server": SLEEP})
    assert launched.ended() == 124
    assert "--timeout 1 s are over" in launched.err


def test_a_dry_run_starts_nothing(command, script):
    flags = "--num-trainers 2 --dry-run --hosts h1,h2 --workspace /w".split()
    status, out, err = command("launch", *flags, f"python3 '{script}' --x 'a b'")
    assert status == 0, err
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["server-0@h1", "torchrun@h1", "server-1@h2", "torchrun@h2"]
    assert "GLT_SERVER_RANK=1" in lines[2] and "--node-rank=1" in lines[3] and "--master-addr=h1" in lines[3]
    assert lines[0].endswith("--x 'a b'")


@pytest.fixture
def without_programs(monkeypatch):
    """A host that has neither ssh nor rsync."""
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.mark.usefixtures("without_programs")
def test_this_host_needs_no_ssh_and_a_dry_run_none_anywhere(command, script, tmp_path):
    (tmp_path / "hosts").write_text("127.0.0.1 4711\n")
    for flags in (("--hosts", "localhost"), ("--ip-config", tmp_path / "hosts")):
        status, out, err = command("launch", *flags, "--num-servers", 0, script)
        assert status == 0, err
        (told,) = said(out).values()
        assert told["env"]["WORLD_SIZE"] == "1"
    status, out, err = command("launch", "--ip-config", tmp_path / "hosts", "--dry-run", script)
    assert status == 0 and "server-0@127.0.0.1: " in out and "GLT_MASTER_PORT=4711" in out, err
    status, out, err = command("launch", "--dry-run", "--hosts", "h1,h2", "--workspace", "/w", script)
    assert status == 0 and "torchrun@h2: " in out, err

    RandomPartitioner(tmp_path / "parts", 2, 3, np.array([[0, 1], [1, 2]])).partition()
    given = ("--hosts", "h1,h2", "--part-config", tmp_path / "parts", "--workspace", "/w")
    status, out, err = command("copy", *given, "--dry-run")
    assert status == 0 and out.startswith("h1: partitions 0, "), err
    for flags in ((), ("--ssh-port", 22)):
        status, _, err = command("launch", "--hosts", "h1" if not flags else "localhost", *flags, script)
        assert status == 2 and "install it (openssh-client)" in err
    status, _, err = command("copy", *given)
    assert status == 2 and "install it" in err


@pytest.mark.parametrize("flag", ["--dry-run", "--dry_run"])
def test_a_dry_run_that_is_asked_for_behind_the_script_starts_nothing(command, script, flag):
    status, out, err = command("launch", script, "--lr", "0.1", flag)
    assert (status, out) == (2, "") and f"{flag} stands behind the script" in err and "quote the whole command" in err
    status, out, err = command("launch", "--dry-run", f"python '{script}' {flag}")  # the script's own
    assert status == 0 and out.splitlines()[0].endswith(flag), err


def test_what_is_missing_is_named_before_anything_starts(command, script, tmp_path):
    parts = tmp_path / "parts"
    (parts / "part0").mkdir(parents=True)
    (parts / "manifest.json").write_text('{"num_parts": 2, "run_id": "x"}')
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        for words, expected in (
            ((f"{script}.no",), "there is no file"),
            (("--workspace", tmp_path / "no", script), "is no directory"),
            (("--master-port", port, script), f"port {port} is taken"),
            (("--part-config", tmp_path, script), "manifest.json cannot be read"),
            (("--part-config", parts, script), "give --num-servers 2"),
            (("--part-config", parts, "--num-servers", 2, script), "lacks part1"),
            (("--python", "/no/python", script), "cannot be started"),
        ):
            status, out, err = command("launch", *words)
            assert (status, out) == (3, "") and expected in err and "nothing was started" in err, (words, err)


def test_wrong_flags(command, script, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("10.0.0.1\n10.0.0.1 # again\n")
    for words, expected in (
        (("--extra-envs", "GLT_ROLE=server", script), "it is glt launch that sets it"),
        (("--ssh-port", 22, script), "without --ip-config"),
        (("--ip-config", hosts, script), "names 10.0.0.1 twice"),
        (("--hosts=-oProxyCommand=x", script), "neither the name nor the address"),
        (("--hosts", "a", "--workspace", "x", script), "an absolute path"),
        (("--workspace", "", script), "--workspace is empty"),
        (("python3 -m train",), "without options of the interpreter"),
        (("--num-servers", 0, "--num-trainers", 0, script), "nothing would run"),
    ):
        status, _, err = command("launch", *words)
        assert status == 2 and expected in err, (words, err)


def test_more_hosts_than_files_may_be_open(launch, script, tmp_path):
    (tmp_path / "hosts").write_text("".join(f"10.0.0.{at}\n" for at in range(1, 201)))
    launched = launch("--ip-config", tmp_path / "hosts", script, before=("sh", "-c", 'ulimit -n 100; exec "$@"', "sh"))
    assert launched.ended() == 2 and "728 open files, and ulimit -n allows 100" in launched.err


# What each process of a job finds: the file of its token, whose hash it says, and that no process shows the token.
LOOK = """
import glob, hashlib, stat
path = os.environ["GLT_TOKEN_FILE"]
token = open(path, "rb").read().strip()
modes = [oct(stat.S_IMODE(os.stat(each).st_mode)) for each in (path, os.path.dirname(path))]
for each in (*glob.glob("/proc/[0-9]*/cmdline"), *glob.glob("/proc/[0-9]*/environ")):
    try:
        shown = open(each, "rb").read()
    except OSError:
        continue
    assert token[10:] not in shown, each
print("FOUND", hashlib.sha256(token).hexdigest(), path, *modes, flush=True)
"""


def found_tokens(job):
    assert job.ended() == 0, job.err
    assert "glt-write-" not in job.out + job.err
    return [line.partition("FOUND ")[2].split() for line in job.out.splitlines() if "FOUND " in line]


def test_a_job_has_a_token_that_nothing_shows(launch, script):
    """All processes of a job have the same one, in a file of their user, which is gone at the end."""
    flags, env = ("--num-servers", 2, "--num-trainers", 2), {"DO_server": LOOK, "DO_trainer": LOOK}
    first, second = (found_tokens(launch(*flags, script, env=env)) for _ in range(2))
    for found in (first, second):
        assert len(found) == 4 and found == [found[0]] * 4 and found[0][2:] == ["0o600", "0o700"]
        assert not Path(found[0][1]).parent.exists()
    assert first[0][0] != second[0][0], "each job has its own"


def test_a_job_takes_the_token_that_is_given(launch, script, tmp_path, command):
    given = Token.new()
    given.write(tmp_path / "given")
    Token.new().write(tmp_path / "other")
    expected = hashlib.sha256(str(given).encode()).hexdigest()
    for flags, name in ((["--token-file", tmp_path / "given"], "other"), ([], "given")):
        env = {"DO_server": LOOK, "GLT_TOKEN_FILE": str(tmp_path / name)}
        ((found, path, *_),) = found_tokens(launch("--num-trainers", 0, *flags, script, env=env))
        assert found == expected and not path.startswith(str(tmp_path)), "a host has a copy"
    for flags, words in (
        (["--token-file", tmp_path / "none"], "token_file = '.*none' cannot be read"),
        (["--token-file", script], "holds no token"),
        (["--token-file", ""], "--token-file is empty"),
        (["--extra-envs", "GLT_TOKEN_FILE=x"], "GLT_TOKEN_FILE: it is glt launch that sets it"),
    ):
        status, _, err = command("launch", *flags, script)
        assert status == 2 and re.search(words, err), err


def test_a_job_over_rpc_has_no_token(launch, script):
    flags = ("--extra-envs", "GLT_TRANSPORT=rpc", "--num-trainers", 0)
    job = launch(*flags, script, env={"DO_server": "print('TOKEN', os.environ.get('GLT_TOKEN_FILE'))"})
    assert job.ended() == 0 and "TOKEN None" in job.out
