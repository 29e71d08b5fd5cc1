"""``glt serve`` as a program: what it says and refuses, how it is stopped, and how it ends."""

import contextlib
import json
import logging
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from certificates import Certificates
from promptness import eventually
from service import options

import glt
from glt.cli import main
from glt.distributed import server_stats
from glt.distributed.server import command as command_serve
from glt.distributed.server.command import label_files
from glt.distributed.server.options import LineFormat
from glt.distributed.server.server import DistServer
from glt.distributed.wire.credentials import Token
from glt.testing.cluster import free_port, take_census

DEADLINE_S = 120.0


class Program:
    """``glt serve`` with ``flags``, in a process of its own."""

    def __init__(self, path, *flags):
        self.port = free_port()
        self._shm = set(os.listdir("/dev/shm"))
        command = [sys.executable, "-m", "glt", "serve", "--partition", path, "--master-port", str(self.port)]
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        command += ["--timeout", "100", *map(str, flags)]
        self.process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        self.log = []
        self._lines = queue.SimpleQueue()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read_log, self._read_lines)]
        for thread in self._threads:
            thread.start()
        self.workers = set()

    def _read_log(self):
        self.log.extend(iter(self.process.stderr.readline, ""))

    def _read_lines(self):
        for line in self.process.stdout:
            self._lines.put(line)

    def ready(self):
        """Waits for its one line."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=0.2)
                self.workers |= set(take_census(self.process.pid).children)
                return line
        raise AssertionError(f"it is not ready (exit code {self.process.poll()}):\n{''.join(self.log)}")

    def wait_for(self, word):
        assert eventually(lambda: any(word in line for line in list(self.log))), (word, self.log)

    def ended(self):
        """Waits for its end, and for that of its samplers; nothing may be left. Returns the exit status."""
        status = self.process.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join(30)  # they end when the last process has closed the pipes
            assert not thread.is_alive(), "a sampling process outlives the server"
        assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in self.workers))
        assert self._lines.empty(), "it says one line on stdout"
        with socket.create_server(("127.0.0.1", self.port)):
            pass  # the port is free
        assert not [name for name in set(os.listdir("/dev/shm")) - self._shm if "glt" in name]
        return status

    def close(self):
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(30)
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()


@pytest.fixture
def serve(world):
    programs = []

    def start(*flags):
        programs.append(Program(world(2).path, *flags))
        return programs[-1]

    yield start
    glt.distributed.shutdown_client()
    for each in programs:
        each.close()


def become_client(program):
    glt.distributed.init_client(1, 1, 0, "127.0.0.1", program.port, rpc_timeout=100.0)


def make_loader():
    return glt.distributed.DistNeighborLoader(
        None, [3], torch.arange(64), batch_size=8, random_seed=1, worker_options=options()
    )


def test_it_is_drained_when_it_is_stopped_and_its_log_is_json(serve):
    program = serve("--log-format", "json", "--drain-timeout", 100)
    told = json.loads(program.ready())
    assert told["event"] == "ready" and (told["address"], told["port"]) == ("127.0.0.1", program.port)
    assert (told["server"], told["num_servers"], told["partition"], told["num_partitions"]) == (0, 1, 0, 2)
    assert told["pid"] == program.process.pid and told["metrics"] is None and told["listens_at"] == "127.0.0.1"
    become_client(program)
    loader = make_loader()
    batches = iter(loader)
    next(batches)
    assert set(program.workers) >= {each["pid"] for each in server_stats(0)["workers"].values()}
    program.process.send_signal(signal.SIGTERM)
    program.wait_for("1 loaders are open, and have 100 s")
    with pytest.raises(RuntimeError, match="is shutting down and takes no loaders"):
        make_loader()
    assert server_stats(0)["is_draining"]
    assert sum(1 for _ in batches) == len(loader) - 1  # it has its time
    loader.shutdown()
    assert program.ended() == 0

    lines = [json.loads(line) for line in program.log]
    assert all(each.keys() >= {"time", "level", "logger", "message", "server", "worker", "pid"} for each in lines)
    assert {each["server"] for each in lines} == {0} and {each["worker"] for each in lines} == {None, 0}
    assert {each["pid"] for each in lines} <= {told["pid"]} | program.workers
    messages = [each["message"] for each in lines]
    (trust,) = [text for text in messages if text.startswith("listening at 127.0.0.1:")]
    assert "for this host only; all who reach it are answered; not encrypted" in trust
    assert any("SIGTERM" in text for text in messages)
    assert any("nothing was cancelled" in text for text in messages)
    assert not [each for each in lines if each["level"] in ("error", "critical")]


@pytest.mark.parametrize("twice", [False, True])
def test_what_is_cancelled_is_said(serve, twice):
    program = serve("--drain-timeout", 1000 if twice else 0.3, "--log-level", "info")
    line = program.ready()
    assert line.startswith(f"glt serve: server 0 of 1 is ready at 127.0.0.1:{program.port}: partition 0 of 2 of ")
    assert f"pid {program.process.pid}" in line
    become_client(program)
    loader = make_loader()
    next(iter(loader))
    program.process.send_signal(signal.SIGINT)
    if twice:
        program.wait_for("no more clients and loaders")
        program.process.send_signal(signal.SIGTERM)
    assert program.ended() == 4
    (said,) = [line for line in program.log if "cancelled" in line]
    assert "1 loaders were cancelled: loader distributed-client-0-1 of client 0" in said and "WARNING" in said
    assert ("told twice" if twice else "0.3 s are over") in said
    with pytest.raises(glt.errors.GltError, match=r"shut down|lost"):
        for _ in range(3):
            list(loader)


def test_it_ends_when_its_clients_have_left(serve):
    program = serve("--clients", 1, "--rank", 0, "--partition-idx", 1, "--host", "0.0.0.0", "--log-level", "warning")
    assert "partition 1 of 2" in program.ready()
    become_client(program)
    with make_loader() as loader:
        assert sum(1 for _ in loader) == len(loader)
    glt.distributed.shutdown_client()
    assert program.ended() == 0
    assert any("0.0.0.0 and asks for no token" in line and "glt token FILE" in line for line in program.log)
    assert not [line for line in program.log if " INFO " in line]


def test_its_samplers_end_with_it_when_it_is_killed(serve):
    program = serve("--workers", 2)
    program.ready()
    assert len(program.workers) == 2
    program.process.send_signal(signal.SIGKILL)
    assert program.ended() == -signal.SIGKILL


def test_it_can_be_stopped_before_it_is_ready(world, serve):
    program = serve("--rank", 1, "--servers", 2)  # server 0 never comes
    assert eventually(lambda: take_census(program.process.pid).children), program.log
    program.workers |= set(take_census(program.process.pid).children)
    os.killpg(program.process.pid, signal.SIGINT)  # as Ctrl-C does: its samplers, which are starting, get it too
    assert program.ended() == 0
    assert any("stopped by SIGINT before it was ready" in line for line in program.log)
    assert not any("Traceback" in line for line in program.log)


SCRIPT = """
import os, signal, sys, time
import glt.cli

def import_slowly(name):
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(60)

glt.cli.importlib.import_module = import_slowly
sys.exit(glt.cli.main(["serve", *sys.argv[2:]]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("flags", [[], ["--log-format", "json"], ["--log-format=json"]])
def test_it_says_that_it_was_stopped(number, flags):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(int(number)), *flags], capture_output=True, text=True, timeout=60
    )
    said = f"stopped by {number.name} before it was ready"
    assert ended.returncode == 0 and ended.stdout == "", ended
    (line,) = ended.stderr.splitlines()
    if flags:
        told = json.loads(line)
        assert told["message"] == said and told.keys() >= {"time", "level", "logger", "server", "worker", "pid"}
    else:
        assert said in line


@pytest.fixture
def glt_serve(monkeypatch, caplog):
    """Runs the command in this process, whose log stays pytest's, and looks at what it leaves."""
    monkeypatch.setattr(command_serve, "write_logs", lambda *args: None)
    caplog.set_level(logging.INFO)

    def run(*flags):
        before, handlers = (
            set(take_census().children),
            [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)],
        )
        try:
            return main(["serve", *map(str, flags)])
        finally:
            assert set(take_census().children) <= before
            assert handlers == [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
            assert glt.distributed.get_server() is None and glt.distributed.get_context() is None

    return run


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rank", "2", "--servers", "2"], "--rank 2: expected 0 to 1"),
        (["--rank", "-1"], "argument --rank"),
        (["--partition", "/nowhere"], "'/nowhere' is no directory"),
        (["--partition-idx", "2"], "--partition-idx 2: .* has 2 partitions"),
        (["--workers", "3", "--max-workers", "2"], "num_workers = 3.*max_workers = 2"),
        (["--port", "7"], "server 0 listens on master_port"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--drain-timeout", "-1"], "--drain-timeout.*'-1'"),
        (["--max-buffer-size", "much"], "--max-buffer-size.*'much'"),
        (["--feature-memory", "-1"], "--feature-memory.*'-1'"),
        (["--seed-dir", "/nowhere"], "--seed-dir"),
        (["--log-format", "xml"], "--log-format"),
        (["--labels", "/nowhere.pt"], "/nowhere.pt"),
        (["--labels", "paper=a.pt", "--labels", "b.pt"], "TYPE=FILE for all, or one FILE"),
        (["--clients", "none"], "--clients"),
        (["--token-file", "/nowhere"], "token_file = '/nowhere' cannot be read: No such file"),
        (["--token-file", "/etc/hostname"], "token_file = '/etc/hostname' holds no token: .*`glt token`"),
        (["--tls-cert", "/nowhere"], "key = None: expected both a certificate and its key"),
        (["--tls-ca", "/nowhere"], "ca = '/nowhere' cannot be used"),
        (["--tls-mutual"], "cert = None: a process that listens needs a certificate"),
        (["--metrics-auth"], "metrics_auth = True, and metrics_port = None"),
    ],
)
def test_a_wrong_flag_ends_with_2(world, glt_serve, capsys, flags, words):
    with pytest.raises(SystemExit) as ended:
        glt_serve("--partition", world(2).path, *flags)
    assert ended.value.code == 2
    assert re.search(words, capsys.readouterr().err.replace("\n", " "))


@pytest.mark.parametrize("flag", ["--master-port", "--metrics-port"])
def test_a_port_that_is_taken_ends_with_3(world, glt_serve, caplog, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--master-port": free_port(), flag: port}
        assert glt_serve("--partition", world(1).path, *(each for item in ports.items() for each in item)) == 3
    name = flag.strip("-").replace("-", "_")
    assert f"{name} = {port}" in caplog.text and "another program has the port" in caplog.text


def test_a_damaged_directory_ends_with_3(private_world, tmp_path, glt_serve, caplog):
    files = [path for path in private_world.path.rglob("*") if path.is_file() and "part0" in str(path)]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(largest.stat().st_size))
    assert glt_serve("--partition", private_world.path, "--master-port", free_port()) == 3
    (tmp_path / "empty").mkdir()
    assert glt_serve("--partition", tmp_path / "empty") == 3
    assert caplog.text.count("cannot start: ") == 2


def test_a_server_0_that_is_not_there_ends_with_3(world, glt_serve, caplog):
    # Its samplers must be ready before it looks for server 0; where the machine is busy, the deadline is over by then.
    flags = ("--rank", 1, "--servers", 2, "--master-port", free_port(), "--timeout", 6)
    assert glt_serve("--partition", world(1).path, *flags) == 3
    assert re.search("cannot start: .*(server 0 was not reached at|were not ready after 6 s)", caplog.text)


def test_a_server_that_requires_a_token_ends_with_3_without(world, glt_serve, caplog, monkeypatch):
    flags = ("--partition", world(1).path, "--master-port", free_port(), "--host", "0.0.0.0")
    assert glt_serve(*flags, "--require-auth") == 3
    monkeypatch.setenv("GLT_REQUIRE_AUTH", "1")
    assert glt_serve(*flags) == 3
    assert caplog.text.count("listens at 0.0.0.0 and asks for no token") == 2 and "(require_auth)" in caplog.text


def test_it_says_who_is_answered(serve, tmp_path):
    Token.new().write(tmp_path / "token")
    certificates = Certificates(tmp_path)
    certificates.issue("job")
    options = certificates.tls("job", mutual=True)
    flags = ["--tls-cert", options.cert, "--tls-key", options.key, "--tls-ca", options.ca, "--tls-mutual"]
    flags += ["--token-file", tmp_path / "token", "--host", "0.0.0.0", "--require-auth"]
    program = serve(*flags)
    program.ready()
    program.process.send_signal(signal.SIGTERM)
    assert program.ended() == 0
    assert any("which other hosts reach; those with the token are answered; mutual TLS" in each for each in program.log)
    assert not any("asks for no token" in line for line in program.log)
    assert str(Token.read(tmp_path / "token"))[10:] not in "".join(program.log)


def test_a_failure_of_the_server_itself_ends_with_1(world, glt_serve, caplog, capsys, monkeypatch):
    def fail(self, timeout_s=None):
        if timeout_s:
            raise ZeroDivisionError("out of the blue")
        return False

    monkeypatch.setattr(DistServer, "wait_until_done", fail)
    port = free_port()
    assert glt_serve("--partition", world(1).path, "--master-port", port) == 1
    assert "is ready at" in capsys.readouterr().out
    failed = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert len(failed) == 1 and "out of the blue" in failed[0].getMessage() and failed[0].exc_info
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_the_help_says_how_it_ends(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert "exit status:" in text and "Without a token, who reaches the port can" in text
    assert [line.split()[0] for line in text.partition("exit status:\n")[2].splitlines()[:5]] == list("01234")


def test_labels_by_type(tmp_path):
    assert label_files([]) is None
    assert label_files(["a.pt"]) == "a.pt"
    assert label_files(["paper=a.pt", "author=b.npy"]) == {"paper": "a.pt", "author": "b.npy"}
    odd = tmp_path / "a=b.pt"
    odd.touch()
    assert label_files([str(odd)]) == str(odd)
    with pytest.raises(ValueError, match="'paper' are given twice"):
        label_files(["paper=a.pt", "paper=b.pt"])


@pytest.mark.parametrize("worker", [2, None])
@pytest.mark.parametrize("format", ["text", "json"])
def test_lines_name_the_process_and_carry_their_traceback(format, worker):
    record = logging.LogRecord("glt.some", logging.WARNING, __file__, 1, "%d lost\nof %s", (3, "a"), None)
    record.created = 1_700_000_000.25
    line = LineFormat(format, 1, worker).format(record)
    time, message = "2023-11-14T22:13:20.250Z", "3 lost\nof a"
    if format == "json":
        place = {"server": 1, "worker": worker, "pid": os.getpid()}
        told = {"time": time, "level": "warning", "logger": "glt.some", "message": message, **place}
        assert "\n" not in line and json.loads(line) == told
    else:
        process = "server 1" if worker is None else "server 1, worker 2"
        assert line == f"{time} WARNING {process}, pid {os.getpid()}: glt.some: {message}"
    try:
        raise KeyError("what was lost")
    except KeyError:
        record.exc_info = sys.exc_info()
    line = LineFormat(format, 1, worker).format(record)
    text = json.loads(line)["traceback"] if format == "json" else line
    assert "Traceback (most recent call last)" in text and "KeyError: 'what was lost'" in text


_PROGRAM = """
import logging, threading, warnings
from glt.distributed.server.options import write_logs
write_logs("json", logging.INFO, 3, 1)
logging.getLogger("a").debug("not this")
logging.getLogger("a").info("this")
warnings.warn("a warning")
thread = threading.Thread(target=lambda: 1 // 0, name="divider")
thread.start(); thread.join()
raise RuntimeError("the end")
"""


def test_warnings_and_what_nobody_caught_are_lines_too():
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and ended.stdout == ""
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [each["level"] for each in lines] == ["info", "warning", "critical", "critical"]
    assert {(each["server"], each["worker"]) for each in lines} == {(3, 1)}
    assert "a warning" in lines[1]["message"]
    assert "thread divider ended: ZeroDivisionError" in lines[2]["message"] and "1 // 0" not in lines[2]["message"]
    assert "the end" in lines[3]["message"] and "Traceback" in lines[3]["traceback"]
