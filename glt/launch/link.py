"""The launcher's end of the pipes to the keeper of a host."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from glt.distributed.job.hosts import Host
from glt.launch.hosts import Children, ProcessPlan, Reach, Stopped

# One question to a program on each host, asked of all at once.


_MAX_AT_ONCE = 32
_SSH_FAILED, _NOT_FOUND = 255, 127


@dataclass(frozen=True)
class Answer:
    """What a host answered, or ``problem``, why it did not."""

    host: Host
    told: Any
    problem: str = ""


def ask_host(
    reach: Reach, host: Host, module: str, question: Any, timeout_s: float, children: Children | None = None
) -> Answer:
    """Runs a module of this package on a host, which reads JSON and writes JSON, and returns its answer."""
    command, begin = reach.run_program(host, module)
    try:
        with (children or Children()).start(command) as process:
            out, err = process.communicate(begin + json.dumps(question).encode(), timeout_s)
            code = process.returncode
    except subprocess.TimeoutExpired:
        return Answer(host, None, f"no answer within {timeout_s:g} s: is it overloaded, or its file system gone?")
    except Stopped:
        return Answer(host, None, "it was stopped")
    except OSError as error:
        return Answer(host, None, f"{command[0]} cannot be started: {error}")
    if code == 0:
        try:  # the last line: what the shell there prints at its start comes before
            return Answer(host, json.loads(out.strip().splitlines()[-1]))
        except (ValueError, IndexError):
            return Answer(host, None, f"its answer makes no sense: {out[-200:]!r}")
    return Answer(host, None, why_failed(reach, code, err.decode(errors="replace")))


def why_failed(reach: Reach, code: int, said: str) -> str:
    """Says why a program on a host failed, and what to do, from its exit code and what it wrote to stderr."""
    last = " ".join(said.strip().splitlines()[-1:]) or "it said nothing"
    if reach.over_ssh and code == _SSH_FAILED:
        return (
            f"ssh does not reach it ({last}): try {' '.join(reach.shell()[:1])} by hand; it must not ask for anything"
        )
    if code == _NOT_FOUND:
        return f"there is no {reach.interpreter} there ({last}): give --python"
    return f"its program failed with exit code {code} ({last})"


def ask_hosts(
    reach: Reach,
    hosts: Sequence[Host],
    module: str,
    questions: Sequence[Any],
    timeout_s: float,
    children: Children | None = None,
) -> list[Answer]:
    """Asks each host its question, all at once."""
    with ThreadPoolExecutor(min(len(hosts), _MAX_AT_ONCE)) as pool:
        pairs = zip(hosts, questions, strict=True)
        asked = [pool.submit(ask_host, reach, host, module, each, timeout_s, children) for host, each in pairs]
        return [each.result() for each in asked]


_MAX_QUEUED: Final = 16  # events, each of 8 KiB of output; beyond that hosts wait until they are printed


@dataclass(frozen=True)
class Event:
    """Something that a host told: ``told`` as the keeper wrote it; None: nothing comes any more."""

    host: int
    told: dict[str, Any] | None


def event_queue() -> queue.Queue[Event]:
    return queue.Queue(_MAX_QUEUED)


class HostLink:
    """Starts the keeper of a host, and puts what it tells into a queue.

    Args:
        reach: How hosts are reached.
        host: Which, and its place ``at`` among them.
        plans: What it is to start.
        stop_s: How long processes have once they are told to end.
        events: Where to put what it tells.
    """

    def __init__(
        self, reach: Reach, host: Host, at: int, plans: Sequence[ProcessPlan], stop_s: float, events: queue.Queue[Event]
    ) -> None:
        self.host, self._at, self._events = host, at, events
        self.errors: deque[str] = deque(maxlen=5)  # what ssh, or the keeper itself, wrote to stderr
        self.is_done = False
        command, begin = reach.run_program(host, "keeper")
        # A session of its own: Ctrl-C is for the launcher, which then ends things in order.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()
        plan = {
            "processes": [each.to_json() for each in plans],
            "stop_s": stop_s,
            "silent_s": reach.lost_timeout_s if reach.over_ssh else None,
        }
        self._send(begin + json.dumps(plan).encode() + b"\n")

    def _send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # the reader finds out what became of it

    def beat(self) -> None:
        """Tells the keeper that this launcher lives."""
        self._send(b'{"beat": 1}\n')

    def stop(self, grace_s: float) -> None:
        """Tells the keeper to end its processes."""
        self._send(json.dumps({"stop": grace_s}).encode() + b"\n")

    def close(self, wait_s: float) -> None:
        """Hangs up, which ends everything there, and ends the program that leads there."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it is gone already
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(1.0)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                try:
                    told = json.loads(line)
                    known = isinstance(told, dict) and "event" in told
                except ValueError:
                    known = False
                if not known:  # what the shell there prints at its start
                    told = _said(line.decode(errors="replace").rstrip())
                self._events.put(Event(self._at, told))
        self._events.put(Event(self._at, None))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as pipe:
            for line in pipe:
                text = line.decode(errors="replace").rstrip()
                self.errors.append(text)
                self._events.put(Event(self._at, _said(text)))


def _said(text: str) -> dict[str, Any]:
    """A line that no process of the job wrote, in the keeper's words."""
    return {"event": "lines", "name": "", "err": True, "texts": [text]}
