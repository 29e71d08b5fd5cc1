"""Sampling processes of a test's trainers are forked from one that has imported their program: 0.05 s instead of 2 s.

The fork server of :class:`glt.testing.cluster.Cluster` imports this module (see conftest.py), and each trainer that it forks begins with a
process of its own, the template, which has imported the programs and does nothing else. When the trainer starts
``python -m PROGRAM``, the template forks it. The new process is the trainer's child, as it would be otherwise: the one
between them ends at once, and the trainer adopts what is left by it. It has the descriptors, environment, signal mask,
directory and command line that were asked for, and runs the program as ``__main__``.

Programs that tests start by command, and their sampling processes, start as users start them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from glt.testing import cluster

PROGRAMS = ("glt.distributed.engine.worker", "glt.distributed.server.pool_worker")
_NAME = "template of sampling processes"
_MOST_BYTES = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Template:
    """The process from which those of ``owner`` are forked, as the owner sees it."""

    owner: int
    network: str
    socket: socket.socket
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fork(self, asked: dict[str, Any], fds: Sequence[int]) -> int:
        with self.lock:
            socket.send_fds(self.socket, [json.dumps(asked).encode()], list(fds))
            return int(self.socket.recv(32))


_template: Template | None = None
_census_itself = cluster.take_census


class ForkingPopen(subprocess.Popen):  # type: ignore[type-arg]
    """``subprocess.Popen`` that has the template fork sampling processes, and starts all others."""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *more: Any
    ) -> None:
        template = _template
        is_program = isinstance(args, list) and args[1:2] == ["-m"] and args[2] in PROGRAMS
        if not is_program or template is None or template.owner != os.getpid() or template.network != _network():
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more)  # type: ignore[misc]
            return
        pipes = more[3:9]
        fds = {0: pipes[0], 1: 1, 2: 2} | {fd: fd for fd in pass_fds}
        mask = [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        asked = {"words": args[2:], "env": env, "fds": list(fds), "mask": mask, "cwd": os.getcwd()}
        self.pid = template.fork(asked, list(fds.values()))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _network() -> str:
    """The network of the calling thread; some tests move trainers into another."""
    return os.readlink("/proc/thread-self/ns/net")


def take_census(pid: int | str = "self") -> cluster.Census:
    """As :func:`glt.testing.cluster.take_census`, without the template."""
    found = _census_itself(pid)
    return replace(found, children={pid: line for pid, line in found.children.items() if line != _NAME})


def _begin_in(server: int) -> Callable[[], None]:
    """What a process does when it begins, if ``server`` has forked it."""

    def begin() -> None:
        global _template
        if os.getppid() != server:
            return
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        if os.fork() == 0:
            try:
                _serve(theirs)
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        theirs.close()
        _template = Template(os.getpid(), _network(), mine)

    return begin


def _serve(owner: socket.socket) -> NoReturn:
    """The life of the template: it ends when its owner does."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _close_all_but({0, 1, 2, owner.fileno()})
    _show([_NAME])
    while True:
        data, fds, _, _ = socket.recv_fds(owner, _MOST_BYTES, 64)
        if not data:
            os._exit(0)
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            _run(json.loads(data), fds, owner, between)
        os.waitpid(between, 0)
        for fd in fds:
            os.close(fd)


def _run(asked: dict[str, Any], fds: list[int], owner: socket.socket, between: int) -> NoReturn:
    """Becomes the program that was asked for."""
    code = 1
    try:
        while os.getppid() == between:
            os.sched_yield()  # until the trainer has adopted this process
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["cwd"])
        _show([sys.executable, "-m", *asked["words"]], asked["env"])
        owner.send(str(os.getpid()).encode())
        wanted = asked["fds"]
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 1 + max(*wanted, *fds)) for fd in fds]
        for fd, number in zip(high, wanted, strict=True):
            os.dup2(fd, number)
        owner.detach()
        _close_all_but(set(wanted))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, asked["mask"])
        sys.path[:] = dict.fromkeys([os.getcwd(), *os.environ["PYTHONPATH"].split(os.pathsep), *sys.path])
        importlib.invalidate_caches()
        sys.modules.pop("sitecustomize", None)
        if find_spec("sitecustomize") is not None:
            importlib.import_module("sitecustomize")  # as the interpreter does when it starts
        sys.argv[:] = asked["words"]
        runpy.run_module(asked["words"][0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _close_all_but(kept: set[int]) -> None:
    for fd in {int(each) for each in os.listdir("/proc/self/fd")} - kept:
        with contextlib.suppress(OSError):  # that of the listing
            os.close(fd)


def _show(words: list[str], env: dict[str, str] | None = None) -> None:
    """Writes what ``/proc/PID/cmdline`` and ``environ`` show, as far as there is room; libc must no longer use them."""
    numbers = [int(each) for each in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]]
    shown = {tuple(numbers[:2]): words}
    if env is not None:
        shown[tuple(numbers[2:])] = [f"{name}={value}" for name, value in reversed(env.items())]
    for (start, end), texts in shown.items():
        data = b"".join(os.fsencode(text) + b"\0" for text in texts)[: end - start - 1]
        ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)


for _program in PROGRAMS:
    importlib.import_module(_program)
    del sys.modules[_program]  # it is run anew, as __main__
cluster.take_census = take_census
subprocess.Popen = ForkingPopen  # type: ignore[misc]
os.register_at_fork(after_in_child=_begin_in(os.getpid()))
