"""The program of ``glt launch`` on each host: it starts the host's processes, passes on their output, and ends them.

It is sent to the host, not imported there, so it needs the standard library only. It reads one JSON object per line on
stdin: first the plan, with the job's ``token``, which processes find in the file that ``GLT_TOKEN_FILE`` names; then
``{"beat": 1}`` now and then, and ``{"stop": seconds}``. Stdin closed is a stop too: its launcher is gone. It writes one
JSON object per line on stdout, ``"event"`` being

* ``started``: ``name`` and ``pid`` of a process;
* ``lines``: ``texts`` that ``name`` wrote, to stderr if ``err``, as many as one read gave;
* ``report``: what ``name`` says of a process of its own, as torchrun of a trainer that failed;
* ``ended``: ``name`` and ``code``, as of ``subprocess``, and whether it was ``stopped``, that is told to end before;
* ``left``: ``pids`` that could not be ended; ``done``: nothing follows, and nothing is left.

What its processes started belongs to it: what loses its parent becomes the keeper's child. If it is killed itself,
the kernel sends its processes SIGTERM.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_POLL_S = 0.05
_DRAIN_S = 2.0  # for output that is still in the pipes, and for processes that are about to end by themselves
_LAST_WORDS_S = 10.0  # the same, where output keeps coming: what a process has left behind may write for ever
_KILL_S = 10.0  # until a process that SIGKILL does not end, since the kernel holds it, is given up
_FULL_BYTES = 1 << 18  # of output that waits for the launcher: then no more is read
_MAX_LINE_BYTES = 1 << 16
_READ_BYTES = 1 << 13  # becomes one message: the launcher looks at its clock after each that it has printed
_PIPE_READS = 128  # a pipe holds 64 KiB, unless it was made larger
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass
class Pipe:
    """What comes through one pipe: lines of ``name``, or its reports, each a line of JSON."""

    name: str
    fd: int
    is_err: bool = False
    is_report: bool = False
    rest: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes) -> list[str]:
        """Returns the lines that are whole now; all that is left at the end (no data)."""
        self.rest += data
        *lines, last = self.rest.split(b"\n")
        if not data or len(last) > _MAX_LINE_BYTES:
            lines, last = [*lines, last] if last else lines, bytearray()
        self.rest = bytearray(last)
        # Of a progress bar, what a terminal would show at the end of the line.
        return [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines]


class Keeper:
    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.pid = os.getpid()
        self.running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}  # by pid
        self.pipes: list[Pipe] = []
        self.folders: list[str] = []
        self.streams: dict[str, list[str]] = {}
        self.endings: list[tuple[float, str, int, bool]] = []
        self.outgoing = bytearray()
        self.is_heard = True  # whether the launcher reads what this says
        self.incoming = bytearray()
        self.plan: dict[str, Any] | None = None
        self.token = ""
        self.token_env: dict[str, str] = {}
        self.heard_s = time.monotonic()
        self.read_s = self.full_s = self.heard_s  # when output last came, or could not be passed on; the latter alone
        self.stop_s: float | None = None  # when SIGTERM has had its time
        self.is_signalled = False

    def run(self) -> int:
        self.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note_signal)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.selector.register(0, selectors.EVENT_READ, self._listen)
        while self.plan is None or self.running or self.endings:
            if self.plan is None and self.stop_s is not None:
                break
            self._turn()
        self._end_descendants()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.say(event="done")
        while self.outgoing and (self.stop_s is None or time.monotonic() < self.stop_s + _KILL_S):
            self._turn()
        return 0

    def _note_signal(self, number: int, frame: Any) -> None:
        self.is_signalled = True

    def _turn(self) -> None:
        is_watched = 1 in self.selector.get_map()
        if self.outgoing and not is_watched:
            self.selector.register(1, selectors.EVENT_WRITE, self._flush)
        elif is_watched and not self.outgoing:
            self.selector.unregister(1)
        for key, _ in self.selector.select(_POLL_S):
            key.data()
        self._flush()
        self._reap()
        self._tell_endings()
        now = time.monotonic()
        if len(self.outgoing) > _FULL_BYTES:
            self.read_s = self.full_s = now
        silent_s = (self.plan or {}).get("silent_s")
        if self.is_signalled or (silent_s is not None and now - self.heard_s > silent_s):
            self.is_signalled = False
            self.stop()
        if self.stop_s is not None and now > self.stop_s:
            self._kill_all()

    # Messages.

    def say(self, **message: Any) -> None:
        """Writes a message, as soon as the launcher takes it."""
        if self.is_heard:
            self.outgoing += json.dumps(message).encode() + b"\n"
            self._flush()

    def _flush(self) -> None:
        was_full = len(self.outgoing) > _FULL_BYTES
        try:
            with suppress(BlockingIOError):  # the next turn goes on
                while self.outgoing:
                    del self.outgoing[: os.write(1, memoryview(self.outgoing)[:_MAX_LINE_BYTES].tobytes())]
        except OSError:  # the launcher is gone
            self.is_heard = False
            self.outgoing.clear()
            self.stop()
        if was_full and len(self.outgoing) <= _FULL_BYTES:
            for pipe in self.pipes:
                self._watch(pipe)

    def _listen(self) -> None:
        try:
            data = os.read(0, 1 << 16)
        except BlockingIOError:
            return
        self.heard_s = time.monotonic()
        if not data:
            self.selector.unregister(0)
            self.stop()
            return
        self.incoming += data
        *lines, rest = self.incoming.split(b"\n")
        self.incoming = bytearray(rest)
        for line in lines:
            message = json.loads(line)
            if "processes" in message:
                self.token = message.pop("token", "")
                self.plan = message
                self._start(message["processes"])
            elif "stop" in message:
                self.stop(float(message["stop"]))

    # Processes.

    def _start(self, specs: list[dict[str, Any]]) -> None:
        for spec in specs:
            try:
                self._start_one(spec)
            except OSError as error:
                self.say(event="lines", name=spec["name"], err=True, texts=[f"cannot be started: {error}"])
                self.say(event="started", name=spec["name"], pid=0)
                self.say(event="ended", name=spec["name"], code=127, stopped=False)

    def _start_one(self, spec: dict[str, Any]) -> None:
        """Starts a process; ``spec["streams"]`` are names whose output it gets pipes for, and one for its report."""
        theirs: list[int] = []

        def pipe(name: str, is_err: bool = False, is_report: bool = False) -> int:
            mine, other = os.pipe()
            os.set_blocking(mine, False)
            self.pipes.append(Pipe(name, mine, is_err, is_report))
            self._watch(self.pipes[-1])
            theirs.append(other)
            return other

        argv = list(spec["argv"])
        try:
            out, err = pipe(spec["name"]), pipe(spec["name"], is_err=True)
            if spec.get("streams"):
                ends = {
                    "out": [pipe(name) for name in spec["streams"]],
                    "err": [pipe(name, is_err=True) for name in spec["streams"]],
                    "report": pipe(spec["name"], is_report=True),
                    "folder": self._folder(),
                }
                argv = [json.dumps(ends) if word == "{pipes}" else word for word in argv]
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, "pass_fds": theirs[2:]}
            env = {**os.environ, **self._with_token(), **spec["env"]}
            process = subprocess.Popen(argv, cwd=spec["cwd"], env=env, preexec_fn=self._die_with_keeper, **pipes)
        finally:
            for fd in theirs:
                os.close(fd)
        self.running[process.pid] = spec["name"], process
        self.streams[spec["name"]] = [spec["name"], *spec.get("streams", ())]
        self.say(event="started", name=spec["name"], pid=process.pid)

    def _with_token(self) -> dict[str, str]:
        """Where processes find the token: a file that only this user reads, and not their environment, which may be
        printed. Written once."""
        if self.token and not self.token_env:
            path = os.path.join(self._folder(), "token")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(self.token + "\n")
            self.token_env = {"GLT_TOKEN_FILE": path}
        return self.token_env

    def _folder(self) -> str:
        """A directory for small files, which is gone at the end however processes end."""
        self.folders.append(tempfile.mkdtemp(prefix="glt-launch-"))
        return self.folders[-1]

    def _die_with_keeper(self) -> None:
        self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != self.pid:  # it died before that
            os._exit(143)

    def _watch(self, pipe: Pipe) -> None:
        if pipe.fd >= 0 and pipe.fd not in self.selector.get_map():
            self.selector.register(pipe.fd, selectors.EVENT_READ, lambda: self._read(pipe))

    def _unwatch(self, pipe: Pipe) -> None:
        if pipe.fd >= 0 and pipe.fd in self.selector.get_map():
            self.selector.unregister(pipe.fd)

    def _read(self, pipe: Pipe) -> bool:
        """Passes on what a pipe holds, as much as one read gives; returns whether there may be more."""
        if pipe.fd < 0:  # closed in this turn
            return False
        try:
            data = os.read(pipe.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self.read_s = time.monotonic()
        texts = pipe.take(data)
        if texts and not pipe.is_report:
            self.say(event="lines", name=pipe.name, err=pipe.is_err, texts=texts)
        for text in texts if pipe.is_report else ():
            self._read_last_words(pipe.name)
            self.say(event="report", name=pipe.name, report=json.loads(text))
        if not data:
            self._unwatch(pipe)
            os.close(pipe.fd)
            pipe.fd = -1
        elif len(self.outgoing) > _FULL_BYTES:
            for each in self.pipes:
                self._unwatch(each)
        return bool(data)

    def _read_last_words(self, name: str) -> None:
        """Reads what the streams of a process hold: who is reported has ended, and its last lines tell why."""
        for pipe in [each for each in self.pipes if each.name in self.streams[name] and not each.is_report]:
            for _ in range(_PIPE_READS):
                if not self._read(pipe):
                    break

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self.running:  # else one that lost its parent
                name, process = self.running.pop(pid)
                process.returncode = os.waitstatus_to_exitcode(status)  # so that subprocess does not look for it
                self.endings.append((time.monotonic(), name, process.returncode, self.stop_s is not None))

    def _tell_endings(self) -> None:
        for ending in list(self.endings):  # said when its last words are, but a child of it may hold its pipes open
            ended_s, name, code, is_stopped = ending
            is_drained = all(pipe.fd < 0 for pipe in self.pipes if pipe.name in self.streams[name])
            now = time.monotonic()
            is_late = now > min(max(ended_s, self.read_s) + _DRAIN_S, max(ended_s, self.full_s) + _LAST_WORDS_S)
            if is_drained or is_late:
                self.endings.remove(ending)
                self.say(event="ended", name=name, code=code, stopped=is_stopped)

    # Endings.

    def stop(self, grace_s: float | None = None) -> None:
        """Sends SIGTERM, once, and SIGKILL to all that is left ``grace_s`` later (default: as planned)."""
        self._reap()  # whatever ended before this was not stopped
        if grace_s is None:
            grace_s = float(self.plan["stop_s"]) if self.plan else 0.0
        deadline = time.monotonic() + grace_s
        if self.stop_s is None:
            self.stop_s = deadline
            for pid in self.running:
                os.kill(pid, signal.SIGTERM)  # not reaped yet, so the pid is still its own
        self.stop_s = min(self.stop_s, deadline)

    def _kill_all(self) -> None:
        for pid in descendants():
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)

    def _end_descendants(self) -> None:
        begin = time.monotonic()
        while left := descendants():
            waited_s = time.monotonic() - begin
            if waited_s > _DRAIN_S or (self.stop_s is not None and time.monotonic() > self.stop_s):
                self._kill_all()
            if waited_s > _DRAIN_S + _KILL_S:
                self.say(event="left", pids=left)
                return
            self._turn()


def descendants() -> list[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue  # it ended meanwhile
            if state not in (b"Z", b"X"):
                parents[int(name)] = int(parent)
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine and pid not in mine}:
        mine |= more
    return sorted(mine - {os.getpid()})


if __name__ == "__main__":
    sys.exit(Keeper().run())
