"""Processes of tests that are forked from one that has imported torch and glt: 0.05 s of CPU instead of 2 to 8 s.

* Sampling processes of the trainers of a test. The fork server of :class:`glt.testing.cluster.Cluster` imports this
  module (see conftest.py), so that each trainer that it forks has a *template*: a process that does nothing but fork
  when the trainer starts ``python -m PROGRAM``.
* Programs that a test starts with :func:`run`: examples, benchmarks, blocks of the README. They are forked from a
  server of the test, and have a template too, for the programs and ``multiprocessing`` children that they start.

A process from a template is the child of the one that asked, as it would be otherwise: the process between them ends at
once, and the asker adopts what it leaves. It has the descriptors, environment, signal mask, directory and command line
that were asked for, and runs the program as ``__main__``. Programs that tests start with ``subprocess`` start as users
start them, and so do their sampling processes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import importlib
import itertools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from multiprocessing import process as multiprocessing_process
from multiprocessing import util as multiprocessing_util
from pathlib import Path

from glt.testing import cluster

SAMPLERS = ("glt.distributed.engine.worker", "glt.distributed.server.worker")
PRELOAD = ("torch_geometric.loader", "torch_geometric.nn", "torch.distributed.run", "glt.loader", "glt.demo.job",
           "glt.distributed.loader.loaders", "glt.partition", "glt.cli")  # fmt: skip
_NAME = "template of processes"
_MOST_BYTES = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Template:
    """The process from which those that ``owner`` starts are forked, as the owner sees it."""

    owner: int
    network: str
    socket: socket.socket
    forks_all: bool
    lock: threading.Lock = field(default_factory=threading.Lock)

    def can_fork(self, command):
        """Whether it is this process's own, in this network, and ``command`` is a program for it."""
        if self.owner != os.getpid() or self.network != _network() or command[0] != sys.executable:
            return False
        program = _without_options(command[1:])
        if not self.forks_all:
            return program[:1] == ["-m"] and program[1] in SAMPLERS
        return bool(program) and (not program[0].startswith("-") or program[0] in ("-m", "-c"))

    def fork(self, asked, fds):
        with self.lock:
            _ask(self.socket, asked, fds)
            return int(self.socket.recv(32))


_template = None
_census_itself = cluster.take_census
_spawn_itself = multiprocessing_util.spawnv_passfds


def run(command, cwd, env, timeout_s):
    """As ``subprocess.run`` with ``capture_output=True, text=True``, for ``[sys.executable, ...]``, by a fork."""
    server = _server()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as nothing:
        asked = {"command": command, "env": dict(env), "mask": [], "cwd": str(cwd)}
        _ask(server, asked, {0: nothing.fileno(), 1: out.fileno(), 2: err.fileno()})
        server.settimeout(timeout_s)
        try:
            code = int(server.recv(32))
        except TimeoutError:
            server.close()  # which ends the program
            _server.cache_clear()
            raise subprocess.TimeoutExpired(command, timeout_s) from None
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


@cache
def _server():
    """Starts the process that forks programs of tests; it ends when this one does."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = (
        f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import forked; forked.serve({theirs.fileno()})"
    )
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], env=env)
    theirs.close()
    atexit.register(process.wait)
    atexit.register(mine.close)
    return mine


def serve(number):
    """The life of the server: one program after another, and the exit code of each."""
    for module in (*PRELOAD, *SAMPLERS):
        importlib.import_module(module)
    _install()
    test = socket.socket(fileno=number)
    while True:
        data, fds, _, _ = socket.recv_fds(test, _MOST_BYTES, 64)
        if not data:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            _become(json.loads(data), fds)
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        if pidfd not in select.select([pidfd, test], [], [])[0]:
            os.kill(pid, signal.SIGKILL)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # the test waits no longer
            test.send(str(code).encode())


class _Popen(subprocess.Popen):
    """``subprocess.Popen`` that has the template fork what it can."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more):
        is_list = isinstance(args, (list, tuple)) and len(args) > 2
        template, is_plain = _template, executable in (None, args[0]) and preexec_fn is None
        if not (is_list and is_plain and template is not None and template.can_fork(args)):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more)
            return
        ends = more[3:9]  # of pipes: those that the child reads and writes, and this process's
        theirs = {number: end if end >= 0 else number for number, end in enumerate((ends[0], ends[3], ends[5]))}
        self.pid = template.fork(
            {
                "command": list(map(os.fspath, args)), "env": dict(os.environ if env is None else env),
                "mask": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
                "cwd": os.path.abspath(cwd or "."), "is_session": bool(more[14]),
            },
            theirs | {fd: fd for fd in pass_fds},
        )  # fmt: skip
        self._child_created = True
        self._close_pipe_fds(*ends)


def _spawn(path, args, passfds):
    """``multiprocessing.util.spawnv_passfds`` that has the template fork what it can."""
    command = [os.fsdecode(each) for each in args]
    if _template is None or not _template.can_fork(command):
        return _spawn_itself(path, args, passfds)
    asked = {"command": command, "env": dict(os.environ), "mask": [], "cwd": os.getcwd()}
    return _template.fork(asked, {fd: fd for fd in (0, 1, 2, *passfds)})


def _take_census(pid="self"):
    """As :func:`glt.testing.cluster.take_census`, without the template."""
    found = _census_itself(pid)
    return replace(found, children={pid: line for pid, line in found.children.items() if line != _NAME})


def _install():
    for module in SAMPLERS:
        importlib.import_module(module)
    cluster.take_census = _take_census
    subprocess.Popen = _Popen
    multiprocessing_util.spawnv_passfds = _spawn


def serve_trainers():
    """Has every process that this one forks begin with a template for sampling processes."""
    _install()
    server = os.getpid()
    os.register_at_fork(after_in_child=lambda: _begin(forks_all=False) if os.getppid() == server else None)


def _network():
    """The network of the calling thread; some tests move trainers into another."""
    return os.readlink("/proc/thread-self/ns/net")


def _ask(to, asked, fds):
    """Sends what is asked for; ``fds`` are the descriptors of the new process, by its numbers."""
    data = json.dumps({"is_session": False, **asked, "fds": list(fds)}).encode()
    to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
    socket.send_fds(to, [data], list(fds.values()))


def _begin(forks_all):
    """Gives this process a template, before it has threads or anything else that a fork should not have."""
    global _template
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    if os.fork() == 0:
        _be_template(theirs)
    theirs.close()
    _template = Template(os.getpid(), _network(), mine, forks_all)


def _be_template(owner):
    """The life of a template: it ends when its owner does."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _close_all_but({0, 1, 2, owner.fileno()})
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # whoever reads what the owner writes waits for its end alone
        os.dup2(null, fd)
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
            while os.getppid() == between:
                os.sched_yield()  # until the owner has adopted this process
            _become(json.loads(data), fds, owner)
        os.waitpid(between, 0)
        for fd in fds:
            os.close(fd)


def _become(asked, fds, owner=None):
    """Becomes the process that was asked for, and tells ``owner`` its number."""
    code = 1
    try:
        wanted, command, env = asked["fds"], asked["command"], asked["env"]
        os.environ.clear()
        os.environ.update(env)
        _show(command, env)
        os.chdir(asked["cwd"])
        if asked["is_session"]:
            os.setsid()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 1 + max(*wanted, *fds)) for fd in fds]
        told = None if owner is None else fcntl.fcntl(owner.detach(), fcntl.F_DUPFD, 1 + max(high))
        for fd, number in zip(high, wanted, strict=True):
            os.dup2(fd, number)
        if told is not None:
            os.write(told, str(os.getpid()).encode())
        _close_all_but(set(wanted))
        is_sampler = command[1] == "-m" and command[2] in SAMPLERS
        if not is_sampler:
            _begin(forks_all=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, asked["mask"])
        _run_program(command[1:])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _run_program(words):
    """What an interpreter does with its arguments."""
    options, words = words, _without_options(words)
    is_unbuffered = "-u" in options[: len(options) - len(words)] or bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", 1 if is_unbuffered else -1, closefd=False)
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)
    multiprocessing_process.ORIGINAL_DIR = os.getcwd()
    kind = words[0] if words[0] in ("-m", "-c") else ""
    sys.argv[:] = words if not kind else ["-c", *words[2:]] if kind == "-c" else words[1:]
    first = "" if kind == "-c" else os.getcwd() if kind else os.path.dirname(os.path.abspath(words[0]))
    path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = dict.fromkeys([first, *path, *sys.path])
    importlib.invalidate_caches()
    sys.modules.pop("sitecustomize", None)
    if find_spec("sitecustomize") is not None:
        importlib.import_module("sitecustomize")  # as the interpreter does when it starts
    if kind == "-m":
        for each in (words[1], f"{words[1]}.__main__"):
            if each in sys.modules and not hasattr(sys.modules[each], "__path__"):
                del sys.modules[each]  # it is run anew, as __main__
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if not kind:
        main.__file__ = words[0]
    code = words[1] if kind else Path(words[0]).read_text()
    exec(compile(code, "<string>" if kind else words[0], "exec"), vars(main))


def _without_options(words):
    """The arguments of an interpreter without those that change nothing here, or only how output is written."""
    return list(itertools.dropwhile(lambda word: word in ("-u", "-B"), words))


def _close_all_but(kept):
    for fd in {int(each) for each in os.listdir("/proc/self/fd")} - kept:
        with contextlib.suppress(OSError):  # that of the listing
            os.close(fd)


def _show(words, env=None):
    """Writes what ``/proc/PID/cmdline`` and ``environ`` show, as far as there is room; libc must no longer use them."""
    numbers = [int(each) for each in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]]
    shown = {tuple(numbers[:2]): words}
    if env is not None:
        shown[tuple(numbers[2:])] = [f"{name}={value}" for name, value in reversed(env.items())]
    for (start, end), texts in shown.items():
        data = b"".join(os.fsencode(text) + b"\0" for text in texts)[: end - start - 1]
        ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)
