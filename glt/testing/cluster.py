"""Trainers in processes of their own, for tests of distributed jobs: spoken to, killed, and searched for leaks."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import SystemRandom
from typing import Any

import torch

from glt import _deadlines as deadlines
from glt.data.device import missing_for_cuda

__all__ = ["Census", "Cluster", "Outcome", "Trainer", "free_port", "take_census"]

_MARK = "GLT_TEST_CLUSTER"


@dataclass(frozen=True)
class Census:
    """What a process holds: child processes with their command lines, what open descriptors point to, threads (native
    ones too), TCP ports on which it listens, and resident memory."""

    children: dict[int, str]
    fds: list[str]
    num_threads: int
    ports: list[int]
    rss_bytes: int


def take_census(pid: int | str = "self") -> Census:
    """Returns what the process ``pid`` of this host holds now."""
    proc = Path("/proc") / str(pid)
    children: dict[int, str] = {}
    tasks = list((proc / "task").iterdir())
    for task in tasks:
        for child in _read(task / "children").split():
            children[int(child)] = _read(Path("/proc") / child / "cmdline").replace("\0", " ").strip()
    fds = []
    for fd in (proc / "fd").iterdir():
        try:
            fds.append(os.readlink(fd))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    sockets = {fd[8:-1] for fd in fds if fd.startswith("socket:[")}
    ports = []
    for table in ("tcp", "tcp6"):
        for line in _read(proc / "net" / table).splitlines()[1:]:
            column = line.split()
            if column[3] == "0A" and column[9] in sockets:  # 0A: listening
                ports.append(int(column[1].rpartition(":")[2], 16))
    pages = int(_read(proc / "statm").split()[1])
    return Census(children, sorted(fds), len(tasks), sorted(ports), pages * os.sysconf("SC_PAGE_SIZE"))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""  # it ended meanwhile, or is none of ours


def _mapped_elsewhere(pids: Container[int]) -> str:
    """The memory maps of all other living processes: other programs of this host use ``/dev/shm`` too."""
    others = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and int(entry.name) not in pids)
    return "\n".join(_read(entry / "maps") for entry in others)


def free_port() -> int:
    """Returns a TCP port of this host that is free now, if possible below those that the kernel gives to
    connections."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    random = SystemRandom()  # not torch's or the test's, which is the same in every run
    candidates = [random.randrange(10_000, lowest) for _ in range(50)] if lowest > 12_000 else []
    for port in (*candidates, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue  # taken
            return int(probe.getsockname()[1])
    raise OSError("no TCP port is free")


@dataclass
class Trainer:
    """What the function of a trainer is given: its place, and a free port, the same for all trainers of the cluster."""

    rank: int
    world_size: int
    port: int
    _connection: Connection

    def say(self, value: Any) -> None:
        """Tells the test something, which :meth:`Cluster.hear` returns."""
        self._connection.send_bytes(_dump(("said", value)))

    def hear(self, timeout_s: float = 120.0) -> Any:
        """Waits for what the test says with :meth:`Cluster.say`."""
        if not self._connection.poll(timeout_s):
            raise TimeoutError(f"trainer {self.rank} heard nothing from the test within {timeout_s:g} s")
        return _load(self._connection.recv_bytes())


@dataclass(frozen=True)
class Outcome:
    """How a trainer ended: what its function returned, or the class, text and traceback of the exception that it
    raised, and when, on the clock of ``time.monotonic``, which all processes of a host share."""

    value: Any = None
    error_type: str | None = None
    error: str = ""
    traceback: str = ""
    at_s: float = 0.0


def _dump(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _load(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)  # from a process that this test started


class Cluster:
    """Runs ``function(trainer, *args)``, defined at the top of a module, in ``world_size`` processes, forked from a
    server that has imported the modules in ``preload``, once for all clusters of a process; spawned where there is a
    GPU, which a forked process cannot use if an import has looked for it. As a context manager it
    kills what is left of them. Everything must have ended after ``deadline_s``. What the function returns or says is
    copied to the test."""

    def __init__(
        self,
        world_size: int,
        function: Callable[..., Any],
        *args: Any,
        deadline_s: float = 240.0,
        preload: tuple[str, ...] = ("torch_geometric.loader", "glt.loader", "glt.distributed.loader.loaders"),
    ) -> None:
        self.world_size = world_size
        self._deadline = time.monotonic() + deadline_s
        self._mark = uuid.uuid4().hex
        self._shm_before = set(os.listdir("/dev/shm"))
        self._folder = tempfile.TemporaryDirectory(prefix="glt-cluster-")
        self._said: list[list[Any]] = [[] for _ in range(world_size)]
        self._outcomes: dict[int, Outcome] = {}
        self.port = free_port()
        context: Any
        if missing_for_cuda() is None:
            context = get_context("spawn")
        else:
            context = get_context("forkserver")
            context.set_forkserver_preload(list(preload))
        self.processes = []
        self._connections: list[Connection] = []
        for rank in range(world_size):
            mine, theirs = context.Pipe()
            trainer = Trainer(rank, world_size, self.port, theirs)
            given = trainer, self._mark, str(self._log(rank)), function, args
            process = context.Process(target=_main, args=given, name=f"trainer-{rank}")
            process.start()
            theirs.close()
            self.processes.append(process)
            self._connections.append(mine)

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"trainer{rank}.log"

    def output(self, rank: int) -> str:
        return self._log(rank).read_text(errors="replace")

    def _outputs(self, ranks: Iterable[int]) -> str:
        return "\n".join(f"--- output of trainer {rank}:\n{self.output(rank)}" for rank in ranks)

    def say(self, rank: int, value: Any = None) -> None:
        self._connections[rank].send_bytes(_dump(value))

    def hear(self, rank: int, timeout_s: float = 120.0) -> Any:
        """Waits for the next thing that a trainer says. Raises AssertionError, with what all trainers have written, if
        it ends or stays silent instead."""
        deadline = min(self._deadline, time.monotonic() + timeout_s)
        while not self._said[rank]:
            if rank in self._outcomes or time.monotonic() > deadline:
                ended = self._outcomes.get(rank, "it still runs")
                raise AssertionError(f"trainer {rank} said nothing: {ended}\n{self._outputs(range(self.world_size))}")
            self._listen()
        return self._said[rank].pop(0)

    def kill(self, rank: int, sig: signal.Signals = signal.SIGKILL) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, sig)

    def _listen(self) -> None:
        open_ends = {c: rank for rank, c in enumerate(self._connections) if rank not in self._outcomes}
        for connection in wait(list(open_ends), deadlines.FAST_POLL_S):
            assert isinstance(connection, Connection)
            rank = open_ends[connection]
            try:
                kind, value = _load(connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                kind, value = "ended", Outcome(None, "Killed", "it ended without a word", "", time.monotonic())
            if kind == "said":
                self._said[rank].append(value)
            else:
                self._outcomes[rank] = value

    def outcomes(self) -> list[Outcome]:
        """Waits until all trainers have ended, by returning, raising or being killed. Raises AssertionError, with its
        output, if one still runs at the deadline."""
        while len(self._outcomes) < self.world_size:
            if time.monotonic() > self._deadline:
                late = [rank for rank in range(self.world_size) if rank not in self._outcomes]
                raise AssertionError(
                    f"trainers {late} still ran at the deadline; ended: {self._outcomes}\n{self._outputs(late)}"
                )
            self._listen()
        for rank, process in enumerate(self.processes):
            process.join(max(1.0, self._deadline - time.monotonic()))
            if process.is_alive():
                raise AssertionError(f"trainer {rank} has returned but its process does not end\n{self.output(rank)}")
        return [self._outcomes[rank] for rank in range(self.world_size)]

    def results(self) -> list[Any]:
        """Waits for all trainers and returns what their functions returned. Raises AssertionError, with its traceback
        and output, if one raised or was killed."""
        outcomes = self.outcomes()
        for rank, outcome in enumerate(outcomes):
            if outcome.error_type is not None:
                raise AssertionError(
                    f"trainer {rank} raised {outcome.error_type}: {outcome.error}\n{outcome.traceback}\n"
                    f"--- its output:\n{self.output(rank)}"
                )
        return [outcome.value for outcome in outcomes]

    def leftovers(self) -> list[str]:
        """What the trainers left behind: processes that descend from them, and new entries in ``/dev/shm``, but for
        CUDA's own."""
        descendants = self._descendants()
        found = [f"process {pid}: {command}" for pid, command in descendants.items()]
        new = sorted(set(os.listdir("/dev/shm")) - self._shm_before)
        new = [name for name in new if not name.startswith("cuda.shm.")]  # of a killed process it stays, in any program
        used = _mapped_elsewhere(descendants) if new else ""
        return found + [f"/dev/shm/{name}" for name in new if f"/dev/shm/{name}" not in used]

    def expect_nothing_left(self, timeout_s: float = 60.0) -> None:
        """Waits until nothing is left behind, and raises AssertionError naming what is if that takes too long."""
        deadline = time.monotonic() + timeout_s
        while left := self.leftovers():
            if time.monotonic() > deadline:
                raise AssertionError(f"left behind after {timeout_s:g} s: {left}")
            time.sleep(deadlines.FAST_POLL_S)

    def _descendants(self) -> dict[int, str]:
        mark = f"{_MARK}={self._mark}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = _read(entry / "cmdline").replace("\0", " ").strip()
            except (PermissionError, FileNotFoundError, ProcessLookupError):
                continue  # not ours, or gone meanwhile
        return found

    def close(self) -> None:
        """Kills what is left. May be called again."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join(10)
        for pid in self._descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended meanwhile
        for connection in self._connections:
            connection.close()
        self._folder.cleanup()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()


def _main(trainer: Trainer, mark: str, log: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ[_MARK] = mark
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)
    torch.set_num_threads(1)
    try:
        outcome = Outcome(function(trainer, *args), at_s=time.monotonic())
    except BaseException as error:
        outcome = Outcome(None, type(error).__name__, str(error), traceback.format_exc(), time.monotonic())
    sys.stdout.flush()
    trainer._connection.send_bytes(_dump(("ended", outcome)))
