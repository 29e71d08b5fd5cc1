"""A job on several hosts: the links to its hosts, and its start, watch and end."""

from __future__ import annotations

import io
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Final, TextIO

from glt import _deadlines as deadlines
from glt.distributed.job.hosts import Host
from glt.distributed.wire.credentials import Token
from glt.launch.hosts import TORCHRUN, Children, ProcessPlan, Reach

# One question to glt.launch.check on each host, asked of all at once.


_MAX_AT_ONCE = 32
_SSH_FAILED, _NOT_FOUND = 255, 127


def ask_host(reach: Reach, host: Host, question: Any, work_s: float, children: Children) -> dict[str, Any]:
    """Returns the answer of a host, which has ``work_s`` seconds once it is reached. If none comes, its ``problems``
    say why, as those of an answer say what the host lacks."""
    command, begin = reach.run_program(host, "check")
    timeout_s = reach.connect_timeout_s + work_s
    try:
        with children.start(command) as process:
            out, err = process.communicate(begin + json.dumps(question).encode(), timeout_s)
        if process.returncode:
            problem = _why_failed(reach, process.returncode, err.decode(errors="replace"))
        else:  # the last line: what the shell there prints at its start comes before
            answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
            return answer
    except subprocess.TimeoutExpired:
        problem = f"no answer within {timeout_s:g} s: is it overloaded, or its file system gone?"
    except InterruptedError as error:
        problem = str(error)
    except OSError as error:
        problem = f"{command[0]} cannot be started: {error}"
    except (ValueError, IndexError):
        problem = f"its answer makes no sense: {out[-200:]!r}"
    return {"problems": [problem]}


def _why_failed(reach: Reach, code: int, said: str) -> str:
    last = " ".join(said.strip().splitlines()[-1:]) or "it said nothing"
    if reach.over_ssh and code == _SSH_FAILED:
        return (
            f"ssh does not reach it ({last}): try {' '.join(reach.shell()[:1])} by hand; it must not ask for anything"
        )
    if code == _NOT_FOUND:
        return f"there is no {reach.interpreter} there ({last}): give --python"
    return f"its program failed with exit code {code} ({last})"


def ask_hosts(
    reach: Reach, hosts: Sequence[Host], questions: Sequence[Any], work_s: float, children: Children
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the answers of all hosts, and all their problems, with the hosts' names."""
    with ThreadPoolExecutor(min(len(hosts), _MAX_AT_ONCE)) as pool:
        asked = [pool.submit(ask_host, reach, *pair, work_s, children) for pair in zip(hosts, questions, strict=True)]
        answers = [each.result() for each in asked]
    pairs = zip(hosts, answers, strict=True)
    return answers, [f"host {host.name}: {problem}" for host, answer in pairs for problem in answer["problems"]]


_MAX_QUEUED: Final = 16  # events, each of 8 KiB of output; beyond that hosts wait until they are printed


class HostLink:
    """Starts the keeper of a host, and puts what it tells into a queue of events: itself, with a message of the keeper,
    or None when nothing comes any more. ``plans`` are what it is to start, with the job's ``token``; ``stop_s`` is how
    long processes have once they are told to end."""

    def __init__(
        self,
        reach: Reach,
        host: Host,
        plans: Sequence[ProcessPlan],
        token: Token | None,
        stop_s: float,
        events: queue.Queue,
    ) -> None:
        self.host, self._events = host, events
        self.errors: deque[str] = deque(maxlen=5)  # what ssh, or the keeper itself, wrote to stderr
        self.is_done = False  # it has said that nothing is left
        self.is_over = False  # nothing comes from it any more
        command, begin = reach.run_program(host, "keeper")
        # A session of its own: Ctrl-C is for the launcher, which then ends things in order.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()
        silent_s = reach.lost_timeout_s if reach.over_ssh else None
        processes = [asdict(each) for each in plans]
        # By stdin: arguments and environments are seen by others.
        self.send(begin, processes=processes, token=str(token or ""), stop_s=stop_s, silent_s=silent_s)

    def send(self, before: bytes = b"", **message: Any) -> None:
        """Sends a message to the keeper, which knows a plan, ``beat`` and ``stop``."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the reader finds out what became of it
            self.process.stdin.write(before + json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def close(self, wait_s: float) -> None:
        """Hangs up, which ends everything there, and ends the program that leads there."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone already
            self.process.stdin.close()
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
                except ValueError:
                    told = None
                if not (isinstance(told, dict) and "event" in told):  # what the shell there prints at its start
                    told = _said(line.decode(errors="replace").rstrip())
                self._events.put((self, told))
        self._events.put((self, None))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as pipe:
            for line in pipe:
                text = line.decode(errors="replace").rstrip()
                self.errors.append(text)
                self._events.put((self, _said(text)))


def _said(text: str) -> dict[str, Any]:
    """A line that no process of the job wrote, in the keeper's words."""
    return {"event": "lines", "name": "", "err": True, "texts": [text]}


# What a job says, on this terminal: whole lines, each with who said it.


_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_NUM_LAST, _MAX_LAST = 200, 1000  # lines of a process that are remembered, and characters of each


class OutputLost(Exception):
    """What processes say can be printed no more; the text says why."""


class Console:
    """Prints lines to stdout and stderr, and remembers the last ones of each process. Colours are for terminals, and
    not where ``NO_COLOR`` is set. What is closed from the beginning is not printed to."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        for file in (self._out, self._err):
            if isinstance(file, io.TextIOWrapper):
                file.reconfigure(errors="backslashreplace")
        self._last: dict[str, deque[str]] = {}
        self._colour: dict[str, int] = {}

    def lines(self, who: str, texts: Sequence[str], is_err: bool) -> None:
        """Prints ``who | text`` for each text, all at once. OutputLost, once, if the reader is gone or the disk full;
        then what goes there is dropped."""
        self._last.setdefault(who, deque(maxlen=_NUM_LAST)).extend(text[:_MAX_LAST] for text in texts[-_NUM_LAST:])
        file = self._err if is_err else self._out
        mark = self._marked(who, file)
        if error := self._print(file, "\n".join(f"{mark} | {text}" for text in texts)):
            raise OutputLost("" if isinstance(error, BrokenPipeError) else f"output cannot be written: {error}")

    def say(self, text: str) -> None:
        self._print(self._err, f"glt launch: {text}")

    def _print(self, file: TextIO | None, text: str) -> OSError | None:
        if file is None:
            return None
        try:
            print(text, file=file, flush=True)
        except OSError as error:
            # What is in the buffer would fail again, at the end of this process.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), file.fileno())
            return error
        return None

    def last_lines(self, who: str) -> tuple[str, ...]:
        return tuple(self._last.get(who, ()))

    def _marked(self, who: str, file: TextIO | None) -> str:
        if file is None or not file.isatty() or os.environ.get("NO_COLOR"):
            return who
        colour = self._colour.setdefault(who, _COLOURS[len(self._colour) % len(_COLOURS)])
        return f"\033[{colour}m{who}\033[0m"


# A process of a job that failed, and what is said of it.


_HINTS = {
    signal.SIGKILL: "out of memory, perhaps: dmesg on its host tells",
    signal.SIGSEGV: "run it with python -X faulthandler to see where",
    signal.SIGABRT: "its last lines tell why, as a rule",
    signal.SIGBUS: "a file that it maps was cut short, or /dev/shm is full",
}
_RANK = re.compile(r"\[rank\d+\]: ?")  # which torch puts before each line of a traceback
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")  # as the last line of a traceback begins
# The exceptions that say that another process, or the way to it, is gone: ours, torch's, and what sockets raise.
_LOSS = re.compile(
    r"glt\.errors\.(PeerLost|ConnectionLost|RendezvousError): |torch\.distributed\.Dist(Network|Store)Error: "
    r"|Broken ?Pipe|Connection ?(closed|reset|refused|aborted)|remote process exited|(Read|Write) error \["
    r"|Timed out waiting|Watchdog caught collective operation timeout|Socket Timeout|timed out after",
    re.IGNORECASE,
)
_ABORT = "  what():  "  # as C++ begins to tell of an exception that was not caught


@dataclass(frozen=True)
class Failure:
    """A process (``who``, as ``trainer-1@host``; ``pid`` 0: none) that failed by itself, with its exit code (of a
    signal the negative), what it or torchrun said of it, and the last lines that it printed."""

    who: str
    pid: int
    code: int
    why: str = ""
    lines: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        return self.code if self.code > 0 else 128 - self.code

    @property
    def has_lost_a_peer(self) -> bool:
        """Whether the last exception that it printed says that another process is gone."""
        if self.code < 0 and self.code != -signal.SIGABRT:
            return False
        lines = [_RANK.sub("", line, count=1) for line in self.lines]
        begin = max((at for at, line in enumerate(lines) if line == _TRACEBACK), default=-1)
        raised = [line for line in lines[begin + 1 :] if _EXCEPTION.match(line)]
        told = raised[:1] if begin >= 0 else raised[-1:]  # after it, the text of an exception may have more lines
        told += [line for line in lines if line.startswith(_ABORT)]
        return any(_LOSS.search(line) for line in told)

    def text(self) -> str:
        pid = f"pid {self.pid} " if self.pid else ""
        return f"{self.who}: {pid}{self._how()}" + (f": {self.why}" if self.why else "")

    def _how(self) -> str:
        if self.code >= 0:
            return f"exited with code {self.code}" if self.pid else f"failed (code {self.code})"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        hint = _HINTS.get(-self.code)  # type: ignore[call-overload]
        return f"was killed by {name}" + (f" ({hint})" if hint else "")


def first_of(failures: Sequence[Failure]) -> Failure:
    """The likely cause of failures that came at about the same time: the one that a signal killed, else the first that
    did not lose a peer. News of what follows from it may come first."""
    by_itself = [each for each in failures if not each.has_lost_a_peer and each.code != -signal.SIGTERM]
    killed = [each for each in by_itself if each.code < 0]
    return [*killed, *by_itself, *failures][0]


TIMED_OUT: Final = 124  # as of timeout(1)
_HOST_LOST, _OUTPUT_LOST = 255, 141  # as of ssh, and of who dies of SIGPIPE
_NUM_SHOWN = 20


class Job:
    """Starts what was planned for each host, with the ``token`` by which the job's processes know each other, prints
    what it says, and stops everything when one part fails. A process has ``stop_s`` seconds to end once it is told to;
    servers have ``drain_s`` once all trainers have ended; the whole job has ``timeout_s`` (None: any time)."""

    def __init__(
        self,
        reach: Reach,
        hosts: Sequence[tuple[Host, Sequence[ProcessPlan]]],
        token: Token | None,
        console: Console,
        stop_s: float,
        drain_s: float,
        timeout_s: float | None,
    ) -> None:
        self._reach, self._hosts, self._token, self._console = reach, hosts, token, console
        self._stop_s, self._drain_s, self._timeout_s = stop_s, drain_s, timeout_s
        self._events: queue.Queue[tuple[HostLink, dict[str, Any] | None]] = queue.Queue(_MAX_QUEUED)
        self._links: list[HostLink] = []
        self._pids: dict[str, int] = {}
        self._waiting = {f"{plan.name}@{host.name}" for host, plans in hosts for plan in plans}
        self._reported: set[str] = set()
        self._failures: list[Failure] = []
        self._settle_at = inf  # when it is said which failure came first
        self._drain_at = inf  # when servers should have ended
        self._give_up_at: float | None = None  # not None: it is being stopped
        self._status: int | None = None  # that of the first failure
        self._left: list[str] = []
        self._signals: list[int] = []
        self._num_heeded = 0

    def run(self) -> int:
        before = {
            each: signal.signal(each, self._receive)
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(each) is not signal.SIG_IGN  # as under nohup
        }
        begin = time.monotonic()
        deadline = begin + (inf if self._timeout_s is None else self._timeout_s)
        every_s = min(deadlines.LAUNCH_BEAT_S, self._reach.lost_timeout_s / 4)
        beat_at = begin + every_s
        try:
            for host, plans in self._hosts:
                self._links.append(HostLink(self._reach, host, plans, self._token, self._stop_s, self._events))
            while self._open:
                self._hear()
                now = time.monotonic()
                if now > beat_at:
                    beat_at = now + every_s
                    for link in self._open:
                        link.send(beat=1)
                self._heed_signals()
                if now > deadline and self._give_up_at is None:
                    self._stop(TIMED_OUT, f"stopped: --timeout {self._timeout_s:g} s are over")
                self._look_after(now)
        finally:
            for link in self._links:
                link.close(deadlines.JOIN_S)
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._report()

    @property
    def _open(self) -> list[HostLink]:
        """The hosts that may tell more."""
        return [link for link in self._links if not link.is_over]

    # What hosts tell.

    def _hear(self) -> None:
        try:
            self._take(*self._events.get(timeout=deadlines.FAST_POLL_S))
        except queue.Empty:
            return
        except OutputLost as error:
            if self._give_up_at is None:
                self._stop(_OUTPUT_LOST, str(error))

    def _take(self, link: HostLink, told: dict[str, Any] | None) -> None:
        if told is None:
            link.is_over = True
            if not link.is_done:
                self._fail(Failure(f"host {link.host.name}", 0, _HOST_LOST, self._why_lost(link)))
            return
        kind = told["event"]
        who = f"{told.get('name', '')}@{link.host.name}".lstrip("@")
        if kind == "lines":
            self._console.lines(who, told["texts"], told["err"])
        elif kind == "started":
            self._pids[who] = told["pid"]
        elif kind == "report":
            self._reported.add(who)
            report, trainer = told["report"], f"trainer-{told['report']['rank']}@{link.host.name}"
            lines = self._console.last_lines(trainer)
            self._fail(Failure(trainer, report["pid"], report["code"], report["message"], lines))
        elif kind == "ended":
            self._waiting.discard(who)
            if told["code"] and who not in self._reported and not told["stopped"]:
                self._fail(Failure(who, self._pids[who], told["code"], "", self._console.last_lines(who)))
        elif kind == "left":
            self._left.append(f"{link.host.name}: pids {', '.join(map(str, told['pids']))}")
        elif kind == "done":
            link.is_done = True
        else:
            raise ValueError(
                f"host {link.host.name} said {kind!r}, which no keeper of this glt says: look at what its "
                "shell prints at its start"
            )

    def _why_lost(self, link: HostLink) -> str:
        said = f" ({link.errors[-1]})" if link.errors else ""
        if self._reach.over_ssh:
            return f"the connection to it ended{said}; what ran there ends by itself"
        return f"the program that keeps the processes of this host (pid {link.process.pid}) ended{said}"

    # How it ends.

    def _fail(self, failure: Failure) -> None:
        """Takes note of a failure; once the job is being stopped, only if it may be the reason and not the result."""
        if self._give_up_at is not None and (self._status is not None or failure.has_lost_a_peer):
            return
        self._failures.append(failure)
        wait_s = deadlines.LAUNCH_CAUSE_S if first_of(self._failures).has_lost_a_peer else deadlines.SETTLE_S
        self._settle_at = min(self._settle_at, time.monotonic() + wait_s)

    def _look_after(self, now: float) -> None:
        if self._give_up_at is not None:
            if now > self._give_up_at:
                for link in self._open:
                    name = link.host.name
                    why = f"it gave no sign within {self._stop_s + deadlines.FORCE_S:g} s"
                    self._fail(Failure(f"host {name}", 0, _HOST_LOST, why))
                    self._left.append(f"{name}: {why}")
                    link.is_over = True
            return
        if now > self._settle_at:
            first = first_of(self._failures)
            self._stop(None, f"{first.text()}; stopping the others")
        is_serving = bool(self._waiting) and not any(who.startswith(TORCHRUN) for who in self._waiting)
        has_trainers = any(plan.name == TORCHRUN for _, plans in self._hosts for plan in plans)
        if has_trainers and is_serving and self._settle_at == inf:
            self._drain_at = min(self._drain_at, now + self._drain_s)
            if now > self._drain_at:
                who = ", ".join(sorted(self._waiting))
                why = f"{who} still ran {self._drain_s:g} s after the last trainer had ended: stopping it"
                self._stop(1, f"{why}; does every trainer call initialize()?")

    def _stop(self, status: int | None, why: str, grace_s: float | None = None) -> None:
        grace_s = self._stop_s if grace_s is None else grace_s
        if self._give_up_at is None:
            self._status = status
        self._give_up_at = time.monotonic() + grace_s + deadlines.FORCE_S
        for link in self._open:
            link.send(stop=grace_s)
        if why:
            self._console.say(why)

    def _receive(self, number: int, frame: object) -> None:
        self._signals.append(number)
        if len(self._signals) > 2:  # and the keepers end what there is
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _heed_signals(self) -> None:
        while self._num_heeded < len(self._signals):
            self._num_heeded += 1
            name = signal.Signals(self._signals[self._num_heeded - 1]).name
            if self._num_heeded == 1:
                status = 128 + self._signals[0]
                self._stop(status, f"{name}: stopping; processes have {self._stop_s:g} s, a second {name} kills them")
            else:
                self._stop(self._status, f"{name} again: killing what is left", 0.0)

    def _report(self) -> int:
        if self._failures:
            first = first_of(self._failures)
            if self._status is None:
                self._status = first.exit_status
            self._console.say(f"failed: {first.text()}")
            if first.lines:
                self._console.say("its last lines:")
                for line in first.lines[-_NUM_SHOWN:]:
                    self._console.say(f"  {line}")
            for each in self._failures:
                if each is not first:
                    self._console.say(f"also failed: {each.text()}")
        for left in self._left:
            self._console.say(f"may still run on {left}")
        return self._status or 0
