"""Sampling processes: how their owner starts, watches and ends them, and the life that each of them leads.

A sampling process is a program of its own, ``python -m MODULE SOCKET SPEC``, not a child of ``multiprocessing``: the
owner's script is not imported again, nothing is pickled, and torch_geometric is not loaded. It inherits the memory
that holds its spec, and a socket over which JSON objects go, one per packet, with descriptors beside some, which are
missing where it has no room for more::

    owner -> process   commands of the program, and {"exit": true}
    process -> owner   {"ready": true}, then {"beat": ...} every second and what else the program has to say,
                       or {"error": type, "text": ..., "traceback": ...} before it ends

When the owner ends, its end of the socket closes, and the process ends too.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import util
from typing import Any, NoReturn, Protocol

import torch

from glt import _deadlines as deadlines
from glt._checks import naming_the_limit
from glt.distributed.wire.credentials import Credentials, current_credentials, set_credentials

PACKET_BYTES = 160 << 10  # what Linux lets through by default

_LOST_OWNER, _FAILED = 3, 4  # exit codes
_SIGNALS = {
    -9: "it was killed, often by the OOM killer: see dmesg",
    -7: "a bus error: memory or a mapped file ran out",
    -11: "a segmentation fault: please report it",
}

logger = logging.getLogger(__name__)


# -- the owner's side ----------------------------------------------------------------------------------------------


class SamplingProcess:
    """A sampling process, as its owner sees it.

    Attributes:
        is_gone: Whether the pool has found that it ended.
        heard_s: When it was last heard of, of ``time.monotonic()``.
        why: Why its owner killed it, if it did.
    """

    def __init__(self, module: str, number: int, owner: str, spec: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        self.number, self.is_ready, self.is_gone, self.why = number, False, False, ""
        self.heard_s = time.monotonic()
        self._sending = threading.Lock()
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (self.socket, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
        # Of the kernel, not of Python, which would make calls with MSG_DONTWAIT wait too.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _seconds(deadlines.SEND_S))
        # With what this process shows and asks of others: paths of a token and of certificates, not these themselves.
        spec = {**spec, "credentials": current_credentials().to_json()}
        memory = os.memfd_create("glt-spec")
        # The owner's import path, so that the same glt is found; not its script, which is not run again.
        path = os.pathsep.join(filter(None, sys.path))
        # TensorPipe warns of every connection that ends; what matters of that is raised, with names.
        environment = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, "PYTHONPATH": path}
        # A signal to the whole group, as Ctrl-C sends one, is for the owner alone, which decides what follows: the
        # process ignores it as soon as it can, and has it blocked until then.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(json.dumps(spec).encode())
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), str(memory)],
                pass_fds=(theirs.fileno(), memory, *fds),
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            os.close(memory)
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.name = f"worker {number} of {owner} (host {socket.gethostname()}, pid {self.pid})"

    def send(self, command: Mapping[str, Any], fds: Sequence[int] = ()) -> bool:
        """Sends a command; false if the process is gone, or takes nothing for ``SEND_S``. From any thread."""
        data = json.dumps(command).encode()
        if len(data) > PACKET_BYTES:
            raise ValueError(f"a command of {len(data)} bytes for {self.name}: expected at most {PACKET_BYTES}")
        try:
            with self._sending:
                socket.send_fds(self.socket, [data], list(fds))
        except OSError as error:
            logger.info("%s took no command: %s", self.name, error)
            return False
        return True

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns all that the process has said since, and whether it has hung up. Does not wait."""
        said: list[dict[str, Any]] = []
        while True:
            try:
                data = self.socket.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return said, self._process.poll() is not None
            except OSError:
                return said, True
            if not data:
                return said, True
            self.heard_s = time.monotonic()
            said.append(json.loads(data))
            self.is_ready = self.is_ready or "ready" in said[-1]

    def wait(self, timeout_s: float) -> int | None:
        """Waits for its end; returns the exit code, or None if it still runs after ``timeout_s`` seconds."""
        if self.pidfd >= 0:
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            poller.poll(max(0.0, timeout_s) * 1000)
        return self._process.poll()

    def kill(self, why: str = "") -> None:
        self.why = self.why or why
        self._process.kill()

    def death(self) -> str:
        """Says how it ended; one that has hung up and does not end is killed."""
        code = self.wait(deadlines.JOIN_S)
        if code is None:
            self.kill(f"it no longer listened, still ran {deadlines.JOIN_S:g} s later, and was killed")
            code = self.wait(deadlines.KILL_S)
        return f"{self.name} died with exit code {code}: {self.why or _SIGNALS.get(code or 0, 'its output says why')}"

    def close(self) -> None:
        """Lets go of its descriptors. May be called again."""
        self.socket.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class ProcessPool:
    """The sampling processes of one owner, by number.

    They are ended when the pool is closed or collected, or when the owner's interpreter ends. If the owner is killed,
    they notice. What follows from the death of one is for the owner to decide: see :meth:`look`.
    """

    def __init__(self, module: str, owner: str) -> None:
        self.module, self.owner = module, owner
        self.processes: dict[int, SamplingProcess] = {}
        self.looked_s = time.monotonic()
        # Of multiprocessing, not of weakref, whose hook at exit runs before it: there a server first tells its clients
        # why it ends, and loaders wait for the trainers that still ask. It does nothing in a fork of the owner.
        self._finalizer = util.Finalize(self, _end, (self.processes,), exitpriority=0)

    def start(self, number: int, spec: Mapping[str, Any], fds: Sequence[int] = ()) -> SamplingProcess:
        """Starts a process; see :class:`SamplingProcess`."""
        with naming_the_limit():
            process = self.processes[number] = SamplingProcess(self.module, number, self.owner, spec, fds)
        return process

    def look(self, timeout_s: float) -> list[tuple[SamplingProcess, dict[str, Any] | None]]:
        """Waits until a process has said something or ended; returns what was said, by which process. None stands for
        its end, once, after the last that it said. A process that dies hangs up before its connections to others break,
        so that an owner who looks here when such a loss is reported finds the cause."""
        self.looked_s = time.monotonic()  # before anything is heard: the owner itself may have been stopped
        by_fd: dict[int, SamplingProcess] = {}
        poller = select.poll()
        for process in list(self.processes.values()):
            for fd in (process.socket.fileno(), process.pidfd):
                if fd >= 0 and not process.is_gone:
                    by_fd[fd] = process
                    poller.register(fd, select.POLLIN)
        events: list[tuple[SamplingProcess, dict[str, Any] | None]] = []
        for process in dict.fromkeys(by_fd[fd] for fd, _ in poller.poll(max(0.0, timeout_s) * 1000)):
            said, process.is_gone = process.receive()
            events += [(process, each) for each in said]
            if process.is_gone:
                events.append((process, None))
        return events

    def remove(self, process: SamplingProcess) -> None:
        """Lets go of a process that has ended; another may take its number."""
        self.processes.pop(process.number, None)
        process.close()

    def silent_s(self, process: SamplingProcess) -> float:
        """For how many seconds a process had said nothing when the pool last looked."""
        return self.looked_s - process.heard_s

    def close(self) -> None:
        """Ends all processes, by command, then by SIGKILL. May be called again."""
        self._finalizer()


def _end(processes: dict[int, SamplingProcess]) -> None:
    ending = list(processes.values())
    for process in ending:
        process.send({"exit": True})
    deadline = time.monotonic() + deadlines.JOIN_S
    for process in ending:
        if process.wait(deadline - time.monotonic()) is None:
            process.kill()
            process.wait(deadlines.KILL_S)
    for process in ending:
        process.close()
    processes.clear()


# -- the process's side --------------------------------------------------------------------------------------------


class Program(Protocol):
    """What a sampling process does for its owner."""

    def obey(self, command: dict[str, Any], fds: list[int]) -> None:
        """Carries out a command; called on the thread that listens to the owner. The descriptors are the program's: all
        or none of those that were sent."""

    def beat(self) -> None:
        """Tells the owner that this process lives; called every second."""


class Owner:
    """The process that started this one, as seen from here."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        for each in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, each, _seconds(deadlines.BEAT_S))
        self._pid = os.getppid()
        self._lock = threading.Condition()
        self._early: list[tuple[dict[str, Any], list[int]]] = []
        self._program: Program | None = None
        # From now on, so that this process also ends if its owner dies while it starts.
        threading.Thread(target=self._listen, name="glt-commands", daemon=True).start()

    def say(self, value: Mapping[str, Any]) -> None:
        """Tells the owner something; ends this process if the owner is gone. An owner that does not listen, since it
        is stopped or busy, is not waited for longer than a second."""
        try:
            self._socket.send(json.dumps(value).encode())
        except BlockingIOError:
            logger.info("the owner of this process listens to nothing: it is stopped, or very busy")
        except OSError:
            leave(_LOST_OWNER)

    def beat(self) -> None:
        """Gives a sign of life, unless the owner has yet to hear of many."""
        try:
            self._socket.send(b'{"beat": {}}', socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            leave(_LOST_OWNER)

    def hear(self, name: str, timeout_s: float) -> tuple[dict[str, Any], list[int]]:
        """Waits for a command that has ``name``, while the program starts. Raises TimeoutError if none comes."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while True:
                for i, (command, _) in enumerate(self._early):
                    if name in command:
                        return self._early.pop(i)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the owner of this process did not tell its {name} within {timeout_s:g} s")
                self._lock.wait(deadlines.POLL_S)

    def serve(self, program: Program) -> NoReturn:
        """Has ``program`` obey what the owner said meanwhile and says from now on, and beats."""
        with self._lock:
            for command, fds in self._early:
                program.obey(command, fds)
            self._program = program
        self.say({"ready": True})
        while True:
            program.beat()
            time.sleep(deadlines.BEAT_S)

    def _listen(self) -> None:
        try:
            while True:
                command, fds = self._receive()
                if "exit" in command:
                    leave(0)
                with self._lock:
                    program = self._program
                    if program is None:
                        self._early.append((command, fds))
                        self._lock.notify_all()
                if program is not None:
                    program.obey(command, fds)
        except BaseException as error:
            self.fail(error)

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        while True:
            try:
                data, fds, flags, _ = socket.recv_fds(self._socket, PACKET_BYTES, 4)
            except BlockingIOError:
                # A fork of the owner may hold the other end of the socket open after the owner died.
                if os.getppid() != self._pid:
                    leave(_LOST_OWNER)
                continue
            except OSError:
                leave(_LOST_OWNER)
            if not data:
                leave(_LOST_OWNER)
            if flags & socket.MSG_CTRUNC:
                logger.error("out of file descriptors: raise the limit (ulimit -n)")
                while fds:
                    os.close(fds.pop())
            return json.loads(data), fds

    def fail(self, error: BaseException) -> NoReturn:
        """Tells the owner why this process cannot go on, and ends it."""
        logger.critical("this sampling process cannot go on: %s", error, exc_info=error)
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        trace = "".join(traceback.format_exception(error))[-20000:]
        self.say({"error": kind, "text": str(error)[:20000], "traceback": trace})
        leave(_FAILED)


def _seconds(timeout_s: float) -> bytes:
    return struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))


def run_program(start: Callable[[Owner, dict[str, Any]], Program]) -> NoReturn:
    """The life of a sampling process: it starts, says so, and obeys until it is told to exit or its owner is gone."""
    socket_fd, spec_fd = int(sys.argv[1]), int(sys.argv[2])
    for each in (signal.SIGINT, signal.SIGTERM):  # they are for the owner, which decides what follows
        signal.signal(each, signal.SIG_IGN)
    owner = Owner(socket.socket(fileno=socket_fd))
    try:
        with open(spec_fd, "rb") as file:
            file.seek(0)
            spec = json.load(file)
        set_credentials(Credentials.from_json(spec.pop("credentials")))
        torch.set_num_threads(1)
        program = start(owner, spec)
        gc.freeze()  # what start-up made stays; the collector need not look at it again
        owner.serve(program)
    except BaseException as error:
        owner.fail(error)


def leave(code: int) -> NoReturn:
    """Ends this process at once. Everything it holds is the kernel's to free, and a graceful end of RPC would wait for
    peers that may be dead."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def keep_freed_memory() -> None:
    """Makes malloc reuse what was freed instead of returning it to the kernel.

    Replies are received into fresh tensors of megabytes; with the default, each is mapped, faulted in page by page and
    unmapped, which costs more than copying it. Not for processes that sample on a GPU: they get few replies, and large
    tensors need their pages for themselves (:data:`glt.data.pinned.SMALL_BYTES`).
    """
    libc = ctypes.CDLL(None)
    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8
    if hasattr(libc, "mallopt"):
        for option, value in ((m_mmap_max, 0), (m_trim_threshold, 2**31 - 1), (m_arena_max, 1)):
            libc.mallopt(option, value)
