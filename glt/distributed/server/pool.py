"""The sampling processes of a server, as the server sees them: started, watched, replaced and ended by it."""

from __future__ import annotations

import json
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from glt.distributed.server.stats import Ledger
from glt.distributed.wire.connection import STUCK_S
from glt.errors import WorkerDied

# What a server and its sampling processes agree on before they talk.


PACKET_BYTES = 160 << 10  # what Linux lets through by default


@dataclass
class PoolWorkerSpec:
    """What a sampling process of a server is told when it starts, as JSON.

    Attributes:
        server_rank, worker: Whose it is, and which one.
        dataset: How to map the partition: :meth:`DistDataset.to_json`.
        num_places: Batches in flight at most, over all loaders.
        num_rpc_threads, timeout_s: For requests of other servers, and to them.
        log_level, log_format: Of Python's logging, and ``'text'`` or ``'json'``.
    """

    server_rank: int
    worker: int
    dataset: dict[str, Any]
    num_places: int
    num_rpc_threads: int
    timeout_s: float
    log_level: int
    log_format: str


logger = logging.getLogger(__name__)

_POLL_S = 0.2
_SEND_S = 5.0  # a process takes commands at once, unless it is stopped
_JOIN_S = 3.0
_KILL_S = 10.0
_FULL_S = 5.0  # for so long after it had no descriptor for a connection it is given no other
_MOST_FAILURES = 3  # in a row, before a place in the pool stays empty


@dataclass
class PoolMember:
    """A sampling process and the server's end of its socket.

    Attributes:
        worker: Its place in the pool; whoever replaces it has the same.
        why: Why it was killed, if it was killed here.
        full_s: When it last had no descriptor for a connection, of ``time.monotonic()``.
    """

    worker: int
    process: subprocess.Popen[bytes]
    socket: socket.socket
    is_ready: bool = False
    is_gone: bool = False
    last_beat: float = field(default_factory=time.monotonic)
    why: str = ""
    full_s: float = -math.inf
    sending: threading.Lock = field(default_factory=threading.Lock)

    def send(self, command: dict[str, Any], fds: list[int] | None = None) -> bool:
        """Sends a command; false if the process is gone."""
        data = json.dumps(command).encode()
        if len(data) > PACKET_BYTES:
            raise ValueError(f"a command of {len(data)} bytes for a sampling process: expected at most {PACKET_BYTES}")
        try:
            with self.sending:
                socket.send_fds(self.socket, [data], fds or [])
            return True
        except OSError as error:
            logger.info("worker %d took no command: %s", self.worker, error)
            return False


class SamplerPool:
    """Keeps a number of sampling processes, at most ``most``, and replaces those that die.

    Args:
        spec: What they are told, apart from ``worker``.
        most: How many there may be.
        timeout_s: Deadline of their start.
        died: Called when one has died, with its place and what to say of it.

    Attributes:
        ledger: What they told of their work.
    """

    def __init__(self, spec: dict[str, Any], most: int, timeout_s: float, died: Callable[[int, str], None]) -> None:
        self.most, self.timeout_s = most, timeout_s
        self.ledger = Ledger()
        self._spec, self._died = spec, died
        self._changed = threading.Condition()
        self._members: dict[int, PoolMember] = {}
        self._failures: dict[int, str] = {}  # by place, why no process comes up there
        self._num_failed: dict[int, int] = {}
        self._num_restarts: dict[int, int] = {}
        self._standing: dict[str, Any] | None = None  # the last word to all, which those that come later are told too
        self._next = 0
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="glt-pool", daemon=True)
        self._thread.start()

    # -- starting --------------------------------------------------------------------------------------------------

    def ensure(self, count: int) -> list[int]:
        """Waits until ``min(count, most)`` processes are ready; returns their places.

        Raises:
            glt.errors.WorkerDied: If one does not come up; says why.
        """
        wanted = list(range(min(count, self.most)))
        deadline = time.monotonic() + self.timeout_s
        with self._changed:
            for worker in wanted:
                self._failures.pop(worker, None)
                self._num_failed.pop(worker, None)
                if worker not in self._members:
                    self._start(worker)
            while True:
                for worker in wanted:
                    if worker in self._failures:
                        raise WorkerDied(self._failures[worker])
                if all(worker in self._members and self._members[worker].is_ready for worker in wanted):
                    return wanted
                if self._closed:
                    raise WorkerDied("the server is shutting down")
                if time.monotonic() > deadline:
                    raise WorkerDied(f"sampling processes {wanted} were not ready after {self.timeout_s:g} s")
                self._changed.wait(_POLL_S)

    def _start(self, worker: int) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (mine, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
        mine.settimeout(_SEND_S)
        with theirs:
            path = os.pathsep.join(filter(None, sys.path))
            environment = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, "PYTHONPATH": path}
            # A signal to the whole group, as Ctrl-C sends one, is for the server alone, which decides what follows: its
            # samplers ignore it as soon as they can, and have it blocked until then.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "glt.distributed.server.pool_worker", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),), env=environment, stdin=subprocess.DEVNULL,
                )  # fmt: skip
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        member = PoolMember(worker, process, mine)
        self._members[worker] = member
        member.send({"spec": asdict(PoolWorkerSpec(**self._spec, worker=worker))})
        if self._standing is not None:
            member.send(self._standing)

    # -- commands --------------------------------------------------------------------------------------------------

    def tell_all(self, command: dict[str, Any], standing: bool = False) -> None:
        """Sends a command to all; a standing one also to those that are started later, in place of the last."""
        with self._changed:
            if standing:
                self._standing = command
            members = list(self._members.values())
        for member in members:
            member.send(command)

    def hand_over(self, worker: int | None, command: dict[str, Any], fds: list[int]) -> bool:
        """Gives a command and descriptors to one process, that in place ``worker`` or any; false if it is not there."""
        with self._changed:
            ready = [each for _, each in sorted(self._members.items()) if each.is_ready]
            if worker is None and ready:
                self._next += 1
                member: PoolMember | None = ready[self._next % len(ready)]
            else:
                member = next((each for each in ready if each.worker == worker), None)
        return member is not None and member.send(command, fds)

    def is_full(self, worker: int) -> bool:
        """Whether the process in place ``worker`` has no descriptors for more connections."""
        with self._changed:
            member = self._members.get(worker)
        return member is not None and time.monotonic() - member.full_s < _FULL_S

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._look()
            except Exception:  # or nobody would look after the others
                logger.exception("while looking after the sampling processes")
                time.sleep(_POLL_S)

    def _look(self) -> None:
        with self._changed:
            members = list(self._members.values())
        poller = select.poll()
        by_fd = {}
        for member in members:
            if member.socket.fileno() >= 0:
                by_fd[member.socket.fileno()] = member
                poller.register(member.socket.fileno(), select.POLLIN)
        now = time.monotonic()  # before all is heard that came until then: this process itself may be stopped
        for fd, _ in poller.poll(_POLL_S * 1000):
            self._hear(by_fd[fd])
        for member in members:
            if not member.is_gone and member.process.poll() is not None:
                self._lose(member)
            elif member.is_ready and now - member.last_beat > STUCK_S:
                member.why = f"it gave no sign of life for {STUCK_S:g} s, stopped or stuck, and was killed"
                logger.error("%s: %s", self._name(member), member.why)
                member.process.kill()
                member.last_beat = time.monotonic()

    def _hear(self, member: PoolMember) -> None:
        try:
            data = member.socket.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(member)
            return
        member.last_beat = time.monotonic()
        try:
            said = json.loads(data)
        except ValueError:
            logger.error("%s said something that is no JSON, %d bytes", self._name(member), len(data))
            return
        if "beat" in said:
            self.ledger.beat(member.worker, said["beat"])
        elif "full" in said:
            member.full_s = member.last_beat
        elif "ended" in said:
            member.full_s = -math.inf  # there are two descriptors now
            self.ledger.end_stream(member.worker, said["ended"], said["stats"])
        with self._changed:
            if "ready" in said:
                member.is_ready = True
                self._num_failed.pop(member.worker, None)
            elif "error" in said:
                self._failures[member.worker] = (
                    f"{self._name(member)} failed: {said['error']}: {said['text']}\n{said['traceback'].rstrip()}"
                )
            self._changed.notify_all()

    def _lose(self, member: PoolMember) -> None:
        """Takes note of a process that ended, and starts another in its place."""
        if member.is_gone or self._closed:
            return
        member.is_gone = True
        member.socket.close()
        try:
            code: Any = member.process.wait(_JOIN_S)
        except subprocess.TimeoutExpired:
            member.process.kill()
            code = member.process.wait(_KILL_S)
        hint = {
            -9: "it was killed, often by the OOM killer: see dmesg",
            -7: "a bus error: memory or a mapped file ran out",
            -11: "a segmentation fault: please report it",
        }.get(code, "its output says why")
        text = f"{self._name(member)} died with exit code {code}: {member.why or hint}"
        logger.error("%s", text)
        self.ledger.lose_worker(member.worker)
        self._died(member.worker, text)
        with self._changed:
            if self._members.get(member.worker) is member:
                del self._members[member.worker]
            failed = self._num_failed[member.worker] = self._num_failed.get(member.worker, 0) + 1
            if failed >= _MOST_FAILURES or member.worker in self._failures:
                self._failures.setdefault(member.worker, text)
            elif not self._closed:
                self._num_restarts[member.worker] = self._num_restarts.get(member.worker, 0) + 1
                try:
                    self._start(member.worker)
                except OSError as error:  # no memory for a process, for example
                    self._failures[member.worker] = f"{text}; none could be started in its place: {error}"
                    logger.error("%s", self._failures[member.worker])
            self._changed.notify_all()

    def _name(self, member: PoolMember) -> str:
        rank = self._spec["server_rank"]
        return f"worker {member.worker} of server {rank} (host {socket.gethostname()}, pid {member.process.pid})"

    def pids(self) -> dict[int, int]:
        """The processes that are ready, by place."""
        with self._changed:
            return {w: each.process.pid for w, each in sorted(self._members.items()) if each.is_ready}

    def num_restarts(self) -> dict[int, int]:
        """How many processes were started in place of one that died, by place."""
        with self._changed:
            return dict(self._num_restarts)

    def close(self) -> None:
        """Ends all processes: by command, then terminate, then kill. May be called again."""
        with self._changed:
            self._closed = True
            members = list(self._members.values())
            self._changed.notify_all()
        for member in members:
            if not member.is_gone:
                member.send({"exit": True})
        for end, seconds in ((None, _JOIN_S), ("terminate", 0.5), ("kill", _KILL_S)):
            deadline = time.monotonic() + seconds
            for member in members:
                if end is not None and member.process.poll() is None:
                    getattr(member.process, end)()
            for member in members:
                try:
                    member.process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue  # the next, harder step takes care of it
        self._thread.join(_JOIN_S)
        for member in members:
            member.socket.close()
