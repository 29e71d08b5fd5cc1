"""``glt serve`` as a program: what it says, how it is stopped, and how it ends."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from service_world import options

import glt
from glt.distributed import server_stats
from glt.testing.cluster import free_port, take_census

DEADLINE_S = 120.0


class Program:
    """``glt serve`` with ``flags``, in a process of its own."""

    def __init__(self, path, *flags):
        self.port = free_port()
        self._shm = set(os.listdir("/dev/shm"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "glt", "serve", "--partition", path, "--master-port", str(self.port),
             "--timeout", "100", *map(str, flags)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.log = []
        self._lines = queue.SimpleQueue()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read_log, self._read_lines)]
        for thread in self._threads:
            thread.start()
        self.workers = set()

    def _read_log(self):
        assert self.process.stderr is not None
        self.log.extend(iter(self.process.stderr.readline, ""))

    def _read_lines(self):
        assert self.process.stdout is not None
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
        deadline = time.monotonic() + DEADLINE_S
        while not any(word in line for line in list(self.log)):
            assert time.monotonic() < deadline, (word, self.log)
            time.sleep(0.05)

    def signal(self, number):
        self.process.send_signal(number)

    def ended(self):
        """Waits for its end, and for that of its samplers; nothing may be left. Returns the exit status."""
        status = self.process.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join(30)  # they end when the last process has closed the pipes
            assert not thread.is_alive(), "a sampling process outlives the server"
        left = self.workers
        deadline = time.monotonic() + 30
        while left := {pid for pid in left if Path(f"/proc/{pid}").exists()}:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
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
            assert pipe is not None
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
    program.signal(signal.SIGTERM)
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
    assert any("neither encrypted nor authenticated" in text and "for this host only" in text for text in messages)
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
    program.signal(signal.SIGINT)
    if twice:
        program.wait_for("no more clients and loaders")
        program.signal(signal.SIGTERM)
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
    assert any("0.0.0.0" in line and "other hosts reach" in line and "not" not in line[:20] for line in program.log)
    assert not [line for line in program.log if " INFO " in line]


def test_its_samplers_end_with_it_when_it_is_killed(serve):
    program = serve("--workers", 2)
    program.ready()
    assert len(program.workers) == 2
    program.signal(signal.SIGKILL)
    assert program.ended() == -signal.SIGKILL


def test_it_can_be_stopped_before_it_is_ready(world, serve):
    program = serve("--rank", 1, "--servers", 2)  # server 0 never comes
    deadline = time.monotonic() + DEADLINE_S
    while not (children := take_census(program.process.pid).children):
        assert time.monotonic() < deadline and program.process.poll() is None, program.log
        time.sleep(0.05)
    program.workers |= set(children)
    os.killpg(program.process.pid, signal.SIGINT)  # as Ctrl-C does: its samplers, which are starting, get it too
    assert program.ended() == 0
    assert any("stopped by SIGINT before it was ready" in line for line in program.log)
    assert not any("Traceback" in line for line in program.log)
