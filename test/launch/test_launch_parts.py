"""The parts of a launch, without a network."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import namedtuple
from pathlib import Path

import pytest
from launch_world import SLEEP, said

from glt.distributed.job.hosts import THIS_HOST, Host, parse_hosts, read_hosts
from glt.launch.agent import recorded_error
from glt.launch.check import prepare, verify
from glt.launch.command import command_of
from glt.launch.hosts import Reach, partition_of, partitions_of_hosts
from glt.launch.job import Console, Failure, first_of


def test_hosts_of_a_file(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# all\n10.0.0.1 30050  # first\n\n  node-2.cluster\nfe80::1\n")
    assert read_hosts(file) == [Host("10.0.0.1", 30050), Host("node-2.cluster"), Host("fe80::1")]
    file.write_bytes(b"\xef\xbb\xbfa\r\n\tb\t30050 \r\n# end")  # as some editors write it
    assert read_hosts(file) == [Host("a"), Host("b", 30050)]
    file.write_text("".join(f"10.0.{at // 250}.{at % 250 + 1}\n" for at in range(1000)))
    assert len(read_hosts(file)) == 1000
    assert parse_hosts("a, b") == [Host("a"), Host("b")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 0", "line 1: 'a 0': expected ADDRESS"),
        ("a 1 2", "a PORT"),
        ("a\nb 99999", "line 2"),
        ("", "no host"),
        ("-oX=y", "neither the name"),
        ("a;b", "neither the name"),
        ("a\na 5", "names a twice"),
        ("u@h", "neither"),
        ("Node\nnode", "names node twice"),
        ("::1\n0:0:0:0:0:0:0:1", "names ::1 twice"),
        ("999.1.1.1", "neither"),
        ("1.2.3", "neither"),
        ("a \N{ARABIC-INDIC DIGIT THREE}", "a PORT"),
        ("[::1]", "neither"),
        ("a:22", "neither"),
        ("a\x0cb", "line 1"),
        ("a,b", "neither"),
        ("# only", "no host"),
    ],
)
def test_hosts_that_are_none(tmp_path, text, expected):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ValueError, match=expected):
        read_hosts(tmp_path / "hosts")


def test_commands():
    assert command_of("train.py", ["a b", "--x"]) == (["train.py", "a b", "--x"], None)
    assert command_of("my train.py", []) == (["my train.py"], None)
    assert command_of("python3 train.py --x 'a b'", []) == (["train.py", "--x", "a b"], None)
    assert command_of("/opt/x/bin/python3.11 train.py", []) == (["train.py"], "/opt/x/bin/python3.11")
    for wrong in ("python3 -u train.py", "python train.py 'x", "python "):
        with pytest.raises(ValueError):
            command_of(wrong, [])


def test_the_users_ssh_options_win():
    words = Reach(True, ssh_options=("ConnectTimeout=99",), ssh_port=22, ssh_user="me").shell()
    assert words.index("ConnectTimeout=99") < words.index("ConnectTimeout=10")  # ssh takes the first
    command = Reach(True).command(Host("h"), ["a b", "$x", "it's"])
    assert command[-2:] == ["h", "exec 'a b' '$x' 'it'\"'\"'s'"] and "BatchMode=yes" in command


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colours_are_for_terminals(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = Terminal(), io.StringIO()
    console = Console(terminal, file)
    console.lines("a@h", ["w", "x"], False)
    console.lines("a@h", ["y"], True)
    assert terminal.getvalue() == "\033[36ma@h\033[0m | w\n\033[36ma@h\033[0m | x\n" and file.getvalue() == "a@h | y\n"
    assert console.last_lines("a@h") == ("w", "x", "y") and console.last_lines("b@h") == ()
    monkeypatch.setenv("NO_COLOR", "1")
    console.lines("a@h", ["z"], False)
    assert terminal.getvalue().endswith("\na@h | z\n")


def test_who_is_to_blame():
    """Who is killed comes before who lost it an instant earlier, and both before whom torchrun ended."""
    exited, killed, ended = Failure("a", 1, 3), Failure("b", 2, -9), Failure("c", 3, -15)
    assert first_of([exited, killed]) is killed and first_of([exited, ended]) is exited
    assert (exited.exit_status, killed.exit_status) == (3, 137)
    assert "SIGKILL (out of memory, perhaps" in killed.text() and "pid 1 exited with code 3" in exited.text()
    told = Failure(
        "a", 1, 1, "", ("x", "glt.errors.PeerLost: trainer 1 is gone: it left, having failed: ValueError: no")
    )
    itself = Failure("b", 2, 1, "", ("glt.errors.PeerLost: one that it had caught", "ValueError: no"))
    silent = Failure("c", 3, 1)
    assert first_of([told, itself, silent]) is itself and first_of([told, silent]) is silent
    assert first_of([told, killed]) is killed and first_of([told, ended]) is told and first_of([told]) is told


TRACEBACK = "Traceback (most recent call last):"


CONTEXT = f"{TRACEBACK}\nConnectionResetError: [Errno 104] x\n\nDuring handling ... occurred:\n{TRACEBACK}"
GLOO = "[rank0]: RuntimeError: [x/gloo/pair.cc:5] Connection closed by peer [127.0.0.1]:4"
WATCHDOG = "  what():  [Rank 1] Watchdog caught collective operation timeout"


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (f'{TRACEBACK}\n  File "x"\nglt.errors.PeerLost: trainer 1 is gone\nbye', 1, True),
        (f'[rank0]: {TRACEBACK}\n[rank0]:   File "x"\n{GLOO}', 1, True),
        (f"{CONTEXT}\nValueError: mine\nnote: Connection reset by peer", 1, False),
        (f"{TRACEBACK}\ntorch.distributed.DistNetworkError: x", 1, True),
        (f"{TRACEBACK}\nValueError: mine", 1, False),
        ("", 3, False),
        (f"terminate called after throwing an instance of 'c10::DistBackendError'\n{WATCHDOG}", -6, True),
        ("  what():  mine", -6, False),
        (f"{TRACEBACK}\nBrokenPipeError: x", -9, False),
    ],
)
def test_who_lost_a_peer(text, code, expected):
    assert Failure("a", 1, code, "", tuple(text.splitlines())).has_lost_a_peer is expected


def test_what_a_trainer_recorded(tmp_path):
    """As torch's ``@record`` writes it; else, and of a file that was cut short, nothing, and the time is now."""
    file = tmp_path / "error.json"
    file.write_text('{"message": {"message": "ValueError: no", "extraInfo": {"timestamp": "17"}}}')
    assert recorded_error(file) == ("ValueError: no", 17.0)
    file.write_text('{"message": {"mess')
    begin = time.time()
    for path in (file, tmp_path / "none"):
        told, raised_s = recorded_error(path)
        assert told == "" and begin <= raised_s <= time.time()


# Trainer 1 connects to the others, by sockets of the workspace; they wait for it to hang up, and then fail.
MEET = """
import atexit, socket
def wait_for_loss(name):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name + ".new")
        listener.listen()
        os.rename(name + ".new", name)
        with listener.accept()[0] as peer:
            print("connected")
            peer.recv(1)
def meet(*names):
    peers = [socket.socket(socket.AF_UNIX) for _ in names]
    for peer, name in zip(peers, names):
        while peer.connect_ex(name):
            time.sleep(0.02)
    return peers
"""


def job(launch, script, *words, **do):
    env = {name: f"{MEET}\n{code}" for name, code in do.items()}
    return launch("--workspace", script.parent, *words, script, env=env)


def test_who_refuses_to_end_does_not_hold_up_the_news(launch, script):
    """Trainer 1 is killed. torchrun stops trainer 0, which takes its time; only then it tells of trainer 1. Meanwhile
    the server fails, by an error that does not look like the loss of a peer."""
    launched = job(
        launch,
        script,
        *"--num-trainers 2 --stop-timeout 3".split(),
        DO_server="wait_for_loss('s'); sys.exit('no answer')",
        DO_trainer_0="signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP,
        DO_trainer_1="peers = meet('s'); " + SLEEP,
    )
    lines = launched.wait_for_all("trainer-1@localhost | {", "connected")
    pid = said(lines)["trainer-1@localhost"]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert launched.ended() == 137, launched.err
    assert f"failed: trainer-1@localhost: pid {pid} was killed by SIGKILL" in launched.err
    assert "also failed: server-0@localhost" in launched.err


def test_who_takes_its_time_to_end_is_not_hidden_by_who_lost_it(launch, script):
    """Trainer 1 raises, hangs up as it ends, and ends later than the others; torchrun would have stopped it."""
    launched = job(
        launch,
        script,
        "--num-trainers",
        2,
        DO_server=SLEEP,
        DO_trainer_0="wait_for_loss('t'); raise ConnectionResetError('of trainer 1')",
        DO_trainer_1="peers = meet('t'); atexit.register(time.sleep, 1.5); atexit.register(peers[0].close); "
        "raise ValueError('mine')",
    )
    assert launched.ended() == 1, launched.err
    pids = {who: told["pid"] for who, told in said(launched.out).items()}
    assert f"failed: trainer-1@localhost: pid {pids['trainer-1@localhost']} exited with code 1" in launched.err
    assert "ValueError: mine" in launched.err.partition("its last lines:")[2]
    assert f"also failed: trainer-0@localhost: pid {pids['trainer-0@localhost']}" in launched.err


def test_a_loss_that_nobody_explains_is_a_failure(launch, script):
    """Server 1 leaves without an error; server 0 is all there is to name."""
    launched = job(
        launch,
        script,
        *"--num-servers 2 --num-trainers 0".split(),
        DO_server_0="wait_for_loss('t'); raise ConnectionResetError('of server 1')",
        DO_server_1="peers = meet('t')",
    )
    assert launched.ended() == 1
    assert "failed: server-0@localhost" in launched.err and "of server 1" in launched.err, launched.err


def test_who_fails_while_the_job_is_stopped_is_not_to_blame(launch, script):
    launched = job(
        launch,
        script,
        *"--num-servers 2 --num-trainers 0".split(),
        DO_server_0="signal.signal(signal.SIGTERM, lambda *a: sys.exit(7)); print('handles it'); " + SLEEP,
        DO_server_1=SLEEP,
    )
    lines = launched.wait_for_all("handles it", "server-1@localhost | {")
    pid = said(lines)["server-1@localhost"]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert launched.ended() == 137
    assert f"failed: server-1@localhost: pid {pid} was killed" in launched.err and "also" not in launched.err


def run_keeper(*argv, wait_s=0.0, **plan):
    """Runs a command under a keeper whose stdin stays open; returns what it told, read after ``wait_s``, and the lines
    of output in that."""
    command, begin = Reach(over_ssh=False).run_program(THIS_HOST, "keeper")
    spec = {"name": "it", "argv": argv, "env": {}, "cwd": "/", "streams": []}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdin is not None and keeper.stdout is not None
        text = json.dumps({"processes": [spec], "stop_s": 1.0, "silent_s": None} | plan).encode() + b"\n"
        keeper.stdin.write(begin + text)
        keeper.stdin.flush()
        time.sleep(wait_s)
        told = [json.loads(line) for line in keeper.stdout]
        return told, [text for each in told if each["event"] == "lines" for text in each["texts"]]


PYTHON = (sys.executable, "-c")


def test_a_silent_launcher_ends_everything():
    """A host that is cut off hears neither from its launcher nor that the connection has ended."""
    begin = time.monotonic()
    told, _ = run_keeper(*PYTHON, "import time; time.sleep(600)", silent_s=0.5)
    assert [each["event"] for each in told] == ["started", "ended", "done"]
    assert told[1]["code"] == -15 and time.monotonic() - begin < 30


def test_what_a_process_left_behind_ends():
    left = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', '''{}''']); print('bye')"
    sleep = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    told, _ = run_keeper(*PYTHON, left.format(sleep))
    assert [each["event"] for each in told] == ["started", "lines", "ended", "done"] and told[2]["code"] == 0


def test_a_flood_of_output_is_whole():
    """Also for a reader that takes its time, longer than processes have to close their pipes."""
    _, lines = run_keeper(*PYTHON, "for i in range(50_000): print(i)\nprint('x' * 200_000, end='')", wait_s=3.0)
    assert lines[:50_000] == [str(number) for number in range(50_000)]
    assert "".join(lines[50_000:]) == "x" * 200_000  # in pieces: memory is bounded


def test_a_flood_after_one_pipe_was_closed():
    told, lines = run_keeper(*PYTHON, "import os; os.close(2)\nfor i in range(300_000): print(i)", wait_s=3.0)
    assert lines == [str(number) for number in range(300_000)] and told[-2]["code"] == 0


def test_a_command_that_there_is_not():
    told, _ = run_keeper("/no/such")
    assert [each["event"] for each in told] == ["lines", "started", "ended", "done"] and told[2]["code"] == 127


def test_partitions_go_to_as_few_hosts_as_there_can_be():
    for num_hosts in range(1, 6):
        for num_servers in range(1, 5):
            total = num_hosts * num_servers
            for num_parts in range(1, total + 1):
                loaded = [partition_of(server, total, num_parts) for server in range(total)]
                counts = [loaded.count(part) for part in range(num_parts)]
                assert min(counts) >= 1 and max(counts) - min(counts) <= 1
                hosts = partitions_of_hosts(num_hosts, num_servers, num_parts)
                assert sum(map(len, hosts)) <= num_parts + num_hosts - 1
                if num_parts == num_hosts:
                    assert hosts == [[part] for part in range(num_parts)]


def test_the_programs_of_hosts_need_the_standard_library_only():
    """They are sent to hosts, which may have no glt: an import of ours would fail there, and only there."""
    folder = Path(__file__).parents[2] / "glt" / "launch"
    for name in ("keeper", "check"):
        for line in (folder / f"{name}.py").read_text().partition("_PROBE = ")[0].splitlines():
            if line.startswith(("import ", "from ")):
                assert line.split()[1].split(".")[0] in sys.stdlib_module_names, (name, line)


def test_room_and_rsync_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    usage = namedtuple("usage", "total used free")(1 << 40, 0, 3 << 29)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    (tmp_path / "there").write_bytes(b"x" * 100)
    files = {"there": 100, "b": 1 << 31}
    asked = {"root": str(tmp_path), "files": files, "run_id": "x", "replace": False}
    answer = prepare(asked)
    assert answer["num_missing_bytes"] == 1 << 31
    assert answer["problems"] == [
        "there is no rsync: install it",
        f"{tmp_path} has room for 1.50 GiB, and 2.00 GiB are to be sent",
    ]


def test_only_files_of_the_other_run_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    root = tmp_path / "root"
    root.mkdir()
    outside = tmp_path / "outside"
    for path in (outside, root / "old", root / "kept", root / "mine"):
        path.write_text("x")
    (root / "manifest.json").write_text(json.dumps({"run_id": "a", "files": {"old": {}, "kept": {}, "../outside": {}}}))
    asked = {"root": str(root), "files": {"kept": 1}, "run_id": "b", "replace": True}
    assert prepare(asked) == {"problems": [], "num_missing_bytes": 0}
    assert sorted(path.name for path in root.iterdir()) == ["kept", "mine"] and outside.exists()


def test_damage_is_found(tmp_path):
    content = bytes(range(256)) * 10
    checksum = "".join(f"{zlib.crc32(content[at : at + 1000]):08x}" for at in range(0, len(content), 1000))
    for name, data in (("whole", content), ("short", content[:-1]), ("other", content[:-1] + b"x")):
        (tmp_path / name).write_bytes(data)
    entry = [len(content), checksum]
    files = dict.fromkeys(("whole", "short", "other", "absent"), entry)
    bad = verify({"root": str(tmp_path), "files": files, "block_bytes": 1000})["bad"]
    assert bad == {"short": "has 2559 bytes, not 2560", "other": "has another checksum", "absent": "is missing"}
