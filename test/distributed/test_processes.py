"""Sampling processes and their owner: what is said reaches the other, and every end is noticed and named."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from promptness import eventually

from glt.distributed.engine.processes import PACKET_BYTES, ProcessPool

HOST = os.uname().nodename


@pytest.fixture
def pool():
    pool = ProcessPool("stand_in_program", "trainer 7")
    pool.unread = []  # what :func:`heard` has heard and did not look for
    yield pool
    pool.close()


def heard(pool, is_it):
    """Looks until something is heard for which ``is_it`` holds; what came after it is heard next."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pool.unread += pool.look(0.0 if pool.unread else 0.5)
        while pool.unread:
            process, said = pool.unread.pop(0)
            if is_it(said):
                return process, said
    raise AssertionError("nothing of the kind was said within 60 s")


def ready(pool, number, spec=None):
    process = pool.start(number, spec or {})
    heard(pool, lambda said: said is not None and "ready" in said)
    return process


def test_commands_arrive_with_their_descriptors_and_early_ones_wait(pool):
    process = pool.start(0, {"told": "x" * 3 * PACKET_BYTES})  # longer than any packet
    reading, writing = os.pipe()
    assert process.send({"say": {"first": 1}}, [writing])  # long before it is ready
    os.close(writing)
    assert heard(pool, lambda said: "told" in (said or {}))[1]["told"] == 3 * PACKET_BYTES
    heard(pool, lambda said: said == {"first": 1})
    assert os.read(reading, 9) == b"here"
    os.close(reading)
    with pytest.raises(ValueError, match=f"expected at most {PACKET_BYTES}"):
        process.send({"say": "x" * PACKET_BYTES})


def test_every_end_is_heard_of_once_and_named(pool):
    cases = {
        signal.SIGKILL: "exit code -9: it was killed, often by the OOM killer: see dmesg",
        signal.SIGSEGV: "exit code -11: a segmentation fault: please report it",
        signal.SIGBUS: "exit code -7: a bus error: memory or a mapped file ran out",
    }
    processes = {number: pool.start(number, {}) for number in cases}
    for _ in processes:
        heard(pool, lambda said: "ready" in (said or {}))
    for number, process in processes.items():
        for ignored in (signal.SIGINT, signal.SIGTERM):  # they are for the owner
            os.kill(process.pid, ignored)
        os.kill(process.pid, number)
        assert heard(pool, lambda said: said is None)[0] is process
        name = f"worker {int(number)} of trainer 7 (host {HOST}, pid {process.pid})"
        assert process.death() == f"{name} died with {cases[number]}"
        assert not process.send({"say": {}})
    assert all(said is not None for _, said in pool.look(0.5))


@pytest.mark.parametrize(("spec", "command"), [({"fail": "no such thing"}, {}), ({}, {"fail": "no such thing"})])
def test_an_error_is_told_with_its_traceback(pool, spec, command):
    process = pool.start(0, spec)
    process.send(command)
    _, said = heard(pool, lambda said: "error" in (said or {}))
    assert "no such thing" in said["text"] and said["error"].startswith("builtins.")
    assert "stand_in_program.py" in said["traceback"]
    heard(pool, lambda said: said is None)
    assert "died with exit code 4: its output says why" in process.death()


def test_a_stopped_process_falls_silent_and_a_hanging_one_is_killed(pool):
    stopped = ready(pool, 0)
    os.kill(stopped.pid, signal.SIGSTOP)

    def is_silent():
        pool.look(0.1)
        return pool.silent_s(stopped) >= 2.5

    assert eventually(is_silent)
    hanging = ready(pool, 1)
    hanging.send({"hang": True})
    heard(pool, lambda said: "hangs" in (said or {}))
    pids = [stopped.pid, hanging.pid]
    pool.close()
    assert not any(map(psutil.pid_exists, pids)) and not pool.processes
    pool.close()


def test_processes_end_with_their_owner_even_if_a_fork_holds_their_socket(tmp_path):
    script = """
import os, signal, subprocess, sys, time
from glt.distributed.engine.processes import ProcessPool
pool = ProcessPool("stand_in_program", "trainer 7")
process = pool.start(0, {})
while not process.is_ready:
    pool.look(1)
if os.fork() == 0:
    time.sleep(30)  # holds the socket
    os._exit(0)
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", "-c", script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        pid = int(owner.stdout.readline())
    assert eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
