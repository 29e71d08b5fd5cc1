"""The sampling processes of one trainer: started, watched, commanded and ended by it."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from glt._checks import format_size
from glt.channel.message import Message, MessageKind, rebuild_error
from glt.channel.shm import ShmChannel
from glt.distributed.engine.producer import EpochStart
from glt.distributed.engine.seeds import SeedTable
from glt.distributed.engine.worker import WorkerSpec
from glt.errors import ChannelClosed, ChannelTimeout, WorkerDied

_POLL_S = 0.2
_JOIN_S = 3.0
_BATCHES_IN_CHANNEL = 5  # half of it for those that the trainer has: one in use and the next, with some to spare
_KILL_S = 10.0  # a killed process is gone as soon as the kernel gets to it

logger = logging.getLogger(__name__)


@dataclass
class _Process:
    """A worker process and the trainer's ends of what connects them."""

    worker: int
    process: subprocess.Popen[bytes]
    connection: Connection
    channel: ShmChannel
    is_ready: bool = False
    is_measured: bool = False  # whether the first batch of the epoch was
    last_beat: float = 0.0  # of time.monotonic()


class WorkerGroup:
    """Starts sampling processes and receives their batches.

    Each has a channel of its own, so that a killed one cannot wedge the others. Batch ``i`` is made by worker
    ``i % len(devices)``, so that batches arrive in index order without being sorted.

    Args:
        spec: What the workers are told, apart from what is added here for each.
        devices: Where each samples, see :func:`glt.distributed.options.checked_devices`.
        table: The loader's input, put into shared memory once.
        channel_bytes: Shared memory for batches in flight, over all workers.
        pin_for: A GPU whose CUDA context registers that memory, so that copies from it to GPUs need no staging.
        check_peers: Called in waits, for those of other trainers are waited for then; raises if a trainer is lost.

    Raises:
        WorkerDied: If one does not come up; names it.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        devices: Sequence[str],
        table: SeedTable,
        channel_bytes: int,
        pin_for: torch.device | str | None = None,
        check_peers: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank: int = spec["rank"]
        self.timeout_s: float = spec["timeout_s"]
        self._has_hinted = False
        self._check_peers = check_peers
        self._members: list[_Process] = []
        self._finalizer = weakref.finalize(self, _end_all, self._members, os.getpid())
        self._seeds = table.share()
        try:
            for worker, device in enumerate(devices):
                self._start({**spec, "device": device}, worker, len(devices), channel_bytes // len(devices))
            self._wait_until_ready()
            if pin_for is not None:
                for member in self._members:
                    member.channel.pin(pin_for)
        except BaseException:
            self.close()
            raise

    def _start(self, spec: dict[str, Any], worker: int, num_workers: int, channel_bytes: int) -> None:
        channel = ShmChannel(channel_bytes)
        mine, theirs = socket.socketpair()
        full = WorkerSpec(
            **spec,
            worker=worker,
            num_workers=num_workers,
            seeds_fd=self._seeds.fd,
            seeds_bytes=self._seeds.nbytes,
            channel=channel.descriptor(),
        )
        with theirs:
            inherited = (theirs.fileno(), self._seeds.fd, channel.descriptor()["fd"])
            # The trainer's import path, so that the same glt is found; not its script, which is not run again.
            # TensorPipe warns of every connection that ends; what matters of that is raised, with names.
            path = os.pathsep.join(filter(None, sys.path))
            environment = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, "PYTHONPATH": path}
            process = subprocess.Popen(
                [sys.executable, "-m", "glt.distributed.engine.worker", str(theirs.fileno())],
                pass_fds=inherited, env=environment, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        connection = Connection(mine.detach())
        self._members.append(_Process(worker, process, connection, channel))
        connection.send_bytes(json.dumps({"spec": asdict(full)}).encode())

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.timeout_s
        while starting := [member for member in self._members if not member.is_ready]:
            wait([member.connection for member in starting], _POLL_S)
            self._check_alive()  # first: what went wrong here is not the fault of others who gave up because of it
            self._check_peers()
            if time.monotonic() > deadline:
                raise WorkerDied(f"{self._name(starting[0])} was not ready after {self.timeout_s:g} s")

    def start_epoch(self, start: EpochStart) -> None:
        """Asks for the batches of an epoch; those of earlier iterations are given up."""
        for member in self._members:
            member.is_measured = False
            self._command(member, start.to_json())

    def drain(self) -> None:
        """Ends sampling for this trainer. Requests of other trainers are still answered, by those workers that live."""
        for member in self._members:
            try:
                self._command(member, {"drain": True})
            except WorkerDied as error:
                logger.warning("while shutting down: %s", error)

    def _command(self, member: _Process, command: dict[str, Any]) -> None:
        try:
            member.connection.send_bytes(json.dumps(command).encode())
        except OSError:
            self._raise_died(member)

    def receive(self, index: int, wait: bool = True) -> Message | None:
        """Waits for the next message of the worker that makes batch ``index``, for as long as all workers live; or
        returns None without.

        Raises:
            WorkerDied: If a worker died; names it and its exit code.
        """
        member = self._members[index % len(self._members)]
        since = time.monotonic()
        while True:
            try:
                message = member.channel.receive(_POLL_S if wait else 0.0)
                if message.kind is MessageKind.ERROR:
                    # Losing a worker makes other trainers give up, which the workers that are left then report as a
                    # loss of theirs: the worker that died here is the cause to name.
                    self._check_alive()
                elif not self._has_hinted and not member.is_measured:
                    member.is_measured = True
                    self._hint(member, message)
                return message
            except ChannelTimeout:
                if not wait:
                    return None
                self._check_alive()
                self._check_beats(since)
                self._check_peers()
            except ChannelClosed:
                self._raise_died(member)

    def _hint(self, member: _Process, message: Message) -> None:
        """Says so, once, if batches are too large for the channel: they pass, but are copied twice on the way."""
        nbytes = sum(tensor.nbytes for tensor in message.tensors.values())
        if nbytes > member.channel.channel_bytes // 2:
            self._has_hinted = True
            wanted_mb = -(-_BATCHES_IN_CHANNEL * nbytes * len(self._members) >> 20)
            logger.warning(
                "%s sends a batch of %s through a channel of %s in pieces, at half the speed or less: give "
                "worker_options channel_size='%dMB', or use smaller batches",
                self._name(member), format_size(nbytes), format_size(member.channel.channel_bytes), wanted_mb,
            )  # fmt: skip

    def stats(self) -> dict[str, float]:
        """Sums the counters of the channels."""
        total: dict[str, float] = {}
        for member in self._members:
            for name, value in member.channel.stats().items():
                total[name] = total.get(name, 0) + value
        return total

    def _check_alive(self) -> None:
        for member in self._members:
            self._listen(member)
        for member in self._members:
            if member.process.poll() is not None:
                self._raise_died(member)

    def _listen(self, member: _Process) -> None:
        """Takes note of what a worker has said; raises if that was an error, or its last word.

        A worker that dies hangs up before its connections to other trainers' workers break: who looks here when such a
        loss is reported finds the cause, even while the dead process cannot be waited for yet.
        """
        try:
            while member.connection.poll():
                said = json.loads(member.connection.recv_bytes())
                member.last_beat = time.monotonic()
                member.is_ready = member.is_ready or "ready" in said
                if "error" in said:
                    raise rebuild_error(
                        said["error"], said["text"], said["traceback"], role=f"worker {member.worker} of trainer",
                        rank=self.rank, pid=member.process.pid, host=socket.gethostname(),
                    )  # fmt: skip
        except (EOFError, OSError):
            self._raise_died(member)

    def _check_beats(self, since: float) -> None:
        """Raises for a worker that lives but has been silent for ``timeout_s`` of the wait that began at ``since``."""
        for member in self._members:
            silent_s = time.monotonic() - max(member.last_beat, since)
            if silent_s > self.timeout_s:
                raise WorkerDied(
                    f"{self._name(member)} lives, but has given no sign of it for {silent_s:.0f} s (rpc_timeout = "
                    f"{self.timeout_s:g}): is it stopped? See its state in ps, or its stack with py-spy"
                )

    def _raise_died(self, member: _Process) -> None:
        try:
            code = member.process.wait(_JOIN_S)
        except subprocess.TimeoutExpired:
            raise WorkerDied(f"{self._name(member)} closed its connection but still runs") from None
        hint = {
            -9: "it was killed, often by the OOM killer: see dmesg",
            -7: "a bus error: memory or a mapped file ran out",
            -11: "a segmentation fault: please report it",
        }.get(code, "its output above says why")
        raise WorkerDied(f"{self._name(member)} died with exit code {code}: {hint}")

    def _name(self, member: _Process) -> str:
        return f"worker {member.worker} of trainer {self.rank} (host {socket.gethostname()}, pid {member.process.pid})"

    def close(self, all_finished: bool = False) -> None:
        """Ends all workers, the same way whether or not all trainers have finished. May be called again."""
        self._finalizer()
        self._seeds.close()


def _end_all(members: list[_Process], pid: int) -> None:
    """Exit command, then terminate, then kill; nothing is left behind. A fork of the trainer ends nothing."""
    if os.getpid() != pid:
        return
    for member in members:
        try:
            member.connection.send_bytes(b'{"exit": true}')
        except OSError:
            pass  # it is dead already, which is what was wanted
        member.channel.close()
    for end, seconds in ((None, _JOIN_S), ("terminate", 0.5), ("kill", _KILL_S)):
        deadline = time.monotonic() + seconds
        if end is not None:
            for member in members:
                if member.process.poll() is None:
                    getattr(member.process, end)()
        for member in members:
            try:
                member.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue  # the next, harder step takes care of it
    for member in members:
        member.connection.close()
    members.clear()
