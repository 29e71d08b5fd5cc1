"""The sampling processes of a server, as the server sees them: watched, given work, and replaced when they die."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from glt import _deadlines as deadlines
from glt.distributed.engine.processes import ProcessPool, SamplingProcess
from glt.distributed.server.stats import Ledger
from glt.errors import WorkerDied


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

_MOST_FAILURES = 3  # in a row, before a place in the pool stays empty


class SamplerPool:
    """Keeps a number of sampling processes, at most ``most``, and replaces those that die.

    Args:
        spec: What they are told, apart from ``worker``.
        most: How many there may be.
        timeout_s: Deadline of their start.
        died: Called when one has died, with its place and what to say of it.
        module: Their program.

    Attributes:
        ledger: What they told of their work.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        most: int,
        timeout_s: float,
        died: Callable[[int, str], None],
        module: str = "glt.distributed.server.pool_worker",
    ) -> None:
        self.most, self.timeout_s = most, timeout_s
        self.ledger = Ledger()
        self._spec, self._died = spec, died
        self._changed = threading.Condition()  # its lock may be taken twice
        self._pool = ProcessPool(module, f"server {spec['server_rank']}")
        self._full_s: dict[int, float] = {}  # when a process last had no descriptor, of time.monotonic()
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
                if worker not in self._pool.processes:
                    self._start(worker)
            while True:
                for worker in wanted:
                    if worker in self._failures:
                        raise WorkerDied(self._failures[worker])
                ready = self.pids()
                if all(worker in ready for worker in wanted):
                    return wanted
                if self._closed:
                    raise WorkerDied("the server is shutting down")
                if time.monotonic() > deadline:
                    raise WorkerDied(f"sampling processes {wanted} were not ready after {self.timeout_s:g} s")
                self._changed.wait(deadlines.POLL_S)

    def _start(self, worker: int) -> None:
        process = self._pool.start(worker, asdict(PoolWorkerSpec(**self._spec, worker=worker)))
        if self._standing is not None:
            process.send(self._standing)

    # -- commands --------------------------------------------------------------------------------------------------

    def tell_all(self, command: dict[str, Any], standing: bool = False) -> None:
        """Sends a command to all; a standing one also to those that are started later, in place of the last."""
        with self._changed:
            if standing:
                self._standing = command
            processes = list(self._pool.processes.values())
        for process in processes:
            process.send(command)

    def hand_over(self, worker: int | None, command: dict[str, Any], fds: list[int]) -> bool:
        """Gives a command and descriptors to one process, that in place ``worker`` or any; false if it is not there."""
        with self._changed:
            ready = [each for _, each in sorted(self._pool.processes.items()) if each.is_ready]
            if worker is None and ready:
                self._next += 1
                process: SamplingProcess | None = ready[self._next % len(ready)]
            else:
                process = next((each for each in ready if each.number == worker), None)
        return process is not None and process.send(command, fds)

    def is_full(self, worker: int) -> bool:
        """Whether the process in place ``worker`` has no descriptors for more connections."""
        with self._changed:
            return worker in self._full_s and time.monotonic() - self._full_s[worker] < deadlines.FULL_S

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._look()
            except Exception:  # or nobody would look after the others
                logger.exception("while looking after the sampling processes")
                time.sleep(deadlines.POLL_S)

    def _look(self) -> None:
        for process, said in self._pool.look(deadlines.POLL_S):
            if said is None:
                self._lose(process)
            else:
                self._hear(process, said)
        for process in list(self._pool.processes.values()):
            if (
                process.is_ready
                and not process.is_gone
                and not process.why
                and self._pool.silent_s(process) > deadlines.STUCK_S
            ):
                process.kill(f"it gave no sign of life for {deadlines.STUCK_S:g} s, stopped or stuck, and was killed")
                logger.error("%s: %s", process.name, process.why)

    def _hear(self, process: SamplingProcess, said: dict[str, Any]) -> None:
        worker = process.number
        if "beat" in said:
            self.ledger.beat(worker, said["beat"])
        elif "ended" in said:
            self.ledger.end_stream(worker, said["ended"], said["stats"])
        with self._changed:
            if "full" in said:
                self._full_s[worker] = process.heard_s
            elif "ended" in said:
                self._full_s.pop(worker, None)  # there are two descriptors now
            elif "ready" in said:
                self._num_failed.pop(worker, None)
            elif "error" in said:
                trace = said["traceback"].rstrip()
                self._failures[worker] = f"{process.name} failed: {said['error']}: {said['text']}\n{trace}"
            self._changed.notify_all()

    def _lose(self, process: SamplingProcess) -> None:
        """Takes note of a process that ended, and starts another in its place."""
        text, worker = process.death(), process.number
        if self._closed:
            return
        logger.error("%s", text)
        self.ledger.lose_worker(worker)
        self._died(worker, text)
        with self._changed:
            self._pool.remove(process)
            self._full_s.pop(worker, None)
            failed = self._num_failed[worker] = self._num_failed.get(worker, 0) + 1
            if failed >= _MOST_FAILURES or worker in self._failures:
                self._failures.setdefault(worker, text)
            elif not self._closed:
                self._num_restarts[worker] = self._num_restarts.get(worker, 0) + 1
                try:
                    self._start(worker)
                except OSError as error:  # no memory for a process, for example
                    self._failures[worker] = f"{text}; none could be started in its place: {error}"
                    logger.error("%s", self._failures[worker])
            self._changed.notify_all()

    def pids(self) -> dict[int, int]:
        """The processes that are ready, by place."""
        with self._changed:
            return {w: each.pid for w, each in sorted(self._pool.processes.items()) if each.is_ready}

    def num_restarts(self) -> dict[int, int]:
        """How many processes were started in place of one that died, by place."""
        with self._changed:
            return dict(self._num_restarts)

    def close(self) -> None:
        """Ends all processes. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(deadlines.JOIN_S)
        self._pool.close()
