"""``glt launch`` as a program, for tests: its output, its processes, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import glt

DEADLINE_S = 240.0
_MARK = "GLT_TEST_LAUNCH"

# Each process says what it is given; then it does what its role is told to.
SCRIPT = """\
import json, os, signal, subprocess, sys, time
role = os.environ.get("GLT_ROLE", "none")
rank = os.environ.get("GLT_SERVER_RANK") if role == "server" else os.environ.get("RANK")
print(json.dumps({"role": role, "rank": rank, "argv": sys.argv[1:], "cwd": os.getcwd(), "pid": os.getpid(),
                  "env": {k: v for k, v in os.environ.items() if k.startswith(("GLT_", "MASTER_", "WORLD_", "OMP_"))}}))
todo = os.environ.get(f"DO_{role}_{rank}", os.environ.get(f"DO_{role}", ""))
exec(todo)
"""
SLEEP = "time.sleep(600)"
PATHS = ("--extra-envs", f"PYTHONPATH={Path(glt.__file__).parents[1]}")  # ssh passes no environment on


class Launched:
    """A ``glt launch`` that runs; ``before`` precedes its command, such as ``ip netns exec``."""

    def __init__(self, *words, env=None, before=()):
        self.mark = uuid.uuid4().hex
        self.begin_s = time.monotonic()
        # Where the tests run in the background, Ctrl-C is ignored, which programs inherit and the launcher respects.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "glt", "launch", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, **(env or {}), **mark_of(self.mark), "OMP_NUM_THREADS": "1"},
            )
        finally:
            signal.signal(signal.SIGINT, handler)
        self.out = self.err = ""

    def ended(self):
        """Waits for its end and for that of all that it started; returns its exit status."""
        try:
            self.out, self.err = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"it does not end:\n{self.out}\n{self.err}") from None
        self.expect_nothing_left()
        return self.process.returncode

    def wait_for(self, text):
        """Reads stdout to the line with ``text``, and returns that."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not said, but:\n{self._told()}")

    def wait_for_all(self, *texts):
        """Reads stdout until each text was said, in any order; returns all that was read."""
        assert self.process.stdout is not None
        lines = ""
        for line in self.process.stdout:
            lines += line
            if all(text in lines for text in texts):
                return lines
        raise AssertionError(f"not all of {texts} was said:\n{lines}\n{self._told()}")

    def _told(self):
        """What stderr said, once the launcher has closed stdout."""
        _, self.err = self.process.communicate(timeout=DEADLINE_S)
        return self.err

    def wait_for_error(self, text):
        """Reads stderr to the line with ``text``."""
        assert self.process.stderr is not None
        assert any(text in line for line in self.process.stderr), f"{text!r} was not said"

    def expect_nothing_left(self):
        expect_none_marked(self.mark)

    def close(self):
        """Kills what is left."""
        for pid in (self.process.pid, *marked(self.mark)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def mark_of(mark):
    """The environment of processes by which they are found."""
    return {_MARK: mark}


def wait_until(holds, timeout_s=60.0, why=str):
    """Waits until a condition holds; ``why`` says what is in its way."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


def expect_none_marked(*mark):
    """Waits until no process has the mark, see :func:`marked`."""
    wait_until(lambda: not marked(*mark), why=lambda: [words_of(pid) for pid in marked(*mark)])


def expect_gone(pids):
    wait_until(lambda: not any(map(words_of, pids)), why=lambda: [words_of(pid) for pid in pids])


def marked(mark, name=_MARK):
    """Living processes that have the mark in their environment, as the value of a variable."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{name}={mark}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # gone meanwhile
    return found


def words_of(pid, file="cmdline"):
    """The command line, or the environment, of a process; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text().split("\0")[:-1]
    except OSError:
        return []


def said(out):
    """What each process said, by the prefix of its line."""
    found = {}
    for line in out.splitlines():
        who, bar, text = line.partition(" | ")
        if bar and text.startswith("{"):
            found[who] = json.loads(text)
    return found
